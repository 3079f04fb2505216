//! The fields of HorizontalPodAutoscalers and ScaledObjects, by which kube-apiserver takes them.
//!
//! Sources: `autoscaling/v1` and `autoscaling/v2` of Kubernetes 1.36; the definition of ScaledObjects, and the
//! Prometheus, Cron, CPU and Memory scalers of KEDA 2.21.

use super::super::check_schema::{self, Faults, Unknown};
use serde_json::{Value, json};
use std::sync::LazyLock;

/// Where a ScaledObject has the behavior of its HPA.
const BEHAVIOR: &str = "spec.advanced.horizontalPodAutoscalerConfig.behavior";
/// The fields of an Autoscaler that an HPA has, too.
const OF_HPA: [&str; 5] = ["behavior", "maxReplicas", "metrics", "minReplicas", "scaleTargetRef"];
/// Of these, those that it had in `autoscaling/v1`.
const OF_HPA_V1: [&str; 3] = ["maxReplicas", "minReplicas", "scaleTargetRef"];
const CRON: &[&str] = &["desiredReplicas", "end", "start", "timezone"];
const RESOURCE: &[&str] = &["containerName", "type", "value"];
/// With those of logins, and those of earlier versions.
const PROMETHEUS: &[&str] = &[
    "activationThreshold",
    "authModes",
    "awsRegion",
    "azureManagedPrometheus",
    "cortexOrgID",
    "credentialsFromEnv",
    "credentialsFromEnvFile",
    "customHeaders",
    "identityOwner",
    "ignoreNullValues",
    "metricName",
    "namespace",
    "query",
    "queryParameters",
    "serverAddress",
    "threshold",
    "timeout",
    "unsafeSsl",
];

static HPA_V1: LazyLock<Value> = LazyLock::new(|| {
    let mut schema = of_autoscaler(&OF_HPA_V1);
    schema["properties"]["targetCPUUtilizationPercentage"] =
        json!({"type": "integer", "minimum": 1});
    schema
});
static HPA_V2: LazyLock<Value> = LazyLock::new(|| of_autoscaler(&OF_HPA));
static SCALED_OBJECT: LazyLock<Value> = LazyLock::new(scaled_object);

/// The schema of the spec of an Autoscaler, with these of its fields.
fn of_autoscaler(names: &[&str]) -> Value {
    let mut schema = check_schema::schema("Autoscaler")["properties"]["spec"].clone();
    if let Some(properties) = schema["properties"].as_object_mut() {
        properties.retain(|name, _| names.contains(&name.as_str()));
    }
    schema
}

fn scaled_object() -> Value {
    let [text, boolean, any] = [json!({"type": "string"}), json!({"type": "boolean"}), json!({})];
    let number = json!({"type": "integer", "minimum": i32::MIN, "maximum": i32::MAX});
    let object = |required: &[&str], properties: Value| json!({"type": "object", "required": required, "properties": properties});
    let map = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let target =
        json!({"apiVersion": text, "envSourceContainerName": text, "kind": text, "name": text});
    let fallback = json!({"behavior": text, "failureThreshold": number, "replicas": number});
    let hpa = json!({"behavior": HPA_V2["properties"]["behavior"], "name": text});
    let modifiers =
        json!({"activationTarget": any, "formula": any, "metricType": any, "target": any});
    let advanced = json!({
        "horizontalPodAutoscalerConfig": object(&[], hpa),
        "restoreToOriginalReplicaCount": boolean,
        "scalingModifiers": object(&[], modifiers),
    });
    let trigger = json!({
        "authenticationRef": map,
        "metadata": map,
        "metricType": text,
        "name": text,
        "type": text,
        "useCachedMetrics": boolean,
    });
    let spec = json!({
        "advanced": object(&[], advanced),
        "cooldownPeriod": number,
        "fallback": object(&["failureThreshold", "replicas"], fallback),
        "idleReplicaCount": number,
        "initialCooldownPeriod": number,
        "maxReplicaCount": number,
        "minReplicaCount": number,
        "pollingInterval": number,
        "scaleTargetRef": object(&["name"], target),
        "triggers": {"type": "array", "items": object(&["type"], trigger)},
    });
    object(&["scaleTargetRef", "triggers"], spec)
}

/// Checks the spec of an HPA, of `autoscaling/v1` or `autoscaling/v2`.
///
/// # Errors
/// Why kubectl apply refuses it.
pub fn check(version: &str, spec: &Value) -> Result<(), String> {
    let schema = if version == "autoscaling/v1" { &HPA_V1 } else { &HPA_V2 };
    refused(check_schema::check_part(schema, spec, "spec"), |one| one.to_string())
}

/// The first of these faults; an unknown field in these words.
fn refused(faults: Faults, words: impl Fn(Unknown) -> String) -> Result<(), String> {
    let unknown = faults.unknown.into_iter().map(words);
    faults.invalid.into_iter().chain(unknown).next().map_or(Ok(()), Err)
}

/// Checks what an annotation of an HPA of `autoscaling/v1` has in the place of a field of `autoscaling/v2`.
///
/// # Errors
/// Why it can't have that: kube-apiserver drops it.
pub fn check_annotation(annotation: &str, field: &str, value: &Value) -> Result<(), String> {
    let path = format!("metadata.annotations.{annotation}");
    let faults = check_schema::check_part(&HPA_V2["properties"][field], value, &path);
    refused(faults, |Unknown { path, known }| format!("{path}: expected one of {known}"))
}

/// The spec of a ScaledObject without the fields that KEDA does not know, and these: one that is misspelled says nothing
/// to it. One that is to be tried is meant to have what its behavior says.
///
/// # Errors
/// Why kube-apiserver refuses it.
pub fn of_scaled_object(mut spec: Value, is_tried: bool) -> Result<(Value, Vec<Unknown>), String> {
    let faults = check_schema::check_part(&SCALED_OBJECT, &spec, "spec");
    if let Some(why) = faults.invalid.into_iter().next() {
        return Err(why);
    }
    let mut unknown = faults.unknown;
    let of_behavior = unknown.iter().find(|one| one.path.starts_with(BEHAVIOR));
    if let Some(one) = of_behavior.filter(|_| is_tried) {
        return Err(one.to_string());
    }
    for (index, trigger) in spec["triggers"].as_array().into_iter().flatten().enumerate() {
        let known = match trigger["type"].as_str() {
            Some("prometheus") => PROMETHEUS,
            Some("cron") => CRON,
            Some("cpu" | "memory") => RESOURCE,
            _ => continue,
        };
        let names = trigger["metadata"].as_object().into_iter().flatten().map(|(name, _)| name);
        unknown.extend(names.filter(|name| !known.contains(&name.as_str())).map(|name| Unknown {
            path: format!("spec.triggers[{index}].metadata.{}", name.escape_debug()),
            known: known.join(", "),
        }));
    }
    check_schema::prune(&SCALED_OBJECT, &mut spec);
    Ok((spec, unknown))
}
