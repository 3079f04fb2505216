//! How many bytes of answers are held at once, whoever asks for them.

use super::Error;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The bytes that all answers together may take: what has come of each, and the
/// samples that are made of it, for as long as somebody has them.
pub const ANSWERS: usize = 128 << 20;
/// The part of them that answers to users' own queries may take.
pub const USER_ANSWERS: usize = 32 << 20;
/// What a byte of an answer takes until it is read: itself with room to grow, and
/// then the samples beside it.
const TIMES: usize = 2;

/// Bytes for answers, shared by all clients of a process.
#[derive(Clone, Debug)]
pub struct Budget {
    all: Arc<Semaphore>,
    users: Arc<Semaphore>,
    /// The bytes of `all`.
    limit: usize,
}

impl Budget {
    /// [`ANSWERS`], or more where one answer may be so large that it needs more.
    pub fn for_answers_of(bytes: usize) -> Self {
        let all = ANSWERS.max(bytes.saturating_mul(TIMES)).min(Semaphore::MAX_PERMITS);
        let users = Arc::new(Semaphore::new(USER_ANSWERS));
        Self { all: Arc::new(Semaphore::new(all)), users, limit: all }
    }
}

/// Bytes that are held until this is dropped.
#[derive(Debug)]
pub struct Held {
    budget: Budget,
    all: Option<OwnedSemaphorePermit>,
    users: Option<OwnedSemaphorePermit>,
    is_user: bool,
}

impl Budget {
    /// Holds nothing yet, for an answer to a user's own query or another.
    pub fn begin(&self, is_user: bool) -> Held {
        Held { budget: self.clone(), all: None, users: None, is_user }
    }
}

impl Held {
    /// Takes room for so many more bytes of an answer. It does not wait: those
    /// that hold a part each would wait for one another.
    ///
    /// # Errors
    /// [`Error::Memory`] where there is none.
    pub fn take(&mut self, bytes: usize) -> Result<(), Error> {
        let full = |limit| Error::Memory { limit };
        if self.is_user {
            grow(&mut self.users, &self.budget.users, bytes).ok_or(full(USER_ANSWERS))?;
        }
        grow(&mut self.all, &self.budget.all, bytes).ok_or(full(self.budget.limit))
    }

    /// Gives back what is held beyond so many bytes.
    pub fn shrink(&mut self, bytes: usize) {
        for permit in [&mut self.all, &mut self.users].into_iter().flatten() {
            let beyond = permit.num_permits().saturating_sub(bytes);
            drop(permit.split(beyond));
        }
    }
}

fn grow(
    permit: &mut Option<OwnedSemaphorePermit>,
    from: &Arc<Semaphore>,
    bytes: usize,
) -> Option<()> {
    let wanted = u32::try_from(bytes.saturating_mul(TIMES)).ok()?;
    let more = from.clone().try_acquire_many_owned(wanted).ok()?;
    match permit {
        Some(permit) => permit.merge(more),
        none => *none = Some(more),
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_together_are_bounded_and_users_take_no_more_than_their_part() {
        let budget = Budget::for_answers_of(1 << 20);
        let mut user = budget.begin(true);
        user.take(USER_ANSWERS / TIMES).unwrap();
        assert_eq!(budget.begin(true).take(1), Err(Error::Memory { limit: USER_ANSWERS }));
        let mut other = budget.begin(false);
        other.take((ANSWERS - USER_ANSWERS) / TIMES).unwrap();
        assert!(budget.begin(false).take(1).is_err());
        user.shrink(100);
        assert!(budget.begin(true).take(1_000).is_ok());
        drop((user, other));
        assert!(budget.begin(false).take(ANSWERS / TIMES).is_ok());
    }
}
