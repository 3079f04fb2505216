//! The modes of an Autoscaler beside `Active`.

use crate::{FOLLOWS, SOON, on_shared_bed};
use bed::eventually;
use bed::workload::Namespace;
use serde_json::{Value, json};

/// An Autoscaler of the Deployment `web`, with more fields of its spec in YAML.
async fn autoscaler(ns: &Namespace<'_>, max: i32, fields: &str) {
    let manifest = format!(
        "apiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\n\
         metadata: {{name: web, namespace: {}}}\n\
         spec: {{scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: web}}, maxReplicas: {max}, \
         syncPeriodSeconds: 1, customMetrics: [{{metricName: queue_depth, averageValue: 10}}], {fields}}}\n",
        ns.name
    );
    ns.cluster.apply(&manifest).await;
}

#[test]
fn a_preview_shows_its_decisions_beside_the_hpa_that_scales() {
    on_shared_bed("mode-preview", async |bed, ns| {
        ns.deployment("web", 1, "queue_depth 30").await;
        ns.hpa("web", "queue_depth", "15", 8).await;
        autoscaler(ns, 20, "mode: Preview").await;
        ns.wait_replicas("Deployment", "web", FOLLOWS, |replicas| replicas == 8).await;
        let shown = |c: &Value| {
            c["status"] == "True" && c["message"].to_string().contains("stays at 8 (desired: 16)")
        };
        ns.wait_condition("web", "Preview", FOLLOWS, shown).await;
        eventually("the preview wants more", SOON, async || {
            let status = ns.get("autoscaler", "web").await?["status"].clone();
            match status["desiredReplicas"] == 16 && status["currentReplicas"] == 8 {
                true => Ok(()),
                false => Err(status.to_string()),
            }
        })
        .await;
        assert_eq!(ns.replicas("Deployment", "web").await, 8);
        // Both select the same pods, which is ambiguous only for two that scale.
        for kind in ["hpa", "autoscaler"] {
            let status = ns.get(kind, "web").await.expect("it is there")["status"].clone();
            assert!(!status.to_string().contains("AmbiguousSelector"), "{status}");
        }
        bed.cluster.kubectl(&["-n", &ns.name, "delete", "hpa", "web"]).await;
        ns.patch("autoscaler", "web", &json!({"spec": {"mode": "Active"}})).await;
        ns.wait_replicas("Deployment", "web", FOLLOWS, |replicas| replicas == 20).await;
    });
}

#[test]
fn a_pause_ends_by_itself() {
    on_shared_bed("mode-pause", async |_, ns| {
        ns.deployment("web", 1, "queue_depth 30").await;
        let until = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(12);
        let until = until.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let pause = json!({"until": until, "reason": "a migration", "by": "ann"});
        autoscaler(ns, 3, &format!("mode: Paused, pause: {pause}")).await;
        let message = ns.wait_condition("web", "Paused", SOON, |c| c["status"] == "True").await;
        let paused =
            ["-n", &ns.name, "get", "pas", "--field-selector=spec.mode=Paused", "-o", "name"];
        assert_eq!(ns.cluster.kubectl(&paused).await.trim(), "autoscaler.plimsoll.dev/web");
        assert!(message.contains("by \"ann\", reason \"a migration\""), "{message}");
        ns.wait_replicas("Deployment", "web", FOLLOWS, |replicas| replicas == 3).await;
    });
}
