//! What the kernel and the network do to the pod that leads.

use crate::cgroups::memory_of;
use crate::failover::{leader, led_by_another};
use crate::install::replicas;
use crate::installation::prepare;
use crate::isolation::run;
use crate::load::{Load, of_api};
use crate::node::{CUT, Node, PODS};
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
        // It is restarted within seconds, under the same name: the Lease of before is another process's.
        println!("{} leads", led_by_another(node, &killed).await);
        println!("another leads after {:.1} s", started.elapsed().as_secs_f64());
        // Some fail until it is no endpoint, for 5 s at most, and none later.
        requests.stop().await.failed_at_most(100);
        let requests = of_api(node, 20);
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
        requests.stop().await.all_succeeded();
    });
}

/// How long the network is away.
const AWAY: Duration = Duration::from_secs(60);
/// How long kube-apiserver may keep a connection to a pod that has no network, 45 s, and a little.
const CONNECTION: Duration = Duration::from_secs(48);

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
        fs::write(&file, format!("table ip {CUT} {{\n{}}}\n", chains.concat())).expect("a file");
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
        // kube-apiserver's connection to the pod ends by then (docs/operating.md).
        tokio::time::sleep(CONNECTION.saturating_sub(started.elapsed())).await;
        let requests = of_api(node, 20);
        tokio::time::sleep(AWAY.saturating_sub(started.elapsed())).await;
        let outcome = requests.stop().await;
        run("nft", &["delete", "table", "ip", CUT]);
        let healed = Instant::now();
        outcome.all_succeeded();
        eventually("both are ready again", PODS, async || {
            let now = replicas(node).await?;
            if now.len() == 2 && now.iter().all(|pod| pod.ready) { Ok(()) } else { Err(format!("{now:?}")) }
        })
        .await;
        println!("ready again {:.1} s after the network", healed.elapsed().as_secs_f64());
        assert_eq!(node.pods("shop", "app=web").await.expect("pods").len(), 2);
        assert_eq!(leader(node).await.as_deref(), Ok(&*next), "the pod that was cut off does not lead");
        load.stop().await;
        pods(node, 1).await;
    });
}
