//! The registry of metrics: rules applied to the series in Prometheus.

use super::rule::{SeriesQuery, is_cluster_wide};
use super::rule_set::RuleSet;
use crate::prometheus::SeriesSchema;
use crate::watch::{GroupResource, ResourceMap};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A metric of objects of a resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectMetric {
    /// The resource, normalized.
    pub resource: GroupResource,
    /// Whether requests for it have a namespace.
    pub namespaced: bool,
    /// The metric's name.
    pub metric: String,
}

/// The source of a metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSource {
    /// The index of the rule.
    pub rule: usize,
    /// The name of the series.
    pub series: String,
}

/// The metrics, and the source of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registry {
    custom: BTreeMap<ObjectMetric, RuleSource>,
    external: BTreeMap<String, RuleSource>,
}

/// The known series of each series query.
pub type KnownSeries = HashMap<SeriesQuery, Arc<Vec<SeriesSchema>>>;

impl Registry {
    /// Applies rules. Of two rules for the same metric the later one counts, as in
    /// prometheus-adapter.
    pub fn new(rules: &RuleSet, known: &KnownSeries, map: &ResourceMap) -> Self {
        let mut registry = Self::default();
        for (index, rule) in rules.custom.iter().enumerate() {
            for schema in known.get(&rule.series).into_iter().flat_map(|s| s.iter()) {
                let Some(metric) =
                    rule.matches_series(&schema.name).then(|| rule.name.render(&schema.name))
                else {
                    continue;
                };
                let Some(metric) = metric else { continue };
                let labels = schema.labels.iter().map(String::as_str);
                let (resources, namespaced) = rule.labels.resources(labels, map);
                for resource in resources {
                    let namespaced = namespaced && !is_cluster_wide(&resource);
                    let key = ObjectMetric { resource, namespaced, metric: metric.clone() };
                    let source = RuleSource { rule: index, series: schema.name.clone() };
                    registry.custom.insert(key, source);
                }
            }
        }
        for (index, rule) in rules.external.iter().enumerate() {
            for schema in known.get(&rule.series).into_iter().flat_map(|s| s.iter()) {
                if !rule.matches_series(&schema.name) {
                    continue;
                }
                if let Some(metric) = rule.name.render(&schema.name) {
                    let source = RuleSource { rule: index, series: schema.name.clone() };
                    registry.external.insert(metric, source);
                }
            }
        }
        registry
    }

    /// The source of a metric of objects.
    pub fn custom(&self, metric: &ObjectMetric) -> Option<&RuleSource> {
        self.custom.get(metric)
    }

    /// The source of an external metric.
    pub fn external(&self, metric: &str) -> Option<&RuleSource> {
        self.external.get(metric)
    }

    /// All metrics of objects.
    pub fn custom_metrics(&self) -> impl Iterator<Item = (&ObjectMetric, &RuleSource)> {
        self.custom.iter()
    }

    /// All external metrics.
    pub fn external_metrics(&self) -> impl Iterator<Item = (&String, &RuleSource)> {
        self.external.iter()
    }
}
