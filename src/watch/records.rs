//! The records that the index keeps of autoscalers and workloads.

use super::rollout::{Rollout, Seen};
use crate::crd::{
    AutoscalerSpec, Executor, MetricRuleSpec, MetricRuleStatus, ReadError, StatusDigest,
};
use crate::hpa::{self, Scale, Spec, Status};
use crate::promql::query::PrometheusMetric;
use crate::time::UnixMillis;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscalerStatus;
use std::sync::Arc;

/// The scale of a workload whose kind is watched.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaleRecord {
    /// The replica counts of its spec and status.
    pub replicas: Scale,
    /// The selector of its pods, as text.
    pub selector: String,
    /// What it says of rollouts.
    pub seen: Seen,
    /// Its last rollout, by what it has said so far.
    pub rollout: Rollout,
}

/// The kinds of workloads that are watched, all in the group `apps`. The scale of other
/// kinds is read when it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Workload {
    /// A Deployment.
    Deployment,
    /// A StatefulSet.
    StatefulSet,
}

impl Workload {
    /// The watched kind of this group and kind, if it is watched.
    pub fn of(group: &str, kind: &str) -> Option<Self> {
        match (group, kind) {
            ("apps", "Deployment") => Some(Self::Deployment),
            ("apps", "StatefulSet") => Some(Self::StatefulSet),
            _ => None,
        }
    }
}

/// The record of an Autoscaler.
#[derive(Clone, Debug)]
pub struct AutoscalerRecord {
    /// The UID, for events and owner references.
    pub uid: String,
    /// The generation of its spec.
    pub generation: Option<i64>,
    /// The parsed spec, or why it can't be parsed.
    pub parsed: Result<Arc<ParsedSpec>, ReadError>,
    /// The status.
    pub status: Status,
    /// The same, as far as the next one must differ to be written.
    pub digest: StatusDigest,
    /// The schedules that are active by its status, and since when; none where it says nothing of schedules.
    pub windows: Option<Vec<(String, UnixMillis)>>,
}

/// The spec of an Autoscaler, parsed once per generation.
#[derive(Clone, Debug)]
pub struct ParsedSpec {
    /// The spec as the user wrote it. A record lacks the metrics and the behavior, unless a native HPA has them.
    pub spec: AutoscalerSpec,
    /// The same as the HPA algorithm reads it.
    pub scaling: ScalingSpec,
}

/// The spec of an Autoscaler or native HPA as the HPA algorithm reads it.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalingSpec {
    /// The target, the bounds, the metrics and the behavior.
    pub spec: Spec,
    /// For each metric of `spec`, what Plimsoll itself queries Prometheus for; none for
    /// metrics of rules and of other providers.
    pub prometheus_metrics: Vec<Option<Arc<PrometheusMetric>>>,
}

/// The record of a native HorizontalPodAutoscaler.
#[derive(Clone, Debug)]
pub struct HpaRecord {
    /// The UID, for events and preconditions.
    pub uid: String,
    /// The resourceVersion, for preconditions.
    pub version: Option<String>,
    /// The spec as the HPA algorithm reads it.
    pub scaling: ScalingSpec,
    /// The UID of the owning Autoscaler, if any.
    pub owner: Option<String>,
    /// The status.
    pub status: HorizontalPodAutoscalerStatus,
}

/// The record of a MetricRule.
#[derive(Clone, Debug)]
pub struct MetricRuleRecord {
    /// The UID, for preconditions.
    pub uid: String,
    /// The generation of its spec.
    pub generation: Option<i64>,
    /// When it was created.
    pub created: UnixMillis,
    /// The spec, or why it can't be read.
    pub spec: Result<Arc<MetricRuleSpec>, String>,
    /// The status.
    pub status: MetricRuleStatus,
}

impl AutoscalerRecord {
    /// The metrics that Plimsoll serves for it, by their published names; none of a spec that is invalid.
    pub(super) fn published(&self) -> Vec<(String, Arc<PrometheusMetric>)> {
        self.parsed.as_ref().map_or(Vec::new(), |parsed| parsed.scaling.published())
    }
}

impl ParsedSpec {
    /// What a record keeps of it: metrics and behavior once.
    pub(super) fn kept(mut self) -> Arc<Self> {
        if self.spec.executor == Executor::Embedded {
            (self.spec.metrics, self.spec.behavior) = (None, None);
            self.spec.resource_metrics = Vec::new();
            self.spec.custom_metrics = Vec::new();
        }
        self.into()
    }
}

impl ScalingSpec {
    /// The metrics that Plimsoll serves for it, by their published names.
    pub(super) fn published(&self) -> Vec<(String, Arc<PrometheusMetric>)> {
        let name = |metric: &hpa::Metric| match &metric.source {
            hpa::MetricSource::Pods { metric, .. } | hpa::MetricSource::External { metric, .. } => {
                Some(metric.name.clone())
            }
            _ => None,
        };
        self.spec
            .metrics
            .iter()
            .zip(&self.prometheus_metrics)
            .filter_map(|(metric, prometheus_metric)| {
                Some((name(metric)?, prometheus_metric.clone()?))
            })
            .collect()
    }
}
