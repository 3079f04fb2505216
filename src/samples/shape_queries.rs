//! The queries of one shape: pending, in flight, cached and recent.

use super::caller::Caller;
use super::estimator::CardinalityEstimator;
use super::flight::Flight;
use super::recent_quota::RecentQuota;
use crate::promql::shape::{Arguments, QueryShape};
use crate::quota::QuotaGuard;
use futures::future::{BoxFuture, Shared};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// The most batches of a shape in flight.
const MAX_BATCHES_IN_FLIGHT: usize = 4;
/// For how long a query that failed unbatched is kept out of batches.
const ISOLATION: Duration = Duration::from_secs(300);
/// The longest backoff after Prometheus refused a query.
pub const MAX_REFUSAL_BACKOFF: Duration = Duration::from_secs(60);
/// The longest backoff after any other failure.
pub const MAX_BACKOFF: Duration = Duration::from_secs(8);

/// The queries of one shape.
pub struct ShapeQueries {
    /// The shape.
    pub shape: Arc<QueryShape>,
    state: Mutex<ShapeState>,
    /// Permits for batches in flight.
    pub batch_permits: Semaphore,
    /// The bytes of recent queries, which these are counted in.
    pub recent_quota: Arc<RecentQuota>,
    retention: Retention,
}

/// How long the queries of a shape are kept.
pub enum Retention {
    /// In the cache of shapes.
    Cached,
    /// In the cache of shapes. A user's own query made the shape, and has these bytes of the users'
    /// part.
    CachedForUser {
        /// The bytes, released when the cache evicts the shape.
        _guard: QuotaGuard,
    },
    /// The cache had no room: only as long as a caller or a flight uses them.
    Uncached(Arc<UncachedShapes>),
}

/// The shapes in use that found no room in the cache. Callers at the same time share them.
pub type UncachedShapes = Mutex<HashMap<Arc<QueryShape>, Weak<ShapeQueries>>>;

/// A plan that is being computed, and the flights that it starts.
pub type PlanFuture = Shared<BoxFuture<'static, Arc<Vec<Flight>>>>;

/// The state of the queries of one shape.
#[derive(Default)]
pub struct ShapeState {
    /// The cardinality of earlier results.
    pub estimator: CardinalityEstimator,
    /// The batches in flight or cached.
    pub batches: Vec<Flight>,
    /// The single queries in flight or cached.
    pub singles: HashMap<Arguments, Flight>,
    /// The cached results of single queries that were sent again before these expired.
    pub earlier_singles: HashMap<Arguments, Flight>,
    /// The queries for the next plan.
    pub pending: Option<(BTreeMap<Arguments, PendingQuery>, PlanFuture)>,
    /// The queries whose plans are being computed.
    pub planning: Vec<(Arc<BTreeMap<Arguments, PendingQuery>>, PlanFuture)>,
    /// Recent queries, which may be repeated, and isolated ones.
    pub recent: HashMap<Arguments, RecentQuery>,
    /// Whether a single query that is not isolated has failed since the last success.
    pub failed_since_success: bool,
    /// When the last successful response was received.
    pub last_success: Option<Instant>,
    /// When a batch was last split because its result was partial, if not all of its queries
    /// are remembered as recent.
    last_split: Option<Instant>,
    /// When expired results were last dropped.
    dropped: Option<Instant>,
    /// When idle queries were last forgotten.
    forgotten: Option<Instant>,
    /// The failures since the last success.
    pub consecutive_failures: u32,
    /// How long the queries of the last plan took.
    pub took: Duration,
}

/// The flight whose result a new caller of a query gets.
pub struct Known {
    /// The newest with a result, or else the first that may have one.
    pub flight: Flight,
    /// When the last of the flights that cover the query expires.
    pub fresh_until: Instant,
    /// Whether one of them is in flight.
    pub is_repeated: bool,
}

/// A query that waits for a plan.
pub struct PendingQuery {
    /// The first caller.
    pub caller: Caller,
    /// Whether the query is kept out of batches.
    pub isolated: bool,
}

/// A query that was made recently.
pub struct RecentQuery {
    /// The first caller.
    pub caller: Caller,
    /// When it was last made, and by a client of the API.
    pub last_seen: Instant,
    pub last_client: Option<Instant>,
    /// When its cached result expires.
    pub fresh_until: Instant,
    /// How it failed when it was not batched.
    pub failure: Option<SingleFailure>,
}

/// The failure of a query that was not batched.
#[derive(Clone, Copy)]
pub struct SingleFailure {
    /// When it failed last.
    pub last: Instant,
    /// The backoff.
    pub backoff: Duration,
    /// Whether the query is kept out of batches: Prometheus refused it, or other queries succeeded
    /// in the meantime, so that this query is at fault.
    pub isolated: bool,
    /// Whether its result was partial.
    pub partial: bool,
}

impl RecentQuery {
    /// Whether the query is kept out of batches.
    pub fn is_isolated(&self) -> bool {
        self.failure.is_some_and(|failure| failure.isolated)
    }

    /// Whether the query's unbatched result was partial within the last minute.
    fn was_partial(&self, now: Instant) -> bool {
        let is_new =
            |failure: SingleFailure| now.duration_since(failure.last) <= MAX_REFUSAL_BACKOFF;
        self.failure.is_some_and(|failure| failure.partial && is_new(failure))
    }
}

impl ShapeQueries {
    /// No queries yet.
    pub fn new(
        shape: Arc<QueryShape>,
        recent_quota: Arc<RecentQuota>,
        retention: Retention,
    ) -> Self {
        let batch_permits = Semaphore::new(MAX_BATCHES_IN_FLIGHT);
        Self { shape, state: Mutex::default(), batch_permits, recent_quota, retention }
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
            self.recent_quota.release(&recent.caller, recent_bytes(&arguments));
        }
        if let Retention::Uncached(uncached) = &self.retention {
            let mut uncached = uncached.lock().unwrap_or_else(PoisonError::into_inner);
            // A later caller may have replaced it by now.
            if uncached.get(&self.shape).is_some_and(|queries| queries.strong_count() == 0) {
                uncached.remove(&self.shape);
            }
        }
    }
}

impl ShapeState {
    /// The flight whose result a new caller of a query gets now, if any covers it.
    pub fn known(&self, arguments: &Arguments, max_age: Duration, now: Instant) -> Option<Known> {
        let newest = |flight: &Flight| flight.table().map(|_| flight.expires(max_age));
        let singles = [self.singles.get(arguments), self.earlier_singles.get(arguments)];
        let mut known: Option<Known> = None;
        for flight in
            singles.into_iter().flatten().chain(&self.batches).filter(|flight| {
                flight.is_fresh(max_age, now) && flight.coverage.contains(arguments)
            })
        {
            let known = known.get_or_insert_with(|| Known {
                flight: flight.clone(),
                fresh_until: now,
                is_repeated: false,
            });
            if newest(flight) > newest(&known.flight) {
                known.flight = flight.clone();
            }
            known.fresh_until = known.fresh_until.max(flight.expires(max_age));
            known.is_repeated |= flight.outcome.peek().is_none();
        }
        known
    }

    /// How long before it expires a result is asked for anew: twice as long as the last one took, so that
    /// the new one is there by then.
    pub fn lead(&self, max_age: Duration) -> Duration {
        (self.took * 2).min(max_age / 2)
    }

    /// Drops expired results, unless that was done after this time: there may be thousands of results, each of which
    /// asks for it.
    pub fn drop_expired(&mut self, after: Instant, max_age: Duration, now: Instant) {
        if is_done_after(&mut self.dropped, after, now) {
            return;
        }
        self.batches.retain(|flight| flight.is_fresh(max_age, now));
        for singles in [&mut self.singles, &mut self.earlier_singles] {
            singles.retain(|_, flight| flight.is_fresh(max_age, now));
        }
    }

    /// [`forget_idle`](Self::forget_idle), unless that was done after this time.
    pub fn forget_idle_after(
        &mut self,
        after: Instant,
        quota: &RecentQuota,
        idle: Duration,
        now: Instant,
    ) {
        if !is_done_after(&mut self.forgotten, after, now) {
            self.forget_idle(quota, idle, now);
        }
    }

    /// Forgets old failures, and the queries that were not made for `idle`. A query that is kept out
    /// of others' batches, or a single one in flight, is kept: it may still fail, and its failure
    /// must be remembered.
    pub fn forget_idle(&mut self, quota: &RecentQuota, idle: Duration, now: Instant) {
        let in_flight = |flight: &Flight| flight.outcome.peek().is_none();
        self.recent.retain(|arguments, recent| {
            recent.failure.take_if(|failure| now.duration_since(failure.last) > ISOLATION);
            let keep = now.duration_since(recent.last_seen) <= idle
                || recent.is_isolated()
                || recent.was_partial(now)
                || self.singles.get(arguments).is_some_and(in_flight);
            if !keep {
                quota.release(&recent.caller, recent_bytes(arguments));
            }
            keep
        });
    }

    /// Records the success of a batch that started then. Prometheus was serving, so that single
    /// queries that failed in the meantime are isolated. Earlier failures of the queries of the batch
    /// are forgotten.
    pub fn record_success(&mut self, batch: &[Arguments], started: Instant, now: Instant) {
        let is_past = |failure: &mut SingleFailure| !failure.isolated && failure.last < started;
        let mut failures = self.recent.values_mut().filter_map(|recent| recent.failure.as_mut());
        if failures.any(is_past) {
            for arguments in batch {
                if let Some(known) = self.recent.get_mut(arguments) {
                    known.failure.take_if(is_past);
                }
            }
        }
        (self.consecutive_failures, self.last_success) = (0, Some(now));
        if std::mem::take(&mut self.failed_since_success) {
            for failure in self.recent.values_mut().filter_map(|recent| recent.failure.as_mut()) {
                failure.isolated |= failure.last >= started;
            }
        }
    }

    /// Whether a query's unbatched result was partial within the last minute, and no query succeeded
    /// since. If a store of Thanos is down, all results are partial: a batch is not split in every
    /// evaluation if that does not help. A batch of only such queries is not split.
    fn is_known_partial(&self, arguments: &Arguments, now: Instant) -> bool {
        let no_success_since = |since: Instant| self.last_success.is_none_or(|at| at < since);
        let Some(known) = self.recent.get(arguments) else {
            // The parts of one batch, and batches sent at the same time, come within `MAX_BACKOFF`.
            let between = |age: Duration| age > MAX_BACKOFF && age <= MAX_REFUSAL_BACKOFF;
            let split =
                |since: Instant| between(now.duration_since(since)) && no_success_since(since);
            return self.last_split.is_some_and(split);
        };
        known.was_partial(now)
            && known.failure.is_some_and(|failure| no_success_since(failure.last))
    }

    /// The parts of a batch with a partial result: the queries that are known to be partial, and the
    /// others. Halves if no query is known to be; none, so that the batch is not split, if all are.
    pub fn split_partial(
        &mut self,
        batch: &[Arguments],
        now: Instant,
    ) -> Option<Vec<Vec<Arguments>>> {
        let (partial, others): (Vec<Arguments>, Vec<Arguments>) =
            batch.iter().cloned().partition(|arguments| self.is_known_partial(arguments, now));
        if others.is_empty() {
            return None;
        }
        let is_old = |since: Instant| now.duration_since(since) > MAX_BACKOFF;
        let all_recent = others.iter().all(|arguments| self.recent.contains_key(arguments));
        if !all_recent && self.last_split.is_none_or(is_old) {
            self.last_split = Some(now);
        }
        Some(if partial.is_empty() { halves(batch) } else { vec![partial, others] })
    }
}

/// Whether something was done after a time. If not, it is done now.
fn is_done_after(done: &mut Option<Instant>, after: Instant, now: Instant) -> bool {
    let is_done = done.is_some_and(|at| at > after);
    if !is_done {
        *done = Some(now);
    }
    is_done
}

/// The two halves of a batch, or the query of a batch of one.
pub fn halves(batch: &[Arguments]) -> Vec<Vec<Arguments>> {
    batch.chunks(batch.len().div_ceil(2)).map(<[Arguments]>::to_vec).collect()
}

/// The memory of a recent query, in bytes.
pub fn recent_bytes(arguments: &Arguments) -> usize {
    let values = arguments.iter().flatten();
    let texts: usize = values.map(|value| size_of::<String>() + value.len()).sum();
    texts + size_of::<(Arguments, RecentQuery)>() + 64
}
