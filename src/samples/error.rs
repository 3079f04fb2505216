//! Why a metric has no values.

use crate::prometheus;
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
