//! The `Autoscaler` custom resource: its types, the schema generated from them, and the parsing of
//! objects.

mod autoscaler;
mod mode;
mod schema;
mod short_metrics;
mod status;
mod validation;

pub use autoscaler::{
    Autoscaler, AutoscalerSpec, Executor, Fallback, ReadError, Rollouts, SelectionStrategy, WarmUp,
};
pub use mode::{Mode, Pause};
pub use schema::{custom_resource_definition, custom_resource_definition_yaml};
pub use short_metrics::CustomMetric;
pub use status::{AutoscalerStatus, ScheduleStatus, ScheduleWindow};
