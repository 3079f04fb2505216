//! Watches that expired are relisted, and objects that were deleted meanwhile are removed.

use crate::faults::hits;
use crate::{SOON, on_own_bed};
use bed::Options;
use bed::eventually;
use bed::proxy::Fault;
use bed::workload::Namespace;
use plimsoll::promql::name::generated_name;
use serde_json::{Value, json};

/// The kinds that are watched in the whole cluster.
const WATCHES: usize = 5;

#[test]
fn objects_deleted_while_watches_were_down_are_forgotten() {
    on_own_bed(Options { faults: true, ..Options::default() }, async |bed| {
        let ns = Namespace::new(&bed.cluster, "relist").await;
        for (name, replicas) in [("forgotten", 1), ("gone", 1), ("fewer", 3)] {
            ns.deployment(name, replicas, "queue 10").await;
            ns.autoscaler(name, "queue", "10", 5).await;
            ns.wait_condition(name, "ScalingActive", SOON, |c| c["status"] == "True").await;
        }
        let pods = async || -> Vec<String> {
            let selector = ["-n", "relist", "get", "pods", "-l", "app=fewer", "-o", "name"];
            let names = bed.cluster.kubectl(&selector).await;
            names.lines().map(|line| line.trim_start_matches("pod/").to_owned()).collect()
        };
        let api = &bed.faults.as_ref().expect("proxies").api;
        // Watches end and cannot restart: the deletions of an Autoscaler, a Deployment and a pod are
        // missed.
        api.stall("watch=true");
        api.end_responses();
        let kubectl = async |arguments: &[&str]| {
            bed.cluster.kubectl(&[&["-n", "relist"], arguments].concat()).await
        };
        kubectl(&["delete", "autoscaler", "forgotten"]).await;
        kubectl(&["delete", "deployment", "gone"]).await;
        kubectl(&["delete", "pod", &pods().await[0]]).await;
        ns.wait_ready("Deployment", "fewer", 3).await;
        // As kube-apiserver does if the resource version is too old: status 200, with an error
        // event.
        api.fail("watch=true", Fault::expired_watch());
        hits(api, WATCHES, "the watches are told").await;
        api.clear();
        // A deleted target cannot be scaled.
        let failed = |c: &Value| c["status"] == "False" && c["reason"] == "FailedGetScale";
        ns.wait_condition("gone", "AbleToScale", SOON, failed).await;
        // A deleted Autoscaler defines no metric and is not evaluated.
        let name = generated_name("queue", None, "relist", "forgotten");
        eventually("its metric is gone", SOON, async || {
            match ns.raw("v1beta2", &format!("pods/*/{name}")).await {
                Err(error) if error.contains("NotFound") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        // More than its maximum, which it would undo at once.
        ns.scale("Deployment", "forgotten", 6).await;
        // A deleted pod does not count as a pod without a metric, which would prevent scaling down.
        for pod in pods().await {
            let shown =
                json!({"metadata": {"annotations": {"bed.plimsoll.dev/metrics": "queue 4"}}});
            ns.patch("pod", &pod, &shown).await;
        }
        ns.wait_replicas("Deployment", "fewer", SOON, |replicas| replicas == 2).await;
        bed.plimsoll.decided(&bed.cluster, 4).await;
        assert_eq!(ns.replicas("Deployment", "forgotten").await, 6);
    });
}
