//! Autoscaling with real pods.

use crate::applications::{application, remove_namespace};
use crate::installation::{Installation, prepare};
use crate::load::Load;
use crate::node::{Node, PODS, get};
use bed::{eventually, root};
use serde_json::Value;
use std::time::Instant;

/// Waits until a workload has this many pods, all of them ready.
pub async fn pods_of(node: &Node, namespace: &str, name: &str, wanted: usize) {
    eventually("the pods are as many as the load asks for", PODS, async || {
        let pods = node.pods(namespace, &format!("app={name}")).await?;
        if pods.len() == wanted && pods.iter().all(|pod| pod.ready) {
            return Ok(());
        }
        let kinds = "autoscalers,horizontalpodautoscalers";
        let described = node.cluster.try_kubectl(&["-n", namespace, "describe", kinds]).await;
        let status = described.unwrap_or_else(|error| error);
        Err(format!("{name}: {pods:?}\n{status}"))
    })
    .await;
}

/// The same of `shop/web`.
pub async fn pods(node: &Node, wanted: usize) {
    pods_of(node, "shop", "web", wanted).await;
}

pub fn requests(node: &Node) {
    node.run(async {
        prepare(node).await;
        pods(node, 1).await;
        let started = Instant::now();
        // More than 3 pods take within the tolerance, and less than 4.
        let load = Load::of_url(37, node.url("shop", "web").await);
        pods(node, 4).await;
        println!("4 ready pods {:.1} s after the load began", started.elapsed().as_secs_f64());
        let outcome = load.stop().await;
        let started = Instant::now();
        pods(node, 1).await;
        println!("1 pod {:.1} s after it ended", started.elapsed().as_secs_f64());
        outcome.all_succeeded();
    });
}

pub fn zero(node: &Node) {
    node.run(async {
        Installation::chart(node).await;
        for name in ["queue", "worker"] {
            application(node, "jobs", "Deployment", name, 1).await;
        }
        node.cluster
            .apply(
                "apiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\n\
                 metadata: {name: worker, namespace: jobs}\n\
                 spec:\n  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: worker}\n\
                 \x20 minReplicas: 0\n  maxReplicas: 4\n  syncPeriodSeconds: 2\n\
                 \x20 metrics: [{type: External, external: {metric: {name: queue_depth}, target: {type: AverageValue, averageValue: 5}}}]\n\
                 \x20 behavior: {scaleDown: {stabilizationWindowSeconds: 3}}\n",
            )
            .await;
        let queue = node.url("jobs", "queue").await;
        for (depth, wanted) in [(8, 2), (0, 0), (8, 2)] {
            let started = Instant::now();
            get(&format!("{queue}/queue/{depth}")).await.expect("the queue is set");
            pods_of(node, "jobs", "worker", wanted).await;
            println!("{wanted} pods {:.1} s after the queue had {depth}", started.elapsed().as_secs_f64());
        }
        remove_namespace(node, "jobs").await;
    });
}

pub fn design_document(node: &Node) {
    node.run(async {
        Installation::chart(node).await;
        let example = std::fs::read_to_string(root().join("docs/examples/design-document.yaml"));
        let example = example.expect("the example").replace("namespace: shop", "namespace: design");
        let mut loads = Vec::new();
        for (kind, name) in [("Deployment", "server"), ("StatefulSet", "ledger")] {
            application(node, "design", kind, name, 1).await;
            let autoscaler = example.replace("name: server", &format!("name: {name}"));
            node.cluster
                .apply(&autoscaler.replace("kind: Deployment", &format!("kind: {kind}")))
                .await;
            // 25 at a time, at most 10 for each pod.
            loads.push(Load::of_url(25, format!("{}/slow", node.url("design", name).await)));
        }
        let started = Instant::now();
        for name in ["server", "ledger"] {
            pods_of(node, "design", name, 3).await;
            println!("{name}: 3 ready pods after {:.1} s", started.elapsed().as_secs_f64());
            let metric = format!("requests_in_flight_820193bd2d60_design_{name}");
            let path =
                format!("/apis/custom.metrics.k8s.io/v1beta2/namespaces/design/pods/*/{metric}?labelSelector=app%3D{name}");
            let items = eventually("each pod has a value", PODS, async || {
                let list: Value =
                    serde_json::from_str(&node.cluster.raw(&path).await?).expect("JSON");
                let items = list["items"].as_array().expect("a list").clone();
                if items.len() == 3 { Ok(items) } else { Err(list.to_string()) }
            });
            assert!(items.await.iter().all(|item| item["metric"]["name"] == metric.as_str()));
            let path = format!("/apis/plimsoll.dev/v1alpha1/namespaces/design/autoscalers/{name}");
            eventually("CPU, memory and the gauge are read", PODS, async || {
                let object: Value =
                    serde_json::from_str(&node.cluster.raw(&path).await?).expect("JSON");
                let metrics =
                    object["status"]["currentMetrics"].as_array().cloned().unwrap_or_default();
                let has = |part: &str, name: &str, value: &str| {
                    metrics.iter().any(|one| {
                        let of =
                            one[part]["name"].as_str().or(one[part]["metric"]["name"].as_str());
                        of == Some(name) && !one[part]["current"][value].is_null()
                    })
                };
                let all = has("resource", "cpu", "averageUtilization")
                    && has("resource", "memory", "averageValue")
                    && has("pods", &metric, "averageValue");
                if all { Ok(()) } else { Err(object["status"].to_string()) }
            })
            .await;
        }
        for load in loads {
            load.stop().await;
        }
        remove_namespace(node, "design").await;
    });
}
