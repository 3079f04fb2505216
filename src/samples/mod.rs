//! The samples that the API and the control loop share.

mod store;

pub use store::{MetricError, PodSample, PodSampleSet, Store};
