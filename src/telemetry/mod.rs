//! Logs, and Plimsoll's own metrics.

mod process;
mod serving;

pub use serving::{Asking, KubeMetrics, ServingMetrics};

use crate::config::LogFormat;
use crate::log_budget::LogBudget;
use crate::watch::{ObjectKey, Synced};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::IntoResponse;
use process::{Process, Watches};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// Starts to log to standard error.
///
/// # Errors
/// Where the filter can't be read; the text says what is wrong with it.
pub fn start_logging(format: LogFormat, level: &str) -> Result<(), String> {
    let filter = EnvFilter::try_new(level).map_err(|error| {
        format!("--log-level: {error}; info, or plimsoll::serve=debug,info was expected")
    })?;
    let budget = LogBudget::default();
    budget.tell();
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(filter);
    match format {
        LogFormat::Text => registry.with(lines.with_ansi(false).with_filter(budget)).init(),
        LogFormat::Json => {
            registry.with(lines.json().flatten_event(true).with_filter(budget)).init();
        }
    }
    Ok(())
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Code {
    code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NativeHpas {
    observed: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DesiredBy {
    namespace: String,
    name: String,
    by: &'static str,
}

const OURS: &str = "plimsoll";
const THEIRS: &str = "kube-controller-manager";

/// What is said of a metric in the reference.
#[derive(Clone, Debug)]
pub struct Described {
    /// Its name, as it is scraped.
    pub name: String,
    /// counter, gauge, histogram or info.
    pub kind: &'static str,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// What it says.
    pub help: &'static str,
}

/// Plimsoll's own metrics.
pub struct Metrics {
    registry: Registry,
    described: Vec<Described>,
    requests: Family<Code, Counter>,
    sample_age: Histogram,
    decisions: Family<Outcome, Counter>,
    errors: Family<Reason, Counter>,
    duration: Histogram,
    lag: Histogram,
    missed: Counter,
    autoscalers: Gauge,
    failing: Gauge,
    leader: Gauge,
    became_leader: Counter,
    last_renewal: Gauge<f64, AtomicU64>,
    history_bytes: Gauge,
    history_left_out: Gauge,
    history_last_write: Gauge<f64, AtomicU64>,
    frozen: Gauge,
    status_writes_waiting: Gauge,
    events: Family<Outcome, Counter>,
    native_desired: Family<DesiredBy, Gauge>,
    native_hpas: Family<NativeHpas, Gauge>,
    native_comparisons: Family<Outcome, Counter>,
    reloads: Family<Outcome, Counter>,
    last_reload: Gauge,
    queries: Family<Outcome, Counter>,
    listings: Family<Reason, Counter>,
    query_duration: Histogram,
    answer_bytes: Histogram,
    /// Those of the API server.
    pub serving: ServingMetrics,
    /// Those of requests to kube-apiserver.
    pub kube: KubeMetrics,
    watches: Watches,
}

/// Registers metrics, and keeps what is said of them.
struct Registering<'a> {
    registry: &'a mut Registry,
    described: Vec<Described>,
}

impl Registering<'_> {
    fn add<M: Metric + Clone>(
        &mut self,
        (name, unit, kind, labels): (&str, Option<Unit>, &'static str, &'static [&'static str]),
        help: &'static str,
        metric: M,
    ) -> M {
        let suffix = match (&unit, kind) {
            (Some(unit), _) => format!("_{}", unit.as_str()),
            (None, "counter") => "_total".to_owned(),
            (None, "info") => "_info".to_owned(),
            (None, _) => String::new(),
        };
        self.described.push(Described {
            name: format!("plimsoll_{name}{suffix}"),
            kind,
            labels,
            help,
        });
        match unit {
            Some(unit) => self.registry.register_with_unit(name, help, unit, metric.clone()),
            None => self.registry.register(name, help, metric.clone()),
        }
        metric
    }
}

fn unix_seconds() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 17))
}

impl Default for Metrics {
    fn default() -> Self {
        const S: Option<Unit> = Some(Unit::Seconds);
        const B: Option<Unit> = Some(Unit::Bytes);
        let mut registry = Registry::default();
        let own = registry.sub_registry_with_prefix("plimsoll");
        let mut all = Registering { registry: own, described: Vec::new() };
        let info = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        all.described.push(Described {
            name: "plimsoll_build_info".to_owned(),
            kind: "info",
            labels: &["version"],
            help: "Which build this is",
        });
        all.registry.register("build", "Which build this is", info);
        let metrics = Self {
            requests: all.add(
                ("http_requests", None, "counter", &["code"]),
                "Requests answered, by HTTP status",
                Family::default(),
            ),
            sample_age: all.add(
                ("sample_age", S, "histogram", &[]),
                "How old the oldest sample of an answer of the metrics APIs was, where that is known",
                Histogram::new(exponential_buckets(0.25, 2.0, 14)),
            ),
            decisions: all.add(
                ("decisions", None, "counter", &["outcome"]),
                "Decisions taken, by outcome: rescaled, held, failed, observed (a native HPA is left to kube-controller-manager) or followed (another replica leads)",
                Family::default(),
            ),
            errors: all.add(
                ("decision_errors", None, "counter", &["reason"]),
                "Decisions that failed, by the reason that the Autoscaler's condition gives",
                Family::default(),
            ),
            duration: all.add(
                ("decision_duration", S, "histogram", &[]),
                "How long a decision took, from its beginning until it was carried out",
                seconds(),
            ),
            lag: all.add(
                ("decision_lag", S, "histogram", &[]),
                "How long after its time a decision was begun",
                seconds(),
            ),
            missed: all.add(
                ("missed_rounds", None, "counter", &[]),
                "Decisions that were not taken because the one before took until after they were due",
                Counter::default(),
            ),
            autoscalers: all.add(
                ("autoscalers", None, "gauge", &[]),
                "Autoscalers and native HPAs decided for",
                Gauge::default(),
            ),
            failing: all.add(
                ("autoscalers_failing", None, "gauge", &[]),
                "Of those, how many whose last decision failed; their conditions say why",
                Gauge::default(),
            ),
            leader: all.add(
                ("leader", None, "gauge", &[]),
                "Whether this replica leads, and writes: 1 or 0",
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
                "Time of the last write of the scaling history by this replica, in Unix seconds; 0 if there was none",
                Gauge::default(),
            ),
            frozen: all.add(
                ("frozen", None, "gauge", &[]),
                "Whether an administrator has stopped all writes to scales: 1 or 0",
                Gauge::default(),
            ),
            status_writes_waiting: all.add(
                ("status_writes_waiting", None, "gauge", &[]),
                "Statuses that wait to be written to the API server",
                Gauge::default(),
            ),
            events: all.add(
                ("events", None, "counter", &["outcome"]),
                "Events by outcome: written, refused by the API server, or dropped as too many wait for the 20 a second",
                Family::default(),
            ),
            native_hpas: all.add(
                ("native_hpas", None, "gauge", &["observed"]),
                "Native HPAs by whether this replica observes them: yes; no_metrics (Plimsoll does not serve all of their metrics), no_scale (the kind of their target is not watched) or no_leader (another replica does)",
                Family::default(),
            ),
            native_desired: all.add(
                ("native_hpa_desired_replicas", None, "gauge", &["namespace", "name", "by"]),
                "Replicas wanted for an observed native HPA, by who decided",
                Family::default(),
            ),
            native_comparisons: all.add(
                ("native_hpa_comparisons", None, "counter", &["outcome"]),
                "Steps of observed native HPAs, by outcome: agreed, differed or failed (kube-controller-manager could decide, Plimsoll could not)",
                Family::default(),
            ),
            reloads: all.add(
                ("config_reloads", None, "counter", &["outcome"]),
                "Tries to take a changed configuration up, by outcome: taken or refused",
                Family::default(),
            ),
            last_reload: all.add(
                ("config_last_reload_successful", None, "gauge", &[]),
                "Whether the configuration in force is that of the file: 1 or 0",
                Gauge::default(),
            ),
            queries: all.add(
                ("prometheus_requests", None, "counter", &["outcome"]),
                "Requests to Prometheus, by outcome: answered, refused (a query it can't run), timeout, unreachable, unavailable (429 or 5xx) or unusable (an answer that is none)",
                Family::default(),
            ),
            listings: all.add(
                ("series_listings", None, "counter", &["reason"]),
                "Total number of listings of the series of all rules, by reason: interval, or unknown (a metric was asked for that the last listing did not have)",
                Family::default(),
            ),
            query_duration: all.add(
                ("prometheus_request_duration", S, "histogram", &[]),
                "How long requests to Prometheus took",
                seconds(),
            ),
            answer_bytes: all.add(
                ("prometheus_response", B, "histogram", &[]),
                "How large the answers of Prometheus were",
                Histogram::new(exponential_buckets(256.0, 4.0, 10)),
            ),
            serving: ServingMetrics::new(&mut all),
            kube: KubeMetrics::new(&mut all),
            watches: Watches::default(),
            described: Vec::new(),
            registry: Registry::default(),
        };
        metrics.last_reload.set(1);
        let mut described = all.described;
        registry.register_collector(Box::new(Process));
        registry.register_collector(Box::new(metrics.watches.clone()));
        described.extend(process::described());
        Self { registry, described, ..metrics }
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

impl Metrics {
    /// What is said of each.
    pub fn described(&self) -> &[Described] {
        &self.described
    }

    /// A request was answered.
    pub fn answered(&self, code: u16) {
        self.requests.get_or_create(&Code { code }).inc();
    }

    /// Samples were served, of which the oldest was so old.
    pub fn served(&self, age: Duration) {
        self.sample_age.observe(age.as_secs_f64());
    }

    /// A decision was taken, with such an outcome, so long after its time, and took so long.
    pub fn decided(&self, outcome: &'static str, lag: Duration, took: Duration) {
        self.decisions.get_or_create(&Outcome { outcome }).inc();
        self.lag.observe(lag.as_secs_f64());
        self.duration.observe(took.as_secs_f64());
    }

    /// A decision failed for a reason.
    pub fn failed(&self, reason: &str) {
        self.errors.get_or_create(&Reason { reason: reason.to_owned() }).inc();
    }

    /// So many decisions were not taken, as one came late.
    pub fn missed(&self, rounds: u64) {
        self.missed.inc_by(rounds);
    }

    /// For an observed native HPA so many replicas are wanted, by us and by them.
    pub fn wanted(&self, key: &ObjectKey, ours: i32, theirs: i32) {
        for (by, replicas) in [(OURS, ours), (THEIRS, theirs)] {
            self.native_desired.get_or_create(&desired_by(key, by)).set(replicas.into());
        }
    }

    /// A step of an observed native HPA was compared: agreed, differed or failed.
    pub fn compared(&self, outcome: &'static str) {
        self.native_comparisons.get_or_create(&Outcome { outcome }).inc();
    }

    /// So many native HPAs are observed, or not for this reason.
    pub fn observed(&self, observed: &'static str, count: usize) {
        self.native_hpas.get_or_create(&NativeHpas { observed }).set(count as i64);
    }

    /// An event was written, refused or dropped.
    pub fn published(&self, outcome: &'static str) {
        self.events.get_or_create(&Outcome { outcome }).inc();
    }

    /// An observed native HPA is gone.
    pub fn forget(&self, key: &ObjectKey) {
        for by in [OURS, THEIRS] {
            self.native_desired.remove(&desired_by(key, by));
        }
    }

    /// A changed configuration was taken up, or refused.
    pub fn reloaded(&self, taken: bool) {
        let outcome = if taken { "taken" } else { "refused" };
        self.reloads.get_or_create(&Outcome { outcome }).inc();
        self.last_reload.set(taken.into());
    }

    /// Shows how many statuses wait to be written.
    pub fn status_writes_waiting(&self) -> Gauge {
        self.status_writes_waiting.clone()
    }

    /// This replica became the leader.
    pub fn became_leader(&self) {
        self.became_leader.inc();
    }

    /// This replica renewed the Lease.
    pub fn renewed(&self) {
        self.last_renewal.set(unix_seconds());
    }

    /// The scaling history was written: so many bytes, without that of so many autoscalers.
    pub fn history_written(&self, bytes: usize, left_out: usize) {
        self.history_bytes.set(bytes as i64);
        self.history_left_out.set(left_out as i64);
        self.history_last_write.set(unix_seconds());
    }

    /// Whether this replica leads.
    pub fn leads(&self, leads: bool) {
        self.leader.set(leads.into());
    }

    /// Whether writes to scales are frozen.
    pub fn frozen(&self, frozen: bool) {
        self.frozen.set(frozen.into());
    }

    /// So many autoscalers are decided for, and for so many of them that failed last.
    pub fn autoscalers(&self, count: usize, failing: usize) {
        self.autoscalers.set(count as i64);
        self.failing.set(failing as i64);
    }

    /// Prometheus was asked: how that went, how long it took, how large the answer was.
    pub fn queried(&self, outcome: &'static str, took: Duration, bytes: Option<usize>) {
        self.queries.get_or_create(&Outcome { outcome }).inc();
        self.query_duration.observe(took.as_secs_f64());
        if let Some(bytes) = bytes {
            self.answer_bytes.observe(bytes as f64);
        }
    }

    /// The series of all rules are listed, because of the interval or of an unknown metric.
    pub fn listed(&self, reason: &'static str) {
        self.listings.get_or_create(&Reason { reason: reason.to_owned() }).inc();
    }

    /// Shows how these watches are doing, from now on.
    pub fn show(&self, synced: Synced) {
        let _ = self.watches.0.set(synced);
    }

    /// All of them: in the OpenMetrics text format, or in that of Prometheus for a
    /// client that takes only that.
    pub fn exposition(&self, headers: &HeaderMap) -> impl IntoResponse + use<> {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("a String takes all that is written to it");
        let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
        let kind = match accept.is_some_and(takes_text_alone) {
            false => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            true => {
                text = as_prometheus_text(&text);
                "text/plain; version=0.0.4; charset=utf-8"
            }
        };
        ([(header::CONTENT_TYPE, HeaderValue::from_static(kind))], text)
    }
}

/// Whether a client takes plain text, and not OpenMetrics.
fn takes_text_alone(accept: &str) -> bool {
    let takes = |kind: &str| accept.split(',').any(|one| one.trim().starts_with(kind));
    takes("text/") && !takes("application/") && !takes("*/*")
}

/// OpenMetrics as the older text: there a counter's metadata bears the name of its
/// samples, there are no units, no kind `info`, and no end.
fn as_prometheus_text(text: &str) -> String {
    let suffix = |name: &str| {
        let with = |suffix: &str| text.contains(&format!("# TYPE {name} {suffix}\n"));
        if with("counter") {
            "_total"
        } else if with("info") {
            "_info"
        } else {
            ""
        }
    };
    let mut written = String::with_capacity(text.len());
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("EOF" | "UNIT"), ..) => {}
            (Some("#"), Some(word), Some(name), Some(rest)) => {
                let (suffix, rest) = (suffix(name), if rest == "info" { "gauge" } else { rest });
                written.extend(["# ", word, " ", name, suffix, " ", rest, "\n"]);
            }
            _ => written.extend([line, "\n"]),
        }
    }
    written
}

fn desired_by(key: &ObjectKey, by: &'static str) -> DesiredBy {
    DesiredBy { namespace: key.namespace.clone(), name: key.name.clone(), by }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_only_the_older_text_is_given_it() {
        assert!(takes_text_alone("text/plain;version=0.0.4"));
        assert!(!takes_text_alone("application/openmetrics-text;version=1.0.0,text/plain;q=0.5"));
        assert!(!takes_text_alone("*/*") && !takes_text_alone("text/plain, */*"));
        let metrics = Metrics::default();
        metrics.answered(200);
        let mut text = String::new();
        encode(&mut text, &metrics.registry).unwrap();
        let text = as_prometheus_text(&text);
        assert!(text.contains("# TYPE plimsoll_http_requests_total counter\nplimsoll_http_requests_total{code=\"200\"} 1\n"), "{text}");
        assert!(text.contains("# TYPE plimsoll_build_info gauge\nplimsoll_build_info{"), "{text}");
        assert!(!text.contains("# EOF") && !text.contains("# UNIT"), "{text}");
    }
}
