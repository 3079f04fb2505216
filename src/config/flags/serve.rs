//! The flags of `plimsoll serve`.

use super::parse::{above_zero, duration, log_level, ratio};
use super::prometheus::PrometheusFlags;
use crate::control::NativeHpas;
use crate::k8s::SERVICE_ACCOUNT;
use crate::serve::ApiGroup;
use crate::telemetry::LogFormat;
use clap::{Args, ValueEnum};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The flags of `plimsoll serve`.
#[derive(Clone, Debug, Args)]
pub struct ServeFlags {
    /// The configuration file; without one, the defaults.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// The address of Prometheus, or of anything with its HTTP API.
    #[arg(long, value_name = "URL", default_value = "http://localhost:9090")]
    pub prometheus_url: String,

    #[command(flatten)]
    #[doc(hidden)]
    pub prometheus: PrometheusFlags,

    /// How old an answer may be to be used again. One that a client of the API reads shortly before that is asked
    /// for anew meanwhile.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration)]
    pub sample_max_age: Duration,

    /// The time between two listings of the series that rules speak of.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    pub metrics_relist_interval: Duration,

    /// How far back such a series may have had its last sample; 0s is the time between two listings.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    pub metrics_max_age: Duration,

    /// The time between two readings of the cluster's discovery.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    pub discovery_interval: Duration,

    /// How to reach the API server; without one, as a pod does, or as kubectl does.
    #[arg(long, value_name = "FILE", alias = "lister-kubeconfig")]
    pub kubeconfig: Option<PathBuf>,

    /// How to reach the API server to ask who somebody is, where that differs.
    #[arg(long, value_name = "FILE")]
    pub authentication_kubeconfig: Option<PathBuf>,

    /// How to reach the API server to ask what somebody may do, where that differs.
    #[arg(long, value_name = "FILE")]
    pub authorization_kubeconfig: Option<PathBuf>,

    /// Requests to the API server each second, besides those about the Lease; without it there is no
    /// limit but the server's own.
    #[arg(long, value_name = "QPS", value_parser = above_zero)]
    pub client_qps: Option<f64>,

    /// How many requests may come at once under --client-qps.
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    pub client_burst: u32,

    /// Do not read whom to believe from the cluster, but only from the flags below.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value_t = false, default_missing_value = "true", require_equals = true)]
    pub authentication_skip_lookup: bool,

    /// Be ready even where it can't be read from the cluster whom to believe.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value_t = false, default_missing_value = "true", require_equals = true)]
    pub authentication_tolerate_lookup_failure: bool,

    /// How long an answer about a token is believed.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub authentication_token_webhook_cache_ttl: Duration,

    /// How long it is believed that somebody may do something.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub authorization_webhook_cache_authorized_ttl: Duration,

    /// How long it is believed that somebody may not.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub authorization_webhook_cache_unauthorized_ttl: Duration,

    /// Paths that anybody may read.
    #[arg(
        long,
        value_name = "PATHS",
        value_delimiter = ',',
        default_value = "/healthz,/readyz,/livez"
    )]
    pub authorization_always_allow_paths: Vec<String>,

    /// A CA whose client certificates name users, besides that of the cluster; read again when it changes.
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,

    /// The CA of front proxies, instead of that of the cluster; read again when it changes.
    #[arg(long, value_name = "FILE")]
    pub requestheader_client_ca_file: Option<PathBuf>,

    /// The common names that a front proxy may have; any, if none is given.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub requestheader_allowed_names: Vec<String>,

    /// The headers in which a front proxy names the user.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "x-remote-user")]
    pub requestheader_username_headers: Vec<String>,

    /// The headers in which a front proxy names the user's groups.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "x-remote-group")]
    pub requestheader_group_headers: Vec<String>,

    /// What the headers begin with in which a front proxy says more of the user.
    #[arg(long, value_name = "PREFIXES", value_delimiter = ',', default_value = "x-remote-extra-")]
    pub requestheader_extra_headers_prefix: Vec<String>,

    /// The headers in which a front proxy says the user's UID.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "x-remote-uid")]
    pub requestheader_uid_headers: Vec<String>,

    /// The address to listen on; :: and 0.0.0.0 both stand for all of IPv6 and IPv4.
    #[arg(long, value_name = "IP", default_value = "::")]
    pub bind_address: IpAddr,

    /// The address at which the other replicas reach this one, to copy its decisions when it leads. Without it,
    /// that of --bind-address, unless it stands for all.
    #[arg(long, value_name = "IP", env = "POD_IP")]
    pub advertise_address: Option<IpAddr>,

    /// The port to serve HTTPS on; 0 takes a free one.
    #[arg(long, value_name = "PORT", default_value_t = 6443)]
    pub secure_port: u16,

    /// The serving certificate; without one, a self-made one whose CA is written to the APIServices.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,

    /// The key of the serving certificate.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,

    /// A folder with the serving certificate as apiserver.crt and apiserver.key.
    #[arg(long, value_name = "FOLDER", default_value = "apiserver.local.config/certificates")]
    pub cert_dir: PathBuf,

    /// The oldest version of TLS that is spoken; 1.2 is the oldest there is here.
    #[arg(long, value_enum, default_value_t = TlsVersion::VersionTLS12)]
    pub tls_min_version: TlsVersion,

    /// Speak HTTP/1.1 alone.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value_t = false, default_missing_value = "true", require_equals = true)]
    pub disable_http2: bool,

    /// How many requests run at once on one HTTP/2 connection; 0 is 250.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub http2_max_streams_per_connection: u32,

    /// The API groups to serve, with or without rules for them; leave out those that
    /// another adapter serves.
    #[arg(long, value_name = "GROUPS", value_enum, value_delimiter = ',', default_values_t = ApiGroup::METRICS)]
    pub metrics_apis: Vec<ApiGroup>,

    /// The namespace of the Service that the APIServices name. Without it, that of the pod's
    /// service account; outside of a pod, plimsoll.
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE")]
    pub service_namespace: Option<String>,

    /// The Service that the APIServices name.
    #[arg(long, value_name = "NAME", default_value = "plimsoll")]
    pub service_name: String,

    /// What is done with native HorizontalPodAutoscalers.
    #[arg(long, value_enum, default_value_t = NativeHpas::Observe)]
    pub native_hpas: NativeHpas,

    /// Whether only the replica that holds the Lease writes; without, run one replica alone.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value_t = true, default_missing_value = "true", require_equals = true)]
    pub leader_elect: bool,

    /// How long others leave the Lease alone after it was renewed, in whole seconds.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration)]
    pub leader_elect_lease_duration: Duration,

    /// How long the leader tries to renew the Lease before it stops writing; less than --leader-elect-lease-duration.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub leader_elect_renew_deadline: Duration,

    /// The time between two renewals; less than half the deadline.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration)]
    pub leader_elect_retry_period: Duration,

    /// The name of the Lease, and of the ConfigMap NAME-memory in which the leader
    /// keeps the scaling history.
    #[arg(long, value_name = "NAME", default_value = "plimsoll")]
    pub leader_elect_resource_name: String,

    /// The namespace of both; without it --service-namespace.
    #[arg(long, value_name = "NAME")]
    pub leader_elect_resource_namespace: Option<String>,

    /// The time between two writes of the scaling history; it is written soon
    /// after a change of a scale, too. 0s keeps it in the process alone.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub memory_interval: Duration,

    /// The time between two decisions for an autoscaler that sets none.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration)]
    pub horizontal_pod_autoscaler_sync_period: Duration,

    /// The least time between two writes of a status in which only measured numbers
    /// moved; decisions and conditions are written at once.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub status_interval: Duration,

    /// By which ratio a metric may be off its target without a change.
    #[arg(long, value_name = "RATIO", default_value_t = 0.1, value_parser = ratio)]
    pub horizontal_pod_autoscaler_tolerance: f64,

    /// For how long the highest recommendation holds a scale-down.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    pub horizontal_pod_autoscaler_downscale_stabilization: Duration,

    /// How long after its start a pod's CPU may be that of its start-up.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    pub horizontal_pod_autoscaler_cpu_initialization_period: Duration,

    /// How long after its start a pod's readiness may be its first one.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub horizontal_pod_autoscaler_initial_readiness_delay: Duration,

    /// Whether workloads may be scaled to and from zero (HPAScaleToZero).
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub scale_to_zero: bool,

    /// How many bytes of memory the accounts of decisions may take, which `kubectl get decisions` shows. The
    /// oldest are dropped first. With 0 none are kept.
    #[arg(long, value_name = "BYTES", default_value_t = 150_000_000)]
    pub decision_ledger_bytes: usize,

    /// A file to which each decision is written as a line of JSON with all its inputs, for plimsoll replay; -
    /// is the standard output. Its folder must be there and writable. Without it there is none.
    #[arg(long, value_name = "FILE")]
    pub decision_log: Option<PathBuf>,

    /// How many bytes the files of --decision-log may have together, at least 8 MiB; FILE is rotated to FILE.1 to
    /// FILE.7. On a full disk the oldest file is dropped; where it can't be rotated, decisions are.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 30)]
    pub decision_log_max_bytes: u64,

    /// The number of Autoscalers that have metrics of their own (plimsoll_autoscaler_*), in the order of namespace
    /// and name; 0 for none. Each has about 10 series, and 2 for each metric.
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    pub autoscaler_metrics_limit: usize,

    /// How much is logged, in klog's numbers: from 4 on as --log-level=debug, from 8 on trace.
    #[arg(short, long, value_name = "LEVEL", default_value_t = 0)]
    pub v: u8,

    /// How logs are written.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// What is logged: off, error, warn, info, debug or trace, also by module (plimsoll::serve=debug).
    #[arg(long, value_name = "FILTER", default_value = "info", env = "PLIMSOLL_LOG", value_parser = log_level)]
    pub log_level: String,
}

impl ServeFlags {
    /// The log filter.
    ///
    /// kube logs requests and watches that fail, with whole objects and each attempt, and so does its caller in
    /// words. The former is filtered out unless the filter names that crate.
    pub fn log_filter(&self) -> String {
        let given = match self.v {
            0..=3 => &self.log_level,
            4..=7 => "info,plimsoll=debug",
            _ => "info,plimsoll=trace",
        };
        let named = |(krate, _): &(&str, &str)| !given.contains(krate);
        let own = [("kube_client", "client"), ("kube_runtime", "watcher")].into_iter();
        own.filter(named)
            .fold(given.to_owned(), |filter, (krate, of)| format!("{filter},{krate}::{of}=off"))
    }

    /// The namespace of the Service: that of the flag, or of the pod.
    pub fn service_namespace(&self) -> String {
        let file = Path::new(SERVICE_ACCOUNT).join("namespace");
        let of_pod = || Some(std::fs::read_to_string(file).ok()?.trim().to_owned());
        let given = self.service_namespace.clone().or_else(of_pod);
        given.filter(|name| !name.is_empty()).unwrap_or_else(|| "plimsoll".to_owned())
    }

    /// How far back the last sample of a rule's series may be.
    pub fn series_max_age(&self) -> Duration {
        if self.metrics_max_age.is_zero() {
            self.metrics_relist_interval
        } else {
            self.metrics_max_age
        }
    }
}

/// A version of TLS, as Go's configuration names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(clippy::enum_variant_names)] // the names are the values of the flag
pub enum TlsVersion {
    /// TLS 1.0; 1.2 is spoken instead.
    #[value(name = "VersionTLS10")]
    VersionTLS10,
    /// TLS 1.1; 1.2 is spoken instead.
    #[value(name = "VersionTLS11")]
    VersionTLS11,
    /// TLS 1.2.
    #[value(name = "VersionTLS12")]
    VersionTLS12,
    /// TLS 1.3.
    #[value(name = "VersionTLS13")]
    VersionTLS13,
}

#[cfg(test)]
mod tests {
    use super::super::{Cli, Command, PrometheusVerb};
    use super::*;
    use clap::Parser;

    fn served(line: &str) -> ServeFlags {
        match Cli::try_parse_from(line.split_whitespace()).expect("flags of serve").command {
            Command::Serve(flags) => *flags,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_kube_logs_itself_is_logged_only_on_request() {
        let filter = |line: &str| served(line).log_filter();
        let quiet = "info,kube_client::client=off,kube_runtime::watcher=off";
        assert_eq!(filter("plimsoll serve"), quiet);
        let line = "plimsoll serve --log-level=info,kube_client=debug";
        assert_eq!(filter(line), "info,kube_client=debug,kube_runtime::watcher=off");
        let line = "plimsoll serve --log-level=info,kube_client=warn,kube_runtime=debug";
        assert_eq!(filter(line), "info,kube_client=warn,kube_runtime=debug");
    }

    #[test]
    fn flags_are_parsed_as_go_parses_them() {
        let given = "plimsoll serve -v=6 --secure-port=1 --secure-port 2 --prometheus-auth-incluster \
                     --disable-http2=false --prometheus-header=A=b --prometheus-header C=d \
                     --prometheus-verb=POST --tls-min-version=VersionTLS13 --client-qps=50";
        let flags = served(given);
        assert_eq!(flags.secure_port, 2);
        assert!(flags.log_filter().starts_with("info,plimsoll=debug,"));
        assert!(flags.prometheus.prometheus_auth_incluster && !flags.disable_http2);
        assert_eq!(flags.prometheus.prometheus_header, ["A=b", "C=d"]);
        assert_eq!(flags.prometheus.prometheus_verb, PrometheusVerb::Post);
        assert_eq!(flags.client_qps, Some(50.0));
    }

    /// With an infinite tolerance no decision could be read again from JSON.
    #[test]
    fn numbers_that_are_none_are_refused() {
        for flag in ["--horizontal-pod-autoscaler-tolerance", "--client-qps"] {
            for wrong in ["inf", "NaN", "-1", "x"] {
                let line = format!("plimsoll serve {flag}={wrong}");
                let parsed = Cli::try_parse_from(line.split_whitespace());
                assert!(parsed.is_err(), "{line}");
            }
        }
        let flags = served("plimsoll serve --horizontal-pod-autoscaler-tolerance=0");
        assert_eq!(flags.horizontal_pod_autoscaler_tolerance, 0.0);
    }
}
