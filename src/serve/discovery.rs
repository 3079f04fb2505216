//! Discovery: one document per group and version, and aggregated discovery of all groups in one.

use super::request::{ApiGroup, Version};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// A resource of an API group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServedResource {
    /// The resource, such as `pods` or `deployments.apps`; for an external metric, its name.
    pub resource: String,
    /// Whether it is namespaced.
    pub namespaced: bool,
    /// The metric, if metrics are subresources of the resource.
    pub metric: Option<String>,
    /// The kind of the response.
    pub kind: &'static str,
    /// The verbs.
    pub verbs: &'static [&'static str],
    /// The name of one object, if it has one of its own.
    pub singular: &'static str,
    /// The short names.
    pub short_names: &'static [&'static str],
}

impl ServedResource {
    /// A metric of objects.
    pub fn object_metric(resource: String, namespaced: bool, metric: String) -> Self {
        let metric = Some(metric);
        Self::new(resource, namespaced, metric, "MetricValueList", &["get"])
    }

    fn new(
        resource: String,
        namespaced: bool,
        metric: Option<String>,
        kind: &'static str,
        verbs: &'static [&'static str],
    ) -> Self {
        Self { resource, namespaced, metric, kind, verbs, singular: "", short_names: &[] }
    }

    /// The decisions.
    pub fn decisions() -> Self {
        let verbs = &["get", "list", "watch"];
        let served = Self::new("decisions".to_owned(), true, None, "Decision", verbs);
        Self { singular: "decision", short_names: &["dec"], ..served }
    }

    /// An external metric.
    pub fn external_metric(metric: String) -> Self {
        Self::new(metric, true, None, "ExternalMetricValueList", &["get"])
    }

    /// Resource usage of pods and nodes.
    pub fn resource_metrics() -> [Self; 2] {
        let served = |resource: &str, namespaced, kind| {
            Self::new(resource.to_owned(), namespaced, None, kind, &["get", "list"])
        };
        [served("nodes", false, "NodeMetrics"), served("pods", true, "PodMetrics")]
    }
}

fn group_version(group: ApiGroup, version: Version) -> Value {
    json!({
        "groupVersion": format!("{}/{}", group.as_str(), version.as_str()),
        "version": version.as_str(),
    })
}

/// The `APIGroup`.
pub fn group(group: ApiGroup) -> Value {
    let mut object = group_without_kind(group);
    object["kind"] = "APIGroup".into();
    object["apiVersion"] = "v1".into();
    object
}

fn group_without_kind(group: ApiGroup) -> Value {
    let versions = group.versions().iter().map(|version| group_version(group, *version));
    json!({
        "name": group.as_str(),
        "versions": versions.collect::<Vec<_>>(),
        "preferredVersion": group_version(group, group.versions()[0]),
    })
}

/// The `APIGroupList`.
pub fn groups(groups: &[ApiGroup]) -> Value {
    let groups: Vec<Value> = groups.iter().map(|group| group_without_kind(*group)).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// The `APIResourceList` of a version.
pub fn resources(group: ApiGroup, version: Version, resources: &BTreeSet<ServedResource>) -> Value {
    let resources = resources.iter().map(|served| {
        let name = match &served.metric {
            Some(metric) => format!("{}/{metric}", served.resource),
            None => served.resource.clone(),
        };
        let mut resource = json!({
            "name": name,
            "singularName": served.singular,
            "namespaced": served.namespaced,
            "kind": served.kind,
            "verbs": served.verbs,
        });
        if !served.short_names.is_empty() {
            resource["shortNames"] = json!(served.short_names);
        }
        resource
    });
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": format!("{}/{}", group.as_str(), version.as_str()),
        "resources": resources.collect::<Vec<_>>(),
    })
}

/// The `APIGroupDiscoveryList` (`apidiscovery.k8s.io/v2`): metrics of objects are
/// subresources of what they describe.
pub fn aggregated(groups: &[(ApiGroup, BTreeSet<ServedResource>)]) -> Value {
    let items = groups.iter().map(|(group, served)| {
        let versions = group.versions().iter().map(|version| {
            json!({
                "version": version.as_str(),
                "resources": aggregated_resources(*group, *version, served),
                "freshness": "Current",
            })
        });
        json!({
            "metadata": {"name": group.as_str(), "creationTimestamp": null},
            "versions": versions.collect::<Vec<_>>(),
        })
    });
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items.collect::<Vec<_>>(),
    })
}

fn aggregated_resources(
    group: ApiGroup,
    version: Version,
    served: &BTreeSet<ServedResource>,
) -> Vec<Value> {
    let response_kind =
        |kind: &str| json!({"group": group.as_str(), "version": version.as_str(), "kind": kind});
    let mut resources: BTreeMap<(&str, bool), Value> = BTreeMap::new();
    for one in served {
        let resource =
            resources.entry((one.resource.as_str(), one.namespaced)).or_insert_with(|| {
                let is_resource = one.metric.is_none();
                let mut resource = json!({
                    "resource": one.resource,
                    // Clients of Kubernetes 1.26 fail without a response kind.
                    "responseKind": if is_resource {
                        response_kind(one.kind)
                    } else {
                        json!({"group": "", "version": "", "kind": ""})
                    },
                    "scope": if one.namespaced { "Namespaced" } else { "Cluster" },
                    "singularResource": one.singular,
                    "verbs": if is_resource { one.verbs } else { &[] },
                });
                if !one.short_names.is_empty() {
                    resource["shortNames"] = json!(one.short_names);
                }
                resource
            });
        if let Some(metric) = &one.metric {
            let subresource = json!({"subresource": metric, "responseKind": response_kind(one.kind), "verbs": one.verbs});
            match resource["subresources"].as_array_mut() {
                Some(subresources) => subresources.push(subresource),
                None => resource["subresources"] = json!([subresource]),
            }
        }
    }
    resources.into_values().collect()
}

/// The content type of aggregated discovery.
pub const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_of_objects_are_subresources_and_others_resources() {
        let object =
            |metric: &str| ServedResource::object_metric("pods".into(), true, metric.into());
        let custom = BTreeSet::from([object("a"), object("b")]);
        let resources = aggregated_resources(ApiGroup::Custom, Version::V1Beta2, &custom);
        assert_eq!(resources.len(), 1);
        assert_eq!(resources[0]["subresources"].as_array().map(Vec::len), Some(2));
        let external = BTreeSet::from([ServedResource::external_metric("queue".into())]);
        let resources = aggregated_resources(ApiGroup::External, Version::V1Beta1, &external);
        assert_eq!(resources[0]["responseKind"]["kind"], "ExternalMetricValueList");
    }
}
