//! The flags of the commands other than `serve`.

use super::kubectl::{CLUSTER, KubectlFlags};
use super::parse::{Moment, duration, duration_back, moment, server_url};
use super::prometheus::PrometheusFlags;
use clap::{ArgGroup, Args, ValueEnum};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How a command reaches the cluster, and Plimsoll in it.
#[derive(Clone, Debug, Args)]
pub struct ClusterFlags {
    #[command(flatten)]
    #[doc(hidden)]
    pub kubectl: KubectlFlags,

    /// Namespace that Plimsoll is installed in.
    #[arg(long, value_name = "NAME", default_value = "plimsoll", env = "PLIMSOLL_NAMESPACE", help_heading = CLUSTER)]
    pub plimsoll_namespace: String,

    /// Name of Plimsoll's Lease.
    #[arg(long, value_name = "NAME", default_value = "plimsoll", env = "PLIMSOLL_LEASE", help_heading = CLUSTER)]
    pub lease: String,
}

/// Which autoscalers a command is about.
#[derive(Clone, Debug, Args)]
pub struct ObjectFlags {
    /// NAME, TYPE/NAME or TYPE NAME, and more of them. TYPE is autoscaler (the default) or hpa.
    #[arg(value_name = "[TYPE/]NAME", required_unless_present = "selector")]
    pub names: Vec<String>,

    /// Label selector, instead of names, such as team=web,tier!=test.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,

    /// Namespace. If not set, that of the context.
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,

    /// All namespaces, with --selector.
    #[arg(short = 'A', long, requires = "selector", conflicts_with = "namespace")]
    pub all_namespaces: bool,

    #[command(flatten)]
    #[doc(hidden)]
    pub cluster: ClusterFlags,
}

/// The flags of `plimsoll status`.
#[derive(Clone, Debug, Args)]
pub struct StatusFlags {
    /// Namespace of the Autoscalers. If not set, all namespaces.
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,

    /// All namespaces, which is the default.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,

    /// Label selector of the Autoscalers.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = TableFormat::Text)]
    pub output: TableFormat,

    #[command(flatten)]
    #[doc(hidden)]
    pub cluster: ClusterFlags,
}

/// The flags of `plimsoll version`.
#[derive(Clone, Debug, Args)]
pub struct VersionFlags {
    /// Print the version of this command only, without a request to the cluster.
    #[arg(long)]
    pub client: bool,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,

    #[command(flatten)]
    #[doc(hidden)]
    pub kubectl: KubectlFlags,
}

/// The flags of `plimsoll check-cluster`.
#[derive(Clone, Debug, Args)]
pub struct CheckClusterFlags {
    /// URL of Prometheus as this machine reaches it. If not set, Plimsoll's own is reached by the proxy of the API
    /// server, where that is allowed.
    #[arg(long, value_name = "URL", value_parser = server_url)]
    pub prometheus_url: Option<String>,

    #[command(flatten)]
    #[doc(hidden)]
    pub prometheus: PrometheusFlags,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,

    #[command(flatten)]
    #[doc(hidden)]
    pub cluster: ClusterFlags,
}

/// The flags of `plimsoll explain`.
#[derive(Clone, Debug, Args)]
pub struct ExplainFlags {
    #[command(flatten)]
    #[doc(hidden)]
    pub object: ObjectFlags,

    /// Time to explain: RFC 3339, a date in UTC, or a duration ago such as -2h. Default: now.
    #[arg(long, value_name = "TIME", value_parser = moment, allow_hyphen_values = true)]
    pub at: Option<Moment>,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,
}

/// The flags of `plimsoll history`.
#[derive(Clone, Debug, Args)]
pub struct HistoryFlags {
    #[command(flatten)]
    #[doc(hidden)]
    pub object: ObjectFlags,

    /// Duration to look back.
    #[arg(long, value_name = "DURATION", value_parser = duration_back, default_value = "24h",
        allow_hyphen_values = true)]
    pub since: Duration,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,
}

/// The flags of `plimsoll compare`.
#[derive(Clone, Debug, Args)]
pub struct CompareFlags {
    /// Namespace. If not set, that of the context.
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,

    /// All namespaces.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,

    /// Duration to look back.
    #[arg(long, value_name = "DURATION", value_parser = duration_back, default_value = "24h",
        allow_hyphen_values = true)]
    pub since: Duration,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,

    #[command(flatten)]
    #[doc(hidden)]
    pub cluster: ClusterFlags,
}

/// The flags of `plimsoll pause`.
#[derive(Clone, Debug, Args)]
pub struct PauseFlags {
    #[command(flatten)]
    #[doc(hidden)]
    pub object: ObjectFlags,

    /// Reason, shown in the condition `Paused`.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,

    /// End the pause after this duration. Default: until `plimsoll resume`.
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    pub until_after: Option<Duration>,
}

/// The flags of `plimsoll freeze`.
#[derive(Clone, Debug, Args)]
pub struct FreezeFlags {
    /// Reason, shown in the condition `Frozen` of each Autoscaler.
    pub reason: String,

    /// End the freeze after this duration. Default: until `plimsoll thaw`.
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    pub until_after: Option<Duration>,

    /// Create the Lease if it does not exist, so that a Plimsoll that starts later is frozen.
    #[arg(long)]
    pub create: bool,

    #[command(flatten)]
    #[doc(hidden)]
    pub cluster: ClusterFlags,
}

/// The flags of `plimsoll replay`.
#[derive(Clone, Debug, Args)]
pub struct ReplayFlags {
    /// Decision log. - means standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// The flags of `plimsoll ui`.
#[derive(Clone, Debug, Args)]
pub struct UiFlags {
    /// Show only the Autoscalers of this namespace. Default: all namespaces.
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,

    /// Show the autoscalers of all namespaces, which is the default.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,

    /// Port on 127.0.0.1. 0 selects a free port.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub port: u16,

    /// Print the address without opening a browser.
    #[arg(long)]
    pub no_browser: bool,

    #[command(flatten)]
    #[doc(hidden)]
    pub kubectl: KubectlFlags,

    /// URL of the Prometheus with the recorded load, to try edited specs as plimsoll backtest does.
    #[arg(long, value_name = "URL")]
    pub prometheus_url: Option<String>,

    #[command(flatten)]
    #[doc(hidden)]
    pub prometheus: PrometheusFlags,

    /// Configuration file of the server, for the labels and templates of queries (podMetrics).
    #[arg(long, value_name = "FILE", requires = "prometheus_url")]
    pub config: Option<PathBuf>,
}

/// The flags of `plimsoll convert`.
#[derive(Clone, Debug, Args)]
#[command(group(ArgGroup::new("converted").args(["files", "filename"]).required(true).multiple(true)))]
pub struct ConvertFlags {
    /// Files with HorizontalPodAutoscalers and ScaledObjects. - means standard input.
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// The same. May be repeated: -f a.yaml -f b.yaml.
    #[arg(short = 'f', long, value_name = "FILE")]
    pub filename: Vec<PathBuf>,

    /// Namespace of objects without one, as `kubectl apply -n` sets it.
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,

    /// Write the Autoscalers with mode: Preview: they are evaluated, and scale nothing. One that is paused stays paused.
    #[arg(long)]
    pub preview: bool,

    /// URL of the Prometheus that Plimsoll queries. A ScaledObject with another server, or any if this is not set,
    /// becomes a preview. Repeat it for each URL that objects use; a Service is the same with .svc and
    /// .svc.cluster.local.
    #[arg(long, value_name = "URL", value_parser = server_url)]
    pub prometheus_url: Vec<String>,
}

impl ConvertFlags {
    /// The files: those without a flag first.
    pub fn all_files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().chain(&self.filename).map(PathBuf::as_path)
    }
}

/// The flags of `plimsoll check`.
#[derive(Clone, Debug, Args)]
#[command(group(ArgGroup::new("checked").args(["file", "config", "objects"]).required(true).multiple(true)))]
pub struct CheckFlags {
    /// Configuration file. With -f it also sets the labels, shared namespaces and rules for the queries of these
    /// files. If not set, the default labels. - means standard input.
    #[arg(value_name = "CONFIG")]
    pub file: Option<PathBuf>,

    /// The same as CONFIG, under the name that it has for plimsoll serve.
    #[arg(long, value_name = "FILE", conflicts_with = "file")]
    pub config: Option<PathBuf>,

    /// File with Autoscalers and MetricRules, or a folder with such files. - means standard input. May be repeated:
    /// -f a.yaml -f b.yaml.
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    pub objects: Vec<PathBuf>,

    /// Namespace of objects in -f without one. Objects of another namespace are refused, as in kubectl.
    #[arg(short, long, value_name = "NAME", requires = "objects")]
    pub namespace: Option<String>,

    /// Check the Autoscalers of -f against the cluster: other writers of the replicas, other autoscalers, missing
    /// requests, pods of other workloads. Implied by --kubeconfig, --context and --as.
    #[arg(long, requires = "objects")]
    pub cluster: bool,

    /// Scrape interval, to warn of ranges with fewer than two samples.
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    pub scrape_interval: Duration,

    /// URL of a Prometheus to list series from and to run each query once. If not set, queries are only parsed.
    #[arg(long, value_name = "URL", alias = "prometheus")]
    pub prometheus_url: Option<String>,

    #[command(flatten)]
    #[doc(hidden)]
    pub prometheus: PrometheusFlags,

    #[command(flatten)]
    #[doc(hidden)]
    pub kubectl: KubectlFlags,

    /// Fail on warnings, too, and if Prometheus does not answer for the objects of -f.
    #[arg(long)]
    pub strict: bool,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,
}

impl CheckFlags {
    /// The configuration file.
    pub fn config_file(&self) -> Option<&Path> {
        self.file.as_deref().or(self.config.as_deref())
    }

    /// Whether to look at the cluster around the Autoscalers.
    pub fn looks_around(&self) -> bool {
        (self.cluster || self.kubectl.is_given()) && !self.objects.is_empty()
    }
}

/// How a result is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Human-readable.
    Text,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// How a list of objects is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TableFormat {
    /// Human-readable, as wide as the terminal.
    Text,
    /// The same with all objects and their whole messages.
    Wide,
    /// Type and name of each object.
    Name,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}
