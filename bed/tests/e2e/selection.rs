//! Which pods count for an autoscaler: `selectionStrategy`.

use crate::{FOLLOWS, SOON, on_shared_bed};
use bed::eventually;
use bed::workload::Namespace;
use serde_json::Value;

/// A Deployment whose pods have the labels of `web`, and this metric.
async fn with_labels_of_web(ns: &Namespace<'_>, name: &str, metric: &str) {
    let manifest = format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}, namespace: {}}}\n\
         spec:\n  replicas: 2\n  selector: {{matchLabels: {{app: web}}}}\n  template:\n\
         \x20   metadata: {{labels: {{app: web}}, annotations: {{bed.plimsoll.dev/metrics: {metric}}}}}\n\
         \x20   spec: {{containers: [{{name: app, image: fleet}}]}}\n",
        ns.name
    );
    ns.cluster.apply(&manifest).await;
    ns.wait_ready("Deployment", name, 2).await;
}

/// What the column TARGETS shows.
async fn targets(ns: &Namespace<'_>, name: &str, expected: &str) {
    eventually(&format!("the targets of {name} are {expected}"), FOLLOWS, async || {
        let object = ns.get("autoscaler", name).await?;
        match object["status"]["targets"].as_str() {
            Some(targets) if targets == expected => Ok(()),
            other => Err(format!("{other:?}, {}", object["status"]["conditions"])),
        }
    })
    .await;
}

#[test]
fn only_the_pods_that_the_target_controls_count_if_the_autoscaler_says_so() {
    on_shared_bed("selection", async |_, ns| {
        ns.deployment("web", 2, "queue_depth 10").await;
        with_labels_of_web(ns, "batch", "queue_depth 100").await;
        let fields = |average: u32, strategy: &str| {
            format!(
                "minReplicas: 2, maxReplicas: 9, syncPeriodSeconds: 1, selectionStrategy: {strategy}, \
                 customMetrics: [{{metricName: queue_depth, averageValue: {average}}}]"
            )
        };
        for (name, average) in [("web", 10), ("batch", 100)] {
            ns.autoscaler_with("Deployment", name, &fields(average, "OwnerReference")).await;
        }
        // Each has its own pods alone, and neither is in the other's way.
        targets(ns, "web", "10/10").await;
        targets(ns, "batch", "100/100").await;
        for name in ["web", "batch"] {
            ns.wait_condition(name, "Ready", SOON, |c: &Value| c["status"] == "True").await;
            assert_eq!(ns.replicas("Deployment", name).await, 2);
        }
        // By its labels it has those of the other, too, as an HPA would, and does not decide on them while another
        // autoscaler does.
        ns.autoscaler_with("Deployment", "web", &fields(10, "LabelSelector")).await;
        let ambiguous = |c: &Value| c["reason"] == "AmbiguousSelector";
        ns.wait_condition("web", "ScalingActive", SOON, ambiguous).await;
        ns.wait_condition("batch", "Ready", SOON, |c: &Value| c["status"] == "True").await;
        ns.cluster.kubectl(&["-n", &ns.name, "delete", "autoscaler", "batch"]).await;
        ns.wait_replicas("Deployment", "web", FOLLOWS, |replicas| replicas == 9).await;
        assert_eq!(ns.replicas("Deployment", "batch").await, 2);
        let others = |c: &Value| c["status"] == "True" && c["reason"] == "SelectsOtherPods";
        let text = ns.wait_condition("web", "ConfigurationWarning", SOON, others).await;
        assert!(text.contains("selects pods of ReplicaSet batch-"), "{text}");
        ns.autoscaler_with("Deployment", "web", &fields(10, "OwnerReference")).await;
        ns.wait_condition("web", "ConfigurationWarning", SOON, |c| c["status"] == "False").await;
    });
}

#[test]
fn an_autoscaler_that_kube_controller_manager_executes_selects_by_labels() {
    on_shared_bed("selection-native", async |_, ns| {
        let manifest = format!(
            "apiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\n\
             metadata: {{name: web, namespace: {}}}\n\
             spec: {{scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: web}}, maxReplicas: 2, \
             executor: NativeHPA, selectionStrategy: OwnerReference}}\n",
            ns.name
        );
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), manifest).expect("it is written");
        let path = file.path().to_str().expect("a path");
        let refused = ns.cluster.try_kubectl(&["create", "-f", path]).await.unwrap_err();
        assert!(
            refused.contains("selectionStrategy OwnerReference needs the executor"),
            "{refused}"
        );
    });
}
