//! Why a query has no result.

use std::fmt;

/// Why a query has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvaluateError {
    /// Prometheus would refuse the text (status 400, `bad_data`).
    Refused(String),
    /// Prometheus would fail to evaluate it (status 422, `execution`).
    Failed(String),
    /// This Prometheus does not evaluate it, though a real one might (status 422, `execution`): what.
    Unsupported(String),
}

impl fmt::Display for EvaluateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(message) => {
                write!(f, "invalid parameter \"query\": 1:1: parse error: {message}")
            }
            Self::Failed(message) => f.write_str(message),
            Self::Unsupported(what) => write!(f, "the simulation does not evaluate {what}"),
        }
    }
}

impl std::error::Error for EvaluateError {}

/// The error of two results that can't be told apart.
pub(super) fn same_labels() -> EvaluateError {
    EvaluateError::Failed("vector cannot contain metrics with the same labelset".to_owned())
}
