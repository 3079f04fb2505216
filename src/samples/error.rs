//! Why a metric has no values.

use crate::prometheus::{self, InvalidSample};
use crate::promql::query::QueryError;

/// Why a metric has no values.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum MetricError {
    /// The query can't be made.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The request to Prometheus failed.
    #[error(transparent)]
    Prometheus(#[from] prometheus::Error),
    /// The result has series that can't be used.
    #[error("{0}")]
    Series(String),
}

impl MetricError {
    /// The error of a query with a value that is none.
    pub fn invalid(reason: InvalidSample) -> Self {
        Self::Series(
            match reason {
                InvalidSample::Histogram => {
                    "the query gives native histograms, which are no numbers: write histogram_count(), histogram_sum(), histogram_avg() or histogram_quantile(0.9, ...) around the rate of it"
                }
                InvalidSample::TooLarge => {
                    "a value of the query is beyond 64 bits of thousandths (9.2e15): divide it in the query"
                }
                InvalidSample::NotFinite => {
                    "a value of the query is NaN or infinite, as after a division by zero: write the query so that it gives a number, or no series, then"
                }
            }
            .to_owned(),
        )
    }
}
