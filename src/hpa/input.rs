//! The input of a decision: the scale, the pods and the samples.

use super::reason::Reason;
use super::schedule::Bounds;
use super::{Requests, Spec};
use crate::k8s::{LabelSet, Quantity, Selector};
use crate::time::UnixMillis;
use std::collections::{BTreeSet, HashMap};

/// The flags of the HPA controller.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ControllerConfig {
    /// How far the ratio of a metric may be from 1 without a change (default 0.1).
    pub tolerance: f64,
    /// How far back recommendations hold a scale-down, in seconds (default 300).
    pub downscale_stabilization_seconds: i32,
    /// The period after pod start during which CPU samples may be skipped, in ms.
    pub cpu_initialization_ms: i64,
    /// The period after pod start during which readiness changes count as initial readiness, in ms.
    pub initial_readiness_delay_ms: i64,
    /// Whether workloads may be scaled to and from zero (`HPAScaleToZero`).
    pub scale_to_zero: bool,
}

impl Default for ControllerConfig {
    /// The defaults of kube-controller-manager 1.36.
    fn default() -> Self {
        Self {
            tolerance: 0.1,
            downscale_stabilization_seconds: 300,
            cpu_initialization_ms: 300_000,
            initial_readiness_delay_ms: 30_000,
            scale_to_zero: false,
        }
    }
}

/// The input of a decision, besides history and status.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The specification, the settings and the time.
    pub context: Context<'a>,
    /// The autoscaler's namespace, for messages.
    pub namespace: &'a str,
    /// The target's scale, or why it could not be read.
    pub scale: Result<Scale, &'a str>,
    /// The pods that the scale's selector selects.
    pub selected: Selected<'a>,
    /// One entry for each metric of the specification, in its order.
    pub samples: &'a [Samples<'a>],
}

/// The specification, the settings and the time of a decision.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The specification of the autoscaler.
    pub spec: &'a Spec,
    /// The controller's settings.
    pub config: &'a ControllerConfig,
    /// The time of the decision.
    pub now: UnixMillis,
    /// The time by which the schedules go: `now`, or that of a clock that all replicas share.
    pub schedule_time: UnixMillis,
    /// The bounds of the replicas at that time.
    pub bounds: Bounds,
}

impl<'a> Context<'a> {
    /// The context of a decision at a time, with the bounds by the schedules.
    pub fn new(spec: &'a Spec, config: &'a ControllerConfig, now: UnixMillis) -> Self {
        Self::scheduled_at(spec, config, now, now)
    }

    /// The same with the bounds by the schedules at another clock's time.
    pub fn scheduled_at(
        spec: &'a Spec,
        config: &'a ControllerConfig,
        now: UnixMillis,
        schedule_time: UnixMillis,
    ) -> Self {
        let fixed = || Bounds::fixed(spec.min_replicas, spec.max_replicas);
        let bounds = spec.moment(schedule_time).map_or_else(fixed, |moment| moment.bounds);
        Self { spec, config, now, schedule_time, bounds }
    }

    /// The stabilization windows of scale-up and scale-down, in ms.
    pub fn windows(&self) -> [i64; 2] {
        let default = self.config.downscale_stabilization_seconds;
        let behavior = self.spec.behavior.as_ref();
        let down = behavior.and_then(|both| both.scale_down.stabilization_seconds);
        [self.spec.scale_up_window(), down.unwrap_or(default)]
            .map(|window| i64::from(window) * 1000)
    }
}

/// The numbers of a `/scale` subresource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Scale {
    /// The desired replicas (`spec.replicas`).
    pub spec_replicas: i32,
    /// The actual replicas (`status.replicas`).
    pub status_replicas: i32,
}

/// The outcome of applying the scale's selector.
#[derive(Clone, Copy, Debug)]
pub enum Selected<'a> {
    /// The scale has no selector.
    Missing,
    /// The selector can't be parsed; the error.
    Invalid(&'a str),
    /// Other autoscalers select some of the same pods.
    Ambiguous {
        /// The selector as given.
        selector: &'a str,
        /// `namespace/name` of all of them, this one included, sorted.
        autoscalers: &'a [String],
    },
    /// Which of the pods are the target's own is unknown; the error.
    Unowned(&'a str),
    /// The pods selected.
    Pods(&'a [Pod<'a>]),
}

/// Why no pods were selected.
pub(super) struct NotSelected {
    /// The reason of the event.
    pub event: Reason,
    /// The reason of the condition.
    pub reason: Reason,
    /// The text of the event.
    pub cause: String,
    /// The text of the condition.
    pub message: String,
}

impl<'a> Selected<'a> {
    /// The pods selected, or why there are none.
    pub(super) fn pods(&self) -> Result<&'a [Pod<'a>], NotSelected> {
        let not = |event, reason, cause: String| NotSelected {
            event,
            reason,
            message: cause.clone(),
            cause,
        };
        Err(match self {
            Self::Pods(pods) => return Ok(pods),
            Self::Missing => NotSelected {
                event: Reason::SelectorRequired,
                reason: Reason::InvalidSelector,
                cause: "selector is required".to_owned(),
                message: "the HPA target's scale is missing a selector".to_owned(),
            },
            Self::Invalid(error) => not(
                Reason::InvalidSelector,
                Reason::InvalidSelector,
                format!(
                    "couldn't convert selector into a corresponding internal selector object: {error}"
                ),
            ),
            Self::Ambiguous { selector, autoscalers } => not(
                Reason::AmbiguousSelector,
                Reason::AmbiguousSelector,
                format!(
                    "pods by selector {selector} are controlled by multiple HPAs: [{}]",
                    autoscalers.join(" ")
                ),
            ),
            Self::Unowned(error) => not(
                Reason::FailedGetPodOwners,
                Reason::FailedGetPodOwners,
                format!("the owners of the pods could not be read: {error}"),
            ),
        })
    }
}

/// A pod.
#[derive(Clone, Copy, Debug)]
pub struct Pod<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its phase.
    pub phase: Phase,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// When the kubelet first saw it.
    pub start: Option<UnixMillis>,
    /// Its Ready condition, if it has one.
    pub ready: Option<Ready>,
    /// Its resource requests.
    pub requests: &'a Requests,
}

/// A pod's phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum Phase {
    /// Not all containers have started.
    Pending,
    /// Running.
    Running,
    /// All containers ended well.
    Succeeded,
    /// A container failed.
    Failed,
    /// The node is unreachable, or the status has no phase.
    #[default]
    Unknown,
}

impl Phase {
    /// The phase of an API object's `status.phase`.
    pub fn from_api(phase: Option<&str>) -> Self {
        match phase {
            Some("Pending") => Self::Pending,
            Some("Running") => Self::Running,
            Some("Succeeded") => Self::Succeeded,
            Some("Failed") => Self::Failed,
            _ => Self::Unknown,
        }
    }
}

/// A pod's Ready condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Ready {
    /// True, False, or none for Unknown.
    pub status: Option<bool>,
    /// The time of its last transition.
    pub since: UnixMillis,
}

/// One measured value of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Sample {
    /// The value in milli-units.
    pub milli: i64,
    /// When it was measured.
    pub time: UnixMillis,
    /// The window over which it was measured, in ms.
    pub window_ms: i64,
}

/// The values of one metric, or an error. The error is only the cause;
/// the decision puts upstream's words in front of it.
#[derive(Clone, Copy, Debug)]
pub enum Samples<'a> {
    /// For Pods, Resource and ContainerResource metrics.
    PerPod(Result<PodSamples<'a>, &'a str>),
    /// For Object metrics: the value in milli-units.
    Value(Result<i64, &'a str>),
    /// For External metrics: the values in milli-units.
    Values(Result<&'a [i64], &'a str>),
}

impl Samples<'_> {
    /// Whether it was read, and has no value at all.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::PerPod(samples) => samples.is_ok_and(|samples| samples.items == 0),
            Self::Values(values) => values.is_ok_and(<[i64]>::is_empty),
            Self::Value(_) => false,
        }
    }
}

/// The samples of one metric, aligned with the selected pods.
#[derive(Clone, Copy, Debug)]
pub struct PodSamples<'a> {
    /// For each selected pod, in the same order, its sample.
    pub of_pods: &'a [Option<Sample>],
    /// Samples of pods that are not among the selected ones.
    pub unselected: UnselectedSamples,
    /// The number of items in the response, with or without a usable value.
    pub items: usize,
}

/// Samples of pods that are not among the selected ones; upstream counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct UnselectedSamples {
    /// The number of samples.
    pub count: i64,
    /// Their sum in milli-units.
    pub sum_milli: i64,
}

/// The owned form of [`PodSamples`], built from a response in any order.
#[derive(Clone, Debug, Default)]
pub struct AlignedSamples {
    of_pods: Vec<Option<Sample>>,
    unselected: UnselectedSamples,
    items: usize,
}

impl AlignedSamples {
    /// Aligns the samples of a response with the pods. Of two samples for one pod the
    /// later one counts. An item without a sample counts only as an item.
    pub fn new<'s>(
        pods: &[Pod<'_>],
        items: impl IntoIterator<Item = (&'s str, Option<Sample>)>,
    ) -> Self {
        let indexes: HashMap<&str, usize> =
            pods.iter().enumerate().map(|(index, pod)| (pod.name, index)).collect();
        let mut aligned = Self { of_pods: vec![None; pods.len()], ..Self::default() };
        let mut unselected: HashMap<&str, i64> = HashMap::new();
        for (name, sample) in items {
            aligned.items += 1;
            let Some(sample) = sample else { continue };
            match indexes.get(name) {
                Some(&index) => aligned.of_pods[index] = Some(sample),
                None => {
                    unselected.insert(name, sample.milli);
                }
            }
        }
        aligned.unselected.count = unselected.len() as i64;
        aligned.unselected.sum_milli =
            unselected.values().fold(0, |sum, milli| sum.wrapping_add(*milli));
        aligned
    }

    /// The samples of a response that has only the pods, in their order.
    pub fn of_pods(of_pods: Vec<Option<Sample>>) -> Self {
        let items = of_pods.iter().flatten().count();
        Self { of_pods, items, unselected: UnselectedSamples::default() }
    }

    /// The list that [`Self::of_pods`] was given, to be used again.
    pub fn into_of_pods(self) -> Vec<Option<Sample>> {
        self.of_pods
    }

    /// The samples as a decision reads them.
    pub fn view(&self) -> PodSamples<'_> {
        PodSamples { of_pods: &self.of_pods, unselected: self.unselected, items: self.items }
    }
}

/// A pod's usage of a resource, in milli-units: the sum of its containers,
/// or the usage of one container if it is named. None if a
/// container that counts has no value.
pub fn resource_usage<'a>(
    containers: impl IntoIterator<Item = (&'a str, Option<Quantity>)>,
    container: Option<&str>,
) -> Option<i64> {
    let mut total: Option<i64> = None;
    for (name, usage) in containers {
        match container {
            Some(wanted) if wanted != name => continue,
            Some(_) => return usage.map(Quantity::milli),
            None => total = Some(total.unwrap_or(0).wrapping_add(usage?.milli())),
        }
    }
    total
}

/// The autoscalers whose selectors match any of these pods, sorted. If there are several,
/// the selector is ambiguous, and none of them may decide.
pub fn selecting_autoscalers<'a, Name: Ord>(
    pod_labels: &[&LabelSet],
    autoscalers: impl IntoIterator<Item = (Name, &'a Selector)>,
) -> Vec<Name> {
    let selects = |selector: &Selector| {
        let one = |labels: &&LabelSet| selector.matches(|key| labels.get(key));
        pod_labels.iter().any(one)
    };
    let selecting = autoscalers.into_iter().filter(|(_, selector)| selects(selector));
    let names: BTreeSet<Name> = selecting.map(|(name, _)| name).collect();
    names.into_iter().collect()
}
