//! The leader, the freeze, and the clocks.

use super::replicas::Replicas;
use super::report::Group;
use crate::commands::operate::{Cluster, lease_name, named_leases};
use crate::commands::story::span;
use crate::config::ClusterFlags;
use crate::control::within;
use crate::kube_error::worded;
use crate::leader::Freeze;
use crate::time::UnixMillis;
use k8s_openapi::api::coordination::v1::Lease;

/// How far the clock of this machine may be from that of the API server, in ms.
const SKEW: i64 = 5_000;
/// The duration of a Lease that says none, in ms.
const LEASE_DURATION: i64 = 15_000;

/// Checks who leads, and the clocks.
pub async fn check(cluster: &Cluster, flags: &ClusterFlags, replicas: &Replicas) -> Group {
    let mut group = Group::new("plimsoll-leader");
    let name = lease_name(flags);
    let read = within(cluster.leases(flags).get_opt(&flags.lease)).await;
    let now = cluster.clock.server_or_wall();
    match read {
        Ok(Some(lease)) => check_lease(&mut group, &name, &lease, replicas, now),
        Ok(None) => {
            let others = named_leases(&cluster.other_leases().await);
            let hint = format!(
                "--plimsoll-namespace and --lease name another one{others}; with --leader-elect=false there is none"
            );
            group.failed(&format!("{name} is held"), "it does not exist", &hint);
        }
        Err(error) => {
            let hint = "the ClusterRole plimsoll:operator gives the right";
            group.skipped(&format!("{name} is held"), &worded(&error), hint);
        }
    }
    let what = "the clock of this machine is that of the API server";
    if let Some(server) = cluster.clock.server() {
        let ahead = cluster.clock.wall_ms() - server;
        match ahead.abs() <= SKEW {
            true => group.passed(what),
            false => {
                let side = if ahead > 0 { "ahead" } else { "behind" };
                let found = format!("it is {} {side}", span(ahead.abs()));
                group.warn(what, &found, "times of explain and history are those of the cluster");
            }
        }
    }
    group
}

fn check_lease(group: &mut Group, name: &str, lease: &Lease, replicas: &Replicas, now: UnixMillis) {
    let spec = lease.spec.clone().unwrap_or_default();
    let holder = spec.holder_identity.unwrap_or_default();
    let what = format!("{name} is held by a replica that renews it");
    let duration = spec.lease_duration_seconds.map_or(LEASE_DURATION, |s| i64::from(s) * 1000);
    let renewed = spec.renew_time.map(|time| time.0.as_millisecond());
    let hint = "no replica leads, so that nothing is scaled: see the logs of the replicas";
    match renewed {
        _ if holder.is_empty() => group.failed(&what, "nobody holds it", hint),
        None => group.failed(&what, "it was never renewed", hint),
        Some(at) if now - at > duration + SKEW => {
            let found = format!("{holder} renewed it {} ago", span(now - at));
            group.failed(&what, &found, hint);
        }
        Some(at) => {
            group.passed(&format!("{what} ({holder})"));
            let what = "the clock of the leader is that of the API server";
            match at - now > SKEW {
                false => group.passed(what),
                true => {
                    let found = format!("its last renewal is {} ahead", span(at - now));
                    group.warn(what, &found, "set the clock of its node by NTP");
                }
            }
        }
    }
    // An identity is the name of the pod, an underscore, and the time.
    let pod = holder.rsplit_once('_').map_or(&*holder, |(pod, _)| pod);
    if let Some(pods) = &replicas.pods
        && !holder.is_empty()
        && pods.iter().all(|known| known != pod)
    {
        let found = format!("{holder} is none of the pods of the Deployment");
        group.warn(
            "the leader is a pod of the Deployment",
            &found,
            "another installation has the same Lease, or the pod is gone: wait for another leader",
        );
    }
    match Freeze::of(lease) {
        None => group.passed("scales are not frozen"),
        Some(freeze) => {
            group.warn("scales are not frozen", &freeze.to_string(), "kubectl plimsoll thaw");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Outcome::{Failed, Passed, Warning};
    use super::*;
    use serde_json::json;

    #[test]
    fn a_lease_that_is_not_renewed_or_of_the_future_is_told() {
        let now = 1_000_000_000_000;
        let outcomes = |renewed: i64, holder: &str, frozen: bool| {
            let time = jiff::Timestamp::from_millisecond(now + renewed).unwrap();
            let annotations = if frozen { json!({"plimsoll.dev/freeze": "x"}) } else { json!({}) };
            let lease = json!({"metadata": {"annotations": annotations},
                "spec": {"holderIdentity": holder, "renewTime": format!("{time:.6}"),
                    "leaseDurationSeconds": 15}});
            let lease = serde_json::from_value(lease).unwrap();
            let replicas = Replicas { pods: Some(vec!["a-1".to_owned()]), ..Replicas::default() };
            let mut group = Group::new("x");
            check_lease(&mut group, "Lease", &lease, &replicas, now);
            group.outcomes()
        };
        assert_eq!(outcomes(-2_000, "a-1_18f", false), [Passed, Passed, Passed]);
        assert_eq!(outcomes(-60_000, "a-1_18f", false), [Failed, Passed]);
        assert_eq!(outcomes(60_000, "a-1_18f", true), [Passed, Warning, Warning]);
        assert_eq!(outcomes(-2_000, "b_18f", false), [Passed, Passed, Warning, Passed]);
        assert_eq!(outcomes(-2_000, "", false), [Failed, Passed]);
    }
}
