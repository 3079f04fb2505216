//! The flags of the commands other than `serve`.

use super::parse::{Moment, duration, duration_back, moment, server_url};
use super::prometheus::PrometheusFlags;
use clap::{ArgGroup, Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// How a command reaches the cluster.
#[derive(Clone, Debug, Args)]
pub struct ClusterFlags {
    /// The kubeconfig; without one, as kubectl finds it, or the service account of a pod.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// The context of the kubeconfig.
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,

    /// The namespace that Plimsoll is installed in.
    #[arg(long, value_name = "NAME", default_value = "plimsoll")]
    pub plimsoll_namespace: String,

    /// The name of its Lease.
    #[arg(long, value_name = "NAME", default_value = "plimsoll")]
    pub lease: String,
}

/// The flags of commands about one Autoscaler.
#[derive(Clone, Debug, Args)]
pub struct ObjectFlags {
    /// Its name.
    pub name: String,

    /// Its namespace; without one, that of the context.
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,

    #[command(flatten)]
    #[doc(hidden)]
    pub cluster: ClusterFlags,
}

/// The flags of `plimsoll status`.
#[derive(Clone, Debug, Args)]
pub struct StatusFlags {
    /// Show the Autoscalers of this namespace. Without it, those of all namespaces.
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,

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

    /// The time to explain, in RFC 3339 or as a duration ago, such as -2h. Without it, now.
    #[arg(long, value_name = "TIME", value_parser = moment, allow_hyphen_values = true)]
    pub at: Option<Moment>,

    /// How the result is printed.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,
}

/// The flags of `plimsoll history`.
#[derive(Clone, Debug, Args)]
pub struct HistoryFlags {
    #[command(flatten)]
    #[doc(hidden)]
    pub object: ObjectFlags,

    /// How far back it goes.
    #[arg(long, value_name = "DURATION", value_parser = duration_back, default_value = "24h",
        allow_hyphen_values = true)]
    pub since: Duration,

    /// How the result is printed.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,
}

/// The flags of `plimsoll compare`.
#[derive(Clone, Debug, Args)]
pub struct CompareFlags {
    /// The namespace; without one, that of the context.
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,

    /// Look into all namespaces.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,

    /// How far back it goes.
    #[arg(long, value_name = "DURATION", value_parser = duration_back, default_value = "24h",
        allow_hyphen_values = true)]
    pub since: Duration,

    /// How the result is printed.
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

    /// Why; it stands in the condition `Paused`.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,

    /// End the pause after this time. Without it, the pause lasts until `plimsoll resume`.
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    pub until_after: Option<Duration>,
}

/// The flags of `plimsoll freeze`.
#[derive(Clone, Debug, Args)]
pub struct FreezeFlags {
    /// Why; it stands in each Autoscaler's condition `Frozen`.
    pub reason: String,

    /// End the freeze after this time. Without it, the freeze lasts until `plimsoll thaw`.
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    pub until_after: Option<Duration>,

    /// Create the Lease if there is none, so that a Plimsoll that starts later is frozen.
    #[arg(long)]
    pub create: bool,

    #[command(flatten)]
    #[doc(hidden)]
    pub cluster: ClusterFlags,
}

/// The flags of `plimsoll replay`.
#[derive(Clone, Debug, Args)]
pub struct ReplayFlags {
    /// The file; - is the standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// The flags of `plimsoll ui`.
#[derive(Clone, Debug, Args)]
pub struct UiFlags {
    /// Show the autoscalers of this namespace. Without it, those of all namespaces.
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,

    /// Show the autoscalers of all namespaces, which is the default.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,

    /// The port of 127.0.0.1 to serve on; 0 is any free one.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub port: u16,

    /// Print the address of the page, and open no browser.
    #[arg(long)]
    pub no_browser: bool,

    /// The kubeconfig; without one, as kubectl finds it.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// The context of the kubeconfig.
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,

    /// The Prometheus that has the load: with it the page tries a changed spec, as plimsoll backtest does.
    #[arg(long, value_name = "URL")]
    pub prometheus_url: Option<String>,

    #[command(flatten)]
    #[doc(hidden)]
    pub prometheus: PrometheusFlags,

    /// The configuration file of the server: its labels and templates (podMetrics) are those of the queries.
    #[arg(long, value_name = "FILE", requires = "prometheus_url")]
    pub config: Option<PathBuf>,
}

/// The flags of `plimsoll convert`.
#[derive(Clone, Debug, Args)]
pub struct ConvertFlags {
    /// Files with HorizontalPodAutoscalers and ScaledObjects; - is the standard input.
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    /// The namespace of objects that have none, as `kubectl apply -n` gives it to them.
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,

    /// The Prometheus that Plimsoll asks; a ScaledObject that names another one, or any where this is
    /// not given, comes out as a preview. May be repeated, for each address by which objects name it; a Service is the
    /// same one with .svc and .svc.cluster.local behind its name.
    #[arg(long, value_name = "URL", value_parser = server_url)]
    pub prometheus_url: Vec<String>,
}

/// The flags of `plimsoll check`.
#[derive(Clone, Debug, Args)]
#[command(group(ArgGroup::new("checked").args(["file", "objects"]).required(true).multiple(true)))]
pub struct CheckFlags {
    /// The configuration file. With -f its labels and shared namespaces (podMetrics) are those of their queries,
    /// too, and its rules those that give their metrics; without it, the labels are the defaults.
    #[arg(value_name = "CONFIG")]
    pub file: Option<PathBuf>,

    /// Files with Autoscalers and MetricRules to check; - is the standard input. With --cluster what is around
    /// Autoscalers in the cluster is checked, too, and with --prometheus-url when their queries were empty within
    /// a day.
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    pub objects: Vec<PathBuf>,

    /// The namespace of objects of -f that have none; those that have another are refused, as kubectl refuses them.
    #[arg(short, long, value_name = "NAME", requires = "objects")]
    pub namespace: Option<String>,

    /// Look at the cluster of the kubeconfig, as kubectl finds it, for what is around the Autoscalers of -f: other
    /// writers of the replicas, other autoscalers, missing requests, pods of other workloads. Implied by
    /// --kubeconfig and --context.
    #[arg(long, requires = "objects")]
    pub cluster: bool,

    /// The context of the kubeconfig, for -f.
    #[arg(long, value_name = "NAME", requires = "objects")]
    pub context: Option<String>,

    /// How often Prometheus scrapes, for a warning where a range of a query has fewer than two samples.
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    pub scrape_interval: Duration,

    /// A Prometheus to look for series in and to run each query once; without one, queries are
    /// parsed only.
    #[arg(long, value_name = "URL", alias = "prometheus")]
    pub prometheus_url: Option<String>,

    #[command(flatten)]
    #[doc(hidden)]
    pub prometheus: PrometheusFlags,

    /// A cluster whose resources the rules speak of, and which has what is around the Autoscalers of -f. Without it,
    /// labels of `rules` are known that name resources which each cluster has, such as pods.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// How the result is printed.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,
}

impl CheckFlags {
    /// Whether to look at the cluster around the Autoscalers.
    pub fn looks_around(&self) -> bool {
        let names_it = self.cluster || self.kubeconfig.is_some() || self.context.is_some();
        names_it && !self.objects.is_empty()
    }
}

/// How a result is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// For a person.
    Text,
    /// For a program.
    Json,
}
