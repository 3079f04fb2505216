//! What requests for metrics of objects ask for, and the responses to them, kept for when they are repeated. What they were made
//! of is looked at each time: the same request without this would have the same response.

use super::error::ApiError;
use super::request::ObjectMetricRequest;
use crate::cache::{self, Cache};
use crate::k8s::Selector;
use crate::k8s::selector::Requirement;
use crate::promql::query::{PodQueries, PrometheusMetric};
use crate::quota::{ByteQuota, QuotaGuard};
use crate::rules::{Names, RuleQuery};
use crate::samples::{Origin, PodQuery};
use crate::time::UnixMillis;
use axum::http::Uri;
use bytes::Bytes;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The bytes of known requests. A namespace takes no more than it leaves free.
pub const KNOWN_REQUEST_BYTES: usize = 12 << 20;
/// The bytes of one at most, with what it selects: while it is replaced, it is there twice.
const MAX_REQUEST_BYTES: usize = 1 << 20;
/// The name that requests about the whole cluster are counted to.
pub const CLUSTER: &str = "/";
/// How long a request is known.
const KNOWN_REQUEST_TTL: Duration = Duration::from_secs(60);

/// What a request asks for, and what that was made of.
pub struct Asked {
    /// What it selects.
    pub selectors: Arc<Selectors>,
    /// Where the values come from.
    pub source: Source,
}

/// What selects objects and series.
pub struct Selectors {
    /// The objects; empty if they are one of a name.
    pub objects: Selector,
    /// The series.
    pub series: Selector,
}

/// Where the values come from.
pub enum Source {
    /// The metric of a generated name.
    Generated(GeneratedMetric),
    /// A rule.
    Rule(Box<RuleQuery>),
}

/// The metric of a generated name, and what it was made of.
pub struct GeneratedMetric {
    /// The metric.
    pub metric: Arc<PrometheusMetric>,
    /// What made the query.
    pub queries: Arc<PodQueries>,
    /// The query.
    pub query: PodQuery,
    /// The pods that are selected.
    pub pods: Names,
}

/// The response to a request, and the time of its oldest value.
#[derive(Clone)]
pub struct Values {
    /// The response as JSON.
    pub json: Bytes,
    /// The time of the oldest value.
    pub oldest: Option<UnixMillis>,
}

/// Known requests, by path and query.
#[derive(Clone)]
pub struct KnownRequests {
    cache: Cache<Arc<str>, Arc<KnownRequest>>,
    quota: Arc<ByteQuota>,
}

/// A request that was answered.
pub struct KnownRequest {
    /// What it asks for.
    pub asked: Asked,
    last: Mutex<(Origin, Values)>,
    /// The bytes of the longest response that is kept.
    room: usize,
    bytes: usize,
    /// Taken out when it is removed: who answers it may hold it a while longer, and so does the cache.
    guard: Mutex<Option<QuotaGuard>>,
}

impl Default for KnownRequests {
    fn default() -> Self {
        let bytes = |uri: &Arc<str>, known: &Arc<KnownRequest>| uri.len() + known.bytes;
        Self {
            cache: cache::of_bytes(KNOWN_REQUEST_BYTES, KNOWN_REQUEST_TTL, bytes),
            quota: Arc::new(ByteQuota::new(KNOWN_REQUEST_BYTES)),
        }
    }
}

impl Asked {
    /// Whether it can be told if the request would ask for the same again.
    pub fn may_be_kept(&self) -> bool {
        match &self.source {
            Source::Generated(of) => of.pods.may_be_kept() && of.query.may_be_kept(),
            Source::Rule(query) => query.may_be_kept(),
        }
    }

    /// The approximate memory in bytes.
    pub fn bytes(&self) -> usize {
        let source = match &self.source {
            Source::Generated(of) => of.query.query.bytes() + of.pods.bytes(),
            Source::Rule(query) => query.bytes(),
        };
        let selectors = [&self.selectors.objects, &self.selectors.series];
        let requirements = selectors.into_iter().flat_map(Selector::requirements);
        let selectors =
            size_of::<Selectors>() + requirements.map(Requirement::bytes).sum::<usize>();
        size_of::<Self>() + selectors + source
    }
}

impl KnownRequests {
    /// The bytes of those about a namespace.
    #[cfg(test)]
    pub fn used_by(&self, namespace: &str) -> usize {
        self.quota.used_by(namespace)
    }

    /// A request that was made before.
    pub fn get(&self, uri: &Uri) -> Option<Arc<KnownRequest>> {
        self.cache.get(text(uri))
    }

    /// Forgets a request.
    pub fn forget(&self, uri: &Uri) {
        if let Some(known) = self.cache.remove(text(uri)) {
            locked(&known.guard).take();
        }
    }

    /// Keeps a request and its response, and forgets an earlier response to the same request. Returns whether the request is
    /// kept: a request may be too long, or its namespace may have no memory left.
    pub fn keep(
        &self,
        uri: &Uri,
        request: &ObjectMetricRequest,
        asked: Asked,
        last: (Origin, Values),
    ) -> bool {
        // The values change, and with them their length.
        let room = last.1.json.len() * 9 / 8;
        let bytes = size_of::<KnownRequest>() + asked.bytes() + room;
        let weight = cache::weight(text(uri).len() + bytes) as usize;
        self.forget(uri);
        if weight > MAX_REQUEST_BYTES {
            return false;
        }
        let flow = Some(request.flow().as_str()).filter(|flow| !flow.is_empty());
        let guard = self.quota.try_guard(&flow.unwrap_or(CLUSTER).into(), weight);
        let has_room = guard.is_some();
        if has_room {
            let (last, guard) = (Mutex::new(last), Mutex::new(guard));
            let known = KnownRequest { asked, last, room, bytes, guard };
            self.cache.insert(text(uri).into(), Arc::new(known));
        }
        has_room
    }
}

impl KnownRequest {
    /// Whether a response of this length is kept.
    pub fn has_room(&self, values: &Values) -> bool {
        values.json.len() <= self.room
    }

    /// The last response if it is of these responses of Prometheus, or else a new one.
    ///
    /// # Errors
    /// Those of a new one.
    pub fn values(
        &self,
        origin: Origin,
        new: impl FnOnce() -> Result<Values, ApiError>,
    ) -> Result<Values, ApiError> {
        {
            let last = locked(&self.last);
            if last.0 == origin {
                return Ok(last.1.clone());
            }
        }
        let values = new()?;
        if self.has_room(&values) {
            *locked(&self.last) = (origin, values.clone());
        }
        Ok(values)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn text(uri: &Uri) -> &str {
    uri.path_and_query().map_or("", |text| text.as_str())
}
