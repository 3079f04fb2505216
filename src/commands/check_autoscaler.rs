//! `plimsoll check -f`: what is invalid in an Autoscaler, and what is probably a mistake, without a cluster.

use super::check_context::{Context, Texts};
use super::check_rule::short_range;
use crate::crd::{AutoscalerSpec, CustomMetric, Executor};
use crate::promql::guard::within_namespace;

/// Checks the spec of an Autoscaler in this namespace.
pub fn check(spec: &AutoscalerSpec, namespace: &str, context: &Context<'_>, found: &mut Texts) {
    for (index, metric) in spec.custom_metrics.iter().enumerate() {
        let path = format!("spec.customMetrics[{index}]");
        check_metric(&path, metric, namespace, context, found);
    }
    let warnings = &mut found.warnings;
    let least = spec.schedules.iter().filter_map(|one| one.min_replicas).min();
    let least = least.map_or(spec.min_replicas, |least| least.min(spec.min_replicas));
    let most = spec.schedules.iter().filter_map(|one| one.max_replicas).max();
    let most = most.map_or(spec.max_replicas, |most| most.max(spec.max_replicas));
    for (index, schedule) in spec.schedules.iter().enumerate() {
        let (lowest, highest) = (
            schedule.min_replicas.unwrap_or(spec.min_replicas),
            schedule.max_replicas.unwrap_or(spec.max_replicas),
        );
        if let Some(max) = schedule.max_replicas.filter(|max| *max < lowest) {
            warnings.push(format!("spec.schedules[{index}]: maxReplicas {max} is below minReplicas {lowest} of the spec, which it lowers unless another schedule does"));
        }
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
    let of_custom = spec.custom_metrics.iter().map(|metric| ("customMetrics", &metric.fallback));
    let of_resources = spec.resource_metrics.iter().map(|one| ("resourceMetrics", &one.fallback));
    for list in [of_resources.enumerate().collect::<Vec<_>>(), of_custom.enumerate().collect()] {
        for (index, (field, fallback)) in list {
            if let Some(replicas) =
                fallback.as_ref().map(|one| one.replicas).filter(|replicas| *replicas > most)
            {
                warnings.push(format!("spec.{field}[{index}].fallback.replicas: {replicas} is above maxReplicas {most}, which holds"));
            }
        }
    }
    if spec.executor == Executor::NativeHPA && spec.has_value_at_zero() {
        warnings.push("spec.executor: kube-controller-manager reads External metrics from external.metrics.k8s.io, which one adapter of the cluster serves: apiServices.external of the chart registers Plimsoll".to_owned());
    }
}

fn check_metric(
    path: &str,
    metric: &CustomMetric,
    namespace: &str,
    context: &Context<'_>,
    found: &mut Texts,
) {
    let Some(query) = &metric.query else { return };
    let queries = context.queries;
    let within = within_namespace(query, &queries.namespace_label, namespace, &queries.shared);
    if let Err(error) = within {
        found.errors.push(format!("{path}.query: {error}"));
        return;
    }
    let field = format!("{path}.query");
    found.warnings.extend(short_range(&field, query, context.scrape_interval));
}

#[cfg(test)]
mod tests {
    use super::super::check_files;

    fn checked(spec: &str) -> (Vec<String>, Vec<String>) {
        let found = check_files::tests::checked(&format!(
            "apiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\nmetadata: {{name: web, namespace: shop}}\n\
             spec: {{scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: web}}, {spec}}}\n"
        ));
        (found.texts.errors, found.texts.warnings)
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
                "minReplicas: 5, maxReplicas: 9, schedules: [{name: a, start: '0 8 * * *', end: '0 9 * * *', maxReplicas: 1}]",
                "spec.schedules[0]: maxReplicas 1 is below minReplicas 5",
            ),
            (
                "maxReplicas: 4, customMetrics: [{metricName: m, averageValue: 1, fallback: {replicas: 9}}]",
                "spec.customMetrics[0].fallback.replicas: 9 is above maxReplicas 4",
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
