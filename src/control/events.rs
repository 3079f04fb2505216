//! Events, written beside the evaluations at a limited rate: however many fail, neither etcd nor an
//! evaluation pays for it.

use super::correlate::{Correlator, EventKey, EventWrite};
use super::requests::{backoff, is_transient, message};
use crate::clock::Clock;
use crate::crd::Autoscaler;
use crate::hpa::{Event, EventKind, Reason};
use crate::kube_error::worded;
use crate::leader::FencingToken;
use crate::telemetry::Metrics;
use crate::watch::{AutoscalerKind, AutoscalerRef};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{Event as ApiEvent, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde_json::json;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Publishes events. Cheap to clone.
#[derive(Clone)]
pub struct Events(Arc<Inner>);

struct Inner {
    client: Client,
    clock: Clock,
    queues: Mutex<Queues>,
    added: Notify,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct Queues {
    correlator: Correlator,
    /// Normal events come before warnings, of which there may be many.
    normal: VecDeque<Queued>,
    warnings: VecDeque<Queued>,
    /// Whether a write is in flight.
    in_flight: bool,
}

struct Queued {
    token: FencingToken,
    autoscaler: AutoscalerRef,
    uid: String,
    key: EventKey,
    kind: EventKind,
    reason: Reason,
}

/// The least time between two writes: at most 20 per second.
const WRITE_INTERVAL: Duration = Duration::from_millis(50);
/// The maximum of queued events of either kind; an event beyond it is published again later.
const MAX_QUEUED: usize = 1_000;
/// The maximum backoff while the API server is unavailable.
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// How long a graceful shutdown waits for queued events.
const EVENT_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum length of the name of an object.
const MAX_NAME_LENGTH: usize = 253;

fn api_version(kind: AutoscalerKind) -> Cow<'static, str> {
    match kind {
        AutoscalerKind::Autoscaler => Autoscaler::api_version(&()),
        AutoscalerKind::Hpa => HorizontalPodAutoscaler::api_version(&()),
    }
}

impl Events {
    /// A publisher over this client; [`Events::run`] writes.
    pub fn new(client: Client, clock: Clock, metrics: Arc<Metrics>) -> Self {
        let (queues, added) = (Mutex::default(), Notify::new());
        Self(Arc::new(Inner { client, clock, queues, added, metrics }))
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.0.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues those events of one evaluation that the correlator lets through.
    pub fn publish(
        &self,
        token: &FencingToken,
        autoscaler: &AutoscalerRef,
        uid: &str,
        events: &[Event],
    ) {
        let mut queues = self.queues();
        for (index, event) in events.iter().enumerate() {
            let same = |other: &&Event| other.reason == event.reason;
            let key = EventKey::of(event, events[..index].iter().filter(same).count());
            let now = Instant::now();
            if !queues.correlator.observe(autoscaler, uid, &key, &event.message, now) {
                continue;
            }
            let Queues { correlator, normal, warnings, .. } = &mut *queues;
            let queue = if event.kind == EventKind::Normal { normal } else { warnings };
            if queue.len() == MAX_QUEUED {
                correlator.drop(autoscaler, uid, &key);
                self.0.metrics.event("dropped");
                continue;
            }
            queue.push_back(Queued {
                token: token.clone(),
                autoscaler: autoscaler.clone(),
                uid: uid.to_owned(),
                key,
                kind: event.kind,
                reason: event.reason,
            });
        }
        drop(queues);
        self.0.added.notify_one();
    }

    /// Forgets the events of an object that is gone.
    pub fn forget(&self, autoscaler: &AutoscalerRef) {
        self.queues().correlator.forget(autoscaler);
    }

    /// Writes queued events, forever.
    pub async fn run(&self) {
        let mut failures = 0;
        loop {
            let Some(queued) = self.take() else {
                self.0.added.notified().await;
                continue;
            };
            let begun = Instant::now();
            let failed = self.write(queued).await;
            self.queues().in_flight = false;
            failures = if failed { failures + 1 } else { 0 };
            let wait = if failed { backoff(failures, MAX_BACKOFF) } else { WRITE_INTERVAL };
            tokio::time::sleep_until(begun + wait).await;
        }
    }

    /// Waits until all queued events are written, for at most [`EVENT_SHUTDOWN_TIMEOUT`].
    pub async fn finish(&self) {
        let start = Instant::now();
        let idle = |queues: &Queues| {
            queues.normal.is_empty() && queues.warnings.is_empty() && !queues.in_flight
        };
        while !idle(&self.queues()) && start.elapsed() < EVENT_SHUTDOWN_TIMEOUT {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn take(&self) -> Option<Queued> {
        let mut queues = self.queues();
        let next = queues.normal.pop_front().or_else(|| queues.warnings.pop_front());
        queues.in_flight = next.is_some();
        next
    }

    /// Writes one event; returns whether the API server is unavailable.
    async fn write(&self, queued: Queued) -> bool {
        let Queued { token, autoscaler, uid, key, .. } = &queued;
        let due = self.queues().correlator.due(autoscaler, uid, key);
        let Some(due) = due.filter(|_| token.is_valid()) else {
            self.queues().correlator.drop(autoscaler, uid, key);
            return false;
        };
        let outcome = match self.put(&queued, &due).await {
            Ok(name) => {
                self.queues().correlator.written(autoscaler, uid, key, &name, Instant::now());
                "written"
            }
            // Its event has expired.
            Err(kube::Error::Api(status)) if status.code == 404 && due.name.is_some() => {
                self.queues().correlator.expired(autoscaler, uid, key);
                self.requeue(queued);
                return false;
            }
            Err(error) if is_transient(&error) => {
                tracing::warn!(error = worded(&error), "Failed to publish an event, retrying");
                self.requeue(queued);
                return true;
            }
            Err(error) => {
                let error = message(&error);
                tracing::debug!(%autoscaler, reason = queued.reason.as_str(), error, "Failed to publish an event");
                self.queues().correlator.drop(autoscaler, uid, key);
                "refused"
            }
        };
        self.0.metrics.event(outcome);
        false
    }

    fn requeue(&self, queued: Queued) {
        let mut queues = self.queues();
        match queued.kind {
            EventKind::Normal => queues.normal.push_front(queued),
            EventKind::Warning => queues.warnings.push_front(queued),
        }
    }

    /// Creates an event, or increments the count of the existing one. Returns its name.
    async fn put(&self, queued: &Queued, due: &EventWrite) -> Result<String, kube::Error> {
        let Queued { token, autoscaler, uid, kind, reason, .. } = queued;
        let about = &autoscaler.key;
        let api: Api<ApiEvent> = Api::namespaced(self.0.client.clone(), &about.namespace);
        let now = Time(self.0.clock.wall_timestamp());
        if let Some(name) = &due.name {
            let patch = json!({"count": due.count, "lastTimestamp": now, "message": due.message});
            let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
            return token.write(api.patch(name, &parameters, &patch)).await.map(|_| name.clone());
        }
        // As client-go names them: the object's name and a unique suffix.
        let unique = format!(".{:x}", now.0.as_nanosecond());
        let beginning = about.name.chars().take(MAX_NAME_LENGTH - unique.len());
        let name: String = beginning.chain(unique.chars()).collect();
        let created = ApiEvent {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(about.namespace.clone()),
                ..Default::default()
            },
            involved_object: ObjectReference {
                api_version: Some(api_version(autoscaler.kind).into_owned()),
                kind: Some(autoscaler.kind.as_str().to_owned()),
                name: Some(about.name.clone()),
                namespace: Some(about.namespace.clone()),
                uid: Some(uid.clone()),
                ..Default::default()
            },
            type_: Some(kind.as_str().to_owned()),
            reason: Some(reason.as_str().to_owned()),
            message: Some(due.message.clone()),
            source: Some(EventSource { component: Some("plimsoll".to_owned()), host: None }),
            reporting_component: Some("plimsoll".to_owned()),
            first_timestamp: Some(now.clone()),
            last_timestamp: Some(now),
            count: Some(due.count),
            ..Default::default()
        };
        token.write(api.create(&PostParams::default(), &created)).await.map(|_| name)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake;
    use super::*;

    /// An outage in which 10,000 autoscalers publish two events in each evaluation.
    fn outage(events: &Events, token: &FencingToken, round: usize) {
        for number in 0..10_000 {
            let event = |reason| {
                // In an outage the causes, and so the messages, vary.
                let message = format!("Prometheus: cause {}", round % 2);
                Event { kind: EventKind::Warning, reason, message }
            };
            let both =
                [Reason::FailedGetPodsMetric, Reason::FailedComputeMetricsReplicas].map(event);
            let autoscaler = fake::autoscaler(&format!("web-{number}"));
            events.publish(token, &autoscaler, &format!("uid-{number}"), &both);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_of_prometheus_writes_events_at_a_limited_rate() {
        let (client, log) = fake::api(|request| (200, request.body.clone()));
        let token = fake::fencing_token(&client);
        let events = Events::new(client, Clock::default(), Arc::default());
        let running = events.clone();
        let run = tokio::spawn(async move { running.run().await });
        let start = Instant::now();
        for round in 0..40 {
            outage(&events, &token, round);
            let before = log.of("").len();
            tokio::time::sleep(Duration::from_secs(15)).await;
            let written = log.of("").len() - before;
            assert!((250..=301).contains(&written), "{written} in 15 s");
        }
        assert_eq!(start.elapsed(), Duration::from_secs(600));
        let queues = events.queues();
        assert!(queues.warnings.len() <= MAX_QUEUED && queues.normal.is_empty());
        drop(queues);
        run.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn an_unavailable_api_server_gets_few_retries_and_the_event_of_a_rescale_in_the_end() {
        let mut away = 40;
        let (client, log) = fake::api(move |request| {
            away -= 1;
            let unavailable = || fake::failure(503, "ServiceUnavailable", "starting");
            if away > 20 { unavailable() } else { (200, request.body.clone()) }
        });
        let (lines, _guard) = crate::fake::LogLines::keep();
        let token = fake::fencing_token(&client);
        let events = Events::new(client, Clock::default(), Arc::default());
        let running = events.clone();
        let run = tokio::spawn(async move { running.run().await });
        let message = "New size: 3".to_owned();
        let rescaled =
            Event { kind: EventKind::Normal, reason: Reason::SuccessfulRescale, message };
        events.publish(&token, &fake::autoscaler("web"), "u", &[rescaled]);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(log.of("").len() <= 8, "{} tries in a minute", log.of("").len());
        tokio::time::sleep(Duration::from_secs(900)).await;
        let last = log.of("").pop().unwrap();
        assert_eq!((log.of("").len(), &last.body["message"]), (20, &json!("New size: 3")));
        lines.assert_plain();
        run.abort();
    }
}
