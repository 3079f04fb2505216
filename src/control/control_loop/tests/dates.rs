//! When a change of the scale was made. Policies count from then, and `status.lastScaleTime` shows it:
//! like upstream's it is never before the API server made the change.

use super::*;
use crate::control::decision_time::DecisionTime;

/// The policy's period would end early by the latency of the reads and of the write.
#[tokio::test]
async fn a_change_is_dated_after_its_write() {
    let policies = json!([{"type": "Pods", "value": 9, "periodSeconds": 600}]);
    let behavior = json!({"scaleUp": {"stabilizationWindowSeconds": 0, "policies": policies}});
    let fallback = json!({"failedRounds": 1, "replicas": 5});
    let spec = json!({"maxReplicas": 9, "behavior": behavior, "fallback": fallback});
    for (queue, result) in [(Some(5), Rescaled), (None, Failed)] {
        let (made, control, state) = evaluate_slowly(&spec, 3, queue, result).await;
        let ups = &state.history.ups;
        assert!(ups.len() == 1 && ups[0].time >= made.process, "{ups:?} {made:?}");
        let last = state.status.last_scale;
        assert!(last.is_some_and(|last| last >= made.wall), "{last:?} {made:?}");
        // And that is the time by which other replicas know the change.
        let seconds = last.map(|last| last.div_euclid(1000));
        assert_eq!(state.rescales.last_scale_time(), seconds);
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
