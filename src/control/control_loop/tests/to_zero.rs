//! Scaling to zero and from it, and the fallback.

use super::*;
use crate::control::observe::read_target;
use crate::control::status;
use crate::leader::FencingToken;

/// The loop of a workload with one replica and no metrics: a write times out, and then scales it
/// to so many replicas.
fn late_to(replicas: i32) -> ControlLoop {
    let (control, _) = World::new(1, None, move |world, request| {
        is_put(request).then(|| {
            world.replicas = replicas;
            fake::failure(504, "Timeout", "it took too long")
        })
    })
    .run();
    control
}

/// Adds an Autoscaler that falls back to five replicas after so many failed rounds.
fn put_with_fallback(control: &ControlLoop, rounds: i32) -> AutoscalerRef {
    let fallback = json!({"failureThreshold": rounds, "replicas": 5});
    put(control, "web", json!({"maxReplicas": 9, "fallback": fallback}))
}

/// The condition as an object has it.
fn scaled_to_zero(status: &str) -> Value {
    json!({"type": "ScaledToZero", "status": status, "reason": "ScaledToZero", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

/// The list of `shop/web` with a condition.
fn listed_with(condition: &Value) -> Value {
    let object = json!({"apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler",
        "metadata": {"name": "web"}, "status": {"conditions": [condition]}});
    listed(&[object])
}

#[tokio::test]
async fn a_fallback_neither_scales_up_from_zero_nor_counts_changes_by_others() {
    for by_now in [0, 6] {
        let (control, log) = World::new(by_now, None, |_, _| None).run();
        let autoscaler = put_with_fallback(&control, 1);
        show_replicas(&control, 3);
        let mut state = AutoscalerState::default();
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
        assert!(log.of("PUT").is_empty(), "{:?}", log.of("PUT"));
        let ScalingHistory { recommendations, ups, .. } = &state.history;
        // The leader before may have made it, and then for a load that this one has not seen.
        assert!(ups.iter().all(|event| event.unsure && event.change == 3), "{by_now}");
        let mut all: Vec<i32> = recommendations.iter().map(|one| one.replicas).collect();
        all.dedup();
        assert_eq!(all, if by_now == 6 { vec![3, 6] } else { vec![3] });
        assert_eq!(state.status.last_scale, None, "{by_now}");
    }
}

#[tokio::test(start_paused = true)]
async fn metrics_that_time_out_lead_to_the_fallback_like_those_that_fail() {
    let hangs = |_: &mut World, request: &Request| {
        request.line.ends_with("/queue").then_some((0, Value::Null))
    };
    let (control, log) = World::new(3, None, hangs).run();
    let autoscaler = put_with_fallback(&control, 2);
    show_replicas(&control, 3);
    let mut state = AutoscalerState::default();
    for _ in 0..2 {
        assert!(log.of("PUT").is_empty());
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
        tokio::time::advance(Duration::from_secs(10)).await;
    }
    assert_eq!(log.of("PUT")[0].body["spec"]["replicas"], 5);
}

/// The watch is behind, so that the fallback itself finds that its last write has taken effect.
#[tokio::test(start_paused = true)]
async fn a_fallback_that_came_late_is_reported() {
    let control = late_to(5);
    let autoscaler = put_with_fallback(&control, 1);
    show_replicas(&control, 1);
    let mut state = AutoscalerState::default();
    for reported in [(0, false), (5, true)] {
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
        let hpa::Status { desired_replicas, last_scale, .. } = state.status;
        assert_eq!((desired_replicas, last_scale.is_some()), reported);
        // The stabilization window has it as it would have one in time, and no sooner: it may never come.
        let all = &state.history.recommendations;
        assert_eq!(all.iter().any(|one| one.replicas == 5), reported.1, "{all:?}");
        tokio::time::advance(Duration::from_secs(15)).await;
    }
}

/// While it came, the term was lost.
#[tokio::test(start_paused = true)]
async fn a_fallback_that_came_between_two_terms_holds_its_replicas_too() {
    for (to, seconds) in [(5, 15), (4, 15), (5, 3_600)] {
        let control = late_to(to);
        let autoscaler = put_with_fallback(&control, 1);
        show_replicas(&control, 1);
        let mut state = AutoscalerState::default();
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
        show_replicas(&control, to);
        tokio::time::advance(Duration::from_secs(seconds)).await;
        reconcile(&control.ctx, None, &autoscaler, &mut state).await;
        let all = &state.history.recommendations;
        // An hour later somebody else has set it.
        let came = (to, seconds) == (5, 15);
        assert_eq!(all.iter().any(|one| one.replicas == 5), came, "{to} {seconds} {all:?}");
    }
}

/// The watch shows neither what the fallback read nor what it wrote.
#[tokio::test(start_paused = true)]
async fn a_fallback_that_came_late_is_recommended_though_the_watch_is_far_behind() {
    let control = late_to(5);
    let autoscaler = put_with_fallback(&control, 1);
    show_replicas(&control, 3);
    let mut state = AutoscalerState::default();
    for came in [false, true] {
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
        let all = &state.history.recommendations;
        assert_eq!(all.iter().any(|one| one.replicas == 5), came, "{all:?}");
        tokio::time::advance(Duration::from_secs(15)).await;
    }
}

/// While it was paused, nobody looked: it may have come, or somebody else has set the same number.
#[tokio::test(start_paused = true)]
async fn a_change_that_is_seen_long_after_its_write_was_lost_may_be_anothers() {
    for (seconds, unsure) in [(15, false), (1_200, true)] {
        let control = late_to(5);
        let policies = json!([{"type": "Pods", "value": 4, "periodSeconds": 1_800}]);
        let spec = json!({"maxReplicas": 9, "fallback": {"failureThreshold": 1, "replicas": 5},
            "behavior": {"scaleUp": {"policies": policies}}});
        let autoscaler = put(&control, "web", spec);
        show_replicas(&control, 1);
        let mut state = AutoscalerState::default();
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
        zero::resolve(&mut state.status, 0, 0);
        tokio::time::advance(Duration::from_secs(seconds)).await;
        show_replicas(&control, 5);
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
        // Whoever scaled it up: a zero is the owner's from here on.
        assert!(!zero::is_at_zero(&state.status), "{seconds}");
        let [up] = &state.history.ups[..] else { panic!("{:?}", state.history.ups) };
        assert_eq!((up.change, up.unsure), (4, unsure), "{seconds}");
    }
}

/// Edits and hand-overs bring evaluations forward: a blip of the metrics must not become an outage by them.
#[tokio::test(start_paused = true)]
async fn evaluations_within_a_period_are_one_round_of_the_fallback() {
    let (control, log) = World::new(3, None, |_, _| None).run();
    let autoscaler = put_with_fallback(&control, 3);
    show_replicas(&control, 3);
    let mut state = AutoscalerState::default();
    for seconds in [1, 1, 1, 12, 15, 0] {
        assert!(log.of("PUT").is_empty(), "{seconds}");
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }
    assert_eq!(log.of("PUT").len(), 1);
}

/// The fallback reads the scale by itself.
#[tokio::test]
async fn a_change_of_the_last_leader_counts_before_a_fallback() {
    let (control, _) = World::new(12, None, |_, _| None).run();
    let policies = json!([{"type": "Pods", "value": 4, "periodSeconds": 600}]);
    let autoscaler = put(
        &control,
        "web",
        json!({"maxReplicas": 20, "fallback": {"failureThreshold": 1, "replicas": 15},
            "behavior": {"scaleUp": {"policies": policies}}}),
    );
    show_replicas(&control, 8);
    let mut state = AutoscalerState::default();
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
    let ups: Vec<i32> = state.history.ups.iter().map(|event| event.change).collect();
    assert_eq!(ups, [4, 3]);
}

/// Or a zero that the owner sets afterwards would be taken for Plimsoll's.
#[tokio::test]
async fn an_indeterminate_scale_up_from_zero_resolves_the_condition() {
    let mut lost = false;
    let (control, _) = World::new(0, Some(3), move |world, request| {
        if is_put(request) {
            lost = true;
            world.replicas = 3;
            return Some(fake::failure(504, "Timeout", "it took too long"));
        }
        let scale = request.line.ends_with("/scale");
        (scale && std::mem::take(&mut lost)).then(|| fake::failure(503, "", "overloaded"))
    })
    .run();
    let autoscaler = put(&control, "web", json!({"minReplicas": 0, "maxReplicas": 9}));
    show_replicas(&control, 0);
    let mut state = AutoscalerState::default();
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
    let kind = ConditionKind::ScaledToZero;
    state.status.set(kind, true, hpa::Reason::ScaledToZero, format_args!("it was"), 0);
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
    show_replicas(&control, 3);
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
    assert!(!state.status.condition(kind).unwrap().status);
}

/// Or a zero that the owner sets afterwards would be taken for Plimsoll's.
#[tokio::test(start_paused = true)]
async fn a_fallback_is_a_change_after_a_scale_to_zero() {
    let (control, _) = World::new(3, None, |_, _| None).run();
    let fallback = json!({"failureThreshold": 2, "replicas": 5});
    let spec = json!({"minReplicas": 0, "maxReplicas": 9, "fallback": fallback});
    let autoscaler = put(&control, "web", spec);
    show_replicas(&control, 3);
    let mut state = AutoscalerState::default();
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
    let kind = ConditionKind::ScaledToZero;
    state.status.set(kind, true, hpa::Reason::ScaledToZero, format_args!("it was"), 0);
    tokio::time::advance(Duration::from_secs(15)).await;
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
    assert_eq!(state.status.desired_replicas, 5);
    assert!(!state.status.condition(kind).unwrap().status);
}

/// A watch that is behind does not know that Plimsoll scaled it to zero.
#[tokio::test]
async fn a_new_leader_reads_the_status_of_a_workload_at_zero() {
    for away in [false, true] {
        let (control, log) = World::new(0, Some(2), move |_, request| {
            let asked = request.line == AUTOSCALERS;
            asked.then(|| match away {
                false => (200, listed_with(&scaled_to_zero("True"))),
                true => fake::failure(503, "ServiceUnavailable", "starting"),
            })
        })
        .run();
        let autoscaler = put(&control, "web", json!({"minReplicas": 0, "maxReplicas": 9}));
        show_replicas(&control, 0);
        let mut state = AutoscalerState::default();
        let (lines, _guard) = crate::fake::LogLines::keep();
        let ended = evaluate_once(&control, &autoscaler, &mut state).await;
        assert_eq!(ended, if away { Failed } else { Rescaled });
        if away {
            lines.assert_plain();
            let written = |line: &str| log.of(line).len();
            assert_eq!((written("PATCH"), written("PUT")), (0, 0));
            let term = control.ctx.fencing_token().unwrap().term();
            let writes = control.ctx.statuses.has(&autoscaler, term);
            assert!(!writes, "nothing is written over what it says");
        }
    }
}

/// Or a zero that the owner sets afterwards would be scaled up from.
#[tokio::test]
async fn a_scale_up_from_zero_by_a_dead_leader_resolves_the_condition() {
    let kind = ConditionKind::ScaledToZero;
    // The watch may be behind.
    for (shown, replicas, is_at_zero) in [(3, 3, false), (0, 3, false), (3, 0, true)] {
        let (control, _) = World::new(replicas, Some(3), |_, request| {
            (request.line == AUTOSCALERS).then(|| (200, listed_with(&scaled_to_zero("True"))))
        })
        .run();
        let autoscaler = put(&control, "web", json!({"minReplicas": 0, "maxReplicas": 9}));
        show_replicas(&control, shown);
        let mut state = AutoscalerState::default();
        let token = control.ctx.fencing_token();
        let record = control.ctx.cluster.read(|index| index.autoscaler(&autoscaler.key)).unwrap();
        let spec = &record.parsed.as_ref().unwrap().scaling.spec;
        let status = status::read(&control.ctx.client, &autoscaler).await.unwrap();
        state.begin("web", token.as_ref().map(FencingToken::term), status);
        let read = read_target(&control.ctx, token.as_ref(), &autoscaler, spec, &mut state).await;
        assert_eq!(read.0.unwrap().replicas.spec_replicas, replicas);
        assert_eq!(state.status.condition(kind).unwrap().status, is_at_zero);
    }
}

#[tokio::test]
async fn a_freeze_that_stops_a_scale_to_zero_sets_the_condition_to_false() {
    let leader: Arc<OnceLock<LeaderElector>> = Arc::default();
    let known = leader.clone();
    let (control, log) = World::new(2, Some(0), move |_, request| {
        if request.line.ends_with("/status") && request.body.to_string().contains("ScalingToZero") {
            fake::freeze(known.get().unwrap());
        }
        None
    })
    .run();
    let _ = leader.set(control.ctx.leader.clone());
    let autoscaler = put(&control, "web", json!({"minReplicas": 0, "maxReplicas": 9}));
    show_replicas(&control, 2);
    let mut state = AutoscalerState::default();
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
    assert!(log.of("PUT").is_empty() && control.ctx.leader.frozen().is_some());
    let condition = state.status.condition(ConditionKind::ScaledToZero).unwrap();
    assert!(!condition.status, "{condition:?}");
}

#[tokio::test]
async fn a_late_scale_to_zero_is_scaled_up_from() {
    let now = Arc::new(Mutex::new((2, 0)));
    let known = now.clone();
    let mut lost = false;
    let (control, log) = World::new(2, None, move |world, request| {
        let (replicas, queue) = *known.lock().unwrap();
        (world.replicas, world.queue) = (replicas, Some(queue));
        (is_put(request) && !std::mem::replace(&mut lost, true))
            .then(|| fake::failure(504, "Timeout", "it took too long"))
    })
    .run();
    let autoscaler = put(&control, "web", json!({"minReplicas": 0, "maxReplicas": 9}));
    show_replicas(&control, 2);
    let mut state = AutoscalerState::default();
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
    *now.lock().unwrap() = (2, 2);
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
    *now.lock().unwrap() = (0, 2);
    show_replicas(&control, 0);
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Rescaled);
    let written: Vec<_> = log.of("").into_iter().filter(is_put).collect();
    assert_eq!(written.last().unwrap().body["spec"]["replicas"], 2);
}

/// A later failure does not rule out that the indeterminate write takes effect.
#[tokio::test]
async fn an_indeterminate_scale_to_zero_stays_announced_though_the_next_attempt_fails() {
    let mut lost = false;
    let (control, log) = World::new(2, Some(0), move |_, request| {
        if lost && request.line.ends_with("/status") {
            return Some(fake::failure(500, "InternalError", "it failed"));
        }
        (is_put(request) && !std::mem::replace(&mut lost, true))
            .then(|| fake::failure(504, "Timeout", "it took too long"))
    })
    .run();
    let autoscaler = put(&control, "web", json!({"minReplicas": 0, "maxReplicas": 9}));
    show_replicas(&control, 2);
    let mut state = AutoscalerState::default();
    for _ in 0..2 {
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
        assert!(zero::pending_since(&state.status).is_some());
    }
    assert_eq!(log.of("PUT").len(), 1);
}

#[tokio::test]
async fn a_scale_to_zero_of_the_last_leader_stays_announced_though_another_write_fails() {
    for wanted in [3, 0] {
        let (control, _) = World::new(2, Some(wanted), |_, request| {
            is_put(request).then(|| fake::failure(403, "Forbidden", "not for you"))
        })
        .run();
        let autoscaler = put(&control, "web", json!({"minReplicas": 0, "maxReplicas": 9}));
        show_replicas(&control, 2);
        let mut state = AutoscalerState::default();
        for announced in [false, true] {
            assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
            assert_eq!(zero::pending_since(&state.status).is_some(), announced, "{wanted}");
            zero::announce(&mut state.status, control.ctx.clock.wall_ms());
        }
    }
}

/// The last leader's clock is behind by more than a scale to zero may take.
#[tokio::test]
async fn a_scale_to_zero_of_a_leader_whose_clock_is_behind_stays_announced() {
    let (control, _) = World::new(3, Some(3), |_, _| None).run();
    let autoscaler = put(&control, "web", json!({"minReplicas": 0, "maxReplicas": 9}));
    show_replicas(&control, 3);
    let mut state = AutoscalerState::default();
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
    zero::announce(&mut state.status, control.ctx.clock.wall_ms() - 46_000);
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
    assert!(zero::pending_since(&state.status).is_some(), "it may yet take effect");
}

#[tokio::test]
async fn a_pending_scale_to_zero_is_resolved_while_scales_are_frozen() {
    let (control, log) = World::new(3, Some(3), |_, _| None).run();
    let autoscaler = put(&control, "web", json!({"minReplicas": 0, "maxReplicas": 9}));
    show_replicas(&control, 3);
    let mut state = AutoscalerState::default();
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
    // As it is recorded before the scale is written.
    let kind = ConditionKind::ScaledToZero;
    state.status.set(kind, true, hpa::Reason::ScalingToZero, format_args!("it is being scaled"), 0);
    state.zero_pending_since = Some(control.ctx.clock.elapsed() - 31_000);
    fake::freeze(&control.ctx.leader);
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
    let condition = state.status.condition(kind).unwrap();
    assert!(!condition.status && log.of("PUT").is_empty(), "{condition:?}");
}

/// The HPA controller, too, registers a selector only once it reads metrics.
#[tokio::test]
async fn an_autoscaler_at_zero_claims_no_pods() {
    let (control, _) = World::new(3, Some(5), |_, _| None).run();
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "blue"});
    let blue = put(&control, "blue", json!({"maxReplicas": 9, "scaleTargetRef": target}));
    let green = put(&control, "green", json!({"maxReplicas": 9}));
    show_replicas(&control, 3);
    control.ctx.cluster.write(|index| {
        let key = ObjectKey { namespace: "shop".to_owned(), name: "blue".to_owned() };
        index.put_scale(watch::Workload::Deployment, key, scale_record(0, "app=web"));
    });
    let (mut first, mut second) = (AutoscalerState::default(), AutoscalerState::default());
    assert_eq!(evaluate_once(&control, &blue, &mut first).await, Held);
    assert_eq!(evaluate_once(&control, &green, &mut second).await, Rescaled);
}

#[tokio::test]
async fn fallback_active_ends_with_the_fallback() {
    let (control, _) = World::new(5, None, |_, _| None).run();
    show_replicas(&control, 5);
    let mut state = AutoscalerState::default();
    for fallback in [Some(json!({"failureThreshold": 1, "replicas": 5})), None] {
        let autoscaler = put(&control, "web", json!({"maxReplicas": 9, "fallback": fallback}));
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
        let condition = state.status.condition(ConditionKind::FallbackActive);
        let is_active = condition.is_some_and(|condition| condition.status);
        assert_eq!(is_active, fallback.is_some());
    }
}

/// A watch that is behind says that Plimsoll scaled it to zero; since then its owner did.
#[tokio::test]
async fn a_new_leader_scales_no_workload_up_from_zero_by_a_late_watch() {
    let (control, log) = World::new(0, Some(2), |_, request| {
        (request.line == AUTOSCALERS).then(|| (200, listed_with(&scaled_to_zero("False"))))
    })
    .run();
    let autoscaler = put(&control, "web", json!({"minReplicas": 0, "maxReplicas": 9}));
    let spec = json!({"minReplicas": 0, "maxReplicas": 9,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "metrics": [{"type": "External", "external": {"metric": {"name": "queue"},
            "target": {"type": "AverageValue", "averageValue": "1"}}}]});
    let metadata = json!({"namespace": "shop", "name": "web", "uid": "web", "generation": 1});
    let late = json!({"metadata": metadata, "spec": spec,
        "status": {"conditions": [scaled_to_zero("True")]}});
    let record = read_autoscaler(serde_json::from_value(late).unwrap(), None);
    control.ctx.cluster.write(|index| index.put_autoscaler(autoscaler.key.clone(), record));
    show_replicas(&control, 0);
    assert_eq!(evaluate_once(&control, &autoscaler, &mut AutoscalerState::default()).await, Held);
    assert!(log.of("PUT").is_empty(), "{:?}", log.of("PUT"));
}
