//! The scaling rules of a specification.

use crate::k8s::Quantity;
use k8s_openapi::api::autoscaling::v2 as api;

/// The scaling rules of both directions.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Behavior {
    /// Rules for more replicas.
    pub scale_up: ScalingRules,
    /// Rules for fewer replicas.
    pub scale_down: ScalingRules,
}

/// The scaling rules of one direction (HPAScalingRules).
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ScalingRules {
    /// The stabilization window, in seconds; none for the controller's default.
    pub stabilization_seconds: Option<i32>,
    /// Which policy wins.
    pub select_policy: SelectPolicy,
    /// The policies.
    pub policies: Vec<Policy>,
    /// How far the ratio of a metric may be from 1 without a change.
    pub tolerance: Option<f64>,
}

/// Which of several policies wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum SelectPolicy {
    /// The policy that allows the largest change.
    Max,
    /// The policy that allows the smallest change.
    Min,
    /// No change in this direction.
    Disabled,
}

/// A policy: how many replicas may change within a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Policy {
    /// The unit of `value`.
    pub kind: PolicyKind,
    /// Pods or percent.
    pub value: i32,
    /// The period, in seconds.
    pub period_seconds: i32,
}

/// The unit of a policy's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum PolicyKind {
    /// Pods.
    Pods,
    /// Percent of the replicas at the period's start.
    Percent,
}

impl ScalingRules {
    /// An unknown value prevents any change in its direction: it may be a misspelt `Disabled`, or
    /// stricter than the known ones. Autoscalers with unknown values are refused before, but the
    /// API server of a later Kubernetes may accept new values in a HorizontalPodAutoscaler.
    pub(super) fn from_api(rules: api::HPAScalingRules) -> Self {
        let policies = rules.policies.unwrap_or_default();
        let known: Option<Vec<Policy>> = policies.iter().map(Policy::from_api).collect();
        Self {
            stabilization_seconds: rules.stabilization_window_seconds,
            select_policy: match (&known, rules.select_policy.as_deref()) {
                (Some(_), None | Some("Max")) => SelectPolicy::Max,
                (Some(_), Some("Min")) => SelectPolicy::Min,
                _ => SelectPolicy::Disabled,
            },
            policies: known.unwrap_or_default(),
            tolerance: rules
                .tolerance
                .and_then(|tolerance| tolerance.0.parse::<Quantity>().ok())
                .map(Quantity::as_f64),
        }
    }
}

impl Policy {
    /// None if the type is unknown.
    fn from_api(policy: &api::HPAScalingPolicy) -> Option<Self> {
        let kind = match policy.type_.as_str() {
            "Pods" => PolicyKind::Pods,
            "Percent" => PolicyKind::Percent,
            _ => return None,
        };
        Some(Self { kind, value: policy.value, period_seconds: policy.period_seconds })
    }
}
