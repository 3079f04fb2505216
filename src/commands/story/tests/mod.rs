//! Stories, each compared with a file in tests/data/stories. `UPDATE_STORIES=1 cargo test --lib story` writes
//! them anew.

mod compared;
mod decided;
mod workload;

use super::chart::{Point, Screen, chart};
use super::words::clean;
use super::{
    Account, Changes, Listing, Standing, Status, Subject, decided_natively, no_decision, standing,
    story,
};
use crate::crd::AutoscalerSpec;
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
    let mut digits = text.split(|c: char| !c.is_ascii_digit());
    assert!(digits.all(|number| number.len() < 16), "a number that nobody measured: {file}");
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
    let (mut changes, mut change, mut last, mut since) =
        (Changes::new(subject.period), None, None, None);
    for decision in decisions {
        let decision = read(decision.clone());
        change = changes.next(&decision).last().or(change.take());
        since.get_or_insert(parse_time(&decision.first_time).unwrap());
        last = Some(decision);
    }
    let change = changes.finish().or(change);
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
fn what_a_schedule_scales() {
    let schedule = constraint("ScheduleMinReplicas", 4, 5, None);
    let mut schedule = decision(
        json!({"count": 1, "firstTime": time(NOW - 2 * SECOND), "desiredReplicas": 5,
        "reason": "Schedule", "constraints": [schedule], "carriedOut": {"written": true, "reason": "Written"},
        "until": [{"window": "Schedule", "time": time(NOW + 8 * HOUR)}],
        "basis": {"minReplicas": 5, "minReplicasSchedule": "office-hours", "boundsUntil": time(NOW + 8 * HOUR)},
        "wouldChange": {"more": {"replicas": 6}, "fewer":
            {"replicas": null, "value": null, "earliest": null, "preventedBy": "minReplicas"}}}),
    );
    schedule["constraints"][0]["schedule"] = "office-hours".into();
    golden("schedule", &tell(subject(), &[schedule], NOW));
}

#[test]
fn what_can_not_be_explained() {
    let none = |reason: &str, message: &str, metric: Value| {
        decision(
            json!({"recommendedReplicas": null, "desiredReplicas": null, "reason": reason, "message": message,
            "wouldChange": null, "metrics": [metric], "carriedOut": {"reason": "NoDecision"}}),
        )
    };
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
    let paused = decision(
        json!({"recommendedReplicas": null, "reason": "Paused", "wouldChange": null, "metrics": [],
        "message": "spec.mode is Paused, by \"ann\", reason \"INC-7\", until 2026-11-24T04:00:00Z",
        "carriedOut": {"reason": "Paused"}}),
    );
    golden("paused", &tell(subject(), std::slice::from_ref(&paused), NOW));
    let mut unknown = paused;
    merge(&mut unknown, &json!({"currentReplicas": null, "desiredReplicas": null}));
    golden("paused-unknown", &tell(subject(), &[unknown], NOW));
    let own = decision(
        json!({"currentReplicas": 0, "recommendedReplicas": null, "desiredReplicas": 0, "reason": "Paused",
        "wouldChange": null, "metrics": []}),
    );
    golden("zero-by-its-owner", &tell(subject(), &[own], NOW));
}

#[test]
fn a_spec_that_can_not_be_read() {
    let spec = json!({"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "minReplicas": 9, "maxReplicas": 8, "customMetrics": [{"metricName": "x", "averageValue": "1"}]});
    let error = AutoscalerSpec::read(spec).unwrap_err().to_string();
    // The ledger has no bounds of such a spec.
    let mut invalid = decision(
        json!({"currentReplicas": null, "recommendedReplicas": null, "desiredReplicas": null,
        "reason": "RecommendationFailed", "message": error, "wouldChange": null, "metrics": [],
        "carriedOut": {"reason": "NoDecision"}, "basis": {"minReplicas": 0, "maxReplicas": 0}}),
    );
    let faults = vec![("InvalidSpec".to_owned(), error.clone())];
    golden("invalid-spec", &tell(Subject { faults, ..subject() }, &[invalid.clone()], NOW));
    // It was valid before.
    merge(&mut invalid, &json!({"count": 1, "firstTime": time(NOW - 2 * SECOND)}));
    let subject = Subject { faults: vec![("InvalidSpec".to_owned(), error)], ..subject() };
    golden("invalid-spec-now", &tell(subject, &[decision(json!({})), invalid], NOW));
}

#[test]
fn an_autoscaler_that_was_deleted() {
    let last = NOW - 20 * MINUTE;
    let last = decision(
        json!({"firstTime": time(last - 7 * MINUTE), "lastTime": time(last), "time": time(last)}),
    );
    let notes = vec!["autoscaler shop/web: not found".to_owned()];
    let gone = Subject { target: None, notes, ..subject() };
    golden("deleted", &tell(gone, &[last], NOW));
}

#[test]
fn where_there_is_no_decision() {
    let (then, day) = (NOW - 2 * HOUR, std::time::Duration::from_secs(86_400));
    let known = Some(NOW - HOUR);
    golden("not-then", &no_decision(&subject(), (then, day), known, known));
    golden("never", &no_decision(&subject(), (NOW, day), None, None));
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
    let status = Status {
        conditions: vec![condition("Ready", "True", "Ready", "decisions are made")],
        ..status
    };
    let why = decided_natively("explain", "web");
    golden("native-hpa", &standing(&self::subject(), &status, &why, NOW));
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
            "metadata": {"name": format!("web.autoscaler.{}", quarter + 1)},
            "count": if desired == replicas { 60 } else { 1 },
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
