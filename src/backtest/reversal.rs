//! Which changes of replicas are reversals.

use crate::time::UnixMillis;

/// A change against the direction of the one before is a reversal within this time, in ms.
const REVERSAL_MS: i64 = 600_000;

/// Tells reversals from other changes of a workload's replicas.
#[derive(Clone, Debug, Default)]
pub struct Reversals {
    /// The last change: when, and whether it was up.
    last: Option<(UnixMillis, bool)>,
}

impl Reversals {
    /// The replicas change. Returns whether that is a reversal: against the direction of the change before, within 10
    /// minutes.
    pub fn changed(&mut self, at: UnixMillis, is_up: bool) -> bool {
        let before = self.last.replace((at, is_up));
        before.is_some_and(|(before, was_up)| was_up != is_up && at - before <= REVERSAL_MS)
    }
}
