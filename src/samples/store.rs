//! One answer for everybody who asks for the same metric at the same time.

use super::flight::{Answer, Asker};
use super::groups::{Groups, Run};
use super::kinds::{Doubt, Kinds};
use super::table::{Finder, Sampled, Samples, Table};
use crate::cache::{self, Cache};
use crate::hpa::UnixMillis;
use crate::k8s::Quantity;
use crate::prometheus::{Client, Error, Flow, NoSample, shortened};
use crate::promql::guard::GuardError;
use crate::promql::plan::Shape;
use crate::promql::query::{MetricKind, PodMetric, PodQueries, Query, QueryError};
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
    /// The answer has other series than can be used.
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
    shapes: Cache<Arc<str>, Arc<Shape>>,
    /// Users' own queries, each with what is run instead, or why nothing is.
    narrowed: Cache<Written, (Narrowed, Instant)>,
    kinds: Kinds,
}

/// What is run instead of a user's query, or why it is refused. It is kept with the
/// time until which it is used.
type Narrowed = Result<Arc<str>, GuardError>;

/// A user's query, and all that what is run instead depends on.
#[derive(PartialEq, Eq, Hash)]
struct Written(Box<str>);

impl Written {
    fn new(queries: &PodQueries, query: &str, namespace: &str) -> Self {
        // No name of a namespace has a newline, and the query comes last.
        let shared = queries.shared.join("\n");
        let label = &queries.namespace_label;
        Self(format!("{namespace}\n{label:?}\n{}\n{shared}\n{query}", queries.shared.len()).into())
    }
}

/// How long a query taken apart is kept.
const SHAPE_AGE: Duration = Duration::from_secs(600);
/// How many bytes of queries taken apart are kept.
pub const SHAPES: usize = 32 << 20;
/// How long it is kept what is run instead of a user's query, or why nothing is.
const NARROWED_AGE: Duration = Duration::from_secs(600);
/// How long Prometheus is not asked again what is wrong with a query, where it failed to say.
const UNSAID: Duration = Duration::from_secs(60);
/// The bytes of a text that Prometheus is asked about, whatever it is. It formats a text in the
/// cube of its depth, for which it has no limit; a longer one must be one whose depth is bounded.
const SAID_OF_ANY: usize = 1024;
/// How many bytes of those are kept.
pub const NARROWED: usize = 16 << 20;
/// How much of a query a warning shows, in bytes.
const SHOWN: usize = 500;

impl Store {
    /// A store in front of a server, whose answers are used for so long.
    pub fn new(prometheus: Client, max_age: Duration) -> Self {
        let shapes = cache::of_bytes(SHAPES, SHAPE_AGE, |text: &Arc<str>, shape: &Arc<Shape>| {
            text.len() + shape.bytes()
        });
        let narrowed =
            cache::of_bytes(NARROWED, NARROWED_AGE, |key: &Written, (text, _): &(Narrowed, _)| {
                let text = text.as_ref().map_or_else(|error| error.to_string().len(), |t| t.len());
                key.0.len() + text
            });
        let groups = Groups::new(max_age, runner(&prometheus));
        Self::with(prometheus, groups, shapes, narrowed)
    }

    /// One in front of another server, which shares this one's bytes: for answers,
    /// for queries taken apart, and for who asked.
    pub fn beside(&self, prometheus: Client, max_age: Duration) -> Self {
        let Inner { prometheus: own, groups, shapes, narrowed, .. } = &*self.0;
        let prometheus = prometheus.sharing(own);
        let groups = groups.beside(max_age, runner(&prometheus));
        Self::with(prometheus, groups, shapes.clone(), narrowed.clone())
    }

    fn with(
        prometheus: Client,
        groups: Groups,
        shapes: Cache<Arc<str>, Arc<Shape>>,
        narrowed: Cache<Written, (Narrowed, Instant)>,
    ) -> Self {
        let kinds = Kinds::new(prometheus.clone());
        let groups = Arc::new(groups);
        Self(Arc::new(Inner { prometheus, groups, shapes, narrowed, kinds }))
    }

    /// The values of a metric for the pods of a namespace, by its label for pods;
    /// where `timed`, with the times at which they were measured.
    ///
    /// # Errors
    /// As [`MetricError`] says.
    pub async fn pods(
        &self,
        queries: &PodQueries,
        metric: &PodMetric,
        namespace: &str,
        timed: bool,
    ) -> Result<ObjectSamples, MetricError> {
        let kind = match &metric.query {
            Some(_) => Some(MetricKind::Gauge),
            None => self.0.kinds.of(&metric.metric).await?,
        };
        let asker = match &metric.query {
            Some(_) => Asker::user(namespace),
            None => Asker::of(namespace),
        };
        let query = match &metric.query {
            Some(own) => self.narrowed(queries, &metric.metric, own, namespace).await?,
            None => queries.query(metric, kind.unwrap_or(MetricKind::Gauge), namespace)?,
        };
        let label = queries.pod_label.clone();
        let mut samples = self.objects(&query, label, timed, &asker).await?;
        let ObjectSamples { samples: values, label, .. } = &samples;
        if values.by(label).get("").next().is_some() {
            return Err(MetricError::Series(format!(
                "the query gives a series without the label {label}: aggregate by ({label})"
            )));
        }
        if kind.is_none() {
            let series: Vec<_> =
                values.iter().map(|one| (one.label(label), one.value().as_f64())).collect();
            samples.doubt = Some(self.0.kinds.look(&query.values, series.into_iter()));
        }
        Ok(samples)
    }

    /// A user's own query, kept within a namespace. It is read once for each
    /// namespace, and refused once.
    async fn narrowed(
        &self,
        queries: &PodQueries,
        metric: &str,
        query: &str,
        namespace: &str,
    ) -> Result<Query, QueryError> {
        let key = Written::new(queries, query, namespace);
        let known = self.0.narrowed.get(&key).filter(|(_, until)| Instant::now() < *until);
        let narrowed = match known {
            Some((known, _)) => known,
            None => {
                let (narrowed, lasts) = match queries.narrowed(query, namespace) {
                    // Prometheus says where in the text the fault is; our parser does not.
                    Err(GuardError::Syntax(ours)) => {
                        self.syntax_error(query, ours, namespace).await
                    }
                    Err(GuardError::Words(ours)) if query.len() <= SAID_OF_ANY => {
                        self.syntax_error(query, ours, namespace).await
                    }
                    other => (other.map(Into::into), NARROWED_AGE),
                };
                self.0.narrowed.insert(key, (narrowed.clone(), Instant::now() + lasts));
                narrowed
            }
        };
        match narrowed {
            Ok(text) => Ok(Query { values: text, times: None }),
            Err(error) => Err(QueryError::Query { metric: metric.to_owned(), error }),
        }
    }

    /// What is wrong with a query that our parser does not read, and for how long that
    /// is kept.
    async fn syntax_error(
        &self,
        query: &str,
        ours: String,
        namespace: &str,
    ) -> (Narrowed, Duration) {
        let flows = [Flow::User(namespace.into())];
        match self.0.prometheus.parse_error(query, &flows).await {
            Ok(Some(theirs)) => (Err(GuardError::Syntax(theirs)), NARROWED_AGE),
            Ok(None) => (Err(GuardError::OnlyOurs(ours)), NARROWED_AGE),
            Err(_) => (Err(GuardError::Syntax(ours)), UNSAID),
        }
    }

    /// The values that a query gives for objects, by the label that names them;
    /// where `timed`, with the times at which they were measured.
    ///
    /// # Errors
    /// As [`MetricError`] says of the values; where times can't be had, values
    /// have the time of the query.
    pub async fn objects(
        &self,
        query: &Query,
        label: String,
        timed: bool,
        asker: &Asker,
    ) -> Result<ObjectSamples, MetricError> {
        let times = async {
            match &query.times {
                Some(times) if timed => self.series(times, asker).await.ok(),
                _ => None,
            }
        };
        let (samples, times) = tokio::join!(self.series(&query.values, asker), times);
        Ok(ObjectSamples { samples: samples?, times, label, doubt: None })
    }

    /// The series that a query gives. Whoever asks while it runs waits for the
    /// same answer; a later one is given it for as long as the store's age. What
    /// is asked at the same time is asked as few queries, as
    /// [`plan`](crate::promql::plan) says.
    ///
    /// # Errors
    /// As [`MetricError`] says.
    pub async fn series(&self, query: &Arc<str>, asker: &Asker) -> Result<Samples, MetricError> {
        let shape = self.0.shapes.get(query).unwrap_or_else(|| {
            let shape = Arc::new(Shape::of(query));
            self.0.shapes.insert(query.clone(), shape.clone());
            shape
        });
        let table = self.0.groups.get(&shape, asker).await?;
        let samples = Samples::new(table, self.0.groups.asked(shape, asker.clone()));
        match samples.no_sample() {
            Some(NoSample::Histogram) => Err(MetricError::Series(
                "the query gives native histograms, which are no numbers: write histogram_count(), histogram_sum(), histogram_avg() or histogram_quantile(0.9, ...) around the rate of it"
                    .to_owned(),
            )),
            _ => Ok(samples),
        }
    }
}

/// What runs queries on a server.
fn runner(prometheus: &Client) -> Run {
    let client = prometheus.clone();
    Arc::new(move |query, flows| run(client.clone(), query, flows).boxed())
}

/// Runs one query.
async fn run(prometheus: Client, query: String, flows: Vec<Flow>) -> Answer {
    let started = Instant::now();
    let answer = prometheus.query(&query, &flows).await.and_then(|body| {
        // An answer of many series is work enough to hold others up.
        let large = body.len() > LARGE;
        let read = || Table::holding(body);
        if large { tokio::task::block_in_place(read) } else { read() }
    });
    let took = started.elapsed();
    match &answer {
        Ok(table) => tracing::debug!(%query, series = table.series(), ?took, "queried"),
        Err(error) => {
            tracing::debug!(%query, %error, ?took, "query failed");
            let query = shortened(&query, SHOWN);
            tracing::warn!(query, %error, ?took, "Failed to query Prometheus");
        }
    }
    Ok(Arc::new(answer?))
}

/// Bytes of an answer beyond which reading it is work for a thread of its own.
const LARGE: usize = 1 << 20;

/// The values of a metric for objects.
#[derive(Clone)]
pub struct ObjectSamples {
    /// The series of the values.
    pub samples: Samples,
    times: Option<Samples>,
    label: String,
    doubt: Option<Doubt>,
}

/// An object's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectSample {
    /// The value.
    pub value: Quantity,
    /// When it was measured, where that was asked for and can be told; else when
    /// it was asked for.
    pub time: UnixMillis,
}

impl ObjectSamples {
    /// What there is to say of a metric whose type nobody knows.
    pub fn doubt(&self) -> Option<Doubt> {
        self.doubt
    }

    /// The values by object.
    pub fn by_object(&self) -> ByObject<'_> {
        ByObject {
            values: self.samples.by(&self.label),
            times: self.times.as_ref().map(|times| times.by(&self.label)),
            label: &self.label,
        }
    }
}

/// Finds the values of an object.
pub struct ByObject<'a> {
    values: Finder<'a>,
    times: Option<Finder<'a>>,
    label: &'a str,
}

impl ByObject<'_> {
    /// The values of an object, in the order of the answer.
    pub fn all<'s>(&'s self, name: &'s str) -> impl Iterator<Item = ObjectSample> + 's {
        self.values.get(name).map(move |sampled| {
            let time = self.times.as_ref().and_then(|times| times.get(name).next());
            let time = time.map_or(sampled.time(), Sampled::as_time);
            ObjectSample { value: sampled.value(), time }
        })
    }

    /// An object's value, where it has one.
    ///
    /// # Errors
    /// Where it has several.
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

    fn samples(series: &str) -> Samples {
        let body = format!(r#"{{"data":{{"resultType":"vector","result":[{series}]}}}}"#);
        Samples::alone(Table::read(body.as_bytes()).unwrap().into(), Shape::of("x").into())
    }

    #[test]
    fn a_pod_has_one_value_at_most_and_the_time_of_its_sample() {
        let values = samples(
            r#"{"metric":{"pod":"a"},"value":[1,"1.5"]},{"metric":{"pod":"b"},"value":[1,"2"]},
            {"metric":{"pod":"b","i":"2"},"value":[1,"3"]},{"metric":{"pod":"d"},"value":[1,"4"]}"#,
        );
        let times = samples(r#"{"metric":{"pod":"a"},"value":[1,"0.25"]}"#);
        let label = "pod".to_owned();
        let samples = ObjectSamples { samples: values, times: Some(times), label, doubt: None };
        let by_pod = samples.by_object();
        let one = by_pod.one("a").unwrap().unwrap();
        assert_eq!((one.value.to_string(), one.time), ("1500m".to_owned(), 250));
        assert_eq!(by_pod.one("d").unwrap().unwrap().time, 1000);
        assert_eq!(by_pod.one("c"), Ok(None));
        let twice = by_pod.one("b").unwrap_err().to_string();
        assert!(twice.contains("more than one series for the pod b"), "{twice}");
    }
}
