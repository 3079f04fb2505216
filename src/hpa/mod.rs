//! The decision of the Horizontal Pod Autoscaler, as a pure function.
//!
//! [`decide()`] takes the [`Input`] and decides on a number of replicas;
//! [`complete_rescale`] takes the result of writing it and completes the status. Both change
//! only the [`ScalingHistory`] and [`Status`] that they are given. No I/O, no clock
//! and no global state: the same input gives the same output.
//!
//! The rules are those of `k8s.io/kubernetes/pkg/controller/podautoscaler` 1.36;
//! `tests/conformance` compares every decision with that controller's.

mod behavior;
mod decide;
mod decision;
mod history;
mod input;
mod metric;
mod normalize;
mod options;
mod reason;
mod replica_calculator;
mod requests;
pub mod schedule;
mod spec;
mod status;
#[cfg(test)]
mod tests;
pub mod trace;
mod validation;

pub use behavior::{Behavior, Policy, PolicyKind, ScalingRules, SelectPolicy};
pub use decide::{complete_rescale, decide, needs_samples};
pub use decision::{Decision, Direction, Event, EventKind, Outcome, Substitute};
pub use history::{Coverage, LONGEST_MS, Recommendation, ScaleEvent, ScalingHistory};
pub use input::{
    AlignedSamples, Context, ControllerConfig, Input, Phase, Pod, PodSamples, Ready, Sample,
    Samples, Scale, Selected, UnselectedSamples, resource_usage, selecting_autoscalers,
};
pub use normalize::{allowed, eased, release};
pub use options::{MetricFallback, MetricOptions, OnEmpty, OnError, WarmUp};
pub use reason::Reason;
pub use requests::{PodContainer, Requests, ResourceList};
pub use spec::{
    Metric, MetricId, MetricSource, MetricSpecs, ObjectRef, ResourceTarget, ScalarTarget, Spec,
    TargetRef, apply_defaults, no_kind_match, parse_group,
};
pub use status::{Condition, ConditionKind, Current, Status, object_time, render_status};
pub use trace::{MetricTrace, RecordedTrace, Step, Trace};
pub use validation::{InvalidField, validate};
