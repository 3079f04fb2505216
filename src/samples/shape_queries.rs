//! The queries of one shape: pending, in flight, cached and recent.

use super::caller::Caller;
use super::estimator::CardinalityEstimator;
use super::flight::Flight;
use crate::promql::shape::{Arguments, QueryShape};
use crate::quota::{ByteQuota, QuotaGuard};
use futures::future::{BoxFuture, Shared};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// The most batches of a shape in flight.
const MAX_BATCHES_IN_FLIGHT: usize = 4;
/// For how long a query that failed by itself is kept out of batches.
const ISOLATION: Duration = Duration::from_secs(300);
/// The longest backoff after Prometheus refused a query.
pub const MAX_REFUSAL_BACKOFF: Duration = Duration::from_secs(60);
/// The longest backoff after any other failure.
pub const MAX_BACKOFF: Duration = Duration::from_secs(8);

/// The queries of one shape.
pub struct ShapeQueries {
    /// What they have in common.
    pub shape: Arc<QueryShape>,
    state: Mutex<ShapeState>,
    /// Permits for batches in flight.
    pub batch_permits: Semaphore,
    /// The bytes of recent queries, which these are counted in.
    pub recent_quota: Arc<ByteQuota>,
    /// The bytes of the shape, if a user's own query made it.
    _guard: Option<QuotaGuard>,
}

/// A plan in the making, and the queries that it starts.
pub type PlanFuture = Shared<BoxFuture<'static, Arc<Vec<Flight>>>>;

/// What is known of the queries of one shape.
#[derive(Default)]
pub struct ShapeState {
    /// The cardinality of earlier results.
    pub estimator: CardinalityEstimator,
    /// The batches in flight or cached.
    pub batches: Vec<Flight>,
    /// The single queries in flight or cached.
    pub singles: HashMap<Arguments, Flight>,
    /// The queries for the next plan.
    pub pending: Option<(BTreeMap<Arguments, Pending>, PlanFuture)>,
    /// The queries whose plans are being made.
    pub planning: Vec<(Arc<BTreeMap<Arguments, Pending>>, PlanFuture)>,
    /// Recent queries, which may be repeated, and isolated ones.
    pub recent: HashMap<Arguments, RecentQuery>,
    /// Whether a single query has failed since the last success.
    pub has_suspects: bool,
    /// When the last successful response came.
    pub last_success: Option<Instant>,
    /// When a batch was last split because its result was partial.
    last_split: Option<Instant>,
    /// The failures since the last success.
    pub consecutive_failures: u32,
}

/// A query that waits for a plan.
pub struct Pending {
    /// The first caller.
    pub caller: Caller,
    /// Whether the query is kept out of batches.
    pub isolated: bool,
}

/// A query that was made recently.
pub struct RecentQuery {
    /// The first caller.
    pub caller: Caller,
    /// When it was last made.
    pub last_seen: Instant,
    /// When its cached result expires.
    pub fresh_until: Instant,
    /// How it failed, sent by itself.
    pub failure: Option<SingleFailure>,
}

/// How a query failed that was sent by itself.
#[derive(Clone, Copy)]
pub struct SingleFailure {
    /// When it failed last.
    pub last: Instant,
    /// The backoff.
    pub backoff: Duration,
    /// Whether the query is kept out of batches: Prometheus refused it, or answered others
    /// in the meantime, so that the fault is the query's own.
    pub isolated: bool,
}

impl RecentQuery {
    /// Whether the query is kept out of batches.
    pub fn is_isolated(&self) -> bool {
        self.failure.is_some_and(|failure| failure.isolated)
    }
}

impl ShapeQueries {
    /// No queries yet.
    pub fn new(
        shape: Arc<QueryShape>,
        recent_quota: Arc<ByteQuota>,
        guard: Option<QuotaGuard>,
    ) -> Self {
        let batch_permits = Semaphore::new(MAX_BATCHES_IN_FLIGHT);
        Self { shape, state: Mutex::default(), batch_permits, recent_quota, _guard: guard }
    }

    /// Locks the state.
    pub fn state(&self) -> MutexGuard<'_, ShapeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ShapeQueries {
    fn drop(&mut self) {
        let mut state = self.state();
        for (arguments, recent) in state.recent.drain() {
            self.recent_quota.release(&recent.caller.namespace, recent_bytes(&arguments));
        }
    }
}

impl ShapeState {
    /// Drops expired results.
    pub fn drop_expired(&mut self, max_age: Duration, now: Instant) {
        self.batches.retain(|flight| flight.is_fresh(max_age, now));
        self.singles.retain(|_, flight| flight.is_fresh(max_age, now));
    }

    /// Forgets old failures, and the queries that were not made for `idle`. An isolated query, or a single one in
    /// flight, is kept: it may still fail, and its failure must be remembered.
    pub fn forget_idle(&mut self, quota: &ByteQuota, idle: Duration, now: Instant) {
        let in_flight = |flight: &Flight| flight.outcome.peek().is_none();
        self.recent.retain(|arguments, recent| {
            recent.failure.take_if(|failure| now.duration_since(failure.last) > ISOLATION);
            let keep = now.duration_since(recent.last_seen) <= idle
                || recent.is_isolated()
                || self.singles.get(arguments).is_some_and(in_flight);
            if !keep {
                quota.release(&recent.caller.namespace, recent_bytes(arguments));
            }
            keep
        });
    }

    /// Records the success of a query that started then. Prometheus was serving, so that single
    /// queries that failed in the meantime are isolated.
    pub fn record_success(&mut self, started: Instant, now: Instant) {
        (self.consecutive_failures, self.last_success) = (0, Some(now));
        if std::mem::take(&mut self.has_suspects) {
            for failure in self.recent.values_mut().filter_map(|recent| recent.failure.as_mut()) {
                failure.isolated |= failure.last >= started;
            }
        }
    }

    /// Whether a batch with a partial result is split. If a store of Thanos is down, all results
    /// are partial: splitting that did not help is not repeated every evaluation.
    pub fn may_split_partial(&mut self, now: Instant) -> bool {
        let helped = |since: Instant| self.last_success.is_some_and(|at| at >= since);
        match self.last_split.map(|since| (since, now.duration_since(since))) {
            // The parts of one batch, and batches sent at the same time.
            Some((_, age)) if age <= MAX_BACKOFF => return true,
            Some((since, age)) if age <= MAX_REFUSAL_BACKOFF && !helped(since) => return false,
            _ => {}
        }
        self.last_split = Some(now);
        true
    }
}

/// The memory that remembering a query takes, in bytes.
pub fn recent_bytes(arguments: &Arguments) -> usize {
    let values = arguments.iter().flatten();
    let texts: usize = values.map(|value| size_of::<String>() + value.len()).sum();
    texts + size_of::<(Arguments, RecentQuery)>() + 64
}
