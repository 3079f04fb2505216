//! Whether a server passes any query at all: a proxy before Prometheus answers 403 to some queries, as a web application
//! firewall does, or to all of them, as with an expired token.

use super::shape_queries::MAX_BACKOFF;
use crate::prometheus::Flow;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// The most trials of one flow within [`MAX_BACKOFF`] without a success, and of all flows: with an expired token, thousands of
/// batches fail together.
const MAX_TRIALS_OF_FLOW: u32 = 8;
const MAX_TRIALS: u32 = 64;
/// The most concurrent trials. Other batches wait for them, as the success of one trial is enough.
const MAX_CONCURRENT_TRIALS: usize = 8;

/// What a server has answered lately, and the trials: each sends queries of a batch that failed by themselves.
pub struct Serving {
    seats: Semaphore,
    lately: Mutex<Lately>,
}

#[derive(Default)]
struct Lately {
    /// When the query was sent that succeeded, the latest of all.
    last_success: Option<Instant>,
    /// When the first of the counted trials began.
    first_trial: Option<Instant>,
    /// The trials since the last success, by the flow that each is charged to.
    trials: HashMap<Flow, u32>,
}

impl Default for Serving {
    fn default() -> Self {
        Self { seats: Semaphore::new(MAX_CONCURRENT_TRIALS), lately: Mutex::default() }
    }
}

impl Serving {
    fn lately(&self) -> MutexGuard<'_, Lately> {
        self.lately.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the success of a query that was sent then.
    pub fn served(&self, sent: Instant) {
        let mut lately = self.lately();
        if lately.last_success < Some(sent) {
            *lately = Lately { last_success: Some(sent), ..Lately::default() };
        }
    }

    /// Whether a query succeeded that was sent at that time or later. The token of an earlier query may have expired since.
    pub fn served_since(&self, since: Instant) -> bool {
        self.lately().last_success.is_some_and(|last| last >= since)
    }

    /// Begins a trial, which ends when the permit is dropped. Returns none if the server has served since that time, or if no
    /// flow has a trial left.
    pub async fn begin_trial(&self, flows: &[Flow], since: Instant) -> Option<SemaphorePermit<'_>> {
        let seat = self.seats.acquire().await.expect("the semaphore is never closed");
        (!self.served_since(since) && self.reserve_trial(flows, Instant::now())).then_some(seat)
    }

    /// Counts a trial of the first flow that has one left. Returns whether there is such a flow.
    fn reserve_trial(&self, flows: &[Flow], now: Instant) -> bool {
        let mut lately = self.lately();
        if lately.first_trial.is_none_or(|at| now.saturating_duration_since(at) >= MAX_BACKOFF) {
            lately.trials.clear();
            lately.first_trial = Some(now);
        }
        let trials = &mut lately.trials;
        if trials.values().sum::<u32>() >= MAX_TRIALS {
            return false;
        }
        let has_one_left =
            |flow: &&Flow| trials.get(flow).is_none_or(|count| *count < MAX_TRIALS_OF_FLOW);
        let Some(flow) = flows.iter().find(has_one_left) else { return false };
        *trials.entry(flow.clone()).or_default() += 1;
        true
    }
}
