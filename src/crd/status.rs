//! The status of an `Autoscaler`.

use crate::k8s::Quantity;
use k8s_openapi::api::autoscaling::v2::MetricStatus;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::hash::{DefaultHasher, Hash, Hasher};

/// status is the observed state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutoscalerStatus {
    /// reference is kind and name of the target, for display.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// targets lists current and target values per metric, and bounds of schedules, for display.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub targets: Option<String>,
    /// schedule has the bounds in effect by schedules. Absent without schedules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleStatus>,
    /// observedGeneration is the generation of the last evaluated spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// lastScaleTime is the last time the replicas were changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_scale_time: Option<Time>,
    /// currentReplicas is the number of replicas in the scale at the last evaluation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_replicas: Option<i32>,
    /// desiredReplicas is the replica count computed by the last evaluation. Absent before the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desired_replicas: Option<i32>,
    /// currentMetrics is the last observed value of each metric.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_metrics: Option<Vec<MetricStatus>>,
    /// conditions are those of an HPA, and Ready, FallbackActive, Paused, Preview, Frozen, MetricTypeUnknown and
    /// ConfigurationWarning.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Option<Vec<Condition>>,
}

/// What the status of an object says, as far as another must differ from it to be worth a write.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatusDigest {
    /// A hash of all but the values of metrics, which only this process understands.
    pub decision: u64,
    /// The values of metrics.
    pub values: Box<[f64]>,
}

impl AutoscalerStatus {
    /// The digest of the status.
    pub fn digest(&self) -> StatusDigest {
        let Self {
            reference,
            targets: _,
            schedule,
            observed_generation,
            last_scale_time,
            current_replicas,
            desired_replicas,
            current_metrics,
            conditions,
        } = self;
        let mut hasher = DefaultHasher::new();
        let last_scale = last_scale_time.as_ref().map(|time| time.0);
        (reference, observed_generation, last_scale).hash(&mut hasher);
        (current_replicas, desired_replicas).hash(&mut hasher);
        schedule.as_ref().map(|schedule| format!("{schedule:?}")).hash(&mut hasher);
        for condition in conditions.iter().flatten() {
            let Condition {
                last_transition_time,
                message,
                observed_generation,
                reason,
                status,
                type_,
            } = condition;
            (type_, status, reason, message).hash(&mut hasher);
            (observed_generation, last_transition_time.0).hash(&mut hasher);
        }
        let metrics = current_metrics.iter().flatten();
        StatusDigest {
            decision: hasher.finish(),
            values: metrics.filter_map(metric_value).collect(),
        }
    }
}

/// The value of a metric, if it has one.
fn metric_value(metric: &MetricStatus) -> Option<f64> {
    let quantity = |quantity: &ApiQuantity| Some(quantity.0.parse::<Quantity>().ok()?.as_f64());
    let pods = metric.pods.as_ref().map(|metric| &metric.current);
    let value = pods
        .or(metric.resource.as_ref().map(|metric| &metric.current))
        .or(metric.container_resource.as_ref().map(|metric| &metric.current))
        .or(metric.object.as_ref().map(|metric| &metric.current))
        .or(metric.external.as_ref().map(|metric| &metric.current))?;
    let average = || value.average_value.as_ref().and_then(quantity);
    value.value.as_ref().and_then(quantity).or_else(average)
}

/// What the schedules say.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleStatus {
    /// minReplicas is the lower bound in effect.
    pub min_replicas: i32,
    /// minReplicasBy is the schedule that sets minReplicas. Absent if the spec does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_replicas_by: Option<String>,
    /// maxReplicas is the upper bound in effect.
    pub max_replicas: i32,
    /// maxReplicasBy is the schedule that sets maxReplicas. Absent if the spec does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_replicas_by: Option<String>,
    /// conflict is set if the lower bound would be above the upper one: the upper one applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conflict: Option<String>,
    /// active lists the windows in effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub active: Vec<ScheduleWindow>,
    /// nextChange is the time at which the next window begins or ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_change: Option<Time>,
}

/// An active window of a schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleWindow {
    /// name is the name of the schedule.
    pub name: String,
    /// since is the begin of the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// until is the end of the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
}
