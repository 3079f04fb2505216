//! Why a rule gives no value.

use crate::samples::MetricError;

/// Why a rule gives no value.
#[derive(Clone, Debug, thiserror::Error, PartialEq)]
pub enum RuleQueryError {
    /// No rule serves the metric, or not with such a selector, or no such object exists.
    #[error("no rule gives the metric")]
    NotFound,
    /// No rule is known to serve the metric, and the MetricRules of the namespace are not listed yet.
    #[error("the series of the rules are not listed yet")]
    NotListed,
    /// The metric has no value for the object.
    #[error("the metric has no value for the object")]
    NoValue,
    /// The objects can't be listed.
    #[error("unable to list matching resources: {0}")]
    Unlistable(String),
    /// The selector of the request has a key that can't be a label of a series.
    #[error("{0:?} is no label of a series")]
    Label(String),
    /// The query can't be made.
    #[error("unable to make the query: {0}")]
    Query(String),
    /// The query failed.
    #[error(transparent)]
    Metric(#[from] MetricError),
}
