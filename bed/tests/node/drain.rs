//! A node that is drained, beside a second one.

use crate::applications::{application, remove_namespace};
use crate::failover::{leader, led_by_another};
use crate::install::replicas;
use crate::installation::prepare;
use crate::load::{REQUESTS, of_api};
use crate::machine::{Machine, NAME, SECOND};
use crate::node::{Node, PODS};
use crate::scaling::pods_of;
use bed::eventually;
use std::collections::BTreeSet;
use std::time::Instant;

pub fn moved(node: &Node) {
    node.run(async {
        prepare(node).await;
        eventually("the metric is served", PODS, async || node.cluster.raw(REQUESTS).await).await;
        let second = Machine::second(&node.cluster).start(&node.cluster, &node.archives).await;
        application(node, "drained", "Deployment", "web", 2).await;
        let nodes = async |namespace: &str, label: &str| {
            let path = "{.items[*].spec.nodeName}";
            node.field(&["-n", namespace, "pods", "-l", label], path).await
        };
        // All pods of Plimsoll on the first node: one after the other has to leave it.
        node.cluster.kubectl(&["cordon", SECOND]).await;
        node.cluster.kubectl(&["-n=plimsoll", "rollout", "restart", "deployment/plimsoll"]).await;
        node.rolled_out("plimsoll", "deployment/plimsoll").await;
        eventually("both are on the first node", PODS, async || {
            let now = nodes("plimsoll", "app.kubernetes.io/name=plimsoll").await?;
            if now == format!("{NAME} {NAME}") { Ok(()) } else { Err(now) }
        })
        .await;
        node.cluster.kubectl(&["uncordon", SECOND]).await;
        let before = leader(node).await.expect("a leader");
        let requests = of_api(node, 50);
        let started = Instant::now();
        for selector in ["app.kubernetes.io/name=plimsoll", "app=web"] {
            let selector = format!("--pod-selector={selector}");
            let words = ["drain", NAME, &selector, "--timeout=150s"];
            let drain = node.cluster.try_kubectl(&words);
            tokio::pin!(drain);
            // A pod that was ready may miss a probe on a busy machine.
            let mut were_ready = BTreeSet::new();
            let mut ticks = tokio::time::interval(std::time::Duration::from_millis(200));
            let said = loop {
                tokio::select! {
                    said = &mut drain => break said,
                    _ = ticks.tick() => {
                        let pods = replicas(node).await.expect("pods");
                        were_ready.extend(pods.iter().filter(|pod| pod.ready).map(|pod| pod.name.clone()));
                        let kept = pods.iter().any(|pod| pod.stays && were_ready.contains(&pod.name));
                        assert!(kept, "the PodDisruptionBudget keeps one of two pods: {pods:?}");
                    }
                }
            };
            println!("{}", said.unwrap_or_else(|error| panic!("{error}")));
        }
        println!("drained after {:.1} s", started.elapsed().as_secs_f64());
        println!("{} leads", led_by_another(node, &before).await);
        node.rolled_out("plimsoll", "deployment/plimsoll").await;
        pods_of(node, "drained", "web", 2).await;
        for (namespace, label) in
            [("plimsoll", "app.kubernetes.io/name=plimsoll"), ("drained", "app=web")]
        {
            let now = nodes(namespace, label).await.expect("pods");
            assert_eq!(now, format!("{SECOND} {SECOND}"), "{namespace}");
        }
        requests.stop().await.all_succeeded();
        remove_namespace(node, "drained").await;
        // Back, before the second node goes.
        node.cluster.kubectl(&["uncordon", NAME]).await;
        node.cluster.kubectl(&["drain", SECOND, "--timeout=150s"]).await;
        node.rolled_out("plimsoll", "deployment/plimsoll").await;
        drop(second);
        node.cluster.kubectl(&["delete", "node", SECOND]).await;
    });
}
