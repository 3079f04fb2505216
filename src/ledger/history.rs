//! The entries of one autoscaler.

use super::changes::Changes;
use super::codec::Encoded;
use super::entry::{Basis, Entry};
use crate::time::UnixMillis;
use crate::watch::AutoscalerRef;
use std::collections::VecDeque;
use std::sync::Arc;

/// The entries of one autoscaler: the run in progress, and those before it in blocks. What is dropped is the oldest
/// part: a block, or the entries since the last block, or the run.
#[derive(Debug)]
pub(super) struct History {
    /// Whose they are.
    pub of: Arc<AutoscalerRef>,
    /// Blocks of entries, the oldest first.
    blocks: VecDeque<Encoded>,
    /// The approximate memory of these in bytes.
    bytes_of_blocks: usize,
    /// The entries since the last block.
    recent: Encoded,
    /// The run in progress.
    run: Option<Run>,
    /// The sequence of the oldest entry: those before it are dropped, though their block may still be there.
    first: u64,
}

/// A run in progress: all decisions of it, and what is shown of them.
#[derive(Debug)]
struct Run {
    entry: Entry,
    shown: Encoded,
    /// The number of decisions that are shown.
    shown_count: u64,
    /// The time of the last decision that is shown.
    shown_time: UnixMillis,
}

/// The size from which on entries become a block, in bytes; and that with all that they are based on.
const BLOCK_BYTES: usize = 2048;
const WHOLE_BLOCK_BYTES: usize = 32 * 1024;
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
    /// That of an autoscaler, which has none yet.
    pub fn new(of: Arc<AutoscalerRef>) -> Self {
        let (blocks, recent) = (VecDeque::new(), Encoded::default());
        Self { of, blocks, bytes_of_blocks: 0, recent, run: None, first: 1 }
    }

    /// The approximate memory in bytes, with its place in the ledger.
    pub fn bytes(&self) -> usize {
        let key = &self.of.key;
        let place = size_of::<Self>() + 160 + 2 * (key.namespace.len() + key.name.len());
        let run = self.run.as_ref().map_or(0, Run::bytes);
        place + self.bytes_of_blocks + self.recent.bytes(None) + run
    }

    /// The sequence of the last entry; 0 if there is none.
    pub fn sequence(&self) -> u64 {
        let run = self.run.as_ref().map_or(0, |run| run.entry.sequence);
        let last = self.blocks.back().map_or(0, Encoded::sequence);
        run.max(self.recent.sequence()).max(last)
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        (self.sequence() + 1).saturating_sub(self.first) as usize
    }

    /// The resource version of the last entry of the oldest part; none if there is nothing.
    pub fn age(&self) -> Option<u64> {
        let recent = (self.recent.len() > 0).then_some(&self.recent);
        let shown = self.run.as_ref().map(|run| &run.shown);
        self.blocks.front().or(recent).or(shown).map(Encoded::version)
    }

    /// What the last run is based on.
    pub fn basis(&self) -> Option<&Arc<Basis>> {
        self.run.as_ref().map(|run| &run.entry.basis)
    }

    /// Records a decision, and notes what is shown of it.
    pub fn record(&mut self, decision: &Entry, changes: &mut Changes) {
        if let Some(run) = self.run.as_mut().filter(|run| run.entry.is_continued_by(decision)) {
            run.entry.continue_with(decision);
            // A clock that jumps back is no reason to wait until it is where it was.
            if !(0..SHOW_INTERVAL_MS).contains(&(run.entry.last - run.shown_time)) {
                run.entry.version = changes.next(&self.of, run.entry.sequence, None);
                run.show();
            }
            return;
        }
        self.end(changes);
        let mut entry = decision.clone();
        entry.sequence = self.sequence() + 1;
        entry.version = changes.next(&self.of, entry.sequence, None);
        entry.added = entry.version;
        self.run = Some(Run::new(entry));
    }

    /// Takes an entry of the leader's ledger as it is. Returns whether it was not known.
    pub fn copy(&mut self, mut entry: Entry) -> bool {
        if entry.sequence < self.first || entry.sequence < self.sequence() {
            return self.replace(entry);
        }
        if self.len() == 0 {
            self.first = entry.sequence;
        }
        match self.run.take_if(|run| run.entry.sequence == entry.sequence) {
            Some(run) => entry.added = run.entry.added,
            None => self.close(),
        }
        self.run = Some(Run::new(entry));
        true
    }

    /// Replaces an entry since the last block: the run of which it is the end was closed by the next one.
    fn replace(&mut self, mut entry: Entry) -> bool {
        let mut all: Vec<Entry> = self.recent.iter().collect();
        let Some(known) = all.iter_mut().find(|known| known.sequence == entry.sequence) else {
            return false;
        };
        entry.added = known.added;
        *known = entry;
        self.recent = Encoded::default();
        all.iter().for_each(|entry| self.recent.push(entry));
        true
    }

    /// Ends the run, as the next decision is another or there is none.
    pub fn end(&mut self, changes: &mut Changes) {
        if let Some(run) = &mut self.run
            && run.shown_count != run.entry.count
        {
            run.entry.version = changes.next(&self.of, run.entry.sequence, None);
        }
        self.close();
    }

    fn close(&mut self) {
        let Some(run) = self.run.take() else { return };
        self.recent.push(&run.entry);
        let is_full =
            self.recent.data_bytes() >= BLOCK_BYTES || self.recent.bytes(None) >= WHOLE_BLOCK_BYTES;
        if is_full {
            let block = std::mem::take(&mut self.recent).sealed();
            self.bytes_of_blocks += block.bytes(None);
            self.blocks.push_back(block);
        }
    }

    fn pop_block(&mut self) -> Option<Encoded> {
        let block = self.blocks.pop_front()?;
        self.bytes_of_blocks = self.bytes_of_blocks.saturating_sub(block.bytes(None));
        Some(block)
    }

    /// Drops the oldest part, and returns the sequences of its entries and the times of their first decisions.
    pub fn drop_oldest(&mut self) -> Vec<(u64, UnixMillis)> {
        let part = match self.pop_block() {
            Some(block) => block,
            None if self.recent.len() > 0 => std::mem::take(&mut self.recent),
            None => self.run.take().map(|run| run.shown).unwrap_or_default(),
        };
        let first = self.first;
        self.first = first.max(part.sequence() + 1);
        let is_shown = |entry: &Entry| entry.sequence >= first;
        part.iter().filter(is_shown).map(|entry| (entry.sequence, entry.first)).collect()
    }

    /// Drops the entries up to a sequence.
    pub fn drop_through(&mut self, last: u64) {
        self.first = self.first.max(last + 1);
        while self.blocks.front().is_some_and(|block| block.sequence() <= last) {
            self.pop_block();
        }
        if self.recent.len() > 0 && self.recent.sequence() <= last {
            self.recent = Encoded::default();
        }
        self.run.take_if(|run| run.entry.sequence <= last);
    }

    /// The entries from a sequence on whose last decision is not before `since`, if given; the oldest first, as they are
    /// shown.
    pub fn entries(
        &self,
        from: u64,
        since: Option<UnixMillis>,
    ) -> impl Iterator<Item = Entry> + '_ {
        let from = from.max(self.first);
        let shown = self.run.iter().map(|run| &run.shown);
        let begin = self.blocks.partition_point(|block| block.sequence() < from);
        let all = self.blocks.range(begin..).chain([&self.recent]).chain(shown);
        let is_since = move |last| since.is_none_or(|since| last >= since);
        all.filter(move |part| part.sequence() >= from)
            .filter(move |part| is_since(part.last_time()))
            .flat_map(Encoded::iter)
            .filter(move |entry| entry.sequence >= from && is_since(entry.last))
    }

    /// An entry.
    pub fn get(&self, sequence: u64) -> Option<Entry> {
        self.entries(sequence, None).next().filter(|entry| entry.sequence == sequence)
    }
}
