//! Names of objects, and of the autoscalers among them.

use std::sync::Arc;

/// The namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// An autoscaler: an object that is evaluated.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AutoscalerRef {
    /// The kind of the object.
    pub kind: AutoscalerKind,
    /// The namespace and name of the object, shared: many maps have it as their key.
    pub key: Arc<ObjectKey>,
}

/// A kind of autoscaler. An Autoscaler sorts first: its spec may say more about a metric
/// than the metric's name does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AutoscalerKind {
    /// An Autoscaler.
    Autoscaler,
    /// A native HorizontalPodAutoscaler.
    Hpa,
}

impl AutoscalerRef {
    /// An Autoscaler.
    pub fn autoscaler(key: impl Into<Arc<ObjectKey>>) -> Self {
        Self { kind: AutoscalerKind::Autoscaler, key: key.into() }
    }

    /// A native HorizontalPodAutoscaler.
    pub fn hpa(key: impl Into<Arc<ObjectKey>>) -> Self {
        Self { kind: AutoscalerKind::Hpa, key: key.into() }
    }

    /// The name of another autoscaler in a message about this one. The kind is included if it
    /// differs.
    pub fn name_of(&self, other: &Self) -> String {
        if self.kind == other.kind { other.key.to_string() } else { other.to_string() }
    }
}

impl AutoscalerKind {
    /// The kind as the API writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Autoscaler => "Autoscaler",
            Self::Hpa => "HorizontalPodAutoscaler",
        }
    }
}

impl std::fmt::Display for AutoscalerRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.kind.as_str(), self.key)
    }
}
