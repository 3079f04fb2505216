//! The `fallback` of a ScaledObject: what stands for a trigger that fails.
//!
//! Source: `GetMetricsWithFallback` of KEDA 2.21.

use super::conversion::{Conversion, SYNC_PERIOD};
use super::trigger::Made;
use serde::Deserialize;
use serde_json::{Value, json};

/// The `fallback` of a ScaledObject.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KedaFallback {
    failure_threshold: i32,
    replicas: i32,
    behavior: Option<String>,
}

/// KEDA's `pollingInterval` if it is not set, in seconds.
const POLLING_INTERVAL: i32 = 30;
/// The longest `failureDurationSeconds`.
const LONGEST: i64 = 86_400;

/// Converts a fallback, given the target of a formula, if there is one. Returns whether KEDA has one for any trigger.
pub fn convert(
    conversion: &mut Conversion,
    fallback: &KedaFallback,
    target: Option<&str>,
    polling_interval: Option<i32>,
    made: &mut Made,
    new: &mut Value,
) -> bool {
    if made.custom.is_empty() {
        conversion
            .note("fallback is left out: there is no Prometheus trigger that it would stand for");
        return false;
    }
    if target.is_some_and(|target| !target.parse::<i64>().is_ok_and(|target| target > 0)) {
        conversion.note("fallback is left out: KEDA reads none where advanced.scalingModifiers.target is not a whole number");
        return false;
    }
    if fallback.failure_threshold < 0 || fallback.replicas < 0 {
        conversion.missing("fallback is left out: its failureThreshold or replicas is below 0, and KEDA has none then");
        return false;
    }
    match fallback.behavior.as_deref().unwrap_or_default() {
        "" | "static" => {
            let interval = polling_interval.unwrap_or(POLLING_INTERVAL);
            static_fallback(conversion, fallback, interval, made);
        }
        "currentReplicas" => conversion.note("fallback.behavior currentReplicas is left out: without a fallback the replicas stay as they are"),
        "currentReplicasIfHigher" => {
            let is_one = made.custom.len() + made.metrics.len() == 1;
            new["fallback"] = json!({
                "failureThreshold": fallback.failure_threshold.max(1),
                "replicas": fallback.replicas,
            });
            match is_one {
                true => conversion.note("fallback.behavior currentReplicasIfHigher: a fallback raises to its replicas at once, not by behavior.scaleUp"),
                false => conversion.missing("fallback.behavior currentReplicasIfHigher has no counterpart beside other triggers: a fallback does not apply while one of them asks for as many replicas as there are"),
            }
        }
        "currentReplicasIfLower" => conversion.missing("fallback.behavior currentReplicasIfLower has no counterpart: a failed metric never asks for the fewer of two numbers here"),
        "scalingModifiers" => conversion.missing("fallback.behavior scalingModifiers has no counterpart: `??` of the formula counts at once"),
        other => conversion.missing(&format!("fallback.behavior {other:?} is not known, so that there is no fallback")),
    }
    true
}

/// KEDA puts `replicas` in the place of each metric that fails.
fn static_fallback(
    conversion: &mut Conversion,
    fallback: &KedaFallback,
    interval: i32,
    made: &mut Made,
) {
    let KedaFallback { failure_threshold: threshold, replicas, .. } = fallback;
    let (interval, period) = (i64::from(interval.max(1)), i64::from(SYNC_PERIOD));
    // It counts its own polls, and what its HPA reads.
    let seconds = i64::from(*threshold).saturating_mul(interval * period);
    let seconds = seconds.saturating_add(interval + period - 1) / (interval + period);
    if seconds > LONGEST {
        conversion.missing(&format!("fallback.failureThreshold {threshold}: the maximum is a day"));
    }
    let seconds = seconds.clamp(1, LONGEST);
    for metric in &mut made.custom {
        // The least that KEDA's HPA has is 1.
        metric["fallback"] =
            json!({"failureDurationSeconds": seconds, "replicas": replicas.max(&1)});
    }
    conversion.note(&format!("fallback becomes that of each metric, after {seconds} s: about as long as {threshold} failures take where KEDA polls every {interval} s and its HorizontalPodAutoscaler reads every {period} s"));
}
