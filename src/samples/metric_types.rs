//! The types of metrics: counters, whose rate is queried, and gauges.

use crate::cache;
use crate::prometheus::{Client, Error};
use crate::promql::query::{MetricType, type_by_name};
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
    /// The types by the metadata API, and when they expire; errors are kept for a moment only.
    lookups: moka::sync::Cache<Arc<str>, Arc<OnceCell<(TypeLookup, Instant)>>>,
    /// The last known types, for as long as the metrics are queried. A counter must not become a
    /// gauge because Prometheus has no metadata after a restart, or does not respond.
    last_known: moka::sync::Cache<Arc<str>, MetricType>,
    /// A series of each metric of unknown type, by the query.
    tracked: moka::sync::Cache<Arc<str>, Arc<Mutex<TrackedSeries>>>,
}

/// A type by the metadata API; none if there is no metadata.
type TypeLookup = Result<Option<MetricType>, Error>;

/// A series that may decrease, which a counter does not.
struct TrackedSeries {
    /// The value of the label that identifies it.
    label_value: String,
    last: f64,
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
/// How often it must increase in that time.
const COUNTER_INCREASES: u32 = 10;
/// The bytes of an error's text at most.
const MAX_ERROR_BYTES: u32 = 1_000;
/// The bytes of each of the three caches.
pub const METRIC_TYPE_BYTES: usize = 2 << 20;

/// The TTL of a lookup, by its result.
fn lookup_ttl(lookup: &TypeLookup) -> Duration {
    match lookup {
        Ok(Some(_)) => TYPE_TTL,
        Ok(None) => UNKNOWN_TYPE_TTL,
        Err(_) => ERROR_TTL,
    }
}

impl MetricTypes {
    /// The types of a server's metrics; none is known yet.
    pub fn new(prometheus: Client) -> Self {
        let weight =
            |metric: &Arc<str>| cache::weight(metric.len() + size_of::<(TypeLookup, Instant)>());
        // The result comes later, and may be an error.
        let lookup_weight = move |metric: &Arc<str>| weight(metric).saturating_add(MAX_ERROR_BYTES);
        let lookups = moka::sync::Cache::builder()
            .max_capacity(METRIC_TYPE_BYTES as u64)
            .weigher(move |metric: &Arc<str>, _: &Arc<_>| lookup_weight(metric))
            .time_to_live(TYPE_TTL)
            .build();
        let last_known = moka::sync::Cache::builder()
            .max_capacity(METRIC_TYPE_BYTES as u64)
            .weigher(move |metric: &Arc<str>, _: &MetricType| weight(metric))
            .time_to_idle(LAST_KNOWN_IDLE)
            .build();
        let tracked = moka::sync::Cache::builder()
            .max_capacity(METRIC_TYPE_BYTES as u64)
            .weigher(|query: &Arc<str>, _: &Arc<Mutex<TrackedSeries>>| {
                cache::weight(query.len() + size_of::<TrackedSeries>() + 256)
            })
            .time_to_idle(COUNTER_TIME)
            .build();
        Self { prometheus, lookups, last_known, tracked }
    }

    /// The type of a metric: by its name, else by its metadata, else the last known type. None if it was
    /// never known.
    ///
    /// # Errors
    /// If the metadata can't be queried and never was. A counter that is taken for a gauge
    /// would scale to the maximum.
    pub async fn of(&self, metric: &str) -> Result<Option<MetricType>, Error> {
        if let Some(known) = type_by_name(metric) {
            return Ok(Some(known));
        }
        let key: Arc<str> = metric.into();
        let look_up = async || {
            let lookup = self.look_up(metric).await;
            let expires = Instant::now() + lookup_ttl(&lookup);
            (lookup, expires)
        };
        let expired = |lookup: &Arc<OnceCell<(TypeLookup, Instant)>>| {
            lookup.get().is_some_and(|(_, expires)| *expires <= Instant::now())
        };
        let entry = self.lookups.entry(key.clone()).or_insert_with_if(Arc::default, expired);
        // One request for all callers at the same time.
        let (lookup, _) = entry.into_value().get_or_init(look_up).await.clone();
        match lookup {
            Ok(Some(known)) => {
                self.last_known.insert(key, known);
                Ok(Some(known))
            }
            Ok(None) => Ok(self.last_known.get(&key)),
            Err(error) => self.last_known.get(&key).map(Some).ok_or(error),
        }
    }

    async fn look_up(&self, metric: &str) -> TypeLookup {
        let name = self.prometheus.metric_type(metric).await?;
        Ok(name.map(|name| match name.as_str() {
            "counter" => MetricType::Counter,
            _ => MetricType::Gauge,
        }))
    }

    /// Observes the series of a query for a metric of unknown type. One of the series, identified by the
    /// value of a label, is tracked from response to response.
    pub fn observe<'a>(
        &self,
        query: &Arc<str>,
        series: impl Iterator<Item = (&'a str, f64)> + Clone,
    ) -> TypeWarning {
        let now = Instant::now();
        let first = || series.clone().min_by(|(a, _), (b, _)| a.cmp(b));
        let Some((label_value, last)) = first() else { return TypeWarning::UnknownType };
        let tracked = self.tracked.get_with_by_ref(query, || {
            let label_value = label_value.to_owned();
            Arc::new(Mutex::new(TrackedSeries { label_value, last, since: now, increases: 0 }))
        });
        let mut tracked = tracked.lock().unwrap_or_else(PoisonError::into_inner);
        match series.clone().find(|(value, _)| *value == tracked.label_value) {
            // The pod is gone: another is tracked from here on.
            None => (tracked.label_value, tracked.last) = (label_value.to_owned(), last),
            Some((_, value)) => {
                if value < tracked.last {
                    (tracked.since, tracked.increases) = (now, 0);
                } else if value > tracked.last {
                    tracked.increases += 1;
                }
                tracked.last = value;
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
            types.observe(&query.into(), series.iter().copied())
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
}
