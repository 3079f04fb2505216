//! When evaluations begin and end, and what is kept after them.

use super::*;

/// The checkpoint of a previous leader, with a recommendation of seven replicas.
fn checkpoint_of(autoscaler: &AutoscalerRef) -> (AutoscalerRef, Checkpoint) {
    let recommended = vec![Recommendation { replicas: 7, time: 0 }];
    (autoscaler.clone(), checkpoint(&autoscaler.key.name, recommended))
}

#[tokio::test]
async fn an_evaluation_begun_before_the_restore_does_not_write() {
    let (mut control, log) = World::new(9, Some(3), |_, _| None).run();
    // One slot.
    control.queue = FairQueue::new(1);
    control.ctx.history_loaded_term.store(NO_TERM, Ordering::Release);
    let autoscalers = ["a", "b"].map(|name| put(&control, name, json!({"maxReplicas": 3})));
    show_replicas(&control, 9);
    for autoscaler in &autoscalers {
        control.schedule.set(autoscaler.clone(), Instant::now());
    }
    control.start_due();
    assert_eq!(control.evaluations.len(), 1, "the other waits");
    control.loaded(Ok(autoscalers.iter().map(checkpoint_of).collect()));
    let is_restored =
        |history: &ScalingHistory| history.recommendations.iter().any(|r| r.replicas == 7);
    for autoscaler in &autoscalers {
        let running = control.running[autoscaler].as_ref().expect("it has a checkpoint meanwhile");
        assert!(is_restored(&running.history), "{autoscaler}");
    }
    let first = control.evaluations.join_next().await.unwrap().unwrap();
    assert!(first.result != Some(Rescaled) && log.of("PUT").is_empty(), "{:?}", first.result);
    control.evaluated(first);
    let second = control.evaluations.join_next().await.unwrap().unwrap();
    assert_eq!(second.result, Some(Rescaled));
    assert!(is_restored(&second.state.expect("no panic").history));
}

/// In a single namespace, which may not have all slots.
#[tokio::test]
async fn statuses_are_held_while_more_are_due_than_may_be_evaluated_at_once() {
    let (mut control, _) = World::new(3, Some(3), |_, _| None).run();
    control.queue = FairQueue::new(4);
    show_replicas(&control, 3);
    for name in 0..20 {
        let autoscaler = put(&control, &format!("web-{name}"), json!({"maxReplicas": 9}));
        control.schedule.set(autoscaler, Instant::now());
    }
    control.start_due();
    assert!(control.ctx.statuses.is_held());
    while let Some(done) = control.evaluations.join_next().await {
        control.evaluated(done.unwrap());
    }
    assert!(!control.ctx.statuses.is_held());
}

#[tokio::test]
async fn evaluations_in_flight_are_repeated_when_the_freeze_changes() {
    for changes in [false, true] {
        let (mut control, _) = World::new(3, Some(3), |_, _| None).run();
        let autoscaler = put(&control, "web", json!({"maxReplicas": 9}));
        show_replicas(&control, 3);
        control.schedule.set(autoscaler, Instant::now());
        control.start_due();
        if changes {
            fake::freeze(&control.ctx.leader);
            control.leadership_changed();
        }
        let done = control.evaluations.join_next().await.unwrap().unwrap();
        control.evaluated(done);
        let at_once = control.schedule.next().unwrap() <= Instant::now();
        assert_eq!(at_once, changes);
    }
}

/// In the same turn, in which it would only look otherwise.
#[tokio::test]
async fn what_was_edited_during_its_evaluation_is_read_by_a_replica_that_does_not_lead() {
    for (is_edited, is_due) in [(false, false), (true, false), (true, true)] {
        let (mut control, _) = World::new(3, Some(3), |_, _| None).run();
        let autoscaler = put(&control, "web", json!({"maxReplicas": 9}));
        show_replicas(&control, 3);
        control.schedule.set(autoscaler.clone(), Instant::now());
        control.start_due();
        if is_edited {
            control.changed(autoscaler.clone());
        }
        if is_due {
            control.start_due();
        }
        let mut done = control.evaluations.join_next().await.unwrap().unwrap();
        done.state.as_mut().expect("no panic").followed = Some((1, 3));
        control.evaluated(done);
        assert_eq!(control.states[&autoscaler].followed.is_none(), is_edited, "{is_due}");
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_does_not_wait_for_evaluations_that_only_read() {
    let hangs = |_: &mut World, request: &Request| is_query(&request).then_some((0, Value::Null));
    let (mut control, log) = World::new(3, Some(3), hangs).run();
    // One slot.
    control.queue = FairQueue::new(1);
    let autoscalers = ["a", "b"].map(|name| put(&control, name, json!({"maxReplicas": 9})));
    show_replicas(&control, 3);
    for autoscaler in &autoscalers {
        control.schedule.set(autoscaler.clone(), Instant::now());
    }
    control.start_due();
    let start = Instant::now();
    while !log.of("").iter().any(|request| is_query(&request)) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    control.stop_evaluations().await;
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert!(
        control.running.is_empty() && autoscalers.iter().all(|s| control.states.contains_key(s))
    );
    assert_eq!(log.of("").iter().filter(is_query).count(), 1, "the other is not begun");
}

/// A part with a clock of its own would wake the loop before anything is due, or never.
#[tokio::test(start_paused = true)]
async fn in_an_hour_of_paused_time_each_period_has_one_evaluation() {
    let (mut control, log) = World::new(3, Some(3), |_, _| None).run();
    let autoscaler = put(&control, "web", json!({"maxReplicas": 9}));
    show_replicas(&control, 3);
    control.schedule.set(autoscaler, Instant::now());
    // No watch is allowed, and so none is waited for.
    let (client, _) = fake::api(|_| fake::failure(403, "Forbidden", "forbidden"));
    let watches = watch::run_reflectors(client, Cluster::default(), control.synced.clone());
    let hour = tokio::time::sleep(Duration::from_secs(3_600));
    tokio::select! { () = watches => {}, () = control.run(hour) => {} }
    let queries = log.of("").iter().filter(is_query).count();
    assert!((239..=242).contains(&queries), "{queries}");
}

#[tokio::test]
async fn no_checkpoint_of_an_ignored_native_hpa_is_restored() {
    let (mut control, _) = World::new(3, Some(3), |_, _| None).run();
    let web = put(&control, "web", json!({"maxReplicas": 9}));
    let hpa = json!({"metadata": {"namespace": "shop", "name": "web", "uid": "web"},
        "spec": {"maxReplicas": 9, "scaleTargetRef": {"kind": "Deployment", "name": "web"}}});
    let record = watch::read_hpa(serde_json::from_value(hpa).unwrap());
    control.ctx.cluster.write(|index| index.put_hpa(web.key.clone(), record));
    let native = AutoscalerRef::hpa(web.key.clone());
    control.restore_checkpoints(vec![checkpoint_of(&web), checkpoint_of(&native)]);
    assert_eq!(
        (control.states.contains_key(&web), control.states.contains_key(&native)),
        (true, false)
    );
}

#[tokio::test(start_paused = true)]
async fn an_overrun_counts_the_missed_periods() {
    let (mut control, _) = World::new(3, Some(3), |_, _| None).run();
    let autoscaler = put(&control, "web", json!({"maxReplicas": 9}));
    let due = Instant::now();
    tokio::time::advance(Duration::from_secs(40)).await;
    control.queue.push(
        "shop",
        DueEvaluation {
            autoscaler: autoscaler.clone(),
            at: due,
            due_together: 1,
            state: Box::default(),
        },
    );
    control.begin_evaluations();
    let done = control.evaluations.join_next().await.unwrap().unwrap();
    control.evaluated(done);
    let text = control.ctx.metrics.openmetrics();
    assert!(text.contains("plimsoll_missed_rounds_total 2\n"), "{text}");
}

#[tokio::test]
async fn a_decision_is_due_from_its_time_on_until_one_is_taken() {
    let (mut control, _) = World::new(3, Some(3), |_, _| None).run();
    let autoscaler = put(&control, "web", json!({"maxReplicas": 9}));
    show_replicas(&control, 3);
    // In seconds from now.
    let due = |control: &ControlLoop| {
        control.show_due();
        let text = control.ctx.metrics.openmetrics();
        let line =
            text.lines().find_map(|l| l.strip_prefix("plimsoll_decision_due_timestamp_seconds "));
        let at: f64 = line.unwrap().parse().unwrap();
        at - control.ctx.clock.wall_ms() as f64 / 1000.0
    };
    let is_near = |value: f64, expected: f64| (value - expected).abs() < 1.0;
    assert!(is_near(due(&control), 0.0));
    control.schedule.set(autoscaler.clone(), Instant::now() + Duration::from_secs(1_200));
    assert!(is_near(due(&control), 1_200.0));
    control.schedule.set(autoscaler, Instant::now());
    control.start_due();
    control.progress -= Duration::from_secs(60);
    assert!(is_near(due(&control), -60.0));
    let done = control.evaluations.join_next().await.unwrap().unwrap();
    control.evaluated(done);
    assert!(due(&control) > -1.0);
}

#[tokio::test]
async fn a_window_of_more_than_an_hour_is_checkpointed_in_full() {
    let (mut control, _) = World::new(3, Some(3), |_, _| None).run();
    let shared = Arc::get_mut(&mut control.ctx).expect("the only reference");
    shared.settings.hpa_config.downscale_stabilization_seconds = 7_200;
    let at = |replicas, time| Recommendation { replicas, time };
    let recommended = vec![at(9, -5_000_000), at(4, 0)];
    let state = AutoscalerState::restored(checkpoint("web", recommended), 0);
    let kept = |longest| state.checkpoint(0, longest).unwrap().history.recommendations.len();
    assert_eq!((kept(control.ctx.longest_window()), kept(LONGEST_MS)), (2, 1));
}

#[tokio::test]
async fn an_autoscaler_deleted_during_its_evaluation_is_not_counted() {
    let (mut control, _) = World::new(3, Some(3), |_, _| None).run();
    let autoscaler = put(&control, "web", json!({"maxReplicas": 9}));
    show_replicas(&control, 3);
    control.schedule.set(autoscaler.clone(), Instant::now());
    control.start_due();
    control.ctx.cluster.write(|index| index.remove_autoscaler(&autoscaler.key));
    control.changed(autoscaler);
    let done = control.evaluations.join_next().await.unwrap().unwrap();
    control.evaluated(done);
    let text = control.ctx.metrics.openmetrics();
    assert!(text.contains("plimsoll_autoscalers 0\n"), "{text}");
}

/// It is a failed evaluation all the same: the metrics were.
#[tokio::test]
async fn a_scale_that_a_fallback_wrote_is_saved_soon() {
    for is_unsaved in [true, false] {
        let (mut control, _) = World::new(3, Some(3), |_, _| None).run();
        control.checkpointer = Checkpointer::new(None, Duration::from_secs(30));
        // The next one is then due in 30 s.
        control.checkpointer.save(None, HashMap::new);
        let (before, due) = (control.checkpointer.due(), Instant::now());
        let autoscaler = put(&control, "web", json!({"maxReplicas": 9}));
        let mut state = AutoscalerState::default();
        state.is_unsaved = is_unsaved;
        control.evaluated(FinishedEvaluation {
            autoscaler,
            due,
            begun: due,
            due_together: 1,
            state: Some(Box::new(state)),
            result: Some(SyncResult::Failed),
        });
        assert_eq!(control.checkpointer.due() < before, is_unsaved);
    }
}

/// A broken HPA that only kube-controller-manager scales is no failing autoscaler of Plimsoll's.
#[tokio::test]
async fn an_observed_hpa_that_fails_is_not_counted() {
    let (mut control, _) = World::new(3, Some(3), |_, _| None).run();
    let shared = Arc::get_mut(&mut control.ctx).expect("the only reference");
    shared.settings.native_hpas = NativeHpas::Observe;
    let web = put(&control, "web", json!({"maxReplicas": 9}));
    let record = json!({"metadata": {"namespace": "shop", "name": "web", "uid": "native"},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "maxReplicas": 9}});
    let record = watch::read_hpa(serde_json::from_value(record).unwrap());
    control.ctx.cluster.write(|index| index.put_hpa(web.key.clone(), record));
    let hpa = AutoscalerRef { kind: AutoscalerKind::Hpa, ..web.clone() };
    for autoscaler in [web, hpa] {
        let (due, result) = (Instant::now(), Some(SyncResult::Failed));
        control.evaluated(FinishedEvaluation {
            autoscaler,
            due,
            begun: due,
            due_together: 1,
            state: None,
            result,
        });
    }
    let text = control.ctx.metrics.openmetrics();
    for line in ["plimsoll_autoscalers 1\n", "plimsoll_autoscalers_failing 1\n"] {
        assert!(text.contains(line), "{text}");
    }
}

/// What a window and a pause say ends in time, whatever the sync period, with either executor.
#[tokio::test]
async fn a_pause_and_a_window_are_evaluated_at_their_ends() {
    let (control, _) = World::new(3, Some(3), |_, _| None).run();
    let end = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(10);
    let paused = json!({"maxReplicas": 9, "mode": "Paused", "pause": {"until": end}});
    let window = json!([{"name": "sale", "from": end, "until": "2999-01-01T00:00:00Z",
        "minReplicas": 4}]);
    for (executor, spec) in [
        ("Embedded", &paused),
        ("NativeHPA", &paused),
        ("NativeHPA", &json!({"maxReplicas": 9, "schedules": window})),
    ] {
        let mut spec = spec.clone();
        spec["executor"] = json!(executor);
        let autoscaler = put(&control, "web", spec);
        show_replicas(&control, 3);
        let mut state = AutoscalerState::default();
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
        let wait = state.release.map(|release| release - control.ctx.clock.elapsed());
        assert!(wait.is_some_and(|ms| (1_000..=10_000).contains(&ms)), "{executor}: {wait:?}");
    }
}
