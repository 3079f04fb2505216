//! API objects of which only the used fields are deserialized. `managedFields` is often larger
//! than the rest of an object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use kube::core::{ApiResource, DynamicResourceScope};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// An object with a part of its metadata, spec and status.
#[derive(Clone, Debug, Deserialize)]
pub struct Lean<Spec, Status> {
    /// The used part of the metadata.
    #[serde(default, deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// The used part of the spec.
    #[serde(default)]
    pub spec: Spec,
    /// The used part of the status.
    #[serde(default)]
    pub status: Status,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct LeanMetadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    owner_references: Option<Vec<OwnerReference>>,
    annotations: LeanAnnotations,
}

/// The only annotation that is used: `last-applied-configuration` alone is as large as the object.
#[derive(Deserialize, Default)]
#[serde(default)]
struct LeanAnnotations {
    #[serde(rename = "deployment.kubernetes.io/revision")]
    revision: Option<String>,
}

fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let LeanMetadata {
        name,
        namespace,
        uid,
        resource_version,
        generation,
        labels,
        creation_timestamp,
        deletion_timestamp,
        owner_references,
        annotations,
    } = LeanMetadata::deserialize(deserializer)?;
    let annotations = annotations.revision.map(|revision| {
        BTreeMap::from([("deployment.kubernetes.io/revision".to_owned(), revision)])
    });
    Ok(ObjectMeta {
        name,
        namespace,
        uid,
        resource_version,
        generation,
        labels,
        creation_timestamp,
        deletion_timestamp,
        owner_references,
        annotations,
        ..ObjectMeta::default()
    })
}

impl<Spec, Status> Resource for Lean<Spec, Status> {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        resource.group.as_str().into()
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        resource.version.as_str().into()
    }

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        resource.kind.as_str().into()
    }

    fn api_version(resource: &ApiResource) -> Cow<'_, str> {
        resource.api_version.as_str().into()
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        resource.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
