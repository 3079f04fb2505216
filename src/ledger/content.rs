//! What a ledger holds: the histories of all autoscalers within a number of bytes, and their last changes.

use super::changes::{Changes, Expired};
use super::entry::{Basis, Entry, Position};
use super::history::History;
use super::shares::Shares;
use crate::time::UnixMillis;
use crate::watch::{AutoscalerKind, AutoscalerRef, ObjectKey};
use std::collections::BTreeMap;
use std::ops::{Bound, RangeInclusive};
use std::sync::Arc;
use std::time::Duration;

/// The entries of all autoscalers.
#[derive(Debug)]
pub(super) struct Content {
    histories: BTreeMap<Arc<ObjectKey>, [Option<Box<History>>; 2]>,
    shares: Shares,
    /// The time of the last decision.
    pub newest: UnixMillis,
    pub changes: Changes,
    bytes: usize,
    /// The number of entries.
    pub entries: usize,
    /// The resource version with which the leadership began that they are of.
    pub began: u64,
    /// Since when the entries are all that were made, but for what was dropped.
    pub since: UnixMillis,
    /// How many were dropped to make room.
    pub dropped: u64,
}

/// Which entries are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Those of one namespace; all, if none.
    pub namespace: Option<String>,
    /// In a list, those whose last decision is not before this time; all, if none.
    pub since: Option<UnixMillis>,
}

/// An entry, and whose it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// The autoscaler.
    pub autoscaler: Arc<AutoscalerRef>,
    /// The entry.
    pub entry: Entry,
}

impl Listed {
    /// Its place in the order of lists.
    pub fn position(&self) -> Position {
        let AutoscalerRef { kind, key } = &*self.autoscaler;
        Position { key: key.clone(), kind: *kind, sequence: self.entry.sequence }
    }

    fn bytes(&self) -> usize {
        self.entry.bytes() + self.entry.basis.bytes()
    }
}

/// A part of a list.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// The entries in their order; there may be none, though there are more.
    pub found: Vec<Listed>,
    /// Where the list continues, unless these were the last.
    pub next: Option<Position>,
}

/// A change after a resource version.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// An entry that was added or changed, as it is now.
    Set(Box<Listed>),
    /// An entry that was dropped.
    Dropped {
        /// Whose it was.
        autoscaler: Arc<AutoscalerRef>,
        /// Its sequence.
        sequence: u64,
        /// The time of its first decision.
        first: UnixMillis,
        /// The resource version in which it was dropped.
        version: u64,
    },
}

/// A part of the changes after a resource version, in the order of versions.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangesAfter {
    /// The changes.
    pub changes: Vec<Change>,
    /// The resource version up to which these are all.
    pub version: u64,
    /// Whether there are no later ones.
    pub is_all: bool,
}

/// Of an autoscaler, the sequences that are asked for, from the first to the last; none, if it is not.
pub type Sequences = Option<(u64, u64)>;

/// The memory of the entries of a page from which on it ends, in bytes.
const PAGE_BYTES: usize = 64 * 1024;
/// The most histories, and changes, that are looked at for a page, while others wait.
const MAX_LOOKED_AT: usize = 2_000;
/// For how long no namespace can take the memory of another that has less, in ms.
const PROTECTED_MS: i64 = 24 * 3_600_000;

fn slot(kind: AutoscalerKind) -> usize {
    match kind {
        AutoscalerKind::Autoscaler => 0,
        AutoscalerKind::Hpa => 1,
    }
}

impl Content {
    /// Nothing, at a resource version. It has room for so many changes as is right for `max_bytes`.
    pub fn new(version: u64, since: UnixMillis, max_bytes: usize) -> Self {
        Self {
            histories: BTreeMap::new(),
            shares: Shares::default(),
            newest: 0,
            changes: Changes::new(version, max_bytes),
            bytes: 0,
            entries: 0,
            began: version,
            since,
            dropped: 0,
        }
    }

    /// The approximate memory in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes + self.changes.bytes()
    }

    fn history(&self, autoscaler: &AutoscalerRef) -> Option<&History> {
        self.histories.get(&autoscaler.key)?[slot(autoscaler.kind)].as_deref()
    }

    /// The sequence of the last entry of an autoscaler; 0 if there is none.
    pub fn sequence(&self, autoscaler: &AutoscalerRef) -> u64 {
        self.history(autoscaler).map_or(0, History::sequence)
    }

    /// What the last run of an autoscaler is based on.
    pub fn basis(&self, autoscaler: &AutoscalerRef) -> Option<&Arc<Basis>> {
        self.history(autoscaler)?.basis()
    }

    /// Changes the history of an autoscaler. One that is empty after that is gone.
    pub fn edit<T>(
        &mut self,
        autoscaler: &AutoscalerRef,
        change: impl FnOnce(&mut History, &mut Changes) -> T,
    ) -> T {
        let AutoscalerRef { kind, key } = autoscaler;
        if !self.histories.contains_key(key) {
            self.histories.insert(key.clone(), [None, None]);
        }
        let slots = self.histories.get_mut(key).expect("it was inserted, if it was missing");
        let place = &mut slots[slot(*kind)];
        let before = place.as_ref().map_or((0, 0, None), |known| measure(known));
        let history =
            place.get_or_insert_with(|| Box::new(History::new(Arc::new(autoscaler.clone()))));
        let changed = change(history, &mut self.changes);
        let mut after = measure(history);
        let of = history.of.clone();
        if after.2.is_none() {
            (*place, after) = (None, (0, 0, None));
            if slots.iter().all(Option::is_none) {
                self.histories.remove(key);
            }
        }
        self.shares.change(&of, (before.0, before.2), (after.0, after.2));
        self.bytes = (self.bytes + after.0).saturating_sub(before.0);
        self.entries = (self.entries + after.1).saturating_sub(before.1);
        changed
    }

    /// Entries of other leaders may be missing before `now`, of which all were known `unknown` ago: the names that they
    /// had are not used again.
    pub fn skip(&mut self, now: UnixMillis, unknown: Duration) {
        let histories = self.histories.values().flatten().flatten();
        let all: Vec<_> = histories.map(|history| history.of.clone()).collect();
        for of in &all {
            self.edit(of, |history, changes| history.skip(now, unknown, changes));
        }
        self.since = now;
    }

    /// Drops what is between two places: it is not in the leader's list.
    pub fn drop_between(&mut self, after: Option<&Position>, before: Option<&Position>) {
        let of = |place: &Position| AutoscalerRef { kind: place.kind, key: place.key.clone() };
        let begin = after.map_or(0, |after| after.sequence.saturating_add(1));
        let end = before.map_or(u64::MAX, |before| before.sequence.saturating_sub(1));
        let place = |place: &Position| (place.key.clone(), place.kind);
        let [first, last] = [after, before].map(|one| one.map(place));
        if let Some((after, _)) = after.zip(before).filter(|_| first == last) {
            return self.drop_all_of(&of(after), begin..=end);
        }
        let from = after.map_or(Bound::Unbounded, |after| Bound::Included(after.key.clone()));
        let to = before.map_or(Bound::Unbounded, |before| Bound::Included(before.key.clone()));
        let within = self.histories.range((from, to)).flat_map(|(_, slots)| slots.iter().flatten());
        let is_between = |of: &Arc<AutoscalerRef>| {
            let place = Some((of.key.clone(), of.kind));
            (first.is_none() || place > first) && (last.is_none() || place < last)
        };
        let between: Vec<_> = within.map(|history| history.of.clone()).filter(is_between).collect();
        between.iter().for_each(|of| self.drop_all_of(of, 0..=u64::MAX));
        if let Some(after) = after {
            self.drop_all_of(&of(after), begin..=u64::MAX);
        }
        if let Some(before) = before {
            self.drop_all_of(&of(before), 0..=end);
        }
    }

    fn drop_all_of(&mut self, autoscaler: &AutoscalerRef, sequences: RangeInclusive<u64>) {
        if !sequences.is_empty() && self.history(autoscaler).is_some() {
            self.edit(autoscaler, |history, _| history.drop_all_of(&sequences));
        }
    }

    /// Of which history the oldest part is dropped next: what is older than a day; or else that of the namespace that
    /// takes most, so that none can erase what others decided.
    fn next_to_drop(&self) -> Option<Arc<AutoscalerRef>> {
        let oldest = self.shares.oldest()?;
        let time = self.history(oldest).and_then(History::oldest_time);
        let is_old = time.is_some_and(|time| self.newest - time >= PROTECTED_MS);
        Some(if is_old { oldest } else { self.shares.oldest_of_largest()? }.clone())
    }

    /// Drops the oldest until the rest is within a number of bytes, and notes that. If it is not `leads`, the leader
    /// gives the resource versions: then whoever watches has to list again.
    pub fn make_room(&mut self, max_bytes: usize, leads: bool) {
        while self.bytes() > max_bytes {
            let Some(oldest) = self.next_to_drop() else { return };
            let dropped = self.edit(&oldest, |history, _| history.drop_oldest());
            self.dropped += dropped.len() as u64;
            match leads {
                true => dropped.into_iter().for_each(|(sequence, first)| {
                    self.changes.next(&oldest, sequence, Some(first));
                }),
                false => self.changes.restart(self.changes.version()),
            }
        }
    }

    /// The entries after a place that are selected, in their order.
    pub fn list(
        &self,
        scope: &Scope,
        after: Option<&Position>,
        select: impl Fn(&AutoscalerRef) -> Sequences,
    ) -> Page {
        let (mut found, mut bytes) = (Vec::new(), 0);
        for (looked_at, history) in self.within(scope, after.map(|after| &after.key)).enumerate() {
            let AutoscalerRef { kind, key } = &*history.of;
            let begin = match after.map(|after| ((&after.key, after.kind), after.sequence)) {
                Some((last, _)) if (key, *kind) < last => continue,
                Some((last, sequence)) if (key, *kind) == last => sequence + 1,
                _ => 0,
            };
            if looked_at >= MAX_LOOKED_AT {
                let next = Position { key: key.clone(), kind: *kind, sequence: begin.max(1) - 1 };
                return Page { found, next: Some(next) };
            }
            let Some((first, last)) = select(&history.of) else { continue };
            let entries = history.entries(begin.max(first), scope.since);
            for entry in entries.take_while(|entry| entry.sequence <= last) {
                let listed = Listed { autoscaler: history.of.clone(), entry };
                bytes += listed.bytes();
                let next = (bytes >= PAGE_BYTES).then(|| listed.position());
                found.push(listed);
                if next.is_some() {
                    return Page { found, next };
                }
            }
        }
        Page { found, next: None }
    }

    /// One entry.
    pub fn get(&self, autoscaler: &AutoscalerRef, sequence: u64) -> Option<Entry> {
        self.history(autoscaler)?.get(sequence)
    }

    /// What has changed after a resource version, in the order of versions.
    ///
    /// # Errors
    /// If these changes are not known any more, or another leadership has begun since.
    pub fn changes_after(
        &self,
        version: u64,
        select: impl Fn(&AutoscalerRef) -> Sequences,
    ) -> Result<ChangesAfter, Expired> {
        if version < self.began {
            return Err(Expired);
        }
        let (mut changes, mut bytes) = (Vec::new(), 0);
        for (looked_at, noted) in self.changes.after(version)?.enumerate() {
            let before = noted.version - 1;
            if looked_at >= MAX_LOOKED_AT || bytes >= PAGE_BYTES {
                return Ok(ChangesAfter { changes, version: before.max(version), is_all: false });
            }
            let sequence = noted.sequence;
            let is_selected = |(first, last)| (first..=last).contains(&sequence);
            if !select(&noted.of).is_some_and(is_selected) {
                continue;
            }
            let autoscaler = noted.of.clone();
            if let Some(first) = noted.dropped {
                bytes += 512;
                changes.push(Change::Dropped {
                    autoscaler,
                    sequence,
                    first,
                    version: noted.version,
                });
            } else if let Some(entry) = self.get(&autoscaler, sequence)
                // If it has changed again, that comes later.
                && entry.version == noted.version
            {
                let listed = Listed { autoscaler, entry };
                bytes += listed.bytes();
                changes.push(Change::Set(Box::new(listed)));
            }
        }
        Ok(ChangesAfter { changes, version: self.changes.version(), is_all: true })
    }

    /// The histories of a scope in their order, from this key on.
    fn within<'a>(
        &'a self,
        scope: &'a Scope,
        from: Option<&Arc<ObjectKey>>,
    ) -> impl Iterator<Item = &'a History> {
        let namespace = scope.namespace.as_deref();
        let first = || {
            let namespace = namespace.unwrap_or_default().to_owned();
            Arc::new(ObjectKey { namespace, name: String::new() })
        };
        let from = from.cloned().unwrap_or_else(first);
        let range = self.histories.range((Bound::Included(from), Bound::Unbounded));
        let is_within = move |key: &ObjectKey| namespace.is_none_or(|name| key.namespace == name);
        range
            .skip_while(move |(key, _)| namespace.is_some_and(|name| key.namespace.as_str() < name))
            .take_while(move |(key, _)| is_within(key))
            .flat_map(|(_, slots)| slots.iter().flatten().map(|history| &**history))
    }
}

/// The bytes of a history, its entries, and the age of its oldest part.
fn measure(history: &History) -> (usize, usize, Option<u64>) {
    (history.bytes(), history.len(), history.age())
}
