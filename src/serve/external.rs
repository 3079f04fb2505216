//! `external.metrics.k8s.io`: metrics of systems outside the cluster, by rules.

use super::error::ApiError;
use super::options::label_selector;
use super::request::{ApiGroup, Version};
use super::server::Server;
use super::timestamp::timestamp;
use crate::rules::RuleQueryError;
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
    let values = server.rules.external(namespace, metric, &selector).await;
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
