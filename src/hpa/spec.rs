//! The autoscaler's specification, converted once when it changes: quantities as
//! milli-units, selectors parsed, defaults applied.

use super::behavior::{Behavior, ScalingRules};
use super::options::{MetricOptions, WarmUp};
use super::schedule::{Moment, Schedules};
use crate::k8s::{LabelSet, Quantity, Selector, WrittenSelector};
use crate::time::UnixMillis;
use k8s_openapi::api::autoscaling::v2 as api;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use std::fmt::Write;
use std::sync::Arc;

/// The specification of an autoscaler (`autoscaling/v2` HorizontalPodAutoscalerSpec).
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Spec {
    /// The object whose `/scale` is written.
    pub target: TargetRef,
    /// Lower bound of the replicas; 0 only with scale-to-zero.
    pub min_replicas: i32,
    /// Upper bound of the replicas.
    pub max_replicas: i32,
    /// The metrics, in the order of the specification.
    pub metrics: MetricSpecs,
    /// The scaling rules of each direction, if `behavior` is given.
    pub behavior: Option<Behavior>,
    /// The schedules, which move the bounds. Only an Autoscaler has any.
    #[serde(skip)]
    pub schedules: Schedules,
    /// How long the workload warms up, if not as the controller's flags say.
    pub warm_up: WarmUp,
}

/// The object that is scaled (CrossVersionObjectReference).
#[derive(
    Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct TargetRef {
    /// Group and version, such as `apps/v1`.
    pub api_version: String,
    /// Kind, such as `Deployment`.
    pub kind: String,
    /// Name in the autoscaler's namespace.
    pub name: String,
}

/// The metrics of a specification, shared with the status.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(from = "Vec<Metric>", into = "Vec<Metric>")]
pub struct MetricSpecs(Arc<[Metric]>);

impl From<Vec<Metric>> for MetricSpecs {
    fn from(metrics: Vec<Metric>) -> Self {
        Self(metrics.into())
    }
}

impl From<MetricSpecs> for Vec<Metric> {
    fn from(metrics: MetricSpecs) -> Self {
        metrics.to_vec()
    }
}

impl std::ops::Deref for MetricSpecs {
    type Target = [Metric];

    fn deref(&self) -> &[Metric] {
        &self.0
    }
}

impl MetricSpecs {
    /// Whether these are the very same list, not only an equal one.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// One metric of the specification.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Metric {
    /// The source of its value, and its target.
    pub source: MetricSource,
    /// What an Autoscaler may say of it beyond `autoscaling/v2`.
    pub options: MetricOptions,
    /// The name of the metric in the event of a scale-up.
    pub(super) label: String,
}

/// The source of a metric's value, and its target.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum MetricSource {
    /// A metric of each pod, averaged.
    Pods {
        /// The metric.
        metric: MetricId,
        /// The target average, in milli-units.
        average_milli: i64,
    },
    /// CPU or memory of each whole pod.
    Resource {
        /// The resource's name, such as `cpu`.
        name: String,
        /// The target.
        target: ResourceTarget,
    },
    /// CPU or memory of one container of each pod.
    ContainerResource {
        /// The resource's name, such as `cpu`.
        name: String,
        /// The container's name.
        container: String,
        /// The target.
        target: ResourceTarget,
    },
    /// A metric of one object of the namespace.
    Object {
        /// The object that is described.
        object: ObjectRef,
        /// The metric.
        metric: MetricId,
        /// The target.
        target: ScalarTarget,
    },
    /// A metric that describes no object of the cluster.
    External {
        /// The metric.
        metric: MetricId,
        /// The target.
        target: ScalarTarget,
    },
    /// A type that `autoscaling/v2` does not know.
    Unknown(String),
}

/// A metric's name and selector.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(from = "MetricIdFields")]
pub struct MetricId {
    /// The name in the metrics API.
    pub name: String,
    /// The selector as given, to be shown in the status.
    pub selector: Option<WrittenSelector>,
    /// The parsed selector, or the error.
    #[serde(skip_serializing)]
    pub parsed: Result<Selector, String>,
}

/// A [`MetricId`] as it is written.
#[derive(serde::Deserialize)]
struct MetricIdFields {
    name: String,
    selector: Option<LabelSelector>,
}

impl From<MetricIdFields> for MetricId {
    fn from(MetricIdFields { name, selector }: MetricIdFields) -> Self {
        Self::from_api(&api::MetricIdentifier { name, selector })
    }
}

/// The object an Object metric describes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct ObjectRef {
    /// Group and version; empty for the core group.
    pub api_version: Option<String>,
    /// Kind, such as `Ingress`.
    pub kind: String,
    /// Name.
    pub name: String,
}

/// The target of a resource's usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum ResourceTarget {
    /// An average over the pods, in milli-units.
    Average(i64),
    /// A percentage of the pods' requests.
    Utilization(i32),
    /// Neither was given.
    Invalid,
}

/// The target of an Object or External metric, in milli-units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum ScalarTarget {
    /// The value itself.
    Value(i64),
    /// The value divided by the replicas.
    Average(i64),
    /// Neither was given.
    Invalid,
}

/// The group of an `apiVersion`; the error is upstream's.
pub fn parse_group(api_version: &str) -> Result<&str, String> {
    match api_version.split_once('/') {
        None => Ok(""),
        Some((group, version)) if !version.contains('/') => Ok(group),
        Some(_) => Err(format!("unexpected GroupVersion string: {api_version}")),
    }
}

/// Upstream's error for a kind that discovery does not have.
pub fn no_kind_match(kind: &str, group: &str) -> String {
    format!("no matches for kind {kind:?} in group {group:?}")
}

impl Spec {
    /// The stabilization window of scale-up, in seconds.
    pub fn scale_up_window(&self) -> i32 {
        let behavior = self.behavior.as_ref();
        behavior.and_then(|both| both.scale_up.stabilization_seconds).unwrap_or(0)
    }

    /// Converts the spec of an API object, with the API server's defaults.
    ///
    /// Nothing is refused: an invalid metric only fails itself,
    /// at each decision, with upstream's words.
    pub fn from_api(spec: &api::HorizontalPodAutoscalerSpec) -> Self {
        let mut spec = spec.clone();
        apply_defaults(&mut spec);
        Self {
            target: TargetRef {
                api_version: spec.scale_target_ref.api_version.unwrap_or_default(),
                kind: spec.scale_target_ref.kind,
                name: spec.scale_target_ref.name,
            },
            min_replicas: spec.min_replicas.unwrap_or(1),
            max_replicas: spec.max_replicas,
            metrics: MetricSpecs(
                spec.metrics.unwrap_or_default().iter().map(Metric::from_api).collect(),
            ),
            behavior: spec.behavior.map(|behavior| Behavior {
                scale_up: ScalingRules::from_api(behavior.scale_up.unwrap_or_default()),
                scale_down: ScalingRules::from_api(behavior.scale_down.unwrap_or_default()),
            }),
            schedules: Schedules::default(),
            warm_up: WarmUp::default(),
        }
    }

    /// Sets the options of metrics, by their indexes.
    pub fn set_options(&mut self, options: impl IntoIterator<Item = (usize, MetricOptions)>) {
        for (index, options) in options {
            Arc::make_mut(&mut self.metrics.0)[index].options = options;
        }
    }

    /// What the schedules say at a time; none without any.
    pub fn moment(&self, now: UnixMillis) -> Option<Moment> {
        let at = || self.schedules.at(now, self.min_replicas, self.max_replicas);
        (!self.schedules.is_empty()).then(at)
    }

    /// Whether replicas are never removed by decisions on metrics.
    pub(super) fn disables_scale_down(&self) -> bool {
        let rules = self.behavior.as_ref().map(|behavior| behavior.scale_down.select_policy);
        rules == Some(super::SelectPolicy::Disabled)
    }

    /// Whether the workload may be at zero at any time.
    pub fn may_be_zero(&self) -> bool {
        self.min_replicas == 0 || self.schedules.may_be_zero()
    }

    /// Whether any metric says when it is active.
    pub(super) fn has_activation(&self) -> bool {
        self.metrics.iter().any(|metric| metric.options.activation_milli.is_some())
    }

    /// Whether any metric is of a type that still has a value at 0 replicas.
    pub(super) fn has_object_or_external_metric(&self) -> bool {
        self.metrics.iter().any(|metric| {
            matches!(metric.source, MetricSource::Object { .. } | MetricSource::External { .. })
        })
    }
}

impl Metric {
    fn from_api(spec: &api::MetricSpec) -> Self {
        let source = match spec.type_.as_str() {
            "Pods" => spec.pods.as_ref().map(|pods| MetricSource::Pods {
                metric: MetricId::from_api(&pods.metric),
                average_milli: milli(&pods.target.average_value).unwrap_or(0),
            }),
            "Resource" => spec.resource.as_ref().map(|resource| MetricSource::Resource {
                name: resource.name.clone(),
                target: ResourceTarget::from_api(&resource.target),
            }),
            "ContainerResource" => {
                spec.container_resource.as_ref().map(|resource| MetricSource::ContainerResource {
                    name: resource.name.clone(),
                    container: resource.container.clone(),
                    target: ResourceTarget::from_api(&resource.target),
                })
            }
            "Object" => spec.object.as_ref().map(|object| MetricSource::Object {
                object: ObjectRef {
                    api_version: object.described_object.api_version.clone(),
                    kind: object.described_object.kind.clone(),
                    name: object.described_object.name.clone(),
                },
                metric: MetricId::from_api(&object.metric),
                target: match object.target.type_.as_str() {
                    "Value" => milli(&object.target.value).map(ScalarTarget::Value),
                    "AverageValue" => {
                        milli(&object.target.average_value).map(ScalarTarget::Average)
                    }
                    _ => None,
                }
                .unwrap_or(ScalarTarget::Invalid),
            }),
            "External" => spec.external.as_ref().map(|external| MetricSource::External {
                metric: MetricId::from_api(&external.metric),
                target: milli(&external.target.average_value)
                    .map(ScalarTarget::Average)
                    .or_else(|| milli(&external.target.value).map(ScalarTarget::Value))
                    .unwrap_or(ScalarTarget::Invalid),
            }),
            _ => None,
        }
        .unwrap_or_else(|| MetricSource::Unknown(spec.type_.clone()));
        let label = label(&source);
        Self { source, options: MetricOptions::default(), label }
    }
}

/// The name of a metric in upstream's event of a scale-up.
fn label(source: &MetricSource) -> String {
    match source {
        MetricSource::Pods { metric, .. } => format!("pods metric {}", metric.name),
        MetricSource::Resource { name, target: ResourceTarget::Utilization(_) } => {
            format!("{name} resource utilization (percentage of request)")
        }
        MetricSource::ContainerResource {
            name, target: ResourceTarget::Utilization(_), ..
        } => {
            format!("{name} container resource utilization (percentage of request)")
        }
        MetricSource::Resource { name, .. } | MetricSource::ContainerResource { name, .. } => {
            format!("{name} resource")
        }
        MetricSource::Object { object, metric, target: ScalarTarget::Value(_) } => {
            format!("{} metric {}", object.kind, metric.name)
        }
        MetricSource::Object { metric, .. } | MetricSource::External { metric, .. } => {
            format!("external metric {}({})", metric.name, metric.selector_text())
        }
        MetricSource::Unknown(kind) => kind.clone(),
    }
}

impl MetricId {
    fn from_api(metric: &api::MetricIdentifier) -> Self {
        Self {
            name: metric.name.clone(),
            selector: metric.selector.clone().map(WrittenSelector::from),
            parsed: match &metric.selector {
                Some(selector) => Selector::from_object(selector).map_err(|e| e.to_string()),
                None => Ok(Selector::default()),
            },
        }
    }

    /// The selector as a request's parameter; empty if there is none.
    pub fn selector_query(&self) -> String {
        self.parsed.as_ref().map(ToString::to_string).unwrap_or_default()
    }

    /// The selector as Go prints it with `%+v`, which upstream puts into messages.
    pub(super) fn selector_text(&self) -> String {
        let Some(selector) = &self.selector else {
            return "nil".to_owned();
        };
        let mut text = String::from("&LabelSelector{MatchLabels:map[string]string{");
        for (key, value) in selector.labels.iter().flat_map(LabelSet::iter) {
            let _ = write!(text, "{key}: {value},");
        }
        text.push_str("},MatchExpressions:[]LabelSelectorRequirement{");
        for expression in selector.expressions.iter().flatten() {
            let values = expression.values.as_deref().unwrap_or_default().join(" ");
            let _ = write!(
                text,
                "LabelSelectorRequirement{{Key:{},Operator:{},Values:[{values}],}},",
                expression.key, expression.operator
            );
        }
        text.push_str("},}");
        text
    }
}

impl ResourceTarget {
    fn from_api(target: &api::MetricTarget) -> Self {
        match (milli(&target.average_value), target.average_utilization) {
            (Some(average), _) => Self::Average(average),
            (None, Some(percent)) => Self::Utilization(percent),
            (None, None) => Self::Invalid,
        }
    }
}

fn milli(quantity: &Option<ApiQuantity>) -> Option<i64> {
    quantity.as_ref()?.0.parse::<Quantity>().ok().map(Quantity::milli)
}

/// Applies the API server's defaults: `minReplicas` 1, 80 % CPU if no
/// metric is named, and the rules of each direction if `behavior` is given.
/// Source: `SetDefaults_HorizontalPodAutoscaler` of Kubernetes 1.36.
pub fn apply_defaults(spec: &mut api::HorizontalPodAutoscalerSpec) {
    spec.min_replicas.get_or_insert(1);
    if spec.metrics.as_ref().is_none_or(Vec::is_empty) {
        spec.metrics = Some(vec![api::MetricSpec {
            type_: "Resource".to_owned(),
            resource: Some(api::ResourceMetricSource {
                name: "cpu".to_owned(),
                target: api::MetricTarget {
                    type_: "Utilization".to_owned(),
                    average_utilization: Some(80),
                    ..Default::default()
                },
            }),
            ..Default::default()
        }]);
    }
    if let Some(behavior) = &mut spec.behavior {
        let policy = |kind: &str, value| api::HPAScalingPolicy {
            type_: kind.to_owned(),
            value,
            period_seconds: 15,
        };
        let up = behavior.scale_up.get_or_insert_default();
        up.stabilization_window_seconds.get_or_insert(0);
        up.select_policy.get_or_insert_with(|| "Max".to_owned());
        up.policies.get_or_insert_with(|| vec![policy("Pods", 4), policy("Percent", 100)]);
        let down = behavior.scale_down.get_or_insert_default();
        down.select_policy.get_or_insert_with(|| "Max".to_owned());
        down.policies.get_or_insert_with(|| vec![policy("Percent", 100)]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::SelectPolicy;
    use super::*;

    #[test]
    fn an_unknown_value_prevents_changes_in_its_direction() {
        let read = |rules: serde_json::Value| {
            let spec = serde_json::json!({
                "scaleTargetRef": {"kind": "Deployment", "name": "web"}, "maxReplicas": 3,
                "behavior": {"scaleDown": rules},
            });
            let spec = Spec::from_api(&serde_json::from_value(spec).expect("a spec"));
            let behavior = spec.behavior.expect("it is given");
            (behavior.scale_down.select_policy, behavior.scale_up.select_policy)
        };
        for rules in [
            serde_json::json!({"selectPolicy": "disabled"}),
            serde_json::json!({"policies": [{"type": "pods", "value": 4, "periodSeconds": 60}]}),
        ] {
            assert_eq!(read(rules), (SelectPolicy::Disabled, SelectPolicy::Max));
        }
    }
}
