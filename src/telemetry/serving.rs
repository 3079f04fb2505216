//! Metrics of the API server, and of requests to kube-apiserver.

use super::{Registering, seconds};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Unit;
use std::time::{Duration, Instant};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Review {
    review: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KubeRequest {
    verb: &'static str,
    resource: String,
    code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Verb {
    verb: &'static str,
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// Metrics of the API server.
pub struct ServingMetrics {
    duration: Histograms<Kind>,
    in_flight: Gauge,
    rejected: Family<Reason, Counter>,
    connections: Gauge,
    reviews: Family<Review, Counter>,
    review_duration: Histogram,
    not_after: Gauge,
    ca_bundles_missing: Gauge,
}

impl ServingMetrics {
    pub(super) fn new(all: &mut Registering<'_>) -> Self {
        const S: Option<Unit> = Some(Unit::Seconds);
        Self {
            duration: all.add(
                ("http_request_duration", S, "histogram", &["kind"]),
                "Duration of requests answered, in seconds, by kind: custom, external, resource, discovery, metrics or other",
                Family::new_with_constructor(seconds),
            ),
            in_flight: all.add(
                ("http_requests_in_flight", None, "gauge", &[]),
                "Number of requests that are being answered or wait for their turn",
                Gauge::default(),
            ),
            rejected: all.add(
                ("http_requests_rejected", None, "counter", &["reason"]),
                "Total number of requests answered with 429, by what there was too much of: connections, requests, token_reviews or access_reviews",
                Family::default(),
            ),
            connections: all.add(
                ("http_connections", None, "gauge", &[]),
                "Number of open connections",
                Gauge::default(),
            ),
            reviews: all.add(
                ("reviews", None, "counter", &["review", "outcome"]),
                "Total number of decisions on tokens (token) and permissions (access) of clients, by outcome: cached, allowed, denied or failed",
                Family::default(),
            ),
            review_duration: all.add(
                ("review_duration", S, "histogram", &[]),
                "Duration of TokenReviews and SubjectAccessReviews by kube-apiserver, in seconds",
                seconds(),
            ),
            not_after: all.add(
                ("serving_certificate_not_after_timestamp", S, "gauge", &[]),
                "Time after which the serving certificate is no longer valid, in seconds since 1970",
                Gauge::default(),
            ),
            ca_bundles_missing: all.add(
                ("ca_bundles_missing", None, "gauge", &[]),
                "Number of APIServices that name this Service and do not have the CA of its self-signed certificate",
                Gauge::default(),
            ),
        }
    }

    /// A request of a kind was answered, and how long that took.
    pub fn answered(&self, kind: &'static str, took: Duration) {
        self.duration.get_or_create(&Kind { kind }).observe(took.as_secs_f64());
    }

    /// A request is being answered until what is returned is dropped.
    pub fn in_flight(&self) -> InFlight {
        self.in_flight.inc();
        InFlight(self.in_flight.clone())
    }

    /// A request was refused as there was too much of something.
    pub fn rejected(&self, reason: &'static str) {
        self.rejected.get_or_create(&Reason { reason }).inc();
    }

    /// Shows how many connections there are.
    pub fn connections(&self) -> Gauge {
        self.connections.clone()
    }

    /// Shows until when the serving certificate is valid.
    pub fn not_after(&self) -> Gauge {
        self.not_after.clone()
    }

    /// It was decided on a token or a permission: how, and how long kube-apiserver took.
    pub fn reviewed(&self, review: &'static str, outcome: &'static str, took: Duration) {
        self.reviews.get_or_create(&Review { review, outcome }).inc();
        if outcome != "cached" {
            self.review_duration.observe(took.as_secs_f64());
        }
    }

    /// So many APIServices do not have our CA.
    pub fn ca_bundles_missing(&self, count: usize) {
        self.ca_bundles_missing.set(i64::try_from(count).unwrap_or(i64::MAX));
    }
}

/// A request that is being answered.
pub struct InFlight(Gauge);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Metrics of requests to kube-apiserver.
pub struct KubeMetrics {
    requests: Family<KubeRequest, Counter>,
    duration: Histograms<Verb>,
}

impl KubeMetrics {
    pub(super) fn new(all: &mut Registering<'_>) -> Self {
        Self {
            requests: all.add(
                ("kube_requests", None, "counter", &["verb", "resource", "code"]),
                "Total number of requests to kube-apiserver, each retry by itself, by verb, resource and HTTP status; 0 where no answer came",
                Family::default(),
            ),
            duration: all.add(
                ("kube_request_duration", Some(Unit::Seconds), "histogram", &["verb"]),
                "Duration of requests to kube-apiserver until the head of the answer came, or they were given up, in seconds",
                Family::new_with_constructor(seconds),
            ),
        }
    }

    /// kube-apiserver is asked now; it is counted when what is returned is dropped.
    pub fn ask(&self, method: &http::Method, uri: &http::Uri) -> Asking {
        let (verb, resource) = verb_and_resource(method, uri);
        let (requests, duration) = (self.requests.clone(), self.duration.clone());
        Asking { requests, duration, verb, resource, code: 0, begun: Instant::now() }
    }
}

/// A request to kube-apiserver. One that is given up is counted as well: a server that
/// hangs must not be one that nobody hears of.
pub struct Asking {
    requests: Family<KubeRequest, Counter>,
    duration: Histograms<Verb>,
    verb: &'static str,
    resource: String,
    code: u16,
    begun: Instant,
}

impl Asking {
    /// An answer came.
    pub fn answered(&mut self, code: u16) {
        self.code = code;
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let (verb, resource) = (self.verb, std::mem::take(&mut self.resource));
        self.requests.get_or_create(&KubeRequest { verb, resource, code: self.code }).inc();
        let took = self.begun.elapsed().as_secs_f64();
        self.duration.get_or_create(&Verb { verb }).observe(took);
    }
}

/// The verb and the resource, with its subresource, of a request to kube-apiserver.
fn verb_and_resource(method: &http::Method, uri: &http::Uri) -> (&'static str, String) {
    let parts: Vec<&str> = uri.path().trim_matches('/').split('/').collect();
    let rest = match parts.as_slice() {
        ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => rest,
        _ => &[],
    };
    let rest = match rest {
        ["namespaces", _, rest @ ..] if !rest.is_empty() => rest,
        rest => rest,
    };
    let named = rest.len() > 1;
    let resource = match rest {
        [] => String::new(),
        [resource] | [resource, _] => (*resource).to_owned(),
        // Of custom metrics the subresource is a metric, of which there may be many.
        [resource, _, ..] if uri.path().contains(".metrics.k8s.io/") => (*resource).to_owned(),
        [resource, _, subresource, ..] => format!("{resource}/{subresource}"),
    };
    // Each external metric is a resource of its own.
    let external = uri.path().starts_with("/apis/external.metrics.k8s.io/");
    let resource = if external { "metrics".to_owned() } else { resource };
    let watches = uri.query().is_some_and(|query| query.contains("watch=true"));
    let verb = match method.as_str() {
        "GET" if watches => "watch",
        "GET" if named || rest.is_empty() => "get",
        "GET" => "list",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "other",
    };
    (verb, resource)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_named_as_kubernetes_names_them() {
        for (method, uri, expected) in [
            ("GET", "/api/v1/pods?limit=200", ("list", "pods")),
            ("GET", "/api/v1/pods?watch=true", ("watch", "pods")),
            ("GET", "/api/v1/namespaces/shop/pods/web-0", ("get", "pods")),
            ("GET", "/api/v1/namespaces/shop", ("get", "namespaces")),
            (
                "PUT",
                "/apis/apps/v1/namespaces/shop/deployments/web/scale",
                ("update", "deployments/scale"),
            ),
            (
                "PATCH",
                "/apis/plimsoll.dev/v1alpha1/namespaces/a/autoscalers/b/status",
                ("patch", "autoscalers/status"),
            ),
            ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", ("create", "tokenreviews")),
            ("GET", "/apis/custom.metrics.k8s.io/v1beta2/namespaces/a/pods/*/m", ("get", "pods")),
            ("GET", "/apis/external.metrics.k8s.io/v1beta1/namespaces/a/m", ("list", "metrics")),
            ("GET", "/apis", ("get", "")),
        ] {
            let (verb, resource) =
                verb_and_resource(&method.parse().unwrap(), &uri.parse().unwrap());
            assert_eq!((verb, resource.as_str()), expected, "{uri}");
        }
    }
}
