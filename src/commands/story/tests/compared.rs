//! Decisions beside those of kube-controller-manager, and who has changed the replicas.

use super::super::{Agreement, Subject, total};
use super::{HOUR, NOW, SECOND, constraint, decision, golden, merge, metric, read, subject, tell};
use crate::ledger::time;
use serde_json::{Value, json};

/// A run of decisions for an observed HPA: how many, what Plimsoll decides and what kube-controller-manager does.
fn beside(start: i64, count: i64, ours: Option<i32>, kcm: Option<i32>) -> Value {
    let mut one = decision(json!({
        "metadata": {"name": "web.horizontalpodautoscaler.43"}, "count": count,
        "firstTime": time(NOW - 24 * HOUR + start * 15 * SECOND),
        "lastTime": time(NOW - 24 * HOUR + (start + count - 1) * 15 * SECOND),
        "recommendedReplicas": ours, "desiredReplicas": ours,
        "carriedOut": {"by": "kube-controller-manager", "reason": "Observed"},
        "observed": {"desiredReplicas": kcm}}));
    if ours != kcm {
        merge(
            &mut one["observed"],
            &json!({"values": "9800m",
            "conditions": "AbleToScale is True (ReadyForNewScale): ok; ScalingActive is True (ValidMetricFound): ok"}),
        );
    }
    one
}

/// What the decisions of several runs come to, each as (count, ours, kube-controller-manager's).
fn agree(runs: &[(i64, Option<i32>, Option<i32>)]) -> Agreement {
    let (mut agreement, mut start) = (Agreement::default(), 0);
    for (count, ours, kcm) in runs {
        agreement.push(read(beside(start, *count, *ours, *kcm)));
        start += count;
    }
    agreement.finish();
    agreement
}

#[test]
fn decisions_are_equal_that_are_a_period_apart() {
    let some = |count, ours, kcm| (count, Some(ours), Some(kcm));
    for (runs, equal, apart, all) in [
        (vec![some(4312, 4, 4)], 4312, 0, 4312),
        // kube-controller-manager follows, one or two evaluations later, or was first.
        (vec![some(100, 4, 4), some(1, 6, 4), some(100, 6, 6)], 201, 1, 201),
        (vec![some(100, 4, 4), some(2, 6, 4), some(100, 6, 6)], 202, 2, 202),
        (vec![some(100, 4, 4), some(1, 4, 6), some(100, 6, 6)], 201, 1, 201),
        // It follows a load that rises all the time.
        (
            vec![some(9, 4, 4), some(1, 5, 4), some(1, 6, 5), some(1, 7, 6), some(9, 7, 7)],
            21,
            3,
            21,
        ),
        // It decides otherwise for longer, or something that Plimsoll never wanted.
        (vec![some(100, 4, 4), some(3, 6, 4), some(100, 6, 6)], 200, 0, 203),
        (vec![some(100, 4, 4), some(1, 5, 9), some(100, 4, 4)], 200, 0, 201),
        // A spike of one of both alone, up or down.
        (vec![some(100, 4, 4), some(1, 9, 4), some(100, 4, 4)], 200, 0, 201),
        (vec![some(100, 4, 4), some(1, 1, 4), some(100, 4, 4)], 200, 0, 201),
        (vec![some(100, 4, 4), some(1, 4, 9), some(100, 4, 4)], 200, 0, 201),
        // It is not known yet whether the other follows.
        (vec![some(100, 4, 4), some(1, 9, 4)], 100, 0, 100),
    ] {
        let agreement = agree(&runs);
        let found = (agreement.equal, agreement.apart, agreement.decisions);
        assert_eq!(found, (equal, apart, all), "{runs:?}");
        assert_eq!(agreement.difference.is_some(), equal != all, "{runs:?}");
    }
    // What is hours apart is not seen together.
    let (mut apart, mut start) = (Agreement::default(), 0);
    for (count, ours, kcm) in [(100, 4, 4), (1, 6, 4), (100, 6, 6)] {
        apart.push(read(beside(start, count, Some(ours), Some(kcm))));
        start += count + 240;
    }
    apart.finish();
    assert_eq!((apart.equal, apart.decisions), (200, 201));
    let undecided = agree(&[some(10, 4, 4), (5, Some(4), None), (2, None, Some(4)), some(3, 4, 4)]);
    assert_eq!((undecided.undecided, undecided.failed, undecided.decisions), (5, 2, 15));
    assert_eq!(undecided.percent(), 86.6);
}

#[test]
fn hpas_are_compared() {
    let some = |count, ours, kcm| (count, Some(ours), Some(kcm));
    let whole = agree(&[some(4312, 4, 4)]);
    let mut differing =
        agree(&[some(4000, 4, 4), some(11, 6, 4), some(200, 6, 6), (7, Some(6), None)]);
    let limited = differing.difference.as_mut().unwrap();
    limited.0.reason = "Observed".to_owned();
    let mut text = whole.text("shop/web", &[]);
    text += &differing.text("shop/api", &["03:04:01 SuccessfulRescale: New size: 4".to_owned()]);
    let (decision, _) = differing.difference.as_mut().unwrap();
    decision.observed.as_mut().unwrap().values = Some("12".to_owned());
    decision.metrics[0].newest_sample_age = Some("42.000s".to_owned());
    text += &differing.text("shop/other-values", &[]);
    // At the edge of the tolerance: 10.99 is within it.
    let (decision, _) = differing.difference.as_mut().unwrap();
    decision.observed.as_mut().unwrap().values = Some("10990m".to_owned());
    decision.metrics[0].value = Some("11050m".to_owned());
    text += &differing.text("shop/at-the-edge", &[]);
    let (decision, _) = differing.difference.as_mut().unwrap();
    decision.metrics[0].value = Some("9800m".to_owned());
    let (decision, _) = differing.difference.as_mut().unwrap();
    let observed = decision.observed.as_mut().unwrap();
    observed.values = Some("9800m".to_owned());
    observed.conditions = Some("ScalingLimited is True (ScaleUpLimit): ...".to_owned());
    text += &differing.text("shop/other-limits", &[]);
    // It waits for pods that are not known yet. What kube-controller-manager measured is not kept where both want the same.
    let (decision, _) = differing.difference.as_mut().unwrap();
    let held = constraint("PodsNotKnown", 4, 6, None);
    decision.constraints = vec![serde_json::from_value(held).unwrap()];
    decision.observed.as_mut().unwrap().values = None;
    text += &differing.text("shop/pods-not-known", &[]);
    text += &agree(&[(40, None, Some(4))]).text("shop/failing", &[]);
    text += &agree(&[(40, Some(4), None)]).text("shop/no-metric", &[]);
    text += &Agreement::default().text("shop/old", &[]);
    text += &total([&whole, &differing, &Agreement::default()].into_iter());
    golden("compare", &text);
    assert_eq!(differing.json("shop", "api", &[])["firstDifference"]["decisions"], 11);
}

/// A metric that decides on neither side has another value nearly always.
#[test]
fn only_a_metric_that_decides_is_a_cause() {
    let mut one = beside(0, 20, Some(14), Some(20));
    merge(
        &mut one,
        &json!({"currentReplicas": 10, "recommendedReplicas": 30,
        "constraints": [constraint("ScaleUpLimit", 30, 14, None)]}),
    );
    let cpu = json!({"metricIndex": 0, "name": "cpu", "value": "35%", "target": "80%", "targetType": "Utilization",
        "ratio": 0.4375, "proposedReplicas": 5, "status": "Valid"});
    let queries = json!({"metricIndex": 1, "name": "qps", "value": "30", "ratio": 3.0, "proposedReplicas": 30});
    one["metrics"] = [cpu, queries].map(metric).into();
    let cause = |values: &str| {
        let mut one = one.clone();
        one["observed"]["values"] = values.into();
        let mut agreement = Agreement::default();
        agreement.push(read(one));
        agreement.finish();
        agreement.json("shop", "web", &[])["firstDifference"]["cause"].to_string()
    };
    assert!(cause("30%, 30").contains("different limits"), "{}", cause("30%, 30"));
    assert!(cause("30%, 20").contains("different values of qps"), "{}", cause("30%, 20"));
    assert!(cause("300%, 20").contains("different values of cpu"), "{}", cause("300%, 20"));
}

/// Which decision it is: its sequence, and the time of its first and last evaluation in seconds before now.
fn made(mut one: Value, sequence: u64, from: i64, to: i64, replicas: i32) -> Value {
    merge(
        &mut one,
        &json!({"metadata": {"name": format!("web.autoscaler.{sequence}")},
        "count": (from - to) / 15 + 1,
        "firstTime": time(NOW - from * SECOND), "lastTime": time(NOW - to * SECOND), "currentReplicas": replicas,
        "recommendedReplicas": replicas, "desiredReplicas": replicas}),
    );
    one
}

/// The line that says since when there are so many replicas.
fn since(decisions: &[Value]) -> String {
    let story = tell(subject(), decisions, NOW);
    story.lines().find(|line| line.starts_with("Since")).unwrap_or_default().to_owned()
}

/// A decision for an observed HPA: what kube-controller-manager desired then, and how many seconds before now it had
/// scaled last.
fn seen(sequence: u64, from: i64, to: i64, replicas: i32, kcm: i32, scaled: Option<i64>) -> Value {
    let mut one = made(beside(0, 1, Some(replicas), Some(kcm)), sequence, from, to, replicas);
    let scaled = scaled.map(|before| time(NOW - before * SECOND));
    merge(&mut one, &json!({"observed": {"lastScaleTime": scaled}, "basis": {"maxReplicas": 12}}));
    one
}

/// From 4 replicas to 9.
fn scaled(kcm: [i32; 3], scaled: [Option<i64>; 3]) -> [Value; 3] {
    [
        seen(1, 600, 120, 4, kcm[0], scaled[0]),
        seen(2, 105, 105, 9, kcm[1], scaled[1]),
        seen(3, 90, 0, 9, kcm[2], scaled[2]),
    ]
}

#[test]
fn kube_controller_manager_scales_only_where_it_says_so() {
    let (hour, now, early) = (Some(3600), Some(107), Some(121));
    for (kcm, times) in [
        ([4, 9, 9], [hour, now, now]),
        // The scale is seen before the status, or after it.
        ([4, 4, 9], [hour, hour, now]),
        ([9, 9, 9], [early; 3]),
        ([9, 4, 4], [early; 3]),
        // It never scaled before.
        ([4, 9, 9], [None, now, now]),
        // It is not known when it scaled.
        ([9, 9, 9], [None; 3]),
    ] {
        let told = since(&scaled(kcm, times));
        let by_kcm = "when kube-controller-manager scaled it from 4 to 9: ";
        assert!(told.contains(by_kcm), "{kcm:?} {times:?} {told}");
    }
    let keeps = "kube-controller-manager keeps 9";
    let others = "kube-controller-manager desires";
    for (kcm, times, why) in [
        // Within the tolerance it desires the replicas that there are.
        ([4, 9, 9], [hour; 3], keeps),
        ([4, 4, 9], [hour; 3], others),
        ([4, 4, 4], [hour; 3], others),
        ([4, 9, 9], [None; 3], keeps),
        ([4, 9, 9], [None, hour, hour], keeps),
        // It scales to 6, or back.
        ([4, 6, 6], [hour, now, now], others),
        ([4, 4, 4], [hour, hour, Some(95)], others),
    ] {
        let told = since(&scaled(kcm, times));
        let by_hand = "when another client scaled it from 4 to 9: ".to_owned() + why;
        assert!(told.contains(&by_hand), "{kcm:?} {times:?} {told}");
    }
    // It is not known yet what kube-controller-manager makes of it.
    let by_hand = since(&[seen(1, 600, 15, 4, 4, hour), seen(2, 0, 0, 9, 4, hour)]);
    assert!(by_hand.contains("another client scaled it from 4 to 9"), "{by_hand}");
    // It is set back before kube-controller-manager has seen it.
    let back =
        [seen(1, 600, 120, 9, 9, hour), seen(2, 105, 105, 4, 9, hour), seen(3, 90, 0, 9, 9, hour)];
    assert!(since(&back).contains("another client scaled it from 4 to 9"), "{}", since(&back));
    // A status that comes later than a decision more.
    let [before, change, mut after] = scaled([4, 4, 9], [hour, hour, now]);
    let mut between = seen(3, 90, 75, 9, 4, hour);
    merge(&mut between, &json!({"recommendedReplicas": 8, "desiredReplicas": 8}));
    merge(&mut after, &seen(4, 60, 0, 9, 9, now));
    let late = since(&[before, change, between, after]);
    assert!(late.contains("kube-controller-manager scaled it from 4 to 9"), "{late}");
}

#[test]
fn plimsoll_agrees_only_with_what_it_asks_for() {
    let (hour, now) = (Some(3600), Some(107));
    let told = |before: Value, change: Value| {
        let mut all = scaled([4, 9, 9], [hour, now, now]);
        merge(&mut all[0], &before);
        merge(&mut all[1], &change);
        since(&all)
    };
    let agrees = "kube-controller-manager scaled it from 4 to 9: Plimsoll agrees, ";
    let holds = "kube-controller-manager scaled it from 4 to 9: Plimsoll holds it, ";
    let within = || json!({"reason": "WithinTolerance"});
    let before = told(json!({"recommendedReplicas": 9, "desiredReplicas": 9}), within());
    assert!(before.contains(agrees), "{before}");
    for reason in ["MetricRecommendation", "ReplicaLimit"] {
        let change = told(json!({}), json!({"reason": reason}));
        assert!(change.contains(agrees), "{change}");
    }
    let steady = told(json!({}), within());
    assert!(steady.contains(holds), "{steady}");
    let stabilized = constraint("ScaleDownStabilized", 4, 9, Some(NOW + SECOND));
    let stabilized = told(
        json!({}),
        json!({"recommendedReplicas": 4, "reason": "Stabilized", "constraints": [stabilized]}),
    );
    assert!(stabilized.contains(holds), "{stabilized}");
}

/// Within its tolerance kube-controller-manager desires from then on what there is.
#[test]
fn an_observed_hpa_that_is_steady_is_scaled_by_hand() {
    let hour = Some(3600);
    let subject = Subject { kind: "HorizontalPodAutoscaler".to_owned(), ..subject() };
    let mut all = scaled([4, 9, 9], [hour; 3]);
    let pods = metric(json!({"pods": {"ready": 9}, "proposedReplicas": 9}));
    merge(&mut all[2], &json!({"metrics": [pods], "wouldChange": null}));
    golden("observed-scaled-by-hand", &tell(subject, &all, NOW));
}

/// A leader that is killed takes its last moment with it, and its successor may lack more.
#[test]
fn what_was_not_seen_is_nobodys() {
    let at = |sequence, from, to, replicas| made(decision(json!({})), sequence, from, to, replicas);
    let before = at(7, 600, 120, 4);
    let others = since(&[before.clone(), at(8, 105, 0, 6)]);
    assert!(others.contains("when another client scaled it from 4 to 6"), "{others}");
    let mut moved = at(8, 105, 0, 6);
    moved["metadata"]["annotations"]["plimsoll.dev/history-since"] =
        time(NOW - 110 * SECOND).into();
    for next in [at(1_048_585, 105, 0, 6), at(1, 105, 0, 6), at(8, 80, 0, 6), moved] {
        let unknown = since(&[before.clone(), next.clone()]);
        assert!(
            unknown.contains(
                "when it was changed from 4 to 6: no decision is known from 03:03:10 to 03:0"
            ),
            "{unknown}"
        );
    }
}
