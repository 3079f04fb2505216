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
    /// The recorded load: time,value rows under a header, in Unix seconds and the unit of the metric for the whole
    /// workload; .gz is decompressed.
    #[arg(long, value_name = "LOAD.csv[.gz]")]
    pub load: Option<PathBuf>,

    /// The Prometheus that has the load: the metrics of each autoscaler are read from it. First the spec that was in
    /// force, the first of a workload, is compared with the replicas that there were.
    #[arg(long, value_name = "URL")]
    pub prometheus_url: Option<String>,

    #[command(flatten)]
    #[doc(hidden)]
    pub prometheus: PrometheusFlags,

    /// The configuration file of the server: its labels and templates (podMetrics) are those of the queries.
    #[arg(long, value_name = "FILE", conflicts_with = "load")]
    pub config: Option<PathBuf>,

    /// The query for the total of a metric, in place of the one that is made of it; may be repeated. METRIC is a name in
    /// metrics, a metricName, or a resource.
    #[arg(long = "query", value_name = "METRIC=PROMQL", value_parser = named, conflicts_with = "load")]
    pub queries: Vec<(String, String)>,

    /// A metric that is a load, the same with any number of pods, though its name says otherwise; may be repeated.
    #[arg(long = "load-metric", value_name = "METRIC")]
    pub load_metrics: Vec<String>,

    /// What each pod requests of a resource, where kube-state-metrics does not say it, such as cpu=500m; may be repeated.
    #[arg(long = "request", value_name = "RESOURCE=QUANTITY", value_parser = named_quantity, conflicts_with = "load")]
    pub requests: Vec<(String, f64)>,

    /// The namespace of autoscalers that have none.
    #[arg(short, long, value_name = "NAME", requires = "prometheus_url")]
    pub namespace: Option<String>,

    /// What one pod carries of the load, in the unit of the target: the pods that are needed go by it. Without it, what
    /// the annotation plimsoll.dev/pod-carries of an autoscaler says, or else its target: over Prometheus that of the
    /// first one, for all; of a file each one's own, so that a target with headroom is short of its own target.
    #[arg(long, value_name = "NUMBER", value_parser = above_zero)]
    pub pod_carries: Option<f64>,

    /// How long a pod takes until it is ready. Without it, as long as in the history of Prometheus, or 60s.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub pod_start: Option<Duration>,

    /// The part of the load to begin with: a time such as 2026-11-02T08:00:00Z, Unix seconds, or a duration before the
    /// end of the load, such as -24h or -7d. Of Prometheus, a week without it.
    #[arg(long, value_name = "TIME", value_parser = moment, allow_hyphen_values = true)]
    pub from: Option<Moment>,

    /// The part of the load to end with, as --from.
    #[arg(long, value_name = "TIME", value_parser = moment, allow_hyphen_values = true)]
    pub to: Option<Moment>,

    /// The window of the metric: each sample is the mean of the load over it. With --load only; a query has its own.
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "60s", conflicts_with = "prometheus_url")]
    pub window: Duration,

    /// How often the metric is scraped. With --load only.
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "15s", conflicts_with = "prometheus_url")]
    pub scrape_interval: Duration,

    /// The period of decisions, of a second at least. Without it, that of the autoscaler, or 15s.
    #[arg(long, value_name = "DURATION", value_parser = period)]
    pub period: Option<Duration>,
}

/// The flags of `plimsoll backtest`.
#[derive(Clone, Debug, Args)]
pub struct BacktestFlags {
    /// Files with the autoscalers to try: Autoscalers, HorizontalPodAutoscalers or ScaledObjects; - is the standard
    /// input. Those of one workload are compared with each other. Of several workloads, which needs --prometheus-url,
    /// each is tried on its own load.
    #[arg(short = 'f', long = "filename", value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    #[command(flatten)]
    #[doc(hidden)]
    pub recorded: RecordedFlags,

    /// The time at the beginning that is decided on, but not counted.
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "0s")]
    pub warm_up: Duration,

    /// How the metric answers to scaling, where it does: queue is for the length of a queue. Its load is then what
    /// arrives in a second (of Prometheus by --query), and each ready pod takes --service-rate of it away.
    #[arg(long, value_enum, requires = "service_rate", conflicts_with = "pod_carries")]
    pub feedback: Option<Feedback>,

    /// How many entries of the queue a pod completes in a second.
    #[arg(long, value_name = "NUMBER", value_parser = above_zero, requires = "feedback")]
    pub service_rate: Option<f64>,

    /// How the result is printed: html is one file with charts and the account of each decision, svg and png are a chart
    /// for a pull request.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Text)]
    pub output: ReportFormat,
}

/// How a metric answers to scaling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Feedback {
    /// It is what waits in a queue.
    Queue,
}

/// How the report of a backtest is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// For a person.
    Text,
    /// For a program.
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
    /// The files with the present Autoscalers, HorizontalPodAutoscalers or ScaledObjects; - is the standard input. More
    /// than one need --prometheus-url.
    #[arg(short = 'f', long = "filename", value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    #[command(flatten)]
    #[doc(hidden)]
    pub recorded: RecordedFlags,

    /// What it may cost at most: as many replica-hours as a target with this much headroom, in percent. Without it 8, or what
    /// --min-headroom asks for; with --max-under-minutes, as much as that costs.
    #[arg(long, value_name = "PERCENT", value_parser = at_least_zero)]
    pub budget: Option<f64>,

    /// In how many minutes of a week fewer pods may be ready than the load needs. With it the cheapest is chosen of those
    /// that keep to it; without it, the one with which the fewest are short, and nothing that only costs less.
    #[arg(long, value_name = "MINUTES", value_parser = at_least_zero)]
    pub max_under_minutes: Option<f64>,

    /// The least headroom of the target, in percent.
    #[arg(long, value_name = "PERCENT", value_parser = at_least_zero, default_value = "0")]
    pub min_headroom: f64,

    /// What of the spec is not changed; may be repeated, or a list with commas.
    #[arg(long, value_enum, value_name = "FIELD", value_delimiter = ',')]
    pub keep: Vec<KeptField>,

    /// Recommend where a backtest of the present spec is not what was in the last day, too, and what is cheaper where
    /// nothing says what was.
    #[arg(long)]
    pub allow_low_trust: bool,

    /// How the result is printed; yaml is the objects with a better spec only.
    #[arg(short, long, value_enum, default_value_t = RecommendFormat::Text)]
    pub output: RecommendFormat,
}

/// How a recommendation is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RecommendFormat {
    /// For a person.
    Text,
    /// For a program.
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
