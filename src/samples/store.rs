//! One answer for everybody who asks for the same metric at the same time.

use super::groups::{Answer, Groups, Run};
use super::table::{Finder, Sampled, Samples, Table};
use crate::aged::Aged;
use crate::prometheus::{Client, Error};
use crate::promql::guard::GuardError;
use crate::promql::plan::Shape;
use crate::promql::query::{MetricKind, PodMetric, PodQueries, QueryError, kind_by_name};
use futures::FutureExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Why a metric has no values.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum MetricError {
    /// It can't be asked for.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// There is no answer.
    #[error(transparent)]
    Prometheus(#[from] Error),
    /// The answer is not one series a pod.
    #[error("{0}")]
    Series(String),
}

/// The samples there are, by the query that gives them.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    prometheus: Client,
    groups: Arc<Groups>,
    /// Queries taken apart, by their text.
    shapes: Aged<Arc<str>, Arc<Shape>>,
    kinds: Aged<String, MetricKind>,
}

/// How long a query taken apart is kept.
const SHAPE_AGE: Duration = Duration::from_secs(600);
/// How many queries taken apart are kept.
const SHAPES: usize = 50_000;
/// How long what Prometheus says of a metric's type is believed.
const KIND_AGE: Duration = Duration::from_secs(600);
/// How many metrics' types are kept.
const KINDS: usize = 10_000;

impl Store {
    /// A store in front of a server, whose answers are used for so long.
    pub fn new(prometheus: Client, max_age: Duration) -> Self {
        let client = prometheus.clone();
        let run: Run = Arc::new(move |query| run(client.clone(), query).boxed());
        Self(Arc::new(Inner {
            prometheus,
            groups: Arc::new(Groups::new(max_age, run)),
            shapes: Aged::new(SHAPE_AGE, SHAPES),
            kinds: Aged::new(KIND_AGE, KINDS),
        }))
    }

    /// The values of a metric for the pods of a namespace, by its label for pods.
    ///
    /// # Errors
    /// As [`MetricError`] says.
    pub async fn pods(
        &self,
        queries: &PodQueries,
        metric: &PodMetric,
        namespace: &str,
    ) -> Result<PodSamples, MetricError> {
        let kind = match &metric.query {
            Some(_) => MetricKind::Gauge,
            None => self.kind(&metric.metric).await?,
        };
        let query = match queries.query(metric, kind, namespace) {
            Err(QueryError::Query { metric: name, error: GuardError::Syntax(ours) }) => {
                // Prometheus says where in the text the fault is; our parser does not.
                let text = metric.query.as_deref().unwrap_or_default();
                let theirs = self.0.prometheus.parse_error(text).await.ok().flatten();
                let error = GuardError::Syntax(theirs.unwrap_or(ours));
                return Err(QueryError::Query { metric: name, error }.into());
            }
            other => other?,
        };
        let samples = self.series(&query).await?;
        let label = queries.pod_label.clone();
        if samples.by(&label).get("").next().is_some() {
            return Err(MetricError::Series(format!(
                "the query gives a series without the label {label}: aggregate by ({label})"
            )));
        }
        Ok(PodSamples { samples, label })
    }

    /// The series that a query gives. Whoever asks while it runs waits for the
    /// same answer; a later one is given it for as long as the store's age. What
    /// is asked at the same time is asked as few queries, as
    /// [`plan`](crate::promql::plan) says.
    ///
    /// # Errors
    /// As [`MetricError`] says.
    pub async fn series(&self, query: &Arc<str>) -> Result<Samples, MetricError> {
        let shape = self.0.shapes.get(query).unwrap_or_else(|| {
            let shape = Arc::new(Shape::of(query));
            self.0.shapes.put(query.clone(), shape.clone());
            shape
        });
        let table = self.0.groups.get(&shape).await?;
        Ok(Samples::new(table, self.0.groups.asked(shape)))
    }

    /// Whether a metric is a counter: by its name, else by what its targets say.
    /// Where Prometheus can't be asked that is an error: a counter taken for a
    /// gauge would ask for every replica there may be.
    async fn kind(&self, metric: &str) -> Result<MetricKind, Error> {
        if let Some(kind) = kind_by_name(metric).or_else(|| self.0.kinds.get(metric)) {
            return Ok(kind);
        }
        match self.ask_kind(metric).await? {
            Some(kind) => {
                self.0.kinds.put(metric.to_owned(), kind);
                Ok(kind)
            }
            // Nothing is said of it yet: ask again next time.
            None => Ok(MetricKind::Gauge),
        }
    }

    async fn ask_kind(&self, metric: &str) -> Result<Option<MetricKind>, Error> {
        if let Some(kind) = self.0.prometheus.metric_type(metric).await? {
            let counter = kind == "counter";
            return Ok(Some(if counter { MetricKind::Counter } else { MetricKind::Gauge }));
        }
        // The parts of a histogram or summary are known by the name of the whole.
        let family = ["_bucket", "_count", "_sum"].iter().find_map(|end| metric.strip_suffix(end));
        let Some(family) = family else { return Ok(None) };
        let kind = self.0.prometheus.metric_type(family).await?;
        Ok(kind.map(|kind| match kind.as_str() {
            "histogram" | "summary" => MetricKind::Counter,
            _ => MetricKind::Gauge,
        }))
    }
}

/// Runs one query.
async fn run(prometheus: Client, query: String) -> Answer {
    let started = Instant::now();
    let answer = prometheus.query(&query).await.and_then(|body| {
        // An answer of many series is work enough to hold others up.
        let read = || Table::read(&body).map_err(Error::Answer);
        if body.len() > LARGE { tokio::task::block_in_place(read) } else { read() }
    });
    match &answer {
        Ok(table) => {
            tracing::debug!(%query, series = table.series(), took = ?started.elapsed(), "queried");
        }
        Err(error) => tracing::warn!(%query, %error, took = ?started.elapsed(), "query failed"),
    }
    Ok(Arc::new(answer?))
}

/// Bytes of an answer beyond which reading it is work for a thread of its own.
const LARGE: usize = 1 << 20;

/// The values of a metric for pods.
#[derive(Clone)]
pub struct PodSamples {
    /// The series.
    pub samples: Samples,
    label: String,
}

impl PodSamples {
    /// The values by pod.
    pub fn by_pod(&self) -> ByPod<'_> {
        ByPod(self.samples.by(&self.label), &self.label)
    }
}

/// Finds the value of a pod.
pub struct ByPod<'a>(Finder<'a>, &'a str);

impl<'a> ByPod<'a> {
    /// A pod's value, where it has one.
    ///
    /// # Errors
    /// Where it has several.
    pub fn get(&self, pod: &str) -> Result<Option<Sampled<'a>>, MetricError> {
        let mut found = self.0.get(pod);
        match (found.next(), found.next()) {
            (found, None) => Ok(found),
            _ => Err(MetricError::Series(format!(
                "the query gives more than one series for the pod {pod}: aggregate by ({})",
                self.1
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(series: &str) -> PodSamples {
        let body = format!(r#"{{"data":{{"resultType":"vector","result":[{series}]}}}}"#);
        let table = Table::read(body.as_bytes()).unwrap();
        let asked = Groups::of_nothing().asked(Shape::of("x").into());
        let samples = Samples::new(table.into(), asked);
        PodSamples { samples, label: "pod".to_owned() }
    }

    #[test]
    fn a_pod_has_one_value_at_most() {
        let samples = samples(
            r#"{"metric":{"pod":"a"},"value":[1,"1.5"]},{"metric":{"pod":"b"},"value":[1,"2"]},
            {"metric":{"pod":"b","i":"2"},"value":[1,"3"]}"#,
        );
        let by_pod = samples.by_pod();
        assert_eq!(by_pod.get("a").unwrap().unwrap().value().to_string(), "1500m");
        assert!(by_pod.get("c").unwrap().is_none());
        let twice = by_pod.get("b").err().unwrap().to_string();
        assert!(twice.contains("more than one series for the pod b"), "{twice}");
    }
}
