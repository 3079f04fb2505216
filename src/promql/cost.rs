//! The cost of a query for Prometheus, and the limits of a batch.
//!
//! Costs are CPU time of Prometheus 3.13, measured by `make query-costs` on 20,000 series: 490 us for a
//! query, 3.5 us for each series of its result (2.2 us if there are many), and 4 to 5.5 us for each label value that it
//! names. If a value has a `.` or another character that a pattern escapes, Prometheus parses all of them as a
//! pattern: 12 us each. All costs are expressed in series.

use super::shape::Arguments;

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
    /// The most argument sets whose unfiltered results are asked for in a plan. Sizes differ: more are asked for as more
    /// were seen.
    pub max_sets: usize,
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
            max_sets: usize::MAX,
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
    /// The batches for these queries, each query with so many series: as few as the limits allow, and of about equal
    /// size, as a small remainder would hardly be worth a query. A query that names so many values of a label that hardly
    /// another fits beside it has a batch of its own.
    pub(super) fn batches<'a>(
        &self,
        mut queries: Vec<&'a Arguments>,
        series: f64,
        estimates: &Estimates,
    ) -> Batches<'a> {
        let by_series = (self.series as f64 / series.max(1.0)) as usize;
        let most = by_series.min(estimates.max_batch).max(1);
        let values = |of: &Arguments| of.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let mut large = Vec::new();
        queries.retain(|query| {
            let is_large = values(query) > self.values / 2;
            if is_large {
                large.push(*query);
            }
            !is_large
        });
        let packed = |most: usize| {
            let (mut sizes, mut named): (Vec<usize>, usize) = (Vec::new(), 0);
            for query in &queries {
                named += values(query);
                match sizes.last_mut() {
                    Some(size) if named <= self.values && *size < most => *size += 1,
                    _ => {
                        named = values(query);
                        sizes.push(1);
                    }
                }
            }
            sizes
        };
        let first = packed(most);
        let equal = packed(queries.len().div_ceil(first.len().max(1)));
        let sizes = if equal.len() <= first.len() { equal } else { first };
        Batches { queries, sizes, large }
    }
}

/// Queries in batches.
pub(super) struct Batches<'a> {
    /// Those that share batches, one batch after the other.
    queries: Vec<&'a Arguments>,
    /// The sizes of these batches.
    sizes: Vec<usize>,
    /// Those with a batch each.
    large: Vec<&'a Arguments>,
}

impl<'a> Batches<'a> {
    /// The number of batches.
    pub(super) fn len(&self) -> usize {
        self.sizes.len() + self.large.len()
    }

    /// The queries of each batch.
    pub(super) fn iter(&self) -> impl Iterator<Item = &[&'a Arguments]> {
        let mut rest = &self.queries[..];
        let shared = self.sizes.iter().map(move |size| {
            let (batch, others) = rest.split_at(*size);
            rest = others;
            batch
        });
        shared.chain(self.large.chunks(1))
    }
}

/// The cost per query of `count` queries in so many filtered batches, each with so many values and series on average.
pub(super) fn filtered(count: usize, batches: usize, values: f64, series: f64) -> f64 {
    batches as f64 * QUERY / count as f64 + values * VALUE + series
}

/// The cost per query of one query by itself.
pub(super) fn single(values: f64, series: f64) -> f64 {
    QUERY + values * VALUE + series
}

/// The cost per query of `count` queries in so many unfiltered ones with so many series together.
pub(super) fn unfiltered(count: usize, queries: usize, series: f64) -> f64 {
    (queries as f64 * QUERY + series) / count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_with_many_values_leaves_the_others_together() {
        let names = |count: usize, workload: usize| {
            let names = (0..count).map(|pod| format!("{workload}-{pod}")).collect();
            Arguments::from(vec![vec!["shop".to_owned()], names])
        };
        let mut queries: Vec<Arguments> = (0..999).map(|workload| names(10, workload)).collect();
        let sizes = |queries: &[Arguments], estimates: Estimates| -> Vec<usize> {
            let queries: Vec<&Arguments> = queries.iter().collect();
            let batches = Limits::default().batches(queries, 20.0, &estimates);
            batches.iter().map(<[_]>::len).collect()
        };
        let first = Estimates::default();
        assert_eq!(sizes(&queries, first), [[25; 39].as_slice(), &[24]].concat());
        queries.insert(500, names(150, 500));
        assert_eq!(sizes(&queries, first), [[25; 39].as_slice(), &[24, 1]].concat());
        assert_eq!(sizes(&queries[..100], Estimates { max_batch: 30, ..first }), [25; 4]);
        // A remainder is spread over all.
        assert_eq!(sizes(&queries[..55], first), [19, 19, 17]);
        assert_eq!(sizes(&queries[500..501], first), [1]);
    }
}
