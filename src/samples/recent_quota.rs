//! The memory for recent queries.

use super::caller::Caller;
use crate::quota::ByteQuota;

/// The bytes of recent queries of all shapes, in two parts, each a byte quota that namespaces share.
pub const RECENT_QUERY_BYTES: usize = 32 << 20;
/// The part of them for users' own queries.
pub const USER_RECENT_QUERY_BYTES: usize = RECENT_QUERY_BYTES / 4;

/// The bytes of recent queries, by namespace. Users' own queries, which may be as large and as many
/// as a user likes, have a separate part, so that those of templates and rules find room.
pub struct RecentQuota {
    users: ByteQuota,
    others: ByteQuota,
}

impl RecentQuota {
    /// All bytes are free.
    pub fn new() -> Self {
        let others = RECENT_QUERY_BYTES - USER_RECENT_QUERY_BYTES;
        Self { users: ByteQuota::new(USER_RECENT_QUERY_BYTES), others: ByteQuota::new(others) }
    }

    fn of(&self, caller: &Caller) -> &ByteQuota {
        if caller.user { &self.users } else { &self.others }
    }

    /// Reserves bytes for a caller, as [`ByteQuota::try_reserve`] does.
    #[must_use]
    pub fn try_reserve(&self, caller: &Caller, bytes: usize) -> bool {
        self.of(caller).try_reserve(&caller.namespace, bytes)
    }

    /// Releases bytes of a caller.
    pub fn release(&self, caller: &Caller, bytes: usize) {
        self.of(caller).release(&caller.namespace, bytes);
    }

    /// The bytes that a namespace uses, of both parts.
    #[cfg(test)]
    pub fn used_by(&self, namespace: &str) -> usize {
        self.users.used_by(namespace) + self.others.used_by(namespace)
    }
}
