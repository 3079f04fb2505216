//! Rollouts of a workload, whose pods come and go for another reason than its load.

use std::time::Duration;
use tokio::time::Instant;

/// How long pods are fresh after a rollout, from when all are ready.
const FRESH: Duration = Duration::from_secs(60);
/// How long a rollout counts at most: one that is stuck must not keep replicas from a load.
const LONGEST: Duration = Duration::from_secs(600);

/// What a workload says of rollouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Whether there are pods of another template than the present one.
    pub is_rolling_out: bool,
    /// Whether all pods are ready.
    pub are_pods_ready: bool,
    /// A hash of the name of the present template's revision.
    pub revision: u64,
}

/// The last rollout of a workload, as its watch shows it: an evaluation may come an hour later, and none during a pause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rollout {
    revision: Option<u64>,
    since: Option<Instant>,
    /// When its pods were ready; none while they are not.
    ended: Option<Instant>,
}

impl Rollout {
    /// Notes what the workload says. Another revision than before is a rollout, too: it may have come and gone while
    /// the watch was away. A rollout continues until its pods are ready; pods that are not ready without a rollout are
    /// none, or each scale-up would be one.
    pub(super) fn note(&mut self, seen: Seen, now: Instant) {
        let Seen { is_rolling_out, are_pods_ready, revision } = seen;
        let is_new = self.revision.replace(revision).is_some_and(|before| before != revision);
        let is_over = self.ended.is_some() && self.left(now).is_none();
        if is_new || is_over {
            (self.since, self.ended) = (is_new.then_some(now), None);
        }
        if is_rolling_out || self.since.is_some() && !are_pods_ready {
            self.since.get_or_insert(now);
            self.ended = None;
        } else if self.since.is_some() {
            self.ended.get_or_insert(now);
        }
    }

    /// How much longer it counts, at least: it is on its way, or its pods are fresh. None if it does not count.
    pub fn left(&self, now: Instant) -> Option<Duration> {
        let until = (self.ended.unwrap_or(now) + FRESH).min(self.since? + LONGEST);
        until.checked_duration_since(now).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many seconds are left at each time at which something is seen: whether it is rolled out, whether its
    /// pods are ready, and its revision.
    fn left(all: &[(u64, (bool, bool, u64))]) -> Vec<u64> {
        let (start, mut rollout) = (Instant::now(), Rollout::default());
        let note = |&(seconds, (is_rolling_out, are_pods_ready, revision))| {
            let now = start + Duration::from_secs(seconds);
            rollout.note(Seen { is_rolling_out, are_pods_ready, revision }, now);
            rollout.left(now).map_or(0, |left| left.as_secs())
        };
        all.iter().map(note).collect()
    }

    #[test]
    fn a_rollout_counts_until_its_pods_are_no_longer_fresh_and_not_for_ever() {
        let (rolling, still) = ((true, true, 1), (false, true, 1));
        let seen = [
            (0, still),
            (15, rolling),
            (30, rolling),
            (45, still),
            (104, still),
            (105, still),
            // The watch shows a workload only when it changes.
            (700, rolling),
            (1_299, rolling),
            // It is stuck.
            (1_300, rolling),
            (2_000, rolling),
            (2_015, still),
            (2_030, rolling),
        ];
        assert_eq!(left(&seen), [0, 60, 60, 60, 1, 0, 60, 1, 0, 0, 0, 60]);
        // One that came and went while the watch was away.
        let again = [(0, 1), (15, 2), (74, 2), (75, 2)];
        let seen = again.map(|(seconds, revision)| (seconds, (false, true, revision)));
        assert_eq!(left(&seen), [0, 60, 1, 0]);
    }

    #[test]
    fn pods_are_fresh_for_a_minute_from_when_they_are_ready() {
        let (unready, ready) = ((false, false, 1), (false, true, 1));
        let seen = [
            // A scale-up is no rollout.
            (0, unready),
            (15, (true, false, 1)),
            // All are of the new template, and start for three minutes.
            (30, unready),
            (180, unready),
            (195, ready),
            (254, ready),
            (255, ready),
            (270, unready),
            // Pods that are never ready keep replicas from a load for ten minutes.
            (300, (true, false, 1)),
            (899, unready),
            (900, unready),
            (9_000, unready),
        ];
        assert_eq!(left(&seen), [0, 60, 60, 60, 60, 1, 0, 0, 60, 1, 0, 0]);
    }

    /// An evaluation may come long after the last change of the workload.
    #[test]
    fn a_rollout_ends_whenever_it_is_asked_for() {
        let (start, mut rollout) = (Instant::now(), Rollout::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        for (seconds, revision, is_rolling_out) in [(0, 1, false), (10, 2, true), (40, 2, false)] {
            let seen = Seen { is_rolling_out, are_pods_ready: true, revision };
            rollout.note(seen, at(seconds));
        }
        for (seconds, left) in [(40, Some(60)), (99, Some(1)), (100, None), (3_340, None)] {
            assert_eq!(rollout.left(at(seconds)), left.map(Duration::from_secs), "{seconds}");
        }
    }
}
