//! Events about what is decided for. The same event again counts up the one there is.

use crate::hpa::Event;
use crate::leader::Permit;
use crate::watch::{Subject, SubjectKind};
use k8s_openapi::api::core::v1::{Event as ApiEvent, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

fn api_version(kind: SubjectKind) -> &'static str {
    match kind {
        SubjectKind::Autoscaler => "plimsoll.dev/v1alpha1",
        SubjectKind::Hpa => "autoscaling/v2",
    }
}

/// Publishes events.
#[derive(Clone)]
pub struct Events {
    client: Client,
    recent: Arc<Mutex<Recent>>,
}

/// What was said of whom (UID, reason, message), under which name, how often.
type Recent = HashMap<(String, &'static str, String), Published>;

struct Published {
    name: String,
    count: i32,
    at: Instant,
    /// When its count was last written.
    written: Instant,
}

/// Whether an event was published lately.
enum Known {
    No,
    /// It was, so lately that it is counted and no more.
    JustNow,
    /// Under this name; its new count is to be written.
    As(String, i32),
}

/// How long an event is counted up before a new one is made.
const RECENT: Duration = Duration::from_secs(600);
/// The least time between two writes of one event: where all metrics fail, each
/// autoscaler says so each round.
const AGAIN: Duration = Duration::from_secs(60);
/// How many are remembered.
const REMEMBERED: usize = 16_384;

impl Events {
    /// A publisher over this client.
    pub fn new(client: Client) -> Self {
        Self { client, recent: Arc::default() }
    }

    /// Publishes an event. That it can't be published is
    /// logged and no more: decisions do not depend on it.
    pub async fn publish(&self, permit: &Permit, subject: &Subject, uid: &str, event: &Event) {
        let about = &subject.key;
        let api: Api<ApiEvent> = Api::namespaced(self.client.clone(), &about.namespace);
        let now = Time(Timestamp::now());
        let key = (uid.to_owned(), event.reason, event.message.clone());
        match self.count_up(&key) {
            Known::No => {}
            Known::JustNow => return,
            Known::As(name, count) => {
                let patch = json!({"count": count, "lastTimestamp": now});
                let parameters = PatchParams::default();
                let patch = Patch::Merge(patch);
                if permit.write(api.patch(&name, &parameters, &patch)).await.is_ok() {
                    return;
                }
            }
        }
        // As client-go names them: unique, and beginning with the object's name.
        let unique = now.0.as_nanosecond();
        let name = format!("{}.{unique:x}", about.name);
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
                uid: Some(uid.to_owned()),
                ..Default::default()
            },
            type_: Some(event.kind.as_str().to_owned()),
            reason: Some(event.reason.to_owned()),
            message: Some(event.message.clone()),
            source: Some(EventSource { component: Some("plimsoll".to_owned()), host: None }),
            reporting_component: Some("plimsoll".to_owned()),
            first_timestamp: Some(now.clone()),
            last_timestamp: Some(now),
            count: Some(1),
            ..Default::default()
        };
        let parameters = PostParams::default();
        match permit.write(api.create(&parameters, &created)).await {
            Ok(_) => {
                let now = Instant::now();
                let published = Published { name, count: 1, at: now, written: now };
                let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
                recent.insert(key, published);
            }
            Err(error) => {
                tracing::warn!(%subject, reason = event.reason, %error, "could not publish an event");
            }
        }
    }

    /// Counts the same event up, where it was published lately.
    fn count_up(&self, key: &(String, &'static str, String)) -> Known {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() >= REMEMBERED {
            recent.retain(|_, published| published.at.elapsed() < RECENT);
        }
        if recent.len() >= REMEMBERED {
            recent.clear();
        }
        let Some(published) = recent.get_mut(key).filter(|p| p.at.elapsed() < RECENT) else {
            return Known::No;
        };
        published.count += 1;
        if published.written.elapsed() < AGAIN {
            return Known::JustNow;
        }
        published.written = Instant::now();
        Known::As(published.name.clone(), published.count)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake;
    use super::*;
    use crate::hpa::EventKind;

    #[tokio::test]
    async fn an_outage_of_prometheus_is_no_storm_of_events() {
        let (client, log) = fake::api(|request| (200, request.body.clone()));
        let (permit, events) = (fake::permit(&client), Events::new(client));
        for round in 0..3 {
            for number in 0..10_000 {
                for reason in ["FailedGetPodsMetric", "FailedComputeMetricsReplicas"] {
                    // As an outage goes: each cause has a text of its own.
                    let message = format!("Prometheus: cause {}", round % 2);
                    let event = Event { kind: EventKind::Warning, reason, message };
                    let subject = fake::autoscaler(&format!("web-{number}"));
                    events.publish(&permit, &subject, &format!("uid-{number}"), &event).await;
                }
            }
        }
        let written = log.of("").len();
        assert!(written <= 20_000, "{written} events are written for 20,000 things to say");
    }
}
