//! Rules in prometheus-adapter's format: from the series in Prometheus to metrics of the cluster's objects.

mod compile;
mod failure;
mod listing;
mod metric_rules;
mod objects;
mod registry;
mod retries;
mod rule;
mod rule_query;
mod rule_set;
mod service;
#[cfg(test)]
mod tests;
mod usage;
mod values;

pub use compile::{
    ADMINISTRATOR, FieldError, OptionalText, RawResources, RawRule, at, compile, compile_labels,
    template, text,
};
pub use failure::RuleQueryError;
#[cfg(test)]
pub use listing::UNKNOWN_NAME_BYTES;
#[cfg(test)]
pub use metric_rules::StandingReason;
pub use metric_rules::{MetricRules, Standing, check as check_metric_rule};
pub use objects::{Names, pod_info};
pub use registry::ObjectMetric;
pub use rule::Rule;
pub use rule_query::{ObjectSelection, ObjectValue, RuleQuery};
pub use rule_set::RuleSet;
pub use service::{Dependencies, ListingSettings, Rules};
pub use usage::{ResourceRules, UsageRule};
pub use values::{NodeUsage, PodUsage};
