//! What a status says in numbers, for metrics, and as a digest: whether another one is worth a write.

use super::status::{AutoscalerStatus, ScheduleStatus, ScheduleWindow};
use crate::hpa::ConditionKind;
use crate::k8s::Quantity;
use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscalerCondition, HorizontalPodAutoscalerStatus, MetricIdentifier,
    MetricStatus, MetricValueStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use std::hash::{DefaultHasher, Hash, Hasher};

/// What the status of an object says, as far as another must differ from it to be worth a write.
#[derive(Clone, Debug, Default)]
pub struct StatusDigest {
    /// A hash of all but the values of metrics, which only this process understands.
    decision: u64,
    /// What each of `currentMetrics` says.
    values: Box<[CurrentValue]>,
}

/// The current value of a metric.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CurrentValue {
    /// The value, or the average; none if it could not be computed.
    pub value: Option<f64>,
    /// The utilization in percent, if that is what is compared.
    pub utilization: Option<i32>,
}

/// The numbers of a status.
#[derive(Debug, Default)]
pub struct StatusNumbers {
    /// `currentReplicas`
    pub current_replicas: Option<i32>,
    /// `desiredReplicas`
    pub desired_replicas: Option<i32>,
    /// `minReplicas` and `maxReplicas` of the schedules, if there are any.
    pub schedule: Option<(i32, i32)>,
    /// `lastScaleTime`, in Unix seconds.
    pub last_scale: Option<i64>,
    /// Of each of `currentMetrics`.
    pub values: Box<[CurrentValue]>,
    /// The conditions, and whether each is `True`.
    pub conditions: Box<[(ConditionKind, bool)]>,
}

/// The longest column `targets` that values are looked for in, in bytes: Plimsoll's own have 20 for each metric.
const MAX_TARGETS_BYTES: usize = 4096;
/// The least relative change of a metric's value that is worth a write.
const MIN_RELATIVE_CHANGE: f64 = 0.1;

impl StatusDigest {
    /// Whether another says anything else than other values of metrics.
    pub fn decides_otherwise(&self, other: &Self) -> bool {
        self.decision != other.decision
    }

    /// Whether a metric has another value in another one: by more than a tenth of this one's.
    pub fn has_moved(&self, other: &Self) -> bool {
        self.values.iter().zip(&other.values).any(|(before, now)| before.has_moved(*now))
    }

    /// Whether the value of this metric could not be computed.
    pub fn lacks_value(&self, metric: usize) -> bool {
        self.values.get(metric).is_some_and(|current| current.value.is_none())
    }
}

impl CurrentValue {
    fn of(metric: &MetricStatus) -> Self {
        let Some(current) = current(metric) else { return Self::default() };
        let MetricValueStatus { value, average_value, average_utilization } = current;
        let value = value.as_ref().or(average_value.as_ref()).and_then(quantity);
        Self { value: value.map(Quantity::as_f64), utilization: *average_utilization }
    }

    fn has_moved(self, now: Self) -> bool {
        let moves =
            |before: f64, now: f64| (before - now).abs() > before.abs() * MIN_RELATIVE_CHANGE;
        let value = self.value.zip(now.value).is_some_and(|(before, now)| moves(before, now));
        // One percent may be rounding. It differs by more without the value if requests were changed.
        let utilization = self.utilization.zip(now.utilization).is_some_and(|(before, now)| {
            before.abs_diff(now) > 1 && moves(before.into(), now.into())
        });
        value || utilization
    }
}

/// Parts of a condition: type, status, reason, message, observed generation, and the time of the last transition.
type Said<'a> = (&'a str, &'a str, &'a str, &'a str, Option<i64>, Option<Timestamp>);

impl AutoscalerStatus {
    /// The digest of the status.
    pub fn digest(&self) -> StatusDigest {
        let mut hasher = DefaultHasher::new();
        self.reference.hash(&mut hasher);
        hash_targets(self.targets.as_deref(), self.metrics(), &mut hasher);
        if let Some(schedule) = &self.schedule {
            hash_schedule(schedule, &mut hasher);
        }
        (self.current_replicas, self.desired_replicas).hash(&mut hasher);
        let conditions = self.conditions.iter().flatten();
        self.finish(hasher, conditions.map(|of| said(of, of.observed_generation)))
    }

    /// The digest of the same as the status of a native HPA, which has fewer fields.
    pub fn digest_as_hpa(&self) -> StatusDigest {
        let mut hasher = DefaultHasher::new();
        let replicas = [self.current_replicas, self.desired_replicas];
        replicas.map(Option::unwrap_or_default).hash(&mut hasher);
        self.finish(hasher, self.conditions.iter().flatten().map(|of| said(of, None)))
    }

    fn finish<'a>(
        &self,
        hasher: DefaultHasher,
        conditions: impl Iterator<Item = Said<'a>>,
    ) -> StatusDigest {
        let last_scale = self.last_scale_time.as_ref();
        digest(hasher, (self.observed_generation, last_scale), self.metrics(), conditions)
    }

    fn metrics(&self) -> &[MetricStatus] {
        self.current_metrics.as_deref().unwrap_or_default()
    }

    /// The numbers of the status.
    pub fn numbers(&self) -> StatusNumbers {
        let condition = |condition: &Condition| {
            Some((ConditionKind::from_api(&condition.type_)?, condition.status == "True"))
        };
        StatusNumbers {
            current_replicas: self.current_replicas,
            desired_replicas: self.desired_replicas,
            schedule: self.schedule.as_ref().map(|one| (one.min_replicas, one.max_replicas)),
            last_scale: self.last_scale_time.as_ref().map(|time| time.0.as_second()),
            values: self.metrics().iter().map(CurrentValue::of).collect(),
            conditions: self.conditions.iter().flatten().filter_map(condition).collect(),
        }
    }
}

/// The digest of the status of a native HPA.
pub fn digest_of_hpa(status: &HorizontalPodAutoscalerStatus) -> StatusDigest {
    let mut hasher = DefaultHasher::new();
    [status.current_replicas.unwrap_or_default(), status.desired_replicas].hash(&mut hasher);
    let conditions = status.conditions.iter().flatten().map(said_of_hpa);
    let times = (status.observed_generation, status.last_scale_time.as_ref());
    digest(hasher, times, status.current_metrics.as_deref().unwrap_or_default(), conditions)
}

fn said(of: &Condition, generation: Option<i64>) -> Said<'_> {
    let Condition { type_, status, reason, message, last_transition_time, .. } = of;
    (type_, status, reason, message, generation, Some(last_transition_time.0))
}

fn said_of_hpa(of: &HorizontalPodAutoscalerCondition) -> Said<'_> {
    let HorizontalPodAutoscalerCondition { type_, status, .. } = of;
    let [reason, message] = [&of.reason, &of.message].map(|text| text.as_deref().unwrap_or(""));
    (type_, status, reason, message, None, of.last_transition_time.as_ref().map(|time| time.0))
}

/// The digest of what both kinds have.
fn digest<'a>(
    mut hasher: DefaultHasher,
    (generation, last_scale): (Option<i64>, Option<&Time>),
    metrics: &[MetricStatus],
    conditions: impl Iterator<Item = Said<'a>>,
) -> StatusDigest {
    (generation, last_scale.map(|time| time.0)).hash(&mut hasher);
    conditions.for_each(|said| said.hash(&mut hasher));
    metrics.iter().for_each(|metric| hash_metric(metric, &mut hasher));
    let values = metrics.iter().map(CurrentValue::of).collect();
    StatusDigest { decision: hasher.finish(), values }
}

/// Hashes which metric it is, and which of its values are there.
fn hash_metric(metric: &MetricStatus, hasher: &mut impl Hasher) {
    let MetricStatus { container_resource, external, object, pods, resource, type_ } = metric;
    type_.hash(hasher);
    let mut identifier = |metric: &MetricIdentifier| {
        metric.name.hash(hasher);
        let selector = metric.selector.iter();
        for (label, value) in selector.clone().flat_map(|one| one.match_labels.iter().flatten()) {
            (label, value).hash(hasher);
        }
        for one in selector.flat_map(|one| one.match_expressions.iter().flatten()) {
            (&one.key, &one.operator, one.values.as_deref().unwrap_or_default()).hash(hasher);
        }
    };
    if let Some(metric) = pods.as_ref().map(|pods| &pods.metric) {
        identifier(metric);
    }
    if let Some(metric) = external.as_ref().map(|external| &external.metric) {
        identifier(metric);
    }
    if let Some(object) = object {
        identifier(&object.metric);
        let described = &object.described_object;
        let version = described.api_version.as_deref().unwrap_or_default();
        (version, &described.kind, &described.name).hash(hasher);
    }
    resource.as_ref().map(|resource| &resource.name).hash(hasher);
    container_resource.as_ref().map(|one| (&one.container, &one.name)).hash(hasher);
    let values = current(metric).map(|current| {
        let MetricValueStatus { value, average_value, average_utilization } = current;
        [value.is_some(), average_value.is_some(), average_utilization.is_some()]
    });
    values.hash(hasher);
}

/// Hashes the column `targets`, without the current values in it that those of the metrics equal.
fn hash_targets(targets: Option<&str>, metrics: &[MetricStatus], hasher: &mut impl Hasher) {
    let Some(mut rest) = targets else { return };
    // That of someone else: each metric takes time by the square of its length.
    let metrics = if rest.len() > MAX_TARGETS_BYTES { &[] } else { metrics };
    for metric in metrics {
        // A value is at the beginning or after a space, and before the slash.
        let mut starts = std::iter::once(0).chain(rest.match_indices(' ').map(|(at, _)| at + 1));
        let value = starts.find_map(|start| {
            let value = rest[start..].split_once('/')?.0;
            says(value, metric).then_some((start, start + value.len()))
        });
        if let Some((start, end)) = value {
            rest[..start].hash(hasher);
            rest = &rest[end..];
        }
    }
    rest.hash(hasher);
}

/// Whether the text of a value in the column `targets` is that of a metric.
fn says(text: &str, metric: &MetricStatus) -> bool {
    match current(metric) {
        None => text == "<unknown>",
        Some(MetricValueStatus { average_utilization: Some(percent), .. }) => {
            text.strip_suffix('%').and_then(|text| text.parse().ok()) == Some(*percent)
        }
        Some(MetricValueStatus { value, average_value, .. }) => {
            let value = value.as_ref().or(average_value.as_ref()).and_then(quantity);
            value.is_some() && text.parse().ok() == value
        }
    }
}

fn hash_schedule(schedule: &ScheduleStatus, hasher: &mut impl Hasher) {
    let ScheduleStatus {
        min_replicas,
        min_replicas_by,
        max_replicas,
        max_replicas_by,
        conflict,
        active,
        next_change,
    } = schedule;
    (min_replicas, min_replicas_by, max_replicas, max_replicas_by, conflict).hash(hasher);
    let time = |time: &Option<Time>| time.as_ref().map(|time| time.0);
    for ScheduleWindow { name, since, until } in active {
        (name, time(since), time(until)).hash(hasher);
    }
    time(next_change).hash(hasher);
}

/// The current value of a metric; none if it could not be computed.
fn current(metric: &MetricStatus) -> Option<&MetricValueStatus> {
    let pods = metric.pods.as_ref().map(|metric| &metric.current);
    pods.or(metric.resource.as_ref().map(|metric| &metric.current))
        .or(metric.container_resource.as_ref().map(|metric| &metric.current))
        .or(metric.object.as_ref().map(|metric| &metric.current))
        .or(metric.external.as_ref().map(|metric| &metric.current))
}

fn quantity(quantity: &ApiQuantity) -> Option<Quantity> {
    quantity.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn status(value: Value) -> AutoscalerStatus {
        serde_json::from_value(value).expect("a status")
    }

    /// A status with all fields.
    fn whole() -> Value {
        let time = "2026-11-26T12:00:00Z";
        json!({
            "reference": "Deployment/web",
            "targets": "12500m/10, cpu: 45%/80%, memory: 2048/1Ki, <unknown>/30 (avg) (min 3 by office)",
            "schedule": {"minReplicas": 3, "minReplicasBy": "office", "maxReplicas": 9,
                "active": [{"name": "office", "since": time}], "nextChange": time},
            "observedGeneration": 2, "lastScaleTime": time, "currentReplicas": 3, "desiredReplicas": 4,
            "currentMetrics": [
                {"type": "Pods", "pods": {"metric": {"name": "qps",
                    "selector": {"matchLabels": {"a": "b"}}}, "current": {"averageValue": "12500m"}}},
                {"type": "Resource", "resource": {"name": "cpu",
                    "current": {"averageUtilization": 45, "averageValue": "90m"}}},
                {"type": "ContainerResource", "containerResource": {"name": "memory", "container": "app",
                    "current": {"averageValue": "2Ki"}}},
                {"type": ""}],
            "conditions": [{"type": "AbleToScale", "status": "True", "reason": "A", "message": "it is",
                "observedGeneration": 2, "lastTransitionTime": time}]})
    }

    #[test]
    fn whatever_is_edited_in_a_status_is_seen_at_once_or_as_another_value() {
        let digest = status(whole()).digest();
        let is_seen = |other: &StatusDigest| {
            (digest.decides_otherwise(other), digest.has_moved(other) && other.has_moved(&digest))
        };
        assert_eq!(is_seen(&status(whole()).digest()), (false, false));
        let text = |path: &str, value: Value| {
            let mut edited = whole();
            *edited.pointer_mut(path).unwrap_or_else(|| panic!("{path}")) = value;
            is_seen(&status(edited).digest())
        };
        let other_time = json!("2026-11-26T12:00:01Z");
        for (path, value) in [
            ("/reference", json!("Deployment/api")),
            ("/targets", Value::Null),
            ("/targets", json!("")),
            ("/targets", json!(whole()["targets"].as_str().unwrap().replace("12500m/", "11/"))),
            ("/targets", json!(whole()["targets"].as_str().unwrap().replace("45%/", "46%/"))),
            ("/targets", json!(whole()["targets"].as_str().unwrap().replace("/10,", "/20,"))),
            ("/targets", json!(whole()["targets"].as_str().unwrap().replace("<unknown>", "1"))),
            ("/targets", json!(whole()["targets"].as_str().unwrap().replace("min 3", "min 2"))),
            ("/schedule", Value::Null),
            ("/schedule/active/0/since", other_time.clone()),
            ("/schedule/nextChange", other_time.clone()),
            ("/observedGeneration", json!(1)),
            ("/lastScaleTime", other_time.clone()),
            ("/currentReplicas", json!(2)),
            ("/desiredReplicas", Value::Null),
            ("/currentMetrics", Value::Null),
            ("/currentMetrics/0/pods/metric/name", json!("rps")),
            ("/currentMetrics/0/pods/metric/selector/matchLabels/a", json!("c")),
            ("/currentMetrics/0/pods/current", json!({"value": "12500m"})),
            ("/currentMetrics/1/type", json!("Pods")),
            ("/currentMetrics/1/resource/name", json!("memory")),
            ("/currentMetrics/1/resource/current/averageUtilization", Value::Null),
            ("/currentMetrics/2/containerResource/container", json!("proxy")),
            ("/currentMetrics/3", json!({"type": "Pods"})),
            ("/conditions", Value::Null),
            ("/conditions/0/status", json!("False")),
            ("/conditions/0/message", json!("it is not")),
            ("/conditions/0/lastTransitionTime", other_time),
        ] {
            assert!(text(path, value.clone()).0, "{path} {value}");
        }
        // Where the column says the same, the value decides.
        let moved = |value: &str| {
            let mut edited = whole();
            edited["currentMetrics"][0]["pods"]["current"]["averageValue"] = value.into();
            edited["targets"] = edited["targets"].as_str().unwrap().replace("12500m", value).into();
            is_seen(&status(edited).digest())
        };
        assert_eq!(
            [moved("12"), moved("11"), moved("110")],
            [(false, false), (false, true), (false, true)]
        );
        // Twice the requests: the same average is half the utilization.
        let mut edited = whole();
        edited["currentMetrics"][1]["resource"]["current"]["averageUtilization"] = 23.into();
        edited["targets"] = edited["targets"].as_str().unwrap().replace("45%", "23%").into();
        assert_eq!(is_seen(&status(edited).digest()), (false, true));
    }

    #[test]
    fn a_utilization_that_was_rounded_otherwise_has_not_moved() {
        let of =
            |utilization: i32| CurrentValue { value: Some(4.0), utilization: Some(utilization) };
        assert!(!of(4).has_moved(of(5)) && of(4).has_moved(of(6)) && !of(80).has_moved(of(87)));
    }

    #[test]
    fn the_numbers_of_a_status_are_those_that_it_shows() {
        let numbers = status(whole()).numbers();
        assert_eq!((numbers.current_replicas, numbers.desired_replicas), (Some(3), Some(4)));
        assert_eq!((numbers.schedule, numbers.last_scale), (Some((3, 9)), Some(1_795_694_400)));
        assert_eq!(*numbers.conditions, [(ConditionKind::AbleToScale, true)]);
        let values =
            [(Some(12.5), None), (Some(0.09), Some(45)), (Some(2048.0), None), (None, None)];
        let values = values.map(|(value, utilization)| CurrentValue { value, utilization });
        assert_eq!(*numbers.values, values);
    }
}
