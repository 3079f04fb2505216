//! What unit tests of the control loop need of an API server and of its objects.

pub use crate::fake::{Log, Request, api, failure, samples_and_rules, slow_api};

use crate::clock::Clock;
use crate::leader::freeze::FREEZE;
use crate::leader::{ElectionSettings, FencingToken, LeaderElector};
use crate::supervise::Spawner;
use crate::watch::{AutoscalerRef, ObjectKey};
use kube::Client;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// A fencing token of a replica that runs without leader election.
pub fn fencing_token(client: &Client) -> FencingToken {
    leader(client).fencing_token().expect("it leads")
}

/// A replica that runs without leader election.
pub fn leader(client: &Client) -> LeaderElector {
    let settings = ElectionSettings {
        elect: false,
        namespace: "plimsoll".to_owned(),
        name: "plimsoll".to_owned(),
        identity: "a".to_owned(),
        lease_duration: Duration::from_secs(7),
        renew_deadline: Duration::from_secs(5),
        retry_period: Duration::from_secs(2),
    };
    let (clock, spawner) = (Clock::default(), Spawner::unowned());
    LeaderElector::new(client.clone(), settings, clock, Arc::default(), spawner)
}

/// Freezes scales, as the Lease's annotation does.
pub fn freeze(leader: &LeaderElector) {
    let lease = json!({"metadata": {"annotations": {FREEZE: "incident"}}});
    leader.observe_freeze(&serde_json::from_value(lease).expect("a Lease"));
}

/// An Autoscaler of the namespace `shop`.
pub fn autoscaler(name: &str) -> AutoscalerRef {
    AutoscalerRef::autoscaler(ObjectKey { namespace: "shop".to_owned(), name: name.to_owned() })
}

/// The scale of the Deployment `shop/web`.
pub fn scale(version: u32, replicas: i32) -> Value {
    json!({"apiVersion": "autoscaling/v1", "kind": "Scale",
        "metadata": {"name": "web", "namespace": "shop", "resourceVersion": version.to_string()},
        "spec": {"replicas": replicas},
        "status": {"replicas": replicas, "selector": "app=web"}})
}

/// The resources of `apps/v1`.
pub fn deployments() -> Value {
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "apps/v1",
        "resources": [{"name": "deployments", "singularName": "deployment",
            "namespaced": true, "kind": "Deployment", "verbs": ["get"]}]})
}

/// The groups of APIs.
pub fn groups() -> Value {
    let version = json!({"groupVersion": "apps/v1", "version": "v1"});
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [
        {"name": "apps", "versions": [version], "preferredVersion": version}]})
}
