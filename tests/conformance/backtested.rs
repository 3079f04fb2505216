//! The example of docs/backtest.md.

use plimsoll::backtest::{Candidate, Options, run};
use serde_json::json;
use std::time::Duration;

#[test]
fn the_example_of_a_backtest_is_what_it_prints() {
    let load = crate::recommended::load("crane-14");
    let options = Options {
        pod_start: Duration::from_secs(60),
        window: Duration::from_secs(60),
        scrape_interval: Duration::from_secs(15),
        warm_up: Duration::ZERO,
        period: None,
        service_rate: None,
    };
    for (name, target) in [("target-100", "4.38387"), ("target-80", "3.5071")] {
        let spec = json!({
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": 1, "maxReplicas": 1000,
            "customMetrics": [{"metricName": "load", "averageValue": target}]});
        let mut candidate = Candidate::new(name, "traces", spec).unwrap();
        candidate.metrics[0].pod_carries = Some(4.38387);
        let figures = run(&candidate, &load, &options).unwrap().figures;
        let worst = figures.worst_under.expect("it is short of pods");
        let expected = format!(
            "{name}: {:.1} replica-hours, and short of pods for {:.1} minutes: at worst {} of {} ready",
            figures.replica_hours, figures.under_minutes, worst.ready, worst.needed
        );
        assert!(include_str!("../../docs/backtest.md").contains(&expected), "{expected}");
    }
}
