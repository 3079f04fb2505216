//! What `plimsoll recommend` finds on recorded traces, beside the rival that counts: a target with some headroom.

use plimsoll::backtest::{Candidate, Keep, Limits, Load, Options, Trace, Trial, search};
use serde_json::json;
use std::fs::File;
use std::io::BufReader;
use std::time::Duration;

/// The traces: CPU of production services, with a point each minute.
const TRACES: [&str; 4] = ["crane-00", "crane-02", "crane-08", "crane-14"];

fn load(trace: &str) -> Load {
    let path = format!("{}/tests/data/traces/{trace}.csv.gz", env!("CARGO_MANIFEST_DIR"));
    let file = flate2::read::MultiGzDecoder::new(File::open(&path).expect("a trace"));
    Load::read(BufReader::new(file)).expect("a load")
}

/// What headroom alone leaves short for these replica-hours, on the part that nothing was tuned on.
fn headroom_at(plain: &[&Trial], hours: f64) -> f64 {
    let mut points: Vec<(f64, f64)> = plain
        .iter()
        .map(|trial| (trial.shown().replica_hours, trial.shown().under_pod_minutes))
        .collect();
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    let next = points.partition_point(|(at, _)| *at < hours).clamp(1, points.len() - 1);
    let ((from, short), (to, less)) = (points[next - 1], points[next]);
    short + (less - short) * ((hours - from) / (to - from)).clamp(0.0, 1.0)
}

#[test]
fn what_is_recommended_is_no_worse_than_headroom_on_what_it_was_not_tuned_on() {
    let minute = Duration::from_secs(60);
    let options = Options {
        pod_start: minute,
        window: minute,
        scrape_interval: Duration::from_secs(15),
        warm_up: Duration::ZERO,
        period: Some(minute),
        service_rate: None,
    };
    let limits = Limits { budget: None, under_minutes: None, headroom: 0.0, keep: Keep::default() };
    for trace in TRACES {
        let load = load(trace);
        let mut values: Vec<f64> = load.points().map(|(_, value)| value).collect();
        values.sort_by(f64::total_cmp);
        let carries = values[values.len() / 2] / 10.0;
        let spec = json!({
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": 1, "maxReplicas": 1000,
            "customMetrics": [{"metricName": "requests", "averageValue": format!("{carries:.6}")}]});
        let present = Candidate::new("web", "shop", spec.clone()).unwrap();
        let found = search(&present, &spec, &Trace::File(load), &options, limits).unwrap();
        let chosen = found.recommended.expect(&found.reason);
        // Without the chosen one, which may be one of them.
        let plain: Vec<&Trial> = found.others.iter().filter(|trial| trial.is_plain).collect();
        let (hours, short) = (chosen.shown().replica_hours, chosen.shown().under_pod_minutes);
        let headroom = headroom_at(&plain, hours);
        println!(
            "{trace}: {}: {short:.1} pod-minutes short at {hours:.1} replica-hours, headroom alone {headroom:.1}",
            chosen.label
        );
        assert!(short <= headroom * 1.05 + 1.0, "{trace}: {}", chosen.label);
        assert!(short < found.present.shown().under_pod_minutes * 0.6, "{trace}");
    }
}
