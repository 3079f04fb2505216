//! The objects with recommended specs, of the kind that they have.

use crate::commands::backtest::{Subject, carries};
use serde_json::Value;
use std::collections::BTreeMap;

/// The fields that a HorizontalPodAutoscaler has, too.
const SHARED: [&str; 4] = ["minReplicas", "maxReplicas", "metrics", "behavior"];

/// The object with another spec: an Autoscaler, or an HPA that stays one if it can have what is recommended.
pub fn object(subject: &Subject, spec: &Value, carries: &BTreeMap<String, f64>) -> Value {
    let mut object = match is_kept(subject, spec) {
        true => subject.written.clone(),
        false => subject.object.clone(),
    };
    match subject.kind == "HorizontalPodAutoscaler" && is_kept(subject, spec) {
        true => {
            for field in SHARED {
                match spec.get(field) {
                    Some(value) => object["spec"][field] = value.clone(),
                    None => {
                        let _ = object["spec"].as_object_mut().map(|own| own.remove(field));
                    }
                }
            }
        }
        false => object["spec"] = spec.clone(),
    }
    object["metadata"]["annotations"][carries::ANNOTATION] = carries::text(carries).into();
    object
}

/// Whether the object stays of its kind.
pub fn is_kept(subject: &Subject, spec: &Value) -> bool {
    let has = |field: &str| spec[field].as_array().is_some_and(|some| !some.is_empty());
    match &*subject.kind {
        "Autoscaler" => true,
        "HorizontalPodAutoscaler" => {
            subject.written["apiVersion"] == "autoscaling/v2"
                && !["schedules", "customMetrics", "resourceMetrics"].into_iter().any(has)
        }
        _ => false,
    }
}
