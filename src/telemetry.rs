//! Logs, and Plimsoll's own metrics.

use crate::config::LogFormat;
use crate::watch::ObjectKey;
use axum::http::{HeaderValue, header};
use axum::response::IntoResponse;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use std::time::Duration;
use tracing_subscriber::EnvFilter;

/// Starts to log to standard error.
///
/// # Errors
/// Where the filter can't be read; the text says what is wrong with it.
pub fn start_logging(format: LogFormat, level: &str) -> Result<(), String> {
    let filter = EnvFilter::try_new(level).map_err(|error| {
        format!("--log-level: {error}; info, or plimsoll::serve=debug,info was expected")
    })?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => builder.with_ansi(false).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
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
struct DesiredBy {
    namespace: String,
    name: String,
    by: &'static str,
}

const OURS: &str = "plimsoll";
const THEIRS: &str = "kube-controller-manager";

/// Plimsoll's own metrics.
pub struct Metrics {
    registry: Registry,
    requests: Family<Code, Counter>,
    decisions: Family<Outcome, Counter>,
    lag: Histogram,
    missed: Counter,
    autoscalers: Gauge,
    native_desired: Family<DesiredBy, Gauge>,
    native_comparisons: Family<Outcome, Counter>,
    reloads: Family<Outcome, Counter>,
    last_reload: Gauge,
    leader: Gauge,
    frozen: Gauge,
    status_writes_waiting: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("plimsoll");
        let (requests, decisions) = (Family::default(), Family::default());
        let lag = Histogram::new(exponential_buckets(0.001, 2.0, 17));
        let autoscalers = Gauge::default();
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "Which build this is", build);
        registry.register("http_requests", "Requests answered, by HTTP status", requests.clone());
        registry.register(
            "decisions",
            "Decisions taken, by outcome: rescaled, held, failed, observed (a native HPA's own controller decides) or followed (another replica leads)",
            decisions.clone(),
        );
        registry.register_with_unit(
            "decision_lag",
            "How long after its time a decision was begun",
            Unit::Seconds,
            lag.clone(),
        );
        let missed = Counter::default();
        registry.register(
            "missed_rounds",
            "Decisions that were not taken because the one before took until after they were due",
            missed.clone(),
        );
        registry.register("autoscalers", "Autoscalers decided for", autoscalers.clone());
        let (native_desired, native_comparisons) = (Family::default(), Family::default());
        registry.register(
            "native_hpa_desired_replicas",
            "Replicas wanted for an observed native HPA, by who decided",
            native_desired.clone(),
        );
        registry.register(
            "native_hpa_comparisons",
            "Decisions for observed native HPAs, by outcome: agreed or differed",
            native_comparisons.clone(),
        );
        let (reloads, last_reload) = (Family::default(), Gauge::default());
        last_reload.set(1);
        registry.register(
            "config_reloads",
            "Tries to take a changed configuration up, by outcome: taken or refused",
            reloads.clone(),
        );
        registry.register(
            "config_last_reload_successful",
            "Whether the configuration in force is that of the file: 1 or 0",
            last_reload.clone(),
        );
        let (leader, frozen) = (Gauge::default(), Gauge::default());
        registry.register(
            "leader",
            "Whether this replica leads, and writes: 1 or 0",
            leader.clone(),
        );
        registry.register(
            "frozen",
            "Whether an administrator has stopped all writes to scales: 1 or 0",
            frozen.clone(),
        );
        let status_writes_waiting = Gauge::default();
        registry.register(
            "status_writes_waiting",
            "Statuses that wait to be written to the API server",
            status_writes_waiting.clone(),
        );
        Self {
            registry,
            requests,
            decisions,
            lag,
            missed,
            autoscalers,
            native_desired,
            native_comparisons,
            reloads,
            last_reload,
            leader,
            frozen,
            status_writes_waiting,
        }
    }
}

impl Metrics {
    /// A request was answered.
    pub fn answered(&self, code: u16) {
        self.requests.get_or_create(&Code { code }).inc();
    }

    /// A decision was taken, with such an outcome, so long after its time.
    pub fn decided(&self, outcome: &'static str, lag: Duration) {
        self.decisions.get_or_create(&Outcome { outcome }).inc();
        self.lag.observe(lag.as_secs_f64());
    }

    /// So many decisions were not taken, as one came late.
    pub fn missed(&self, rounds: u64) {
        self.missed.inc_by(rounds);
    }

    /// For an observed native HPA so many replicas are wanted, by us and by them.
    pub fn compared(&self, key: &ObjectKey, ours: i32, theirs: i32, agreed: bool) {
        for (by, replicas) in [(OURS, ours), (THEIRS, theirs)] {
            self.native_desired.get_or_create(&desired_by(key, by)).set(replicas.into());
        }
        let outcome = if agreed { "agreed" } else { "differed" };
        self.native_comparisons.get_or_create(&Outcome { outcome }).inc();
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

    /// Whether this replica leads.
    pub fn leads(&self, leads: bool) {
        self.leader.set(leads.into());
    }

    /// Whether writes to scales are frozen.
    pub fn frozen(&self, frozen: bool) {
        self.frozen.set(frozen.into());
    }

    /// So many autoscalers are decided for.
    pub fn autoscalers(&self, count: usize) {
        self.autoscalers.set(count as i64);
    }

    /// All of them, in the OpenMetrics text format.
    pub fn exposition(&self) -> impl IntoResponse + use<> {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("a String takes all that is written to it");
        let kind =
            HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
        ([(header::CONTENT_TYPE, kind)], text)
    }
}

fn desired_by(key: &ObjectKey, by: &'static str) -> DesiredBy {
    DesiredBy { namespace: key.namespace.clone(), name: key.name.clone(), by }
}
