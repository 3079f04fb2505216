//! `custom.metrics.k8s.io`: metrics of objects in the cluster, by generated names of autoscalers
//! and by rules.

use super::encode::ResponseContent;
use super::error::ApiError;
use super::generated;
use super::known_requests::{Asked, GeneratedMetric, KnownRequest, Selectors, Source, Values};
use super::options::{label_selector, parameters, selected_name};
use super::request::{ApiGroup, ObjectMetricRequest, Version};
use super::server::Server;
use super::timestamp::timestamp;
use crate::clock::WallClock;
use crate::k8s::{Quantity, Selector};
use crate::promql::query::{Per, PrometheusMetric};
use crate::rules::{ObjectSelection, ObjectValue, RuleQuery, RuleQueryError, pod_info};
use crate::samples::{MetricError, ObjectSample, ObjectSamples, PodQuery, Reader};
use crate::watch::{GroupResource, ResourceInfo};
use axum::http::Uri;
use jiff::Timestamp;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};
use std::fmt::Display;
use std::sync::Arc;
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
    uri: &Uri,
) -> Result<ResponseContent, ApiError> {
    let known = server.known_requests.get(uri);
    let selectors = match &known {
        Some(known) => known.asked.selectors.clone(),
        None => Arc::new(Selectors::of(request, &parameters(uri)?)?),
    };
    let published = match request.resource.split('.').next() {
        Some("pods" | "pod") => {
            let ObjectMetricRequest { namespace, metric, .. } = request;
            generated::published(server, namespace, metric, Per::Pod, &selectors.series).await
        }
        _ => None,
    };
    let repeated = match &known {
        Some(known) if known.asked.is_current(server, published.as_ref()).await => {
            repeated(server, request, uri, known).await?
        }
        _ => None,
    };
    let values = match repeated {
        Some(values) => {
            server.metrics.serving.repeated();
            values
        }
        None => {
            // Boxed, as the future of each request would have room for it.
            let asked = Box::pin(Asked::of(server, request, selectors, published));
            let (asked, samples) = asked.await?;
            let origin = samples.origin();
            let values = asked.values(server, request, samples)?;
            if asked.may_be_kept()
                && !server.known_requests.keep(uri, request, asked, (origin, values.clone()))
            {
                server.metrics.serving.not_kept();
            }
            values
        }
    };
    if let Some(oldest) = values.oldest {
        let now = WallClock::default().timestamp().as_millisecond();
        let age = u64::try_from(now.saturating_sub(oldest)).unwrap_or(0);
        server.metrics.served(Duration::from_millis(age));
    }
    Ok(ResponseContent::Json(values.json))
}

/// The name of the object of a request; none for all that a selector matches.
fn named(request: &ObjectMetricRequest) -> Option<&str> {
    Some(request.name.as_str()).filter(|name| *name != "*")
}

/// The response to a request that asks for what a known one asked for, unless it is of other pods.
async fn repeated(
    server: &Server,
    request: &ObjectMetricRequest,
    uri: &Uri,
    known: &KnownRequest,
) -> Result<Option<Values>, ApiError> {
    let asked = &known.asked;
    let samples = match &asked.source {
        Source::Generated(of) => {
            let samples = of_pods(server, request, &of.query).await?;
            if !of.is_of_pods(server, request, &asked.selectors) {
                return Ok(None);
            }
            samples
        }
        Source::Rule(query) => of_rule(server, request, query).await?,
    };
    let values = known.values(samples.origin(), || asked.values(server, request, samples))?;
    // The next request is kept with room for it.
    if !known.has_room(&values) {
        server.known_requests.forget(uri);
    }
    Ok(Some(values))
}

/// The samples of pods.
async fn of_pods(
    server: &Server,
    request: &ObjectMetricRequest,
    query: &PodQuery,
) -> Result<ObjectSamples, ApiError> {
    let samples = server.samples.samples(&query.query).await;
    samples.map_err(|error| ApiError::fetch_failed(&request.metric, &error))
}

/// The samples of a rule.
async fn of_rule(
    server: &Server,
    request: &ObjectMetricRequest,
    query: &RuleQuery,
) -> Result<ObjectSamples, ApiError> {
    server.rules.samples(query).await.map_err(|failure| rule_error(request, failure))
}

fn not_found(request: &ObjectMetricRequest) -> ApiError {
    let ObjectMetricRequest { resource, metric, name, .. } = request;
    ApiError::not_found(match name.as_str() {
        "*" => format!("the server could not find the metric {metric} for {resource}"),
        name => format!("the server could not find the metric {metric} for {resource} {name}"),
    })
}

impl Selectors {
    fn of(request: &ObjectMetricRequest, options: &MetricListOptions) -> Result<Self, ApiError> {
        let mut objects = label_selector(&options.label_selector)?;
        // It applies only to `*`.
        if named(request).is_some() {
            objects = Selector::default();
        }
        let series = options.metric_label_selector.parse().map_err(|error| {
            ApiError::invalid_metric_selector(format!("metricLabelSelector: {error}"))
        })?;
        let by_field = options.field_selector.trim();
        if !by_field.is_empty() && selected_name(by_field) != Some(request.name.as_str()) {
            let message = "fieldSelector metadata.name doesn't match requested name";
            return Err(ApiError::bad_request(message));
        }
        Ok(Self { objects, series })
    }
}

impl Asked {
    /// What a request asks for, of the metric of a generated name or else of a rule, and the samples of it.
    async fn of(
        server: &Server,
        request: &ObjectMetricRequest,
        selectors: Arc<Selectors>,
        published: Option<Arc<PrometheusMetric>>,
    ) -> Result<(Self, ObjectSamples), ApiError> {
        let (source, samples) = match published {
            Some(metric) => {
                let of_metric = GeneratedMetric::of(server, request, &selectors, metric);
                let (of_metric, samples) = of_metric.await?;
                (Source::Generated(of_metric), samples)
            }
            None => {
                let resource = GroupResource::parse(&request.resource);
                let selector = ObjectSelection::Selector(&selectors.objects);
                let which = named(request).map_or(selector, ObjectSelection::Name);
                let ObjectMetricRequest { namespace, metric, .. } = request;
                let series = &selectors.series;
                let query =
                    server.rules.query(namespace, &resource, which, metric, series, Reader::Client);
                let query = query.await.map_err(|failure| rule_error(request, failure))?;
                let samples = of_rule(server, request, &query).await?;
                (Source::Rule(Box::new(query)), samples)
            }
        };
        Ok((Self { selectors, source }, samples))
    }

    /// Whether the request would ask Prometheus for the same again.
    async fn is_current(&self, server: &Server, published: Option<&Arc<PrometheusMetric>>) -> bool {
        match (&self.source, published) {
            (Source::Generated(of), Some(metric)) => {
                Arc::ptr_eq(&of.metric, metric)
                    && Arc::ptr_eq(&of.queries, &server.pod_queries.load())
                    && server.samples.is_current(&of.queries, &of.query, metric).await
            }
            (Source::Rule(query), None) => server.rules.is_current(query, &self.selectors.objects),
            _ => false,
        }
    }

    /// The response with these samples.
    fn values(
        &self,
        server: &Server,
        request: &ObjectMetricRequest,
        samples: ObjectSamples,
    ) -> Result<Values, ApiError> {
        let pod = pod_info();
        let (info, items) = match &self.source {
            Source::Generated(of) => (&pod, of.values(server, request, samples)?),
            Source::Rule(query) => {
                let values = query.values(&samples);
                (&query.resource, values.map_err(|failure| rule_error(request, failure))?)
            }
        };
        let series = &self.selectors.series;
        let selector = match series.is_empty() {
            true => Value::Null,
            false => series.to_object().map_or(Value::Null, |object| json!(object)),
        };
        let (api_version, of) = (info.api_version(), DescribedObjects { request, info });
        let list = MetricValueList {
            api_version: format!("{}/{}", ApiGroup::Custom.as_str(), request.version.as_str()),
            items: items.iter().map(|item| of.value(&api_version, item, &selector)).collect(),
            kind: "MetricValueList",
            metadata: Empty {},
        };
        let mut json = serde_json::to_vec(&list).expect("it can be encoded as JSON");
        json.push(b'\n');
        let oldest = items.iter().map(|item| item.time).min();
        Ok(Values { json: json.into_boxed_slice().into(), oldest })
    }
}

impl GeneratedMetric {
    /// The pods are those that there are when the samples have come.
    async fn of(
        server: &Server,
        request: &ObjectMetricRequest,
        selectors: &Selectors,
        metric: Arc<PrometheusMetric>,
    ) -> Result<(Self, ObjectSamples), ApiError> {
        let namespace = &request.namespace;
        let queries = server.pod_queries.load();
        let query = server.samples.pod_query(&queries, &metric, namespace, Reader::Client).await;
        let query = query.map_err(|error| ApiError::fetch_failed(&request.metric, &error))?;
        let samples = of_pods(server, request, &query).await?;
        let pods = server.rules.pod_names(namespace, named(request), &selectors.objects).await;
        let pods = pods.map_err(|failure| ApiError::unavailable(failure.to_string()))?;
        Ok((Self { metric, queries, query, pods }, samples))
    }

    /// Whether the request selects these pods again.
    fn is_of_pods(
        &self,
        server: &Server,
        request: &ObjectMetricRequest,
        selectors: &Selectors,
    ) -> bool {
        let (namespace, named) = (&request.namespace, named(request));
        server.rules.selects(&self.pods, namespace, named, &selectors.objects)
    }

    /// The values in the order of the pods.
    fn values(
        &self,
        server: &Server,
        request: &ObjectMetricRequest,
        samples: ObjectSamples,
    ) -> Result<Vec<ObjectValue>, ApiError> {
        let failed = |error: MetricError| ApiError::fetch_failed(&request.metric, &error);
        let samples = server.samples.checked_pods(&self.query, samples).map_err(failed)?;
        let by_pod = samples.by_object();
        let item = |pod: &String| {
            let value =
                |ObjectSample { value, time }| ObjectValue { name: pod.clone(), value, time };
            by_pod.one(pod).map(|sample| sample.map(value)).transpose()
        };
        let items: Result<Vec<ObjectValue>, MetricError> =
            self.pods.names.iter().filter_map(item).collect();
        let items = items.map_err(failed)?;
        if named(request).is_some() && items.is_empty() {
            return Err(not_found(request));
        }
        Ok(items)
    }
}

/// Why a rule gives no values.
fn rule_error(request: &ObjectMetricRequest, failure: RuleQueryError) -> ApiError {
    let ObjectMetricRequest { resource, metric, .. } = request;
    let no_such_metric = || {
        ApiError::not_found(format!("the server could not find the metric {metric} for {resource}"))
    };
    match failure {
        // The failing rule is only logged; for clients, there is no such metric.
        RuleQueryError::Query(error) => {
            tracing::warn!(metric, error, "Failed to render the query of a rule");
            no_such_metric()
        }
        RuleQueryError::NotFound => no_such_metric(),
        RuleQueryError::NotListed => {
            ApiError::failed(format!("unable to fetch metric {metric}: {failure}"))
        }
        RuleQueryError::NoValue => not_found(request),
        RuleQueryError::Unlistable(_) | RuleQueryError::Label(_) => ApiError::internal(format!(
            "Internal error occurred: unable to fetch metric {metric}: {failure}"
        )),
        RuleQueryError::Metric(error) => ApiError::fetch_failed(metric, &error),
    }
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
