//! What kube-controller-manager's own HPA did under a load: `plimsoll backtest --prometheus-url` tells it from
//! Prometheus alone, and `plimsoll compare` from the decisions that were made beside it. `make reproduce` takes twenty
//! minutes, with the period of every cluster.

use crate::on_own_bed;
use crate::operating::plugin;
use bed::kube_state_metrics::KubeStateMetrics;
use bed::plimsoll::binary;
use bed::workload::Namespace;
use bed::{Bed, Options};
use plimsoll::promql::name::generated_name;
use serde_json::{Value, json};
use std::fmt::Write;
use std::process::Command;
use std::time::{Duration, SystemTime};

/// How long a part of the run is, and how many there are.
struct Live {
    period: u64,
    epochs: usize,
}

fn live() -> Live {
    match std::env::var("REPRODUCE") {
        Ok(minutes) => {
            let minutes: usize = minutes.parse().expect("REPRODUCE is a number of minutes");
            Live { period: 15, epochs: minutes * 4 }
        }
        Err(_) => Live { period: 5, epochs: 42 },
    }
}

fn seconds() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock").as_secs_f64()
}

/// A load that ranges over a factor of five, in waves, with a step now and then.
fn load(epoch: usize) -> f64 {
    let wave = 60.0 + 40.0 * (epoch as f64 * std::f64::consts::TAU / 14.0).sin();
    match epoch % 23 {
        20..23 => 100.0,
        _ => wave,
    }
}

#[test]
fn a_live_run_of_kube_controller_managers_hpa_is_reproduced() {
    let Live { period, epochs } = live();
    let decisions = vec![
        format!("--horizontal-pod-autoscaler-sync-period={period}s"),
        "--horizontal-pod-autoscaler-downscale-stabilization=300s".to_owned(),
    ];
    on_own_bed(Options { decisions, ..Options::default() }, async |bed| {
        let _state = KubeStateMetrics::start(&mut bed.cluster).await;
        let ns = Namespace::new(&bed.cluster, "reproduced").await;
        let start = (seconds() / 10.0).ceil() * 10.0 + 20.0;
        let values: Vec<String> = (0..epochs).map(|epoch| format!("{:.3}", load(epoch))).collect();
        let recording = format!("{start} {period}; requests {}", values.join(" "));
        deploy(&ns, &recording).await;
        ns.wait_ready("Deployment", "web", 8).await;
        let metric = generated_name("requests", None, &ns.name, "web");
        let behavior = json!({"scaleDown": {"stabilizationWindowSeconds": 2 * period}});
        let hpa = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "web", "namespace": ns.name},
            "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "minReplicas": 1, "maxReplicas": 20, "behavior": behavior,
                "metrics": [{"type": "Pods", "pods": {"metric": {"name": metric},
                    "target": {"type": "AverageValue", "averageValue": "7"}}}]}});
        // Each decision is within a value of the load, not between two.
        let creation = start + 0.5 * period as f64;
        tokio::time::sleep(Duration::from_secs_f64((creation - seconds()).max(0.0))).await;
        ns.cluster.apply(&hpa.to_string()).await;
        let end = start + epochs as f64 * period as f64;
        tokio::time::sleep(Duration::from_secs_f64((end - seconds()).max(0.0))).await;
        let tried = backtest(bed, &hpa, start + 6.0 * period as f64, end);
        println!("{}", picture(&tried));
        let reproduction = &tried["reproduction"];
        let figure = |value: &Value, name: &str| value[name].as_f64().expect("a share");
        let changes = reproduction["changes"].as_u64().expect("a number");
        let is_long = period == 15;
        assert!(changes >= if is_long { 20 } else { 10 }, "{changes} changes: {reproduction}");
        assert_eq!(reproduction["source"], "kube-state-metrics");
        for guess in ["stay", "needed"] {
            let guess = &reproduction[guess];
            let worse = figure(reproduction, "equal") - figure(guess, "equal");
            assert!(worse >= 0.2, "{worse}: {reproduction}");
            let [ours, theirs] = [reproduction, guess].map(|of| figure(of, "meanDifference"));
            assert!(ours < theirs / 2.0, "{reproduction}");
        }
        // A machine that is busy keeps pods and scrapes from being in time: then another load was seen live.
        if is_long {
            assert!(figure(reproduction, "withinOne") >= 0.95, "{reproduction}");
            assert!(figure(reproduction, "equal") >= 0.8, "{reproduction}");
            assert_eq!(reproduction["trust"], "high");
        }
        agrees(bed, &ns, period, epochs).await;
    });
}

/// Checks that what Plimsoll decided beside kube-controller-manager is what that decided, while the load moved.
async fn agrees(bed: &Bed, ns: &Namespace<'_>, period: u64, epochs: usize) {
    let of = ["compare", "-n", &ns.name];
    println!("{}", plugin(bed, &of).await.expect("a report"));
    let report = plugin(bed, &[&of[..], &["-o", "json"]].concat()).await.expect("a report");
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let [decisions, equal] = ["decisions", "equal"]
        .map(|name| report["hpas"][0][name].as_u64().unwrap_or_else(|| panic!("{report}")));
    // One each period.
    assert!(decisions as usize * 10 >= epochs * 9, "{epochs} periods of {period} s: {report}");
    // The others are of other values: the load steps with each period, which the two begin at times of their own.
    assert!(equal * 4 >= decisions * 3, "{report}");
    let difference = &report["hpas"][0]["firstDifference"];
    assert!(equal == decisions || difference["cause"].is_string(), "{report}");
}

async fn deploy(ns: &Namespace<'_>, recording: &str) {
    let labels = json!({"app": "web"});
    let annotations = json!({"bed.plimsoll.dev/recording": recording,
        "bed.plimsoll.dev/ready-after": "4s"});
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": ns.name},
        "spec": {"replicas": 8, "selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels, "annotations": annotations},
            "spec": {"terminationGracePeriodSeconds": 0,
                "containers": [{"name": "app", "image": "fleet"}]}}},
    });
    ns.cluster.apply(&deployment.to_string()).await;
}

fn backtest(bed: &Bed, hpa: &Value, from: f64, to: f64) -> Value {
    let file = bed.cluster.folder.join("in-force.json");
    std::fs::write(&file, hpa.to_string()).expect("a file");
    let mut command = Command::new(binary());
    command.arg("backtest").arg("-f").arg(file).args(["--output", "json"]);
    command.arg(format!("--prometheus-url=http://127.0.0.1:{}", bed.cluster.prometheus_port));
    command.arg(format!("--period={}s", live().period));
    command.arg(format!("--from={}", from as i64)).arg(format!("--to={}", to as i64));
    let output = command.output().expect("it can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The recorded and the simulated replicas, where they change, and the figures.
fn picture(tried: &Value) -> String {
    let mut text = "time        recorded  backtest\n".to_owned();
    for row in tried["reproduction"]["replicas"].as_array().into_iter().flatten() {
        let _ = writeln!(text, "{:<12} {:>7} {:>9}", row[0], row[1], row[2]);
    }
    let mut reproduction = tried["reproduction"].clone();
    reproduction["replicas"].take();
    let _ = writeln!(text, "{reproduction}\npodStart: {}", tried["podStart"]);
    text
}
