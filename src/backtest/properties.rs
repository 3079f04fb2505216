//! What holds of backtests of any load.

use super::measured::Measured;
use super::workload::Workload;
use super::*;
use crate::hpa::{MetricTrace, Requests, Samples, Step, Trace as Traced};
use crate::time::UnixMillis;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Duration;

/// What there is to see of a decision.
#[derive(Debug, PartialEq)]
struct One {
    time: UnixMillis,
    replicas: [i32; 2],
    ready: usize,
    needed: Option<i64>,
    loads: Vec<Option<f64>>,
}

#[derive(Debug, Default)]
struct Seen(Vec<One>);

impl Traced for Seen {
    fn metric(&mut self, _: usize, _: &MetricTrace) {}
    fn step(&mut self, _: Step) {}
}

impl Observer for Seen {
    fn decided(&mut self, decided: &Decided<'_>) {
        let Decided { context, current, wanted, ready, needed, loads, .. } = *decided;
        let (time, replicas, loads) = (context.now, [current, wanted], loads.to_vec());
        self.0.push(One { time, replicas, ready, needed, loads });
    }
}

/// A candidate with one metric of pods, or of the workload, and with these fields beside.
fn candidate(of_pods: bool, fields: &Value) -> Candidate {
    let mut spec = json!({
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "minReplicas": 1, "maxReplicas": 60,
        "customMetrics": [{"metricName": "requests", "averageValue": "10"}],
    });
    if !of_pods {
        spec["customMetrics"][0]["per"] = json!("Workload");
        spec["customMetrics"][0]["query"] = json!("sum(rate(r_total{namespace=\"shop\"}[1m]))");
    }
    let fields = fields.as_object().expect("fields").clone();
    spec.as_object_mut().expect("a spec").extend(fields);
    Candidate::new("web", "shop", spec).expect("a candidate")
}

/// Windows of a schedule: none, one, or each twenty minutes.
fn schedules() -> impl Strategy<Value = Value> {
    let once = (0..50_u32, 1..9_u32, 0..30_i64, 30..60_i64).prop_map(|(from, length, min, max)| {
        let time = |minute: u32| format!("1970-01-01T{:02}:{:02}:00Z", minute / 60, minute % 60);
        json!([{"name": "once", "from": time(from), "until": time(from + length * 5),
            "minReplicas": min.max(1), "maxReplicas": max}])
    });
    let often = (1..30_i64).prop_map(|min| {
        json!([{"name": "often", "start": "*/20 * * * *", "end": "7,27,47 * * * *", "minReplicas": min}])
    });
    prop_oneof![Just(json!([])), once, often]
}

/// Rows: the seconds since the one before, and the load, which is unknown in gaps.
fn rows() -> impl Strategy<Value = Vec<(i64, Option<u32>)>> {
    let load = proptest::option::weighted(0.85, prop_oneof![0..40_u32, 0..500_u32]);
    prop::collection::vec((1..180_i64, load), 4..80)
}

/// The file that has them.
fn file(rows: &[(i64, Option<u32>)]) -> String {
    let (mut text, mut time) = ("time,value\n".to_owned(), 0);
    for (seconds, load) in rows {
        time += seconds;
        let load = load.map(|load| load.to_string()).unwrap_or_default();
        let _ = writeln!(text, "{time},{load}");
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn a_file_that_is_cut_off_anywhere_gives_the_same_beginning(
        rows in rows(),
        cut in any::<prop::sample::Index>(),
        of_pods in any::<bool>(),
        min in 0..4_i64,
        schedules in schedules(),
        window in 0..300_u64,
        scrape_interval in 1..60_u64,
        pod_start in 0..300_u64,
        service_rate in proptest::option::of(1..20_u32),
    ) {
        let min = if of_pods { min.max(1) } else { min };
        let candidate = candidate(of_pods, &json!({"minReplicas": min, "schedules": schedules}));
        let options = Options {
            pod_start: Duration::from_secs(pod_start),
            window: Duration::from_secs(window),
            scrape_interval: Duration::from_secs(scrape_interval),
            warm_up: Duration::ZERO,
            period: None,
            service_rate: service_rate.map(f64::from),
        };
        let run = |rows: &[(i64, Option<u32>)]| {
            let load = Load::read(file(rows).as_bytes()).ok()?;
            let mut seen = Seen::default();
            let run = run_observed(&candidate, &load, &options, &mut seen).expect("a run");
            Some((run, seen.0))
        };
        // A file has two rows with a value at least.
        let parts = (run(&rows), run(&rows[..cut.index(rows.len())]));
        if let (Some((all, of_all)), Some((part, of_part))) = parts {
            prop_assert_eq!(&of_all[..of_part.len()], &of_part[..]);
            let mut until = all.replicas;
            until.retain(|(time, ..)| *time <= part.last);
            prop_assert_eq!(until, part.replicas);
        }
    }

    #[test]
    fn the_load_of_the_pods_adds_up_to_the_load(
        ticks in prop::collection::vec((proptest::option::of(0..5_000_000_u32), 0..60_usize), 1..40),
        pod_start in 0..90_000_i64,
    ) {
        let (pods, total) = (candidate(true, &json!({})), candidate(false, &json!({})));
        let requests = Requests::default();
        let mut workload = Workload::new(3, 0, pod_start, &requests);
        let [mut of_pods, mut of_all] = [&pods, &total].map(Measured::new);
        for (tick, (load, wanted)) in ticks.into_iter().enumerate() {
            let now = tick as UnixMillis * 15_000;
            workload.advance(now);
            // In thousandths, as samples are.
            let values = [load.map(|milli| f64::from(milli) / 1000.0)];
            let expected = load.map(i64::from);
            for measured in [&mut of_pods, &mut of_all] {
                measured.set(&values, &workload, now, 60_000);
            }
            let ready = workload.ready();
            match &*of_pods.samples() {
                [Samples::PerPod(Ok(samples))] => {
                    let samples = samples.of_pods;
                    prop_assert_eq!(samples.len(), workload.pods().len());
                    prop_assert!(samples[ready..].iter().all(Option::is_none), "none of others");
                    let shares: Vec<i64> =
                        samples.iter().flatten().map(|sample| sample.milli).collect();
                    prop_assert_eq!(shares.len(), if load.is_some() { ready } else { 0 });
                    prop_assert!(shares.windows(2).all(|pair| pair[0] == pair[1]), "equal shares");
                    if let Some(expected) = expected.filter(|_| ready > 0) {
                        // Each share is rounded up to a thousandth.
                        let more = shares.iter().sum::<i64>() - expected;
                        prop_assert!((0..ready as i64).contains(&more), "{more} of {ready}");
                    }
                }
                other => panic!("{other:?}"),
            }
            match &*of_all.samples() {
                [Samples::Values(values)] => {
                    prop_assert_eq!(values.ok().map(<[i64]>::to_vec), expected.map(|one| vec![one]));
                }
                other => panic!("{other:?}"),
            }
            workload.scale(wanted, now);
        }
    }
}
