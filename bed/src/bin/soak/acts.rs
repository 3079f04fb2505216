//! The random actions of the soak: churn by its users.

use crate::policy::{DOWN, UP};
use crate::settings::NAMESPACE;
use crate::soak::Soak;
use crate::workload::Workload;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The maximum number of workloads with an Autoscaler.
const MAX_WORKLOADS: usize = 8;
/// The number below which none is deleted.
const MIN_WORKLOADS: usize = 4;
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/plimsoll/leases/plimsoll";
/// The pod that exposes the backlogs of all queues.
pub const METER: &str = "meter";

/// The path of an object of the namespace.
fn path(resource: &str, name: &str) -> String {
    let api = match resource {
        "deployments" => "apis/apps/v1",
        "autoscalers" => "apis/plimsoll.dev/v1alpha1",
        _ => "api/v1",
    };
    format!("/{api}/namespaces/{NAMESPACE}/{resource}/{name}")
}

impl Soak<'_> {
    /// The places of the workloads whose Autoscaler and Deployment are there.
    pub fn living(&self) -> Vec<usize> {
        (0..self.workloads.len()).filter(|index| self.workloads[*index].lives()).collect()
    }

    /// Performs a random action.
    pub async fn act(&mut self) {
        if self.frozen.since().is_some() && self.random.below(4) == 0 {
            self.freeze(false).await;
        }
        let living = self.living();
        let which = self.random.below(20);
        let some = (!living.is_empty()).then(|| living[self.random.below(living.len())]);
        let spare = living.len() > MIN_WORKLOADS;
        let action = match (which, some) {
            (0..=2, _) | (_, None) if living.len() < MAX_WORKLOADS => self.make().await,
            (3, Some(index)) if spare => self.remove(index).await,
            (4..=8, Some(_)) => self.show(self.stalest(&living)).await,
            (9..=13, Some(index)) => self.scale(index).await,
            (14, Some(index)) => self.limit(index).await,
            (15, Some(index)) => self.delete_pod(index).await,
            (16, _) => self.reload(),
            (18, _) => self.bait().await,
            (17, _) if self.frozen.since().is_none() => self.freeze(true).await,
            _ => self.read_api().await,
        };
        *self.actions.entry(action).or_default() += 1;
    }

    async fn patch(&self, path: &str, patch: &Value) {
        // What is gone meanwhile is no matter.
        let _ = self.bed.cluster.patch(path, patch).await;
    }

    async fn delete(&self, resource: &str, name: &str) -> bool {
        let (cluster, path) = (&self.bed.cluster, path(resource, name));
        let background = r#"{"propagationPolicy":"Background"}"#.to_owned();
        cluster.request("DELETE", &path, "application/json", background).await.is_ok()
    }

    async fn make(&mut self) -> &'static str {
        self.made += 1;
        let name = format!("app-{}", self.made);
        let to_zero = self.made % 2 == 1;
        // Of percentages alone none leads up from zero.
        let ups = if to_zero { 2 } else { UP.len() };
        let up = UP[self.random.below(ups)];
        let down = DOWN[self.random.below(DOWN.len())];
        let (busy, max) = (self.random.below(2) == 0, 2 + self.random.below(3) as i64);
        let workload = Workload::new(name, to_zero, max, busy, up, down);
        self.bed.cluster.apply(&workload.manifest()).await;
        self.workloads.push(workload);
        self.meter().await;
        "autoscalers made"
    }

    /// Deletes an Autoscaler, and scales its Deployment to a size that the Autoscaler would change.
    pub async fn remove(&mut self, index: usize) -> &'static str {
        let name = self.workloads[index].name.clone();
        if self.delete("autoscalers", &name).await {
            self.workloads[index].removed = Some(Instant::now());
            self.scale_to(&name, self.workloads[index].settles_at() + 1).await;
        }
        "autoscalers deleted"
    }

    /// Scales what is left of a deleted Autoscaler to a size that the Autoscaler would change.
    async fn bait(&mut self) -> &'static str {
        for workload in self.workloads.iter().filter(|one| one.removed.is_some()) {
            self.scale_to(&workload.name, workload.settles_at() + 1).await;
        }
        "leftovers scaled by hand"
    }

    /// Deletes the Deployment of an Autoscaler.
    pub async fn delete_target(&mut self, index: usize) -> &'static str {
        let name = self.workloads[index].name.clone();
        if self.delete("deployments", &name).await {
            self.workloads[index].target_gone = Some(Instant::now());
        }
        "deployments deleted"
    }

    /// The workload whose metric is the same for longest, so that each has time to go to zero.
    fn stalest(&self, living: &[usize]) -> usize {
        let stalest = living.iter().min_by_key(|index| self.workloads[**index].shown_since);
        *stalest.expect("some live")
    }

    async fn show(&mut self, index: usize) -> &'static str {
        let workload = &mut self.workloads[index];
        (workload.busy, workload.shown_since) = (!workload.busy, Instant::now());
        let (name, shown) = (workload.name.clone(), workload.shown());
        if workload.to_zero {
            self.meter().await;
        } else {
            let shown = json!({"metadata": {"annotations": {"bed.plimsoll.dev/metrics": shown}}});
            let patch = json!({"spec": {"template": shown}});
            self.patch(&path("deployments", &name), &patch).await;
        }
        "metrics changed"
    }

    /// Shows the backlogs of all queues.
    pub async fn meter(&self) {
        let lines: Vec<String> = self.workloads.iter().filter_map(Workload::backlog).collect();
        let shown = json!({"bed.plimsoll.dev/metrics": lines.join("\n")});
        self.patch(&path("pods", METER), &json!({"metadata": {"annotations": shown}})).await;
    }

    async fn scale_to(&self, name: &str, replicas: i64) {
        let patch = json!({"spec": {"replicas": replicas}});
        self.patch(&path("deployments", name), &patch).await;
    }

    async fn scale(&mut self, index: usize) -> &'static str {
        let replicas = 1 + self.random.below(6) as i64;
        self.scale_to(&self.workloads[index].name, replicas).await;
        "workloads scaled by hand"
    }

    async fn limit(&mut self, index: usize) -> &'static str {
        let max = 2 + self.random.below(3) as i64;
        let workload = &mut self.workloads[index];
        (workload.max, workload.least_max) = (max, max.min(workload.least_max));
        let path = path("autoscalers", &workload.name);
        self.patch(&path, &json!({"spec": {"maxReplicas": max}})).await;
        "limits changed"
    }

    pub async fn delete_pod(&mut self, index: usize) -> &'static str {
        let name = &self.workloads[index].name;
        let pods = path("pods", &format!("?labelSelector=app%3D{name}"));
        let pods = self.bed.cluster.raw(&pods.replace("/?", "?")).await.unwrap_or_default();
        let pods: Value = serde_json::from_str(&pods).unwrap_or_default();
        if let Some(pod) = pods["items"][0]["metadata"]["name"].as_str() {
            self.delete("pods", pod).await;
        }
        "pods deleted"
    }

    /// Changes the configuration, sometimes to an invalid one.
    fn reload(&mut self) -> &'static str {
        let path = self.bed.cluster.folder.join("plimsoll.yaml");
        let text = std::fs::read_to_string(&path).expect("the configuration");
        let text = text.split("\n# change").next().expect("a part").to_owned();
        let wrong = self.random.below(3) == 0;
        let change = if wrong { "\n\tno yaml: [" } else { "" };
        std::fs::write(&path, format!("{text}\n# change {}{change}\n", self.rounds))
            .expect("a file");
        if wrong { "wrong configurations" } else { "configurations" }
    }

    /// Freezes or thaws.
    pub async fn freeze(&mut self, freeze: bool) -> &'static str {
        if !freeze {
            self.frozen.end();
        }
        let reason = freeze.then_some("soak");
        let patch = json!({"metadata": {"annotations": {"plimsoll.dev/freeze": reason}}});
        if self.bed.cluster.patch(LEASE, &patch).await.is_ok() && freeze {
            self.frozen.begin();
        }
        "freezes and thaws"
    }

    /// Reads the metrics API, as kubectl does. The replica that serves it may be stopped.
    async fn read_api(&self) -> &'static str {
        let read = self.bed.cluster.raw("/apis/custom.metrics.k8s.io/v1beta2");
        let _ = tokio::time::timeout(Duration::from_millis(500), read).await;
        "requests"
    }

    /// Deletes what is left of a workload.
    pub async fn clear_up(&self, name: &str) {
        self.delete("autoscalers", name).await;
        self.delete("deployments", name).await;
    }
}
