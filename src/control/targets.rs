//! Scale targets: anything with a `/scale` subresource. The scales of Deployments and StatefulSets
//! are watched, so that an evaluation in which nothing changes sends no request to the API server.

use super::requests::{handled_once, message, send, within};
use crate::cache::{self, Cache};
use crate::hpa::{self, TargetRef};
use crate::k8s::Selector;
use crate::k8s::managed_fields::FIELD_MANAGER;
use crate::k8s::selector::ParseSelectorError;
use crate::leader::{FencingToken, is_indeterminate};
use crate::watch::{Cluster, Index, ObjectKey, ScaleRecord, Workload};
use k8s_openapi::api::autoscaling::v1::Scale;
use kube::api::PostParams;
use kube::core::{ApiResource, DynamicObject, Request};
use kube::{Api, Client, discovery};
use std::sync::Arc;
use std::time::Duration;

/// Reads and writes scales. Caches which resource a kind is.
#[derive(Clone)]
pub struct Targets {
    client: Client,
    /// By group and kind.
    resources: Cache<(String, String), Arc<[ApiResource]>>,
    /// Kinds that were not found.
    absent: Cache<(String, String), ()>,
}

/// The scale of a target.
pub struct Target {
    /// Its replicas in spec and status.
    pub replicas: hpa::Scale,
    /// The selector of its pods, as text.
    pub selector: String,
    /// The same, parsed: once per read of the scale, and under no lock.
    pub parsed_selector: Result<Selector, ParseSelectorError>,
    /// The object to be written; none if the scale is from the watch cache only, which may be behind.
    pub object: Option<Box<(Api<DynamicObject>, Scale)>>,
}

/// The record of a target's scale, if its kind is watched.
pub fn watched_scale<'a>(
    index: &'a Index,
    namespace: &str,
    target: &TargetRef,
) -> Option<&'a ScaleRecord> {
    let group = hpa::parse_group(&target.api_version).ok()?;
    let workload = Workload::of(group, &target.kind)?;
    let key = ObjectKey { namespace: namespace.to_owned(), name: target.name.clone() };
    index.scale(workload, &key)
}

/// Whether the kind of a target is watched.
pub fn is_watched(target: &TargetRef) -> bool {
    hpa::parse_group(&target.api_version)
        .is_ok_and(|group| Workload::of(group, &target.kind).is_some())
}

/// Why a scale was not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// Its replicas or its selector differ from those that were evaluated, or the autoscaler does.
    #[error("the scale or its autoscaler was changed by another while it was decided on")]
    Changed,
    /// The API server rejected the write, with this message.
    #[error("{0}")]
    Failed(String),
    /// The request got no conclusive response: the write may or may not take effect. The error instead
    /// of a response.
    #[error("{0}")]
    Indeterminate(String),
}

/// The replicas and the selector of a scale.
fn replicas_and_selector(scale: &Scale) -> (hpa::Scale, String) {
    let status = scale.status.as_ref();
    let replicas = hpa::Scale {
        spec_replicas: scale.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0),
        status_replicas: status.map_or(0, |status| status.replicas),
    };
    (replicas, status.and_then(|status| status.selector.clone()).unwrap_or_default())
}

impl Target {
    fn new(
        (replicas, selector): (hpa::Scale, String),
        object: Option<Box<(Api<DynamicObject>, Scale)>>,
    ) -> Self {
        let parsed_selector = selector.parse();
        Self { replicas, selector, parsed_selector, object }
    }

    /// Whether the replicas and the selector are equal.
    pub fn is_same_scale(&self, other: &Self) -> bool {
        self.replicas == other.replicas && self.selector == other.selector
    }
}

/// The TTL of the resources of a kind.
const RESOURCE_TTL: Duration = Duration::from_secs(600);
/// The TTL of a kind that was not found: its CustomResourceDefinition may be created at any time,
/// and an Autoscaler that names a kind which never is asks in every evaluation.
const ABSENT_TTL: Duration = Duration::from_secs(10);
/// The maximum size of each cache, in bytes.
const CACHE_BYTES: usize = 1 << 20;
/// How often a write is tried if there are conflicts.
const CONFLICT_ATTEMPTS: usize = 5;

impl Targets {
    /// The targets of the cluster that the client is connected to.
    pub fn new(client: Client) -> Self {
        let texts = |texts: &[&String]| -> usize {
            texts.iter().map(|text| size_of::<String>() + text.len()).sum()
        };
        let resource = move |resource: &ApiResource| {
            let ApiResource { group, version, api_version, kind, plural } = resource;
            texts(&[group, version, api_version, kind, plural])
        };
        let bytes = move |(group, kind): &(String, String), all: &Arc<[ApiResource]>| {
            texts(&[group, kind]) + all.iter().map(resource).sum::<usize>()
        };
        let absent = |(group, kind): &(String, String), (): &()| group.len() + kind.len();
        Self {
            client,
            resources: cache::of_bytes(CACHE_BYTES, RESOURCE_TTL, bytes),
            absent: cache::of_bytes(CACHE_BYTES, ABSENT_TTL, absent),
        }
    }

    /// The scale of a target, from the watch of its kind if there is one. The error is upstream's
    /// text, for a condition.
    pub async fn scale(
        &self,
        cluster: &Cluster,
        namespace: &str,
        target: &TargetRef,
    ) -> Result<Target, String> {
        match self.cached(cluster, namespace, target) {
            Some(cached) => Ok(cached),
            None => self.read(namespace, target).await,
        }
    }

    /// The scale of a target from the watch of its kind, if there is one.
    pub fn cached(&self, cluster: &Cluster, namespace: &str, target: &TargetRef) -> Option<Target> {
        let scale = |index: &Index| watched_scale(index, namespace, target).cloned();
        let ScaleRecord { replicas, selector, .. } = cluster.read(scale)?;
        Some(Target::new((replicas, selector), None))
    }

    /// Reads the scale of a target from the API server, to be written.
    pub async fn read(&self, namespace: &str, target: &TargetRef) -> Result<Target, String> {
        let group = hpa::parse_group(&target.api_version)?;
        let resources = self.resources(group, &target.kind).await?;
        let mut first_error = None;
        let mut found = None;
        // As upstream, which tries all resources of a kind and returns the first error.
        for resource in resources.iter() {
            let api: Api<DynamicObject> =
                Api::namespaced_with(self.client.clone(), namespace, resource);
            match within(api.get_scale(&target.name)).await {
                Ok(scale) => {
                    found = Some((api, scale));
                    break;
                }
                Err(error) => {
                    first_error.get_or_insert_with(|| message(&error));
                }
            }
        }
        let no_match = || hpa::no_kind_match(&target.kind, group);
        let (api, scale) = found.ok_or_else(|| first_error.unwrap_or_else(no_match))?;
        Ok(Target::new(replicas_and_selector(&scale), Some(Box::new((api, scale)))))
    }

    /// Writes replicas to a scale that was read. After a conflict it is tried again as long as
    /// replicas and selector are those that were evaluated. The other writer may be this very request,
    /// if a proxy has sent it twice: then the replicas are as desired. By the Lease no other replica
    /// leads when the write begins, and by the clock none when it ends. Nothing is sent once the autoscaler is not
    /// the one that was evaluated: conflicts and reads of the Lease may take long.
    ///
    /// # Errors
    /// [`WriteError::Changed`] if the scale or the autoscaler was changed meanwhile: it is to be evaluated again.
    /// [`WriteError::Failed`] if it was not written, and [`WriteError::Indeterminate`] if it may have
    /// been.
    pub async fn write(
        &self,
        token: &FencingToken,
        (api, scale): &(Api<DynamicObject>, Scale),
        replicas: i32,
        is_current: impl Fn() -> bool,
    ) -> Result<(), WriteError> {
        let failed = |error: kube::Error| {
            let kind = match is_indeterminate(&error) {
                true => WriteError::Indeterminate,
                false => WriteError::Failed,
            };
            kind(message(&error))
        };
        let (before, selector) = replicas_and_selector(scale);
        let mut scale = scale.clone();
        let name = scale.metadata.name.clone().unwrap_or_default();
        let mut tries = 0;
        loop {
            tries += 1;
            scale.spec.get_or_insert_default().replicas = Some(replicas);
            let replace = async {
                match is_current() {
                    true => self.replace(api, &name, &scale).await.map(Some),
                    false => Ok(None),
                }
            };
            match token.write_scale(replace).await {
                Ok(Some(_)) => return Ok(()),
                Ok(None) => return Err(WriteError::Changed),
                Err(kube::Error::Api(status))
                    if status.code == 409 && tries < CONFLICT_ATTEMPTS =>
                {
                    let read = within(api.get_scale(&name)).await;
                    scale = read.map_err(|error| WriteError::Failed(message(&error)))?;
                    let (now, selector_now) = replicas_and_selector(&scale);
                    match now.spec_replicas {
                        _ if selector_now != selector => return Err(WriteError::Changed),
                        now if now == replicas => return Ok(()),
                        now if now == before.spec_replicas => {}
                        _ => return Err(WriteError::Changed),
                    }
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }

    async fn replace(
        &self,
        api: &Api<DynamicObject>,
        name: &str,
        scale: &Scale,
    ) -> Result<Scale, kube::Error> {
        let body = serde_json::to_vec(scale).map_err(kube::Error::SerdeError)?;
        let request = Request::new(api.resource_url());
        let parameters =
            PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
        let request = request.replace_subresource("scale", name, &parameters, body);
        send(&self.client, handled_once(request)).await
    }

    /// The resource of a kind of a group: the first, if there are several.
    ///
    /// # Errors
    /// If there is none, or discovery fails; the text is for a condition.
    pub async fn resource(&self, group: &str, kind: &str) -> Result<ApiResource, String> {
        let all = self.resources(group, kind).await?;
        all.first().cloned().ok_or_else(|| hpa::no_kind_match(kind, group))
    }

    /// The resources of a kind of a group, at least one.
    async fn resources(&self, group: &str, kind: &str) -> Result<Arc<[ApiResource]>, String> {
        let key = (group.to_owned(), kind.to_owned());
        if let Some(resources) = self.resources.get(&key) {
            return Ok(resources);
        }
        if self.absent.get(&key).is_some() {
            return Err(hpa::no_kind_match(kind, group));
        }
        let found: Arc<[ApiResource]> =
            match within(discovery::oneshot::group(&self.client, group)).await {
                Ok(group) => {
                    // One per plural name in any version, the most stable first.
                    let mut found: Vec<ApiResource> = Vec::new();
                    for version in group.versions() {
                        for (resource, _) in group.versioned_resources(version) {
                            let known = found.iter().any(|known| known.plural == resource.plural);
                            if resource.kind == kind && !known {
                                found.push(resource);
                            }
                        }
                    }
                    found.into()
                }
                Err(kube::Error::Discovery(_)) => Arc::default(),
                Err(error) => return Err(message(&error)),
            };
        if found.is_empty() {
            self.absent.insert(key, ());
            return Err(hpa::no_kind_match(kind, group));
        }
        self.resources.insert(key, found.clone());
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{self, deployments, groups, scale};
    use super::*;

    /// An API server whose scale another writer sets to 20 before the first write comes.
    fn contested(to: i32) -> (Client, fake::Log) {
        let mut version = 1;
        let mut replicas = 3;
        fake::api(move |request| match request.line.as_str() {
            "GET /apis" => (200, groups()),
            "GET /apis/apps/v1" => (200, deployments()),
            line if line.starts_with("PUT") && version == 1 => {
                (version, replicas) = (2, to);
                fake::failure(409, "Conflict", "the object has been modified")
            }
            line if line.starts_with("PUT") => {
                replicas = request.body["spec"]["replicas"].as_i64().unwrap_or(0) as i32;
                (200, scale(version, replicas))
            }
            _ => (200, scale(version, replicas)),
        })
    }

    fn web() -> TargetRef {
        let text = |text: &str| text.to_owned();
        TargetRef { api_version: text("apps/v1"), kind: text("Deployment"), name: text("web") }
    }

    #[tokio::test]
    async fn a_change_by_another_writer_is_not_overwritten() {
        let (client, log) = contested(20);
        let targets = Targets::new(client.clone());
        let target = targets.read("shop", &web()).await.unwrap();
        let object = target.object.unwrap();
        assert!(targets.write(&fake::fencing_token(&client), &object, 6, || true).await.is_err());
        assert_eq!(log.of("PUT").len(), 1);
        // If a proxy has sent it twice, nothing is left to do.
        let (client, log) = contested(6);
        let targets = Targets::new(client.clone());
        let target = targets.read("shop", &web()).await.unwrap();
        targets
            .write(&fake::fencing_token(&client), &target.object.unwrap(), 6, || true)
            .await
            .unwrap();
        assert_eq!(log.of("PUT").len(), 1);
        // A change of something else is no reason to give up.
        let (client, log) = contested(3);
        let targets = Targets::new(client.clone());
        let target = targets.read("shop", &web()).await.unwrap();
        targets
            .write(&fake::fencing_token(&client), &target.object.unwrap(), 6, || true)
            .await
            .unwrap();
        assert_eq!(log.of("PUT").len(), 2);
    }

    /// A conflict rules the write out, whatever becomes of the read after it.
    #[tokio::test]
    async fn a_read_that_fails_after_a_conflict_makes_no_write_indeterminate() {
        let mut written = false;
        let (client, _) = fake::api(move |request| match request.line.as_str() {
            "GET /apis" => (200, groups()),
            "GET /apis/apps/v1" => (200, deployments()),
            line if line.starts_with("PUT") => {
                written = true;
                fake::failure(409, "Conflict", "the object has been modified")
            }
            _ if written => fake::failure(503, "ServiceUnavailable", "shutting down"),
            _ => (200, scale(1, 3)),
        });
        let targets = Targets::new(client.clone());
        let object = targets.read("shop", &web()).await.unwrap().object.unwrap();
        let written = targets.write(&fake::fencing_token(&client), &object, 6, || true).await;
        assert_eq!(written, Err(WriteError::Failed("shutting down".to_owned())));
    }

    #[tokio::test]
    async fn that_a_kind_is_absent_is_cached() {
        let (client, log) = contested(3);
        let targets = Targets::new(client);
        let gone = TargetRef { kind: "Gone".to_owned(), ..web() };
        for _ in 0..100 {
            let error = targets.read("shop", &gone).await.err().unwrap();
            assert!(error.contains("Gone"), "{error}");
        }
        assert_eq!(log.of("").len(), 2, "{:?}", log.of(""));
        assert!(targets.read("shop", &web()).await.is_ok());
    }

    /// As upstream's, which asks for the scale of each resource that the kind has.
    #[tokio::test]
    async fn each_resource_of_a_kind_is_tried_and_the_first_error_is_returned() {
        for has_scale in [true, false] {
            let (client, _) = fake::api(move |request| match request.line.as_str() {
                "GET /apis" => (200, groups()),
                "GET /apis/apps/v1" => {
                    let mut all = deployments();
                    let mut other = all["resources"][0].clone();
                    other["name"] = "blueprints".into();
                    all["resources"].as_array_mut().unwrap().insert(0, other);
                    (200, all)
                }
                line if line.contains("/blueprints/") => {
                    fake::failure(404, "NotFound", "blueprints have no scale")
                }
                _ if has_scale => (200, scale(1, 3)),
                _ => fake::failure(403, "Forbidden", "not for you"),
            });
            let read = Targets::new(client).read("shop", &web()).await;
            match read {
                Ok(target) => assert!(has_scale && target.replicas.spec_replicas == 3),
                Err(error) => assert!(!has_scale && error.contains("no scale"), "{error}"),
            }
        }
    }
}
