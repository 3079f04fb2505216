//! `metrics.k8s.io`: resource usage of pods and nodes, by rules.

use super::error::ApiError;
use super::options::{label_selector, selected_name};
use super::request::{ApiGroup, Version};
use super::server::Server;
use super::timestamp::timestamp;
use crate::clock::WallClock;
use crate::k8s::LabelSet;
use crate::rules::{NodeUsage, PodUsage, RuleQueryError};
use crate::samples::Reader;
use crate::watch::GroupResource;
use futures::future::join_all;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The query parameters of a request.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceMetricOptions {
    /// Selects objects by label.
    label_selector: String,
    /// Selects objects by field. Only `metadata.name=NAME` is supported.
    field_selector: String,
}

impl ResourceMetricOptions {
    /// The name in the field selector, if any.
    fn name(&self) -> Result<Option<&str>, ApiError> {
        let text = self.field_selector.trim();
        if text.is_empty() {
            return Ok(None);
        }
        selected_name(text).map(Some).ok_or_else(|| {
            ApiError::bad_request(format!(
                "fieldSelector: {text:?} is not known; metadata.name=NAME was expected"
            ))
        })
    }
}

fn api_version() -> String {
    format!("{}/{}", ApiGroup::Resource.as_str(), Version::V1Beta1.as_str())
}

fn list(kind: &str, items: Vec<Value>) -> Value {
    json!({"kind": kind, "apiVersion": api_version(), "metadata": {}, "items": items})
}

fn failed(failure: &RuleQueryError) -> ApiError {
    match failure {
        RuleQueryError::Metric(error) => ApiError::fetch_failed("of resources", error),
        other => ApiError::internal(format!("Internal error occurred: {other}")),
    }
}

/// The resource usage of nodes.
///
/// # Errors
/// 404 if there is no such node, or no usage of it.
pub async fn nodes(
    server: &Server,
    name: Option<&str>,
    options: &ResourceMetricOptions,
) -> Result<Value, ApiError> {
    let info = server.rules.resources().find(&GroupResource::core("nodes")).await;
    let info = info.ok_or_else(ApiError::no_such_path)?;
    let known = server.rules.list(&info, "", &label_selector(&options.label_selector)?).await;
    let mut known: BTreeMap<String, LabelSet> =
        known.map_err(|failure| failed(&failure))?.into_iter().collect();
    if let Some(name) = name.or(options.name()?) {
        known.retain(|known, _| known == name);
    }
    let usage = match known.is_empty() {
        true => BTreeMap::new(),
        false => server
            .rules
            .node_usage(known.keys().cloned().collect())
            .await
            .map_err(|failure| failed(&failure))?,
    };
    let window = window(server);
    let items = known
        .into_iter()
        .filter_map(|(name, labels)| Some(node(&name, &labels, usage.get(&name)?, &window)));
    match name {
        None => Ok(list("NodeMetricsList", items.collect())),
        Some(name) => single("NodeMetrics", items.collect(), || {
            format!("nodes.{} {name:?} not found", ApiGroup::Resource.as_str())
        }),
    }
}

/// The only item of a list, as a single object.
fn single(kind: &str, items: Vec<Value>, missing: impl Fn() -> String) -> Result<Value, ApiError> {
    let mut object = items.into_iter().next().ok_or_else(|| ApiError::not_found(missing()))?;
    object["kind"] = kind.into();
    object["apiVersion"] = api_version().into();
    Ok(object)
}

fn node(name: &str, labels: &LabelSet, usage: &NodeUsage, window: &str) -> Value {
    json!({
        "metadata": metadata(name, None, labels),
        "timestamp": timestamp(usage.time).to_string(),
        "window": window,
        "usage": {"cpu": usage.cpu.to_string(), "memory": usage.memory.to_binary_si()},
    })
}

fn metadata(name: &str, namespace: Option<&str>, labels: &LabelSet) -> Value {
    let now = WallClock::default().timestamp();
    let created = Timestamp::from_second(now.as_second()).unwrap_or_default();
    let mut metadata = json!({"name": name, "creationTimestamp": created.to_string()});
    if let Some(namespace) = namespace {
        metadata["namespace"] = namespace.into();
    }
    if !labels.is_empty() {
        metadata["labels"] = json!(labels);
    }
    metadata
}

/// The resource usage of pods.
///
/// # Errors
/// 404 if there is no such pod, or no usage of it.
pub async fn pods(
    server: &Server,
    namespace: Option<&str>,
    name: Option<&str>,
    options: &ResourceMetricOptions,
) -> Result<Value, ApiError> {
    let labels = label_selector(&options.label_selector)?;
    let wanted = name.or(options.name()?);
    let running = server.rules.pods(namespace, wanted, &labels, true).await;
    let running = running.map_err(|failure| ApiError::unavailable(failure.to_string()))?;
    let mut known: BTreeMap<String, BTreeMap<String, Arc<LabelSet>>> = BTreeMap::new();
    for (key, labels) in running {
        known.entry(key.namespace).or_default().insert(key.name, labels);
    }
    let usage = known.iter().filter(|(_, pods)| !pods.is_empty()).map(async |(namespace, pods)| {
        let names = pods.keys().cloned().collect();
        (namespace, server.rules.pod_usage(namespace, names, Reader::Client).await)
    });
    let usage = join_all(usage).await;
    // A namespace that fails is left out, unless all fail.
    if let [(_, Err(failure)), rest @ ..] = usage.as_slice()
        && rest.iter().all(|(_, usage)| usage.is_err())
    {
        return Err(failed(failure));
    }
    let window = window(server);
    let mut items = Vec::new();
    for (namespace, usage) in &usage {
        let Ok(usage) = usage else { continue };
        for (name, labels) in &known[*namespace] {
            if let Some(usage) = usage.by_pod.get(name) {
                items.push(pod(namespace, name, labels, usage, &window));
            }
        }
    }
    match (name, namespace) {
        (Some(name), namespace) => single("PodMetrics", items, || {
            let namespace = namespace.unwrap_or_default();
            let group = ApiGroup::Resource.as_str();
            format!("pods.{group} \"{namespace}/{name}\" not found")
        }),
        (None, _) => Ok(list("PodMetricsList", items)),
    }
}

fn pod(namespace: &str, name: &str, labels: &LabelSet, usage: &PodUsage, window: &str) -> Value {
    let containers = usage.containers.iter().map(|(name, (cpu, memory))| {
        json!({"name": name, "usage": {"cpu": cpu.to_string(), "memory": memory.to_binary_si()}})
    });
    json!({
        "metadata": metadata(name, Some(namespace), labels),
        "timestamp": timestamp(usage.time).to_string(),
        "window": window,
        "containers": containers.collect::<Vec<_>>(),
    })
}

/// The window of the rules, as a Go duration.
fn window(server: &Server) -> String {
    let rules = server.rules.rules();
    go_duration(rules.resource.as_ref().map_or(Duration::ZERO, |rules| rules.window))
}

fn go_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    if millis == 0 {
        return "0s".to_owned();
    }
    if millis < 1000 {
        return format!("{millis}ms");
    }
    let (hours, minutes) = (millis / 3_600_000, millis / 60_000 % 60);
    let (seconds, rest) = (millis / 1000 % 60, millis % 1000);
    let fraction = match rest {
        0 => String::new(),
        rest => format!(".{rest:03}").trim_end_matches('0').to_owned(),
    };
    let seconds = format!("{seconds}{fraction}s");
    match (hours, minutes) {
        (0, 0) => seconds,
        (0, minutes) => format!("{minutes}m{seconds}"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}"),
    }
}

/// The usage as a table for `kubectl get`.
pub fn table(value: &Value) -> Value {
    let items: Vec<&Value> = match value["items"].as_array() {
        Some(items) => items.iter().collect(),
        None => vec![value],
    };
    let column = |name: &str, format: &str| json!({"name": name, "type": "string", "format": format, "description": "", "priority": 0});
    let mut columns = vec![column("Name", "name")];
    columns[0]["description"] = "Name of the resource".into();
    for name in ["cpu", "memory"] {
        columns.push(column(name, "quantity"));
    }
    columns.push(column("Window", "duration"));
    let rows = items.iter().map(|item| {
        let total = |resource: &str| -> String {
            let parse = |usage: &Value| -> crate::k8s::Quantity {
                usage[resource].as_str().and_then(|text| text.parse().ok()).unwrap_or_default()
            };
            let sum = match item["containers"].as_array() {
                Some(containers) => containers
                    .iter()
                    .fold(crate::k8s::Quantity::default(), |sum, c| sum + parse(&c["usage"])),
                None => parse(&item["usage"]),
            };
            if resource == "memory" { sum.to_binary_si() } else { sum.to_string() }
        };
        let object = json!({
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": item["metadata"],
        });
        let name = item["metadata"]["name"].clone();
        json!({"cells": [name, total("cpu"), total("memory"), item["window"]], "object": object})
    });
    let rows: Vec<Value> = rows.collect();
    let columns = if rows.is_empty() { Value::Null } else { json!(columns) };
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {},
        "columnDefinitions": columns,
        "rows": rows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_in_go() {
        for (millis, text) in [
            (0, "0s"),
            (250, "250ms"),
            (5_000, "5s"),
            (1_500, "1.5s"),
            (60_000, "1m0s"),
            (3_661_000, "1h1m1s"),
        ] {
            assert_eq!(go_duration(Duration::from_millis(millis)), text);
        }
    }
}
