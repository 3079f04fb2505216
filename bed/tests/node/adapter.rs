//! Plimsoll takes the place of prometheus-adapter, as docs/moving-from-prometheus-adapter.md says.

use crate::applications::application;
use crate::install::works;
use crate::installation::{By, Installation, namespace, remove};
use crate::load::Load;
use crate::node::{Node, PODS};
use crate::scaling::pods_of;
use bed::pages::Pages;
use bed::{eventually, root};
use serde_json::Value;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// A sync period of kube-controller-manager by default.
const PERIOD: Duration = Duration::from_secs(15);

/// The longest time that an HPA had no metric, or other replicas than it should.
#[derive(Clone, Default)]
struct Gap(Arc<Mutex<Duration>>);

impl Gap {
    async fn watch(self, node: &Node) {
        let path = "/apis/autoscaling/v2/namespaces/moved/horizontalpodautoscalers/web";
        let mut last = Instant::now();
        loop {
            if let Ok(text) = node.cluster.raw(path).await {
                let object: Value = serde_json::from_str(&text).expect("JSON");
                let conditions = object["status"]["conditions"].as_array().cloned();
                let active = conditions.unwrap_or_default().iter().any(|condition| {
                    condition["type"] == "ScalingActive" && condition["status"] == "True"
                });
                if active && object["status"]["desiredReplicas"] == 2 {
                    last = Instant::now();
                }
            }
            self.note(last.elapsed());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn note(&self, gap: Duration) {
        let mut longest = self.0.lock().expect("no panic");
        *longest = longest.max(gap);
    }

    /// Returns it, and begins anew.
    fn take(&self) -> Duration {
        std::mem::take(&mut *self.0.lock().expect("no panic"))
    }
}

pub fn replaced(node: &'static Node) {
    node.run(async {
        remove(node).await;
        let objects = root().join("bed/tests/node/objects/prometheus-adapter.yaml");
        let objects = objects.display().to_string();
        node.cluster.kubectl(&["apply", "-f", &objects]).await;
        node.rolled_out("adapter", "deployment/prometheus-adapter").await;
        application(node, "moved", "Deployment", "web", 1).await;
        node.cluster
            .apply(
                "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\n\
                 metadata: {name: web, namespace: moved}\n\
                 spec:\n  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}\n\
                 \x20 maxReplicas: 5\n\
                 \x20 metrics: [{type: Pods, pods: {metric: {name: http_requests_per_second}, target: {type: AverageValue, averageValue: 10}}}]\n",
            )
            .await;
        let load = Load::of_url(17, node.url("moved", "web").await);
        pods_of(node, "moved", "web", 2).await;
        let decided = async || {
            let path = "{.status.conditions[?(@.type==\"ScalingActive\")].status}";
            let object = ["-n", "moved", "horizontalpodautoscaler", "web"];
            eventually("the HPA has its metric", PODS, async || {
                let active = node.field(&object, path).await?;
                if active == "True" { Ok(()) } else { Err(active) }
            })
            .await;
        };
        decided().await;
        let gap = Gap::default();
        let mut watch = JoinSet::new();
        watch.spawn(gap.clone().watch(node));
        let pages = Pages::new(&node.cluster);
        let run = async |command: &str| {
            pages.run(command).await.unwrap_or_else(|error| panic!("{command}: {error}"))
        };

        // In the adapter's Deployment.
        run("kubectl -n adapter set image deployment/prometheus-adapter prometheus-adapter=plimsoll:0.1.0").await;
        node.rolled_out("adapter", "deployment/prometheus-adapter").await;
        eventually("the adapter's pod is gone", PODS, async || {
            let image = "{.items[*].spec.containers[*].image}";
            let images = node.field(&["-n", "adapter", "pods"], image).await?;
            if images == "plimsoll:0.1.0" { Ok(()) } else { Err(images) }
        })
        .await;
        decided().await;
        let swapped = gap.take();
        println!("the image swapped: no metric for {:.1} s at most", swapped.as_secs_f64());

        // And back, to the chart from there.
        run(&format!("kubectl apply -f {objects}")).await;
        node.rolled_out("adapter", "deployment/prometheus-adapter").await;
        decided().await;
        namespace(node).await;
        let values = root().join("bed/tests/node/objects/moved.yaml");
        run(&format!("cp {} values.yaml", values.display())).await;
        gap.take();
        assert_eq!(pages.follow("moving-from-prometheus-adapter.md").await, 4);
        Installation::changed(Some(By::Helm)).await;
        works(node).await;
        decided().await;
        let moved = gap.take();
        println!("moved to the chart: no metric for {:.1} s at most", moved.as_secs_f64());
        drop(watch);
        pods_of(node, "moved", "web", 2).await;
        load.stop().await;
        assert!(swapped < PERIOD && moved < PERIOD, "{swapped:?}, {moved:?}");
        run("kubectl delete namespace adapter moved --wait=false").await;
    });
}
