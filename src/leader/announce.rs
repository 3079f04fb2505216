//! Events about the Lease: who leads, and what is frozen.

use super::ElectionSettings;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use std::time::Duration;

/// Publishes events about the Lease, beside the election: nothing waits for them.
pub(super) struct Announcer {
    api: Api<Event>,
    identity: String,
}

/// How long one may take.
const REQUEST: Duration = Duration::from_secs(10);

impl Announcer {
    pub fn new(client: Client, settings: &ElectionSettings) -> Self {
        let api = Api::namespaced(client, &settings.namespace);
        Self { api, identity: settings.identity.clone() }
    }

    pub fn publish(&self, lease: &Lease, reason: &'static str, message: String) {
        let event = self.event(lease, reason, message);
        let api = self.api.clone();
        tokio::spawn(async move {
            let parameters = PostParams::default();
            let created = tokio::time::timeout(REQUEST, api.create(&parameters, &event)).await;
            match created {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => tracing::warn!(reason, %error, "could not publish an event"),
                Err(_) => tracing::warn!(reason, "could not publish an event in time"),
            }
        });
    }

    /// In the form of client-go's.
    fn event(&self, lease: &Lease, reason: &'static str, message: String) -> Event {
        let now = Timestamp::now();
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
            reason: Some(reason.to_owned()),
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
