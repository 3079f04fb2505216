//! What holds of the ledger, whatever is decided.

use super::tests::{START, autoscaler, basis, decision_at};
use super::*;
use crate::hpa::{
    self, AlignedSamples, Context, ControllerConfig, Input, Phase, Pod, Ready, Requests, Sample,
    Samples, Scale, ScalingHistory, Selected, Spec, Status,
};
use crate::watch::{AutoscalerKind, AutoscalerRef, ObjectKey};
use serde_json::json;
use std::sync::Arc;

pub(super) fn ledger(max_bytes: usize) -> Ledger {
    let ledger = Ledger::new(max_bytes, START);
    ledger.begin_term(START, None);
    ledger
}

pub(super) fn list(ledger: &Ledger, scope: &Scope) -> Vec<Listed> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = ledger.list(scope, after.as_ref(), |_| Some((0, u64::MAX)));
        found.extend(page.found);
        after = page.next;
        if after.is_none() {
            return found;
        }
    }
}

pub(super) fn all(ledger: &Ledger) -> Vec<Entry> {
    list(ledger, &Scope::default()).into_iter().map(|listed| listed.entry).collect()
}

pub(super) fn changes(ledger: &Ledger, mut version: u64) -> Result<(Vec<Change>, u64), Expired> {
    let mut all = Vec::new();
    loop {
        let found = ledger.changes_after(version, |_| Some((0, u64::MAX)))?;
        all.extend(found.changes);
        version = found.version;
        if found.is_all {
            return Ok((all, version));
        }
    }
}

pub(super) fn versions(ledger: &Ledger) -> Versions {
    ledger.versions().expect("it knows")
}

/// The object as another replica reads it.
pub(super) fn object(listed: &Listed) -> api::Decision {
    let text = serde_json::to_string(&decision(&listed.autoscaler, &listed.entry, START));
    serde_json::from_str(&text.expect("JSON")).expect("a decision")
}

#[test]
fn without_memory_nothing_is_kept_or_copied_or_waited_for() {
    let ledger = ledger(0);
    ledger.record(&autoscaler("shop", "web"), &Entry::at(START, basis()));
    assert_eq!((all(&ledger).len(), ledger.size().bytes), (0, 0));
    assert_eq!(ledger.versions(), Err(Behind::Off));
    ledger.end_term();
    assert_eq!((ledger.begin_copy(), ledger.lacks(None)), (None, false));
}

#[test]
fn equal_decisions_are_one_run_with_the_smallest_and_the_largest_value() {
    let (ledger, basis, web) = (ledger(1 << 20), basis(), autoscaler("shop", "web"));
    let values = [101, 95, 107, 99];
    for (n, value) in (0_i64..).zip(values) {
        ledger.record(&web, &decision_at(START + n * 15_000, 5, 5, value * 1000, &basis));
    }
    let [shown] = &all(&ledger)[..] else { panic!("not one") };
    assert_eq!(shown.count, 1, "an update is shown once a minute at most");
    ledger.record(&web, &decision_at(START + 60_000, 5, 5, 100_000, &basis));
    let [shown] = &all(&ledger)[..] else { panic!("not one") };
    assert_eq!((shown.count, shown.first, shown.last), (5, START, START + 60_000));
    assert_eq!(shown.metrics[0].range, Some((95_000, 107_000)));
    assert_eq!(shown.metrics[0].value, Some(100_000));
    ledger.record(&web, &decision_at(START + 75_000, 5, 5, 90_500, &basis));
    ledger.record(&web, &decision_at(START + 90_000, 5, 7, 130_000, &basis));
    let [run, up] = &all(&ledger)[..] else { panic!("not two") };
    assert_eq!((run.count, run.sequence, up.sequence), (6, 1, 2), "its end is shown at once");
    assert_eq!(run.metrics[0].range, Some((90_500, 107_000)));
    assert!(run.version < up.version && run.added < run.version && up.added == up.version);
}

#[test]
fn a_run_is_shown_though_the_clock_was_ahead_once() {
    let (ledger, basis, web) = (ledger(1 << 20), basis(), autoscaler("shop", "web"));
    ledger.record(&web, &decision_at(START, 5, 5, 100_000, &basis));
    ledger.record(&web, &decision_at(START + 3_600_000, 5, 5, 100_000, &basis));
    for n in 1..10 {
        ledger.record(&web, &decision_at(START + n * 15_000, 5, 5, 100_000, &basis));
    }
    let [shown] = &all(&ledger)[..] else { panic!("not one") };
    assert_eq!((shown.count, shown.last), (11, START + 135_000), "once a minute again");
}

/// Decisions of a workload that moves every minute, with a period of 15 s.
pub(super) fn restless(decisions: i64, mut record: impl FnMut(Entry)) {
    let basis = basis();
    let (mut replicas, mut random) = (20, 7_u64);
    for n in 0..decisions {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let noise = (random >> 33) as i64;
        let time = START + n * 15_000 + noise % 7;
        let desired = if n % 4 == 0 { 10 + (noise % 30) as i32 } else { replicas };
        record(decision_at(time, replicas, desired, 80_000 + noise % 40_000, &basis));
        replicas = desired;
    }
}

#[test]
fn a_day_of_steady_and_of_restless_autoscalers_fits() {
    const DAY: i64 = 24 * 3600 / 15;
    let ledger = ledger(2_000_000);
    let busy = autoscaler("shop", "busy");
    restless(DAY, |entry| ledger.record(&busy, &entry));
    let size = ledger.size();
    // A fixed share is of the last changes: here and in a ledger of 150 MB.
    let (changes, all_changes) = (4096.0 * 40.0, f64::from(1 << 17) * 40.0);
    let per_entry = (size.bytes as f64 - changes) / size.entries as f64;
    println!("{per_entry:.1} bytes for each of {} entries", size.entries);
    let basis = basis();
    let before = ledger.size().bytes;
    for n in 0..100 {
        let steady = autoscaler("shop", &format!("steady-workload-{n:04}"));
        for round in 0..10 {
            let time = START + round * 15_000;
            ledger.record(&steady, &decision_at(time, 5, 5, 100_000 + round, &basis));
        }
    }
    let steady = (ledger.size().bytes - before) as f64 / 100.0;
    println!("{steady:.0} bytes for a steady autoscaler");
    let day = per_entry * size.entries as f64 * 1_000.0 + steady * 10_000.0 + all_changes;
    println!("{:.0} MB a day", day / 1e6);
    assert!(day < 150e6, "{:.0} MB a day", day / 1e6);
}

/// The length of a line of the decision log for one metric, when all windows are full.
fn line_bytes(pods: usize) -> usize {
    let spec = json!({
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "maxReplicas": 2 * pods, "metrics": [{"type": "Pods", "pods": {"metric": {"name": "qps"},
            "target": {"type": "AverageValue", "averageValue": "80"}}}]});
    let spec = Spec::from_api(&serde_json::from_value(spec).unwrap());
    let (config, replicas) = (ControllerConfig::default(), pods as i32);
    let cpu = ("cpu".to_owned(), crate::k8s::Quantity::from_milli(100));
    let container = hpa::PodContainer { name: "app".to_owned(), requests: [cpu].into() };
    let requests = Requests::new(vec![container], Vec::new(), &[].into(), &[].into());
    let ready = Some(Ready { status: Some(true), since: START });
    let names: Vec<_> = (0..pods).map(|n| format!("web-5d9c7b8f6-{n:05}")).collect();
    let pods: Vec<Pod<'_>> = names
        .iter()
        .map(|name| Pod {
            name,
            phase: Phase::Running,
            deleting: false,
            start: Some(START),
            ready,
            requests: &requests,
        })
        .collect();
    let (mut history, mut status) = (ScalingHistory::default(), Status::default());
    let web = autoscaler("shop", "web");
    let mut bytes = 0;
    for now in (START..).step_by(15_000).take(30) {
        let milli = |pod: i64| 79_000 + (pod * 31 + now / 1_000) % 2_000;
        let sample = |pod| Some(Sample { milli: milli(pod), time: now - 40, window_ms: 0 });
        let aligned = AlignedSamples::of_pods((0..i64::from(replicas)).map(sample).collect());
        let samples = [Samples::PerPod(Ok(aligned.view()))];
        let input = Input {
            context: Context::new(&spec, &config, now),
            namespace: "shop",
            scale: Ok(Scale { spec_replicas: replicas, status_replicas: replicas }),
            selected: Selected::Pods(&pods),
            samples: &samples,
        };
        let inputs = LoggedInputs::new(&input, (&[], None), &history, &status);
        let mut trace = DecisionTrace::default();
        let decided = hpa::decide(&input, &mut history, &mut status, &mut trace);
        let error = decided.error.clone();
        let outcome = LoggedOutcome { rescale: None, error, trace: trace.recorded.clone() };
        let shown = decision_at(now, replicas, replicas, 80_000, &basis());
        let shown = decision(&web, &shown, now);
        let line = super::replay::line(&web, Some((&inputs, &outcome)), &shown).expect("a line");
        assert_eq!(replay_line(line.as_bytes()), Ok(()));
        bytes = line.len();
    }
    bytes
}

/// As docs/growth.md has it.
#[test]
fn a_line_of_the_log_takes_so_many_bytes() {
    let [few, some, many] = [10, 100, 1_000].map(line_bytes);
    println!(
        "a line of the decision log: {few} bytes for 10 pods, {some} for 100, {many} for 1,000"
    );
    let per_pod = (many - some) / 900;
    // As docs/growth.md has it.
    let near = |bytes: usize, said: usize| bytes.abs_diff(said) * 10 < said;
    assert!(near(few, 6_350) && near(per_pod, 270), "{few}, and {per_pod} a pod");
}

#[test]
fn the_oldest_are_dropped_and_counted_and_a_watch_is_told() {
    let ledger = ledger(1_000_000);
    let (busy, quiet) = (autoscaler("shop", "busy"), autoscaler("shop", "quiet"));
    let mut shown = std::collections::BTreeMap::new();
    let (mut n, mut version) = (0, versions(&ledger).last);
    restless(70_000, |entry| {
        ledger.record(&busy, &entry);
        ledger.record(&quiet, &decision_at(entry.first, 1, 1, 100_000, &basis()));
        n += 1;
        if n % 500 != 0 {
            return;
        }
        assert!(ledger.size().bytes <= 1_000_000);
        // Who applies the changes has what is listed.
        let (changes, now) = changes(&ledger, version).expect("changes");
        let mut last = version;
        for change in changes {
            let (of, sequence, at) = match &change {
                Change::Set(one) => (&one.autoscaler, one.entry.sequence, one.entry.version),
                Change::Dropped { autoscaler, sequence, version, .. } => {
                    (autoscaler, *sequence, *version)
                }
            };
            assert!(at > last, "each has a version of its own");
            last = at;
            let key = (of.clone(), sequence);
            match change {
                Change::Set(listed) => drop(shown.insert(key, listed.entry)),
                Change::Dropped { first, .. } => {
                    if let Some(known) = shown.remove(&key) {
                        assert_eq!(known.first, first, "its uid follows from that");
                    }
                }
            }
        }
        version = now;
        assert_eq!(shown.len(), ledger.size().entries);
        assert!(shown.values().eq(&all(&ledger)));
    });
    let size = ledger.size();
    assert!(size.dropped > 5_000 && size.entries > 1_000, "{size:?}");
    let sequences: Vec<u64> = all(&ledger).iter().map(|entry| entry.sequence).collect();
    assert_eq!(sequences.last(), Some(&1), "the run of the quiet one continues");
    assert!(sequences[..sequences.len() - 1].is_sorted_by(|a, b| a + 1 == *b));
    assert_eq!(changes(&ledger, versions(&ledger).began), Err(Expired), "too long ago");
    // Another leadership begins: what was before is not known.
    ledger.begin_term(START + 1_000_000_000, None);
    assert_eq!(changes(&ledger, version), Err(Expired));
}

#[test]
fn the_memory_is_bounded_whatever_the_specs_are() {
    const MAX: usize = 4_000_000;
    let ledger = ledger(MAX);
    let query: Arc<str> = "x".repeat(8192).into();
    let name = "n".repeat(1 << 20);
    let spec = |metrics: usize, n: usize| {
        let one = |index| {
            let name = format!("{n}{index}{name}");
            MetricBasis::new(&name, Some(query.clone()), Target::Average(1))
        };
        Arc::new(Basis { metrics: (0..metrics).map(one).collect(), ..(*basis()).clone() })
    };
    let within = || assert!(ledger.size().bytes <= MAX, "{:?}", ledger.size());
    // A new spec each time, of which nothing is left but what it is based on.
    for n in 0..400 {
        let mut paused = Entry::at(START + n * 1000, spec(1, n as usize));
        paused.generation = Some(n);
        ledger.record(&autoscaler("evil", &format!("paused-{}", n % 20)), &paused);
        within();
    }
    // All metrics fail at length, in more autoscalers than there is room for.
    let wide = spec(32, 0);
    for n in 0..400 {
        let mut failed = Entry::at(START + n, wide.clone());
        let cause = || Some(Box::new(("FailedGetMetric".to_owned(), bounded(&query))));
        let failure = || Measured { failure: cause(), ..Measured::of(MetricStatus::Invalid) };
        failed.metrics = (0..32).map(|_| failure()).collect();
        ledger.record(&autoscaler("evil", &format!("failing-{n}")), &failed);
        within();
    }
    // What is decided now, is there.
    let web = autoscaler("shop", "web");
    ledger.record(&web, &decision_at(START + 999_999, 1, 2, 100_000, &basis()));
    assert_eq!(list(&ledger, &Scope { namespace: Some("shop".to_owned()), since: None }).len(), 1);
    // No page is large, nor what is made of it.
    let mut after = None;
    loop {
        let page = ledger.list(&Scope::default(), after.as_ref(), |_| Some((0, u64::MAX)));
        let rendered = page.found.iter().map(|one| json!(object(one)).to_string().len());
        assert!(rendered.sum::<usize>() < 400_000);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    // Nothing is larger than the ledger.
    let tiny = Ledger::new(2_000, START);
    tiny.begin_term(START, None);
    tiny.record(&web, &Entry::at(START, wide));
    assert!(tiny.size().bytes <= 2_000, "{:?}", tiny.size());
}

#[test]
fn deleted_autoscalers_make_room_for_others() {
    let ledger = ledger(200_000);
    for n in 0..2_000 {
        let preview = autoscaler("shop", &format!("preview-{n}"));
        let time = START + n * 1000;
        ledger.record(&preview, &decision_at(time, 1, 1, 100_000, &basis()));
        ledger.record(&preview, &decision_at(time + 1, 1, 2, 300_000, &basis()));
        ledger.end(&preview);
        assert!(ledger.size().bytes <= 200_000);
        let scope = |of: &AutoscalerRef| (of.key == preview.key).then_some((0, u64::MAX));
        let last = ledger.list(&Scope::default(), None, scope).found;
        assert_eq!(last.len(), 2, "the last ones are there");
    }
    let entries = all(&ledger);
    assert!(entries.iter().all(|entry| entry.first > START + 1_500_000), "the oldest are not");
    assert_eq!(ledger.size().entries, entries.len());
}

#[test]
fn a_namespace_does_not_take_the_memory_of_others() {
    let ledger = ledger(1_000_000);
    let count = |namespace: &str| {
        let namespace = Some(namespace.to_owned());
        list(&ledger, &Scope { namespace, since: None }).len()
    };
    let known = basis();
    let change = |namespace: &str, name: &str, time: i64| {
        let one = autoscaler(namespace, name);
        ledger.record(&one, &decision_at(time, 1, 2, 1, &known));
        ledger.record(&one, &decision_at(time + 1, 2, 1, 1, &known));
    };
    for n in 0..1_000 {
        change("shop", "web", START + n * 1000);
    }
    for n in 0..100 {
        change("ci", &format!("preview-{n}"), START + n * 1000);
    }
    assert_eq!((count("shop"), count("ci"), ledger.size().dropped), (2_000, 200, 0));
    // A tenant edits its spec all the time, and each one is another basis of its decisions.
    let evil = |n: i64, time: i64| {
        let metric = |index| {
            let query = Some(format!("{n} {index} {}", "x".repeat(2_000)).into());
            MetricBasis::new("x", query, Target::Average(1))
        };
        let basis = Basis { metrics: (0..100).map(metric).collect(), ..(*basis()).clone() };
        let mut paused = Entry::at(time, Arc::new(basis));
        paused.generation = Some(n);
        ledger.record(&autoscaler("evil", &format!("{}", n % 7)), &paused);
        assert!(ledger.size().bytes <= 1_000_000);
    };
    (0..200).for_each(|n| evil(n, START + 2_000_000 + n));
    assert_eq!((count("shop"), count("ci")), (2_000, 200));
    assert!(count("evil") > 0 && ledger.size().dropped > 190);
    // What is older than a day goes first, whoever has it.
    const DAY: i64 = 24 * 3_600_000;
    (0..200).for_each(|n| evil(n, START + DAY + 2_000_000 + n));
    assert_eq!(count("ci"), 0, "the previews are long gone");
}

#[test]
fn what_was_decided_while_the_clock_was_ahead_is_found() {
    let (ledger, web) = (ledger(1 << 20), autoscaler("shop", "web"));
    for n in 0..200 {
        let ahead = if (20..30).contains(&n) { 3_600_000 } else { 0 };
        let time = START + n * 1000 + ahead;
        ledger.record(&web, &decision_at(time, n as i32, n as i32 + 1, 1, &basis()));
    }
    let since = Scope { namespace: None, since: Some(START + 1_800_000) };
    assert_eq!(list(&ledger, &since).len(), 10);
}

#[tokio::test]
async fn lists_continue_where_they_ended() {
    let ledger = ledger(1 << 22);
    for name in ["a", "b", "c"] {
        for namespace in ["bank", "shop", "zoo"] {
            let one = autoscaler(namespace, name);
            for n in 0..200 {
                let current = n as i32;
                ledger.record(&one, &decision_at(START + n, current, current + 1, 1, &basis()));
            }
        }
    }
    let scope = Scope { namespace: Some("shop".to_owned()), since: None };
    let found = list(&ledger, &scope);
    assert!(found.iter().all(|one| one.autoscaler.key.namespace == "shop"));
    let places: Vec<_> = found.iter().map(Listed::position).collect();
    assert!(places.len() == 600 && places.is_sorted_by(|a, b| a < b));
    let recent = Scope { namespace: scope.namespace.clone(), since: Some(START + 197) };
    assert_eq!(list(&ledger, &recent).len(), 9);
    let page = ledger.list(&scope, None, |_| Some((0, u64::MAX)));
    assert!(page.next.is_some() && page.found.len() < 200, "a page is short");
    let one = ledger.list(&scope, None, |of| (of.key.name == "b").then_some((7, 8)));
    let sequences: Vec<_> = one.found.iter().map(|one| one.entry.sequence).collect();
    assert_eq!((sequences, one.next), (vec![7, 8], None));
    let named = async |name: &str| ledger.get(&position("shop", name)?).await;
    assert_eq!(named("c.autoscaler.5").await.map(|entry| entry.sequence), Some(5));
    for wrong in ["c.autoscaler.05", "c.autoscaler.601", "c.5", "c.deployment.5", "c.autoscaler.+5"]
    {
        assert_eq!(named(wrong).await, None);
    }
    // Far more autoscalers than are looked at for one page.
    for n in 0..5_000 {
        let one = autoscaler("many", &format!("{n:04}"));
        ledger.record(&one, &decision_at(START, 1, 1, 1, &basis()));
    }
    let scope = Scope { namespace: Some("many".to_owned()), since: None };
    let (mut after, mut found) = (None, Vec::new());
    loop {
        let page = ledger
            .list(&scope, after.as_ref(), |of| (of.key.name == "4321").then_some((0, u64::MAX)));
        found.extend(page.found);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(found.len(), 1);
}

#[test]
fn an_hpa_and_an_autoscaler_of_one_name_have_a_history_each() {
    let ledger = ledger(1 << 20);
    let key = ObjectKey { namespace: "shop".to_owned(), name: "web".to_owned() };
    for kind in [AutoscalerKind::Hpa, AutoscalerKind::Autoscaler] {
        let one = AutoscalerRef { kind, key: key.clone().into() };
        ledger.record(&one, &decision_at(START, 1, 2, 1, &basis()));
    }
    let kinds: Vec<_> =
        list(&ledger, &Scope::default()).iter().map(|one| one.autoscaler.kind).collect();
    assert_eq!(kinds, [AutoscalerKind::Autoscaler, AutoscalerKind::Hpa]);
}
