//! Rules in prometheus-adapter's format: from the series in Prometheus to metrics of the cluster's objects.

mod failure;
mod listing;
mod objects;
mod registry;
mod retries;
mod rule;
mod rule_set;
mod service;
#[cfg(test)]
mod tests;
mod usage;
mod values;

pub use failure::RuleQueryError;
#[cfg(test)]
pub use listing::UNKNOWN_NAME_BYTES;
pub use objects::pod_info;
pub use registry::ObjectMetric;
pub use rule::{Filter, MetricName, ResourceLabels, Rule, RuleError, SeriesQuery, pattern};
pub use rule_set::RuleSet;
pub use service::{Dependencies, ListingSettings, Rules};
pub use usage::{ResourceRules, UsageRule};
pub use values::{NodeUsage, ObjectSelection, ObjectValue, PodUsage};
