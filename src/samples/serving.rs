//! Whether a server passes any query at all: a proxy before Prometheus answers 403 to some queries, as a web application
//! firewall does, or to all of them, as with an expired token.

use super::shape_queries::MAX_BACKOFF;
use crate::prometheus::Flow;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// The most trials of one flow within [`MAX_BACKOFF`] and without a success, and of all: with an expired token, thousands of
/// batches fail together.
const MAX_TRIALS_OF_ONE: u32 = 8;
const MAX_TRIALS: u32 = 64;
/// The most at the same time. Others wait: one success is for all.
const TRIALS_AT_ONCE: usize = 8;

/// What a server has answered lately, and the trials: queries of a batch that failed, sent by themselves.
pub struct Serving {
    /// Each trial takes one.
    pub seats: Semaphore,
    lately: Mutex<Lately>,
}

#[derive(Default)]
struct Lately {
    /// When the last of the queries that have succeeded was sent.
    last_success: Option<Instant>,
    /// The trials without a success, and since when they are counted.
    since: Option<Instant>,
    trials: u32,
    by_flow: HashMap<Flow, u32>,
}

impl Default for Serving {
    fn default() -> Self {
        Self { seats: Semaphore::new(TRIALS_AT_ONCE), lately: Mutex::default() }
    }
}

impl Serving {
    fn lately(&self) -> MutexGuard<'_, Lately> {
        self.lately.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A query that was sent then has succeeded.
    pub fn succeeded(&self, sent: Instant) {
        let mut lately = self.lately();
        if lately.last_success < Some(sent) {
            *lately = Lately { last_success: Some(sent), ..Lately::default() };
        }
    }

    /// Whether one has that was sent since then: one from before may still have had a valid token.
    pub fn has_served_since(&self, since: Instant) -> bool {
        self.lately().last_success.is_some_and(|last| last >= since)
    }

    /// Whether there may be another trial, charged to one of these flows.
    pub fn may_try(&self, flows: &[Flow], now: Instant) -> bool {
        let mut lately = self.lately();
        if lately.since.is_none_or(|since| now.saturating_duration_since(since) >= MAX_BACKOFF) {
            let last_success = lately.last_success;
            *lately = Lately { last_success, since: Some(now), ..Lately::default() };
        }
        let of = |flow: &Flow| lately.by_flow.get(flow).copied().unwrap_or_default();
        let free = flows.iter().find(|flow| of(flow) < MAX_TRIALS_OF_ONE).cloned();
        let Some(flow) = free.filter(|_| lately.trials < MAX_TRIALS) else { return false };
        lately.trials += 1;
        *lately.by_flow.entry(flow).or_default() += 1;
        true
    }
}
