use super::*;
use crate::watch::read_autoscaler;
use serde_json::json;

const HOUR: i64 = KEPT_MS;

fn at(process: i64) -> DecisionTime {
    DecisionTime { wall: 1_767_225_600_000 + process, process, server: process }
}

fn change(from: i32, to: i32) -> Change {
    Change { from, to, at: 0 }
}

fn argo() -> Option<Writer> {
    let by = ReplicasOwner { manager: "argocd-controller".to_owned(), way: Way::Apply, time: None };
    Some(Writer::Other(Some(by)))
}

fn shown(warnings: &mut Warnings, status: &mut Status, now: i64) -> Option<(bool, String, String)> {
    warnings.show(status, at(now));
    let condition = status.condition(ConditionKind::ConfigurationWarning)?;
    Some((condition.status, condition.reason.to_string(), condition.message.to_string()))
}

#[test]
fn who_writes_the_replicas_is_named_until_an_hour_after_the_last_time() {
    let (mut warnings, mut status) = (Warnings::default(), Status::default());
    assert_eq!(shown(&mut warnings, &mut status, 0), None);
    assert!(warnings.is_lookup_due(1));
    assert!(warnings.note_write(change(5, 2), argo(), at(1)));
    let event = warnings.take_event().expect("an event");
    assert_eq!((event.reason, warnings.take_event()), (Reason::ReplicasWrittenByOthers, None));
    let (is_true, reason, message) = shown(&mut warnings, &mut status, 1).expect("a condition");
    assert!(is_true && reason == Reason::ReplicasWrittenByOthers.as_str());
    let start = "field manager \"argocd-controller\" (Apply) changed spec.replicas from 5 to 2: ";
    assert!(message.starts_with(start) && message.contains("ignoreDifferences"), "{message}");
    assert_eq!(event.message, message);
    // The same again: the status is not written each time.
    assert!(!warnings.is_lookup_due(60_000));
    assert!(warnings.note_write(change(6, 2), None, at(60_000)));
    assert_eq!(
        (shown(&mut warnings, &mut status, 60_000).unwrap().2, warnings.take_event()),
        (message, None)
    );
    assert!(warnings.is_lookup_due(1 + LOOKUP_INTERVAL_MS));
    assert!(shown(&mut warnings, &mut status, 60_000 + HOUR).unwrap().0);
    let (is_true, reason, _) = shown(&mut warnings, &mut status, 60_001 + HOUR).unwrap();
    assert_eq!((is_true, &*reason), (false, "Ended"));
}

#[test]
fn what_another_leader_of_plimsoll_wrote_is_no_warning() {
    let (mut warnings, mut status) = (Warnings::default(), Status::default());
    assert!(!warnings.note_write(change(5, 2), Some(Writer::Plimsoll), at(0)));
    assert!(!warnings.note_write(change(2, 3), None, at(1)));
    assert_eq!(shown(&mut warnings, &mut status, 1), None);
}

#[test]
fn a_writer_without_field_managers_is_another_client_and_an_owner_by_hand_is_told_that_nothing_is_left_to_do()
 {
    let (mut warnings, mut status) = (Warnings::default(), Status::default());
    warnings.note_write(change(5, 2), Some(Writer::Other(None)), at(0));
    let (_, _, message) = shown(&mut warnings, &mut status, 0).unwrap();
    let start = "another client (2026-01-01T00:00:00Z) changed spec.replicas from 5 to 2: a kubectl scale by hand needs nothing more";
    assert!(message.starts_with(start), "{message}");
}

#[test]
fn what_another_replica_found_stays_for_an_hour() {
    let (mut warnings, mut status) = (Warnings::default(), Status::default());
    let text = format_args!("found before");
    status.set(ConditionKind::ConfigurationWarning, true, Reason::QueryWasEmpty, text, 0);
    for (now, stays) in [(5, true), (5 + HOUR, true), (6 + HOUR, false)] {
        assert_eq!(shown(&mut warnings, &mut status, now).unwrap().0, stays, "{now}");
    }
}

fn scaling(on_empty: &str) -> ScalingSpec {
    let object = json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": {
        "maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "customMetrics": [{"metricName": "qps", "averageValue": "5", "onEmpty": on_empty}]}});
    let record = read_autoscaler(serde_json::from_value(object).expect("an object"), None);
    record.parsed.expect("a spec").scaling.clone()
}

#[test]
fn a_query_that_had_series_and_then_none_is_a_warning_unless_on_empty_says_what_that_means() {
    for (on_empty, warns) in [("Missing", true), ("Hold", false), ("Zero", false)] {
        let (mut warnings, mut status) = (Warnings::default(), Status::default());
        let scaling = scaling(on_empty);
        let mut note = |minute: i64, is_empty: Option<bool>| {
            let at = at(minute * 60_000);
            warnings.note_results([is_empty].into_iter(), &scaling, at);
            warnings.show(&mut status, at);
            status.condition(ConditionKind::ConfigurationWarning).cloned()
        };
        // A new workload has none at first.
        for (minute, is_empty) in [(0, Some(true)), (1, Some(false)), (2, None)] {
            assert_eq!(note(minute, is_empty), None);
        }
        let found = note(3, Some(true));
        assert_eq!(found.is_some(), warns, "{on_empty}");
        let Some(found) = found else { continue };
        assert!(found.status && found.reason == Reason::QueryWasEmpty, "{found:?}");
        let start = "the query of qps had series and then none, first at 2026-01-01T00:03:00Z";
        assert!(found.message.starts_with(start), "{found:?}");
        // The text says no more, so that the status is not written each time.
        assert_eq!(note(4, Some(true)), Some(found.clone()));
        assert_eq!(note(5, Some(false)), Some(found.clone()));
        assert_eq!(note(64, Some(false)), Some(found));
        assert!(!note(65, Some(false)).expect("a condition").status);
    }
}

/// A wrong query would keep the replicas for ever.
#[test]
fn a_query_that_holds_the_replicas_for_15_minutes_is_a_warning_until_it_has_series() {
    let (mut warnings, mut status) = (Warnings::default(), Status::default());
    let scaling = scaling("Hold");
    let mut note = |minute: i64, is_empty: bool| {
        let at = at(minute * 60_000);
        warnings.note_results([Some(is_empty)].into_iter(), &scaling, at);
        warnings.show(&mut status, at);
        status.condition(ConditionKind::ConfigurationWarning).cloned()
    };
    for minute in 0..15 {
        assert_eq!(note(minute, true), None, "{minute}");
    }
    let found = note(15, true).expect("a condition");
    let start =
        "the query of qps has no series since 2026-01-01T00:00:00Z, and onEmpty: Hold keeps";
    assert!(found.reason == Reason::QueryWasEmpty && found.message.starts_with(start), "{found:?}");
    assert_eq!(note(100, true), Some(found));
    assert!(!note(101, false).expect("a condition").status);
    assert!(!note(102, true).expect("a condition").status);
}

#[test]
fn another_spec_and_a_time_without_pods_begin_anew() {
    let (mut warnings, mut status) = (Warnings::default(), Status::default());
    let scaling = scaling("Missing");
    let one = |is_empty| [Some(is_empty)].into_iter();
    warnings.note_results(one(false), &scaling, at(0));
    warnings.begin(Some(2));
    warnings.note_results(one(true), &scaling, at(1));
    assert_eq!(shown(&mut warnings, &mut status, 1), None);
    warnings.note_results(one(false), &scaling, at(2));
    warnings.note_results([].into_iter(), &scaling, at(3));
    warnings.note_results(one(true), &scaling, at(4));
    assert_eq!(shown(&mut warnings, &mut status, 4), None);
}

#[test]
fn a_new_term_leaves_what_another_replica_has_found() {
    let (mut warnings, mut status) = (Warnings::default(), Status::default());
    warnings.note_write(change(5, 2), argo(), at(0));
    assert!(shown(&mut warnings, &mut status, 0).expect("a condition").0);
    assert!(!shown(&mut warnings, &mut status, 2 * HOUR).expect("a condition").0);
    // Meanwhile another replica led.
    let kind = ConditionKind::ConfigurationWarning;
    status.set(kind, true, Reason::ReplicasWrittenByOthers, format_args!("by it"), 0);
    warnings.begin_term();
    assert!(shown(&mut warnings, &mut status, 3 * HOUR).expect("a condition").0);
    assert!(!shown(&mut warnings, &mut status, 5 * HOUR).expect("a condition").0);
}

#[test]
fn pods_of_others_are_named_by_what_does_not_change_from_run_to_run() {
    let (mut warnings, mut status) = (Warnings::default(), Status::default());
    let job = |number: u32| Owner {
        group: "batch".to_owned(),
        kind: "Job".to_owned(),
        name: format!("web-{number}"),
        uid: number.to_string(),
    };
    warnings.note_others("app=web", Some(&job(1)), 0);
    let first = shown(&mut warnings, &mut status, 0).expect("a condition");
    assert!(first.2.starts_with("the selector app=web of the target selects pods of a Job, too"));
    // The first has ended, and there is none for a while.
    assert_eq!(shown(&mut warnings, &mut status, HOUR / 2), Some(first.clone()));
    warnings.note_others("app=web", Some(&job(2)), HOUR / 2);
    assert_eq!(shown(&mut warnings, &mut status, HOUR), Some(first));
    warnings.begin(Some(2));
    assert!(!shown(&mut warnings, &mut status, HOUR).expect("a condition").0);
}

#[test]
fn a_lookup_that_failed_says_nothing_of_the_writer() {
    let (mut warnings, mut status) = (Warnings::default(), Status::default());
    assert!(!warnings.note_write(change(5, 2), Some(Writer::Unknown), at(0)));
    assert!(shown(&mut warnings, &mut status, 0).is_none() && warnings.is_lookup_due(1));
    assert!(!warnings.note_write(change(5, 2), Some(Writer::Plimsoll), at(1)));
    assert!(warnings.is_lookup_due(2) && warnings.note_write(change(2, 5), argo(), at(2)));
}

#[test]
fn rollouts_that_are_not_seen_are_warned_of_until_the_spec_is_another() {
    let (mut warnings, mut status) = (Warnings::default(), Status::default());
    warnings.note_unseen(Some("Rollout"));
    let (is_true, reason, message) = shown(&mut warnings, &mut status, 0).expect("a condition");
    assert!(is_true && reason == Reason::RolloutsNotSeen.as_str(), "{reason}");
    assert!(message.starts_with("rollouts has no effect: those of a Rollout"), "{message}");
    assert!(shown(&mut warnings, &mut status, 2 * HOUR).expect("a condition").0);
    warnings.note_unseen(None);
    assert!(!shown(&mut warnings, &mut status, 2 * HOUR).expect("a condition").0);
}
