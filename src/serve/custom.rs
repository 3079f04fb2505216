//! `custom.metrics.k8s.io`: metrics of objects in the cluster, by the names that
//! autoscalers publish and by rules.

use super::parameters::{label_selector, selected_name};
use super::request::{ApiGroup, ObjectTarget, Version};
use super::response::ApiError;
use super::router::Server;
use crate::hpa::UnixMillis;
use crate::k8s::Selector;
use crate::promql::name::GeneratedName;
use crate::promql::query::PodMetric;
use crate::rules::{Failure, ObjectValue, Which, pod_info};
use crate::samples::{MetricError, ObjectSample};
use crate::watch::{GroupResource, ResourceInfo};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

/// How long a request waits for a metric whose name is well-formed but that no
/// autoscaler is known to ask for: its autoscaler may have been created just now.
const NEW_AUTOSCALER: Duration = Duration::from_millis(500);

/// The query parameters of a request.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Parameters {
    /// Which objects, for `*`.
    label_selector: String,
    /// Which series of the metric.
    metric_label_selector: String,
    /// Which objects, by field: their name alone, as the path has it.
    field_selector: String,
}

/// Answers a request for a metric of one object, or of those a selector selects.
pub async fn objects(
    server: &Server,
    target: &ObjectTarget,
    parameters: &Parameters,
) -> Result<Value, ApiError> {
    let objects = label_selector(&parameters.label_selector)?;
    let series: Selector = parameters
        .metric_label_selector
        .parse()
        .map_err(|error| ApiError::broken_selector(format!("metricLabelSelector: {error}")))?;
    let by_field = parameters.field_selector.trim();
    if !by_field.is_empty() && selected_name(by_field) != Some(target.name.as_str()) {
        let message = "fieldSelector metadata.name doesn't match requested name";
        return Err(ApiError::bad_request(message));
    }
    let resource = GroupResource::parse(&target.resource);
    let (info, items) = match published(server, target, &resource, &series).await {
        Some(metric) => (pod_info(), of_pods(server, target, &objects, &metric).await?),
        None => by_rule(server, target, &resource, &objects, &series).await?,
    };
    let selector = match series.is_empty() {
        true => Value::Null,
        false => series.to_object().map_or(Value::Null, |object| json!(object)),
    };
    if let Some(oldest) = items.iter().map(|item| item.time).min() {
        let now = jiff::Timestamp::now().as_millisecond();
        let age = u64::try_from(now.saturating_sub(oldest)).unwrap_or(0);
        server.metrics.served(Duration::from_millis(age));
    }
    let items: Vec<Value> =
        items.iter().map(|item| value(target, &info, item, &selector)).collect();
    Ok(json!({
        "kind": "MetricValueList",
        "apiVersion": format!("{}/{}", ApiGroup::Custom.as_str(), target.version.as_str()),
        "metadata": {},
        "items": items,
    }))
}

fn not_found(target: &ObjectTarget) -> ApiError {
    let ObjectTarget { resource, metric, name, .. } = target;
    ApiError::not_found(match name.as_str() {
        "*" => format!("the server could not find the metric {metric} for {resource}"),
        name => format!("the server could not find the metric {metric} for {resource} {name}"),
    })
}

/// What a published name stands for; none where no autoscaler asks for it, or
/// where the request's own labels are not the ones of its name.
async fn published(
    server: &Server,
    target: &ObjectTarget,
    resource: &GroupResource,
    series: &Selector,
) -> Option<PodMetric> {
    let (namespace, name) = (target.namespace.as_str(), target.metric.as_str());
    if namespace.is_empty() || !matches!(resource.resource.as_str(), "pods" | "pod") {
        return None;
    }
    let look = || server.cluster.read(|index| index.published(namespace, name).cloned());
    let mut changes = server.cluster.watch_published();
    let mut found = look();
    if found.is_none() && well_formed(namespace, name, series) {
        let wait = async {
            while found.is_none() && changes.changed().await.is_ok() {
                found = look();
            }
        };
        let _ = tokio::time::timeout(NEW_AUTOSCALER, wait).await;
    }
    found.filter(|metric| {
        series.is_empty() || series.as_equalities().as_ref() == Some(&metric.labels)
    })
}

/// Whether a name is of the scheme, for this namespace and with the hash of
/// the labels that the request carries.
fn well_formed(namespace: &str, name: &str, series: &Selector) -> bool {
    let labels = series.as_equalities();
    GeneratedName::parse(name)
        .is_some_and(|name| name.namespace == namespace && name.is_of(labels.as_ref()))
}

async fn of_pods(
    server: &Server,
    target: &ObjectTarget,
    objects: &Selector,
    metric: &PodMetric,
) -> Result<Vec<ObjectValue>, ApiError> {
    let ObjectTarget { namespace, name, .. } = target;
    let queries = server.config.pod_queries();
    let samples = server
        .samples
        .pods(&queries, metric, namespace, true)
        .await
        .map_err(|error| failed(&target.metric, &error))?;
    let by_pod = samples.by_object();
    let item = |pod: &str| {
        let value =
            |ObjectSample { value, time }| ObjectValue { name: pod.to_owned(), value, time };
        by_pod.one(pod).map(|sample| sample.map(value)).transpose()
    };
    let (named, any) = (Some(name.as_str()).filter(|name| *name != "*"), Selector::default());
    // A selector is for `*` alone.
    let selector = if named.is_some() { &any } else { objects };
    let pods = server.rules.pods(Some(namespace), named, selector, false).await;
    let pods = pods.map_err(|failure| ApiError::unavailable(failure.to_string()))?;
    let items: Result<Vec<ObjectValue>, MetricError> =
        pods.keys().filter_map(|pod| item(&pod.name)).collect();
    let items = items.map_err(|error| failed(&target.metric, &error))?;
    if name != "*" && items.is_empty() {
        return Err(not_found(target));
    }
    Ok(items)
}

async fn by_rule(
    server: &Server,
    target: &ObjectTarget,
    resource: &GroupResource,
    objects: &Selector,
    series: &Selector,
) -> Result<(ResourceInfo, Vec<ObjectValue>), ApiError> {
    let which = match target.name.as_str() {
        "*" => Which::Selector(objects),
        name => Which::Name(name),
    };
    let (namespace, metric) = (target.namespace.as_str(), target.metric.as_str());
    let values = server.rules.objects(namespace, resource, which, metric, series, true).await;
    let found = values.map_err(|failure| match failure {
        // Which rule fails is for the log; clients know the metric as not there.
        Failure::Query(error) => {
            tracing::warn!(metric, error, "the query of a rule can't be made");
            ApiError::not_found(format!(
                "the server could not find the metric {metric} for {resource}"
            ))
        }
        Failure::NotFound => ApiError::not_found(format!(
            "the server could not find the metric {metric} for {}",
            target.resource
        )),
        Failure::NoValue => not_found(target),
        Failure::Unlistable(_) | Failure::Label(_) => ApiError::internal(format!(
            "Internal error occurred: unable to fetch metric {metric}: {failure}"
        )),
        Failure::Metric(error) => failed(metric, &error),
    })?;
    Ok((found.resource, found.values))
}

/// What a client is told of a metric that could not be fetched.
pub fn failed(metric: &str, error: &MetricError) -> ApiError {
    use crate::prometheus::Error;
    let message = format!("unable to fetch metric {metric}: {error}");
    match error {
        MetricError::Prometheus(
            Error::Timeout(_)
            | Error::Overloaded(_)
            | Error::Unreachable(_)
            | Error::Unavailable { .. },
        ) => ApiError::unavailable(message),
        _ => ApiError::internal(format!("Internal error occurred: {message}")),
    }
}

fn value(
    target: &ObjectTarget,
    info: &ResourceInfo,
    item: &ObjectValue,
    selector: &Value,
) -> Value {
    let mut described = json!({
        "kind": info.kind,
        // "/v1" is how every adapter so far has written the core group.
        "apiVersion": info.api_version(),
        "name": item.name,
    });
    if !target.namespace.is_empty() {
        described["namespace"] = target.namespace.as_str().into();
    }
    let mut value = json!({
        "describedObject": described,
        "timestamp": timestamp(item.time),
        "value": item.value.to_string(),
    });
    match target.version {
        Version::V1Beta1 => {
            value["metricName"] = target.metric.as_str().into();
            value["selector"] = selector.clone();
        }
        Version::V1Beta2 => {
            value["metric"] = json!({"name": target.metric, "selector": selector});
        }
    }
    value
}

/// A time as the API writes it, to the second.
pub fn timestamp(time: UnixMillis) -> String {
    Timestamp::from_second(time.div_euclid(1000)).unwrap_or_default().to_string()
}
