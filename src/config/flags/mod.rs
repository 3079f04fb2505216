//! The command line. A flag that prometheus-adapter or kube-controller-manager has, too, has the
//! same name here.

mod backtest;
mod commands;
mod parse;
mod prometheus;
mod serve;

pub use backtest::{
    BacktestFlags, Feedback, KeptField, RecommendFlags, RecommendFormat, RecordedFlags,
    ReportFormat,
};
pub use commands::{
    CheckFlags, ClusterFlags, CompareFlags, ConvertFlags, ExplainFlags, FreezeFlags, HistoryFlags,
    ObjectFlags, OutputFormat, PauseFlags, ReplayFlags, StatusFlags, UiFlags,
};
pub use parse::{Moment, above_zero};
pub use prometheus::{PrometheusFlags, PrometheusVerb};
pub use serve::{ServeFlags, TlsVersion};

use clap::{Parser, Subcommand};

/// Prometheus-native custom metrics adapter and autoscaler for Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "plimsoll", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve the metrics APIs and run the control loop, as the manifests call it.
    // As with Go's flags, of two the last counts.
    #[command(args_override_self = true)]
    Serve(Box<ServeFlags>),
    /// Print the CustomResourceDefinitions of Autoscaler and MetricRule.
    Crd,
    /// Validate a configuration, Autoscalers and MetricRules, and tell what rules of a configuration find in a
    /// Prometheus: plimsoll check CONFIG -f FILE, each of which may be left out.
    Check(CheckFlags),
    /// Turn HorizontalPodAutoscalers and KEDA ScaledObjects into Autoscalers.
    Convert(ConvertFlags),
    /// Try Autoscalers on recorded load: what they would have cost, and where pods would have been short. Decided by
    /// the code that decides live.
    Backtest(Box<BacktestFlags>),
    /// Look for a better spec of an Autoscaler on recorded load: chosen on its first two thirds, shown on the rest.
    Recommend(Box<RecommendFlags>),
    /// Show who leads, whether scales are frozen, and which Autoscalers fail.
    Status(StatusFlags),
    /// Decide again on the inputs of each line of a decision log (--decision-log), and fail if another decision
    /// is made, or a line was changed.
    Replay(ReplayFlags),
    /// Tell why an Autoscaler, or a native HPA (hpa/NAME), has the replicas that it has, now or at a time.
    Explain(ExplainFlags),
    /// List the changes of the replicas of an Autoscaler, or of a native HPA (hpa/NAME), with a chart.
    History(HistoryFlags),
    /// Compare the decisions for native HPAs with those of kube-controller-manager, which executes them
    /// (--native-hpas=observe).
    Compare(CompareFlags),
    /// Show all autoscalers, and why each scales as it does, on a page in the browser. It is served on 127.0.0.1, reads
    /// the cluster with the rights of the kubeconfig, and writes nothing.
    Ui(UiFlags),
    /// Leave an Autoscaler's scale alone from now on.
    Pause(PauseFlags),
    /// Resume a paused Autoscaler.
    Resume(ObjectFlags),
    /// Stop Plimsoll's writes to scales, in the whole cluster; decisions continue. Returns
    /// once the leader has acknowledged it, and fails if no leader does.
    Freeze(FreezeFlags),
    /// End a freeze.
    Thaw(ClusterFlags),
    /// Print the completions of a shell: source <(plimsoll completions bash).
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Print the reference of all flags, fields and metrics, as Markdown.
    #[command(hide = true)]
    Reference,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
