//! The samples that the API and the control loop share.

mod groups;
mod store;
mod table;

pub use groups::Asked;
pub use store::{ByObject, MetricError, ObjectSample, ObjectSamples, Store};
pub use table::{Finder, Sampled, Samples, Table};
