//! The command line. Where prometheus-adapter or kube-controller-manager has a
//! flag for a thing, ours has the same name.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Prometheus-native custom metrics adapter and autoscaler for Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "plimsoll", version, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// What to do; without one, serve.
    #[command(subcommand)]
    pub command: Option<Command>,

    #[command(flatten)]
    #[doc(hidden)]
    pub serve: ServeFlags,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve the metrics APIs and run the control loop (the default).
    Serve(Box<ServeFlags>),
    /// Print the CustomResourceDefinition of Autoscaler.
    Crd,
}

/// The flags of `plimsoll serve`.
#[derive(Clone, Debug, Args)]
pub struct ServeFlags {
    /// The configuration file; without one, the defaults.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// The address of Prometheus, or of anything with its HTTP API.
    #[arg(long, value_name = "URL", default_value = "http://localhost:9090")]
    pub prometheus_url: String,

    /// How long a query may take.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub prometheus_timeout: Duration,

    /// Certificate authorities to trust when talking to Prometheus, instead of those of the system.
    #[arg(long, value_name = "FILE")]
    pub prometheus_ca_file: Option<PathBuf>,

    /// A file with a bearer token for Prometheus; read again when it changes.
    #[arg(long, value_name = "FILE")]
    pub prometheus_token_file: Option<PathBuf>,

    /// The largest answer taken from Prometheus, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    pub prometheus_max_response_bytes: usize,

    /// How old an answer may be to be used again.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration)]
    pub sample_max_age: Duration,

    /// How to reach the API server; without one, as a pod does, or as kubectl does.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// The address to listen on.
    #[arg(long, value_name = "IP", default_value = "0.0.0.0")]
    pub bind_address: IpAddr,

    /// The port to serve HTTPS on; 0 takes a free one.
    #[arg(long, value_name = "PORT", default_value_t = 6443)]
    pub secure_port: u16,

    /// The serving certificate; without one, a self-made one whose CA is written to the APIServices.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,

    /// The key of the serving certificate.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,

    /// The namespace of the Service that the APIServices name.
    #[arg(long, value_name = "NAME", default_value = "plimsoll", env = "POD_NAMESPACE")]
    pub service_namespace: String,

    /// The Service that the APIServices name.
    #[arg(long, value_name = "NAME", default_value = "plimsoll")]
    pub service_name: String,

    /// What is done with native HorizontalPodAutoscalers.
    #[arg(long, value_enum, default_value_t = NativeHpas::Observe)]
    pub native_hpas: NativeHpas,

    /// The time between two decisions for an autoscaler that sets none.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration)]
    pub horizontal_pod_autoscaler_sync_period: Duration,

    /// By which ratio a metric may be off its target without a change.
    #[arg(long, value_name = "RATIO", default_value_t = 0.1)]
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

    /// How logs are written.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// What is logged: off, error, warn, info, debug or trace, also by module (plimsoll::serve=debug).
    #[arg(long, value_name = "FILTER", default_value = "info", env = "PLIMSOLL_LOG")]
    pub log_level: String,
}

/// What is done with native HorizontalPodAutoscalers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NativeHpas {
    /// Decide beside kube-controller-manager, write nothing, publish how the two compare.
    Observe,
    /// Decide and write, for clusters whose own HPA controller is off.
    Manage,
    /// Serve their metrics and no more.
    Ignore,
}

/// How logs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A line for a person.
    Text,
    /// A JSON object a line.
    Json,
}

/// A duration as Go writes it: `15s`, `5m0s`, `1h30m`, `250ms`.
fn duration(text: &str) -> Result<Duration, String> {
    let expected = "a duration was expected, such as 250ms, 15s or 5m";
    let duration: jiff::SignedDuration = text.parse().map_err(|_| expected.to_owned())?;
    Duration::try_from(duration).map_err(|_| format!("{expected}; it can't be negative"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn serving_is_what_is_done_without_a_subcommand() {
        let bare = Cli::try_parse_from(["plimsoll", "--secure-port", "7443"]).unwrap();
        assert!(bare.command.is_none());
        assert_eq!(bare.serve.secure_port, 7443);
        let named = Cli::try_parse_from(["plimsoll", "serve", "--secure-port=7443"]).unwrap();
        assert!(matches!(named.command, Some(Command::Serve(flags)) if flags.secure_port == 7443));
    }

    #[test]
    fn durations_are_written_as_in_go() {
        assert_eq!(duration("5m0s"), Ok(Duration::from_secs(300)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert!(duration("15").unwrap_err().contains("such as"));
        assert!(duration("-1s").unwrap_err().contains("negative"));
    }
}
