//! The status of an object: rendering it, when it is worth a write, reading and writing it.

use super::requests::within;
use super::schedules;
use crate::crd::{Autoscaler, AutoscalerSpec, AutoscalerStatus, StatusDigest, conditions};
use crate::hpa::ConditionKind;
use crate::hpa::{
    self, Current, MetricSource, Reason, ResourceTarget, ScalarTarget, Spec, Status, render_status,
};
use crate::k8s::Quantity;
use crate::leader::FencingToken;
use crate::time::UnixMillis;
use crate::watch::{AutoscalerKind, AutoscalerRef, ObjectKey};
use k8s_openapi::api::autoscaling::v2::{HorizontalPodAutoscaler, HorizontalPodAutoscalerStatus};
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

/// The text of a pause.
pub fn paused_text(spec: &AutoscalerSpec) -> String {
    let more = spec.pause.as_ref().map(ToString::to_string).unwrap_or_default();
    format!("spec.mode is Paused{more}")
}

/// Renders the status of a decision, with two columns for `kubectl get`.
pub fn render(status: &Status, spec: &Spec, generation: Option<i64>) -> AutoscalerStatus {
    let rendered = render_status(status);
    let schedule = status.schedule.as_ref().map(|moment| schedules::render(spec, moment));
    let bounds = schedule.as_ref().map(schedules::column).filter(|text| !text.is_empty());
    AutoscalerStatus {
        reference: Some(format!("{}/{}", spec.target.kind, spec.target.name)),
        targets: Some(match bounds {
            Some(bounds) => format!("{} ({bounds})", targets(spec, &status.current)),
            None => targets(spec, &status.current),
        }),
        schedule,
        observed_generation: generation,
        last_scale_time: rendered.last_scale_time,
        current_replicas: rendered.current_replicas,
        desired_replicas: Some(rendered.desired_replicas),
        current_metrics: rendered.current_metrics,
        conditions: Some(conditions(&status.conditions, generation)),
    }
}

/// Sets the condition `Ready`, which sums up the others: whether decisions can be made, or none are
/// to be. Argo CD, Flux and `kubectl wait` read it.
pub fn set_ready(status: &mut Status, now: UnixMillis) {
    let of = |kind| status.condition(kind);
    let fault = |condition: &&hpa::Condition| condition.is_fault();
    let paused = of(ConditionKind::Paused).filter(|paused| paused.status);
    let able = of(ConditionKind::AbleToScale);
    let is_invalid = |able: &&hpa::Condition| {
        able.reason == Reason::InvalidSpec || able.reason == Reason::FailedDeleteHPA
    };
    let invalid = able.filter(fault).filter(is_invalid);
    let paused = paused.filter(|_| invalid.is_none());
    let failed = able.filter(fault).or_else(|| of(ConditionKind::ScalingActive).filter(fault));
    let (is_ready, reason, message) = match (paused, failed, able) {
        (Some(paused), ..) => (true, Reason::Paused.as_str(), &*paused.message),
        (None, Some(failed), _) => (false, &*failed.reason, &*failed.message),
        (None, None, Some(_)) => (true, Reason::Ready.as_str(), "decisions are made"),
        (None, None, None) => (false, Reason::NotEvaluated.as_str(), "no decision was made yet"),
    };
    let (reason, message) = (reason.to_owned(), message.to_owned());
    status.set_as(ConditionKind::Ready, is_ready, reason.into(), format_args!("{message}"), now);
}

/// Current and target value of each metric, as `kubectl get hpa` shows them.
fn targets(spec: &Spec, current: &[Current]) -> String {
    let metric = |(index, metric): (usize, &hpa::Metric)| {
        let now = match current.get(index).copied().unwrap_or(Current::None) {
            Current::None => "<unknown>".to_owned(),
            Current::Value(milli) | Current::Average(milli) => quantity(milli),
            Current::Utilization(percent, _) => format!("{percent}%"),
        };
        let target = target(&metric.source);
        match &metric.source {
            MetricSource::Resource { name, .. } | MetricSource::ContainerResource { name, .. } => {
                format!("{name}: {now}/{target}")
            }
            _ => format!("{now}/{target}"),
        }
    };
    spec.metrics.iter().enumerate().map(metric).collect::<Vec<_>>().join(", ")
}

fn target(source: &MetricSource) -> String {
    match source {
        MetricSource::Pods { average_milli, .. } => quantity(*average_milli),
        MetricSource::Resource { target, .. } | MetricSource::ContainerResource { target, .. } => {
            match target {
                ResourceTarget::Average(milli) => quantity(*milli),
                ResourceTarget::Utilization(percent) => format!("{percent}%"),
                ResourceTarget::Invalid => "<unset>".to_owned(),
            }
        }
        MetricSource::Object { target, .. } | MetricSource::External { target, .. } => match target
        {
            ScalarTarget::Value(milli) => quantity(*milli),
            ScalarTarget::Average(milli) => format!("{} (avg)", quantity(*milli)),
            ScalarTarget::Invalid => "<unset>".to_owned(),
        },
        MetricSource::Unknown(_) => "<unset>".to_owned(),
    }
}

fn quantity(milli: i64) -> String {
    Quantity::from_milli(milli).to_string()
}

/// What was written last.
pub struct LastWrite {
    /// The digest of the status.
    digest: StatusDigest,
    /// When it was written.
    at: Instant,
    /// In which lease term.
    pub term: u64,
    /// When it was last compared with the object; none to compare it in the next evaluation.
    compared: Option<Instant>,
}

/// The time between two comparisons with the object.
const COMPARE_INTERVAL: Duration = Duration::from_secs(60);

impl LastWrite {
    /// A status that is written now, or is found written, in a lease term.
    pub fn now(digest: StatusDigest, term: u64) -> Self {
        let now = Instant::now();
        Self { digest, at: now, term, compared: Some(now) }
    }

    /// Makes the next evaluation compare it with the object.
    pub fn compare_soon(&mut self) {
        self.compared = None;
    }

    /// Whether another writer changed or removed it, according to the watch cache. Compared every
    /// [`COMPARE_INTERVAL`], because the watch may be behind for a while.
    pub fn was_overwritten(&mut self, of_object: impl FnOnce() -> Option<StatusDigest>) -> bool {
        if self.compared.is_some_and(|at| at.elapsed() < COMPARE_INTERVAL) {
            return false;
        }
        self.compared = Some(Instant::now());
        of_object().is_some_and(|shown| {
            self.digest.decides_otherwise(&shown) || self.digest.has_moved(&shown)
        })
    }

    /// Whether another status says of anything but metric values something else.
    pub fn decides_otherwise(&self, shown: &StatusDigest) -> bool {
        self.digest.decides_otherwise(shown)
    }

    /// Whether another status is worth a write: at once if anything but metric values changed; for
    /// metric values if one changed by a tenth and `interval` has passed.
    pub fn is_outdated_by(&self, shown: &StatusDigest, interval: Duration) -> bool {
        self.decides_otherwise(shown)
            || (self.at.elapsed() >= interval && self.digest.has_moved(shown))
    }
}

/// The digest of a status as it is written to an object of a kind.
pub fn digest(kind: AutoscalerKind, status: &AutoscalerStatus) -> StatusDigest {
    match kind {
        AutoscalerKind::Autoscaler => status.digest(),
        AutoscalerKind::Hpa => status.digest_as_hpa(),
    }
}

/// The API resource of an autoscaler.
fn resource(autoscaler: &AutoscalerRef) -> ApiResource {
    match autoscaler.kind {
        AutoscalerKind::Autoscaler => ApiResource::erase::<Autoscaler>(&()),
        AutoscalerKind::Hpa => ApiResource::erase::<HorizontalPodAutoscaler>(&()),
    }
}

/// Reads the status of an object, which is empty if the object is gone.
pub async fn read(client: &Client, autoscaler: &AutoscalerRef) -> Result<Status, kube::Error> {
    let status = read_as::<HorizontalPodAutoscalerStatus>(client, autoscaler).await?;
    Ok(status.as_ref().map(Status::from_api).unwrap_or_default())
}

/// The same with the fields of its kind; none if there is none. Plimsoll may not get a single object, so it lists.
pub async fn read_as<T: DeserializeOwned>(
    client: &Client,
    autoscaler: &AutoscalerRef,
) -> Result<Option<T>, kube::Error> {
    let key = &autoscaler.key;
    let api: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), &key.namespace, &resource(autoscaler));
    let only = ListParams::default().fields(&format!("metadata.name={}", key.name));
    let mut list = within(api.list(&only)).await?;
    let status = list.items.pop().map_or(Value::Null, |object| object.data["status"].clone());
    serde_json::from_value(status).map_err(kube::Error::SerdeError)
}

/// Writes a status in place of the whole old one. Returns whether that object is still there: one of
/// its name that was made anew is another, and is left as it is.
pub async fn write(
    client: &Client,
    token: &FencingToken,
    autoscaler: &AutoscalerRef,
    uid: &str,
    text: &str,
) -> Result<bool, kube::Error> {
    let mut value: Value = serde_json::from_str(text).map_err(kube::Error::SerdeError)?;
    if let (AutoscalerKind::Hpa, Some(fields)) = (autoscaler.kind, value.as_object_mut()) {
        fields.remove("reference");
        fields.remove("targets");
        for condition in
            fields.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten()
        {
            condition.as_object_mut().map(|condition| condition.remove("observedGeneration"));
        }
    }
    replace_status(client, token, &resource(autoscaler), &autoscaler.key, uid, &value).await
}

/// Writes the status of any object in place of the whole old one. Returns whether that object is still there.
pub async fn replace_status(
    client: &Client,
    token: &FencingToken,
    resource: &ApiResource,
    key: &ObjectKey,
    uid: &str,
    status: &Value,
) -> Result<bool, kube::Error> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &key.namespace, resource);
    // A merge patch would not do: of the status of a custom resource kube-apiserver takes it whatever
    // UID it names.
    let patch = json!([
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "add", "path": "/status", "value": status},
    ]);
    let patch = serde_json::from_value(patch).map_err(kube::Error::SerdeError)?;
    let patch = Patch::<()>::Json(patch);
    // Only the test can fail: a status can be added to any object. What makes a status invalid is
    // among the causes, and of a patch that fails there are none.
    let is_another = |status: &kube::core::Status| {
        let causes = status.details.as_ref().map_or(0, |details| details.causes.len());
        status.code == 422 && status.reason == "Invalid" && causes == 0
    };
    match token.write(api.patch_status(&key.name, &PatchParams::default(), &patch)).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 404 || is_another(&status) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crd::digest_of_hpa;
    use crate::watch::read_autoscaler;
    use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscalerSpec;

    #[test]
    fn small_changes_of_metric_values_are_not_worth_a_write_and_a_decision_is() {
        let status = |average: &str, desired: i32| AutoscalerStatus {
            desired_replicas: Some(desired),
            targets: Some(format!("{average}/10")),
            current_metrics: serde_json::from_value(json!([{"type": "Pods", "pods": {
                "metric": {"name": "qps"}, "current": {"averageValue": average}}}]))
            .unwrap(),
            ..Default::default()
        };
        let (hour, never) = (Duration::from_secs(3600), Duration::ZERO);
        let written = LastWrite::now(status("10", 3).digest(), 1);
        assert!(!written.is_outdated_by(&status("10", 3).digest(), never));
        assert!(!written.is_outdated_by(&status("10900m", 3).digest(), never));
        assert!(written.is_outdated_by(&status("11100m", 3).digest(), never));
        assert!(!written.is_outdated_by(&status("20", 3).digest(), hour));
        assert!(written.is_outdated_by(&status("10", 4).digest(), hour));
        let failed = AutoscalerStatus { current_metrics: None, ..status("10", 3) };
        assert!(written.is_outdated_by(&failed.digest(), hour));
    }

    #[test]
    fn a_status_that_another_writer_removed_is_detected_at_the_next_comparison() {
        let shown = AutoscalerStatus { current_replicas: Some(3), ..Default::default() };
        let as_written = || Some(shown.digest());
        let wiped = || Some(AutoscalerStatus::default().digest());
        let mut written = LastWrite::now(shown.digest(), 1);
        assert!(!written.was_overwritten(wiped), "the watch may be behind");
        for (shows, overwritten) in [(wiped(), true), (as_written(), false), (None, false)] {
            written.compare_soon();
            assert_eq!(written.was_overwritten(|| shows), overwritten);
            assert!(!written.was_overwritten(wiped), "it was compared just now");
        }
    }

    /// A difference would be written once a minute, for ever.
    #[test]
    fn a_status_that_was_read_back_is_not_overwritten() {
        let metrics = json!([
            {"type": "Pods", "pods": {"metric": {"name": "qps", "selector": {}},
                "target": {"type": "AverageValue", "averageValue": "10"}}},
            {"type": "Resource", "resource": {"name": "cpu",
                "target": {"type": "Utilization", "averageUtilization": 80}}},
            {"type": "Resource", "resource": {"name": "memory",
                "target": {"type": "AverageValue", "averageValue": "1Gi"}}},
            {"type": "Object", "object": {"describedObject": {"kind": "Namespace", "name": "shop"},
                "metric": {"name": "jobs"}, "target": {"type": "Value", "value": "3"}}},
            {"type": "External", "external": {"metric": {"name": "queue"},
                "target": {"type": "AverageValue", "averageValue": "30"}}}]);
        let schedules = json!([{"name": "sale", "minReplicas": 3,
            "from": "2026-11-01T00:00:00Z", "until": "2026-12-31T00:00:00Z"}]);
        let object = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "web", "generation": 7},
            "spec": {"maxReplicas": 9, "metrics": metrics, "schedules": schedules,
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}});
        let read = |object| read_autoscaler(serde_json::from_value(object).unwrap(), None);
        let parsed = read(object.clone()).parsed.expect("a spec");
        let spec = &parsed.scaling.spec;
        let now = 1_795_479_163_091;
        let mut status = Status {
            current_replicas: 3,
            last_scale: Some(now),
            metrics: spec.metrics.clone(),
            current: vec![
                Current::Average(12_500),
                Current::Utilization(45, 90),
                Current::Average(3_000 << 20),
                Current::Value(1),
                Current::None,
            ],
            schedule: spec.moment(now).map(Box::new),
            ..Status::default()
        };
        assert!(status.schedule.is_some());
        status.set(ConditionKind::AbleToScale, true, Reason::Ready, format_args!("it is"), now);
        set_ready(&mut status, now + 908);
        let rendered = render(&status, spec, Some(7));
        let mut written = object;
        written["status"] = serde_json::from_str(&rendered.to_json()).unwrap();
        let found = read(written).digest;
        assert!(!rendered.digest().decides_otherwise(&found));
        assert!(!rendered.digest().has_moved(&found) && found.lacks_value(4));
        // As kube-apiserver writes that of an HPA.
        let mut of_hpa = json!(rendered);
        of_hpa["currentMetrics"][0]["pods"]["metric"]["selector"] = json!({});
        of_hpa["currentMetrics"][2]["resource"]["current"]["averageValue"] = "3145728".into();
        let of_hpa: HorizontalPodAutoscalerStatus = serde_json::from_value(of_hpa).unwrap();
        let found = digest_of_hpa(&of_hpa);
        assert!(!digest(AutoscalerKind::Hpa, &rendered).decides_otherwise(&found));
    }

    #[test]
    fn targets_are_shown_as_kubectl_shows_those_of_an_hpa() {
        let spec: HorizontalPodAutoscalerSpec = serde_json::from_value(json!({
            "maxReplicas": 5, "scaleTargetRef": {"kind": "Deployment", "name": "web"},
            "metrics": [
                {"type": "Pods", "pods": {"metric": {"name": "qps"},
                    "target": {"type": "AverageValue", "averageValue": "10"}}},
                {"type": "Resource", "resource": {"name": "cpu",
                    "target": {"type": "Utilization", "averageUtilization": 80}}},
                {"type": "External", "external": {"metric": {"name": "queue"},
                    "target": {"type": "AverageValue", "averageValue": "30"}}},
            ]
        }))
        .unwrap();
        let spec = Spec::from_api(&spec);
        let current = [Current::Average(12_500), Current::Utilization(45, 90), Current::None];
        assert_eq!(targets(&spec, &current), "12500m/10, cpu: 45%/80%, <unknown>/30 (avg)");
    }
}
