//! Decisions beside those of kube-controller-manager.

use super::super::{Agreement, total};
use super::{HOUR, NOW, SECOND, constraint, decision, golden, merge, read};
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
