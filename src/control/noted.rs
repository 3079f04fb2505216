//! What is noted while a decision is made, for its account.

use crate::hpa::schedule::ScheduleSpec;
use crate::hpa::{Decision, Input, MetricSpecs, Outcome, ScalingHistory, Status};
use crate::ledger::{Basis, DecisionTrace, LoggedInputs};
use crate::promql::shape::ShapedQuery;
use crate::time::UnixMillis;
use std::sync::Arc;

/// What is noted while a decision is made.
#[derive(Default)]
pub struct Account {
    /// What the algorithm did.
    pub trace: DecisionTrace,
    /// When the values of each metric were queried, and when the newest was measured.
    pub times: Vec<[Option<UnixMillis>; 2]>,
    /// What held the replicas beside the algorithm, by the reason of its condition: more of them, and fewer. Also where
    /// none were wanted.
    pub holds: [Option<&'static str>; 2],
    /// All inputs, if decisions are logged.
    pub inputs: Option<Box<LoggedInputs>>,
    /// Whether they were not kept, as the decision log had no room.
    pub lacks_room: bool,
    /// What the algorithm decided on these inputs: the replicas to write and the error, if any.
    pub decided: (Option<i32>, Option<String>),
}

/// What the last decision of an autoscaler was based on. It is the same for most decisions, and made
/// of texts.
pub struct Described {
    /// The metrics of the spec.
    pub specs: MetricSpecs,
    /// The query of each, if it was read.
    pub queries: Vec<Option<Arc<ShapedQuery>>>,
    /// What the ledger shows of it.
    pub basis: Arc<Basis>,
}

/// The replicas that a decision wants to be written, if any.
pub fn wanted(decision: &Decision) -> Option<i32> {
    match &decision.outcome {
        Outcome::Rescale { to, .. } => Some(*to),
        Outcome::Hold | Outcome::Failed => decision.held_back.map(|(_, to)| to),
    }
}

impl Account {
    /// A decision begins on these inputs, which are kept if decisions are logged.
    pub fn begin(
        &mut self,
        logs: bool,
        schedules: (&[ScheduleSpec], Option<i32>),
        input: &Input<'_>,
        history: &ScalingHistory,
        status: &Status,
    ) {
        self.inputs = logs.then(|| Box::new(LoggedInputs::new(input, schedules, history, status)));
    }

    /// The algorithm has decided on these inputs.
    pub fn decided(&mut self, decision: &Decision) {
        if self.inputs.is_some() {
            self.decided = (wanted(decision), decision.error.clone());
        }
    }
}
