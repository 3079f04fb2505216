//! The flags of the client of Prometheus.

use super::parse::duration;
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// How to talk to Prometheus.
#[derive(Clone, Debug, Args)]
pub struct PrometheusFlags {
    /// How long a query may take.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub prometheus_timeout: Duration,

    /// Certificate authorities to trust when talking to Prometheus, instead of those of the system.
    #[arg(long, value_name = "FILE")]
    pub prometheus_ca_file: Option<PathBuf>,

    /// The client certificate to show to Prometheus.
    #[arg(long, value_name = "FILE", requires = "prometheus_client_tls_key_file")]
    pub prometheus_client_tls_cert_file: Option<PathBuf>,

    /// The key of that certificate.
    #[arg(long, value_name = "FILE", requires = "prometheus_client_tls_cert_file")]
    pub prometheus_client_tls_key_file: Option<PathBuf>,

    /// The kubeconfig file used to configure auth when connecting to Prometheus.
    #[arg(long, value_name = "FILE", conflicts_with = "prometheus_auth_incluster")]
    pub prometheus_auth_config: Option<PathBuf>,

    /// Talk to Prometheus as the pod's service account, trusting the cluster's CA.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value_t = false, default_missing_value = "true", require_equals = true)]
    pub prometheus_auth_incluster: bool,

    /// A header of every request to Prometheus, as NAME=VALUE; may be repeated.
    #[arg(long, value_name = "NAME=VALUE")]
    pub prometheus_header: Vec<String>,

    /// How queries are sent to Prometheus; long ones are posted either way.
    #[arg(long, value_enum, default_value_t = PrometheusVerb::Get, ignore_case = true)]
    pub prometheus_verb: PrometheusVerb,

    /// A file with a bearer token for Prometheus; read again when it changes.
    #[arg(long, value_name = "FILE")]
    pub prometheus_token_file: Option<PathBuf>,

    /// The largest answer taken from Prometheus, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
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
