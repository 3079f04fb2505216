//! The custom resources `Autoscaler` and `MetricRule`: their types, the schemas generated from them, and the
//! parsing of objects.

mod autoscaler;
mod metric_rule;
mod mode;
mod schema;
mod short_metrics;
mod status;
mod status_digest;
mod validation;

pub use autoscaler::{
    Autoscaler, AutoscalerSpec, Executor, Fallback, ReadError, Rollouts, SelectionStrategy, WarmUp,
};
pub use metric_rule::{
    MetricRule, MetricRuleSpec, MetricRuleStatus, RuleFilter, RuleName, RuleResource, RuleResources,
};
pub use mode::{Mode, Pause};
pub use schema::{
    custom_resource_definition, custom_resource_definitions_yaml, metric_rule_definition,
};
pub use short_metrics::{CustomMetric, ResourceMetric};
pub use status::{AutoscalerStatus, ScheduleStatus, ScheduleWindow, conditions};
pub use status_digest::{StatusDigest, StatusNumbers, digest_of_hpa};

#[cfg(test)]
mod tests;
