//! `custom.metrics.k8s.io`: metrics of objects in the cluster, by generated names of autoscalers
//! and by rules.

use super::error::ApiError;
use super::generated;
use super::options::{label_selector, selected_name};
use super::request::{ApiGroup, ObjectMetricRequest, Version};
use super::server::Server;
use super::timestamp::timestamp;
use crate::clock::WallClock;
use crate::k8s::Selector;
use crate::promql::query::{Per, PrometheusMetric};
use crate::rules::{ObjectSelection, ObjectValue, RuleQueryError, pod_info};
use crate::samples::{MetricError, ObjectSample, Reader};
use crate::watch::{GroupResource, ResourceInfo};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

/// The query parameters of a request (`MetricListOptions`).
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MetricListOptions {
    /// Selects objects by label, for the name `*`.
    label_selector: String,
    /// Selects series of the metric by label.
    metric_label_selector: String,
    /// Selects objects by field. Only `metadata.name` of the path's object is supported.
    field_selector: String,
}

/// The values of a metric, of one object or of all that a selector matches.
///
/// # Errors
/// As a Kubernetes client expects them: 404 if there is no such metric or object.
pub async fn objects(
    server: &Server,
    request: &ObjectMetricRequest,
    options: &MetricListOptions,
) -> Result<Value, ApiError> {
    let objects = label_selector(&options.label_selector)?;
    let series: Selector = options.metric_label_selector.parse().map_err(|error| {
        ApiError::invalid_metric_selector(format!("metricLabelSelector: {error}"))
    })?;
    let by_field = options.field_selector.trim();
    if !by_field.is_empty() && selected_name(by_field) != Some(request.name.as_str()) {
        let message = "fieldSelector metadata.name doesn't match requested name";
        return Err(ApiError::bad_request(message));
    }
    let resource = GroupResource::parse(&request.resource);
    let published = match resource.resource.as_str() {
        "pods" | "pod" => {
            generated::published(server, &request.namespace, &request.metric, Per::Pod, &series)
                .await
        }
        _ => None,
    };
    let (info, items) = match published {
        Some(metric) => (pod_info(), pod_values(server, request, &objects, &metric).await?),
        None => rule_values(server, request, &resource, &objects, &series).await?,
    };
    let selector = match series.is_empty() {
        true => Value::Null,
        false => series.to_object().map_or(Value::Null, |object| json!(object)),
    };
    if let Some(oldest) = items.iter().map(|item| item.time).min() {
        let now = WallClock::default().timestamp().as_millisecond();
        let age = u64::try_from(now.saturating_sub(oldest)).unwrap_or(0);
        server.metrics.served(Duration::from_millis(age));
    }
    let items: Vec<Value> =
        items.iter().map(|item| value(request, &info, item, &selector)).collect();
    Ok(json!({
        "kind": "MetricValueList",
        "apiVersion": format!("{}/{}", ApiGroup::Custom.as_str(), request.version.as_str()),
        "metadata": {},
        "items": items,
    }))
}

fn not_found(request: &ObjectMetricRequest) -> ApiError {
    let ObjectMetricRequest { resource, metric, name, .. } = request;
    ApiError::not_found(match name.as_str() {
        "*" => format!("the server could not find the metric {metric} for {resource}"),
        name => format!("the server could not find the metric {metric} for {resource} {name}"),
    })
}

/// The values of a generated name.
async fn pod_values(
    server: &Server,
    request: &ObjectMetricRequest,
    objects: &Selector,
    metric: &PrometheusMetric,
) -> Result<Vec<ObjectValue>, ApiError> {
    let ObjectMetricRequest { namespace, name, .. } = request;
    let queries = server.pod_queries.load();
    let samples = server
        .samples
        .pods(&queries, metric, namespace, Reader::Client)
        .await
        .map_err(|error| ApiError::fetch_failed(&request.metric, &error))?;
    let by_pod = samples.by_object();
    let item = |pod: &str| {
        let value =
            |ObjectSample { value, time }| ObjectValue { name: pod.to_owned(), value, time };
        by_pod.one(pod).map(|sample| sample.map(value)).transpose()
    };
    let (named, any) = (Some(name.as_str()).filter(|name| *name != "*"), Selector::default());
    // The selector applies only to `*`.
    let selector = if named.is_some() { &any } else { objects };
    let pods = server.rules.pods(Some(namespace), named, selector, false).await;
    let pods = pods.map_err(|failure| ApiError::unavailable(failure.to_string()))?;
    let items: Result<Vec<ObjectValue>, MetricError> =
        pods.keys().filter_map(|pod| item(&pod.name)).collect();
    let items = items.map_err(|error| ApiError::fetch_failed(&request.metric, &error))?;
    if name != "*" && items.is_empty() {
        return Err(not_found(request));
    }
    Ok(items)
}

/// The values of a rule's metric.
async fn rule_values(
    server: &Server,
    request: &ObjectMetricRequest,
    resource: &GroupResource,
    objects: &Selector,
    series: &Selector,
) -> Result<(ResourceInfo, Vec<ObjectValue>), ApiError> {
    let which = match request.name.as_str() {
        "*" => ObjectSelection::Selector(objects),
        name => ObjectSelection::Name(name),
    };
    let (namespace, metric) = (request.namespace.as_str(), request.metric.as_str());
    let values =
        server.rules.objects(namespace, resource, which, metric, series, Reader::Client).await;
    let found = values.map_err(|failure| match failure {
        // The failing rule is only logged; for clients, there is no such metric.
        RuleQueryError::Query(error) => {
            tracing::warn!(metric, error, "Failed to render the query of a rule");
            ApiError::not_found(format!(
                "the server could not find the metric {metric} for {resource}"
            ))
        }
        RuleQueryError::NotFound => ApiError::not_found(format!(
            "the server could not find the metric {metric} for {}",
            request.resource
        )),
        RuleQueryError::NotListed => {
            ApiError::unavailable(format!("unable to fetch metric {metric}: {failure}"))
        }
        RuleQueryError::NoValue => not_found(request),
        RuleQueryError::Unlistable(_) | RuleQueryError::Label(_) => ApiError::internal(format!(
            "Internal error occurred: unable to fetch metric {metric}: {failure}"
        )),
        RuleQueryError::Metric(error) => ApiError::fetch_failed(metric, &error),
    })?;
    Ok((found.resource, found.values))
}

fn value(
    request: &ObjectMetricRequest,
    info: &ResourceInfo,
    item: &ObjectValue,
    selector: &Value,
) -> Value {
    let mut described = json!({
        "kind": info.kind,
        // "/v1": all adapters write the core group like this.
        "apiVersion": info.api_version(),
        "name": item.name,
    });
    if !request.namespace.is_empty() {
        described["namespace"] = request.namespace.as_str().into();
    }
    let mut value = json!({
        "describedObject": described,
        "timestamp": timestamp(item.time),
        "value": item.value.to_string(),
    });
    match request.version {
        Version::V1Beta1 | Version::V1Alpha1 => {
            value["metricName"] = request.metric.as_str().into();
            value["selector"] = selector.clone();
        }
        Version::V1Beta2 => {
            value["metric"] = json!({"name": request.metric, "selector": selector});
        }
    }
    value
}
