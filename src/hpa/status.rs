//! The autoscaler's status: conditions, replicas and current metrics.

use super::reason::Reason;
use super::schedule::Moment;
use super::spec::{MetricId, MetricSource, MetricSpecs};
use crate::api_names::api_names;
use crate::intern::Interner;
use crate::k8s::Quantity;
use crate::time::UnixMillis;
use k8s_openapi::api::autoscaling::v2 as api;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use std::borrow::Cow;
use std::fmt::{self, Write};
use std::ops::Deref;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// The status of an autoscaler, in a form that is cheap to compare and reuse.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// When the scale was last changed.
    pub last_scale: Option<UnixMillis>,
    /// The replicas at the last evaluation.
    pub current_replicas: i32,
    /// The desired replicas of the last evaluation.
    pub desired_replicas: i32,
    /// The metrics of `current`.
    pub metrics: MetricSpecs,
    /// The current value of each metric; empty if none was evaluated.
    pub current: Vec<Current>,
    /// Since when each metric of `metrics` has failed, by the clock of decisions; empty if none has. Of
    /// this process alone, which keeps it by its own clock in between.
    pub failing: Vec<Option<UnixMillis>>,
    /// What the schedules said; none without any.
    pub schedule: Option<Box<Moment>>,
    /// Conditions in the order of their first appearance.
    pub conditions: Vec<Condition>,
}

/// Equal statuses render alike. The targets of metrics are not part of a status.
impl PartialEq for Status {
    fn eq(&self, other: &Self) -> bool {
        self.last_scale == other.last_scale
            && self.current_replicas == other.current_replicas
            && self.desired_replicas == other.desired_replicas
            && self.current == other.current
            && self.schedule == other.schedule
            && self.conditions == other.conditions
            && (self.current.is_empty()
                || self.metrics.is(&other.metrics)
                || render_metrics(self) == render_metrics(other))
    }
}

/// The current value of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Current {
    /// It could not be computed.
    None,
    /// A value, in milli-units.
    Value(i64),
    /// An average over the pods, in milli-units.
    Average(i64),
    /// A percentage of the requests, and the average in milli-units.
    Utilization(i32, i64),
}

api_names! {
    /// The type of a condition.
    pub enum ConditionKind {
        /// Whether the scale can be read and written.
        AbleToScale,
        /// Whether replicas are computed from metrics.
        ScalingActive,
        /// Whether a limit kept the replicas from the proposal of the metrics.
        ScalingLimited,
        /// Whether the autoscaler itself scaled the workload to zero.
        ScaledToZero,
        /// Whether the metrics failed for so long that the fallback applies, or something stands for one that failed
        /// (Autoscalers only).
        FallbackActive,
        /// Whether the autoscaler is paused (Autoscalers only).
        Paused,
        /// Whether decisions are only shown (Autoscalers only).
        Preview,
        /// Whether decisions can be made, or none are to be (Autoscalers only).
        Ready,
        /// Whether an administrator has stopped all writes to scales.
        Frozen,
        /// Whether a metric of unknown type is read as a gauge
        /// (Autoscalers only).
        MetricTypeUnknown,
        /// Whether the configuration around the autoscaler is probably a mistake (Autoscalers only).
        ConfigurationWarning,
    }
}

impl ConditionKind {
    /// The type of this name.
    pub fn from_api(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == name)
    }
}

/// One condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Its type.
    pub kind: ConditionKind,
    /// Whether it holds.
    pub status: bool,
    /// Since when.
    pub since: UnixMillis,
    said: Arc<Said>,
}

impl Condition {
    /// Whether it says that something fails: not that scaling is switched off.
    pub fn is_fault(&self) -> bool {
        !self.status && self.reason != Reason::ScalingDisabled
    }
}

/// What a condition says. Those of thousands of autoscalers say the same, which is in memory once.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Said {
    /// Why, as one word.
    pub reason: Cow<'static, str>,
    /// Why, in words.
    pub message: Cow<'static, str>,
}

static ALL_SAID: LazyLock<Mutex<Interner<Said>>> = LazyLock::new(Mutex::default);

/// The longest message that is looked for among those of others: longer ones are of one alone.
const MAX_SHARED_MESSAGE: usize = 256;

impl Said {
    fn shared(reason: Cow<'static, str>, message: Cow<'static, str>) -> Arc<Self> {
        let said = Self { reason, message };
        if said.reason.len() + said.message.len() > MAX_SHARED_MESSAGE {
            return said.into();
        }
        ALL_SAID.lock().unwrap_or_else(PoisonError::into_inner).intern_value(said)
    }
}

impl Deref for Condition {
    type Target = Said;

    fn deref(&self) -> &Said {
        &self.said
    }
}

impl Status {
    /// The condition of a type; none if it was never set.
    pub fn condition(&self, kind: ConditionKind) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }

    /// Sets a condition. Its time changes only if its status does. Allocates
    /// only if a text changed.
    pub fn set(
        &mut self,
        kind: ConditionKind,
        status: bool,
        reason: Reason,
        message: fmt::Arguments<'_>,
        now: UnixMillis,
    ) {
        self.set_as(kind, status, Cow::Borrowed(reason.as_str()), message, now);
    }

    /// The same with the reason of another condition, which another version may have set.
    pub fn set_as(
        &mut self,
        kind: ConditionKind,
        status: bool,
        reason: Cow<'static, str>,
        message: fmt::Arguments<'_>,
        now: UnixMillis,
    ) {
        let written = || message.as_str().map_or_else(|| message.to_string().into(), Cow::Borrowed);
        self.put(kind, status, reason, now, |text| writes_as(message, text), written);
    }

    /// The same with a text that is constant: allocates nothing once it was said.
    pub(super) fn set_constant(
        &mut self,
        kind: ConditionKind,
        status: bool,
        reason: Reason,
        message: &'static str,
        now: UnixMillis,
    ) {
        let reason = Cow::Borrowed(reason.as_str());
        self.put(kind, status, reason, now, |text| text == message, || Cow::Borrowed(message));
    }

    /// Sets a condition to a text, which is `written` only if the present one is not the same.
    fn put(
        &mut self,
        kind: ConditionKind,
        status: bool,
        reason: Cow<'static, str>,
        now: UnixMillis,
        is_same: impl FnOnce(&str) -> bool,
        written: impl FnOnce() -> Cow<'static, str>,
    ) {
        let Some(condition) = self.conditions.iter_mut().find(|c| c.kind == kind) else {
            let said = Said::shared(reason, written());
            self.conditions.push(Condition { kind, status, since: now, said });
            return;
        };
        if condition.status != status {
            condition.status = status;
            condition.since = now;
        }
        if condition.reason != reason || !is_same(&condition.message) {
            condition.said = Said::shared(reason, written());
        }
    }

    /// Sets a condition that was true to false, so that one can wait for its end.
    pub fn end(&mut self, kind: ConditionKind, message: &str, now: UnixMillis) {
        if self.condition(kind).is_some_and(|condition| condition.status) {
            self.set(kind, false, Reason::Ended, format_args!("{message}"), now);
        }
    }

    /// Notes whether a metric has failed. Returns for how long it has, in ms.
    pub(super) fn note_failure(&mut self, index: usize, failed: bool, now: UnixMillis) -> i64 {
        if !failed {
            if let Some(since) = self.failing.get_mut(index) {
                *since = None;
            }
            return 0;
        }
        if self.failing.len() <= index {
            self.failing.resize(index + 1, None);
        }
        now - *self.failing[index].get_or_insert(now)
    }

    /// Moves the times since which metrics have failed to another clock, which is ahead by `ms`.
    pub fn shift_failing(&mut self, ms: i64) {
        for since in self.failing.iter_mut().flatten() {
            *since += ms;
        }
    }

    /// Takes over since when metrics have failed, which no API object says.
    pub fn note_failing(&mut self, other: &Self) {
        self.failing.clone_from(&other.failing);
        self.metrics.clone_from(&other.metrics);
    }

    /// Removes a condition.
    pub fn remove(&mut self, kind: ConditionKind) {
        self.conditions.retain(|condition| condition.kind != kind);
    }

    /// The status of an API object, as far as decisions depend on it.
    pub fn from_api(status: &api::HorizontalPodAutoscalerStatus) -> Self {
        let millis = |time: &Time| time.0.as_millisecond();
        let condition = |condition: &api::HorizontalPodAutoscalerCondition| {
            let [reason, message] =
                [&condition.reason, &condition.message].map(|text| text.as_deref().unwrap_or(""));
            Some(Condition {
                kind: ConditionKind::from_api(&condition.type_)?,
                status: condition.status == "True",
                since: condition.last_transition_time.as_ref().map_or(0, millis),
                said: Said::shared(reason.to_owned().into(), message.to_owned().into()),
            })
        };
        let mut conditions: Vec<_> =
            status.conditions.iter().flatten().filter_map(condition).collect();
        conditions.shrink_to_fit();
        Self {
            last_scale: status.last_scale_time.as_ref().map(millis),
            current_replicas: status.current_replicas.unwrap_or(0),
            desired_replicas: status.desired_replicas,
            metrics: MetricSpecs::default(),
            current: Vec::new(),
            failing: Vec::new(),
            schedule: None,
            conditions,
        }
    }
}

/// Whether a message renders as this text.
fn writes_as(message: fmt::Arguments<'_>, text: &str) -> bool {
    struct Rest<'a>(&'a str);
    impl Write for Rest<'_> {
        fn write_str(&mut self, part: &str) -> fmt::Result {
            self.0 = self.0.strip_prefix(part).ok_or(fmt::Error)?;
            Ok(())
        }
    }
    let mut rest = Rest(text);
    rest.write_fmt(message).is_ok() && rest.0.is_empty()
}

/// The status as an API object.
pub fn render_status(status: &Status) -> api::HorizontalPodAutoscalerStatus {
    let current = render_metrics(status);
    api::HorizontalPodAutoscalerStatus {
        last_scale_time: status.last_scale.map(object_time),
        current_replicas: Some(status.current_replicas),
        desired_replicas: status.desired_replicas,
        current_metrics: (!current.is_empty()).then_some(current),
        conditions: Some(
            status
                .conditions
                .iter()
                .map(|condition| api::HorizontalPodAutoscalerCondition {
                    type_: condition.kind.as_str().to_owned(),
                    status: if condition.status { "True" } else { "False" }.to_owned(),
                    last_transition_time: Some(object_time(condition.since)),
                    reason: Some(condition.reason.to_string()),
                    message: Some(condition.message.to_string()),
                })
                .collect(),
        ),
        observed_generation: None,
    }
}

fn render_metrics(status: &Status) -> Vec<api::MetricStatus> {
    let described = status.current.iter().zip(status.metrics.iter());
    described.map(|(current, metric)| render_metric(*current, &metric.source)).collect()
}

/// A time as an object has it, of whole seconds: one that was written equals the one that is read.
pub fn object_time(millis: UnixMillis) -> Time {
    Time(Timestamp::from_second(millis.div_euclid(1000)).unwrap_or_default())
}

fn render_metric(current: Current, source: &MetricSource) -> api::MetricStatus {
    let value = match current {
        Current::None => return api::MetricStatus::default(),
        Current::Value(milli) => {
            api::MetricValueStatus { value: Some(decimal(milli)), ..Default::default() }
        }
        Current::Average(milli) => api::MetricValueStatus {
            average_value: Some(resource_quantity(milli, source)),
            ..Default::default()
        },
        Current::Utilization(percent, milli) => api::MetricValueStatus {
            average_utilization: Some(percent),
            average_value: Some(resource_quantity(milli, source)),
            ..Default::default()
        },
    };
    let identifier = |metric: &MetricId| api::MetricIdentifier {
        name: metric.name.clone(),
        selector: metric.selector.clone().map(Into::into),
    };
    let mut status = api::MetricStatus::default();
    match source {
        MetricSource::Pods { metric, .. } => {
            status.type_ = "Pods".to_owned();
            status.pods =
                Some(api::PodsMetricStatus { current: value, metric: identifier(metric) });
        }
        MetricSource::Resource { name, .. } => {
            status.type_ = "Resource".to_owned();
            status.resource =
                Some(api::ResourceMetricStatus { current: value, name: name.clone() });
        }
        MetricSource::ContainerResource { name, container, .. } => {
            status.type_ = "ContainerResource".to_owned();
            status.container_resource = Some(api::ContainerResourceMetricStatus {
                container: container.clone(),
                current: value,
                name: name.clone(),
            });
        }
        MetricSource::Object { object, metric, .. } => {
            status.type_ = "Object".to_owned();
            status.object = Some(api::ObjectMetricStatus {
                current: value,
                described_object: api::CrossVersionObjectReference {
                    api_version: object.api_version.clone(),
                    kind: object.kind.clone(),
                    name: object.name.clone(),
                },
                metric: identifier(metric),
            });
        }
        MetricSource::External { metric, .. } => {
            status.type_ = "External".to_owned();
            status.external =
                Some(api::ExternalMetricStatus { current: value, metric: identifier(metric) });
        }
        MetricSource::Unknown(_) => {}
    }
    status
}

fn decimal(milli: i64) -> ApiQuantity {
    ApiQuantity(Quantity::from_milli(milli).to_string())
}

/// Memory has binary suffixes, everything else decimal ones.
fn resource_quantity(milli: i64, source: &MetricSource) -> ApiQuantity {
    match source {
        MetricSource::Resource { name, .. } | MetricSource::ContainerResource { name, .. }
            if name == "memory" =>
        {
            ApiQuantity(Quantity::from_milli(milli).to_binary_si())
        }
        _ => decimal(milli),
    }
}
