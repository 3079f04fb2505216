//! What rules ask of Prometheus for a metric of objects.

use super::failure::RuleQueryError;
use super::metric_rules::Source;
use super::objects::Names;
use super::registry::{ObjectMetric, RuleSource};
use super::rule_set::RuleSet;
use crate::k8s::{Quantity, Selector};
use crate::promql::matcher::{Matcher, is_label_name};
use crate::samples::{ObjectQuery, ObjectSample, ObjectSamples, Store};
use crate::time::UnixMillis;
use crate::watch::{ResourceInfo, ResourceMap};
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

/// The objects of a request.
#[derive(Clone, Copy, Debug)]
pub enum ObjectSelection<'a> {
    /// The object of this name.
    Name(&'a str),
    /// The objects that a selector selects.
    Selector(&'a Selector),
}

/// The query for a metric of objects, and what it was made of.
pub struct RuleQuery {
    /// The resource of the objects.
    pub resource: ResourceInfo,
    pub(super) objects: Objects,
    pub(super) query: ObjectQuery,
    pub(super) namespace: String,
    pub(super) metric: ObjectMetric,
    pub(super) source: ObjectSource,
    /// All resources of the cluster.
    pub(super) resources: Arc<ResourceMap>,
}

/// The names of the objects.
pub(super) enum Objects {
    /// The one of a request.
    Named([String; 1]),
    /// Those that a selector selects.
    Selected(Names),
}

/// What a metric of objects is queried from.
pub(super) enum ObjectSource {
    /// A rule of the administrator, and the results of its server.
    Administrator(Arc<RuleSet>, RuleSource, Store),
    /// A MetricRule of the namespace.
    MetricRule(Source),
}

impl Objects {
    pub(super) fn names(&self) -> &[String] {
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

    /// Whether [`Rules::is_current`](super::Rules::is_current) can tell if it is.
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
