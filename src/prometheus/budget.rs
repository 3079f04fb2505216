//! The budget of memory for responses.

use super::{Error, Flow};
use crate::quota::ByteQuota;
use std::sync::Arc;

/// The bytes of all responses: of the bodies while they are received, and of the tables that are read
/// from them for as long as they are used.
pub const RESPONSE_BYTES: usize = 128 << 20;
/// The part of them for responses to users' own queries. No namespace uses
/// more of it than it leaves free.
pub const USER_RESPONSE_BYTES: usize = 32 << 20;
/// The memory per byte of a body until it is read: the body with spare capacity, and
/// then the table as well. Tables that take more are counted as they are read.
const BYTES_PER_BODY_BYTE: usize = 2;

/// The bytes for responses, shared by all clients of a process.
#[derive(Clone, Debug)]
pub struct Budget {
    all: Arc<ByteQuota>,
    users: Arc<ByteQuota>,
    /// The empty namespace, to which all of `all` is charged.
    cluster: Arc<str>,
}

/// Bytes of the budget, released on drop.
#[derive(Debug)]
pub struct Reservation {
    budget: Budget,
    /// For a user's own query, the namespace.
    user: Option<Arc<str>>,
    bytes: usize,
}

impl Budget {
    /// [`RESPONSE_BYTES`], or more if a single response of so many bytes needs more.
    pub fn for_responses_of(bytes: usize) -> Self {
        let all = RESPONSE_BYTES.max(bytes.saturating_mul(BYTES_PER_BODY_BYTE));
        let users = Arc::new(ByteQuota::new(USER_RESPONSE_BYTES));
        Self { all: Arc::new(ByteQuota::new(all)), users, cluster: "".into() }
    }

    /// A reservation of nothing yet, for a response to a request of a flow.
    pub fn reserve(&self, flow: &Flow) -> Reservation {
        let user = match flow {
            Flow::User(namespace) => Some(namespace.clone()),
            Flow::Shared | Flow::Namespace(_) => None,
        };
        Reservation { budget: self.clone(), user, bytes: 0 }
    }
}

impl Reservation {
    /// Reserves memory for so many more bytes of a body. It does not wait: requests
    /// with a part of their response each would wait for one another.
    ///
    /// # Errors
    /// [`Error::Memory`] if the budget has no room.
    pub fn add_body(&mut self, bytes: usize) -> Result<(), Error> {
        self.grow(bytes.saturating_mul(BYTES_PER_BODY_BYTE))
    }

    /// Reserves so many bytes more.
    ///
    /// # Errors
    /// [`Error::Memory`] if the budget has no room.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Error> {
        let Budget { all, users, cluster } = &self.budget;
        let full = |quota: &ByteQuota| Err(Error::Memory { limit: quota.limit() });
        if let Some(user) = &self.user
            && !users.try_reserve(user, bytes)
        {
            return full(users);
        }
        if !all.try_reserve(cluster, bytes) {
            if let Some(user) = &self.user {
                users.release(user, bytes);
            }
            return full(all);
        }
        self.bytes += bytes;
        Ok(())
    }

    /// The reserved bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Changes the reservation to so many bytes.
    ///
    /// # Errors
    /// [`Error::Memory`] if these are more, and the budget has no room.
    pub fn resize(&mut self, bytes: usize) -> Result<(), Error> {
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.grow(more),
            None => {
                self.release(self.bytes - bytes);
                Ok(())
            }
        }
    }

    /// A reservation of nothing yet in the same budget, for a flow.
    pub fn another(&self, flow: &Flow) -> Self {
        self.budget.reserve(flow)
    }

    fn release(&mut self, bytes: usize) {
        self.budget.all.release(&self.budget.cluster, bytes);
        if let Some(user) = &self.user {
            self.budget.users.release(user, bytes);
        }
        self.bytes -= bytes;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.release(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> Flow {
        Flow::User(name.into())
    }

    #[test]
    fn responses_together_are_bounded_and_users_take_no_more_than_their_part() {
        let budget = Budget::for_responses_of(1 << 20);
        let mut users: Vec<Reservation> = Vec::new();
        for n in 0..64 {
            let mut reservation = budget.reserve(&user(&n.to_string()));
            while reservation.add_body(1 << 10).is_ok() {}
            users.push(reservation);
        }
        let taken: usize = users.iter().map(Reservation::bytes).sum();
        assert!(
            (USER_RESPONSE_BYTES - (64 << 10)..=USER_RESPONSE_BYTES).contains(&taken),
            "{taken}"
        );
        let mut other = budget.reserve(&Flow::Shared);
        other.add_body((RESPONSE_BYTES - taken) / BYTES_PER_BODY_BYTE).unwrap();
        let full = Err(Error::Memory { limit: RESPONSE_BYTES });
        assert_eq!(budget.reserve(&Flow::Shared).add_body(1), full);
        drop(users);
        assert!(budget.reserve(&user("a")).add_body(1_000).is_ok());
        drop(other);
        assert!(
            budget
                .reserve(&Flow::Namespace("a".into()))
                .add_body(RESPONSE_BYTES / BYTES_PER_BODY_BYTE)
                .is_ok()
        );
    }

    #[test]
    fn one_namespaces_responses_leave_room_for_those_of_others() {
        let budget = Budget::for_responses_of(1 << 20);
        // As large as one response may be, and still used.
        let mut kept = budget.reserve(&user("greedy"));
        kept.add_body(8 << 20).unwrap();
        assert!(budget.reserve(&user("greedy")).add_body(1).is_err());
        assert!(budget.reserve(&user("good")).add_body(4 << 20).is_ok());
        kept.resize(100).unwrap();
        assert!(budget.reserve(&user("greedy")).add_body(7 << 20).is_ok());
        // A table that turns out to be larger takes what it needs.
        kept.resize(15 << 20).unwrap();
        assert!(kept.resize(17 << 20).is_err());
        assert_eq!(kept.bytes(), 15 << 20);
    }
}
