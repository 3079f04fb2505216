//! `plimsoll check -f --cluster`: what is around an Autoscaler in the cluster and probably a mistake. It reads
//! only, with the rights of its user; what it can't read is named.

mod pods;
mod scalers;

use super::check_autoscaler::{FileAutoscaler, Findings};
use crate::clock::Clock;
use crate::config::CheckFlags;
use crate::connect;
use crate::control::{Targets, message, within};
use crate::crd::{AutoscalerSpec, Executor, Mode};
use crate::hpa::{self, MetricSource, ResourceTarget, Spec, TargetRef};
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client};
use serde_json::Value;

/// The most objects of a kind in a namespace that are looked at.
const MAX_OBJECTS: u32 = 500;

/// A client of the cluster that the flags name, and the namespace of its context.
///
/// # Errors
/// If there is none, or it does not answer.
pub async fn connect(flags: &CheckFlags) -> Result<(Client, String), String> {
    let (kubeconfig, context) = (flags.kubeconfig.as_deref(), flags.context.as_deref());
    let connected = connect::as_kubectl(kubeconfig, context, Clock::default()).await;
    let (client, namespace) = connected.map_err(|error| format!("--cluster: {error}"))?;
    match within(client.apiserver_version()).await {
        Ok(_) => Ok((client, namespace)),
        Err(error) => Err(format!("--cluster: the API server: {}", message(&error))),
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
        around.check().await;
    }
}

/// A utilization of a resource's requests.
struct Utilization {
    field: String,
    resource: String,
    /// Of one container only.
    container: Option<String>,
}

/// One Autoscaler and its surroundings.
struct Around<'a> {
    client: &'a Client,
    targets: &'a Targets,
    object: &'a FileAutoscaler,
    target: TargetRef,
    found: &'a mut Findings,
}

impl Around<'_> {
    async fn check(&mut self) {
        let utilizations = utilizations(&self.object.spec);
        let target = self.read_target().await;
        if let Some(target) = &target {
            let (executor, mode) = (self.object.spec.executor, self.object.spec.mode);
            let is_scaled_by_hpa = executor == Executor::NativeHPA || mode == Mode::Preview;
            for text in scalers::writers(target, &self.target_name(), is_scaled_by_hpa) {
                self.warn(&format!("spec.scaleTargetRef: {text}"));
            }
        }
        self.check_autoscalers().await;
        if !utilizations.is_empty() {
            self.check_vpas(target.as_ref(), &utilizations).await;
        }
        if let Some(target) = &target {
            self.check_pods(target, &utilizations).await;
        }
    }

    fn warn(&mut self, text: &str) {
        self.found.warnings.push(self.object.about(text));
    }

    fn not_checked(&mut self, text: &str) {
        self.found.not_checked.push(self.object.about(text));
    }

    /// Such as `Deployment web`.
    fn target_name(&self) -> String {
        format!("{} {}", self.target.kind, self.target.name)
    }

    fn api(&self, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.object.namespace, resource)
    }

    async fn read_target(&mut self) -> Option<DynamicObject> {
        let group = hpa::parse_group(&self.target.api_version).unwrap_or_default();
        let read = match self.targets.resource(group, &self.target.kind).await {
            Ok(resource) => {
                let read = within(self.api(&resource).get(&self.target.name)).await;
                read.map_err(|error| message(&error))
            }
            Err(error) => Err(error),
        };
        read.inspect_err(|error| {
            self.not_checked(&format!(
                "spec.scaleTargetRef: who writes the replicas of {}, and its pods: {error}",
                self.target_name()
            ));
        })
        .ok()
    }

    /// The objects of a kind in the namespace; none if they can't be read.
    async fn list(
        &mut self,
        resource: &ApiResource,
        parameters: ListParams,
        what: &str,
    ) -> Option<Vec<DynamicObject>> {
        let parameters = parameters.limit(MAX_OBJECTS);
        match within(self.api(resource).list(&parameters)).await {
            Ok(list) => {
                if list.metadata.continue_.is_some_and(|more| !more.is_empty()) {
                    let plural = &resource.plural;
                    self.not_checked(&format!("{what}: {plural} beyond the first {MAX_OBJECTS}"));
                }
                Some(list.items)
            }
            Err(error) => {
                self.not_checked(&format!("{what}: {}", message(&error)));
                None
            }
        }
    }

    /// Whether a reference is to the target, in any version of its group.
    fn is_target(&self, reference: &Value) -> bool {
        let of = |field: &str| reference[field].as_str().unwrap_or_default();
        let group = |version: &str| hpa::parse_group(version).map(str::to_owned);
        of("kind") == self.target.kind
            && of("name") == self.target.name
            && group(of("apiVersion")) == group(&self.target.api_version)
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
    use serde_json::json;

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
