//! The samples that the API and the control loop share.

mod flights;
mod store;

pub use store::{MetricError, PodSample, PodSampleSet, Sampled, Store};
