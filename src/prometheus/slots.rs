//! How many requests run at once: fewer while the server can't keep up, more
//! again as it does. Without, what comes too late is asked again on top of what
//! still runs, and a server that was slow for a moment stays so.

use std::sync::{Mutex, PoisonError};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Room for requests.
#[derive(Debug)]
pub struct Slots {
    semaphore: Semaphore,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// How many requests may run at once.
    allowed: usize,
    /// How many permits there are, taken or not; more than `allowed` for a while.
    existing: usize,
    /// Answers in time since `allowed` changed.
    answers: usize,
}

/// Room for one request, until this is dropped.
#[derive(Debug)]
pub struct Slot<'a> {
    slots: &'a Slots,
    permit: Option<SemaphorePermit<'a>>,
}

/// The most requests at once.
const MOST: usize = 64;
/// The fewest; one that never ends must not stop all others.
const LEAST: usize = 4;

impl Default for Slots {
    fn default() -> Self {
        let state = State { allowed: MOST, existing: MOST, answers: 0 };
        Self { semaphore: Semaphore::new(MOST), state: Mutex::new(state) }
    }
}

impl Slots {
    /// Waits for room.
    pub async fn take(&self) -> Slot<'_> {
        let permit = self.semaphore.acquire().await.expect("it is never closed");
        Slot { slots: self, permit: Some(permit) }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        while state.existing > state.allowed
            && let Ok(idle) = self.semaphore.try_acquire()
        {
            idle.forget();
            state.existing -= 1;
        }
        if state.existing < state.allowed {
            self.semaphore.add_permits(state.allowed - state.existing);
            state.existing = state.allowed;
        }
    }
}

impl Slot<'_> {
    /// The request was answered in time: as many again as run at once, and one
    /// more may.
    pub fn answered(self) {
        self.slots.change(|state| {
            state.answers += 1;
            if state.answers >= state.allowed && state.allowed < MOST {
                (state.allowed, state.answers) = (state.allowed + 1, 0);
            }
        });
    }

    /// It was not, or the server said that it can't keep up: half as many may
    /// run. Tells whether they were the fewest already.
    pub fn overloaded(self) -> bool {
        let mut fewest = false;
        self.slots.change(|state| {
            fewest = state.allowed == LEAST;
            (state.allowed, state.answers) = ((state.allowed / 2).max(LEAST), 0);
        });
        fewest
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        let mut state = self.slots.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.existing > state.allowed {
            state.existing -= 1;
            permit.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn fewer_run_at_once_while_the_server_can_not_keep_up() {
        let slots = Slots::default();
        let mut taken = Vec::new();
        for _ in 0..MOST {
            taken.push(slots.take().await);
        }
        let fewest = taken.drain(..).filter_map(|slot| slot.overloaded().then_some(())).count();
        assert_eq!((fewest, slots.semaphore.available_permits()), (MOST - 4, LEAST));
        for _ in 0..LEAST {
            slots.take().await.answered();
        }
        assert_eq!(slots.semaphore.available_permits(), LEAST + 1);
        for _ in 0..MOST * MOST {
            slots.take().await.answered();
        }
        assert_eq!(slots.semaphore.available_permits(), MOST);
    }
}
