use super::codec::Encoded;
use super::*;
use crate::hpa::{
    self, AlignedSamples, Context, ControllerConfig, Input, Outcome, Phase, Pod, Ready,
    RecordedTrace, Requests, Sample, Samples, Scale, ScalingHistory, Selected, Spec, Status,
};
use crate::watch::{AutoscalerRef, ObjectKey};
use proptest::{option::of as maybe, prelude::*};
use serde_json::{Value, json};
use std::sync::Arc;

pub(super) const START: i64 = 1_800_000_000_000;

pub(super) fn autoscaler(namespace: &str, name: &str) -> AutoscalerRef {
    AutoscalerRef::autoscaler(ObjectKey { namespace: namespace.into(), name: name.into() })
}

pub(super) fn basis() -> Arc<Basis> {
    let query = "sum by (namespace, pod) (rate(http_requests_total{namespace=\"shop\"}[2m]))";
    let target = Target::Average(100_000);
    let metric = MetricBasis::new("http_requests_total", Some(query.into()), target);
    Arc::new(Basis { max: 50, ..Basis::fake([metric]) })
}

/// A decision from `current` to `desired` replicas on a value.
pub(super) fn decision_at(
    time: i64,
    current: i32,
    desired: i32,
    value: i64,
    basis: &Arc<Basis>,
) -> Entry {
    let mut entry = Entry::at(time, basis.clone());
    entry.generation = Some(3);
    entry.current = Some(current);
    (entry.recommended, entry.desired) = (Some(desired), Some(desired));
    let changes = current != desired;
    entry.reason = if changes { Reason::MetricRecommendation } else { Reason::WithinTolerance };
    entry.carried = if changes { CarriedOut::Written } else { CarriedOut::Unchanged };
    let mut metric = Measured::of(MetricStatus::Used);
    metric.proposed = Some(desired);
    metric.value = Some(value);
    metric.range = Some((value, value));
    metric.ratio = Some(ratio_millionths(value, 100_000));
    (metric.queried, metric.age) = (Some(time - 40), Some(40));
    metric.pods = [current.into(), 0, 0, 0];
    entry.metrics = vec![metric];
    entry
}

#[test]
fn what_makes_a_decision_another_ends_the_run() {
    let basis = basis();
    let one = || decision_at(START, 5, 5, 100_000, &basis);
    assert!(one().is_continued_by(&decision_at(START + 1, 5, 5, 90_000, &basis)));
    let others: [fn(&mut Entry); 11] = [
        |entry| entry.observed = Some(Observed { desired: Some(6), scaled: None, account: None }),
        |entry| entry.reason = Reason::Stabilized,
        |entry| entry.desired = Some(6),
        |entry| entry.current = Some(4),
        |entry| entry.generation = Some(4),
        |entry| entry.metrics[0].status = MetricStatus::Valid,
        |entry| entry.metrics[0].proposed = Some(4),
        |entry| entry.metrics[0].ratio = None,
        |entry| entry.metrics.clear(),
        |entry| entry.carried = CarriedOut::Frozen,
        |entry| {
            let kind = ConstraintKind::ScaleDownStabilized;
            entry.constraints = vec![Constraint { kind, before: 4, after: 5, until: None }];
        },
    ];
    for change in others {
        let mut other = one();
        change(&mut other);
        assert!(!one().is_continued_by(&other), "{other:?}");
    }
    // A native HPA has no generation, and schedules change the bounds of an Autoscaler with the same one.
    let metric = MetricBasis { target: Target::Utilization(70), ..basis.metrics[0].clone() };
    let others = [
        Basis { metrics: [metric].into(), ..(*basis).clone() },
        Basis { max: 51, ..(*basis).clone() },
        Basis { schedules: [None, Some("night".into())], ..(*basis).clone() },
        Basis { windows: [0, 0], ..(*basis).clone() },
        Basis { disabled: [false, true], ..(*basis).clone() },
    ];
    for generation in [None, Some(3)] {
        let of = |basis: &Basis| Entry { generation, basis: Arc::new(basis.clone()), ..one() };
        assert!(of(&basis).is_continued_by(&of(&basis)));
        for other in &others {
            assert!(!of(&basis).is_continued_by(&of(other)), "{other:?}");
        }
    }
}

/// The copy of a decision without metrics does not have those of the spec: a pause continues after a failover.
#[test]
fn a_run_without_metrics_goes_on_from_its_copy() {
    let mut paused = decision_at(START, 5, 5, 100_000, &basis());
    (paused.reason, paused.carried) = (Reason::Paused, CarriedOut::Paused);
    paused.metrics.clear();
    (paused.sequence, paused.added, paused.version) = (1, 7, 7);
    let (_, copy) = copied(&paused);
    assert!(copy.is_continued_by(&paused), "{copy:?}");
}

/// The entry that another replica makes of what the API shows.
pub fn copied(entry: &Entry) -> (AutoscalerRef, Entry) {
    let shown = decision(&autoscaler("shop", "web"), entry, START);
    let shown = serde_json::to_value(shown).unwrap();
    render::entry(serde_json::from_value(shown).unwrap(), None).expect("of this version")
}

#[test]
fn a_copy_has_all_of_a_decision() {
    let mut basis = (*basis()).clone();
    basis.disabled = [true, false];
    let metric = MetricBasis {
        activation: Some(1_500),
        on_error: Some(hpa::OnError::Ignore),
        ..basis.metrics[0].clone().with_scope(Some("container app"))
    };
    basis.metrics = [metric].into();
    let mut entry = decision_at(START, 5, 5, 100_000, &Arc::new(basis));
    (entry.sequence, entry.added, entry.version) = (1, 7, 7);
    entry.metrics[0].weighted = Some(700_000);
    let limit = |kind, from| Some(Limit { kind, replicas: 6, from });
    entry.limits = [
        limit(ConstraintKind::ScaleUpLimit, Some(START + 1_000)),
        limit(ConstraintKind::RollingOut, None),
    ];
    assert_eq!(copied(&entry).1, entry);
    let other = decision_at(START, 5, 5, 100_000, &entry.basis);
    assert!(entry.is_continued_by(&other));
    entry.continue_with(&other);
    assert_eq!(entry.limits, [None; 2]);
}

fn entries() -> impl Strategy<Value = Vec<Entry>> {
    let measured = (
        0..3_usize,
        maybe(-3..100_i32),
        maybe((any::<i32>(), 0..1000_i64, 0..1000_i64)),
        maybe(any::<i32>()),
        maybe(-9_i64..99_999),
        ([0..9_i64, 0..3, 0..3, 0..3], maybe(any::<i32>())),
        maybe("[a-zé]{0,9}"),
    );
    let measured = measured.prop_map(|(status, proposed, value, ratio, age, pods, failure)| {
        let (pods, weighted) = pods;
        let mut metric = Measured::of(MetricStatus::ALL[status]);
        metric.proposed = proposed;
        metric.value = value.map(|(value, ..)| value.into());
        metric.range =
            value.map(|(value, less, more)| (i64::from(value) - less, i64::from(value) + more));
        metric.ratio = ratio.map(i64::from);
        metric.weighted = weighted.map(i64::from);
        (metric.queried, metric.age) = (age.map(|age| START - age), age);
        (metric.pods, metric.failure) = (pods, failure.map(|text| Box::new((text.clone(), text))));
        metric
    });
    let constraint = (0..12_usize, 0..99, 0..99, maybe(START..START + 999));
    let constraint = constraint.prop_map(|(kind, before, after, until)| Constraint {
        kind: ConstraintKind::ALL[kind],
        before,
        after,
        until,
    });
    let limit = (0..12_usize, 0..99, maybe(START..START + 999));
    let limit = limit.prop_map(|(kind, replicas, from)| Limit {
        kind: ConstraintKind::ALL[kind],
        replicas,
        from,
    });
    let limits = [maybe(limit.clone()), maybe(limit)];
    let entry = (
        (0..99_999_i64, 0..9_999_i64, 1..99_u64, maybe(1..9_i64)),
        (maybe(0..50), maybe(0..50), maybe(0..50)),
        (0..13_usize, 0..8_usize, maybe("[a-z]{0,20}")),
        proptest::collection::vec(measured, 0..3),
        proptest::collection::vec(constraint, 0..3),
        (any::<bool>(), limits),
        maybe((maybe(0..50), maybe(START..START + 999), maybe("[a-z]{0,9}"))),
    );
    proptest::collection::vec(entry, 1..20).prop_map(|all| {
        let bases = [basis(), Arc::new(Basis { max: 9, ..(*basis()).clone() })];
        let mut version = 1_u64 << 50;
        (1_u64..)
            .zip(all)
            .map(|(sequence, (times, replicas, words, metrics, constraints, other, observed))| {
                let (is_other, limits) = other;
                let mut entry = Entry::at(START + times.0, bases[usize::from(is_other)].clone());
                version += 3;
                (entry.sequence, entry.added, entry.version) = (sequence, version - 1, version);
                (entry.last, entry.count) = (entry.first + times.1, times.2);
                entry.generation = times.3;
                (entry.current, entry.recommended, entry.desired) = replicas;
                entry.reason = Reason::ALL[words.0];
                entry.observed = observed.map(|(desired, scaled, account)| Observed {
                    desired,
                    scaled,
                    account: account.map(|text| Box::new((text.clone(), text))),
                });
                entry.carried = CarriedOut::ALL[words.1];
                entry.message = words.2.map(Into::into);
                (entry.metrics, entry.constraints, entry.limits) = (metrics, constraints, limits);
                entry
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn entries_are_read_as_they_were_written(entries in entries()) {
        let mut encoded = Encoded::default();
        entries.iter().for_each(|entry| encoded.push(entry));
        prop_assert_eq!(encoded.sealed().iter().collect::<Vec<_>>(), entries);
    }
}

/// What the metric has to be for other replicas, held against the algorithm itself.
#[test]
fn what_would_change_the_replicas_does() {
    let cases = [(1, 80_000), (2, 80_000), (5, 333), (7, 100_000), (30, 1), (49, 77)];
    let cases = cases.map(|(desired, target)| (desired, target, 100));
    // In floating point, 100 * 1.15 is less than 115.
    for (desired, target, tolerance) in cases.into_iter().chain([(7, 100, 150), (5, 3_000, 150)]) {
        let own = json!({"tolerance": format!("{tolerance}m")});
        let spec = json!({
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "behavior": {"scaleUp": own, "scaleDown": own},
            "maxReplicas": 50, "metrics": [{"type": "Pods", "pods": {"metric": {"name": "qps"},
                "target": {"type": "AverageValue", "averageValue": format!("{target}m")}}}]});
        let spec = Spec::from_api(&serde_json::from_value(spec).unwrap());
        let config = ControllerConfig::default();
        let names: Vec<String> = (0..desired).map(|n| format!("web-{n}")).collect();
        let requests = Requests::default();
        let ready = Some(Ready { status: Some(true), since: 0 });
        let pods: Vec<Pod<'_>> = { names.iter() }
            .map(|name| Pod {
                name,
                phase: Phase::Running,
                deleting: false,
                start: Some(0),
                ready,
                requests: &requests,
            })
            .collect();
        let decided = |value: i64| {
            let sample = Sample { milli: value, time: START, window_ms: 0 };
            let samples = AlignedSamples::of_pods(vec![Some(sample); pods.len()]);
            let samples = [Samples::PerPod(Ok(samples.view()))];
            let input = Input {
                context: Context::new(&spec, &config, START),
                namespace: "shop",
                scale: Ok(Scale { spec_replicas: desired, status_replicas: desired }),
                selected: Selected::Pods(&pods),
                samples: &samples,
            };
            let (mut status, mut trace) = (Status::default(), RecordedTrace::default());
            // Empty but for that, so that nothing is stabilized.
            let recommendation = hpa::Recommendation { replicas: 0, time: 0 };
            let mut history =
                ScalingHistory { recommendations: vec![recommendation], ..Default::default() };
            match hpa::decide(&input, &mut history, &mut status, &mut trace).outcome {
                Outcome::Rescale { to, .. } => to,
                _ => desired,
            }
        };
        let mut basis = (*basis()).clone();
        let metric = MetricBasis { target: Target::Average(target), ..basis.metrics[0].clone() };
        basis.metrics = [metric].into();
        basis.tolerance = [f64::from(tolerance) / 1_000.0; 2];
        let entry = decision_at(START, desired, desired, target, &Arc::new(basis));
        let (_, [more, fewer]) = super::would_change::would_change(&entry).expect("turns");
        let (more, fewer) = (more.expect("more"), fewer.ok());
        assert!(more.replicas > desired, "{desired} {more:?}");
        assert_eq!(decided(more.value), more.replicas, "{desired} {more:?}");
        assert_eq!(decided(more.value - 1), desired, "{desired} {more:?}");
        assert_eq!(fewer.is_none(), desired == 1);
        if let Some(fewer) = fewer {
            assert!(fewer.replicas < desired, "{desired} {fewer:?}");
            assert_eq!(decided(fewer.value), fewer.replicas, "{desired} {fewer:?}");
            assert_eq!(decided(fewer.value + 1), desired, "{desired} {fewer:?}");
        }
    }
}

#[test]
fn a_name_that_is_too_long_for_a_label_is_cut_and_has_a_hash() {
    assert_eq!(autoscaler_label("web"), "web");
    let [one, other] = ["a", "b"].map(|end| format!("{}{end}", "x".repeat(252)));
    let [of_one, of_other] = [&one, &other].map(|name| autoscaler_label(name).into_owned());
    assert!(of_one != of_other && of_one.len() == 63 && of_one.starts_with("xxxx"), "{of_one}");
}

/// Fewer replicas need all metrics to agree, and to be known.
#[test]
fn one_metric_alone_does_not_give_fewer_replicas_where_another_wants_as_many() {
    let of = |change: fn(&mut Measured)| {
        let mut entry = decision_at(START, 5, 5, 10_000, &basis());
        let mut other = entry.metrics[0].clone();
        (other.status, other.proposed) = (MetricStatus::Valid, Some(2));
        change(&mut other);
        entry.metrics.push(other);
        let (_, [more, fewer]) = super::would_change::would_change(&entry).expect("turns");
        (more.is_ok(), fewer.err())
    };
    let by_other = Some(super::would_change::Prevented::Metric(1));
    assert_eq!(of(|_| {}), (true, None));
    assert_eq!(of(|other| other.proposed = Some(5)), (true, by_other));
    let fails = |other: &mut Measured| {
        (other.status, other.proposed) = (MetricStatus::Invalid, None);
    };
    assert_eq!(of(fails), (true, by_other));
    // onEmpty: Hold asks for the replicas that there are, and will for those that there will be.
    assert_eq!(of(|other| other.value = None), (true, by_other));
    let mut basis = (*basis()).clone();
    basis.tolerance[0] = 1e15;
    let entry = decision_at(START, 5, 5, 10_000, &Arc::new(basis));
    let (_, [_, fewer]) = super::would_change::would_change(&entry).expect("turns");
    assert_eq!(fewer, Err(super::would_change::Prevented::Tolerance));
}

/// Ratios have all digits that a float has, and the digest of a line is of what is read.
#[test]
fn numbers_of_a_line_are_read_as_they_were_written() {
    for n in 1..20_000_u32 {
        let ratio = f64::from(n * 7_919 % 1_000_003) / f64::from(n * 31 % 7_001 + 1);
        let text = serde_json::to_string(&json!([ratio])).unwrap();
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read[0].as_f64(), Some(ratio), "{text}");
    }
}

/// Each leaf of a line by itself, with another value.
fn changed(value: &Value, out: &mut Vec<Value>, rebuild: &dyn Fn(Value) -> Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let rebuild = |new: Value| {
                    let mut fields = fields.clone();
                    fields.insert(name.clone(), new);
                    rebuild(Value::Object(fields))
                };
                changed(field, out, &rebuild);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                let rebuild = |new: Value| {
                    let mut items = items.clone();
                    items[index] = new;
                    rebuild(Value::Array(items))
                };
                changed(item, out, &rebuild);
            }
        }
        Value::Number(number) => {
            out.push(rebuild(number.as_i64().map_or(json!(0.5), |n| json!(n + 1))));
        }
        Value::String(text) => out.push(rebuild(json!(format!("{text}x")))),
        Value::Bool(is) => out.push(rebuild(json!(!is))),
        Value::Null => out.push(rebuild(json!(1))),
    }
}

#[test]
fn a_line_is_decided_again_and_any_change_is_found() {
    let spec = json!({
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "minReplicas": 1, "maxReplicas": 50,
        "behavior": {"scaleUp": {"tolerance": "50m", "policies":
            [{"type": "Pods", "value": 4, "periodSeconds": 60}]}},
        "metrics": [
            {"type": "Pods", "pods": {"metric": {"name": "qps", "selector": {"matchLabels": {"a": "b"}}},
                "target": {"type": "AverageValue", "averageValue": "80m"}}},
            {"type": "Resource", "resource": {"name": "cpu",
                "target": {"type": "Utilization", "averageUtilization": 80}}},
            {"type": "External", "external": {"metric": {"name": "queue"},
                "target": {"type": "Value", "value": "7"}}}]});
    let spec = Spec::from_api(&serde_json::from_value(spec).unwrap());
    let config = ControllerConfig::default();
    let cpu = |milli| ("cpu".to_owned(), crate::k8s::Quantity::from_milli(milli));
    let container =
        |milli| hpa::PodContainer { name: "app".to_owned(), requests: [cpu(milli)].into() };
    let requests = Requests::new(vec![container(100)], Vec::new(), &[cpu(300)].into(), &[].into());
    let ready = Some(Ready { status: Some(true), since: 7 });
    let pods: Vec<Pod<'_>> = ["a", "b"]
        .map(|name| {
            let (phase, start) = (Phase::Running, Some(5));
            Pod { name, phase, deleting: false, start, ready, requests: &requests }
        })
        .into();
    let sample = |milli| Some(Sample { milli, time: START, window_ms: 30 });
    let aligned = AlignedSamples::of_pods(vec![sample(100), sample(131)]);
    let samples = [
        Samples::PerPod(Ok(aligned.view())),
        Samples::PerPod(Ok(aligned.view())),
        Samples::Values(Err("it is away")),
    ];
    let input = Input {
        context: Context::new(&spec, &config, START),
        namespace: "shop",
        scale: Ok(Scale { spec_replicas: 2, status_replicas: 2 }),
        selected: Selected::Pods(&pods),
        samples: &samples,
    };
    let mut history = ScalingHistory::default();
    history.scaled(1, 2, &spec, START - 30_000);
    let mut status = Status::default();
    let inputs = LoggedInputs::new(&input, (&[], Some(1)), &history, &status);
    let mut trace = DecisionTrace::default();
    let decided = hpa::decide(&input, &mut history, &mut status, &mut trace);
    let Outcome::Rescale { to, .. } = decided.outcome else { panic!("{decided:?}") };
    let (rescale, error) = (Some(to), decided.error.clone());
    let outcome = LoggedOutcome { rescale, error, trace: trace.recorded.clone() };
    assert_eq!(inputs.decide().as_ref(), Ok(&outcome));
    let web = autoscaler("shop", "web");
    let shown = decision(&web, &decision_at(START, 2, to, 115, &basis()), START);
    let line = super::replay::line(&web, Some((&inputs, &outcome)), &shown).expect("a line");
    assert_eq!(replay_line(line.as_bytes()), Ok(()));
    // An account of other replicas, which nothing in it explains.
    let unexplained = decision(&web, &decision_at(START, 2, to + 1, 115, &basis()), START);
    let other = super::replay::line(&web, Some((&inputs, &outcome)), &unexplained).expect("a line");
    assert!(matches!(replay_line(other.as_bytes()), Err(Difference::Differs { .. })));
    let elsewhere = decision(&web, &decision_at(START, 3, to, 115, &basis()), START);
    let other = super::replay::line(&web, Some((&inputs, &outcome)), &elsewhere).expect("a line");
    assert!(matches!(replay_line(other.as_bytes()), Err(Difference::Differs { .. })));
    // What holds leaves the replicas as they were, and a fallback adds some.
    let held = |kind: &str, desired: i32| {
        let mut held = decision(&web, &decision_at(START, 2, desired, 115, &basis()), START);
        held.constraints = vec![api::ApiConstraint {
            kind: kind.to_owned(),
            replicas_before: to,
            replicas_after: desired,
            schedule: None,
            until: None,
        }];
        let line = super::replay::line(&web, Some((&inputs, &outcome)), &held).expect("a line");
        replay_line(line.as_bytes())
    };
    for kind in ["RollingOut", "PodsNotKnown", "MetricsWereAway"] {
        assert_eq!(held(kind, 2), Ok(()), "{kind}");
        assert!(matches!(held(kind, 3), Err(Difference::Differs { .. })), "{kind}");
    }
    assert_eq!(held("Fallback", 7), Ok(()));
    assert!(matches!(held("Fallback", 1), Err(Difference::Differs { .. })));
    let line: Value = serde_json::from_str(&line).unwrap();
    let indented = serde_json::to_string_pretty(&line).unwrap();
    assert_eq!(replay_line(indented.as_bytes()), Ok(()), "the form does not matter");
    let mut all = Vec::new();
    changed(&line, &mut all, &|new| new);
    assert!(all.len() > 100, "{}", all.len());
    for changed in all {
        let replayed = replay_line(changed.to_string().as_bytes());
        assert!(!matches!(replayed, Ok(()) | Err(Difference::NoDecision)), "{changed}");
    }
    // As long as it has a part of its inputs, it is a decision.
    let text = line.to_string();
    let inputs = text.find("\"inputs\"").expect("inputs");
    for at in (1..text.len()).filter(|at| text.is_char_boundary(*at)) {
        let end = (at < inputs).then(|| &text[at..]);
        for part in [&text[..at]].into_iter().chain(end) {
            let replayed = replay_line(part.as_bytes());
            assert!(matches!(replayed, Err(Difference::Unreadable(_))), "{part}");
        }
    }
    let none = super::replay::line(&web, None, &shown).expect("a line");
    assert_eq!(replay_line(none.as_bytes()), Ok(()));
    let mut without: Value = serde_json::from_str(&none).unwrap();
    without["digest"] = line["digest"].clone();
    assert!(matches!(replay_line(without.to_string().as_bytes()), Err(Difference::Changed(_))));
    // A decision by another algorithm, with a digest of its own.
    let mut other = line.clone();
    other["outcome"]["rescale"] = json!(to + 1);
    assert!(matches!(replay_line(other.to_string().as_bytes()), Err(Difference::Differs { .. })));
    for no_line in [&b"{}"[..], b"\xff\"inputs\":", b"{\"cut"] {
        assert!(matches!(replay_line(no_line), Err(Difference::Unreadable(_))));
    }
    assert_eq!(replay_line(b"\xff"), Err(Difference::NoDecision));
}

#[test]
fn the_example_of_the_documentation_is_a_whole_decision() {
    let page = include_str!("../../docs/decisions.md");
    let example =
        page.split("## Example\n\n```yaml\n").nth(1).and_then(|rest| rest.split("```").next());
    let decision: api::Decision = serde_saphyr::from_str(example.unwrap()).unwrap();
    assert!(render::entry(decision, None).is_some());
}
