//! Bytes shared by namespaces. A namespace may use at most as many bytes as are still free afterwards:
//! half of the quota if it is alone, a third if one other uses a third, and so on. So the next
//! namespace always finds room.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A number of bytes, and the usage of each namespace.
#[derive(Debug)]
pub struct ByteQuota {
    limit: usize,
    usage: Mutex<Usage>,
}

/// Bytes of a namespace, released on drop.
#[derive(Debug)]
pub struct QuotaGuard {
    quota: Arc<ByteQuota>,
    namespace: Arc<str>,
    bytes: usize,
}

impl Drop for QuotaGuard {
    fn drop(&mut self) {
        self.quota.release(&self.namespace, self.bytes);
    }
}

#[derive(Debug, Default)]
struct Usage {
    total: usize,
    by_namespace: HashMap<Arc<str>, usize>,
}

impl ByteQuota {
    /// A quota of `limit` bytes, all free.
    pub fn new(limit: usize) -> Self {
        Self { limit, usage: Mutex::default() }
    }

    /// The bytes of the quota, free or used.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The bytes that a namespace uses.
    #[cfg(test)]
    pub fn used_by(&self, namespace: &str) -> usize {
        self.usage().by_namespace.get(namespace).copied().unwrap_or(0)
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves bytes for a namespace, unless it would use more than are free afterwards. The empty
    /// name stands for the whole cluster, which may use all free bytes.
    #[must_use]
    pub fn try_reserve(&self, namespace: &Arc<str>, bytes: usize) -> bool {
        let mut usage = self.usage();
        let total = usage.total.saturating_add(bytes);
        let used = usage.by_namespace.get(namespace);
        let used = used.map_or(bytes, |used| used.saturating_add(bytes));
        let Some(free) = self.limit.checked_sub(total) else { return false };
        if used > free && !namespace.is_empty() {
            return false;
        }
        usage.total = total;
        usage.by_namespace.insert(namespace.clone(), used);
        true
    }

    /// Reserves bytes like [`try_reserve`](Self::try_reserve), until the guard is dropped.
    pub fn try_guard(self: &Arc<Self>, namespace: &Arc<str>, bytes: usize) -> Option<QuotaGuard> {
        let guard = || QuotaGuard { quota: self.clone(), namespace: namespace.clone(), bytes };
        self.try_reserve(namespace, bytes).then(guard)
    }

    /// Releases bytes of a namespace.
    pub fn release(&self, namespace: &Arc<str>, bytes: usize) {
        let mut usage = self.usage();
        usage.total -= bytes;
        if let Some(used) = usage.by_namespace.get_mut(namespace) {
            *used -= bytes;
            if *used == 0 {
                usage.by_namespace.remove(namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_namespace_takes_more_than_it_leaves_free() {
        let quota = ByteQuota::new(1_000);
        let [greedy, second, all] = ["greedy", "second", ""].map(Arc::<str>::from);
        assert!(!quota.try_reserve(&greedy, 501));
        assert!((0..500).all(|_| quota.try_reserve(&greedy, 1)) && !quota.try_reserve(&greedy, 1));
        assert!(quota.try_reserve(&second, 250) && !quota.try_reserve(&second, 1));
        assert!(quota.try_reserve(&all, 250) && !quota.try_reserve(&all, 1));
        quota.release(&greedy, 500);
        assert!(quota.try_reserve(&second, 125) && !quota.try_reserve(&second, 1));
        quota.release(&second, 375);
        quota.release(&all, 250);
        let usage = quota.usage();
        assert!(usage.total == 0 && usage.by_namespace.is_empty(), "{usage:?}");
    }
}
