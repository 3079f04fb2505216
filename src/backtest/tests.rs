//! Backtests on small loads. `tests/conformance` runs those of recorded traces.

use super::*;
use serde_json::{Value, json};
use std::time::Duration;

/// A candidate whose pods carry 10 each, with these fields beside.
fn candidate(fields: Value) -> Candidate {
    let mut spec = json!({
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "minReplicas": 1, "maxReplicas": 100,
        "customMetrics": [{"metricName": "requests", "averageValue": "10"}],
    });
    let fields = fields.as_object().expect("fields").clone();
    spec.as_object_mut().expect("a spec").extend(fields);
    Candidate::new("web", "shop", spec).expect("a candidate")
}

fn options() -> Options {
    Options {
        pod_start: Duration::from_secs(60),
        window: Duration::from_secs(60),
        scrape_interval: Duration::from_secs(15),
        warm_up: Duration::ZERO,
        period: None,
        service_rate: None,
    }
}

fn read(text: &str) -> Result<Load, LoadError> {
    Load::read(text.as_bytes())
}

#[test]
fn a_wrong_row_is_named_with_what_was_expected() {
    for (text, line, expected) in [
        ("", 1, "two rows"),
        ("time,value\n1,2\n", 3, "two rows"),
        ("zeit,wert\n1,2\n2,3\n", 1, "the header time,value"),
        ("time,value\n1;2\n", 2, "time,value was expected"),
        ("time,value\nnoon,2\n", 2, "Unix seconds"),
        ("time,value\n-1,2\n", 2, "Unix seconds"),
        ("time,value\n1,-2\n", 2, "0 or more"),
        ("time,value\n1,inf\n", 2, "0 or more"),
        ("time,value\n1,1e300\n", 2, "at most 1e18"),
        ("time,value\n5,2\n5,3\n", 3, "not later"),
        ("time,value\n0,2\n600,\n300,3\n", 4, "not later"),
    ] {
        let error = read(text).unwrap_err();
        assert_eq!(error.line, line, "{text}");
        assert!(error.what.contains(expected), "{error}");
    }
    assert!(read(&format!("time,value\n1,{}\n", "0".repeat(5_000))).is_err());
    assert!(read("\u{feff}time,value\r\n1, 2\r\n\r\n2,3\r\n").is_ok());
}

#[test]
fn a_load_is_linear_between_rows_and_unknown_in_gaps() {
    let load = read("time,value\n0,0\n10,100\n20,\n30,40\n40,40\n").unwrap();
    let mut cursor = load.cursor();
    let at = [0, 5_000, 10_000, 15_000, 25_000, 30_000, 35_000, 40_000, 41_000];
    let values: Vec<Option<f64>> = at.into_iter().map(|time| cursor.at(time)).collect();
    let known = |value: f64| Some(value);
    assert_eq!(
        values,
        [
            known(0.0),
            known(50.0),
            known(100.0),
            None,
            None,
            known(40.0),
            known(40.0),
            known(40.0),
            None
        ]
    );
    let mut means = load::Means::new(&load, 10_000);
    assert_eq!(means.until(0), Some(0.0));
    assert_eq!(means.until(5_000), Some(25.0));
    assert_eq!(means.until(10_000), Some(50.0));
    assert_eq!(means.until(20_000), None);
    // The part in the gap does not count.
    assert_eq!(means.until(35_000), Some(40.0));
    assert_eq!(load.gaps().collect::<Vec<_>>(), [(10_000, 30_000)]);
}

#[test]
fn pods_are_short_while_new_ones_start() {
    let load = read("time,value\n0,20\n600,20\n601,80\n1200,80\n").unwrap();
    let run = run(&candidate(json!({})), &load, &options()).unwrap();
    let figures = &run.figures;
    assert_eq!(run.replicas[0], (0, 2, 2));
    assert_eq!(run.replicas.last().unwrap().1, 8);
    assert_eq!(run.ticks, 81);
    let worst = figures.worst_under.unwrap();
    assert_eq!((worst.time, worst.needed, worst.ready), (615.0, 8, 2));
    // From 615 s on, until the last of the new pods are ready.
    assert!((1.0..4.0).contains(&figures.under_minutes), "{figures:?}");
    assert_eq!(figures.reversals, 0);
    assert!(figures.minutes_at_max.abs() < f64::EPSILON);
}

#[test]
fn what_is_decided_depends_on_no_later_load() {
    let rows: Vec<String> =
        (0..200).map(|n| format!("{},{}\n", n * 60, 50 + (n * 37 % 61) * 3)).collect();
    let whole = read(&format!("time,value\n{}", rows.concat())).unwrap();
    let all = run(&candidate(json!({})), &whole, &options()).unwrap();
    for cut in [5, 50, 120] {
        let part = read(&format!("time,value\n{}", rows[..cut].concat())).unwrap();
        let run = run(&candidate(json!({})), &part, &options()).unwrap();
        let until: Vec<_> =
            all.replicas.iter().filter(|(time, ..)| *time <= part.last()).copied().collect();
        assert_eq!(run.replicas, until, "{cut}");
    }
}

#[test]
fn the_warm_up_is_decided_on_and_not_counted() {
    let load = read("time,value\n0,20\n60,80\n7200,80\n").unwrap();
    let counted = run(&candidate(json!({})), &load, &options()).unwrap();
    let warm = Options { warm_up: Duration::from_secs(1_800), ..options() };
    let warm = run(&candidate(json!({})), &load, &warm).unwrap();
    assert_eq!(warm.replicas, counted.replicas);
    assert!(counted.figures.under_minutes > 0.0);
    assert_eq!((warm.figures.under_minutes, warm.figures.scale_events), (0.0, 0));
}

#[test]
fn a_target_with_headroom_is_short_of_what_pods_carry() {
    let load = read("time,value\n0,20\n3600,200\n7200,20\n").unwrap();
    let headroom = json!({"customMetrics": [{"metricName": "requests", "averageValue": "7"}]});
    let full = run(&candidate(json!({})), &load, &options()).unwrap();
    let of_target = run(&candidate(headroom.clone()), &load, &options()).unwrap();
    let mut carrying = candidate(headroom);
    carrying.metrics[0].pod_carries = Some(10.0);
    let carrying = run(&carrying, &load, &options()).unwrap();
    assert_eq!(carrying.figures.needed_replica_hours, full.figures.needed_replica_hours);
    assert!(of_target.figures.needed_replica_hours > full.figures.needed_replica_hours);
    let short = [full, carrying].map(|run| run.figures.under_pod_minutes);
    assert!(short[0] > 0.0 && short[1] * 10.0 < short[0], "{short:?}");
}

#[test]
fn a_gap_of_the_load_scales_nothing_and_needs_nothing() {
    let load = read("time,value\n0,80\n600,80\n4200,\n4800,80\n5400,80\n").unwrap();
    let run = run(&candidate(json!({})), &load, &options()).unwrap();
    assert_eq!(run.replicas, [(0, 8, 8)]);
    let parts = low_confidence(&load);
    assert_eq!((parts.len(), parts[0].from, parts[0].to), (1, 600.0, 4800.0));
}

#[test]
fn the_total_of_a_workload_decides_as_well() {
    let load = read("time,value\n0,20\n600,80\n1200,80\n").unwrap();
    let total = json!({"customMetrics": [{"metricName": "requests", "per": "Workload",
        "query": "sum(requests{namespace=\"shop\"})", "averageValue": "10"}]});
    let run = run(&candidate(total), &load, &options()).unwrap();
    assert_eq!(run.replicas.last().unwrap().2, 8);
}

#[test]
fn a_schedule_moves_the_bounds_of_a_backtest() {
    let load = read("time,value\n0,25\n7200,25\n").unwrap();
    let schedule = json!({"schedules": [
        {"name": "rush", "from": "1970-01-01T00:30:00Z", "until": "1970-01-01T01:00:00Z", "minReplicas": 6}]});
    let run = run(&candidate(schedule), &load, &options()).unwrap();
    let at = |seconds: i64| {
        run.replicas.iter().rev().find(|(time, ..)| *time <= seconds * 1000).unwrap().2
    };
    assert_eq!((at(1_700), at(1_900), at(7_200)), (3, 6, 3));
}

#[test]
fn what_a_file_of_load_says_nothing_of_is_refused() {
    let spec = |metrics: Value| {
        json!({"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "maxReplicas": 10, "metrics": metrics})
    };
    let cpu = json!([{"type": "Resource", "resource": {"name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": 60}}}]);
    let cpu = Candidate::new("web", "shop", spec(cpu)).unwrap();
    let load = read("time,value\n0,20\n60,20\n").unwrap();
    let error = run(&cpu, &load, &options()).unwrap_err();
    assert!(error.contains("says nothing of others"), "{error}");
    let load = read("time,value\n0,20\n99999999999,20\n").unwrap();
    assert!(run(&candidate(json!({})), &load, &options()).unwrap_err().contains("--period"));
    let load = read("time,value\n0,1e18\n60,20\n").unwrap();
    assert!(
        run(&candidate(json!({})), &load, &options()).unwrap_err().contains("unit of the load")
    );
}

#[test]
fn a_load_without_bounds_adds_up() {
    let load = read("time,value\n0,20\n60,1e18\n600,1e18\n").unwrap();
    let run = run(&candidate(json!({})), &load, &options()).unwrap();
    let figures = run.figures;
    assert!(figures.needed_replica_hours > 1e6 && figures.needed_replica_hours.is_finite());
    assert!(figures.minutes_at_max > 0.0, "{figures:?}");
}

#[test]
fn load_that_was_cut_off_is_marked() {
    // A day with waves and some noise.
    let wave = |n: i64| {
        let noise = ((n * 7919) % 101) as f64 / 100.0;
        100.0 + 60.0 * (n as f64 / 120.0).sin() + 4.0 * noise
    };
    let load = |limit: f64| Load::of((0..1_440).map(|n| (n * 60_000, wave(n).min(limit), false)));
    assert_eq!(low_confidence(&load(f64::INFINITY)), []);
    let cut: Vec<i64> = (0..1_440).filter(|n| wave(*n) > 140.0).collect();
    let parts = low_confidence(&load(140.0));
    let is_marked = |n: &&i64| {
        let time = **n as f64 * 60.0;
        parts.iter().any(|part| part.from <= time && time <= part.to)
    };
    let marked = cut.iter().filter(is_marked).count();
    assert!(marked * 10 >= cut.len() * 9, "{marked} of {}", cut.len());
    // Steps at all levels are the nature of the load.
    let steps = Load::of((0..1_440).map(|n| (n * 60_000, (n / 60 % 5) as f64 * 10.0, false)));
    assert_eq!(low_confidence(&steps), []);
}

#[test]
fn load_that_is_cut_off_most_of_the_time_or_with_noise_is_marked_and_crane_14_is_not() {
    let wave = |n: i64| {
        let noise = ((n * 7919) % 101) as f64 / 100.0;
        100.0 + 60.0 * (n as f64 / 120.0).sin() + 4.0 * noise
    };
    for (limit, jitter) in [(140.0, 0.004), (110.0, 0.0), (105.0, 0.004), (90.0, 0.0), (80.0, 0.0)]
    {
        let carried = |n: i64| {
            let jitter = 1.0 - jitter * (((n * 6_007) % 97) as f64 / 97.0);
            wave(n).min(limit * jitter)
        };
        let load = Load::of((0..1_440).map(|n| (n * 60_000, carried(n), false)));
        let parts = low_confidence(&load);
        let is_marked = |n: &i64| {
            let time = *n as f64 * 60.0;
            parts.iter().any(|part| part.from <= time && time <= part.to)
        };
        let cut: Vec<i64> = (0..1_440).filter(|n| wave(*n) > limit).collect();
        let marked = cut.iter().filter(|n| is_marked(n)).count();
        assert!(marked * 10 >= cut.len() * 9, "{limit} {jitter}: {marked} of {}", cut.len());
    }
    for trace in ["crane-00", "crane-02", "crane-08", "crane-14"] {
        let path = format!("{}/tests/data/traces/{trace}.csv.gz", env!("CARGO_MANIFEST_DIR"));
        let file = flate2::read::MultiGzDecoder::new(std::fs::File::open(path).unwrap());
        let load = Load::read(std::io::BufReader::new(file)).unwrap();
        assert_eq!(low_confidence(&load), [], "{trace}");
    }
}

#[test]
fn a_row_that_is_far_too_large_leaves_later_means_as_they_are() {
    let rows = (0..600).map(|minute: i64| {
        let value = if minute == 5 { 3e17 } else { 100.0 + (minute % 7) as f64 };
        (minute * 60_000, value, false)
    });
    let load = Load::of(rows);
    let mut means = crate::backtest::load::Means::new(&load, 60_000);
    let mut at = load.cursor();
    for minute in (20..600).step_by(7) {
        let time = minute * 60_000;
        let expected = f64::midpoint(at.at(time - 60_000).unwrap(), at.at(time).unwrap());
        let mean = means.until(time).unwrap();
        assert!((mean - expected).abs() < 1e-6, "{minute}: {mean} {expected}");
    }
}

/// An autoscaler whose metric is a total, with other fields.
fn total(fields: Value) -> Candidate {
    let mut spec = json!({
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "maxReplicas": 20,
        "customMetrics": [{"metricName": "r", "per": "Workload", "averageValue": "10",
            "query": "sum(rate(r_total{namespace=\"shop\"}[1m]))"}],
    });
    let fields = fields.as_object().unwrap().clone();
    spec.as_object_mut().unwrap().extend(fields);
    Candidate::new("web", "shop", spec).unwrap()
}

#[test]
fn a_workload_that_begins_at_zero_or_was_sent_there_by_a_schedule_comes_back() {
    let load = read("time,value\n0,0\n600,0\n601,100\n86400,100\n").unwrap();
    let run_of = |candidate: &Candidate| run(candidate, &load, &options()).unwrap();
    let from_zero = run_of(&total(json!({"minReplicas": 0})));
    assert_eq!(from_zero.replicas[0].2, 0);
    assert_eq!(from_zero.replicas.last().unwrap().2, 10);
    // Idle until noon, with a window that allows zero until six.
    let night = json!({"minReplicas": 1, "schedules": [{"name": "night", "timeZone": "UTC",
        "start": "0 0 * * *", "end": "0 6 * * *", "minReplicas": 0}]});
    let load = read("time,value\n0,50\n60,0\n43200,0\n43201,100\n86400,100\n").unwrap();
    let run = run(&total(night), &load, &options()).unwrap();
    let at = |time: i64| run.replicas.iter().rev().find(|(at, ..)| *at <= time * 1_000).unwrap().2;
    assert_eq!((at(5 * 3_600), at(7 * 3_600), at(50_000)), (0, 1, 10));
}

/// A run on the length of a queue, of which a pod completes 5 entries a second.
fn run_of_queue(load: &Load) -> Run {
    let spec = json!({
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "minReplicas": 1, "maxReplicas": 40,
        "customMetrics": [{"metricName": "queue_length", "averageValue": "30"}],
    });
    let candidate = Candidate::new("web", "shop", spec).unwrap();
    run(&candidate, load, &Options { service_rate: Some(5.0), ..options() }).unwrap()
}

#[test]
fn what_arrives_in_a_queue_is_completed_by_the_pods() {
    // 50 a second, a burst of 200 for ten minutes that begins just before the empty queue has removed the pods, and 50
    // again.
    let load = read("time,value\n0,50\n3900,50\n3901,200\n4500,200\n4501,50\n9000,50\n").unwrap();
    let run = run_of_queue(&load);
    assert_eq!(run.replicas[0].1, 10, "50 a second need ten pods that complete 5 each");
    let most = run.replicas.iter().map(|(_, _, wanted)| *wanted).max().unwrap();
    assert!(most > 20, "{most}");
    let worst = run.figures.worst_under.unwrap();
    assert_eq!(worst.needed, 40);
}

#[test]
fn a_warm_up_that_leaves_nothing_is_refused() {
    let load = read("time,value\n0,20\n600,20\n").unwrap();
    let warm = Options { warm_up: Duration::from_secs(601), ..options() };
    assert!(run(&candidate(json!({})), &load, &warm).unwrap_err().contains("--warm-up"));
}

#[test]
fn the_night_of_a_schedule_needs_no_more_pods_than_it_allows() {
    // Eight hours with 20 and sixteen with 200.
    let load = read("time,value\n0,20\n28800,20\n28801,200\n86400,200\n").unwrap();
    let night = json!({"minReplicas": 10, "schedules": [{"name": "night", "timeZone": "UTC",
        "start": "0 0 * * *", "end": "0 8 * * *", "minReplicas": 2}]});
    let run = run(&candidate(night), &load, &options()).unwrap();
    assert_eq!(run.replicas[0], (0, 2, 2));
    let figures = run.figures;
    let worst = figures.worst_under.expect("pods start after the rise");
    assert!(worst.time >= 28_800.0 && figures.under_minutes < 10.0, "{figures:?}");
    assert!(figures.needed_replica_hours < 8.0 * 2.0 + 16.0 * 20.0 + 1.0, "{figures:?}");
}

#[test]
fn nothing_is_tried_where_one_of_several_metrics_is_not_known() {
    let spec = json!({
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "maxReplicas": 100,
        "resourceMetrics": [{"resourceName": "cpu", "targetType": "AverageValue", "averageValue": "1"}],
        "customMetrics": [{"metricName": "requests", "averageValue": "10"}],
    });
    let both = Candidate::new("web", "shop", spec).unwrap();
    let minutes = |range: std::ops::Range<i64>, value: f64| {
        Load::of(range.map(|minute| (minute * 60_000, value, false)))
    };
    let loads = vec![minutes(0..100, 2.0), minutes(60..130, 60.0)];
    let trace = Trace::Recorded(Recorded { loads, step: 60_000, ..Recorded::default() });
    assert_eq!((trace.first(), trace.last()), (60 * 60_000, 99 * 60_000));
    assert_eq!(trace.known_ms(), 39 * 60_000);
    let run = trace.run(&both, &options()).unwrap();
    assert_eq!(run.replicas, [(60 * 60_000, 6, 6)]);
    let apart = vec![minutes(0..50, 2.0), minutes(60..130, 60.0)];
    let apart = Trace::Recorded(Recorded { loads: apart, step: 60_000, ..Recorded::default() });
    assert!(apart.run(&both, &options()).unwrap_err().contains("no time in common"));
}

#[test]
fn a_hole_of_the_rows_is_no_load_to_trust() {
    let minutes = (0..600).filter(|minute| !(180..540).contains(minute));
    let load = Load::of(minutes.map(|minute: i64| (minute * 60_000, minute as f64, false)));
    let parts = low_confidence(&load);
    assert_eq!((parts.len(), parts[0].from, parts[0].to), (1, 179.0 * 60.0, 540.0 * 60.0));
    // Rows that are always as far apart have none, and neither has a scrape that failed.
    let rare = (0..50_i64).map(|hour| (hour * 3_600_000, (hour * 7 % 13) as f64, false));
    assert_eq!(low_confidence(&Load::of(rare)), []);
    let missed = (0..600_i64).filter(|minute| *minute != 300);
    let missed = Load::of(missed.map(|minute| (minute * 60_000, minute as f64, false)));
    assert_eq!(low_confidence(&missed), []);
}

#[test]
fn what_arrives_between_two_decisions_waits_in_the_queue_as_well() {
    // 9,000 entries within 10 s, none of them at a decision.
    let load = read("time,value\n0,0\n1,0\n2,1000\n10,1000\n11,0\n600,0\n").unwrap();
    let run = run_of_queue(&load);
    let most = run.replicas.iter().map(|(_, _, wanted)| *wanted).max();
    assert_eq!(most, Some(40), "{:?}", run.replicas);
    let mut areas = load.areas();
    assert_eq!(areas.until(0), Some((0.0, 0.0)));
    assert_eq!(areas.until(15_000), Some((9_000.0, 15.0)));
    // The gap adds nothing.
    let load = read("time,value\n0,4\n10,4\n20,\n30,4\n40,4\n").unwrap();
    let mut areas = load.areas();
    let at = [0, 5_000, 20_000, 35_000].map(|time| areas.until(time));
    assert_eq!(at, [Some((0.0, 0.0)), Some((20.0, 5.0)), None, Some((40.0, 10.0))]);
}

#[test]
fn a_warm_up_after_the_last_decision_is_refused() {
    let load = read("time,value\n0,20\n3500,80\n").unwrap();
    let warm = Options {
        warm_up: Duration::from_secs(3_400),
        period: Some(Duration::from_secs(600)),
        ..options()
    };
    let error = run(&candidate(json!({})), &load, &warm).unwrap_err();
    assert!(error.contains("at most the 3000 s"), "{error}");
}

#[test]
fn a_pod_that_never_becomes_ready_does_not() {
    let load = read("time,value\n0,20\n60,80\n1200,80\n").unwrap();
    let never = Options { pod_start: Duration::from_millis(i64::MAX as u64), ..options() };
    let run = run(&candidate(json!({})), &load, &never).unwrap();
    assert!(run.replicas.iter().all(|(_, ready, _)| *ready == 2), "{:?}", run.replicas);
}

#[test]
fn minutes_of_low_confidence_are_counted_once() {
    let part = |from: i64, to: i64| LowConfidence::new(from * 60_000, to * 60_000, "a gap");
    let parts = [part(0, 60), part(1, 61), part(10, 20), part(100, 110)];
    assert!((minutes(&parts) - 71.0).abs() < 1e-9);
}

#[test]
fn gaps_count_once_and_only_while_all_metrics_are_known() {
    let load = |minutes: std::ops::Range<i64>, gap: std::ops::Range<i64>| {
        let known = minutes.filter(move |minute| !gap.contains(minute)).collect::<Vec<_>>();
        let mut last = known[0] - 1;
        Load::of(known.into_iter().map(move |minute| {
            let before = std::mem::replace(&mut last, minute);
            (minute * 60_000, 2.0, minute - before > 1)
        }))
    };
    let trace =
        |loads: Vec<Load>| Trace::Recorded(Recorded { loads, step: 60_000, ..Recorded::default() });
    // Before the second one is there, and at two times that overlap.
    let earlier = trace(vec![load(0..100, 20..50), load(60..130, 0..0)]);
    assert_eq!(earlier.known_ms(), 39 * 60_000);
    let both = trace(vec![load(0..100, 20..50), load(0..100, 40..60)]);
    assert_eq!(both.known_ms(), (99 - 41) * 60_000);
    let recorded = Recorded {
        loads: vec![load(0..100, 20..50), load(60..130, 0..0)],
        step: 60_000,
        ..Recorded::default()
    };
    let common = recorded.in_common();
    assert_eq!(common.loads, [load(60..100, 0..0), load(60..100, 0..0)]);
    assert_eq!(minutes(&low_confidence(&common.loads[0])), 0.0);
}

#[test]
fn a_schedule_that_raises_the_minimum_is_no_need() {
    let load = read("time,value\n0,20\n86400,20\n").unwrap();
    let day = json!({"minReplicas": 2, "schedules": [{"name": "day", "timeZone": "UTC",
        "start": "0 8 * * *", "end": "0 20 * * *", "minReplicas": 10}]});
    let plain = run(&candidate(json!({"minReplicas": 2})), &load, &options()).unwrap().figures;
    let raised = run(&candidate(day), &load, &options()).unwrap().figures;
    assert_eq!(raised.needed_replica_hours, plain.needed_replica_hours);
    assert_eq!((raised.under_minutes, raised.worst_under), (0.0, None));
    assert!(raised.over_pod_minutes > 11.0 * 60.0 * 8.0, "{raised:?}");
}

#[test]
fn a_run_that_nobody_waits_for_ends() {
    let load = read("time,value\n0,20\n86400,20\n").unwrap();
    let stopped = candidate(json!({}));
    assert!(run(&stopped, &load, &options()).is_ok());
    drop(stopped.clone().stop.on_drop());
    assert_eq!(run(&stopped, &load, &options()).unwrap_err(), "it was stopped");
    let recorded = Recorded { loads: vec![load], step: 60_000, ..Recorded::default() };
    let was = WasThere::default();
    assert!(reproduce(&stopped, &recorded, &was, 0, &options()).is_err());
}
