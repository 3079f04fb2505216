//! All rules of a configuration.

use super::rule::Rule;
use super::usage::ResourceRules;
use crate::prometheus::Client;
use std::collections::BTreeMap;

/// All rules of a configuration.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    /// For `custom.metrics.k8s.io`.
    pub custom: Vec<Rule>,
    /// For `external.metrics.k8s.io`.
    pub external: Vec<Rule>,
    /// For `metrics.k8s.io`.
    pub resource: Option<ResourceRules>,
    /// The servers that rules name, besides the server of the flags.
    pub backends: BTreeMap<String, Client>,
}

impl RuleSet {
    /// The rules for objects and the external ones, each with its path in the configuration.
    pub fn with_paths(&self) -> impl Iterator<Item = (String, &Rule)> {
        let of = |list: &'static str| {
            move |(index, rule): (usize, _)| (format!("{list}[{index}]"), rule)
        };
        let custom = self.custom.iter().enumerate().map(of("rules"));
        custom.chain(self.external.iter().enumerate().map(of("externalRules")))
    }
}
