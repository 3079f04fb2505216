//! The flags of `plimsoll serve`.

use super::parse::{above_zero, duration, log_level, ratio};
use super::prometheus::{PROMETHEUS, PrometheusFlags};
use crate::control::NativeHpas;
use crate::k8s::SERVICE_ACCOUNT;
use crate::serve::ApiGroup;
use crate::telemetry::LogFormat;
use clap::{Args, ValueEnum};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

// The headings of the help.
const API_SERVER: &str = "API server";
const AUTH: &str = "Authentication and authorization";
const SERVING: &str = "Serving";
const ELECTION: &str = "Leader election";
const AUTOSCALING: &str = "Autoscaling";
const LOGGING: &str = "Logging";

/// The flags of `plimsoll serve`.
#[derive(Clone, Debug, Args)]
pub struct ServeFlags {
    /// Configuration file. If not set, the defaults.
    #[arg(long, value_name = "FILE", help_heading = PROMETHEUS)]
    pub config: Option<PathBuf>,

    /// URL of Prometheus, or of a server with its HTTP API.
    #[arg(long, value_name = "URL", default_value = "http://localhost:9090", help_heading = PROMETHEUS)]
    pub prometheus_url: String,

    #[command(flatten)]
    #[doc(hidden)]
    pub prometheus: PrometheusFlags,

    /// How long query results are cached. Results that API clients read are refreshed shortly before they expire.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration, help_heading = PROMETHEUS)]
    pub sample_max_age: Duration,

    /// How often the series matched by rules are relisted.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration, help_heading = PROMETHEUS)]
    pub metrics_relist_interval: Duration,

    /// Maximum age of the last sample of a listed series. 0s means --metrics-relist-interval.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration, help_heading = PROMETHEUS)]
    pub metrics_max_age: Duration,

    /// Interval at which API discovery is refreshed.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration, help_heading = API_SERVER)]
    pub discovery_interval: Duration,

    /// kubeconfig file for the API server. If not set, the in-cluster configuration is used, else kubectl's.
    #[arg(long, value_name = "FILE", alias = "lister-kubeconfig", help_heading = API_SERVER)]
    pub kubeconfig: Option<PathBuf>,

    /// kubeconfig file pointing at the API server that creates TokenReviews. If not set, --kubeconfig.
    #[arg(long, value_name = "FILE", help_heading = API_SERVER)]
    pub authentication_kubeconfig: Option<PathBuf>,

    /// kubeconfig file pointing at the API server that creates SubjectAccessReviews. If not set, --kubeconfig.
    #[arg(long, value_name = "FILE", help_heading = API_SERVER)]
    pub authorization_kubeconfig: Option<PathBuf>,

    /// Maximum QPS to the API server, without Lease requests. If not set, only the server limits them.
    #[arg(long, value_name = "QPS", value_parser = above_zero, help_heading = API_SERVER)]
    pub client_qps: Option<f64>,

    /// Maximum burst for --client-qps.
    #[arg(long, value_name = "COUNT", default_value_t = 10, help_heading = API_SERVER)]
    pub client_burst: u32,

    /// Do not look up the authentication configuration in the cluster. Use the flags below only.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value_t = false, default_missing_value = "true", require_equals = true, help_heading = AUTH)]
    pub authentication_skip_lookup: bool,

    /// Report ready even if the lookup of the authentication configuration fails.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value_t = false, default_missing_value = "true", require_equals = true, help_heading = AUTH)]
    pub authentication_tolerate_lookup_failure: bool,

    /// How long to cache responses of the token authenticator.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration, help_heading = AUTH)]
    pub authentication_token_webhook_cache_ttl: Duration,

    /// How long to cache 'authorized' responses of the authorizer.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration, help_heading = AUTH)]
    pub authorization_webhook_cache_authorized_ttl: Duration,

    /// How long to cache 'unauthorized' responses of the authorizer.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration, help_heading = AUTH)]
    pub authorization_webhook_cache_unauthorized_ttl: Duration,

    /// HTTP paths to skip during authorization, i.e. these are authorized without contacting the API server.
    #[arg(
        long,
        value_name = "PATHS",
        value_delimiter = ',',
        default_value = "/healthz,/readyz,/livez",
        help_heading = AUTH
    )]
    pub authorization_always_allow_paths: Vec<String>,

    /// Trusted CA of client certificates, in addition to that of the cluster. Reloaded when it changes.
    #[arg(long, value_name = "FILE", help_heading = AUTH)]
    pub client_ca_file: Option<PathBuf>,

    /// Trusted CA of front proxies, instead of that of the cluster. Reloaded when it changes.
    #[arg(long, value_name = "FILE", help_heading = AUTH)]
    pub requestheader_client_ca_file: Option<PathBuf>,

    /// List of client certificate common names that a front proxy may have. If empty, any name is allowed.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', help_heading = AUTH)]
    pub requestheader_allowed_names: Vec<String>,

    /// List of request headers to inspect for usernames.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "x-remote-user", help_heading = AUTH)]
    pub requestheader_username_headers: Vec<String>,

    /// List of request headers to inspect for groups.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "x-remote-group", help_heading = AUTH)]
    pub requestheader_group_headers: Vec<String>,

    /// List of request header prefixes to inspect for extra user info.
    #[arg(long, value_name = "PREFIXES", value_delimiter = ',', default_value = "x-remote-extra-", help_heading = AUTH)]
    pub requestheader_extra_headers_prefix: Vec<String>,

    /// List of request headers to inspect for UIDs.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "x-remote-uid", help_heading = AUTH)]
    pub requestheader_uid_headers: Vec<String>,

    /// IP address to listen on. :: and 0.0.0.0 both mean all IPv6 and IPv4 addresses.
    #[arg(long, value_name = "IP", default_value = "::", help_heading = SERVING)]
    pub bind_address: IpAddr,

    /// IP address at which other replicas copy the decisions of this one when it leads. If not set, that of
    /// --bind-address, unless it means all addresses.
    #[arg(long, value_name = "IP", env = "POD_IP", help_heading = SERVING)]
    pub advertise_address: Option<IpAddr>,

    /// HTTPS port. 0 selects a free port.
    #[arg(long, value_name = "PORT", default_value_t = 6443, help_heading = SERVING)]
    pub secure_port: u16,

    /// File with the serving certificate. If not set, a self-signed certificate is generated and its CA injected into
    /// the APIServices.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file", help_heading = SERVING)]
    pub tls_cert_file: Option<PathBuf>,

    /// File with the private key of --tls-cert-file.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file", help_heading = SERVING)]
    pub tls_private_key_file: Option<PathBuf>,

    /// Directory with the serving certificate as apiserver.crt and apiserver.key. Ignored if --tls-cert-file is set.
    #[arg(long, value_name = "FOLDER", default_value = "apiserver.local.config/certificates", help_heading = SERVING)]
    pub cert_dir: PathBuf,

    /// Minimum TLS version. Values below VersionTLS12 are treated as VersionTLS12.
    #[arg(long, value_enum, default_value_t = TlsVersion::VersionTLS12, help_heading = SERVING)]
    pub tls_min_version: TlsVersion,

    /// Serve HTTP/1.1 only.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value_t = false, default_missing_value = "true", require_equals = true, help_heading = SERVING)]
    pub disable_http2: bool,

    /// Maximum number of concurrent streams of an HTTP/2 connection. 0 means 250.
    #[arg(long, value_name = "COUNT", default_value_t = 0, help_heading = SERVING)]
    pub http2_max_streams_per_connection: u32,

    /// API groups to serve, with or without rules for them. Omit those that another adapter serves.
    #[arg(long, value_name = "GROUPS", value_enum, value_delimiter = ',', default_values_t = ApiGroup::METRICS, help_heading = SERVING)]
    pub metrics_apis: Vec<ApiGroup>,

    /// Namespace of the Service that the APIServices name. If not set, that of the pod, or plimsoll outside of a pod.
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE", help_heading = SERVING)]
    pub service_namespace: Option<String>,

    /// Name of the Service that the APIServices name.
    #[arg(long, value_name = "NAME", default_value = "plimsoll", help_heading = SERVING)]
    pub service_name: String,

    /// How native HorizontalPodAutoscalers are handled: decide and compare with kube-controller-manager (observe),
    /// decide and scale (manage), or serve their metrics only (ignore).
    #[arg(long, value_enum, default_value_t = NativeHpas::Observe, help_heading = AUTOSCALING)]
    pub native_hpas: NativeHpas,

    /// Elect a leader; only the leader writes. If false, run one replica only.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value_t = true, default_missing_value = "true", require_equals = true, help_heading = ELECTION)]
    pub leader_elect: bool,

    /// How long non-leaders wait after the last renewal before trying to acquire leadership. Whole seconds.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration, help_heading = ELECTION)]
    pub leader_elect_lease_duration: Duration,

    /// How long the leader retries renewing the Lease before it stops writing. Must be less than
    /// --leader-elect-lease-duration.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration, help_heading = ELECTION)]
    pub leader_elect_renew_deadline: Duration,

    /// How often the Lease is renewed or tried. Must be less than half of --leader-elect-renew-deadline.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration, help_heading = ELECTION)]
    pub leader_elect_retry_period: Duration,

    /// Name of the Lease. The scaling history is in the ConfigMap NAME-memory.
    #[arg(long, value_name = "NAME", default_value = "plimsoll", help_heading = ELECTION)]
    pub leader_elect_resource_name: String,

    /// Namespace of the Lease and the ConfigMap. If not set, --service-namespace.
    #[arg(long, value_name = "NAME", help_heading = ELECTION)]
    pub leader_elect_resource_namespace: Option<String>,

    /// How often the scaling history is persisted; also soon after a change of a scale. 0s keeps it in memory only.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration, help_heading = ELECTION)]
    pub memory_interval: Duration,

    /// Sync period of autoscalers that set none.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration, help_heading = AUTOSCALING)]
    pub horizontal_pod_autoscaler_sync_period: Duration,

    /// Minimum interval between status updates that change only metric values. Decisions and conditions are written
    /// at once.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration, help_heading = AUTOSCALING)]
    pub status_interval: Duration,

    /// Minimum change (from 1.0) in the desired-to-actual metrics ratio for an autoscaler to consider scaling.
    #[arg(long, value_name = "RATIO", default_value_t = 0.1, value_parser = ratio, help_heading = AUTOSCALING)]
    pub horizontal_pod_autoscaler_tolerance: f64,

    /// Period for which past recommendations are considered; an autoscaler does not scale down below any of them.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration, help_heading = AUTOSCALING)]
    pub horizontal_pod_autoscaler_downscale_stabilization: Duration,

    /// Period after pod start during which CPU samples may be skipped.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration, help_heading = AUTOSCALING)]
    pub horizontal_pod_autoscaler_cpu_initialization_period: Duration,

    /// Period after pod start during which readiness changes are treated as initial readiness.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration, help_heading = AUTOSCALING)]
    pub horizontal_pod_autoscaler_initial_readiness_delay: Duration,

    /// Allow scaling to and from zero (as the feature gate HPAScaleToZero).
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, help_heading = AUTOSCALING)]
    pub scale_to_zero: bool,

    /// Memory for decisions, which `kubectl get decisions` shows, in bytes. The oldest are dropped first.
    /// 0 keeps none.
    #[arg(long, value_name = "BYTES", default_value_t = 150_000_000, help_heading = AUTOSCALING)]
    pub decision_ledger_bytes: usize,

    /// File to log each decision to, as a line of JSON with all its inputs, for plimsoll replay. - means standard
    /// output. Its directory must exist and be writable. If not set, decisions are not logged.
    #[arg(long, value_name = "FILE", help_heading = AUTOSCALING)]
    pub decision_log: Option<PathBuf>,

    /// Maximum size of all files of --decision-log in bytes, at least 8 MiB. FILE is rotated to FILE.1 to FILE.7. On
    /// a full disk the oldest file is removed; if it can't be rotated, decisions are dropped.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 30, help_heading = AUTOSCALING)]
    pub decision_log_max_bytes: u64,

    /// Maximum number of Autoscalers with metrics of their own (plimsoll_autoscaler_*), in the order of namespace and
    /// name; 0 for none. Each has about 10 series, and 2 for each metric.
    #[arg(long, value_name = "COUNT", default_value_t = 1000, help_heading = AUTOSCALING)]
    pub autoscaler_metrics_limit: usize,

    /// Log verbosity as in klog: 4 and above is --log-level=debug, 8 and above trace.
    #[arg(short, long, value_name = "LEVEL", default_value_t = 0, help_heading = LOGGING)]
    pub v: u8,

    /// Log format.
    #[arg(long, value_enum, default_value_t = LogFormat::Text, help_heading = LOGGING)]
    pub log_format: LogFormat,

    /// Log level: off, error, warn, info, debug or trace, also by module (plimsoll::serve=debug).
    #[arg(long, value_name = "FILTER", default_value = "info", env = "PLIMSOLL_LOG", value_parser = log_level, help_heading = LOGGING)]
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
    /// TLS 1.0, treated as 1.2.
    #[value(name = "VersionTLS10")]
    VersionTLS10,
    /// TLS 1.0, treated as 1.2.
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
