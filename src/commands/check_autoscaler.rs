//! `plimsoll check -f`: what is invalid in an Autoscaler or MetricRule, and what is probably a mistake, without a
//! cluster.

use super::{check_metric_rule, objects};
use crate::crd::{AutoscalerSpec, CustomMetric, Executor};
use crate::promql::guard::within_namespace;
use crate::promql::ranges;
use std::path::Path;
use std::time::Duration;

/// A valid Autoscaler of a file.
pub struct FileAutoscaler {
    /// Its namespace; that of the kubeconfig's context, or none, if the file does not say.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its spec.
    pub spec: AutoscalerSpec,
}

impl FileAutoscaler {
    /// A text about it.
    pub fn about(&self, text: &str) -> String {
        format!("autoscaler {}/{}: {text}", self.namespace, self.name)
    }
}

/// What was found around Autoscalers. Each text begins with the object and the field.
#[derive(Default)]
pub struct Findings {
    /// What is probably a mistake.
    pub warnings: Vec<String>,
    /// What could not be looked at, and why.
    pub not_checked: Vec<String>,
}

/// Checks the Autoscalers and MetricRules of a file, or of the standard input for `-`, in this namespace if they have
/// none. Each text begins with the object and the field. Returns the Autoscalers that are valid.
pub fn check_file(
    path: &Path,
    namespace: &str,
    scrape_interval: Duration,
    errors: &mut Vec<String>,
    warnings: &mut Vec<String>,
) -> Vec<FileAutoscaler> {
    let parse = |text: String| {
        objects::parse(&text).map_err(|error| format!("{}: {error}", path.display()))
    };
    let objects = match objects::read(path).and_then(parse) {
        Ok(objects) => objects,
        Err(error) => {
            errors.push(error);
            return Vec::new();
        }
    };
    let mut valid = Vec::new();
    let mut found = check_metric_rule::check(&objects, namespace, errors);
    for object in objects.iter().filter(|object| object["kind"] == "Autoscaler") {
        found += 1;
        let of = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let (mut own, name) = (of("namespace"), of("name"));
        if own.is_empty() {
            namespace.clone_into(&mut own);
        }
        let namespace = own;
        let about = |text: &str| format!("autoscaler {namespace}/{name}: {text}");
        match AutoscalerSpec::read(object["spec"].clone()) {
            Err(error) => errors.push(about(&error.to_string())),
            Ok(spec) => {
                let found = check(&spec, &namespace, scrape_interval);
                errors.extend(found.errors.iter().map(|text| about(text)));
                warnings.extend(found.warnings.iter().map(|text| about(text)));
                if found.errors.is_empty() {
                    valid.push(FileAutoscaler { namespace, name, spec });
                }
            }
        }
    }
    if found == 0 {
        errors.push(format!("{}: no Autoscaler or MetricRule is in it", path.display()));
    }
    valid
}

/// What was found in one Autoscaler.
#[derive(Default)]
struct Found {
    errors: Vec<String>,
    warnings: Vec<String>,
}

fn check(spec: &AutoscalerSpec, namespace: &str, scrape_interval: Duration) -> Found {
    let mut found = Found::default();
    for (index, metric) in spec.custom_metrics.iter().enumerate() {
        let path = format!("spec.customMetrics[{index}]");
        check_metric(&path, metric, namespace, scrape_interval, &mut found);
    }
    let warnings = &mut found.warnings;
    let least = spec.schedules.iter().filter_map(|one| one.min_replicas).min();
    let least = least.map_or(spec.min_replicas, |least| least.min(spec.min_replicas));
    let most = spec.schedules.iter().filter_map(|one| one.max_replicas).max();
    let most = most.map_or(spec.max_replicas, |most| most.max(spec.max_replicas));
    for (index, schedule) in spec.schedules.iter().enumerate() {
        let highest = schedule.max_replicas.unwrap_or(spec.max_replicas);
        if let Some(min) = schedule.min_replicas.filter(|min| *min > highest) {
            warnings.push(format!("spec.schedules[{index}]: minReplicas {min} is above maxReplicas {highest} of the spec, which holds unless another schedule raises it"));
        }
    }
    let behavior = spec.behavior.clone().unwrap_or_default();
    for (direction, rules, bound) in [
        ("scaleUp", behavior.scale_up, format!("maxReplicas {most}")),
        ("scaleDown", behavior.scale_down, format!("minReplicas {least}")),
    ] {
        let is_disabled =
            rules.is_some_and(|rules| rules.select_policy.as_deref() == Some("Disabled"));
        if is_disabled && least < most {
            warnings.push(format!(
                "spec.behavior.{direction}.selectPolicy: Disabled, so that {bound} is never reached"
            ));
        }
    }
    if let Some(fallback) = &spec.fallback
        && !(least..=most).contains(&fallback.replicas)
    {
        warnings.push(format!(
            "spec.fallback.replicas: {} is not between {least} and {most}, within which it is kept",
            fallback.replicas
        ));
    }
    if spec.executor == Executor::NativeHPA && spec.has_value_at_zero() {
        warnings.push("spec.executor: kube-controller-manager reads External metrics from external.metrics.k8s.io, which one adapter of the cluster serves: apiServices.external of the chart registers Plimsoll".to_owned());
    }
    found
}

fn check_metric(
    path: &str,
    metric: &CustomMetric,
    namespace: &str,
    scrape_interval: Duration,
    found: &mut Found,
) {
    let Some(query) = &metric.query else { return };
    if let Err(error) = within_namespace(query, "namespace", namespace, &[]) {
        found.errors.push(format!("{path}.query: {error}"));
        return;
    }
    if let Ok(Some(range)) = ranges::shortest(query)
        && range < 2 * scrape_interval
    {
        found.warnings.push(format!("{path}.query: a range of {range:?} has fewer than two samples at a scrape interval of {scrape_interval:?} (--scrape-interval), and rate() of one is empty: take four times the interval"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(spec: &str) -> (Vec<String>, Vec<String>) {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let text = format!(
            "apiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\nmetadata: {{name: web, namespace: shop}}\n\
             spec: {{scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: web}}, {spec}}}\n"
        );
        std::fs::write(file.path(), text).expect("it is written");
        let (mut errors, mut warnings) = (Vec::new(), Vec::new());
        check_file(file.path(), "", Duration::from_secs(30), &mut errors, &mut warnings);
        (errors, warnings)
    }

    #[test]
    fn what_is_invalid_is_an_error_with_object_and_field() {
        for (spec, expected) in [
            ("minReplicas: 3, maxReplicas: 2", "autoscaler shop/web: spec.maxReplicas: "),
            (
                "maxReplicas: 2, customMetrics: [{metricName: m, averageValue: 1, query: 'sum(x'}]",
                "autoscaler shop/web: spec.customMetrics[0].query: ",
            ),
            (
                "maxReplicas: 2, schedules: [{name: a, start: '0 25 * * *', end: '0 1 * * *', minReplicas: 1}]",
                "autoscaler shop/web: spec.schedules[0].start: \"0 25 * * *\": hour 25",
            ),
        ] {
            let (errors, warnings) = checked(spec);
            assert!(
                errors[0].starts_with(expected) && warnings.is_empty(),
                "{errors:?} {warnings:?}"
            );
        }
    }

    #[test]
    fn what_is_probably_a_mistake_is_a_warning() {
        for (spec, expected) in [
            (
                "maxReplicas: 2, customMetrics: [{metricName: m, averageValue: 1, query: 'sum by (pod) (rate(x[45s]))'}]",
                "spec.customMetrics[0].query: a range of 45s has fewer than two samples",
            ),
            (
                "maxReplicas: 2, behavior: {scaleUp: {selectPolicy: Disabled}}",
                "spec.behavior.scaleUp.selectPolicy: Disabled, so that maxReplicas 2",
            ),
            (
                "maxReplicas: 4, fallback: {failureThreshold: 3, replicas: 9}",
                "spec.fallback.replicas: 9 is not between 1 and 4",
            ),
            (
                "maxReplicas: 4, schedules: [{name: a, start: '0 8 * * *', end: '0 9 * * *', minReplicas: 9}]",
                "spec.schedules[0]: minReplicas 9 is above maxReplicas 4",
            ),
            (
                "maxReplicas: 4, executor: NativeHPA, customMetrics: [{metricName: m, per: Workload, value: 1}]",
                "spec.executor: kube-controller-manager reads",
            ),
        ] {
            let (errors, warnings) = checked(spec);
            assert!(errors.is_empty(), "{errors:?}");
            assert!(warnings.len() == 1 && warnings[0].contains(expected), "{warnings:?}");
        }
        assert_eq!(checked("maxReplicas: 4"), (Vec::new(), Vec::new()));
    }
}
