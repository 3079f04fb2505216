//! What a status shows.

use super::*;
use crate::control::status::LastWrite;
use crate::crd::AutoscalerStatus;

/// What is shown of an autoscaler.
fn shown(control: &ControlLoop, autoscaler: &AutoscalerRef) -> AutoscalerStatus {
    serde_json::from_str(&control.ctx.live.get(autoscaler).unwrap()).unwrap()
}

#[tokio::test]
async fn an_invalid_spec_keeps_the_last_known_scale_in_the_status() {
    let (control, _) = World::new(3, Some(3), |_, _| None).run();
    let autoscaler = put(&control, "web", json!({"maxReplicas": 9}));
    show_replicas(&control, 3);
    let mut state = AutoscalerState::default();
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
    let before = shown(&control, &autoscaler);
    put_invalid(&control, &autoscaler);
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
    let shown = shown(&control, &autoscaler);
    assert_eq!((shown.current_replicas, shown.observed_generation), (Some(3), Some(2)));
    // What is not in it is removed from the object.
    assert_eq!((&shown.reference, &shown.targets), (&before.reference, &before.targets));
    assert_eq!(shown.current_metrics.as_ref().map(Vec::len), Some(1));
}

/// A status is written whole, and this process has not written this one.
#[tokio::test]
async fn an_invalid_spec_keeps_what_another_process_wrote_in_the_status() {
    let written = json!({"reference": "Deployment/web", "targets": "queue: 1/3"});
    let object = json!({"apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler",
        "metadata": {"name": "web"}, "status": written});
    let (control, _) = World::new(3, Some(3), move |_, request| {
        (request.line == AUTOSCALERS).then(|| (200, listed(std::slice::from_ref(&object))))
    })
    .run();
    let autoscaler = fake::autoscaler("web");
    put_invalid(&control, &autoscaler);
    let mut state = AutoscalerState::default();
    // In an earlier term.
    let old =
        AutoscalerStatus { reference: Some("Deployment/old".to_owned()), ..Default::default() };
    state.written = Some(LastWrite::now(old.digest(), 7));
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
    let shown = json!(shown(&control, &autoscaler));
    assert_eq!(
        (&shown["reference"], &shown["targets"]),
        (&written["reference"], &written["targets"])
    );
}

#[tokio::test]
async fn a_status_that_can_not_be_read_is_told_in_the_words_of_kubectl() {
    let refused = || fake::failure(403, "Forbidden", "not for you");
    let (control, _) =
        World::new(3, Some(3), move |_, request| (request.line == AUTOSCALERS).then(refused)).run();
    let autoscaler = fake::autoscaler("web");
    put_invalid(&control, &autoscaler);
    let (lines, _guard) = crate::fake::LogLines::keep();
    let ended = evaluate_once(&control, &autoscaler, &mut AutoscalerState::default()).await;
    assert_eq!(ended, Failed);
    lines.assert_plain();
}

/// A process that leads again, without another in between.
#[tokio::test]
async fn the_status_of_an_invalid_spec_is_read_once_in_a_term() {
    let written = Arc::new(Mutex::new(Value::Null));
    let object = written.clone();
    let (control, log) = World::new(3, Some(3), move |_, request| {
        let status = object.lock().unwrap().clone();
        let object = json!({"apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler",
            "metadata": {"name": "web"}, "status": status});
        (request.line == AUTOSCALERS).then(|| (200, listed(std::slice::from_ref(&object))))
    })
    .run();
    let autoscaler = fake::autoscaler("web");
    put_invalid(&control, &autoscaler);
    let mut state = AutoscalerState::default();
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
    let status = shown(&control, &autoscaler);
    *written.lock().unwrap() = json!(status);
    state.written = Some(LastWrite::now(status.digest(), 7));
    let reads = || log.of("GET").into_iter().filter(|read| read.line == AUTOSCALERS).count();
    let before = reads();
    for _ in 0..3 {
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
    }
    assert_eq!(reads(), before + 1);
}

/// Whoever has set the mode thinks that the scale is left alone.
#[tokio::test]
async fn a_pause_that_is_none_is_shown_with_either_executor() {
    for (executor, mode, reason) in [
        ("Embedded", "Paused", "PauseIsOver"),
        ("NativeHPA", "Paused", "PauseIsOver"),
        ("Embedded", "Active", "ModeIsActive"),
        ("NativeHPA", "Active", "ModeIsActive"),
    ] {
        let (control, _) = World::new(3, Some(3), |_, _| None).run();
        let spec = json!({"maxReplicas": 9, "executor": executor, "mode": mode,
            "pause": {"until": "2020-01-01T00:00:00Z"}});
        let autoscaler = put(&control, "web", spec);
        show_replicas(&control, 3);
        let mut state = AutoscalerState::default();
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held, "{executor}");
        let paused = state.status.condition(ConditionKind::Paused).expect("it is set");
        assert_eq!((paused.status, &*paused.reason), (false, reason), "{executor}");
    }
}

#[tokio::test]
async fn rollouts_of_a_kind_that_is_not_watched_are_warned_of() {
    for (kind, warns) in [("Deployment", false), ("ReplicaSet", true)] {
        let (control, _) = World::new(3, Some(3), |_, _| None).run();
        let target = json!({"apiVersion": "apps/v1", "kind": kind, "name": "web"});
        let spec = json!({"maxReplicas": 9, "rollouts": "Hold", "scaleTargetRef": target});
        let autoscaler = put(&control, "web", spec);
        show_replicas(&control, 3);
        let mut state = AutoscalerState::default();
        evaluate_once(&control, &autoscaler, &mut state).await;
        let warning = state.status.condition(ConditionKind::ConfigurationWarning);
        let reason = warning.filter(|warning| warning.status).map(|warning| &*warning.reason);
        assert_eq!(reason, warns.then_some("RolloutsNotSeen"), "{kind}");
    }
}

/// A new leader of thousands would write all of them.
#[tokio::test]
async fn a_new_leader_writes_no_status_that_the_object_has_already() {
    let (control, _) = World::new(3, Some(3), |_, _| None).run();
    show_replicas(&control, 3);
    let autoscaler = put(&control, "web", json!({"maxReplicas": 9}));
    let writes = async |status: &Value| {
        // The object as the leader before has left it.
        let record = control.ctx.cluster.read(|index| index.autoscaler(&autoscaler.key)).unwrap();
        let object = json!({"metadata": {"namespace": "shop", "name": "web", "uid": "web",
            "generation": 1}, "status": status});
        let read = read_autoscaler(serde_json::from_value(object).unwrap(), Some(&record));
        control.ctx.cluster.write(|index| index.put_autoscaler(autoscaler.key.clone(), read));
        control.ctx.statuses.forget(&autoscaler);
        let mut state = AutoscalerState::default();
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
        assert!(state.written.is_some());
        let term = control.ctx.fencing_token().expect("it leads").term();
        control.ctx.statuses.has(&autoscaler, term)
    };
    assert!(writes(&Value::Null).await);
    let status = json!(shown(&control, &autoscaler));
    assert!(!writes(&status).await);
    let mut moved = status.clone();
    moved["currentMetrics"][0]["external"]["current"]["averageValue"] = "900m".into();
    moved["targets"] = "900m/1 (avg)".into();
    assert!(!writes(&moved).await, "a metric that moved a little");
    // By an editor, or another version.
    for (path, value) in [
        ("/conditions/0/message", json!("other")),
        ("/targets", json!("900m/1 (avg)")),
        ("/targets", json!("1/1")),
        ("/currentMetrics", Value::Null),
        ("/currentMetrics/0/external/metric/name", json!("other")),
    ] {
        let mut other = status.clone();
        *other.pointer_mut(path).unwrap() = value;
        assert!(writes(&other).await, "{path}");
    }
}
