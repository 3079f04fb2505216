//! What is edited while something is under way: a scale to zero, a write, a native HPA, a takeover.

use super::*;
use crate::control::rescales::Change;
use std::sync::atomic::{AtomicI32, Ordering};

/// The state of `shop/web` in this term, which announced a scale to zero long ago.
fn announced_long_ago(control: &ControlLoop) -> AutoscalerState {
    let mut state = AutoscalerState::default();
    let (wall, now) = (control.ctx.clock.wall_ms(), control.ctx.clock.elapsed());
    state.begin("web", Some(control.ctx.fencing_token().unwrap().term()), hpa::Status::default());
    zero::announce(&mut state.status, wall - 60_000);
    state.zero_pending_since = Some(now - 60_000);
    state
}

/// The spec of an Autoscaler of this Deployment.
fn of_target(name: &str, min_replicas: i32) -> Value {
    json!({"minReplicas": min_replicas, "maxReplicas": 9, "scaleTargetRef": {
        "apiVersion": "apps/v1", "kind": "Deployment", "name": name}})
}

/// Pauses `shop/web`, which may be scaled to zero.
fn put_paused(control: &ControlLoop) -> AutoscalerRef {
    put(control, "web", json!({"minReplicas": 0, "maxReplicas": 9, "mode": "Paused"}))
}

fn is_scaled_to_zero(state: &AutoscalerState) -> Option<bool> {
    state.status.condition(ConditionKind::ScaledToZero).map(|condition| condition.status)
}

/// Otherwise a zero that the owner sets during the pause counts as Plimsoll's, and the workload is scaled up.
#[tokio::test]
async fn a_scale_to_zero_that_did_not_happen_is_not_announced_while_paused() {
    let (control, _) = World::new(2, Some(3), |_, _| None).run();
    let autoscaler = put_paused(&control);
    show_replicas(&control, 2);
    let mut state = announced_long_ago(&control);
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
    assert_eq!(is_scaled_to_zero(&state), Some(false));
}

/// What the owner chooses meanwhile is no longer Plimsoll's zero.
#[tokio::test]
async fn who_is_scaled_up_by_hand_while_paused_was_not_scaled_to_zero() {
    let (control, _) = World::new(3, Some(3), |_, _| None).run();
    let autoscaler = put_paused(&control);
    for is_in_doubt in [false, true] {
        let mut state = announced_long_ago(&control);
        state.is_zero_in_doubt = is_in_doubt;
        zero::resolve(&mut state.status, 0, 0);
        show_replicas(&control, 0);
        // What the watch shows late, a new leader reads.
        let is_at_zero = !is_in_doubt;
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
        assert_eq!(is_scaled_to_zero(&state), Some(is_at_zero));
        show_replicas(&control, 3);
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
        assert_eq!(is_scaled_to_zero(&state), Some(false));
    }
}

/// The leader scaled to zero just before the pause.
#[tokio::test]
async fn a_zero_that_the_watch_does_not_show_yet_is_kept_while_paused() {
    let (control, log) = World::new(1, Some(0), |_, _| None).run();
    let autoscaler = put(&control, "web", json!({"minReplicas": 0, "maxReplicas": 9}));
    show_replicas(&control, 1);
    let mut state = AutoscalerState::default();
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Rescaled);
    assert_eq!(is_scaled_to_zero(&state), Some(true));
    put_paused(&control);
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
    assert_eq!(is_scaled_to_zero(&state), Some(true));
    // Once the watch shows it, nothing is read any more.
    show_replicas(&control, 0);
    let reads = log.of("GET").len();
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
    assert_eq!((is_scaled_to_zero(&state), log.of("GET").len()), (Some(true), reads));
}

#[tokio::test]
async fn a_new_leader_reads_the_scale_of_who_is_paused_at_zero_once() {
    let (control, log) = World::new(0, Some(3), |_, _| None).run();
    let autoscaler = put_paused(&control);
    show_replicas(&control, 0);
    let mut state = announced_long_ago(&control);
    zero::resolve(&mut state.status, 0, 0);
    for _ in 0..3 {
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
    }
    let reads = log.of("GET").into_iter().filter(|read| read.line.ends_with("/scale")).count();
    assert_eq!((is_scaled_to_zero(&state), reads), (Some(true), 1));
}

#[tokio::test]
async fn another_target_is_not_at_zero_because_the_last_one_was_to_be() {
    let now = Arc::new(AtomicI32::new(2));
    let replicas = now.clone();
    let (control, log) = World::new(2, Some(3), move |world, _| {
        world.replicas = replicas.load(Ordering::Relaxed);
        None
    })
    .run();
    let mut state = AutoscalerState::default();
    let autoscaler = put(&control, "web", of_target("web", 0));
    evaluate_once(&control, &autoscaler, &mut state).await;
    let writes = log.of("PUT").len();
    zero::announce(&mut state.status, control.ctx.clock.wall_ms());
    now.store(0, Ordering::Relaxed);
    put(&control, "web", of_target("green", 0));
    evaluate_once(&control, &autoscaler, &mut state).await;
    assert_eq!((log.of("PUT").len(), is_scaled_to_zero(&state)), (writes, Some(false)));
}

#[tokio::test]
async fn a_write_to_the_last_target_did_not_scale_another_one() {
    let (control, _) = World::new(8, Some(8), |_, _| None).run();
    let mut state = AutoscalerState::default();
    let autoscaler = put(&control, "web", of_target("web", 1));
    evaluate_once(&control, &autoscaler, &mut state).await;
    let at = control.ctx.clock.elapsed();
    state.rescales.note_indeterminate(Change { from: 5, to: 8, at });
    put(&control, "web", of_target("green", 1));
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
    assert!(state.history.ups.is_empty() && state.status.last_scale.is_none());
}

/// By a decision, and by the fallback.
#[tokio::test]
async fn a_write_is_not_tried_again_for_an_autoscaler_that_was_edited_meanwhile() {
    for queue in [Some(6), None] {
        let cluster: Arc<OnceLock<Cluster>> = Arc::default();
        let known = cluster.clone();
        let (control, log) = World::new(3, queue, move |_, request| {
            is_put(request).then(|| {
                let key = fake::autoscaler("web").key;
                known.get().unwrap().write(|index| index.remove_autoscaler(&key));
                fake::failure(409, "Conflict", "the object has been modified")
            })
        })
        .run();
        let _ = cluster.set(control.ctx.cluster.clone());
        let fallback = json!({"failureThreshold": 1, "replicas": 5});
        let autoscaler = put(&control, "web", json!({"maxReplicas": 9, "fallback": fallback}));
        show_replicas(&control, 3);
        evaluate_once(&control, &autoscaler, &mut AutoscalerState::default()).await;
        assert_eq!(log.of("PUT").len(), 1, "{queue:?}");
    }
}

/// kube-controller-manager scales by it: two would.
#[tokio::test]
async fn nothing_is_scaled_beside_a_native_hpa_that_can_not_be_deleted() {
    // Of a watch that is behind the version is an old one.
    for (paused, code) in [(false, 403), (true, 403), (false, 409), (true, 409)] {
        let (control, log) = World::new(3, Some(6), move |_, request| {
            let is_delete = request.line.starts_with("DELETE");
            is_delete.then(|| fake::failure(code, "", "not now"))
        })
        .run();
        let autoscaler = put(
            &control,
            "web",
            json!({"maxReplicas": 9, "mode": if paused { "Paused" } else { "Active" }}),
        );
        let hpa = json!({"metadata": {"namespace": "shop", "name": "web", "uid": "native",
                "ownerReferences": [{"apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler",
                    "name": "web", "uid": "web", "controller": true}]},
            "spec": {"maxReplicas": 9, "scaleTargetRef": {"kind": "Deployment", "name": "web"}}});
        let record = watch::read_hpa(serde_json::from_value(hpa).unwrap());
        control.ctx.cluster.write(|index| index.put_hpa(autoscaler.key.clone(), record));
        show_replicas(&control, 3);
        let mut state = AutoscalerState::default();
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
        assert!(log.of("PUT").is_empty(), "{:?}", log.of("PUT"));
        let condition = state.status.condition(ConditionKind::AbleToScale).unwrap();
        assert_eq!((condition.status, &*condition.reason), (false, "FailedDeleteHPA"));
    }
}

fn checkpoints(control: &ControlLoop) -> HashMap<AutoscalerRef, Checkpoint> {
    let (now, longest) = (control.ctx.clock.elapsed(), control.ctx.longest_window());
    all_checkpoints(&control.running, &control.states, &control.unknown, now, longest)
}

/// A watch that is behind shows the object later, or the one before it.
#[tokio::test]
async fn the_checkpoint_of_an_object_that_is_not_known_yet_is_kept() {
    let (mut control, _) = World::new(3, Some(3), |_, _| None).run();
    let recommended = Recommendation { replicas: 7, time: control.ctx.clock.elapsed() };
    let autoscaler = fake::autoscaler("web");
    let kept = checkpoint("web", vec![recommended]);
    control.restore_checkpoints(vec![(autoscaler.clone(), kept.clone())]);
    assert_eq!(checkpoints(&control).get(&autoscaler), Some(&kept), "it is written again");
    put(&control, "web", json!({"maxReplicas": 9}));
    control.changed(autoscaler.clone());
    let mut state = control.states.remove(&autoscaler).unwrap();
    assert_eq!(state.history, kept.history);
    // One of its name that was made anew has none of it.
    state.begin("new", None, hpa::Status::default());
    assert!(state.history.is_empty());
    // The watch shows the object before.
    let kept = checkpoint("web", vec![recommended]);
    let (mut control, _) = World::new(3, Some(3), |_, _| None).run();
    let remade = |uid: &str| {
        let object = json!({"metadata": {"namespace": "shop", "name": "web", "uid": uid}});
        read_autoscaler(serde_json::from_value(object).unwrap(), None)
    };
    let show = |control: &ControlLoop, uid: &str| {
        let key = autoscaler.key.clone();
        control.ctx.cluster.write(|index| index.put_autoscaler(key, remade(uid)));
    };
    show(&control, "before");
    control.restore_checkpoints(vec![(autoscaler.clone(), kept.clone())]);
    assert_eq!(checkpoints(&control).get(&autoscaler), Some(&kept));
    control.changed(autoscaler.clone());
    assert!(control.unknown.contains_key(&autoscaler));
    show(&control, "web");
    control.changed(autoscaler.clone());
    assert_eq!(control.states[&autoscaler].history, kept.history);
}

/// The watch shows it while an evaluation is queued with the state of the object before, or runs.
#[tokio::test]
async fn the_checkpoint_of_an_object_made_anew_replaces_the_state_of_the_one_before() {
    let (mut control, _) = World::new(3, Some(3), |_, _| None).run();
    control.queue = FairQueue::new(1);
    let autoscalers = ["a", "b"].map(|name| put(&control, name, json!({"maxReplicas": 9})));
    show_replicas(&control, 3);
    let time = control.ctx.clock.elapsed();
    let of = |uid: &str, replicas| checkpoint(uid, vec![Recommendation { replicas, time }]);
    for autoscaler in &autoscalers {
        let before = AutoscalerState::restored(of("before", 5), time);
        control.states.insert(autoscaler.clone(), before.into());
        control.schedule.set(autoscaler.clone(), Instant::now());
    }
    control.start_due();
    assert_eq!(control.evaluations.len(), 1, "the other is queued");
    let kept = autoscalers.each_ref().map(|one| (one.clone(), of(&one.key.name, 7)));
    control.restore_checkpoints(kept.to_vec());
    assert_eq!(checkpoints(&control), HashMap::from(kept));
    for _ in &autoscalers {
        let done = control.evaluations.join_next().await.unwrap().unwrap();
        control.evaluated(done);
    }
    for autoscaler in &autoscalers {
        let all = &control.states[autoscaler].history.recommendations;
        let has = |replicas| all.iter().any(|one| one.replicas == replicas);
        assert!(has(7) && !has(5), "{autoscaler}: {all:?}");
    }
}

/// The write takes the field from its owners, so that it is looked up before.
#[tokio::test]
async fn another_writer_of_the_replicas_is_looked_up_once_and_nothing_is_while_there_is_none() {
    const DEPLOYMENTS: &str = "GET /apis/apps/v1/namespaces/shop/deployments";
    let fields = json!([{"manager": "argocd-controller", "operation": "Apply",
        "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:replicas": {}}}}]);
    let list = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {},
        "items": [{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
            "metadata": {"name": "web", "namespace": "shop", "managedFields": fields}}]});
    let respond = move |_: &mut World, request: &Request| {
        (request.line == DEPLOYMENTS).then(|| (200, list.clone()))
    };
    let (control, log) = World::new(3, Some(3), respond).run();
    let autoscaler = put(&control, "web", json!({"minReplicas": 1, "maxReplicas": 9}));
    show_replicas(&control, 3);
    let mut state = AutoscalerState::default();
    for _ in 0..3 {
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
    }
    let lookups = || {
        let mut all = log.of(DEPLOYMENTS);
        all.retain(|request| request.line == DEPLOYMENTS);
        all
    };
    assert!(lookups().is_empty());
    assert_eq!(state.status.condition(ConditionKind::ConfigurationWarning), None);
    for replicas in [2, 4, 2] {
        show_replicas(&control, replicas);
        evaluate_once(&control, &autoscaler, &mut state).await;
    }
    let warning = state.status.condition(ConditionKind::ConfigurationWarning).expect("a warning");
    assert!(warning.status && warning.reason == "ReplicasWrittenByOthers", "{warning:?}");
    assert!(warning.message.contains("\"argocd-controller\" (Apply) changed"), "{warning:?}");
    let lookups = lookups();
    assert!(lookups.len() == 1 && lookups[0].query.contains("metadata.name%3Dweb"), "{lookups:?}");
    // The owner may do so while the scale is left alone.
    put(&control, "web", json!({"minReplicas": 1, "maxReplicas": 9, "mode": "Paused"}));
    evaluate_once(&control, &autoscaler, &mut state).await;
    put(&control, "web", json!({"minReplicas": 1, "maxReplicas": 9}));
    show_replicas(&control, 5);
    evaluate_once(&control, &autoscaler, &mut state).await;
    let warning = state.status.condition(ConditionKind::ConfigurationWarning).expect("one ended");
    assert!(!warning.status, "{warning:?}");
}
