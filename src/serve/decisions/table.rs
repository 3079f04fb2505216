//! Decisions as a table, as `kubectl get` shows them.

use super::super::error::ApiError;
use crate::clock::WallClock;
use jiff::Timestamp;
use serde_json::{Value, json};

/// What the row of a decision has of it, as `includeObject` asks for.
///
/// # Errors
/// 400 if that is none of `None`, `Metadata` and `Object`.
pub fn object(include_object: &str) -> Result<fn(&Value) -> Value, ApiError> {
    match include_object {
        "" | "Metadata" => Ok(metadata),
        "Object" => Ok(Clone::clone),
        "None" => Ok(|_| Value::Null),
        other => Err(ApiError::bad_request(format!(
            "includeObject: {other:?} is not one of None, Metadata, Object"
        ))),
    }
}

/// The function that makes the table of one decision.
///
/// # Errors
/// As [`object`].
pub fn whole(include_object: &str) -> Result<fn(&Value) -> Value, ApiError> {
    match include_object {
        "" | "Metadata" => Ok(|decision| of(decision, metadata, columns())),
        "Object" => Ok(|decision| of(decision, Clone::clone, columns())),
        other => object(other)
            .map(|_| (|decision| of(decision, |_| Value::Null, columns())) as fn(&Value) -> Value),
    }
}

fn metadata(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": object["metadata"],
    })
}

/// The table of one decision.
pub fn of(decision: &Value, object: fn(&Value) -> Value, columns: Value) -> Value {
    let rows = [row(decision, object)];
    let metadata = json!({"resourceVersion": decision["metadata"]["resourceVersion"]});
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": columns,
        "rows": rows,
    })
}

/// The columns.
pub fn columns() -> Value {
    let column = |name: &str, of: &str, format: &str, priority: i32, description: &str| json!({"name": name, "type": of, "format": format, "priority": priority, "description": description});
    json!([
        column("Name", "string", "name", 0, "Name of the decision: AUTOSCALER.KIND.SEQUENCE"),
        column("Autoscaler", "string", "", 0, "Name of the autoscaler"),
        column("From", "string", "", 0, "Replicas before the decision"),
        column("To", "string", "", 0, "Replicas that were decided on"),
        column("Reason", "string", "", 0, "Why these replicas"),
        column("Metric", "string", "", 0, "The metric that decided: its value and target"),
        column("Count", "integer", "", 0, "Number of equal decisions"),
        column("Age", "string", "", 0, "Time since the last of them"),
        column("Kind", "string", "", 1, "Kind of the autoscaler"),
        column("Recommended", "string", "", 1, "Replicas that the metrics proposed"),
        column("Carried-Out", "string", "", 1, "Whether the scale was written, or why not"),
        column("Constraints", "string", "", 1, "What changed the recommendation"),
    ])
}

/// A row.
pub fn row(decision: &Value, object: fn(&Value) -> Value) -> Value {
    let labels = &decision["metadata"]["labels"];
    let number = |field: &str| match decision[field].as_i64() {
        Some(number) => number.to_string(),
        None => "<unknown>".to_owned(),
    };
    let constraints = decision["constraints"].as_array().map(Vec::as_slice).unwrap_or_default();
    let constraints: Vec<&str> =
        constraints.iter().filter_map(|constraint| constraint["type"].as_str()).collect();
    json!({
        "cells": [
            decision["metadata"]["name"],
            labels["plimsoll.dev/autoscaler"],
            number("currentReplicas"),
            number("desiredReplicas"),
            decision["reason"],
            metric(decision),
            decision["count"],
            age(decision["lastTime"].as_str().unwrap_or_default()),
            labels["plimsoll.dev/kind"],
            number("recommendedReplicas"),
            decision["carriedOut"]["reason"],
            if constraints.is_empty() { "<none>".to_owned() } else { constraints.join(",") },
        ],
        "object": object(decision),
    })
}

/// The metric that decided; if none did, the first that failed.
fn metric(decision: &Value) -> String {
    let metrics = decision["metrics"].as_array().map(Vec::as_slice).unwrap_or_default();
    let with = |status: &str| metrics.iter().find(|metric| metric["status"] == status);
    let Some(metric) = with("Used").or(with("Invalid")).or(metrics.first()) else {
        return "<none>".to_owned();
    };
    let text = |field: &str| metric[field].as_str().unwrap_or("<unknown>");
    format!("{} {}/{}", text("name"), text("value"), text("target"))
}

/// How long ago a time is. Source: `HumanDuration` of k8s.io/apimachinery, to the larger unit alone.
fn age(time: &str) -> String {
    let Ok(time) = time.parse::<Timestamp>() else { return "<unknown>".to_owned() };
    let seconds = (WallClock::default().timestamp().as_second() - time.as_second()).max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..10_800 => format!("{}m", seconds / 60),
        10_800..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}
