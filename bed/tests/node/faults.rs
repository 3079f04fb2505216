//! What the kernel and the network do to the pod that leads.

use crate::cgroups::memory_of;
use crate::failover::{leader, led_by_another};
use crate::install::replicas;
use crate::installation::prepare;
use crate::isolation::run;
use crate::load::{Load, of_api};
use crate::node::{Node, PODS};
use crate::processes;
use crate::scaling::pods;
use bed::eventually;
use std::fs;
use std::time::{Duration, Instant};

pub fn memory(node: &Node) {
    node.run(async {
        prepare(node).await;
        let load = Load::of_url(17, node.url("shop", "web").await);
        pods(node, 2).await;
        let killed = leader(node).await.expect("a leader");
        let pod = ["-n", "plimsoll", "pod", &killed];
        let group = memory_of(processes::of_plimsoll(&killed).expect("its process"));
        let started = Instant::now();
        let requests = of_api(node, 20);
        // The limit comes down to what is used, until there is no page left to take back.
        eventually("it is killed for its memory", PODS, async || {
            for limit in (1_u64..=64).rev().map(|mebibytes| mebibytes << 20) {
                // Refused while as much is in use, or gone with the process.
                let _ = fs::write(&group, limit.to_string());
            }
            let path = "{.status.containerStatuses[0].lastState.terminated.reason}";
            match node.field(&pod, path).await?.as_str() {
                "OOMKilled" => Ok(()),
                other => Err(other.to_owned()),
            }
        })
        .await;
        println!("killed after {:.1} s", started.elapsed().as_secs_f64());
        eventually("kubelet restarts it", PODS, async || {
            let now = replicas(node).await?;
            if now.len() == 2 && now.iter().all(|pod| pod.ready) {
                Ok(())
            } else {
                Err(format!("{now:?}"))
            }
        })
        .await;
        println!("ready again after {:.1} s", started.elapsed().as_secs_f64());
        assert_eq!(node.pods("shop", "app=web").await.expect("pods").len(), 2);
        load.stop().await;
        pods(node, 1).await;
        println!("it scaled after {:.1} s", started.elapsed().as_secs_f64());
        let outcome = requests.stop().await;
        println!(
            "{} requests, {} failed: {:?}",
            outcome.sent,
            outcome.failures.len(),
            outcome.failures.first()
        );
    });
}

/// How long the network is away.
const AWAY: Duration = Duration::from_secs(60);

pub fn network(node: &Node) {
    node.run(async {
        prepare(node).await;
        pods(node, 1).await;
        let cut = leader(node).await.expect("a leader");
        let address = node.field(&["-n", "plimsoll", "pod", &cut], "{.status.podIP}").await;
        let address = address.expect("an address");
        let file = node.cluster.folder.join("cut.nft");
        // Before kube-proxy's: nothing of the pod comes through, nor is it refused.
        let chains = ["input", "forward", "output"].map(|hook| {
            format!(
                "chain {hook} {{ type filter hook {hook} priority -400; ip saddr {address} drop; ip daddr {address} drop; }}\n"
            )
        });
        fs::write(&file, format!("table ip cut {{\n{}}}\n", chains.concat())).expect("a file");
        let started = Instant::now();
        run("nft", &["-f", &file.display().to_string()]);
        let load = Load::of_url(17, node.url("shop", "web").await);
        let next = led_by_another(node, &cut).await;
        println!("{next} leads after {:.1} s", started.elapsed().as_secs_f64());
        pods(node, 2).await;
        println!("it scaled after {:.1} s", started.elapsed().as_secs_f64());
        eventually("no request is sent to the pod", PODS, async || {
            let path = "{.items[*].endpoints[?(@.conditions.ready==true)].addresses[0]}";
            let label = "kubernetes.io/service-name=plimsoll";
            let ready = node.field(&["-n", "plimsoll", "endpointslices", "-l", label], path).await?;
            if ready.split_whitespace().any(|one| one == address) { Err(ready) } else { Ok(()) }
        })
        .await;
        println!("it is no endpoint after {:.1} s", started.elapsed().as_secs_f64());
        let requests = of_api(node, 20);
        tokio::time::sleep(AWAY.saturating_sub(started.elapsed())).await;
        let outcome = requests.stop().await;
        run("nft", &["delete", "table", "ip", "cut"]);
        let healed = Instant::now();
        println!("{} requests meanwhile, {} failed: {:?}", outcome.sent, outcome.failures.len(), outcome.failures.first());
        eventually("both are ready again", PODS, async || {
            let now = replicas(node).await?;
            if now.len() == 2 && now.iter().all(|pod| pod.ready) { Ok(()) } else { Err(format!("{now:?}")) }
        })
        .await;
        println!("ready again {:.1} s after the network", healed.elapsed().as_secs_f64());
        assert_eq!(node.pods("shop", "app=web").await.expect("pods").len(), 2);
        load.stop().await;
        pods(node, 1).await;
    });
}
