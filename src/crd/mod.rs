//! The `Autoscaler` custom resource: its types, the schema generated from them, and the parsing of
//! objects.

mod autoscaler;
mod schema;
mod short_metrics;
mod validation;

pub use autoscaler::{
    Autoscaler, AutoscalerSpec, AutoscalerStatus, Executor, Fallback, Mode, Pause, ReadError,
};
pub use schema::{custom_resource_definition, custom_resource_definition_yaml};
pub use short_metrics::CustomMetric;
