//! Estimates the cardinality of a shape's results, and how large a batch may be.
//!
//! After a failure smaller batches are sent. The previous size is retried after a backoff, which
//! doubles if it fails again: limits learned while Prometheus was slow are not kept for ever.

use crate::promql::cost::Estimates;
use crate::promql::plan::PlannedQuery;
use std::time::Duration;
use tokio::time::Instant;

/// The weight of the newest result in the moving average of series.
const NEWEST_WEIGHT: f64 = 0.3;
/// For how long the size of an unfiltered result is believed. After that one set shows it again.
const UNFILTERED_TTL: Duration = Duration::from_secs(900);
/// By how much the argument sets of a plan grow beyond those of the largest result that was seen: one of the next may be
/// far larger.
const SETS_GROWTH: usize = 8;
/// The first backoff before the previous size is retried.
const FIRST_BACKOFF: Duration = Duration::from_secs(15);
/// The longest backoff.
const MAX_BACKOFF: Duration = Duration::from_secs(600);
/// The number of parts into which a batch that was too large is split. Until the parts are small, a caller
/// that asks for too much delays all callers of the batch.
const PARTS: usize = 4;
/// The factor by which the largest batch grows at a time.
const GROWTH: usize = 4;
/// The time between two such steps.
const GROWTH_INTERVAL: Duration = Duration::from_secs(1);

/// Estimates the cardinality of the results of a shape.
#[derive(Debug, Default)]
pub struct CardinalityEstimator {
    /// The series of a filtered result, per query.
    filtered_series: Option<f64>,
    /// What is known of unfiltered results.
    unfiltered: Option<UnfilteredSize>,
    /// The largest batch, once a batch was too large.
    batch_limit: Option<BatchLimit>,
    /// When unfiltered queries are tried again, once one was too large.
    unfiltered_backoff: Option<Backoff>,
    /// When required labels are left unmatched again, once a query without them failed.
    required_backoff: Option<Backoff>,
}

/// What is known of unfiltered results.
#[derive(Clone, Copy, Debug)]
struct UnfilteredSize {
    /// The series per argument set.
    series: f64,
    /// The most argument sets of a result.
    sets: usize,
    /// When the last one was seen.
    seen: Instant,
}

/// The largest batch.
#[derive(Debug)]
struct BatchLimit {
    queries: usize,
    backoff: Backoff,
}

/// When a size that failed is retried.
#[derive(Debug)]
struct Backoff {
    wait: Duration,
    until: Instant,
    /// Whether it was tried again since the last failure.
    retried: bool,
}

impl Backoff {
    fn new(now: Instant) -> Self {
        Self { wait: FIRST_BACKOFF, until: now + FIRST_BACKOFF, retried: false }
    }

    /// Doubles the wait if this was a retry, or resets it after a long time without failure.
    fn failed(&mut self, now: Instant) {
        if self.retried {
            let long_ago = now.duration_since(self.until) > MAX_BACKOFF;
            self.wait = if long_ago { FIRST_BACKOFF } else { (self.wait * 2).min(MAX_BACKOFF) };
        }
        (self.until, self.retried) = (now + self.wait, false);
    }
}

impl CardinalityEstimator {
    /// The estimates for a plan.
    pub fn estimates(&self, now: Instant) -> Estimates {
        let backs_off = |backoff: &Option<Backoff>| backoff.as_ref().is_some_and(|b| now < b.until);
        let unfiltered = self.unfiltered(now);
        let estimates = Estimates {
            filtered_series: self.filtered_series,
            unfiltered_series: unfiltered.map(|known| known.series),
            max_sets: unfiltered.map_or(1, |known| known.sets.saturating_mul(SETS_GROWTH)),
            max_batch: self.batch_limit.as_ref().map_or(usize::MAX, |limit| limit.queries),
            match_required: backs_off(&self.required_backoff),
        };
        match backs_off(&self.unfiltered_backoff) {
            true => estimates.filtered_only(),
            false => estimates,
        }
    }

    /// What is known of unfiltered results, and is not too old.
    fn unfiltered(&self, now: Instant) -> Option<UnfilteredSize> {
        let is_new =
            |known: &UnfilteredSize| now.saturating_duration_since(known.seen) < UNFILTERED_TTL;
        self.unfiltered.filter(is_new)
    }

    /// Records a result with this number of series.
    pub fn succeeded(&mut self, planned: &PlannedQuery, series: usize, now: Instant) {
        let averaged = |known: f64, new: f64| known + NEWEST_WEIGHT * (new - known);
        match planned.argument_sets {
            Some(sets) => {
                let new = UnfilteredSize { series: series as f64 / sets as f64, sets, seen: now };
                // A larger one counts at once: the plans that follow ask for several.
                let known = self.unfiltered(now);
                self.unfiltered = Some(known.map_or(new, |known| UnfilteredSize {
                    series: new.series.max(averaged(known.series, new.series)),
                    sets: known.sets.max(sets),
                    seen: now,
                }));
            }
            None => {
                let per_query = series as f64 / planned.batch.len() as f64;
                let known = self.filtered_series;
                self.filtered_series =
                    Some(known.map_or(per_query, |known| averaged(known, per_query)));
            }
        }
        if let Some(BatchLimit { queries, backoff }) = &mut self.batch_limit
            && now >= backoff.until
            && *queries < usize::MAX
        {
            *queries = queries.saturating_mul(GROWTH);
            (backoff.until, backoff.retried) = (now + GROWTH_INTERVAL, true);
        }
    }

    /// Records that a query was too large or too slow. A single query teaches nothing, as
    /// nothing smaller can be sent.
    pub fn too_large(&mut self, planned: &PlannedQuery, now: Instant) {
        if planned.is_unfiltered() {
            self.unfiltered_failed(now);
            return;
        }
        let size = planned.batch.len();
        if size < 2 {
            return;
        }
        let fewer = (size / PARTS).max(1);
        match &mut self.batch_limit {
            Some(BatchLimit { queries, backoff }) => {
                *queries = fewer.min(*queries);
                backoff.failed(now);
            }
            none => *none = Some(BatchLimit { queries: fewer, backoff: Backoff::new(now) }),
        }
    }

    /// Records that an unfiltered query failed because of series that no caller queried. What was known of their number
    /// was wrong.
    pub fn unfiltered_failed(&mut self, now: Instant) {
        self.unfiltered = None;
        back_off(&mut self.unfiltered_backoff, now);
    }

    /// Records that a query without the matchers of required labels failed: maybe because of series that lack one.
    pub fn required_failed(&mut self, now: Instant) {
        back_off(&mut self.required_backoff, now);
    }
}

fn back_off(backoff: &mut Option<Backoff>, now: Instant) {
    match backoff {
        Some(backoff) => {
            backoff.retried = now >= backoff.until;
            backoff.failed(now);
        }
        none => *none = Some(Backoff::new(now)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promql::plan::batch;
    use crate::promql::shape::{Arguments, ShapedQuery};

    fn planned(size: usize) -> PlannedQuery {
        let shape = ShapedQuery::of(r#"sum by (pod) (x{a="1"})"#).shape;
        let queries: Vec<Arguments> =
            (0..size).map(|n| Arguments::from([vec![n.to_string()]].to_vec())).collect();
        batch(&shape, &queries.iter().collect::<Vec<_>>(), None, false)
    }

    #[test]
    fn a_batch_size_that_failed_is_retried_and_the_backoff_grows() {
        let (mut estimator, start) = (CardinalityEstimator::default(), Instant::now());
        let mut waits = Vec::new();
        let mut now = start;
        for _ in 0..8 {
            estimator.too_large(&planned(100), now);
            assert_eq!(estimator.estimates(now).max_batch, 25);
            let failed = now;
            while estimator.estimates(now).max_batch < 100 {
                now += Duration::from_secs(1);
                estimator.succeeded(&planned(25), 25, now);
            }
            waits.push((now - failed).as_secs());
        }
        assert_eq!(waits, [15, 30, 60, 120, 240, 480, 600, 600]);
        // A single query can't be split, and says nothing about others.
        estimator.too_large(&planned(1), now);
        assert_eq!(estimator.estimates(now).max_batch, 100);
    }

    /// By time: a start has hundreds of filtered results in a second.
    #[test]
    fn an_unfiltered_result_is_remembered_for_a_while_however_many_filtered_ones_come() {
        let (mut estimator, now) = (CardinalityEstimator::default(), Instant::now());
        let unfiltered = PlannedQuery { argument_sets: Some(2), ..planned(2) };
        estimator.succeeded(&unfiltered, 20_000, now);
        for _ in 0..10_000 {
            estimator.succeeded(&planned(25), 25, now + Duration::from_secs(1));
        }
        let expected =
            |after: u64| estimator.estimates(now + Duration::from_secs(after)).unfiltered_series;
        assert_eq!([1, 899, 900].map(expected), [Some(10_000.0), Some(10_000.0), None]);
    }

    #[test]
    fn what_was_known_of_a_size_ends_with_its_time_with_a_larger_one_and_with_a_failure() {
        let (mut estimator, start) = (CardinalityEstimator::default(), Instant::now());
        let of = |sets| PlannedQuery { argument_sets: Some(sets), ..planned(2) };
        let known = |estimator: &CardinalityEstimator, now| {
            let estimates = estimator.estimates(now);
            (estimates.unfiltered_series, estimates.max_sets)
        };
        assert_eq!(known(&estimator, start), (None, 1));
        estimator.succeeded(&of(1), 40_000, start);
        assert_eq!(known(&estimator, start), (Some(40_000.0), 8));
        // It was cleaned up: an old size has no part in a new one.
        let later = start + Duration::from_secs(900);
        estimator.succeeded(&of(1), 1_000, later);
        assert_eq!(known(&estimator, later), (Some(1_000.0), 8));
        estimator.succeeded(&of(8), 8_000, later);
        assert_eq!(known(&estimator, later), (Some(1_000.0), 64));
        // A larger one counts at once, a smaller one by and by.
        estimator.succeeded(&of(2), 8_000, later);
        assert_eq!(known(&estimator, later), (Some(4_000.0), 64));
        estimator.succeeded(&of(2), 4_000, later);
        assert_eq!(known(&estimator, later), (Some(3_400.0), 64));
        // After a failure, one set shows the size again.
        estimator.unfiltered_failed(later);
        assert_eq!(known(&estimator, later).0, Some(f64::INFINITY));
        assert_eq!(known(&estimator, later + FIRST_BACKOFF), (None, 1));
    }

    #[test]
    fn the_limits_of_an_outage_are_lifted_within_a_minute() {
        let (mut estimator, mut now) = (CardinalityEstimator::default(), Instant::now());
        for size in [1000, 250, 62, 15, 3] {
            estimator.too_large(&planned(size), now);
            now += Duration::from_secs(15);
        }
        assert_eq!(estimator.estimates(now).max_batch, 1);
        let back = now;
        while estimator.estimates(now).max_batch < 1000 {
            now += Duration::from_secs(5);
            estimator.succeeded(&planned(1), 1, now);
        }
        assert!(now - back < Duration::from_secs(60), "{:?}", now - back);
    }
}
