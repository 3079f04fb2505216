//! Fields of a ScaledObject that KEDA does not know: one that is misspelled says nothing to it.
//!
//! Sources: the ScaledObject specification, and the Prometheus, Cron, CPU and Memory scalers of KEDA 2.21.

use super::conversion::Conversion;
use serde_json::Value;

const SPEC: &[&str] = &[
    "advanced",
    "cooldownPeriod",
    "fallback",
    "idleReplicaCount",
    "initialCooldownPeriod",
    "maxReplicaCount",
    "minReplicaCount",
    "pollingInterval",
    "scaleTargetRef",
    "triggers",
];
const TARGET: &[&str] = &["apiVersion", "envSourceContainerName", "kind", "name"];
const FALLBACK: &[&str] = &["behavior", "failureThreshold", "replicas"];
const ADVANCED: &[&str] =
    &["horizontalPodAutoscalerConfig", "restoreToOriginalReplicaCount", "scalingModifiers"];
const HPA_CONFIG: &[&str] = &["behavior", "name"];
const MODIFIERS: &[&str] = &["activationTarget", "formula", "metricType", "target"];
const TRIGGER: &[&str] =
    &["authenticationRef", "metadata", "metricType", "name", "type", "useCachedMetrics"];
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

/// Notes each unknown field of the spec of a ScaledObject.
pub fn note_unknown(spec: &Value, conversion: &mut Conversion) {
    let mut note = |path: &str, object: &Value, known: &[&str]| {
        let names = object.as_object().into_iter().flatten().map(|(name, _)| name);
        for name in names.filter(|name| !known.contains(&name.as_str())) {
            let known = known.join(", ");
            conversion.fault(&format!(
                "{path}.{}: KEDA knows no such field: expected one of {known}",
                name.escape_debug()
            ));
        }
    };
    let advanced = &spec["advanced"];
    for (path, object, known) in [
        ("spec", spec, SPEC),
        ("spec.scaleTargetRef", &spec["scaleTargetRef"], TARGET),
        ("spec.fallback", &spec["fallback"], FALLBACK),
        ("spec.advanced", advanced, ADVANCED),
        (
            "spec.advanced.horizontalPodAutoscalerConfig",
            &advanced["horizontalPodAutoscalerConfig"],
            HPA_CONFIG,
        ),
        ("spec.advanced.scalingModifiers", &advanced["scalingModifiers"], MODIFIERS),
    ] {
        note(path, object, known);
    }
    for (index, trigger) in spec["triggers"].as_array().into_iter().flatten().enumerate() {
        let path = format!("spec.triggers[{index}]");
        note(&path, trigger, TRIGGER);
        let known = match trigger["type"].as_str() {
            Some("prometheus") => PROMETHEUS,
            Some("cron") => CRON,
            Some("cpu" | "memory") => RESOURCE,
            _ => continue,
        };
        note(&format!("{path}.metadata"), &trigger["metadata"], known);
    }
}
