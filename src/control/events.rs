//! Events about what is decided, written beside the decisions and so many a second
//! at most: whatever fails, and for however many, neither etcd nor a round pays for it.

use super::correlate::{Correlator, Due, Key};
use super::{growing, is_passing};
use crate::hpa::{Event, EventKind};
use crate::leader::FencingToken;
use crate::telemetry::Metrics;
use crate::watch::{Subject, SubjectKind};
use k8s_openapi::api::core::v1::{Event as ApiEvent, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
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
    state: Mutex<State>,
    added: Notify,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct State {
    correlator: Correlator,
    /// What went well comes before warnings, of which there may be many.
    normal: VecDeque<Waiting>,
    warnings: VecDeque<Waiting>,
    /// Whether one is being written.
    writing: bool,
}

struct Waiting {
    token: FencingToken,
    subject: Subject,
    uid: String,
    key: Key,
    kind: EventKind,
    reason: &'static str,
}

/// The least time between two writes: at most 20 a second.
const PACE: Duration = Duration::from_millis(50);
/// How many of either kind may wait; what is said beyond them is said again later.
const WAITING: usize = 1_000;
/// The longest wait while the API server can't be written to.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// How long what waits at an orderly end is waited for.
const LAST: Duration = Duration::from_secs(2);
/// The longest name of an object.
const LONGEST_NAME: usize = 253;

fn api_version(kind: SubjectKind) -> &'static str {
    match kind {
        SubjectKind::Autoscaler => "plimsoll.dev/v1alpha1",
        SubjectKind::Hpa => "autoscaling/v2",
    }
}

impl Events {
    /// A publisher over this client; [`Events::run`] writes.
    pub fn new(client: Client, metrics: Arc<Metrics>) -> Self {
        let (state, added) = (Mutex::default(), Notify::new());
        Self(Arc::new(Inner { client, state, added, metrics }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the events of one decision written, as far as they are worth it.
    pub fn publish(&self, token: &FencingToken, subject: &Subject, uid: &str, events: &[Event]) {
        let mut state = self.state();
        for (index, event) in events.iter().enumerate() {
            let same = |other: &&Event| other.reason == event.reason;
            let key = Key::of(event, events[..index].iter().filter(same).count());
            let now = Instant::now();
            if !state.correlator.say(subject, uid, &key, &event.message, now) {
                continue;
            }
            let State { correlator, normal, warnings, .. } = &mut *state;
            let queue = if event.kind == EventKind::Normal { normal } else { warnings };
            if queue.len() == WAITING {
                correlator.drop(subject, uid, &key);
                self.0.metrics.published("dropped");
                continue;
            }
            queue.push_back(Waiting {
                token: token.clone(),
                subject: subject.clone(),
                uid: uid.to_owned(),
                key,
                kind: event.kind,
                reason: event.reason,
            });
        }
        drop(state);
        self.0.added.notify_one();
    }

    /// Forgets what was said of an object that is gone.
    pub fn forget(&self, subject: &Subject) {
        self.state().correlator.forget(subject);
    }

    /// Writes what waits, for ever.
    pub async fn run(&self) {
        let mut failures = 0;
        loop {
            let Some(waiting) = self.take() else {
                self.0.added.notified().await;
                continue;
            };
            let begun = Instant::now();
            let failed = self.write(waiting).await;
            self.state().writing = false;
            failures = if failed { failures + 1 } else { 0 };
            let wait = if failed { growing(failures, LONGEST_WAIT) } else { PACE };
            tokio::time::sleep_until(begun + wait).await;
        }
    }

    /// Waits until all is written that waits now, for a bounded time.
    pub async fn finish(&self) {
        let start = Instant::now();
        let idle =
            |state: &State| state.normal.is_empty() && state.warnings.is_empty() && !state.writing;
        while !idle(&self.state()) && start.elapsed() < LAST {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn take(&self) -> Option<Waiting> {
        let mut state = self.state();
        let next = state.normal.pop_front().or_else(|| state.warnings.pop_front());
        state.writing = next.is_some();
        next
    }

    /// Writes one; true where the API server can't be written to now.
    async fn write(&self, waiting: Waiting) -> bool {
        let Waiting { token, subject, uid, key, .. } = &waiting;
        let due = self.state().correlator.due(subject, uid, key);
        let Some(due) = due.filter(|_| token.is_valid()) else {
            self.state().correlator.drop(subject, uid, key);
            return false;
        };
        let outcome = match self.put(&waiting, &due).await {
            Ok(name) => {
                self.state().correlator.written(subject, uid, key, &name, Instant::now());
                "written"
            }
            // It has outlived its time.
            Err(kube::Error::Api(status)) if status.code == 404 && due.name.is_some() => {
                self.state().correlator.lost(subject, uid, key);
                self.put_back(waiting);
                return false;
            }
            Err(error) if is_passing(&error) => {
                tracing::warn!(%error, "could not publish an event; it is tried again");
                self.put_back(waiting);
                return true;
            }
            Err(error) => {
                let error = super::message(&error);
                tracing::debug!(%subject, reason = waiting.reason, error, "could not publish an event");
                self.state().correlator.drop(subject, uid, key);
                "refused"
            }
        };
        self.0.metrics.published(outcome);
        false
    }

    fn put_back(&self, waiting: Waiting) {
        let mut state = self.state();
        match waiting.kind {
            EventKind::Normal => state.normal.push_front(waiting),
            EventKind::Warning => state.warnings.push_front(waiting),
        }
    }

    /// Creates an event or counts the one there is up; its name.
    async fn put(&self, waiting: &Waiting, due: &Due) -> Result<String, kube::Error> {
        let Waiting { token, subject, uid, kind, reason, .. } = waiting;
        let about = &subject.key;
        let api: Api<ApiEvent> = Api::namespaced(self.0.client.clone(), &about.namespace);
        let now = Time(Timestamp::now());
        if let Some(name) = &due.name {
            let patch = json!({"count": due.count, "lastTimestamp": now, "message": due.message});
            let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
            return token.write(api.patch(name, &parameters, &patch)).await.map(|_| name.clone());
        }
        // As client-go names them: unique, and beginning with the object's name.
        let unique = format!(".{:x}", now.0.as_nanosecond());
        let beginning = about.name.chars().take(LONGEST_NAME - unique.len());
        let name: String = beginning.chain(unique.chars()).collect();
        let created = ApiEvent {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(about.namespace.clone()),
                ..Default::default()
            },
            involved_object: ObjectReference {
                api_version: Some(api_version(subject.kind).to_owned()),
                kind: Some(subject.kind.as_str().to_owned()),
                name: Some(about.name.clone()),
                namespace: Some(about.namespace.clone()),
                uid: Some(uid.clone()),
                ..Default::default()
            },
            type_: Some(kind.as_str().to_owned()),
            reason: Some((*reason).to_owned()),
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

    /// An outage in which each of so many autoscalers has two things to say each round.
    fn outage(events: &Events, token: &FencingToken, round: usize) {
        for number in 0..10_000 {
            let event = |reason| {
                // As an outage goes: each cause has a text of its own.
                let message = format!("Prometheus: cause {}", round % 2);
                Event { kind: EventKind::Warning, reason, message }
            };
            let both = ["FailedGetPodsMetric", "FailedComputeMetricsReplicas"].map(event);
            let subject = fake::autoscaler(&format!("web-{number}"));
            events.publish(token, &subject, &format!("uid-{number}"), &both);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_of_prometheus_is_no_storm_of_events() {
        let (client, log) = fake::api(|request| (200, request.body.clone()));
        let token = fake::fencing_token(&client);
        let events = Events::new(client, Arc::default());
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
        let state = events.state();
        assert!(state.warnings.len() <= WAITING && state.normal.is_empty());
        drop(state);
        run.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn while_the_api_server_is_away_tries_are_few_and_a_rescale_is_told_in_the_end() {
        let mut away = 40;
        let (client, log) = fake::api(move |request| {
            away -= 1;
            let unavailable = || fake::failure(503, "ServiceUnavailable", "starting");
            if away > 20 { unavailable() } else { (200, request.body.clone()) }
        });
        let token = fake::fencing_token(&client);
        let events = Events::new(client, Arc::default());
        let running = events.clone();
        let run = tokio::spawn(async move { running.run().await });
        let message = "New size: 3".to_owned();
        let rescaled = Event { kind: EventKind::Normal, reason: "SuccessfulRescale", message };
        events.publish(&token, &fake::autoscaler("web"), "u", &[rescaled]);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(log.of("").len() <= 8, "{} tries in a minute", log.of("").len());
        tokio::time::sleep(Duration::from_secs(900)).await;
        let last = log.of("").pop().unwrap();
        assert_eq!((log.of("").len(), &last.body["message"]), (20, &json!("New size: 3")));
        run.abort();
    }
}
