//! Whether a server passes any query at all: a proxy before Prometheus answers 403 to some queries, as a web application
//! firewall does, or to all of them, as with an expired token.

use super::shape_queries::MAX_BACKOFF;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// For how long a success says that the server passes queries.
const RECENT: Duration = Duration::from_secs(2);
/// The most batches without a success of which some queries are sent by themselves within [`MAX_BACKOFF`]: with an expired token
/// thousands fail together.
const MAX_TRIALS: u32 = 8;

/// What a server has answered lately.
pub struct Serving {
    lately: Mutex<Lately>,
    /// A trial has one.
    pub trials: Semaphore,
}

#[derive(Default)]
struct Lately {
    last_success: Option<Instant>,
    /// The trials since then, and since when they are counted.
    trials: u32,
    since: Option<Instant>,
}

impl Default for Serving {
    fn default() -> Self {
        Self { lately: Mutex::default(), trials: Semaphore::new(MAX_TRIALS as usize) }
    }
}

impl Serving {
    fn lately(&self) -> MutexGuard<'_, Lately> {
        self.lately.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A query succeeded.
    pub fn succeeded(&self, now: Instant) {
        *self.lately() = Lately { last_success: Some(now), ..Lately::default() };
    }

    /// Whether one did within the last two seconds.
    pub fn is_serving(&self, now: Instant) -> bool {
        let last = self.lately().last_success;
        last.is_some_and(|last| now.saturating_duration_since(last) <= RECENT)
    }

    /// Whether queries of a batch may be sent by themselves to find out.
    pub fn may_try(&self, now: Instant) -> bool {
        let mut lately = self.lately();
        if lately.since.is_none_or(|since| now.saturating_duration_since(since) >= MAX_BACKOFF) {
            (lately.trials, lately.since) = (0, Some(now));
        }
        let may = lately.trials < MAX_TRIALS;
        lately.trials += u32::from(may);
        may
    }
}
