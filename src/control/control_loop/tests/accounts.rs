//! The accounts that evaluations leave in the ledger.

use super::*;
use crate::ledger::{CarriedOut, Entry, Position, Reason};

/// The last decision for an autoscaler.
async fn last(control: &ControlLoop, autoscaler: &AutoscalerRef) -> Option<Entry> {
    let AutoscalerRef { kind, key } = autoscaler;
    let mut last = None;
    for sequence in 1.. {
        let at = Position { key: key.clone(), kind: *kind, sequence };
        match control.ctx.ledger.get(&at).await {
            Some(entry) => last = Some(entry),
            None => break,
        }
    }
    last
}

/// The status has those before the last scale-up, and none if it was paused from the beginning.
#[tokio::test]
async fn a_pause_shows_the_replicas_that_there_are() {
    let (control, _) = World::new(4, Some(6), |_, _| None).run();
    control.ctx.ledger.begin_term(0, None);
    let autoscaler = put(&control, "web", json!({"maxReplicas": 9}));
    show_replicas(&control, 4);
    let mut state = AutoscalerState::default();
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Rescaled);
    put(&control, "web", json!({"maxReplicas": 9, "mode": "Paused"}));
    for replicas in [6, 10] {
        show_replicas(&control, replicas);
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
        let entry = last(&control, &autoscaler).await.unwrap();
        assert_eq!((entry.reason, entry.carried), (Reason::Paused, CarriedOut::Paused));
        assert_eq!((entry.current, entry.desired), (Some(replicas), Some(replicas)));
    }
    // Those of a target that is not watched are not known.
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "gone"});
    let paused = json!({"maxReplicas": 9, "mode": "Paused", "scaleTargetRef": target});
    let other = put(&control, "other", paused);
    let mut state = AutoscalerState::default();
    assert_eq!(evaluate_once(&control, &other, &mut state).await, Held);
    assert_eq!(last(&control, &other).await.unwrap().current, None);
}

/// The mode is seen also while nothing is to be written.
#[tokio::test]
async fn a_preview_is_one_while_it_holds() {
    let (control, _) = World::new(4, Some(4), |_, _| None).run();
    control.ctx.ledger.begin_term(0, None);
    let autoscaler = put(&control, "web", json!({"maxReplicas": 9, "mode": "Preview"}));
    show_replicas(&control, 4);
    let mut state = AutoscalerState::default();
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
    let entry = last(&control, &autoscaler).await.unwrap();
    assert_eq!((entry.reason, entry.carried), (Reason::WithinTolerance, CarriedOut::Preview));
}

/// Otherwise its last decision is told as the present one.
#[tokio::test]
async fn an_evaluation_beside_a_native_hpa_that_stays_leaves_an_account() {
    let (control, _) = World::new(3, Some(6), move |_, request| {
        let is_delete = request.line.starts_with("DELETE");
        is_delete.then(|| fake::failure(403, "", "not now"))
    })
    .run();
    control.ctx.ledger.begin_term(0, None);
    let autoscaler = put(&control, "web", json!({"maxReplicas": 9}));
    let hpa = json!({"metadata": {"namespace": "shop", "name": "web", "uid": "native",
            "ownerReferences": [{"apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler",
                "name": "web", "uid": "web", "controller": true}]},
        "spec": {"maxReplicas": 9, "scaleTargetRef": {"kind": "Deployment", "name": "web"}}});
    let record = watch::read_hpa(serde_json::from_value(hpa).unwrap());
    control.ctx.cluster.write(|index| index.put_hpa(autoscaler.key.clone(), record));
    show_replicas(&control, 3);
    let mut state = AutoscalerState::default();
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
    let entry = last(&control, &autoscaler).await.unwrap();
    assert_eq!((entry.reason, entry.carried), (Reason::RecommendationFailed, CarriedOut::Failed));
    assert!(entry.message.unwrap().contains("can't be deleted"));
}

/// What stood for one metric stands for nothing once the others fail, too.
#[tokio::test(start_paused = true)]
async fn where_all_metrics_fail_no_stand_in_of_one_is_told_of() {
    let queue = Arc::new(Mutex::new(Some(4)));
    let now = queue.clone();
    let (control, _) = World::new(4, None, move |world, request| {
        world.queue = *now.lock().unwrap();
        let is_gone = world.queue.is_none() && request.line.starts_with("GET /apis/apps/v1");
        is_gone.then(|| fake::failure(403, "Forbidden", "no"))
    })
    .run();
    control.ctx.ledger.begin_term(0, None);
    let metric = json!({"metricName": "depth", "averageValue": 1, "onError": "Ignore"});
    let autoscaler = put(
        &control,
        "web",
        json!({"maxReplicas": 9, "customMetrics": [metric],
            "fallback": {"failureThreshold": 10, "replicas": 6}}),
    );
    let is_active = |state: &AutoscalerState| {
        state.status.condition(ConditionKind::FallbackActive).is_some_and(|one| one.status)
    };
    for is_target_read in [true, false] {
        tokio::time::advance(Duration::from_secs(15)).await;
        *queue.lock().unwrap() = Some(4);
        show_replicas(&control, 4);
        let mut state = AutoscalerState::default();
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
        assert!(is_active(&state));
        *queue.lock().unwrap() = None;
        if !is_target_read {
            control.ctx.cluster.write(|index| {
                index.remove_scale(watch::Workload::Deployment, &autoscaler.key);
            });
        }
        tokio::time::advance(Duration::from_secs(15)).await;
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
        assert!(!is_active(&state), "{is_target_read}");
        let reason = match is_target_read {
            true => Reason::InvalidMetrics,
            false => Reason::RecommendationFailed,
        };
        assert_eq!(last(&control, &autoscaler).await.unwrap().reason, reason);
    }
}

/// A metric may have both: `onError` stands for it until its fallback does.
#[tokio::test(start_paused = true)]
async fn a_fallback_is_the_reason_only_once_it_stands_for_the_metric() {
    let (control, _) = World::new(8, None, |_, _| None).run();
    control.ctx.ledger.begin_term(0, None);
    let metric = json!({"metricName": "depth", "averageValue": 1, "onError": "Hold",
        "fallback": {"failureDurationSeconds": 300, "replicas": 8}});
    let spec = json!({"maxReplicas": 9, "metrics": null, "customMetrics": [metric]});
    let autoscaler = put(&control, "web", spec);
    show_replicas(&control, 8);
    let mut state = AutoscalerState::default();
    for (seconds, reason) in
        [(0, Reason::InvalidMetrics), (60, Reason::InvalidMetrics), (241, Reason::Fallback)]
    {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
        assert_eq!(last(&control, &autoscaler).await.unwrap().reason, reason, "{seconds}");
    }
}
