//! The status of an `Autoscaler`.

use crate::k8s::Quantity;
use k8s_openapi::api::autoscaling::v2::MetricStatus;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::hash::{DefaultHasher, Hash, Hasher};

/// What was seen and done last.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutoscalerStatus {
    /// What is scaled, as kind and name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// What each metric is, over what it should be, and the bounds that a schedule gives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub targets: Option<String>,
    /// What the schedules say; absent without any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleStatus>,
    /// The generation of the spec that was looked at last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When the replicas were last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_scale_time: Option<Time>,
    /// The replicas asked for when the scale was last looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_replicas: Option<i32>,
    /// The replicas last wanted; absent before the first decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desired_replicas: Option<i32>,
    /// What each metric was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_metrics: Option<Vec<MetricStatus>>,
    /// The conditions of an HPA, with the same types and reasons, and others beside: `Ready` sums them up.
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
    /// The lower bound of the replicas now.
    pub min_replicas: i32,
    /// The schedule that gives it; absent if the spec does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_replicas_by: Option<String>,
    /// The upper bound of the replicas now.
    pub max_replicas: i32,
    /// The schedule that gives it; absent if the spec does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_replicas_by: Option<String>,
    /// Where the lower bound would be above the upper one: the upper one holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conflict: Option<String>,
    /// The windows that are active.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub active: Vec<ScheduleWindow>,
    /// When a window begins or ends next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_change: Option<Time>,
}

/// An active window of a schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleWindow {
    /// The name of the schedule.
    pub name: String,
    /// When the window began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// When it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
}
