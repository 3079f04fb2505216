//! What was found for an autoscaler.

use crate::backtest::{Recommendation, Reproduction};
use serde_json::Value;
use std::collections::BTreeMap;

/// What was found for an autoscaler.
#[derive(Debug)]
pub struct Found {
    /// The result of the search.
    pub recommendation: Recommendation,
    /// How far a backtest of the present spec is what was; none if that is unknown.
    pub reproduction: Option<Reproduction>,
    /// That in words; empty if the load is from a file.
    pub reproduced: String,
    /// What one pod is taken to carry of each metric, in the unit of its target.
    pub carries: BTreeMap<String, f64>,
    /// The span of the load, in words.
    pub span: String,
    /// What is probably a mistake in the present spec, or in the load.
    pub warnings: Vec<String>,
    /// The object with the recommended spec; none where it is kept.
    pub object: Option<Value>,
}
