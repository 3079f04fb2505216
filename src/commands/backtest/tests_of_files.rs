//! What is tried of files, by which flags.

use super::text::tidy;
use super::*;
use crate::config::{Cli, Command};
use clap::Parser;
use serde_json::{Value, json};

/// Half an hour of load.
const LOAD: &str = "time,value\n0,20\n900,90\n1800,30\n";

/// The flags of a command with these files and a `load.csv`.
fn flags(files: &[&str], of: &[&str]) -> (tempfile::TempDir, BacktestFlags) {
    flags_on(LOAD, files, of)
}

fn flags_on(text: &str, files: &[&str], flags: &[&str]) -> (tempfile::TempDir, BacktestFlags) {
    let folder = tempfile::tempdir().expect("a folder");
    let load = folder.path().join("load.csv");
    std::fs::write(&load, text).expect("a file");
    let load = load.display().to_string();
    let mut line: Vec<String> = ["plimsoll", "backtest"].map(str::to_owned).into();
    line.extend(flags.iter().map(|flag| flag.replace("load.csv", &load)));
    for (index, text) in files.iter().enumerate() {
        let path = folder.path().join(format!("{index}.yaml"));
        std::fs::write(&path, text).expect("a file");
        line.extend(["-f".to_owned(), path.display().to_string()]);
    }
    let Command::Backtest(flags) = Cli::try_parse_from(line).expect("flags").command else {
        panic!("it is a backtest");
    };
    (folder, *flags)
}

/// The autoscalers of files with the flags of a command.
fn subjects(files: &[&str], of: &[&str]) -> Subjects {
    let (_folder, flags) = flags(files, of);
    Subjects::read(&flags.files, &flags.recorded).expect("autoscalers")
}

const OF_FILE: &[&str] = &["--load", "load.csv"];
/// Nobody answers there.
const OF_PROMETHEUS: &[&str] = &["--prometheus-url", "http://127.0.0.1:1"];

/// What the command writes, or its error.
pub(super) async fn ran(files: &[&str], of: &[&str]) -> Result<String, String> {
    ran_on(LOAD, files, of).await
}

/// The same on another load.
async fn ran_on(load: &str, files: &[&str], of: &[&str]) -> Result<String, String> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (_folder, flags) = flags_on(load, files, of);
    run(&flags).await.map(|report| String::from_utf8(report).expect("a text"))
}

/// An Autoscaler with this target, annotation and field of its spec.
pub(super) fn autoscaler(target: &str, annotations: Value, field: (&str, Value)) -> String {
    let mut object = json!({
        "apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler",
        "metadata": {"name": "web", "namespace": "shop", "annotations": annotations},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "maxReplicas": 10,
            "customMetrics": [{"metricName": "requests", "averageValue": target}],
        },
    });
    object["spec"][field.0] = field.1;
    object.to_string()
}

pub(super) fn plain_autoscaler(target: &str) -> String {
    autoscaler(target, Value::Null, ("minReplicas", json!(1)))
}

#[test]
fn candidates_are_judged_by_one_number_where_one_is_known() {
    let annotations = json!({carries::ANNOTATION: "requests=16"});
    let annotated = autoscaler("12", annotations, ("minReplicas", json!(1)));
    let [ten, twenty] = ["10", "20"].map(plain_autoscaler);
    // A file has the load of all, whatever their metrics are called.
    let [other, annotated_other] = [&twenty, &annotated].map(|of| of.replace("requests", "rps"));
    let judged = |second: &str, of: &[&str], flag: Option<f64>| {
        let mut found = subjects(&[&ten, second], of).found;
        let said = judged::judge(&mut found, flag, of == OF_FILE).expect("numbers");
        let carries = found.iter().map(|one| one.candidate.metrics[0].carries());
        (carries.collect::<Vec<f64>>(), said)
    };
    for (second, of, flag, expected, words) in [
        (&twenty, OF_PROMETHEUS, None, [10.0, 10.0], "carries: 10 of requests (the target of web"),
        (
            &twenty,
            OF_FILE,
            None,
            [10.0, 20.0],
            "do not compare: one pod carries 10 of requests (the target",
        ),
        (&ten, OF_FILE, None, [10.0, 10.0], "Judged by what one pod carries: 10 of requests"),
        (
            &annotated,
            OF_FILE,
            None,
            [16.0, 16.0],
            "16 of requests (the annotation plimsoll.dev/pod-carries of web",
        ),
        (&annotated, OF_PROMETHEUS, None, [16.0, 16.0], "16 of requests (the annotation"),
        (&annotated, OF_FILE, Some(9.0), [9.0, 9.0], "carries: 9 (as given)."),
        (
            &other,
            OF_FILE,
            None,
            [10.0, 20.0],
            "do not compare: one pod carries 10 of requests (the",
        ),
        (&annotated_other, OF_FILE, None, [16.0, 16.0], "Judged by what one pod carries: 16 of"),
        (
            &other,
            OF_PROMETHEUS,
            None,
            [10.0, 20.0],
            "Judged by what one pod carries: 10 of requests",
        ),
        (&annotated_other, OF_PROMETHEUS, None, [10.0, 16.0], "Judged by what one pod carries: 10"),
    ] {
        let (carries, said) = judged(second, of, flag);
        assert_eq!(carries, expected, "{said}");
        assert!(said.contains(words), "{said}");
    }
}

#[tokio::test]
async fn the_report_says_by_which_number_it_judges() {
    let [ten, twenty] = ["10", "20"].map(plain_autoscaler);
    let text = ran(&[&ten, &twenty], OF_FILE).await.expect("a report");
    assert!(text.contains("Each is judged by a number of its own"), "{text}");
    // The target is a length of the queue, and no load.
    let queue = ["--load", "load.csv", "--feedback", "queue", "--service-rate", "5"];
    let text = ran(&[&ten], &queue).await.expect("a report");
    assert!(!text.contains("Judged") && text.contains("each ready pod completes 5"), "{text}");
    for format in ["json", "svg"] {
        let text = ran(&[&ten], &[&queue[..], &["-o", format]].concat()).await.expect("a report");
        assert!(text.contains("each ready pod completes 5"), "{format}: {text}");
    }
    let page = ran(&[&ten], &[&queue[..], &["-o", "html"]].concat()).await.expect("a report");
    assert!(page.contains("web: one pod carries 5; at least 1 are needed."));
}

#[tokio::test]
async fn a_page_says_of_schedules_what_the_figures_go_by() {
    let schedules = json!([{"name": "day", "timeZone": "UTC", "start": "0 0 * * *",
        "end": "0 20 * * *", "minReplicas": 9}]);
    let day = autoscaler("10", Value::Null, ("schedules", schedules));
    let page = ran(&[&day], &[OF_FILE, &["-o", "html"]].concat()).await.expect("a report");
    assert!(page.contains("at least 1 are needed, or fewer where a schedule allows fewer."));
    assert!(!page.contains("as its schedules say"));
    assert!(page.contains("the decisions shown are all changes, and one in 15s."));
}

#[tokio::test]
async fn what_is_unknown_is_no_good_news() {
    let ten = plain_autoscaler("10");
    let gap = "time,value\n0,20\n43200,\n86400,20\n";
    let text = ran_on(gap, &[&ten], OF_FILE).await.expect("a report");
    let known = "never short of pods in the 0.5 of 1440.2 minutes in which the load is known";
    assert!(text.contains(known), "{text}");
    let some = "time,value\n0,20\n1,90\n600,90\n800,\n1200,90\n";
    let text = ran_on(some, &[&ten], OF_FILE).await.expect("a report");
    assert!(text.contains("in which the load is known: at worst 2 of 9 ready, at"), "{text}");
    let text = ran(&[&ten], OF_FILE).await.expect("a report");
    assert!(!text.contains("is known"), "{text}");
}

#[tokio::test]
async fn gaps_at_the_ends_of_a_load_are_listed() {
    let ten = plain_autoscaler("10");
    let low = async |load: &str, of: &[&str]| {
        let of = [OF_FILE, &["-o", "json"], of].concat();
        let report = ran_on(load, &[&ten], &of).await.expect("a report");
        let report: Value = serde_json::from_str(&report).expect("JSON");
        let parts = report["lowConfidence"].as_array().expect("parts").iter();
        let parts = parts.map(|part| (part["from"].clone(), part["to"].clone()));
        (report["from"].clone(), parts.collect::<Vec<_>>())
    };
    let part = |from: f64, to: f64| (json!(from), json!(to));
    let ends = "time,value\n0,\n300,20\n900,90\n1800,30\n2400,\n90000,\n";
    let expected = vec![part(0.0, 300.0), part(1_800.0, 90_000.0)];
    assert_eq!(low(ends, &[]).await, (json!(300), expected));
    // Of a part that begins and ends within gaps, what of them is in it.
    let gaps = "time,value\n0,20\n1000,\n3600,20\n5400,30\n6000,\n7200,20\n";
    let expected = vec![part(1_800.0, 3_600.0), part(5_400.0, 6_500.0)];
    assert_eq!(low(gaps, &["--from=1800", "--to=6500"]).await, (json!(3_600), expected));
}

#[tokio::test]
async fn little_is_not_said_to_be_nothing() {
    let ten = plain_autoscaler("10");
    let short = "time,value\n0,20\n1,30\n2,20\n30,20\n";
    let of = [OF_FILE, &["--window=1s", "--scrape-interval=1s", "--period=1s"]].concat();
    let text = ran_on(short, &[&ten], &of).await.expect("a report");
    assert!(text.contains("short of pods for 0.02 minutes: at worst 2 of 3 ready"), "{text}");
    assert!(text.contains("31 decisions in 30s, from 1970-01-01T00:00:00Z"), "{text}");
}

#[tokio::test]
async fn candidates_of_different_periods_are_compared_by_the_minute() {
    let ten = plain_autoscaler("10");
    let rare = autoscaler("10", Value::Null, ("syncPeriodSeconds", json!(600)));
    let flat = "time,value\n0,20\n1800,20\n";
    let text = ran_on(flat, &[&rare, &ten], OF_FILE).await.expect("a report");
    let expected = "+0.0 % replicas on average (they are counted for 30.2 and 40.0 minutes)";
    assert!(text.contains(expected), "{text}");
    assert!(text.contains("121 decisions in 30m"), "{text}");
}

#[test]
fn what_kubernetes_would_drop_is_not_tried() {
    let typo = autoscaler("10", Value::Null, ("minReplica", json!(20)));
    let failed = subjects(&[&typo], OF_FILE).failed;
    assert!(failed[0].contains("spec.minReplica: unknown field"), "{failed:?}");
    let hpa = hpa("shop").replace("maxReplicas", "behaviour\":{},\"maxReplicas");
    let failed = subjects(&[&hpa], OF_FILE).failed;
    assert!(failed[0].contains("spec.behaviour: unknown field"), "{failed:?}");
    // No map would be written to.
    let failed = subjects(&[&autoscaler("10", json!("foo"), ("minReplicas", json!(1)))], OF_FILE);
    assert!(
        failed.failed[0].contains("metadata.annotations: a string: expected object"),
        "{:?}",
        failed.failed
    );
}

#[tokio::test]
async fn a_name_that_is_no_metric_is_refused() {
    let ten = plain_autoscaler("10");
    let asked = async |query: &str| {
        let of = [OF_PROMETHEUS, &["--query", query]].concat();
        ran(&[&ten], &of).await.expect_err("nobody answers")
    };
    let error = asked("nonsense=up").await;
    assert_eq!(error, "--query: \"nonsense\" is no metric of it: requests was expected");
    let error = asked("requests=sum(up)").await;
    assert!(error.contains("can't be reached: http://127.0.0.1:1/: "), "{error}");
    let annotations = json!({carries::ANNOTATION: "requestz=16"});
    let wrong = autoscaler("10", annotations, ("minReplicas", json!(1)));
    let failed = subjects(&[&wrong], OF_FILE).failed;
    assert!(failed[0].contains("\"requestz\" is no metric of it: requests was"), "{failed:?}");
    // A flag that is stronger needs none.
    let of = [OF_FILE, &["--pod-carries", "9"]].concat();
    assert_eq!(subjects(&[&wrong], &of).failed, [""; 0]);
}

#[tokio::test]
async fn a_fleet_of_which_none_is_tried_fails() {
    let ten = plain_autoscaler("10");
    let other = ten.replace("web", "api");
    let error = ran(&[&ten, &other], OF_PROMETHEUS).await.expect_err("nobody answers");
    assert!(error.starts_with("none of 2 autoscalers could be tried:\n  shop/web: "), "{error}");
    assert_eq!(format!("{:+.0} {:+.1}", tidy(-0.0, 0), tidy(-0.04, 1)), "+0 +0.0");
}

#[tokio::test]
async fn less_history_than_a_period_is_told() {
    let of = [OF_PROMETHEUS, &["--from=-10s"]].concat();
    let error = ran(&[&plain_autoscaler("10")], &of).await.expect_err("too little");
    assert!(error.contains("10s of history") && error.contains("which is 15s"), "{error}");
}

#[tokio::test]
async fn a_part_without_load_is_told_with_the_times_of_the_load() {
    let load = "the load is from 1970-01-01T00:00:00Z to 1970-01-01T00:30:00Z";
    for (part, expected) in [
        (&["--from=2022-01-01"][..], "load.csv: --from 2022-01-01T00:00:00Z: "),
        (&["--to=60"], "load.csv: --to 1970-01-01T00:01:00Z: "),
        (
            &["--from=60", "--to=120"],
            "load.csv: --from 1970-01-01T00:01:00Z --to 1970-01-01T00:02:00Z: ",
        ),
    ] {
        let error =
            ran(&[&plain_autoscaler("10")], &[OF_FILE, part].concat()).await.expect_err("none");
        assert!(error.contains(expected) && error.ends_with(load), "{error}");
    }
}

#[test]
fn flags_without_effect_are_refused() {
    let parsed = |line: &str| {
        let line = format!("plimsoll backtest -f web.yaml {line}");
        Cli::try_parse_from(line.split(' ')).map(|_| ()).map_err(|error| error.to_string())
    };
    for flag in ["--query a=b", "--request cpu=1", "--config c.yaml", "--prometheus-url http://p"] {
        let error = parsed(&format!("--load load.csv {flag}")).expect_err(flag);
        assert!(error.contains("cannot be used with"), "{error}");
        assert!(
            flag.contains("url") || parsed(&format!("--prometheus-url http://p {flag}")).is_ok()
        );
    }
    for flag in ["--window 60s", "--scrape-interval 15s"] {
        assert_eq!(parsed(&format!("--load load.csv {flag}")), Ok(()));
        assert!(parsed(&format!("--prometheus-url http://p {flag}")).is_err(), "{flag}");
    }
    let error = parsed("--warm-up 0s").expect_err("no load");
    assert!(error.contains("--load <LOAD") && error.contains("--prometheus-url <URL>"), "{error}");
}

fn hpa(namespace: &str) -> String {
    json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "maxReplicas": 10,
            "metrics": [{"type": "Pods", "pods": {"metric": {"name": "requests"},
                "target": {"type": "AverageValue", "averageValue": "10"}}}],
        },
    })
    .to_string()
}

#[test]
fn names_of_two_namespaces_are_told_apart_where_the_load_is_one() {
    let names = |flags: &[&str]| -> Vec<String> {
        let found = subjects(&[&hpa("staging"), &hpa("prod")], flags).found;
        found.into_iter().map(|subject| subject.candidate.name).collect()
    };
    let of_file = names(&["--load", "load.csv"]);
    assert!(of_file[0].contains("0.yaml") && of_file[1].contains("1.yaml"), "{of_file:?}");
    assert_eq!(names(&["--prometheus-url", "http://prometheus:9090"]), ["web", "web"]);
}

#[test]
fn no_one_is_told_to_delete_an_hpa_that_is_only_tried() {
    assert_eq!(subjects(&[&hpa("shop")], OF_FILE).notes, [""; 0]);
    let object = json!({"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"scaleTargetRef": {"name": "web"}, "minReplicaCount": 1, "triggers": [{"type": "prometheus",
            "metadata": {"serverAddress": "http://other:9090", "query": "sum(x{namespace=\"shop\"})",
                "threshold": "5"}}]}})
    .to_string();
    let notes = |of: &[&str]| subjects(&[&object], of).notes.join("\n");
    for of in [OF_FILE, OF_PROMETHEUS] {
        let notes = notes(of);
        assert!(!notes.contains("Delete the ScaledObject") && !notes.contains("mode:"), "{notes}");
        assert_eq!(notes.contains("serverAddress"), of == OF_PROMETHEUS, "{notes}");
        assert!(notes.contains("ignoreNullValues"), "{notes}");
    }
}

/// An HPA with these metrics.
pub(super) fn hpa_of(metrics: &[&Value]) -> String {
    let spec = json!({
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "maxReplicas": 10, "metrics": metrics,
    });
    let metadata = json!({"name": "web", "namespace": "shop"});
    let kind = "HorizontalPodAutoscaler";
    json!({"apiVersion": "autoscaling/v2", "kind": kind, "metadata": metadata, "spec": spec})
        .to_string()
}

/// A metric of an Ingress.
pub(super) fn of_ingress(target: &Value) -> Value {
    let ingress = json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "name": "web"});
    let metric = json!({"name": "requests_per_second"});
    json!({"type": "Object", "object": {"metric": metric, "describedObject": ingress, "target": target}})
}

#[tokio::test]
async fn a_metric_of_an_object_is_a_total_that_the_pods_share() {
    let average = json!({"type": "AverageValue", "averageValue": "10500m"});
    let external = json!({"type": "External", "external": {
        "metric": {"name": "requests_per_second"}, "target": average}});
    let flags = [OF_FILE, &["-o", "json"]].concat();
    let mut reports = Vec::new();
    for metric in [&of_ingress(&average), &external] {
        reports.push(ran(&[&hpa_of(&[metric])], &flags).await.expect("a report"));
    }
    assert_eq!(reports[0], reports[1]);
    assert!(
        reports[0].contains("\"judged\":\"Judged by what one pod carries: 10.5"),
        "{}",
        reports[0]
    );
}

#[tokio::test]
async fn a_metric_with_a_value_as_its_target_is_left_out() {
    let value = json!({"type": "Value", "value": "1k"});
    let external = json!({"type": "External", "external": {
        "metric": {"name": "orders"}, "target": value}});
    for metric in [&of_ingress(&value), &external] {
        let error = ran(&[&hpa_of(&[metric])], OF_FILE).await.expect_err("nothing says how many");
        assert!(error.contains("an averageValue was expected"), "{error}");
        let pods = json!({"type": "Pods", "pods": {"metric": {"name": "requests"},
            "target": {"type": "AverageValue", "averageValue": "10"}}});
        let alone = ran(&[&hpa_of(&[&pods])], OF_FILE).await.expect("a report");
        let text = ran(&[&hpa_of(&[metric, &pods])], OF_FILE).await.expect("a report");
        let doubts = text.lines().find(|line| line.starts_with("Low trust: web: left out is"));
        let doubts = format!("{}\n", doubts.expect("what is left out"));
        assert_eq!(text.replace(&doubts, ""), alone);
    }
}

#[tokio::test]
async fn what_is_taken_for_a_load_is_said() {
    let report = ran(&[&plain_autoscaler("10")], &[OF_FILE, &["-o", "json"]].concat()).await;
    let report: Value = serde_json::from_str(&report.expect("a report")).expect("JSON");
    let said = "web: requests is taken for a load, which is the same with any number of pods.";
    assert!(report["assumptions"].as_array().unwrap().contains(&json!(said)), "{report}");
    let flags = [OF_FILE, &["--feedback=queue", "--service-rate=5"]].concat();
    let latency = plain_autoscaler("10").replace("requests", "request_duration_seconds_p95");
    let error = ran(&[&latency], &flags).await.expect_err("a time");
    assert!(error.contains("it is no length of a queue"), "{error}");
    let report = ran(&[&plain_autoscaler("10")], &[&flags[..], &["-o", "json"]].concat()).await;
    assert!(!report.expect("a report").contains("taken for a load"));
}

/// A ScaledObject of one trigger of this query, which is idle at zero and else has at least three replicas.
pub(super) fn idle(query: &str) -> String {
    json!({"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"scaleTargetRef": {"name": "web"}, "idleReplicaCount": 0, "minReplicaCount": 3, "triggers": [
            {"type": "prometheus", "metadata": {"query": query, "threshold": "10"}}]}})
    .to_string()
}

#[tokio::test]
async fn an_idle_object_is_tried_on_the_load_of_its_trigger() {
    let object = idle("sum(rate(requests_total{namespace=\"shop\"}[2m]))");
    for flags in [&[][..], &["--pod-carries", "12"], &["-o", "json"]] {
        let report = ran(&[&object], &[OF_FILE, flags].concat()).await.expect("a report");
        let carries = if flags.len() == 2 && flags[1] == "12" { "12" } else { "10 of trigger-0" };
        assert!(
            report.contains(&format!("Judged by what one pod carries: {carries} (")),
            "{report}"
        );
        assert!(!report.contains("_least"), "{report}");
    }
    let queue = idle("sum(queue_length{namespace=\"shop\"})");
    let flags = [OF_FILE, &["--feedback=queue", "--service-rate=5", "-o", "json"]].concat();
    let report = ran(&[&queue], &flags).await.expect("a report");
    assert!(report.contains("one pod carries 5; "), "{report}");
    // Of two triggers, a file has not both loads.
    let mut both: Value = serde_json::from_str(&object).expect("JSON");
    let more = both["spec"]["triggers"][0].clone();
    both["spec"]["triggers"].as_array_mut().expect("a list").push(more);
    let error = ran(&[&both.to_string()], OF_FILE).await.expect_err("two loads");
    assert!(error.contains("2 metrics: one was expected"), "{error}");
}

/// A load in rows that are so many seconds apart.
fn rows(distance: i64) -> String {
    let row = |row: i64| format!("{},{}\n", row * distance, 20 + row * 7 % 13);
    (0..20).map(row).fold("time,value\n".to_owned(), |text, row| text + &row)
}

#[tokio::test]
async fn rows_that_are_further_apart_than_pods_take_to_start_are_told() {
    let file = plain_autoscaler("10");
    for format in ["text", "json", "html"] {
        let of = ["--load", "load.csv", "-o", format];
        let text = ran_on(&rows(3_600), &[&file], &of).await.expect("a report");
        assert!(
            text.contains("rows of the load are 60 min apart: peaks between them are not seen"),
            "{text}"
        );
        let text = ran_on(&rows(60), &[&file], &of).await.expect("a report");
        assert!(!text.contains("peaks between them"), "{text}");
    }
    let of = ["--load", "load.csv", "--window", "1h"];
    let text = ran_on(&rows(3_600), &[&file], &of).await.expect("a report");
    assert!(!text.contains("peaks between them"), "{text}");
}

#[tokio::test]
async fn an_object_without_a_name_is_refused() {
    let file = plain_autoscaler("10").replace(r#""name":"web","namespace""#, r#""namespace""#);
    let error = ran(&[&file], OF_FILE).await.expect_err("it has no name");
    assert!(error.contains("metadata.name: a name was expected"), "{error}");
}

#[test]
fn a_compressed_file_that_is_cut_off_is_told() {
    use std::io::Write as _;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("load.csv.gz");
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(rows(60).as_bytes()).expect("in memory");
    let whole = gzip.finish().expect("in memory");
    let padded = [&*whole, &[0; 512]].concat();
    for bytes in [&whole[..whole.len() - 12], &padded] {
        std::fs::write(&path, bytes).expect("a file");
        let error = load(&path).expect_err("it is not whole");
        assert!(error.contains("cut off, or has something after its end"), "{error}");
    }
}
