//! The samples that the API and the control loop share.

#[cfg(test)]
mod faults;
mod flight;
mod groups;
mod kinds;
mod learned;
mod store;
mod table;

pub use flight::Asker;
pub use groups::{Asked, FORMS, REMEMBERED};
pub use kinds::{Doubt, KINDS};
pub use store::{ByObject, MetricError, NARROWED, ObjectSample, ObjectSamples, SHAPES, Store};
pub use table::{Finder, Sampled, Samples, Table};
