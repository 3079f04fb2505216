//! An API server for unit tests, which answers by a closure and remembers what
//! it was asked.

use crate::clock::Clock;
use crate::leader::freeze::FREEZE;
use crate::leader::{ElectionSettings, FencingToken, LeaderElector};
use crate::watch::{AutoscalerRef, ObjectKey};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A request that was made.
#[derive(Clone, Debug)]
pub struct Request {
    /// Method and path, without the query.
    pub line: String,
    /// The query.
    pub query: String,
    /// The body; null where it is no JSON.
    pub body: Value,
}

/// What was asked, in its order.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<Request>>>);

impl Log {
    /// The requests whose line begins with this.
    pub fn of(&self, line: &str) -> Vec<Request> {
        let all = self.0.lock().unwrap();
        all.iter().filter(|request| request.line.starts_with(line)).cloned().collect()
    }
}

/// A client of an API server that gives these answers: a status and a body; with
/// status 0 it does not answer. It has no Lease, and does not remember that it was asked for it.
pub fn api(answer: impl FnMut(&Request) -> (u16, Value) + Send + 'static) -> (Client, Log) {
    let (log, answer) = (Log::default(), Arc::new(Mutex::new(answer)));
    let asked = log.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (asked, answer) = (asked.clone(), answer.clone());
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let line = format!("{} {}", parts.method, parts.uri.path());
            let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
            let query = parts.uri.query().unwrap_or_default().to_owned();
            if line.contains("/leases/") {
                let (code, body) = failure(404, "NotFound", "there is no Lease");
                let body = Body::from(body.to_string().into_bytes());
                return Ok(http::Response::builder().status(code).body(body).unwrap());
            }
            let request = Request { line, query, body };
            let (code, body) = answer.lock().unwrap()(&request);
            asked.0.lock().unwrap().push(request);
            if code == 0 {
                std::future::pending::<()>().await;
            }
            let response = http::Response::builder().status(code);
            Ok::<_, kube::Error>(response.body(Body::from(body.to_string().into_bytes())).unwrap())
        }
    });
    (Client::new(service, "default"), log)
}

/// A failure as the API server tells it.
pub fn failure(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": message});
    (code, status)
}

/// Leave to write, of a replica that leads without election.
pub fn fencing_token(client: &Client) -> FencingToken {
    leader(client).fencing_token().expect("it leads")
}

/// A replica that leads without election.
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
    LeaderElector::new(client.clone(), settings, Clock::default(), Arc::default())
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
