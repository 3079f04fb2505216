//! The workloads: their objects, their pods, and the metrics that their load makes.

use crate::plan::{Millis, SECOND, random};
use fastrand::Rng;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The namespace of the workloads.
pub const NAMESPACE: &str = "shop";

/// The names of the workloads.
pub const NAMES: [&str; crate::plan::WORKLOADS] = ["web", "api", "queue", "batch", "mail"];

/// The external metric of the HPA that is observed: see `world/hpa.rs`.
pub const LEGACY_BACKLOG: &str = "legacy_backlog";

/// The rules of the configuration: CPU usage, and the external metrics.
pub const CONFIG: &str = r#"
resourceRules:
  window: 1m
  cpu: &usage
    containerLabel: container
    containerQuery: &query 'sum by (<<.GroupBy>>) (rate(container_cpu_usage_seconds_total{<<.LabelMatchers>>}[1m]))'
    nodeQuery: *query
    resources: {overrides: {node: {resource: node}, namespace: {resource: namespace}, pod: {resource: pod}}}
  memory: *usage
externalRules:
- seriesQuery: 'queue_depth{namespace!=""}'
  resources: {overrides: {namespace: {resource: namespace}}}
  metricsQuery: 'max(<<.Series>>{<<.LabelMatchers>>})'
- seriesQuery: 'mail_backlog{namespace!=""}'
  resources: {overrides: {namespace: {resource: namespace}}}
  metricsQuery: 'max(<<.Series>>{<<.LabelMatchers>>})'
- seriesQuery: 'legacy_backlog{namespace!=""}'
  resources: {overrides: {namespace: {resource: namespace}}}
  metricsQuery: 'max(<<.Series>>{<<.LabelMatchers>>})'
"#;

/// A workload and its pods.
#[derive(Debug)]
pub struct Workload {
    /// Its place among [`NAMES`].
    pub number: usize,
    /// `Deployment` or `StatefulSet`.
    pub kind: &'static str,
    /// The spec of its autoscaler, as it was first.
    pub autoscaler: Value,
    /// Its pods by name, with those that are being deleted.
    pub pods: BTreeMap<String, Pod>,
    /// Its load in pods: how many it keeps at their targets.
    pub load: f64,
    /// The requests of a pod in thousandths of a core.
    pub cpu_request: i64,
    next_pod: u32,
    rng: Rng,
}

/// A pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Pod {
    /// Where it is on its way.
    pub stage: Stage,
    /// When the kubelet first saw it.
    pub start: Option<Millis>,
    /// Since when its Ready condition is as it is, and what it is; none before it runs.
    pub ready: Option<(bool, Millis)>,
    /// Whether it is being deleted.
    pub deleting: bool,
}

/// Where a pod is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It waits for a node or an image.
    Pending,
    /// Its containers run.
    Running,
    /// A container failed, and the pod with it.
    Failed,
}

impl Pod {
    fn new() -> Self {
        Self { stage: Stage::Pending, start: None, ready: None, deleting: false }
    }

    /// Whether its controller counts it.
    pub fn counts(&self) -> bool {
        !self.deleting && self.stage != Stage::Failed
    }

    /// Whether it serves, and so has metrics. A pod that is being deleted serves until it is gone.
    pub fn serves(&self) -> bool {
        self.stage == Stage::Running && self.ready.is_some_and(|(ready, _)| ready)
    }
}

impl Workload {
    /// The workload of this number, whose autoscaler differs from seed to seed.
    pub fn new(number: usize, seed: u64) -> Self {
        let mut rng = random(seed, &format!("workload {number}"));
        let kind = if number == 3 { "StatefulSet" } else { "Deployment" };
        let mut autoscaler = autoscaler(number, seed, &mut rng);
        autoscaler["scaleTargetRef"] =
            json!({"apiVersion": "apps/v1", "kind": kind, "name": NAMES[number]});
        Self {
            number,
            kind,
            autoscaler,
            pods: BTreeMap::new(),
            load: 1.0,
            cpu_request: [0, 600, 0, 0, 300][number],
            next_pod: 0,
            rng,
        }
    }

    /// Its name, which is its autoscaler's, too.
    pub fn name(&self) -> &'static str {
        NAMES[self.number]
    }

    /// The object.
    pub fn object(&self, replicas: i32) -> Value {
        let selector = match self.number {
            // All pods of the namespace but those of the others.
            0 => json!({"matchExpressions":
                [{"key": "app", "operator": "NotIn", "values": NAMES[1..]}]}),
            _ => json!({"matchLabels": {"app": self.name()}}),
        };
        json!({
            "apiVersion": "apps/v1", "kind": self.kind,
            "metadata": {"name": self.name(), "namespace": NAMESPACE},
            "spec": {
                "replicas": replicas,
                "selector": selector,
                "template": {
                    "metadata": {"labels": {"app": self.name()}},
                    "spec": {"containers": [{"name": "app", "image": "app"}]}},
            },
            "status": {"replicas": 0},
        })
    }

    /// The autoscaler's object with a spec.
    pub fn autoscaler_object(&self, spec: &Value) -> Value {
        json!({
            "apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler",
            "metadata": {"name": self.name(), "namespace": NAMESPACE},
            "spec": spec,
        })
    }

    /// A new pod, and how long it takes to run and then to become ready.
    pub fn start_pod(&mut self) -> (String, Millis, Millis) {
        let name = match self.kind {
            "StatefulSet" => {
                let free = (0..).find(|n| !self.pods.contains_key(&self.pod_name(*n)));
                self.pod_name(free.unwrap_or_default())
            }
            _ => {
                self.next_pod += 1;
                self.pod_name(self.next_pod)
            }
        };
        self.pods.insert(name.clone(), Pod::new());
        let starts = self.rng.i64(SECOND..8 * SECOND);
        (name, starts, starts + self.rng.i64(SECOND..20 * SECOND))
    }

    fn pod_name(&self, number: u32) -> String {
        format!("{}-{number}", self.name())
    }

    /// The pod to remove next: one that is not ready first, as ReplicaSets do, or the last of a StatefulSet.
    pub fn pod_to_remove(&self) -> Option<String> {
        let counted = self.pods.iter().filter(|(_, pod)| pod.counts());
        let first = counted.max_by_key(|(name, pod)| {
            let waits = self.kind == "Deployment" && !pod.serves();
            (waits, name.len(), (*name).clone())
        });
        first.map(|(name, _)| name.clone())
    }

    /// How long a pod takes to end.
    pub fn grace(&mut self) -> Millis {
        // Jobs are finished first, now and then long ones.
        let is_long = self.number == 3 && self.rng.u8(..) < 64;
        self.rng.i64(if is_long { 200 * SECOND..500 * SECOND } else { 2 * SECOND..30 * SECOND })
    }

    /// The pod's object; its wall-clock times come from `wall`.
    pub fn pod_object(&self, name: &str, wall: impl Fn(Millis) -> String) -> Value {
        let pod = &self.pods[name];
        let mut spec = match self.number {
            // Pod-level requests take CPU from the containers: the largest init container, and the overhead.
            1 => json!({
                "containers": [{"name": "app", "resources": {"requests": {"cpu": "300m"}}}],
                "initContainers": [{"name": "init", "resources": {"requests": {"cpu": "500m"}}}],
                "resources": {"requests": {"memory": "64Mi"}},
                "overhead": {"cpu": "100m"},
            }),
            // A sidecar counts, another init container does not.
            4 => json!({
                "containers": [{"name": "app", "resources": {"requests": {"cpu": "200m"}}}],
                "initContainers": [
                    {"name": "proxy", "restartPolicy": "Always",
                        "resources": {"requests": {"cpu": "100m"}}},
                    {"name": "init", "resources": {"requests": {"cpu": "900m"}}}],
            }),
            _ => json!({"containers": [{"name": "app"}]}),
        };
        spec["nodeName"] = json!("node");
        let mut status = json!({"phase": match pod.stage {
            Stage::Pending => "Pending",
            Stage::Running => "Running",
            Stage::Failed => "Failed",
        }});
        if let Some(start) = pod.start {
            status["startTime"] = json!(wall(start));
        }
        if let Some((ready, since)) = pod.ready {
            let ready = if ready { "True" } else { "False" };
            status["conditions"] =
                json!([{"type": "Ready", "status": ready, "lastTransitionTime": wall(since)}]);
        }
        let (kind, controller) = match self.kind {
            "StatefulSet" => ("StatefulSet", self.name().to_owned()),
            _ => ("ReplicaSet", format!("{}-1", self.name())),
        };
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": self.name()},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": kind, "name": controller,
                    "uid": controller, "controller": true}]},
            "spec": spec, "status": status,
        })
    }

    /// The containers whose CPU usage is measured.
    pub fn containers(&self) -> &'static [&'static str] {
        match self.number {
            1 => &["app"],
            4 => &["app", "proxy"],
            _ => &[],
        }
    }
}

/// What a pod at its target makes of each metric: requests per second, running jobs, messages per pod, and CPU
/// in thousandths of a core.
pub const REQUESTS_PER_POD: f64 = 100.0;
/// Running jobs.
pub const JOBS_PER_POD: f64 = 10.0;
/// Messages in a queue.
pub const MESSAGES_PER_POD: f64 = 30.0;
/// The share of the requests that CPU usage is to be, in percent.
pub const CPU_TARGET: i64 = 60;

/// The spec of a workload's autoscaler without its target.
fn autoscaler(number: usize, seed: u64, rng: &mut Rng) -> Value {
    let max = rng.i32(6..=12);
    let cpu = json!({"type": "Resource", "resource": {"name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": CPU_TARGET}}});
    let external = |name| {
        json!({"type": "External", "external": {"metric": {"name": name},
            "target": {"type": "AverageValue", "averageValue": format!("{MESSAGES_PER_POD}")}}})
    };
    match number {
        0 => json!({"minReplicas": 1, "maxReplicas": max,
            "customMetrics": [{"metricName": "http_requests_total",
                "averageValue": format!("{REQUESTS_PER_POD}")}]}),
        1 => json!({"minReplicas": 1, "maxReplicas": max, "metrics": [cpu],
            "behavior": {
                "scaleUp": {"stabilizationWindowSeconds": 60,
                    "policies": [{"type": "Percent", "value": 100, "periodSeconds": 60}]},
                "scaleDown": {"stabilizationWindowSeconds": 120,
                    "policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}]}}}),
        2 => {
            let mut spec = json!({"minReplicas": 0, "maxReplicas": max, "behavior": {
                "scaleDown": {"stabilizationWindowSeconds": 60,
                    "policies": [{"type": "Percent", "value": 50, "periodSeconds": 60}]}}});
            // By a rule of the administrator, or by a query of its own.
            match seed.is_multiple_of(2) {
                true => spec["metrics"] = json!([external("queue_depth")]),
                false => {
                    spec["customMetrics"] = json!([{"metricName": "queue_depth", "per": "Workload",
                        "query": "max(queue_depth)",
                        "averageValue": format!("{MESSAGES_PER_POD}")}]);
                }
            }
            spec
        }
        3 => json!({"minReplicas": 1, "maxReplicas": max,
            "customMetrics": [{"metricName": "jobs_running",
                "averageValue": format!("{JOBS_PER_POD}")}],
            "syncPeriodSeconds": if rng.bool() { 15 } else { 60 },
            "behavior": {
                "scaleUp": {"policies": [match rng.bool() {
                    true => json!({"type": "Pods", "value": 1, "periodSeconds": 120}),
                    false => json!({"type": "Pods", "value": 4, "periodSeconds": 600}),
                }]},
                "scaleDown": {"stabilizationWindowSeconds": 240, "selectPolicy": "Min",
                    "policies": [{"type": "Pods", "value": 3, "periodSeconds": 180},
                        {"type": "Percent", "value": 50, "periodSeconds": 120}]}}}),
        _ => {
            let min = if rng.bool() { 0 } else { 2 };
            json!({"minReplicas": min, "maxReplicas": max, "metrics": [cpu, external("mail_backlog")],
            "fallback": {"failureThreshold": 4, "replicas": 5}})
        }
    }
}

/// Whether the replicas of a run scale to zero; with every third seed they don't (`--scale-to-zero=false`).
pub fn scales_to_zero(seed: u64) -> bool {
    !seed.is_multiple_of(3)
}
