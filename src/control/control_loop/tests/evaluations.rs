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
async fn no_metric_is_queried_if_the_decision_uses_none() {
    for (replicas, selector, asked) in
        [(3, "app=web", 1), (3, "", 0), (3, "a in", 0), (0, "app=web", 0)]
    {
        let (control, log) = World::new(replicas, Some(3), |_, _| None).run();
        let autoscaler = put(&control, "web", json!({"maxReplicas": 9}));
        control.ctx.cluster.write(|index| {
            let scale = scale_record(replicas, selector);
            let key = (*autoscaler.key).clone();
            index.put_scale(watch::Workload::Deployment, key, scale);
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

/// Otherwise an outage of hours looks like any other decision.
#[tokio::test(start_paused = true)]
async fn a_metric_that_failed_is_told_of_where_something_stands_for_it() {
    for (says, reason, replicas) in [
        (json!({"onError": "Hold"}), "OnErrorHold", 3),
        (json!({"fallback": {"failureDurationSeconds": 1, "replicas": 8}}), "MetricFallback", 7),
    ] {
        let (control, _) = World::new(3, None, |_, _| None).run();
        let mut metric = json!({"metricName": "depth", "averageValue": 1});
        metric.as_object_mut().unwrap().extend(says.as_object().unwrap().clone());
        let spec = json!({"maxReplicas": 9, "metrics": null, "customMetrics": [metric]});
        let autoscaler = put(&control, "web", spec);
        show_replicas(&control, 3);
        let mut state = AutoscalerState::default();
        evaluate_once(&control, &autoscaler, &mut state).await;
        tokio::time::advance(Duration::from_secs(15)).await;
        let done = evaluate_once(&control, &autoscaler, &mut state).await;
        assert_ne!(done, Failed, "{reason}");
        assert_eq!(state.status.desired_replicas, replicas, "{reason}");
        for kind in [ConditionKind::ScalingActive, ConditionKind::FallbackActive] {
            let condition = state.status.condition(kind).expect("it is set");
            assert_eq!((condition.status, &*condition.reason), (true, reason), "{condition:?}");
            assert!(condition.message.contains("depth"), "{condition:?}");
        }
    }
}

/// Above maxReplicas no metric is read.
#[tokio::test]
async fn fallback_active_does_not_end_with_metrics_that_were_not_read() {
    let (control, _) = World::new(3, Some(3), |_, _| None).run();
    show_replicas(&control, 3);
    let mut state = AutoscalerState::default();
    for (max, done) in [(9, Held), (2, Rescaled)] {
        let metric = json!({"metricName": "depth", "averageValue": 1, "onError": "Ignore"});
        let autoscaler =
            put(&control, "web", json!({"maxReplicas": max, "customMetrics": [metric]}));
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, done);
    }
    let condition = state.status.condition(ConditionKind::FallbackActive).expect("it was set");
    assert_eq!((condition.status, &*condition.message), (false, "nothing stands for a metric"));
}
