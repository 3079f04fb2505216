//! The decision of the Horizontal Pod Autoscaler, as a pure function.
//!
//! [`decide()`] takes what was observed and proposes a number of replicas;
//! [`settle`] takes how writing it went and completes the status. Both change
//! only the [`Memory`] and [`Status`] they are given. There is no I/O, no clock
//! and no global state here: the same input gives the same output.
//!
//! The rules are those of `k8s.io/kubernetes/pkg/controller/podautoscaler` 1.36;
//! `tests/conformance` compares every decision with what that controller did.

pub mod account;
mod decide;
mod memory;
mod metric;
mod normalize;
mod observe;
mod requests;
mod spec;
mod status;
mod validation;

pub use account::{Account, MetricAccount, Record, Step};
pub use decide::{Decision, Event, EventKind, Outcome, decide, needs_samples, settle};
pub use memory::{LONGEST_MS, Memory, Recommendation, ScaleEvent};
pub use observe::{
    AlignedSamples, Config, Context, Input, Phase, Pod, PodSamples, Ready, Sample, Samples, Scale,
    Selected, Strays, resource_usage, selecting_autoscalers,
};
pub use requests::{PodContainer, Requests, ResourceList};
pub use spec::{
    Behavior, Metric, MetricId, Metrics, ObjectRef, Policy, PolicyKind, ResourceTarget,
    ScalarTarget, ScalingRules, SelectPolicy, Source, Spec, TargetRef, apply_defaults,
    no_kind_match, parse_group,
};
pub use status::{Condition, ConditionKind, Current, Status, render_status};
pub use validation::{InvalidField, validate};

/// A point in time in milliseconds since 1970-01-01T00:00:00Z.
pub type UnixMillis = i64;
