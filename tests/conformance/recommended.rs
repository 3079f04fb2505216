//! What `plimsoll recommend` finds on recorded traces, beside the rival that counts: a target with some headroom.

use plimsoll::backtest::{Candidate, Limits, Load, Options, Trace, Trial, search};
use serde_json::json;
use std::fs::File;
use std::io::BufReader;
use std::time::Duration;

/// The traces: CPU of production services and requests to a web site, with a point each minute.
const TRACES: [&str; 5] = ["crane-00", "crane-02", "crane-08", "crane-14", "worldcup98-may-june"];

pub fn load(trace: &str) -> Load {
    let path = format!("{}/tests/data/traces/{trace}.csv.gz", env!("CARGO_MANIFEST_DIR"));
    let file = flate2::read::MultiGzDecoder::new(File::open(&path).expect("a trace"));
    Load::read(BufReader::new(file)).expect("a load")
}

/// What headroom alone leaves short for these replica-hours, on the part that nothing was tuned on: between those that were
/// tried.
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
    let mut better = 0;
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
        let found =
            search(&present, &spec, &Trace::File(load), &options, Limits::default()).unwrap();
        let label = found.label().expect(&found.reason);
        let chosen = found.recommended.expect("it has a label");
        let all = || found.others.iter().chain([&chosen]);
        let plain: Vec<&Trial> = all().filter(|trial| trial.is_plain).collect();
        let eight =
            plain.iter().find(|trial| (trial.nominal - 8.0).abs() < 1e-9).expect("8 % of headroom");
        let (hours, short) = (chosen.shown().replica_hours, chosen.shown().under_pod_minutes);
        let headroom = headroom_at(&plain, hours);
        let present = found.present.shown().under_pod_minutes;
        println!(
            "{trace}: {}: {short:.1} pod-minutes short at {hours:.1} replica-hours; headroom alone {headroom:.1}, and 8 % of it {:.1} at {:.1}; present {present:.1}",
            chosen.label,
            eight.shown().under_pod_minutes,
            eight.shown().replica_hours,
        );
        if trace == "crane-02" {
            let share = |before: f64, after: f64| (after / before - 1.0) * 100.0;
            let expected = format!(
                "web: {label}: {:+.1} % pod-minutes short and {:+.1} % replica-hours on the part that was not tuned on",
                share(present, short),
                share(found.present.shown().replica_hours, hours),
            );
            let page = include_str!("../../docs/recommend.md");
            assert!(page.contains(&expected), "docs/recommend.md: {expected}");
        }
        better += usize::from(short < headroom * 0.95);
        let is_cheaper = hours <= eight.shown().replica_hours;
        assert!(
            is_cheaper && short <= eight.shown().under_pod_minutes,
            "{trace}: {}",
            chosen.label
        );
        assert!(short < present * 0.6, "{trace}");
    }
    assert!(better >= 4, "less is short than with headroom of the same cost on {better} traces");
}
