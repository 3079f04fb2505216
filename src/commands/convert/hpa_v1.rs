//! What an `autoscaling/v1` HorizontalPodAutoscaler has in annotations, as it has no fields for it: metrics other than a
//! utilization of CPU, and the behavior.
//!
//! Sources: `autoscaling/v1` of Kubernetes 1.36, and how kube-apiserver converts it.

use super::fields::check_annotation;
use crate::yaml::without_values;
use serde_json::{Map, Value, json};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";

/// The metrics of the annotations, as `autoscaling/v2` has them.
///
/// # Errors
/// If they can't be read: kube-apiserver ignores them then.
pub fn metrics(annotations: &Value) -> Result<Vec<Value>, String> {
    let wrong = |why: &str| format!("metadata.annotations.{METRICS}: {why}");
    let Some(text) = annotations[METRICS].as_str() else { return Ok(Vec::new()) };
    let all: Vec<Value> =
        serde_json::from_str(text).map_err(|error| wrong(&without_values(&error.to_string())))?;
    let all = all.iter().enumerate();
    let all = all.map(|(index, one)| metric(one).map_err(|why| wrong(&format!("[{index}]{why}"))));
    let all = all.collect::<Result<Vec<_>, _>>()?;
    check_annotation(METRICS, "metrics", &json!(all))?;
    Ok(all)
}

/// The behavior of the annotations, as `autoscaling/v2` has it.
///
/// # Errors
/// If it can't be read.
pub fn behavior(annotations: &Value) -> Result<Option<Value>, String> {
    let Some(text) = annotations[BEHAVIOR].as_str() else { return Ok(None) };
    let read = serde_json::from_str::<Map<String, Value>>(text);
    let behavior = read.map_err(|error| {
        format!("metadata.annotations.{BEHAVIOR}: {}", without_values(&error.to_string()))
    })?;
    let behavior = renamed(&Value::Object(behavior));
    check_annotation(BEHAVIOR, "behavior", &behavior)?;
    Ok(Some(behavior).filter(|behavior| *behavior != json!({})))
}

/// The same with fields that begin with a small letter, and without those that are null: kube-apiserver writes the
/// names of its own Go type.
fn renamed(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(_, field)| !field.is_null());
            let fields = fields.map(|(name, field)| {
                let mut name = name.clone();
                // A character that is no ASCII may be longer than a byte.
                if let Some(first) = name.get_mut(..1) {
                    first.make_ascii_lowercase();
                }
                (name, renamed(field))
            });
            Value::Object(fields.collect())
        }
        Value::Array(items) => items.iter().map(renamed).collect(),
        other => other.clone(),
    }
}

/// One metric.
fn metric(old: &Value) -> Result<Value, String> {
    let kind = old["type"].as_str().unwrap_or_default();
    let (field, known): (_, &[&str]) = match kind {
        "Pods" => ("pods", &["metricName", "selector", "targetAverageValue"]),
        "Object" => {
            ("object", &["averageValue", "metricName", "selector", "target", "targetValue"])
        }
        "External" => {
            ("external", &["metricName", "metricSelector", "targetAverageValue", "targetValue"])
        }
        "Resource" => ("resource", &["name", "targetAverageUtilization", "targetAverageValue"]),
        "ContainerResource" => (
            "containerResource",
            &["container", "name", "targetAverageUtilization", "targetAverageValue"],
        ),
        _ => return Err(format!(".type: {kind:?} is no type of a metric")),
    };
    let source =
        old[field].as_object().ok_or_else(|| format!(".{field}: missing, and required"))?;
    if let Some(name) = source.keys().find(|name| !known.contains(&name.as_str())) {
        return Err(format!(".{field}.{name}: expected one of {}", known.join(", ")));
    }
    let of = |name: &str| source.get(name).filter(|value| !value.is_null());
    let mut new = json!({});
    let mut target = json!({});
    for (from, to) in [
        ("targetAverageUtilization", "averageUtilization"),
        ("targetAverageValue", "averageValue"),
        ("averageValue", "averageValue"),
        ("targetValue", "value"),
    ] {
        // An Object's value is written in any case, as "0" beside an average.
        if let Some(value) = of(from).filter(|value| from != "targetValue" || **value != "0") {
            target[to] = value.clone();
        }
    }
    let is_set = |name: &str| target.get(name).is_some();
    target["type"] = json!(match (is_set("averageUtilization"), is_set("averageValue")) {
        (true, _) => "Utilization",
        (_, true) => "AverageValue",
        (false, false) => "Value",
    });
    new["target"] = target;
    if let Some(name) = of("metricName") {
        new["metric"] = json!({"name": name});
        if let Some(selector) = of("selector").or_else(|| of("metricSelector")) {
            new["metric"]["selector"] = selector.clone();
        }
    }
    for (from, to) in [("name", "name"), ("container", "container"), ("target", "describedObject")]
    {
        if let Some(value) = of(from) {
            new[to] = value.clone();
        }
    }
    Ok(json!({"type": kind, field: new}))
}

#[cfg(test)]
mod tests {
    use super::super::tests::converted;
    use super::*;

    fn hpa(annotations: &Value, more: &str) -> super::super::Converted {
        converted(&format!(
            "{{apiVersion: autoscaling/v1, kind: HorizontalPodAutoscaler, metadata: {{name: a, namespace: shop, annotations: {annotations}}}, \
             spec: {{scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: a}}, maxReplicas: 3{more}}}}}"
        ))
    }

    /// As kube-apiserver writes them: otherwise it would scale on 80 % CPU.
    #[test]
    fn metrics_and_behavior_of_annotations_are_kept() {
        let metrics = json!([
            {"type": "Pods", "pods": {"metricName": "orders", "targetAverageValue": "10"}},
            {"type": "Object", "object": {"target": {"kind": "Service", "name": "web", "apiVersion": "v1"},
                "metricName": "hits", "targetValue": "7", "selector": {"matchLabels": {"a": "b"}}}},
            {"type": "Object", "object": {"target": {"kind": "Service", "name": "web", "apiVersion": "v1"},
                "metricName": "hits", "targetValue": "0", "averageValue": "5"}},
            {"type": "External", "external": {"metricName": "queue", "metricSelector": {"matchLabels": {"q": "mail"}},
                "targetAverageValue": "3"}},
            {"type": "Resource", "resource": {"name": "memory", "targetAverageUtilization": 60}},
            {"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "app", "targetAverageValue": "1"}},
        ]);
        let behavior = json!({"ScaleUp": null, "ScaleDown": {"StabilizationWindowSeconds": 900, "SelectPolicy": null,
            "Policies": [{"Type": "Pods", "Value": 1, "PeriodSeconds": 60}], "Tolerance": null}});
        let made = hpa(
            &json!({METRICS: metrics.to_string(), BEHAVIOR: behavior.to_string()}),
            ", targetCPUUtilizationPercentage: 70",
        );
        assert_eq!(made.errors, [""; 0]);
        let object = &made.objects[0];
        let service = json!({"kind": "Service", "name": "web", "apiVersion": "v1"});
        assert_eq!(
            object["spec"]["metrics"],
            json!([
                {"type": "Pods", "pods": {"metric": {"name": "orders"},
                    "target": {"type": "AverageValue", "averageValue": "10"}}},
                {"type": "Object", "object": {"describedObject": service, "target": {"type": "Value", "value": "7"},
                    "metric": {"name": "hits", "selector": {"matchLabels": {"a": "b"}}}}},
                {"type": "Object", "object": {"describedObject": service, "metric": {"name": "hits"},
                    "target": {"type": "AverageValue", "averageValue": "5"}}},
                {"type": "External", "external": {"metric": {"name": "queue", "selector": {"matchLabels": {"q": "mail"}}},
                    "target": {"type": "AverageValue", "averageValue": "3"}}},
                {"type": "Resource", "resource": {"name": "memory",
                    "target": {"type": "Utilization", "averageUtilization": 60}}},
                {"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "app",
                    "target": {"type": "AverageValue", "averageValue": "1"}}},
                {"type": "Resource", "resource": {"name": "cpu",
                    "target": {"type": "Utilization", "averageUtilization": 70}}},
            ])
        );
        assert_eq!(
            object["spec"]["behavior"],
            json!({"scaleDown": {"stabilizationWindowSeconds": 900,
                "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]}})
        );
        assert_eq!(object["metadata"].get("annotations"), None);
        // None of them is Plimsoll's own.
        let notes = made.notes.join("\n");
        assert!(
            notes.contains("spec.metrics[0] (orders)") && notes.contains("[3] (queue)"),
            "{notes}"
        );
        assert!(notes.contains("a rule, a MetricRule or passOn"), "{notes}");
        let made = hpa(&json!({}), "");
        assert!(!made.notes.join("\n").contains("passOn"), "{:?}", made.notes);
    }

    #[test]
    fn annotations_that_can_not_be_read_are_an_error() {
        for (name, text, expected) in [
            (METRICS, "[{", "/metrics: "),
            (METRICS, r#"[{"type": "Pod"}]"#, r#"/metrics: [0].type: "Pod""#),
            (METRICS, r#"[{"type": "Pods"}]"#, "/metrics: [0].pods: missing"),
            (
                METRICS,
                r#"[{"type": "Pods", "pods": {"metric": {"name": "a"}}}]"#,
                "/metrics: [0].pods.metric: expected one of metricName",
            ),
            (BEHAVIOR, "[]", "/behavior: "),
        ] {
            let made = hpa(&json!({name: text}), "");
            assert!(made.objects.is_empty() && made.errors.len() == 1, "{made:?}");
            assert!(made.errors[0].contains(expected), "{:?}", made.errors);
        }
        let made = hpa(&json!({BEHAVIOR: r#"{"é": 1, "": 2}"#}), "");
        assert!(made.errors[0].contains(": expected one of scaleDown, scaleUp"), "{made:?}");
    }
}
