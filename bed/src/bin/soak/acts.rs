//! The random actions of the soak: churn and faults.

use crate::history::Timeline;
use crate::soak::{NAMESPACE, Soak};
use crate::workload::{POLICY, WINDOW, Workload};
use bed::proxy::Fault;
use std::time::{Duration, Instant};

/// The maximum number of workloads with an Autoscaler.
const MAX_WORKLOADS: usize = 8;

/// Faults of one kind alternate with calm: decisions under faults are made on older data, so fewer
/// invariants apply.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Calm,
    Prometheus,
    Api,
}

impl Soak<'_> {
    fn phase(&self) -> Phase {
        match self.began.elapsed().as_secs() % 210 {
            0..90 => Phase::Calm,
            90..150 => Phase::Prometheus,
            _ => Phase::Api,
        }
    }

    /// Performs a random action.
    pub async fn act(&mut self) {
        if self.fault.is_some_and(|until| Instant::now() >= until) {
            self.heal();
        }
        if self.frozen && self.random.below(8) == 0 {
            self.freeze().await;
        }
        let phase = self.phase();
        let which = self.random.below(18);
        let living = |index: &usize| self.workloads[*index].removed.is_none();
        let living: Vec<usize> = (0..self.workloads.len()).filter(living).collect();
        let some = (!living.is_empty()).then(|| living[self.random.below(living.len())]);
        let action = match (which, some) {
            (0 | 1, _) if living.len() < MAX_WORKLOADS => self.make().await,
            (2, Some(index)) if living.len() > 2 => self.remove(index).await,
            (3 | 13 | 14, Some(index)) => self.show(index).await,
            (4 | 15 | 16, Some(index)) => self.scale(index).await,
            (5, Some(index)) => self.limit(index).await,
            (6, Some(index)) => self.delete_pod(index).await,
            (7, _) => self.reload(),
            (8, _) if !self.frozen => self.freeze().await,
            (9..=12, _) if self.fault.is_none() && phase == Phase::Prometheus => {
                self.fail_prometheus()
            }
            (9..=12, _) if self.fault.is_none() && phase == Phase::Api => self.fail_api(),
            _ => self.read_api().await,
        };
        *self.actions.entry(action).or_default() += 1;
    }

    pub fn heal(&mut self) {
        let faults = self.bed.faults.as_ref().expect("proxies");
        faults.prometheus.clear();
        faults.api.clear();
        self.fault = None;
        self.history.blind.end();
        self.history.faulty.end();
    }

    async fn make(&mut self) -> &'static str {
        self.made += 1;
        let name = format!("app-{}", self.made);
        let (shows, max) = ([1, 20][self.random.below(2)], 2 + self.random.below(3) as i64);
        let policy = self.random.below(2) == 0;
        let (pods, period) = if policy { (POLICY.0, POLICY.1.as_secs()) } else { (100, 1) };
        let window = WINDOW.as_secs();
        let manifest = format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}, namespace: {NAMESPACE}}}\n\
             spec:\n  replicas: 1\n  selector: {{matchLabels: {{app: {name}}}}}\n\
             \x20 template:\n    metadata:\n      labels: {{app: {name}}}\n\
             \x20     annotations: {{bed.plimsoll.dev/metrics: 'depth {shows}'}}\n\
             \x20   spec:\n      terminationGracePeriodSeconds: 0\n\
             \x20     containers: [{{name: app, image: fleet}}]\n\
             ---\napiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\n\
             metadata: {{name: {name}, namespace: {NAMESPACE}}}\n\
             spec:\n  scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: {name}}}\n\
             \x20 maxReplicas: {max}\n  syncPeriodSeconds: 1\n\
             \x20 customMetrics: [{{metricName: depth, averageValue: 10}}]\n\
             \x20 behavior: {{scaleDown: {{stabilizationWindowSeconds: {window}}}, scaleUp: {{policies: [{{type: Pods, value: {pods}, periodSeconds: {period}}}]}}}}\n"
        );
        let (max, shows, made) = (Timeline::new(max), Timeline::new(shows), Instant::now());
        let (removed, steps) = (None, Vec::new());
        self.workloads.push(Workload { name, made, max, shows, policy, removed, steps });
        self.bed.cluster.apply(&manifest).await;
        "autoscalers made"
    }

    /// Deletes an Autoscaler, and scales its Deployment to a size that the Autoscaler would change.
    async fn remove(&mut self, index: usize) -> &'static str {
        let workload = &mut self.workloads[index];
        let (autoscaler, deployment) =
            (format!("autoscaler/{}", workload.name), format!("deployment/{}", workload.name));
        let replicas = format!("--replicas={}", workload.settles_at() + 1);
        if self.kubectl(&["delete", &autoscaler]).await.is_ok() {
            self.workloads[index].removed = Some(Instant::now());
            let _ = self.kubectl(&["scale", &deployment, &replicas]).await;
        }
        "autoscalers deleted"
    }

    async fn show(&mut self, index: usize) -> &'static str {
        let shows = [1, 20][self.random.below(2)];
        let workload = &mut self.workloads[index];
        workload.shows.set(shows);
        let patch = format!(
            r#"{{"spec":{{"template":{{"metadata":{{"annotations":{{"bed.plimsoll.dev/metrics":"depth {shows}"}}}}}}}}}}"#
        );
        let deployment = format!("deployment/{}", workload.name);
        let _ = self.kubectl(&["patch", &deployment, "-p", &patch]).await;
        "metrics changed"
    }

    async fn scale(&mut self, index: usize) -> &'static str {
        let replicas = 1 + self.random.below(6);
        let workload = &self.workloads[index];
        let deployment = format!("deployment/{}", workload.name);
        let _ = self.kubectl(&["scale", &deployment, &format!("--replicas={replicas}")]).await;
        "workloads scaled by hand"
    }

    async fn limit(&mut self, index: usize) -> &'static str {
        let max = 2 + self.random.below(3) as i64;
        let workload = &mut self.workloads[index];
        workload.max.set(max);
        let autoscaler = format!("autoscaler/{}", workload.name);
        let patch = format!(r#"{{"spec":{{"maxReplicas":{max}}}}}"#);
        let _ = self.kubectl(&["patch", &autoscaler, "--type=merge", "-p", &patch]).await;
        "limits changed"
    }

    async fn delete_pod(&mut self, index: usize) -> &'static str {
        let workload = &self.workloads[index];
        let selector = format!("app={}", workload.name);
        let pods = ["get", "pods", "-l", &selector, "-o", "jsonpath={.items[0].metadata.name}"];
        if let Ok(pod) = self.kubectl(&pods).await {
            let _ = self.kubectl(&["delete", "pod", &pod, "--wait=false"]).await;
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

    pub async fn freeze(&mut self) -> &'static str {
        self.frozen = !self.frozen;
        if !self.frozen {
            self.history.frozen.end();
        }
        let word = if self.frozen { "plimsoll.dev/freeze=soak" } else { "plimsoll.dev/freeze-" };
        let annotate = ["-n", "plimsoll", "annotate", "lease", "plimsoll", "--overwrite", word];
        let _ = self.bed.cluster.try_kubectl(&annotate).await;
        if self.frozen {
            self.history.frozen.begin();
        }
        "freezes and thaws"
    }

    fn until(&mut self) -> Instant {
        Instant::now() + Duration::from_secs(1 + self.random.below(12) as u64)
    }

    fn fail_prometheus(&mut self) -> &'static str {
        let respond = |status: u16, body: &str| Fault::Response {
            status,
            headers: vec![("retry-after", "1".to_owned())],
            body: body.to_owned(),
        };
        let fault = match self.random.below(6) {
            0 => Fault::Stall,
            1 => Fault::Slow(Duration::from_millis(1500)),
            2 => respond(503, "starting"),
            3 => respond(200, "<html>"),
            4 => respond(429, "slow down"),
            _ => Fault::Cut,
        };
        self.bed.faults.as_ref().expect("proxies").prometheus.fail("", fault);
        self.history.blind.begin();
        self.fault = Some(self.until());
        "faults of Prometheus"
    }

    fn fail_api(&mut self) -> &'static str {
        let api = &self.bed.faults.as_ref().expect("proxies").api;
        let respond = |status: u16| Fault::Response {
            status,
            headers: Vec::new(),
            body: format!(
                r#"{{"kind":"Status","status":"Failure","code":{status},"message":"soak"}}"#
            ),
        };
        match self.random.below(6) {
            0 => api.fail("", Fault::Slow(Duration::from_millis(800))),
            1 => api.fail("/scale", respond(409)),
            2 => api.fail("PATCH", respond(500)),
            3 => api.fail("/scale", respond(429)),
            4 => {
                // Half of the time as kube-apiserver does: an event in a response of status 200.
                let expired = match self.random.below(2) {
                    0 => respond(410),
                    _ => Fault::expired_watch(),
                };
                api.fail("watch=true", expired);
                api.end_responses();
            }
            _ => api.stall("leases"),
        }
        self.history.faulty.begin();
        self.fault = Some(self.until());
        "faults of kube-apiserver"
    }

    /// Reads the metrics API, as kubectl does.
    async fn read_api(&self) -> &'static str {
        let path = "/apis/custom.metrics.k8s.io/v1beta2";
        let _ = self.bed.cluster.try_kubectl(&["get", "--raw", path]).await;
        "requests"
    }
}
