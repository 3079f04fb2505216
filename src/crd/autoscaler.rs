//! `Autoscaler`, `plimsoll.dev/v1alpha1`.

use super::mode::{Mode, Pause};
use super::short_metrics::{CustomMetric, ResourceMetric};
use super::status::AutoscalerStatus;
use super::validation::MAX_POLICIES;
use crate::hpa::schedule::{self, ScheduleSpec};
use crate::hpa::{self, InvalidField, MetricOptions, validate};
use crate::promql::query::Per;
use crate::time::UnixMillis;
use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v2::{
    CrossVersionObjectReference, HorizontalPodAutoscalerBehavior, HorizontalPodAutoscalerSpec,
    MetricSpec,
};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// What a minimum of 0 needs.
const NEEDS_VALUE: &str = "needs at least one Object or External metric, or a custom metric per: Workload: a workload without pods has no pod metrics";

/// spec is the desired behavior: every field of an `autoscaling/v2` HorizontalPodAutoscaler, and metrics by
/// their names in Prometheus.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "plimsoll.dev",
    version = "v1alpha1",
    kind = "Autoscaler",
    namespaced,
    status = "AutoscalerStatus",
    shortname = "pas",
    category = "plimsoll",
    derive = "PartialEq",
    selectable = ".spec.mode",
    selectable = ".spec.scaleTargetRef.name",
    printcolumn = r#"{"name":"Reference","type":"string","jsonPath":".status.reference","description":"The scaled workload."}"#,
    printcolumn = r#"{"name":"Targets","type":"string","jsonPath":".status.targets","description":"Current and target value of each metric."}"#,
    printcolumn = r#"{"name":"MinPods","type":"integer","jsonPath":".spec.minReplicas"}"#,
    printcolumn = r#"{"name":"MaxPods","type":"integer","jsonPath":".spec.maxReplicas"}"#,
    printcolumn = r#"{"name":"Replicas","type":"integer","jsonPath":".status.currentReplicas"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Paused","type":"string","priority":1,"jsonPath":".status.conditions[?(@.type==\"Paused\")].status"}"#,
    printcolumn = r#"{"name":"Fallback","type":"string","priority":1,"jsonPath":".status.conditions[?(@.type==\"FallbackActive\")].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","priority":1,"jsonPath":".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name":"Able","type":"string","priority":1,"jsonPath":".status.conditions[?(@.type==\"AbleToScale\")].status"}"#,
    printcolumn = r#"{"name":"Active","type":"string","priority":1,"jsonPath":".status.conditions[?(@.type==\"ScalingActive\")].status"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Message","type":"string","priority":1,"jsonPath":".status.conditions[?(@.type==\"Ready\")].message"}"#
)]
#[x_kube(
    validation = Rule::new("self.maxReplicas >= self.minReplicas")
        .message("maxReplicas must be at least minReplicas")
        .field_path(".maxReplicas"),
    validation = Rule::new("(self.minReplicas != 0 && (!has(self.schedules) || self.schedules.all(s, !has(s.minReplicas) || s.minReplicas != 0))) || (has(self.metrics) && self.metrics.exists(m, m.type == 'Object' || m.type == 'External')) || (has(self.customMetrics) && self.customMetrics.exists(m, m.per == 'Workload'))")
        .message("must specify at least one Object or External metric, or a custom metric per: Workload, to support scaling to zero replicas: a workload without pods has no pod metrics")
        .reason(kube::core::Reason::FieldValueForbidden)
        .field_path(".metrics"),
    validation = Rule::new("self.executor != 'NativeHPA' || !(has(self.fallback) || has(self.syncPeriodSeconds) || has(self.warmUp) || has(self.rollouts))")
        .message("fallback, rollouts, warmUp and syncPeriodSeconds require executor Embedded: a native HPA does not have these fields (syncPeriodSeconds is expected in its behavior from Kubernetes 1.38 on, KEP-6003)")
        .field_path(".executor"),
    validation = Rule::new("self.executor != 'NativeHPA' || ((!has(self.customMetrics) || !self.customMetrics.exists(m, has(m.activation) || has(m.onEmpty) || has(m.onError) || has(m.fallback))) && (!has(self.resourceMetrics) || !self.resourceMetrics.exists(m, has(m.onError) || has(m.fallback))))")
        .message("activation, onEmpty, onError and fallback require executor Embedded: a native HPA does not have these fields")
        .field_path(".executor"),
    validation = Rule::new("self.executor != 'NativeHPA' || !has(self.selectionStrategy) || self.selectionStrategy == 'LabelSelector'")
        .message("selectionStrategy OwnerReference needs the executor Embedded: a native HPA has none before KEP-5325 is in kube-controller-manager")
        .field_path(".selectionStrategy"),
    validation = Rule::new("self.executor != 'NativeHPA' || self.mode != 'Preview'")
        .message("mode Preview needs the executor Embedded: kube-controller-manager would write the scale")
        .field_path(".mode")
)]
#[serde(rename_all = "camelCase")]
pub struct AutoscalerSpec {
    /// scaleTargetRef is the workload to scale: any kind with a scale subresource.
    pub scale_target_ref: CrossVersionObjectReference,

    /// minReplicas is the lower bound of the replicas, 1 if not set. 0 needs an Object or External metric, or a
    /// custom metric with `per: Workload`.
    #[serde(default = "one")]
    #[schemars(range(min = 0))]
    pub min_replicas: i32,

    /// maxReplicas is the upper bound of the replicas.
    #[schemars(range(min = 1))]
    pub max_replicas: i32,

    /// metrics are those of autoscaling/v2. If no metric is set in metrics, resourceMetrics or customMetrics, 80 %
    /// CPU utilization, as in an HPA.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub metrics: Option<Vec<MetricSpec>>,

    /// resourceMetrics are CPU and memory of the pods in the short form: each is the same as a metric of the type
    /// `Resource`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "atomic"))]
    pub resource_metrics: Vec<ResourceMetric>,

    /// customMetrics are metrics by their names in Prometheus, of the pods or of the workload. Each pair of
    /// metricName and labels is unique.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 24), extend("x-kubernetes-list-type" = "atomic"))]
    #[x_kube(validation = Rule::new("self.all(a, self.exists_one(b, a.metricName == b.metricName && has(a.labels) == has(b.labels) && (!has(a.labels) || a.labels == b.labels)))")
        .message("two metrics have the same metricName and labels, and thus the same published name: give one of them another metricName and a query"))]
    pub custom_metrics: Vec<CustomMetric>,

    /// schedules move minReplicas and maxReplicas in windows of time, recurring or once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub schedules: Vec<ScheduleSpec>,

    /// behavior has the stabilization windows, policies and tolerances, as in autoscaling/v2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behavior: Option<Box<HorizontalPodAutoscalerBehavior>>,

    /// fallback applies when metrics have failed for a while. If not set, the replicas stay as they are. A workload
    /// at zero stays there either way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<Fallback>,

    /// mode is Active (decisions are executed), Preview (only shown) or Paused (not made). Active if not set.
    #[serde(default)]
    pub mode: Mode,

    /// pause has the end, the reason and the author of a pause. Only with mode Paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,

    /// syncPeriodSeconds is the time between two evaluations, 1 to 3600. If not set, the server's
    /// `--horizontal-pod-autoscaler-sync-period`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3600))]
    pub sync_period_seconds: Option<i32>,

    /// selectionStrategy selects the pods that count: LabelSelector, all pods that the target's selector matches, as
    /// in an HPA (the default); or OwnerReference, of these only the pods that the target controls, directly or
    /// indirectly. Use OwnerReference if other workloads' pods have the same labels. Queries with `per: Workload` are
    /// not affected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection_strategy: Option<SelectionStrategy>,

    /// rollouts limits scaling during a rollout of a Deployment or StatefulSet, and for a minute after: Cap adds no
    /// replicas; Hold neither adds nor removes any. If not set, no limit. A rollout counts until its pods are ready,
    /// at most for ten minutes after its last new pod was created or Plimsoll started to observe it. Bounds of the
    /// replicas, spec.fallback and scaling from zero are not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollouts: Option<Rollouts>,

    /// warmUp is the time for which the CPU usage of new pods is ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_up: Option<WarmUp>,

    /// executor is the component that decides and scales: Embedded, Plimsoll (the default); or NativeHPA,
    /// kube-controller-manager, by a HorizontalPodAutoscaler that Plimsoll writes.
    #[serde(default)]
    pub executor: Executor,
}

/// What to do when the metrics have failed for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Fallback {
    /// failureThreshold is the number of consecutive sync periods with failed metrics after which the fallback
    /// applies. Minimum 1.
    #[schemars(range(min = 1))]
    #[serde(alias = "failedRounds")]
    pub failure_threshold: i32,
    /// replicas is the minimum number of replicas while the fallback applies, within minReplicas and maxReplicas. A
    /// fallback never removes replicas.
    #[schemars(range(min = 0))]
    pub replicas: i32,
}

/// selectionStrategy selects the pods that count: LabelSelector, all pods that the target's selector matches, as in
/// an HPA (the default); or OwnerReference, of these only the pods that the target controls, directly or indirectly.
/// Use OwnerReference if other workloads' pods have the same labels. Queries with `per: Workload` are not affected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SelectionStrategy {
    /// All of them.
    #[default]
    LabelSelector,
    /// Those that the target controls.
    OwnerReference,
}

/// rollouts limits scaling during a rollout of a Deployment or StatefulSet, and for a minute after: Cap adds no
/// replicas; Hold neither adds nor removes any. If not set, no limit. A rollout counts until its pods are ready, at
/// most for ten minutes after its last new pod was created or Plimsoll started to observe it. Pods that a paused
/// Deployment, a partition or OnDelete keep are no rollout. minReplicas, maxReplicas, spec.fallback and scaling from zero are not limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Rollouts {
    /// That replicas are added.
    Cap,
    /// That replicas are added or removed.
    Hold,
}

/// warmUp is the time for which the CPU usage of new pods is ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WarmUp {
    /// cpuInitializationPeriodSeconds is the time after the start of a pod in which its CPU counts only
    /// if it was measured since the pod became ready, 0 to 86400. If not set,
    /// `--horizontal-pod-autoscaler-cpu-initialization-period`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub cpu_initialization_period_seconds: Option<i32>,
    /// initialReadinessDelaySeconds is the time after the start of a pod in which a change of its
    /// readiness is a part of the start, 0 to 86400. If not set,
    /// `--horizontal-pod-autoscaler-initial-readiness-delay`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub initial_readiness_delay_seconds: Option<i32>,
}

impl WarmUp {
    /// As decisions read it.
    pub fn read(&self) -> hpa::WarmUp {
        let ms = |seconds: Option<i32>| seconds.map(|seconds| i64::from(seconds.max(0)) * 1000);
        hpa::WarmUp {
            cpu_initialization_ms: ms(self.cpu_initialization_period_seconds),
            initial_readiness_delay_ms: ms(self.initial_readiness_delay_seconds),
        }
    }
}

/// executor is the component that decides and scales: Embedded, Plimsoll (the default); or NativeHPA,
/// kube-controller-manager, by a HorizontalPodAutoscaler that Plimsoll writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Executor {
    /// Plimsoll's own control loop.
    #[default]
    Embedded,
    /// A native HorizontalPodAutoscaler of the same name, which Plimsoll writes
    /// and kube-controller-manager executes. `fallback` and `syncPeriodSeconds`
    /// need Embedded, as the mode `Preview` does. While the Autoscaler is paused, or scales are
    /// frozen, it has selectPolicy Disabled in both directions.
    NativeHPA,
}

/// Why the spec of an Autoscaler is invalid.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct ReadError(String);

fn one() -> i32 {
    1
}

impl AutoscalerSpec {
    /// Parses the `spec` of an object of the API server, where quantities may be numbers.
    ///
    /// # Errors
    /// If it is invalid. The schema refuses that, too, but the installed one may be older than this
    /// process. The text begins with the field.
    pub fn read(mut spec: Value) -> Result<Self, ReadError> {
        // As 0.1.0 wrote it, until the definition is updated.
        if spec["paused"] == true && spec.get("mode").is_none() {
            spec["mode"] = "Paused".into();
        }
        let spec: Self =
            serde_json::from_value(spec).map_err(|error| ReadError(format!("spec: {error}")))?;
        // Only that rule is about all metrics together.
        let lacks_value = |fault: &InvalidField| fault.field == "spec.metrics";
        let mut faults = validate(&spec.shared()).into_iter();
        if let Some(fault) = faults.find(|fault| !(lacks_value(fault) && spec.has_value_at_zero()))
        {
            return Err(ReadError(match lacks_value(&fault) {
                true => format!("spec.minReplicas: 0 {NEEDS_VALUE}"),
                false => fault.to_string(),
            }));
        }
        let behavior = spec.behavior.iter();
        let directions = behavior.flat_map(|behavior| {
            [("scaleUp", &behavior.scale_up), ("scaleDown", &behavior.scale_down)]
        });
        for (direction, rules) in directions {
            let policies = rules.as_ref().and_then(|rules| rules.policies.as_ref());
            let count = policies.map_or(0, Vec::len);
            if count > MAX_POLICIES {
                return Err(ReadError(format!(
                    "spec.behavior.{direction}.policies: {count} policies: at most {MAX_POLICIES} are allowed"
                )));
            }
        }
        spec.check_metrics().map_err(ReadError)?;
        schedule::parse(&spec.schedules).map_err(|error| ReadError(format!("spec.{error}")))?;
        if spec.schedules.iter().any(|schedule| schedule.min_replicas == Some(0))
            && !spec.has_value_at_zero()
        {
            return Err(ReadError(format!("spec.schedules: minReplicas 0 {NEEDS_VALUE}")));
        }
        spec.check_executor().map_err(ReadError)?;
        Ok(spec)
    }

    /// The fields that are the same in a HorizontalPodAutoscaler.
    fn shared(&self) -> HorizontalPodAutoscalerSpec {
        HorizontalPodAutoscalerSpec {
            scale_target_ref: self.scale_target_ref.clone(),
            min_replicas: Some(self.min_replicas),
            max_replicas: self.max_replicas,
            metrics: self.metrics.clone(),
            behavior: self.behavior.as_deref().cloned(),
        }
    }

    /// Whether any metric still has a value at zero replicas.
    pub fn has_value_at_zero(&self) -> bool {
        let has_value = |metric: &MetricSpec| matches!(&*metric.type_, "Object" | "External");
        self.metrics.iter().flatten().any(has_value)
            || self.custom_metrics.iter().any(|metric| metric.per == Per::Workload)
    }

    /// Checks that a native HPA has what is asked for. The text of the error begins with the field.
    fn check_executor(&self) -> Result<(), String> {
        let of_pods = self.selection_strategy == Some(SelectionStrategy::OwnerReference);
        let embedded = [
            ("fallback: ", self.fallback.is_some()),
            ("syncPeriodSeconds: ", self.sync_period_seconds.is_some()),
            ("warmUp: ", self.warm_up.is_some()),
            ("rollouts: ", self.rollouts.is_some()),
            ("selectionStrategy: OwnerReference ", of_pods),
            ("mode: Preview ", self.mode == Mode::Preview),
        ];
        let is_native = self.executor == Executor::NativeHPA;
        match embedded.into_iter().find(|(_, is_given)| is_native && *is_given) {
            Some((field, _)) => Err(format!(
                "spec.{field}needs the executor Embedded: kube-controller-manager decides and writes the scale without it"
            )),
            None => Ok(()),
        }
    }

    /// The mode at a time: a pause ends at its `until`.
    pub fn mode_at(&self, now: UnixMillis) -> Mode {
        let until = self.pause.as_ref().and_then(|pause| pause.until.as_ref());
        match self.mode {
            Mode::Paused if until.is_some_and(|until| until.0.as_millisecond() <= now) => {
                Mode::Active
            }
            mode => mode,
        }
    }

    /// When the pause ended, if `mode` still is `Paused` and this, the mode at some time, is not.
    pub fn pause_that_is_over(&self, mode: Mode) -> Option<Timestamp> {
        let until = self.pause.as_ref()?.until.as_ref()?;
        (self.mode == Mode::Paused && mode != Mode::Paused).then_some(until.0)
    }

    /// Whether `pause` is given, and `mode` is `Active`, so that it pauses nothing.
    pub fn has_pause_without_mode(&self) -> bool {
        self.pause.is_some() && self.mode == Mode::Active
    }

    /// Checks `resourceMetrics` and `customMetrics`. The text of the error begins with the field.
    fn check_metrics(&self) -> Result<(), String> {
        let check_options = |path: &str, options: MetricOptions| match self.executor {
            Executor::NativeHPA if options != MetricOptions::default() => Err(format!(
                "{path}: activation, onEmpty, onError and fallback require executor Embedded: a native HPA does not have these fields"
            )),
            Executor::NativeHPA | Executor::Embedded => Ok(()),
        };
        for (index, metric) in self.resource_metrics.iter().enumerate() {
            let path = format!("spec.resourceMetrics[{index}]");
            metric.check().map_err(|error| format!("{path}.{error}"))?;
            check_options(&path, metric.options())?;
        }
        let mut known = BTreeMap::new();
        for (index, metric) in self.custom_metrics.iter().enumerate() {
            let path = format!("spec.customMetrics[{index}]");
            let options = metric.check().map_err(|error| format!("{path}.{error}"))?;
            check_options(&path, options)?;
            if let Some(other) = known.insert((&metric.metric_name, &metric.labels), index) {
                return Err(format!(
                    "{path}: customMetrics[{other}] has the same metricName and labels, and thus the same published name: give one of them another metricName and a query"
                ));
            }
        }
        Ok(())
    }

    /// The equivalent HorizontalPodAutoscaler spec: `metrics`, then `resourceMetrics`, then
    /// `customMetrics` as Pods or External metrics with their generated names.
    pub fn as_hpa(&self, namespace: &str, name: &str) -> HorizontalPodAutoscalerSpec {
        let mut metrics = self.metrics.clone().unwrap_or_default();
        metrics.extend(self.resource_metrics.iter().map(ResourceMetric::as_metric));
        metrics.extend(self.custom_metrics.iter().map(|metric| metric.as_metric(namespace, name)));
        HorizontalPodAutoscalerSpec {
            metrics: Some(metrics).filter(|metrics| !metrics.is_empty()),
            ..self.shared()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_spec_may_have_numbers_for_quantities() {
        let spec = AutoscalerSpec::read(json!({
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "maxReplicas": 10,
            "metrics": [{"type": "External", "external": {
                "metric": {"name": "queue"}, "target": {"type": "Value", "value": 30}}}],
            "customMetrics": [{"metricName": "http_requests_total", "averageValue": 10}],
            "behavior": {"scaleUp": {"tolerance": "50m", "policies": [
                {"type": "Pods", "value": 2, "periodSeconds": 15}]}},
        }))
        .unwrap();
        assert_eq!(spec.min_replicas, 1);
        assert_eq!(spec.executor, Executor::Embedded);
        assert_eq!(spec.custom_metrics[0].average_value.as_ref().unwrap().0, "10");
        let hpa = spec.as_hpa("shop", "web");
        let names: Vec<_> = hpa.metrics.unwrap().into_iter().map(|m| m.type_).collect();
        assert_eq!(names, ["External", "Pods"]);
    }

    #[test]
    fn more_policies_than_the_schema_allows_are_refused_where_the_installed_one_allows_them() {
        let read = |direction: &str, policies: usize| {
            let policy = json!({"type": "Pods", "value": 2, "periodSeconds": 15});
            AutoscalerSpec::read(json!({
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "maxReplicas": 10,
                "behavior": {direction: {"policies": vec![policy; policies]}},
            }))
        };
        for direction in ["scaleUp", "scaleDown"] {
            assert!(read(direction, 32).is_ok());
            let error = read(direction, 33).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("spec.behavior.{direction}.policies: 33 policies: at most 32 are allowed")
            );
        }
    }

    fn with(fields: Value) -> Result<AutoscalerSpec, ReadError> {
        let mut spec = json!({"maxReplicas": 10, "scaleTargetRef":
            {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}});
        for (name, field) in fields.as_object().expect("fields") {
            spec[name] = field.clone();
        }
        AutoscalerSpec::read(spec)
    }

    #[test]
    fn a_pause_ends_at_its_time_and_not_before() {
        let until = "2026-11-23T12:00:00Z";
        let spec = with(json!({"mode": "Paused",
            "pause": {"until": until, "reason": "INC-1", "by": "ann"}}))
        .unwrap();
        let end = until.parse::<jiff::Timestamp>().unwrap().as_millisecond();
        for (now, mode) in [(end - 1, Mode::Paused), (end, Mode::Active)] {
            assert_eq!(spec.mode_at(now), mode);
        }
        let text = spec.pause.unwrap().to_string();
        assert_eq!(text, r#", by "ann", reason "INC-1", until 2026-11-23T12:00:00Z"#);
        assert_eq!(with(json!({"paused": true})).unwrap().mode, Mode::Paused);
        assert_eq!(with(json!({"mode": "Preview"})).unwrap().mode_at(i64::MAX), Mode::Preview);
        let native = json!({"mode": "Preview", "executor": "NativeHPA"});
        let error = with(native).unwrap_err().to_string();
        assert!(error.starts_with("spec.mode: Preview needs"), "{error}");
    }

    #[test]
    fn an_invalid_spec_is_refused_with_the_field() {
        for (change, expected) in [
            (
                json!({"averageValue": "ten", "metricName": "m"}),
                "spec.customMetrics[0].averageValue",
            ),
            (json!({"averageValue": "-1", "metricName": "m"}), "must be more than 0"),
            (json!({"averageValue": "1"}), "missing field `metricName`"),
        ] {
            let error = AutoscalerSpec::read(json!({
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "maxReplicas": 10,
                "customMetrics": [change],
            }))
            .unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
