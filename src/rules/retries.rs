//! When the listings of series that failed are repeated.

use super::rule::SeriesQuery;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// How soon a listing that failed is repeated at first.
const FIRST_WAIT: Duration = Duration::from_secs(15);

/// The queries whose last listing failed. Each waits for twice as long after each failure, up to the
/// interval at which all are listed.
pub struct Retries {
    interval: Duration,
    queries: BTreeMap<SeriesQuery, Retry>,
}

struct Retry {
    wait: Duration,
    at: Instant,
}

impl Retries {
    /// None has failed yet.
    pub fn new(interval: Duration) -> Self {
        Self { interval, queries: BTreeMap::new() }
    }

    /// Notes which queries failed of those that were listed: of all if none are named.
    pub fn note(&mut self, listed: Option<&BTreeSet<SeriesQuery>>, failed: BTreeSet<SeriesQuery>) {
        let is_listed = |query: &SeriesQuery| listed.is_none_or(|listed| listed.contains(query));
        self.queries.retain(|query, _| !is_listed(query) || failed.contains(query));
        for query in failed {
            let last = self.queries.get(&query).map(|retry| retry.wait);
            let wait = last.map_or(FIRST_WAIT, |wait| wait * 2).min(self.interval);
            self.queries.insert(query, Retry { wait, at: Instant::now() + wait });
        }
    }

    /// When the next is due.
    pub fn next(&self) -> Option<Instant> {
        self.queries.values().map(|retry| retry.at).min()
    }

    /// Those that are due.
    pub fn due(&self) -> BTreeSet<SeriesQuery> {
        let now = Instant::now();
        let due = self.queries.iter().filter(|(_, retry)| retry.at <= now);
        due.map(|(query, _)| query.clone()).collect()
    }
}
