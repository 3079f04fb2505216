//! The ways between the replicas and the cluster: requests take a while, and fail as the conditions say.

use crate::api_server::{Asked, Delivery, Fate, Faults, Resource};
use crate::conditions::{Condition, Conditions, Mishap, Shared, locked};
use crate::plan::{Lie, Millis, REPLICAS, SECOND, Written, random};
use crate::prometheus::Prometheus;
use crate::workload::NAMES;
use crate::world::{crowd, since};
use bytes::Bytes;
use fastrand::Rng;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use http::{Method, Request, Response};
use plimsoll::prometheus::{BodyStream, Transport, TransportError};
use plimsoll::promql::union::QUERY_LABEL;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// What all ways share.
pub struct Network {
    conditions: Shared<Conditions>,
    prometheus: Shared<Prometheus>,
    asks: mpsc::UnboundedSender<Ask>,
    start: Instant,
    base: i64,
    state: Mutex<State>,
}

/// What a way asks of the world.
#[derive(Clone, Debug)]
pub enum Ask {
    /// Somebody else takes the Lease.
    TakeLease,
    /// A replica dies.
    Crash(usize),
    /// A write met with a mishap: look who is troubled.
    Recheck,
    /// Another writer edits the object of this path.
    Touch(String),
    /// A replica asked for the length of the queue, and got this.
    Measured { replica: usize, at: Millis, messages: Option<f64> },
}

struct State {
    rng: Rng,
    /// When the last write of each replica met with a mishap.
    mishaps: [Option<Millis>; REPLICAS],
    /// When a write to each busy object last met with a conflict.
    busy: BTreeMap<usize, Millis>,
    /// When the watches of each replica were ended last.
    ended: [Option<Millis>; REPLICAS],
    /// The requests of each replica that are not about the Lease, nor watches.
    requests: [Vec<String>; REPLICAS],
    /// How many watches of each resource, and other requests about the Lease, each replica has sent.
    upkeep: [BTreeMap<String, usize>; REPLICAS],
    /// How many queries Prometheus answered.
    queries: u64,
    /// How many values of the crowd's metric each replica was sent.
    crowd: [usize; REPLICAS],
    /// How many listings of series each replica asked for.
    listings: [u64; REPLICAS],
    /// The replica that asked another provider of metrics than itself for one of this namespace.
    asked_others: Option<(usize, String)>,
    /// When each metric was queried last, by replica.
    queried: BTreeMap<(usize, &'static str), Millis>,
}

/// How long a write that is late is on its way: longer than its sender waits (10 s), by less than the API
/// server then takes to give it up, too.
const LATE: Duration = Duration::from_secs(14);
/// The metrics that are of one workload only.
pub const METRICS: [&str; 5] = [
    "http_requests_total",
    "queue_depth",
    "jobs_running",
    "mail_backlog",
    crate::workload::LEGACY_BACKLOG,
];
/// The name under which reads and writes of the Lease are counted.
pub const LEASE: &str = "Lease";
/// How many requests are remembered.
const REMEMBERED: usize = 200;

impl Network {
    /// Ways on which nothing fails yet.
    pub fn new(
        seed: u64,
        start: Instant,
        base: i64,
        (conditions, prometheus): (Shared<Conditions>, Shared<Prometheus>),
        asks: mpsc::UnboundedSender<Ask>,
    ) -> Self {
        let state = State {
            rng: random(seed, "network"),
            mishaps: [None; REPLICAS],
            busy: BTreeMap::new(),
            ended: [None; REPLICAS],
            requests: std::array::from_fn(|_| Vec::new()),
            upkeep: Default::default(),
            queries: 0,
            crowd: [0; REPLICAS],
            listings: [0; REPLICAS],
            asked_others: None,
            queried: BTreeMap::new(),
        };
        Self { conditions, prometheus, asks, start, base, state: state.into() }
    }

    /// The time now.
    pub fn now(&self) -> Millis {
        since(self.start)
    }

    /// Milliseconds from 1970 to the start of the simulation.
    pub fn base(&self) -> i64 {
        self.base
    }

    /// How far the wall clock of a replica is off.
    pub fn offset(&self, replica: usize) -> i64 {
        locked(&self.conditions).replicas[replica].offset
    }

    /// Ends the watches of a replica, or of all.
    pub fn end_watches(&self, replica: Option<usize>) {
        let now = self.now();
        let mut state = locked(&self.state);
        for (number, ended) in state.ended.iter_mut().enumerate() {
            if replica.is_none_or(|replica| replica == number) {
                *ended = Some(now);
            }
        }
    }

    /// Whether a write of a replica met with a mishap since a time.
    pub fn mishap_within(&self, replica: usize, since: Millis) -> bool {
        locked(&self.state).mishaps[replica].is_some_and(|at| at >= since)
    }

    /// The requests of a replica since the last call.
    pub fn take_requests(&self, replica: usize) -> Vec<String> {
        std::mem::take(&mut locked(&self.state).requests[replica])
    }

    /// How many watches a replica has begun since the last call, by their paths, and its other requests
    /// about the Lease, as [`LEASE`].
    pub fn take_upkeep(&self, replica: usize) -> BTreeMap<String, usize> {
        std::mem::take(&mut locked(&self.state).upkeep[replica])
    }

    /// When a replica queried a metric last.
    pub fn queried(&self, replica: usize, metric: &'static str) -> Option<Millis> {
        locked(&self.state).queried.get(&(replica, metric)).copied()
    }

    /// How many values of the crowd's metric a replica was sent since the last call.
    pub fn take_crowd_values(&self, replica: usize) -> usize {
        std::mem::take(&mut locked(&self.state).crowd[replica])
    }

    /// The listings of series by a replica since the last call.
    pub fn take_listings(&self, replica: usize) -> u64 {
        std::mem::take(&mut locked(&self.state).listings[replica])
    }

    /// A request for a metric of an HPA that is only observed, to the API server, and who made it.
    pub fn asked_others(&self) -> Option<(usize, String)> {
        locked(&self.state).asked_others.clone()
    }

    /// How many queries Prometheus answered.
    pub fn queries(&self) -> u64 {
        locked(&self.state).queries
    }
}

/// The way from a replica to the API server.
pub struct ToApiServer {
    /// What all ways share.
    pub network: std::sync::Arc<Network>,
    /// The replica.
    pub replica: usize,
    /// Whether its process is dead: its tasks end one after the other, and none may send anything meanwhile.
    pub dead: Dead,
}

/// Whether a process is dead.
pub type Dead = std::sync::Arc<AtomicBool>;

impl Faults for ToApiServer {
    fn request(&mut self, asked: Asked<'_>) -> Fate {
        if self.dead.load(Ordering::Relaxed) {
            return Fate::Silent;
        }
        let now = self.network.now();
        let (path, query) = (asked.uri.path(), asked.uri.query().unwrap_or_default());
        let is_watch = query.contains("watch=");
        let written = written(asked, path);
        let mut conditions = locked(&self.network.conditions);
        let mut state = locked(&self.network.state);
        if is_watch || path.contains("/leases") {
            state.count_upkeep(self.replica, if is_watch { path } else { LEASE });
        } else {
            let requests = &mut state.requests[self.replica];
            if requests.len() < REMEMBERED {
                requests.push(format!("{} {path}", asked.method));
            }
        }
        if path.contains(".metrics.k8s.io/") {
            if path.contains("/namespaces/legacy/") {
                state.asked_others = Some((self.replica, path.to_owned()));
            }
            // Nobody else serves metrics.
            return Fate::Refused { code: 404, reason: "NotFound", retry_after: None };
        }
        let Condition { api_lost, refused, api_latency, watch_refused, .. } =
            &conditions.replicas[self.replica];
        if api_lost.at(now).is_some() {
            return if state.rng.bool() { Fate::Unreachable } else { Fate::Silent };
        }
        if is_watch && watch_refused.at(now).is_some() {
            return Fate::Unreachable;
        }
        if let Some(code) = refused.at(now) {
            let reason = match code {
                403 => "Forbidden",
                429 => "TooManyRequests",
                503 => "ServiceUnavailable",
                504 => "Timeout",
                _ => "InternalError",
            };
            return Fate::Refused { code, reason, retry_after: (code == 429).then_some(1) };
        }
        let extra = api_latency.at(now).unwrap_or(0);
        let mut latency =
            || Duration::from_millis((state.rng.i64(1..6) + extra / 2).unsigned_abs());
        let (before, after) = (latency(), latency());
        if asked.method == Method::GET && path.ends_with("/scale") && conditions.take_lease() {
            let _ = self.network.asks.send(Ask::TakeLease);
        }
        let mishap = written.and_then(|written| conditions.take(written));
        let busy = || written.is_some_and(|written| written.is_one(Written::Scale));
        let is_late = match mishap {
            None => busy() && state.is_busy(&conditions, path, now),
            Some(mishap) => mishap == Mishap::Conflict && is_versioned(path),
        };
        if is_late {
            let _ = self.network.asks.send(Ask::Touch(path.to_owned()));
            return Fate::Done { before, after };
        }
        if mishap.is_some() {
            state.mishaps[self.replica] = Some(now);
            let _ = self.network.asks.send(Ask::Recheck);
        }
        match mishap {
            None => Fate::Done { before, after },
            Some(Mishap::ResponseLost) => Fate::AnswerLost { before },
            Some(Mishap::Late) => Fate::Late { before: LATE, after: Duration::from_secs(60) },
            Some(Mishap::Conflict) => {
                Fate::Refused { code: 409, reason: "Conflict", retry_after: None }
            }
        }
    }

    fn delivery(&mut self, _: &'static Resource, begun: Instant) -> Delivery {
        let now = self.network.now();
        let condition = locked(&self.network.conditions).replicas[self.replica].clone();
        if condition.watch_silent.at(now).is_some() || condition.api_lost.at(now).is_some() {
            return Delivery::Silent;
        }
        let mut state = locked(&self.network.state);
        let begun = i64::try_from((begun - self.network.start).as_millis()).unwrap_or(0);
        if state.ended[self.replica].is_some_and(|at| at >= begun) {
            return Delivery::Broken;
        }
        Delivery::After(Duration::from_millis(state.rng.u64(1..400)))
    }
}

impl State {
    fn count_upkeep(&mut self, replica: usize, of: &str) {
        match self.upkeep[replica].get_mut(of) {
            Some(count) => *count += 1,
            None => drop(self.upkeep[replica].insert(of.to_owned(), 1)),
        }
    }
}

/// What a request writes.
fn written(asked: Asked<'_>, path: &str) -> Option<Written> {
    if asked.method == Method::GET {
        return None;
    }
    let resource = |name| path.contains(name);
    Some(match () {
        () if path.ends_with("/scale") => {
            let scale: Option<serde_json::Value> = serde_json::from_slice(asked.body).ok();
            let replicas = scale.as_ref().and_then(|scale| scale.pointer("/spec/replicas"));
            match replicas.and_then(serde_json::Value::as_i64) {
                Some(0) => Written::ScaleToZero,
                _ => Written::Scale,
            }
        }
        () if resource("/autoscalers/") && path.ends_with("/status") => Written::Status,
        () if resource("/leases/") => Written::Lease,
        () if resource("/configmaps/") => Written::Checkpoint,
        () if resource("/horizontalpodautoscalers/") => Written::Hpa,
        () => return None,
    })
}

/// Whether a write to this object names the version that it replaces.
fn is_versioned(path: &str) -> bool {
    path.ends_with("/scale") || path.contains("/leases/")
}

impl State {
    /// Whether another writer is to be faster than this write of a scale: than each first one.
    fn is_busy(&mut self, conditions: &Conditions, path: &str, now: Millis) -> bool {
        let of = |name: &&str| path.ends_with(&format!("/{name}/scale"));
        let Some(workload) = NAMES.iter().position(of) else { return false };
        if conditions.busy[workload].at(now).is_none() {
            return false;
        }
        let is_first = self.busy.get(&workload).is_none_or(|last| *last < now - 2 * SECOND);
        self.busy.insert(workload, now);
        is_first
    }
}

/// The way from a replica to Prometheus.
pub struct ToPrometheus {
    /// What all ways share.
    pub network: std::sync::Arc<Network>,
    /// The replica.
    pub replica: usize,
    /// Whether its process is dead.
    pub dead: Dead,
}

impl std::fmt::Debug for ToPrometheus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ToPrometheus({})", self.replica)
    }
}

impl Transport for ToPrometheus {
    fn send(
        &self,
        request: Request<Bytes>,
    ) -> BoxFuture<'static, Result<Response<BodyStream>, TransportError>> {
        let (network, replica) = (self.network.clone(), self.replica);
        if self.dead.load(Ordering::Relaxed) {
            return std::future::pending().boxed();
        }
        async move { network.query(replica, &request).await }.boxed()
    }
}

impl Network {
    async fn query(
        &self,
        replica: usize,
        request: &Request<Bytes>,
    ) -> Result<Response<BodyStream>, TransportError> {
        let now = self.now();
        let (lost, latency, lie) = {
            let conditions = locked(&self.conditions);
            let lost = conditions.prometheus_away.at(now).is_some()
                || conditions.replicas[replica].prometheus_lost.at(now).is_some();
            let latency = conditions.prometheus_latency.at(now).unwrap_or(0);
            (lost, latency, conditions.prometheus_lies.at(now))
        };
        if lost {
            if locked(&self.state).rng.bool() {
                return Err(TransportError::Unreachable("connection refused".to_owned()));
            }
            return std::future::pending().await;
        }
        let wait = locked(&self.state).rng.i64(1..30) + latency;
        tokio::time::sleep(Duration::from_millis(wait.unsigned_abs())).await;
        let form = form(request);
        let path = request.uri().path().trim_start_matches('/');
        locked(&self.state).listings[replica] += u64::from(path == "api/v1/series");
        let query = form.iter().find(|(name, _)| name == "query");
        if let Some((_, query)) = query.filter(|_| path == "api/v1/query") {
            let metrics = METRICS.into_iter().filter(|metric| query.contains(metric));
            locked(&self.state).queried.extend(metrics.map(|metric| ((replica, metric), now)));
        }
        let wall = self.base + self.now();
        let (mut code, mut body) = locked(&self.prometheus).handle(path, &form, wall);
        locked(&self.state).queries += 1;
        locked(&self.state).crowd[replica] += crowd::values(&form, &body);
        match lie {
            None => {}
            Some(Lie::Partial) => {
                body = partial(&body);
            }
            Some(Lie::Html) => body = "<html><body>Sign in</body></html>".to_owned(),
            Some(Lie::Truncated) => body.truncate(body.len() / 2),
            Some(Lie::Error) => (code, body) = (500, "out of order".to_owned()),
        }
        if let Some((_, query)) = query.filter(|(_, query)| query.contains("queue_depth")) {
            let messages = messages(query, &body);
            let _ = self.asks.send(Ask::Measured { replica, at: now, messages });
        }
        let stream = stream::once(async move { Ok(Bytes::from(body)) }).boxed();
        let response = Response::builder().status(code).body(stream);
        Ok(response.expect("a status that Prometheus has"))
    }
}

/// A result that lacks its last rows, with the warning that says so.
fn partial(body: &str) -> String {
    let Ok(mut response) = serde_json::from_str::<serde_json::Value>(body) else {
        return body.to_owned();
    };
    response["warnings"] = serde_json::json!(["a store is away"]);
    if let Some(rows) = response.pointer_mut("/data/result").and_then(|rows| rows.as_array_mut()) {
        rows.truncate(rows.len() / 2);
    }
    response.to_string()
}

/// The numbers of the queries of a metric in one that asks for several metrics at once.
pub fn members<'a>(query: &'a str, metric: &'a str) -> impl Iterator<Item = usize> + 'a {
    let members = query.split("label_replace(").skip(1).enumerate();
    members.filter(move |(_, member)| member.contains(metric)).map(|(number, _)| number)
}

/// The length of the queue in the result of a query that asks for it alone, or for several metrics at once.
fn messages(query: &str, body: &str) -> Option<f64> {
    let response: serde_json::Value = serde_json::from_str(body).ok()?;
    let rows = response.pointer("/data/result")?.as_array()?;
    let row = match query.contains(QUERY_LABEL) {
        false => rows.first(),
        true => {
            let number = serde_json::Value::from(members(query, "queue_depth").next()?.to_string());
            rows.iter().find(|row| row["metric"][QUERY_LABEL] == number)
        }
    };
    row?.pointer("/value/1")?.as_str()?.parse().ok()
}

/// The parameters of a request, from its URL and its body.
fn form(request: &Request<Bytes>) -> Vec<(String, String)> {
    let query = request.uri().query().unwrap_or_default().as_bytes();
    let both = [query, request.body()];
    both.iter().flat_map(|text| form_urlencoded::parse(text).into_owned()).collect()
}
