//! Bytes that namespaces share, none of which takes more than it leaves free: whoever comes
//! next finds room, whatever those before it have taken.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// So many bytes, and who has which part of them.
#[derive(Debug)]
pub struct Shares {
    limit: usize,
    taken: Mutex<Taken>,
}

/// Bytes of a namespace, given back when this is dropped.
#[derive(Debug)]
pub struct Share {
    of: Arc<Shares>,
    namespace: Arc<str>,
    bytes: usize,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.give(&self.namespace, self.bytes);
    }
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by: HashMap<Arc<str>, usize>,
}

impl Shares {
    /// So many bytes, all free.
    pub fn new(limit: usize) -> Self {
        Self { limit, taken: Mutex::default() }
    }

    /// The bytes, free or not.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The bytes that a namespace has.
    #[cfg(test)]
    pub fn of(&self, namespace: &str) -> usize {
        self.taken().by.get(namespace).copied().unwrap_or(0)
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes bytes for a namespace, where it has no more then than are free. The empty
    /// name is that of the whole cluster, which may take all that is free.
    #[must_use]
    pub fn take(&self, namespace: &Arc<str>, bytes: usize) -> bool {
        let mut taken = self.taken();
        let all = taken.all.saturating_add(bytes);
        let own = taken.by.get(namespace).map_or(bytes, |own| own.saturating_add(bytes));
        let Some(free) = self.limit.checked_sub(all) else { return false };
        if own > free && !namespace.is_empty() {
            return false;
        }
        taken.all = all;
        taken.by.insert(namespace.clone(), own);
        true
    }

    /// Takes bytes for a namespace, as [`take`](Self::take) does, until they are dropped.
    pub fn share(self: &Arc<Self>, namespace: &Arc<str>, bytes: usize) -> Option<Share> {
        let share = || Share { of: self.clone(), namespace: namespace.clone(), bytes };
        self.take(namespace, bytes).then(share)
    }

    /// Gives bytes of a namespace back.
    pub fn give(&self, namespace: &Arc<str>, bytes: usize) {
        let mut taken = self.taken();
        taken.all -= bytes;
        if let Some(own) = taken.by.get_mut(namespace) {
            *own -= bytes;
            if *own == 0 {
                taken.by.remove(namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_namespace_takes_more_than_it_leaves_free() {
        let shares = Shares::new(1_000);
        let [greedy, second, all] = ["greedy", "second", ""].map(Arc::<str>::from);
        assert!(!shares.take(&greedy, 501));
        assert!((0..500).all(|_| shares.take(&greedy, 1)) && !shares.take(&greedy, 1));
        assert!(shares.take(&second, 250) && !shares.take(&second, 1));
        assert!(shares.take(&all, 250) && !shares.take(&all, 1));
        shares.give(&greedy, 500);
        assert!(shares.take(&second, 125) && !shares.take(&second, 1));
        shares.give(&second, 375);
        shares.give(&all, 250);
        let taken = shares.taken();
        assert!(taken.all == 0 && taken.by.is_empty(), "{taken:?}");
    }
}
