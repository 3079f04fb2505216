//! The election and the freeze, against an API server in memory.

mod election;
mod freeze;

use super::candidate::Candidate;
use super::freeze::{FREEZE, REQUEST};
use super::state::locked;
use super::*;
use crate::clock::{Clock, Dated};
use crate::fake::unreachable_prometheus;
use crate::prometheus;
use crate::supervise::Spawner;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tower::service_fn;

/// An API server that has only Leases and events.
#[derive(Clone, Default)]
struct FakeApiServer(Arc<Mutex<Objects>>);

#[derive(Default)]
struct Objects {
    lease: Option<Value>,
    version: u64,
    events: Vec<String>,
    /// The status of every response, if set, and the number of requests for the Lease.
    failing: Option<u16>,
    /// Whether the next response to a PUT is lost.
    loses_response: bool,
    lease_requests: usize,
}

impl FakeApiServer {
    fn client(&self, clock: Clock) -> Client {
        let server = self.clone();
        let answer = service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let (code, value) = server.answer(&parts.method, parts.uri.path(), &body);
                let answer = Response::builder().status(code);
                let answer = answer.header("date", "Sat, 21 Nov 2026 22:00:00 GMT");
                let body = http_body_util::Full::new(bytes(&value));
                Ok::<_, kube::Error>(answer.body(body).expect("an answer"))
            }
        });
        Client::new(Dated::new(answer, clock), "plimsoll")
    }

    fn answer(&self, method: &Method, path: &str, body: &[u8]) -> (u16, Value) {
        let failure = |code: u16, reason: &str| {
            let status = json!({"kind": "Status", "status": "Failure", "code": code,
                                "reason": reason, "message": reason});
            (code, status)
        };
        let sent = || serde_json::from_slice::<Value>(body).expect("JSON");
        let mut objects = locked(&self.0);
        objects.lease_requests += usize::from(path.ends_with("/leases/plimsoll"));
        if let Some(code) = objects.failing {
            return failure(code, "it fails");
        }
        if path.ends_with("/events") {
            let event = sent();
            objects.events.push(format!("{}: {}", event["reason"], event["message"]));
            return (201, event);
        }
        match (method, &objects.lease) {
            (&Method::GET, Some(lease)) => (200, lease.clone()),
            (&Method::GET, None) => failure(404, "NotFound"),
            (&Method::POST, None) => (201, objects.store(sent())),
            (&Method::PUT, Some(lease)) => {
                let sent = sent();
                let version = |lease: &Value| lease["metadata"]["resourceVersion"].clone();
                match version(&sent) == version(lease) {
                    true if std::mem::take(&mut objects.loses_response) => {
                        objects.store(sent);
                        failure(504, "Timeout")
                    }
                    true => (200, objects.store(sent)),
                    false => failure(409, "Conflict"),
                }
            }
            (&Method::PUT, None) => failure(404, "NotFound"),
            _ => failure(405, "MethodNotAllowed"),
        }
    }

    /// The Lease as it is now.
    fn lease(&self) -> Lease {
        serde_json::from_value(locked(&self.0).lease.clone().expect("a Lease")).expect("a Lease")
    }

    fn annotation(&self, name: &str) -> Option<String> {
        self.lease().metadata.annotations?.get(name).cloned()
    }

    /// Annotates the Lease, as an administrator does.
    fn annotate(&self, annotations: &[(&str, &str)]) {
        let mut objects = locked(&self.0);
        let mut lease = objects.lease.clone().expect("a Lease");
        for (name, value) in annotations {
            lease["metadata"]["annotations"][name] = (*value).into();
        }
        objects.store(lease);
    }
}

impl Objects {
    fn store(&mut self, mut lease: Value) -> Value {
        self.version += 1;
        lease["metadata"]["resourceVersion"] = self.version.to_string().into();
        if lease["metadata"]["uid"].is_null() {
            lease["metadata"]["uid"] = format!("made at {}", self.version).into();
        }
        self.lease = Some(lease.clone());
        lease
    }
}

fn bytes(value: &Value) -> bytes::Bytes {
    serde_json::to_vec(value).expect("JSON").into()
}

fn settings(identity: &str) -> ElectionSettings {
    ElectionSettings {
        elect: true,
        namespace: "plimsoll".to_owned(),
        name: "plimsoll".to_owned(),
        identity: identity.to_owned(),
        lease_duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_secs(2),
    }
}

fn leader(server: &FakeApiServer, identity: &str) -> LeaderElector {
    leader_with(server, settings(identity))
}

fn leader_with(server: &FakeApiServer, settings: ElectionSettings) -> LeaderElector {
    let clock = Clock::default();
    let client = server.client(clock.clone());
    LeaderElector::new(client, settings, clock, Arc::default(), Spawner::unowned())
}

/// A candidate that has acquired the Lease.
async fn elected<'a>(
    leader: &'a LeaderElector,
    prometheus: &'a prometheus::Client,
) -> Candidate<'a> {
    let mut candidate = Candidate::new(&leader.0, prometheus);
    candidate.attempt().await;
    candidate.attempt().await;
    assert!(leader.fencing_token().is_some(), "it leads");
    forget_indeterminate_writes(leader);
    candidate
}

/// As if Prometheus had been away from this candidate for long enough to hand over. From then on time
/// is paused.
async fn lose_prometheus(candidate: &mut Candidate<'_>, prometheus: &prometheus::Client) {
    candidate.prometheus_down_timeout = Duration::ZERO;
    crate::prometheus::metric_kinds(prometheus, "x", &[]).await.unwrap_err();
    tokio::time::pause();
}

/// As if no indeterminate write of this replica or of a previous leader were left to wait for.
fn forget_indeterminate_writes(leader: &LeaderElector) {
    *locked(&leader.0.indeterminate_writes_until) = tokio::time::Instant::now();
}

/// A write to a scale that must not begin.
async fn never() -> Result<(), kube::Error> {
    panic!("a scale is written")
}

const REASON: [(&str, &str); 2] = [(FREEZE, "incident 42"), (REQUEST, "r1")];

/// A failure as the API server, or a load balancer in front of it, responds with it.
fn api_error(code: u16) -> kube::Error {
    let status = json!({"kind": "Status", "status": "Failure", "code": code,
                        "reason": "", "message": ""});
    kube::Error::Api(Box::new(serde_json::from_value(status).expect("a Status")))
}
