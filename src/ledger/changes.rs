//! The last changes of a ledger, in the order of their resource versions: where in it a watch is, is one number.

use crate::time::UnixMillis;
use crate::watch::AutoscalerRef;
use std::collections::VecDeque;
use std::sync::Arc;

/// Which entries have changed last.
#[derive(Debug)]
pub(super) struct Changes {
    noted: VecDeque<Noted>,
    /// How many are kept.
    max: usize,
    /// The resource version.
    version: u64,
    /// The resource version up to which changes are no longer known.
    forgotten: u64,
}

/// A change of an entry.
#[derive(Debug)]
pub(super) struct Noted {
    /// The resource version of the change.
    pub version: u64,
    /// Whose entry it is.
    pub of: Arc<AutoscalerRef>,
    /// Its sequence.
    pub sequence: u64,
    /// The time of its first decision, if it was dropped.
    pub dropped: Option<UnixMillis>,
}

/// A watch from a resource version whose changes are no longer known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expired;

/// The most changes that are kept: those of 12 minutes, if there are 11,000 a minute.
const MAX_CHANGES: usize = 1 << 17;
/// The share of the ledger's memory that they take at most is one in so many.
const SHARE: usize = 16;

impl Changes {
    /// None yet, in a ledger of at most `max_bytes`.
    pub fn new(version: u64, max_bytes: usize) -> Self {
        let max = (max_bytes / SHARE / size_of::<Noted>()).min(MAX_CHANGES);
        Self { noted: VecDeque::new(), max, version, forgotten: version }
    }

    /// The resource version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The memory in bytes.
    pub fn bytes(&self) -> usize {
        self.noted.capacity() * size_of::<Noted>()
    }

    /// Notes a change, and returns its resource version: the next one.
    pub fn next(
        &mut self,
        of: &Arc<AutoscalerRef>,
        sequence: u64,
        dropped: Option<UnixMillis>,
    ) -> u64 {
        self.note(self.version + 1, of, sequence, dropped);
        self.version
    }

    /// Notes a change at a resource version; one that is not after all others is known already.
    pub fn note(
        &mut self,
        version: u64,
        of: &Arc<AutoscalerRef>,
        sequence: u64,
        dropped: Option<UnixMillis>,
    ) {
        if version <= self.version {
            return;
        }
        self.version = version;
        while self.noted.len() >= self.max.max(1)
            && let Some(oldest) = self.noted.pop_front()
        {
            self.forgotten = oldest.version;
        }
        self.noted.push_back(Noted { version, of: of.clone(), sequence, dropped });
    }

    /// There is nothing else up to a resource version.
    pub fn reach(&mut self, version: u64) {
        self.version = self.version.max(version);
    }

    /// Whoever watches has to list again, from a resource version on.
    pub fn restart(&mut self, version: u64) {
        self.noted.clear();
        (self.version, self.forgotten) = (version, version);
    }

    /// The changes after a resource version.
    ///
    /// # Errors
    /// If these are not known any more.
    pub fn after(&self, version: u64) -> Result<impl Iterator<Item = &Noted>, Expired> {
        if version < self.forgotten {
            return Err(Expired);
        }
        let from = self.noted.partition_point(|noted| noted.version <= version);
        Ok(self.noted.range(from..))
    }
}
