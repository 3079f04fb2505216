//! `external.metrics.k8s.io`: metrics of systems outside the cluster by rules, and totals of workloads
//! by generated names of autoscalers.

use super::error::ApiError;
use super::generated;
use super::options::label_selector;
use super::request::{ApiGroup, Version};
use super::server::Server;
use super::timestamp::timestamp;
use crate::k8s::Quantity;
use crate::promql::query::{Per, PrometheusMetric};
use crate::rules::RuleQueryError;
use crate::samples::Reader;
use crate::time::UnixMillis;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The query parameters of a request.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExternalMetricOptions {
    /// Selects series of the metric by label.
    label_selector: String,
}

/// The values of an external metric.
///
/// # Errors
/// 404 if there is no such metric, or none of its series match.
pub async fn values(
    server: &Server,
    namespace: &str,
    metric: &str,
    options: &ExternalMetricOptions,
) -> Result<Value, ApiError> {
    let selector = label_selector(&options.label_selector)?;
    if let Some(total) =
        generated::published(server, namespace, metric, Per::Workload, &selector).await
    {
        return total_value(server, namespace, metric, &total).await;
    }
    let values = server.rules.external(namespace, metric, &selector, Reader::Client).await;
    let values = values.map_err(|failure| match failure {
        RuleQueryError::NotFound | RuleQueryError::NoValue => {
            // Source: `selectGroupResource` of prometheus-adapter.
            let resource = if namespace == "default" { "namespaces" } else { "" };
            ApiError::not_found(format!(
                "the server could not find the metric {metric} for {resource}"
            ))
        }
        RuleQueryError::Metric(error) => ApiError::fetch_failed(metric, &error),
        failure => ApiError::internal(format!(
            "Internal error occurred: unable to fetch metric {metric}: {failure}"
        )),
    })?;
    let items = values.iter().map(|sampled| {
        let labels: Map<String, Value> =
            sampled.labels().map(|(label, value)| (label.to_owned(), value.into())).collect();
        let labels = if sampled.is_scalar() { Value::Null } else { labels.into() };
        item(metric, labels, sampled.time(), sampled.value())
    });
    Ok(list(items.collect()))
}

/// The value of a metric of a workload; an empty list if its query gives no series.
async fn total_value(
    server: &Server,
    namespace: &str,
    name: &str,
    metric: &PrometheusMetric,
) -> Result<Value, ApiError> {
    let queries = server.pod_queries.load();
    let total = server.samples.total(&queries, metric, namespace, Reader::Client).await;
    let total = total.map_err(|error| ApiError::fetch_failed(name, &error))?;
    let labels = || json!(metric.labels);
    let items = total.sample.map(|sample| item(name, labels(), sample.time, sample.value));
    Ok(list(items.into_iter().collect()))
}

fn item(metric: &str, labels: Value, time: UnixMillis, value: Quantity) -> Value {
    json!({
        "metricName": metric,
        "metricLabels": labels,
        "timestamp": timestamp(time).to_string(),
        "value": value.to_string(),
    })
}

fn list(items: Vec<Value>) -> Value {
    json!({
        "kind": "ExternalMetricValueList",
        "apiVersion": format!("{}/{}", ApiGroup::External.as_str(), Version::V1Beta1.as_str()),
        "metadata": {},
        "items": items,
    })
}
