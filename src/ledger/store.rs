//! The ledger of a replica: the entries of all autoscalers, within a number of bytes.

use super::api::{Decision, Metadata};
use super::entry::{Entry, Position};
use super::history::History;
use super::render;
use crate::time::UnixMillis;
use crate::watch::{AutoscalerKind, AutoscalerRef, ObjectKey};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// The decisions of all autoscalers, as the leader made them. Cheap to clone.
#[derive(Clone)]
pub struct Ledger(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// The resource version, for those who watch.
    changes: watch::Sender<u64>,
}

struct State {
    histories: BTreeMap<ObjectKey, [Option<Box<History>>; 2]>,
    /// Whose blocks there are, in the order in which they were made.
    blocks: VecDeque<Arc<AutoscalerRef>>,
    bytes: usize,
    max_bytes: usize,
    entries: usize,
    version: u64,
    /// The resource version with which this leadership began.
    began: u64,
    /// Since when there are entries.
    since: UnixMillis,
    dropped: u64,
    /// The entries that were dropped last, and the resource version before which others were.
    tombstones: VecDeque<Tombstone>,
    forgotten: u64,
    /// Whether it is the leader's, or a complete copy of it.
    is_complete: bool,
    is_closed: bool,
}

#[derive(Clone)]
struct Tombstone {
    version: u64,
    autoscaler: Arc<AutoscalerRef>,
    sequences: (u64, u64),
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

/// A change since a resource version.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// An entry that was added or changed.
    Set(Box<Listed>),
    /// An entry that was dropped.
    Dropped(Position, u64),
}

/// The resource versions of a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The last one.
    pub last: u64,
    /// The one with which the present leadership began.
    pub began: u64,
    /// Since when there are entries.
    pub since: UnixMillis,
    /// Whether there is all of the leader's.
    pub is_complete: bool,
}

/// What the ledger holds, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// The approximate memory in bytes.
    pub bytes: usize,
    /// The number of entries.
    pub entries: usize,
    /// How many entries were dropped so far.
    pub dropped: u64,
}

/// A watch from a resource version whose changes are no longer known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expired;

/// The tombstones that are kept.
const MAX_TOMBSTONES: usize = 4096;
/// The most changes that a watch may be behind.
const MAX_CHANGES: usize = 20_000;

impl Ledger {
    /// An empty ledger of at most `max_bytes`, which began at `now`.
    pub fn new(max_bytes: usize, now: UnixMillis) -> Self {
        let version = first_version(now);
        let state = State {
            histories: BTreeMap::new(),
            blocks: VecDeque::new(),
            bytes: 0,
            max_bytes,
            entries: 0,
            version,
            began: version,
            since: now,
            dropped: 0,
            tombstones: VecDeque::new(),
            forgotten: 0,
            is_complete: false,
            is_closed: false,
        };
        Self(Arc::new(Shared { state: Mutex::new(state), changes: watch::Sender::new(version) }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self, version: u64) {
        self.0.changes.send_if_modified(|last| std::mem::replace(last, version) != version);
    }

    /// A leadership of this replica begins: its decisions follow those that it has.
    pub fn begin_term(&self, now: UnixMillis) {
        let mut state = self.state();
        state.version = first_version(now).max(state.version + 1);
        (state.began, state.is_complete) = (state.version, true);
        let version = state.version;
        drop(state);
        self.changed(version);
    }

    /// Another replica leads: what there is, is no longer complete.
    pub fn end_term(&self) {
        self.state().is_complete = false;
        self.0.changes.send_modify(|_| {});
    }

    /// Records a decision of this replica, which leads.
    pub fn record(&self, autoscaler: &AutoscalerRef, decision: &Entry) {
        let version = {
            let mut state = self.state();
            let before = state.version;
            let mut version = before;
            let sealed = state.edit(autoscaler, |history| {
                history.record(decision, || {
                    version += 1;
                    version
                })
            });
            state.version = version;
            if sealed == Some(true) {
                state.blocks.push_back(Arc::new(autoscaler.clone()));
            }
            state.make_room();
            state.version
        };
        self.changed(version);
    }

    /// The autoscaler is gone: its last run ends.
    pub fn end(&self, autoscaler: &AutoscalerRef) {
        let version = {
            let mut state = self.state();
            if !state.is_complete || state.history(autoscaler).is_none() {
                return;
            }
            let mut version = state.version;
            let sealed = state.edit(autoscaler, |history| {
                history.end(|| {
                    version += 1;
                    version
                })
            });
            state.version = version;
            if sealed == Some(true) {
                state.blocks.push_back(Arc::new(autoscaler.clone()));
            }
            version
        };
        self.changed(version);
    }

    /// Takes over decisions that the leader shows, up to a resource version.
    pub fn copy(&self, decisions: impl IntoIterator<Item = Decision>, version: u64) {
        let mut state = self.state();
        for decision in decisions {
            let Metadata { namespace, name, .. } = &decision.metadata;
            let known = render::position(namespace, name).and_then(|of| {
                let autoscaler = AutoscalerRef { kind: of.kind, key: of.key };
                state.history(&autoscaler)?.basis().cloned()
            });
            let Some((autoscaler, entry)) = render::entry(decision, known) else { continue };
            if state.edit(&autoscaler, |history| history.copy(entry)) == Some(true) {
                state.blocks.push_back(Arc::new(autoscaler));
            }
        }
        state.version = state.version.max(version);
        // The leader says what is dropped, but whatever it says, the memory is bounded.
        let limit = state.max_bytes;
        state.max_bytes = limit + limit / 8;
        state.make_room();
        state.max_bytes = limit;
        let version = state.version;
        drop(state);
        self.changed(version);
    }

    /// Drops an entry, and those before it, as the leader did.
    pub fn copy_dropped(&self, position: &Position, version: u64) {
        let mut state = self.state();
        let autoscaler = AutoscalerRef { kind: position.kind, key: position.key.clone() };
        if state.history(&autoscaler).is_some() {
            state.edit(&autoscaler, |history| {
                history.drop_before(position.sequence + 1);
                false
            });
            let sequences = (position.sequence, position.sequence);
            state.bury(Tombstone { version, autoscaler: Arc::new(autoscaler), sequences });
        }
        state.version = state.version.max(version);
        let version = state.version;
        drop(state);
        self.changed(version);
    }

    /// A copy of the ledger of another leadership begins.
    pub fn begin_copy(&self) {
        let mut state = self.state();
        state.histories.clear();
        state.blocks.clear();
        state.tombstones.clear();
        (state.bytes, state.entries, state.forgotten) = (0, 0, 0);
        (state.version, state.began) = (0, 0);
        state.is_complete = false;
        drop(state);
        self.0.changes.send_modify(|_| {});
    }

    /// The copy has all that the leader had at this resource version.
    pub fn complete_copy(&self, versions: Versions) {
        let mut state = self.state();
        state.version = state.version.max(versions.last);
        (state.began, state.since) = (versions.began, versions.since);
        state.is_complete = true;
        let version = state.version;
        drop(state);
        self.changed(version);
    }

    /// Ends all watches, as the process ends.
    pub fn close(&self) {
        self.state().is_closed = true;
        self.0.changes.send_modify(|_| {});
    }

    /// Whether the process ends.
    pub fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    /// The resource versions.
    pub fn versions(&self) -> Versions {
        let state = self.state();
        let State { version, began, since, is_complete, .. } = *state;
        Versions { last: version, began, since, is_complete }
    }

    /// Tells of changes: the value is the resource version.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// What it holds.
    pub fn size(&self) -> Size {
        let State { bytes, entries, dropped, .. } = *self.state();
        Size { bytes, entries, dropped }
    }

    /// At most `limit` entries that are selected, in their order, from the one after `after` on; and whether
    /// there are more.
    pub fn list(
        &self,
        scope: &Scope,
        after: Option<&Position>,
        limit: usize,
        is_selected: impl Fn(&AutoscalerRef, Option<u64>) -> bool,
    ) -> (Vec<Listed>, bool) {
        let state = self.state();
        let mut found = Vec::new();
        for (autoscaler, history) in state.within(scope, after.map(|after| &after.key)) {
            if !is_selected(&autoscaler, None) {
                continue;
            }
            let place = (&autoscaler.key, autoscaler.kind);
            let from = match after.map(|after| ((&after.key, after.kind), after.sequence)) {
                Some((last, _)) if place < last => continue,
                Some((last, sequence)) if place == last => sequence + 1,
                _ => 0,
            };
            for entry in history.entries(from, 0, scope.since) {
                if !is_selected(&autoscaler, Some(entry.sequence)) {
                    continue;
                }
                if found.len() == limit {
                    return (found, true);
                }
                found.push(Listed { autoscaler: autoscaler.clone(), entry });
            }
        }
        (found, false)
    }

    /// One entry.
    pub fn get(&self, position: &Position) -> Option<Entry> {
        let autoscaler = AutoscalerRef { kind: position.kind, key: position.key.clone() };
        self.state().history(&autoscaler)?.get(position.sequence)
    }

    /// What has changed after a resource version, in the order of versions; and the resource version up to which
    /// these are the changes.
    ///
    /// # Errors
    /// If these changes are not known any more: others were dropped since, or another leadership began.
    pub fn changes_after(
        &self,
        scope: &Scope,
        version: u64,
    ) -> Result<(Vec<Change>, u64), Expired> {
        let state = self.state();
        if version < state.began || version < state.forgotten {
            return Err(Expired);
        }
        let mut changes = Vec::new();
        for (autoscaler, history) in state.within(scope, None) {
            if history.version() <= version {
                continue;
            }
            let entries = history.entries(0, version, None);
            changes.extend(entries.map(|entry| {
                Change::Set(Box::new(Listed { autoscaler: autoscaler.clone(), entry }))
            }));
            if changes.len() > MAX_CHANGES {
                return Err(Expired);
            }
        }
        let is_within = |tombstone: &&Tombstone| {
            let namespace = &tombstone.autoscaler.key.namespace;
            tombstone.version > version && scope.namespace.as_ref().is_none_or(|n| n == namespace)
        };
        for tombstone in state.tombstones.iter().filter(is_within) {
            let (first, last) = tombstone.sequences;
            let AutoscalerRef { kind, key } = &*tombstone.autoscaler;
            changes.extend((first..=last).map(|sequence| {
                let position = Position { key: key.clone(), kind: *kind, sequence };
                Change::Dropped(position, tombstone.version)
            }));
        }
        changes.sort_by_key(|change| match change {
            Change::Set(listed) => listed.entry.version,
            Change::Dropped(_, version) => *version,
        });
        Ok((changes, state.version))
    }
}

/// The first resource version of a leadership that begins at a time: later ones begin with a greater one, for there
/// are fewer than 16 million changes a second.
fn first_version(now: UnixMillis) -> u64 {
    u64::try_from(now / 1000).unwrap_or(0) << 24
}

fn slot(kind: AutoscalerKind) -> usize {
    match kind {
        AutoscalerKind::Autoscaler => 0,
        AutoscalerKind::Hpa => 1,
    }
}

impl State {
    fn history(&self, autoscaler: &AutoscalerRef) -> Option<&History> {
        self.histories.get(&autoscaler.key)?[slot(autoscaler.kind)].as_deref()
    }

    /// Changes the history of an autoscaler. None if it has none, and there is no room for one.
    fn edit(
        &mut self,
        autoscaler: &AutoscalerRef,
        change: impl FnOnce(&mut History) -> bool,
    ) -> Option<bool> {
        let overhead = size_of::<History>() + 160 + 2 * autoscaler.key.name.len();
        if !self.histories.contains_key(&autoscaler.key) {
            if self.bytes + overhead > self.max_bytes && self.blocks.is_empty() {
                self.dropped += 1;
                return None;
            }
            self.histories.insert(autoscaler.key.clone(), [None, None]);
        }
        let slots = self.histories.get_mut(&autoscaler.key)?;
        let history = slots[slot(autoscaler.kind)].get_or_insert_with(|| {
            self.bytes += overhead;
            Box::default()
        });
        let (bytes, entries) = (history.bytes(), history.len());
        let changed = change(history);
        self.bytes = (self.bytes + history.bytes()).saturating_sub(bytes);
        self.entries = (self.entries + history.len()).saturating_sub(entries);
        Some(changed)
    }

    /// Drops the oldest blocks until the rest is within the limit.
    fn make_room(&mut self) {
        while self.bytes > self.max_bytes {
            let Some(autoscaler) = self.blocks.pop_front() else { return };
            let mut dropped = None;
            self.edit(&autoscaler, |history| {
                dropped = history.drop_oldest();
                false
            });
            let Some(dropped) = dropped else { continue };
            let (first, last) = dropped.sequences;
            self.dropped += last + 1 - first;
            self.version += 1;
            let version = self.version;
            self.bury(Tombstone { version, autoscaler, sequences: dropped.sequences });
        }
    }

    fn bury(&mut self, tombstone: Tombstone) {
        self.tombstones.push_back(tombstone);
        if self.tombstones.len() > MAX_TOMBSTONES {
            let oldest = self.tombstones.pop_front();
            self.forgotten = oldest.map_or(self.forgotten, |oldest| oldest.version);
        }
    }

    /// The histories of a scope in their order, from this key on.
    fn within<'a>(
        &'a self,
        scope: &'a Scope,
        from: Option<&ObjectKey>,
    ) -> impl Iterator<Item = (Arc<AutoscalerRef>, &'a History)> {
        let namespace = scope.namespace.as_deref();
        let first = || ObjectKey {
            namespace: namespace.unwrap_or_default().to_owned(),
            name: String::new(),
        };
        let from = from.cloned().unwrap_or_else(first);
        let range = self.histories.range((Bound::Included(from), Bound::Unbounded));
        let is_within = move |key: &ObjectKey| namespace.is_none_or(|name| key.namespace == name);
        range.take_while(move |(key, _)| is_within(key)).flat_map(|(key, slots)| {
            let kinds = [AutoscalerKind::Autoscaler, AutoscalerKind::Hpa];
            kinds.into_iter().zip(slots).filter_map(|(kind, history)| {
                let autoscaler = AutoscalerRef { kind, key: key.clone() };
                Some((Arc::new(autoscaler), history.as_deref()?))
            })
        })
    }
}
