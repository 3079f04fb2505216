//! What is seen of the decisions of a run.

use crate::hpa::{Context, Decision, ScalingHistory, Status, Trace};

/// Sees each decision of a run, and what it was made of while it is made. `()` looks at nothing, at no cost.
pub trait Observer: Trace {
    /// A decision was made, and the workload has followed it.
    fn decided(&mut self, decided: &Decided<'_>);
}

impl Observer for () {
    #[inline]
    fn decided(&mut self, _: &Decided<'_>) {}
}

impl<T: Observer> Observer for Option<T> {
    #[inline]
    fn decided(&mut self, decided: &Decided<'_>) {
        if let Some(observer) = self {
            observer.decided(decided);
        }
    }
}

/// A decision of a run, and the state after it.
#[derive(Clone, Copy, Debug)]
pub struct Decided<'a> {
    /// The spec, its bounds, and the time.
    pub context: Context<'a>,
    /// The replicas before it.
    pub current: i32,
    /// The decision.
    pub decision: &'a Decision,
    /// The status after it.
    pub status: &'a Status,
    /// The scaling history after it.
    pub history: &'a ScalingHistory,
    /// The period of decisions, in ms.
    pub period: i64,
    /// The load of each metric, where it is known.
    pub loads: &'a [Option<f64>],
    /// The pods that it needs, if that of each is known.
    pub needed: Option<i64>,
    /// The pods that are ready.
    pub ready: usize,
    /// The replicas after it.
    pub wanted: i32,
}
