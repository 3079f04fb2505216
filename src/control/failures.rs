//! For how many sync periods in a row the metrics of an autoscaler have failed.

use std::time::Duration;
use tokio::time::Instant;

/// The rounds in a row whose metrics failed. Evaluations that an edit, a hand-over or a release brings forward
/// are no rounds of their own.
#[derive(Debug, Default)]
pub struct Failures {
    rounds: i32,
    since: Option<Instant>,
}

impl Failures {
    /// The number of rounds.
    pub fn rounds(&self) -> i32 {
        self.rounds
    }

    /// Counts an evaluation whose metrics failed.
    pub fn count(&mut self, period: Duration) {
        let since = *self.since.get_or_insert_with(Instant::now);
        // An evaluation may begin a little earlier or later than the one a period before.
        let passed = since.elapsed() + period / 4;
        let most = 1 + passed.as_nanos() / period.as_nanos().max(1);
        let most = i32::try_from(most).unwrap_or(i32::MAX);
        self.rounds = self.rounds.saturating_add(1).min(most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_most_of_a_period_after_the_one_before() {
        let mut failures = Failures::default();
        // Forced ones, those of a phase that moved, and some at once after evaluations that could not read the scale.
        for (time, rounds) in [
            (0, 1),
            (2, 1),
            (11, 1),
            (14, 2),
            (15, 2),
            (30, 3),
            (90, 4),
            (91, 4),
            (92, 4),
            (105, 5),
        ] {
            failures.count(time * 1000, Duration::from_secs(15));
            assert_eq!(failures.rounds(), rounds, "{time}");
        }
    }
}
