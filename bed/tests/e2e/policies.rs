//! What an Autoscaler says of a metric that has no value.

use crate::{FOLLOWS, SOON, on_shared_bed};
use serde_json::{Value, json};

/// A query that finds nothing, and one that fails as it gives two series, whatever was scraped so far.
const EMPTY: &str = "sum(no_such_series)";
const FAILS: &str = r#"label_replace(vector(1), "n", "1", "", "") or vector(2)"#;

/// A metric of the workload with a query and what is said of it.
fn metric(query: &str, says: &str) -> String {
    format!("{{metricName: jobs, per: Workload, averageValue: 10, query: '{query}', {says}}}")
}

#[test]
fn a_metric_without_a_value_does_what_is_said_of_it() {
    on_shared_bed("policies", async |bed, ns| {
        // Each workload by its name, what its metric says, how many replicas it gets, and the reason of `FallbackActive`.
        // Its other metric, of its pods, asks for one replica.
        let workloads = [
            ("empty", metric(EMPTY, ""), 3, None),
            ("zero", metric(EMPTY, "onEmpty: Zero"), 1, None),
            ("hold", metric(EMPTY, "onEmpty: Hold"), 3, None),
            ("failed", metric(FAILS, ""), 3, None),
            ("held", metric(FAILS, "onError: Hold"), 3, Some("OnErrorHold")),
            ("ignored", metric(FAILS, "onError: Ignore"), 1, Some("OnErrorIgnore")),
            (
                "fallback",
                metric(FAILS, "fallback: {failureDurationSeconds: 2, replicas: 5}"),
                5,
                Some("MetricFallback"),
            ),
        ];
        for (name, metric, ..) in &workloads {
            ns.deployment(name, 3, "queue_depth 1").await;
            let fields = format!(
                "maxReplicas: 9, syncPeriodSeconds: 1, behavior: {{scaleDown: {{stabilizationWindowSeconds: 0}}}}, \
                 customMetrics: [{metric}, {{metricName: queue_depth, averageValue: 10}}]"
            );
            ns.autoscaler_with("Deployment", name, &fields).await;
        }
        for (name, _, replicas, reason) in &workloads {
            ns.wait_replicas("Deployment", name, FOLLOWS, |now| now == *replicas).await;
            let holds = |c: &Value| reason.is_some_and(|reason| c["reason"] == reason);
            if reason.is_some() {
                let message = ns.wait_condition(name, "FallbackActive", SOON, holds).await;
                assert!(message.contains("jobs"), "{message}");
            }
            let is_read =
                |c: &Value| (c["status"] == "True") != matches!(*name, "empty" | "failed");
            ns.wait_condition(name, "ScalingActive", SOON, is_read).await;
        }
        // Those that hold their replicas still do after more decisions.
        bed.plimsoll.decided(&bed.cluster, 3 * workloads.len()).await;
        for (name, _, replicas, _) in &workloads {
            assert_eq!(ns.replicas("Deployment", name).await, *replicas, "{name}");
        }
        // It ends with the failure, and the metric decides again.
        let metric = json!({"metricName": "jobs", "per": "Workload", "averageValue": 10,
            "query": "vector(20)", "fallback": {"failureDurationSeconds": 2, "replicas": 5}});
        let patch = json!({"spec": {"customMetrics": [metric]}});
        ns.patch("autoscaler", "fallback", &patch).await;
        ns.wait_replicas("Deployment", "fallback", FOLLOWS, |now| now == 2).await;
        ns.wait_condition("fallback", "FallbackActive", SOON, |c| c["status"] == "False").await;
    });
}
