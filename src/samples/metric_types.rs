//! The types of metrics: counters, whose rate is queried, and gauges.

use crate::cache::{self, Cache};
use crate::prometheus::{Client, Error};
use crate::promql::query::{MetricType, type_by_name};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// A doubt about a metric of unknown type, which is read as a gauge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// Neither the name nor the metadata says whether it is a counter.
    UnknownType,
    /// In addition, its value has not decreased for an hour: it looks like a counter.
    NeverFalls,
}

/// The types of a server's metrics.
pub struct MetricTypes {
    prometheus: Client,
    /// The responses of the metadata API; errors for a moment only.
    metadata: moka::future::Cache<Arc<str>, Metadata>,
    /// The last known types, for as long as the metrics are queried. A counter must not become a
    /// gauge because Prometheus has no metadata after a restart, or does not respond.
    last_known: Cache<Arc<str>, MetricType>,
    /// A series of each metric of unknown type, by the query.
    watched: Cache<Arc<str>, Arc<Mutex<Watched>>>,
}

type Metadata = Result<Option<MetricType>, Error>;

/// A series that is watched for a decrease.
struct Watched {
    /// The value of the label that identifies it.
    label_value: String,
    last: f64,
    /// The time of the last decrease.
    since: Instant,
    /// The increases since then.
    increases: u32,
}

/// The TTL of a type.
const TYPE_TTL: Duration = Duration::from_secs(600);
/// The TTL of a response without a type.
const UNKNOWN_TTL: Duration = Duration::from_secs(60);
/// The TTL of an error.
const ERROR_TTL: Duration = Duration::from_secs(2);
/// How long the last known type of a metric is kept that is not queried.
const LAST_KNOWN_IDLE: Duration = Duration::from_secs(6 * 3600);
/// How long a series must not decrease to look like a counter.
const COUNTER_TIME: Duration = Duration::from_secs(3600);
/// How often it must increase in that time.
const COUNTER_INCREASES: u32 = 10;
/// The bytes of each of the three caches.
pub const METRIC_TYPE_BYTES: usize = 2 << 20;

/// The TTL of metadata, by its content.
struct MetadataTtl;

impl moka::Expiry<Arc<str>, Metadata> for MetadataTtl {
    fn expire_after_create(
        &self,
        _: &Arc<str>,
        metadata: &Metadata,
        _: std::time::Instant,
    ) -> Option<Duration> {
        Some(match metadata {
            Ok(Some(_)) => TYPE_TTL,
            Ok(None) => UNKNOWN_TTL,
            Err(_) => ERROR_TTL,
        })
    }
}

impl MetricTypes {
    /// The types of a server's metrics; none is known yet.
    pub fn new(prometheus: Client) -> Self {
        let weight = |metric: &Arc<str>| cache::weight(metric.len() + size_of::<Metadata>());
        let metadata = moka::future::Cache::builder()
            .max_capacity(METRIC_TYPE_BYTES as u64)
            .weigher(move |metric: &Arc<str>, _: &Metadata| weight(metric))
            .expire_after(MetadataTtl)
            .build();
        let last_known = moka::sync::Cache::builder()
            .max_capacity(METRIC_TYPE_BYTES as u64)
            .weigher(move |metric: &Arc<str>, _: &MetricType| weight(metric))
            .time_to_idle(LAST_KNOWN_IDLE)
            .build();
        let watched = moka::sync::Cache::builder()
            .max_capacity(METRIC_TYPE_BYTES as u64)
            .weigher(|query: &Arc<str>, _: &Arc<Mutex<Watched>>| {
                cache::weight(query.len() + size_of::<Watched>() + 256)
            })
            .time_to_idle(COUNTER_TIME)
            .build();
        Self { prometheus, metadata, last_known, watched }
    }

    /// The type of a metric: by its name, else by its metadata, else by the last known metadata. None if
    /// it was never known.
    ///
    /// # Errors
    /// If the metadata can't be queried and never was. A counter that is taken for a gauge
    /// would scale to the maximum.
    pub async fn of(&self, metric: &str) -> Result<Option<MetricType>, Error> {
        if let Some(known) = type_by_name(metric) {
            return Ok(Some(known));
        }
        let key: Arc<str> = metric.into();
        // One request for all callers at the same time.
        let metadata = self.metadata.get_with(key.clone(), self.query(metric)).await;
        match metadata {
            Ok(Some(known)) => {
                self.last_known.insert(key, known);
                Ok(Some(known))
            }
            Ok(None) => Ok(self.last_known.get(&key)),
            Err(error) => self.last_known.get(&key).map(Some).ok_or(error),
        }
    }

    async fn query(&self, metric: &str) -> Metadata {
        let name = self.prometheus.metric_type(metric).await?;
        Ok(name.map(|name| match name.as_str() {
            "counter" => MetricType::Counter,
            _ => MetricType::Gauge,
        }))
    }

    /// Lets all metadata expire.
    #[cfg(test)]
    pub fn expire(&self) {
        self.metadata.invalidate_all();
    }

    /// Watches the series of a query for a metric of unknown type. One of the series, identified by the value
    /// of a label, is followed from response to response.
    pub fn watch<'a>(
        &self,
        query: &Arc<str>,
        series: impl Iterator<Item = (&'a str, f64)> + Clone,
    ) -> Doubt {
        let now = Instant::now();
        let first = || series.clone().min_by(|(a, _), (b, _)| a.cmp(b));
        let Some((label_value, last)) = first() else { return Doubt::UnknownType };
        let watched = self.watched.get_with_by_ref(query, || {
            let label_value = label_value.to_owned();
            Arc::new(Mutex::new(Watched { label_value, last, since: now, increases: 0 }))
        });
        let mut watched = watched.lock().unwrap_or_else(PoisonError::into_inner);
        match series.clone().find(|(value, _)| *value == watched.label_value) {
            // The pod is gone: another is followed from here on.
            None => (watched.label_value, watched.last) = (label_value.to_owned(), last),
            Some((_, value)) => {
                if value < watched.last {
                    (watched.since, watched.increases) = (now, 0);
                } else if value > watched.last {
                    watched.increases += 1;
                }
                watched.last = value;
            }
        }
        if watched.increases < COUNTER_INCREASES || now.duration_since(watched.since) < COUNTER_TIME
        {
            return Doubt::UnknownType;
        }
        // Logged once.
        if watched.increases == COUNTER_INCREASES {
            tracing::warn!(
                %query,
                "Metric of unknown type has not decreased for an hour, reading it as a gauge"
            );
            watched.increases += 1;
        }
        Doubt::NeverFalls
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prometheus::Options;

    #[tokio::test(start_paused = true)]
    async fn what_never_decreases_for_an_hour_is_doubted() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let types = MetricTypes::new(Client::new(Options::new("http://127.0.0.1:1")).unwrap());
        let look = |query: &str, series: &[(&str, f64)]| {
            types.watch(&query.into(), series.iter().copied())
        };
        let mut minutes = None;
        for minute in 0..90_u32 {
            let counter = f64::from(minute * 7);
            // Its pods are replaced now and then.
            let pod = format!("web-{}", minute / 20);
            let found = look("counter", &[(&pod, counter), ("x", 3.0)]);
            if found == Doubt::NeverFalls && minutes.is_none() {
                minutes = Some(minute);
            }
            let gauge = f64::from(minute % 50);
            assert_eq!(look("gauge", &[("a", gauge)]), Doubt::UnknownType);
            assert_eq!(look("still", &[("a", 5.0)]), Doubt::UnknownType);
            tokio::time::advance(Duration::from_secs(60)).await;
        }
        assert_eq!(minutes, Some(60));
    }
}
