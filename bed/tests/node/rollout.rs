//! A rollout of Plimsoll under load.

use crate::install::replicas;
use crate::installation::prepare;
use crate::load::{Load, REQUESTS, of_api};
use crate::node::{Node, PODS};
use crate::scaling::pods;
use bed::eventually;
use serde_json::json;
use std::time::{Duration, Instant};

/// The stabilization window that a rollout falls into.
const WINDOW: u64 = 60;

/// Requests past kube-apiserver to the Service of Plimsoll.
async fn direct(node: &Node, per_second: u32, kept: bool) -> Load {
    let words = ["-n=plimsoll", "create", "token", "plimsoll"];
    let token = node.cluster.kubectl(&words).await.trim().to_owned();
    let address = node.field(&["-n=plimsoll", "service", "plimsoll"], "{.spec.clusterIP}").await;
    let url = format!("https://{}{REQUESTS}", address.expect("a Service"));
    let client = reqwest::Client::builder()
        .tls_danger_accept_invalid_certs(true)
        .pool_max_idle_per_host(if kept { usize::MAX } else { 0 })
        .timeout(Duration::from_secs(10))
        .build()
        .expect("a client");
    Load::start(per_second, move || {
        let request = client.get(&url).bearer_auth(&token).send();
        async move {
            let response = request.await.and_then(reqwest::Response::error_for_status);
            response.map(|_| ()).map_err(|error| format!("{error:?}"))
        }
    })
}

pub fn requests(node: &Node) {
    node.run(async {
        prepare(node).await;
        let window = async |seconds: u64| {
            let behavior = json!({"scaleDown": {"stabilizationWindowSeconds": seconds}});
            let path = "/apis/plimsoll.dev/v1alpha1/namespaces/shop/autoscalers/web";
            let patch = json!({"spec": {"behavior": behavior}});
            node.cluster.patch(path, &patch).await.expect("it can be changed");
        };
        window(WINDOW).await;
        let load = Load::of_url(17, node.url("shop", "web").await);
        pods(node, 2).await;
        load.stop().await;
        let fell = Instant::now();
        eventually("the metric is served", PODS, async || node.cluster.raw(REQUESTS).await).await;
        let before = replicas(node).await.expect("pods");
        let loads =
            [of_api(node, 100), direct(node, 10, true).await, direct(node, 10, false).await];
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
        println!("the pods of before are gone after {:.1} s", started.elapsed().as_secs_f64());
        for load in loads {
            load.stop().await.all_succeeded();
        }
        pods(node, 1).await;
        let after = fell.elapsed().as_secs();
        println!("1 pod {after} s after the load fell, by a window of {WINDOW} s");
        // The rate falls within 10 s. A window begun anew would end later than the rollout and this.
        assert!((WINDOW..WINDOW + 20).contains(&after), "after {after} s");
        window(5).await;
    });
}
