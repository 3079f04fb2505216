//! `plimsoll check -f`: what is invalid in an Autoscaler, and what is probably a mistake, without a cluster.

use super::check_context::{Context, Texts};
use super::check_rule::short_range;
use super::objects::name_fault;
use crate::config::Config;
use crate::crd::{AutoscalerSpec, CustomMetric, Executor};
use crate::hpa::{parse_group, schedule};
use crate::k8s::Quantity;
use crate::promql::guard::{names_another, within_namespace};
use crate::promql::name::metric_of;
use crate::promql::query::Per;
use crate::promql::result_label::{ResultLabel, result_label};
use crate::serve::ApiGroup;
use crate::watch::Workload;
use jiff::{SignedDuration, Timestamp};

/// The kinds of `apps` that have a scale.
const SCALED: [&str; 3] = ["Deployment", "ReplicaSet", "StatefulSet"];

/// Checks the spec of an Autoscaler in this namespace.
pub fn check(spec: &AutoscalerSpec, namespace: &str, context: &Context<'_>, found: &mut Texts) {
    let least = spec.schedules.iter().filter_map(|one| one.min_replicas).min();
    let least = least.map_or(spec.min_replicas, |least| least.min(spec.min_replicas));
    let most = spec.schedules.iter().filter_map(|one| one.max_replicas).max();
    let most = most.map_or(spec.max_replicas, |most| most.max(spec.max_replicas));
    for (index, metric) in spec.custom_metrics.iter().enumerate() {
        let path = format!("spec.customMetrics[{index}]");
        if metric.activation.is_some() && least > 0 {
            found
                .warnings
                .push(format!("{path}.activation: without minReplicas 0 it has no effect"));
        }
        check_metric(&path, metric, namespace, context, found);
    }
    let warnings = &mut found.warnings;
    if spec.metrics.iter().flatten().next().is_none()
        && spec.custom_metrics.is_empty()
        && spec.resource_metrics.is_empty()
    {
        warnings.push("spec: no metric, so that the target is 80 % of the CPU requests, as an HPA's default: name it in resourceMetrics, or others in customMetrics".to_owned());
    }
    check_names(spec, warnings);
    check_memory(spec, warnings);
    check_mode(spec, context, warnings);
    check_schedules(spec, context, warnings);
    let types = spec.metrics.iter().flatten().map(|metric| &*metric.type_);
    let mut of_pods = types.filter(|kind| matches!(*kind, "Resource" | "ContainerResource"));
    if least == 0 && (of_pods.next().is_some() || !spec.resource_metrics.is_empty()) {
        warnings.push("spec.minReplicas: 0 is not reached: CPU and memory keep a replica for as long as there is one".to_owned());
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
    check_fallbacks(spec, (least, most), warnings);
    if spec.executor == Executor::NativeHPA && spec.has_value_at_zero() {
        warnings.push("spec.executor: kube-controller-manager reads External metrics from external.metrics.k8s.io, which one adapter of the cluster serves: apiServices.external of the chart registers Plimsoll".to_owned());
    }
}

/// Names that nothing has.
fn check_names(spec: &AutoscalerSpec, warnings: &mut Vec<String>) {
    let target = &spec.scale_target_ref;
    let (kind, group) = (&*target.kind, target.api_version.as_deref().unwrap_or_default());
    if parse_group(group) == Ok("apps") && !SCALED.contains(&kind) {
        warnings.push(format!(
            "spec.scaleTargetRef.kind: {kind:?}: apps has no such kind with a scale: expected Deployment, ReplicaSet or StatefulSet"
        ));
    }
    let fault = name_fault(&target.name);
    warnings.extend(fault.map(|fault| format!("spec.scaleTargetRef.name: {fault}")));
    for Resource { path, name_field, name, .. } in resources(spec) {
        if !matches!(name, "cpu" | "memory") {
            let meant =
                ["cpu", "memory"].into_iter().find(|known| known.eq_ignore_ascii_case(name));
            let meant = meant.map_or_else(String::new, |known| format!("; did you mean {known}?"));
            let what = "usage metrics of pods exist for cpu and memory only";
            warnings.push(format!("{path}.{name_field}: {name:?}: {what}{meant}"));
        }
    }
}

/// A metric of a resource, and what its fields are called.
struct Resource<'a> {
    path: String,
    name_field: &'static str,
    name: &'a str,
    average_field: &'static str,
    average: Option<&'a str>,
}

fn resources(spec: &AutoscalerSpec) -> impl Iterator<Item = Resource<'_>> {
    let metrics = spec.metrics.iter().flatten().enumerate().filter_map(|(index, metric)| {
        let pods = metric.resource.as_ref().map(|pods| ("resource", &pods.name, &pods.target));
        let container = metric.container_resource.as_ref();
        let container =
            container.map(|container| ("containerResource", &container.name, &container.target));
        let (field, name, target) = pods.or(container)?;
        Some(Resource {
            path: format!("spec.metrics[{index}].{field}"),
            name_field: "name",
            name,
            average_field: "target.averageValue",
            average: target.average_value.as_ref().map(|average| &*average.0),
        })
    });
    let short = spec.resource_metrics.iter().enumerate().map(|(index, metric)| Resource {
        path: format!("spec.resourceMetrics[{index}]"),
        name_field: "resourceName",
        name: &metric.resource_name,
        average_field: "averageValue",
        average: metric.average_value.as_ref().map(|average| &*average.0),
    });
    metrics.chain(short)
}

/// The memory that each pod has at least, in bytes.
const LEAST_MEMORY: f64 = 1_048_576.0;

/// What is probably wrong with a target of so much memory per pod, such as `200m`, which is 0.2 bytes.
pub fn memory_fault(target: &str) -> Option<String> {
    let bytes = target.parse::<Quantity>().ok()?.as_f64();
    (bytes < LEAST_MEMORY).then(|| {
        let unit = if target.ends_with('m') { " (m is a thousandth)" } else { "" };
        format!("{target} is {bytes} bytes{unit}, and every pod uses more, so that the replicas go to their maximum: write 200Mi for mebibytes")
    })
}

fn check_memory(spec: &AutoscalerSpec, warnings: &mut Vec<String>) {
    for Resource { path, average_field, average, .. } in
        resources(spec).filter(|resource| resource.name == "memory")
    {
        let fault = average.and_then(memory_fault);
        warnings.extend(fault.map(|fault| format!("{path}.{average_field}: {fault}")));
    }
}

/// The metrics that no rule of a configuration gives. MetricRules beside the Autoscaler may, of pods and objects.
pub fn not_given(spec: &AutoscalerSpec, config: &Config, has_metric_rules: bool) -> Vec<String> {
    let mut warnings = Vec::new();
    for (index, metric) in spec.metrics.iter().flatten().enumerate() {
        let pods = metric.pods.as_ref().map(|pods| ("pods", &pods.metric.name));
        let object = metric.object.as_ref().map(|object| ("object", &object.metric.name));
        let external = metric.external.as_ref().map(|external| ("external", &external.metric.name));
        let (group, list, rules, or) = match external {
            Some(_) => (ApiGroup::External, "externalRules", &config.rules.external, ""),
            None => (ApiGroup::Custom, "rules", &config.rules.custom, " or a MetricRule"),
        };
        let is_elsewhere =
            config.forward.contains_key(&group) || (external.is_none() && has_metric_rules);
        let Some((field, name)) = pods.or(object).or(external).filter(|_| !is_elsewhere) else {
            continue;
        };
        // A generated name needs none.
        let is_generated = metric_of(name) != name;
        if !is_generated && !rules.iter().any(|rule| rule.may_give(name)) {
            warnings.push(format!("spec.metrics[{index}].{field}.metric.name: no rule of {list} gives {name:?}: add one{or}, or name the adapter that gives it in passOn"));
        }
    }
    warnings
}

/// What looks like a pause or a hold and is none.
fn check_mode(spec: &AutoscalerSpec, context: &Context<'_>, warnings: &mut Vec<String>) {
    if let Some(until) = spec.pause_that_is_over(spec.mode_at(context.now)) {
        warnings.push(format!(
            "spec.pause.until: {until} is over: with mode Paused, too, the scale is written"
        ));
    }
    if spec.has_pause_without_mode() {
        warnings.push("spec.pause: it pauses nothing without mode: Paused".to_owned());
    }
    let target = &spec.scale_target_ref;
    let group = parse_group(target.api_version.as_deref().unwrap_or_default());
    let is_seen = group.is_ok_and(|group| Workload::of(group, &target.kind).is_some());
    if spec.rollouts.is_some() && !is_seen {
        warnings.push(format!("spec.rollouts: those of a {} are not seen, only those of a Deployment or StatefulSet: it has no effect", target.kind));
    }
}

fn check_schedules(spec: &AutoscalerSpec, context: &Context<'_>, warnings: &mut Vec<String>) {
    let read = schedule::parse(&spec.schedules).unwrap_or_default();
    for (index, schedule) in spec.schedules.iter().enumerate() {
        let path = format!("spec.schedules[{index}]");
        let (lowest, highest) = (
            schedule.min_replicas.unwrap_or(spec.min_replicas),
            schedule.max_replicas.unwrap_or(spec.max_replicas),
        );
        if let Some(max) = schedule.max_replicas.filter(|max| *max < lowest) {
            warnings.push(format!("{path}: maxReplicas {max} is below minReplicas {lowest} of the spec, which it lowers unless another schedule does"));
        }
        if let Some(min) = schedule.min_replicas.filter(|min| *min > highest) {
            warnings.push(format!("{path}: minReplicas {min} is above maxReplicas {highest} of the spec, which holds unless another schedule raises it"));
        }
        let window = read.window(index, context.now);
        if let (None, Some(until)) = (window, &schedule.until) {
            warnings.push(format!(
                "{path}.until: {until} is over: the schedule has no effect any more"
            ));
        }
        let ramp = SignedDuration::from_millis(read.ramp_ms(index));
        if let Some(window) = window
            && let Some(end) = window.end_ms
            && let Ok(begin) = Timestamp::from_millisecond(window.begin_ms)
            && end - window.begin_ms < read.ramp_ms(index)
        {
            warnings.push(format!("{path}.ramp: {ramp:#} is longer than the window that begins at {begin}: its bounds are not reached"));
        }
    }
}

/// Fallbacks outside the bounds.
fn check_fallbacks(spec: &AutoscalerSpec, (least, most): (i32, i32), warnings: &mut Vec<String>) {
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
    let warnings = &mut found.warnings;
    warnings.extend(short_range(&field, query, context.scrape_interval));
    let label = &queries.pod_label;
    match (metric.per, result_label(query, label)) {
        (Per::Pod, Ok(ResultLabel::Never)) => warnings.push(format!("{field}: its result has no label {label}, by which pods have their values: aggregate by ({label}), or set per: Workload")),
        (Per::Workload, Ok(ResultLabel::AsSelected)) => warnings.push(format!("{field}: it gives a series for each pod, or whatever else there is a series of, and per: Workload fails where there are two: take their sum(...), or set per: Pod")),
        _ => {}
    }
    let another = names_another(query, &queries.namespace_label, namespace, &queries.shared);
    if let Some(another) = another.ok().flatten().filter(|_| !namespace.is_empty()) {
        warnings.push(format!("{field}: it selects {}={another:?}, and only series of {namespace} are read: they are none, unless podMetrics.sharedNamespaces of the server's configuration has it", queries.namespace_label));
    }
}

#[cfg(test)]
mod tests {
    use super::super::check_files::{self, tests::without_place};

    const CPU: &str = ", resourceMetrics: [{resourceName: cpu, averageUtilization: 60}]";

    fn checked(spec: &str) -> (Vec<String>, Vec<String>) {
        let has_metrics = spec.contains("etrics: ");
        let metrics = if has_metrics { "" } else { CPU };
        let found = check_files::tests::checked(&format!(
            "apiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\nmetadata: {{name: web, namespace: shop}}\n\
             spec: {{scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: web}}, {spec}{metrics}}}\n"
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
                without_place(&errors[0]).starts_with(expected) && warnings.is_empty(),
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
                "maxReplicas: 4, resourceMetrics: [{resourceName: memory, averageValue: 200m}]",
                "spec.resourceMetrics[0].averageValue: 200m is 0.2 bytes (m is a thousandth), and every pod uses more",
            ),
            (
                "maxReplicas: 4, metrics: [{type: Resource, resource: {name: memory, target: {type: AverageValue, averageValue: 500}}}]",
                "spec.metrics[0].resource.target.averageValue: 500 is 500 bytes, and",
            ),
            (
                "maxReplicas: 4, customMetrics: []",
                "spec: no metric, so that the target is 80 % of the CPU requests",
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
            (
                "maxReplicas: 4, mode: Paused, pause: {until: '2026-11-24T12:00:00Z'}",
                "spec.pause.until: 2026-11-24T12:00:00Z is over",
            ),
            (
                "maxReplicas: 4, pause: {reason: INC-7, until: '2027-01-01T00:00:00Z'}",
                "spec.pause: it pauses nothing without mode: Paused",
            ),
            (
                "minReplicas: 0, maxReplicas: 4, resourceMetrics: [{resourceName: cpu, averageUtilization: 60}], customMetrics: [{metricName: m, per: Workload, value: 1}]",
                "spec.minReplicas: 0 is not reached: CPU",
            ),
            (
                "minReplicas: 0, maxReplicas: 4, metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 60}}}], customMetrics: [{metricName: m, per: Workload, value: 1}]",
                "spec.minReplicas: 0 is not reached: CPU",
            ),
            (
                "maxReplicas: 4, customMetrics: [{metricName: m, per: Workload, value: 1, activation: 5}]",
                "spec.customMetrics[0].activation: without minReplicas 0",
            ),
            (
                "maxReplicas: 4, customMetrics: [{metricName: m, averageValue: 1, query: 'sum(rate(x[5m]))'}]",
                "spec.customMetrics[0].query: its result has no label pod",
            ),
            (
                "maxReplicas: 4, customMetrics: [{metricName: m, per: Workload, value: 1, query: 'jobs{queue=\"mail\"}'}]",
                "spec.customMetrics[0].query: it gives a series for each pod",
            ),
            (
                "maxReplicas: 4, customMetrics: [{metricName: m, per: Workload, value: 1, query: 'sum(x{namespace=\"other\"})'}]",
                "spec.customMetrics[0].query: it selects namespace=\"other\", and only series of shop",
            ),
            (
                "maxReplicas: 9, schedules: [{name: a, from: '2026-11-20T08:00:00Z', until: '2026-11-25T00:00:00Z', minReplicas: 5}]",
                "spec.schedules[0].until: 2026-11-25T00:00:00Z is over",
            ),
            (
                "maxReplicas: 9, schedules: [{name: a, start: '0 8 * * *', end: '0 18 * * *', minReplicas: 5, ramp: 12h}]",
                "spec.schedules[0].ramp: 12h is longer than the window that begins at 2026-11-25T08:00:00Z",
            ),
        ] {
            let (errors, warnings) = checked(spec);
            assert!(errors.is_empty(), "{errors:?}");
            assert!(warnings.len() == 1 && warnings[0].contains(expected), "{warnings:?}");
        }
        for spec in [
            "maxReplicas: 4",
            "maxReplicas: 4, resourceMetrics: [{resourceName: memory, averageValue: 200Mi}, {resourceName: cpu, averageValue: 200m}]",
            "maxReplicas: 4, customMetrics: [{metricName: m, per: Workload, value: 1, query: 'topk(1, queue_depth)'}]",
            "maxReplicas: 4, customMetrics: [{metricName: m, per: Workload, value: 1, query: 'job:queue_depth:sum'}]",
            "maxReplicas: 4, mode: Preview, pause: {reason: INC-7}",
            "maxReplicas: 4, rollouts: Cap, mode: Paused, pause: {until: '2026-11-25T00:00:01Z'}",
            "minReplicas: 0, maxReplicas: 4, customMetrics: [{metricName: m, per: Workload, value: 1, activation: 5, \
             query: 'sum(rate(x{namespace=\"shop\"}[5m]))'}]",
            "maxReplicas: 4, customMetrics: [{metricName: m, averageValue: 1, query: 'sum by (pod) (rate(x[5m]))'}]",
            "maxReplicas: 9, schedules: [{name: a, start: '0 8 * * *', end: '0 18 * * *', minReplicas: 5, ramp: 10h}]",
        ] {
            assert_eq!(checked(spec), (Vec::new(), Vec::new()), "{spec}");
        }
    }

    #[test]
    fn a_target_or_resource_that_nothing_is_called_is_a_warning() {
        let of = |target: &str, more: &str| {
            let found = check_files::tests::checked(&format!(
                "apiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\nmetadata: {{name: web, namespace: shop}}\n\
                 spec: {{scaleTargetRef: {{{target}}}, maxReplicas: 5{}}}\n",
                if more.is_empty() { CPU } else { more }
            ));
            assert_eq!(found.texts.errors, [""; 0]);
            found.texts.warnings
        };
        let web = "apiVersion: apps/v1, kind: Deployment, name: web";
        let metric = |kind: &str, field: &str, of: &str| {
            format!(
                ", metrics: [{{type: {kind}, {field}: {{{of}, target: {{type: Utilization, averageUtilization: 50}}}}}}]"
            )
        };
        for (target, more, expected) in [
            (
                "apiVersion: apps/v1, kind: Deploymnet, name: web",
                "",
                "spec.scaleTargetRef.kind: \"Deploymnet\": apps has no such kind with a scale: expected Deployment, ReplicaSet or StatefulSet",
            ),
            (
                "apiVersion: apps/v1, kind: DaemonSet, name: web",
                "",
                "spec.scaleTargetRef.kind: \"DaemonSet\"",
            ),
            (
                "apiVersion: apps/v1, kind: Deployment, name: a b",
                "",
                "spec.scaleTargetRef.name: \"a b\": expected lower-case letters, digits, '-' and '.'",
            ),
            (
                web,
                ", resourceMetrics: [{resourceName: CPU, averageUtilization: 50}]",
                "spec.resourceMetrics[0].resourceName: \"CPU\": usage metrics of pods exist for cpu and memory only; did you mean cpu?",
            ),
            (
                web,
                &*metric("Resource", "resource", "name: Memory"),
                "spec.metrics[0].resource.name: \"Memory\"",
            ),
            (
                web,
                &*metric(
                    "ContainerResource",
                    "containerResource",
                    "name: ephemeral-storage, container: a",
                ),
                "spec.metrics[0].containerResource.name: \"ephemeral-storage\"",
            ),
        ] {
            let warnings = of(target, more);
            assert!(warnings.len() == 1 && warnings[0].contains(expected), "{warnings:?}");
        }
        for target in [
            web,
            "apiVersion: apps/v1, kind: ReplicaSet, name: web-1.a",
            "apiVersion: v1, kind: ReplicationController, name: web",
            "apiVersion: argoproj.io/v1alpha1, kind: Rollout, name: web",
        ] {
            assert_eq!(
                of(target, &metric("Resource", "resource", "name: cpu")),
                [""; 0],
                "{target}"
            );
        }
    }

    #[test]
    fn rollouts_of_a_kind_that_is_not_watched_are_a_warning() {
        let found = check_files::tests::checked(
            "apiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\nmetadata: {name: web, namespace: shop}\n\
             spec: {scaleTargetRef: {apiVersion: argoproj.io/v1alpha1, kind: Rollout, name: web}, maxReplicas: 4, rollouts: Hold, \
             resourceMetrics: [{resourceName: cpu, averageUtilization: 60}]}\n",
        );
        let [warning] = &found.texts.warnings[..] else { panic!("{:?}", found.texts) };
        assert!(warning.contains("spec.rollouts: those of a Rollout are not seen"), "{warning}");
    }
}
