//! The flags of `plimsoll autoscale`.

use super::kubectl::KubectlFlags;
use super::parse::{label, positive_quantity};
use clap::{ArgGroup, Args, ValueEnum};

/// The flags of `plimsoll autoscale`.
#[derive(Clone, Debug, Args)]
#[command(
    group(ArgGroup::new("metrics").args(["metric", "cpu", "memory"]).required(true).multiple(true)),
    after_help = "Examples:
  # 100 requests per second and pod
  plimsoll autoscale deployment/web --metric http_requests_total --value 100 --min 2 --max 10

  # One worker per 30 messages of a queue, by a query
  plimsoll autoscale deployment/worker --metric messages --value 30 --max 20 \\
    --per Workload --query 'sum(rabbitmq_queue_messages_ready{queue=\"mail\"})'

  # Print the manifest without a cluster
  plimsoll autoscale statefulset web --cpu 70% --max 5 -n shop --dry-run=client -o yaml"
)]
pub struct AutoscaleFlags {
    /// Workload to scale: TYPE/NAME or TYPE NAME, such as deployment/web or rollouts.argoproj.io/web.
    #[arg(value_name = "TYPE/NAME | TYPE NAME", num_args = 1..=2, required = true)]
    pub target: Vec<String>,

    /// Metric of the pods, by its name in Prometheus. A counter counts by its rate per second.
    #[arg(long, value_name = "NAME", requires = "value")]
    pub metric: Option<String>,

    /// Target of the average of --metric over the pods, such as 100 or 500m. With --per=Workload, of its value
    /// divided by the replicas.
    #[arg(long, value_name = "QUANTITY", requires = "metric", value_parser = positive_quantity)]
    pub value: Option<String>,

    /// Prometheus label that a series of --metric must have. May be repeated.
    #[arg(long, value_name = "NAME=VALUE", requires = "metric", value_parser = label)]
    pub label: Vec<(String, String)>,

    /// Whether --metric has a series for each pod, or one for the workload.
    #[arg(long, value_enum, requires = "metric", default_value = "Pod", ignore_case = true)]
    pub per: PerFlag,

    /// PromQL query for --metric, instead of the configured template.
    #[arg(long, value_name = "PROMQL", requires = "metric")]
    pub query: Option<String>,

    /// Target CPU usage: a percentage of the requests, such as 70%, or an average per pod, such as 500m. A number
    /// without a unit is in milli-CPU, as in kubectl: 70 is 70m.
    #[arg(long, value_name = "TARGET")]
    pub cpu: Option<String>,

    /// Target memory usage: a percentage of the requests, such as 70%, or an average per pod, such as 200Mi. A number
    /// without a unit is in bytes.
    #[arg(long, value_name = "TARGET")]
    pub memory: Option<String>,

    /// Lower bound of the replicas.
    #[arg(long, value_name = "REPLICAS", default_value_t = 1, value_parser = clap::value_parser!(i32).range(0..))]
    pub min: i32,

    /// Upper bound of the replicas.
    #[arg(long, value_name = "REPLICAS", value_parser = clap::value_parser!(i32).range(1..))]
    pub max: i32,

    /// Name of the Autoscaler. If not set, that of the workload.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// Create it as a preview: decisions are shown, and nothing is scaled.
    #[arg(long)]
    pub preview: bool,

    /// none: create the Autoscaler. server: let the API server check it without storing it. client: print it only.
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_value = "none",
        default_missing_value = "client", hide_possible_values = true, value_name = "none|server|client")]
    pub dry_run: DryRun,

    /// Output format.
    #[arg(short, long, value_enum)]
    pub output: Option<ObjectFormat>,

    /// Namespace. If not set, that of the context.
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,

    #[command(flatten)]
    #[doc(hidden)]
    pub kubectl: KubectlFlags,
}

/// What a metric has a series for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum PerFlag {
    /// Each pod.
    Pod,
    /// The workload.
    Workload,
}

/// Whether an object is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DryRun {
    /// Create the object.
    None,
    /// Let the API server check the object without storing it.
    Server,
    /// Print the object only.
    Client,
}

/// How an object is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ObjectFormat {
    /// Type and name.
    Name,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}
