//! Queries of metrics: which are repeated before the evaluations that are due, and what a total below zero asks for.

use super::*;
use crate::samples::Store;
use crate::supervise::Spawner;

const TYPES: &str = r#"{"status":"success","data":{}}"#;
const ERROR: &str = r#"{"status":"error","errorType":"bad_data","error":"no"}"#;
const VECTOR: &str = r#"{"status":"success","data":{"resultType":"vector","result":[
    {"metric":{"namespace":"shop","pod":"0"},"value":[1,"3"]}]}}"#;

const BELOW_ZERO: &str = r#"{"status":"success","data":{"resultType":"vector","result":[
    {"metric":{"namespace":"shop"},"value":[1,"-5"]}]}}"#;

/// A loop whose Prometheus has all metrics but `gone`. `backlog` is below zero.
async fn with_prometheus() -> ControlLoop {
    let respond = |text: &str| match text {
        _ if text.contains("metadata") => TYPES,
        _ if text.contains("gone") => ERROR,
        _ if text.contains("backlog") => BELOW_ZERO,
        _ => VECTOR,
    };
    let (prometheus, _) = crate::fake::prometheus(move |text| respond(text).to_owned()).await;
    let (mut control, _) = World::new(1, Some(3), |_, _| None).run();
    let shared = Arc::get_mut(&mut control.ctx).expect("the only reference");
    shared.samples = Store::new(prometheus, Duration::from_secs(1), Spawner::unowned());
    show_replicas(&control, 1);
    control
}

/// An Autoscaler that scales by this metric of its pods.
fn put_of(control: &ControlLoop, metric: &str, more: Value) -> AutoscalerRef {
    let mut spec = json!({"maxReplicas": 9, "metrics": null,
        "customMetrics": [{"metricName": metric, "averageValue": "3"}]});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    put(control, "web", spec)
}

#[tokio::test]
async fn what_is_not_evaluated_is_not_queried() {
    let control = with_prometheus().await;
    for more in [json!({"mode": "Paused"}), json!({"executor": "NativeHPA"})] {
        for token in [None, control.ctx.fencing_token()] {
            let autoscaler = put_of(&control, "jobs", json!({}));
            let mut state = AutoscalerState::default();
            let evaluate = async |state: &mut AutoscalerState| {
                reconcile(&control.ctx, token.as_ref(), &autoscaler, state).await
            };
            evaluate(&mut state).await;
            assert_eq!(state.queries().count(), 1);
            put_of(&control, "jobs", more.clone());
            evaluate(&mut state).await;
            assert_eq!(state.queries().count(), 0, "{more}");
        }
    }
}

#[tokio::test]
async fn an_invalid_spec_is_not_queried() {
    let control = with_prometheus().await;
    let autoscaler = put_of(&control, "jobs", json!({}));
    let mut state = AutoscalerState::default();
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
    put_invalid(&control, &autoscaler);
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
    assert_eq!(state.queries().count(), 0);
}

/// They may be of a metric or a query that is no longer in the spec, or of a rule that is gone.
#[tokio::test]
async fn the_queries_of_a_metric_that_fails_are_repeated_for_a_while() {
    let control = with_prometheus().await;
    let autoscaler = put_of(&control, "jobs", json!({}));
    let mut state = AutoscalerState::default();
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held);
    put_of(&control, "gone", json!({}));
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
    assert_eq!(state.queries().count(), 1);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(600)).await;
    assert_eq!((state.queries().count(), state.shape_hash()), (0, None));
}

#[tokio::test]
async fn a_total_below_zero_asks_for_no_replica() {
    let control = with_prometheus().await;
    for target in ["averageValue", "value"] {
        let metric = json!({"metricName": "backlog", "per": "Workload", target: "1"});
        let autoscaler = put_of(&control, "backlog", json!({"customMetrics": [metric]}));
        let mut state = AutoscalerState::default();
        assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Held, "{target}");
        assert_eq!(state.status.desired_replicas, 1);
    }
}

/// Whether an evaluation of a replica that does not lead reads the metric of `shop/web`, in a turn and at so many replicas.
async fn follow(
    (control, log): (&ControlLoop, &Log),
    (turn, replicas): (i64, i32),
    state: &mut AutoscalerState,
) -> bool {
    show_replicas(control, replicas);
    state.turn = Some(turn);
    let before = log.of("GET").iter().filter(is_query).count();
    let ended = reconcile(&control.ctx, None, &fake::autoscaler("web"), state).await;
    assert_eq!(ended, Some(SyncResult::Followed));
    log.of("GET").iter().filter(is_query).count() > before
}

#[tokio::test]
async fn a_replica_that_does_not_lead_reads_metrics_once_in_a_turn_while_all_is_at_rest() {
    let (control, log) = World::new(3, Some(3), |_, _| None).run();
    let autoscaler = put(&control, "web", json!({"maxReplicas": 9}));
    let mut state = AutoscalerState::default();
    let of = (&control, &log);
    for (turn, replicas, reads) in [
        (0, 3, true),
        (0, 3, false),
        (1, 3, true),
        (1, 3, false),
        // It was scaled, and is not at rest then: the metric asks for three.
        (1, 4, true),
        (1, 4, true),
        (1, 3, true),
    ] {
        let read = follow(of, (turn, replicas), &mut state).await;
        assert_eq!(read, reads, "{turn} {replicas}");
    }
    // A leader always does.
    let token = control.ctx.fencing_token();
    state.turn = Some(1);
    let before = log.of("GET").iter().filter(is_query).count();
    assert_eq!(reconcile(&control.ctx, token.as_ref(), &autoscaler, &mut state).await, Some(Held));
    assert!(log.of("GET").iter().filter(is_query).count() > before);
}

/// The load that asked for it may have been seen by the leader alone, which has not said so yet.
#[tokio::test]
async fn a_new_leader_keeps_for_a_window_what_another_has_just_raised() {
    // Where scaling up has a window, a follower has read each period, and what was kept would delay a scale-up.
    for (up, keeps) in [(0, true), (60, false)] {
        let (control, log) = World::new(4, Some(3), |_, _| None).run();
        let spec = json!({"maxReplicas": 9, "behavior": {
            "scaleUp": {"stabilizationWindowSeconds": up},
            "scaleDown": {"stabilizationWindowSeconds": 300}}});
        let autoscaler = put(&control, "web", spec);
        let mut state = AutoscalerState::default();
        for replicas in [3, 3, 4] {
            follow((&control, &log), (0, replicas), &mut state).await;
        }
        let token = control.ctx.fencing_token();
        let ended = reconcile(&control.ctx, token.as_ref(), &autoscaler, &mut state).await;
        assert_eq!(ended, Some(if keeps { Held } else { Rescaled }));
        let all = &state.history.recommendations;
        assert_eq!(all.iter().any(|one| one.replicas == 4), keeps, "{all:?}");
    }
}

/// What raises the scale beside it decides by other metrics.
#[tokio::test]
async fn a_preview_keeps_nothing_that_another_controller_raises() {
    let (control, log) = World::new(4, Some(3), |_, _| None).run();
    let spec = json!({"maxReplicas": 9, "mode": "Preview",
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 300}}});
    let autoscaler = put(&control, "web", spec);
    let mut state = AutoscalerState::default();
    for replicas in [3, 3, 4] {
        follow((&control, &log), (0, replicas), &mut state).await;
    }
    reconcile(&control.ctx, control.ctx.fencing_token().as_ref(), &autoscaler, &mut state).await;
    let all = &state.history.recommendations;
    assert!(all.iter().all(|one| one.replicas == 3), "{all:?}");
}

/// Where it has a fallback: that would come later after a takeover, by as much as a turn.
#[tokio::test]
async fn what_the_leader_could_not_read_is_read_in_each_period() {
    let (control, log) = World::new(3, Some(3), |_, _| None).run();
    let autoscaler = put(
        &control,
        "web",
        json!({"maxReplicas": 9, "fallback": {"failureThreshold": 3, "replicas": 4}}),
    );
    let mut state = AutoscalerState::default();
    let shows = |status: &str, reason: &str| {
        let record = control.ctx.cluster.read(|index| index.autoscaler(&autoscaler.key)).unwrap();
        let object = json!({"metadata": {"namespace": "shop", "name": "web", "uid": "web",
            "generation": 1}, "status": {"desiredReplicas": 3, "conditions": [
            {"type": "ScalingActive", "status": status, "reason": reason, "message": "",
                "lastTransitionTime": "2026-11-26T12:00:00Z"}]}});
        let read = read_autoscaler(serde_json::from_value(object).unwrap(), Some(&record));
        control.ctx.cluster.write(|index| index.put_autoscaler(autoscaler.key.clone(), read));
    };
    for (status, reason, reads) in [
        ("True", "ValidMetricFound", true),
        ("True", "ValidMetricFound", false),
        ("False", "FailedGetExternalMetric", true),
        ("False", "FailedGetExternalMetric", true),
        ("True", "ValidMetricFound", false),
    ] {
        shows(status, reason);
        assert_eq!(follow((&control, &log), (0, 3), &mut state).await, reads, "{status}");
    }
}

/// A fallback of a metric counts from there.
#[tokio::test]
async fn a_new_leader_knows_since_when_a_metric_has_failed() {
    let (control, log) = World::new(3, None, |_, _| None).run();
    let autoscaler = put(
        &control,
        "web",
        json!({"maxReplicas": 9, "fallback": {"failureThreshold": 3, "replicas": 4}}),
    );
    let mut state = AutoscalerState::default();
    let mut since = Vec::new();
    for _ in 0..3 {
        assert!(follow((&control, &log), (0, 3), &mut state).await, "it fails");
        since.push(state.status.failing.clone());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(evaluate_once(&control, &autoscaler, &mut state).await, Failed);
    since.push(state.status.failing.clone());
    assert!(since[0].len() == 1 && since[0][0].is_some(), "{since:?}");
    assert!(since.iter().all(|one| *one == since[0]), "{since:?}");
}
