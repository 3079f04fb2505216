//! The entries of one autoscaler.

use super::codec::Encoded;
use super::entry::{Basis, Entry};
use crate::time::UnixMillis;
use std::collections::VecDeque;
use std::sync::Arc;

/// The entries of one autoscaler: the run that goes on, and those before it in blocks.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Blocks of entries, the oldest first.
    blocks: VecDeque<Encoded>,
    /// The entries since the last block.
    recent: Encoded,
    /// The run that goes on.
    run: Option<Run>,
    /// The approximate memory of all that in bytes.
    bytes: usize,
    /// The number of entries.
    entries: usize,
    /// The sequence below which entries are dropped, though their block is still there.
    floor: u64,
}

/// A run that goes on: all decisions of it, and what is shown of them.
#[derive(Debug)]
struct Run {
    entry: Entry,
    shown: Encoded,
    /// The number of decisions that are shown.
    shown_count: u64,
    /// The time of the last decision that is shown.
    shown_time: UnixMillis,
}

/// A block that was dropped.
pub(super) struct Dropped {
    /// The sequences of its first and last entry.
    pub sequences: (u64, u64),
}

/// The size from which on entries become a block, in bytes.
const BLOCK_BYTES: usize = 2048;
/// The least time between two updates of a run that are shown, in ms.
pub(super) const SHOW_INTERVAL_MS: i64 = 60_000;

impl Run {
    fn new(entry: Entry) -> Self {
        let mut run = Self { shown: Encoded::default(), shown_count: 0, shown_time: 0, entry };
        run.show();
        run
    }

    fn show(&mut self) {
        let mut shown = Encoded::default();
        shown.push(&self.entry);
        self.shown = shown.sealed();
        (self.shown_count, self.shown_time) = (self.entry.count, self.entry.last);
    }

    fn bytes(&self) -> usize {
        // What both are based on counts once.
        let basis = &self.entry.basis;
        self.entry.bytes() + basis.bytes() + self.shown.bytes(Some(basis))
    }
}

impl History {
    /// The approximate memory in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The resource version of the last entry that is shown.
    pub fn version(&self) -> u64 {
        let run = self.run.as_ref().map_or(0, |run| run.shown.version());
        let last = self.blocks.back().map_or(0, Encoded::version);
        run.max(self.recent.version()).max(last)
    }

    /// The sequence of the last entry.
    pub fn sequence(&self) -> u64 {
        let run = self.run.as_ref().map_or(0, |run| run.entry.sequence);
        let last = self.blocks.back().map_or(0, Encoded::sequence);
        run.max(self.recent.sequence()).max(last)
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries
    }

    /// What the last run is based on.
    pub fn basis(&self) -> Option<&Arc<Basis>> {
        self.run.as_ref().map(|run| &run.entry.basis)
    }

    /// Records a decision. `version` gives the next resource version. Returns whether there is a new block.
    pub fn record(&mut self, decision: &Entry, mut version: impl FnMut() -> u64) -> bool {
        if let Some(run) = self.run.as_mut().filter(|run| run.entry.is_continued_by(decision)) {
            let before = run.bytes();
            run.entry.continue_with(decision);
            if run.entry.last - run.shown_time >= SHOW_INTERVAL_MS {
                run.entry.version = version();
                run.show();
            }
            self.bytes = (self.bytes + run.bytes()).saturating_sub(before);
            return false;
        }
        let sealed = self.end(&mut version);
        let now = version();
        let mut entry = decision.clone();
        (entry.sequence, entry.added, entry.version) = (self.sequence() + 1, now, now);
        let run = Run::new(entry);
        self.bytes += run.bytes();
        self.entries += 1;
        self.run = Some(run);
        sealed
    }

    /// Takes an entry of the leader's ledger as it is. Returns whether there is a new block.
    pub fn copy(&mut self, mut entry: Entry) -> bool {
        if entry.sequence < self.sequence() {
            return false;
        }
        let mut sealed = false;
        match self.run.take_if(|run| run.entry.sequence == entry.sequence) {
            Some(run) => {
                self.bytes = self.bytes.saturating_sub(run.bytes());
                entry.added = run.entry.added;
            }
            None => {
                sealed = self.close();
                self.entries += 1;
            }
        }
        let run = Run::new(entry);
        self.bytes += run.bytes();
        self.run = Some(run);
        sealed
    }

    /// Ends the run, as the next decision is another or there is none. Returns whether there is a new block.
    pub fn end(&mut self, version: impl FnOnce() -> u64) -> bool {
        if let Some(run) = &mut self.run
            && run.shown_count != run.entry.count
        {
            run.entry.version = version();
        }
        self.close()
    }

    fn close(&mut self) -> bool {
        let Some(run) = self.run.take() else { return false };
        self.bytes = self.bytes.saturating_sub(run.bytes() + self.recent.bytes(None));
        self.recent.push(&run.entry);
        if self.recent.data_bytes() < BLOCK_BYTES {
            self.bytes += self.recent.bytes(None);
            return false;
        }
        let block = std::mem::take(&mut self.recent).sealed();
        self.bytes += block.bytes(None);
        self.blocks.push_back(block);
        true
    }

    /// Drops the oldest block.
    pub fn drop_oldest(&mut self) -> Option<Dropped> {
        let block = self.blocks.pop_front()?;
        self.bytes = self.bytes.saturating_sub(block.bytes(None));
        self.entries = self.entries.saturating_sub(block.len());
        let last = block.sequence();
        Some(Dropped { sequences: (last + 1 - block.len() as u64, last) })
    }

    /// Hides the entries before a sequence, and drops blocks of no others.
    pub fn drop_before(&mut self, floor: u64) {
        self.floor = self.floor.max(floor);
        while self.blocks.front().is_some_and(|block| block.sequence() < self.floor) {
            self.drop_oldest();
        }
    }

    /// The entries from a sequence on that changed after a resource version, and whose last decision is not before
    /// `since`, if given; the oldest first, as they are shown.
    pub fn entries(
        &self,
        from: u64,
        after: u64,
        since: Option<UnixMillis>,
    ) -> impl Iterator<Item = Entry> + '_ {
        let shown = self.run.iter().map(|run| &run.shown);
        let all = self.blocks.iter().chain([&self.recent]).chain(shown);
        let from = from.max(self.floor);
        let is_since = move |last| since.is_none_or(|since| last >= since);
        all.filter(move |block| block.sequence() >= from && block.version() > after)
            .filter(move |block| is_since(block.last_time()))
            .flat_map(Encoded::iter)
            .filter(move |entry| entry.sequence >= from && entry.version > after)
            .filter(move |entry| is_since(entry.last))
    }

    /// An entry.
    pub fn get(&self, sequence: u64) -> Option<Entry> {
        self.entries(sequence, 0, None).next().filter(|entry| entry.sequence == sequence)
    }
}
