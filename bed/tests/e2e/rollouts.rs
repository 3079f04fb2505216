//! Rollouts, whose pods come and go for another reason than the load.

use crate::{FOLLOWS, SOON, on_shared_bed};
use serde_json::{Value, json};

#[test]
fn a_rollout_adds_no_replicas_if_the_autoscaler_says_so() {
    on_shared_bed("rollouts", async |_, ns| {
        ns.deployment("web", 2, "queue_depth 10").await;
        ns.autoscaler_with(
            "Deployment",
            "web",
            "maxReplicas: 9, minReplicas: 2, syncPeriodSeconds: 1, rollouts: Cap, \
             customMetrics: [{metricName: queue_depth, averageValue: 10}]",
        )
        .await;
        ns.wait_condition("web", "Ready", SOON, |c| c["status"] == "True").await;
        ns.wait_ready("Deployment", "web", 2).await;
        // Pods of another template, with a load of three times as much that is none.
        let template = json!({"spec": {"template": {"metadata": {
            "annotations": {"bed.plimsoll.dev/metrics": "queue_depth 30"}}}}});
        ns.patch("deployment", "web", &template).await;
        let capped = |c: &Value| c["status"] == "True" && c["reason"] == "RollingOut";
        ns.wait_condition("web", "ScalingLimited", FOLLOWS, capped).await;
        assert_eq!(ns.replicas("Deployment", "web").await, 2);
        // Once they are no longer fresh, what they say counts.
        ns.wait_replicas("Deployment", "web", 2 * FOLLOWS, |replicas| replicas > 2).await;
    });
}

#[test]
fn a_rollout_removes_no_replicas_if_the_autoscaler_says_so() {
    on_shared_bed("rollouts-hold", async |_, ns| {
        ns.deployment("web", 4, "queue_depth 10").await;
        ns.autoscaler_with(
            "Deployment",
            "web",
            "maxReplicas: 9, minReplicas: 2, syncPeriodSeconds: 1, rollouts: Hold, \
             behavior: {scaleDown: {stabilizationWindowSeconds: 0}}, \
             customMetrics: [{metricName: queue_depth, averageValue: 10}]",
        )
        .await;
        ns.wait_condition("web", "Ready", SOON, |c| c["status"] == "True").await;
        // Pods that say nothing of the load yet.
        let template = json!({"spec": {"template": {"metadata": {
            "annotations": {"bed.plimsoll.dev/metrics": "queue_depth 1"}}}}});
        ns.patch("deployment", "web", &template).await;
        let held = |c: &Value| c["status"] == "True" && c["reason"] == "RollingOut";
        ns.wait_condition("web", "ScalingLimited", FOLLOWS, held).await;
        assert_eq!(ns.replicas("Deployment", "web").await, 4);
        ns.wait_replicas("Deployment", "web", 2 * FOLLOWS, |replicas| replicas == 2).await;
    });
}
