//! Conversion of API objects to the records of the index.

use super::lean::Lean;
use super::pods::{Owner, PodRecord};
use super::records::{AutoscalerRecord, HpaRecord, ParsedSpec, ScalingSpec};
use crate::crd::{
    AutoscalerSpec, AutoscalerStatus, CustomMetric, ReadError, ResourceMetric, ScheduleStatus,
    ScheduleWindow, WarmUp,
};
use crate::hpa::schedule;
use crate::hpa::{
    MetricOptions, MetricSource, Phase, PodContainer, Ready, Requests, ResourceList, Spec, Status,
};
use crate::k8s::Quantity;
use crate::promql::name::GeneratedName;
use crate::promql::query::{Per, PrometheusMetric};
use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscalerSpec, HorizontalPodAutoscalerStatus,
};
use k8s_openapi::api::core::v1::PodCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A pod with only the fields that are used.
pub type LeanPod = Lean<LeanPodSpec, LeanPodStatus>;

/// A pod's spec with only the fields that are used.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeanPodSpec {
    containers: Vec<LeanContainer>,
    init_containers: Vec<LeanContainer>,
    overhead: BTreeMap<String, Value>,
    resources: LeanResources,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LeanContainer {
    name: String,
    restart_policy: Option<String>,
    resources: LeanResources,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct LeanResources {
    requests: BTreeMap<String, Value>,
}

/// A pod's status with only the fields that are used.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeanPodStatus {
    phase: Option<String>,
    start_time: Option<Time>,
    conditions: Vec<PodCondition>,
}

/// The quantities of a list. A quantity that can't be parsed is left out.
fn resource_list(list: &BTreeMap<String, Value>) -> ResourceList {
    let quantity = |value: &Value| match value {
        Value::String(text) => text.parse::<Quantity>().ok(),
        other => other.to_string().parse().ok(),
    };
    list.iter().filter_map(|(name, value)| Some((name.clone(), quantity(value)?))).collect()
}

/// The record of a pod.
pub fn pod(pod: LeanPod) -> PodRecord {
    let container = |container: &LeanContainer| PodContainer {
        name: container.name.clone(),
        requests: resource_list(&container.resources.requests),
    };
    let sidecar = |c: &LeanContainer| c.restart_policy.as_deref() == Some("Always");
    let status = pod.status;
    let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready");
    PodRecord {
        labels: Arc::new(pod.metadata.labels.unwrap_or_default().into()),
        phase: Phase::from_api(status.phase.as_deref()),
        deleting: pod.metadata.deletion_timestamp.is_some(),
        start: status.start_time.map(|time| time.0.as_millisecond()),
        ready: ready.map(|condition| Ready {
            status: match condition.status.as_str() {
                "True" => Some(true),
                "False" => Some(false),
                _ => None,
            },
            since: condition.last_transition_time.as_ref().map_or(0, |t| t.0.as_millisecond()),
        }),
        requests: Arc::new(Requests::new(
            pod.spec.containers.iter().map(container).collect(),
            pod.spec.init_containers.iter().map(|c| (container(c), sidecar(c))).collect(),
            &resource_list(&pod.spec.resources.requests),
            &resource_list(&pod.spec.overhead),
        )),
        owner: Owner::controller(pod.metadata.owner_references.as_deref()).map(Arc::new),
    }
}

/// An Autoscaler as it was written, whose spec may not be valid.
pub type LeanAutoscaler = Lean<Value, Value>;

/// A native HorizontalPodAutoscaler.
pub type LeanHpa = Lean<HorizontalPodAutoscalerSpec, HorizontalPodAutoscalerStatus>;

/// The record of an Autoscaler. The parsed spec of the known record is reused if the generation
/// is the same: most events change only the status.
pub fn autoscaler(object: LeanAutoscaler, known: Option<&AutoscalerRecord>) -> AutoscalerRecord {
    let ObjectMeta { name, namespace, uid, generation, .. } = object.metadata;
    let schedule = ScheduleStatus::deserialize(&object.status["schedule"]).ok();
    let digest = AutoscalerStatus::deserialize(&object.status).unwrap_or_default().digest();
    let status: Option<HorizontalPodAutoscalerStatus> = serde_json::from_value(object.status).ok();
    let [name, namespace] = [name, namespace].map(Option::unwrap_or_default);
    let uid = uid.unwrap_or_default();
    let known = known
        .filter(|known| known.uid == uid && generation.is_some() && known.generation == generation);
    AutoscalerRecord {
        parsed: match known {
            Some(known) => known.parsed.clone(),
            None => parse_spec(object.spec, &namespace, &name).map(ParsedSpec::kept),
        },
        uid,
        generation,
        status: status.as_ref().map(Status::from_api).unwrap_or_default(),
        digest,
        windows: schedule.map(|schedule| {
            let window =
                |window: ScheduleWindow| Some((window.name, window.since?.0.as_millisecond()));
            schedule.active.into_iter().filter_map(window).collect()
        }),
    }
}

/// Parses the spec of an Autoscaler.
///
/// # Errors
/// If it is invalid; the text names the field.
pub fn parse_spec(spec: Value, namespace: &str, name: &str) -> Result<ParsedSpec, ReadError> {
    let spec = AutoscalerSpec::read(spec)?;
    let mut scaling = scaling_spec(Spec::from_api(&spec.as_hpa(namespace, name)), namespace);
    let prometheus_metrics = &mut scaling.prometheus_metrics;
    // The last metrics are those of `customMetrics`, which say more than a generated name.
    let first = prometheus_metrics.len().saturating_sub(spec.custom_metrics.len());
    for (prometheus_metric, metric) in
        prometheus_metrics[first..].iter_mut().zip(&spec.custom_metrics)
    {
        *prometheus_metric = Some(metric.prometheus_metric().into());
    }
    let in_short = spec.resource_metrics.iter().map(ResourceMetric::options);
    let options = in_short.chain(spec.custom_metrics.iter().map(CustomMetric::options));
    let first = first.saturating_sub(spec.resource_metrics.len());
    let options = options.enumerate().map(|(index, options)| (first + index, options));
    scaling.spec.set_options(options.filter(|(_, options)| *options != MetricOptions::default()));
    scaling.spec.warm_up = spec.warm_up.as_ref().map(WarmUp::read).unwrap_or_default();
    scaling.spec.schedules = schedule::parse(&spec.schedules).unwrap_or_default();
    Ok(ParsedSpec { spec, scaling })
}

fn scaling_spec(spec: Spec, namespace: &str) -> ScalingSpec {
    let prometheus_metric =
        |metric: &crate::hpa::Metric| by_generated_name(&metric.source, namespace).map(Arc::new);
    ScalingSpec { prometheus_metrics: spec.metrics.iter().map(prometheus_metric).collect(), spec }
}

/// The metric of a generated name, if the name has the hash of the selector's labels and
/// this namespace: of the pods. A total is never asked for by its name alone, because an External metric
/// of such a name may be a rule's.
fn by_generated_name(source: &MetricSource, namespace: &str) -> Option<PrometheusMetric> {
    let MetricSource::Pods { metric, .. } = source else { return None };
    let selector = metric.selector.as_ref();
    if selector.is_some_and(|s| s.expressions.as_ref().is_some_and(|e| !e.is_empty())) {
        return None;
    }
    let labels = selector.and_then(|selector| selector.labels.clone());
    let name = GeneratedName::parse(&metric.name)?;
    (name.namespace == namespace && name.is_of(labels.as_ref())).then(|| PrometheusMetric {
        metric: name.metric.to_owned(),
        per: Per::Pod,
        labels: labels.unwrap_or_default(),
        query: None,
    })
}

/// The UID of the Autoscaler that owns an object, if any.
pub fn owner(metadata: &ObjectMeta) -> Option<String> {
    let owners = metadata.owner_references.iter().flatten();
    let owner = owners
        .into_iter()
        .find(|owner| owner.kind == "Autoscaler" && owner.api_version.starts_with("plimsoll.dev/"));
    owner.map(|owner| owner.uid.clone())
}

/// The record of a native HorizontalPodAutoscaler.
pub fn hpa(hpa: LeanHpa) -> HpaRecord {
    let owner = owner(&hpa.metadata);
    let namespace = hpa.metadata.namespace.unwrap_or_default();
    HpaRecord {
        uid: hpa.metadata.uid.unwrap_or_default(),
        version: hpa.metadata.resource_version,
        scaling: scaling_spec(Spec::from_api(&hpa.spec), &namespace),
        owner,
        status: hpa.status,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hpa::OnError;
    use crate::k8s::LabelSet;
    use crate::promql::name::generated_name;
    use serde_json::json;

    fn native(metric: &str, labels: Value) -> HpaRecord {
        hpa(serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "web"},
                "metrics": [{"type": "Pods", "pods": {
                    "metric": {"name": metric, "selector": {"matchLabels": labels}},
                    "target": {"type": "AverageValue", "averageValue": "5"}}}]}
        }))
        .unwrap())
    }

    fn pod_of(object: Value) -> PodRecord {
        pod(serde_json::from_value(object).expect("a pod"))
    }

    #[test]
    fn a_pod_is_being_deleted_from_the_time_of_the_request() {
        let pod = |metadata: Value| pod_of(json!({"metadata": metadata, "spec": {}}));
        assert!(!pod(json!({"name": "web-0"})).deleting);
        let time = "2026-01-01T00:00:30Z";
        let deleted = json!({"name": "web-0", "deletionTimestamp": time,
            "deletionGracePeriodSeconds": 30});
        assert!(pod(deleted).deleting);
    }

    #[test]
    fn an_init_container_that_restarts_always_is_a_sidecar() {
        let request = |cpu: &str| json!({"requests": {"cpu": cpu}});
        let pod = pod_of(json!({"metadata": {"name": "web-0"}, "spec": {
            "containers": [{"name": "app", "resources": request("100m")}],
            "initContainers": [
                {"name": "migrate", "resources": request("2")},
                {"name": "on-failure", "restartPolicy": "OnFailure", "resources": request("4")},
                {"name": "proxy", "restartPolicy": "Always", "resources": request("30m")}]}}));
        assert_eq!(pod.requests.milli("cpu", None, "web-0"), Ok(130));
    }

    #[test]
    fn a_pods_own_requests_and_its_overhead_are_read() {
        let request = |cpu: &str| json!({"requests": {"cpu": cpu}});
        let pod = pod_of(json!({"metadata": {"name": "web-0"}, "spec": {
            "containers": [{"name": "app", "resources": request("100m")}],
            "resources": request("1"), "overhead": {"cpu": "250m"}}}));
        assert_eq!(pod.requests.milli("cpu", None, "web-0"), Ok(1250));
    }

    #[test]
    fn readiness_and_the_start_of_a_pod_are_read() {
        let time = "2026-01-01T00:00:30Z";
        let since = 1_767_225_630_000;
        for (status, expected) in [("True", Some(true)), ("False", Some(false)), ("?", None)] {
            let pod = pod_of(json!({"metadata": {"name": "web-0"}, "spec": {}, "status": {
                "phase": "Running", "startTime": time, "conditions": [
                    {"type": "Initialized", "status": "True"},
                    {"type": "Ready", "status": status, "lastTransitionTime": time}]}}));
            assert_eq!((pod.phase, pod.start), (Phase::Running, Some(since)));
            assert_eq!(pod.ready, Some(Ready { status: expected, since }));
        }
    }

    #[test]
    fn a_native_hpa_publishes_a_generated_name_only_with_its_own_labels_and_namespace() {
        let labels = LabelSet::from([("view".to_owned(), "default".to_owned())]);
        let name = generated_name("qps", Some(&labels), "shop", "web");
        let record = native(&name, json!(labels));
        let metric = PrometheusMetric {
            metric: "qps".to_owned(),
            per: Per::Pod,
            labels: labels.clone(),
            query: None,
        };
        assert_eq!(record.scaling.prometheus_metrics, [Some(Arc::new(metric))]);
        let elsewhere = generated_name("qps", Some(&labels), "bank", "web");
        for (name, labels) in [
            (name.as_str(), json!({"view": "other"})),
            (&name, Value::Null),
            (&elsewhere, json!(labels)),
            ("qps", Value::Null),
        ] {
            assert_eq!(native(name, labels).scaling.prometheus_metrics, [None], "{name}");
        }
    }

    #[test]
    fn an_autoscaler_keeps_its_custom_metrics_beside_its_others() {
        let object: LeanAutoscaler = serde_json::from_value(json!({
            "apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler",
            "metadata": {"name": "web", "namespace": "shop", "uid": "u", "generation": 2},
            "spec": {"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "metrics": [{"type": "Resource", "resource": {"name": "cpu",
                    "target": {"type": "Utilization", "averageUtilization": 60}}}],
                "customMetrics": [{"metricName": "m", "averageValue": "5", "query": "q"}]},
            "status": {"desiredReplicas": 2, "conditions": [
                {"type": "AbleToScale", "status": "True", "reason": "r", "message": "m"}]}
        }))
        .unwrap();
        let record = autoscaler(object.clone(), None);
        assert_eq!(record.status.desired_replicas, 2);
        assert_eq!(record.status.conditions.len(), 1);
        let parsed = record.parsed.unwrap();
        let prometheus_metrics = &parsed.scaling.prometheus_metrics;
        assert!(prometheus_metrics[0].is_none());
        assert_eq!(prometheus_metrics[1].as_ref().unwrap().query.as_deref(), Some("q"));
    }

    #[test]
    fn what_is_said_of_a_metric_in_short_is_said_of_that_one() {
        let spec = json!({"maxReplicas": 3,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "metrics": [{"type": "External", "external": {"metric": {"name": "queue"},
                "target": {"type": "Value", "value": "1"}}}],
            "resourceMetrics": [{"resourceName": "cpu", "averageValue": 1, "onError": "Ignore"}],
            "customMetrics": [{"metricName": "m", "averageValue": 1, "onError": "Hold"}]});
        let parsed = parse_spec(spec, "shop", "web").expect("a spec");
        let said = parsed.scaling.spec.metrics.iter().map(|metric| metric.options.on_error);
        let expected = [None, Some(OnError::Ignore), Some(OnError::Hold)];
        assert_eq!(said.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_example_of_the_design_document_is_read_as_it_means() {
        let text = include_str!("../../docs/examples/design-document.yaml");
        let object: LeanAutoscaler = serde_saphyr::from_str(text).expect("an object");
        let parsed = parse_spec(object.spec, "shop", "server").expect("a spec");
        let hpa = parsed.spec.as_hpa("shop", "server");
        let target = |kind: &str| json!({"type": kind});
        let with = |mut value: Value, field: &str, to: Value| {
            value[field] = to;
            value
        };
        let [utilization, average] = ["Utilization", "AverageValue"].map(target);
        assert_eq!(
            json!(hpa.metrics),
            json!([
                {"type": "Resource", "resource": {"name": "cpu",
                    "target": with(utilization, "averageUtilization", json!(50))}},
                {"type": "Resource", "resource": {"name": "memory",
                    "target": with(average.clone(), "averageValue", json!("200Mi"))}},
                {"type": "Pods", "pods": {
                    "metric": {"name": "requests_in_flight_820193bd2d60_shop_server",
                        "selector": {"matchLabels": {"module": "server", "view": "default"}}},
                    "target": with(average, "averageValue", json!("10"))}}])
        );
        let mut queries =
            crate::promql::query::PodQueries::clone(&crate::config::Config::default().pod_queries);
        queries.pod_label = "kubernetes_pod_name".to_owned();
        queries.namespace_label = "kubernetes_namespace".to_owned();
        let metric = parsed.scaling.prometheus_metrics[2].as_ref().expect("a metric");
        let gauge = crate::promql::query::MetricType::Gauge;
        assert_eq!(
            &*queries.query(metric, gauge, "shop").expect("a query").values,
            r#"sum by (kubernetes_namespace,kubernetes_pod_name) (requests_in_flight{kubernetes_namespace="shop",kubernetes_pod_name!="",module="server",view="default"})"#
        );
    }

    #[test]
    fn a_change_of_only_the_status_does_not_parse_the_spec_again() {
        let object = |generation: i64, max: i64| -> LeanAutoscaler {
            serde_json::from_value(json!({
                "metadata": {"name": "web", "namespace": "shop", "uid": "u", "generation": generation},
                "spec": {"maxReplicas": max, "scaleTargetRef": {
                    "apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}},
            }))
            .unwrap()
        };
        let known = autoscaler(object(1, 3), None);
        let max = |record: &AutoscalerRecord| record.parsed.as_ref().unwrap().spec.max_replicas;
        let same = autoscaler(object(1, 3), Some(&known));
        assert!(Arc::ptr_eq(known.parsed.as_ref().unwrap(), same.parsed.as_ref().unwrap()));
        assert_eq!(max(&autoscaler(object(2, 4), Some(&known))), 4);
    }

    #[test]
    fn a_pod_is_read_with_only_what_is_used() {
        let lean: LeanPod = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": "i",
                "resources": {"requests": {"cpu": "250m"}}}]},
            "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z", "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"}]}
        }))
        .unwrap();
        let record = pod(lean);
        assert_eq!(record.requests.milli("cpu", None, "a"), Ok(250));
        assert_eq!(record.ready.unwrap().status, Some(true));
        assert_eq!(record.ready.unwrap().since - record.start.unwrap(), 1000);
    }
}
