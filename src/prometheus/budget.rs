//! How many bytes of answers are held at once, whoever asks for them.

use super::{Error, Flow};
use crate::shares::Shares;
use std::sync::Arc;

/// The bytes that all answers together may take: what has come of each, and the
/// samples that are made of it, for as long as somebody has them.
pub const ANSWERS: usize = 128 << 20;
/// The part of them that answers to users' own queries may take. No namespace takes
/// more of it than it leaves free.
pub const USER_ANSWERS: usize = 32 << 20;
/// What a byte of an answer takes until it is read: itself with room to grow, and
/// then the samples beside it. Samples that take more are counted as they are read.
const TIMES: usize = 2;

/// Bytes for answers, shared by all clients of a process.
#[derive(Clone, Debug)]
pub struct Budget {
    all: Arc<Shares>,
    users: Arc<Shares>,
    /// Whose bytes all of `all` are.
    nobody: Arc<str>,
}

impl Budget {
    /// [`ANSWERS`], or more where one answer may be so large that it needs more.
    pub fn for_answers_of(bytes: usize) -> Self {
        let all = ANSWERS.max(bytes.saturating_mul(TIMES));
        let users = Arc::new(Shares::new(USER_ANSWERS));
        Self { all: Arc::new(Shares::new(all)), users, nobody: "".into() }
    }
}

/// Bytes that are held until this is dropped.
#[derive(Debug)]
pub struct Held {
    budget: Budget,
    /// Whose own query it is an answer to.
    user: Option<Arc<str>>,
    bytes: usize,
}

impl Budget {
    /// Holds nothing yet, for an answer that is counted among a flow.
    pub fn begin(&self, flow: &Flow) -> Held {
        let user = match flow {
            Flow::User(namespace) => Some(namespace.clone()),
            Flow::Shared | Flow::Namespace(_) => None,
        };
        Held { budget: self.clone(), user, bytes: 0 }
    }
}

impl Held {
    /// Takes room for so many more bytes of an answer. It does not wait: those
    /// that hold a part each would wait for one another.
    ///
    /// # Errors
    /// [`Error::Memory`] where there is none.
    pub fn take(&mut self, bytes: usize) -> Result<(), Error> {
        self.grow(bytes.saturating_mul(TIMES))
    }

    /// Takes so many bytes more, as they are.
    ///
    /// # Errors
    /// [`Error::Memory`] where there are none.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Error> {
        let Budget { all, users, nobody } = &self.budget;
        let full = |of: &Shares| Err(Error::Memory { limit: of.limit() });
        if let Some(user) = &self.user
            && !users.take(user, bytes)
        {
            return full(users);
        }
        if !all.take(nobody, bytes) {
            if let Some(user) = &self.user {
                users.give(user, bytes);
            }
            return full(all);
        }
        self.bytes += bytes;
        Ok(())
    }

    /// The bytes that are held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Holds so many bytes from now on.
    ///
    /// # Errors
    /// [`Error::Memory`] where those are more, and there are none.
    pub fn resize(&mut self, bytes: usize) -> Result<(), Error> {
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.grow(more),
            None => {
                self.give(self.bytes - bytes);
                Ok(())
            }
        }
    }

    fn give(&mut self, bytes: usize) {
        self.budget.all.give(&self.budget.nobody, bytes);
        if let Some(user) = &self.user {
            self.budget.users.give(user, bytes);
        }
        self.bytes -= bytes;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> Flow {
        Flow::User(name.into())
    }

    #[test]
    fn answers_together_are_bounded_and_users_take_no_more_than_their_part() {
        let budget = Budget::for_answers_of(1 << 20);
        let mut users: Vec<Held> = Vec::new();
        for n in 0..64 {
            let mut held = budget.begin(&user(&n.to_string()));
            while held.take(1 << 10).is_ok() {}
            users.push(held);
        }
        let taken: usize = users.iter().map(Held::bytes).sum();
        assert!((USER_ANSWERS - (64 << 10)..=USER_ANSWERS).contains(&taken), "{taken}");
        let mut other = budget.begin(&Flow::Shared);
        other.take((ANSWERS - taken) / TIMES).unwrap();
        let full = Err(Error::Memory { limit: ANSWERS });
        assert_eq!(budget.begin(&Flow::Shared).take(1), full);
        drop(users);
        assert!(budget.begin(&user("a")).take(1_000).is_ok());
        drop(other);
        assert!(budget.begin(&Flow::Namespace("a".into())).take(ANSWERS / TIMES).is_ok());
    }

    #[test]
    fn one_namespaces_answers_leave_room_for_those_of_others() {
        let budget = Budget::for_answers_of(1 << 20);
        // As large as one answer may be, and kept.
        let mut kept = budget.begin(&user("greedy"));
        kept.take(8 << 20).unwrap();
        assert!(budget.begin(&user("greedy")).take(1).is_err());
        assert!(budget.begin(&user("good")).take(4 << 20).is_ok());
        kept.resize(100).unwrap();
        assert!(budget.begin(&user("greedy")).take(7 << 20).is_ok());
        // What turns out to be larger takes what it is.
        kept.resize(15 << 20).unwrap();
        assert!(kept.resize(17 << 20).is_err());
        assert_eq!(kept.bytes(), 15 << 20);
    }
}
