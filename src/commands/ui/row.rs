//! What the list shows of an autoscaler, read from the object as kube-apiserver sends it, whichever version of
//! the definition is installed.

use super::error::cut;
use super::swings::{AHEAD_MS, FLAPPING};
use crate::commands::story::plain;
use crate::time::UnixMillis;
use crate::watch::AutoscalerKind;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

/// Whether an autoscaler needs a person, in the order in which it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// No decision can be made, or a fallback applies.
    Failing,
    /// It wants maxReplicas, or more.
    AtMax,
    /// Its replicas turned back several times within the last hour.
    Flapping,
    /// Its replicas change, or did so a short time ago.
    Moving,
    /// No decision was made yet.
    Waiting,
    /// It is paused or frozen.
    Paused,
    /// None of these.
    Steady,
}

/// How long after the last change of the replicas an autoscaler counts as moving.
const MOVING_MS: i64 = 120_000;
/// The longest texts of a row, in characters.
const MAX_TEXT: usize = 300;
/// The metrics of a row: as many as fit.
const MAX_METRICS: usize = 20;

/// What is read of an autoscaler.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Kind and name of the scale target.
    pub target: String,
    /// What the scale asked for.
    pub current: Option<i32>,
    /// What was decided.
    pub desired: Option<i32>,
    /// The bounds now.
    pub min: i32,
    pub max: i32,
    /// Value and target of each metric.
    pub metrics: String,
    /// When the replicas were last changed.
    pub scaled: Option<UnixMillis>,
    /// The time between two decisions, in ms.
    pub period_ms: i64,
    /// Why it fails.
    fault: Option<String>,
    /// Why nothing is carried out.
    paused: Option<String>,
    /// Why more replicas than maxReplicas were wanted.
    over_max: Option<String>,
    is_preview: bool,
}

/// A text of the cluster, cut off, and without characters that hide something or turn the direction of writing.
fn shown(value: &Value) -> String {
    plain(&cut(value.as_str().unwrap_or_default(), MAX_TEXT)).into_owned()
}

fn whole(value: &Value) -> Option<i32> {
    value.as_i64().map(|number| i32::try_from(number).unwrap_or(i32::MAX))
}

/// A time of an object in milliseconds.
pub fn millis(value: &Value) -> Option<UnixMillis> {
    let time: Timestamp = value.as_str()?.parse().ok()?;
    Some(time.as_millisecond())
}

impl Row {
    /// Reads `spec` and `status` of an Autoscaler or HorizontalPodAutoscaler.
    pub fn read(kind: AutoscalerKind, object: &Value) -> Self {
        let (spec, status) = (&object["spec"], &object["status"]);
        let target = &spec["scaleTargetRef"];
        let schedule = &status["schedule"];
        let condition = |name: &str| {
            let all = status["conditions"].as_array().into_iter().flatten();
            all.into_iter().find(|one| one["type"] == name)
        };
        let is_true = |one: &&Value| one["status"] == "True";
        let told = |one: &Value| {
            let (reason, message) = (shown(&one["reason"]), shown(&one["message"]));
            if message.is_empty() { reason } else { format!("{reason}: {message}") }
        };
        let failed = ["AbleToScale", "ScalingActive", "Ready"].into_iter().filter_map(condition);
        let mut failed = failed.filter(|one| {
            one["status"] != "True"
                && one["reason"] != "ScalingDisabled"
                && one["reason"] != "NotEvaluated"
        });
        // Where a metric is ignored that failed, the others decide.
        let stands_in = |one: &&Value| one["reason"] != "OnErrorIgnore";
        let fallback = || condition("FallbackActive").filter(is_true).filter(stands_in);
        let paused = ["Paused", "Frozen"].into_iter().filter_map(condition).find(is_true);
        let over_max = condition("ScalingLimited").filter(is_true);
        let over_max = over_max.filter(|one| one["reason"] == "TooManyReplicas");
        Self {
            target: format!("{}/{}", shown(&target["kind"]), shown(&target["name"])),
            current: whole(&status["currentReplicas"]),
            desired: whole(&status["desiredReplicas"]),
            min: whole(&schedule["minReplicas"]).or(whole(&spec["minReplicas"])).unwrap_or(1),
            max: whole(&schedule["maxReplicas"]).or(whole(&spec["maxReplicas"])).unwrap_or(0),
            metrics: match kind {
                AutoscalerKind::Autoscaler => shown(&status["targets"]),
                AutoscalerKind::Hpa => {
                    plain(&cut(&metrics_of_hpa(spec, status), MAX_TEXT)).into_owned()
                }
            },
            scaled: millis(&status["lastScaleTime"]),
            period_ms: spec["syncPeriodSeconds"].as_i64().unwrap_or(15).saturating_mul(1_000),
            fault: failed.next().or_else(fallback).map(told),
            paused: paused.map(told),
            over_max: over_max.map(told),
            is_preview: spec["mode"] == "Preview",
        }
    }

    /// Whether what is decided is carried out.
    pub fn is_carried_out(&self) -> bool {
        !self.is_preview && self.paused.is_none()
    }

    /// Whether it needs a person, and why, with so many reversals within the last hour.
    pub fn state(&self, reversals: usize, now: UnixMillis) -> (State, String) {
        if let Some(fault) = &self.fault {
            return (State::Failing, fault.clone());
        }
        if let Some(paused) = &self.paused {
            return (State::Paused, paused.clone());
        }
        let Some(desired) = self.desired else {
            return (State::Waiting, "no decision was made yet".to_owned());
        };
        if self.over_max.is_some() {
            return (State::AtMax, format!("more than maxReplicas ({}) are asked for", self.max));
        }
        if desired >= self.max && self.max > self.min {
            return (State::AtMax, format!("at maxReplicas ({})", self.max));
        }
        if reversals >= FLAPPING {
            return (State::Flapping, format!("turned back {reversals} times within an hour"));
        }
        if !self.is_preview
            && let Some(current) = self.current.filter(|current| *current != desired)
        {
            return (State::Moving, format!("from {current} to {desired}"));
        }
        let ago = self.scaled.map(|scaled| now.saturating_sub(scaled));
        if ago.is_some_and(|ago| (-AHEAD_MS..=MOVING_MS).contains(&ago)) {
            return (State::Moving, "scaled within the last two minutes".to_owned());
        }
        let preview = if self.is_preview { "preview: no writes" } else { "" };
        (State::Steady, preview.to_owned())
    }
}

/// Value and target of each metric of an HPA, as kubectl shows them.
fn metrics_of_hpa(spec: &Value, status: &Value) -> String {
    let current = items(&status["currentMetrics"]);
    let metric = |metric: &Value| {
        let kind = metric["type"].as_str().unwrap_or_default();
        let source = source_of(kind);
        let (wanted, name) = (&metric[source], name_of(&metric[source]));
        let same = |one: &&Value| one["type"] == kind && name_of(&one[source]) == name;
        let now = current.iter().find(same).map(|one| &one[source]["current"]);
        let value = |of: &Value| match (&of["averageUtilization"], &of["averageValue"]) {
            (Value::Number(percent), _) => format!("{percent}%"),
            (_, Value::String(average)) => average.clone(),
            _ => of["value"].as_str().unwrap_or("<unknown>").to_owned(),
        };
        let now = now.map_or_else(|| "<unknown>".to_owned(), value);
        format!("{name}: {now}/{}", value(&wanted["target"]))
    };
    items(&spec["metrics"]).iter().take(MAX_METRICS).map(metric).collect::<Vec<_>>().join(", ")
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn source_of(kind: &str) -> &'static str {
    match kind {
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        "Pods" => "pods",
        "Object" => "object",
        _ => "external",
    }
}

fn name_of(source: &Value) -> &str {
    source["name"].as_str().or(source["metric"]["name"].as_str()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOW: UnixMillis = 1_795_100_000_000;

    fn row(status: Value) -> Row {
        let spec = json!({"scaleTargetRef": {"kind": "Deployment", "name": "web"},
            "minReplicas": 2, "maxReplicas": 20});
        Row::read(AutoscalerKind::Autoscaler, &json!({"spec": spec, "status": status}))
    }

    fn status(current: i32, desired: i32, conditions: Value) -> Value {
        json!({"currentReplicas": current, "desiredReplicas": desired, "targets": "14/10",
            "lastScaleTime": "2026-11-18T12:00:00Z", "conditions": conditions})
    }

    fn state(status: Value, reversals: usize) -> State {
        row(status).state(reversals, NOW).0
    }

    #[test]
    fn what_needs_a_person_comes_first() {
        let failed = json!([{"type": "ScalingActive", "status": "False",
            "reason": "FailedGetPodsMetric", "message": "no sample"}]);
        let over =
            json!([{"type": "ScalingLimited", "status": "True", "reason": "TooManyReplicas"}]);
        let paused = json!([{"type": "Paused", "status": "True", "reason": "PausedBySpec"}]);
        let disabled =
            json!([{"type": "ScalingActive", "status": "False", "reason": "ScalingDisabled"}]);
        let fallback =
            |reason: &str| json!([{"type": "FallbackActive", "status": "True", "reason": reason}]);
        let waiting = json!({"conditions": [{"type": "Ready", "status": "False",
            "reason": "NotEvaluated"}]});
        for (status, reversals, expected) in [
            (status(20, 20, failed.clone()), 9, State::Failing),
            (status(4, 4, fallback("MetricFallback")), 0, State::Failing),
            (status(4, 4, fallback("OnErrorIgnore")), 0, State::Steady),
            (status(20, 20, over), 9, State::AtMax),
            (status(20, 20, json!([])), 0, State::AtMax),
            (status(4, 6, json!([])), 3, State::Flapping),
            (status(4, 6, json!([])), 2, State::Moving),
            (status(4, 4, json!([])), 0, State::Steady),
            (status(0, 0, disabled), 0, State::Steady),
            (status(4, 6, paused), 0, State::Paused),
            (waiting, 0, State::Waiting),
            (json!({}), 0, State::Waiting),
        ] {
            assert_eq!(state(status.clone(), reversals), expected, "{status}");
        }
        let (_, why) = row(status(4, 4, failed)).state(0, NOW);
        assert_eq!(why, "FailedGetPodsMetric: no sample");
        assert!(State::Failing < State::AtMax && State::AtMax < State::Flapping);
        assert!(State::Flapping < State::Moving && State::Moving < State::Steady);
    }

    #[test]
    fn it_moves_for_two_minutes_after_a_change() {
        let row = row(status(4, 4, json!([])));
        let scaled = row.scaled.unwrap();
        assert_eq!(row.state(0, scaled + MOVING_MS).0, State::Moving);
        assert_eq!(row.state(0, scaled + MOVING_MS + 1).0, State::Steady);
        assert_eq!(row.state(0, scaled - 2_000).0, State::Moving);
        assert_eq!(row.state(0, scaled - 1_800_000).0, State::Steady);
    }

    #[test]
    fn bounds_are_those_of_a_schedule() {
        let row = row(json!({"schedule": {"minReplicas": 5, "maxReplicas": 6}}));
        assert_eq!((row.min, row.max, row.target.as_str()), (5, 6, "Deployment/web"));
    }

    #[test]
    fn whatever_an_object_holds_is_read() {
        let long = "x".repeat(100_000) + "\u{7}";
        for odd in [
            json!(null),
            json!([1]),
            json!({"spec": 1, "status": "x"}),
            json!({"spec": {"maxReplicas": 1e30}, "status": {"conditions": {"a": 1}}}),
            json!({"status": {"targets": long, "conditions": [{"type": "Ready", "message": long}]}}),
        ] {
            for kind in [AutoscalerKind::Autoscaler, AutoscalerKind::Hpa] {
                let row = Row::read(kind, &odd);
                let (_, why) = row.state(0, NOW);
                assert!(why.chars().count() < 700 && row.metrics.chars().count() <= MAX_TEXT + 1);
            }
        }
    }

    #[test]
    fn no_name_turns_the_direction_of_writing() {
        let spec = json!({"scaleTargetRef": {"kind": "Deployment", "name": "a\u{202e}b"},
            "metrics": [{"type": "External", "external": {"metric": {"name": "a\u{200b}b"},
                "target": {"type": "Value", "value": "7"}}}]});
        let row = Row::read(AutoscalerKind::Hpa, &json!({"spec": spec}));
        assert_eq!(row.target, "Deployment/a\\u{202e}b");
        assert_eq!(row.metrics, "a\\u{200b}b: <unknown>/7");
    }

    #[test]
    fn metrics_of_an_hpa_are_shown_as_kubectl_shows_them() {
        let object = json!({
            "spec": {"metrics": [
                {"type": "Resource", "resource": {"name": "cpu",
                    "target": {"type": "Utilization", "averageUtilization": 80}}},
                {"type": "Pods", "pods": {"metric": {"name": "qps"},
                    "target": {"type": "AverageValue", "averageValue": "10"}}},
                {"type": "External", "external": {"metric": {"name": "lag"},
                    "target": {"type": "Value", "value": "7"}}}]},
            "status": {"currentMetrics": [
                {"type": "Pods", "pods": {"metric": {"name": "qps"}, "current": {"averageValue": "14"}}},
                {"type": "Resource", "resource": {"name": "cpu",
                    "current": {"averageUtilization": 40, "averageValue": "400m"}}}]}});
        let row = Row::read(AutoscalerKind::Hpa, &object);
        assert_eq!(row.metrics, "cpu: 40%/80%, qps: 14/10, lag: <unknown>/7");
    }
}
