//! Validation of a specification, as kube-apiserver validates a HorizontalPodAutoscaler.
//!
//! Source: `validateHorizontalPodAutoscalerSpec` of Kubernetes 1.36, with `HPAScaleToZero`.

use super::spec::parse_group;
use crate::k8s::Quantity;
use k8s_openapi::api::autoscaling::v2 as api;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

/// The longest period of a policy, in seconds.
const MAX_PERIOD: i32 = 1800;
/// The longest stabilization window, in seconds.
const MAX_WINDOW: i32 = 3600;

/// A field that kube-apiserver would refuse.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct InvalidField {
    /// Its path, such as `spec.metrics[0].pods.target.averageValue`.
    pub field: String,
    /// The error, and the remedy.
    pub reason: String,
}

/// All fields of a specification that kube-apiserver would refuse. Defaults need not be set.
pub fn validate(spec: &api::HorizontalPodAutoscalerSpec) -> Vec<InvalidField> {
    let mut faults = Faults::default();
    let min = spec.min_replicas.unwrap_or(1);
    if min < 0 {
        faults.add("spec.minReplicas", "must be greater than or equal to 0");
    }
    if spec.max_replicas < 1 {
        faults.add("spec.maxReplicas", "must be greater than or equal to 1");
    } else if spec.max_replicas < min {
        faults.add("spec.maxReplicas", "must be greater than or equal to `minReplicas`");
    }
    let target = &spec.scale_target_ref;
    let core = target.kind == "ReplicationController";
    let version = target.api_version.as_deref();
    faults.reference("spec.scaleTargetRef", &target.kind, &target.name, version, core);
    let metrics = spec.metrics.as_deref().unwrap_or_default();
    for (index, metric) in metrics.iter().enumerate() {
        faults.metric(&format!("spec.metrics[{index}]"), metric);
    }
    let from_outside = |metric: &api::MetricSpec| matches!(&*metric.type_, "Object" | "External");
    if min == 0 && !metrics.iter().any(from_outside) {
        faults.add(
            "spec.metrics",
            "must specify at least one Object or External metric to support scaling to zero replicas",
        );
    }
    let behavior = spec.behavior.clone().unwrap_or_default();
    for (name, rules) in [("scaleUp", behavior.scale_up), ("scaleDown", behavior.scale_down)] {
        if let Some(rules) = rules {
            faults.rules(&format!("spec.behavior.{name}"), &rules);
        }
    }
    faults.0
}

#[derive(Default)]
struct Faults(Vec<InvalidField>);

impl Faults {
    fn add(&mut self, field: impl Into<String>, reason: impl Into<String>) {
        self.0.push(InvalidField { field: field.into(), reason: reason.into() });
    }

    /// Adds a fault unless the condition holds.
    fn check(&mut self, holds: bool, field: String, reason: &str) {
        if !holds {
            self.add(field, reason);
        }
    }

    fn one_of(&mut self, path: String, word: &str, words: &[&str]) {
        if !words.contains(&word) {
            self.add(
                path,
                format!("{word:?} is not supported: one of {} was expected", words.join(", ")),
            );
        }
    }

    fn reference(&mut self, path: &str, kind: &str, name: &str, version: Option<&str>, core: bool) {
        self.path_segment(format!("{path}.kind"), kind);
        self.path_segment(format!("{path}.name"), name);
        match parse_group(version.unwrap_or_default()) {
            Err(reason) => self.add(format!("{path}.apiVersion"), reason),
            Ok("") if !core => self.add(
                format!("{path}.apiVersion"),
                "apiVersion must specify API group, such as apps/v1",
            ),
            Ok(_) => {}
        }
    }

    fn path_segment(&mut self, path: String, name: &str) {
        match name {
            "" => self.add(path, "is missing"),
            "." | ".." => self.add(path, format!("may not be {name:?}")),
            _ => self.check(!name.contains(['/', '%']), path, "may not contain '/' or '%'"),
        }
    }

    fn rules(&mut self, path: &str, rules: &api::HPAScalingRules) {
        let window = rules.stabilization_window_seconds.unwrap_or(0);
        let field = format!("{path}.stabilizationWindowSeconds");
        self.check((0..=MAX_WINDOW).contains(&window), field, "must be between 0 and 3600");
        let select = rules.select_policy.as_deref().unwrap_or("Max");
        self.one_of(format!("{path}.selectPolicy"), select, &["Max", "Min", "Disabled"]);
        if rules.policies.as_ref().is_some_and(Vec::is_empty) {
            self.add(format!("{path}.policies"), "must specify at least one Policy");
        }
        for (index, policy) in rules.policies.iter().flatten().enumerate() {
            let path = format!("{path}.policies[{index}]");
            self.one_of(format!("{path}.type"), &policy.type_, &["Pods", "Percent"]);
            self.check(policy.value > 0, format!("{path}.value"), "must be greater than zero");
            let period = (1..=MAX_PERIOD).contains(&policy.period_seconds);
            self.check(period, format!("{path}.periodSeconds"), "must be between 1 and 1800");
        }
        if let Some(tolerance) = &rules.tolerance {
            let known = tolerance.0.parse::<Quantity>().is_ok_and(|q| q >= Quantity::default());
            let reason = "must be a quantity that is greater than or equal to 0";
            self.check(known, format!("{path}.tolerance"), reason);
        }
    }

    fn metric(&mut self, path: &str, metric: &api::MetricSpec) {
        let expected = match metric.type_.as_str() {
            "Object" => "object",
            "External" => "external",
            "Pods" => "pods",
            "Resource" => "resource",
            "ContainerResource" => "containerResource",
            other => {
                let known = ["ContainerResource", "External", "Object", "Pods", "Resource"];
                self.one_of(format!("{path}.type"), other, &known);
                ""
            }
        };
        let mut present = Vec::new();
        // Only the first of several sources is validated.
        let mut first = |name: &'static str| {
            present.push(name);
            present.len() == 1
        };
        if let Some(object) = &metric.object
            && first("object")
        {
            self.object(&format!("{path}.object"), object);
        }
        if let Some(external) = &metric.external
            && first("external")
        {
            let path = format!("{path}.external");
            self.path_segment(format!("{path}.metric.name"), &external.metric.name);
            self.scalar(&format!("{path}.target"), &external.target, true);
        }
        if let Some(pods) = &metric.pods
            && first("pods")
        {
            let path = format!("{path}.pods");
            self.path_segment(format!("{path}.metric.name"), &pods.metric.name);
            self.target(&format!("{path}.target"), &pods.target);
            let average = pods.target.average_value.is_some();
            let reason = "must specify a positive target averageValue";
            self.check(average, format!("{path}.target.averageValue"), reason);
        }
        if let Some(resource) = &metric.resource
            && first("resource")
        {
            let name = format!("{path}.resource.name");
            self.check(!resource.name.is_empty(), name, "must specify a resource name");
            self.usage(&format!("{path}.resource.target"), &resource.target);
        }
        if let Some(resource) = &metric.container_resource
            && first("containerResource")
        {
            let path = format!("{path}.containerResource");
            let known = is_container_resource(&resource.name);
            self.check(known, format!("{path}.name"), "must be a resource of containers");
            let label = resource.container.len() <= 63 && is_dns_label(&resource.container);
            self.check(label, format!("{path}.container"), "must be the name of a container");
            self.usage(&format!("{path}.target"), &resource.target);
        }
        if !expected.is_empty() && !present.contains(&expected) {
            let reason = "must populate information for the given metric source";
            self.add(format!("{path}.{expected}"), reason);
        }
        if present.len() > 1 {
            for other in present.into_iter().filter(|name| *name != expected) {
                self.add(format!("{path}.{other}"), "must populate the given metric source only");
            }
        }
    }

    fn object(&mut self, path: &str, object: &api::ObjectMetricSource) {
        let described = &object.described_object;
        let version = described.api_version.as_deref();
        let field = format!("{path}.describedObject");
        self.reference(&field, &described.kind, &described.name, version, true);
        self.path_segment(format!("{path}.metric.name"), &object.metric.name);
        self.scalar(&format!("{path}.target"), &object.target, false);
    }

    fn scalar(&mut self, path: &str, target: &api::MetricTarget, one_only: bool) {
        self.target(path, target);
        match (&target.value, &target.average_value) {
            (None, None) => {
                let reason = "must set either a target value or averageValue";
                self.add(format!("{path}.averageValue"), reason);
            }
            (Some(_), Some(_)) if one_only => {
                self.add(format!("{path}.value"), "may not set both averageValue and value");
            }
            _ => {}
        }
    }

    fn usage(&mut self, path: &str, target: &api::MetricTarget) {
        self.target(path, target);
        match (target.average_utilization, &target.average_value) {
            (None, None) => {
                let reason = "must set either a target raw value or a target utilization";
                self.add(format!("{path}.averageUtilization"), reason);
            }
            (Some(_), Some(_)) => {
                let reason = "may not set both averageUtilization and averageValue";
                self.add(format!("{path}.averageValue"), reason);
            }
            _ => {}
        }
    }

    fn target(&mut self, path: &str, target: &api::MetricTarget) {
        self.one_of(
            format!("{path}.type"),
            &target.type_,
            &["Utilization", "Value", "AverageValue"],
        );
        let values = [("value", &target.value), ("averageValue", &target.average_value)];
        for (name, value) in values {
            let positive =
                |value: &ApiQuantity| value.0.parse::<Quantity>().is_ok_and(Quantity::is_positive);
            let reason = "must be a positive quantity";
            self.check(value.as_ref().is_none_or(positive), format!("{path}.{name}"), reason);
        }
        let percent = target.average_utilization.is_none_or(|percent| percent >= 1);
        self.check(percent, format!("{path}.averageUtilization"), "must be greater than 0");
    }
}

fn is_dns_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty() && text.chars().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// The part of a qualified name behind the prefix.
fn is_name(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= 63
        && text.chars().all(inner)
        && ends(text.chars().next())
        && ends(text.chars().next_back())
}

/// Whether containers can have a resource of this name (`ValidateContainerResourceName`).
fn is_container_resource(name: &str) -> bool {
    let Some((prefix, rest)) = name.split_once('/') else {
        let standard = matches!(name, "cpu" | "memory" | "ephemeral-storage");
        return standard || name.starts_with("hugepages-") && is_name(name);
    };
    let own = name.contains("kubernetes.io/");
    let longest = if own { 253 } else { 253 - "requests.".len() };
    is_name(rest)
        && prefix.len() <= longest
        && prefix.split('.').all(is_dns_label)
        && (own || !name.starts_with("requests."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn fields(change: &Value) -> Vec<String> {
        let mut spec = json!({
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "maxReplicas": 3,
        });
        let (Value::Object(spec_fields), Value::Object(change)) = (&mut spec, change) else {
            panic!("objects")
        };
        spec_fields.extend(change.clone());
        let spec = serde_json::from_value(spec).expect("a spec");
        validate(&spec).into_iter().map(|fault| fault.field).collect()
    }

    #[test]
    fn a_word_that_is_not_known_is_refused_and_not_taken_for_another() {
        let down = |rules: Value| json!({"behavior": {"scaleDown": rules}});
        let policy = |kind: &str, value: i32, period: i32| {
            down(json!({"policies": [{"type": kind, "value": value, "periodSeconds": period}]}))
        };
        for (change, field) in [
            (down(json!({"selectPolicy": "disabled"})), "spec.behavior.scaleDown.selectPolicy"),
            (policy("pods", 4, 60), "spec.behavior.scaleDown.policies[0].type"),
            (policy("Pods", 0, 60), "spec.behavior.scaleDown.policies[0].value"),
            (policy("Pods", 4, 1801), "spec.behavior.scaleDown.policies[0].periodSeconds"),
            (down(json!({"policies": []})), "spec.behavior.scaleDown.policies"),
            (down(json!({"tolerance": "-1"})), "spec.behavior.scaleDown.tolerance"),
            (json!({"minReplicas": 0}), "spec.metrics"),
            (json!({"minReplicas": 4}), "spec.maxReplicas"),
            (
                json!({"scaleTargetRef": {"kind": "Deployment", "name": "web"}}),
                "spec.scaleTargetRef.apiVersion",
            ),
            (json!({"metrics": [{"type": "Pods"}]}), "spec.metrics[0].pods"),
        ] {
            assert_eq!(fields(&change), [field], "{change}");
        }
        assert_eq!(fields(&json!({})), Vec::<String>::new());
    }

    #[test]
    fn resources_of_containers_are_those_that_kubernetes_knows() {
        for known in ["cpu", "hugepages-2Mi", "nvidia.com/gpu", "requests.kubernetes.io/x"] {
            assert!(is_container_resource(known), "{known}");
        }
        for unknown in ["", "gpu", "hugepages-", "requests.example.com/x", "a/b/c", "Example.com/x"]
        {
            assert!(!is_container_resource(unknown), "{unknown}");
        }
    }
}
