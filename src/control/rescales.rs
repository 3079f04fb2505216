//! Which changes of a scale Plimsoll made, as seen by a replica that did not make them. Two watches
//! show one change, in either order and some time apart: the watch of the scale, and the watch of the
//! status in which the leader reports it. No status reports changes by other writers.

use crate::hpa::{Coverage, ScalingHistory};
use crate::leader::REQUEST_TIMEOUT;
use crate::time::UnixMillis;
use std::collections::VecDeque;

/// A change of a scale, and when it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The replicas before.
    pub from: i32,
    /// The replicas after.
    pub to: i32,
    /// When, by this process's clock. The time of a change that was seen late is too late, never too
    /// early: scaling policies count it for longer.
    pub at: UnixMillis,
}

/// The known changes of one scale.
#[derive(Debug, Default)]
pub struct Rescales {
    /// The replicas that the watch showed last.
    seen: Option<i32>,
    /// Whether there is a watch: other kinds are read each time.
    is_watched: bool,
    /// Since when this replica has looked at the scale.
    since: Option<UnixMillis>,
    /// The replicas that are known otherwise, in their order, until the watch shows them: their changes are known.
    ahead: VecDeque<Ahead>,
    /// Whether a status was seen.
    is_status_seen: bool,
    /// Changes that no status has reported yet.
    unreported: Vec<Change>,
    /// The last known change: by a status or by this replica, and by a checkpoint.
    reported: LastChange,
    checkpointed: LastChange,
    /// The times of those reported before: the object may still show them, to a watch that is behind or until a
    /// status is written.
    earlier: VecDeque<i64>,
    /// The time of `reported`, where this replica made that change.
    own: Option<i64>,
    /// The change of an indeterminate write of this replica: it may have taken effect, or may yet.
    indeterminate: Option<Change>,
}

/// The last change that is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastChange {
    /// `status.lastScaleTime`, in Unix seconds by the wall clock of the replica that made the change.
    pub time: Option<i64>,
    /// The replicas since then; none if a checkpoint does not say.
    pub replicas: Option<i32>,
}

/// Replicas that the watch has not shown yet.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    replicas: i32,
    since: UnixMillis,
    /// Whether a status, a checkpoint or this replica's own write says so, and not a read alone.
    is_reported: bool,
}

/// How many changes wait for their status, and for how long. A status follows within seconds; a
/// change without one by then was made by another writer.
const MAX_UNREPORTED: usize = 8;
const REPORT_TIMEOUT_MS: i64 = 60_000;
/// How many replicas may wait for the watch, and times of earlier changes are remembered.
const MAX_AHEAD: usize = 64;
/// How long a watch may miss a change: longer than it takes to detect that a watch has stalled.
const WATCH_LAG_MS: i64 = 300_000;
/// How long the API server may still apply a write that was given up.
const REQUEST_TIMEOUT_MS: i64 = REQUEST_TIMEOUT.as_secs() as i64 * 1000;

impl Rescales {
    /// The last change by Plimsoll that is known.
    pub fn last_change(&self) -> LastChange {
        let is_earlier = self.checkpointed.time.is_some_and(|last| self.earlier.contains(&last));
        match self.checkpointed.time > self.reported.time && !is_earlier {
            true => self.checkpointed,
            false => self.reported,
        }
    }

    /// Which changes a checkpoint has that ends with this one. Times of other replicas are of their own wall clocks:
    /// one that is ahead does not make it cover a change of this replica, nor one that was reported after it.
    pub fn coverage(&self, last: Option<i64>) -> Coverage {
        let reported = self.reported.time;
        match self.own.filter(|own| reported == Some(*own)) {
            Some(own) if last == Some(own) => Coverage::All,
            Some(_) => Coverage::NotTheNewest,
            None if last.is_some() && last == reported => Coverage::All,
            None if last.is_some_and(|last| self.earlier.contains(&last)) => Coverage::Unknown,
            None if last.is_some() && last >= self.last_change().time => Coverage::UntilItsLast,
            None => Coverage::Unknown,
        }
    }

    /// Notes the replicas that a replica sees that does not lead.
    pub fn note_scale(&mut self, replicas: i32, now: UnixMillis) {
        self.unreported.retain(|change| now - change.at <= REPORT_TIMEOUT_MS);
        // The scale has the requested replicas: the change is noted like any other.
        self.indeterminate =
            self.indeterminate.filter(|indeterminate| indeterminate.to != replicas);
        if let Some(change) = self.shown(replicas, now) {
            if self.unreported.len() == MAX_UNREPORTED {
                self.unreported.remove(0);
            }
            self.unreported.push(change);
        }
    }

    /// Notes the replicas of the scale that a new leader reads first. Returns the change that its watch has not shown
    /// yet: the leader before may have made it, or another writer.
    pub fn note_first_read(&mut self, replicas: i32, now: UnixMillis) -> Option<Change> {
        let change = self.read(replicas, now);
        change.filter(|_| self.indeterminate.is_none_or(|one| one.to != replicas))
    }

    /// The watch shows these replicas. Returns the change, if it was not known.
    fn shown(&mut self, replicas: i32, now: UnixMillis) -> Option<Change> {
        let from = self.present(now);
        self.since.get_or_insert(now);
        if !self.ahead.is_empty() {
            if let Some(index) = self.ahead.iter().position(|ahead| ahead.replicas == replicas) {
                self.ahead.drain(..=index);
                self.seen = Some(replicas);
                return None;
            }
            if self.seen == Some(replicas) {
                return None;
            }
        }
        self.ahead.clear();
        self.seen = Some(replicas);
        from.filter(|from| *from != replicas).map(|from| Change { from, to: replicas, at: now })
    }

    /// The API server has these replicas, whatever the watch shows. Returns the change, if it was not known.
    fn read(&mut self, replicas: i32, now: UnixMillis) -> Option<Change> {
        if !self.is_watched {
            return self.shown(replicas, now);
        }
        let from = self.present(now).filter(|from| *from != replicas)?;
        if self.seen == Some(replicas) {
            self.ahead.clear();
        } else {
            self.expect(replicas, now, false);
        }
        Some(Change { from, to: replicas, at: now })
    }

    /// The replicas that are known, whether or not the watch has shown them. It shows them in time, unless somebody set
    /// them back before.
    fn present(&mut self, now: UnixMillis) -> Option<i32> {
        self.ahead.retain(|ahead| now - ahead.since <= WATCH_LAG_MS);
        self.ahead.back().map(|ahead| ahead.replicas).or(self.seen)
    }

    fn expect(&mut self, replicas: i32, since: UnixMillis, is_reported: bool) {
        if self.ahead.len() == MAX_AHEAD {
            self.ahead.pop_front();
        }
        self.ahead.push_back(Ahead { replicas, since, is_reported });
    }

    fn set_reported(&mut self, last: LastChange) {
        let before = std::mem::replace(&mut self.reported, last);
        if before.time != last.time {
            if self.earlier.len() == MAX_AHEAD {
                self.earlier.pop_front();
            }
            self.earlier.extend(before.time);
        }
    }

    /// Notes when Plimsoll last changed the scale, and to what, by a status. Returns the change if it
    /// was not known. The first status reports none: what it shows was before.
    pub fn note_status(&mut self, last: Option<i64>, to: i32, now: UnixMillis) -> Option<Change> {
        let is_first = !std::mem::replace(&mut self.is_status_seen, true);
        let time = last.filter(|last| !self.earlier.contains(last))?;
        if self.reported.time == Some(time) {
            return None;
        }
        self.set_reported(LastChange { time: last, replicas: Some(to) });
        let is_known = is_first || last == self.checkpointed.time;
        if let Some(index) = self.unreported.iter().rposition(|change| change.to == to) {
            return self.unreported.drain(..=index).next_back().filter(|_| !is_known);
        }
        let read = |ahead: &&mut Ahead| !ahead.is_reported && ahead.replicas == to;
        if let Some(read) = self.ahead.iter_mut().find(read) {
            // It was counted when it was read.
            read.is_reported = true;
            return None;
        }
        if is_known {
            return None;
        }
        // The same number at another time: the scale went back in between.
        let present = self.present(now).filter(|present| *present != to);
        let from = present.or(self.seen).filter(|from| *from != to)?;
        self.expect(to, now, true);
        Some(Change { from, to, at: now })
    }

    /// Begins a lease term. Returns the changes that no status has reported: a killed leader may have
    /// made them, or another writer. They count for the scaling policies.
    pub fn begin_term(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.unreported)
    }

    /// Notes the replicas of the scale while this replica leads. It knows of all its changes except that
    /// of an indeterminate write, which is returned once it has taken effect.
    pub fn note_scale_as_leader(
        &mut self,
        replicas: i32,
        is_read: bool,
        now: UnixMillis,
    ) -> Option<Change> {
        self.is_watched |= !is_read;
        // Those of others don't count.
        let _ = if is_read { self.read(replicas, now) } else { self.shown(replicas, now) };
        self.unreported.clear();
        let indeterminate = self.indeterminate.take()?;
        if replicas == indeterminate.to {
            // It may have been applied after it was given up.
            let at = now.min(indeterminate.at + REQUEST_TIMEOUT_MS);
            return Some(Change { at, ..indeterminate });
        }
        // A watch that is behind does not rule the change out.
        let open = match is_read {
            true => replicas == indeterminate.from && now - indeterminate.at <= REPORT_TIMEOUT_MS,
            false => now - indeterminate.at <= WATCH_LAG_MS,
        };
        self.indeterminate = Some(indeterminate).filter(|_| open);
        None
    }

    /// Whether this replica has since made an indeterminate write of this number of replicas.
    pub fn is_indeterminate(&self, replicas: i32, since: UnixMillis) -> bool {
        self.indeterminate
            .is_some_and(|indeterminate| indeterminate.to == replicas && indeterminate.at > since)
    }

    /// Notes that this replica has changed the scale.
    pub fn rescaled(&mut self, from: i32, to: i32, now: UnixMillis, last: Option<i64>) {
        self.seen.get_or_insert(from);
        if self.present(now) != Some(to) {
            self.expect(to, now, true);
        }
        self.set_reported(LastChange { time: last, replicas: Some(to) });
        (self.own, self.is_status_seen) = (last, true);
        self.indeterminate = None;
    }

    /// Notes the change of an indeterminate write.
    pub fn note_indeterminate(&mut self, change: Change) {
        self.indeterminate = Some(change);
    }

    /// Notes that a checkpoint was merged, which has these changes up to the last one: it reports them.
    pub fn merge_checkpoint(
        &mut self,
        last: LastChange,
        history: &ScalingHistory,
        now: UnixMillis,
    ) {
        let is_known = last.time.is_some_and(|time| {
            [self.reported.time, self.checkpointed.time].contains(&Some(time))
                || self.earlier.contains(&time)
        });
        let unreported = self.unreported.len();
        // Others came after it: its leader may have died before it could report them anywhere.
        let has = |change: &Change| history.has(change.to - change.from, change.at);
        self.unreported.retain(|change| is_known || !has(change));
        // Of two without a status, the later.
        if self.reported.time.is_some() && last.time.is_some() || last.time > self.checkpointed.time
        {
            self.checkpointed = last;
        }
        // Neither a status nor the scale has shown its last change yet.
        let made = history.ups.iter().chain(&history.downs).map(|event| event.time).max();
        if let Some(replicas) = last.replicas
            && !is_known
            && unreported == self.unreported.len()
            && self.since < made
            && self.present(now).is_some_and(|present| present != replicas)
        {
            self.expect(replicas, now, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hpa::ScaleEvent;

    fn change(from: i32, to: i32, at: i64) -> Change {
        Change { from, to, at }
    }

    fn last(time: i64, replicas: i32) -> LastChange {
        LastChange { time: Some(time), replicas: Some(replicas) }
    }

    #[test]
    fn a_change_is_known_whichever_of_scale_and_status_comes_first() {
        // Both at once, the scale first, the status first.
        for (scale_at, status_at) in [(1, 1), (1, 3), (3, 1)] {
            let mut rescales = Rescales::default();
            let mut heard = Vec::new();
            for now in 0..6 {
                rescales.note_scale(if now >= scale_at { 2 } else { 1 }, now);
                let last = (now >= status_at).then_some(100);
                heard.extend(rescales.note_status(last, if now >= status_at { 2 } else { 1 }, now));
            }
            let at = scale_at.min(status_at);
            assert_eq!(heard, [change(1, 2, at)], "{scale_at} {status_at}");
            assert_eq!(rescales.begin_term(), []);
        }
    }

    #[test]
    fn changes_by_other_writers_are_not_taken_for_plimsolls() {
        let mut rescales = Rescales::default();
        rescales.note_scale(2, 0);
        assert_eq!(rescales.note_status(Some(100), 2, 0), None, "that was before");
        rescales.note_scale(5, 1);
        assert_eq!(rescales.note_status(Some(100), 2, 1), None);
        rescales.note_scale(6, 2);
        assert_eq!(rescales.note_status(Some(102), 6, 2), Some(change(5, 6, 2)));
        rescales.note_scale(9, 3);
        rescales.note_scale(9, 3 + REPORT_TIMEOUT_MS + 1);
        assert_eq!(rescales.begin_term(), [], "no status reported it for a minute");
    }

    #[test]
    fn a_change_that_the_watch_has_not_shown_yet_counts_once() {
        let mut rescales = Rescales::default();
        rescales.note_scale_as_leader(9, true, 0);
        rescales.rescaled(9, 7, 0, Some(100));
        assert_eq!(rescales.note_scale_as_leader(9, false, 1), None);
        rescales.note_scale(9, 1);
        // The next one, which another replica made, comes with it.
        rescales.note_scale(4, 2);
        assert_eq!(rescales.begin_term(), [change(7, 4, 2)]);
        // So do two statuses that come before the scale.
        assert_eq!(rescales.note_status(Some(105), 6, 3), Some(change(4, 6, 3)));
        assert_eq!(rescales.note_status(Some(110), 8, 4), Some(change(6, 8, 4)));
        // Somebody sets it back each time before the watch shows anything.
        assert_eq!(rescales.note_status(Some(125), 8, 5), Some(change(4, 8, 5)));
    }

    /// A leader writes a checkpoint of its change and dies before the next evaluation of the one after it.
    #[test]
    fn a_change_that_a_checkpoint_has_counts_once_though_it_is_seen_afterwards() {
        for reported in [None, Some(200)] {
            let mut rescales = Rescales::default();
            rescales.note_scale(1, 0);
            rescales.note_status(None, 1, 0);
            let event = ScaleEvent { change: 2, time: 5_000, outdated: false, unsure: false };
            let history = ScalingHistory { ups: vec![event], ..ScalingHistory::default() };
            rescales.merge_checkpoint(last(200, 3), &history, 10_000);
            // Its next change is no part of it.
            for (replicas, expected) in [(3, vec![]), (4, vec![change(3, 4, 15_000)])] {
                rescales.note_scale(replicas, 15_000);
                assert_eq!(rescales.note_status(reported, 3, 15_000), None);
                assert_eq!(rescales.begin_term(), expected, "{reported:?}");
            }
        }
        // A process that has just started has seen the scale after it.
        let mut rescales = Rescales::default();
        rescales.note_scale(3, 6_000);
        rescales.note_status(None, 1, 6_000);
        let event = ScaleEvent { change: 2, time: 5_000, outdated: false, unsure: false };
        let history = ScalingHistory { ups: vec![event], ..ScalingHistory::default() };
        rescales.merge_checkpoint(last(200, 3), &history, 10_000);
        rescales.note_scale(4, 15_000);
        assert_eq!(rescales.begin_term(), [change(3, 4, 15_000)]);
    }

    /// The watch is behind for several terms, and the scale is read in each.
    #[test]
    fn what_was_read_is_not_set_back_by_a_watch_that_is_behind() {
        let mut rescales = Rescales::default();
        rescales.note_scale_as_leader(9, false, 0);
        rescales.note_scale_as_leader(9, true, 0);
        rescales.rescaled(9, 6, 0, Some(100));
        for now in 1..4 {
            rescales.note_scale(9, now);
            assert_eq!(rescales.begin_term(), []);
            rescales.note_scale_as_leader(9, false, now);
            rescales.note_scale_as_leader(6, true, now);
        }
        rescales.note_scale(6, 5);
        assert_eq!(rescales.begin_term(), []);
    }

    #[test]
    fn a_watch_that_is_behind_by_several_changes_shows_none_that_is_new() {
        // This replica's own, and another's by their statuses.
        for own in [true, false] {
            let mut rescales = Rescales::default();
            rescales.note_scale_as_leader(4, false, 0);
            for (from, to, last) in [(4, 6, 100), (6, 8, 115)] {
                if own {
                    rescales.rescaled(from, to, 0, Some(last));
                } else {
                    rescales.note_status(None, 4, 0);
                    assert_eq!(rescales.note_status(Some(last), to, 0), Some(change(from, to, 0)));
                }
            }
            for (now, shown) in [4, 6, 6, 8].into_iter().enumerate() {
                rescales.note_scale(shown, now as i64);
                assert_eq!(rescales.begin_term(), [], "{own} {shown}");
                assert_eq!(rescales.note_scale_as_leader(shown, false, now as i64), None);
                assert_eq!(rescales.note_first_read(8, now as i64), None, "{own} {shown}");
            }
            rescales.note_scale(9, 5);
            assert_eq!(rescales.begin_term(), [change(8, 9, 5)]);
        }
    }

    /// A term ends without a write of its own, and the status comes before the scale.
    #[test]
    fn a_change_that_the_first_read_of_a_term_showed_is_not_counted_by_its_status() {
        let mut rescales = Rescales::default();
        rescales.note_scale_as_leader(8, false, 0);
        rescales.note_status(None, 8, 0);
        assert_eq!(rescales.note_first_read(12, 1), Some(change(8, 12, 1)));
        rescales.note_scale_as_leader(12, true, 1);
        rescales.note_scale(8, 2);
        assert_eq!(rescales.note_status(Some(100), 12, 2), None);
        rescales.note_scale(12, 3);
        assert_eq!(rescales.begin_term(), []);
    }

    /// It was read from the API server, and the watch of the status is behind.
    #[test]
    fn a_status_of_before_is_no_change() {
        let mut rescales = Rescales::default();
        rescales.note_scale(12, 0);
        for (last, to) in [(100, 8), (200, 12), (100, 8), (200, 12)] {
            assert_eq!(rescales.note_status(Some(last), to, 0), None, "{last}");
        }
    }

    /// The leader dies right after the second of two equal changes, a minute after the first.
    #[test]
    fn a_change_after_a_checkpoint_that_is_known_is_not_one_of_it() {
        let mut rescales = Rescales::default();
        rescales.note_scale(9, 0);
        rescales.note_status(None, 9, 0);
        rescales.note_scale(7, 1);
        assert_eq!(rescales.note_status(Some(100), 7, 1), Some(change(9, 7, 1)));
        rescales.note_scale(5, 59_900);
        let event = ScaleEvent { change: 2, time: 0, outdated: false, unsure: false };
        let history = ScalingHistory { downs: vec![event], ..ScalingHistory::default() };
        rescales.merge_checkpoint(last(100, 7), &history, 60_000);
        assert_eq!(rescales.begin_term(), [change(7, 5, 59_900)]);
    }

    /// Somebody sets back what the leader wrote before the watch shows it.
    #[test]
    fn what_a_watch_has_not_shown_for_long_is_no_longer_ahead() {
        let mut rescales = Rescales::default();
        rescales.note_scale_as_leader(3, true, 0);
        rescales.rescaled(3, 5, 0, Some(100));
        for now in [1, WATCH_LAG_MS + 1] {
            assert_eq!(rescales.note_scale_as_leader(3, false, now), None);
        }
        rescales.note_scale(3, WATCH_LAG_MS + 2);
        rescales.note_scale(4, WATCH_LAG_MS + 3);
        assert_eq!(rescales.begin_term(), [change(3, 4, WATCH_LAG_MS + 3)]);
    }

    /// The clock of the leader was set back after its first change, of which a checkpoint has the time.
    #[test]
    fn a_checkpoint_of_a_time_before_the_last_report_does_not_cover_it() {
        let mut rescales = Rescales::default();
        rescales.note_scale(10, 0);
        rescales.note_status(None, 10, 0);
        for (replicas, last, now) in [(12, 1_090, 1), (14, 1_015, 15_000)] {
            rescales.note_scale(replicas, now);
            assert!(rescales.note_status(Some(last), replicas, now).is_some());
        }
        assert_eq!(rescales.coverage(Some(1_090)), Coverage::Unknown);
        assert_eq!(rescales.coverage(Some(1_015)), Coverage::All);
        rescales.merge_checkpoint(last(1_090, 12), &ScalingHistory::default(), 16_000);
        assert_eq!(rescales.last_change(), last(1_015, 14));
    }

    /// Its leader may have gone by an old view since.
    #[test]
    fn the_first_status_reports_no_change() {
        let mut rescales = Rescales::default();
        rescales.note_scale(5, 0);
        assert_eq!(rescales.note_status(Some(100), 1, 0), None);
        assert_eq!(rescales.note_status(Some(107), 6, 1), Some(change(5, 6, 1)));
    }

    #[test]
    fn a_new_leader_counts_unreported_changes() {
        let mut rescales = Rescales::default();
        rescales.note_scale(1, 0);
        rescales.note_scale(2, 5);
        assert_eq!(rescales.begin_term(), [change(1, 2, 5)]);
        // Unless the checkpoint has it.
        rescales.note_scale(3, 6);
        let event = ScaleEvent { change: 1, time: 5, outdated: false, unsure: false };
        let history = ScalingHistory { ups: vec![event], ..ScalingHistory::default() };
        rescales.merge_checkpoint(last(200, 3), &history, 10_000);
        assert_eq!(rescales.begin_term(), []);
        assert_eq!(rescales.note_status(Some(200), 3, 7), None);
    }

    #[test]
    fn the_change_of_an_indeterminate_write_counts_once_it_is_seen() {
        for (seen, expected) in [
            (&[1, 4, 4][..], [None, Some(change(1, 4, 6)), None]),
            (&[1, 7, 4], [None; 3]),
            // Another replica may have led meanwhile.
            (&[4, 4, 4], [Some(change(1, 4, 6)), None, None]),
        ] {
            let mut rescales = Rescales::default();
            rescales.note_scale_as_leader(1, true, 0);
            rescales.note_indeterminate(change(1, 4, 5));
            let heard =
                seen.iter().map(|replicas| rescales.note_scale_as_leader(*replicas, true, 6));
            assert_eq!(heard.collect::<Vec<_>>(), expected, "{seen:?}");
        }
        // The API server gives it up after its time limit, however late it is seen.
        let mut rescales = Rescales::default();
        rescales.note_scale_as_leader(1, true, 0);
        rescales.note_indeterminate(change(1, 4, 5));
        let heard = rescales.note_scale_as_leader(4, true, 50_000);
        assert_eq!(heard, Some(change(1, 4, 10_005)));
        let mut rescales = Rescales::default();
        rescales.note_scale_as_leader(1, true, 0);
        rescales.note_indeterminate(change(1, 4, 5));
        assert_eq!(rescales.note_scale_as_leader(1, true, 6 + REPORT_TIMEOUT_MS), None);
        assert_eq!(
            rescales.note_scale_as_leader(4, true, 7 + REPORT_TIMEOUT_MS),
            None,
            "it is another's"
        );
        // Whoever does not lead sees it as any other.
        rescales.note_scale_as_leader(1, true, 0);
        rescales.note_indeterminate(change(1, 4, 5));
        rescales.note_scale(4, 6);
        assert_eq!(rescales.begin_term(), [change(1, 4, 6)]);
        assert_eq!(rescales.note_scale_as_leader(4, true, 6), None);
    }

    #[test]
    fn an_indeterminate_write_outlasts_a_late_watch_and_the_end_of_a_term() {
        let tried = || {
            let mut rescales = Rescales::default();
            rescales.note_scale_as_leader(8, true, 0);
            rescales.note_indeterminate(change(8, 12, 5));
            rescales
        };
        for behind in [4, 8] {
            let mut rescales = tried();
            assert_eq!(rescales.note_scale_as_leader(behind, false, 6 + REPORT_TIMEOUT_MS), None);
            let done = rescales.note_scale_as_leader(12, true, 7 + REPORT_TIMEOUT_MS);
            assert_eq!(done, Some(change(8, 12, 10_005)), "{behind}");
            // In the first evaluation of another term, too.
            let mut rescales = tried();
            rescales.note_scale(behind, 6);
            assert_eq!(rescales.note_scale_as_leader(behind, false, 6), None);
            assert_eq!(
                rescales.note_scale_as_leader(12, false, 7),
                Some(change(8, 12, 7)),
                "{behind}"
            );
        }
    }

    #[test]
    fn a_status_that_is_not_written_yet_is_no_change_back() {
        let mut rescales = Rescales::default();
        rescales.note_scale_as_leader(5, true, 0);
        rescales.note_status(Some(100), 5, 0);
        rescales.rescaled(5, 8, 0, Some(300));
        rescales.note_scale_as_leader(8, true, 1);
        for now in 2..4 {
            rescales.note_scale(8, now);
            assert_eq!(rescales.note_status(Some(100), 5, now), None);
        }
        assert_eq!(rescales.note_status(Some(300), 8, 5), None);
        rescales.note_scale(9, 6);
        assert_eq!(rescales.note_status(Some(310), 9, 6), Some(change(8, 9, 6)));
    }

    #[test]
    fn a_status_from_before_several_changes_of_this_replica_is_no_change_back() {
        for shown in [(100, 5), (300, 8)] {
            let mut rescales = Rescales::default();
            rescales.note_scale_as_leader(5, true, 0);
            rescales.note_status(Some(100), 5, 0);
            rescales.rescaled(5, 8, 0, Some(300));
            rescales.rescaled(8, 11, 0, Some(315));
            // Its statuses are pending, and it has a new term.
            rescales.note_scale(11, 2);
            assert_eq!(rescales.note_status(Some(shown.0), shown.1, 2), None, "{shown:?}");
            assert_eq!(rescales.note_status(Some(315), 11, 3), None);
            rescales.note_scale(12, 4);
            assert_eq!(rescales.note_status(Some(320), 12, 4), Some(change(11, 12, 4)));
        }
    }

    /// A leader writes a checkpoint, changes the scale and dies before it could say so anywhere.
    #[test]
    fn a_change_after_the_checkpoint_is_not_taken_for_one_that_it_has() {
        let mut rescales = Rescales::default();
        rescales.note_scale(7, 0);
        rescales.note_status(Some(100), 7, 0);
        rescales.note_scale(8, 10_000);
        rescales.note_scale(6, 15_000);
        let event = ScaleEvent { change: 1, time: 9_000, outdated: false, unsure: false };
        let history = ScalingHistory { ups: vec![event], ..ScalingHistory::default() };
        rescales.merge_checkpoint(last(109, 8), &history, 16_000);
        assert_eq!(rescales.begin_term(), [change(8, 6, 15_000)]);
    }

    #[test]
    fn the_changes_of_this_replica_are_known() {
        let mut rescales = Rescales::default();
        rescales.note_scale_as_leader(1, true, 0);
        rescales.rescaled(1, 4, 0, Some(300));
        // Another replica leads; the watch is still behind.
        for (replicas, now) in [(1, 1), (4, 2)] {
            rescales.note_scale(replicas, now);
            assert_eq!(rescales.note_status(Some(300), 4, now), None);
        }
        assert_eq!(rescales.begin_term(), []);
    }
}
