//! What there is to ask for: discovery, old (a list a version) and new
//! (aggregated, all in one).

use super::CUSTOM_METRICS;
use super::request::Version;
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn group_version(version: Version) -> Value {
    json!({
        "groupVersion": format!("{CUSTOM_METRICS}/{}", version.as_str()),
        "version": version.as_str(),
    })
}

/// The `APIGroup`.
pub fn group() -> Value {
    let mut group = group_without_kind();
    group["kind"] = "APIGroup".into();
    group["apiVersion"] = "v1".into();
    group
}

fn group_without_kind() -> Value {
    json!({
        "name": CUSTOM_METRICS,
        "versions": Version::ALL.map(group_version),
        "preferredVersion": group_version(Version::ALL[0]),
    })
}

/// The `APIGroupList`.
pub fn groups() -> Value {
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group_without_kind()]})
}

/// The `APIResourceList` of a version: a resource for each metric of pods.
pub fn resources(version: Version, metrics: &BTreeSet<&str>) -> Value {
    let resources = metrics.iter().map(|metric| {
        json!({
            "name": format!("pods/{metric}"),
            "singularName": "",
            "namespaced": true,
            "kind": "MetricValueList",
            "verbs": ["get"],
        })
    });
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": format!("{CUSTOM_METRICS}/{}", version.as_str()),
        "resources": resources.collect::<Vec<_>>(),
    })
}

/// The `APIGroupDiscoveryList` (`apidiscovery.k8s.io/v2`): metrics are
/// subresources of what they describe.
pub fn aggregated(metrics: &BTreeSet<&str>) -> Value {
    let version = |version: Version| {
        let subresources = metrics.iter().map(|metric| {
            json!({
                "subresource": metric,
                "responseKind": {
                    "group": CUSTOM_METRICS,
                    "version": version.as_str(),
                    "kind": "MetricValueList",
                },
                "verbs": ["get"],
            })
        });
        let pods = json!({
            "resource": "pods",
            // Clients of 1.26 fail without one.
            "responseKind": {"group": "", "version": "", "kind": ""},
            "scope": "Namespaced",
            "singularResource": "",
            "verbs": [],
            "subresources": subresources.collect::<Vec<_>>(),
        });
        json!({
            "version": version.as_str(),
            "resources": if metrics.is_empty() { vec![] } else { vec![pods] },
            "freshness": "Current",
        })
    };
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": [{
            "metadata": {"name": CUSTOM_METRICS, "creationTimestamp": null},
            "versions": Version::ALL.map(version),
        }],
    })
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
}
