//! Evaluations on an API server whose responses are made by a closure.

mod accounts;
mod bytes;
mod dates;
mod edits;
mod evaluations;
mod queries;
mod rollouts;
mod scheduling;
mod statuses;
mod to_zero;

use super::*;
use crate::clock::Clock;
use crate::config::Config;
use crate::control::context::ControllerSettings;
use crate::control::context::SyncResult::{self, Failed, Held, Rescaled};
use crate::control::fake::{self, Log, Request};
use crate::control::zero;
use crate::hpa::{self, ConditionKind, LONGEST_MS, Recommendation, ScalingHistory};
use crate::leader::LeaderElector;
use crate::ledger::Ledger;
use crate::live::LiveStatus;
use crate::reload::Reloadable;
use crate::watch::Cluster;
use crate::watch::{self, ObjectKey, read_autoscaler, read_pod};
use serde_json::{Value, json};
use std::sync::{Mutex, OnceLock};

/// An API server that has the Deployment `shop/web` and the external metric `queue`, which can't be
/// read if it is none.
struct World {
    replicas: i32,
    queue: Option<i64>,
    /// How long a write of the scale takes.
    write_latency: Duration,
    /// Returns a response in place of the usual one, if any.
    override_response: OverrideResponse,
}

/// The request that lists the Autoscalers of the namespace.
const AUTOSCALERS: &str = "GET /apis/plimsoll.dev/v1alpha1/namespaces/shop/autoscalers";

/// The response to that request.
fn listed(items: &[Value]) -> Value {
    json!({"apiVersion": "plimsoll.dev/v1alpha1", "kind": "AutoscalerList", "metadata": {},
        "items": items})
}

type OverrideResponse = Box<dyn FnMut(&mut World, &Request) -> Option<(u16, Value)> + Send>;

impl World {
    fn new(
        replicas: i32,
        queue: Option<i64>,
        override_response: impl FnMut(&mut Self, &Request) -> Option<(u16, Value)> + Send + 'static,
    ) -> Self {
        let (write_latency, override_response) = (Duration::ZERO, Box::new(override_response));
        Self { replicas, queue, write_latency, override_response }
    }

    fn respond(&mut self, request: &Request) -> (u16, Value) {
        let mut override_response =
            std::mem::replace(&mut self.override_response, Box::new(|_, _| None));
        let response = override_response(self, request);
        self.override_response = override_response;
        response.unwrap_or_else(|| match (&*request.line, self.queue) {
            ("GET /apis", _) => (200, fake::groups()),
            ("GET /apis/apps/v1", _) => (200, fake::deployments()),
            (AUTOSCALERS, _) => (200, listed(&[])),
            (line, _) if line.starts_with("GET") && line.ends_with("/scale") => {
                (200, fake::scale(1, self.replicas))
            }
            (line, _) if line.starts_with("PUT") && line.ends_with("/scale") => {
                self.replicas = request.body["spec"]["replicas"].as_i64().unwrap() as i32;
                (200, fake::scale(1, self.replicas))
            }
            (line, Some(queue)) if line.ends_with("/queue") => {
                (200, json!({"items": [{"value": queue.to_string()}]}))
            }
            (line, None) if line.ends_with("/queue") => {
                fake::failure(404, "NotFound", "there is no such metric")
            }
            _ => (200, request.object()),
        })
    }

    /// The loop of a replica that leads without election.
    fn run(self) -> (ControlLoop, Log) {
        let slow = self.write_latency;
        let latency = move |request: &Request| if is_put(request) { slow } else { Duration::ZERO };
        let world = Mutex::new(self);
        let respond = move |request: &Request| world.lock().unwrap().respond(request);
        let (client, log) = fake::slow_api(latency, respond);
        let cluster = Cluster::default();
        let (samples, rules) = fake::samples_and_rules(&client, &cluster);
        let settings = ControllerSettings {
            hpa_config: hpa::ControllerConfig {
                scale_to_zero: true,
                ..hpa::ControllerConfig::default()
            },
            native_hpas: NativeHpas::Ignore,
            period: Duration::from_secs(15),
            status_interval: Duration::from_secs(60),
            checkpoint_interval: Duration::ZERO,
            decision_timeout: Duration::from_secs(5),
        };
        let mut control = ControlLoop::new(Dependencies {
            leader: fake::leader(&client),
            client,
            cluster,
            synced: WatchStatuses::default(),
            samples,
            pod_queries: Reloadable::new(Config::default().pod_queries),
            rules,
            settings,
            metrics: Arc::default(),
            live: LiveStatus::default(),
            ledger: Ledger::new(1 << 20, 0),
            decision_log: None,
            clock: Clock::default(),
            heartbeat: Heartbeat::default(),
        });
        control.leadership_changed();
        (control, log)
    }
}

/// Adds an Autoscaler of `shop/web` that scales by the queue: one replica per item.
fn put(control: &ControlLoop, name: &str, spec: Value) -> AutoscalerRef {
    let mut whole = json!({
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "metrics": [{"type": "External", "external": {"metric": {"name": "queue"},
            "target": {"type": "AverageValue", "averageValue": "1"}}}],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let metadata = json!({"namespace": "shop", "name": name, "uid": name, "generation": 1});
    let object = json!({"metadata": metadata, "spec": whole});
    let record = read_autoscaler(serde_json::from_value(object).unwrap(), None);
    assert!(record.parsed.is_ok(), "{:?}", record.parsed);
    let autoscaler = fake::autoscaler(name);
    control.ctx.cluster.write(|index| index.put_autoscaler(autoscaler.key.clone(), record));
    autoscaler
}

/// Makes the spec of an Autoscaler one that can't be read.
fn put_invalid(control: &ControlLoop, autoscaler: &AutoscalerRef) {
    let object = json!({"metadata": {"namespace": "shop", "name": "web", "uid": "web",
        "generation": 2}, "spec": {"maxReplicas": "many"}});
    let record = read_autoscaler(serde_json::from_value(object).unwrap(), None);
    assert!(record.parsed.is_err());
    control.ctx.cluster.write(|index| index.put_autoscaler(autoscaler.key.clone(), record));
}

/// The checkpoint of an earlier leader, of recommendations alone.
fn checkpoint(uid: &str, recommendations: Vec<Recommendation>) -> Checkpoint {
    let history = ScalingHistory { recommendations, ..ScalingHistory::default() };
    let uid = uid.to_owned();
    Checkpoint { uid, history, last_scale: None, last_replicas: None, withheld: None }
}

/// The state of `shop/web` with one recommendation.
fn with_recommendation(replicas: i32, time: i64) -> AutoscalerState {
    AutoscalerState::restored(checkpoint("web", vec![Recommendation { replicas, time }]), 0)
}

/// The scale of a workload that is not rolled out.
fn scale_record(replicas: i32, selector: &str) -> watch::ScaleRecord {
    watch::ScaleRecord {
        replicas: hpa::Scale { spec_replicas: replicas, status_replicas: replicas },
        selector: selector.to_owned(),
        seen: watch::Seen {
            is_automatic: true,
            wanted: replicas,
            updated: replicas,
            ready: replicas,
            revision: Some(watch::Revision::Number(0)),
            ..watch::Seen::default()
        },
        rollout: watch::Rollout::default(),
    }
}

/// Makes the watches show this number of replicas, and as many pods.
fn show_replicas(control: &ControlLoop, replicas: i32) {
    show(control, replicas, false);
}

/// The same of a workload that is rolled out, or is not.
fn show(control: &ControlLoop, replicas: i32, is_rolling_out: bool) {
    let key = |name: String| ObjectKey { namespace: "shop".to_owned(), name };
    control.ctx.cluster.write(|index| {
        let mut scale = scale_record(replicas, "app=web");
        scale.seen.is_rolling_out = is_rolling_out;
        index.put_scale(watch::Workload::Deployment, key("web".to_owned()), scale);
        for number in 0..replicas {
            let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1",
                "uid": "1", "controller": true});
            let pod = json!({"metadata": {"labels": {"app": "web"}, "ownerReferences": [owner]},
                "spec": {"containers": []}, "status": {"phase": "Running"}});
            index.put_pod(key(format!("{number}")), read_pod(serde_json::from_value(pod).unwrap()));
        }
    });
}

/// Evaluates once.
async fn evaluate_once(
    control: &ControlLoop,
    autoscaler: &AutoscalerRef,
    state: &mut AutoscalerState,
) -> SyncResult {
    let token = control.ctx.fencing_token();
    let ended = reconcile(&control.ctx, token.as_ref(), autoscaler, state).await;
    ended.expect("it is there")
}

fn is_put(request: &Request) -> bool {
    request.line.starts_with("PUT") && request.line.ends_with("/scale")
}

fn is_query(request: &&Request) -> bool {
    request.line.ends_with("/queue")
}
