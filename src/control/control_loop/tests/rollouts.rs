//! Rollouts of a workload whose Autoscaler says what they prevent.

use super::*;
use std::sync::atomic::{AtomicI64, Ordering};

/// A workload that asks for as many replicas as the number that is returned.
fn world() -> (ControlLoop, Arc<AtomicI64>) {
    let queue = Arc::new(AtomicI64::new(10));
    let now = queue.clone();
    let world = World::new(10, None, move |world, _| {
        world.queue = Some(now.load(Ordering::Relaxed));
        None
    });
    (world.run().0, queue)
}

fn is_held(state: &AutoscalerState) -> bool {
    let limited = state.status.condition(ConditionKind::ScalingLimited);
    limited.is_some_and(|limited| limited.status && limited.reason == "RollingOut")
}

/// Without `behavior` the highest recommendation of the last five minutes counts, with it the present replicas.
#[tokio::test(start_paused = true)]
async fn what_a_rollout_prevented_is_not_done_once_it_is_over() {
    for behavior in [Value::Null, json!({"scaleDown": {"stabilizationWindowSeconds": 300}})] {
        for rollouts in ["Cap", "Hold"] {
            let (control, queue) = world();
            let spec = json!({"maxReplicas": 20, "rollouts": rollouts, "behavior": behavior});
            let autoscaler = put(&control, "web", spec);
            let mut state = AutoscalerState::default();
            for (wanted, is_rolling_out, seconds) in
                [(10, false, 15), (15, true, 15), (15, true, 15), (10, false, 61), (10, false, 15)]
            {
                queue.store(wanted, Ordering::Relaxed);
                show(&control, 10, is_rolling_out);
                let about = format!("{rollouts} {behavior} {wanted}");
                let done = evaluate_once(&control, &autoscaler, &mut state).await;
                assert_eq!((done, is_held(&state)), (Held, is_rolling_out), "{about}");
                tokio::time::advance(Duration::from_secs(seconds)).await;
            }
            queue.store(15, Ordering::Relaxed);
            assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Rescaled);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_rollout_that_holds_prevents_a_scale_down_too() {
    for (rollouts, done) in [("Cap", Rescaled), ("Hold", Held)] {
        let (control, queue) = world();
        let spec = json!({"maxReplicas": 20, "rollouts": rollouts});
        let autoscaler = put(&control, "web", spec);
        let mut state = AutoscalerState::default();
        queue.store(4, Ordering::Relaxed);
        show(&control, 10, false);
        show(&control, 10, true);
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, done, "{rollouts}");
        assert_eq!(is_held(&state), done == Held, "{rollouts}");
    }
}

/// A window of a schedule, or maxReplicas, may hold it instead.
#[tokio::test(start_paused = true)]
async fn what_a_bound_prevented_during_a_rollout_is_not_done_once_both_are_over() {
    for rollouts in ["Cap", "Hold"] {
        let (control, queue) = world();
        let spec = |max: i32| json!({"maxReplicas": max, "rollouts": rollouts, "behavior": null});
        let autoscaler = put(&control, "web", spec(10));
        let mut state = AutoscalerState::default();
        queue.store(25, Ordering::Relaxed);
        show(&control, 10, false);
        show(&control, 10, true);
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
        show(&control, 10, false);
        tokio::time::advance(Duration::from_secs(61)).await;
        put(&control, "web", spec(30));
        queue.store(10, Ordering::Relaxed);
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held, "{rollouts}");
    }
}

/// Whatever the sync period: what was held is decided on again when the rollout may be over.
#[tokio::test(start_paused = true)]
async fn what_a_rollout_holds_is_decided_on_again_when_it_may_be_over() {
    let (control, queue) = world();
    let spec = json!({"maxReplicas": 20, "rollouts": "Cap", "syncPeriodSeconds": 3600});
    let autoscaler = put(&control, "web", spec);
    let mut state = AutoscalerState::default();
    queue.store(15, Ordering::Relaxed);
    show(&control, 10, false);
    show(&control, 10, true);
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
    tokio::time::advance(Duration::from_secs(20)).await;
    show(&control, 10, false);
    tokio::time::advance(Duration::from_secs(40)).await;
    for (left, done) in [(20, Held), (0, Rescaled)] {
        let due = state.release.take().map(|release| release - control.ctx.clock.elapsed());
        assert_eq!(due, Some(1));
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, done);
        tokio::time::advance(Duration::from_secs(left)).await;
    }
}

/// A rollout that was over before an evaluation, because that comes late or there was a pause, holds nothing.
#[tokio::test(start_paused = true)]
async fn a_rollout_between_two_evaluations_counts_from_when_it_was() {
    for mode in ["Active", "Paused"] {
        let (control, queue) = world();
        let spec = |mode: &str| json!({"maxReplicas": 20, "rollouts": "Cap", "mode": mode});
        let autoscaler = put(&control, "web", spec("Active"));
        let mut state = AutoscalerState::default();
        show(&control, 10, false);
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
        put(&control, "web", spec(mode));
        evaluate_once(&control, &autoscaler, &mut state).await;
        control.ctx.cluster.write(|index| {
            let mut scale = scale_record(10, "app=web");
            scale.seen.revision = Some(watch::Revision::Number(1));
            let key = (*autoscaler.key).clone();
            index.put_scale(watch::Workload::Deployment, key, scale);
        });
        tokio::time::advance(Duration::from_secs(61)).await;
        put(&control, "web", spec("Active"));
        queue.store(15, Ordering::Relaxed);
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Rescaled, "{mode}");
    }
}
