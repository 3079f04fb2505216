//! For how many sync periods in a row the metrics of an autoscaler have failed.

use crate::time::UnixMillis;
use std::time::Duration;

/// The rounds in a row whose metrics failed. Evaluations that an edit, a hand-over or a release brings forward
/// are no rounds of their own.
#[derive(Debug, Default)]
pub struct Failures {
    rounds: i32,
    last: Option<Round>,
}

/// A round.
#[derive(Clone, Copy, Debug)]
struct Round {
    at: UnixMillis,
    /// When the next is due if each is a period after the one before.
    next: UnixMillis,
}

impl Failures {
    /// The number of rounds.
    pub fn rounds(&self) -> i32 {
        self.rounds
    }

    /// Counts an evaluation whose metrics failed, by the time of its decision. A round may be a quarter of a period
    /// early, because the one before may have overrun its period; rounds that are in time don't drift ahead.
    pub fn count(&mut self, decided: UnixMillis, period: Duration) {
        let period = i64::try_from(period.as_millis()).unwrap_or(i64::MAX / 4);
        let early = period / 4;
        let (at, next) = match self.last {
            // By a longer period before it may be far away.
            Some(Round { at, next }) => (at, next.min(at + period + early)),
            None => (decided - period, decided),
        };
        if decided + early >= next.max(at + period) {
            self.rounds = self.rounds.saturating_add(1);
            // Missed rounds are not made up for.
            self.last = Some(Round { at: decided, next: next.max(decided - early) + period });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds that edits bring forward again and again.
    #[test]
    fn there_are_no_more_rounds_than_periods() {
        let mut failures = Failures::default();
        for step in 0..=100 {
            failures.count(step * 11_250, Duration::from_secs(15));
        }
        // 1125 s are 75 periods, and the first round is at their beginning.
        assert_eq!(failures.rounds(), 76);
    }

    /// `syncPeriodSeconds` is edited during an outage.
    #[test]
    fn rounds_of_another_period_count_as_they_were() {
        let [short, long] = [15, 300];
        for (before, after, then) in [(short, long, vec![345, 645]), (long, short, vec![615, 630])]
        {
            let mut failures = Failures::default();
            for round in 0..3 {
                failures.count(round * before * 1000, Duration::from_secs(before as u64));
            }
            let mut rounds = 3;
            for time in then {
                rounds += 1;
                failures.count(time * 1000, Duration::from_secs(after as u64));
                assert_eq!(failures.rounds(), rounds, "{before} s, then {after} s, at {time}");
            }
        }
    }

    /// Evaluations that are brought forward make up for none that was missed.
    #[test]
    fn rounds_that_were_missed_are_not_made_up_for() {
        let mut failures = Failures::default();
        failures.count(0, Duration::from_secs(15));
        for step in 0..=8 {
            failures.count(600_000 + step * 11_250, Duration::from_secs(15));
        }
        // 90 s are six periods.
        assert_eq!(failures.rounds(), 1 + 7);
    }

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
