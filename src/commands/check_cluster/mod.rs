//! `plimsoll check -f --cluster`: what is around an Autoscaler in the cluster and probably a mistake. It reads
//! only, with the rights of its user; what it can't read is named.

mod around;
mod pods;
mod scalers;

use super::check_context::{FileAutoscaler, Findings};
use crate::clock::Clock;
use crate::config::CheckFlags;
use crate::connect::{self, ANSWER_TIMEOUT};
use crate::control::{Targets, message, within};
use crate::crd::{AutoscalerSpec, Executor, Mode};
use crate::hpa::{self, MetricSource, ResourceTarget, Spec};
use around::{Around, Utilization};
use kube::Client;

/// A client of the cluster that the flags name, and the namespace of its context.
///
/// # Errors
/// If there is none, or it does not answer.
pub async fn connect(flags: &CheckFlags) -> Result<(Client, String), String> {
    let connected = connect::as_kubectl(&flags.kubectl, ANSWER_TIMEOUT, Clock::default()).await;
    let connected = connected.map_err(|error| format!("--cluster: {error}"))?;
    match within(connected.client.apiserver_version()).await {
        Ok(_) => Ok((connected.client, connected.namespace)),
        Err(error) => {
            Err(format!("--cluster: {}: {}", connected.place_and_server(), message(&error)))
        }
    }
}

/// Looks at what is around these Autoscalers.
pub async fn check(client: &Client, objects: &[FileAutoscaler], found: &mut Findings) {
    let targets = Targets::new(client.clone());
    for object in objects {
        let mut around = Around {
            client,
            targets: &targets,
            object,
            target: Spec::from_api(&object.spec.as_hpa(&object.namespace, &object.name)).target,
            found,
        };
        check_one(&mut around).await;
    }
}

/// Looks at what is around one.
async fn check_one(around: &mut Around<'_>) {
    let utilizations = utilizations(&around.object.spec);
    let target = around.read_target().await;
    if let Some(target) = &target {
        let (executor, mode) = (around.object.spec.executor, around.object.spec.mode);
        let is_scaled_by_hpa = executor == Executor::NativeHPA || mode == Mode::Preview;
        for text in scalers::writers(target, &around.target_name(), is_scaled_by_hpa) {
            around.warn(&format!("spec.scaleTargetRef: {text}"));
        }
    }
    scalers::check_autoscalers(around).await;
    if !utilizations.is_empty() {
        scalers::check_vpas(around, target.as_ref(), &utilizations).await;
    }
    if let Some(target) = &target {
        pods::check_pods(around, target, &utilizations).await;
    }
}

/// The utilizations that a spec has as targets. Without any metric it is that of CPU.
fn utilizations(spec: &AutoscalerSpec) -> Vec<Utilization> {
    let written = spec.metrics.as_ref().map_or(0, Vec::len);
    if written + spec.resource_metrics.len() + spec.custom_metrics.len() == 0 {
        let field = "spec.metrics (the default, 80 % of CPU)".to_owned();
        return vec![Utilization { field, resource: "cpu".to_owned(), container: None }];
    }
    let metrics = Spec::from_api(&spec.as_hpa("", "")).metrics;
    let utilization = |(index, metric): (usize, &hpa::Metric)| {
        let (name, container) = match &metric.source {
            MetricSource::Resource { name, target: ResourceTarget::Utilization(_) } => (name, None),
            MetricSource::ContainerResource {
                name,
                container,
                target: ResourceTarget::Utilization(_),
            } => (name, Some(container.clone())),
            _ => return None,
        };
        let field = match index.checked_sub(written) {
            None => format!("spec.metrics[{index}]"),
            Some(index) => format!("spec.resourceMetrics[{index}]"),
        };
        Some(Utilization { field, resource: name.clone(), container })
    };
    metrics.iter().enumerate().filter_map(utilization).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn the_utilizations_of_a_spec_are_named_by_their_fields() {
        let of = |fields: Value| {
            let mut spec = json!({"maxReplicas": 3, "scaleTargetRef": {
                "apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}});
            for (name, field) in fields.as_object().expect("fields") {
                spec[name] = field.clone();
            }
            let all = utilizations(&AutoscalerSpec::read(spec).expect("a spec"));
            all.into_iter().map(|one| format!("{} {}", one.field, one.resource)).collect::<Vec<_>>()
        };
        assert_eq!(of(json!({})), ["spec.metrics (the default, 80 % of CPU) cpu"]);
        let target = json!({"type": "Utilization", "averageUtilization": 60});
        let average = json!({"type": "AverageValue", "averageValue": "1Gi"});
        let fields = json!({
            "metrics": [
                {"type": "Resource", "resource": {"name": "memory", "target": average}},
                {"type": "Resource", "resource": {"name": "cpu", "target": target}}],
            "resourceMetrics": [{"resourceName": "memory", "averageUtilization": 70}]});
        assert_eq!(of(fields), ["spec.metrics[1] cpu", "spec.resourceMetrics[0] memory"]);
        let custom = json!({"customMetrics": [{"metricName": "qps", "averageValue": 1}]});
        assert!(of(custom).is_empty());
    }
}
