//! Stores equal values once.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

/// Stores equal values once. As many as are in use may be kept beside them that are in use no longer: values whose size
/// others choose should be small.
#[derive(Debug)]
pub struct Interner<T> {
    values: HashSet<Arc<T>>,
    /// The number of values at which those that are in use no longer are dropped.
    limit: usize,
}

/// The number of values below which none is dropped.
const MIN_LIMIT: usize = 64;

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { values: HashSet::new(), limit: MIN_LIMIT }
    }
}

impl<T: Eq + Hash> Interner<T> {
    /// The stored value that equals this one.
    pub fn intern(&mut self, value: Arc<T>) -> Arc<T> {
        match self.values.get(&value) {
            Some(known) => known.clone(),
            None => self.insert(value),
        }
    }

    /// The same; allocates only if there is none yet.
    pub fn intern_value(&mut self, value: T) -> Arc<T> {
        match self.values.get(&value) {
            Some(known) => known.clone(),
            None => self.insert(value.into()),
        }
    }

    fn insert(&mut self, value: Arc<T>) -> Arc<T> {
        if self.values.len() >= self.limit {
            self.values.retain(|known| Arc::strong_count(known) > 1);
            self.limit = (2 * self.values.len()).max(MIN_LIMIT);
        }
        self.values.insert(value.clone());
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_are_in_use_no_longer_are_few() {
        let mut interner = Interner::default();
        let used: Vec<_> = (0..5_000).map(|number| interner.intern(Arc::new(number))).collect();
        assert!(Arc::ptr_eq(&used[7], &interner.intern(Arc::new(7))));
        for number in 5_000..50_000 {
            interner.intern(Arc::new(number));
            assert!(interner.values.len() <= 4 * used.len());
        }
        drop(used);
        for number in 50_000..80_000 {
            interner.intern(Arc::new(number));
        }
        assert!(interner.values.len() <= MIN_LIMIT);
    }
}
