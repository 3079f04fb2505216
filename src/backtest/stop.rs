//! Ends runs that nobody waits for any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends the runs of a [`Candidate`](super::Candidate) from another thread. Clones end the same runs.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Ends the runs at their next decision, and all later ones at their first.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Ends the runs when what it returns is dropped, as with a task that computes elsewhere.
    pub fn on_drop(&self) -> StopOnDrop {
        StopOnDrop(self.clone())
    }

    /// # Errors
    /// If the runs are ended.
    pub(super) fn check(&self) -> Result<(), String> {
        match self.0.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err("it was stopped".to_owned()),
        }
    }
}

/// Ends the runs of a [`Stop`] when it is dropped.
#[derive(Debug)]
#[must_use]
pub struct StopOnDrop(Stop);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}
