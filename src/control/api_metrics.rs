//! Metrics of other providers, read through the API server.

use super::fetched::{Fetched, NO_SELECTOR, is_of_pods};
use super::requests::{message, within};
use super::targets::Targets;
use crate::hpa::{Metric, MetricSource, ObjectRef, Sample, parse_group, resource_usage};
use crate::k8s::Quantity;
use jiff::Timestamp;
use kube::Client;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;

#[derive(Deserialize)]
#[serde(bound = "T: Deserialize<'de>")]
struct List<T> {
    #[serde(default = "Vec::new", deserialize_with = "or_empty")]
    items: Vec<T>,
}

/// Deserializes `null` as empty, as upstream does: Go encodes nil slices and maps as `null`.
fn or_empty<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: serde::Deserializer<'de>,
{
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CustomItem {
    described_object: Described,
    timestamp: Timestamp,
    window_seconds: Option<i64>,
    value: String,
}

#[derive(Deserialize)]
struct Described {
    name: String,
}

#[derive(Deserialize)]
struct ExternalItem {
    value: String,
}

#[derive(Deserialize)]
struct PodMetrics {
    metadata: Described,
    timestamp: Timestamp,
    window: String,
    #[serde(default, deserialize_with = "or_empty")]
    containers: Vec<ContainerMetrics>,
}

#[derive(Deserialize)]
struct ContainerMetrics {
    name: String,
    #[serde(default, deserialize_with = "or_empty")]
    usage: BTreeMap<String, String>,
}

/// The window of a sample without one. Source: `metricServerDefaultMetricWindow`.
const WINDOW_MS: i64 = 60_000;

/// Reads one metric, for the pods that a selector (as text) selects.
pub async fn fetch(
    client: &Client,
    targets: &Targets,
    namespace: &str,
    selector: &str,
    metric: &Metric,
) -> Fetched {
    if selector.is_empty() && is_of_pods(metric) {
        return Fetched::PerPod(Err(NO_SELECTOR.to_owned()));
    }
    match &metric.source {
        MetricSource::Pods { metric: id, .. } => {
            let of = [("labelSelector", selector), ("metricLabelSelector", &id.selector_query())];
            let path = custom_path(namespace, "pods", "*", &id.name);
            let list: Result<List<CustomItem>, _> = get(client, &path, &of).await;
            Fetched::PerPod(list.and_then(|list| list.items.into_iter().map(sample).collect()))
        }
        MetricSource::Resource { name, .. } => {
            Fetched::PerPod(resource(client, namespace, selector, name, None).await)
        }
        MetricSource::ContainerResource { name, container, .. } => {
            Fetched::PerPod(resource(client, namespace, selector, name, Some(container)).await)
        }
        MetricSource::Object { object, metric: id, .. } => Fetched::Value(
            described(client, targets, namespace, object, &id.name, &id.selector_query()).await,
        ),
        MetricSource::External { metric: id, .. } => {
            let path = format!(
                "/apis/external.metrics.k8s.io/v1beta1/namespaces/{}/{}",
                encoded(namespace),
                encoded(&id.name)
            );
            let of = [("labelSelector", id.selector_query())];
            let of = of.each_ref().map(|(name, value)| (*name, value.as_str()));
            let list: Result<List<ExternalItem>, _> = get(client, &path, &of).await;
            Fetched::Values(
                list.and_then(|list| list.items.iter().map(|item| milli(&item.value)).collect()),
            )
        }
        MetricSource::Unknown(_) => Fetched::Value(Err(String::new())),
    }
}

async fn described(
    client: &Client,
    targets: &Targets,
    namespace: &str,
    object: &ObjectRef,
    metric: &str,
    selector: &str,
) -> Result<i64, String> {
    let group = parse_group(object.api_version.as_deref().unwrap_or_default())?;
    let path = if group.is_empty() && object.kind == "Namespace" {
        // The object is the namespace itself; the name is ignored.
        format!(
            "/apis/custom.metrics.k8s.io/v1beta2/namespaces/{}/metrics/{}",
            encoded(namespace),
            encoded(metric)
        )
    } else {
        let resource = targets.resource(group, &object.kind).await?;
        let plural = match group {
            "" => resource.plural,
            group => format!("{}.{group}", resource.plural),
        };
        custom_path(namespace, &plural, &object.name, metric)
    };
    let list: List<CustomItem> = get(client, &path, &[("metricLabelSelector", selector)]).await?;
    match list.items.as_slice() {
        [item] => milli(&item.value),
        items => {
            Err(format!("the custom metrics API gave {} values, one was expected", items.len()))
        }
    }
}

async fn resource(
    client: &Client,
    namespace: &str,
    selector: &str,
    resource: &str,
    container: Option<&str>,
) -> Result<Vec<(String, Option<Sample>)>, String> {
    let path = format!("/apis/metrics.k8s.io/v1beta1/namespaces/{}/pods", encoded(namespace));
    let list: List<PodMetrics> = get(client, &path, &[("labelSelector", selector)]).await?;
    let item = |pod: PodMetrics| {
        let window: jiff::SignedDuration = pod.window.parse().unwrap_or_default();
        let containers = pod.containers.iter().map(|container| {
            let usage = container.usage.get(resource).and_then(|usage| usage.parse().ok());
            (container.name.as_str(), usage)
        });
        let sample = resource_usage(containers, container).map(|milli| Sample {
            milli,
            time: pod.timestamp.as_millisecond(),
            window_ms: i64::try_from(window.as_millis()).unwrap_or(WINDOW_MS),
        });
        (pod.metadata.name, sample)
    };
    Ok(list.items.into_iter().map(item).collect())
}

fn sample(item: CustomItem) -> Result<(String, Option<Sample>), String> {
    let sample = Sample {
        milli: milli(&item.value)?,
        time: item.timestamp.as_millisecond(),
        window_ms: item.window_seconds.map_or(WINDOW_MS, |seconds| seconds * 1000),
    };
    Ok((item.described_object.name, Some(sample)))
}

fn milli(quantity: &str) -> Result<i64, String> {
    quantity.parse::<Quantity>().map(Quantity::milli).map_err(|error| error.to_string())
}

fn custom_path(namespace: &str, resource: &str, name: &str, metric: &str) -> String {
    let [namespace, resource, name, metric] = [namespace, resource, name, metric].map(encoded);
    format!("/apis/custom.metrics.k8s.io/v1beta2/namespaces/{namespace}/{resource}/{name}/{metric}")
}

/// The characters that are percent-encoded in a path segment and in a query: all but the unreserved
/// ones of RFC 3986, and `*`, which stands for all objects.
const ENCODED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'*');

/// A text, percent-encoded.
fn encoded(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, ENCODED)
}

async fn get<T: DeserializeOwned>(
    client: &Client,
    path: &str,
    parameters: &[(&str, &str)],
) -> Result<T, String> {
    let pairs = parameters.iter().filter(|(_, value)| !value.is_empty());
    let query: Vec<String> =
        pairs.map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    let uri =
        if query.is_empty() { path.to_owned() } else { format!("{path}?{}", query.join("&")) };
    let request = http::Request::get(uri).body(Vec::new()).map_err(|error| error.to_string())?;
    within(client.request(request)).await.map_err(|error| message(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;

    #[test]
    fn nil_slices_and_maps_of_go_are_empty() {
        let none: List<CustomItem> = serde_json::from_str(r#"{"items":null}"#).unwrap();
        assert!(none.items.is_empty());
        let pod = |containers: &str| -> PodMetrics {
            let meta =
                r#""metadata":{"name":"a"},"timestamp":"2026-01-01T00:00:00Z","window":"15s""#;
            serde_json::from_str(&format!("{{{meta},\"containers\":{containers}}}")).unwrap()
        };
        assert!(pod("null").containers.is_empty());
        assert!(pod(r#"[{"name":"c","usage":null}]"#).containers[0].usage.is_empty());
    }

    #[tokio::test]
    async fn names_and_selectors_are_percent_encoded() {
        assert_eq!(
            custom_path("shop", "pods", "*", "a/b"),
            "/apis/custom.metrics.k8s.io/v1beta2/namespaces/shop/pods/*/a%2Fb"
        );
        assert!(custom_path("shop", "pods", "a b", "ü-._~").ends_with("/a%20b/%C3%BC-._~"));
        let (client, log) = fake::api(|_| (200, serde_json::json!({"items": []})));
        let selectors = [("labelSelector", "app in (a,b),c=d&e"), ("metricLabelSelector", "")];
        let list: List<CustomItem> = get(&client, "/x", &selectors).await.unwrap();
        assert!(list.items.is_empty());
        assert_eq!(log.of("GET /x")[0].query, "labelSelector=app%20in%20%28a%2Cb%29%2Cc%3Dd%26e");
    }
}
