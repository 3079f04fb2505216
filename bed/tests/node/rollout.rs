//! A rollout of Plimsoll under load.

use crate::install::replicas;
use crate::load::{Load, REQUESTS};
use crate::node::{Node, PODS};
use bed::eventually;
use std::time::Instant;

pub fn requests(node: &Node) {
    node.run(async {
        node.prepare().await;
        eventually("the metric is served", PODS, async || node.cluster.raw(REQUESTS).await).await;
        let before = replicas(node).await.expect("pods");
        let client = node.cluster.client.clone();
        let load = Load::start(100, move || {
            let request = http::Request::get(REQUESTS).body(Vec::new()).expect("a request");
            let client = client.clone();
            async move {
                let text = client.request_text(request).await.map_err(|error| error.to_string())?;
                if text.contains("MetricValueList") { Ok(()) } else { Err(text) }
            }
        });
        let started = Instant::now();
        node.cluster
            .kubectl(&["-n", "plimsoll", "rollout", "restart", "deployment/plimsoll"])
            .await;
        node.rolled_out("plimsoll", "deployment/plimsoll").await;
        println!("rolled out after {:.1} s", started.elapsed().as_secs_f64());
        eventually("the pods of before are gone", PODS, async || {
            let now = replicas(node).await?;
            let left = now.iter().any(|pod| before.iter().any(|gone| gone.name == pod.name));
            if left { Err(format!("{now:?}")) } else { Ok(()) }
        })
        .await;
        let outcome = load.stop().await;
        println!(
            "{} requests in {:.1} s, {} failed",
            outcome.sent,
            started.elapsed().as_secs_f64(),
            outcome.failures.len()
        );
        assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    });
}
