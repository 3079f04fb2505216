//! What a status shows.

use super::*;

#[tokio::test]
async fn an_invalid_spec_keeps_the_last_known_scale_in_the_status() {
    let (control, _) = World::new(3, Some(3), |_, _| None).run();
    let autoscaler = put(&control, "web", json!({"maxReplicas": 9}));
    show_replicas(&control, 3);
    let mut state = AutoscalerState::default();
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
    let before = control.ctx.live.get(&autoscaler).unwrap();
    put_invalid(&control, &autoscaler);
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
    let shown = control.ctx.live.get(&autoscaler).unwrap();
    assert_eq!((shown.current_replicas, shown.observed_generation), (Some(3), Some(2)));
    // What is not in it is removed from the object.
    assert_eq!((&shown.reference, &shown.targets), (&before.reference, &before.targets));
    assert_eq!(shown.current_metrics.as_ref().map(Vec::len), Some(1));
}
