//! What all evaluations share: clients, caches, writers and settings.

use super::events::Events;
use super::hpa_counts::HpaCounts;
use super::owners::Owners;
use super::selectors::Selectors;
use super::status_writer::StatusWriter;
use super::targets::Targets;
use crate::clock::Clock;
use crate::crd::{Fallback, Rollouts, SelectionStrategy};
use crate::hpa::schedule::ScheduleSpec;
use crate::hpa::{self, ConditionKind, LONGEST_MS, Status};
use crate::leader::{FencingToken, LeaderElector};
use crate::ledger::{DecisionLog, Ledger};
use crate::live::LiveStatus;
use crate::promql::query::PodQueries;
use crate::reload::Reloadable;
use crate::rules::Rules;
use crate::samples::Store;
use crate::supervise::Heartbeat;
use crate::telemetry::Metrics;
use crate::watch::{AutoscalerKind, AutoscalerRef, Cluster, Index, WatchStatuses};
use clap::ValueEnum;
use kube::Client;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// The settings of the controller.
#[derive(Clone, Debug)]
pub struct ControllerSettings {
    /// The settings of decisions, which kube-controller-manager has as flags.
    pub hpa_config: hpa::ControllerConfig,
    /// Whether native HorizontalPodAutoscalers are managed, observed or ignored.
    pub native_hpas: NativeHpas,
    /// The sync period of an autoscaler that sets none.
    pub period: Duration,
    /// The least time between two writes of a status in which only metric values changed.
    pub status_interval: Duration,
    /// The time between two checkpoints of the scaling history; zero disables them.
    pub checkpoint_interval: Duration,
    /// How long an evaluation waits for its metrics.
    pub decision_timeout: Duration,
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

/// The parts that the control loop is made of.
pub struct Dependencies {
    /// A client of the API server.
    pub client: Client,
    /// Leader election.
    pub leader: LeaderElector,
    /// The index that the watches fill.
    pub cluster: Cluster,
    /// Whether the watches have listed everything once.
    pub synced: WatchStatuses,
    /// The samples of metrics.
    pub samples: Store,
    /// The templates of the queries for generated metrics.
    pub pod_queries: Reloadable<PodQueries>,
    /// The metrics of rules.
    pub rules: Rules,
    /// The settings of the loop.
    pub settings: ControllerSettings,
    /// Plimsoll's own metrics.
    pub metrics: Arc<Metrics>,
    /// The current statuses, which the API server shows.
    pub live: LiveStatus,
    /// The account of each decision, which the API server shows.
    pub ledger: Ledger,
    /// The log of decisions with all their inputs, if there is one.
    pub decision_log: Option<DecisionLog>,
    /// The clock of this process, and kube-apiserver's.
    pub clock: Clock,
    /// Tells whether the loop has stalled.
    pub heartbeat: Heartbeat,
}

/// What every evaluation needs. Shared by all of them.
pub struct ControllerContext {
    pub client: Client,
    pub leader: LeaderElector,
    pub cluster: Cluster,
    pub samples: Store,
    pub pod_queries: Reloadable<PodQueries>,
    pub rules: Rules,
    pub settings: ControllerSettings,
    pub targets: Targets,
    /// Whose pods are whose.
    pub owners: Owners,
    pub events: Events,
    pub statuses: StatusWriter,
    pub metrics: Arc<Metrics>,
    pub live: LiveStatus,
    pub ledger: Ledger,
    pub decision_log: Option<DecisionLog>,
    pub clock: Clock,
    /// The lease term in which the scaling history of the previous terms was loaded.
    pub history_loaded_term: AtomicU64,
    /// The settings of decisions with scaling from zero, even if `--scale-to-zero` is off.
    pub from_zero: hpa::ControllerConfig,
    /// The pod selectors of all autoscalers.
    pub selectors: Selectors,
    /// Which native HPAs are observed.
    pub hpa_counts: HpaCounts,
    /// Whether the process shuts down.
    pub stopping: watch::Receiver<bool>,
}

/// No lease term.
pub const NO_TERM: u64 = u64::MAX;
/// How long an evaluation may take to read the scale, besides its metrics.
const READ_SCALE: Duration = Duration::from_secs(20);

/// Why an evaluation was cancelled before anything was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// It exceeded this time limit.
    TimedOut(Duration),
    /// The process shuts down.
    Stopped,
}

/// How an evaluation ended. [`as_str`](Self::as_str) is its label in the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncResult {
    /// The scale was written.
    Rescaled,
    /// The scale was kept.
    Held,
    /// No decision could be made, or it could not be written.
    Failed,
    /// A native HPA was evaluated beside kube-controller-manager.
    Observed,
    /// Another replica leads, and writes.
    Followed,
}

impl SyncResult {
    /// The label of the metric `plimsoll_decisions_total`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rescaled => "rescaled",
            Self::Held => "held",
            Self::Failed => "failed",
            Self::Observed => "observed",
            Self::Followed => "followed",
        }
    }
}

impl ControllerContext {
    /// Whether Plimsoll scales by an autoscaler: not by an HPA that kube-controller-manager scales.
    pub fn scales(&self, autoscaler: &AutoscalerRef) -> bool {
        autoscaler.kind != AutoscalerKind::Hpa || self.settings.native_hpas == NativeHpas::Manage
    }

    /// The HPAs that kube-controller-manager scales, and that are evaluated.
    pub fn observed_hpas(&self) -> usize {
        match self.settings.native_hpas {
            NativeHpas::Observe => self.cluster.read(Index::hpa_count),
            NativeHpas::Manage | NativeHpas::Ignore => 0,
        }
    }

    /// A context of these parts; `stopping` is true during the shutdown.
    pub fn new(dependencies: Dependencies, stopping: watch::Receiver<bool>) -> Self {
        let Dependencies {
            client,
            leader,
            cluster,
            synced: _,
            samples,
            pod_queries,
            rules,
            settings,
            metrics,
            live,
            ledger,
            decision_log,
            clock,
            heartbeat: _,
        } = dependencies;
        let targets = Targets::new(client.clone());
        let events = Events::new(client.clone(), clock.clone(), metrics.clone());
        let pending = metrics.status_writes_waiting();
        Self {
            leader,
            owners: Owners::new(client.clone(), targets.clone()),
            targets,
            statuses: StatusWriter::new(client.clone(), events.clone(), pending),
            events,
            selectors: Selectors::new(settings.native_hpas == NativeHpas::Manage),
            hpa_counts: HpaCounts::new(metrics.clone()),
            client,
            cluster,
            samples,
            pod_queries,
            rules,
            from_zero: hpa::ControllerConfig { scale_to_zero: true, ..settings.hpa_config },
            settings,
            metrics,
            live,
            ledger,
            decision_log,
            clock,
            history_loaded_term: AtomicU64::new(NO_TERM),
            stopping,
        }
    }

    /// The fencing token of the current term. None if this replica does not lead, or has not
    /// loaded the scaling history of the previous terms yet.
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.leader
            .fencing_token()
            .filter(|token| token.term() == self.history_loaded_term.load(Ordering::Acquire))
    }

    /// The sync period of an autoscaler.
    pub fn period(&self, autoscaler: &AutoscalerRef) -> Duration {
        let configured = match autoscaler.kind {
            AutoscalerKind::Autoscaler => {
                let record = self.cluster.read(|index| index.autoscaler(&autoscaler.key));
                record.and_then(|r| r.parsed.as_ref().ok()?.spec.sync_period_seconds)
            }
            AutoscalerKind::Hpa => None,
        };
        configured.map_or(self.settings.period, |seconds| {
            Duration::from_secs(seconds.clamp(1, 3600).unsigned_abs().into())
        })
    }

    /// The longest window that any decision looks back, in ms.
    pub fn longest_window(&self) -> i64 {
        let default = i64::from(self.settings.hpa_config.downscale_stabilization_seconds) * 1000;
        default.max(LONGEST_MS)
    }

    /// The settings of decisions for an autoscaler of this status. A workload that was scaled to
    /// zero while `--scale-to-zero` was on is scaled up again after it is turned off.
    pub fn hpa_config(&self, status: &Status) -> &hpa::ControllerConfig {
        let zero = status.condition(ConditionKind::ScaledToZero);
        if zero.is_some_and(|zero| zero.status) {
            &self.from_zero
        } else {
            &self.settings.hpa_config
        }
    }

    /// Waits for a future that only reads, until the time limit of an evaluation or the shutdown.
    pub async fn bounded<T>(&self, reads: impl Future<Output = T>) -> Result<T, Cancelled> {
        let mut stopping = self.stopping.clone();
        let timeout = self.settings.decision_timeout + READ_SCALE;
        tokio::select! {
            read = tokio::time::timeout(timeout, reads) => {
                read.map_err(|_| Cancelled::TimedOut(timeout))
            }
            Ok(_) = stopping.wait_for(|stopping| *stopping) => Err(Cancelled::Stopped),
        }
    }
}

/// What applying a decision needs.
#[derive(Clone, Copy)]
pub struct ApplyContext<'a> {
    pub ctx: &'a ControllerContext,
    pub token: &'a FencingToken,
    pub autoscaler: &'a AutoscalerRef,
    pub execution: Execution<'a>,
}

/// How the decisions for an autoscaler are executed. The default is that of a native HPA.
#[derive(Clone, Copy, Default)]
pub struct Execution<'a> {
    /// The schedules of its spec.
    pub schedules: &'a [ScheduleSpec],
    /// The fallback of its spec.
    pub fallback: Option<&'a Fallback>,
    /// The generation of its spec; a native HPA may have none.
    pub generation: Option<i64>,
    /// Which of the pods that the selector selects count.
    pub selection: SelectionStrategy,
    /// What rollouts of the workload prevent, if anything.
    pub rollouts: Option<Rollouts>,
    /// Whether they are only shown.
    pub is_preview: bool,
}
