//! The value of a metric of a whole workload.

use super::error::MetricError;
use super::metric_types::TypeWarning;
use super::objects::ObjectSample;
use super::result::{QueryResult, SeriesRef};
use crate::k8s::Quantity;

/// The value of a metric of a whole workload.
#[derive(Clone)]
pub struct Total {
    /// The result of the query.
    pub values: QueryResult,
    /// The value; none if the query gave no series.
    pub sample: Option<ObjectSample>,
    /// A warning about the type of the metric.
    pub type_warning: Option<TypeWarning>,
}

/// The most series that an error counts.
const MAX_COUNTED: usize = 100;

impl Total {
    /// The value of a query that gives one series at most.
    ///
    /// # Errors
    /// If it gives more than one, or one whose value is no finite number within 64 bits of
    /// thousandths: neither is the same as an empty result.
    pub(super) fn of(values: QueryResult, times: Option<QueryResult>) -> Result<Self, MetricError> {
        if let Some(reason) = values.invalid_sample() {
            return Err(MetricError::invalid(reason));
        }
        // Thousands of metrics may read a response of thousands of series.
        let found = values.first(MAX_COUNTED + 1);
        if found.len() > 1 {
            let many = match found.len() {
                all @ ..=MAX_COUNTED => all.to_string(),
                _ => format!("more than {MAX_COUNTED}"),
            };
            return Err(MetricError::Series(format!(
                "the query gives {many} series: one was expected, as of sum(...), because per is Workload"
            )));
        }
        let sample = found.first().map(|series| {
            let time = times.as_ref().and_then(|times| times.first(1).pop());
            let time = time.map_or(series.time(), SeriesRef::as_time);
            ObjectSample { value: Self::counted(series.value()), time }
        });
        Ok(Self { values, sample, type_warning: None })
    }

    /// A value as it counts: one below zero, such as the difference of two series of which one was scraped first, is 0,
    /// as KEDA reads it. kube-controller-manager takes it for an overflow and asks for maxReplicas, and so does a
    /// decision, which is the same.
    pub fn counted(value: Quantity) -> Quantity {
        value.max(Quantity::default())
    }
}
