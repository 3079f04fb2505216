//! A replica that hangs.

use crate::install::replicas;
use crate::installation::prepare;
use crate::isolation::run;
use crate::load::Load;
use crate::node::{Node, PODS, Pod};
use crate::processes;
use crate::scaling::pods;
use bed::eventually;
use std::time::Instant;

/// The pod that leads.
pub async fn leader(node: &Node) -> Result<String, String> {
    let lease = ["-n", "plimsoll", "lease", "plimsoll"];
    let holder = node.field(&lease, "{.spec.holderIdentity}").await?;
    holder.split_once('_').map(|(pod, _)| pod.to_owned()).ok_or(holder)
}

/// Waits until another pod leads, and returns it.
pub async fn led_by_another(node: &Node, before: &str) -> String {
    eventually("another replica leads", PODS, async || {
        let now = leader(node).await?;
        if now == before { Err(now) } else { Ok(now) }
    })
    .await
}

pub fn stopped(node: &Node) {
    node.run(async {
        prepare(node).await;
        pods(node, 1).await;
        let stopped = leader(node).await.expect("a leader");
        let of = async |name: &str| {
            let mut pods = replicas(node).await?.into_iter();
            pods.find(|pod| pod.name == name).ok_or_else(|| format!("no pod {name}"))
        };
        let before = of(&stopped).await.expect("its pod").restarts;
        let process = processes::of_plimsoll(&stopped).expect("its process");
        run("kill", &["-STOP", &process.to_string()]);
        let started = Instant::now();
        let next = led_by_another(node, &stopped).await;
        println!("{next} leads after {:.1} s", started.elapsed().as_secs_f64());
        let load = Load::of_url(17, node.url("shop", "web").await);
        pods(node, 2).await;
        println!("it scaled after {:.1} s", started.elapsed().as_secs_f64());
        eventually("kubelet restarts the stopped replica", PODS, async || {
            match of(&stopped).await? {
                Pod { ready: true, restarts, .. } if restarts > before => Ok(()),
                pod => Err(format!("{pod:?}")),
            }
        })
        .await;
        println!("restarted and ready after {:.1} s", started.elapsed().as_secs_f64());
        load.stop().await;
    });
}
