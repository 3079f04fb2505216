//! Rules: from the series there are to metrics of the cluster's objects, as
//! prometheus-adapter's configuration describes it.

#[cfg(test)]
mod faults;
mod listing;
mod registry;
mod rule;
mod service;
mod usage;

pub use listing::NAMES;
pub use registry::{KnownSeries, ObjectMetric, Registry, Source};
pub use rule::{
    Filter, MetricName, ResourceLabels, Rule, RuleError, RuleSet, SeriesQuery, pattern,
};
pub use service::{
    Failure, NodeUsage, ObjectValue, ObjectValues, PodUsage, PodsUsage, Rules, Settings, Which,
    pod_info,
};
pub use usage::{ResourceRules, UsageRule};
