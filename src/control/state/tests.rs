use super::*;
use crate::hpa::{self, Context, Input, LONGEST_MS, Recommendation, Samples, ScaleEvent};

fn status(last_scale: Option<UnixMillis>) -> Status {
    Status { last_scale, current_replicas: 1, desired_replicas: 1, ..Status::default() }
}

#[test]
fn the_status_is_read_again_in_each_term() {
    let mut state = AutoscalerState::default();
    state.begin("u", Some(1), status(None));
    assert!(state.belongs_to("u", Some(1)), "it is this replica's own");
    // Another replica led in between, though this one did not evaluate then.
    assert!(!state.belongs_to("u", Some(2)) && !state.belongs_to("another", Some(1)));
    state.begin("u", Some(2), status(Some(9_000)));
    assert_eq!(state.status.last_scale, Some(9_000));
    assert!(state.is_first_in_term && state.written.is_none());
    for _ in 0..2 {
        state.begin("u", None, status(Some(10_000)));
        assert!(!state.belongs_to("u", None));
    }
    assert_eq!(state.status.last_scale, Some(10_000));
    state.begin("another", Some(2), status(None));
    assert_eq!(state.status.last_scale, None);
}

#[test]
fn a_metric_does_not_fail_while_the_scale_is_not_known() {
    let mut state = AutoscalerState::default();
    state.note_evaluation(true, 10_000);
    state.status.failing = vec![None, Some(10_000)];
    for (scale_is_known, now, since) in [
        (true, 25_000, 10_000),
        (false, 40_000, 25_000),
        (false, 3_640_000, 3_625_000),
        (true, 3_655_000, 3_625_000),
    ] {
        state.note_evaluation(scale_is_known, now);
        assert_eq!(state.status.failing, [None, Some(since)], "{now}");
    }
}

#[test]
fn removals_are_withheld_for_the_length_of_a_gap_and_at_most_a_window() {
    let (period, window) = (15_000, 300_000);
    // How long removals are withheld after a gap, if the metrics fail again in each evaluation
    // but every nth.
    let withheld = |gap: i64, nth: i64| {
        let mut state = AutoscalerState::default();
        let mut last = None;
        assert!(!state.withholds_removals(last, window, -gap), "there was no gap before");
        (last, state.measured) = (Some(-gap), false);
        let evaluation = (0..1_000).find(|evaluation| {
            let now = evaluation * period;
            if evaluation % nth != 0 {
                state.measured = false;
                return false;
            }
            let withholds = state.withholds_removals(last, window, now);
            last = Some(now);
            !withholds
        });
        evaluation.expect("removals are withheld for ever") * period
    };
    assert_eq!(withheld(60_000, 1), 60_000);
    assert_eq!(withheld(600_000, 1), 300_000);
    for nth in 2..6 {
        let time = withheld(60_000, nth);
        assert!((window..window + nth * period).contains(&time), "{nth}: {time}");
    }
    // A second outage that ends after the hold of the first starts a new hold.
    let mut state = AutoscalerState::default();
    assert!(state.withholds_removals(Some(-600_000), window, 0));
    state.measured = false;
    assert!(state.withholds_removals(Some(105_000), window, 720_000), "away for 10 minutes");
    assert!(state.withholds_removals(Some(720_000), window, 735_000));
    assert!(!state.withholds_removals(Some(1_005_000), window, 1_020_000));
    let mut state = AutoscalerState::default();
    assert!(state.withholds_removals(Some(-600_000), window, 0));
    assert!(state.withholds_removals(Some(0), 30_000, 15_000));
    assert!(!state.withholds_removals(Some(15_000), 30_000, 30_000), "the window is shorter now");
    let mut state = AutoscalerState::default();
    assert!(!state.withholds_removals(Some(-600_000), 0, 0), "no window");
    // Without gaps nothing is withheld.
    assert!((1..100).all(|n| !state.withholds_removals(
        Some((n - 1) * period),
        window,
        n * period
    )));
}

fn event(change: i32, time: UnixMillis) -> ScaleEvent {
    ScaleEvent { change, time, outdated: false, unsure: false }
}

/// Half an hour later, merges the checkpoint of another leader with these scale-downs and scale-ups.
fn merge(
    state: &mut AutoscalerState,
    downs: Vec<ScaleEvent>,
    ups: Vec<ScaleEvent>,
    last_scale: i64,
) {
    let history = ScalingHistory { downs, ups, ..ScalingHistory::default() };
    let (uid, last_scale) = (state.uid.clone(), Some(last_scale));
    let checkpoint = Checkpoint { uid, history, last_scale, last_replicas: None, withheld: None };
    state.merge_checkpoint(checkpoint, 1_900_000);
}

/// A replica that was cut off, or whose sync period is long, sees it late.
#[test]
fn a_change_that_was_observed_late_is_the_one_that_the_checkpoint_ends_with() {
    let mut state = AutoscalerState { uid: "u".to_owned(), ..AutoscalerState::default() };
    state.rescales.note_status(Some(100), 7, 83_000);
    state.history.ups = vec![event(3, 83_000)];
    merge(&mut state, vec![], vec![event(3, 0)], 100);
    assert_eq!(state.history.ups, [event(3, 0)]);
}

/// While it is evaluated, its checkpoint is merged of what it had before and of what a new term loads.
#[test]
fn a_date_of_the_same_checkpoint_stays() {
    let mut state = AutoscalerState::default();
    for younger in [0, 4_000] {
        merge(&mut state, vec![], vec![event(3, younger)], 100);
    }
    assert_eq!(state.history.ups, [event(3, 0)]);
}

/// Of two equal changes within a minute, a checkpoint has the first: the second was not observed late.
#[test]
fn a_checkpoint_of_the_change_before_does_not_stand_for_the_last_one() {
    let mut state = AutoscalerState { uid: "u".to_owned(), ..AutoscalerState::default() };
    state.rescaled(8, 6, 1_000, 1_000);
    state.rescaled(6, 4, 60_000, 60_000);
    state.history.downs = vec![event(2, 60_000)];
    merge(&mut state, vec![event(2, 1_100)], vec![], 1);
    assert_eq!(state.history.downs, [event(2, 60_000), event(2, 1_100)]);
    // One of a leader since then has it, and one more.
    let downs = vec![event(2, 1_100), event(2, 61_000), event(1, 70_000)];
    merge(&mut state, downs.clone(), vec![], 70);
    assert_eq!(state.history.downs, downs);
}

/// Replicas don't share a wall clock: that of the leader before is two hours ahead, and its last change is
/// half an hour ago.
#[test]
fn an_older_checkpoint_of_a_clock_that_is_ahead_removes_no_change() {
    let mut state = AutoscalerState { uid: "u".to_owned(), ..AutoscalerState::default() };
    state.history.ups = vec![event(1, 1_800_000)];
    state.rescaled(1, 2, 1_800_000, 1_800_000);
    merge(&mut state, vec![event(1, 0)], vec![], 7_200);
    assert_eq!(state.history.ups, [event(1, 1_800_000)]);
    // Nor does one that another has observed.
    let mut follower = AutoscalerState { uid: "u".to_owned(), ..AutoscalerState::default() };
    follower.history.ups = vec![event(1, 1_800_000)];
    follower.rescales.note_status(Some(1_800), 2, 1_800_000);
    merge(&mut follower, vec![event(1, 0)], vec![], 7_200);
    assert_eq!(follower.history.ups, [event(1, 1_800_000)]);
}

#[test]
fn the_history_of_an_idle_autoscaler_needs_no_checkpoint() {
    let at = |time| Recommendation { replicas: 0, time };
    let mut state = AutoscalerState {
        bounds: Some((1, 5)),
        status: status(None),
        ..AutoscalerState::default()
    };
    assert_eq!(state.checkpoint(0, LONGEST_MS), None, "there is no history");
    // At its minimum: what was recommended is below.
    state.history.recommendations = vec![at(0), at(15_000)];
    assert_eq!(state.checkpoint(15_000, LONGEST_MS), None);
    // So it is if the metric fluctuates there.
    state.history.recommendations = vec![at(0), Recommendation { replicas: 1, time: 15_000 }];
    assert_eq!(state.checkpoint(15_000, LONGEST_MS), None);
    state.history.recommendations = vec![at(0), at(15_000)];
    // Its window holds more replicas.
    state.history.recommendations.insert(0, Recommendation { replicas: 4, time: 0 });
    assert_eq!(state.checkpoint(15_000, LONGEST_MS).unwrap().history.recommendations.len(), 2);
    // A change of its scale is checkpointed, and nothing that changes in every evaluation.
    state.history.recommendations = vec![at(15_000)];
    state.history.downs = vec![ScaleEvent { change: 3, time: 0, outdated: false, unsure: false }];
    let kept = state.checkpoint(15_000, LONGEST_MS).unwrap();
    assert!(kept.history.recommendations.is_empty() && kept.history.downs.len() == 1);
    assert_eq!(state.checkpoint(LONGEST_MS + 1, LONGEST_MS), None);
}

/// As a scrape that came late makes: with the scale kept by a newer recommendation, one for fewer replicas never counts.
#[test]
fn it_is_at_rest_if_the_newest_recommendation_keeps_the_replicas_and_none_asks_for_more() {
    let config = hpa::ControllerConfig::default();
    let spec = |behavior: serde_json::Value| {
        let spec = serde_json::json!({"maxReplicas": 9, "minReplicas": 2, "behavior": behavior,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}});
        Spec::from_api(&serde_json::from_value(spec).unwrap())
    };
    let is_at_rest = |spec: &Spec, replicas: i32, recommendations: &[(i64, i32)]| {
        let mut state = AutoscalerState::default();
        let of = |(age, replicas): &(i64, i32)| Recommendation {
            time: 1_000_000 - age * 1_000,
            replicas: *replicas,
        };
        state.history.recommendations = recommendations.iter().map(of).collect();
        state.is_at_rest(Context::new(spec, &config, 1_000_000), replicas, 1_000_000)
    };
    let usual = spec(serde_json::Value::Null);
    for (replicas, recommendations, rests) in [
        (5, &[] as &[(i64, i32)], true),
        (5, &[(0, 5)], true),
        (5, &[(15, 4), (0, 5)], true),
        // Places of outdated ones are used again.
        (5, &[(0, 5), (15, 4)], true),
        (5, &[(15, 5), (0, 4)], false),
        (5, &[(0, 4)], false),
        (5, &[(15, 6), (0, 5)], false),
        (5, &[(301, 6), (0, 5)], true),
        (5, &[(301, 4)], true),
        (9, &[(15, 12), (0, 10)], true),
        (2, &[(15, 2), (0, 1)], true),
    ] {
        assert_eq!(is_at_rest(&usual, replicas, recommendations), rests, "{recommendations:?}");
    }
    let delayed = spec(serde_json::json!({"scaleUp": {"stabilizationWindowSeconds": 60}}));
    assert!(!is_at_rest(&delayed, 5, &[(0, 5)]));
}

#[test]
fn only_metrics_that_failed_lead_to_the_fallback() {
    let spec = serde_json::json!({"maxReplicas": 3,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "metrics": [{"type": "External", "external": {"metric": {"name": "queue"},
            "target": {"type": "AverageValue", "averageValue": "1"}}}]});
    let spec = Spec::from_api(&serde_json::from_value(spec).unwrap());
    let config = hpa::ControllerConfig::default();
    let names = ["shop/a".to_owned(), "shop/b".to_owned()];
    let ambiguous = hpa::Selected::Ambiguous { selector: "app=web", autoscalers: &names };
    for (selected, failed) in [
        (ambiguous, false),
        (hpa::Selected::Missing, false),
        (hpa::Selected::Pods(&[]), true),
        (hpa::Selected::Unowned("ReplicaSet web-1: forbidden"), true),
    ] {
        let input = Input {
            context: Context::new(&spec, &config, 0),
            namespace: "shop",
            scale: Ok(hpa::Scale { spec_replicas: 1, status_replicas: 1 }),
            selected,
            samples: &[Samples::Values(Err("Prometheus is away"))],
        };
        let (mut history, mut status) = (ScalingHistory::default(), Status::default());
        let decision = hpa::decide(&input, &mut history, &mut status, &mut ());
        assert_eq!(
            AutoscalerState::default().count_failure(&decision, true, (0, Duration::from_secs(15))),
            failed,
            "{selected:?}"
        );
    }
}
