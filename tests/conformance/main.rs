//! Every decision equals that of the HPA controller of Kubernetes 1.36.
//!
//! The corpus holds what the real controller did, tick by tick
//! (`tests/data/FORMAT.md`). `PLIMSOLL_CORPUS` names other files, separated by
//! `:`, each `.jsonl` or `.jsonl.gz`.

mod backtested;
mod loops;
mod recommended;
mod replay;
mod scenario;

use flate2::read::GzDecoder;
use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscalerSpec, HorizontalPodAutoscalerStatus,
};
use plimsoll::hpa;
use replay::replay;
use scenario::Scenario;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};

/// The canonical form of an `out`: the status is read through its own type, where null and absent
/// are the same.
fn canonical(out: &Value) -> Value {
    let status = out.get("status").filter(|status| !status.is_null()).map(|status| {
        let mut status: HorizontalPodAutoscalerStatus =
            serde_json::from_value(status.clone()).expect("a status");
        status.current_replicas.get_or_insert(0);
        status.conditions.get_or_insert_default();
        json!(status)
    });
    json!({
        "scaleTo": out.get("scaleTo"),
        "status": status,
        "events": out.get("events").cloned().filter(|e| !e.is_null()).unwrap_or(json!([])),
    })
}

fn corpus() -> Vec<String> {
    match std::env::var("PLIMSOLL_CORPUS") {
        Ok(paths) => paths.split(':').map(str::to_owned).collect(),
        Err(_) => ["smoke.jsonl", "open.jsonl.gz"]
            .map(|name| format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR")))
            .to_vec(),
    }
}

fn lines(path: &str) -> impl Iterator<Item = String> {
    let file = File::open(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let reader: Box<dyn Read> =
        if path.ends_with(".gz") { Box::new(GzDecoder::new(file)) } else { Box::new(file) };
    BufReader::with_capacity(1 << 20, reader).lines().map(|line| line.expect("UTF-8 text"))
}

#[test]
fn every_decision_equals_that_of_the_real_controller() {
    const SHOWN: usize = 5;
    let (mut agree, mut total, mut shown) = (0, 0, 0);
    for path in corpus() {
        for (number, line) in lines(&path).enumerate().filter(|(_, line)| !line.is_empty()) {
            let scenario: Scenario = serde_json::from_str(&line)
                .unwrap_or_else(|error| panic!("{path}:{}: {error}", number + 1));
            for (i, (tick, ours)) in scenario.ticks.iter().zip(replay(&scenario)).enumerate() {
                total += 1;
                let (expected, ours) = (canonical(&tick.out), canonical(&ours));
                if expected == ours {
                    agree += 1;
                } else if shown < SHOWN {
                    shown += 1;
                    let title = scenario.title.as_deref().unwrap_or("");
                    println!("{path}:{} {title} tick {i} (t={})", number + 1, tick.t);
                    for part in ["scaleTo", "status", "events"] {
                        if expected[part] != ours[part] {
                            println!("  {part} upstream: {}", expected[part]);
                            println!("  {part} ours:     {}", ours[part]);
                        }
                    }
                }
            }
        }
    }
    println!("{agree} of {total} ticks agree");
    assert!(total > 0, "the corpus is empty");
    assert_eq!(agree, total, "ticks differ from the real controller's");
}

#[test]
fn defaults_equal_those_of_the_api_server() {
    let path = format!("{}/tests/data/defaults.jsonl", env!("CARGO_MANIFEST_DIR"));
    let mut pairs = 0;
    for line in lines(&path) {
        let mut pair: Value = serde_json::from_str(&line).expect("a pair");
        let mut spec: HorizontalPodAutoscalerSpec =
            serde_json::from_value(pair["in"].take()).expect("a spec");
        let expected: HorizontalPodAutoscalerSpec =
            serde_json::from_value(pair["out"].take()).expect("a spec");
        hpa::apply_defaults(&mut spec);
        assert_eq!(json!(spec), json!(expected));
        pairs += 1;
    }
    assert_eq!(pairs, 400);
}
