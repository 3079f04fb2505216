//! Bounds that schedules move.

use crate::{FOLLOWS, SOON, on_shared_bed};
use bed::eventually;
use bed::workload::Namespace;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

/// An Autoscaler whose one window begins in `after` seconds and lasts for `length`.
async fn autoscaler(ns: &Namespace<'_>, after: i64, length: i64, fields: &str) {
    let begin = Timestamp::now() + SignedDuration::from_secs(after);
    let end = begin + SignedDuration::from_secs(length);
    let schedule = json!({"name": "sale", "from": begin, "until": end, "minReplicas": 3});
    let manifest = format!(
        "apiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\n\
         metadata: {{name: web, namespace: {}}}\n\
         spec: {{scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: web}}, maxReplicas: 5, \
         customMetrics: [{{metricName: queue_depth, averageValue: 10}}], schedules: [{schedule}], \
         behavior: {{scaleDown: {{stabilizationWindowSeconds: 0}}}}, {fields}}}\n",
        ns.name
    );
    ns.cluster.apply(&manifest).await;
}

#[test]
fn a_window_moves_the_bounds_and_is_told_of() {
    on_shared_bed("schedule-window", async |bed, ns| {
        ns.deployment("web", 1, "queue_depth 1").await;
        // The window begins and ends in time though decisions are an hour apart.
        autoscaler(ns, 5, 20, "syncPeriodSeconds: 3600").await;
        ns.wait_replicas("Deployment", "web", SOON, |replicas| replicas == 3).await;
        eventually("it is shown", SOON, async || {
            let status = ns.get("autoscaler", "web").await?["status"].clone();
            let said = status["targets"].to_string().contains("min 3 by sale")
                && status["schedule"]["minReplicasBy"] == "sale"
                && status["schedule"]["active"][0]["name"] == "sale";
            if said { Ok(()) } else { Err(status.to_string()) }
        })
        .await;
        ns.wait_replicas("Deployment", "web", FOLLOWS, |replicas| replicas == 1).await;
        eventually("its begin and end are told", SOON, async || {
            let events = bed.cluster.kubectl(&["-n", &ns.name, "get", "events"]).await;
            let told = ["ScheduleStarted", "ScheduleEnded"].iter().all(|e| events.contains(e));
            if told { Ok(()) } else { Err(events) }
        })
        .await;
    });
}

#[test]
fn a_native_hpa_gets_the_bounds_of_the_schedules() {
    on_shared_bed("schedule-native", async |_, ns| {
        ns.deployment("web", 1, "queue_depth 1").await;
        autoscaler(ns, -5, 3600, "executor: NativeHPA").await;
        ns.wait_replicas("Deployment", "web", FOLLOWS, |replicas| replicas == 3).await;
        assert_eq!(ns.get("hpa", "web").await.expect("the HPA")["spec"]["minReplicas"], 3);
    });
}

#[test]
fn a_paused_native_hpa_keeps_the_bounds_that_it_has() {
    on_shared_bed("schedule-paused", async |_, ns| {
        ns.deployment("web", 1, "queue_depth 1").await;
        autoscaler(ns, 10, 3600, "executor: NativeHPA, mode: Paused").await;
        eventually("the window is shown", FOLLOWS, async || {
            let status = ns.get("autoscaler", "web").await?["status"].clone();
            let is_active = status["schedule"]["active"][0]["name"] == "sale";
            if is_active { Ok(()) } else { Err(status.to_string()) }
        })
        .await;
        // kube-controller-manager applies minReplicas whatever selectPolicy says.
        assert_eq!(ns.get("hpa", "web").await.expect("the HPA")["spec"]["minReplicas"], 1);
        assert_eq!(ns.replicas("Deployment", "web").await, 1);
    });
}
