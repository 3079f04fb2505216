//! Backtests against the HPA controller of Kubernetes 1.36 in the same closed loop (`tests/data/FORMAT.md`).

use crate::lines;
use flate2::read::GzDecoder;
use plimsoll::backtest::{Candidate, Load, Options, run};
use serde::Deserialize;
use serde_json::{Value, json};
use std::fs::File;
use std::io::BufReader;
use std::time::Duration;

/// A run of the real controller.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Loop {
    trace: String,
    days: i64,
    pod_start_seconds: u64,
    window_seconds: u64,
    scrape_interval_seconds: u64,
    average_value: String,
    behavior: Option<Value>,
    ticks: i64,
    replicas: Vec<(i64, usize, i32)>,
}

#[test]
fn a_backtest_equals_the_real_controllers_loop_at_every_tick() {
    let data = format!("{}/tests/data", env!("CARGO_MANIFEST_DIR"));
    let (mut runs, mut ticks) = (0, 0);
    for line in lines(&format!("{data}/loops.jsonl.gz")) {
        let expected: Loop = serde_json::from_str(&line).expect("a run");
        let file = File::open(format!("{data}/traces/{}", expected.trace)).expect("a trace");
        let load = Load::read(BufReader::new(GzDecoder::new(file))).expect("a load");
        let end = load.first() + expected.days * 86_400_000;
        let load = load.between(None, Some(end)).expect("some days");
        let spec = json!({
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": 2, "maxReplicas": 1000, "behavior": expected.behavior,
            "customMetrics": [{"metricName": "load", "averageValue": expected.average_value}],
        });
        let candidate = Candidate::new("web", "shop", spec).expect("a candidate");
        let options = Options {
            pod_start: Duration::from_secs(expected.pod_start_seconds),
            window: Duration::from_secs(expected.window_seconds),
            scrape_interval: Duration::from_secs(expected.scrape_interval_seconds),
            warm_up: Duration::ZERO,
            period: None,
            service_rate: None,
        };
        let ours = run(&candidate, &load, &options).expect("a run");
        let of_seconds = |(time, ready, wanted): &(i64, usize, i32)| (time / 1000, *ready, *wanted);
        let replicas: Vec<_> = ours.replicas.iter().map(of_seconds).collect();
        let differs = replicas.iter().zip(&expected.replicas).find(|(ours, theirs)| ours != theirs);
        assert_eq!(differs, None, "{} with {:?}", expected.trace, expected.behavior);
        assert_eq!(replicas.len(), expected.replicas.len(), "{}", expected.trace);
        assert_eq!(ours.ticks, expected.ticks, "{}", expected.trace);
        (runs, ticks) = (runs + 1, ticks + ours.ticks);
    }
    println!("{runs} runs, {ticks} ticks agree");
    assert_eq!(runs, 32);
}
