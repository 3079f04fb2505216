//! What `kubectl apply -k deploy` installs. Every bed is installed by it, and
//! Plimsoll runs as its service account; here is what that account can't do.

use crate::bed::workload::Namespace;
use crate::bed::{Options, eventually};
use crate::{SOON, on_own_bed, on_shared_bed};

#[test]
fn the_service_account_may_do_what_it_needs_and_no_more() {
    on_shared_bed("install-rbac", async |bed, _| {
        let account = "--as=system:serviceaccount:plimsoll:plimsoll";
        let can = async |words: &[&str]| {
            let arguments = [&["auth", "can-i", account], words].concat();
            bed.cluster.try_kubectl(&arguments).await.is_ok()
        };
        for needed in [
            &["watch", "pods", "-A"][..],
            &["watch", "autoscalers.plimsoll.dev", "-A"],
            &["watch", "horizontalpodautoscalers.autoscaling", "-A"],
            &["update", "deployments.apps", "--subresource=scale", "-A"],
            &["patch", "autoscalers.plimsoll.dev", "--subresource=status", "-A"],
            &["create", "tokenreviews.authentication.k8s.io"],
            &["create", "subjectaccessreviews.authorization.k8s.io"],
            &["patch", "apiservices.apiregistration.k8s.io/v1beta1.custom.metrics.k8s.io"],
        ] {
            assert!(can(needed).await, "it needs to {needed:?}");
        }
        for needless in [
            &["get", "secrets", "-A"][..],
            &["list", "configmaps", "-A"],
            &["update", "deployments.apps", "-A"],
            &["delete", "pods", "-A"],
            &["create", "pods", "-A"],
            &["update", "autoscalers.plimsoll.dev", "-A"],
            &["patch", "horizontalpodautoscalers.autoscaling", "--subresource=status", "-A"],
            &["patch", "apiservices.apiregistration.k8s.io/v1.apps"],
            &["impersonate", "users"],
            &["escalate", "clusterroles.rbac.authorization.k8s.io"],
        ] {
            assert!(!can(needless).await, "it must not {needless:?}");
        }
    });
}

#[test]
fn all_three_metrics_apis_are_served_where_they_are_installed() {
    let config = "externalRules:\n- seriesQuery: queue_depth\n\
         \x20 resources: {overrides: {namespace: {resource: namespace}}}\n\
         \x20 metricsQuery: 'sum(<<.Series>>{<<.LabelMatchers>>})'\n\
         resourceRules:\n  window: 5s\n\
         \x20 cpu: &usage\n    containerLabel: container\n\
         \x20   containerQuery: 'sum(cpu_usage{<<.LabelMatchers>>}) by (<<.GroupBy>>)'\n\
         \x20   nodeQuery: 'sum(cpu_usage{<<.LabelMatchers>>}) by (<<.GroupBy>>)'\n\
         \x20   resources: {overrides: {namespace: {resource: namespace}, pod: {resource: pod}, node: {resource: node}}}\n\
         \x20 memory: *usage\n";
    let options = Options {
        manifests: "deploy/overlays/all-metrics",
        flags: vec!["--metrics-relist-interval=2s".to_owned()],
        config,
        ..Options::default()
    };
    on_own_bed(options, async |bed| {
        let ns = Namespace::new(&bed.cluster, "whole").await;
        let shown = "queue_depth 7\ncpu_usage{container=\"app\",node=\"fleet\"} 0.25";
        ns.workload("StatefulSet", "web", 2, shown).await;
        let path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/whole/queue_depth";
        eventually("an external metric", SOON, async || {
            let answer = bed.cluster.try_kubectl(&["get", "--raw", path]).await?;
            if answer.contains("\"value\":\"14\"") { Ok(()) } else { Err(answer) }
        })
        .await;
        for (what, expected) in [("pods", "web-1"), ("nodes", "fleet")] {
            let top = eventually("kubectl top", SOON, async || {
                bed.cluster.try_kubectl(&["top", what, "-n", "whole"]).await
            })
            .await;
            assert!(top.contains(expected) && top.contains("m"), "{top}");
        }
    });
}
