//! What rules ask of Prometheus for a metric of objects.

use super::failure::RuleQueryError;
use super::metric_rules::Source;
use super::objects::Names;
use super::registry::{ObjectMetric, RuleSource};
use super::rule::Rule;
use super::rule_set::RuleSet;
use super::service::{Rules, RulesState};
use super::values::{ObjectSelection, ObjectValue};
use crate::blocking;
use crate::k8s::Selector;
use crate::promql::matcher::{Matcher, is_label_name};
use crate::promql::query::{Query, times};
use crate::samples::{Caller, ObjectQuery, ObjectSample, ObjectSamples, Reader, Store};
use crate::watch::{GroupResource, ResourceInfo, ResourceMap};
use std::sync::Arc;

/// The query for a metric of objects, and what it was made of.
pub struct RuleQuery {
    /// The resource of the objects.
    pub resource: ResourceInfo,
    objects: Objects,
    query: ObjectQuery,
    namespace: String,
    metric: ObjectMetric,
    source: ObjectSource,
    resources: Arc<ResourceMap>,
}

/// The names of the objects.
enum Objects {
    /// The one of a request.
    Named([String; 1]),
    /// Those that a selector selects.
    Selected(Names),
}

/// What a metric of objects is queried from.
enum ObjectSource {
    /// A rule of the administrator.
    Administrator(Arc<RuleSet>, RuleSource),
    /// A MetricRule of the namespace.
    MetricRule(Source),
}

impl Objects {
    fn names(&self) -> &[String] {
        match self {
            Self::Named(name) => name,
            Self::Selected(Names { names, .. }) => names,
        }
    }
}

impl RuleQuery {
    /// The values that samples of it have, in the order of the objects.
    ///
    /// # Errors
    /// If the object that was named has none.
    pub fn values(&self, samples: &ObjectSamples) -> Result<Vec<ObjectValue>, RuleQueryError> {
        let by_name = samples.by_object();
        let value = |name: &String| {
            // The last of several series counts, as in prometheus-adapter.
            let ObjectSample { value, time } = by_name.all(name).last()?;
            Some(ObjectValue { name: name.clone(), value, time })
        };
        let values: Vec<ObjectValue> = self.objects.names().iter().filter_map(value).collect();
        match self.objects {
            Objects::Named(_) if values.is_empty() => Err(RuleQueryError::NoValue),
            _ => Ok(values),
        }
    }

    /// Whether [`Rules::is_current`] can tell if it is.
    pub fn may_be_kept(&self) -> bool {
        match &self.objects {
            Objects::Named(_) => true,
            Objects::Selected(names) => names.may_be_kept(),
        }
    }

    /// The approximate memory in bytes.
    pub fn bytes(&self) -> usize {
        let names = match &self.objects {
            Objects::Named([name]) => name.len(),
            Objects::Selected(names) => names.bytes(),
        };
        size_of::<Self>() + 256 + names + self.query.bytes()
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
            ObjectSource::Administrator(rules, RuleSource { rule, series: name }) => {
                let rule = &rules.custom[*rule];
                let (query, label) =
                    self.rendered(rule, name, &info.name, namespace, names.to_vec(), series)?;
                let caller = Caller::of(namespace).read_by(reader);
                self.store(&source).object_query(&query, &label, caller)
            }
            ObjectSource::MetricRule(of) => {
                let selector = selector_matchers(series)?;
                let labels = self.metric_rules().labels();
                let query = blocking::run(|| of.query(names, &selector, &labels));
                let query = query.map_err(RuleQueryError::Query)?;
                let caller = Caller::user(namespace).read_by(reader);
                self.store(&source).object_query(&query, &of.label, caller)
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
        Ok(self.store(&query.source).samples(&query.query).await?)
    }

    /// Whether a query would be made again as it is: rules, resources and objects are the same.
    pub fn is_current(&self, query: &RuleQuery) -> bool {
        let RuleQuery { objects, namespace, metric, source, resources, .. } = query;
        if !Arc::ptr_eq(resources, &self.resources().map()) || !self.any(namespace) {
            return false;
        }
        let state = self.state();
        let same_source = match (state.registry.custom(metric), source) {
            (Some(now), ObjectSource::Administrator(rules, source)) => {
                Arc::ptr_eq(&state.rules, rules) && now == source
            }
            (None, ObjectSource::MetricRule(source)) => {
                let now = self.metric_rules().find(namespace, metric);
                now.is_some_and(|now| now.is(source, &self.metric_rules().labels()))
            }
            _ => false,
        };
        same_source
            && match objects {
                Objects::Named(_) => true,
                Objects::Selected(names) => self.lister().has(names, namespace),
            }
    }

    /// Whether there are rules for metrics of objects of a namespace.
    fn any(&self, namespace: &str) -> bool {
        self.any_custom() || self.metric_rules().any(namespace)
    }

    fn store(&self, source: &ObjectSource) -> Store {
        let backend = match source {
            ObjectSource::Administrator(rules, RuleSource { rule, .. }) => {
                rules.custom[*rule].series.backend.as_ref()
            }
            ObjectSource::MetricRule(_) => None,
        };
        self.backend(backend).samples
    }

    /// What a metric is queried from: a rule of the administrator, or else a MetricRule of the namespace. If
    /// neither serves it, the series of the administrator's rules are listed first.
    async fn source(&self, namespace: &str, metric: &ObjectMetric) -> Option<ObjectSource> {
        let administrators = |state: &RulesState| {
            let source = state.registry.custom(metric)?;
            Some(ObjectSource::Administrator(state.rules.clone(), source.clone()))
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
}

/// The matchers of a selector of series.
///
/// # Errors
/// If it can't be one.
pub(super) fn selector_matchers(
    selector: &Selector,
) -> Result<Vec<(&str, Matcher)>, RuleQueryError> {
    let matcher = |requirement| {
        let matcher = Matcher::of(requirement).ok_or(RuleQueryError::NotFound)?;
        let label = requirement.key.as_str();
        if !is_label_name(label) {
            return Err(RuleQueryError::Label(label.to_owned()));
        }
        Ok((label, matcher))
    };
    selector.requirements().iter().map(matcher).collect()
}
