//! Autoscaling on requests, with real pods.

use crate::load::Load;
use crate::node::{Node, PODS};
use bed::eventually;
use std::time::Instant;

/// The URL of `shop/web`, by the address of its Service.
pub async fn url(node: &Node) -> String {
    let address = node.field(&["-n", "shop", "service", "web"], "{.spec.clusterIP}").await;
    format!("http://{}", address.expect("a Service"))
}

/// Waits until `shop/web` has this many pods, all of them ready.
pub async fn pods(node: &Node, wanted: usize) {
    eventually("the pods are as many as the load asks for", PODS, async || {
        let pods = node.pods("shop", "app=web").await?;
        if pods.len() == wanted && pods.iter().all(|pod| pod.ready) {
            return Ok(());
        }
        let status = ["-n", "shop", "describe", "autoscalers"];
        Err(format!("{pods:?}\n{}", node.cluster.try_kubectl(&status).await?))
    })
    .await;
}

pub fn requests(node: &Node) {
    node.run(async {
        node.prepare().await;
        pods(node, 1).await;
        let started = Instant::now();
        // More than 3 pods take within the tolerance, and less than 4.
        let load = Load::of_url(37, url(node).await);
        pods(node, 4).await;
        println!("4 ready pods {:.1} s after the load began", started.elapsed().as_secs_f64());
        let outcome = load.stop().await;
        let started = Instant::now();
        pods(node, 1).await;
        println!("1 pod {:.1} s after it ended", started.elapsed().as_secs_f64());
        println!("{} requests, {} failed", outcome.sent, outcome.failures.len());
        assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    });
}
