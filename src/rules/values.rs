//! The values of the metrics that rules serve: of objects, external, and usage.

use super::failure::RuleQueryError;
use super::objects::Names;
use super::registry::{ObjectMetric, RuleSource};
use super::rule::Rule;
use super::rule_query::{
    ObjectSelection, ObjectSource, ObjectValue, Objects, RuleQuery, selector_matchers,
};
use super::service::{Rules, RulesState};
use super::usage::{ResourceRules, UsageRule};
use crate::blocking;
use crate::k8s::{LabelSet, Quantity, Selector};
use crate::prometheus::InvalidSample;
use crate::promql::matcher::Matcher;
use crate::promql::query::{Query, times};
use crate::samples::{Caller, MetricError, ObjectSamples, QueryHandle, QueryResult, Reader, Store};
use crate::time::UnixMillis;
use crate::watch::{GroupResource, ObjectKey, ResourceInfo};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The values of a metric for objects of one resource.
pub struct ObjectValues {
    /// The values, in the order of the objects.
    pub values: Vec<ObjectValue>,
    /// The handle to repeat the query.
    pub handle: QueryHandle,
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

/// The caller that a query for these objects is charged to: their namespace, also that of a Namespace itself.
fn charged(resource: &GroupResource, namespace: &str, names: &[String]) -> Caller {
    match names {
        [name] if *resource == GroupResource::core("namespaces") => Caller::of(name),
        _ => Caller::of(namespace),
    }
}

impl Rules {
    /// The query for a metric of objects of a resource. Without a namespace, the objects are cluster-scoped.
    ///
    /// # Errors
    /// As [`RuleQueryError`] says.
    pub async fn query(
        &self,
        namespace: &str,
        resource: &GroupResource,
        selection: ObjectSelection<'_>,
        metric: &str,
        series: &Selector,
        reader: Reader,
    ) -> Result<RuleQuery, RuleQueryError> {
        if !self.any(namespace) {
            return Err(RuleQueryError::NotFound);
        }
        // Before anything is made of it: a newer one would be another.
        let resources = self.resources().map();
        let Some(info) = self.resources().find(resource).await else {
            return Err(match selection {
                ObjectSelection::Name(_) => RuleQueryError::NotFound,
                ObjectSelection::Selector(_) => {
                    RuleQueryError::Unlistable(format!("the cluster has no resource {resource}"))
                }
            });
        };
        let metric = ObjectMetric {
            resource: info.name.clone(),
            namespaced: !namespace.is_empty(),
            metric: metric.to_owned(),
        };
        let Some(source) = self.source(namespace, &metric).await else {
            // Until then it may be a MetricRule's, and another adapter may have other values of it.
            return Err(match self.metric_rules().has_synced(namespace) {
                true => RuleQueryError::NotFound,
                false => RuleQueryError::NotListed,
            });
        };
        let objects = match selection {
            ObjectSelection::Name(name) => Objects::Named([name.to_owned()]),
            ObjectSelection::Selector(selector) => {
                Objects::Selected(self.lister().names(&info, namespace, selector).await?)
            }
        };
        let names = objects.names();
        if names.is_empty() {
            return Err(RuleQueryError::NotFound);
        }
        let query = match &source {
            ObjectSource::Administrator(rules, RuleSource { rule, series: name }, store) => {
                let rule = &rules.custom[*rule];
                let (query, label) =
                    self.rendered(rule, name, &info.name, namespace, names.to_vec(), series)?;
                let caller = charged(&info.name, namespace, names).read_by(reader);
                store.object_query(&query, &label, caller)
            }
            ObjectSource::MetricRule(of) => {
                let selector = selector_matchers(series)?;
                let labels = self.metric_rules().labels();
                let query = blocking::run(|| of.query(names, &selector, &labels));
                let query = query.map_err(RuleQueryError::Query)?;
                let caller = Caller::user(namespace).read_by(reader);
                self.default_store().object_query(&query, &of.label, caller)
            }
        };
        let namespace = namespace.to_owned();
        Ok(RuleQuery { resource: info, objects, query, namespace, metric, source, resources })
    }

    /// The samples of a query.
    ///
    /// # Errors
    /// As [`RuleQueryError`] says.
    pub async fn samples(&self, query: &RuleQuery) -> Result<ObjectSamples, RuleQueryError> {
        let store = match &query.source {
            ObjectSource::Administrator(_, _, store) => store,
            ObjectSource::MetricRule(_) => self.default_store(),
        };
        Ok(store.samples(&query.query).await?)
    }

    /// The samples and values of a query.
    ///
    /// # Errors
    /// As [`RuleQueryError`] says.
    pub async fn values(&self, query: &RuleQuery) -> Result<ObjectValues, RuleQueryError> {
        let samples = self.samples(query).await?;
        Ok(ObjectValues {
            values: query.values(&samples)?,
            handle: samples.values.handle().clone(),
        })
    }

    /// Whether a query would be made again as it is: rules, resources and the objects that this selector
    /// selects are the same.
    pub fn is_current(&self, query: &RuleQuery, selector: &Selector) -> bool {
        let RuleQuery { objects, namespace, metric, source, resources, .. } = query;
        if !Arc::ptr_eq(resources, &self.resources().map()) || !self.any(namespace) {
            return false;
        }
        let state = self.state();
        let same_source = match (state.registry.custom(metric), source) {
            (Some(now), ObjectSource::Administrator(rules, source, _)) => {
                Arc::ptr_eq(&state.rules, rules) && now == source
            }
            (None, ObjectSource::MetricRule(source)) => {
                self.metric_rules().is_current(namespace, metric, source)
            }
            _ => false,
        };
        same_source
            && match objects {
                Objects::Named(_) => true,
                Objects::Selected(names) => self.selects(names, namespace, None, selector),
            }
    }

    /// Whether there are rules for metrics of objects of a namespace.
    fn any(&self, namespace: &str) -> bool {
        self.any_custom() || self.metric_rules().any(namespace)
    }

    /// What a metric is queried from: a rule of the administrator, or else a MetricRule of the namespace. If
    /// neither serves it, the series of the administrator's rules are listed first.
    async fn source(&self, namespace: &str, metric: &ObjectMetric) -> Option<ObjectSource> {
        let administrators = |state: &RulesState| {
            let source = state.registry.custom(metric)?;
            let backend = state.rules.custom[source.rule].series.backend.as_ref();
            let store = self.backend(state, backend).samples;
            Some(ObjectSource::Administrator(state.rules.clone(), source.clone(), store))
        };
        let known = administrators(&self.state())
            .or_else(|| self.metric_rules().find(namespace, metric).map(ObjectSource::MetricRule));
        if known.is_some() || !self.any_custom() {
            return known;
        }
        self.known(&format!("{}/{}", metric.resource, metric.metric), administrators).await
    }

    /// Whether a metric of objects is known to be served in a namespace.
    pub fn serves(&self, namespace: &str, metric: &ObjectMetric) -> bool {
        self.state().registry.custom(metric).is_some()
            || self.metric_rules().find(namespace, metric).is_some()
    }

    fn rendered(
        &self,
        rule: &Rule,
        series: &str,
        resource: &GroupResource,
        namespace: &str,
        names: Vec<String>,
        selector: &Selector,
    ) -> Result<(Query, String), RuleQueryError> {
        let map = self.resources().map();
        let label = rule.labels.label(resource, &map).ok_or(RuleQueryError::NotFound)?;
        let namespaces = rule.labels.label(&GroupResource::core("namespaces"), &map);
        let mut matchers = selector_matchers(selector)?;
        if !namespace.is_empty() {
            let label = namespaces.as_deref().ok_or(RuleQueryError::NotFound)?;
            // Last, so that no requirement of the selector can replace the namespace.
            matchers.push((label, Matcher::Is(namespace.to_owned())));
        }
        matchers.push((&label, Matcher::any_of(names)));
        let group_by = std::slice::from_ref(&label);
        let query = rule.render(series, &matchers, group_by).map_err(RuleQueryError::Query)?;
        let times = times(series, &matchers, group_by);
        Ok((Query { values: query.into(), times }, label))
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

    /// Whether [`pod_names`](Self::pod_names) would be these again.
    pub fn selects(
        &self,
        names: &Names,
        namespace: &str,
        name: Option<&str>,
        selector: &Selector,
    ) -> bool {
        self.lister().selects(names, namespace, name, selector)
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
            let source = state.registry.external(metric)?;
            let backend = state.rules.external[source.rule].series.backend.as_ref();
            Some((state.rules.clone(), source.clone(), self.backend(state, backend).samples))
        });
        let (rules, source, samples) = found.await.ok_or(RuleQueryError::NotFound)?;
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
        let state = self.state();
        let rules = state.rules.resource.as_ref().ok_or(RuleQueryError::NotFound)?;
        let samples = self.backend(&state, rules.backend.as_ref()).samples;
        let map = self.resources().map();
        let query = |rule: &UsageRule| rule.containers(&map, namespace, pods.clone());
        let [(cpu, cpu_label), (memory, memory_label)] =
            usage(&samples, rules, &Caller::of(namespace).read_by(reader), query).await?;
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

    /// The usage of nodes that have samples of both CPU and memory, for a client.
    ///
    /// # Errors
    /// If no such rules are configured, or a query fails.
    pub async fn node_usage(
        &self,
        nodes: Vec<String>,
    ) -> Result<BTreeMap<String, NodeUsage>, RuleQueryError> {
        let state = self.state();
        let rules = state.rules.resource.as_ref().ok_or(RuleQueryError::NotFound)?;
        let samples = self.backend(&state, rules.backend.as_ref()).samples;
        let map = self.resources().map();
        let query = |rule: &UsageRule| rule.nodes(&map, nodes.clone());
        let [(cpu, cpu_label), (memory, memory_label)] =
            usage(&samples, rules, &Caller::of("").read_by(Reader::Client), query).await?;
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

/// The series of CPU and of memory, each with the label that names its object.
async fn usage(
    samples: &Store,
    rules: &ResourceRules,
    caller: &Caller,
    query: impl Fn(&UsageRule) -> Result<(String, String), String>,
) -> Result<[(QueryResult, String); 2], RuleQueryError> {
    let query_series = async |rule| -> Result<_, RuleQueryError> {
        let (query, label) = query(rule).map_err(RuleQueryError::Query)?;
        Ok((samples.series(&query.into(), caller).await?, label))
    };
    let (cpu, memory) = tokio::try_join!(query_series(&rules.cpu), query_series(&rules.memory))?;
    Ok([cpu, memory])
}

/// Usage is never negative.
fn positive(value: Quantity) -> Quantity {
    if value.is_positive() { value } else { Quantity::default() }
}
