//! Decisions, and what is written for them.

use super::*;

/// Policies count a change that is confirmed later like one that is confirmed at once.
#[tokio::test]
async fn a_write_without_a_response_counts_once_the_scale_shows_it() {
    let mut lost = false;
    let (control, log) = World::new(8, Some(3), move |world, request| {
        if is_put(request) {
            lost = true;
            world.replicas = 3;
            return Some(fake::failure(504, "Timeout", "it took too long"));
        }
        let scale = request.line.ends_with("/scale");
        (lost && scale).then(|| fake::failure(503, "ServiceUnavailable", "overloaded"))
    })
    .run();
    let policies = json!([{"type": "Pods", "value": 5, "periodSeconds": 600}]);
    let behavior = json!({"scaleDown": {"stabilizationWindowSeconds": 0, "policies": policies}});
    let autoscaler = put(&control, "web", json!({"maxReplicas": 3, "behavior": behavior}));
    show_replicas(&control, 8);
    let mut state = AutoscalerState::default();
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
    // The watch is behind, and then is not.
    assert_eq!(state.history.downs, []);
    show_replicas(&control, 3);
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
    let downs: Vec<i32> = state.history.downs.iter().map(|event| event.change).collect();
    assert_eq!((downs, state.status.last_scale.is_some()), (vec![5], true));
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
    assert_eq!((state.history.downs.len(), log.of("PUT").len()), (1, 1));
}

#[tokio::test]
async fn a_fallback_neither_scales_up_from_zero_nor_counts_changes_by_others() {
    for by_now in [0, 6] {
        let (control, log) = World::new(by_now, None, |_, _| None).run();
        let fallback = json!({"failedRounds": 1, "replicas": 5});
        let autoscaler = put(&control, "web", json!({"maxReplicas": 9, "fallback": fallback}));
        show_replicas(&control, 3);
        let mut state = AutoscalerState::default();
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
        assert!(log.of("PUT").is_empty(), "{:?}", log.of("PUT"));
        let ScalingHistory { recommendations, ups, .. } = &state.history;
        // The leader before may have made it.
        assert!(ups.iter().all(|event| event.unsure && event.change == 3), "{by_now}");
        assert!(recommendations.iter().all(|r| r.replicas == 3), "{by_now}");
        assert_eq!(state.status.last_scale, None, "{by_now}");
    }
}

#[tokio::test(start_paused = true)]
async fn metrics_that_time_out_lead_to_the_fallback_like_those_that_fail() {
    let hangs = |_: &mut World, request: &Request| {
        request.line.ends_with("/queue").then_some((0, Value::Null))
    };
    let (control, log) = World::new(3, None, hangs).run();
    let fallback = json!({"failedRounds": 2, "replicas": 5});
    let autoscaler = put(&control, "web", json!({"maxReplicas": 9, "fallback": fallback}));
    show_replicas(&control, 3);
    let mut state = AutoscalerState::default();
    for _ in 0..2 {
        assert!(log.of("PUT").is_empty());
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
    }
    assert_eq!(log.of("PUT")[0].body["spec"]["replicas"], 5);
}

/// The fallback reads the scale by itself.
#[tokio::test]
async fn a_change_of_the_last_leader_counts_before_a_fallback() {
    let (control, _) = World::new(12, None, |_, _| None).run();
    let policies = json!([{"type": "Pods", "value": 4, "periodSeconds": 600}]);
    let autoscaler = put(
        &control,
        "web",
        json!({"maxReplicas": 20, "fallback": {"failedRounds": 1, "replicas": 15},
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
    state.status.set(kind, true, "ScaledToZero", format_args!("it was"), 0);
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
    show_replicas(&control, 3);
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
    assert!(!state.status.condition(kind).unwrap().status);
}

/// Or a zero that the owner sets afterwards would be taken for Plimsoll's.
#[tokio::test]
async fn a_fallback_is_a_change_after_a_scale_to_zero() {
    let (control, _) = World::new(3, None, |_, _| None).run();
    let fallback = json!({"failedRounds": 2, "replicas": 5});
    let spec = json!({"minReplicas": 0, "maxReplicas": 9, "fallback": fallback});
    let autoscaler = put(&control, "web", spec);
    show_replicas(&control, 3);
    let mut state = AutoscalerState::default();
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
    let kind = ConditionKind::ScaledToZero;
    state.status.set(kind, true, "ScaledToZero", format_args!("it was"), 0);
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
    assert_eq!(state.status.desired_replicas, 5);
    assert!(!state.status.condition(kind).unwrap().status);
}

/// The first rates after a gap are of two samples, and far too low.
#[tokio::test]
async fn after_an_outage_of_metrics_removals_are_withheld_for_its_length() {
    let queue = Arc::new(Mutex::new(Some(8)));
    let asked = queue.clone();
    let (control, log) = World::new(8, None, move |world, _| {
        world.queue = *asked.lock().unwrap();
        None
    })
    .run();
    let behavior = json!({"scaleDown": {"stabilizationWindowSeconds": 300}});
    let autoscaler = put(&control, "web", json!({"maxReplicas": 9, "behavior": behavior}));
    show_replicas(&control, 8);
    let mut state = AutoscalerState::default();
    let later = |state: &mut AutoscalerState, seconds: i64| {
        state.history = std::mem::take(&mut state.history).shifted(-seconds * 1000);
        let earlier = |time| time - seconds * 1000;
        state.withheld = state.withheld.map(|(since, until)| (earlier(since), earlier(until)));
    };
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
    *queue.lock().unwrap() = None;
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
    // The stabilization window has nothing from before any more.
    later(&mut state, 600);
    *queue.lock().unwrap() = Some(2);
    for _ in 0..2 {
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
        later(&mut state, 149);
    }
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
    later(&mut state, 3);
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Rescaled);
    assert_eq!(log.of("PUT")[0].body["spec"]["replicas"], 2);
}

/// A process that started during the outage knows of it from the checkpoint.
#[tokio::test]
async fn after_an_outage_during_a_restart_removals_are_withheld() {
    let (control, _) = World::new(8, Some(2), |_, _| None).run();
    let behavior = json!({"scaleDown": {"stabilizationWindowSeconds": 300}});
    let autoscaler = put(&control, "web", json!({"maxReplicas": 9, "behavior": behavior}));
    show_replicas(&control, 8);
    // The last recommendation is out of the window.
    let mut state = with_recommendation(2, -400_000);
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
    let limited = state.status.condition(ConditionKind::ScalingLimited).unwrap();
    assert_eq!(limited.reason, "MetricsWereAway");
    state.withheld = state.withheld.map(|(since, until)| (since - 300_000, until - 300_000));
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Rescaled);
}

/// A process that starts while removals are withheld withholds them, too.
#[tokio::test]
async fn removals_stay_withheld_after_a_restart() {
    let (control, log) = World::new(8, Some(2), |_, _| None).run();
    let behavior = json!({"scaleDown": {"stabilizationWindowSeconds": 300}});
    let autoscaler = put(&control, "web", json!({"maxReplicas": 9, "behavior": behavior}));
    show_replicas(&control, 8);
    let mut state = with_recommendation(8, -600_000);
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
    // Metrics were away for 10 minutes, and have been back for one.
    state.history = std::mem::take(&mut state.history).shifted(-60_000);
    state.withheld = state.withheld.map(|(since, until)| (since - 60_000, until - 60_000));
    let kept = state.checkpoint(control.ctx.clock.elapsed(), LONGEST_MS).expect("there is a hold");
    let mut state = AutoscalerState::restored(kept, control.ctx.clock.elapsed());
    for _ in 0..2 {
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
        let limited = state.status.condition(ConditionKind::ScalingLimited).unwrap();
        assert_eq!(limited.reason, "MetricsWereAway");
        // Out of the window of a minute's gap, within that of the hold.
        state.history = std::mem::take(&mut state.history).shifted(-70_000);
        state.withheld = state.withheld.map(|(since, until)| (since - 70_000, until - 70_000));
    }
    assert!(log.of("PUT").is_empty());
    state.withheld = state.withheld.map(|(since, until)| (since - 300_000, until - 300_000));
    state.history.recommendations.retain(|one| one.replicas == 2);
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Rescaled);
}

/// Only removals are withheld: no replica is added that no metric asks for.
#[tokio::test]
async fn after_an_outage_of_metrics_no_replica_is_added() {
    let (control, log) = World::new(4, Some(2), |_, _| None).run();
    let autoscaler = put(&control, "web", json!({"maxReplicas": 10, "behavior": null}));
    show_replicas(&control, 4);
    let mut state = with_recommendation(10, -400_000);
    for _ in 0..3 {
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
    }
    assert!(log.of("PUT").is_empty(), "{:?}", log.of("PUT"));
}

/// The hold has the length of the outage, regardless of the scale-up window.
#[tokio::test]
async fn a_scale_up_window_does_not_shorten_the_hold_after_an_outage() {
    let (control, _) = World::new(8, Some(2), |_, _| None).run();
    let window = json!({"stabilizationWindowSeconds": 300});
    let behavior = json!({"scaleUp": window, "scaleDown": window});
    let autoscaler = put(&control, "web", json!({"maxReplicas": 9, "behavior": behavior}));
    show_replicas(&control, 8);
    let mut state = with_recommendation(8, -400_000);
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
}

/// A watch that is behind does not know that Plimsoll scaled it to zero.
#[tokio::test]
async fn a_new_leader_reads_the_status_of_a_workload_at_zero() {
    for away in [false, true] {
        let (control, log) = World::new(0, Some(2), move |_, request| {
            let asked = request.line == AUTOSCALERS;
            let condition = json!({"type": "ScaledToZero", "status": "True", "reason": "ScaledToZero",
                "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
            let object = json!({"apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler",
                "metadata": {"name": "web"}, "status": {"conditions": [condition]}});
            asked.then(|| match away {
                false => (200, listed(&[object])),
                true => fake::failure(503, "ServiceUnavailable", "starting"),
            })
        })
        .run();
        let autoscaler = put(&control, "web", json!({"minReplicas": 0, "maxReplicas": 9}));
        show_replicas(&control, 0);
        let mut state = AutoscalerState::default();
        let ended = evaluate_once(&control, &autoscaler, &mut state).await;
        assert_eq!(ended, if away { Failed } else { Rescaled });
        if away {
            let written = |line: &str| log.of(line).len();
            assert_eq!((written("PATCH"), written("PUT")), (0, 0));
            assert!(!control.ctx.statuses.has(&autoscaler), "nothing is written over what it says");
        }
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

/// A watch that is behind does not tell whether a later write took effect.
#[tokio::test]
async fn an_indeterminate_write_counts_though_the_watch_is_behind() {
    let mut lost = false;
    let (control, log) = World::new(8, Some(40), move |world, request| {
        if is_put(request) {
            lost = true;
            world.replicas = 12;
            return Some(fake::failure(504, "Timeout", "it took too long"));
        }
        let scale = request.line.ends_with("/scale");
        (scale && std::mem::take(&mut lost)).then(|| fake::failure(503, "", "overloaded"))
    })
    .run();
    let policies = json!([{"type": "Pods", "value": 8, "periodSeconds": 600}]);
    let behavior = json!({"scaleUp": {"stabilizationWindowSeconds": 0, "policies": policies}});
    let autoscaler = put(&control, "web", json!({"maxReplicas": 40, "behavior": behavior}));
    // Until then it was scaled up by others.
    show_replicas(&control, 4);
    let mut state = AutoscalerState::default();
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
    let ups: Vec<i32> = state.history.ups.iter().map(|event| event.change).collect();
    assert_eq!((ups, state.status.last_scale.is_some()), (vec![4, 4], true));
    assert_eq!(log.of("PUT").len(), 1);
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

/// It died before it could write a checkpoint, and its change has to limit the next one.
#[tokio::test]
async fn a_change_of_the_last_leader_counts_though_the_watch_is_behind() {
    let (control, log) = World::new(12, Some(30), |_, _| None).run();
    let policies = json!([{"type": "Pods", "value": 4, "periodSeconds": 60}]);
    let spec = json!({"maxReplicas": 50, "behavior": {"scaleUp": {"policies": policies}}});
    let autoscaler = put(&control, "web", spec);
    show_replicas(&control, 8);
    let mut state = AutoscalerState::default();
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
    assert_eq!(log.of("PUT").len(), 0);
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
    state.status.set(kind, true, "ScalingToZero", format_args!("it is being scaled"), 0);
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
        let replicas = hpa::Scale { spec_replicas: 0, status_replicas: 0 };
        let scale = watch::ScaleRecord { replicas, selector: "app=web".to_owned() };
        index.put_scale(watch::Workload::Deployment, key, scale);
    });
    let (mut first, mut second) = (AutoscalerState::default(), AutoscalerState::default());
    assert_eq!(evaluate_once(&control, &blue, &mut first).await, Held);
    assert_eq!(evaluate_once(&control, &green, &mut second).await, Rescaled);
}

#[tokio::test]
async fn fallback_active_is_removed_with_the_fallback() {
    let (control, _) = World::new(5, None, |_, _| None).run();
    show_replicas(&control, 5);
    let mut state = AutoscalerState::default();
    for fallback in [Some(json!({"failedRounds": 1, "replicas": 5})), None] {
        let autoscaler = put(&control, "web", json!({"maxReplicas": 9, "fallback": fallback}));
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
        let condition = state.status.condition(ConditionKind::FallbackActive);
        assert_eq!(condition.is_some(), fallback.is_some(), "{condition:?}");
    }
}

#[tokio::test]
async fn no_metric_is_queried_if_the_decision_uses_none() {
    for (replicas, selector, asked) in
        [(3, "app=web", 1), (3, "", 0), (3, "a in", 0), (0, "app=web", 0)]
    {
        let (control, log) = World::new(replicas, Some(3), |_, _| None).run();
        let autoscaler = put(&control, "web", json!({"maxReplicas": 9}));
        control.ctx.cluster.write(|index| {
            let numbers = hpa::Scale { spec_replicas: replicas, status_replicas: replicas };
            let scale = watch::ScaleRecord { replicas: numbers, selector: selector.to_owned() };
            index.put_scale(watch::Workload::Deployment, autoscaler.key.clone(), scale);
        });
        evaluate_once(&control, &autoscaler, &mut AutoscalerState::default()).await;
        let queries = log.of("").iter().filter(is_query).count();
        assert_eq!(queries, asked, "{replicas} {selector}");
    }
}

#[tokio::test]
async fn while_frozen_desired_replicas_are_updated_at_the_status_interval() {
    let queue = Arc::new(Mutex::new(5));
    let known = queue.clone();
    let (control, log) = World::new(3, None, move |world, _| {
        world.queue = Some(*known.lock().unwrap());
        None
    })
    .run();
    let autoscaler = put(&control, "web", json!({"maxReplicas": 9}));
    show_replicas(&control, 3);
    fake::freeze(&control.ctx.leader);
    let mut state = AutoscalerState::default();
    for now in [5, 6, 4] {
        *queue.lock().unwrap() = now;
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
        assert_eq!(state.status.desired_replicas, 5);
    }
    assert!(log.of("PUT").is_empty());
}

/// The selector of the HPA that was written for it is released as soon as the HPA is deleted.
#[tokio::test]
async fn leaving_the_executor_native_hpa_does_not_wait_for_the_watch() {
    let (control, log) = World::new(3, Some(5), |_, request| {
        let gone =
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
        request.line.starts_with("DELETE").then_some((200, gone))
    })
    .run();
    let autoscaler = put(&control, "web", json!({"maxReplicas": 9}));
    show_replicas(&control, 3);
    let owner = json!({"apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler", "name": "web",
        "uid": "web", "controller": true});
    let hpa = json!({"metadata": {"namespace": "shop", "name": "web", "uid": "1",
        "ownerReferences": [owner]}, "spec": {"maxReplicas": 9,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}});
    let record = watch::read_hpa(serde_json::from_value(hpa).unwrap());
    control.ctx.cluster.write(|index| index.put_hpa(autoscaler.key.clone(), record));
    assert_eq!(
        evaluate_once(&control, &autoscaler, &mut AutoscalerState::default()).await,
        Rescaled
    );
    assert_eq!(log.of("DELETE").len(), 1);
    assert!(control.ctx.cluster.read(|index| index.hpa(&autoscaler.key)).is_none());
}

/// A watch that is behind says that Plimsoll scaled it to zero; since then its owner did.
#[tokio::test]
async fn a_new_leader_scales_no_workload_up_from_zero_by_a_late_watch() {
    let condition = |status: &str| {
        json!({"type": "ScaledToZero", "status": status, "reason": "Any", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    let now = condition("False");
    let (control, log) = World::new(0, Some(2), move |_, request| {
        let object = json!({"apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler",
            "metadata": {"name": "web"}, "status": {"conditions": [now]}});
        (request.line == AUTOSCALERS).then(|| (200, listed(&[object])))
    })
    .run();
    let autoscaler = put(&control, "web", json!({"minReplicas": 0, "maxReplicas": 9}));
    let spec = json!({"minReplicas": 0, "maxReplicas": 9,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "metrics": [{"type": "External", "external": {"metric": {"name": "queue"},
            "target": {"type": "AverageValue", "averageValue": "1"}}}]});
    let metadata = json!({"namespace": "shop", "name": "web", "uid": "web", "generation": 1});
    let late = json!({"metadata": metadata, "spec": spec,
        "status": {"conditions": [condition("True")]}});
    let record = read_autoscaler(serde_json::from_value(late).unwrap(), None);
    control.ctx.cluster.write(|index| index.put_autoscaler(autoscaler.key.clone(), record));
    show_replicas(&control, 0);
    assert_eq!(evaluate_once(&control, &autoscaler, &mut AutoscalerState::default()).await, Held);
    assert!(log.of("PUT").is_empty(), "{:?}", log.of("PUT"));
}

/// A utilization is a hundred times the usage divided by the requests.
#[tokio::test]
async fn a_usage_that_does_not_fit_a_utilization_removes_no_replica() {
    let (control, log) = World::new(3, None, |_, request| {
        let item = |name: &str, usage: &str| {
            json!({"metadata": {"name": name}, "timestamp": "2026-01-01T00:00:00Z", "window": "30s",
                "containers": [{"name": "web", "usage": {"memory": usage}}]})
        };
        let items = [item("0", "150000000000000"), item("1", "1Gi"), item("2", "1Gi")];
        request.line.ends_with("/namespaces/shop/pods").then(|| (200, json!({"items": items})))
    })
    .run();
    let metric = json!({"type": "Resource", "resource": {"name": "memory",
        "target": {"type": "Utilization", "averageUtilization": 80}}});
    let autoscaler = put(&control, "web", json!({"maxReplicas": 9, "metrics": [metric]}));
    show_replicas(&control, 3);
    control.ctx.cluster.write(|index| {
        for number in 0..3 {
            let pod = json!({"metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web",
                    "resources": {"requests": {"memory": "1Gi"}}}]},
                "status": {"phase": "Running"}});
            let key = ObjectKey { namespace: "shop".to_owned(), name: format!("{number}") };
            index.put_pod(key, read_pod(serde_json::from_value(pod).unwrap()));
        }
    });
    assert_eq!(evaluate_once(&control, &autoscaler, &mut AutoscalerState::default()).await, Failed);
    assert!(log.of("PUT").is_empty(), "{:?}", log.of("PUT"));
}
