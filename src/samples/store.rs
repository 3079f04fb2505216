//! One answer for everybody who asks for the same metric at the same time.

use super::flights::{Answer, Flights};
use crate::aged::Aged;
use crate::hpa::UnixMillis;
use crate::k8s::Quantity;
use crate::prometheus::{Client, Error, Label, Series, decode_vector};
use crate::promql::guard::GuardError;
use crate::promql::query::{
    MetricKind, PodMetric, PodQueries, QueryError, TIME_LABEL, kind_by_name,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A pod's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodSample {
    /// The value.
    pub value: Quantity,
    /// When it was measured.
    pub time: UnixMillis,
}

/// The values of one metric for the pods of one namespace, by pod.
pub type PodSampleSet = HashMap<String, PodSample>;

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

/// One series of an answer, by its labels; NaN and the infinities are no samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// Its labels.
    pub labels: Vec<(String, String)>,
    /// Its value.
    pub value: Quantity,
    /// When it was measured.
    pub time: UnixMillis,
    /// Whether it is a scalar, which has no labels at all.
    pub scalar: bool,
}

impl Sampled {
    /// The time that it holds instead of a value, where it is of that kind.
    pub fn as_time(&self) -> Option<UnixMillis> {
        let is_time = self.labels.iter().any(|(label, _)| label == TIME_LABEL);
        is_time.then(|| seconds(self.value.as_f64()))
    }

    /// The value of a label; empty where it has none, as Prometheus sees it.
    pub fn label(&self, name: &str) -> &str {
        let found = self.labels.iter().find(|(label, _)| label == name);
        found.map_or("", |(_, value)| value.as_str())
    }
}

/// The samples there are, by the query that gives them.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    prometheus: Client,
    pods: Arc<Flights<PodSampleSet>>,
    series: Arc<Flights<Vec<Sampled>>>,
    kinds: Aged<String, MetricKind>,
}

/// How long what Prometheus says of a metric's type is believed.
const KIND_AGE: Duration = Duration::from_secs(600);
/// How many metrics' types are kept.
const KINDS: usize = 10_000;

impl Store {
    /// A store in front of a server, whose answers are used for so long.
    pub fn new(prometheus: Client, max_age: Duration) -> Self {
        Self(Arc::new(Inner {
            prometheus,
            pods: Arc::new(Flights::new(max_age)),
            series: Arc::new(Flights::new(max_age)),
            kinds: Aged::new(KIND_AGE, KINDS),
        }))
    }

    /// The values of a metric for the pods of a namespace. Whoever asks while
    /// the query runs waits for the same answer; a later one is given it for as
    /// long as the store's age.
    ///
    /// # Errors
    /// As [`MetricError`] says.
    pub async fn pods(
        &self,
        queries: &PodQueries,
        metric: &PodMetric,
        namespace: &str,
    ) -> Result<Arc<PodSampleSet>, MetricError> {
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
        let (store, label) = (self.clone(), queries.pod_label.clone());
        let asked = query.clone();
        let run = || async move { store.run(&asked, |series| by_pod(series, &label)).await };
        self.0.pods.get(&query, run).await
    }

    /// The series that a query gives, under the same rules. A scalar is one
    /// series without labels.
    ///
    /// # Errors
    /// As [`MetricError`] says.
    pub async fn series(&self, query: &Arc<str>) -> Answer<Vec<Sampled>> {
        let (store, asked) = (self.clone(), query.clone());
        let owned = |series: &[Series<'_>]| Ok(series.iter().filter_map(sampled).collect());
        self.0.series.get(query, || async move { store.run(&asked, owned).await }).await
    }

    async fn run<T>(
        &self,
        query: &str,
        keep: impl FnOnce(&[Series<'_>]) -> Result<T, MetricError>,
    ) -> Answer<T> {
        let started = Instant::now();
        let answer = match self.0.prometheus.query(query).await {
            Ok(body) => decode_vector(&body)
                .map_err(|error| MetricError::Prometheus(Error::Answer(error)))
                .and_then(|series| keep(&series).map(|kept| (Arc::new(kept), series.len()))),
            Err(error) => Err(error.into()),
        };
        match &answer {
            Ok((_, series)) => {
                tracing::debug!(%query, series, took = ?started.elapsed(), "queried");
            }
            Err(error) => tracing::warn!(%query, %error, took = ?started.elapsed(), "query failed"),
        }
        answer.map(|(kept, _)| kept)
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

fn sampled(series: &Series<'_>) -> Option<Sampled> {
    let value = Quantity::from_f64(series.value)?;
    let own = |(name, value): &Label<'_>| (name.clone().into_owned(), value.clone().into_owned());
    Some(Sampled {
        labels: series.labels.iter().map(own).collect(),
        value,
        time: series.time,
        scalar: series.scalar,
    })
}

fn by_pod(series: &[Series<'_>], pod_label: &str) -> Result<PodSampleSet, MetricError> {
    let mut samples = PodSampleSet::with_capacity(series.len());
    for one in series.iter().filter(|one| one.label(TIME_LABEL).is_none()) {
        let Some(pod) = one.label(pod_label).filter(|pod| !pod.is_empty()) else {
            return Err(MetricError::Series(format!(
                "the query gives a series without the label {pod_label}: aggregate by ({pod_label})"
            )));
        };
        let Some(value) = Quantity::from_f64(one.value) else { continue };
        let sample = PodSample { value, time: one.time };
        if samples.insert(pod.to_owned(), sample).is_some() {
            return Err(MetricError::Series(format!(
                "the query gives more than one series for the pod {pod}: aggregate by ({pod_label})"
            )));
        }
    }
    for time in series.iter().filter(|one| one.label(TIME_LABEL).is_some()) {
        let sample = time.label(pod_label).and_then(|pod| samples.get_mut(pod));
        if let Some(sample) = sample {
            sample.time = seconds(time.value);
        }
    }
    Ok(samples)
}

/// A time that a query gives, in seconds.
fn seconds(time: f64) -> UnixMillis {
    (time * 1000.0) as UnixMillis
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(pod: Option<&'static str>, value: f64) -> Series<'static> {
        let labels = pod.map(|pod| ("pod".into(), pod.into())).into_iter().collect();
        Series { labels, value, time: 0, scalar: false }
    }

    #[test]
    fn samples_are_kept_by_pod() {
        let samples = by_pod(&[series(Some("a"), 1.5), series(Some("b"), 0.0)], "pod").unwrap();
        assert_eq!(samples["a"].value.to_string(), "1500m");
        assert_eq!(samples["b"].value.to_string(), "0");
    }

    #[test]
    fn the_time_is_that_of_the_sample_where_it_is_told() {
        let mut time = series(Some("a"), 1.5);
        time.labels.push((TIME_LABEL.into(), "1".into()));
        let samples = by_pod(&[series(Some("a"), 7.0), time, series(Some("b"), 8.0)], "pod");
        let samples = samples.unwrap();
        assert_eq!((samples["a"].value.milli(), samples["a"].time), (7000, 1500));
        assert_eq!(samples["b"].time, 0);
    }

    #[test]
    fn series_that_are_not_one_a_pod_are_refused() {
        let twice = by_pod(&[series(Some("a"), 1.0), series(Some("a"), 2.0)], "pod");
        assert!(twice.unwrap_err().to_string().contains("more than one series for the pod a"));
        let none = by_pod(&[series(None, 1.0)], "pod").unwrap_err().to_string();
        assert!(none.contains("without the label pod"), "{none}");
    }
}
