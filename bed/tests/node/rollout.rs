//! A rollout of Plimsoll under load, to the same version by another tag.

use crate::images::NEXT;
use crate::install::replicas;
use crate::installation::prepare;
use crate::load::{Connections, Load, REQUESTS, of_api, of_server};
use crate::node::{Node, PODS};
use crate::scaling::pods;
use bed::eventually;
use serde_json::json;
use std::time::{Duration, Instant};

/// The stabilization window that a rollout falls into.
const WINDOW: u64 = 60;
/// How long after the load fell the rollout begins: a window that began anew with it would end that much later.
const BEGIN: u64 = 30;

/// Requests through kube-apiserver, and past it to the Service of Plimsoll, on connections of all kinds.
async fn loads(node: &Node) -> Vec<Load> {
    let words = ["-n=plimsoll", "create", "token", "plimsoll"];
    let token = node.cluster.kubectl(&words).await.trim().to_owned();
    let address = node.field(&["-n=plimsoll", "service", "plimsoll"], "{.spec.clusterIP}").await;
    let api = format!("127.0.0.1:{}", node.cluster.api_port());
    let direct = format!("{}:443", address.expect("a Service"));
    let mut loads = vec![of_api(node, 100)];
    for server in [&api, &direct] {
        for kept in [true, false] {
            for http1 in [true, false] {
                loads.push(of_server(server, &token, 5, Connections { kept, http1 }));
            }
        }
    }
    loads
}

pub fn requests(node: &Node) {
    node.run(async {
        prepare(node).await;
        let behavior = json!({"scaleDown": {"stabilizationWindowSeconds": WINDOW}});
        let path = "/apis/plimsoll.dev/v1alpha1/namespaces/shop/autoscalers/web";
        let patch = json!({"spec": {"behavior": behavior}});
        node.cluster.patch(path, &patch).await.expect("it can be changed");
        let load = Load::of_url(17, node.url("shop", "web").await);
        pods(node, 2).await;
        load.stop().await;
        let fell = Instant::now();
        let shrunk = async {
            pods(node, 1).await;
            fell.elapsed().as_secs()
        };
        let (after, ()) = tokio::join!(shrunk, rolled_out(node, fell));
        println!("1 pod {after} s after the load fell, by a window of {WINDOW} s");
        // The rate falls within 10 s.
        assert!((WINDOW..WINDOW + BEGIN).contains(&after), "after {after} s");
        // Its window of before.
        prepare(node).await;
    });
}

/// Rolls it out, during which no request fails.
async fn rolled_out(node: &Node, fell: Instant) {
    eventually("the metric is served", PODS, async || node.cluster.raw(REQUESTS).await).await;
    let before = replicas(node).await.expect("pods");
    tokio::time::sleep_until((fell + Duration::from_secs(BEGIN)).into()).await;
    let loads = loads(node).await;
    let started = Instant::now();
    let image = format!("plimsoll={NEXT}");
    let words = ["-n=plimsoll", "set", "image", "deployment/plimsoll", &image];
    node.cluster.kubectl(&words).await;
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
}
