//! `custom.metrics.k8s.io`: metrics of objects in the cluster, by generated names of autoscalers
//! and by rules.

use super::encode::ResponseContent;
use super::error::ApiError;
use super::generated;
use super::options::{label_selector, selected_name};
use super::request::{ApiGroup, ObjectMetricRequest, Version};
use super::server::Server;
use super::timestamp::timestamp;
use crate::clock::WallClock;
use crate::k8s::{Quantity, Selector};
use crate::promql::query::{Per, PrometheusMetric};
use crate::rules::{ObjectSelection, ObjectValue, RuleQueryError, pod_info};
use crate::samples::{MetricError, ObjectSample, Reader};
use crate::watch::{GroupResource, ResourceInfo};
use jiff::Timestamp;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};
use std::fmt::Display;
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
) -> Result<ResponseContent, ApiError> {
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
    let (api_version, of) = (info.api_version(), DescribedObjects { request, info: &info });
    let list = MetricValueList {
        api_version: format!("{}/{}", ApiGroup::Custom.as_str(), request.version.as_str()),
        items: items.iter().map(|item| of.value(&api_version, item, &selector)).collect(),
        kind: "MetricValueList",
        metadata: Empty {},
    };
    Ok(ResponseContent::Json(serde_json::to_vec(&list).expect("it can be encoded as JSON")))
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

/// The response of either version. Fields are in the order of their names, as in all JSON of this server.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MetricValueList<'a> {
    api_version: String,
    items: Vec<MetricValue<'a>>,
    kind: &'static str,
    metadata: Empty,
}

#[derive(Serialize)]
struct Empty {}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MetricValue<'a> {
    described_object: DescribedObject<'a>,
    /// Of `v1beta2`.
    #[serde(skip_serializing_if = "Option::is_none")]
    metric: Option<MetricIdentifier<'a>>,
    /// Of `v1beta1`, as the selector.
    #[serde(skip_serializing_if = "Option::is_none")]
    metric_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    selector: Option<&'a Value>,
    #[serde(serialize_with = "as_text")]
    timestamp: Timestamp,
    #[serde(serialize_with = "as_text")]
    value: Quantity,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DescribedObject<'a> {
    api_version: &'a str,
    kind: &'a str,
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
}

#[derive(Serialize)]
struct MetricIdentifier<'a> {
    name: &'a str,
    selector: &'a Value,
}

fn as_text<S: Serializer>(value: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// The objects that the values of a response are of.
#[derive(Clone, Copy)]
struct DescribedObjects<'a> {
    request: &'a ObjectMetricRequest,
    info: &'a ResourceInfo,
}

impl<'a> DescribedObjects<'a> {
    /// The value of one of them. `api_version` is theirs: `/v1` for the core group, as all adapters write it.
    fn value(
        self,
        api_version: &'a str,
        item: &'a ObjectValue,
        selector: &'a Value,
    ) -> MetricValue<'a> {
        let Self { request, info } = self;
        let (name, is_v1beta2) = (request.metric.as_str(), request.version == Version::V1Beta2);
        MetricValue {
            described_object: DescribedObject {
                api_version,
                kind: &info.kind,
                name: &item.name,
                namespace: &request.namespace,
            },
            metric: is_v1beta2.then_some(MetricIdentifier { name, selector }),
            metric_name: (!is_v1beta2).then_some(name),
            selector: (!is_v1beta2).then_some(selector),
            timestamp: timestamp(item.time),
            value: item.value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_has_its_form_of_a_value() {
        let item = ObjectValue {
            name: "web-1".to_owned(),
            value: "1500m".parse().unwrap(),
            time: 1_764_000_000_999,
        };
        let selector = json!({"matchLabels": {"code": "200"}});
        for (version, namespace, selector, expected) in [
            (
                Version::V1Beta2,
                "shop",
                &Value::Null,
                r#"{"describedObject":{"apiVersion":"/v1","kind":"Pod","name":"web-1","namespace":"shop"},"metric":{"name":"load","selector":null},"timestamp":"2025-11-24T16:00:00Z","value":"1500m"}"#,
            ),
            (
                Version::V1Beta1,
                "",
                &selector,
                r#"{"describedObject":{"apiVersion":"/v1","kind":"Pod","name":"web-1"},"metricName":"load","selector":{"matchLabels":{"code":"200"}},"timestamp":"2025-11-24T16:00:00Z","value":"1500m"}"#,
            ),
        ] {
            let request = ObjectMetricRequest {
                version,
                namespace: namespace.to_owned(),
                resource: "pods".to_owned(),
                name: "*".to_owned(),
                metric: "load".to_owned(),
                of_namespace: false,
            };
            let info = pod_info();
            let of = DescribedObjects { request: &request, info: &info };
            let api_version = info.api_version();
            let value = of.value(&api_version, &item, selector);
            assert_eq!(serde_json::to_string(&value).unwrap(), expected);
        }
    }
}
