//! The coalescer: single-flight for queries of one shape, with batches and a TTL cache.
//!
//! Queries of one shape that are made within [`BATCH_DELAY`] are planned together (see
//! [`plan`](crate::promql::plan)). A caller whose query a flight covers waits for that flight, or gets its cached result.
//! Where a client of the API reads a result that is about to expire, the query is planned anew meanwhile, with
//! those of its shape that were made recently: the next client does not wait. What nobody reads expires.

use super::caller::{Caller, Reader, flows};
use super::flight::{Flight, TableResult};
use super::recent_quota::RecentQuota;
use super::shape_queries::{
    Known, PendingQuery, PlanFuture, RecentQuery, Retention, ShapeQueries, ShapeState,
    UncachedShapes, recent_bytes,
};
use crate::cache;
use crate::prometheus::{Client, Error, Flow};
use crate::promql::cost::Limits;
use crate::promql::plan::{PlanInput, plan, single};
use crate::promql::shape::{Arguments, QueryShape, ShapedQuery};
use crate::quota::ByteQuota;
use crate::supervise::Spawner;
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// Sends one query, charged to one of these flows.
pub type SendQuery =
    Arc<dyn Fn(String, Vec<Flow>) -> BoxFuture<'static, TableResult> + Send + Sync>;

/// How long a query waits for others of its shape before they are planned.
pub const BATCH_DELAY: Duration = Duration::from_millis(1);
/// How long a shape without queries is cached.
const SHAPE_IDLE: Duration = Duration::from_secs(600);
/// The bytes of shapes.
pub const SHAPE_BYTES: usize = 16 << 20;
/// The part of them for shapes of users' own queries, shared by a [`ByteQuota`].
const USER_SHAPE_BYTES: usize = SHAPE_BYTES / 2;
/// The largest result that is asked for ahead of its expiry: until then the memory budget of responses holds
/// it twice.
const AHEAD_BYTES: usize = 16 << 20;
/// The same of a user's own query, whose namespace has a budget of its own.
const USER_AHEAD_BYTES: usize = 1 << 20;
/// The memory of a shape besides its text.
const SHAPE_OVERHEAD: usize = size_of::<ShapeQueries>() + 512;

/// Coalesces the queries to one server.
pub struct Coalescer {
    pub(super) max_age: Duration,
    pub(super) send: SendQuery,
    shapes: moka::sync::Cache<Arc<QueryShape>, Arc<ShapeQueries>>,
    /// The bytes of the shapes of users' own queries, by namespace.
    shape_quota: Arc<ByteQuota>,
    /// The shapes of users' own queries in use that found no room in the cache.
    uncached: Arc<UncachedShapes>,
    /// The bytes of recent queries.
    recent_quota: Arc<RecentQuota>,
    pub(super) spawner: Spawner,
    /// What counts the queries.
    pub(super) client: Option<Client>,
}

/// The provider of a query's result.
enum Provider {
    Flight(Flight),
    Plan(PlanFuture),
}

impl Coalescer {
    /// A coalescer whose results are cached for `max_age`.
    pub fn new(max_age: Duration, send: SendQuery, spawner: Spawner) -> Self {
        Self::with_quota(max_age, send, Arc::new(RecentQuota::new()), spawner)
    }

    /// A coalescer for another server, which shares the bytes of recent queries.
    pub fn sharing_quota(&self, max_age: Duration, send: SendQuery) -> Self {
        Self::with_quota(max_age, send, self.recent_quota.clone(), self.spawner.clone())
    }

    /// A coalescer without a server, for results that came from elsewhere.
    pub fn disconnected() -> Arc<Self> {
        let error = || Error::Settings("no Prometheus client".to_owned());
        let send: SendQuery = Arc::new(move |_, _| std::future::ready(Err(error().into())).boxed());
        Arc::new(Self::new(Duration::ZERO, send, Spawner::default()))
    }

    fn with_quota(
        max_age: Duration,
        send: SendQuery,
        recent_quota: Arc<RecentQuota>,
        spawner: Spawner,
    ) -> Self {
        let shapes = moka::sync::Cache::builder()
            .max_capacity(SHAPE_BYTES as u64)
            .weigher(|shape: &Arc<QueryShape>, _: &Arc<ShapeQueries>| {
                cache::weight(SHAPE_OVERHEAD + shape.bytes())
            })
            .time_to_idle(SHAPE_IDLE)
            .build();
        let shape_quota = Arc::new(ByteQuota::new(USER_SHAPE_BYTES));
        let uncached = Arc::default();
        let client = None;
        Self { max_age, send, shapes, shape_quota, uncached, recent_quota, spawner, client }
    }

    /// The same, whose queries this client counts.
    #[must_use]
    pub fn counted(self, client: Client) -> Self {
        Self { client: Some(client), ..self }
    }

    fn new_queries(&self, shape: &Arc<QueryShape>, retention: Retention) -> Arc<ShapeQueries> {
        Arc::new(ShapeQueries::new(shape.clone(), self.recent_quota.clone(), retention))
    }

    /// The cached queries of a shape. None if it is the shape of a user's own query for which the
    /// namespace's quota has no room: it must not evict another.
    fn cached_queries_of(
        &self,
        shape: &Arc<QueryShape>,
        caller: &Caller,
    ) -> Option<Arc<ShapeQueries>> {
        if let Some(known) = self.shapes.get(shape) {
            return Some(known);
        }
        let retention = match caller.user {
            true => {
                let bytes = cache::weight(SHAPE_OVERHEAD + shape.bytes()) as usize;
                let guard = self.shape_quota.try_guard(&caller.namespace, bytes)?;
                Retention::CachedForUser { _guard: guard }
            }
            false => Retention::Cached,
        };
        Some(self.shapes.get_with_by_ref(shape, || self.new_queries(shape, retention)))
    }

    /// The queries of a shape, cached or not.
    fn queries_of(&self, shape: &Arc<QueryShape>, caller: &Caller) -> Arc<ShapeQueries> {
        if let Some(cached) = self.cached_queries_of(shape, caller) {
            return cached;
        }
        let mut uncached = self.uncached.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = uncached.get(shape).and_then(Weak::upgrade) {
            return known;
        }
        let new = self.new_queries(shape, Retention::Uncached(self.uncached.clone()));
        uncached.insert(shape.clone(), Arc::downgrade(&new));
        new
    }

    /// The result that has the series of a query: cached, or of a flight, or of a new one.
    pub async fn get(self: &Arc<Self>, query: &ShapedQuery, caller: &Caller) -> TableResult {
        let queries = self.queries_of(&query.shape, caller);
        let arguments = &query.arguments;
        let provider =
            self.request(&queries, &mut queries.state(), arguments, caller, Instant::now());
        let planned;
        let flights = match &provider {
            Provider::Flight(flight) => std::slice::from_ref(flight),
            Provider::Plan(plan) => {
                planned = plan.clone().await;
                planned.as_slice()
            }
        };
        for flight in flights.iter().filter(|flight| flight.coverage.contains(arguments)) {
            if let Some(result) = flight.clone().result(arguments).await {
                return result;
            }
        }
        // The flight that covers the query failed, and was not planned for it.
        let flight =
            self.send_single(&queries, &mut queries.state(), arguments, caller, Instant::now());
        let fault =
            || Err(Error::InvalidResponse("the batch had no result for it".to_owned()).into());
        flight.result(arguments).await.unwrap_or_else(fault)
    }

    /// Starts queries of one shape together, without waiting for results.
    pub fn prefetch<'a>(
        self: &Arc<Self>,
        shape: &Arc<QueryShape>,
        all: impl Iterator<Item = (&'a Arguments, &'a Caller)> + Clone,
        now: Instant,
    ) {
        let Some((_, first)) = all.clone().next() else { return };
        // A caller would not find the flights of an uncached shape.
        let Some(queries) = self.cached_queries_of(shape, first) else { return };
        // Locked until all are pending: nothing is planned before.
        let mut state = queries.state();
        for (arguments, caller) in all {
            let _ = self.request(&queries, &mut state, arguments, caller, now);
        }
    }

    /// The bytes of a namespace's recent queries.
    #[cfg(test)]
    pub(super) fn recent_bytes_of(&self, namespace: &str) -> usize {
        self.recent_quota.used_by(namespace)
    }

    /// Looks up the shape of a query, as [`get`](Self::get) does.
    #[cfg(test)]
    pub(super) fn touch(&self, query: &ShapedQuery, caller: &Caller) {
        drop(self.queries_of(&query.shape, caller));
        self.shapes.run_pending_tasks();
    }

    /// The provider of a query's result. If there is none yet, the query becomes pending.
    fn request(
        self: &Arc<Self>,
        queries: &Arc<ShapeQueries>,
        state: &mut ShapeState,
        arguments: &Arguments,
        caller: &Caller,
        now: Instant,
    ) -> Provider {
        let known = state.known(arguments, self.max_age, now);
        let fresh_until = known.as_ref().map_or(now, |known| known.fresh_until);
        let isolated = self.record_recent(state, arguments, caller, now, fresh_until);
        let Some(Known { flight, fresh_until, is_repeated }) = known else {
            return Provider::Plan(self.pend(queries, state, arguments, caller, isolated));
        };
        // What is planned just now may cover it.
        let is_free = !isolated && !is_repeated && state.planning.is_empty();
        if caller.reader == Reader::Client
            && is_free
            && fresh_until <= now + state.lead(self.max_age)
            && is_small_ahead(&flight, caller)
        {
            drop(self.pend(queries, state, arguments, caller, isolated));
        }
        Provider::Flight(flight)
    }

    /// The plan that a query is in. If there is none yet, the query becomes pending.
    fn pend(
        self: &Arc<Self>,
        queries: &Arc<ShapeQueries>,
        state: &mut ShapeState,
        arguments: &Arguments,
        caller: &Caller,
        isolated: bool,
    ) -> PlanFuture {
        let mut planning = state.planning.iter();
        if let Some((_, plan)) = planning.find(|(pending, _)| pending.contains_key(arguments)) {
            return plan.clone();
        }
        let new = PendingQuery { caller: caller.clone(), isolated };
        if let Some((pending, plan)) = &mut state.pending {
            pending.insert(arguments.clone(), new);
            return plan.clone();
        }
        let (coalescer, of_shape) = (self.clone(), queries.clone());
        let plan = async move {
            tokio::time::sleep(BATCH_DELAY).await;
            coalescer.start_pending(&of_shape)
        };
        let plan = plan.boxed().shared();
        state.pending = Some((BTreeMap::from([(arguments.clone(), new)]), plan.clone()));
        // A separate task, as the caller may stop waiting.
        let (of_task, of_shape, begun) = (plan.clone(), queries.clone(), Instant::now());
        self.spawner.spawn(async move {
            let flights = of_task.await;
            join_all(flights.iter().map(|flight| flight.outcome.clone())).await;
            of_shape.state().took = begun.elapsed();
        });
        plan
    }

    /// Records a query as recent if the quota has room. Returns whether it is isolated: a user's own
    /// query without room is, as its failure could not be recorded and would fail the batch each
    /// time. The queries of templates and rules are batched all the same, as there may be thousands
    /// of them.
    fn record_recent(
        &self,
        state: &mut ShapeState,
        arguments: &Arguments,
        caller: &Caller,
        last_seen: Instant,
        fresh_until: Instant,
    ) -> bool {
        let last_client = (caller.reader == Reader::Client).then_some(last_seen);
        if let Some(known) = state.recent.get_mut(arguments) {
            (known.last_seen, known.fresh_until) = (last_seen, fresh_until);
            known.last_client = last_client.or(known.last_client);
            return known.is_isolated();
        }
        let room = self.recent_quota.try_reserve(caller, recent_bytes(arguments));
        if room {
            let caller = caller.clone();
            let recent = RecentQuery { caller, last_seen, last_client, fresh_until, failure: None };
            state.recent.insert(arguments.clone(), recent);
        }
        !room && caller.user
    }

    /// Plans the pending queries and starts them. Planning takes milliseconds for many queries with many values, so
    /// that the state is not locked meanwhile.
    fn start_pending(self: &Arc<Self>, queries: &Arc<ShapeQueries>) -> Arc<Vec<Flight>> {
        let (pending, expected, recent, estimates) = {
            let mut state = queries.state();
            let Some((pending, future)) = state.pending.take() else { return Arc::default() };
            let (pending, now) = (Arc::new(pending), Instant::now());
            state.planning.push((pending.clone(), future));
            let idle = recent_for(self.max_age);
            state.forget_idle(&self.recent_quota, idle, now);
            let repeats = |recent: &RecentQuery| now.duration_since(recent.last_seen) <= idle;
            let known =
                state.recent.iter().filter(|(_, recent)| !recent.is_isolated() && repeats(recent));
            let recent: BTreeMap<Arguments, Caller> = known
                .clone()
                .map(|(arguments, recent)| (arguments.clone(), recent.caller.clone()))
                .collect();
            let is_client = |pending: &PendingQuery| pending.caller.reader == Reader::Client;
            let soon = match pending.values().any(is_client) {
                true => now + state.lead(self.max_age),
                false => now,
            };
            // Ahead of its expiry, as `request` says: what clients read, and is not large.
            let is_ahead = |arguments: &Arguments, recent: &RecentQuery| {
                let by_client = |at: Instant| now.duration_since(at) <= idle;
                recent.fresh_until <= soon
                    && recent.last_client.is_some_and(by_client)
                    && state
                        .known(arguments, self.max_age, now)
                        .is_some_and(|known| is_small_ahead(&known.flight, &recent.caller))
            };
            let expected: BTreeSet<Arguments> = known
                .filter(|(arguments, recent)| {
                    recent.fresh_until <= now || is_ahead(arguments, recent)
                })
                .map(|(arguments, _)| arguments.clone())
                .collect();
            (pending, expected, recent, state.estimator.estimates(now))
        };
        let of = |isolated: bool| pending.iter().filter(move |(_, p)| p.isolated == isolated);
        let together: BTreeSet<Arguments> =
            of(false).map(|(arguments, _)| arguments.clone()).collect();
        let planned = AssertUnwindSafe(|| {
            let recent = recent.keys().cloned().collect();
            let input = PlanInput { pending: &together, expected: &expected, recent: &recent };
            let mut planned = match together.is_empty() {
                true => Vec::new(),
                false => plan(&queries.shape, input, estimates, Limits::default()),
            };
            planned.extend(of(true).map(|(arguments, _)| single(&queries.shape, arguments)));
            planned
        });
        // After a panic, each caller sends its query unbatched, as no flight covers it.
        let planned = std::panic::catch_unwind(planned).unwrap_or_default();
        let mut state = queries.state();
        state.planning.retain(|(of, _)| !Arc::ptr_eq(of, &pending));
        let (now, mut flights) = (Instant::now(), Vec::with_capacity(planned.len()));
        for planned in planned {
            let caller = |arguments| {
                let waits = pending.get(arguments).map(|pending| &pending.caller);
                waits.or_else(|| recent.get(arguments))
            };
            let flows = flows(planned.batch.iter().filter_map(caller));
            for arguments in &planned.batch {
                if let Some(recent) = state.recent.get_mut(arguments) {
                    recent.fresh_until = now + self.max_age;
                }
            }
            // A result that is asked for ahead of its expiry is read until then.
            if let [arguments] = planned.batch.as_slice()
                && let Some((arguments, known)) = state.singles.remove_entry(arguments)
            {
                state.earlier_singles.insert(arguments, known);
            }
            flights.push(self.launch(queries, &mut state, planned, flows, now));
        }
        Arc::new(flights)
    }

    /// The flight of an unbatched query: one that is in flight or cached, or a new one.
    fn send_single(
        self: &Arc<Self>,
        queries: &Arc<ShapeQueries>,
        state: &mut ShapeState,
        arguments: &Arguments,
        caller: &Caller,
        now: Instant,
    ) -> Flight {
        let known = state.singles.get(arguments);
        if let Some(flight) = known.filter(|flight| flight.is_fresh(self.max_age, now)) {
            return flight.clone();
        }
        let planned = single(&queries.shape, arguments);
        self.launch(queries, state, planned, flows(std::iter::once(caller)), now)
    }
}

/// Whether a result is small enough to be asked for ahead of its expiry for this caller.
fn is_small_ahead(flight: &Flight, caller: &Caller) -> bool {
    let most = if caller.user { USER_AHEAD_BYTES } else { AHEAD_BYTES };
    flight.table().is_some_and(|table| table.bytes() <= most)
}

/// How long a query counts as recent: a caller that repeats it after its result expired still finds
/// it among the expected ones.
pub fn recent_for(max_age: Duration) -> Duration {
    max_age.mul_f64(1.25)
}
