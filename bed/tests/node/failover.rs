//! A replica that hangs.

use crate::install::replicas;
use crate::installation::prepare;
use crate::isolation::run;
use crate::load::{Load, of_api};
use crate::node::{Node, PODS, Pod};
use crate::processes;
use crate::scaling::pods;
use bed::eventually;
use std::time::{Duration, Instant};

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
        resumes(node, load).await;
    });
}

/// How long a leader is stopped before it resumes: longer than its Lease, and too short for kubelet to restart it.
const STILL: Duration = Duration::from_secs(18);
/// How long before that the load grows.
const GROWS: Duration = Duration::from_secs(2);
/// How long it is watched after that.
const WATCHED: Duration = Duration::from_secs(30);
/// Requests a second through kube-apiserver.
const REQUESTS: u32 = 20;

/// A stopped leader that resumes under another one while the load grows leaves the scale to that one.
async fn resumes(node: &Node, load: Load) {
    let still = leader(node).await.expect("a leader");
    let before = replicas(node).await.expect("pods");
    let rescaled = async |pod: &str| {
        let log = node.cluster.try_kubectl(&["-n", "plimsoll", "logs", pod]).await;
        log.expect("its log").matches("Rescaled").count()
    };
    let before_of_still = rescaled(&still).await;
    let requests = of_api(node, REQUESTS);
    let process = processes::of_plimsoll(&still).expect("its process").to_string();
    let stopped = Instant::now();
    run("kill", &["-STOP", &process]);
    let next = led_by_another(node, &still).await;
    let lease = ["-n", "plimsoll", "lease", "plimsoll"];
    let term = async || node.field(&lease, "{.spec.holderIdentity} {.spec.leaseTransitions}").await;
    let (of_next, before_of_next) = (term().await.expect("a Lease"), rescaled(&next).await);
    // Both find it in their samples at once.
    tokio::time::sleep_until((stopped + STILL - GROWS).into()).await;
    let more = Load::of_url(17, node.url("shop", "web").await);
    tokio::time::sleep_until((stopped + STILL).into()).await;
    run("kill", &["-CONT", &process]);
    println!("{next} leads, and {still} resumes after {:.1} s", stopped.elapsed().as_secs_f64());
    let woken = Instant::now();
    while woken.elapsed() < WATCHED {
        assert_eq!(term().await.as_ref(), Ok(&of_next));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    pods(node, 4).await;
    assert_eq!(rescaled(&still).await, before_of_still, "{still} wrote a scale");
    assert!(rescaled(&next).await > before_of_next, "{next} wrote none");
    load.stop().await;
    more.stop().await;
    eventually("both are ready, and were not restarted", PODS, async || {
        let now = replicas(node).await?;
        if now == before { Ok(()) } else { Err(format!("{now:?}, {before:?}")) }
    })
    .await;
    // kube-apiserver has one connection to the Service, and keeps it while that replica is stopped.
    let meanwhile = REQUESTS * (STILL.as_secs() as u32 + 5);
    requests.stop().await.failed_at_most(meanwhile as usize);
}
