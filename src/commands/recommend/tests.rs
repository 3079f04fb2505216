use super::*;
use crate::backtest::{Load, Recorded};
use crate::config::{Cli, Command};
use clap::Parser;
use std::fmt::Write as _;

/// What is recommended for an HPA, with these flags.
async fn recommended(flags: &[&str]) -> Value {
    let hpa = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": 1, "maxReplicas": 100,
            "metrics": [{"type": "Pods", "pods": {"metric": {"name": "requests"},
                "target": {"type": "AverageValue", "averageValue": "10"}}}],
        },
    });
    recommended_for(&hpa, flags).await
}

/// What is recommended for an object on two weeks of days and nights, with these flags.
async fn recommended_for(object: &Value, flags: &[&str]) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    let load = (0..14 * 288).fold("time,value\n".to_owned(), |mut text, row: i64| {
        let is_day = (96..240).contains(&(row % 288));
        let noise = (row * 7_919 % 101) as f64 / 100.0;
        let _ = writeln!(text, "{},{}", row * 300, noise * 4.0 + if is_day { 300.0 } else { 40.0 });
        text
    });
    let paths = ["load.csv", "object.yaml"].map(|name| folder.path().join(name));
    std::fs::write(&paths[0], load).expect("a file");
    std::fs::write(&paths[1], object.to_string()).expect("a file");
    let paths = paths.map(|path| path.display().to_string());
    let mut line = vec!["plimsoll", "recommend", "-o", "json", "--period", "5m"];
    line.extend(["--load", &paths[0], "-f", &paths[1]].into_iter().chain(flags.iter().copied()));
    let Command::Recommend(flags) = Cli::try_parse_from(line).expect("flags").command else {
        panic!("it is a recommendation");
    };
    serde_json::from_str(&run(&flags).await.expect("a result")).expect("JSON")
}

#[tokio::test]
async fn an_hpa_is_deleted_only_where_it_becomes_an_autoscaler() {
    for flags in [&[][..], &["--keep", "schedules"]] {
        let found = recommended(flags).await;
        let warnings = found["warnings"].to_string();
        let is_autoscaler = found["object"]["kind"] == "Autoscaler";
        assert_eq!(warnings.contains(convert::DELETE_HPA), is_autoscaler, "{found}");
    }
}

#[tokio::test]
async fn what_is_recommended_is_tried_in_any_namespace() {
    let autoscaler = json!({
        "apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler", "metadata": {"name": "web"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": 1, "maxReplicas": 100,
            "customMetrics": [{"metricName": "requests", "averageValue": "10"}],
        },
    });
    let found = recommended_for(&autoscaler, &[]).await;
    let object = &found["object"];
    assert_eq!(object["metadata"]["annotations"][carries::ANNOTATION], "requests=10", "{found}");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("web.yaml");
    std::fs::write(&file, object.to_string()).expect("a file");
    let file = file.display().to_string();
    for namespace in ["shop", "staging"] {
        let line = ["plimsoll", "backtest", "--prometheus-url", "http://127.0.0.1:1", "-n"];
        let line = line.into_iter().chain([namespace, "-f", &*file]);
        let Command::Backtest(flags) = Cli::try_parse_from(line).expect("flags").command else {
            panic!("it is a backtest");
        };
        let mut read = Subjects::read(&flags.files, &flags.recorded).expect("autoscalers");
        assert_eq!(read.failed, [""; 0], "{namespace}");
        let Subject { candidate, written, .. } = &mut read.found[0];
        assert_eq!(carries::set(candidate, written, None), Ok(false), "{namespace}");
        assert_eq!(candidate.metrics[0].carries(), 10.0);
    }
}

#[tokio::test]
async fn a_spec_of_an_idle_object_is_recommended_by_the_load_of_its_trigger() {
    let object = json!({"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"scaleTargetRef": {"name": "web"}, "idleReplicaCount": 0, "minReplicaCount": 3, "triggers": [
            {"type": "prometheus", "metadata": {"query": "sum(rate(requests_total{namespace=\"shop\"}[2m]))", "threshold": "10"}}]}});
    let found = recommended_for(&object, &[]).await;
    assert_eq!(found["podCarries"], json!({"trigger-0": 10.0}), "{found}");
    let bound = &found["object"]["spec"]["customMetrics"][1];
    assert!(bound.is_null() || bound["averageValue"] == "1", "{found}");
    let found = recommended_for(&object, &["--pod-carries", "12"]).await;
    assert_eq!(found["podCarries"], json!({"trigger-0": 12.0}), "{found}");
}

/// Of Prometheus, which says nothing of the replicas that there were.
#[test]
fn what_could_not_be_compared_with_what_was_makes_nothing_cheaper() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("web.yaml");
    let hpa = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": 2, "maxReplicas": 100, "metrics": [{"type": "Pods", "pods": {
                "metric": {"name": "requests"}, "target": {"type": "AverageValue", "averageValue": "7"}}}]}});
    std::fs::write(&file, hpa.to_string()).expect("a file");
    let file = file.display().to_string();
    let rows = (0..8 * 288).map(|row: i64| {
        let wave = (row as f64 / 288.0 * std::f64::consts::TAU).sin();
        (row * 300_000, 120.0 + 80.0 * wave + (row * 7_919 % 101) as f64 / 10.0, false)
    });
    let trace = Trace::Recorded(Recorded {
        loads: vec![Load::of(rows)],
        step: 300_000,
        ..Recorded::default()
    });
    let found = |more: &[&str]| {
        let line =
            ["plimsoll", "recommend", "--prometheus-url", "http://127.0.0.1:1", "-f", &*file];
        let line = line.into_iter().chain("--pod-carries 10 --period 5m --pod-start 5m".split(' '));
        let line = line.chain(["--max-under-minutes", "300"]).chain(more.iter().copied());
        let Command::Recommend(flags) = Cli::try_parse_from(line).expect("flags").command else {
            panic!("it is a recommendation");
        };
        let subject = Subjects::read(&flags.files, &flags.recorded).expect("one").found.remove(0);
        let options = flags.recorded.options(POD_START);
        let read = Read { trace: trace.clone(), options, reproduction: None };
        found_for(&flags, &subject, read, String::new()).expect("a result")
    };
    let says =
        |found: &Found| found.warnings.iter().any(|one| one.contains("could not be compared"));
    let kept = found(&[]);
    assert!(kept.object.is_none() && says(&kept), "{:?}", kept.warnings);
    let allowed = found(&["--allow-low-trust"]);
    assert!(allowed.object.is_some() && says(&allowed), "{:?}", allowed.warnings);
}
