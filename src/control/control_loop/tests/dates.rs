//! When a change of the scale was made. Policies count from then, and `status.lastScaleTime` shows it:
//! like upstream's it is never before the API server made the change.

use super::*;
use crate::clock::WallClock;
use crate::control::decision_time::DecisionTime;
use crate::control::rescales::Change;
use std::time::SystemTime;

/// The policy's period would end early by the latency of the reads and of the write.
#[tokio::test]
async fn a_change_is_dated_after_its_write() {
    let policies = json!([{"type": "Pods", "value": 9, "periodSeconds": 600}]);
    let behavior = json!({"scaleUp": {"stabilizationWindowSeconds": 0, "policies": policies}});
    let fallback = json!({"failureThreshold": 1, "replicas": 5});
    let spec = json!({"maxReplicas": 9, "behavior": behavior, "fallback": fallback});
    for (queue, result) in [(Some(5), Rescaled), (None, Failed)] {
        let (made, control, state) = evaluate_slowly(&spec, 3, queue, result).await;
        let ups = &state.history.ups;
        assert!(ups.len() == 1 && ups[0].time >= made.process, "{ups:?} {made:?}");
        // A scale that a decision wrote is saved by its result, `Rescaled`.
        assert_eq!(state.is_unsaved, result == Failed);
        let last = state.status.last_scale;
        assert!(last.is_some_and(|last| last >= made.wall), "{last:?} {made:?}");
        // And that is the time by which other replicas know the change.
        let seconds = last.map(|last| last.div_euclid(1000));
        assert_eq!(state.rescales.last_change().time, seconds);
        state.checkpoint(control.ctx.clock.elapsed(), LONGEST_MS).expect("there is a change");
    }
}

/// How long it may still be carried out counts from then.
#[tokio::test]
async fn a_scale_to_zero_is_announced_with_the_time_of_the_announcement() {
    let (control, log) = World::new(2, Some(0), |_, request| {
        if request.line.ends_with("/queue") {
            std::thread::sleep(LATENCY);
        }
        is_put(request).then(|| fake::failure(504, "Timeout", "it took too long"))
    })
    .run();
    let autoscaler = put(&control, "web", json!({"minReplicas": 0, "maxReplicas": 9}));
    show_replicas(&control, 2);
    let before = DecisionTime::now(&control.ctx.clock).wall;
    let mut state = AutoscalerState::default();
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
    let since = zero::pending_since(&state.status).expect("it is announced");
    assert!(since >= before + LATENCY.as_millis() as i64 && log.of("PUT").len() == 1, "{since}");
}

/// A change dates from the end of its write: one period later, at the phase of the evaluations, it still counts.
#[tokio::test(start_paused = true)]
async fn a_policy_of_one_sync_period_allows_a_change_in_each() {
    let (writes, evaluations) = writes_of_a_minute(15).await;
    let least = writes.windows(2).map(|pair| pair[1] - pair[0]).min();
    assert!(writes.len() >= 4, "{writes:?}");
    assert!(least.is_some_and(|least| least >= Duration::from_secs(15)), "{writes:?}");
    // One at each phase, and one where the change before is released.
    assert!(evaluations <= 11, "{evaluations}");
}

/// Like upstream, which decides once in a sync period.
#[tokio::test(start_paused = true)]
async fn a_policy_that_ends_within_a_sync_period_allows_a_change_at_its_end() {
    let (writes, evaluations) = writes_of_a_minute(20).await;
    let least = writes.windows(2).map(|pair| pair[1] - pair[0]).min();
    assert!(writes.len() == 3 && evaluations <= 6, "{writes:?} {evaluations}");
    assert!(least.is_some_and(|least| least >= Duration::from_secs(29)), "{writes:?}");
}

/// When one pod is added per so many seconds, with a sync period of 15 s, and the number of evaluations.
async fn writes_of_a_minute(policy_seconds: u32) -> (Vec<Instant>, usize) {
    let writes: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let written = writes.clone();
    let mut world = World::new(1, Some(100), move |_, request| {
        if is_put(request) {
            written.lock().unwrap().push(Instant::now());
        }
        None
    });
    world.write_latency = Duration::from_millis(300);
    let (mut control, log) = world.run();
    let policies = json!([{"type": "Pods", "value": 1, "periodSeconds": policy_seconds}]);
    let behavior = json!({"scaleUp": {"stabilizationWindowSeconds": 0, "policies": policies}});
    let autoscaler = put(&control, "web", json!({"maxReplicas": 100, "behavior": behavior}));
    control.schedule.set(autoscaler, Instant::now());
    let (client, _) = fake::api(|_| fake::failure(403, "Forbidden", "forbidden"));
    let watches = watch::run_reflectors(client, Cluster::default(), control.synced.clone());
    let end = tokio::time::sleep(Duration::from_secs(65));
    tokio::select! { () = watches => {}, () = control.run(end) => {} }
    let writes = writes.lock().unwrap().clone();
    (writes, log.of("").iter().filter(is_query).count())
}

/// How long the API server takes for what it is slow at.
const LATENCY: Duration = Duration::from_millis(20);

/// Evaluates once on an API server that takes its time for a write of the scale. Also returns when that
/// was made.
async fn evaluate_slowly(
    spec: &Value,
    replicas: i32,
    queue: Option<i64>,
    result: SyncResult,
) -> (DecisionTime, ControlLoop, AutoscalerState) {
    let clock: Arc<OnceLock<Clock>> = Arc::default();
    let made: Arc<OnceLock<DecisionTime>> = Arc::default();
    let (known, makes) = (clock.clone(), made.clone());
    let (control, _) = World::new(replicas, queue, move |_, request| {
        if is_put(request) {
            std::thread::sleep(LATENCY);
            let _ = makes.set(DecisionTime::now(known.get().unwrap()));
        }
        None
    })
    .run();
    let _ = clock.set(control.ctx.clock.clone());
    let autoscaler = put(&control, "web", spec.clone());
    show_replicas(&control, replicas);
    let mut state = AutoscalerState::default();
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, result);
    (*made.get().expect("the scale was written"), control, state)
}

/// Followers take the desired replicas of a status for those of the change that it dates.
#[tokio::test]
async fn a_late_change_is_reported_with_its_replicas_though_metrics_fail() {
    let (control, _) = World::new(5, None, |_, _| None).run();
    let autoscaler = put(&control, "web", json!({"maxReplicas": 9}));
    show_replicas(&control, 7);
    let mut state = AutoscalerState::default();
    evaluate_once(&control, &autoscaler, &mut state).await;
    state.status.desired_replicas = 7;
    let at = control.ctx.clock.elapsed();
    state.rescales.note_indeterminate(Change { from: 7, to: 5, at });
    show_replicas(&control, 5);
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
    assert_eq!((state.status.desired_replicas, state.status.last_scale.is_some()), (5, true));
}

/// A wall clock that is set forward must not shorten the time after which a metric's fallback counts.
#[tokio::test(start_paused = true)]
async fn how_long_a_metric_has_failed_is_counted_by_the_clock_of_the_process() {
    let (mut control, log) = World::new(2, Some(2), |_, _| None).run();
    let offset = Arc::new(Mutex::new(Duration::ZERO));
    let set = offset.clone();
    let wall = WallClock::new(move || SystemTime::UNIX_EPOCH + *set.lock().unwrap());
    let context = Arc::get_mut(&mut control.ctx).expect("nothing runs yet");
    context.clock = Clock::with_wall(wall);
    let fallback = json!({"failureDurationSeconds": 300, "replicas": 8});
    let metric = json!({"metricName": "load", "averageValue": "1", "fallback": fallback});
    let autoscaler = put(&control, "web", json!({"maxReplicas": 9, "customMetrics": [metric]}));
    show_replicas(&control, 2);
    let mut state = AutoscalerState::default();
    for (set_to, passed, writes) in [(0, 0, 0), (3600, 10, 0), (60, 285, 0), (60, 10, 1)] {
        *offset.lock().unwrap() = Duration::from_secs(set_to);
        tokio::time::advance(Duration::from_secs(passed)).await;
        evaluate_once(&control, &autoscaler, &mut state).await;
        assert_eq!(log.of("PUT").len(), writes, "{passed} s later");
    }
}
