//! Which changes of a scale were made by Plimsoll, as a replica sees it that did not
//! make them. Two watches tell of one change, in either order and some time apart:
//! the scale that it moved, and the status in which its writer says so. What others
//! did to the scale, no status speaks of.

use crate::hpa::UnixMillis;

/// A change of a scale, and when it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The replicas before.
    pub from: i32,
    /// The replicas after.
    pub to: i32,
    /// When, by this process's clock. Of a change that was seen late that is too late,
    /// never too soon: it limits others for longer.
    pub at: UnixMillis,
}

/// What is known of the changes of one scale.
#[derive(Debug, Default)]
pub struct Rescales {
    /// The replicas seen last.
    seen: Option<i32>,
    /// What they are to become by a status that came before the scale.
    ahead: Option<i32>,
    /// Changes that no status has spoken of yet.
    untold: Vec<Change>,
    /// `status.lastScaleTime` of the last change that is known, in Unix seconds: from a
    /// status, and from what was kept.
    told: Option<i64>,
    kept: Option<i64>,
    /// What was told before changes of this replica's own, and of those but the last: it may
    /// be told again until the status of the last one is written.
    behind: Vec<i64>,
    /// A change that this replica asked for without an answer: it may have been made, or
    /// be made yet.
    tried: Option<Change>,
}

/// How many changes wait for their status, and for how long. Statuses come after
/// seconds; a change of which none speaks by then is another's.
const UNTOLD: usize = 8;
const PATIENCE_MS: i64 = 60_000;
/// How long a change without an answer may be unseen by a watch: longer than one that fell
/// silent goes unnoticed.
const BEHIND_MS: i64 = 300_000;

impl Rescales {
    /// When Plimsoll changed the scale last, as statuses say it.
    pub fn last(&self) -> Option<i64> {
        self.told.max(self.kept)
    }

    /// The scale asks for so many replicas.
    pub fn see(&mut self, replicas: i32, now: UnixMillis) {
        self.untold.retain(|change| now - change.at <= PATIENCE_MS);
        // What it was to become is seen as a change.
        self.tried = self.tried.filter(|tried| tried.to != replicas);
        let before = self.seen.replace(replicas);
        match (before, self.ahead) {
            // It has become what the status said, or has not yet.
            (_, Some(to)) if to == replicas => self.ahead = None,
            (Some(from), Some(_)) if from == replicas => {}
            (before, _) => {
                self.ahead = None;
                let changed = before.filter(|from| *from != replicas);
                self.untold.extend(changed.map(|from| Change { from, to: replicas, at: now }));
                if self.untold.len() > UNTOLD {
                    self.untold.remove(0);
                }
            }
        }
    }

    /// A status says when Plimsoll changed the scale last, and to what; the change, where
    /// it was not known of.
    pub fn hear(&mut self, last: Option<i64>, to: i32, now: UnixMillis) -> Option<Change> {
        if last.is_some_and(|last| self.behind.contains(&last)) {
            return None;
        }
        self.behind.clear();
        let before = std::mem::replace(&mut self.told, last);
        if last.is_none() || last == before || last == self.kept {
            return None;
        }
        if let Some(place) = self.untold.iter().rposition(|change| change.to == to) {
            return self.untold.drain(..=place).next_back();
        }
        let from = self.seen.filter(|from| *from != to)?;
        self.ahead = Some(to);
        Some(Change { from, to, at: now })
    }

    /// This replica leads from now on. The changes of which no status has spoken may be
    /// those of a leader that was killed before it could, or another's: they limit.
    pub fn take_over(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.untold)
    }

    /// This replica leads, and sees so many replicas, by a watch or read just now: it knows of
    /// all that it does, but of the change whose answer did not come, which it is told here
    /// where it was made.
    pub fn lead(&mut self, replicas: i32, is_read: bool, now: UnixMillis) -> Option<Change> {
        (self.seen, self.ahead) = (Some(replicas), None);
        self.untold.clear();
        let tried = self.tried.take()?;
        if replicas == tried.to {
            return Some(tried);
        }
        // A watch that is behind does not say that it was not made.
        let open = match is_read {
            true => replicas == tried.from && now - tried.at <= PATIENCE_MS,
            false => now - tried.at <= BEHIND_MS,
        };
        self.tried = Some(tried).filter(|_| open);
        None
    }

    /// Whether this replica has asked since for so many replicas, and does not know whether
    /// that was done.
    pub fn tries(&self, replicas: i32, since: UnixMillis) -> bool {
        self.tried.is_some_and(|tried| tried.to == replicas && tried.at > since)
    }

    /// This replica has changed the scale.
    pub fn did(&mut self, from: i32, to: i32, last: Option<i64>) {
        if self.told != last {
            self.behind.extend(self.told);
            if self.behind.len() > UNTOLD {
                // The first is what the object says as long as nothing could be written.
                self.behind.remove(1);
            }
        }
        (self.seen, self.ahead, self.told) = (Some(from), Some(to), last);
        self.tried = None;
    }

    /// This replica has asked for a change of the scale, and does not know whether it was
    /// made.
    pub fn tried(&mut self, change: Change) {
        self.tried = Some(change);
    }

    /// What was kept knows of all changes up to this one.
    pub fn inherit(&mut self, last: Option<i64>) {
        if last > self.told {
            self.untold.clear();
        }
        self.kept = self.kept.max(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(from: i32, to: i32, at: i64) -> Change {
        Change { from, to, at }
    }

    #[test]
    fn a_change_is_known_whichever_of_scale_and_status_comes_first() {
        // Both at once, the scale first, the status first.
        for (scale_at, status_at) in [(1, 1), (1, 3), (3, 1)] {
            let mut rescales = Rescales::default();
            let mut heard = Vec::new();
            for now in 0..6 {
                rescales.see(if now >= scale_at { 2 } else { 1 }, now);
                let last = (now >= status_at).then_some(100);
                heard.extend(rescales.hear(last, if now >= status_at { 2 } else { 1 }, now));
            }
            let at = scale_at.min(status_at);
            assert_eq!(heard, [change(1, 2, at)], "{scale_at} {status_at}");
            assert_eq!(rescales.take_over(), []);
        }
    }

    #[test]
    fn what_others_do_to_a_scale_is_not_taken_for_plimsolls() {
        let mut rescales = Rescales::default();
        rescales.see(2, 0);
        assert_eq!(rescales.hear(Some(100), 2, 0), None, "that was before");
        rescales.see(5, 1);
        assert_eq!(rescales.hear(Some(100), 2, 1), None);
        rescales.see(6, 2);
        assert_eq!(rescales.hear(Some(102), 6, 2), Some(change(5, 6, 2)));
        rescales.see(9, 3);
        rescales.see(9, 3 + PATIENCE_MS + 1);
        assert_eq!(rescales.take_over(), [], "nobody spoke of it for a minute");
    }

    #[test]
    fn a_new_leader_counts_what_the_last_one_may_have_done() {
        let mut rescales = Rescales::default();
        rescales.see(1, 0);
        rescales.see(2, 5);
        assert_eq!(rescales.take_over(), [change(1, 2, 5)]);
        // Unless what was kept knows of it.
        rescales.see(3, 6);
        rescales.inherit(Some(200));
        assert_eq!(rescales.take_over(), []);
        assert_eq!(rescales.hear(Some(200), 3, 7), None);
    }

    #[test]
    fn a_change_of_its_own_without_an_answer_counts_once_it_is_seen() {
        for (seen, expected) in [
            (&[1, 4, 4][..], [None, Some(change(1, 4, 5)), None]),
            (&[1, 7, 4], [None; 3]),
            // Another replica may have led meanwhile.
            (&[4, 4, 4], [Some(change(1, 4, 5)), None, None]),
        ] {
            let mut rescales = Rescales::default();
            rescales.lead(1, true, 0);
            rescales.tried(change(1, 4, 5));
            let heard = seen.iter().map(|replicas| rescales.lead(*replicas, true, 6));
            assert_eq!(heard.collect::<Vec<_>>(), expected, "{seen:?}");
        }
        let mut rescales = Rescales::default();
        rescales.lead(1, true, 0);
        rescales.tried(change(1, 4, 5));
        assert_eq!(rescales.lead(1, true, 6 + PATIENCE_MS), None);
        assert_eq!(rescales.lead(4, true, 7 + PATIENCE_MS), None, "it is another's");
        // Whoever does not lead sees it as any other.
        rescales.lead(1, true, 0);
        rescales.tried(change(1, 4, 5));
        rescales.see(4, 6);
        assert_eq!(rescales.take_over(), [change(1, 4, 6)]);
        assert_eq!(rescales.lead(4, true, 6), None);
    }

    #[test]
    fn a_change_without_an_answer_outlasts_a_late_watch_and_the_end_of_a_term() {
        let tried = || {
            let mut rescales = Rescales::default();
            rescales.lead(8, true, 0);
            rescales.tried(change(8, 12, 5));
            rescales
        };
        for behind in [4, 8] {
            let mut rescales = tried();
            assert_eq!(rescales.lead(behind, false, 6 + PATIENCE_MS), None);
            let done = rescales.lead(12, true, 7 + PATIENCE_MS);
            assert_eq!(done, Some(change(8, 12, 5)), "{behind}");
            // In the first round of another term, too.
            let mut rescales = tried();
            rescales.see(behind, 6);
            assert_eq!(rescales.lead(behind, false, 6), None);
            assert_eq!(rescales.lead(12, false, 7), Some(change(8, 12, 5)), "{behind}");
        }
    }

    #[test]
    fn a_status_that_is_not_written_yet_is_no_change_back() {
        let mut rescales = Rescales::default();
        rescales.lead(5, true, 0);
        rescales.hear(Some(100), 5, 0);
        rescales.did(5, 8, Some(300));
        rescales.lead(8, true, 1);
        for now in 2..4 {
            rescales.see(8, now);
            assert_eq!(rescales.hear(Some(100), 5, now), None);
        }
        assert_eq!(rescales.hear(Some(300), 8, 5), None);
        rescales.see(9, 6);
        assert_eq!(rescales.hear(Some(310), 9, 6), Some(change(8, 9, 6)));
    }

    #[test]
    fn no_status_from_before_several_changes_of_its_own_is_a_change_back() {
        for shown in [(100, 5), (300, 8)] {
            let mut rescales = Rescales::default();
            rescales.lead(5, true, 0);
            rescales.hear(Some(100), 5, 0);
            rescales.did(5, 8, Some(300));
            rescales.did(8, 11, Some(315));
            // Its statuses wait, and it has a new term.
            rescales.see(11, 2);
            assert_eq!(rescales.hear(Some(shown.0), shown.1, 2), None, "{shown:?}");
            assert_eq!(rescales.hear(Some(315), 11, 3), None);
            rescales.see(12, 4);
            assert_eq!(rescales.hear(Some(320), 12, 4), Some(change(11, 12, 4)));
        }
    }

    #[test]
    fn its_own_changes_are_known() {
        let mut rescales = Rescales::default();
        rescales.lead(1, true, 0);
        rescales.did(1, 4, Some(300));
        // Another leads; the watch is still behind.
        for (replicas, now) in [(1, 1), (4, 2)] {
            rescales.see(replicas, now);
            assert_eq!(rescales.hear(Some(300), 4, now), None);
        }
        assert_eq!(rescales.take_over(), []);
    }
}
