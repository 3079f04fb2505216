//! What an Autoscaler may say of a metric beyond `autoscaling/v2`.

use super::reason::Reason;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What an Autoscaler may say of a metric beyond `autoscaling/v2`. The default is upstream's decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MetricOptions {
    /// At zero replicas a total is active when it is greater, in milli-units.
    pub activation_milli: Option<i64>,
    /// What an empty result means.
    pub on_empty: OnEmpty,
    /// What is done while it fails; none for upstream's way.
    pub on_error: Option<OnError>,
    /// What it proposes once it has failed for long.
    pub fallback: Option<MetricFallback>,
}

/// onError says what is done while the metric fails. If not set, no replica is removed, and the
/// evaluation has failed unless another metric asks for more, as in a HorizontalPodAutoscaler. `Hold` asks
/// for the present replicas; with `Ignore` the other metrics decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnError {
    /// The metric asks for the present number of replicas. The evaluation has not failed.
    Hold,
    /// The other metrics decide, on removing replicas, too. If no metric is left, the evaluation has
    /// failed.
    Ignore,
}

/// The proposal of a metric that has failed for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MetricFallback {
    /// For how long it must have failed, in ms.
    pub after_ms: i64,
    /// The replicas.
    pub replicas: i32,
}

/// What stands for a metric that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StandIn {
    /// The replicas of its fallback.
    Fallback(i32),
    /// The present replicas.
    Hold,
    /// The other metrics.
    Ignore,
}

impl StandIn {
    /// It as one word, for conditions.
    pub const fn reason(self) -> Reason {
        match self {
            Self::Fallback(_) => Reason::MetricFallback,
            Self::Hold => Reason::OnErrorHold,
            Self::Ignore => Reason::OnErrorIgnore,
        }
    }
}

impl fmt::Display for StandIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fallback(replicas) => {
                write!(f, "asks for the {replicas} replicas of its fallback")
            }
            Self::Hold => f.write_str("asks for the present replicas"),
            Self::Ignore => f.write_str("is left out"),
        }
    }
}

impl MetricOptions {
    /// What stands for the metric after it has failed for so long, in ms; none for upstream's way. Its fallback does
    /// not wake a workload that is at zero.
    pub(super) fn stand_in(&self, failed_for: i64, is_awake: bool) -> Option<StandIn> {
        let fallback = self.fallback.filter(|one| is_awake && failed_for >= one.after_ms);
        match (fallback, self.on_error) {
            (Some(MetricFallback { replicas, .. }), _) => Some(StandIn::Fallback(replicas)),
            (None, Some(OnError::Hold)) => Some(StandIn::Hold),
            (None, Some(OnError::Ignore)) => Some(StandIn::Ignore),
            (None, None) => None,
        }
    }
}

/// How long a workload warms up, in place of the flags of the controller, in ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct WarmUp {
    /// In place of `cpu_initialization_ms`.
    pub cpu_initialization_ms: Option<i64>,
    /// In place of `initial_readiness_delay_ms`.
    pub initial_readiness_delay_ms: Option<i64>,
}

/// onEmpty says what a query without any series means: `Missing`, which it is if not set, a metric that
/// failed, as in a HorizontalPodAutoscaler; `Zero`, the value 0; `Hold`, the present replicas. Series of
/// other pods, NaN and infinities are no empty result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnEmpty {
    /// The metric is missing: it has failed, as in a HorizontalPodAutoscaler, and no replica is
    /// removed.
    #[default]
    Missing,
    /// The value is 0, of each pod if the metric is one of pods.
    Zero,
    /// The metric asks for the present number of replicas.
    Hold,
}
