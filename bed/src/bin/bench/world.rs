//! The cluster of the benchmark: workloads, pods and their metrics.

use crate::round::show_progress;
use bed::cluster::Cluster;
use bed::{Options, eventually, free_port};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The size of the cluster.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Workloads, each with an autoscaler.
    pub autoscalers: usize,
    /// Pods per workload.
    pub pods: usize,
}

/// The cluster, with workloads whose load is steady apart from noise.
pub struct World {
    pub cluster: Cluster,
    pub size: Size,
    /// The port of the metrics adapter that runs.
    pub adapter_port: u16,
}

/// The namespaces that workloads are spread over.
pub const NAMESPACES: usize = 10;
/// Requests per second of a pod, and the target of autoscalers.
pub const RATE: usize = 10;
/// The relative noise of the rate of a pod, from scrape to scrape.
const NOISE: f64 = 0.3;
/// Requests in flight while objects are created.
const MAX_IN_FLIGHT_REQUESTS: usize = 24;

pub fn namespace(app: usize) -> String {
    format!("bench-{}", app % NAMESPACES)
}

impl World {
    /// Starts it; with `variants` the metrics exist in several variants (`fleet series`).
    pub async fn start(size: Size, variants: bool) -> Self {
        let options = Options { progress: show_progress, ..Options::default() };
        let mut cluster = Cluster::control_plane(&options).await;
        let series_port = free_port();
        let [apps, pods, rate] = [size.autoscalers, size.pods, RATE].map(|n| n.to_string());
        let address = format!("127.0.0.1:{series_port}");
        let mut arguments = vec!["series".to_owned(), address, apps, pods, rate, NOISE.to_string()];
        if variants {
            arguments.push("variants".to_owned());
        }
        cluster.add("series", "fleet", &arguments);
        cluster.write_prometheus_config(&format!(
            "global: {{scrape_interval: 5s}}\n\
             scrape_configs:\n  - job_name: pods\n    honor_labels: true\n\
             \x20   static_configs: [{{targets: [\"127.0.0.1:{series_port}\"]}}]\n"
        ));
        cluster.start_prometheus();
        cluster.wait_prometheus().await;
        let world = Self { cluster, size, adapter_port: free_port() };
        world.make_workloads().await;
        world
    }

    /// Sends a request with a JSON body.
    pub async fn send(&self, method: &str, path: &str, body: Value) {
        let kind = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let request = http::Request::builder().method(method).uri(path);
        let request = request.header("content-type", kind).body(body.to_string().into_bytes());
        let request = request.expect("a request");
        if let Err(error) = self.cluster.client.request::<Value>(request).await {
            panic!("{method} {path}: {error}");
        }
    }

    /// Runs `make` for each number below `count`, concurrently, and shows the progress.
    async fn each(&self, what: &str, count: usize, make: impl AsyncFn(usize)) {
        show_progress(&format!("making {count} {what}"));
        let done = AtomicUsize::new(0);
        let step = (count / 4).max(1);
        let one = async |number: usize| {
            make(number).await;
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            if done.is_multiple_of(step) && done < count && count > 10_000 {
                show_progress(&format!("  {done} of {count} {what}"));
            }
        };
        stream::iter((0..count).map(one))
            .buffer_unordered(MAX_IN_FLIGHT_REQUESTS)
            .collect::<Vec<()>>()
            .await;
    }

    async fn make_workloads(&self) {
        let Size { autoscalers, pods } = self.size;
        for namespace in (0..NAMESPACES.min(autoscalers)).map(namespace) {
            self.send("POST", "/api/v1/namespaces", json!({"metadata": {"name": namespace}})).await;
            let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
            self.send("POST", &path, json!({"metadata": {"name": "default"}})).await;
        }
        let workload = async |app: usize| {
            self.make_workload(&namespace(app), &format!("app-{app}"), pods).await;
        };
        self.each("workloads", autoscalers, workload).await;
        let pod = async |number: usize| {
            let app = number / pods;
            self.make_pod(&namespace(app), &format!("app-{app}"), number % pods).await;
        };
        self.each("pods", autoscalers * pods, pod).await;
        let query = format!(
            "http://127.0.0.1:{}/api/v1/query?query=count(rate(http_requests_total[1m]))",
            self.cluster.prometheus_port
        );
        eventually("Prometheus has the metrics", Duration::from_secs(120), async || {
            let response = reqwest::get(&query).await.map_err(|error| error.to_string())?;
            let response: Value = response
                .text()
                .await
                .map_err(|e| e.to_string())?
                .parse()
                .map_err(|e| format!("{e}"))?;
            let count = response["data"]["result"][0]["value"][1].as_str().unwrap_or_default();
            let all = (autoscalers * pods).to_string();
            if count == all { Ok(()) } else { Err(response.to_string()) }
        })
        .await;
    }

    /// Creates a Deployment whose status has this number of pods.
    pub async fn make_workload(&self, of: &str, name: &str, pods: usize) {
        let labels = json!({"app": name});
        let path = format!("/apis/apps/v1/namespaces/{of}/deployments");
        let requests = json!({"requests": {"cpu": "100m"}});
        let containers = json!([{"name": "app", "image": "app", "resources": requests}]);
        let template = json!({"metadata": {"labels": labels}, "spec": {"containers": containers}});
        let spec =
            json!({"replicas": pods, "selector": {"matchLabels": labels}, "template": template});
        self.send("POST", &path, json!({"metadata": {"name": name}, "spec": spec})).await;
        let status = json!({"status": {"replicas": pods, "readyReplicas": pods,
            "updatedReplicas": pods, "availableReplicas": pods, "observedGeneration": 1}});
        self.send("PATCH", &format!("{path}/{name}/status"), status).await;
    }

    /// Creates a pod of a workload whose status is running and ready.
    pub async fn make_pod(&self, of: &str, app: &str, index: usize) {
        let path = format!("/api/v1/namespaces/{of}/pods");
        let name = format!("{app}-{index}");
        // The labels of a Deployment's pods.
        let labels = json!({"app": app, "pod-template-hash": "75c5d6f8b9"});
        let requests = json!({"requests": {"cpu": "100m"}});
        let containers = json!([{"name": "app", "image": "app", "resources": requests}]);
        let spec = json!({"automountServiceAccountToken": false, "containers": containers});
        let pod = json!({"metadata": {"name": name, "labels": labels}, "spec": spec});
        self.send("POST", &path, pod).await;
        let time = "2026-01-01T00:00:00Z";
        let status = json!({"status": {"phase": "Running", "startTime": time, "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": time}]}});
        self.send("PATCH", &format!("{path}/{name}/status"), status).await;
    }

    /// Creates HPAs, for both sides.
    pub async fn make_native_hpas(&self) {
        let hpa =
            async |app: usize| {
                let of = namespace(app);
                let path = format!("/apis/autoscaling/v2/namespaces/{of}/horizontalpodautoscalers");
                self.send("POST", &path, json!({
                "metadata": {"name": format!("app-{app}")},
                "spec": {
                    "scaleTargetRef": target(app), "minReplicas": 1, "maxReplicas": 20,
                    "metrics": [{"type": "Pods", "pods": {
                        "metric": {"name": "http_requests_per_second"},
                        "target": {"type": "AverageValue", "averageValue": RATE.to_string()}}}],
                },
            }))
            .await;
            };
        self.each("HorizontalPodAutoscalers", self.size.autoscalers, hpa).await;
    }

    /// Creates Autoscalers, each with a different value of a label.
    pub async fn make_autoscalers(&self) {
        let crd = bed::root().join("deploy/base/crd.yaml");
        self.cluster.kubectl(&["apply", "-f", &crd.display().to_string()]).await;
        eventually("the CRD is established", Duration::from_secs(30), async || {
            self.cluster.try_kubectl(&["get", "autoscalers", "-A"]).await
        })
        .await;
        let autoscaler = async |app: usize| {
            let spec = json!({
                "apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler",
                "metadata": {"name": format!("app-{app}")},
                "spec": {
                    "scaleTargetRef": target(app), "minReplicas": 1, "maxReplicas": 20,
                    "customMetrics": MetricChoice::OWN_LABEL.custom_metrics(app),
                },
            });
            self.send("POST", &autoscalers(app), spec).await;
        };
        self.each("Autoscalers", self.size.autoscalers, autoscaler).await;
    }

    /// Changes the metrics of the Autoscalers.
    pub async fn set_metrics(&self, metrics: MetricChoice) {
        let patch = async |app: usize| {
            let spec = json!({"spec": {"customMetrics": metrics.custom_metrics(app)}});
            self.send("PATCH", &format!("{}/app-{app}", autoscalers(app)), spec).await;
        };
        self.each("changes to Autoscalers", self.size.autoscalers, patch).await;
    }

    /// Gives one of so many Autoscalers a minimum above its replicas, so that it has a scale to write. Returns how many.
    pub async fn raise_minimum(&self, one_of: usize) -> usize {
        let count = self.size.autoscalers / one_of;
        let raise = async |number: usize| {
            let app = number * one_of;
            let spec = json!({"spec": {"minReplicas": self.size.pods + 1}});
            self.send("PATCH", &format!("{}/app-{app}", autoscalers(app)), spec).await;
        };
        self.each("Autoscalers with a higher minimum", count, raise).await;
        count
    }

    /// Replaces so many pods, all of one workload after the other.
    pub async fn replace_pods(&self, count: usize) {
        let replace = async |number: usize| {
            let app = number / self.size.pods;
            let (of, name) = (namespace(app), format!("app-{app}"));
            let path = format!("/api/v1/namespaces/{of}/pods/{name}-{}", number % self.size.pods);
            self.send("DELETE", &path, json!({"gracePeriodSeconds": 0})).await;
            self.make_pod(&of, &name, number % self.size.pods).await;
        };
        self.each("pods anew", count, replace).await;
    }

    /// Deletes Autoscalers until `count` are left.
    pub async fn keep_only(&mut self, count: usize) {
        let delete = async |number: usize| {
            let app = count + number;
            self.send("DELETE", &format!("{}/app-{app}", autoscalers(app)), json!({})).await;
        };
        self.each("deletions of Autoscalers", self.size.autoscalers - count, delete).await;
        self.size.autoscalers = count;
    }
}

/// The metrics of the Autoscalers.
#[derive(Clone, Copy, Debug)]
pub struct MetricChoice {
    /// The metric of a workload.
    pub metric: fn(usize) -> String,
    /// The label that selects series, and its value for a workload.
    pub label: (&'static str, fn(usize) -> String),
}

impl MetricChoice {
    /// One metric for all, and a value of a label for each workload.
    pub const OWN_LABEL: Self = Self {
        metric: |_| "http_requests_total".to_owned(),
        label: ("app", |app| format!("app-{app}")),
    };

    fn custom_metrics(&self, app: usize) -> Value {
        let (label, value) = self.label;
        json!([{"metricName": (self.metric)(app), "labels": {label: value(app)},
            "averageValue": RATE.to_string()}])
    }
}

fn autoscalers(app: usize) -> String {
    format!("/apis/plimsoll.dev/v1alpha1/namespaces/{}/autoscalers", namespace(app))
}

fn target(app: usize) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": format!("app-{app}")})
}
