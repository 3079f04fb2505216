//! Sends the planned queries, learns from the responses, and splits batches that fail.

use super::caller::{Caller, flows};
use super::coalesce::{Coalescer, recent_for};
use super::error::MetricError;
use super::flight::{Flight, FlightOutcome, TableResult};
use super::shape_queries::{
    MAX_BACKOFF, MAX_REFUSAL_BACKOFF, ShapeQueries, ShapeState, SingleFailure, halves,
};
use crate::prometheus::{Error, Flow};
use crate::promql::cost::{Estimates, Limits};
use crate::promql::plan::{self, PlanInput, PlannedQuery};
use crate::promql::shape::{Arguments, QueryShape};
use futures::FutureExt;
use futures::future::join_all;
use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, MutexGuard, OnceLock};
use std::time::Duration;
use tokio::time::Instant;

/// How long after their expiry results are dropped and queries forgotten: those of many that expire one after the other
/// together.
const DROP_DELAY: Duration = Duration::from_millis(250);

impl Coalescer {
    /// Starts a planned query. From now on callers find its flight.
    pub(super) fn launch(
        self: &Arc<Self>,
        queries: &Arc<ShapeQueries>,
        state: &mut ShapeState,
        planned: PlannedQuery,
        flows: Vec<Flow>,
        now: Instant,
    ) -> Flight {
        let (coverage, batch) = (planned.coverage.clone(), planned.batch.clone());
        let single = match batch.as_slice() {
            [arguments] if !planned.is_unfiltered() => Some(arguments.clone()),
            _ => None,
        };
        let backoff_until = Arc::new(OnceLock::new());
        let (coalescer, of_shape, backoff) = (self.clone(), queries.clone(), backoff_until.clone());
        let outcome =
            async move { Arc::new(coalescer.run(&of_shape, planned, flows, &backoff).await) };
        let outcome = outcome.boxed().shared();
        let flight = Flight::new(coverage, batch, backoff_until, now, outcome.clone());
        // Not for each of the thousands of queries that may start together.
        let after = now.checked_sub(DROP_DELAY).unwrap_or(now);
        state.drop_expired(after, self.max_age, now);
        match single {
            Some(arguments) => drop(state.singles.insert(arguments, flight.clone())),
            None => state.batches.push(flight.clone()),
        }
        // An expired result is dropped even if no query of the shape comes any more.
        let (of_shape, max_age, ended) = (Arc::downgrade(queries), self.max_age, flight.clone());
        self.spawner.spawn(async move {
            outcome.await;
            // The flight holds the result, and must not keep it while this task sleeps. One that was in flight beyond its
            // expiry was kept by what has dropped others until now.
            let expires = ended.expires(max_age).max(Instant::now());
            drop(ended);
            tokio::time::sleep_until(expires + DROP_DELAY).await;
            let Some(queries) = of_shape.upgrade() else { return };
            queries.state().drop_expired(expires, max_age, Instant::now());
            drop(queries);
            // The same for its queries, if they are not repeated.
            let idle = recent_for(max_age);
            let after = expires + idle;
            tokio::time::sleep_until(after + DROP_DELAY).await;
            let Some(queries) = of_shape.upgrade() else { return };
            queries.state().forget_idle_after(after, &queries.recent_quota, idle, Instant::now());
        });
        flight
    }

    /// Sends a query. A batch that is refused, too large, partially answered, or beyond the
    /// bytes of the namespace that is charged for it is split, so that one caller's faulty query
    /// fails for no other caller.
    async fn run(
        self: &Arc<Self>,
        queries: &Arc<ShapeQueries>,
        planned: PlannedQuery,
        flows: Vec<Flow>,
        backoff_until: &OnceLock<Instant>,
    ) -> FlightOutcome {
        let (result, started) = {
            let _permit = match planned.batch.len() {
                1 if !planned.is_unfiltered() => None,
                _ => Some(queries.batch_permits.acquire().await.expect("it is never closed")),
            };
            let started = Instant::now();
            let send = async { (self.send)(planned.query.clone(), flows.clone()).await };
            let result = AssertUnwindSafe(send).catch_unwind().await.unwrap_or_else(|_| {
                let fault = "reading it failed by a fault of Plimsoll's own; see its log";
                Err(Error::InvalidResponse(fault.to_owned()).into())
            });
            (result, started)
        };
        let batch = &planned.batch;
        let is_batch = batch.len() > 1 || planned.is_unfiltered();
        let now = Instant::now();
        let mut state = queries.state();
        if planned.omits_required
            && let Err(MetricError::Prometheus(error)) = &result
        {
            // The matcher is no remedy for what is true of every query, and makes this one longer.
            let late = error.is_late();
            let is_of_proxy = matches!(
                error,
                Error::TooLong { .. }
                    | Error::Blocked { .. }
                    | Error::Unavailable { status: 401 | 407, .. }
            ) || error.is_of_all_queries();
            let at_once = !error.is_about_server() && !late && !is_of_proxy;
            if at_once || late {
                state.estimator.required_failed(now);
            }
            if at_once {
                let parts = self.launch_parts(queries, state, [planned.batch], &flows);
                return FlightOutcome::Split(parts);
            }
        }
        let backoff = self.record(&mut state, &planned, &result, &flows, (started, now));
        let parts = match &result {
            Err(MetricError::Prometheus(error)) if is_batch => match error {
                Error::Refused(_)
                | Error::Blocked { .. }
                | Error::InvalidResponse(_)
                | Error::TooLong { .. } => Some(halves(batch)),
                error if error.may_be_about_some() && batch.len() > 1 => {
                    state.split_partial(batch, now)
                }
                error if error.may_be_about_some() => Some(halves(batch)),
                Error::Memory { .. } => {
                    (flows.len() > 1 || planned.is_unfiltered()).then(|| halves(batch))
                }
                _ => None,
            },
            _ => None,
        };
        let Some(parts) = parts else {
            if let Some(backoff) = backoff {
                let _ = backoff_until.set(now + backoff);
            }
            if let Some(client) = &self.client {
                let error = match &result {
                    Err(MetricError::Prometheus(error)) => Some(error),
                    _ => None,
                };
                client.count_queries(batch.len(), error);
            }
            let result = result.map_err(|error| match error {
                MetricError::Prometheus(error) if is_batch => error.without_query().into(),
                error => error,
            });
            return FlightOutcome::Completed(result);
        };
        let is_refused = !planned.is_unfiltered()
            && matches!(
                &result,
                Err(MetricError::Prometheus(
                    Error::Refused(_) | Error::Blocked { .. } | Error::InvalidResponse(_)
                ))
            );
        let parts = self.launch_parts(queries, state, parts, &flows);
        if is_refused {
            self.learn_from(queries, planned, &parts);
        }
        FlightOutcome::Split(parts)
    }

    /// If all parts of a batch that failed succeed, no query is at fault: together they are too large.
    fn learn_from(
        self: &Arc<Self>,
        queries: &Arc<ShapeQueries>,
        whole: PlannedQuery,
        parts: &[Flight],
    ) {
        let outcomes: Vec<_> = parts.iter().map(|part| part.outcome.clone()).collect();
        let of_shape = queries.clone();
        self.spawner.spawn(async move {
            let outcomes = join_all(outcomes).await;
            let succeeded =
                |of: &Arc<FlightOutcome>| matches!(&**of, FlightOutcome::Completed(Ok(_)));
            if outcomes.iter().all(succeeded) {
                of_shape.state().estimator.too_large(&whole, Instant::now());
            }
        });
    }

    /// Plans the parts of a batch, and starts them. The state is not locked meanwhile.
    fn launch_parts(
        self: &Arc<Self>,
        queries: &Arc<ShapeQueries>,
        state: MutexGuard<'_, ShapeState>,
        parts: impl IntoIterator<Item = Vec<Arguments>>,
        flows: &[Flow],
    ) -> Vec<Flight> {
        let now = Instant::now();
        let estimates = state.estimator.estimates(now);
        drop(state);
        let parts = plan_parts(&queries.shape, parts, estimates);
        let mut state = queries.state();
        let launch = |part: PlannedQuery| {
            let flows = flows_of(&state, &part).unwrap_or_else(|| flows.to_vec());
            self.launch(queries, &mut state, part, flows, now)
        };
        parts.into_iter().map(launch).collect()
    }

    /// Updates the estimates by a result. Returns the backoff after a failure.
    fn record(
        &self,
        state: &mut ShapeState,
        planned: &PlannedQuery,
        result: &TableResult,
        flows: &[Flow],
        (started, now): (Instant, Instant),
    ) -> Option<Duration> {
        let error = match result {
            Ok(table) => {
                state.estimator.succeeded(planned, table.series(), now);
                state.record_success(&planned.batch, started, now);
                return None;
            }
            Err(MetricError::Prometheus(error)) => error,
            Err(_) => return None,
        };
        match error {
            Error::Timeout(_) | Error::GatewayTimeout | Error::TooLong { .. } => {
                state.estimator.too_large(planned, now)
            }
            // Too large, or spoiled by series that no caller queried.
            Error::InvalidResponse(_)
            | Error::Refused(_)
            | Error::Blocked { .. }
            | Error::Partial(_)
            | Error::Unavailable { status: 422, .. }
            | Error::Memory { .. }
                if planned.is_unfiltered() =>
            {
                state.estimator.unfiltered_failed(now);
            }
            // Of what all share: the next ones take less at a time.
            Error::Memory { .. } if !Flow::are_users(flows) => {
                state.estimator.too_large(planned, now)
            }
            _ => {}
        }
        if let ([arguments], false) = (planned.batch.as_slice(), planned.is_unfiltered())
            && let Some(longest) = max_backoff(error)
            && let Some(recent) = state.recent.get_mut(arguments)
        {
            let before = recent.failure.filter(|failure| failure.isolated);
            let backoff = before.map_or(self.max_age, |failure| failure.backoff * 2).min(longest);
            let partial = error.may_be_about_some();
            // What fills the budget that templates and rules share is others' responses: only where it has no room twice.
            let memory = matches!(error, Error::Memory { .. }) && !Flow::are_users(flows);
            // If its result was partial before, too, any success since then isolates it: its result
            // stayed partial while others succeeded.
            let failed_before =
                recent.failure.filter(|failure| memory || partial && failure.partial);
            let since = failed_before.map_or(started, |failure| failure.last.min(started));
            let others_succeeded = state.last_success.is_some_and(|at| at >= since)
                && (!memory || failed_before.is_some());
            let isolated = before.is_some()
                || others_succeeded
                || matches!(error, Error::Refused(_) | Error::Blocked { .. });
            recent.failure = Some(SingleFailure { last: now, backoff, isolated, partial });
            state.failed_since_success |= !isolated && !memory;
            if isolated {
                return Some(backoff);
            }
        }
        state.consecutive_failures = state.consecutive_failures.saturating_add(1);
        let doublings = state.consecutive_failures.min(8) - 1;
        Some((self.max_age * 2_u32.pow(doublings)).min(MAX_BACKOFF))
    }
}

/// The flows of the part of a batch; none unless all its queries are recent.
fn flows_of(state: &ShapeState, part: &PlannedQuery) -> Option<Vec<Flow>> {
    let callers = part.batch.iter();
    let callers = callers.map(|arguments| Some(&state.recent.get(arguments)?.caller));
    let callers = callers.collect::<Option<Vec<&Caller>>>()?;
    Some(flows(callers.into_iter()))
}

/// The longest backoff after an error; none if the error is not about the query.
fn max_backoff(error: &Error) -> Option<Duration> {
    match error {
        Error::Refused(_) | Error::Blocked { .. } => Some(MAX_REFUSAL_BACKOFF),
        Error::Timeout(_)
        | Error::GatewayTimeout
        | Error::TooLong { .. }
        | Error::InvalidResponse(_)
        | Error::Partial(_)
        | Error::Unavailable { status: 422, .. }
        | Error::Memory { .. } => Some(MAX_BACKOFF),
        Error::Settings(_)
        | Error::Overloaded(_)
        | Error::Unreachable(_)
        | Error::BrokenOff(_)
        | Error::Unavailable { .. } => None,
    }
}

/// The queries for the parts of a batch, each planned again, without unfiltered ones.
fn plan_parts(
    shape: &QueryShape,
    parts: impl IntoIterator<Item = Vec<Arguments>>,
    estimates: Estimates,
) -> Vec<PlannedQuery> {
    let estimates = estimates.filtered_only();
    let plan_part = |part: Vec<Arguments>| {
        let part: BTreeSet<Arguments> = part.into_iter().collect();
        let none = BTreeSet::new();
        let input = PlanInput { pending: &part, expected: &none, recent: &part };
        plan::plan(shape, input, estimates, Limits::default())
    };
    parts.into_iter().flat_map(plan_part).collect()
}
