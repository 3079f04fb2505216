//! Lists the objects of the cluster that metrics describe.

use super::failure::RuleQueryError;
use crate::hpa::Phase;
use crate::k8s::{LabelSet, Selector};
use crate::kube_error::worded;
use crate::watch::{Cluster, GroupResource, Index, ObjectKey, PodRecord, ResourceInfo};
use kube::Api;
use kube::api::{ListParams, ObjectMeta};
use kube::core::DynamicObject;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The timeout of listing objects.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// Lists objects from the index, or from the API server.
pub(super) struct ObjectLister {
    pub(super) client: kube::Client,
    pub(super) cluster: Cluster,
}

/// The names of objects, sorted.
#[derive(Debug)]
pub struct Names {
    /// The names.
    pub names: Vec<String>,
    /// A version of the namespace's pods of which they are selected, as the index has it; none if they were
    /// not selected from the index.
    version: Option<AtomicU64>,
}

impl Names {
    /// Whether it can be told if they are still the same.
    pub fn may_be_kept(&self) -> bool {
        self.version.is_some()
    }

    /// The approximate memory in bytes.
    pub fn bytes(&self) -> usize {
        self.names.iter().map(|name| size_of::<String>() + name.len()).sum()
    }
}

impl ObjectLister {
    /// The names of the objects that a selector selects.
    pub(super) async fn names(
        &self,
        info: &ResourceInfo,
        namespace: &str,
        selector: &Selector,
    ) -> Result<Names, RuleQueryError> {
        if info.name == GroupResource::core("pods") && !namespace.is_empty() {
            return self.pod_names(namespace, None, selector).await;
        }
        let objects = self.list(info, namespace, selector).await?;
        Ok(Names { names: objects.into_iter().map(|(name, _)| name).collect(), version: None })
    }

    /// The names of the pods of a namespace that a selector selects, optionally only the one of this name.
    pub(super) async fn pod_names(
        &self,
        namespace: &str,
        name: Option<&str>,
        selector: &Selector,
    ) -> Result<Names, RuleQueryError> {
        let known = self.cluster.read(|index| {
            let version = Some(index.pods_version(namespace)?.into());
            let pods = selected(index, namespace, name, selector).into_iter();
            Some(Names { names: pods.map(|(name, _)| name.to_owned()).collect(), version })
        });
        if let Some(known) = known {
            return Ok(known);
        }
        let pods = self.pods(Some(namespace), name, selector, false).await?;
        Ok(Names { names: pods.into_keys().map(|key| key.name).collect(), version: None })
    }

    /// Whether [`pod_names`](Self::pod_names) would be these again. If only others have changed, that is known until
    /// the next change.
    pub(super) fn selects(
        &self,
        names: &Names,
        namespace: &str,
        name: Option<&str>,
        selector: &Selector,
    ) -> bool {
        let Some(version) = &names.version else { return false };
        self.cluster.read(|index| {
            let Some(now) = index.pods_version(namespace) else { return false };
            if version.load(Ordering::Relaxed) == now {
                return true;
            }
            let pods = selected(index, namespace, name, selector);
            let same = pods.iter().map(|(name, _)| *name).eq(&names.names);
            if same {
                version.store(now, Ordering::Relaxed);
            }
            same
        })
    }

    /// The labels of the pods that a selector selects, by namespace and name, optionally of one
    /// namespace, of one name, and only running ones. They come from the index, or from the API server as long as
    /// the index does not have all pods.
    pub(super) async fn pods(
        &self,
        namespace: Option<&str>,
        name: Option<&str>,
        selector: &Selector,
        running: bool,
    ) -> Result<BTreeMap<ObjectKey, Arc<LabelSet>>, RuleQueryError> {
        let key = |namespace: &str, name: &str| ObjectKey {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let known = self.cluster.read(|index| {
            let namespaces = namespace.map_or_else(|| index.namespaces(), |one| vec![one]);
            let of = |namespace| {
                let pods = selected(index, namespace, name, selector).into_iter();
                let wanted = pods.filter(|(_, pod)| !running || pod.phase == Phase::Running);
                wanted.map(move |(name, pod)| (key(namespace, name), pod.labels.clone()))
            };
            index.pods_known().then(|| namespaces.into_iter().flat_map(of).collect())
        });
        if let Some(known) = known {
            return Ok(known);
        }
        let fields = name.map(|name| format!("metadata.name={name}")).into_iter();
        let fields = fields.chain(running.then(|| "status.phase=Running".to_owned()));
        let fields = fields.collect::<Vec<_>>().join(",");
        let info = pod_info();
        let pods = self.metadata(&info, namespace.unwrap_or_default(), selector, &fields);
        let pods = pods.await?.into_iter().filter_map(|pod| {
            let labels = Arc::new(pod.labels.unwrap_or_default().into());
            Some((key(&pod.namespace?, &pod.name?), labels))
        });
        Ok(pods.collect())
    }

    /// The names and labels of the objects that a selector selects, from the API server.
    pub(super) async fn list(
        &self,
        info: &ResourceInfo,
        namespace: &str,
        selector: &Selector,
    ) -> Result<Vec<(String, LabelSet)>, RuleQueryError> {
        let objects = self.metadata(info, namespace, selector, "").await?.into_iter();
        Ok(objects.filter_map(|o| Some((o.name?, o.labels.unwrap_or_default().into()))).collect())
    }

    async fn metadata(
        &self,
        info: &ResourceInfo,
        namespace: &str,
        selector: &Selector,
        fields: &str,
    ) -> Result<Vec<ObjectMeta>, RuleQueryError> {
        let resource = info.api_resource();
        let client = self.client.clone();
        let api: Api<DynamicObject> = match (namespace, info.namespaced) {
            ("", _) | (_, false) => Api::all_with(client, &resource),
            (namespace, true) => Api::namespaced_with(client, namespace, &resource),
        };
        let parameters = ListParams::default().labels(&selector.to_string()).fields(fields);
        let listing = tokio::time::timeout(LIST_TIMEOUT, api.list_metadata(&parameters)).await;
        let unlistable = |error: String| {
            tracing::warn!(resource = %info.name, namespace, error, "Failed to list objects");
            RuleQueryError::Unlistable(error)
        };
        let list = listing
            .map_err(|_| {
                unlistable(format!("the API server did not answer within {LIST_TIMEOUT:?}"))
            })?
            .map_err(|error| unlistable(worded(&error)))?;
        Ok(list.items.into_iter().map(|object| object.metadata).collect())
    }
}

/// The pods of a namespace that a selector selects, optionally only the one of this name, sorted.
fn selected<'a>(
    index: &'a Index,
    namespace: &str,
    name: Option<&'a str>,
    selector: &Selector,
) -> Vec<(&'a str, &'a PodRecord)> {
    let Some(name) = name else { return index.select(namespace, selector) };
    let pod = index.pod(namespace, name);
    let pod = pod.filter(|pod| selector.matches(|key| pod.labels.get(key)));
    pod.map(|pod| (name, pod)).into_iter().collect()
}

/// The resource of pods, as discovery describes it.
pub fn pod_info() -> ResourceInfo {
    ResourceInfo {
        name: GroupResource::core("pods"),
        version: "v1".to_owned(),
        singular: "pod".to_owned(),
        kind: "Pod".to_owned(),
        namespaced: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;

    /// As by an override for services, which the manifests give no right to list.
    #[tokio::test]
    async fn a_list_that_is_refused_is_told_in_the_words_of_kubectl() {
        let (lines, _guard) = fake::LogLines::keep();
        let refused = "services is forbidden: User \"ann\" cannot list resource \"services\"";
        let (client, _) = fake::api(move |_| fake::failure(403, "Forbidden", refused));
        let lister = ObjectLister { client, cluster: Cluster::default() };
        let service = ResourceInfo {
            name: GroupResource::core("services"),
            kind: "Service".to_owned(),
            ..pod_info()
        };
        let listed = lister.names(&service, "shop", &Selector::default()).await;
        let expected =
            format!("unable to list matching resources: Error from server (Forbidden): {refused}");
        assert_eq!(listed.unwrap_err().to_string(), expected);
        lines.assert_plain();
    }
}
