//! What is tried over a Prometheus, which says what a test says.

use super::tests_of_files::{autoscaler, hpa_of, of_ingress, plain_autoscaler, ran};
use crate::fake;
use serde_json::{Value, json};

/// Half a day until then, with a point each minute.
const TO: f64 = 1_764_000_000.0;
const ASKED: [&str; 3] = ["--from=1763956800", "--to=1764000000", "--period=60s"];

/// What the command writes of these files, where Prometheus has these values.
async fn ran_over(
    files: &[&str],
    of: &[&str],
    value: impl Fn(&str, f64) -> Option<f64> + Send + Sync + 'static,
) -> Result<String, String> {
    let (url, _) = fake::prometheus_at(move |request| fake::past(request, &value)).await;
    let url = format!("--prometheus-url={url}");
    ran(files, &[&[&*url][..], &ASKED, of].concat()).await
}

/// A load of 40 of each metric, and four replicas.
fn steady(query: &str, _time: f64) -> Option<f64> {
    match query {
        query if query.starts_with("kube_deployment_spec_replicas{") => Some(4.0),
        query if query.starts_with("sum(") && !query.contains("kube_") => Some(40.0),
        _ => None,
    }
}

#[tokio::test]
async fn a_fleet_has_a_row_of_each_that_is_tried_and_the_reason_of_each_other() {
    let web = plain_autoscaler("10");
    let broken = autoscaler("10", Value::Null, ("minReplica", json!(20))).replace("web", "api");
    let text = ran_over(&[&web, &broken], &[], steady).await.expect("a table");
    assert!(text.starts_with("1 autoscaler: 48 replica-hours where the load needs 48"), "{text}");
    let row = text.lines().find(|line| line.starts_with("shop/web")).expect("a row");
    assert!(row.contains("0.5") && row.ends_with("medium"), "{row}");
    let (_, failed) = text.split_once("Not tried:\n").expect("the other one");
    assert!(failed.contains("spec.minReplica: unknown field"), "{failed}");
    // One that Prometheus has nothing of is told as well.
    let api = plain_autoscaler("10").replace("web", "api");
    let of_web = |query: &str, time: f64| steady(query, time).filter(|_| !query.contains("api-"));
    let report = ran_over(&[&web, &api], &["-o", "json"], of_web).await.expect("a table");
    let report: Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["autoscalers"].as_array().map(Vec::len), Some(1), "{report}");
    let row = &report["autoscalers"][0];
    assert_eq!((&row["name"], &row["trust"]), (&json!("web"), &json!("medium")), "{row}");
    assert!(row["reproduced"]["equal"].as_f64() > Some(0.99), "{row}");
    let failed = report["failed"][0].as_str().expect("the other one");
    assert!(failed.starts_with("shop/api: the metric requests"), "{failed}");
    assert!(report["judged"].as_str().is_some_and(|text| text.contains("Each is judged by what")));
}

#[tokio::test]
async fn one_of_the_same_workload_that_cannot_be_tried_ends_the_backtest() {
    let web = plain_autoscaler("10");
    let broken = autoscaler("10", Value::Null, ("minReplica", json!(20)));
    let error = ran_over(&[&web, &broken], &[], steady).await.expect_err("it is one workload");
    assert!(error.contains("spec.minReplica: unknown field"), "{error}");
    // What is said of one workload is of none of several.
    let api = broken.replace("web", "api");
    let error = ran_over(&[&web, &api], &["--pod-carries=10"], steady).await.expect_err("two");
    assert!(error.contains("it is for one workload, and there are 2"), "{error}");
}

#[tokio::test]
async fn a_metric_that_ended_days_ago_is_tried_all_the_same() {
    let web = plain_autoscaler("10");
    let ended = |query: &str, time: f64| {
        steady(query, time).filter(|_| query.starts_with("kube_") || time <= TO - 30.0 * 3_600.0)
    };
    let (url, _) = fake::prometheus_at(move |request| fake::past(request, ended)).await;
    let url = format!("--prometheus-url={url}");
    let text = ran(&[&web], &[&*url, "--from=1763827200", "--to=1764000000", "--period=300s"])
        .await
        .expect("a report");
    assert!(text.starts_with("Not compared with what was"), "{text}");
    assert!(text.contains("web: 72.3 replica-hours, and never short of pods"), "{text}");
    assert!(text.contains("Low confidence: 1800 minutes in 1 part"), "{text}");
}

#[tokio::test]
async fn a_report_begins_with_the_first_decision_and_its_gaps_are_in_their_order() {
    let web = plain_autoscaler("10");
    let jobs = web.replace("requests", "jobs");
    // In minutes of the time that is asked for: the first metric has gaps, and the other one begins in one of them.
    let known = |query: &str, time: f64| {
        let minute = (time - 1_763_956_800.0) / 60.0;
        let is_gap = (10.0..40.0).contains(&minute) || (100.0..200.0).contains(&minute);
        let is_unknown = match query.contains("jobs") {
            true => minute < 20.0,
            false => query.contains("requests") && is_gap,
        };
        steady(query, time).filter(|_| !is_unknown)
    };
    let report = ran_over(&[&web, &jobs], &["-o", "json"], known).await.expect("a report");
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let begin = json!(1_763_956_800 + 20 * 60);
    assert_eq!(report["from"], begin);
    assert_eq!(report["candidates"][0]["replicas"][0][0], begin);
    let parts = report["lowConfidence"].as_array().expect("parts");
    let from: Vec<f64> = parts.iter().filter_map(|part| part["from"].as_f64()).collect();
    assert!(from.len() == 3 && from.is_sorted(), "{parts:?}");
    assert!(report["judged"].is_string() && report["assumptions"].is_array(), "{report}");
}

#[tokio::test]
async fn what_is_left_out_makes_the_rest_doubtful() {
    let cpu = json!({"type": "Resource", "resource": {"name": "cpu",
        "target": {"type": "AverageValue", "averageValue": "10"}}});
    let of_value = of_ingress(&json!({"type": "Value", "value": "1k"}));
    let text = ran_over(&[&hpa_of(&[&cpu, &of_value])], &[], steady).await.expect("a report");
    assert!(text.contains("  trust: low"), "{text}");
    assert!(text.contains("Low trust: web: left out is the metric requests_per_second"), "{text}");
    let api = hpa_of(&[&cpu]).replace("web", "api");
    let both = [&*hpa_of(&[&cpu, &of_value]), &api];
    let text = ran_over(&both, &[], steady).await.expect("a table");
    assert!(text.contains("\nLow trust:\n  shop/web: left out is the metric"), "{text}");
    assert!(!text.contains("shop/api: left out"), "{text}");
    // Memory is tried beside others, as it may be what decides.
    let mut memory = cpu.clone();
    memory["resource"]["name"] = json!("memory");
    let text = ran_over(&[&hpa_of(&[&cpu, &memory])], &[], steady).await.expect("a report");
    assert!(text.contains("  trust: low") && text.contains("memory is taken for a load"), "{text}");
    let error = ran_over(&[&hpa_of(&[&memory])], &[], steady).await.expect_err("memory alone");
    assert!(error.contains("whatever their load"), "{error}");
}
