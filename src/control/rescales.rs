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

impl Change {
    /// When the API server applied its write at the latest, which was given up and is seen now.
    fn applied(self, now: UnixMillis) -> UnixMillis {
        now.min(self.at + REQUEST_TIMEOUT_MS)
    }

    /// Whether another writer may have made this change: no evaluation has read the scale for longer than a watch may
    /// be behind.
    pub fn may_be_of_another_writer(&self, now: UnixMillis) -> bool {
        now - self.at > WATCH_LAG_MS
    }
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
    /// The last change that was not known to this replica, which led.
    foreign: Option<Change>,
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
            None if last.is_some() && last == self.last_change().time => Coverage::All,
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
        let others = if is_read { self.read(replicas, now) } else { self.shown(replicas, now) };
        self.unreported.clear();
        let indeterminate = self.indeterminate.take();
        if let Some(indeterminate) = indeterminate.filter(|one| one.to == replicas) {
            return Some(Change { at: indeterminate.applied(now), ..indeterminate });
        }
        self.foreign = others.or(self.foreign);
        let indeterminate = indeterminate?;
        // A watch that is behind does not rule the change out.
        let open = match is_read {
            true => replicas == indeterminate.from && now - indeterminate.at <= REPORT_TIMEOUT_MS,
            false => now - indeterminate.at <= WATCH_LAG_MS,
        };
        self.indeterminate = Some(indeterminate).filter(|_| open);
        None
    }

    /// The last change that this replica, which led, did not know of, once: another writer's, or one from before
    /// its term that the watch had not shown.
    pub fn take_foreign(&mut self) -> Option<Change> {
        self.foreign.take()
    }

    /// When this indeterminate write of this replica took effect, now that the scale has so many replicas; none if it
    /// has not, or may not have been the one.
    pub fn came(&self, change: Change, replicas: i32, now: UnixMillis) -> Option<UnixMillis> {
        let is_open = self.indeterminate == Some(change) && !change.may_be_of_another_writer(now);
        (is_open && replicas == change.to).then(|| change.applied(now))
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
mod tests;
