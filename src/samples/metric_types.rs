//! The types of metrics: counters, whose rate is queried, and gauges.

use super::caller::{Caller, flows};
use super::shape_queries::MAX_BACKOFF;
use crate::cache;
use crate::prometheus::{self, Client, Error, MetricKinds};
use crate::promql::matcher::label_name;
use crate::promql::query::{MetricType, PodQueries, PrometheusMetric, type_by_name};
use crate::promql::quote::quoted;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio::time::Instant;

/// A warning about a metric of unknown type, which is read as a gauge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypeWarning {
    /// Neither the name nor the metadata says whether it is a counter.
    UnknownType,
    /// In addition, its value has not decreased for an hour.
    LooksLikeCounter,
}

/// The types of a server's metrics.
pub struct MetricTypes {
    prometheus: Client,
    /// The types by the metadata API, and when they expire.
    lookups: moka::sync::Cache<Key, Arc<OnceCell<(TypeLookup, Instant)>>>,
    /// The error of the last lookup that failed: that of the next is often the same.
    last_error: Mutex<Option<Arc<Error>>>,
    /// The last known types, for as long as the metrics are queried. A counter must not become a
    /// gauge because Prometheus has no metadata after a restart, or does not respond.
    last_known: moka::sync::Cache<Key, MetricType>,
    /// A series of each metric of unknown type, by the query.
    tracked: moka::sync::Cache<Arc<str>, Arc<Mutex<TrackedSeries>>>,
    /// Of the values of labels.
    hasher: RandomState,
}

/// A metric of all targets, or of those of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    metric: Arc<str>,
    /// Empty for all targets.
    namespace: Arc<str>,
}

/// The types by the metadata API; errors are kept for a moment only.
type TypeLookup = Result<MetricKinds, Arc<Error>>;

/// A series that may decrease, which a counter does not.
struct TrackedSeries {
    /// The hash of the value of the label that identifies it, which may be long.
    label_value: u64,
    last: f64,
    /// The time of the last response that was observed.
    observed: Instant,
    /// The time of the last decrease.
    since: Instant,
    /// The increases since then.
    increases: u32,
}

/// The TTL of a type, the longest of all.
const TYPE_TTL: Duration = Duration::from_secs(600);
/// The TTL of a lookup without a type.
const UNKNOWN_TYPE_TTL: Duration = Duration::from_secs(60);
/// The TTL of an error.
const ERROR_TTL: Duration = Duration::from_secs(2);
/// How long the last known type of a metric is kept after its last query.
const LAST_KNOWN_IDLE: Duration = Duration::from_secs(6 * 3600);
/// How long a series must not decrease to look like a counter.
const COUNTER_TIME: Duration = Duration::from_secs(3600);
/// How often its series are looked at.
const OBSERVED_EVERY: Duration = Duration::from_secs(1);
/// How often it must increase in that time.
const COUNTER_INCREASES: u32 = 10;
/// The bytes of each of the three caches: some 6,000 names.
pub const METRIC_TYPE_BYTES: usize = 2 << 20;

/// The TTL of a lookup, by its result.
fn lookup_ttl(lookup: &TypeLookup) -> Duration {
    match lookup {
        Ok(kinds) if kinds.counter || kinds.other => TYPE_TTL,
        Ok(_) => UNKNOWN_TYPE_TTL,
        // That of a proxy, which does not pass this name, or no look-ups.
        Err(error) if matches!(**error, Error::Blocked { .. }) => MAX_BACKOFF,
        Err(_) => ERROR_TTL,
    }
}

/// The type, if all targets that have one agree.
fn agreed(kinds: MetricKinds) -> Option<MetricType> {
    match (kinds.counter, kinds.other) {
        (true, false) => Some(MetricType::Counter),
        (false, true) => Some(MetricType::Gauge),
        _ => None,
    }
}

/// The type by which a command reads one metric: a gauge if it is not known, or a query reads it.
///
/// # Errors
/// As of [`MetricTypes::of`].
pub async fn type_of_one(
    prometheus: &Client,
    queries: &PodQueries,
    metric: &PrometheusMetric,
    namespace: &str,
) -> Result<MetricType, Error> {
    if metric.query.is_some() {
        return Ok(MetricType::Gauge);
    }
    let known = MetricTypes::new(prometheus.clone()).of(queries, &metric.metric, namespace).await?;
    Ok(known.unwrap_or(MetricType::Gauge))
}

impl MetricTypes {
    /// The types of a server's metrics; none is known yet.
    pub fn new(prometheus: Client) -> Self {
        let weight = |key: &Key| key.metric.len() + key.namespace.len() + size_of::<Key>();
        let lookups = moka::sync::Cache::builder()
            .max_capacity(METRIC_TYPE_BYTES as u64)
            .weigher(move |key: &Key, _: &Arc<_>| {
                cache::weight(weight(key) + size_of::<OnceCell<(TypeLookup, Instant)>>())
            })
            .time_to_live(TYPE_TTL)
            .build();
        let last_known = moka::sync::Cache::builder()
            .max_capacity(METRIC_TYPE_BYTES as u64)
            .weigher(move |key: &Key, _: &MetricType| cache::weight(weight(key)))
            .time_to_idle(LAST_KNOWN_IDLE)
            .build();
        let tracked = moka::sync::Cache::builder()
            .max_capacity(METRIC_TYPE_BYTES as u64)
            .weigher(|query: &Arc<str>, _: &Arc<Mutex<TrackedSeries>>| {
                cache::weight(query.len() + size_of::<TrackedSeries>() + 256)
            })
            .time_to_idle(COUNTER_TIME)
            .build();
        let (last_error, hasher) = (Mutex::default(), RandomState::new());
        Self { prometheus, lookups, last_error, last_known, tracked, hasher }
    }

    /// The type of a metric for autoscalers of a namespace: by its name, else by its metadata, else the last known type.
    /// If targets disagree, those of the namespace decide: a tenant's own metadata must not turn the gauge of another
    /// into a counter. None if it was never known.
    ///
    /// # Errors
    /// If the metadata can't be queried, or is contradictory, and the type was never known. A counter that is taken for
    /// a gauge would scale to the maximum.
    pub async fn of(
        &self,
        queries: &PodQueries,
        metric: &str,
        namespace: &str,
    ) -> Result<Option<MetricType>, Error> {
        if let Some(known) = type_by_name(metric) {
            return Ok(Some(known));
        }
        let of_all = Key { metric: metric.into(), namespace: "".into() };
        let of_own = Key { namespace: namespace.into(), ..of_all.clone() };
        let last_known = || self.last_known.get(&of_own).or_else(|| self.last_known.get(&of_all));
        let failed = |error: Error| last_known().map(Some).ok_or(error);
        // The namespace that asks first pays: names without end wait in its queue. So do those who ask for the same name
        // meanwhile.
        let flows = flows(std::iter::once(&Caller::of(namespace)));
        let of_targets = prometheus::metric_kinds(&self.prometheus, metric, &flows);
        let is_known = last_known().is_some();
        let all = match self.lookup(&of_all, of_targets, is_known).await {
            Ok(kinds) => kinds,
            Err(error) => return failed(error),
        };
        if let Some(known) = agreed(all) {
            self.last_known.insert(of_all, known);
            return Ok(Some(known));
        }
        if !all.counter {
            return Ok(last_known());
        }
        let targets = format!("{{{}={}}}", label_name(&queries.namespace_label), quoted(namespace));
        let own = prometheus::target_kinds(&self.prometheus, metric, &targets, &flows);
        match self.lookup(&of_own, own, is_known).await.map(agreed) {
            Ok(Some(known)) => {
                self.last_known.insert(of_own, known);
                Ok(Some(known))
            }
            Ok(None) => last_known().map(Some).ok_or_else(|| {
                Error::InvalidResponse(format!(
                    "by the metadata of its targets {metric} is a counter and something else: write a query for it"
                ))
            }),
            Err(error) => failed(error),
        }
    }

    /// A lookup, from the cache or by this request: one for all callers at the same time. One that fails counts as a query
    /// that does, unless a type is known by which the query is sent.
    async fn lookup(
        &self,
        key: &Key,
        request: impl Future<Output = Result<MetricKinds, Error>>,
        is_known: bool,
    ) -> Result<MetricKinds, Error> {
        let look_up = async || {
            let lookup = request.await.map_err(|error| {
                if !is_known {
                    self.prometheus.count_queries(1, Some(&error));
                }
                self.shared(error)
            });
            let expires = Instant::now() + lookup_ttl(&lookup);
            (lookup, expires)
        };
        let expired = |lookup: &Arc<OnceCell<(TypeLookup, Instant)>>| {
            lookup.get().is_some_and(|(_, expires)| *expires <= Instant::now())
        };
        let entry = self.lookups.entry_by_ref(key).or_insert_with_if(Arc::default, expired);
        let (lookup, _) = entry.into_value().get_or_init(look_up).await.clone();
        lookup.map_err(|error| (*error).clone())
    }

    /// An error, in the memory of the last one if that is the same: when Prometheus is down, there is one for each name.
    fn shared(&self, error: Error) -> Arc<Error> {
        let mut last = self.last_error.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some(last) if **last == error => last.clone(),
            _ => last.insert(Arc::new(error)).clone(),
        }
    }

    /// Observes the series of a query for a metric of unknown type, at most once a second: there may be
    /// thousands of readers of one response. One of the series, identified by the value of a label, is tracked from
    /// response to response.
    pub fn observe<'a, S: Iterator<Item = (&'a str, f64)>>(
        &self,
        query: &Arc<str>,
        series: impl Fn() -> S,
    ) -> TypeWarning {
        let now = Instant::now();
        let hash = |label_value: &str| self.hasher.hash_one(label_value);
        let first = || series().min_by(|(a, _), (b, _)| a.cmp(b));
        let tracked = match self.tracked.get(query) {
            Some(tracked) => tracked,
            None => {
                let Some((label_value, last)) = first() else { return TypeWarning::UnknownType };
                let label_value = hash(label_value);
                let new =
                    TrackedSeries { label_value, last, observed: now, since: now, increases: 0 };
                self.tracked.get_with_by_ref(query, || Arc::new(Mutex::new(new)))
            }
        };
        let mut tracked = tracked.lock().unwrap_or_else(PoisonError::into_inner);
        if now.duration_since(tracked.observed) >= OBSERVED_EVERY {
            tracked.observed = now;
            match series().find(|(value, _)| hash(value) == tracked.label_value) {
                Some((_, value)) => {
                    if value < tracked.last {
                        (tracked.since, tracked.increases) = (now, 0);
                    } else if value > tracked.last {
                        tracked.increases += 1;
                    }
                    tracked.last = value;
                }
                // The pod is gone: another is tracked from here on.
                None => {
                    if let Some((label_value, last)) = first() {
                        (tracked.label_value, tracked.last) = (hash(label_value), last);
                    }
                }
            }
        }
        if tracked.increases < COUNTER_INCREASES || now.duration_since(tracked.since) < COUNTER_TIME
        {
            return TypeWarning::UnknownType;
        }
        // Logged once.
        if tracked.increases == COUNTER_INCREASES {
            tracing::warn!(
                %query,
                "Metric of unknown type has not decreased for an hour, reading it as a gauge"
            );
            tracked.increases += 1;
        }
        TypeWarning::LooksLikeCounter
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prometheus::Options;

    #[tokio::test(start_paused = true)]
    async fn what_never_decreases_for_an_hour_looks_like_a_counter() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let types = MetricTypes::new(Client::new(Options::new("http://127.0.0.1:1")).unwrap());
        let look = |query: &str, series: &[(&str, f64)]| {
            types.observe(&query.into(), || series.iter().copied())
        };
        let mut minutes = None;
        for minute in 0..90_u32 {
            let counter = f64::from(minute * 7);
            // Its pods are replaced now and then.
            let pod = format!("web-{}", minute / 20);
            let found = look("counter", &[(&pod, counter), ("x", 3.0)]);
            if found == TypeWarning::LooksLikeCounter && minutes.is_none() {
                minutes = Some(minute);
            }
            let gauge = f64::from(minute % 50);
            assert_eq!(look("gauge", &[("a", gauge)]), TypeWarning::UnknownType);
            assert_eq!(look("still", &[("a", 5.0)]), TypeWarning::UnknownType);
            tokio::time::advance(Duration::from_secs(60)).await;
        }
        assert_eq!(minutes, Some(60));
    }

    #[tokio::test(start_paused = true)]
    async fn of_a_thousand_readers_one_looks_at_the_series() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let types = MetricTypes::new(Client::new(Options::new("http://127.0.0.1:1")).unwrap());
        let looked = std::cell::Cell::new(0);
        let query = "x".into();
        for _ in 0..3 {
            for _ in 0..1_000 {
                types.observe(&query, || {
                    looked.set(looked.get() + 1);
                    [("a", 1.0)].into_iter()
                });
            }
            tokio::time::advance(OBSERVED_EVERY).await;
        }
        assert_eq!(looked.get(), 3);
    }
}
