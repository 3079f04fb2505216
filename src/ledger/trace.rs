//! What the ledger keeps of a decision while it is made: numbers only. Nothing is allocated once its
//! lists are as long as the metrics, and no text is written but that of a metric that failed.

use crate::hpa::{MetricTrace, RecordedTrace, Step, Trace};

/// The trace of one decision, used again for the next one.
#[derive(Clone, Debug, Default)]
pub struct DecisionTrace {
    /// The metrics and steps.
    pub recorded: RecordedTrace,
    /// The metrics that failed: their index, the reason of the event, and the cause.
    pub failures: Vec<(usize, &'static str, String)>,
}

impl DecisionTrace {
    /// Forgets the decision before.
    #[inline]
    pub fn clear(&mut self) {
        self.recorded.metrics.clear();
        self.recorded.steps.clear();
        self.failures.clear();
    }
}

impl Trace for DecisionTrace {
    #[inline]
    fn metric(&mut self, index: usize, trace: &MetricTrace) {
        self.recorded.metric(index, trace);
    }

    #[inline]
    fn step(&mut self, step: Step) {
        self.recorded.step(step);
    }

    fn failure(&mut self, index: usize, reason: &'static str, cause: &str) {
        self.failures.push((index, reason, cause.to_owned()));
    }
}
