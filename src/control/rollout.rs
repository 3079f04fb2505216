//! Rollouts of a workload, whose pods come and go for another reason than its load.

use crate::time::UnixMillis;

/// How long pods are fresh after a rollout, in ms.
const FRESH_MS: i64 = 60_000;
/// How long a rollout counts at most, in ms: one that is stuck must not keep replicas from a load.
const LONGEST_MS: i64 = 600_000;

/// The rollout of a workload, by the clock of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rollout {
    since: Option<UnixMillis>,
    seen: Option<UnixMillis>,
    revision: Option<u64>,
}

impl Rollout {
    /// Notes whether there is a rollout, or was one since the last time, after which there is another
    /// revision. Returns whether one counts: it is on its way, or its pods are fresh.
    pub fn note(&mut self, is_rolling_out: bool, revision: u64, now: UnixMillis) -> bool {
        let was_rolled_out =
            self.revision.replace(revision).is_some_and(|before| before != revision);
        if was_rolled_out {
            self.since = None;
        }
        if is_rolling_out || was_rolled_out {
            self.since.get_or_insert(now);
            self.seen = Some(now);
        }
        let counts = self.seen.is_some_and(|seen| now - seen < FRESH_MS)
            && self.since.is_some_and(|since| now - since < LONGEST_MS);
        if !is_rolling_out && !counts {
            *self = Self { revision: self.revision, ..Self::default() };
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollout_counts_until_its_pods_are_no_longer_fresh_and_not_for_ever() {
        let mut rollout = Rollout::default();
        for (seconds, is_rolling_out, counts) in [
            (0, false, false),
            (15, true, true),
            (30, true, true),
            (45, false, true),
            (89, false, true),
            (90, false, false),
            (100, true, true),
            (699, true, true),
            // It is stuck.
            (700, true, false),
            (2_000, true, false),
            (2_015, false, false),
            (2_030, true, true),
        ] {
            assert_eq!(rollout.note(is_rolling_out, 1, seconds * 1000), counts, "{seconds}");
        }
        // One that came and went between two evaluations.
        let mut rollout = Rollout::default();
        for (seconds, revision, counts) in
            [(0, 1, false), (15, 2, true), (74, 2, true), (75, 2, false)]
        {
            assert_eq!(rollout.note(false, revision, seconds * 1000), counts, "{seconds}");
        }
    }
}
