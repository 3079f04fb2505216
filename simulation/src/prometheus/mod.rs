//! A Prometheus in memory.
//!
//! It holds the samples of the last minutes and evaluates the PromQL that Plimsoll sends, with the values,
//! labels, order and errors of a real Prometheus 3.x; what it does not know it refuses, and never
//! evaluates wrongly. Whoever uses it scrapes: [`Prometheus::append`] adds a sample,
//! [`Prometheus::stale`] ends a series as a real one does when a series or a whole target is gone.
//! It has no clock: the time comes with each call.
//!
//! The end-to-end test `simulated_prometheus` compares it with a real one.

mod aggregate;
mod binary;
mod compile;
mod error;
mod eval;
mod histogram;
mod labels;
mod matcher;
mod math;
mod node;
mod number;
mod over_time;
mod response;
mod storage;

pub use error::EvaluateError;
pub use labels::Labels;

use eval::{Evaluator, Sample};
use node::Node;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use storage::Storage;

/// How many texts are kept compiled.
const MAX_COMPILED: usize = 1_000;

/// A Prometheus in memory.
pub struct Prometheus {
    storage: Storage,
    /// By metric.
    types: BTreeMap<String, String>,
    compiled: HashMap<String, Result<Arc<Node>, EvaluateError>>,
}

/// The result of a query.
enum Value {
    Scalar(f64),
    Vector(Vec<Sample>),
}

impl Prometheus {
    /// Without samples. Those that are older than the newest by more than `retention` (in whole ms) are
    /// dropped, and a query that needs them is refused; values count for five minutes, so less makes no
    /// sense.
    pub fn new(retention: Duration) -> Self {
        let retention = i64::try_from(retention.as_millis()).unwrap_or(i64::MAX);
        Self { storage: Storage::new(retention), types: BTreeMap::new(), compiled: HashMap::new() }
    }

    /// Adds a sample, at a time in Unix ms. One that is not newer than the last of its series is left
    /// out.
    pub fn append(&mut self, labels: &Labels, at_ms: i64, value: f64) {
        self.storage.append(labels, at_ms, value);
    }

    /// Ends a series, at a time in Unix ms: it has no value from then on until its next sample.
    pub fn stale(&mut self, labels: &Labels, at_ms: i64) {
        self.storage.stale(labels, at_ms);
    }

    /// Sets the type (`counter`, `gauge`, ..) of a metric.
    pub fn set_type(&mut self, metric: &str, metric_type: &str) {
        self.types.insert(metric.to_owned(), metric_type.to_owned());
    }

    /// The number of series in memory.
    pub fn series_count(&self) -> usize {
        self.storage.len()
    }

    /// Answers a request: `api/v1/query`, `api/v1/series`, `api/v1/metadata` and
    /// `api/v1/format_query`, with or without a `/` in front. The status and the body.
    pub fn handle(&mut self, path: &str, form: &[(String, String)], now_ms: i64) -> (u16, String) {
        response::handle(self, path, form, now_ms)
    }

    /// The series of a query at a time in Unix ms; a number is one series without labels.
    ///
    /// # Errors
    /// As [`EvaluateError`] says.
    pub fn evaluate(
        &mut self,
        query: &str,
        at_ms: i64,
    ) -> Result<Vec<(Labels, f64)>, EvaluateError> {
        Ok(match self.value(query, at_ms)? {
            Value::Scalar(value) => vec![(Labels::empty(), value)],
            Value::Vector(samples) => {
                samples.into_iter().map(|sample| (sample.labels, sample.value)).collect()
            }
        })
    }

    fn value(&mut self, query: &str, at_ms: i64) -> Result<Value, EvaluateError> {
        let node = self.compiled(query)?;
        let evaluator = Evaluator::new(&self.storage, at_ms);
        match &*node {
            Node::Scalar(scalar) => evaluator.scalar(scalar).map(Value::Scalar),
            Node::Vector(vector) => evaluator.vector(vector).map(Value::Vector),
        }
    }

    fn compiled(&mut self, query: &str) -> Result<Arc<Node>, EvaluateError> {
        if let Some(known) = self.compiled.get(query) {
            return known.clone();
        }
        let compiled = compile::compile(query).map(Arc::new);
        if self.compiled.len() >= MAX_COMPILED {
            // All at once: which one is the oldest is not worth to be known.
            self.compiled.clear();
        }
        self.compiled.insert(query.to_owned(), compiled.clone());
        compiled
    }
}
