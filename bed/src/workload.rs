//! Workloads and autoscalers of tests.

use crate::cluster::Cluster;
use crate::wait::eventually;
use plimsoll::k8s::LabelSet;
use plimsoll::promql::name::generated_name;
use serde_json::{Value, json};
use std::time::Duration;

/// The namespace of a test.
pub struct Namespace<'a> {
    /// The cluster that it is in.
    pub cluster: &'a Cluster,
    /// Its name.
    pub name: String,
}

impl<'a> Namespace<'a> {
    /// Creates a namespace.
    pub async fn new(cluster: &'a Cluster, name: &str) -> Self {
        cluster.kubectl(&["create", "namespace", name]).await;
        Self { cluster, name: name.to_owned() }
    }

    /// Creates a Deployment whose pods have the label `app` and expose this text, and waits until
    /// it is ready.
    pub async fn deployment(&self, name: &str, replicas: i32, annotation: &str) {
        self.workload("Deployment", name, replicas, annotation).await;
    }

    /// Creates a workload of a kind of `apps/v1`.
    pub async fn workload(&self, kind: &str, name: &str, replicas: i32, annotation: &str) {
        let annotation = serde_json::to_string(annotation).expect("a string");
        let service = match kind {
            "StatefulSet" => format!("  serviceName: {name}\n  podManagementPolicy: Parallel\n"),
            _ => String::new(),
        };
        let manifest = format!(
            "apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             spec:\n  replicas: {replicas}\n{service}\
             \x20 selector: {{matchLabels: {{app: {name}}}}}\n\
             \x20 template:\n    metadata:\n      labels: {{app: {name}}}\n\
             \x20     annotations: {{bed.plimsoll.dev/metrics: {annotation}}}\n\
             \x20   spec:\n      terminationGracePeriodSeconds: 0\n\
             \x20     containers: [{{name: app, image: fleet, resources: {{requests: {{cpu: 100m}}}}}}]\n",
            namespace = self.name
        );
        self.cluster.apply(&manifest).await;
        self.wait_ready(kind, name, replicas).await;
    }

    /// Waits until a workload has this number of ready replicas.
    pub async fn wait_ready(&self, kind: &str, name: &str, replicas: i32) {
        eventually(
            &format!("{kind} {name} has {replicas} ready"),
            Duration::from_secs(60),
            async || {
                let object = self.get(&kind.to_lowercase(), name).await?;
                let ready = object["status"]["readyReplicas"].as_i64().unwrap_or(0);
                if ready == i64::from(replicas) { Ok(()) } else { Err(format!("{ready} are")) }
            },
        )
        .await;
    }

    /// Creates an HPA for a Deployment, on a counter of its pods; returns the generated name of
    /// the metric.
    pub async fn hpa(&self, workload: &str, counter: &str, average: &str, max: i32) -> String {
        let labels = LabelSet::from([("job".to_owned(), "pods".to_owned())]);
        let metric = generated_name(counter, Some(&labels), &self.name, workload);
        let manifest = format!(
            "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\n\
             metadata: {{name: {workload}, namespace: {namespace}}}\n\
             spec:\n  scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: {workload}}}\n\
             \x20 maxReplicas: {max}\n\
             \x20 metrics: [{{type: Pods, pods: {{metric: {{name: {metric}, selector: {{matchLabels: {{job: pods}}}}}}, target: {{type: AverageValue, averageValue: {average}}}}}}}]\n",
            namespace = self.name
        );
        self.cluster.apply(&manifest).await;
        metric
    }

    /// Creates an Autoscaler for a Deployment, on a metric of its pods.
    pub async fn autoscaler(&self, workload: &str, metric: &str, average: &str, max: i32) {
        self.autoscaler_of(
            "Deployment",
            workload,
            &format!("{{metricName: {metric}, averageValue: {average}}}"),
            max,
        )
        .await;
    }

    /// Creates an Autoscaler with this custom metric (a YAML flow mapping).
    pub async fn autoscaler_of(&self, kind: &str, workload: &str, metric: &str, max: i32) {
        let manifest = format!(
            "apiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\n\
             metadata: {{name: {workload}, namespace: {namespace}}}\n\
             spec:\n  scaleTargetRef: {{apiVersion: apps/v1, kind: {kind}, name: {workload}}}\n\
             \x20 minReplicas: 1\n  maxReplicas: {max}\n  syncPeriodSeconds: 1\n\
             \x20 customMetrics: [{metric}]\n\
             \x20 behavior: {{scaleDown: {{stabilizationWindowSeconds: 5}}}}\n",
            namespace = self.name
        );
        self.cluster.apply(&manifest).await;
    }

    /// Creates or changes an Autoscaler with these other fields of its spec (entries of a YAML flow
    /// mapping).
    pub async fn autoscaler_with(&self, kind: &str, workload: &str, fields: &str) {
        let manifest = format!(
            "apiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\n\
             metadata: {{name: {workload}, namespace: {namespace}}}\n\
             spec: {{scaleTargetRef: {{apiVersion: apps/v1, kind: {kind}, name: {workload}}}, {fields}}}\n",
            namespace = self.name
        );
        self.cluster.apply(&manifest).await;
    }

    /// An object as JSON.
    pub async fn get(&self, resource: &str, name: &str) -> Result<Value, String> {
        let text = match self.path(resource) {
            Some(path) => self.cluster.raw(&format!("{path}/{name}")).await?,
            None => {
                let arguments = ["-n", &self.name, "get", resource, name, "-o", "json"];
                self.cluster.try_kubectl(&arguments).await?
            }
        };
        serde_json::from_str(&text).map_err(|error| error.to_string())
    }

    /// The path of a resource that tests read often: a request is cheaper than kubectl.
    pub fn path(&self, resource: &str) -> Option<String> {
        let (api, plural) = match resource {
            "deployment" => ("apis/apps/v1", "deployments"),
            "statefulset" => ("apis/apps/v1", "statefulsets"),
            "replicaset" => ("apis/apps/v1", "replicasets"),
            "metricrule" => ("apis/plimsoll.dev/v1alpha1", "metricrules"),
            "autoscaler" => ("apis/plimsoll.dev/v1alpha1", "autoscalers"),
            "hpa" => ("apis/autoscaling/v2", "horizontalpodautoscalers"),
            "pod" => ("api/v1", "pods"),
            _ => return None,
        };
        Some(format!("/{api}/namespaces/{}/{plural}", self.name))
    }

    /// Sends a merge patch.
    pub async fn patch(&self, resource: &str, name: &str, patch: &Value) {
        let path = self.path(resource).unwrap_or_else(|| panic!("{resource} has no path here"));
        if let Err(error) = self.cluster.patch(&format!("{path}/{name}"), patch).await {
            panic!("{resource} {name}: {error}: {patch}");
        }
    }

    /// Scales a workload, as `kubectl scale` does.
    pub async fn scale(&self, kind: &str, name: &str, replicas: i32) {
        self.patch(&kind.to_lowercase(), name, &json!({"spec": {"replicas": replicas}})).await;
    }

    /// The desired replicas (`spec.replicas`) of a workload.
    pub async fn replicas(&self, kind: &str, name: &str) -> i64 {
        let object = self.get(&kind.to_lowercase(), name).await.expect("the workload");
        object["spec"]["replicas"].as_i64().unwrap_or(0)
    }

    /// Waits until the desired replicas of a workload are as wanted.
    pub async fn wait_replicas(
        &self,
        kind: &str,
        name: &str,
        within: Duration,
        wanted: impl Fn(i64) -> bool,
    ) -> i64 {
        eventually(&format!("{kind} {name} is scaled"), within, async || {
            let replicas = self.replicas(kind, name).await;
            if wanted(replicas) {
                return Ok(replicas);
            }
            let autoscaler = self.get("autoscaler", name).await;
            let status = autoscaler.map(|autoscaler| autoscaler["status"].to_string());
            Err(format!("it has {replicas}; its autoscaler: {status:?}"))
        })
        .await
    }

    /// Waits until a condition of an Autoscaler is as wanted; returns its message.
    pub async fn wait_condition(
        &self,
        name: &str,
        kind: &str,
        within: Duration,
        wanted: impl Fn(&Value) -> bool,
    ) -> String {
        eventually(&format!("condition {kind} of {name}"), within, async || {
            let object = self.get("autoscaler", name).await?;
            let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let found = conditions.iter().find(|condition| condition["type"] == kind);
            match found {
                Some(condition) if wanted(condition) => {
                    Ok(condition["message"].as_str().unwrap_or_default().to_owned())
                }
                _ => Err(format!("{conditions:?}")),
            }
        })
        .await
    }

    /// The response of the custom metrics API to a path below the namespace.
    pub async fn raw(&self, version: &str, path: &str) -> Result<Value, String> {
        let path = format!("/apis/custom.metrics.k8s.io/{version}/namespaces/{}/{path}", self.name);
        serde_json::from_str(&self.cluster.raw(&path).await?).map_err(|error| error.to_string())
    }
}
