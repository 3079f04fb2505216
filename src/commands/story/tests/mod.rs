//! Stories, each compared with a file in tests/data/stories. `UPDATE_STORIES=1 cargo test --lib story` writes
//! them anew.

mod compared;
mod decided;

use super::chart::{Point, Screen, chart};
use super::words::clean;
use super::{Account, Changes, Listing, Standing, Status, Subject, no_decision, standing, story};
use crate::ledger::api::Decision;
use crate::ledger::{parse_time, time};
use serde_json::{Value, json};
use std::path::Path;

/// 2026-11-24T03:05:10Z.
const NOW: i64 = 1_795_489_510_000;
const SECOND: i64 = 1_000;
const MINUTE: i64 = 60_000;
const HOUR: i64 = 3_600_000;

/// Compares a text with that of a file.
fn golden(name: &str, text: &str) {
    let file = format!("{}/tests/data/stories/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE_STORIES").is_some() {
        std::fs::write(&file, text).unwrap();
    }
    let expected = std::fs::read_to_string(Path::new(&file)).unwrap_or_default();
    assert_eq!(text, expected, "{file}");
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{file}");
}

/// Sets fields of an object, those of objects in it too.
fn merge(value: &mut Value, fields: &Value) {
    match (value, fields) {
        (Value::Object(value), Value::Object(fields)) => {
            for (name, field) in fields {
                merge(value.entry(name.clone()).or_insert(Value::Null), field);
            }
        }
        (value, field) => *value = field.clone(),
    }
}

fn metric(fields: Value) -> Value {
    let mut metric = json!({
        "metricIndex": 0, "name": "http_requests_total_820193bd2d60_shop_web",
        "query": "sum by (namespace,pod) (rate(http_requests_total{namespace=\"shop\",pod!=\"\"}[2m]))",
        "queriedAt": time(NOW - 2_040), "newestSampleAge": "0.040s", "value": "9800m",
        "minValue": "9800m", "maxValue": "9800m", "target": "10", "targetType": "AverageValue",
        "ratio": 0.98, "pods": {"ready": 4, "unready": 0, "missing": 0, "ignored": 0},
        "proposedReplicas": 4, "status": "Used"});
    merge(&mut metric, &fields);
    metric
}

/// A run of decisions that hold four replicas, with other fields.
fn decision(fields: Value) -> Value {
    let mut decision = json!({
        "apiVersion": "decisions.plimsoll.dev/v1alpha1", "kind": "Decision",
        "metadata": {"name": "web.autoscaler.43", "namespace": "shop", "uid": "", "resourceVersion": "1",
            "creationTimestamp": time(NOW - 7 * MINUTE), "labels": {}, "annotations": {
                "plimsoll.dev/history-since": time(NOW - 30 * HOUR)}},
        "time": time(NOW - 2 * SECOND), "count": 28, "firstTime": time(NOW - 7 * MINUTE),
        "lastTime": time(NOW - 2 * SECOND), "observedGeneration": 3,
        "currentReplicas": 4, "recommendedReplicas": 4, "desiredReplicas": 4, "reason": "WithinTolerance",
        "metrics": [metric(json!({"minValue": "9200m", "maxValue": "10400m"}))],
        "wouldChange": {"metricIndex": 0,
            "more": {"replicas": 5, "value": "11001m", "earliest": time(NOW - 2 * SECOND)},
            "fewer": {"replicas": 3, "value": "7500m", "earliest": time(NOW + 298 * SECOND)}},
        "carriedOut": {"written": false, "by": "plimsoll", "reason": "Unchanged"},
        "basis": {"minReplicas": 2, "maxReplicas": 8, "scaleUpStabilizationSeconds": 0,
            "scaleDownStabilizationSeconds": 300, "scaleUpTolerance": 0.1, "scaleDownTolerance": 0.1}});
    merge(&mut decision, &fields);
    decision
}

/// The scale-up from 4 to 6, some time ago.
fn scaled_up(ago: i64) -> Value {
    let at = time(NOW - ago);
    decision(json!({
        "metadata": {"name": "web.autoscaler.42"},
        "time": at, "firstTime": at, "lastTime": at, "count": 1, "recommendedReplicas": 6,
        "desiredReplicas": 6, "reason": "MetricRecommendation",
        "metrics": [metric(json!({"value": "14", "minValue": "14", "maxValue": "14", "ratio": 1.4,
            "proposedReplicas": 6}))],
        "wouldChange": {"metricIndex": 0,
            "more": {"replicas": 7, "value": "11001m", "earliest": at},
            "fewer": {"replicas": 5, "value": "8333m", "earliest": time(NOW - ago + 300 * SECOND)}},
        "carriedOut": {"written": true, "reason": "Written"}}))
}

fn subject() -> Subject {
    Subject {
        kind: "Autoscaler".to_owned(),
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        target: Some("Deployment/web".to_owned()),
        period: 15_000,
        faults: Vec::new(),
        notes: Vec::new(),
    }
}

fn read(mut value: Value) -> Decision {
    clean(&mut value);
    serde_json::from_value(value).expect("a decision")
}

/// The story of the last of some decisions.
fn tell(subject: Subject, decisions: &[Value], at: i64) -> String {
    let (mut changes, mut change, mut last, mut since) = (Changes::default(), None, None, None);
    for decision in decisions {
        let decision = read(decision.clone());
        change = changes.next(&decision).last().or(change.take());
        since.get_or_insert(parse_time(&decision.first_time).unwrap());
        last = Some(decision);
    }
    let (decision, since) = (last.unwrap(), since.unwrap());
    let text = story(&Account { subject, decision, change, since, at, now: NOW });
    let lines = text.lines().count();
    assert!(lines < 25, "{lines} lines\n{text}");
    text
}

fn constraint(kind: &str, before: i32, after: i32, until: Option<i64>) -> Value {
    json!({"type": kind, "replicasBefore": before, "replicasAfter": after, "until": until.map(time)})
}

/// A metric that fails with this reason and message.
fn failing(reason: &str, message: &str) -> Value {
    metric(
        json!({"status": "Invalid", "reason": reason, "message": message, "value": null, "minValue": null,
        "maxValue": null, "ratio": null, "proposedReplicas": null, "queriedAt": null, "newestSampleAge": null,
        "pods": {"ready": 0, "missing": 4}}),
    )
}

#[test]
fn what_scales() {
    golden("scaled-up", &tell(subject(), &[scaled_up(2 * SECOND)], NOW));
    let down =
        decision(json!({"count": 1, "firstTime": time(NOW - 2 * SECOND), "currentReplicas": 6,
        "recommendedReplicas": 2, "desiredReplicas": 4, "reason": "PolicyLimited",
        "constraints": [constraint("ScaleDownLimit", 2, 4, Some(NOW + 58 * SECOND))],
        "until": [{"window": "ScaleDownLimit", "time": time(NOW + 58 * SECOND)}],
        "metrics": [metric(json!({"value": "2900m", "ratio": 0.29, "proposedReplicas": 2,
            "pods": {"ready": 5, "unready": 1}}))],
        "carriedOut": {"written": true, "reason": "Written"}}));
    golden("limited-by-policy", &tell(subject(), &[scaled_up(HOUR), down], NOW));
    let schedule = constraint("ScheduleMinReplicas", 4, 5, None);
    let schedule = decision(
        json!({"count": 1, "firstTime": time(NOW - 2 * SECOND), "desiredReplicas": 5,
        "reason": "Schedule", "constraints": [schedule], "carriedOut": {"written": true, "reason": "Written"},
        "until": [{"window": "Schedule", "time": time(NOW + 8 * HOUR)}],
        "basis": {"minReplicas": 5, "minReplicasSchedule": "office-hours", "boundsUntil": time(NOW + 8 * HOUR)},
        "wouldChange": {"more": {"replicas": 6}, "fewer":
            {"replicas": null, "value": null, "earliest": null, "preventedBy": "minReplicas"}}}),
    );
    let mut schedule = schedule;
    schedule["constraints"][0]["schedule"] = "office-hours".into();
    golden("schedule", &tell(subject(), &[schedule], NOW));
    let zero = decision(
        json!({"count": 1, "firstTime": time(NOW - 2 * SECOND), "currentReplicas": 1,
        "recommendedReplicas": 0, "desiredReplicas": 0, "reason": "MetricRecommendation", "wouldChange": null,
        "basis": {"minReplicas": 0}, "carriedOut": {"written": true, "reason": "Written"},
        "metrics": [metric(json!({"name": "queue_length", "value": "0", "ratio": 0.0, "proposedReplicas": 0,
            "pods": {"ready": 0}, "query": "sum(queue_length{namespace=\"shop\"})"}))]}),
    );
    golden("to-zero", &tell(subject(), std::slice::from_ref(&zero), NOW));
    let mut asleep = zero.clone();
    merge(
        &mut asleep,
        &json!({"metadata": {"name": "web.autoscaler.44"}, "count": 900,
        "currentReplicas": 0, "reason": "WithinTolerance",
        "carriedOut": {"written": false, "reason": "Unchanged"}}),
    );
    golden("at-zero", &tell(subject(), &[zero.clone(), asleep.clone()], NOW));
    let mut woken = asleep;
    merge(
        &mut woken,
        &json!({"metadata": {"name": "web.autoscaler.45"}, "count": 1, "currentReplicas": 0,
        "recommendedReplicas": 3, "desiredReplicas": 3, "reason": "MetricRecommendation",
        "carriedOut": {"written": true, "reason": "Written"}}),
    );
    merge(&mut woken["metrics"][0], &json!({"value": "28", "ratio": 2.8, "proposedReplicas": 3}));
    golden("woken", &tell(subject(), &[zero, woken], NOW));
}

#[test]
fn what_holds() {
    let tolerance = decision(json!({}));
    golden("within-tolerance", &tell(subject(), &[tolerance], NOW));
    // Rounded up: 3.2 pods are 4.
    let whole = decision(json!({
        "metrics": [metric(json!({"value": "8", "minValue": "8", "maxValue": "8", "ratio": 0.8}))]}));
    golden("rounded-up", &tell(subject(), &[whole], NOW));
    let until = NOW + 90 * SECOND;
    let stabilized = decision(
        json!({"currentReplicas": 6, "recommendedReplicas": 5, "desiredReplicas": 6,
        "reason": "Stabilized", "constraints": [constraint("ScaleDownStabilized", 5, 6, Some(until))],
        "until": [{"window": "ScaleDownStabilized", "time": time(until)}],
        "metrics": [metric(json!({"value": "7", "minValue": "6900m", "maxValue": "7400m", "ratio": 0.7,
            "pods": {"ready": 6}, "proposedReplicas": 5}))],
        "wouldChange": {"more": {"replicas": 7}, "fewer":
            {"replicas": 5, "value": "8333m", "earliest": time(until)}}}),
    );
    golden("stabilized", &tell(subject(), &[scaled_up(8 * MINUTE), stabilized], NOW));
    let most = decision(
        json!({"currentReplicas": 8, "recommendedReplicas": 11, "desiredReplicas": 8,
        "reason": "ReplicaLimit", "constraints": [constraint("TooManyReplicas", 11, 8, None)],
        "metrics": [metric(json!({"value": "13500m", "ratio": 1.35, "pods": {"ready": 8}, "proposedReplicas": 11}))],
        "wouldChange": {"more": {"replicas": null, "value": null, "earliest": null, "preventedBy": "maxReplicas"},
            "fewer": {"replicas": 7, "value": "8750m"}}}),
    );
    golden("at-max", &tell(subject(), &[most], NOW));
    let least = decision(
        json!({"currentReplicas": 2, "recommendedReplicas": 1, "desiredReplicas": 2,
        "reason": "ReplicaLimit", "constraints": [constraint("TooFewReplicas", 1, 2, None)],
        "metrics": [metric(json!({"value": "200m", "ratio": 0.02, "pods": {"ready": 2}, "proposedReplicas": 1}))],
        "wouldChange": {"more": {"replicas": 3}, "fewer":
            {"replicas": null, "value": null, "earliest": null, "preventedBy": "minReplicas"}}}),
    );
    golden("at-min", &tell(subject(), &[least], NOW));
    let rollout = decision(json!({"recommendedReplicas": 6, "reason": "PolicyLimited",
        "constraints": [constraint("RollingOut", 6, 4, None)],
        "metrics": [metric(json!({"value": "14", "ratio": 1.4, "proposedReplicas": 6}))]}));
    golden("rolling-out", &tell(subject(), &[rollout], NOW));
    let other = decision(json!({"currentReplicas": 3, "desiredReplicas": 3}));
    golden(
        "scaled-by-others",
        &tell(subject(), &[decision(json!({"lastTime": time(NOW - HOUR)})), other], NOW),
    );
}

#[test]
fn several_metrics() {
    let name = |index: usize, name: &str, proposed: i32, status: &str| {
        metric(
            json!({"metricIndex": index, "name": name, "proposedReplicas": proposed, "status": status}),
        )
    };
    let cpu = metric(
        json!({"metricIndex": 1, "name": "cpu", "value": "45%", "target": "60%", "minValue": "45%",
        "maxValue": "45%", "targetType": "Utilization", "ratio": 0.75, "proposedReplicas": 3,
        "status": "Valid", "query": null}),
    );
    let mut failed =
        failing("FailedGetExternalMetric", "no metrics returned from external metrics API");
    merge(&mut failed, &json!({"metricIndex": 2, "name": "queue_length", "pods": {"missing": 0}}));
    let three = decision(json!({"metrics": [metric(json!({})), cpu, failed]}));
    golden("three-metrics", &tell(subject(), &[three], NOW));
    let five = ["a", "b", "c", "d"].iter().enumerate();
    let mut five: Vec<Value> = five.map(|(n, of)| name(n, of, 2, "Valid")).collect();
    five.push(name(4, "http_requests_total", 4, "Used"));
    let until = NOW + 90 * SECOND;
    let five = decision(
        json!({"metrics": five, "reason": "ReplicaLimit", "wouldChange": {"metricIndex": 4},
        "constraints": [constraint("ScaleUpStabilized", 9, 8, Some(until)), constraint("ScaleUpLimit", 8, 7, Some(until)),
            constraint("TooManyReplicas", 7, 4, None)]}),
    );
    golden("five-metrics", &tell(subject(), &[five], NOW));
}

#[test]
fn what_can_not_be_explained() {
    let none = |reason: &str, message: &str, metric: Value| {
        decision(
            json!({"recommendedReplicas": null, "desiredReplicas": null, "reason": reason, "message": message,
            "wouldChange": null, "metrics": [metric], "carriedOut": {"reason": "NoDecision"}}),
        )
    };
    let why =
        "unable to get metric http_requests_total: no metrics returned from custom metrics API";
    let missing = none("InvalidMetrics", why, failing("FailedGetPodsMetric", why));
    golden("no-metric", &tell(subject(), &[missing], NOW));
    let why = "unable to calculate ready pods: no pods returned by selector while calculating replica count";
    let nobody = none("InvalidMetrics", why, failing("FailedGetPodsMetric", why));
    golden("selector-of-nobody", &tell(subject(), &[nobody], NOW));
    let gone = decision(
        json!({"currentReplicas": null, "recommendedReplicas": null, "desiredReplicas": null,
        "reason": "RecommendationFailed", "message": "deployments.apps \"web\" not found", "wouldChange": null,
        "metrics": [], "carriedOut": {"reason": "NoDecision"}}),
    );
    let faults =
        vec![("FailedGetScale".to_owned(), "deployments.apps \"web\" not found".to_owned())];
    golden("no-scale", &tell(Subject { faults, ..subject() }, &[gone], NOW));
    let fallback = decision(
        json!({"recommendedReplicas": null, "desiredReplicas": 6, "reason": "Fallback",
        "constraints": [constraint("Fallback", 4, 6, None)], "wouldChange": null, "count": 1,
        "firstTime": time(NOW - 2 * SECOND), "carriedOut": {"written": true, "reason": "Written"},
        "metrics": [failing("FailedGetPodsMetric", "Prometheus http://prometheus:9090: connection refused")]}),
    );
    golden("fallback", &tell(subject(), &[fallback], NOW));
    let paused = decision(
        json!({"recommendedReplicas": null, "reason": "Paused", "wouldChange": null, "metrics": [],
        "message": "spec.mode is Paused, by \"ann\", reason \"INC-7\", until 2026-11-24T04:00:00Z",
        "carriedOut": {"reason": "Paused"}}),
    );
    golden("paused", &tell(subject(), &[paused], NOW));
    let own = decision(
        json!({"currentReplicas": 0, "recommendedReplicas": null, "desiredReplicas": 0, "reason": "Paused",
        "wouldChange": null, "metrics": []}),
    );
    golden("zero-by-its-owner", &tell(subject(), &[own], NOW));
    let wants = json!({"recommendedReplicas": 6, "desiredReplicas": 6,
        "metrics": [metric(json!({"value": "14", "ratio": 1.4, "proposedReplicas": 6}))]});
    let wanting = |fields: Value| {
        let mut decision = decision(wants.clone());
        merge(&mut decision, &fields);
        decision
    };
    let frozen = wanting(json!({"reason": "Frozen", "carriedOut": {"reason": "Frozen"}}));
    let notes = vec!["Frozen (FrozenByAdministrator): incident 42 (by \"ann\", since 02:50): 6 replicas are desired".to_owned()];
    golden("frozen", &tell(Subject { notes, ..subject() }, &[frozen], NOW));
    let preview = wanting(json!({"reason": "Observed", "carriedOut": {"reason": "Preview"}}));
    golden("preview", &tell(subject(), &[preview], NOW));
    let failed =
        wanting(json!({"reason": "MetricRecommendation", "carriedOut": {"reason": "WriteFailed"},
        "message": "failed to rescale: exceeded quota"}));
    golden("write-failed", &tell(subject(), &[failed], NOW));
    let hpa = Subject { kind: "HorizontalPodAutoscaler".to_owned(), ..subject() };
    let by = json!({"written": false, "by": "kube-controller-manager", "reason": "Observed"});
    let observed = wanting(json!({"reason": "Observed", "carriedOut": by,
        "metadata": {"name": "web.horizontalpodautoscaler.43"}}));
    let before = wanting(
        json!({"currentReplicas": 3, "desiredReplicas": 3, "reason": "WithinTolerance",
        "metadata": {"name": "web.horizontalpodautoscaler.42"}, "carriedOut": by, "lastTime": time(NOW - HOUR)}),
    );
    golden("observed", &tell(hpa, &[before, observed], NOW));
}

#[test]
fn the_past() {
    let then = NOW - 2 * HOUR;
    let mut past = decision(
        json!({"currentReplicas": 6, "desiredReplicas": 6, "recommendedReplicas": 6, "count": 1920, "firstTime": time(NOW - 9 * HOUR), "lastTime": time(NOW - HOUR)}),
    );
    past["wouldChange"]["fewer"]["earliest"] = time(NOW - HOUR + 5 * MINUTE).into();
    golden("then", &tell(subject(), &[scaled_up(10 * HOUR), past], then));
    golden("not-then", &no_decision(&subject(), then, Some(NOW - HOUR), Some(NOW - HOUR)));
    golden("never", &no_decision(&subject(), NOW, None, None));
    let mut stale =
        decision(json!({"firstTime": time(NOW - 2 * HOUR), "lastTime": time(NOW - HOUR)}));
    stale["wouldChange"] = Value::Null;
    golden("stale", &tell(subject(), &[stale], NOW));
}

#[test]
fn the_status_where_decisions_can_not_be_read() {
    let condition = |kind: &str, status: &str, reason: &str, message: &str| Standing {
        kind: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        since: Some(NOW - HOUR),
    };
    let status = Status {
        current: Some(4),
        desired: Some(4),
        bounds: (2, 8),
        metrics: Some("9800m/10".to_owned()),
        last_scaled: Some(NOW - 5 * HOUR),
        conditions: vec![
            condition(
                "AbleToScale",
                "True",
                "ReadyForNewScale",
                "recommended size matches current size",
            ),
            condition("ScalingActive", "False", "FailedGetPodsMetric", "no metrics returned"),
        ],
    };
    let faults = vec![("FailedGetPodsMetric".to_owned(), "no metrics returned".to_owned())];
    let subject = Subject { faults, ..subject() };
    let why = "you may not read decisions in namespace shop: the ClusterRole view may";
    golden("status", &standing(&subject, &status, why, NOW));
}

#[test]
fn hostile_texts_are_shown_and_have_no_effect() {
    let evil = "\u{1b}[2J\u{1b}]0;owned\u{7}\nAutoscaler shop/web: all is well\u{202e}";
    let hostile = decision(json!({
        "recommendedReplicas": null, "desiredReplicas": null, "reason": "InvalidMetrics", "message": evil,
        "metrics": [failing("FailedGetPodsMetric", evil)], "carriedOut": {"reason": "NoDecision"},
        "wouldChange": null}));
    golden("hostile", &tell(subject(), &[hostile], NOW));
}

/// A day of a workload with a peak at noon.
fn day() -> Vec<Value> {
    let (mut replicas, mut all) = (2, Vec::new());
    for quarter in 0..96_i64 {
        let hour = quarter as f64 / 4.0;
        let load = 20.0 + 55.0 * (1.0 - ((hour - 12.0) / 6.0).powi(2)).max(0.0);
        let value = load / f64::from(replicas);
        let proposed = (load / 10.0).ceil() as i32;
        let desired =
            if (0.9..=1.1).contains(&(value / 10.0)) { replicas } else { proposed.clamp(2, 8) };
        let (first, last) = (
            NOW - 24 * HOUR + quarter * 15 * MINUTE,
            NOW - 24 * HOUR + (quarter + 1) * 15 * MINUTE,
        );
        let text = format!("{}m", (value * 1000.0) as i64);
        let reason = if desired == replicas { "WithinTolerance" } else { "MetricRecommendation" };
        let carried = if desired == replicas { "Unchanged" } else { "Written" };
        all.push(decision(json!({
            "metadata": {"name": format!("web.autoscaler.{}", quarter + 1)}, "count": 60,
            "firstTime": time(first), "lastTime": time(last - SECOND), "time": time(last - SECOND),
            "currentReplicas": replicas, "recommendedReplicas": proposed, "desiredReplicas": desired, "reason": reason,
            "carriedOut": {"written": desired != replicas, "reason": carried},
            "metrics": [metric(json!({"value": text, "minValue": text, "maxValue": text, "ratio": value / 10.0}))]})));
        replicas = desired;
    }
    all
}

#[test]
fn a_day_is_a_list_and_a_chart() {
    let span = (NOW - 24 * HOUR, NOW);
    let mut listing = Listing::default();
    assert!(listing.is_empty());
    for one in day() {
        listing.push(&read(one), span);
    }
    let screen = Screen { width: 80, unicode: true, color: false };
    golden("history", &listing.text(&subject(), span, screen));
    golden(
        "history-ascii",
        &listing.text(&subject(), span, Screen { unicode: false, width: 60, ..screen }),
    );
    let colored = listing.text(&subject(), span, Screen { color: true, ..screen });
    assert!(colored.contains("\u{1b}[1mAutoscaler shop/web"), "{colored}");
    let json = listing.json(&subject(), span);
    assert!(json["changes"].as_array().is_some_and(|all| all.len() > 5), "{json}");
    let mut calm = Listing::default();
    calm.push(&read(decision(json!({}))), span);
    golden("history-calm", &calm.text(&subject(), span, screen));
}

#[test]
fn a_chart_takes_any_numbers_and_widths() {
    let point = |value: f64, replicas: i32| Point {
        first: 0,
        last: 1_000,
        value: Some(value),
        target: Some(value / 2.0),
        replicas: Some(replicas),
    };
    for width in [0, 1, 80, 100_000] {
        for value in [0.0, 1e-9, 1e300, f64::NAN, f64::INFINITY, -5.0] {
            let screen = Screen { width, unicode: true, color: false };
            let text = chart(&[point(value, i32::MAX)], (0, 1_000), "load", screen);
            assert!(text.lines().all(|line| line.chars().count() <= 200), "{text}");
        }
    }
    let screen = Screen { width: 80, unicode: true, color: false };
    assert_eq!(chart(&[], (0, 1_000), "load", screen), "");
    assert_eq!(chart(&[point(1.0, 1)], (5, 5), "load", screen), "");
}
