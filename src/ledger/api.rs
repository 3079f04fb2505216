//! A decision as the API shows it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The API group of decisions.
pub const GROUP: &str = "decisions.plimsoll.dev";
/// Its version.
pub const VERSION: &str = "v1alpha1";
/// The label with the name of the autoscaler.
pub const AUTOSCALER_LABEL: &str = "plimsoll.dev/autoscaler";
/// The label with the kind of the autoscaler.
pub const KIND_LABEL: &str = "plimsoll.dev/kind";
/// The annotation that says since when there are decisions.
pub const SINCE_ANNOTATION: &str = "plimsoll.dev/history-since";

/// The annotation of bookmarks with the resource version with which the leadership began.
pub const LEADERSHIP_ANNOTATION: &str = "plimsoll.dev/leadership-began";

/// Decision says what was decided for an autoscaler, and why: one decision, or a run of decisions in
/// which nothing but measured values changed. Decisions are kept in memory, the oldest are dropped
/// first, and nothing can be written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    /// apiVersion is decisions.plimsoll.dev/v1alpha1.
    pub api_version: String,
    /// kind is Decision.
    pub kind: String,
    /// metadata of the object. The name is AUTOSCALER.KIND.SEQUENCE. The labels
    /// plimsoll.dev/autoscaler and plimsoll.dev/kind name the autoscaler. The annotation
    /// plimsoll.dev/history-since says since when there are decisions.
    pub metadata: Metadata,
    /// time of the decision, or of the last decision of a run.
    pub time: String,
    /// count is the number of decisions of a run.
    pub count: u64,
    /// firstTime is the time of the first decision of a run.
    pub first_time: String,
    /// lastTime is the time of the last decision of a run.
    pub last_time: String,
    /// observedGeneration is the generation of the spec that was decided on. A native
    /// HorizontalPodAutoscaler has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// currentReplicas is what the scale asked for before the decision. Not set if the scale could not be
    /// read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_replicas: Option<i32>,
    /// recommendedReplicas is what the metrics propose, before any constraint. Not set if no
    /// metric was evaluated, or none could be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recommended_replicas: Option<i32>,
    /// desiredReplicas is what was decided, after all constraints. Not set if there was no decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_replicas: Option<i32>,
    /// reason of desiredReplicas: MetricRecommendation, WithinTolerance, Stabilized, PolicyLimited,
    /// ReplicaLimit, InvalidMetrics, RecommendationFailed, Fallback, Schedule, Forecast, Paused,
    /// Frozen or Observed.
    pub reason: String,
    /// message says why no decision was possible, or why it could not be carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// metrics of the spec, in its order. Empty if none was evaluated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<Metric>,
    /// constraints that changed the recommendation, in the order in which they did.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub constraints: Vec<ApiConstraint>,
    /// limits say what keeps the next change smaller than wouldChange would have it.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    /// until says when the windows end that hold the replicas.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub until: Vec<Until>,
    /// wouldChange says what the metric that decided has to be for other replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub would_change: Option<WouldChange>,
    /// carriedOut says whether the scale was written, by whom, or why not.
    pub carried_out: ApiCarriedOut,
    /// observed is what kube-controller-manager decided, for a native HorizontalPodAutoscaler that it
    /// executes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed: Option<ApiObserved>,
    /// basis is what the autoscaler's spec said at that time.
    pub basis: ApiBasis,
}

/// The metadata of a decision.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// name is AUTOSCALER.KIND.SEQUENCE.
    pub name: String,
    /// namespace of the autoscaler.
    pub namespace: String,
    /// uid of the decision.
    pub uid: String,
    /// resourceVersion in which the decision was shown last. Resource versions are of one leadership.
    pub resource_version: String,
    /// creationTimestamp is firstTime in whole seconds.
    pub creation_timestamp: String,
    /// labels name the autoscaler.
    pub labels: BTreeMap<String, String>,
    /// annotations say since when there are decisions.
    pub annotations: BTreeMap<String, String>,
}

/// One metric of a decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Metric {
    /// metricIndex is its place among the metrics of the spec, from 0.
    pub metric_index: usize,
    /// name of the metric.
    pub name: String,
    /// scope tells it from others of its name: a container, the object that it describes, or a selector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// query that its values are of, if Plimsoll itself queries it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// queriedAt is when its values were queried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queried_at: Option<String>,
    /// newestSampleAge is the age of its newest value at the decision, such as 1.250s. The time of a
    /// value is that of the sample if the provider tells it, or else that of the query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest_sample_age: Option<String>,
    /// value that was compared with the target: the average of the pods, a total divided by the replicas, a
    /// total, or a percentage of the requests. Where there are no replicas to divide it by, it is the total, and
    /// ratio is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// minValue is the smallest value of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_value: Option<String>,
    /// maxValue is the largest value of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_value: Option<String>,
    /// target of the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// targetType is AverageValue, Value or Utilization.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_type: Option<String>,
    /// ratio of value and target, to six digits after the point. Within the tolerance of 1 nothing is
    /// changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// weightedRatio is the same with pods that are not ready as 0 and pods without a sample as on target (of a
    /// utilization: with all of their requests, if these are more), or as 0 above it, if there are any that count. It
    /// decides then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weighted_ratio: Option<f64>,
    /// pods by how they counted.
    pub pods: Pods,
    /// proposedReplicas is what the metric proposes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proposed_replicas: Option<i32>,
    /// status is Used if its proposal won, Valid if another's did, and Invalid if it failed.
    pub status: String,
    /// reason why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// message says in words why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// activation is the total up to which it is not active at zero replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation: Option<String>,
    /// onError is Hold or Ignore, if the spec says what is done while it fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_error: Option<String>,
}

impl Metric {
    /// Whether the value is a total though the target is an average: there were no replicas to divide it by.
    pub fn is_total(&self) -> bool {
        let is_average = self.target_type.as_deref() == Some("AverageValue");
        is_average && self.value.is_some() && self.ratio.is_none()
    }
}

/// The pods of a metric by how they counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Pods {
    /// ready pods, whose sample counted.
    pub ready: i64,
    /// unready or pending pods.
    pub unready: i64,
    /// missing counts pods without a sample.
    pub missing: i64,
    /// ignored pods failed or are being deleted.
    pub ignored: i64,
}

/// A step that changed the replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApiConstraint {
    /// type of the constraint, such as ScaleDownStabilized, ScaleUpLimit or TooManyReplicas.
    #[serde(rename = "type")]
    pub kind: String,
    /// replicasBefore the constraint.
    pub replicas_before: i32,
    /// replicasAfter the constraint.
    pub replicas_after: i32,
    /// schedule whose bound it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// until is when its window ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
}

/// What keeps the next change small.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// scaleUp is the limit of more replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_up: Option<ApiLimit>,
    /// scaleDown is the limit of fewer replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_down: Option<ApiLimit>,
}

impl Limits {
    fn is_empty(&self) -> bool {
        self.scale_up.is_none() && self.scale_down.is_none()
    }
}

/// A limit of the next change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApiLimit {
    /// type of the limit: ScaleUpLimit or ScaleDownLimit for policies, or what holds the replicas: RollingOut,
    /// PodsNotKnown or MetricsWereAway.
    #[serde(rename = "type")]
    pub kind: String,
    /// replicas that may be reached. No other than there are where it is not known when it ends.
    pub replicas: i32,
    /// from is when these may be reached. Not set if they may be now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// When a window ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Until {
    /// window is the type of the constraint, or Schedule for the next change of the bounds.
    pub window: String,
    /// time of its end.
    pub time: String,
}

/// What has to be for other replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WouldChange {
    /// metricIndex of the metric.
    pub metric_index: usize,
    /// more says what it has to be for one replica more.
    pub more: Turn,
    /// fewer says what it has to be for one replica fewer.
    pub fewer: Turn,
}

/// What has to be for one replica more or fewer, if all pods are ready.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Turn {
    /// replicas that it would be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// value that the metric has to have: at least that for more replicas, at most that for fewer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// earliest is when that can take effect at the earliest, if the metric has that value from the time of the
    /// decision on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earliest: Option<String>,
    /// preventedBy is what prevents it: minReplicas, maxReplicas, selectPolicy if it is Disabled, tolerance if no value
    /// leaves it, metric if another one asks for as many replicas or fails, the type of a limit that holds the
    /// replicas, or Frozen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prevented_by: Option<String>,
    /// preventedByMetric is the metricIndex of the metric that prevents it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prevented_by_metric: Option<usize>,
}

/// Whether a decision was carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApiCarriedOut {
    /// written says whether the scale was written.
    pub written: bool,
    /// by is who sizes the workload: plimsoll or kube-controller-manager.
    pub by: String,
    /// reason is Written, Unchanged, NoDecision, WriteFailed, Frozen, Preview, Paused or Observed.
    pub reason: String,
}

/// What kube-controller-manager decided, as the status of the HorizontalPodAutoscaler said at that time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApiObserved {
    /// desiredReplicas of its status. Not set if its conditions say that it can't decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_replicas: Option<i32>,
    /// lastScaleTime of its status: when it last changed the scale. Not set if it never did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_scale_time: Option<String>,
    /// values that it measured, in the order of the spec, if it can't decide or Plimsoll desires other replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<String>,
    /// conditions of its status then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<String>,
}

/// What the autoscaler's spec said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApiBasis {
    /// minReplicas at that time, by the spec or a schedule.
    pub min_replicas: i32,
    /// maxReplicas at that time, by the spec or a schedule.
    pub max_replicas: i32,
    /// minReplicasSchedule is the schedule that gives minReplicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_replicas_schedule: Option<String>,
    /// maxReplicasSchedule is the schedule that gives maxReplicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_replicas_schedule: Option<String>,
    /// boundsUntil is when a schedule changes the bounds next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds_until: Option<String>,
    /// scaleUpStabilizationSeconds is the stabilization window of scale-up.
    pub scale_up_stabilization_seconds: i64,
    /// scaleDownStabilizationSeconds is the stabilization window of scale-down.
    pub scale_down_stabilization_seconds: i64,
    /// scaleUpTolerance is how far above 1 the ratio may be without a change.
    pub scale_up_tolerance: f64,
    /// scaleDownTolerance is how far below 1 the ratio may be without a change.
    pub scale_down_tolerance: f64,
    /// scaleUpDisabled says whether selectPolicy of scaleUp is Disabled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scale_up_disabled: bool,
    /// scaleDownDisabled says whether selectPolicy of scaleDown is Disabled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scale_down_disabled: bool,
}
