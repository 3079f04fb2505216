//! How many bytes the index takes of each pod, workload and autoscaler (docs/growth.md). `--nocapture` prints them.

use super::autoscaler_ref::ObjectKey;
use super::index::Index;
use super::records::Workload;
use super::{read, workload};
use serde_json::{Value, json};

const WORKLOADS: usize = 1_000;
const PODS: usize = 10;

fn key(workload: usize, name: &str) -> ObjectKey {
    ObjectKey { namespace: format!("team-{}", workload % 10), name: name.to_owned() }
}

/// The bytes that each of so many objects takes in an index that has `before`.
fn bytes_of_each(count: usize, index: &mut Index, mut put: impl FnMut(&mut Index, usize)) -> i64 {
    // Objects are read from text, as in a watch, and what they were read from is dropped.
    let taken = allocation_counter::measure(|| (0..count).for_each(|number| put(index, number)));
    taken.bytes_current / count as i64
}

fn read_as<T: serde::de::DeserializeOwned>(object: &Value) -> T {
    serde_json::from_str(&object.to_string()).expect("an object")
}

fn pod(number: usize) -> (ObjectKey, Value) {
    let (app, pod) = (number / PODS, number % PODS);
    let key = key(app, &format!("app-{app}-7c5d8f9b64-{pod:05}"));
    let labels = json!({"app": format!("app-{app}"), "pod-template-hash": "75c5d6f8b9"});
    let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "controller": true,
        "name": format!("app-{app}-7c5d8f9b64"), "uid": format!("uid-{app}")});
    let time = "2026-01-01T00:00:00Z";
    let containers = json!([{"name": "app", "resources": {"requests": {"cpu": "100m"}}}]);
    let metadata = json!({"name": key.name, "labels": labels, "ownerReferences": [owner]});
    let status = json!({"phase": "Running", "startTime": time, "conditions": [
        {"type": "Ready", "status": "True", "lastTransitionTime": time}]});
    let object =
        json!({"metadata": metadata, "spec": {"containers": containers}, "status": status});
    (key, object)
}

fn deployment(app: usize) -> Value {
    let counts = json!({"replicas": PODS, "updatedReplicas": PODS, "readyReplicas": PODS});
    json!({"metadata": {"name": format!("app-{app}"), "generation": 1}, "status": counts,
        "spec": {"replicas": PODS, "selector": {"matchLabels": {"app": format!("app-{app}")}}}})
}

fn autoscaler(app: usize) -> Value {
    let name = format!("app-{app}");
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": name});
    let metrics = json!([{"metricName": "http_requests_total", "labels": {"app": name},
        "averageValue": "10"}]);
    let spec = json!({"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 20,
        "customMetrics": metrics});
    let condition = |kind: &str| {
        json!({"type": kind, "status": "True", "reason": "ReadyForNewScale",
            "message": "recommended size matches current size of the workload in this sentence",
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    let kinds = ["AbleToScale", "ScalingActive", "ScalingLimited", "Ready"];
    let mut conditions = kinds.map(condition).to_vec();
    let mut warning = condition("ConfigurationWarning");
    warning["message"] = format!("the selector app={name} of the target selects others").into();
    conditions.push(warning);
    json!({"metadata": {"name": name, "namespace": format!("team-{}", app % 10), "generation": 1,
            "uid": "0b6e4f0a-51a9-4a1e-9d7c-2f8f0c9c3c11"},
        "spec": spec, "status": {"currentReplicas": PODS, "desiredReplicas": PODS,
            "conditions": conditions}})
}

#[test]
fn the_index_takes_few_bytes_of_each_object() {
    let mut index = Index::default();
    let pod = bytes_of_each(WORKLOADS * PODS, &mut index, |index, number| {
        let (key, object) = pod(number);
        index.put_pod(key, read::pod(read_as(&object)));
    });
    let workload = bytes_of_each(WORKLOADS, &mut index, |index, app| {
        let scale = workload::scale(read_as(&deployment(app))).expect("a scale");
        index.put_scale(Workload::Deployment, key(app, &format!("app-{app}")), scale);
    });
    let autoscaler = bytes_of_each(WORKLOADS, &mut index, |index, app| {
        let record = read::autoscaler(read_as(&autoscaler(app)), None);
        index.put_autoscaler(key(app, &format!("app-{app}")), record);
    });
    // What conditions say is shared with other tests, which may make its table grow.
    println!("a pod {pod}, a workload {workload}, an autoscaler {autoscaler} bytes");
    for (what, bytes, most) in
        [("pod", pod, 210), ("workload", workload, 300), ("autoscaler", autoscaler, 2_400)]
    {
        assert!(bytes <= most, "{what}: {bytes}");
    }
}
