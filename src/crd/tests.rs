//! What the schema refuses by a rule in CEL, the process refuses, too: the installed definition may be
//! older, and `plimsoll check -f` has no CEL. The fields of an HPA are compared with kube-apiserver's verdict by the
//! end-to-end test `validation`.

use super::{AutoscalerSpec, custom_resource_definition};
use serde_json::{Value, json};

/// The rules of a schema and of what is within it, as the path and the message of each.
fn rules(schema: &Value, path: &str, found: &mut Vec<(String, String)>) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        found.push((path.to_owned(), rule["message"].as_str().expect("a message").to_owned()));
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        rules(field, &format!("{path}.{name}"), found);
    }
    if schema["items"].is_object() {
        rules(&schema["items"], &format!("{path}[]"), found);
    }
}

/// For each rule of an Autoscaler's own fields, by its path and the beginning of its message, fields that break it
/// and no other.
fn broken() -> Vec<(&'static str, &'static str, Value)> {
    let custom = |metric: Value| json!({"customMetrics": [metric]});
    let resource = |metric: Value| json!({"resourceMetrics": [metric]});
    let schedule = |schedule: Value| json!({"schedules": [schedule]});
    let native = |mut fields: Value| {
        fields["executor"] = json!("NativeHPA");
        fields
    };
    let metric = "spec.customMetrics[]";
    let window = "spec.schedules[]";
    vec![
        ("spec", "maxReplicas must be", json!({"minReplicas": 11})),
        ("spec", "must specify at least", json!({"minReplicas": 0})),
        ("spec", "fallback, rollouts", native(json!({"rollouts": "Cap"}))),
        (
            "spec",
            "activation, onEmpty",
            native(custom(json!({"metricName": "m", "averageValue": 1, "onEmpty": "Zero"}))),
        ),
        ("spec", "selectionStrategy", native(json!({"selectionStrategy": "OwnerReference"}))),
        ("spec", "mode Preview", native(json!({"mode": "Preview"}))),
        (metric, "must set either", custom(json!({"metricName": "m"}))),
        (metric, "value needs per", custom(json!({"metricName": "m", "value": 1}))),
        (
            metric,
            "activation needs per",
            custom(json!({"metricName": "m", "averageValue": 1, "activation": 1})),
        ),
        (metric, "averageValue must be", custom(json!({"metricName": "m", "averageValue": 0}))),
        (
            metric,
            "value must be",
            custom(json!({"metricName": "m", "per": "Workload", "value": "0"})),
        ),
        (
            "spec.customMetrics[].labels",
            "a label name must have",
            custom(json!({"metricName": "m", "averageValue": 1, "labels": {"": "a"}})),
        ),
        (
            "spec.customMetrics",
            "two metrics have",
            json!({"customMetrics": [{"metricName": "m", "averageValue": 1, "query": "a"},
                {"metricName": "m", "averageValue": 1, "query": "b"}]}),
        ),
        ("spec.resourceMetrics[]", "must set either", resource(json!({"resourceName": "cpu"}))),
        (
            "spec.resourceMetrics[]",
            "targetType Utilization needs",
            resource(
                json!({"resourceName": "cpu", "targetType": "Utilization", "averageValue": 1}),
            ),
        ),
        (
            "spec.resourceMetrics[]",
            "averageValue must be",
            resource(json!({"resourceName": "cpu", "averageValue": "0"})),
        ),
        (window, "start and end", schedule(json!({"name": "a", "minReplicas": 1}))),
        (
            window,
            "minReplicas, maxReplicas or both",
            schedule(json!({"name": "a", "start": "0 8 * * *", "end": "0 9 * * *"})),
        ),
        (
            window,
            "maxReplicas must be",
            schedule(json!({"name": "a", "start": "0 8 * * *", "end": "0 9 * * *",
                "minReplicas": 3, "maxReplicas": 2})),
        ),
    ]
}

fn read(fields: &Value) -> Result<AutoscalerSpec, String> {
    let mut spec = json!({"maxReplicas": 10, "scaleTargetRef":
        {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}});
    for (name, field) in fields.as_object().expect("fields") {
        spec[name] = field.clone();
    }
    AutoscalerSpec::read(spec).map_err(|error| error.to_string())
}

#[test]
fn what_a_rule_of_the_schema_refuses_cannot_be_read() {
    let schema = json!(custom_resource_definition());
    let schema = &schema["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let mut all = Vec::new();
    rules(&schema["properties"]["spec"], "spec", &mut all);
    let hpas = ["spec.metrics", "spec.behavior", "spec.scaleTargetRef"];
    all.retain(|(path, _)| !hpas.iter().any(|field| path.starts_with(field)));
    let broken = broken();
    for (path, message) in &all {
        let is_shown = |one: &&(&str, &str, Value)| one.0 == path && message.starts_with(one.1);
        assert!(broken.iter().any(|one| is_shown(&one)), "{path}: {message}");
    }
    assert_eq!(all.len(), broken.len(), "{all:?}");
    let taken: Vec<&Value> =
        broken.iter().map(|(.., fields)| fields).filter(|fields| read(fields).is_ok()).collect();
    assert!(taken.is_empty(), "{taken:?}");
}

#[test]
fn a_native_hpa_refuses_each_field_that_it_has_not() {
    for (field, value) in [
        ("fallback", json!({"failureThreshold": 3, "replicas": 2})),
        ("rollouts", json!("Hold")),
        ("syncPeriodSeconds", json!(5)),
        ("warmUp", json!({"cpuInitializationPeriodSeconds": 60})),
    ] {
        let mut fields = json!({"executor": "NativeHPA"});
        fields[field] = value;
        let error = read(&fields).expect_err(field);
        assert!(
            error.starts_with(&format!("spec.{field}: needs the executor Embedded")),
            "{error}"
        );
    }
}
