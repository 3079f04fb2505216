//! The samples of one metric as they were fetched, before they are aligned with pods.

use crate::hpa::{Metric, MetricSource, Sample};

/// The samples of one metric. Errors are causes; the decision completes their text.
pub enum Fetched {
    /// For metrics of pods: one for each item of the response.
    PerPod(Result<Vec<(String, Option<Sample>)>, String>),
    /// For Object metrics, in milli-units.
    Value(Result<i64, String>),
    /// For External metrics, in milli-units.
    Values(Result<Vec<i64>, String>),
}

impl Fetched {
    /// A metric that could not be read.
    pub fn failed(metric: &Metric, error: String) -> Self {
        match &metric.source {
            MetricSource::Pods { .. }
            | MetricSource::Resource { .. }
            | MetricSource::ContainerResource { .. } => Self::PerPod(Err(error)),
            MetricSource::External { .. } => Self::Values(Err(error)),
            MetricSource::Object { .. } | MetricSource::Unknown(_) => Self::Value(Err(error)),
        }
    }
}

/// The error of a metric of pods for a scale without selector.
pub const NO_SELECTOR: &str = "the scale has no selector: its pods are not known";

/// Whether a metric is read for each pod of the selector.
pub fn is_of_pods(metric: &Metric) -> bool {
    match &metric.source {
        MetricSource::Pods { .. }
        | MetricSource::Resource { .. }
        | MetricSource::ContainerResource { .. } => true,
        MetricSource::Object { .. } | MetricSource::External { .. } | MetricSource::Unknown(_) => {
            false
        }
    }
}
