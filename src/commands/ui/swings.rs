//! How often the replicas of an autoscaler turn back: whether it flaps.

use crate::backtest::Reversals;
use crate::time::UnixMillis;
use std::collections::VecDeque;

/// How far back reversals count.
pub const LOOK_BACK_MS: i64 = 3_600_000;
/// As many reversals within that time are flapping.
pub const FLAPPING: usize = 3;
/// How far the clock of whoever scales may be ahead of ours. What is later has not happened yet.
pub const AHEAD_MS: i64 = 10_000;
/// The reversals that are remembered.
const MAX_REVERSALS: usize = 100;

/// The changes of an autoscaler's replicas, as far as they matter.
#[derive(Clone, Debug, Default)]
pub struct Swings {
    /// A reversal is the same as in a backtest.
    turns: Reversals,
    reversals: VecDeque<UnixMillis>,
}

impl Swings {
    /// The replicas changed.
    pub fn changed(&mut self, at: UnixMillis, is_up: bool) {
        if self.turns.changed(at, is_up) {
            self.reversals.push_back(at);
            if self.reversals.len() > MAX_REVERSALS {
                self.reversals.pop_front();
            }
        }
    }

    /// The reversals within the last hour.
    pub fn count(&self, now: UnixMillis) -> usize {
        let is_within =
            |at: &&UnixMillis| (-AHEAD_MS..=LOOK_BACK_MS).contains(&now.saturating_sub(**at));
        self.reversals.iter().filter(is_within).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_soon_after_one_in_the_other_direction_is_a_reversal() {
        let minute = 60_000;
        let mut swings = Swings::default();
        for (at, is_up) in [(0, true), (1, true), (2, false), (3, true), (14, false), (20, true)] {
            swings.changed(at * minute, is_up);
        }
        // At 2, 3 and 20; what came 11 minutes later is none.
        assert_eq!(swings.count(20 * minute), FLAPPING);
        assert_eq!(swings.count(63 * minute), 2);
        assert_eq!(swings.count(81 * minute), 0);
        // By a clock that was set back.
        assert_eq!(swings.count(0), 0);
    }

    #[test]
    fn the_memory_of_an_autoscaler_is_bounded() {
        let mut swings = Swings::default();
        (0..10_000).for_each(|at| swings.changed(at, at % 2 == 0));
        assert_eq!(swings.reversals.len(), MAX_REVERSALS);
    }
}
