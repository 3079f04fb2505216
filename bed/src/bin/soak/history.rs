//! What happened in the run: values, faults and changes of replicas, over time.

use std::time::{Duration, Instant};

/// How old the data of a decision may be without faults: a new value is rolled out, scraped, queried
/// and decided on, at a sync period of one second.
pub const MAX_AGE: Duration = Duration::from_secs(15);
/// The same after a fault of kube-apiserver: watches are retried with backoff.
const MAX_AGE_AFTER_FAULT: Duration = Duration::from_secs(30);
/// How long a query result is used: by a decision in flight, and by the cache.
const RESULT_TTL: Duration = Duration::from_secs(4);

/// A value that changes, with its history.
pub struct Timeline<T>(Vec<(Instant, T)>);

impl<T: Copy> Timeline<T> {
    pub fn new(value: T) -> Self {
        Self(vec![(Instant::now(), value)])
    }

    pub fn set(&mut self, value: T) {
        self.0.push((Instant::now(), value));
    }

    pub fn now(&self) -> T {
        self.0[self.0.len() - 1].1
    }

    /// The values that it had within a time range.
    pub fn within(&self, from: Instant, to: Instant) -> impl Iterator<Item = T> {
        let began = self.0.iter().rposition(|(at, _)| *at <= from).unwrap_or(0);
        self.0[began..].iter().take_while(move |(at, _)| *at <= to).map(|(_, value)| *value)
    }
}

/// The times in which a condition held.
#[derive(Default)]
pub struct Spans(Vec<(Instant, Option<Instant>)>);

impl Spans {
    pub fn begin(&mut self) {
        self.0.push((Instant::now(), None));
    }

    pub fn end(&mut self) {
        if let Some((_, end)) = self.0.last_mut() {
            end.get_or_insert_with(Instant::now);
        }
    }

    /// Whether it held for the whole range.
    pub fn cover(&self, from: Instant, to: Instant) -> bool {
        self.0.iter().any(|(began, end)| *began <= from && end.is_none_or(|end| end >= to))
    }

    /// Whether it held at any time of the range.
    pub fn touch(&self, from: Instant, to: Instant) -> bool {
        self.0.iter().any(|(began, end)| *began <= to && end.is_none_or(|end| end >= from))
    }
}

/// The faults of the cluster, and when they held.
#[derive(Default)]
pub struct History {
    /// Prometheus returned no valid result.
    pub blind: Spans,
    /// Requests to kube-apiserver, or its watches, failed or stalled.
    pub faulty: Spans,
    /// Scaling was frozen.
    pub frozen: Spans,
}

impl History {
    /// How old the data of a decision may be at a time.
    pub fn max_age(&self, at: Instant) -> Duration {
        let faulty = self.faulty.touch(at - MAX_AGE_AFTER_FAULT, at);
        if faulty { MAX_AGE_AFTER_FAULT } else { MAX_AGE }
    }

    /// Whether no metric was available at a time.
    pub fn is_blind(&self, at: Instant) -> bool {
        self.blind.cover(at - RESULT_TTL, at)
    }

    /// Whether no scale may be written at a time.
    pub fn is_frozen(&self, at: Instant) -> bool {
        self.frozen.cover(at - RESULT_TTL, at) && !self.faulty.touch(at - MAX_AGE_AFTER_FAULT, at)
    }
}

/// A change of replicas that Plimsoll made.
#[derive(Clone, Debug)]
pub struct Step {
    pub at: Instant,
    pub from: i64,
    pub to: i64,
}
