//! The flags of backtests, and of what looks for a better spec by them.

use super::parse::{
    Moment, above_zero, at_least_zero, duration, moment, named, named_quantity, period,
};
use super::prometheus::PrometheusFlags;
use clap::{ArgGroup, Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// Where recorded load is from, and how the simulated workload behaves.
#[derive(Clone, Debug, Args)]
#[command(group(ArgGroup::new("recording").args(["load", "prometheus_url"]).required(true)))]
pub struct RecordedFlags {
    /// File with the recorded load: a header and time,value rows, in Unix seconds and the unit of the metric for the
    /// whole workload. May be gzipped.
    #[arg(long, value_name = "LOAD.csv[.gz]")]
    pub load: Option<PathBuf>,

    /// URL of the Prometheus with the recorded load. The first spec of a workload is first compared with the recorded
    /// replicas.
    #[arg(long, value_name = "URL")]
    pub prometheus_url: Option<String>,

    #[command(flatten)]
    #[doc(hidden)]
    pub prometheus: PrometheusFlags,

    /// Configuration file of the server, for the labels and templates of queries (podMetrics).
    #[arg(long, value_name = "FILE", conflicts_with = "load")]
    pub config: Option<PathBuf>,

    /// Query for the total of a metric, instead of the generated one. May be repeated.
    #[arg(long = "query", value_name = "METRIC=PROMQL", value_parser = named, conflicts_with = "load")]
    pub queries: Vec<(String, String)>,

    /// Treat this metric as a load that does not depend on the number of pods, despite its name. May be repeated.
    #[arg(long = "load-metric", value_name = "METRIC")]
    pub load_metrics: Vec<String>,

    /// Request of each pod for a resource, such as cpu=500m, if kube-state-metrics has none. May be repeated.
    #[arg(long = "request", value_name = "RESOURCE=QUANTITY", value_parser = named_quantity, conflicts_with = "load")]
    pub requests: Vec<(String, f64)>,

    /// Namespace of autoscalers without one.
    #[arg(short, long, value_name = "NAME", requires = "prometheus_url")]
    pub namespace: Option<String>,

    /// Capacity of one pod, in the unit of the target, by which the needed pods are computed. If not set, the
    /// annotation plimsoll.dev/pod-carries, else the target.
    #[arg(long, value_name = "NUMBER", value_parser = above_zero)]
    pub pod_carries: Option<f64>,

    /// Time until a new pod is ready. If not set, by the history in Prometheus, or 60s.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub pod_start: Option<Duration>,

    /// Start of the load to use: a time such as 2026-11-02T08:00:00Z, Unix seconds, or a duration before the end such
    /// as -24h or -7d. Default with Prometheus: a week.
    #[arg(long, value_name = "TIME", value_parser = moment, allow_hyphen_values = true)]
    pub from: Option<Moment>,

    /// End of the load to use, as --from.
    #[arg(long, value_name = "TIME", value_parser = moment, allow_hyphen_values = true)]
    pub to: Option<Moment>,

    /// Range of the metric: each sample is the mean of the load over it. With --load only.
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "60s", conflicts_with = "prometheus_url")]
    pub window: Duration,

    /// Scrape interval of the metric. With --load only.
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "15s", conflicts_with = "prometheus_url")]
    pub scrape_interval: Duration,

    /// Sync period, at least 1s. If not set, that of the autoscaler, or 15s.
    #[arg(long, value_name = "DURATION", value_parser = period)]
    pub period: Option<Duration>,
}

/// The flags of `plimsoll backtest`.
#[derive(Clone, Debug, Args)]
pub struct BacktestFlags {
    /// Files with the autoscalers to try. - means standard input. Autoscalers of one workload are compared with each
    /// other. Several workloads need --prometheus-url.
    #[arg(short = 'f', long = "filename", value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    #[command(flatten)]
    #[doc(hidden)]
    pub recorded: RecordedFlags,

    /// Time at the beginning that is simulated but not counted.
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "0s")]
    pub warm_up: Duration,

    /// Model of a metric that depends on the replicas. queue: the length of a queue; the load is the arrivals per
    /// second, and each ready pod completes --service-rate of them.
    #[arg(long, value_enum, requires = "service_rate", conflicts_with = "pod_carries")]
    pub feedback: Option<Feedback>,

    /// Entries of the queue that a pod completes per second.
    #[arg(long, value_name = "NUMBER", value_parser = above_zero, requires = "feedback")]
    pub service_rate: Option<f64>,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Text)]
    pub output: ReportFormat,
}

/// How a metric answers to scaling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Feedback {
    /// The length of a queue.
    Queue,
}

/// How the report of a backtest is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// Human-readable.
    Text,
    /// JSON.
    Json,
    /// A page in one file.
    Html,
    /// A chart.
    Svg,
    /// The same chart in pixels.
    Png,
}

/// The flags of `plimsoll recommend`.
#[derive(Clone, Debug, Args)]
pub struct RecommendFlags {
    /// Files with the present autoscalers. - means standard input. More than one need --prometheus-url.
    #[arg(short = 'f', long = "filename", value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    #[command(flatten)]
    #[doc(hidden)]
    pub recorded: RecordedFlags,

    /// Maximum cost: the replica-hours of a target with this much headroom, in percent. Default: 8, or --min-headroom
    /// if more; unlimited with --max-under-minutes.
    #[arg(long, value_name = "PERCENT", value_parser = at_least_zero)]
    pub budget: Option<f64>,

    /// Maximum minutes per week with fewer ready pods than needed. Selects the cheapest spec within it. If not set,
    /// the spec with the fewest missing pods is selected, and no spec that is only cheaper.
    #[arg(long, value_name = "MINUTES", value_parser = at_least_zero)]
    pub max_under_minutes: Option<f64>,

    /// Minimum headroom of the target, in percent.
    #[arg(long, value_name = "PERCENT", value_parser = at_least_zero, default_value = "0")]
    pub min_headroom: f64,

    /// Fields to keep, comma-separated. May be repeated.
    #[arg(long, value_enum, value_name = "FIELD", value_delimiter = ',')]
    pub keep: Vec<KeptField>,

    /// Recommend even if the backtest does not reproduce the last day, or nothing is known of it.
    #[arg(long)]
    pub allow_low_trust: bool,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = RecommendFormat::Text)]
    pub output: RecommendFormat,
}

/// How a recommendation is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RecommendFormat {
    /// Human-readable.
    Text,
    /// JSON.
    Json,
    /// The objects with the recommended specs; none that is kept.
    Yaml,
}

/// A field that `plimsoll recommend` does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KeptField {
    /// minReplicas.
    Min,
    /// maxReplicas.
    Max,
    /// The rules of scale-down.
    ScaleDown,
    /// The rules of scale-up.
    ScaleUp,
    /// Schedules.
    Schedules,
}
