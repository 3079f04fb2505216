//! The resources that the API server has, and what kube-apiserver does differently for each of them.

use serde_json::{Value, json};

/// A resource in one version, with the rules of its storage.
#[derive(Debug)]
pub struct Resource {
    /// The group; empty for the core group.
    pub group: &'static str,
    /// The version.
    pub version: &'static str,
    /// The name in paths.
    pub plural: &'static str,
    /// The singular name.
    pub singular: &'static str,
    /// The kind of its objects.
    pub kind: &'static str,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
    /// Whether a CustomResourceDefinition defines it.
    pub custom: bool,
    /// Whether it has a `status` subresource.
    pub status: bool,
    /// Where the selector of its `scale` subresource is; none without this subresource.
    pub scale: Option<ScaleSelector>,
    /// When `metadata.generation` grows.
    pub generation: Generation,
    /// Whether it may be replaced without a `resourceVersion`.
    pub unconditional: bool,
    /// Whether PUT creates what is not there.
    pub create_on_put: bool,
    /// The numbers of the status that are left out where they are zero.
    pub no_zeros: &'static [&'static str],
    /// The status of a new object.
    pub new_status: fn() -> Value,
}

/// Where the selector of a scale is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleSelector {
    /// An object in `spec.selector`.
    Spec,
    /// A text in `status.selector`.
    Status,
}

/// When `metadata.generation` grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// There is none.
    Never,
    /// When the spec changes.
    Spec,
    /// When the spec or an annotation changes.
    SpecOrAnnotations,
    /// When anything but metadata and status changes.
    AllButStatus,
}

impl Resource {
    /// `apiVersion` of its objects.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// The name as the texts of errors have it: `deployments.apps`, and `pods`.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.plural.to_owned()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// The place of this resource in [`ALL`].
    pub(super) fn index(&self) -> usize {
        let place = ALL.iter().position(|other| std::ptr::eq(*other, self));
        place.expect("a resource is one of the statics of this module")
    }
}

/// The rules that most resources have.
const COMMON: Resource = Resource {
    group: "",
    version: "v1",
    plural: "",
    singular: "",
    kind: "",
    namespaced: true,
    custom: false,
    status: false,
    scale: None,
    generation: Generation::Never,
    unconditional: true,
    create_on_put: false,
    no_zeros: &[],
    new_status: || Value::Null,
};

/// Namespaces.
pub static NAMESPACES: Resource = Resource {
    plural: "namespaces",
    singular: "namespace",
    kind: "Namespace",
    namespaced: false,
    status: true,
    new_status: || json!({"phase": "Active"}),
    ..COMMON
};

/// Pods.
pub static PODS: Resource = Resource {
    plural: "pods",
    singular: "pod",
    kind: "Pod",
    status: true,
    generation: Generation::Spec,
    new_status: || json!({"phase": "Pending", "qosClass": "BestEffort"}),
    ..COMMON
};

/// ConfigMaps.
pub static CONFIG_MAPS: Resource =
    Resource { plural: "configmaps", singular: "configmap", kind: "ConfigMap", ..COMMON };

/// Events of the core group. They expire (`EVENT_TTL`).
pub static EVENTS: Resource =
    Resource { plural: "events", singular: "event", kind: "Event", create_on_put: true, ..COMMON };

/// Deployments.
pub static DEPLOYMENTS: Resource = Resource {
    group: "apps",
    plural: "deployments",
    singular: "deployment",
    kind: "Deployment",
    status: true,
    scale: Some(ScaleSelector::Spec),
    generation: Generation::SpecOrAnnotations,
    no_zeros: &[
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "observedGeneration",
    ],
    new_status: || json!({}),
    ..COMMON
};

/// StatefulSets.
pub static STATEFUL_SETS: Resource = Resource {
    group: "apps",
    plural: "statefulsets",
    singular: "statefulset",
    kind: "StatefulSet",
    status: true,
    scale: Some(ScaleSelector::Spec),
    generation: Generation::Spec,
    no_zeros: &["readyReplicas", "currentReplicas", "updatedReplicas", "observedGeneration"],
    new_status: || json!({"availableReplicas": 0, "replicas": 0}),
    ..COMMON
};

/// Leases.
pub static LEASES: Resource = Resource {
    group: "coordination.k8s.io",
    plural: "leases",
    singular: "lease",
    kind: "Lease",
    unconditional: false,
    create_on_put: true,
    ..COMMON
};

/// HorizontalPodAutoscalers.
pub static HPAS: Resource = Resource {
    group: "autoscaling",
    version: "v2",
    plural: "horizontalpodautoscalers",
    singular: "horizontalpodautoscaler",
    kind: "HorizontalPodAutoscaler",
    status: true,
    no_zeros: &["currentReplicas"],
    new_status: || json!({"desiredReplicas": 0}),
    ..COMMON
};

/// Plimsoll's Autoscalers.
pub static AUTOSCALERS: Resource = Resource {
    group: "plimsoll.dev",
    version: "v1alpha1",
    plural: "autoscalers",
    singular: "autoscaler",
    kind: "Autoscaler",
    custom: true,
    status: true,
    generation: Generation::AllButStatus,
    unconditional: false,
    ..COMMON
};

/// MetricRules.
pub static METRIC_RULES: Resource = Resource {
    group: "plimsoll.dev",
    version: "v1alpha1",
    plural: "metricrules",
    singular: "metricrule",
    kind: "MetricRule",
    custom: true,
    status: true,
    generation: Generation::AllButStatus,
    unconditional: false,
    ..COMMON
};

/// A custom resource with a scale: `spec.replicas`, `status.replicas` and `status.selector`.
pub static FLEETS: Resource = Resource {
    group: "example.com",
    plural: "fleets",
    singular: "fleet",
    kind: "Fleet",
    custom: true,
    status: true,
    scale: Some(ScaleSelector::Status),
    generation: Generation::AllButStatus,
    unconditional: false,
    ..COMMON
};

/// All resources, those of a group in a row.
pub static ALL: [&Resource; 11] = [
    &NAMESPACES,
    &PODS,
    &CONFIG_MAPS,
    &EVENTS,
    &DEPLOYMENTS,
    &STATEFUL_SETS,
    &LEASES,
    &HPAS,
    &AUTOSCALERS,
    &METRIC_RULES,
    &FLEETS,
];

/// The resource of a group, version and plural name.
pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static Resource> {
    ALL.into_iter().find(|r| r.plural == plural && r.group == group && r.version == version)
}
