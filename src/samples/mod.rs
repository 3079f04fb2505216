//! The samples that the API and the control loop share.

#[cfg(test)]
mod faults;
mod groups;
mod store;
mod table;

pub use groups::Asked;
pub use store::{ByObject, MetricError, ObjectSample, ObjectSamples, Store};
pub use table::{Finder, Sampled, Samples, Table};
