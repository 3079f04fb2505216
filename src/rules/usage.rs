//! Rules for `metrics.k8s.io`: the usage of containers and nodes.

use super::rule::ResourceLabels;
use crate::promql::matcher::Matcher;
use crate::promql::query::fields;
use crate::promql::template::Template;
use crate::watch::{GroupResource, ResourceMap};
use std::time::Duration;

/// The rules for CPU and memory.
#[derive(Clone, Debug)]
pub struct ResourceRules {
    /// For CPU, in cores.
    pub cpu: UsageRule,
    /// For memory, in bytes.
    pub memory: UsageRule,
    /// The window of the queries.
    pub window: Duration,
    /// The server's name; none for the server of the flags.
    pub backend: Option<String>,
}

/// The rule for one resource.
#[derive(Clone, Debug)]
pub struct UsageRule {
    /// The query for containers.
    pub container_query: Template,
    /// The query for nodes.
    pub node_query: Template,
    /// The labels that name objects.
    pub labels: ResourceLabels,
    /// The label that names the container.
    pub container_label: String,
}

impl UsageRule {
    /// The query for the containers of pods of a namespace, and the label that
    /// names the pod.
    ///
    /// # Errors
    /// If the template can't be rendered, or no label names pods.
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
    /// If the template can't be rendered, or no label names nodes.
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
