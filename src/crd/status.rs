//! The status of an `Autoscaler`.

use crate::hpa;
use k8s_openapi::api::autoscaling::v2::MetricStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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

impl AutoscalerStatus {
    /// The status as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a status has only names as keys")
    }
}

/// Conditions as the status of an Autoscaler has them.
pub fn conditions(conditions: &[hpa::Condition], generation: Option<i64>) -> Vec<Condition> {
    let condition = |condition: &hpa::Condition| Condition {
        type_: condition.kind.as_str().to_owned(),
        status: if condition.status { "True" } else { "False" }.to_owned(),
        observed_generation: generation,
        last_transition_time: hpa::object_time(condition.since),
        reason: condition.reason.to_string(),
        message: condition.message.to_string(),
    };
    conditions.iter().map(condition).collect()
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
    /// since is the start of the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// until is the end of the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
}
