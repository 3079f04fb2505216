//! `custom.metrics.k8s.io`: the values of pods.

use super::CUSTOM_METRICS;
use super::request::Version;
use super::response::ApiError;
use super::router::Server;
use crate::k8s::Selector;
use crate::promql::query::PodMetric;
use crate::samples::{MetricError, PodSample};
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
}

/// Answers a request for a metric of one pod, or of those a selector selects.
pub async fn pods(
    server: &Server,
    version: Version,
    namespace: &str,
    name: &str,
    metric: &str,
    parameters: &Parameters,
) -> Result<Value, ApiError> {
    let parse = |field, text: &str| {
        text.parse::<Selector>().map_err(|error| ApiError::bad_request(format!("{field}: {error}")))
    };
    let pods = parse("labelSelector", &parameters.label_selector)?;
    let series = parse("metricLabelSelector", &parameters.metric_label_selector)?;

    let resolved = resolve(server, namespace, metric, &series).await.ok_or_else(|| {
        let of = if name == "*" { "pods".to_owned() } else { format!("pods {name}") };
        ApiError::not_found(format!("the server could not find the metric {metric} for {of}"))
    })?;
    let samples = server
        .samples
        .pods(&server.config.pod_queries, &resolved, namespace)
        .await
        .map_err(|error| failed(metric, &error))?;

    let item =
        |pod: &str, sample: &PodSample| value(version, namespace, pod, metric, sample, parameters);
    let items: Vec<Value> = server.cluster.read(|index| {
        if name == "*" {
            let selected = index.select(namespace, &pods).into_iter();
            selected.filter_map(|(pod, _)| Some(item(pod, samples.get(pod)?))).collect()
        } else {
            let known = index.pod(namespace, name).and_then(|_| samples.get(name));
            known.map(|sample| item(name, sample)).into_iter().collect()
        }
    });
    if name != "*" && items.is_empty() {
        return Err(ApiError::not_found(format!(
            "the server could not find the metric {metric} for pods {name}"
        )));
    }
    Ok(json!({
        "kind": "MetricValueList",
        "apiVersion": format!("{CUSTOM_METRICS}/{}", version.as_str()),
        "metadata": {},
        "items": items,
    }))
}

/// What a published name stands for; none where no autoscaler asks for it, or
/// where the request's own labels are not the ones of its name.
async fn resolve(
    server: &Server,
    namespace: &str,
    name: &str,
    series: &Selector,
) -> Option<PodMetric> {
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
    crate::promql::name::GeneratedName::parse(name)
        .is_some_and(|name| name.namespace == namespace && name.is_of(labels.as_ref()))
}

fn failed(metric: &str, error: &MetricError) -> ApiError {
    use crate::prometheus::Error;
    let message = format!("unable to fetch metric {metric}: {error}");
    match error {
        MetricError::Prometheus(
            Error::Timeout(_)
            | Error::Unreachable(_)
            | Error::Unavailable { .. }
            | Error::Answer(_),
        ) => ApiError::unavailable(message),
        _ => ApiError::internal(message),
    }
}

fn value(
    version: Version,
    namespace: &str,
    pod: &str,
    metric: &str,
    sample: &PodSample,
    parameters: &Parameters,
) -> Value {
    let time = Timestamp::from_second(sample.time.div_euclid(1000)).unwrap_or_default();
    let mut value = json!({
        // "/v1" is how every adapter so far has written the core group.
        "describedObject": {"kind": "Pod", "namespace": namespace, "name": pod, "apiVersion": "/v1"},
        "timestamp": time.to_string(),
        "value": sample.value.to_string(),
    });
    let selector = selector_object(&parameters.metric_label_selector);
    match version {
        Version::V1Beta1 => {
            value["metricName"] = metric.into();
            value["selector"] = selector;
        }
        Version::V1Beta2 => value["metric"] = json!({"name": metric, "selector": selector}),
    }
    value
}

/// The request's selector as an object, or null where it has none.
fn selector_object(text: &str) -> Value {
    let labels = text.parse::<Selector>().ok().and_then(|selector| selector.as_equalities());
    match labels {
        Some(labels) if !labels.is_empty() => json!({"matchLabels": labels}),
        _ => Value::Null,
    }
}
