//! The status: what is shown, and writing it.

use super::within;
use crate::crd::{Autoscaler, AutoscalerStatus};
use crate::hpa::{
    self, Current, ResourceTarget, ScalarTarget, Source, Spec, Status, render_status,
};
use crate::k8s::Quantity;
use crate::watch::{Subject, SubjectKind};
use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerStatus, MetricStatus, MetricValueStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The status to show: that of the decision, and two columns for people.
pub fn shown(status: &Status, spec: &Spec, generation: Option<i64>) -> AutoscalerStatus {
    let rendered = render_status(status);
    from_hpa(rendered, spec, &status.current, generation)
}

/// The same from the status of a native HPA, where one executes.
pub fn from_hpa(
    status: HorizontalPodAutoscalerStatus,
    spec: &Spec,
    current: &[Current],
    generation: Option<i64>,
) -> AutoscalerStatus {
    AutoscalerStatus {
        reference: Some(format!("{}/{}", spec.target.kind, spec.target.name)),
        targets: Some(targets(spec, current)),
        observed_generation: generation,
        last_scale_time: status.last_scale_time,
        current_replicas: status.current_replicas,
        desired_replicas: status.desired_replicas,
        current_metrics: status.current_metrics,
        conditions: status.conditions,
    }
}

/// What each metric is over what it should be, as `kubectl get hpa` shows it.
fn targets(spec: &Spec, current: &[Current]) -> String {
    let metric = |(index, metric): (usize, &hpa::Metric)| {
        let now = match current.get(index).copied().unwrap_or(Current::None) {
            Current::None => "<unknown>".to_owned(),
            Current::Value(milli) | Current::Average(milli) => quantity(milli),
            Current::Utilization(percent, _) => format!("{percent}%"),
        };
        let wanted = wanted(&metric.source);
        match &metric.source {
            Source::Resource { name, .. } | Source::ContainerResource { name, .. } => {
                format!("{name}: {now}/{wanted}")
            }
            _ => format!("{now}/{wanted}"),
        }
    };
    spec.metrics.iter().enumerate().map(metric).collect::<Vec<_>>().join(", ")
}

fn wanted(source: &Source) -> String {
    match source {
        Source::Pods { average_milli, .. } => quantity(*average_milli),
        Source::Resource { target, .. } | Source::ContainerResource { target, .. } => {
            match target {
                ResourceTarget::Average(milli) => quantity(*milli),
                ResourceTarget::Utilization(percent) => format!("{percent}%"),
                ResourceTarget::Invalid => "<unset>".to_owned(),
            }
        }
        Source::Object { target, .. } | Source::External { target, .. } => match target {
            ScalarTarget::Value(milli) => quantity(*milli),
            ScalarTarget::Average(milli) => format!("{} (avg)", quantity(*milli)),
            ScalarTarget::Invalid => "<unset>".to_owned(),
        },
        Source::Unknown(_) => "<unset>".to_owned(),
    }
}

fn quantity(milli: i64) -> String {
    Quantity::from_milli(milli).to_string()
}

/// A status that was written, and when.
pub struct Written {
    /// The status.
    pub status: Arc<AutoscalerStatus>,
    /// When.
    pub at: Instant,
}

/// By which part a number must have moved to be worth a write.
const MOVED: f64 = 0.1;

impl Written {
    /// Whether another status is worth a write: at once where anything changed
    /// but measured numbers; those only where they moved, and not too often.
    pub fn is_outdated_by(&self, shown: &AutoscalerStatus, interval: Duration) -> bool {
        if decided(&self.status) != decided(shown) {
            return true;
        }
        let (before, now) = (numbers(&self.status), numbers(shown));
        // A metric that came or went is no number that moved.
        if before.len() != now.len() {
            return true;
        }
        let moved = |(before, now): (&f64, &f64)| (before - now).abs() > before.abs() * MOVED;
        self.at.elapsed() >= interval && before.iter().zip(&now).any(moved)
    }
}

/// All of a status but the measured numbers.
fn decided(status: &AutoscalerStatus) -> impl PartialEq + use<'_> {
    let AutoscalerStatus {
        reference,
        targets: _,
        observed_generation,
        last_scale_time,
        current_replicas,
        desired_replicas,
        current_metrics: _,
        conditions,
    } = status;
    let replicas = (current_replicas, desired_replicas);
    (reference, observed_generation, last_scale_time, replicas, conditions)
}

/// The numbers that a status shows of its metrics.
fn numbers(status: &AutoscalerStatus) -> Vec<f64> {
    let quantity = |quantity: &ApiQuantity| Some(quantity.0.parse::<Quantity>().ok()?.as_f64());
    let of = |value: &MetricValueStatus| {
        let average = || value.average_value.as_ref().and_then(quantity);
        value.value.as_ref().and_then(quantity).or_else(average)
    };
    let metric = |metric: &MetricStatus| {
        let pods = metric.pods.as_ref().map(|metric| &metric.current);
        pods.or(metric.resource.as_ref().map(|metric| &metric.current))
            .or(metric.container_resource.as_ref().map(|metric| &metric.current))
            .or(metric.object.as_ref().map(|metric| &metric.current))
            .or(metric.external.as_ref().map(|metric| &metric.current))
            .and_then(of)
    };
    status.current_metrics.iter().flatten().filter_map(metric).collect()
}

/// Writes a status; one whose object is gone is no error.
pub async fn write(
    client: &Client,
    subject: &Subject,
    status: &AutoscalerStatus,
) -> Result<(), kube::Error> {
    let mut value = json!(status);
    // A merge patch removes only what it names.
    for field in ["lastScaleTime", "currentMetrics", "reference", "targets"] {
        if value.get(field).is_none() {
            value[field] = Value::Null;
        }
    }
    let resource = match subject.kind {
        SubjectKind::Autoscaler => ApiResource::erase::<Autoscaler>(&()),
        SubjectKind::Hpa => {
            if let Some(fields) = value.as_object_mut() {
                fields.remove("reference");
                fields.remove("targets");
            }
            ApiResource::erase::<HorizontalPodAutoscaler>(&())
        }
    };
    let key = &subject.key;
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &key.namespace, &resource);
    let patch = Patch::Merge(json!({"status": value}));
    match within(api.patch_status(&key.name, &PatchParams::default(), &patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscalerSpec;

    #[test]
    fn noise_is_not_worth_a_write_and_a_decision_is() {
        let status = |average: &str, desired: i32| AutoscalerStatus {
            desired_replicas: desired,
            targets: Some(average.to_owned()),
            current_metrics: serde_json::from_value(json!([{"type": "Pods", "pods": {
                "metric": {"name": "qps"}, "current": {"averageValue": average}}}]))
            .unwrap(),
            ..Default::default()
        };
        let (hour, never) = (Duration::from_secs(3600), Duration::ZERO);
        let written = Written { status: Arc::new(status("10", 3)), at: Instant::now() };
        assert!(!written.is_outdated_by(&status("10", 3), never));
        assert!(!written.is_outdated_by(&status("10900m", 3), never));
        assert!(written.is_outdated_by(&status("11100m", 3), never));
        assert!(!written.is_outdated_by(&status("20", 3), hour));
        assert!(written.is_outdated_by(&status("10", 4), hour));
        let failed = AutoscalerStatus { current_metrics: None, ..status("10", 3) };
        assert!(written.is_outdated_by(&failed, hour));
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
