//! The trace of a decision: the counts of each metric, and the steps that changed the
//! number of replicas. `()` records nothing, at no cost; the control loop gives what the decision
//! ledger keeps, and `tests/invariants` reads a [`RecordedTrace`].

use crate::time::UnixMillis;

/// Receives the trace of a decision while it is made.
pub trait Trace {
    /// One metric was computed, or failed.
    fn metric(&mut self, index: usize, trace: &MetricTrace);
    /// A step changed the number of replicas, or kept it.
    fn step(&mut self, step: Step);
    /// One metric failed: the reason of its event, and the cause in words. What is done about it is
    /// traced by [`metric`](Self::metric) after that.
    fn failure(&mut self, index: usize, reason: &'static str, cause: &str) {
        let _ = (index, reason, cause);
    }
}

impl Trace for () {
    #[inline]
    fn metric(&mut self, _: usize, _: &MetricTrace) {}
    #[inline]
    fn step(&mut self, _: Step) {}
}

impl<T: Trace> Trace for Option<T> {
    #[inline]
    fn metric(&mut self, index: usize, trace: &MetricTrace) {
        if let Some(receiver) = self {
            receiver.metric(index, trace);
        }
    }
    #[inline]
    fn step(&mut self, step: Step) {
        if let Some(receiver) = self {
            receiver.step(step);
        }
    }
    fn failure(&mut self, index: usize, reason: &'static str, cause: &str) {
        if let Some(receiver) = self {
            receiver.failure(index, reason, cause);
        }
    }
}

/// The counts for one metric. Sums are in milli-units.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MetricTrace {
    /// Pods whose sample counted.
    pub ready: i64,
    /// Pods whose sample was left out because they are pending or not ready.
    pub unready: i64,
    /// Pods without a sample.
    pub missing: i64,
    /// Pods that failed or are being deleted.
    pub ignored: i64,
    /// Samples of pods that are not selected.
    pub unselected: i64,
    /// The sum of the samples that counted.
    pub sum_milli: i64,
    /// The measured value divided by the target, before unready and missing pods are included.
    pub ratio: f64,
    /// The ratio with unready and missing pods, if there are any.
    pub weighted_ratio: Option<f64>,
    /// How far below 1 the ratio may be without a change.
    pub tolerance_down: f64,
    /// How far above 1 the ratio may be without a change.
    pub tolerance_up: f64,
    /// The replicas that the metric proposes; none if it failed.
    pub proposal: Option<i32>,
}

/// One step on the way from the metrics' proposal to the decision.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
#[serde(tag = "step", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Step {
    /// The largest proposal of all metrics.
    Proposed {
        /// The replicas.
        replicas: i32,
        /// The index of the metric that proposed them.
        metric: usize,
    },
    /// A recommendation within the stabilization window won over the proposal.
    Stabilized {
        /// The replicas after this step.
        replicas: i32,
        /// When the last recommendation of the window was made that holds these replicas, or more (fewer, if it holds
        /// a scale-up): with it they are let go. None: only the present scale holds them.
        recommended_at: Option<UnixMillis>,
    },
    /// A policy, the scale-up limit, or min or max, kept the change smaller.
    Limited {
        /// The replicas after this step.
        replicas: i32,
        /// The limit's name, as in the ScalingLimited condition.
        by: &'static str,
    },
    /// The scale was outside min and max, so no metric was evaluated.
    OutOfBounds {
        /// The bound that was applied.
        replicas: i32,
    },
}

/// A trace recorded as data.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct RecordedTrace {
    /// An entry for each evaluated metric, with its index in the specification.
    pub metrics: Vec<(usize, MetricTrace)>,
    /// The steps in their order.
    pub steps: Vec<Step>,
}

impl Trace for RecordedTrace {
    #[inline]
    fn metric(&mut self, index: usize, trace: &MetricTrace) {
        self.metrics.push((index, *trace));
    }

    #[inline]
    fn step(&mut self, step: Step) {
        self.steps.push(step);
    }
}
