//! The short forms of metrics: `resourceMetrics` and `customMetrics`.

use crate::hpa::{self, MetricOptions, OnEmpty, OnError};
use crate::k8s::{LabelSet, Quantity};
use crate::promql::name::generated_name;
use crate::promql::query::{Per, PrometheusMetric};
use k8s_openapi::api::autoscaling::v2::{
    ExternalMetricSource, MetricIdentifier, MetricSpec, MetricTarget, PodsMetricSource,
    ResourceMetricSource,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A metric by its name in Prometheus.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[x_kube(
    validation = Rule::new("has(self.averageValue) != has(self.value)")
        .message("must set either averageValue or value")
        .field_path(".averageValue"),
    validation = Rule::new("!has(self.value) || self.per == 'Workload'")
        .message("value needs per: Workload: a metric of pods has an averageValue")
        .field_path(".value"),
    validation = Rule::new("!has(self.activation) || self.per == 'Workload'")
        .message("activation needs per: Workload: a workload without pods has no metric of pods")
        .field_path(".activation"),
    validation = Rule::new("!has(self.averageValue) || (type(self.averageValue) == int ? self.averageValue > 0 : quantity(self.averageValue).isGreaterThan(quantity('0')))")
        .message("averageValue must be more than 0")
        .field_path(".averageValue"),
    validation = Rule::new("!has(self.value) || (type(self.value) == int ? self.value > 0 : quantity(self.value).isGreaterThan(quantity('0')))")
        .message("value must be more than 0")
        .field_path(".value")
)]
#[serde(rename_all = "camelCase")]
pub struct CustomMetric {
    /// metricName is the name in Prometheus. A counter (`*_total`) is turned into a rate per
    /// second. Any UTF-8 name that Prometheus takes, without `/` and `%`, which
    /// paths of the metrics API can't have. With `query`, any name to publish its
    /// result under.
    #[schemars(length(min = 1, max = 200), regex(pattern = r"^[^/%]+$"))]
    pub metric_name: String,

    /// labels selects series by exact label match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 32))]
    #[x_kube(validation = Rule::new("self.all(name, name.size() > 0 && name.size() <= 128)")
        .message("a label name must have 1 to 128 characters"))]
    pub labels: Option<LabelSet>,

    /// per is Pod (one series for each pod, the default) or Workload (one series for all, such as the length of a
    /// queue). A value below 0 of a workload counts as 0.
    #[serde(default)]
    pub per: Per,

    /// averageValue is the target of the average: of the pods' values, or of the workload's value divided by its
    /// replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub average_value: Option<ApiQuantity>,

    /// value is the target of the workload's value, independent of the replicas, such as a latency. Requires `per:
    /// Workload`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<ApiQuantity>,

    /// activation is the value that the metric must exceed for the workload to leave zero
    /// replicas, 0 if not set. While no such metric exceeds its own, they all ask for zero
    /// replicas, which are reached after the scale-down window. It needs `per: Workload`, and
    /// counts only if minReplicas is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation: Option<ApiQuantity>,

    /// onEmpty is the meaning of an empty result: Missing (the default), Zero or Hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_empty: Option<OnEmpty>,

    /// onError is the effect of a failed metric: Hold or Ignore. If not set, no replica is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_error: Option<OnError>,

    /// fallback is the number of replicas that the metric asks for after it has failed for failureDurationSeconds. If
    /// not set, onError applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<MetricFallback>,

    /// query is PromQL to be run instead of the configured template. It must give one
    /// series for each pod, with the pod's label; or one series, with `per: Workload`. Only
    /// series of the autoscaler's own namespace are read, and of those in
    /// `podMetrics.sharedNamespaces`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 8192))]
    pub query: Option<String>,
}

/// fallback is the number of replicas that the metric asks for after it has failed for failureDurationSeconds. If not
/// set, onError applies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetricFallback {
    /// failureDurationSeconds is for how long the metric must have failed, 1 to 86400, 180 if
    /// not set. It restarts with a new leader, and after a time without measurements, such as at zero
    /// replicas.
    #[serde(default = "default_failure_duration")]
    #[schemars(range(min = 1, max = 86400))]
    pub failure_duration_seconds: i32,

    /// replicas is the number of replicas that the metric asks for. The largest proposal of all metrics wins.
    #[schemars(range(min = 1))]
    pub replicas: i32,
}

impl MetricFallback {
    /// As decisions read it.
    fn read(&self) -> hpa::MetricFallback {
        let Self { failure_duration_seconds, replicas } = *self;
        hpa::MetricFallback { after_ms: i64::from(failure_duration_seconds) * 1000, replicas }
    }
}

fn default_failure_duration() -> i32 {
    180
}

/// CPU or memory of the pods.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[x_kube(
    validation = Rule::new("has(self.averageValue) != has(self.averageUtilization)")
        .message("must set either averageValue or averageUtilization")
        .field_path(".averageUtilization"),
    validation = Rule::new("!has(self.targetType) || (self.targetType == 'Utilization' ? has(self.averageUtilization) : has(self.averageValue))")
        .message("targetType Utilization needs averageUtilization, and AverageValue needs averageValue")
        .field_path(".targetType"),
    validation = Rule::new("!has(self.averageValue) || (type(self.averageValue) == int ? self.averageValue > 0 : quantity(self.averageValue).isGreaterThan(quantity('0')))")
        .message("averageValue must be more than 0")
        .field_path(".averageValue")
)]
#[serde(rename_all = "camelCase")]
pub struct ResourceMetric {
    /// resourceName is `cpu` or `memory`, or another resource that the metrics API has.
    #[schemars(length(min = 1, max = 317))]
    pub resource_name: String,

    /// targetType is Utilization or AverageValue. If not set, it follows from the target field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_type: Option<ResourceTargetType>,

    /// averageValue is the target of the average usage of the pods, such as 500m for cpu.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub average_value: Option<ApiQuantity>,

    /// averageUtilization is the target of the usage of all pods, in percent of their requests. Minimum 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub average_utilization: Option<i32>,

    /// onError is the effect of a failed metric: Hold or Ignore. If not set, no replica is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_error: Option<OnError>,

    /// fallback is the number of replicas that the metric asks for after it has failed for failureDurationSeconds. If
    /// not set, onError applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<MetricFallback>,
}

/// targetType is Utilization or AverageValue. If not set, it follows from the target field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ResourceTargetType {
    /// An average over the pods.
    AverageValue,
    /// A percentage of the pods' requests.
    Utilization,
}

/// Reads a quantity of a field. The error begins with the field.
fn quantity(field: &str, value: &ApiQuantity) -> Result<Quantity, String> {
    value.0.parse().map_err(|error| format!("{field}: {error}"))
}

/// Checks a target.
fn check_target(field: &str, value: Option<&ApiQuantity>) -> Result<(), String> {
    let Some(value) = value else { return Ok(()) };
    match quantity(field, value)? {
        value if value.is_positive() => Ok(()),
        value => Err(format!("{field}: {value} must be more than 0")),
    }
}

impl CustomMetric {
    /// Checks it, and returns what it says beyond `autoscaling/v2`. The schema refuses the same, but
    /// the installed one may be older. The error begins with the field.
    pub(super) fn check(&self) -> Result<MetricOptions, String> {
        let Self { per, average_value, value, activation, on_empty, .. } = self;
        check_target("averageValue", average_value.as_ref())?;
        check_target("value", value.as_ref())?;
        let mut names =
            self.labels.iter().flat_map(LabelSet::iter).map(|(name, _)| name.chars().count());
        if names.any(|characters| !(1..=128).contains(&characters)) {
            return Err("labels: a label name must have 1 to 128 characters".to_owned());
        }
        if average_value.is_some() == value.is_some() {
            return Err("averageValue: must set either averageValue or value".to_owned());
        }
        if *per == Per::Pod && value.is_some() {
            return Err(
                "value: needs per: Workload: a metric of pods has an averageValue".to_owned()
            );
        }
        if *per == Per::Pod && activation.is_some() {
            return Err(
                "activation: needs per: Workload: a workload without pods has no metric of pods"
                    .to_owned(),
            );
        }
        let activation = activation.as_ref().map(|value| quantity("activation", value));
        Ok(MetricOptions {
            activation_milli: activation.transpose()?.map(Quantity::milli),
            on_empty: on_empty.unwrap_or_default(),
            on_error: self.on_error,
            fallback: self.fallback.as_ref().map(MetricFallback::read),
        })
    }

    /// What it says beyond `autoscaling/v2`.
    pub fn options(&self) -> MetricOptions {
        self.check().unwrap_or_default()
    }

    /// The metric that is queried.
    pub fn prometheus_metric(&self) -> PrometheusMetric {
        PrometheusMetric {
            metric: self.metric_name.clone(),
            per: self.per,
            labels: self.labels.clone().unwrap_or_default(),
            query: self.query.clone(),
        }
    }

    /// The Pods or External metric of an autoscaler, by its generated name.
    pub(super) fn as_metric(&self, namespace: &str, autoscaler: &str) -> MetricSpec {
        let labels = self.labels.as_ref();
        let metric = MetricIdentifier {
            name: generated_name(&self.metric_name, labels, namespace, autoscaler),
            selector: labels.map(|labels| LabelSelector {
                match_labels: Some(labels.to_map()),
                match_expressions: None,
            }),
        };
        let type_ = if self.value.is_some() { "Value" } else { "AverageValue" };
        let target = MetricTarget {
            type_: type_.to_owned(),
            average_value: self.average_value.clone(),
            value: self.value.clone(),
            average_utilization: None,
        };
        match self.per {
            Per::Pod => MetricSpec {
                type_: "Pods".to_owned(),
                pods: Some(PodsMetricSource { metric, target }),
                ..Default::default()
            },
            Per::Workload => MetricSpec {
                type_: "External".to_owned(),
                external: Some(ExternalMetricSource { metric, target }),
                ..Default::default()
            },
        }
    }
}

impl ResourceMetric {
    /// Checks it, as the schema does. The error begins with the field.
    pub(super) fn check(&self) -> Result<(), String> {
        let Self { resource_name, target_type, average_value, average_utilization, .. } = self;
        check_target("averageValue", average_value.as_ref())?;
        let given = match (average_value, average_utilization) {
            (Some(_), None) => ResourceTargetType::AverageValue,
            (None, Some(percent)) if *percent > 0 => ResourceTargetType::Utilization,
            (None, Some(percent)) => {
                return Err(format!("averageUtilization: {percent} must be more than 0"));
            }
            _ => {
                let text = "averageUtilization: must set either averageValue or averageUtilization";
                return Err(text.to_owned());
            }
        };
        if target_type.is_some_and(|named| named != given) {
            return Err("targetType: Utilization needs averageUtilization, and AverageValue needs averageValue".to_owned());
        }
        match resource_name.is_empty() {
            true => Err("resourceName: is missing".to_owned()),
            false => Ok(()),
        }
    }

    /// What it says beyond `autoscaling/v2`.
    pub fn options(&self) -> MetricOptions {
        MetricOptions {
            on_error: self.on_error,
            fallback: self.fallback.as_ref().map(MetricFallback::read),
            ..MetricOptions::default()
        }
    }

    /// The Resource metric.
    pub(super) fn as_metric(&self) -> MetricSpec {
        let Self { average_value, average_utilization, .. } = self.clone();
        let type_ = if average_value.is_some() { "AverageValue" } else { "Utilization" };
        let type_ = type_.to_owned();
        MetricSpec {
            type_: "Resource".to_owned(),
            resource: Some(ResourceMetricSource {
                name: self.resource_name.clone(),
                target: MetricTarget { type_, average_value, average_utilization, value: None },
            }),
            ..Default::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::AutoscalerSpec;
    use serde_json::{Value, json};

    fn read(fields: Value) -> Result<AutoscalerSpec, String> {
        let mut spec = json!({"maxReplicas": 10, "scaleTargetRef":
            {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}});
        for (name, field) in fields.as_object().expect("fields") {
            spec[name] = field.clone();
        }
        AutoscalerSpec::read(spec).map_err(|error| error.to_string())
    }

    #[test]
    fn a_total_is_an_external_metric_and_may_scale_to_zero() {
        let spec = read(json!({"minReplicas": 0, "customMetrics": [
            {"metricName": "queue", "labels": {"q": "a"}, "per": "Workload", "averageValue": 30},
            {"metricName": "latency", "per": "Workload", "value": "200m"}]}));
        let metrics = spec.expect("a spec").as_hpa("shop", "web").metrics.expect("metrics");
        assert_eq!(
            json!(metrics),
            json!([
                {"type": "External", "external": {
                    "metric": {"name": "queue_29a9829b3c03_shop_web",
                               "selector": {"matchLabels": {"q": "a"}}},
                    "target": {"type": "AverageValue", "averageValue": "30"}}},
                {"type": "External", "external": {
                    "metric": {"name": "latency_74234e98afe7_shop_web"},
                    "target": {"type": "Value", "value": "200m"}}}])
        );
    }

    #[test]
    fn a_resource_in_short_is_the_metric_of_an_hpa() {
        let spec = read(json!({"resourceMetrics": [
            {"resourceName": "cpu", "targetType": "Utilization", "averageUtilization": 70},
            {"resourceName": "memory", "averageValue": "512Mi"}]}));
        assert_eq!(
            json!(spec.expect("a spec").as_hpa("shop", "web").metrics),
            json!([
                {"type": "Resource", "resource": {"name": "cpu",
                    "target": {"type": "Utilization", "averageUtilization": 70}}},
                {"type": "Resource", "resource": {"name": "memory",
                    "target": {"type": "AverageValue", "averageValue": "512Mi"}}}])
        );
    }

    #[test]
    fn what_the_installed_schema_may_not_know_yet_is_refused_with_the_field() {
        let custom = |metric: Value| json!({"customMetrics": [metric]});
        let resource = |metric: Value| json!({"resourceMetrics": [metric]});
        for (fields, expected) in [
            (custom(json!({"metricName": "m"})), "spec.customMetrics[0].averageValue: must set"),
            (
                custom(json!({"metricName": "m", "value": 1})),
                "spec.customMetrics[0].value: needs per: Workload",
            ),
            (
                custom(json!({"metricName": "m", "averageValue": 1, "activation": 5})),
                "spec.customMetrics[0].activation: needs per: Workload",
            ),
            (
                custom(
                    json!({"metricName": "m", "per": "Workload", "value": 1, "activation": "x"}),
                ),
                "spec.customMetrics[0].activation: ",
            ),
            (
                json!({"executor": "NativeHPA", "customMetrics": [
                    {"metricName": "m", "averageValue": 1, "onEmpty": "Zero"}]}),
                "spec.customMetrics[0]: activation, onEmpty, onError and fallback require executor Embedded",
            ),
            (
                json!({"executor": "NativeHPA", "resourceMetrics": [
                    {"resourceName": "cpu", "averageValue": 1, "onError": "Hold"}]}),
                "spec.resourceMetrics[0]: activation, onEmpty, onError and fallback require executor Embedded",
            ),
            (
                json!({"customMetrics": [
                    {"metricName": "m", "averageValue": 1, "query": "a"},
                    {"metricName": "m", "averageValue": 1, "query": "b"}]}),
                "spec.customMetrics[1]: customMetrics[0] has the same metricName",
            ),
            (
                json!({"minReplicas": 0, "customMetrics": [{"metricName": "m", "averageValue": 1}]}),
                "spec.minReplicas: 0 needs at least one Object or External metric, or a custom metric per: Workload",
            ),
            (
                resource(json!({"resourceName": "cpu"})),
                "spec.resourceMetrics[0].averageUtilization: must set either",
            ),
            (
                resource(
                    json!({"resourceName": "cpu", "targetType": "Utilization", "averageValue": 1}),
                ),
                "spec.resourceMetrics[0].targetType: Utilization needs",
            ),
            (
                resource(json!({"resourceName": "cpu", "averageUtilization": 0})),
                "spec.resourceMetrics[0].averageUtilization: 0 must be more than 0",
            ),
        ] {
            let error = read(fields).expect_err(expected);
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
