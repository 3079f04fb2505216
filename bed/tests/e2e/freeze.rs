//! The freeze: when it takes effect, when it is acknowledged, and when it ends.

use crate::SOON;
use crate::ha::{leads, on_two_replicas, stirred, to_be_stirred};
use bed::cluster::Cluster;
use bed::plimsoll::binary;
use bed::process::printed;
use std::time::{Duration, Instant};

/// Runs a command of Plimsoll as an administrator; its output, or its error.
async fn command(cluster: &Cluster, arguments: &[&str]) -> Result<String, String> {
    let mut command = tokio::process::Command::new(binary());
    command.args(arguments).env("KUBECONFIG", &cluster.kubeconfig);
    printed(&command.output().await.expect("it can be run"))
}

#[test]
fn no_scale_is_written_once_freeze_has_returned() {
    on_two_replicas(async |cluster, a, b| {
        let ns = to_be_stirred(cluster).await;
        let start = Instant::now();
        while !a.scales().iter().any(|at| *at > start) {
            stirred(&ns, Duration::from_secs(1)).await;
            assert!(start.elapsed() < SOON, "{}", a.process.tail());
        }
        // The watches of the Lease are late: their events are outdated when they come.
        let watch = "leases?";
        a.api.stall(watch);
        b.api.stall(watch);
        let freezing = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            let said = command(cluster, &["freeze", "incident 42", "--for", "1h"]).await.unwrap();
            (said, Instant::now())
        };
        let ((said, frozen), ()) = tokio::join!(freezing, stirred(&ns, Duration::from_secs(8)));
        assert!(said.contains("acknowledged by a_"), "{said}");
        a.api.clear();
        b.api.clear();
        stirred(&ns, Duration::from_secs(6)).await;
        let writes = a.scales().into_iter().chain(b.scales());
        let after: Vec<_> = writes.filter(|at| *at > frozen).collect();
        assert!(after.is_empty(), "{after:?} after {frozen:?}");
        let status = command(cluster, &["status"]).await.unwrap();
        assert!(status.contains("incident 42") && status.contains("by admin"), "{status}");
        let events = ["-n", "plimsoll", "get", "events", "-o", "jsonpath={.items[*].reason}"];
        let events = cluster.kubectl(&events).await;
        assert!(events.contains("Frozen") && events.contains("LeaderElection"), "{events}");

        let said = command(cluster, &["thaw"]).await.unwrap();
        assert!(said.contains("acknowledged by a_"), "{said}");
        ns.wait_replicas("Deployment", "web", SOON, |replicas| replicas == 2).await;

        // It expires.
        let said = command(cluster, &["freeze", "a while", "--for", "5s"]).await.unwrap();
        assert!(said.contains("until"), "{said}");
        cluster.kubectl(&["-n", "stirred", "scale", "deployment/web", "--replicas=1"]).await;
        ns.wait_replicas("Deployment", "web", SOON, |replicas| replicas == 2).await;
    });
}

#[test]
fn an_unacknowledged_freeze_is_reported() {
    on_two_replicas(async |cluster, a, b| {
        let said = command(cluster, &["freeze", "x", "--lease=plimsol"]).await.unwrap_err();
        assert!(said.contains("there is no Lease plimsoll/plimsol"), "{said}");
        let leases = ["-n", "plimsoll", "get", "leases", "-o", "name"];
        assert_eq!(cluster.kubectl(&leases).await.trim(), "lease.coordination.k8s.io/plimsoll");

        // The leader is stopped: the command waits until it can no longer write.
        b.process.stop();
        leads(cluster, "a", SOON).await;
        a.process.signal("KILL");
        let said = command(cluster, &["freeze", "x"]).await.unwrap_err();
        assert!(said.contains("no replica renews the Lease"), "{said}");
        let said = command(cluster, &["thaw"]).await.unwrap_err();
        assert!(said.contains("no replica renews the Lease"), "{said}");
    });
}
