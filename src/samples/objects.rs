//! The values of a metric by object, such as a pod.

use super::caller::Caller;
use super::error::MetricError;
use super::metric_types::TypeWarning;
use super::result::{Lookup, QueryResult, SeriesRef};
use super::table::Table;
use crate::k8s::Quantity;
use crate::promql::query::MetricType;
use crate::promql::shape::ShapedQuery;
use crate::time::UnixMillis;
use std::sync::{Arc, Weak};

/// A query for the values of a metric for objects, ready to be asked for.
pub struct ObjectQuery {
    pub(super) values: Arc<ShapedQuery>,
    /// The query for the times at which they were measured, for a client.
    pub(super) times: Option<Arc<ShapedQuery>>,
    /// The label that names the object.
    pub(super) label: Arc<str>,
    pub(super) caller: Caller,
}

impl ObjectQuery {
    /// The approximate memory in bytes.
    pub fn bytes(&self) -> usize {
        let times = self.times.as_ref().map_or(0, |times| times.bytes());
        size_of::<Self>() + self.values.bytes() + times
    }
}

/// The same for the pods of a namespace.
pub struct PodQuery {
    /// The query.
    pub query: ObjectQuery,
    /// The query for the values, as text.
    pub(super) text: Arc<str>,
    /// None if it is unknown.
    pub(super) metric_type: Option<MetricType>,
}

impl PodQuery {
    /// Whether [`Store::is_current`](super::Store::is_current) can tell if it is.
    pub fn may_be_kept(&self) -> bool {
        self.metric_type.is_some()
    }
}

/// The values of a metric for objects.
#[derive(Clone)]
pub struct ObjectSamples {
    /// The series of the values.
    pub values: QueryResult,
    /// The times at which they were measured, if they were queried.
    pub(super) times: Option<QueryResult>,
    /// The label that names the object.
    pub(super) label: Arc<str>,
    pub(super) type_warning: Option<TypeWarning>,
}

/// An object's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectSample {
    /// The value.
    pub value: Quantity,
    /// When it was measured if that was queried and is known, otherwise the time of the query.
    pub time: UnixMillis,
}

impl ObjectSamples {
    /// A warning about the type of the metric.
    pub fn type_warning(&self) -> Option<TypeWarning> {
        self.type_warning
    }

    /// Tells them from later ones.
    pub fn origin(&self) -> Origin {
        Origin { values: self.values.origin(), times: self.times.as_ref().map(QueryResult::origin) }
    }

    /// A lookup of the values by object.
    pub fn by_object(&self) -> ByObject<'_> {
        ByObject {
            values: self.values.by(&self.label),
            times: self.times.as_ref().map(|times| times.by(&self.label)),
            label: &self.label,
        }
    }
}

/// The responses of Prometheus that samples are of. It does not keep them.
#[derive(Clone)]
pub struct Origin {
    values: Weak<Table>,
    times: Option<Weak<Table>>,
}

impl PartialEq for Origin {
    fn eq(&self, other: &Self) -> bool {
        let same_times = match (&self.times, &other.times) {
            (Some(these), Some(those)) => these.ptr_eq(those),
            (these, those) => these.is_none() && those.is_none(),
        };
        self.values.ptr_eq(&other.values) && same_times
    }
}

/// Finds the values of an object.
pub struct ByObject<'a> {
    values: Lookup<'a>,
    times: Option<Lookup<'a>>,
    label: &'a str,
}

impl ByObject<'_> {
    /// The values of an object, in the order of the response.
    pub fn all<'s>(&'s self, name: &'s str) -> impl Iterator<Item = ObjectSample> + 's {
        self.values.get(name).map(move |series| {
            let time = self.times.as_ref().and_then(|times| times.get(name).next());
            let time = time.map_or(series.time(), SeriesRef::as_time);
            ObjectSample { value: series.value(), time }
        })
    }

    /// The value of an object; none if it has none.
    ///
    /// # Errors
    /// If it has several.
    pub fn one(&self, name: &str) -> Result<Option<ObjectSample>, MetricError> {
        let mut found = self.all(name);
        match (found.next(), found.next()) {
            (found, None) => Ok(found),
            _ => Err(MetricError::Series(format!(
                "the query gives more than one series for the pod {name}: aggregate by ({})",
                self.label
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(series: &str) -> QueryResult {
        let body = format!(r#"{{"data":{{"resultType":"vector","result":[{series}]}}}}"#);
        let table = Table::read(body.as_bytes()).unwrap();
        QueryResult::detached(table.into(), ShapedQuery::of("x").into())
    }

    #[test]
    fn a_pod_has_one_value_at_most_and_the_time_of_its_sample() {
        let values = result(
            r#"{"metric":{"pod":"a"},"value":[1,"1.5"]},{"metric":{"pod":"b"},"value":[1,"2"]},
            {"metric":{"pod":"b","i":"2"},"value":[1,"3"]},{"metric":{"pod":"d"},"value":[1,"4"]}"#,
        );
        let times = result(r#"{"metric":{"pod":"a"},"value":[1,"0.25"]}"#);
        let label = "pod".into();
        let samples = ObjectSamples { values, times: Some(times), label, type_warning: None };
        let by_pod = samples.by_object();
        let one = by_pod.one("a").unwrap().unwrap();
        assert_eq!((one.value.to_string(), one.time), ("1500m".to_owned(), 250));
        assert_eq!(by_pod.one("d").unwrap().unwrap().time, 1000);
        assert_eq!(by_pod.one("c"), Ok(None));
        let twice = by_pod.one("b").unwrap_err().to_string();
        assert!(twice.contains("more than one series for the pod b"), "{twice}");
    }
}
