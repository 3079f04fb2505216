//! The cost of a query for Prometheus, and the limits of a batch.
//!
//! Costs are CPU time of Prometheus 3.13, measured by `make query-costs` on 20,000 series: 490 us for a
//! query, 3.5 us for each series of its result (2.2 us if there are many), and 4 to 5.5 us for each label value that it
//! names. If a value has a `.` or another character that a pattern escapes, Prometheus parses all of them as a
//! pattern: 12 us each. All costs are expressed in series.

/// The cost of a query, in series.
pub(super) const QUERY: f64 = 150.0;
/// The cost of a label value that a query names, in series.
const VALUE: f64 = 2.0;
/// The most values of a label that Prometheus looks up in its index. From 256 on (`maxSetMatches` in
/// its `model/labels/regexp.go`) it compares every value that the label has with them: of 20,000
/// values, that takes 2 ms more, and 15 ms more if a value that the query names has a `.`. Four queries of 250
/// values cost no more than one of 1,000 there, and less if there are more pods.
const MAX_INDEXED_VALUES: usize = 255;

/// Estimates for the queries of a shape, from earlier responses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimates {
    /// The series of a filtered result, per query in the batch.
    pub filtered_series: Option<f64>,
    /// The series of an unfiltered result, per argument set of the other parameters (see
    /// [`PlannedQuery::argument_sets`](super::plan::PlannedQuery::argument_sets)).
    pub unfiltered_series: Option<f64>,
    /// The most queries in a batch. Smaller after a batch took too long.
    pub max_batch: usize,
    /// Whether required labels are matched: a query that did not match them failed.
    pub match_required: bool,
}

impl Default for Estimates {
    fn default() -> Self {
        Self {
            filtered_series: None,
            unfiltered_series: None,
            max_batch: usize::MAX,
            match_required: false,
        }
    }
}

impl Estimates {
    /// The same for plans without unfiltered queries, whose results would be too large.
    pub fn filtered_only(self) -> Self {
        Self { unfiltered_series: Some(f64::INFINITY), ..self }
    }
}

/// How large a batch may grow.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most series of a result.
    pub series: usize,
    /// The most series of an unfiltered result for several argument sets: as they share no series, one query for all of
    /// them costs Prometheus no less than a few, and its response takes more memory at a time.
    pub joined_series: usize,
    /// The most values of one label that a query names.
    pub values: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { series: 50_000, joined_series: 20_000, values: MAX_INDEXED_VALUES }
    }
}

impl Limits {
    /// The most queries in a batch, each with so many series and values of one label; at least one.
    pub(super) fn max_batch(&self, series: f64, values: usize, estimates: &Estimates) -> usize {
        let by_series = self.series as f64 / series.max(1.0);
        (self.values / values.max(1)).min(by_series as usize).min(estimates.max_batch).max(1)
    }
}

/// The cost per query of `count` queries in filtered batches of at most `max_batch`, each with so many values
/// and series on average.
pub(super) fn filtered(count: usize, max_batch: usize, values: f64, series: f64) -> f64 {
    let batches = count.div_ceil(max_batch) as f64 * QUERY;
    batches / count as f64 + values * VALUE + series
}

/// The cost per query of one query by itself.
pub(super) fn single(values: f64, series: f64) -> f64 {
    QUERY + values * VALUE + series
}

/// The cost per query of `count` queries in so many unfiltered ones with so many series together.
pub(super) fn unfiltered(count: usize, queries: usize, series: f64) -> f64 {
    (queries as f64 * QUERY + series) / count as f64
}
