//! What `kubectl apply -k deploy` installs. Every bed is installed by it, and
//! Plimsoll runs as its service account; here is what that account can't do.

use crate::on_shared_bed;

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
