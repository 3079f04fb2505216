//! Discovery: the groups, their versions and resources, aggregated and one by one.

use super::resource::{self, Resource};
use serde_json::{Value, json};

/// The document of a path, if it is one of discovery.
pub(super) fn document(path: &str, accept: &str) -> Option<Value> {
    let aggregated = accept.contains("as=APIGroupDiscoveryList");
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    match segments[..] {
        ["api"] if aggregated => Some(aggregate(|group| group.is_empty())),
        ["apis"] if aggregated => Some(aggregate(|group| !group.is_empty())),
        ["api"] => Some(json!({"kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": []})),
        ["apis"] => {
            let groups = groups().filter(|group| !group.is_empty()).map(group_of);
            Some(json!({"kind": "APIGroupList", "apiVersion": "v1",
                "groups": groups.collect::<Vec<_>>()}))
        }
        ["api", version] => resources_of("", version),
        ["apis", group] => groups().find(|name| *name == group).map(|name| {
            let mut found = group_of(name);
            found["kind"] = "APIGroup".into();
            found["apiVersion"] = "v1".into();
            found
        }),
        ["apis", group, version] => resources_of(group, version),
        ["version"] => Some(json!({"major": "1", "minor": "36", "gitVersion": "v1.36.0",
            "gitCommit": "", "gitTreeState": "clean", "buildDate": "", "goVersion": "",
            "compiler": "", "platform": ""})),
        _ => None,
    }
}

/// The groups, in the order of the resources.
fn groups() -> impl Iterator<Item = &'static str> {
    let mut last = None;
    let names = resource::ALL.iter().map(|resource| resource.group);
    names.filter(move |name| last.replace(*name) != Some(*name))
}

fn of_group(group: &str) -> impl Iterator<Item = &'static Resource> {
    resource::ALL.into_iter().filter(move |resource| resource.group == group)
}

fn version_of(group: &str) -> &'static str {
    of_group(group).next().map_or("v1", |resource| resource.version)
}

fn group_of(group: &str) -> Value {
    let version = version_of(group);
    let version = json!({"groupVersion": format!("{group}/{version}"), "version": version});
    json!({"name": group, "versions": [version], "preferredVersion": version})
}

const VERBS: [&str; 7] = ["create", "delete", "get", "list", "patch", "update", "watch"];

/// The subresources of a resource, each with the group, version and kind of its objects.
fn subresources(resource: &Resource) -> Vec<(&'static str, &str, &str, &str)> {
    let Resource { group, version, kind, .. } = resource;
    let status = resource.status.then_some(("status", *group, *version, *kind));
    let scale = resource.scale.map(|_| ("scale", "autoscaling", "v1", "Scale"));
    scale.into_iter().chain(status).collect()
}

fn resources_of(group: &str, version: &str) -> Option<Value> {
    let mut all = Vec::new();
    for resource in of_group(group).filter(|resource| resource.version == version) {
        let Resource { plural, singular, kind, namespaced, .. } = resource;
        all.push(json!({"name": plural, "singularName": singular, "namespaced": namespaced,
            "kind": kind, "verbs": VERBS}));
        for (name, group, version, kind) in subresources(resource) {
            all.push(json!({"name": format!("{plural}/{name}"), "singularName": "",
                "namespaced": namespaced, "group": group, "version": version, "kind": kind,
                "verbs": ["get", "patch", "update"]}));
        }
    }
    let name = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    (!all.is_empty()).then(|| {
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name,
            "resources": all})
    })
}

fn aggregate(wanted: impl Fn(&str) -> bool) -> Value {
    let group = |group: &'static str| {
        let kind = |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
        let resource = |resource: &'static Resource| {
            let Resource { group, version, plural, singular, .. } = resource;
            let below = subresources(resource).into_iter().map(|(name, group, version, of)| {
                json!({"subresource": name, "responseKind": kind(group, version, of),
                    "verbs": ["get", "patch", "update"]})
            });
            json!({"resource": plural, "responseKind": kind(group, version, resource.kind),
                "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
                "singularResource": singular, "verbs": VERBS,
                "subresources": below.collect::<Vec<_>>()})
        };
        let resources: Vec<Value> = of_group(group).map(resource).collect();
        let metadata = if group.is_empty() { json!({}) } else { json!({"name": group}) };
        json!({"metadata": metadata, "versions": [{"version": version_of(group),
            "resources": resources, "freshness": "Current"}]})
    };
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {},
        "items": groups().filter(|name| wanted(name)).map(group).collect::<Vec<_>>()})
}
