//! Stores equal values once.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

/// Stores equal values once.
#[derive(Debug)]
pub struct Interner<T>(HashSet<Arc<T>>);

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self(HashSet::new())
    }
}

impl<T: Eq + Hash> Interner<T> {
    /// The stored value that equals this one.
    pub fn intern(&mut self, value: Arc<T>) -> Arc<T> {
        if let Some(known) = self.0.get(&value) {
            return known.clone();
        }
        // Drop unused values whenever the number of values reaches a power of two.
        if self.0.len().is_power_of_two() {
            self.0.retain(|known| Arc::strong_count(known) > 1);
        }
        self.0.insert(value.clone());
        value
    }
}
