//! Rules for `metrics.k8s.io`: what containers and nodes use.

use super::rule::ResourceLabels;
use crate::promql::matcher::Matcher;
use crate::promql::query::fields;
use crate::promql::template::Template;
use crate::watch::{GroupResource, ResourceMap};
use std::time::Duration;

/// How CPU and memory are asked for.
#[derive(Clone, Debug)]
pub struct ResourceRules {
    /// For CPU, in cores.
    pub cpu: UsageRule,
    /// For memory, in bytes.
    pub memory: UsageRule,
    /// The time that the queries look back.
    pub window: Duration,
    /// The server's name; the one of the flags, if none.
    pub backend: Option<String>,
}

/// How one resource's usage is asked for.
#[derive(Clone, Debug)]
pub struct UsageRule {
    /// The query for containers.
    pub container_query: Template,
    /// The query for nodes.
    pub node_query: Template,
    /// Which labels name which objects.
    pub labels: ResourceLabels,
    /// The label that names the container.
    pub container_label: String,
}

impl UsageRule {
    /// The query for the containers of pods of a namespace, and the label that
    /// names the pod.
    ///
    /// # Errors
    /// Where the template can't be filled in, or no label names pods.
    pub fn containers(
        &self,
        map: &ResourceMap,
        namespace: &str,
        pods: Vec<String>,
    ) -> Result<(String, String), String> {
        let namespaces = self.label(map, "namespaces")?;
        let label = self.label(map, "pods")?;
        let matchers = [
            (namespaces.as_str(), Matcher::Is(namespace.to_owned())),
            (label.as_str(), Matcher::any_of(pods)),
        ];
        let group_by = [label.clone(), self.container_label.clone()];
        let query = self.container_query.render(&fields("", &matchers, &group_by))?;
        Ok((query, label))
    }

    /// The query for nodes, and the label that names the node.
    ///
    /// # Errors
    /// Where the template can't be filled in, or no label names nodes.
    pub fn nodes(&self, map: &ResourceMap, nodes: Vec<String>) -> Result<(String, String), String> {
        let label = self.label(map, "nodes")?;
        let matchers = [(label.as_str(), Matcher::any_of(nodes))];
        let query = self.node_query.render(&fields("", &matchers, std::slice::from_ref(&label)))?;
        Ok((query, label))
    }

    fn label(&self, map: &ResourceMap, resource: &str) -> Result<String, String> {
        let label = self.labels.label(&GroupResource::core(resource), map);
        label.ok_or_else(|| {
            format!("no label names {resource}: resources.overrides or resources.template must")
        })
    }
}
