//! The state of the cluster: reflectors list and watch it, and keep a compact index.

mod autoscaler_ref;
mod backoff;
#[cfg(test)]
mod bytes;
mod cluster;
mod index;
mod lean;
mod metric_rules;
mod pods;
mod read;
mod records;
mod reflector;
mod resources;
mod rollout;
#[cfg(test)]
mod rollout_tests;
mod synced;
mod workload;

pub use autoscaler_ref::{AutoscalerKind, AutoscalerRef, ObjectKey};
pub use backoff::{FailureLog, Progress, ResettableBackoff};
pub use cluster::Cluster;
pub use index::Index;
pub use pods::{Owner, PodRecord};
pub use read::{LeanPod, pod as read_pod};
#[cfg(test)]
pub use read::{autoscaler as read_autoscaler, hpa as read_hpa};
pub use read::{owner, parse_spec};
pub use records::{
    AutoscalerRecord, HpaRecord, MetricRuleRecord, ParsedSpec, ScaleRecord, ScalingSpec, Workload,
};
pub use reflector::run_reflectors;
pub use resources::{GroupResource, ResourceInfo, ResourceMap, Resources};
#[cfg(test)]
pub use rollout::{Revision, Rollout, Seen};
pub use synced::{WatchHealth, WatchStatuses};
