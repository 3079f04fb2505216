//! What the cluster says, followed by watches and kept in a compact index.

mod backoff;
mod follow;
mod index;
mod lean;
mod pods;
mod read;
mod resources;
mod synced;

pub use backoff::{Failures, Growing, Progress};
pub use follow::follow_cluster;
pub use index::{
    Asked, AutoscalerRecord, Cluster, Demand, HpaRecord, Index, ObjectKey, ScaleRecord, Subject,
    SubjectKind, Workload,
};
pub use pods::PodRecord;
pub use read::owner;
#[cfg(test)]
pub use read::{autoscaler as read_autoscaler, hpa as read_hpa, pod as read_pod};
pub use resources::{GroupResource, ResourceInfo, ResourceMap, Resources};
pub use synced::{Kind, Synced, WatchHealth};
