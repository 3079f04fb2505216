//! The entries of one autoscaler.

use super::changes::Changes;
use super::codec::Encoded;
use super::entry::{Basis, Entry};
use crate::time::UnixMillis;
use crate::watch::AutoscalerRef;
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

/// The entries of one autoscaler: the run in progress, and those before it in blocks. What is dropped is the oldest
/// part: a block, or the entries since the last block, or the run.
#[derive(Debug)]
pub(super) struct History {
    /// Whose they are.
    pub of: Arc<AutoscalerRef>,
    /// Blocks of entries, the oldest first.
    blocks: VecDeque<Encoded>,
    /// The approximate memory of these in bytes, and the number of their entries.
    bytes_of_blocks: usize,
    entries_of_blocks: usize,
    /// The entries since the last block.
    recent: Encoded,
    /// The run in progress.
    run: Option<Run>,
    /// The least sequence of the next entry that is recorded.
    next: u64,
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
/// How many sequences are left out at least for entries that may be missing.
const LEAST_GAP: u64 = 1 << 20;
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
        Self { of, blocks, bytes_of_blocks: 0, entries_of_blocks: 0, recent, run: None, next: 1 }
    }

    /// The approximate memory in bytes, with its place in the ledger.
    pub fn bytes(&self) -> usize {
        let key = &self.of.key;
        let place = size_of::<Self>() + 256 + 2 * (key.namespace.len() + key.name.len());
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
        self.entries_of_blocks + self.recent.len() + usize::from(self.run.is_some())
    }

    fn oldest(&self) -> Option<&Encoded> {
        let recent = (self.recent.len() > 0).then_some(&self.recent);
        let shown = self.run.as_ref().map(|run| &run.shown);
        self.blocks.front().or(recent).or(shown)
    }

    /// The resource version of the last entry of the oldest part; none if there is nothing.
    pub fn age(&self) -> Option<u64> {
        self.oldest().map(Encoded::version)
    }

    /// The time of the last decision of the oldest part; none if there is nothing.
    pub fn oldest_time(&self) -> Option<UnixMillis> {
        self.oldest().map(Encoded::last_time)
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
        entry.sequence = self.next.max(self.sequence() + 1);
        entry.version = changes.next(&self.of, entry.sequence, None);
        entry.added = entry.version;
        self.run = Some(Run::new(entry));
    }

    /// Entries of other leaders may be missing after these: the run ends, and the next entry gets a sequence that none of
    /// them can have, as there is less than one in a ms. They may be dated by a clock that is ahead of this one: the time
    /// for which this replica has not known all counts, too.
    pub fn skip(&mut self, now: UnixMillis, unknown: Duration, changes: &mut Changes) {
        self.end(changes);
        let recent = Some(&self.recent).filter(|recent| recent.len() > 0);
        let last = recent.or(self.blocks.back()).map_or(now, Encoded::last_time);
        let unknown = u64::try_from(unknown.as_millis()).unwrap_or(0).max(LEAST_GAP);
        self.next = self.sequence() + 1 + u64::try_from(now - last).unwrap_or(0).max(unknown);
    }

    /// Takes an entry of the leader's ledger as it is, instead of one with its sequence. Returns whether it was not
    /// known.
    pub fn copy(&mut self, mut entry: Entry) -> bool {
        match self.run.take_if(|run| run.entry.sequence == entry.sequence) {
            Some(run) => entry.added = run.entry.added,
            None if entry.sequence <= self.sequence() => return self.insert(entry),
            None => self.close(),
        }
        self.run = Some(Run::new(entry));
        true
    }

    /// Takes an entry before the run: it may be new, or the end of a run that was closed by the next one.
    fn insert(&mut self, entry: Entry) -> bool {
        let at = self.blocks.partition_point(|block| block.sequence() < entry.sequence);
        let Some(entries) = with(self.blocks.get(at).unwrap_or(&self.recent), entry) else {
            return false;
        };
        if at == self.blocks.len() {
            self.recent = encoded(&entries);
            return true;
        }
        let block = encoded(&entries);
        match block.data_bytes() < 2 * BLOCK_BYTES {
            true => self.replace(at, [block]),
            false => {
                let (older, newer) = entries.split_at(entries.len() / 2);
                self.replace(at, [encoded(older), encoded(newer)]);
            }
        }
        true
    }

    /// Puts blocks, of which some may be empty, in the place of one.
    fn replace(&mut self, at: usize, blocks: impl IntoIterator<Item = Encoded>) {
        if let Some(replaced) = self.blocks.remove(at) {
            self.count_off(&replaced);
        }
        for (n, block) in blocks.into_iter().filter(|block| block.len() > 0).enumerate() {
            let block = block.sealed();
            self.bytes_of_blocks += block.bytes(None);
            self.entries_of_blocks += block.len();
            self.blocks.insert(at + n, block);
        }
    }

    fn count_off(&mut self, block: &Encoded) {
        self.bytes_of_blocks = self.bytes_of_blocks.saturating_sub(block.bytes(None));
        self.entries_of_blocks = self.entries_of_blocks.saturating_sub(block.len());
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
            let block = std::mem::take(&mut self.recent);
            self.replace(self.blocks.len(), [block]);
        }
    }

    /// Drops the oldest part, and returns the sequences of its entries and the times of their first decisions.
    pub fn drop_oldest(&mut self) -> Vec<(u64, UnixMillis)> {
        let part = match self.blocks.pop_front() {
            Some(block) => {
                self.count_off(&block);
                block
            }
            None if self.recent.len() > 0 => std::mem::take(&mut self.recent),
            None => self.run.take().map(|run| run.shown).unwrap_or_default(),
        };
        part.iter().map(|entry| (entry.sequence, entry.first)).collect()
    }

    /// Drops the entries of these sequences.
    pub fn drop_all_of(&mut self, sequences: &RangeInclusive<u64>) {
        let mut at = self.blocks.partition_point(|block| block.sequence() < *sequences.start());
        while let Some(kept) = self.blocks.get(at).and_then(|block| without(block, sequences)) {
            let is_left = kept.len() > 0;
            self.replace(at, [kept]);
            at += usize::from(is_left);
        }
        if let Some(kept) = without(&self.recent, sequences) {
            self.recent = kept;
        }
        self.run.take_if(|run| sequences.contains(&run.entry.sequence));
    }

    /// The entries from a sequence on whose last decision is not before `since`, if given; the oldest first, as they are
    /// shown.
    pub fn entries(
        &self,
        from: u64,
        since: Option<UnixMillis>,
    ) -> impl Iterator<Item = Entry> + '_ {
        let shown = self.run.iter().map(|run| &run.shown);
        let begin = self.blocks.partition_point(|block| block.sequence() < from);
        let all = self.blocks.range(begin..).chain([&self.recent]).chain(shown);
        let is_since = move |last| since.is_none_or(|since| last >= since);
        all.filter(move |part| part.sequence() >= from)
            .filter(move |part| is_since(part.latest_time()))
            .flat_map(Encoded::iter)
            .filter(move |entry| entry.sequence >= from && is_since(entry.last))
    }

    /// An entry.
    pub fn get(&self, sequence: u64) -> Option<Entry> {
        self.entries(sequence, None).next().filter(|entry| entry.sequence == sequence)
    }
}

fn encoded<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Encoded {
    let mut encoded = Encoded::default();
    entries.into_iter().for_each(|entry| encoded.push(entry));
    encoded
}

/// The entries of a part with another one, in their order; none if that is one of them.
fn with(part: &Encoded, mut entry: Entry) -> Option<Vec<Entry>> {
    let mut entries: Vec<Entry> = part.iter().collect();
    match entries.binary_search_by_key(&entry.sequence, |known| known.sequence) {
        Ok(at) if entries[at].version == entry.version => return None,
        Ok(at) => {
            entry.added = entries[at].added;
            entries[at] = entry;
        }
        Err(at) => entries.insert(at, entry),
    }
    Some(entries)
}

/// A part without the entries of these sequences; none if it has none of them.
fn without(part: &Encoded, sequences: &RangeInclusive<u64>) -> Option<Encoded> {
    let (mut kept, mut is_any) = (Encoded::default(), false);
    for entry in part.iter() {
        match sequences.contains(&entry.sequence) {
            true => is_any = true,
            false => kept.push(&entry),
        }
    }
    is_any.then_some(kept)
}
