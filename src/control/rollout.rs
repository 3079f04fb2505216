//! Rollouts of a workload, whose pods come and go for another reason than its load.

use crate::time::UnixMillis;

/// How long pods are fresh after a rollout, from when all are ready, in ms.
const FRESH_MS: i64 = 60_000;
/// How long a rollout counts at most, in ms: one that is stuck must not keep replicas from a load.
const LONGEST_MS: i64 = 600_000;

/// What a workload says of rollouts.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Whether there are pods of another template than the present one.
    pub is_rolling_out: bool,
    /// Whether all pods are ready.
    pub are_pods_ready: bool,
    /// The revision of the present template.
    pub revision: u64,
}

/// The rollout of a workload, by the clock of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rollout {
    since: Option<UnixMillis>,
    seen: Option<UnixMillis>,
    revision: Option<u64>,
}

impl Rollout {
    /// Notes whether there is a rollout, or was one since the last time, after which there is another
    /// revision. One that has begun continues until its pods are ready; pods that are not ready without a rollout are
    /// none, or each scale-up would be one. Returns whether one counts: it is on its way, or its pods are fresh.
    pub fn note(&mut self, seen: Seen, now: UnixMillis) -> bool {
        let Seen { is_rolling_out, are_pods_ready, revision } = seen;
        let was_rolled_out =
            self.revision.replace(revision).is_some_and(|before| before != revision);
        if was_rolled_out {
            self.since = None;
        }
        let goes_on = is_rolling_out || self.since.is_some() && !are_pods_ready;
        if goes_on || was_rolled_out {
            self.since.get_or_insert(now);
            self.seen = Some(now);
        }
        let counts = self.seen.is_some_and(|seen| now - seen < FRESH_MS)
            && self.since.is_some_and(|since| now - since < LONGEST_MS);
        if !goes_on && !counts {
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
            let seen = Seen { is_rolling_out, are_pods_ready: true, revision: 1 };
            assert_eq!(rollout.note(seen, seconds * 1000), counts, "{seconds}");
        }
        // One that came and went between two evaluations.
        let mut rollout = Rollout::default();
        for (seconds, revision, counts) in
            [(0, 1, false), (15, 2, true), (74, 2, true), (75, 2, false)]
        {
            let seen = Seen { is_rolling_out: false, are_pods_ready: true, revision };
            assert_eq!(rollout.note(seen, seconds * 1000), counts, "{seconds}");
        }
    }

    #[test]
    fn pods_are_fresh_for_a_minute_from_when_they_are_ready() {
        let mut rollout = Rollout::default();
        for (seconds, is_rolling_out, are_pods_ready, counts) in [
            // A scale-up is no rollout.
            (0, false, false, false),
            (15, true, false, true),
            // All are of the new template, and start for three minutes.
            (30, false, false, true),
            (180, false, false, true),
            (195, false, true, true),
            (239, false, true, true),
            (240, false, true, false),
            (255, false, false, false),
        ] {
            let seen = Seen { is_rolling_out, are_pods_ready, revision: 1 };
            assert_eq!(rollout.note(seen, seconds * 1000), counts, "{seconds}");
        }
        // Pods that are never ready keep replicas from a load for ten minutes.
        for (seconds, is_rolling_out, counts) in
            [(300, true, true), (899, false, true), (900, false, false), (9_000, false, false)]
        {
            let seen = Seen { is_rolling_out, are_pods_ready: false, revision: 1 };
            assert_eq!(rollout.note(seen, seconds * 1000), counts, "{seconds}");
        }
    }
}
