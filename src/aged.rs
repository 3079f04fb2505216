//! What was learned lately: a cache bounded by age and by count.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Answers that are believed for a while.
#[derive(Debug)]
pub struct Aged<K, V> {
    max_age: Duration,
    max_count: usize,
    entries: Mutex<HashMap<K, (Instant, V)>>,
}

impl<K: Eq + Hash, V: Clone> Aged<K, V> {
    /// An empty cache that believes an answer for so long, and keeps so many.
    pub fn new(max_age: Duration, max_count: usize) -> Self {
        Self { max_age, max_count, entries: Mutex::default() }
    }

    /// What is known, where it is not too old.
    pub fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, value) = entries.get(key)?;
        (at.elapsed() < self.max_age).then(|| value.clone())
    }

    /// Keeps what was learned. Where there are too many, old ones go first,
    /// and if none is old, all.
    pub fn put(&self, key: K, value: V) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= self.max_count {
            entries.retain(|_, (at, _)| at.elapsed() < self.max_age);
        }
        if entries.len() >= self.max_count {
            entries.clear();
        }
        entries.insert(key, (Instant::now(), value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_believed_until_they_are_old_and_never_more_than_fit() {
        let cache = Aged::new(Duration::from_secs(60), 2);
        cache.put("a", 1);
        cache.put("b", 2);
        assert_eq!((cache.get("a"), cache.get("c")), (Some(1), None));
        cache.put("c", 3);
        assert_eq!((cache.get("a"), cache.get("c")), (None, Some(3)));
        let cache = Aged::new(Duration::ZERO, 2);
        cache.put("a", 1);
        assert_eq!(cache.get("a"), None);
    }
}
