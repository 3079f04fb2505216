//! A query in flight or completed, and the callers that share its result.

use super::error::MetricError;
use super::table::Table;
use crate::promql::plan::Coverage;
use crate::promql::shape::Arguments;
use futures::future::{BoxFuture, Shared};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::Instant;

/// The result of a query that was sent, shared by all callers.
pub type TableResult = Result<Arc<Table>, MetricError>;

/// A query in flight or completed.
#[derive(Clone)]
pub struct Flight {
    /// The queries that its result covers.
    pub coverage: Arc<Coverage>,
    /// The queries that it was planned for, sorted. Only they get its error.
    batch: Arc<[Arguments]>,
    started: Instant,
    /// After a failure, when the query may be sent again.
    backoff_until: Arc<OnceLock<Instant>>,
    /// How it completes.
    pub outcome: Shared<BoxFuture<'static, Arc<FlightOutcome>>>,
}

/// How a query completed.
pub enum FlightOutcome {
    /// With this result.
    Completed(TableResult),
    /// The batch failed and was split into these.
    Split(Vec<Flight>),
}

impl Flight {
    /// A query that starts now.
    pub fn new(
        coverage: Coverage,
        mut batch: Vec<Arguments>,
        backoff_until: Arc<OnceLock<Instant>>,
        started: Instant,
        outcome: Shared<BoxFuture<'static, Arc<FlightOutcome>>>,
    ) -> Self {
        batch.sort_unstable();
        Self { coverage: Arc::new(coverage), batch: batch.into(), started, backoff_until, outcome }
    }

    /// When the cached result expires. The age counts from the start of the query, as
    /// Prometheus evaluates it for that time.
    pub fn expires(&self, max_age: Duration) -> Instant {
        let expires = self.started + max_age;
        self.backoff_until.get().map_or(expires, |backoff| expires.max(*backoff))
    }

    /// Whether a new caller gets its result: it is in flight, or cached and not expired.
    pub fn is_fresh(&self, max_age: Duration, now: Instant) -> bool {
        self.outcome.peek().is_none() || now <= self.expires(max_age)
    }

    /// The result that it completed with.
    pub fn table(&self) -> Option<&Table> {
        match &**self.outcome.peek()? {
            FlightOutcome::Completed(Ok(table)) => Some(table),
            _ => None,
        }
    }

    /// The result for a query that it covers. None if it failed and was not planned for that query:
    /// another query in the batch may be at fault.
    pub async fn result(self, arguments: &Arguments) -> Option<TableResult> {
        let mut flight = self;
        loop {
            let outcome = flight.outcome.clone().await;
            match &*outcome {
                FlightOutcome::Completed(result) => {
                    let applies = result.is_ok() || flight.batch.binary_search(arguments).is_ok();
                    return applies.then(|| result.clone());
                }
                FlightOutcome::Split(parts) => {
                    let part = parts.iter().find(|part| part.coverage.contains(arguments));
                    flight = part?.clone();
                }
            }
        }
    }
}
