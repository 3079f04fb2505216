//! The values of the metrics that rules serve: of objects, external, and usage.

use super::failure::RuleQueryError;
use super::objects::Names;
use super::rule_query::selector_matchers;
use super::service::Rules;
use super::usage::{ResourceRules, UsageRule};
use crate::k8s::{LabelSet, Quantity, Selector};
use crate::prometheus::InvalidSample;
use crate::promql::matcher::Matcher;
use crate::samples::{Caller, MetricError, QueryHandle, QueryResult, Reader};
use crate::time::UnixMillis;
use crate::watch::{GroupResource, ObjectKey, ResourceInfo};
use std::collections::BTreeMap;
use std::sync::Arc;

/// An object's value of a metric.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectValue {
    /// The name of the object.
    pub name: String,
    /// The value.
    pub value: Quantity,
    /// When it was measured.
    pub time: UnixMillis,
}

/// The values of a metric for objects of one resource.
pub struct ObjectValues {
    /// The values, in the order of the objects.
    pub values: Vec<ObjectValue>,
    /// The handle to repeat the query.
    pub handle: QueryHandle,
}

/// The objects of a request.
#[derive(Clone, Copy, Debug)]
pub enum ObjectSelection<'a> {
    /// The object of this name.
    Name(&'a str),
    /// The objects that a selector selects.
    Selector(&'a Selector),
}

/// The usage of pods.
pub struct PodsUsage {
    /// The usage by pod.
    pub by_pod: BTreeMap<String, PodUsage>,
    /// The handles to repeat the queries for CPU and memory.
    pub handles: [QueryHandle; 2],
}

/// The usage of a pod, by container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodUsage {
    /// CPU in cores and memory in bytes, by container.
    pub containers: BTreeMap<String, (Quantity, Quantity)>,
    /// The time of the oldest sample.
    pub time: UnixMillis,
}

/// The usage of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeUsage {
    /// CPU in cores.
    pub cpu: Quantity,
    /// Memory in bytes.
    pub memory: Quantity,
    /// The time of the older sample.
    pub time: UnixMillis,
}

impl Rules {
    /// The values of a metric for objects of a resource. Without a namespace, the objects are cluster-scoped.
    ///
    /// # Errors
    /// As [`RuleQueryError`] says.
    pub async fn objects(
        &self,
        namespace: &str,
        resource: &GroupResource,
        selection: ObjectSelection<'_>,
        metric: &str,
        series: &Selector,
        reader: Reader,
    ) -> Result<ObjectValues, RuleQueryError> {
        let query = self.query(namespace, resource, selection, metric, series, reader).await?;
        let samples = self.samples(&query).await?;
        let (values, handle) = (query.values(&samples)?, samples.values.handle().clone());
        Ok(ObjectValues { values, handle })
    }

    /// The names of the pods of a namespace that a selector selects, optionally only the one of this name.
    ///
    /// # Errors
    /// If they can't be listed.
    pub async fn pod_names(
        &self,
        namespace: &str,
        name: Option<&str>,
        selector: &Selector,
    ) -> Result<Names, RuleQueryError> {
        self.lister().pod_names(namespace, name, selector).await
    }

    /// Whether the names of a namespace's pods would be the same again.
    pub fn has_pod_names(&self, namespace: &str, names: &Names) -> bool {
        self.lister().has(names, namespace)
    }

    /// The labels of the pods that a selector selects, by namespace and name, optionally of one
    /// namespace, of one name, and only running ones.
    ///
    /// # Errors
    /// If they can't be listed.
    pub async fn pods(
        &self,
        namespace: Option<&str>,
        name: Option<&str>,
        selector: &Selector,
        running: bool,
    ) -> Result<BTreeMap<ObjectKey, Arc<LabelSet>>, RuleQueryError> {
        self.lister().pods(namespace, name, selector, running).await
    }

    /// The names and labels of the objects that a selector selects, from the API server.
    ///
    /// # Errors
    /// If they can't be listed.
    pub async fn list(
        &self,
        info: &ResourceInfo,
        namespace: &str,
        selector: &Selector,
    ) -> Result<Vec<(String, LabelSet)>, RuleQueryError> {
        self.lister().list(info, namespace, selector).await
    }

    /// The values of an external metric, for a request in a namespace.
    ///
    /// # Errors
    /// As [`RuleQueryError`] says.
    pub async fn external(
        &self,
        namespace: &str,
        metric: &str,
        selector: &Selector,
        reader: Reader,
    ) -> Result<QueryResult, RuleQueryError> {
        if self.rules().external.is_empty() {
            return Err(RuleQueryError::NotFound);
        }
        let found = self.known(metric, |state| {
            Some((state.rules.clone(), state.registry.external(metric)?.clone()))
        });
        let (rules, source) = found.await.ok_or(RuleQueryError::NotFound)?;
        let rule = &rules.external[source.rule];
        let (caller, namespace) = (namespace, rule.namespace.as_deref().unwrap_or(namespace));
        let map = self.resources().map();
        let label = rule.labels.label(&GroupResource::core("namespaces"), &map);
        let mut matchers = selector_matchers(selector).map_err(|failure| match failure {
            // Unlike for objects, the request is at fault, and the metric is known.
            RuleQueryError::NotFound => {
                RuleQueryError::Query("the selector can't be used for series".to_owned())
            }
            other => other,
        })?;
        if rule.namespaced && !namespace.is_empty() {
            let label = label.as_deref().ok_or_else(|| {
                RuleQueryError::Query(
                    "no label names namespaces: resources.overrides or resources.template must, or resources.namespaced be false"
                        .to_owned(),
                )
            })?;
            matchers.push((label, Matcher::Is(namespace.to_owned())));
        }
        let query = rule.render(&source.series, &matchers, &[]).map_err(RuleQueryError::Query)?;
        let samples = self.backend(rule.series.backend.as_ref()).samples;
        let found = samples.series(&query.into(), &Caller::of(caller).read_by(reader)).await?;
        // The sum of the other values would be too small.
        if let Some(reason @ InvalidSample::TooLarge) = found.invalid_sample() {
            return Err(MetricError::invalid(reason).into());
        }
        Ok(found)
    }

    /// The usage of pods of a namespace. Pods need samples of
    /// both CPU and memory; a container without one of them has 0 of it.
    ///
    /// # Errors
    /// If no such rules are configured, or a query fails.
    pub async fn pod_usage(
        &self,
        namespace: &str,
        pods: Vec<String>,
        reader: Reader,
    ) -> Result<PodsUsage, RuleQueryError> {
        let rules = self.rules();
        let rules = rules.resource.as_ref().ok_or(RuleQueryError::NotFound)?;
        let map = self.resources().map();
        let query = |rule: &UsageRule| rule.containers(&map, namespace, pods.clone());
        let [(cpu, cpu_label), (memory, memory_label)] =
            self.usage(rules, &Caller::of(namespace).read_by(reader), query).await?;
        // Pods are looked up by name, as a response may have many others.
        let (by_cpu, by_memory) = (cpu.by(&cpu_label), memory.by(&memory_label));
        let mut by_pod = BTreeMap::new();
        for name in pods {
            let mut pod = PodUsage { time: UnixMillis::MAX, ..PodUsage::default() };
            let mut of_cpu = 0;
            for series in by_cpu.get(&name) {
                of_cpu += 1;
                let container = series.label(&rules.cpu.container_label).to_owned();
                pod.containers.entry(container).or_default().0 = positive(series.value());
                pod.time = pod.time.min(series.time());
            }
            let mut of_memory = 0;
            for series in by_memory.get(&name) {
                of_memory += 1;
                let container = series.label(&rules.memory.container_label).to_owned();
                pod.containers.entry(container).or_default().1 = positive(series.value());
                pod.time = pod.time.min(series.time());
            }
            if of_cpu > 0 && of_memory > 0 {
                by_pod.insert(name, pod);
            }
        }
        Ok(PodsUsage { by_pod, handles: [cpu.handle().clone(), memory.handle().clone()] })
    }

    /// The series of CPU and of memory, each with the label that names its object.
    async fn usage(
        &self,
        rules: &ResourceRules,
        caller: &Caller,
        query: impl Fn(&UsageRule) -> Result<(String, String), String>,
    ) -> Result<[(QueryResult, String); 2], RuleQueryError> {
        let samples = self.backend(rules.backend.as_ref()).samples;
        let query_series = async |rule| -> Result<_, RuleQueryError> {
            let (query, label) = query(rule).map_err(RuleQueryError::Query)?;
            Ok((samples.series(&query.into(), caller).await?, label))
        };
        let (cpu, memory) =
            tokio::try_join!(query_series(&rules.cpu), query_series(&rules.memory))?;
        Ok([cpu, memory])
    }

    /// The usage of nodes that have samples of both CPU and memory, for a client.
    ///
    /// # Errors
    /// If no such rules are configured, or a query fails.
    pub async fn node_usage(
        &self,
        nodes: Vec<String>,
    ) -> Result<BTreeMap<String, NodeUsage>, RuleQueryError> {
        let rules = self.rules();
        let rules = rules.resource.as_ref().ok_or(RuleQueryError::NotFound)?;
        let map = self.resources().map();
        let query = |rule: &UsageRule| rule.nodes(&map, nodes.clone());
        let [(cpu, cpu_label), (memory, memory_label)] =
            self.usage(rules, &Caller::of("").read_by(Reader::Client), query).await?;
        let (cpu, memory) = (cpu.by(&cpu_label), memory.by(&memory_label));
        let usage = nodes.into_iter().filter_map(|node| {
            let (cpu, memory) = (cpu.get(&node).next()?, memory.get(&node).next()?);
            let usage = NodeUsage {
                cpu: positive(cpu.value()),
                memory: positive(memory.value()),
                time: cpu.time().min(memory.time()),
            };
            Some((node, usage))
        });
        Ok(usage.collect())
    }
}

/// Usage is never negative.
fn positive(value: Quantity) -> Quantity {
    if value.is_positive() { value } else { Quantity::default() }
}
