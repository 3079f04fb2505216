//! `external.metrics.k8s.io`: metrics of what is outside the cluster, by rules.

use super::custom::{failed, timestamp};
use super::parameters::label_selector;
use super::request::{ApiGroup, Version};
use super::response::ApiError;
use super::router::Server;
use crate::rules::Failure;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The query parameters of a request.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Parameters {
    /// Which series of the metric.
    label_selector: String,
}

/// Answers a request for an external metric.
pub async fn values(
    server: &Server,
    namespace: &str,
    metric: &str,
    parameters: &Parameters,
) -> Result<Value, ApiError> {
    let selector = label_selector(&parameters.label_selector)?;
    let values = server.rules.external(namespace, metric, &selector).await;
    let values = values.map_err(|failure| match failure {
        Failure::NotFound | Failure::NoValue => {
            // Source: `selectGroupResource` of prometheus-adapter.
            let of = if namespace == "default" { "namespaces" } else { "" };
            ApiError::not_found(format!("the server could not find the metric {metric} for {of}"))
        }
        Failure::Metric(error) => failed(metric, &error),
        failure => ApiError::internal(format!(
            "Internal error occurred: unable to fetch metric {metric}: {failure}"
        )),
    })?;
    let items = values.iter().map(|sampled| {
        let labels: Map<String, Value> =
            sampled.labels().map(|(label, value)| (label.to_owned(), value.into())).collect();
        json!({
            "metricName": metric,
            "metricLabels": if sampled.is_scalar() { Value::Null } else { labels.into() },
            "timestamp": timestamp(sampled.time()),
            "value": sampled.value().to_string(),
        })
    });
    Ok(json!({
        "kind": "ExternalMetricValueList",
        "apiVersion": format!("{}/{}", ApiGroup::External.as_str(), Version::V1Beta1.as_str()),
        "metadata": {},
        "items": items.collect::<Vec<_>>(),
    }))
}
