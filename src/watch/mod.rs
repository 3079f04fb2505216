//! What the cluster says, followed by watches and kept in a compact index.

mod follow;
mod index;
mod read;
mod resources;

pub use follow::{Synced, follow_cluster};
pub use index::{
    Asked, AutoscalerRecord, Cluster, Demand, HpaRecord, Index, ObjectKey, PodRecord, Subject,
    SubjectKind,
};
pub use resources::{GroupResource, ResourceInfo, ResourceMap, Resources};
