//! The store of query results in front of a Prometheus server.

use super::caller::{Caller, Reader};
use super::coalesce::{Coalescer, SendQuery};
use super::error::MetricError;
use super::handle::QueryHandle;
use super::join::Joiner;
use super::metric_types::MetricTypes;
use super::objects::{ObjectQuery, ObjectSamples, PodQuery};
use super::result::QueryResult;
use super::total::Total;
use crate::cache::{self, Cache};
use crate::intern::Interner;
use crate::prometheus::{Client, Flow, InvalidSample};
use crate::promql::guard::GuardError;
use crate::promql::query::{MetricType, PodQueries, PrometheusMetric, Query, QueryError};
use crate::promql::shape::{QueryShape, ShapedQuery};
use crate::supervise::Spawner;
use futures::FutureExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The results of queries to one server, coalesced and cached.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    prometheus: Client,
    coalescer: Arc<Coalescer>,
    metric_types: MetricTypes,
    caches: Caches,
}

/// The caches by the text of a query. The stores of all servers share them.
#[derive(Clone)]
struct Caches {
    /// The shapes and arguments of queries.
    shaped: Cache<Arc<str>, Arc<ShapedQuery>>,
    /// Their shapes: thousands of queries have the same.
    shapes: Arc<Mutex<Interner<QueryShape>>>,
    /// Guarded queries.
    guarded: Cache<GuardKey, Guarded>,
}

/// A guarded query: a user's query with the namespace in each selector. Or why it is refused.
type Guarded = Result<Arc<str>, GuardError>;

/// A user's query, and everything else that determines the guarded query.
#[derive(PartialEq, Eq, Hash)]
struct GuardKey(Box<str>);

impl GuardKey {
    fn new(queries: &PodQueries, query: &str, namespace: &str) -> Self {
        // Unambiguous: no name of a namespace has a newline, and the query comes last.
        let shared = queries.shared.join("\n");
        let label = &queries.namespace_label;
        Self(format!("{namespace}\n{label:?}\n{}\n{shared}\n{query}", queries.shared.len()).into())
    }
}

/// What is asked for a metric.
struct Asked {
    query: Query,
    caller: Caller,
    /// None if it is unknown.
    metric_type: Option<MetricType>,
}

/// The TTL of a query's shape and arguments.
const SHAPED_QUERY_TTL: Duration = Duration::from_secs(600);
/// The bytes of the cache of shapes and arguments.
pub const SHAPED_QUERY_BYTES: usize = 20 << 20;
/// The largest shape that the queries of it share, in bytes: users choose what is in theirs.
const MAX_SHARED_SHAPE: usize = 2 << 10;
/// The TTL of a guarded query.
const GUARDED_QUERY_TTL: Duration = Duration::from_secs(600);
/// The TTL of a refusal for which Prometheus's own error is not known.
const UNEXPLAINED_REFUSAL_TTL: Duration = Duration::from_secs(60);
/// The longest query that is sent to Prometheus's `format_query`, for its error, although our lexer
/// refuses it. Formatting takes time cubic in the depth of a query. Prometheus does not limit the depth,
/// and Plimsoll can't bound it if its lexer refuses the query.
const MAX_FORMATTED_BYTES: usize = 1024;
/// The bytes of the cache of guarded queries.
pub const GUARDED_QUERY_BYTES: usize = 16 << 20;

impl Caches {
    fn new() -> Self {
        let shaped = cache::of_bytes(
            SHAPED_QUERY_BYTES,
            SHAPED_QUERY_TTL,
            |text: &Arc<str>, query: &Arc<ShapedQuery>| text.len() + query.bytes(),
        );
        let guarded = cache::of_bytes(
            GUARDED_QUERY_BYTES,
            GUARDED_QUERY_TTL,
            |key: &GuardKey, text: &Guarded| {
                let text = text.as_ref().map_or_else(|error| error.to_string().len(), |t| t.len());
                key.0.len() + text
            },
        );
        Self { shaped, shapes: Arc::default(), guarded }
    }
}

impl Store {
    /// A store in front of a server, whose results are cached for `max_age`. Queries are tasks, which
    /// may outlive their callers.
    pub fn new(prometheus: Client, max_age: Duration, spawner: Spawner) -> Self {
        let coalescer = Coalescer::new(max_age, sender(&prometheus, &spawner), spawner);
        Self::with(prometheus, coalescer, Caches::new())
    }

    /// A store in front of another server, which shares this one's memory budgets: for responses,
    /// shapes, users' queries and recent queries.
    pub fn sharing_budget(&self, prometheus: Client, max_age: Duration) -> Self {
        let Inner { prometheus: base_client, coalescer, caches, .. } = &*self.0;
        let prometheus = prometheus.sharing_budget(base_client);
        let coalescer = coalescer.sharing_quota(max_age, sender(&prometheus, &coalescer.spawner));
        Self::with(prometheus, coalescer, caches.clone())
    }

    fn with(prometheus: Client, coalescer: Coalescer, caches: Caches) -> Self {
        let metric_types = MetricTypes::new(prometheus.clone());
        let coalescer = Arc::new(coalescer.counted(prometheus.clone()));
        Self(Arc::new(Inner { prometheus, coalescer, metric_types, caches }))
    }

    /// The values of a metric for the pods of a namespace.
    ///
    /// # Errors
    /// As [`MetricError`] says.
    pub async fn pods(
        &self,
        queries: &PodQueries,
        metric: &PrometheusMetric,
        namespace: &str,
        reader: Reader,
    ) -> Result<ObjectSamples, MetricError> {
        let query = self.pod_query(queries, metric, namespace, reader).await?;
        self.checked_pods(&query, self.samples(&query.query).await?)
    }

    /// The query for the values of a metric for the pods of a namespace.
    ///
    /// # Errors
    /// As [`MetricError`] says.
    pub async fn pod_query(
        &self,
        queries: &PodQueries,
        metric: &PrometheusMetric,
        namespace: &str,
        reader: Reader,
    ) -> Result<PodQuery, MetricError> {
        let Asked { query, caller, metric_type } = self.ask(queries, metric, namespace).await?;
        let (label, caller) = (queries.pod_label.as_str(), caller.read_by(reader));
        let text = query.values.clone();
        Ok(PodQuery { query: self.object_query(&query, label, caller), text, metric_type })
    }

    /// The samples of a query for pods, if they are of pods.
    ///
    /// # Errors
    /// If there is a series of none.
    pub fn checked_pods(
        &self,
        query: &PodQuery,
        mut samples: ObjectSamples,
    ) -> Result<ObjectSamples, MetricError> {
        let ObjectSamples { values, label, .. } = &samples;
        if values.by(label).get("").next().is_some() {
            return Err(MetricError::Series(format!(
                "the query gives a series without the label {label}: aggregate by ({label}), or say per: Workload if it is a total"
            )));
        }
        if query.metric_type.is_none() {
            let series =
                || values.iter().map(|series| (series.label(label), series.value().as_f64()));
            samples.type_warning = Some(self.0.metric_types.observe(&query.text, series));
        }
        Ok(samples)
    }

    /// Whether a query for pods is still the one for its metric, if the same [`PodQueries`] made it. Not if the metric's
    /// type is unknown: then each of its results is [observed](Self::checked_pods).
    pub async fn is_current(
        &self,
        queries: &PodQueries,
        query: &PodQuery,
        metric: &PrometheusMetric,
    ) -> bool {
        let Some(known) = query.metric_type else { return false };
        let namespace = &query.query.caller.namespace;
        let now = || self.0.metric_types.of(queries, &metric.metric, namespace);
        metric.query.is_some() || now().await.is_ok_and(|now| now == Some(known))
    }

    /// The value of a metric of a whole workload.
    ///
    /// # Errors
    /// As [`MetricError`] says, and if there is more than one series, or the value is no finite number.
    pub async fn total(
        &self,
        queries: &PodQueries,
        metric: &PrometheusMetric,
        namespace: &str,
        reader: Reader,
    ) -> Result<Total, MetricError> {
        let Asked { query, caller, metric_type } = self.ask(queries, metric, namespace).await?;
        let (label, caller) = (queries.namespace_label.as_str(), caller.read_by(reader));
        let samples = self.samples(&self.object_query(&query, label, caller)).await?;
        let mut total = Total::of(samples.values, samples.times)?;
        if metric_type.is_none() {
            // As they are: one that falls below zero is no counter.
            let values = || total.values.iter().map(|series| ("", series.value().as_f64()));
            total.type_warning = Some(self.0.metric_types.observe(&query.values, values));
        }
        Ok(total)
    }

    /// The query for a metric of an autoscaler of this namespace.
    async fn ask(
        &self,
        queries: &PodQueries,
        metric: &PrometheusMetric,
        namespace: &str,
    ) -> Result<Asked, MetricError> {
        if let Some(query) = &metric.query {
            let query = self.guarded_query(queries, &metric.metric, query, namespace).await?;
            let caller = Caller::user(namespace);
            return Ok(Asked { query, caller, metric_type: Some(MetricType::Gauge) });
        }
        let metric_type = self.0.metric_types.of(queries, &metric.metric, namespace).await?;
        let query = queries.query(metric, metric_type.unwrap_or(MetricType::Gauge), namespace)?;
        Ok(Asked { query, caller: Caller::of(namespace), metric_type })
    }

    /// The guarded query for a user's query. Guarded queries and refusals are cached.
    async fn guarded_query(
        &self,
        queries: &PodQueries,
        metric: &str,
        query: &str,
        namespace: &str,
    ) -> Result<Query, QueryError> {
        let guarded = &self.0.caches.guarded;
        let key = GuardKey::new(queries, query, namespace);
        let guarded_query = match guarded.get(&key) {
            Some(guarded_query) => guarded_query,
            None => {
                let (guarded_query, ttl) = match queries.guard(query, namespace) {
                    // Prometheus's error has the position in the text; that of our parser does not.
                    Err(GuardError::Syntax(parser_error)) => {
                        self.syntax_error(query, parser_error, namespace).await
                    }
                    Err(GuardError::Lexer(parser_error)) if query.len() <= MAX_FORMATTED_BYTES => {
                        self.syntax_error(query, parser_error, namespace).await
                    }
                    other => (other.map(Into::into), GUARDED_QUERY_TTL),
                };
                guarded.insert_for(ttl, key, guarded_query.clone());
                guarded_query
            }
        };
        match guarded_query {
            Ok(text) => Ok(Query { values: text, times: None }),
            Err(error) => Err(QueryError::Query { metric: metric.to_owned(), error }),
        }
    }

    /// The refusal of a query that our parser rejects, with Prometheus's error, and its TTL.
    async fn syntax_error(
        &self,
        query: &str,
        parser_error: String,
        namespace: &str,
    ) -> (Guarded, Duration) {
        let flows = [Flow::User(namespace.into())];
        match self.0.prometheus.parse_error(query, &flows).await {
            Ok(Some(prometheus_error)) => {
                (Err(GuardError::Syntax(prometheus_error)), GUARDED_QUERY_TTL)
            }
            Ok(None) => (Err(GuardError::UnsupportedByParser(parser_error)), GUARDED_QUERY_TTL),
            Err(_) => (Err(GuardError::Syntax(parser_error)), UNEXPLAINED_REFUSAL_TTL),
        }
    }

    /// A query for objects, by the label that names them.
    pub fn object_query(&self, query: &Query, label: &str, caller: Caller) -> ObjectQuery {
        let times = query.times.as_ref().filter(|_| caller.reader == Reader::Client);
        ObjectQuery {
            values: self.shaped(&query.values),
            times: times.map(|times| self.shaped(times)),
            label: label.into(),
            caller,
        }
    }

    /// The values of a query for objects; for a client with the times at which they were measured.
    ///
    /// # Errors
    /// As [`MetricError`] says of the values. If the query for times fails, values have the
    /// time of the query.
    pub async fn samples(&self, query: &ObjectQuery) -> Result<ObjectSamples, MetricError> {
        let times = async {
            match &query.times {
                Some(times) => self.result(times.clone(), &query.caller).await.ok(),
                None => None,
            }
        };
        let (values, times) = tokio::join!(self.result(query.values.clone(), &query.caller), times);
        let label = query.label.clone();
        Ok(ObjectSamples { values: values?, times, label, type_warning: None })
    }

    /// The series of a query. Concurrent callers share one flight, later ones its cached result.
    /// Concurrent queries are batched, as [`plan`](crate::promql::plan) describes.
    ///
    /// # Errors
    /// As [`MetricError`] says.
    pub async fn series(
        &self,
        query: &Arc<str>,
        caller: &Caller,
    ) -> Result<QueryResult, MetricError> {
        self.result(self.shaped(query), caller).await
    }

    /// The shape and arguments of a query.
    fn shaped(&self, query: &Arc<str>) -> Arc<ShapedQuery> {
        let cache = &self.0.caches.shaped;
        cache.get(query).unwrap_or_else(|| {
            let ShapedQuery { shape, arguments } = ShapedQuery::of(query);
            let shape = match shape.bytes() > MAX_SHARED_SHAPE {
                true => shape,
                false => {
                    let shapes = self.0.caches.shapes.lock();
                    shapes.unwrap_or_else(PoisonError::into_inner).intern(shape)
                }
            };
            let shaped = Arc::new(ShapedQuery { shape, arguments });
            cache.insert(query.clone(), shaped.clone());
            shaped
        })
    }

    async fn result(
        &self,
        shaped: Arc<ShapedQuery>,
        caller: &Caller,
    ) -> Result<QueryResult, MetricError> {
        let coalescer = &self.0.coalescer;
        let table = coalescer.get(&shaped, caller).await?;
        let handle = QueryHandle::new(coalescer.clone(), caller.clone(), shaped);
        let result = QueryResult::new(table, handle);
        match result.invalid_sample() {
            Some(reason @ InvalidSample::Histogram) => Err(MetricError::invalid(reason)),
            _ => Ok(result),
        }
    }
}

/// Sends queries to a server.
fn sender(prometheus: &Client, spawner: &Spawner) -> SendQuery {
    let joiner = Joiner::new(prometheus.clone(), spawner.clone());
    Arc::new(move |query, flows| joiner.clone().query(query, flows).boxed())
}
