//! The cluster of the benchmark: workloads, pods and their metrics.

use crate::round::show_progress;
use bed::cluster::Cluster;
use bed::process::Process;
use bed::{Options, eventually, free_port};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use std::path::Path;
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
    /// The port of what exposes the metrics of the pods.
    pub series_port: u16,
    /// The metrics of the autoscalers, except on the mixed fleet.
    pub metrics: MetricChoice,
    series: Option<Process>,
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
        Self::scraped(size, variants, NOISE, &[("pods", 5)]).await
    }

    /// With this relative noise of rates, and these jobs of Prometheus, each with its scrape interval in seconds.
    pub async fn scraped(size: Size, variants: bool, noise: f64, jobs: &[(&str, u64)]) -> Self {
        let mut world = Self::without_workloads(size).await;
        let [apps, pods, rate] = [size.autoscalers, size.pods, RATE].map(|n| n.to_string());
        let mut arguments = vec![apps, pods, rate, noise.to_string()];
        if variants {
            arguments.push("variants".to_owned());
        }
        world.expose("series", &arguments, jobs, "").await;
        world.make_workloads().await;
        let query = "count(count by (pod) (rate(http_requests_total[1m])))";
        world.wait_for(query, size.autoscalers * size.pods).await;
        world
    }

    /// Starts the control plane.
    pub async fn without_workloads(size: Size) -> Self {
        let options = Options { progress: show_progress, ..Options::default() };
        let cluster = Cluster::control_plane(&options).await;
        let [adapter_port, series_port] = [free_port(), free_port()];
        let metrics = MetricChoice::OWN_LABEL;
        Self { cluster, size, adapter_port, series_port, metrics, series: None }
    }

    /// Exposes metrics by a command of `fleet`, and starts an empty Prometheus that scrapes them by
    /// these jobs, each with its scrape interval in seconds, with more of its configuration.
    pub async fn expose(
        &mut self,
        command: &str,
        arguments: &[String],
        jobs: &[(&str, u64)],
        config: &str,
    ) {
        drop(self.series.take());
        self.cluster.stop_prometheus();
        let _ = std::fs::remove_dir_all(self.cluster.folder.join("prometheus"));
        let port = self.series_port;
        let mut line = vec![command.to_owned(), format!("127.0.0.1:{port}")];
        line.extend_from_slice(arguments);
        self.series = Some(self.cluster.run("series", &self.cluster.parts.join("fleet"), &line));
        let job = |(name, seconds): &(&str, u64)| {
            format!(
                "  - job_name: {name}\n    scrape_interval: {seconds}s\n    honor_labels: true\n\
                 \x20   static_configs: [{{targets: [\"127.0.0.1:{port}\"]}}]\n"
            )
        };
        let jobs: String = jobs.iter().map(job).collect();
        self.cluster.write_prometheus_config(&format!(
            "global: {{evaluation_interval: 15s}}\nscrape_configs:\n{jobs}{config}"
        ));
        self.cluster.start_prometheus();
        self.cluster.wait_prometheus().await;
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
    pub async fn each(&self, what: &str, count: usize, make: impl AsyncFn(usize)) {
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

    /// Creates the namespaces, the workloads and their pods.
    pub async fn make_workloads(&self) {
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
    }

    /// Waits until a window, such as `[20s]`, holds four scrapes of each pod.
    pub async fn fill(&self, window: &str) {
        let all = self.size.autoscalers * self.size.pods;
        let query = format!("count_over_time(http_requests_total{window}) >= 4");
        self.wait_for(&format!("count(count by (pod) ({query}))"), all).await;
    }

    /// Waits until a query of Prometheus has this value.
    pub async fn wait_for(&self, query: &str, value: usize) {
        let url = format!("http://127.0.0.1:{}/api/v1/query", self.cluster.prometheus_port);
        let url = reqwest::Url::parse_with_params(&url, [("query", query)]).expect("a URL");
        eventually("Prometheus has the metrics", Duration::from_secs(120), async || {
            let response = reqwest::get(url.clone()).await.map_err(|error| error.to_string())?;
            let response: Value = response
                .text()
                .await
                .map_err(|e| e.to_string())?
                .parse()
                .map_err(|e| format!("{e}"))?;
            let found = response["data"]["result"][0]["value"][1].as_str().unwrap_or_default();
            if found == value.to_string() { Ok(()) } else { Err(response.to_string()) }
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
        // The labels and the controller of a Deployment's pods.
        let hash = "75c5d6f8b9";
        let labels = json!({"app": app, "pod-template-hash": hash});
        let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "controller": true,
            "name": format!("{app}-{hash}"), "uid": format!("0b6e4f0a-51a9-4a1e-9d7c-{app:0>12}")});
        let requests = json!({"requests": {"cpu": "100m"}});
        let containers = json!([{"name": "app", "image": "app", "resources": requests}]);
        let spec = json!({"automountServiceAccountToken": false, "containers": containers});
        let metadata = json!({"name": name, "labels": labels, "ownerReferences": [owner]});
        let pod = json!({"metadata": metadata, "spec": spec});
        self.send("POST", &path, pod).await;
        let time = "2026-01-01T00:00:00Z";
        let status = json!({"status": {"phase": "Running", "startTime": time, "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": time}]}});
        self.send("PATCH", &format!("{path}/{name}/status"), status).await;
    }

    /// Creates HPAs of the metrics that the rules of both sides make of those of the Autoscalers.
    pub async fn make_native_hpas(&self) {
        let hpa = async |app: usize| {
            let name = self.metrics.served(app);
            let spec = json!({
                "metadata": {"name": format!("app-{app}")},
                "spec": {
                    "scaleTargetRef": target(app), "minReplicas": 1, "maxReplicas": self.max_replicas(),
                    "metrics": [{"type": "Pods", "pods": {"metric": {"name": name},
                        "target": {"type": "AverageValue", "averageValue": RATE.to_string()}}}],
                },
            });
            self.send("POST", &hpas(app), spec).await;
        };
        self.each("HorizontalPodAutoscalers", self.size.autoscalers, hpa).await;
    }

    /// The maximum of each autoscaler: above its replicas, so that a steady load leaves the scale as it is.
    fn max_replicas(&self) -> usize {
        2 * self.size.pods
    }

    /// Deletes the HPAs.
    pub async fn delete_native_hpas(&self) {
        let delete = async |app: usize| {
            self.send("DELETE", &format!("{}/app-{app}", hpas(app)), json!({})).await;
        };
        self.each("deletions of HorizontalPodAutoscalers", self.size.autoscalers, delete).await;
    }

    /// Creates Autoscalers, each with a different value of a label.
    pub async fn make_autoscalers(&self) {
        self.install_autoscalers().await;
        let autoscaler = async |app: usize| {
            let spec = json!({
                "apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler",
                "metadata": {"name": format!("app-{app}")},
                "spec": {
                    "scaleTargetRef": target(app), "minReplicas": 1, "maxReplicas": self.max_replicas(),
                    "customMetrics": self.metrics.custom_metrics(app),
                },
            });
            self.send("POST", &autoscalers(app), spec).await;
        };
        self.each("Autoscalers", self.size.autoscalers, autoscaler).await;
    }

    /// Installs the definition of Autoscalers.
    pub async fn install_autoscalers(&self) {
        self.install_crd(&bed::root().join("deploy/base/crd.yaml"), "autoscalers").await;
    }

    /// Installs the definitions of a file or folder, and waits until a resource of them is served.
    pub async fn install_crd(&self, path: &Path, resource: &str) {
        let path = path.display().to_string();
        self.cluster.kubectl(&["apply", "--server-side", "-f", &path]).await;
        eventually("the CRD is established", Duration::from_secs(30), async || {
            self.cluster.try_kubectl(&["get", resource, "-A"]).await
        })
        .await;
    }

    /// Changes the metrics of the Autoscalers.
    pub async fn set_metrics(&mut self, metrics: MetricChoice) {
        self.metrics = metrics;
        let patch = async |app: usize| {
            let spec = json!({"spec": {"customMetrics": metrics.custom_metrics(app)}});
            self.send("PATCH", &format!("{}/app-{app}", autoscalers(app)), spec).await;
        };
        self.each("changes to Autoscalers", self.size.autoscalers, patch).await;
    }

    /// Gives one of so many Autoscalers a maximum below its replicas, so that it has a scale to write. Returns these workloads.
    pub async fn lower_maximum(&self, one_of: usize) -> Vec<usize> {
        let all = self.size.autoscalers;
        // The last ones: pods are replaced from the first on.
        let lowered: Vec<usize> = (all - all / one_of..all).collect();
        let lower = async |place: usize| {
            let app = lowered[place];
            let spec = json!({"spec": {"maxReplicas": self.size.pods - 1}});
            self.send("PATCH", &format!("{}/app-{app}", autoscalers(app)), spec).await;
        };
        self.each("Autoscalers with a lower maximum", lowered.len(), lower).await;
        lowered
    }

    /// Takes the last pod of each of these workloads away, as their controllers do once the scale is written.
    pub async fn remove_last_pods(&self, apps: &[usize]) {
        let last = self.size.pods - 1;
        let status = json!({"status": {"replicas": last, "readyReplicas": last,
            "updatedReplicas": last, "availableReplicas": last, "observedGeneration": 2}});
        let remove = async |place: usize| {
            let app = apps[place];
            let of = namespace(app);
            let pod = format!("/api/v1/namespaces/{of}/pods/app-{app}-{last}");
            self.send("DELETE", &pod, json!({"gracePeriodSeconds": 0})).await;
            let path = format!("/apis/apps/v1/namespaces/{of}/deployments/app-{app}/status");
            self.send("PATCH", &path, status.clone()).await;
        };
        self.each("pods fewer", apps.len(), remove).await;
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
    /// A regular expression for the names of all, without `_total`.
    pub names: &'static str,
    /// The label that selects series, and its value for a workload.
    pub label: (&'static str, fn(usize) -> String),
}

impl MetricChoice {
    /// One metric for all, and a value of a label for each workload.
    pub const OWN_LABEL: Self = Self {
        metric: |_| "http_requests_total".to_owned(),
        names: "http_requests",
        label: ("app", |app| format!("app-{app}")),
    };

    /// What the rules of both sides make of the metric of a workload.
    pub fn served(&self, app: usize) -> String {
        (self.metric)(app).replace("_total", "_per_second")
    }

    fn custom_metrics(&self, app: usize) -> Value {
        let (label, value) = self.label;
        json!([{"metricName": (self.metric)(app), "labels": {label: value(app)},
            "averageValue": RATE.to_string()}])
    }
}

/// The path of the HPAs in the namespace of a workload.
fn hpas(app: usize) -> String {
    format!("/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers", namespace(app))
}

/// The path of the Autoscalers in the namespace of a workload.
pub fn autoscalers(app: usize) -> String {
    format!("/apis/plimsoll.dev/v1alpha1/namespaces/{}/autoscalers", namespace(app))
}

/// The workload, as an autoscaler names it.
pub fn target(app: usize) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": format!("app-{app}")})
}
