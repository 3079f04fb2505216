//! Events about the Lease: the leader, and the freeze.

use super::settings::{ElectionSettings, REQUEST_TIMEOUT};
use crate::api_names::api_names;
use crate::clock::Clock;
use crate::kube_error::worded;
use crate::supervise::Spawner;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};

api_names! {
    /// The reason of an event about the Lease.
    pub enum LeaseEvent {
        /// A replica became leader, or stopped leading.
        LeaderElection,
        /// All scales were frozen.
        Frozen,
        /// They are no longer.
        Thawed,
    }
}

/// Records events about the Lease in the background: the election waits for none of them.
pub struct EventRecorder {
    api: Api<Event>,
    identity: String,
    clock: Clock,
    spawner: Spawner,
}

impl EventRecorder {
    /// A recorder of events in the namespace of the Lease.
    pub fn new(
        client: Client,
        settings: &ElectionSettings,
        clock: Clock,
        spawner: Spawner,
    ) -> Self {
        let api = Api::namespaced(client, &settings.namespace);
        Self { api, identity: settings.identity.clone(), clock, spawner }
    }

    /// Records an event. A failure is only logged.
    pub fn record(&self, lease: &Lease, reason: LeaseEvent, message: String) {
        let event = self.event(lease, reason, message);
        let api = self.api.clone();
        self.spawner.spawn(async move {
            let parameters = PostParams::default();
            let created =
                tokio::time::timeout(REQUEST_TIMEOUT, api.create(&parameters, &event)).await;
            match created {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => {
                    tracing::warn!(
                        reason = reason.as_str(),
                        error = worded(&error),
                        "Failed to record event"
                    );
                }
                Err(_) => tracing::warn!(reason = reason.as_str(), "Timed out recording event"),
            }
        });
    }

    /// An event as client-go's leader election records it.
    fn event(&self, lease: &Lease, reason: LeaseEvent, message: String) -> Event {
        let now = self.clock.wall_timestamp();
        let about = &lease.metadata;
        let name = about.name.clone().unwrap_or_default();
        Event {
            metadata: ObjectMeta {
                name: Some(format!("{name}.{:x}", now.as_nanosecond())),
                namespace: about.namespace.clone(),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: Some("coordination.k8s.io/v1".to_owned()),
                kind: Some("Lease".to_owned()),
                name: Some(name),
                namespace: about.namespace.clone(),
                uid: about.uid.clone(),
                ..ObjectReference::default()
            },
            type_: Some("Normal".to_owned()),
            reason: Some(reason.as_str().to_owned()),
            message: Some(message),
            source: Some(EventSource {
                component: Some("plimsoll".to_owned()),
                host: Some(self.identity.clone()),
            }),
            reporting_component: Some("plimsoll".to_owned()),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            count: Some(1),
            ..Event::default()
        }
    }
}
