//! Rollouts of a workload, whose pods come and go for another reason than its load.

use std::time::Duration;
use tokio::time::Instant;

/// How long pods are fresh after a rollout, from when all are ready.
const FRESH: Duration = Duration::from_secs(60);
/// How long a rollout counts without progress: one that is stuck must not keep replicas from a load.
const LONGEST: Duration = Duration::from_secs(600);
/// How long after a change of the replicas pods come and go because of that.
const SCALING: Duration = Duration::from_secs(30);

/// What a workload says of rollouts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Whether its controller is to replace pods of another template than the present one.
    pub is_rolling_out: bool,
    /// Whether its controller replaces pods without being asked for each: not while it is paused, nor `OnDelete`, nor
    /// where a partition keeps all.
    pub is_automatic: bool,
    /// Whether it can be told by `updated` that a pod was replaced: it is more than it ever was.
    pub tells_progress: bool,
    /// Whether none of the pods that count as `updated` may be missing, such as one that is drained.
    pub is_settled: bool,
    /// Whether all pods end before others are made, and before those have a revision: in between there is none.
    pub is_recreated: bool,
    /// Its replicas by the spec.
    pub wanted: i32,
    /// How many pods are of the present template.
    pub updated: i32,
    /// How many pods are ready.
    pub ready: i32,
    /// The present template's; none before its controller has named it.
    pub revision: Option<Revision>,
}

/// The revision of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revision {
    /// Of a Deployment: each rollout has a greater one, also that to a template that was there before.
    Number(u64),
    /// Of a StatefulSet: a hash of its name.
    Name(u64),
}

/// The last rollout of a workload, as its watch shows it: an evaluation may come an hour later, and none during a pause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rollout {
    /// When it last made progress, its beginning included.
    moved: Option<Instant>,
    /// How many replicas there were to be when the last pod was replaced.
    size: Option<i32>,
    /// When so many pods were ready; none while they are not.
    ended: Option<Instant>,
    /// The most pods of this revision with these replicas; none before that is known.
    updated: Option<i32>,
    /// When the replicas were last changed.
    rescaled: Option<Instant>,
    /// The greatest number of a revision.
    newest: Option<u64>,
}

impl Rollout {
    /// Notes what the workload says, and said before. A rollout that is under way at the first sight begins with it:
    /// this process may start in the middle of it, and one that is stuck is held for its bound only. Another revision
    /// than before is a rollout, too: it may have come and gone while the watch was away. It continues until as many
    /// pods are ready as there were to be at its end: those that are added later don't count, or each scale-up
    /// would prolong it.
    pub(super) fn note(&mut self, before: Option<Seen>, seen: Seen, now: Instant) {
        let is_new = self.is_new(before, seen);
        if before.is_some_and(|before| before.wanted != seen.wanted) {
            (self.rescaled, self.updated) = (Some(now), None);
        }
        let is_under_way = self.moved.is_some() && self.ended.is_none();
        // The last old pod of one that is stuck may be drained, and comes again, unless all had to end.
        let may_resume = seen.is_recreated || !is_under_way;
        let is_resumed = before.is_none_or(|before| !before.is_rolling_out) && may_resume;
        // With none the workload is only scaled from zero, or between its old pods and those of this revision.
        let has_pods = seen.updated.max(seen.ready) > 0;
        let is_between = seen.wanted > 0 && (is_under_way || seen.is_recreated);
        let has_passed = is_new && seen.is_automatic && (has_pods || is_between);
        let begins = has_passed || seen.is_rolling_out && (is_new || is_resumed);
        if is_new || begins {
            self.updated = None;
            // It ends the one before.
            self.ended.get_or_insert(now);
        }
        let is_complete = before.is_some_and(|before| before.is_rolling_out)
            && !seen.is_rolling_out
            && seen.is_automatic
            && seen.ready >= seen.wanted;
        if self.has_moved(is_new, seen, now) || begins || is_complete {
            (self.moved, self.size, self.ended) = (Some(now), None, None);
        }
        if seen.is_rolling_out {
            (self.size, self.ended) = (None, None);
        } else if self.moved.is_some() {
            let size = *self.size.get_or_insert(seen.wanted);
            if seen.ready >= size.min(seen.wanted) {
                self.ended.get_or_insert(now);
            }
        }
    }

    /// Whether it has another revision than before. The annotation with a Deployment's may be written back by whoever has it
    /// in git, and by the controller again, without a rollout.
    fn is_new(&mut self, before: Option<Seen>, seen: Seen) -> bool {
        let before = before.and_then(|before| before.revision);
        match seen.revision {
            Some(Revision::Number(number)) => {
                let newest = self.newest.replace(self.newest.unwrap_or(0).max(number));
                before.is_some() && newest.is_some_and(|newest| newest < number)
            }
            revision => before.zip(revision).is_some_and(|(before, revision)| before != revision),
        }
    }

    /// Notes how many pods are updated. Returns whether a pod was replaced since what was noted before, and not only
    /// added with others, or made again.
    fn has_moved(&mut self, is_new: bool, seen: Seen, now: Instant) -> bool {
        if !seen.tells_progress || self.updated.is_none() && !is_new && !seen.is_settled {
            return false;
        }
        let before = self.updated.unwrap_or(seen.updated);
        self.updated = Some(before.max(seen.updated));
        let is_scaling = self.rescaled.is_some_and(|at| now.duration_since(at) < SCALING);
        seen.updated > before && !is_scaling
    }

    /// How much longer it counts, at least: it is on its way, or its pods are fresh. None if it does not count.
    pub fn left(&self, now: Instant) -> Option<Duration> {
        let until = (self.ended.unwrap_or(now) + FRESH).min(self.moved? + LONGEST);
        until.checked_duration_since(now).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three pods that are ready, of the present template.
    const STILL: Seen = Seen {
        is_rolling_out: false,
        is_automatic: true,
        tells_progress: true,
        is_settled: true,
        is_recreated: false,
        wanted: 3,
        updated: 3,
        ready: 3,
        revision: Some(Revision::Number(1)),
    };
    /// So many pods of three are left of the template before.
    const fn rolling(old: i32) -> Seen {
        Seen { is_rolling_out: true, updated: 3 - old, ..STILL }
    }

    /// How many seconds are left at each time at which something is seen.
    fn left(all: &[(u64, Seen)]) -> Vec<u64> {
        let (start, mut rollout, mut before) = (Instant::now(), Rollout::default(), None);
        let note = |&(seconds, seen): &(u64, Seen)| {
            let now = start + Duration::from_secs(seconds);
            rollout.note(before.replace(seen), seen, now);
            rollout.left(now).map_or(0, |left| left.as_secs())
        };
        all.iter().map(note).collect()
    }

    #[test]
    fn a_rollout_counts_until_its_pods_are_no_longer_fresh() {
        let seen = [
            (0, STILL),
            (15, rolling(3)),
            (30, rolling(1)),
            (45, STILL),
            (104, STILL),
            (105, STILL),
            (700, STILL),
        ];
        assert_eq!(left(&seen), [0, 60, 60, 60, 1, 0, 0]);
        // One that came and went while the watch was away.
        let again = [(0, 1), (15, 2), (74, 2), (75, 2)];
        let seen = again
            .map(|(seconds, of)| (seconds, Seen { revision: Some(Revision::Number(of)), ..STILL }));
        assert_eq!(left(&seen), [0, 60, 1, 0]);
    }

    /// Such as a canary that is continued after an hour.
    #[test]
    fn a_rollout_counts_as_long_as_it_makes_progress() {
        let seen = [
            (0, STILL),
            (15, rolling(3)),
            (614, rolling(3)),
            (615, rolling(3)),
            (4_000, rolling(3)),
            (4_015, rolling(2)),
            (4_614, rolling(1)),
            (5_213, rolling(1)),
            (5_214, rolling(1)),
            (5_300, STILL),
            (5_360, STILL),
        ];
        assert_eq!(left(&seen), [0, 60, 1, 0, 0, 60, 60, 1, 0, 60, 0]);
        // Part of it stays as it is until then: it is paused, or a partition keeps it.
        let canary = Seen { is_rolling_out: false, ..rolling(2) };
        let seen = [
            (0, STILL),
            (15, rolling(3)),
            (20, rolling(2)),
            (30, canary),
            (90, canary),
            (3_600, rolling(2)),
        ];
        assert_eq!(left(&seen), [0, 60, 60, 60, 0, 60]);
    }

    #[test]
    fn a_rollout_that_is_under_way_when_the_process_starts_counts_from_then_on() {
        let seen = [(0, 2), (15, 2), (599, 2), (600, 2), (700, 1)];
        let seen = seen.map(|(seconds, old)| (seconds, rolling(old)));
        assert_eq!(left(&seen), [60, 60, 1, 0, 60]);
    }

    /// Pods are replaced one by one as they are deleted, and not by another template.
    #[test]
    fn pods_that_are_replaced_by_hand_are_a_rollout() {
        let by_hand = |updated: i32| Seen {
            is_automatic: false,
            updated,
            revision: Some(Revision::Number(2)),
            ..STILL
        };
        let seen = [
            (0, Seen { is_automatic: false, ..STILL }),
            (15, by_hand(0)),
            (615, by_hand(0)),
            (630, by_hand(1)),
            (690, by_hand(1)),
        ];
        assert_eq!(left(&seen), [0, 0, 0, 60, 0]);
    }

    #[test]
    fn a_new_workload_is_no_rollout() {
        let new = Seen { revision: None, updated: 0, ready: 0, tells_progress: false, ..STILL };
        let seen = [(0, new), (1, Seen { ready: 0, ..STILL }), (30, STILL)];
        assert_eq!(left(&seen), [0, 0, 0]);
    }

    /// It is missing when the replicas become as many as are wanted, or when the process starts.
    #[test]
    fn a_pod_that_is_drained_and_made_again_is_no_progress() {
        let of = |wanted: i32, updated: i32| Seen {
            wanted,
            updated,
            is_settled: updated == wanted,
            ..STILL
        };
        let seen =
            [(0, of(3, 3)), (10, of(4, 3)), (20, of(4, 4)), (7_200, of(4, 3)), (7_231, of(4, 4))];
        assert_eq!(left(&seen), [0; 5]);
        assert_eq!(left(&[(0, of(3, 2)), (31, of(3, 3)), (60, of(3, 2)), (91, of(3, 3))]), [0; 4]);
        // The last old pod of a Deployment whose rollout is stuck.
        let stuck =
            |old: i32| Seen { wanted: 1, updated: 1, ready: old, is_rolling_out: old > 0, ..STILL };
        let seen =
            [(0, of(1, 1)), (10, stuck(1)), (700, stuck(0)), (701, stuck(1)), (730, stuck(1))];
        assert_eq!(left(&seen), [0, 60, 0, 0, 0]);
    }

    #[test]
    fn scaling_is_no_progress() {
        // Of a rollout that is stuck.
        let scaled = |wanted: i32, old: i32| Seen { wanted, ..rolling(old) };
        let seen = [
            (0, STILL),
            (15, rolling(3)),
            (1_000, scaled(2, 3)),
            (1_005, scaled(2, 2)),
            (1_040, scaled(2, 2)),
            (1_100, scaled(2, 1)),
        ];
        assert_eq!(left(&seen), [0, 60, 0, 0, 0, 60]);
        // A pod is added to a part that has the new template.
        let part = |wanted: i32, updated: i32, tells_progress: bool| Seen {
            wanted,
            updated,
            tells_progress,
            ..STILL
        };
        let seen = [
            (0, part(9, 1, true)),
            (15, part(10, 1, false)),
            (90, part(10, 2, true)),
            (120, part(10, 2, true)),
            (130, part(10, 3, true)),
        ];
        assert_eq!(left(&seen), [0, 0, 0, 0, 60]);
    }

    #[test]
    fn pods_are_fresh_for_a_minute_from_when_they_are_ready() {
        let unready = Seen { ready: 2, ..STILL };
        let seen = [
            // A scale-up is no rollout.
            (0, unready),
            (15, rolling(1)),
            // All are of the new template, and start for three minutes.
            (30, unready),
            (180, unready),
            (195, STILL),
            // Pods that a scale-up adds are none of the rollout.
            (200, Seen { wanted: 5, updated: 5, ready: 3, ..STILL }),
            (254, Seen { wanted: 5, updated: 5, ready: 4, ..STILL }),
            (255, Seen { wanted: 5, updated: 5, ready: 4, ..STILL }),
        ];
        assert_eq!(left(&seen), [0, 60, 60, 60, 60, 55, 1, 0]);
        // They may come before those of the rollout are ready.
        let seen = [
            (0, STILL),
            (15, rolling(1)),
            (30, unready),
            (45, Seen { wanted: 5, updated: 5, ready: 2, ..STILL }),
            (60, Seen { wanted: 5, updated: 5, ready: 3, ..STILL }),
            (119, Seen { wanted: 7, updated: 7, ready: 5, ..STILL }),
            (120, Seen { wanted: 7, updated: 7, ready: 5, ..STILL }),
        ];
        assert_eq!(left(&seen), [0, 60, 60, 60, 60, 1, 0]);
        // Pods that are never ready keep replicas from a load for ten minutes. All are deleted first.
        let unready = Seen { tells_progress: false, ..unready };
        let none = Seen { updated: 0, ready: 0, ..unready };
        let seen = [(0, STILL), (10, rolling(3)), (20, none), (609, unready), (610, unready)];
        assert_eq!(left(&seen), [0, 60, 60, 1, 0]);
    }

    /// Its old pods end for 20 seconds, and the new ones start for three minutes.
    #[test]
    fn a_deployment_that_is_recreated_is_held_until_its_new_pods_are_fresh_no_longer() {
        let of = |revision: u64, updated: i32, ready: i32| Seen {
            tells_progress: false,
            is_recreated: true,
            updated,
            ready,
            revision: Some(Revision::Number(revision)),
            ..STILL
        };
        let ends = Seen { is_rolling_out: true, ..of(1, 0, 3) };
        let made = [
            (11, of(1, 0, 0)),
            (31, of(2, 0, 0)),
            (32, of(2, 3, 0)),
            (211, of(2, 3, 2)),
            (212, of(2, 3, 3)),
            (271, of(2, 3, 3)),
            (272, of(2, 3, 3)),
        ];
        let all: Vec<_> = [(0, of(1, 3, 3)), (10, ends)].into_iter().chain(made).collect();
        assert_eq!(left(&all), [0, 60, 60, 60, 60, 60, 60, 1, 0]);
        // The process starts while there is no pod.
        assert_eq!(left(&made), [0, 60, 60, 60, 60, 1, 0]);
        // Another one follows one that is stuck.
        let again = Seen { is_rolling_out: true, ..of(2, 0, 0) };
        let stuck = [(0, of(1, 3, 3)), (10, of(2, 0, 0)), (11, of(2, 3, 0)), (700, again)];
        assert_eq!(left(&stuck), [0, 60, 60, 60]);
        // One that is scaled to zero is none.
        let zero = |revision: u64| Seen { wanted: 0, ..of(revision, 0, 0) };
        assert_eq!(left(&[(0, zero(1)), (10, zero(2)), (20, of(2, 0, 0))]), [0, 0, 0]);
        // Nor are pods that are missing when it is made.
        let unnamed = Seen { revision: None, ..of(0, 0, 0) };
        assert_eq!(left(&[(0, unnamed), (1, of(1, 0, 0)), (2, of(1, 3, 0))]), [0, 0, 0]);
    }

    /// A manifest in git has it, and the controller writes its own again.
    #[test]
    fn an_annotation_that_is_written_back_is_no_rollout() {
        let of = |number: u64| Seen { revision: Some(Revision::Number(number)), ..STILL };
        let seen = [(0, of(7)), (45, of(1)), (46, of(7)), (90, of(1)), (91, of(7)), (120, of(8))];
        assert_eq!(left(&seen), [0, 0, 0, 0, 0, 60]);
        // Of a StatefulSet the revision of a template that was there before is the one that it had.
        let of = |name: u64| Seen { revision: Some(Revision::Name(name)), ..STILL };
        assert_eq!(left(&[(0, of(7)), (45, of(1)), (200, of(7))]), [0, 60, 60]);
    }

    /// An evaluation may come long after the last change of the workload.
    #[test]
    fn a_rollout_ends_whenever_it_is_asked_for() {
        let (start, mut rollout, mut before) = (Instant::now(), Rollout::default(), None);
        let at = |seconds| start + Duration::from_secs(seconds);
        for (seconds, seen) in [(0, STILL), (10, rolling(2)), (40, STILL)] {
            rollout.note(before.replace(seen), seen, at(seconds));
        }
        for (seconds, left) in [(40, Some(60)), (99, Some(1)), (100, None), (3_340, None)] {
            assert_eq!(rollout.left(at(seconds)), left.map(Duration::from_secs), "{seconds}");
        }
    }
}
