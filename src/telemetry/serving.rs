//! Metrics of the API server.

use super::registrar::{HistogramFamily, Registrar, seconds};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Unit;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RejectionLabels {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReviewLabels {
    review: &'static str,
    outcome: &'static str,
}

/// Metrics of the API server.
pub struct ServingMetrics {
    duration: HistogramFamily<KindLabels>,
    in_flight: Gauge,
    rejected: Family<RejectionLabels, Counter>,
    connections: Gauge,
    reviews: Family<ReviewLabels, Counter>,
    review_duration: Histogram,
    repeated: Counter,
    not_kept: Counter,
    not_after: Gauge,
    ca_bundles_missing: Gauge,
}

impl ServingMetrics {
    /// Registers the metrics.
    pub(super) fn new(all: &mut Registrar<'_>) -> Self {
        const S: Option<Unit> = Some(Unit::Seconds);
        Self {
            duration: all.add(
                ("http_request_duration", S, "histogram", &["kind"]),
                "Duration of HTTP requests in seconds, by kind: custom, external, resource, discovery, metrics or other",
                Family::new_with_constructor(seconds),
            ),
            in_flight: all.add(
                ("http_requests_in_flight", None, "gauge", &[]),
                "Number of HTTP requests in flight or queued",
                Gauge::default(),
            ),
            rejected: all.add(
                ("http_requests_rejected", None, "counter", &["reason"]),
                "Total number of requests rejected with 429, by exceeded limit: connections, requests, token_reviews or access_reviews",
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
            repeated: all.add(
                ("known_requests", None, "counter", &[]),
                "Total number of requests to custom.metrics.k8s.io that asked for what a known one had asked for",
                Counter::default(),
            ),
            not_kept: all.add(
                ("known_requests_without_room", None, "counter", &[]),
                "Total number of requests to custom.metrics.k8s.io that are not known afterwards: with what they select and the response they take more than 1 MiB, or their namespace has no memory left",
                Counter::default(),
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

    /// Observes the duration of a request by kind.
    pub fn responded(&self, kind: &'static str, took: Duration) {
        self.duration.get_or_create(&KindLabels { kind }).observe(took.as_secs_f64());
    }

    /// Counts a request as in flight, until the guard is dropped.
    pub fn in_flight(&self) -> InFlightRequest {
        self.in_flight.inc();
        InFlightRequest(self.in_flight.clone())
    }

    /// Counts a request that is refused with 429, by reason.
    pub fn rejected(&self, reason: &'static str) {
        self.rejected.get_or_create(&RejectionLabels { reason }).inc();
    }

    /// The gauge of open connections.
    pub fn connections(&self) -> Gauge {
        self.connections.clone()
    }

    /// Counts a request that is known.
    pub fn repeated(&self) {
        self.repeated.inc();
    }

    /// Counts a request that there is no room to keep.
    pub fn not_kept(&self) {
        self.not_kept.inc();
    }

    /// The gauge of the serving certificate's expiry.
    pub fn not_after(&self) -> Gauge {
        self.not_after.clone()
    }

    /// Counts a review of a token or of access by outcome, with its duration.
    pub fn reviewed(&self, review: &'static str, outcome: &'static str, took: Duration) {
        self.reviews.get_or_create(&ReviewLabels { review, outcome }).inc();
        if outcome != "cached" {
            self.review_duration.observe(took.as_secs_f64());
        }
    }

    /// Sets the number of APIServices without our CA.
    pub fn ca_bundles_missing(&self, count: usize) {
        self.ca_bundles_missing.set(i64::try_from(count).unwrap_or(i64::MAX));
    }
}

/// A request in flight.
pub struct InFlightRequest(Gauge);

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        self.0.dec();
    }
}
