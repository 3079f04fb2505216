//! Plimsoll's own metrics.

use super::autoscalers::{self, AutoscalerCollector, AutoscalerSource};
use super::decisions::{self, DecisionCollector};
use super::exposition::PrometheusText;
use super::kube::KubeMetrics;
use super::process::{self, ProcessCollector, WatchCollector};
use super::registrar::{MetricDescription, Registrar, seconds};
use super::serving::ServingMetrics;
use crate::ledger::{DecisionLog, Ledger};
use crate::live::LiveStatus;
use crate::watch::{Cluster, ObjectKey, WatchStatuses};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabels {
    code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ObservedLabels {
    observed: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DesiredByLabels {
    namespace: String,
    name: String,
    by: &'static str,
}

const PLIMSOLL: &str = "plimsoll";
const KUBE_CONTROLLER_MANAGER: &str = "kube-controller-manager";

/// Plimsoll's own metrics.
pub struct Metrics {
    registry: Registry,
    descriptions: Vec<MetricDescription>,
    requests: Family<CodeLabels, Counter>,
    sample_age: Histogram,
    decisions: Family<OutcomeLabels, Counter>,
    errors: Family<ReasonLabels, Counter>,
    duration: Histogram,
    delay: Histogram,
    missed: Counter,
    due: Gauge<f64, AtomicU64>,
    autoscalers: Gauge,
    failing: Gauge,
    leader: Gauge,
    became_leader: Counter,
    last_renewal: Gauge<f64, AtomicU64>,
    history_bytes: Gauge,
    history_left_out: Gauge,
    history_last_write: Gauge<f64, AtomicU64>,
    frozen: Gauge,
    series_queries: Gauge,
    failing_listings: Gauge,
    status_writes_waiting: Gauge,
    events: Family<OutcomeLabels, Counter>,
    foreign_replica_writes: Counter,
    native_desired: Family<DesiredByLabels, Gauge>,
    native_hpas: Family<ObservedLabels, Gauge>,
    native_comparisons: Family<OutcomeLabels, Counter>,
    reloads: Family<OutcomeLabels, Counter>,
    last_reload: Gauge,
    queries: Family<OutcomeLabels, Counter>,
    prometheus_requests: Family<OutcomeLabels, Counter>,
    listings: Family<ReasonLabels, Counter>,
    query_duration: Histogram,
    response_bytes: Histogram,
    /// The metrics of the API server.
    pub serving: ServingMetrics,
    /// The metrics of requests to kube-apiserver.
    pub kube: KubeMetrics,
    watches: WatchCollector,
    decisions_kept: DecisionCollector,
    by_autoscaler: AutoscalerCollector,
}

fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

impl Default for Metrics {
    fn default() -> Self {
        const S: Option<Unit> = Some(Unit::Seconds);
        const B: Option<Unit> = Some(Unit::Bytes);
        let mut registry = Registry::default();
        let prefixed = registry.sub_registry_with_prefix("plimsoll");
        let mut all = Registrar { registry: prefixed, descriptions: Vec::new() };
        let info = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        all.descriptions.push(MetricDescription {
            name: "plimsoll_build_info".to_owned(),
            kind: "info",
            labels: &["version"],
            help: "Version of this build",
        });
        all.registry.register("build", "Version of this build", info);
        let metrics = Self {
            requests: all.add(
                ("http_requests", None, "counter", &["code"]),
                "Total number of HTTP requests, by status code",
                Family::default(),
            ),
            sample_age: all.add(
                ("sample_age", S, "histogram", &[]),
                "Age of the oldest sample in a response of the metrics APIs, in seconds, if known",
                Histogram::new(exponential_buckets(0.25, 2.0, 14)),
            ),
            decisions: all.add(
                ("decisions", None, "counter", &["outcome"]),
                "Total number of evaluations, by outcome: rescaled, held, failed, observed (a native HPA is left to kube-controller-manager) or followed (another replica leads)",
                Family::default(),
            ),
            errors: all.add(
                ("decision_errors", None, "counter", &["reason"]),
                "Total number of failed evaluations, by the reason in the condition",
                Family::default(),
            ),
            duration: all.add(
                ("decision_duration", S, "histogram", &[]),
                "Duration of evaluations, until the result is written, in seconds",
                seconds(),
            ),
            delay: all.add(
                ("decision_lag", S, "histogram", &[]),
                "Delay between the scheduled and actual start of an evaluation, in seconds",
                seconds(),
            ),
            missed: all.add(
                ("missed_rounds", None, "counter", &[]),
                "Total number of evaluations skipped because the previous one was still running",
                Counter::default(),
            ),
            due: all.add(
                ("decision_due_timestamp", S, "gauge", &[]),
                "Time since which an evaluation is due, or of the next one, in Unix seconds; 0 before the first",
                Gauge::default(),
            ),
            autoscalers: all.add(
                ("autoscalers", None, "gauge", &[]),
                "Number of Autoscalers, and of native HPAs that Plimsoll scales",
                Gauge::default(),
            ),
            failing: all.add(
                ("autoscalers_failing", None, "gauge", &[]),
                "Number of those of plimsoll_autoscalers whose last evaluation failed",
                Gauge::default(),
            ),
            leader: all.add(
                ("leader", None, "gauge", &[]),
                "1 if this replica is the leader, else 0",
                Gauge::default(),
            ),
            became_leader: all.add(
                ("leader_terms", None, "counter", &[]),
                "Total number of times that this replica became the leader",
                Counter::default(),
            ),
            last_renewal: all.add(
                ("leader_last_renewal_timestamp", S, "gauge", &[]),
                "Time of the last renewal of the Lease by this replica, in Unix seconds; 0 if it never held it",
                Gauge::default(),
            ),
            history_bytes: all.add(
                ("scaling_history", B, "gauge", &[]),
                "Size of the scaling history in the ConfigMap that this replica wrote last, in bytes",
                Gauge::default(),
            ),
            history_left_out: all.add(
                ("scaling_history_left_out", None, "gauge", &[]),
                "Number of autoscalers whose scaling history did not fit into the ConfigMap",
                Gauge::default(),
            ),
            history_last_write: all.add(
                ("scaling_history_last_write_timestamp", S, "gauge", &[]),
                "Time of the last write of the scaling history by this replica, or at which nothing was left to write, in Unix seconds; 0 if there was none, NaN with --memory-interval=0s",
                Gauge::default(),
            ),
            frozen: all.add(
                ("frozen", None, "gauge", &[]),
                "1 if all writes to scales are frozen, else 0",
                Gauge::default(),
            ),
            status_writes_waiting: all.add(
                ("status_writes_waiting", None, "gauge", &[]),
                "Number of pending status updates",
                Gauge::default(),
            ),
            events: all.add(
                ("events", None, "counter", &["outcome"]),
                "Total number of events, by outcome: written, refused (by the API server) or dropped (rate limit)",
                Family::default(),
            ),
            foreign_replica_writes: all.add(
                ("foreign_replica_writes", None, "counter", &[]),
                "Total number of changes of the replicas of Autoscalers' targets by other writers, as the leader saw them",
                Counter::default(),
            ),
            native_hpas: all.add(
                ("native_hpas", None, "gauge", &["observed"]),
                "Number of native HPAs, by whether this replica observes them: yes; no_metrics (Plimsoll does not serve all of their metrics), no_scale (the kind of their target is not watched) or no_leader (another replica does)",
                Family::default(),
            ),
            native_desired: all.add(
                ("native_hpa_desired_replicas", None, "gauge", &["namespace", "name", "by"]),
                "Desired replicas of an observed native HPA, by decider; absent while Plimsoll can't decide",
                Family::default(),
            ),
            native_comparisons: all.add(
                ("native_hpa_comparisons", None, "counter", &["outcome"]),
                "Total number of compared decisions for observed native HPAs, by outcome: agreed, differed or failed (only kube-controller-manager could decide)",
                Family::default(),
            ),
            reloads: all.add(
                ("config_reloads", None, "counter", &["outcome"]),
                "Total number of configuration reloads, by outcome: taken or refused",
                Family::default(),
            ),
            last_reload: all.add(
                ("config_last_reload_successful", None, "gauge", &[]),
                "1 if the configuration in effect is that of the file, else 0",
                Gauge::default(),
            ),
            queries: all.add(
                ("queries", None, "counter", &["outcome"]),
                "Total number of queries for metrics to the server of --prometheus-url, by outcome as that of plimsoll_prometheus_requests_total, however many share a request; timeout counts those that got no turn in time, too. A result is counted once, however many read it. A look-up of the type of a metric that fails counts as a query if none is sent for want of the type",
                Family::default(),
            ),
            prometheus_requests: all.add(
                ("prometheus_requests", None, "counter", &["outcome"]),
                "Total number of requests to Prometheus, by outcome: answered, refused (invalid query, or a proxy passes others but not this one), timeout, given_up (a shared request of several queries, or one of them that was to tell whether the server is down, that took longer than 2 s), unreachable, unavailable (another status, such as 401, 404, 429 or 503; 404 for what not every server has, such as metadata, is answered) or unusable (invalid, broken off, partial, too large, or 413, 414 or 431)",
                Family::default(),
            ),
            listings: all.add(
                ("series_listings", None, "counter", &["reason"]),
                "Total number of listings of the series of rules, by reason: interval, unknown (a requested metric was not in the last listing), retry (after a failed listing), or metric_rule (of one MetricRule)",
                Family::default(),
            ),
            series_queries: all.add(
                ("series_queries", None, "gauge", &[]),
                "Number of different series queries of the configured rules",
                Gauge::default(),
            ),
            failing_listings: all.add(
                ("series_listings_failing", None, "gauge", &[]),
                "Number of series queries of the configured rules whose last listing failed; metrics that are known from an earlier one are served",
                Gauge::default(),
            ),
            query_duration: all.add(
                ("prometheus_request_duration", S, "histogram", &[]),
                "Duration of requests to Prometheus, in seconds",
                seconds(),
            ),
            response_bytes: all.add(
                ("prometheus_response", B, "histogram", &[]),
                "Size of responses of Prometheus, in bytes",
                Histogram::new(exponential_buckets(256.0, 4.0, 10)),
            ),
            serving: ServingMetrics::new(&mut all),
            kube: KubeMetrics::new(&mut all),
            watches: WatchCollector::default(),
            decisions_kept: DecisionCollector::default(),
            by_autoscaler: AutoscalerCollector::default(),
            descriptions: Vec::new(),
            registry: Registry::default(),
        };
        metrics.last_reload.set(1);
        let mut descriptions = all.descriptions;
        registry.register_collector(Box::new(ProcessCollector));
        registry.register_collector(Box::new(metrics.watches.clone()));
        registry.register_collector(Box::new(metrics.decisions_kept.clone()));
        registry.register_collector(Box::new(metrics.by_autoscaler.clone()));
        descriptions.extend(process::descriptions());
        descriptions.extend(decisions::descriptions());
        descriptions.extend(autoscalers::descriptions());
        Self { registry, descriptions, ..metrics }
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

impl Metrics {
    /// The description of each metric.
    pub fn descriptions(&self) -> &[MetricDescription] {
        &self.descriptions
    }

    /// Counts a response by HTTP status.
    pub fn responded(&self, code: u16) {
        self.requests.get_or_create(&CodeLabels { code }).inc();
    }

    /// Observes the age of the oldest sample of a response.
    pub fn served(&self, age: Duration) {
        self.sample_age.observe(age.as_secs_f64());
    }

    /// Counts a decision by outcome, with its delay and its duration.
    pub fn decided(&self, outcome: &'static str, delay: Duration, took: Duration) {
        self.decisions.get_or_create(&OutcomeLabels { outcome }).inc();
        self.delay.observe(delay.as_secs_f64());
        self.duration.observe(took.as_secs_f64());
    }

    /// Counts a failed decision by reason.
    pub fn failed(&self, reason: &str) {
        self.errors.get_or_create(&ReasonLabels { reason: reason.to_owned() }).inc();
    }

    /// Counts decisions that were skipped because the previous one overran.
    pub fn missed(&self, periods: u64) {
        self.missed.inc_by(periods);
    }

    /// Sets since when a decision has been due and none was taken, or when the next one is.
    pub fn decision_due(&self, at: SystemTime) {
        self.due.set(unix_seconds(at));
    }

    /// Sets the desired replicas of an observed native HPA: those of Plimsoll, and those of
    /// kube-controller-manager.
    pub fn desired(&self, key: &ObjectKey, desired: i32, kcm_desired: i32) {
        for (by, replicas) in [(PLIMSOLL, desired), (KUBE_CONTROLLER_MANAGER, kcm_desired)] {
            self.native_desired.get_or_create(&desired_by(key, by)).set(replicas.into());
        }
    }

    /// Counts a comparison with kube-controller-manager: agreed, differed or failed.
    pub fn compared(&self, outcome: &'static str) {
        self.native_comparisons.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    /// Sets the number of native HPAs that are observed, or not for this reason.
    pub fn observed(&self, observed: &'static str, count: usize) {
        self.native_hpas.get_or_create(&ObservedLabels { observed }).set(count as i64);
    }

    /// Counts an event: written, refused or dropped.
    pub fn event(&self, outcome: &'static str) {
        self.events.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    /// Counts a change of the replicas of a target by another writer.
    pub fn foreign_replica_write(&self) {
        self.foreign_replica_writes.inc();
    }

    /// Removes the metrics of a native HPA that is gone, or can't be decided on.
    pub fn forget(&self, key: &ObjectKey) {
        for by in [PLIMSOLL, KUBE_CONTROLLER_MANAGER] {
            self.native_desired.remove(&desired_by(key, by));
        }
    }

    /// Counts a reload of the configuration: taken or refused.
    pub fn reloaded(&self, taken: bool) {
        let outcome = if taken { "taken" } else { "refused" };
        self.reloads.get_or_create(&OutcomeLabels { outcome }).inc();
        self.last_reload.set(taken.into());
    }

    /// The gauge of pending status writes.
    pub fn status_writes_waiting(&self) -> Gauge {
        self.status_writes_waiting.clone()
    }

    /// Counts a term of this replica.
    pub fn became_leader(&self) {
        self.became_leader.inc();
    }

    /// Sets the time of the last renewal.
    pub fn renewed(&self, at: SystemTime) {
        self.last_renewal.set(unix_seconds(at));
    }

    /// Sets the size of the scaling history written at this time, and the number of autoscalers left out.
    pub fn history_written(&self, bytes: usize, left_out: usize, at: SystemTime) {
        self.history_bytes.set(bytes as i64);
        self.history_left_out.set(left_out as i64);
        self.history_is_written(at);
    }

    /// Notes that there is nothing of the scaling history to write.
    pub fn history_is_written(&self, at: SystemTime) {
        self.history_last_write.set(unix_seconds(at));
    }

    /// Notes that the scaling history is never written, so that nobody waits for it.
    pub fn history_is_not_written(&self) {
        self.history_last_write.set(f64::NAN);
    }

    /// Sets whether this replica leads.
    pub fn leads(&self, leads: bool) {
        self.leader.set(leads.into());
    }

    /// Sets whether scales are frozen.
    pub fn frozen(&self, frozen: bool) {
        self.frozen.set(frozen.into());
    }

    /// Sets the number of autoscalers, and of those whose last decision failed.
    pub fn autoscalers(&self, count: usize, failing: usize) {
        self.autoscalers.set(count as i64);
        self.failing.set(failing as i64);
    }

    /// Counts queries for metrics by outcome.
    pub fn count_queries(&self, queries: usize, outcome: &'static str) {
        self.queries.get_or_create(&OutcomeLabels { outcome }).inc_by(queries as u64);
    }

    /// Counts a request to Prometheus by outcome, with its duration and the size of its response.
    pub fn queried(&self, outcome: &'static str, took: Duration, bytes: Option<usize>) {
        self.prometheus_requests.get_or_create(&OutcomeLabels { outcome }).inc();
        self.query_duration.observe(took.as_secs_f64());
        if let Some(bytes) = bytes {
            self.response_bytes.observe(bytes as f64);
        }
    }

    /// Counts a listing of the series of all rules, by reason.
    pub fn listed(&self, reason: &'static str) {
        self.listings.get_or_create(&ReasonLabels { reason: reason.to_owned() }).inc();
    }

    /// Sets the number of series queries of the configured rules, and of those whose last listing failed.
    pub fn series_queries(&self, count: usize, failing: usize) {
        self.series_queries.set(count as i64);
        self.failing_listings.set(failing as i64);
    }

    /// Shows the health of these watches from now on.
    pub fn show(&self, synced: WatchStatuses) {
        let _ = self.watches.0.set(synced);
    }

    /// Shows this ledger and this decision log from now on.
    pub fn show_decisions(&self, ledger: Ledger, log: Option<DecisionLog>) {
        let _ = self.decisions_kept.0.set((ledger, log));
    }

    /// Shows the Autoscalers of this cluster from now on, at most `limit` of them.
    pub fn show_autoscalers(&self, cluster: Cluster, live: LiveStatus, limit: usize) {
        let source = AutoscalerSource { cluster, live, limit, leader: self.leader.clone() };
        let _ = self.by_autoscaler.0.set(source);
    }

    /// All metrics in OpenMetrics.
    pub fn openmetrics(&self) -> String {
        self.encoded()
    }

    /// All metrics in Prometheus's text format.
    pub fn prometheus_text(&self) -> String {
        self.encoded::<PrometheusText>().into_text()
    }

    fn encoded<T: Default + std::fmt::Write>(&self) -> T {
        let mut text = T::default();
        encode(&mut text, &self.registry).expect("it takes all that is written to it");
        text
    }
}

fn desired_by(key: &ObjectKey, by: &'static str) -> DesiredByLabels {
    DesiredByLabels { namespace: key.namespace.clone(), name: key.name.clone(), by }
}
