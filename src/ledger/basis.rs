//! What decisions are based on, which all entries of an autoscaler share as long as it stays the same.

use crate::hpa::OnError;
use crate::time::UnixMillis;
use std::sync::Arc;

/// What the decisions of an autoscaler are based on: it changes with its spec, the bounds by its
/// schedules, and the queries of its metrics.
#[derive(Clone, Debug, PartialEq)]
pub struct Basis {
    /// The lower bound of the replicas.
    pub min: i32,
    /// The upper bound of the replicas.
    pub max: i32,
    /// The schedules whose bounds these are: of the lower and of the upper one.
    pub schedules: [Option<Arc<str>>; 2],
    /// When the schedules change the bounds next.
    pub bounds_until: Option<UnixMillis>,
    /// The stabilization windows of scale-up and scale-down, in ms.
    pub windows: [i64; 2],
    /// How far the ratio of a metric may be below and above 1 without a change.
    pub tolerance: [f64; 2],
    /// Whether `selectPolicy: Disabled` prevents more replicas, and fewer.
    pub disabled: [bool; 2],
    /// The metrics, in the order of the spec.
    pub metrics: Arc<[MetricBasis]>,
}

/// A metric of the spec.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricBasis {
    /// Its name.
    pub name: Arc<str>,
    /// What tells it from others of its name: a container, a described object or a selector.
    pub scope: Option<Arc<str>>,
    /// The query that its values come from, if Plimsoll itself queries it.
    pub query: Option<Arc<str>>,
    /// Its target.
    pub target: Target,
    /// The total, in milli-units, up to which it is not active at zero replicas.
    pub activation: Option<i64>,
    /// What is done while it fails, if not upstream's way.
    pub on_error: Option<OnError>,
}

/// The target of a metric: in milli-units, or percent of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Of the average of the pods, or of the total divided by the replicas.
    Average(i64),
    /// Of the value itself.
    Value(i64),
    /// In percent of the requests.
    Utilization(i32),
    /// The spec gives none that is valid.
    Invalid,
}

impl Target {
    /// The number that a value is divided by.
    pub fn number(self) -> i64 {
        match self {
            Self::Average(milli) | Self::Value(milli) => milli,
            Self::Utilization(percent) => percent.into(),
            Self::Invalid => 0,
        }
    }
}

/// The longest text of a failure, in bytes: users write queries, and backends errors.
const MAX_TEXT: usize = 512;
/// The longest name of a metric, in bytes.
const MAX_NAME: usize = 256;
/// The longest query of a metric, in bytes: what is longer is cut.
pub const MAX_QUERY: usize = 2048;

/// A text of a failure within 512 bytes.
pub fn bounded(text: &str) -> String {
    within(text, MAX_TEXT)
}

/// A text of at most so many bytes, and an ellipsis.
fn within(text: &str, most: usize) -> String {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    match end.filter(|end| *end < text.len()) {
        Some(end) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

impl MetricBasis {
    /// A metric. A name of more than 256 bytes and a query of more than 2,048 are cut: they are shown with each
    /// decision.
    pub fn new(name: &str, query: Option<Arc<str>>, target: Target) -> Self {
        let cut = |text: Arc<str>| match text.len() > MAX_QUERY + "...".len() {
            true => within(&text, MAX_QUERY).into(),
            false => text,
        };
        let name = match name.len() > MAX_NAME + "...".len() {
            true => within(name, MAX_NAME).into(),
            false => name.into(),
        };
        let (scope, activation, on_error) = (None, None, None);
        Self { name, scope, query: query.map(cut), target, activation, on_error }
    }

    /// The same, told from others of its name by this text, which is cut after 256 bytes.
    #[must_use]
    pub fn with_scope(self, scope: Option<&str>) -> Self {
        Self { scope: scope.map(|scope| within(scope, MAX_NAME).into()), ..self }
    }
}

impl Basis {
    /// One for tests, with the rules that a spec has by default.
    #[cfg(test)]
    pub fn fake(metrics: impl Into<Arc<[MetricBasis]>>) -> Self {
        Self {
            min: 1,
            max: 9,
            schedules: [None, None],
            bounds_until: None,
            windows: [0, 300_000],
            tolerance: [0.1, 0.1],
            disabled: [false; 2],
            metrics: metrics.into(),
        }
    }

    /// The approximate memory in bytes.
    pub fn bytes(&self) -> usize {
        let metric = |metric: &MetricBasis| {
            let query = metric.query.as_ref().map_or(0, |query| query.len());
            let scope = metric.scope.as_ref().map_or(0, |scope| scope.len());
            size_of::<MetricBasis>() + metric.name.len() + scope + query + 32
        };
        size_of::<Self>() + self.metrics.iter().map(metric).sum::<usize>()
    }
}
