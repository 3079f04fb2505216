//! Which metrics are counters.

use crate::cache::{self, Cache};
use crate::prometheus::{Client, Error};
use crate::promql::query::{MetricKind, kind_by_name};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// What there is to say of a metric that is read as a gauge because nothing says
/// what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// Neither its name nor metadata says whether it is a counter.
    UnknownType,
    /// Besides, its value has not fallen for an hour: it looks like a counter.
    NeverFalls,
}

/// The kinds of a server's metrics.
pub struct Kinds {
    prometheus: Client,
    /// What Prometheus said lately; the last error for a moment.
    told: moka::future::Cache<Arc<str>, Told>,
    /// What it said last, for as long as the metric is asked for: an empty answer
    /// right after its restart, or none, makes no gauge of a counter.
    known: Cache<Arc<str>, MetricKind>,
    /// Series of metrics of no known kind, by the query for them.
    watched: Cache<Arc<str>, Arc<Mutex<Watched>>>,
}

type Told = Result<Option<MetricKind>, Error>;

/// A series that is looked at for whether it ever falls.
struct Watched {
    /// The value of its label.
    of: String,
    last: f64,
    since: Instant,
    rises: u32,
}

/// How long what Prometheus says is believed.
const TOLD: Duration = Duration::from_secs(600);
/// How long it is believed that it knows nothing.
const UNKNOWN: Duration = Duration::from_secs(60);
/// How long a failure is not asked for again.
const FAILED: Duration = Duration::from_secs(2);
/// How long a kind is known that nobody asks for.
const IDLE: Duration = Duration::from_secs(6 * 3600);
/// How long a counter is looked at before it is said to be one, and how often it
/// must have risen.
const RISING: Duration = Duration::from_secs(3600);
const RISES: u32 = 10;
/// The bytes of each of the three caches.
pub const KINDS: usize = 2 << 20;

struct Ages;

impl moka::Expiry<Arc<str>, Told> for Ages {
    fn expire_after_create(
        &self,
        _: &Arc<str>,
        told: &Told,
        _: std::time::Instant,
    ) -> Option<Duration> {
        Some(match told {
            Ok(Some(_)) => TOLD,
            Ok(None) => UNKNOWN,
            Err(_) => FAILED,
        })
    }
}

impl Kinds {
    /// Those of a server; nothing is known yet.
    pub fn new(prometheus: Client) -> Self {
        let weight = |metric: &Arc<str>| cache::weight(metric.len() + size_of::<Told>());
        let told = moka::future::Cache::builder()
            .max_capacity(KINDS as u64)
            .weigher(move |metric: &Arc<str>, _: &Told| weight(metric))
            .expire_after(Ages)
            .build();
        let known = moka::sync::Cache::builder()
            .max_capacity(KINDS as u64)
            .weigher(move |metric: &Arc<str>, _: &MetricKind| weight(metric))
            .time_to_idle(IDLE)
            .build();
        let watched = moka::sync::Cache::builder()
            .max_capacity(KINDS as u64)
            .weigher(|query: &Arc<str>, _: &Arc<Mutex<Watched>>| {
                cache::weight(query.len() + size_of::<Watched>() + 256)
            })
            .time_to_idle(RISING)
            .build();
        Self { prometheus, told, known, watched }
    }

    /// Whether a metric is a counter: by its name, else by what its targets say,
    /// else by what they said last. None where nothing ever said.
    ///
    /// # Errors
    /// Where Prometheus can't be asked and never was: a counter taken for a gauge
    /// would ask for every replica there may be.
    pub async fn of(&self, metric: &str) -> Result<Option<MetricKind>, Error> {
        if let Some(kind) = kind_by_name(metric) {
            return Ok(Some(kind));
        }
        let key: Arc<str> = metric.into();
        // One request for all who ask at once.
        let told = self.told.get_with(key.clone(), self.ask(metric)).await;
        match told {
            Ok(Some(kind)) => {
                self.known.insert(key, kind);
                Ok(Some(kind))
            }
            Ok(None) => Ok(self.known.get(&key)),
            Err(error) => self.known.get(&key).map(Some).ok_or(error),
        }
    }

    async fn ask(&self, metric: &str) -> Told {
        let kind = self.prometheus.metric_type(metric).await?;
        Ok(kind.map(|kind| match kind.as_str() {
            "counter" => MetricKind::Counter,
            _ => MetricKind::Gauge,
        }))
    }

    /// As when all that was told is too old.
    #[cfg(test)]
    pub fn age(&self) {
        self.told.invalidate_all();
    }

    /// Looks at the series that a query for a metric of no known kind gives: one of
    /// them, by its label's value, is followed from answer to answer.
    pub fn look<'a>(
        &self,
        query: &Arc<str>,
        series: impl Iterator<Item = (&'a str, f64)> + Clone,
    ) -> Doubt {
        let now = Instant::now();
        let first = || series.clone().min_by(|(a, _), (b, _)| a.cmp(b));
        let Some((of, last)) = first() else { return Doubt::UnknownType };
        let watched = self.watched.get_with_by_ref(query, || {
            Arc::new(Mutex::new(Watched { of: of.to_owned(), last, since: now, rises: 0 }))
        });
        let mut watched = watched.lock().unwrap_or_else(PoisonError::into_inner);
        match series.clone().find(|(of, _)| *of == watched.of) {
            // Its pod is gone; another is followed from here on.
            None => (watched.of, watched.last) = (of.to_owned(), last),
            Some((_, value)) => {
                if value < watched.last {
                    (watched.since, watched.rises) = (now, 0);
                } else if value > watched.last {
                    watched.rises += 1;
                }
                watched.last = value;
            }
        }
        if watched.rises < RISES || now.duration_since(watched.since) < RISING {
            return Doubt::UnknownType;
        }
        if watched.rises == RISES {
            tracing::warn!(
                %query,
                "A metric of unknown type has not fallen for an hour: it looks like a counter, and is read as a gauge"
            );
            watched.rises += 1;
        }
        Doubt::NeverFalls
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prometheus::Options;

    #[tokio::test(start_paused = true)]
    async fn what_never_falls_for_an_hour_is_told() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let kinds = Kinds::new(Client::new(Options::new("http://127.0.0.1:1")).unwrap());
        let look =
            |query: &str, series: &[(&str, f64)]| kinds.look(&query.into(), series.iter().copied());
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
