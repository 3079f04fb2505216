//! Whether Plimsoll's service account may do what Plimsoll needs, tried by SubjectAccessReviews.

use super::report::Group;
use crate::commands::operate::Cluster;
use crate::config::ClusterFlags;
use crate::control::within;
use crate::kube_error::worded;
use futures::{StreamExt, stream};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;

/// Where a right is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// In all namespaces.
    Cluster,
    /// In Plimsoll's own namespace.
    Own,
    /// In `kube-system`.
    System,
}
use Scope::{Cluster as All, Own, System};

/// A verb, a group, a resource with its subresource, a name, and where.
type Right = (&'static str, &'static str, &'static str, &'static str, Scope);

/// The name of the Lease, which a flag may have changed.
const LEASE: &str = "plimsoll";

/// What Plimsoll needs, as deploy/base/rbac.yaml gives it.
const RIGHTS: [Right; 28] = [
    ("list", "", "pods", "", All),
    ("watch", "", "pods", "", All),
    ("list", "apps", "deployments", "", All),
    ("watch", "apps", "deployments", "", All),
    ("list", "apps", "statefulsets", "", All),
    ("watch", "apps", "statefulsets", "", All),
    ("get", "apps", "replicasets", "", All),
    ("list", "plimsoll.dev", "autoscalers", "", All),
    ("watch", "plimsoll.dev", "autoscalers", "", All),
    ("list", "plimsoll.dev", "metricrules", "", All),
    ("watch", "plimsoll.dev", "metricrules", "", All),
    ("list", "autoscaling", "horizontalpodautoscalers", "", All),
    ("watch", "autoscaling", "horizontalpodautoscalers", "", All),
    ("get", "apps", "deployments/scale", "", All),
    ("update", "apps", "deployments/scale", "", All),
    ("patch", "plimsoll.dev", "autoscalers/status", "", All),
    ("patch", "plimsoll.dev", "metricrules/status", "", All),
    ("create", "", "events", "", All),
    ("list", "metrics.k8s.io", "pods", "", All),
    ("watch", "apiregistration.k8s.io", "apiservices", "", All),
    ("patch", "apiregistration.k8s.io", "apiservices", "v1beta2.custom.metrics.k8s.io", All),
    ("list", "decisions.plimsoll.dev", "decisions", "", All),
    ("create", "authentication.k8s.io", "tokenreviews", "", All),
    ("create", "authorization.k8s.io", "subjectaccessreviews", "", All),
    ("get", "", "configmaps", "extension-apiserver-authentication", System),
    ("update", "coordination.k8s.io", "leases", LEASE, Own),
    ("create", "coordination.k8s.io", "leases", "", Own),
    ("patch", "", "configmaps", "plimsoll-memory", Own),
];

/// The most reviews at once.
const AT_ONCE: usize = 8;

/// Tries all rights of a service account of Plimsoll's namespace.
pub async fn check(cluster: &Cluster, flags: &ClusterFlags, account: Option<&str>) -> Group {
    let mut group = Group::new("plimsoll-permissions");
    let namespace = &flags.plimsoll_namespace;
    let account = account.unwrap_or("plimsoll");
    let what = format!("service account {namespace}/{account} has the permissions of Plimsoll");
    let api: Api<SubjectAccessReview> = Api::all(cluster.client.clone());
    let tried = stream::iter(RIGHTS).map(|right| {
        let (api, review) = (&api, review(right, flags, account));
        async move {
            let answer = within(api.create(&PostParams::default(), &review)).await?;
            Ok::<_, kube::Error>((right, answer.status.unwrap_or_default().allowed))
        }
    });
    let tried: Vec<_> = tried.buffered(AT_ONCE).collect().await;
    let tried: Result<Vec<_>, kube::Error> = tried.into_iter().collect();
    let tried = match tried {
        Ok(tried) => tried,
        Err(error) => {
            let hint = "who may create subjectaccessreviews (system:auth-delegator, cluster-admin) can try it";
            group.skipped(&what, &worded(&error), hint);
            return group;
        }
    };
    let refused = tried.iter().filter(|(_, is_allowed)| !is_allowed);
    let refused: Vec<_> = refused.map(|(right, _)| told(*right, flags)).collect();
    let hint = "apply deploy/base/rbac.yaml of this version, or upgrade the chart with rbac.create";
    match &*refused {
        [] => group.passed(&format!("{what} ({} tried)", RIGHTS.len())),
        refused => group.failed(&what, &format!("it cannot {}", refused.join("; ")), hint),
    }
    group
}

fn review(
    (verb, group, resource, name, scope): Right,
    flags: &ClusterFlags,
    account: &str,
) -> SubjectAccessReview {
    let own = &flags.plimsoll_namespace;
    let (resource, subresource) = match resource.split_once('/') {
        Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
        None => (resource, None),
    };
    let namespace = match scope {
        All => None,
        Own => Some(own.clone()),
        System => Some("kube-system".to_owned()),
    };
    let name = if resource == "leases" && !name.is_empty() { &*flags.lease } else { name };
    let attributes = ResourceAttributes {
        verb: Some(verb.to_owned()),
        group: Some(group.to_owned()),
        resource: Some(resource.to_owned()),
        subresource,
        namespace,
        name: Some(name.to_owned()).filter(|name| !name.is_empty()),
        ..ResourceAttributes::default()
    };
    let groups = [
        "system:serviceaccounts",
        &format!("system:serviceaccounts:{own}"),
        "system:authenticated",
    ];
    let spec = SubjectAccessReviewSpec {
        user: Some(format!("system:serviceaccount:{own}:{account}")),
        groups: Some(groups.map(str::to_owned).into()),
        resource_attributes: Some(attributes),
        ..SubjectAccessReviewSpec::default()
    };
    SubjectAccessReview { spec, ..SubjectAccessReview::default() }
}

/// A right in words: `list pods`, `update leases.coordination.k8s.io plimsoll in plimsoll`.
fn told((verb, group, resource, name, scope): Right, flags: &ClusterFlags) -> String {
    let group = if group.is_empty() { String::new() } else { format!(".{group}") };
    let (plural, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let subresource =
        if subresource.is_empty() { String::new() } else { format!("/{subresource}") };
    let name = if name.is_empty() { String::new() } else { format!(" {name}") };
    let place = match scope {
        All => String::new(),
        Own => format!(" in {}", flags.plimsoll_namespace),
        System => " in kube-system".to_owned(),
    };
    format!("{verb} {plural}{group}{subresource}{name}{place}")
}

#[cfg(test)]
mod tests {
    use super::super::report::Outcome;
    use super::*;
    use serde_json::{Value, json};

    fn flags() -> ClusterFlags {
        ClusterFlags {
            kubectl: Default::default(),
            plimsoll_namespace: "plimsoll".to_owned(),
            lease: LEASE.to_owned(),
        }
    }

    #[test]
    fn the_manifests_give_all_rights_that_are_tried() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/base/rbac.yaml");
        let text = std::fs::read_to_string(path).unwrap();
        let objects = text.split("\n---\n");
        let objects: Vec<Value> =
            objects.map(|object| serde_saphyr::from_str(object).unwrap()).collect();
        let roles = objects.iter().filter(|object| object["metadata"]["name"] == "plimsoll");
        let rules: Vec<&Value> =
            roles.filter_map(|role| role["rules"].as_array()).flatten().collect();
        let has = |rule: &Value, field: &str, wanted: &str| {
            let all = rule[field].as_array();
            all.is_none_or(|all| all.iter().any(|one| one == wanted || one == "*"))
        };
        for right in RIGHTS {
            let (verb, group, resource, name, scope) = right;
            // Those of the roles system:auth-delegator and extension-apiserver-authentication-reader.
            if scope == System || matches!(resource, "tokenreviews" | "subjectaccessreviews") {
                continue;
            }
            let resource = if resource.ends_with("/scale") { "*/scale" } else { resource };
            let gives = |rule: &&&Value| {
                let of_group = has(rule, "apiGroups", group) && has(rule, "resources", resource);
                of_group && has(rule, "verbs", verb) && has(rule, "resourceNames", name)
            };
            assert!(rules.iter().any(|rule| gives(&rule)), "{}", told(right, &flags()));
        }
    }

    #[tokio::test]
    async fn each_right_that_is_missing_is_named() {
        let (client, _) = crate::fake::api(|request| {
            let attributes = &request.body["spec"]["resourceAttributes"];
            let allowed =
                attributes["resource"] != "leases" && attributes["subresource"] != "scale";
            assert_eq!(request.body["spec"]["user"], "system:serviceaccount:plimsoll:p");
            (201, json!({"spec": {}, "status": {"allowed": allowed}}))
        });
        let group = check(&Cluster::fake(client), &flags(), Some("p")).await;
        assert_eq!(group.outcomes(), [Outcome::Failed]);
        let text = format!("{group:?}");
        for named in [
            "update deployments.apps/scale",
            "update leases.coordination.k8s.io plimsoll in plimsoll",
        ] {
            assert!(text.contains(named), "{text}");
        }
        let (client, _) = crate::fake::api(|_| crate::fake::failure(403, "Forbidden", "no"));
        let group = check(&Cluster::fake(client), &flags(), None).await;
        assert_eq!(group.outcomes(), [Outcome::Skipped]);
    }
}
