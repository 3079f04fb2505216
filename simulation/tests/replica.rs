//! A replica of the product on one thread with a paused clock, over closures for kube-apiserver and
//! Prometheus.

use bytes::Bytes;
use clap::Parser;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, future, stream};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use kube::client::{Body, ClientBuilder};
use plimsoll::config::{Cli, Command, Config, ServeFlags};
use plimsoll::prometheus::{self, BodyStream, Transport, TransportError};
use plimsoll::replica::{Clock, Parts, Replica, layered};
use plimsoll::telemetry::Metrics;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

/// A cluster with a Deployment, its pod, its Autoscaler and a Lease, and a Prometheus without series.
#[derive(Default)]
struct World {
    lease: Option<Value>,
    /// Whether queries and creations of events are never answered.
    silent: bool,
    /// Method and path of each request to kube-apiserver.
    requests: Vec<String>,
    queries: usize,
}

type Shared = Arc<Mutex<World>>;

/// The objects of a kind, by its plural name.
fn objects(kind: &str) -> Value {
    let metadata = json!({"namespace": "shop", "name": "web", "uid": kind, "generation": 1,
        "resourceVersion": "1", "labels": {"app": "web"}});
    let selector = json!({"matchLabels": {"app": "web"}});
    match kind {
        "deployments" => json!([{"metadata": metadata, "status": {"replicas": 1},
            "spec": {"replicas": 1, "selector": selector}}]),
        "pods" => json!([{"metadata": metadata, "spec": {"containers": [{"name": "web"}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}]),
        "autoscalers" => json!([{"metadata": metadata, "spec": {"maxReplicas": 9,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "customMetrics": [{"metricName": "load", "averageValue": 1}]}}]),
        _ => json!([]),
    }
}

impl World {
    /// Responds to a request to kube-apiserver; none where it stays silent, as to each watch.
    fn respond(&mut self, request: &Request<()>, body: Value) -> Option<(StatusCode, Value)> {
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        self.requests.push(format!("{} {path}", request.method()));
        let list = |items: Value| json!({"metadata": {"resourceVersion": "1"}, "items": items});
        let missing = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
            "status": "Failure", "reason": "NotFound", "code": 404, "message": "not found"});
        let (_, kind) = path.rsplit_once('/').unwrap_or_default();
        let of_lease = path.contains("/leases/");
        Some(match (request.method(), &self.lease) {
            (&Method::GET, _) if query.contains("watch=true") => return None,
            (&Method::POST, _) if kind == "events" && self.silent => return None,
            (&Method::POST | &Method::PUT, _) if of_lease || kind == "leases" => {
                let mut lease = body;
                lease["metadata"]["resourceVersion"] = json!(self.requests.len().to_string());
                self.lease = Some(lease.clone());
                (StatusCode::OK, lease)
            }
            (&Method::GET, Some(lease)) if of_lease => (StatusCode::OK, lease.clone()),
            (&Method::GET, Some(lease)) if kind == "leases" => {
                (StatusCode::OK, list(json!([lease])))
            }
            (&Method::GET, _) if of_lease || path.contains("/configmaps/") => {
                (StatusCode::NOT_FOUND, missing)
            }
            (&Method::GET, _) => (StatusCode::OK, list(objects(kind))),
            _ => (StatusCode::OK, body),
        })
    }
}

type Answer = Response<BoxBody<Bytes, Infallible>>;

async fn api_server(world: Shared, request: Request<Body>) -> Result<Answer, kube::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let response = world.lock().unwrap().respond(&Request::from_parts(head, ()), body);
    let (code, body) = match response {
        Some((code, body)) => (code, BoxBody::new(Full::from(body.to_string()))),
        None => (StatusCode::OK, BoxBody::new(StreamBody::new(stream::pending()))),
    };
    Ok(Response::builder().status(code).body(body).expect("a response"))
}

/// A Prometheus that has no series.
struct Empty(Shared);

impl std::fmt::Debug for Empty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Empty")
    }
}

impl Transport for Empty {
    fn send(
        &self,
        request: Request<Bytes>,
    ) -> BoxFuture<'static, Result<Response<BodyStream>, TransportError>> {
        let is_query = request.uri().path() == "/api/v1/query";
        let data = if is_query { r#"{"resultType":"vector","result":[]}"# } else { "{}" };
        let body = Bytes::from(format!(r#"{{"status":"success","data":{data}}}"#));
        let mut world = self.0.lock().unwrap();
        world.queries += usize::from(is_query);
        if is_query && world.silent {
            return future::pending().boxed();
        }
        future::ready(Ok(Response::new(stream::iter([Ok(body)]).boxed()))).boxed()
    }
}

fn flags() -> ServeFlags {
    let line = "plimsoll serve --prometheus-url=http://prometheus:9090";
    match Cli::try_parse_from(line.split(' ')).expect("flags").command {
        Command::Serve(flags) => *flags,
        _ => panic!("another command"),
    }
}

fn replica(world: &Shared, identity: &str) -> Replica {
    let (flags, clock, metrics) = (flags(), Clock::default(), Arc::<Metrics>::default());
    let client = |qps| {
        let world = world.clone();
        let service = tower::service_fn(move |request| api_server(world.clone(), request));
        let builder = ClientBuilder::new(service, "default");
        layered(builder, &flags, metrics.clone(), clock.clone(), qps)
    };
    let options = prometheus::Options::new(&flags.prometheus_url);
    let prometheus = prometheus::Client::over(Arc::new(Empty(world.clone())), options);
    Replica::new(Parts {
        config: Config::default(),
        identity: identity.to_owned(),
        api: client(flags.client_qps),
        leases: client(None),
        prometheus: prometheus.expect("a client"),
        clock,
        metrics,
        flags,
    })
    .expect("the default flags go together")
}

/// The tasks that have not ended, once nothing is left to do at this time.
async fn tasks() -> usize {
    tokio::time::sleep(Duration::from_millis(1)).await;
    Handle::current().metrics().num_alive_tasks()
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_is_dropped_leaves_no_task() {
    let world = Shared::default();
    world.lock().unwrap().silent = true;
    let mut crashing = JoinSet::new();
    crashing.spawn(replica(&world, "a").run(|stop| stop, future::pending()));
    // It leads, and waits for the answers to queries and to an event.
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert!(tasks().await > 10 && crashing.try_join_next().is_none());
    let requests = world.lock().unwrap().requests.clone();
    assert!(requests.iter().any(|line| line.ends_with("/events")), "{requests:?}");
    assert!(world.lock().unwrap().queries > 0);
    drop(crashing);
    assert_eq!(tasks().await, 0);
    tokio::time::sleep(Duration::from_secs(300)).await;
    let world = world.lock().unwrap();
    assert_eq!(world.requests.len(), requests.len());
    assert_eq!(world.lease.as_ref().expect("a Lease")["spec"]["holderIdentity"], "a");
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_is_stopped_releases_its_lease() {
    let world = Shared::default();
    let signal = tokio::time::sleep(Duration::from_secs(120));
    let ended = replica(&world, "a").run(|stop| stop, signal).await;
    assert!(ended.is_ok(), "{ended:?}");
    assert_eq!(tasks().await, 0);
    let world = world.lock().unwrap();
    assert!((6..=12).contains(&world.queries), "{} queries", world.queries);
    let lease = world.lease.as_ref().expect("a Lease");
    assert_eq!(lease["spec"].get("holderIdentity").and_then(Value::as_str), None);
}
