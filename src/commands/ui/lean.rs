//! What the page gets of a decision and of a condition: bounded, as tenants write the texts in them, and without
//! characters that hide something.

use super::error::cut;
use crate::commands::story::{clean, plain};
use kube::core::DynamicObject;
use serde_json::{Map, Value, json};

/// The most metrics of a decision: the one that decides, and the first others.
const MAX_METRICS: usize = 10;
/// What is shown of the basis of a decision: its bounds, and the schedules that they are of.
const BOUNDS: [&str; 4] =
    ["minReplicas", "maxReplicas", "minReplicasSchedule", "maxReplicasSchedule"];
/// The most constraints of a decision, and conditions of an autoscaler.
const MAX_ITEMS: usize = 30;
/// The longest text of a decision, and message of a condition, in characters.
const MAX_TEXT: usize = 1_000;

/// A decision with what the page shows of it, as JSON.
pub fn decision(decision: DynamicObject) -> String {
    let mut shown = match decision.data {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    shown.remove("kind");
    shown.remove("apiVersion");
    shown.insert(
        "metadata".to_owned(),
        json!({"name": decision.metadata.name, "namespace": decision.metadata.namespace}),
    );
    if let Some(Value::Object(basis)) = shown.get_mut("basis") {
        basis.retain(|name, _| BOUNDS.contains(&&**name));
    }
    if let Some(Value::Array(metrics)) = shown.get_mut("metrics")
        && metrics.len() > MAX_METRICS
    {
        let left_out = metrics.len() - MAX_METRICS;
        // The sort is stable: the others stay in their order.
        metrics.sort_by_key(|metric| metric["status"] != "Used");
        metrics.truncate(MAX_METRICS);
        shown.insert("metricsLeftOut".to_owned(), left_out.into());
    }
    let mut shown = Value::Object(shown);
    bound(&mut shown);
    clean(&mut shown);
    shown.to_string()
}

/// Cuts texts and lists.
fn bound(value: &mut Value) {
    match value {
        Value::String(text) if text.len() > MAX_TEXT => *text = cut(text, MAX_TEXT),
        Value::Array(items) => {
            items.truncate(MAX_ITEMS);
            items.iter_mut().for_each(bound);
        }
        Value::Object(fields) => fields.values_mut().for_each(bound),
        _ => {}
    }
}

/// The conditions of an autoscaler.
pub fn conditions(status: &Value) -> Vec<Value> {
    let all = status["conditions"].as_array().into_iter().flatten();
    all.take(MAX_ITEMS).map(condition).collect()
}

fn condition(condition: &Value) -> Value {
    let text = |field: &str| {
        plain(&cut(condition[field].as_str().unwrap_or_default(), MAX_TEXT)).into_owned()
    };
    json!({
        "type": text("type"),
        "status": text("status"),
        "reason": text("reason"),
        "message": text("message"),
        "lastTransitionTime": text("lastTransitionTime"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(data: Value) -> Value {
        let object = json!({"apiVersion": "decisions.plimsoll.dev/v1alpha1", "kind": "Decision",
            "metadata": {"name": "web.autoscaler.1", "namespace": "shop"}});
        let mut object: DynamicObject = serde_json::from_value(object).unwrap();
        object.data = data;
        serde_json::from_str(&decision(object)).unwrap()
    }

    #[test]
    fn a_decision_of_many_long_metrics_is_small_and_has_the_one_that_decides() {
        let metric = |at: usize| {
            let status = if at == 700 { "Used" } else { "Invalid" };
            json!({"name": format!("m{at}"), "status": status, "message": "x".repeat(5_000)})
        };
        let metrics: Vec<_> = (0..1_000).map(metric).collect();
        let basis = json!({"minReplicas": 1, "maxReplicas": 9, "minReplicasSchedule": "day",
            "metrics": metrics});
        let shown = shown(json!({"metrics": metrics, "basis": basis, "desiredReplicas": 3}));
        assert!(shown.to_string().len() < 40_000, "{}", shown.to_string().len());
        let names: Vec<_> =
            shown["metrics"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
        assert_eq!((names.len(), names[0], names[1]), (MAX_METRICS, &json!("m700"), &json!("m0")));
        assert_eq!((&shown["metricsLeftOut"], &shown["desiredReplicas"]), (&json!(990), &json!(3)));
        let bounds = json!({"minReplicas": 1, "maxReplicas": 9, "minReplicasSchedule": "day"});
        assert_eq!(shown["basis"], bounds);
        assert_eq!(shown["metadata"], json!({"name": "web.autoscaler.1", "namespace": "shop"}));
    }

    #[test]
    fn no_text_of_a_tenant_hides_or_turns_something() {
        let text = "asks for \u{202e}01\u{200b}";
        let shown = shown(json!({"message": text, "metrics": [{"query": text}]}));
        for one in [&shown["message"], &shown["metrics"][0]["query"]] {
            assert_eq!(one, "asks for \\u{202e}01\\u{200b}");
        }
        let conditions = conditions(&json!({"conditions": [{"message": text}]}));
        assert_eq!(conditions[0]["message"], "asks for \\u{202e}01\\u{200b}");
        assert_eq!(
            super::conditions(&json!({"conditions": vec![json!({}); 1_000]})).len(),
            MAX_ITEMS
        );
    }
}
