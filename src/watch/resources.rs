//! The resources of the cluster: a compact copy of its discovery, with the lookups of
//! `k8s.io/apimachinery`'s RESTMapper, which kubectl and prometheus-adapter use.

use crate::kube_error::worded;
use k8s_openapi::serde::Deserialize;
use kube::Client;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// A resource with its group; the core group is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupResource {
    /// The group.
    pub group: String,
    /// The plural name.
    pub resource: String,
}

impl GroupResource {
    /// Parses `resource.group`.
    pub fn parse(text: &str) -> Self {
        let (resource, group) = text.split_once('.').unwrap_or((text, ""));
        Self { group: group.to_owned(), resource: resource.to_owned() }
    }

    /// A resource of the core group.
    pub fn core(resource: &str) -> Self {
        Self { group: String::new(), resource: resource.to_owned() }
    }
}

impl fmt::Display for GroupResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.resource)?;
        if self.group.is_empty() { Ok(()) } else { write!(f, ".{}", self.group) }
    }
}

/// One resource in one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceInfo {
    /// Group and plural name.
    pub name: GroupResource,
    /// The version.
    pub version: String,
    /// The singular name.
    pub singular: String,
    /// The kind of its objects.
    pub kind: String,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
}

impl ResourceInfo {
    /// Group and version as the metrics APIs write them: the core group, too, has a slash
    /// (`/v1`).
    pub fn api_version(&self) -> String {
        format!("{}/{}", self.name.group, self.version)
    }

    /// The resource as kube's client takes it.
    pub fn api_resource(&self) -> kube::core::ApiResource {
        let group = &self.name.group;
        let api_version = if group.is_empty() { self.version.clone() } else { self.api_version() };
        kube::core::ApiResource {
            group: group.clone(),
            version: self.version.clone(),
            api_version,
            kind: self.kind.clone(),
            plural: self.name.resource.clone(),
        }
    }
}

/// Resources that each cluster has and metrics describe: the group, the version, the plural name, the kind, and whether
/// its objects live in namespaces.
const BUILT_IN: [(&str, &str, &str, &str, bool); 18] = [
    ("", "v1", "configmaps", "ConfigMap", true),
    ("", "v1", "endpoints", "Endpoints", true),
    ("", "v1", "namespaces", "Namespace", false),
    ("", "v1", "nodes", "Node", false),
    ("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", true),
    ("", "v1", "persistentvolumes", "PersistentVolume", false),
    ("", "v1", "pods", "Pod", true),
    ("", "v1", "replicationcontrollers", "ReplicationController", true),
    ("", "v1", "secrets", "Secret", true),
    ("", "v1", "services", "Service", true),
    ("apps", "v1", "daemonsets", "DaemonSet", true),
    ("apps", "v1", "deployments", "Deployment", true),
    ("apps", "v1", "replicasets", "ReplicaSet", true),
    ("apps", "v1", "statefulsets", "StatefulSet", true),
    ("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", true),
    ("batch", "v1", "cronjobs", "CronJob", true),
    ("batch", "v1", "jobs", "Job", true),
    ("networking.k8s.io", "v1", "ingresses", "Ingress", true),
];

/// All resources, in the order of discovery: preferred groups and versions first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceMap(Vec<ResourceInfo>);

impl ResourceMap {
    /// Whether discovery was never read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The resource of a plural or singular name. The group may be empty, or a prefix of the
    /// resource's group.
    pub fn find(&self, name: &GroupResource) -> Option<&ResourceInfo> {
        let wanted = name.resource.to_ascii_lowercase();
        let named = |info: &&ResourceInfo| info.name.resource == wanted || info.singular == wanted;
        let mut exact = self.0.iter().filter(named);
        if name.group.is_empty() {
            return exact.next();
        }
        exact
            .clone()
            .find(|info| info.name.group == name.group)
            .or_else(|| exact.find(|info| info.name.group.starts_with(&name.group)))
    }

    /// The plural name and the full group of a resource.
    pub fn normalize(&self, name: &GroupResource) -> Option<GroupResource> {
        self.find(name).map(|info| info.name.clone())
    }

    /// The singular of a resource's name.
    pub fn singular(&self, resource: &str) -> Option<&str> {
        self.find(&GroupResource::core(resource)).map(|info| info.singular.as_str())
    }

    /// The resources that each cluster has and metrics describe, where no cluster is asked.
    pub fn built_in() -> Self {
        let info =
            |(group, version, resource, kind, namespaced): (&str, &str, &str, &str, bool)| {
                ResourceInfo {
                    name: GroupResource { group: group.to_owned(), resource: resource.to_owned() },
                    version: version.to_owned(),
                    singular: kind.to_ascii_lowercase(),
                    kind: kind.to_owned(),
                    namespaced,
                }
            };
        Self(BUILT_IN.into_iter().map(info).collect())
    }

    /// A map of these resources, for tests.
    pub fn of(resources: Vec<ResourceInfo>) -> Self {
        Self(resources)
    }
}

/// The cluster's resources, shared and kept up to date.
#[derive(Clone)]
pub struct Resources(Arc<Inner>);

struct Inner {
    client: Client,
    map: watch::Sender<Arc<ResourceMap>>,
    last_lookup: Mutex<Option<Instant>>,
}

/// The least time between two reads of discovery that unknown names cause.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_secs(2);
/// The longest time for a read of discovery.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(10);

impl Resources {
    /// The resources of the client's cluster; none are known yet.
    pub fn new(client: Client) -> Self {
        let map = watch::Sender::default();
        Self(Arc::new(Inner { client, map, last_lookup: Mutex::default() }))
    }

    /// The resources as of the last successful read.
    pub fn map(&self) -> Arc<ResourceMap> {
        self.0.map.borrow().clone()
    }

    /// Sees each change of the resources; the first is that they are read at all.
    pub fn changes(&self) -> watch::Receiver<Arc<ResourceMap>> {
        self.0.map.subscribe()
    }

    /// The resource of a name. For an unknown name, discovery is read again: its definition may
    /// have been created just now.
    pub async fn find(&self, name: &GroupResource) -> Option<ResourceInfo> {
        if let Some(info) = self.map().find(name) {
            return Some(info.clone());
        }
        let due = {
            let mut last = self.0.last_lookup.lock().unwrap_or_else(PoisonError::into_inner);
            let due = last.is_none_or(|last| last.elapsed() >= MIN_REFRESH_INTERVAL);
            if due {
                *last = Some(Instant::now());
            }
            due
        };
        if due {
            self.refresh().await;
        }
        self.map().find(name).cloned()
    }

    /// Reads discovery now. If that fails, the resources stay as they are. Returns whether it succeeded.
    pub async fn refresh(&self) -> bool {
        match tokio::time::timeout(DISCOVERY_TIMEOUT, discover(&self.0.client)).await {
            Ok(Ok(map)) => {
                self.0.map.send_if_modified(|known| {
                    let changed = **known != map;
                    if changed {
                        *known = Arc::new(map);
                    }
                    changed
                });
                true
            }
            Ok(Err(error)) => {
                tracing::warn!(error = worded(&error), "Failed to read discovery");
                false
            }
            Err(_) => {
                tracing::warn!(timeout = ?DISCOVERY_TIMEOUT, "Timed out reading discovery");
                false
            }
        }
    }

    /// Reads discovery periodically, for ever; sooner after a failure. `read` says whether it has been read.
    pub async fn run_refresher(self, interval: Duration, mut read: bool) {
        loop {
            let pause = if read { interval } else { MIN_REFRESH_INTERVAL };
            tokio::time::sleep(pause).await;
            read = self.refresh().await;
        }
    }
}

#[derive(Deserialize)]
struct DiscoveryList {
    items: Vec<DiscoveredGroup>,
}

#[derive(Deserialize)]
struct DiscoveredGroup {
    #[serde(default)]
    metadata: DiscoveredMetadata,
    #[serde(default)]
    versions: Vec<DiscoveredVersion>,
}

#[derive(Default, Deserialize)]
struct DiscoveredMetadata {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct DiscoveredVersion {
    version: String,
    #[serde(default)]
    resources: Vec<DiscoveredResource>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DiscoveredResource {
    resource: String,
    #[serde(default)]
    response_kind: ResponseKind,
    #[serde(default)]
    scope: String,
    #[serde(default)]
    singular_resource: String,
}

#[derive(Default, Deserialize)]
struct ResponseKind {
    #[serde(default)]
    kind: String,
}

const ACCEPT: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

async fn discover(client: &Client) -> Result<ResourceMap, kube::Error> {
    let mut all = Vec::new();
    for path in ["/api", "/apis"] {
        let request = http::Request::get(path)
            .header(http::header::ACCEPT, ACCEPT)
            .body(Vec::new())
            .map_err(kube::Error::HttpError)?;
        let list: DiscoveryList = client.request(request).await?;
        all.extend(list.items.into_iter().flat_map(flatten));
    }
    Ok(ResourceMap(all))
}

fn flatten(group: DiscoveredGroup) -> impl Iterator<Item = ResourceInfo> {
    let name = group.metadata.name;
    group.versions.into_iter().flat_map(move |version| {
        let (group, version_name) = (name.clone(), version.version);
        // A resource without a response kind is listed only for its subresources.
        let is_resource = |found: &DiscoveredResource| !found.response_kind.kind.is_empty();
        version.resources.into_iter().filter(is_resource).map(move |found| {
            let kind = found.response_kind.kind;
            let singular = match found.singular_resource.is_empty() {
                true => kind.to_ascii_lowercase(),
                false => found.singular_resource,
            };
            ResourceInfo {
                name: GroupResource { group: group.clone(), resource: found.resource },
                version: version_name.clone(),
                singular,
                kind,
                namespaced: found.scope == "Namespaced",
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> ResourceMap {
        let list: DiscoveryList = serde_json::from_value(serde_json::json!({"items": [
            {"metadata": {}, "versions": [{"version": "v1", "resources": [
                {"resource": "pods", "responseKind": {"kind": "Pod"}, "scope": "Namespaced", "singularResource": "pod"},
                {"resource": "nodes", "responseKind": {"kind": "Node"}, "scope": "Cluster"}]}]},
            {"metadata": {"name": "apps"}, "versions": [{"version": "v1", "resources": [
                {"resource": "deployments", "responseKind": {"kind": "Deployment"}, "scope": "Namespaced", "singularResource": "deployment"}]}]},
            {"metadata": {"name": "metrics.k8s.io"}, "versions": [{"version": "v1beta1", "resources": [
                {"resource": "pods", "responseKind": {"kind": "PodMetrics"}, "scope": "Namespaced", "singularResource": ""}]}]},
            {"metadata": {"name": "custom.metrics.k8s.io"}, "versions": [{"version": "v1beta2", "resources": [
                {"resource": "services", "responseKind": {"kind": ""}, "subresources": []}]}]},
        ]})).unwrap();
        ResourceMap(list.items.into_iter().flat_map(flatten).collect())
    }

    #[test]
    fn names_are_looked_up_as_the_rest_mapper_does() {
        let map = map();
        let find = |text: &str| {
            map.find(&GroupResource::parse(text))
                .map(|info| (info.kind.as_str(), info.api_version()))
        };
        assert_eq!(find("pods"), Some(("Pod", "/v1".to_owned())));
        assert_eq!(find("Pod"), Some(("Pod", "/v1".to_owned())));
        assert_eq!(find("deployment"), Some(("Deployment", "apps/v1".to_owned())));
        assert_eq!(find("deployments.apps"), Some(("Deployment", "apps/v1".to_owned())));
        assert_eq!(find("pods.metrics"), Some(("PodMetrics", "metrics.k8s.io/v1beta1".to_owned())));
        assert_eq!(find("deployments.extensions"), None);
        assert_eq!(find("services"), None);
        assert_eq!(map.singular("nodes"), Some("node"));
    }

    #[test]
    fn what_each_cluster_has_is_known_without_one() {
        let map = ResourceMap::built_in();
        for (name, group, resource) in [
            ("pod", "", "pods"),
            ("namespace", "", "namespaces"),
            ("ingress", "networking.k8s.io", "ingresses"),
            ("statefulset.apps", "apps", "statefulsets"),
        ] {
            let expected = GroupResource { group: group.to_owned(), resource: resource.to_owned() };
            assert_eq!(map.normalize(&GroupResource::parse(name)), Some(expected), "{name}");
        }
    }

    #[tokio::test]
    async fn a_discovery_that_is_refused_is_told_in_the_words_of_kubectl() {
        let (lines, _guard) = crate::fake::LogLines::keep();
        let (client, _) = crate::fake::api(|_| crate::fake::failure(403, "Forbidden", "no"));
        assert!(!Resources::new(client).refresh().await);
        lines.assert_plain();
    }
}
