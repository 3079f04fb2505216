//! The command line. A flag that prometheus-adapter or kube-controller-manager has, too, has the
//! same name here.

mod autoscale;
mod backtest;
mod commands;
mod kubectl;
mod parse;
mod prometheus;
mod serve;

pub use autoscale::{AutoscaleFlags, DryRun, ObjectFormat, PerFlag};
pub use backtest::{
    BacktestFlags, Feedback, KeptField, RecommendFlags, RecommendFormat, RecordedFlags,
    ReportFormat,
};
pub use commands::{
    CheckClusterFlags, CheckFlags, ClusterFlags, CompareFlags, ConvertFlags, ExplainFlags,
    FreezeFlags, HistoryFlags, ObjectFlags, OutputFormat, PauseFlags, ReplayFlags, StatusFlags,
    TableFormat, UiFlags, VersionFlags,
};
pub use kubectl::KubectlFlags;
pub use parse::{Moment, above_zero};
pub use prometheus::{PrometheusFlags, PrometheusVerb};
pub use serve::{ServeFlags, TlsVersion};

use crate::revision::LONG_VERSION;
use clap::{CommandFactory, Parser, Subcommand};

/// Prometheus-based custom metrics adapter and horizontal autoscaler for Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "plimsoll", version, long_version = LONG_VERSION.as_str(), after_help = AFTER_HELP)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// The command line of the plugin of kubectl. What pods run and what the project's own tools read is not in its
    /// help, and works all the same.
    pub fn of_plugin() -> clap::Command {
        let cli = Self::command().bin_name("kubectl plimsoll");
        let hide = |cli: clap::Command, name: &str| cli.mut_subcommand(name, |one| one.hide(true));
        ["serve", "crd", "replay"].into_iter().fold(cli, hide)
    }
}

const AFTER_HELP: &str = "Flags of kubectl, such as --context and -n, may stand before the command, too. Each command lists its flags: plimsoll COMMAND -h.
Exit codes: 0 success; 1 failure, or check and check-cluster found an error; 2 invalid command line.";

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve the metrics APIs and run the control loop (used in the manifests).
    // As with Go's flags, of two the last counts.
    #[command(args_override_self = true)]
    Serve(Box<ServeFlags>),
    /// Check the installation in the cluster, and tell what is wrong with it.
    CheckCluster(Box<CheckClusterFlags>),
    /// Show the leader, a freeze, and failing Autoscalers.
    Status(StatusFlags),
    /// Explain why an Autoscaler or native HPA (hpa/NAME) has its replicas, now or at a time.
    Explain(ExplainFlags),
    /// List the replica changes of an Autoscaler or native HPA (hpa/NAME), with a chart.
    History(HistoryFlags),
    /// Compare the decisions for native HPAs with those of kube-controller-manager.
    Compare(CompareFlags),
    /// Open a read-only page in the browser with all autoscalers and why each scales.
    Ui(Box<UiFlags>),
    /// Create an Autoscaler for a workload.
    Autoscale(Box<AutoscaleFlags>),
    /// Pause an Autoscaler: its scale is not written until it is resumed.
    Pause(PauseFlags),
    /// Resume a paused Autoscaler.
    Resume(ObjectFlags),
    /// Stop all writes to scales by Plimsoll in the cluster. Waits for the leader's acknowledgement.
    Freeze(FreezeFlags),
    /// End a freeze.
    Thaw(ClusterFlags),
    /// Validate a configuration, Autoscalers and MetricRules, optionally against a Prometheus and a cluster.
    Check(Box<CheckFlags>),
    /// Convert HorizontalPodAutoscalers and KEDA ScaledObjects to Autoscalers.
    Convert(ConvertFlags),
    /// Try Autoscalers on recorded load: their cost, and when pods would have been missing.
    Backtest(Box<BacktestFlags>),
    /// Find a better spec of an Autoscaler on recorded load.
    Recommend(Box<RecommendFlags>),
    /// Replay a decision log (--decision-log). Fails if a decision differs or a line was changed.
    Replay(ReplayFlags),
    /// Print the CustomResourceDefinitions of Autoscaler and MetricRule.
    Crd,
    /// Print the versions of this command, of Plimsoll in the cluster, and of Kubernetes.
    Version(Box<VersionFlags>),
    /// Print the completions of a shell: source <(plimsoll completions bash).
    Completions {
        /// Shell.
        shell: clap_complete::Shell,
    },
    /// Write a manual page for each command into a directory.
    #[command(hide = true)]
    Man {
        /// The directory.
        #[arg(value_name = "DIR")]
        folder: std::path::PathBuf,
    },
    /// Print the reference of all flags, fields and metrics, as Markdown.
    #[command(hide = true)]
    Reference,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        Cli::of_plugin().debug_assert();
    }
}
