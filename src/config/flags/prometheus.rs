//! The flags of the client of Prometheus.

use super::parse::duration;
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// The heading of these flags in the help.
pub const PROMETHEUS: &str = "Prometheus";

/// How to talk to Prometheus.
#[derive(Clone, Debug, Args)]
pub struct PrometheusFlags {
    /// Timeout of a query.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration, help_heading = PROMETHEUS)]
    pub prometheus_timeout: Duration,

    /// File with the trusted CAs of Prometheus, instead of those of the system.
    #[arg(long, value_name = "FILE", help_heading = PROMETHEUS)]
    pub prometheus_ca_file: Option<PathBuf>,

    /// File with the client certificate for Prometheus.
    #[arg(long, value_name = "FILE", requires = "prometheus_client_tls_key_file", help_heading = PROMETHEUS)]
    pub prometheus_client_tls_cert_file: Option<PathBuf>,

    /// File with the private key of --prometheus-client-tls-cert-file.
    #[arg(long, value_name = "FILE", requires = "prometheus_client_tls_cert_file", help_heading = PROMETHEUS)]
    pub prometheus_client_tls_key_file: Option<PathBuf>,

    /// The kubeconfig file used to configure auth when connecting to Prometheus.
    #[arg(long, value_name = "FILE", conflicts_with = "prometheus_auth_incluster", help_heading = PROMETHEUS)]
    pub prometheus_auth_config: Option<PathBuf>,

    /// Use the pod's service account and the cluster's CA for Prometheus.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value_t = false, default_missing_value = "true", require_equals = true, help_heading = PROMETHEUS)]
    pub prometheus_auth_incluster: bool,

    /// Header of every request to Prometheus, as NAME=VALUE. May be repeated.
    #[arg(long, value_name = "NAME=VALUE", help_heading = PROMETHEUS)]
    pub prometheus_header: Vec<String>,

    /// HTTP method of queries to Prometheus. Long queries always use POST.
    #[arg(long, value_enum, default_value_t = PrometheusVerb::Get, ignore_case = true, help_heading = PROMETHEUS)]
    pub prometheus_verb: PrometheusVerb,

    /// File with a bearer token for Prometheus. Reloaded when it changes.
    #[arg(long, value_name = "FILE", help_heading = PROMETHEUS)]
    pub prometheus_token_file: Option<PathBuf>,

    /// Maximum size of a response of Prometheus, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20, help_heading = PROMETHEUS)]
    pub prometheus_max_response_bytes: usize,
}

/// How queries are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PrometheusVerb {
    /// In the address.
    Get,
    /// In the body.
    Post,
}
