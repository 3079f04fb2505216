//! What there is to ask for: discovery, old (a list a version) and new
//! (aggregated, all in one).

use super::request::{ApiGroup, Version};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Something that a group offers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offered {
    /// The resource, such as `pods` or `deployments.apps`; of external metrics the metric.
    pub resource: String,
    /// Whether it is asked for in a namespace.
    pub namespaced: bool,
    /// The metric, where metrics are subresources.
    pub metric: Option<String>,
    /// The kind of the answer.
    pub kind: &'static str,
    /// What can be done.
    pub verbs: &'static [&'static str],
}

impl Offered {
    /// A metric of objects.
    pub fn object_metric(resource: String, namespaced: bool, metric: String) -> Self {
        let metric = Some(metric);
        Self { resource, namespaced, metric, kind: "MetricValueList", verbs: &["get"] }
    }

    /// An external metric.
    pub fn external_metric(metric: String) -> Self {
        let kind = "ExternalMetricValueList";
        Self { resource: metric, namespaced: true, metric: None, kind, verbs: &["get"] }
    }

    /// What pods and nodes use.
    pub fn resource_metrics() -> [Self; 2] {
        let offered = |resource: &str, namespaced, kind| Self {
            resource: resource.to_owned(),
            namespaced,
            metric: None,
            kind,
            verbs: &["get", "list"],
        };
        [offered("nodes", false, "NodeMetrics"), offered("pods", true, "PodMetrics")]
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
pub fn resources(group: ApiGroup, version: Version, offered: &BTreeSet<Offered>) -> Value {
    let resources = offered.iter().map(|offered| {
        let name = match &offered.metric {
            Some(metric) => format!("{}/{metric}", offered.resource),
            None => offered.resource.clone(),
        };
        json!({
            "name": name,
            "singularName": "",
            "namespaced": offered.namespaced,
            "kind": offered.kind,
            "verbs": offered.verbs,
        })
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
pub fn aggregated(groups: &[(ApiGroup, BTreeSet<Offered>)]) -> Value {
    let items = groups.iter().map(|(group, offered)| {
        let versions = group.versions().iter().map(|version| {
            json!({
                "version": version.as_str(),
                "resources": aggregated_resources(*group, *version, offered),
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
    offered: &BTreeSet<Offered>,
) -> Vec<Value> {
    let answer =
        |kind: &str| json!({"group": group.as_str(), "version": version.as_str(), "kind": kind});
    let mut resources: BTreeMap<(&str, bool), Value> = BTreeMap::new();
    for one in offered {
        let resource =
            resources.entry((one.resource.as_str(), one.namespaced)).or_insert_with(|| {
                let whole = one.metric.is_none();
                json!({
                    "resource": one.resource,
                    // Clients of 1.26 fail without one.
                    "responseKind": if whole {
                        answer(one.kind)
                    } else {
                        json!({"group": "", "version": "", "kind": ""})
                    },
                    "scope": if one.namespaced { "Namespaced" } else { "Cluster" },
                    "singularResource": "",
                    "verbs": if whole { one.verbs } else { &[] },
                })
            });
        if let Some(metric) = &one.metric {
            let subresource = json!({"subresource": metric, "responseKind": answer(one.kind), "verbs": one.verbs});
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

/// Whether a client that accepts this understands aggregated discovery.
pub fn accepts_aggregated(accept: &str) -> bool {
    accept.split(',').any(|kind| {
        let parameters: Vec<&str> = kind.split(';').map(str::trim).collect();
        ["application/json", "g=apidiscovery.k8s.io", "v=v2", "as=APIGroupDiscoveryList"]
            .iter()
            .all(|part| parameters.contains(part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aggregated_discovery_is_given_to_those_who_ask_for_it() {
        assert!(accepts_aggregated(AGGREGATED));
        assert!(accepts_aggregated(&format!("{AGGREGATED}, application/json")));
        assert!(accepts_aggregated(
            "application/json; as=APIGroupDiscoveryList; v=v2; g=apidiscovery.k8s.io"
        ));
        assert!(!accepts_aggregated("application/json"));
        assert!(!accepts_aggregated(
            "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
        ));
    }

    #[test]
    fn metrics_of_objects_are_subresources_and_others_resources() {
        let object = |metric: &str| Offered::object_metric("pods".into(), true, metric.into());
        let custom = BTreeSet::from([object("a"), object("b")]);
        let resources = aggregated_resources(ApiGroup::Custom, Version::V1Beta2, &custom);
        assert_eq!(resources.len(), 1);
        assert_eq!(resources[0]["subresources"].as_array().map(Vec::len), Some(2));
        let external = BTreeSet::from([Offered::external_metric("queue".into())]);
        let resources = aggregated_resources(ApiGroup::External, Version::V1Beta1, &external);
        assert_eq!(resources[0]["responseKind"]["kind"], "ExternalMetricValueList");
    }
}
