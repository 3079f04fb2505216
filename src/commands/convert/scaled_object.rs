//! The conversion of KEDA's ScaledObjects.
//!
//! Sources: the ScaledObject specification, and the Prometheus, CPU and Memory scalers of KEDA 2.

use super::conversion::{Conversion, resource, utilization};
use crate::promql::bounds::PLANNED_QUERY;
use crate::promql::tree;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The spec of a ScaledObject.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScaledObject {
    scale_target_ref: ScaleTargetRef,
    polling_interval: Option<i32>,
    cooldown_period: Option<i32>,
    idle_replica_count: Option<i32>,
    min_replica_count: Option<i32>,
    max_replica_count: Option<i32>,
    fallback: Option<KedaFallback>,
    #[serde(default)]
    advanced: Value,
    triggers: Vec<Trigger>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ScaleTargetRef {
    api_version: Option<String>,
    kind: Option<String>,
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct KedaFallback {
    failure_threshold: i32,
    replicas: i32,
    behavior: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Trigger {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    metadata: BTreeMap<String, Value>,
    metric_type: Option<String>,
    authentication_ref: Option<Map<String, Value>>,
}

impl Conversion {
    /// Converts the spec of a ScaledObject.
    pub fn of_scaled_object(&mut self, spec: ScaledObject, annotations: &Value) -> Value {
        let target = json!({
            "apiVersion": spec.scale_target_ref.api_version.as_deref().unwrap_or("apps/v1"),
            "kind": spec.scale_target_ref.kind.as_deref().unwrap_or("Deployment"),
            "name": spec.scale_target_ref.name,
        });
        let (min, max) =
            (spec.min_replica_count.unwrap_or(0), spec.max_replica_count.unwrap_or(100));
        let mut new = json!({"scaleTargetRef": target, "minReplicas": min, "maxReplicas": max});
        let mut metrics = Vec::new();
        for (index, trigger) in spec.triggers.iter().enumerate() {
            metrics.extend(self.metric(index, trigger));
        }
        let on_queries = metrics.iter().any(|metric| metric["type"] == "External");
        new["metrics"] = json!(metrics);
        if min == 0 && !on_queries {
            new["minReplicas"] = json!(1);
            self.note(
                "minReplicas is 1: without an External metric nothing tells when to leave zero",
            );
        }
        if let Some(fallback) = spec.fallback {
            new["fallback"] =
                json!({"failedRounds": fallback.failure_threshold, "replicas": fallback.replicas});
            self.note("fallback never removes replicas here");
            if let Some(behavior @ ("currentReplicas" | "currentReplicasIfLower")) =
                fallback.behavior.as_deref()
            {
                self.missing(&format!("fallback.behavior {behavior} has no counterpart: at least `replicas`, never fewer than there are"));
            }
        }
        self.advanced(&spec.advanced, &mut new);
        if spec.idle_replica_count.is_some() {
            self.missing("idleReplicaCount has no counterpart: minReplicas is what stays");
        }
        if on_queries && min == 0 {
            let cooldown = spec.cooldown_period.unwrap_or(300);
            let window = new.pointer("/behavior/scaleDown/stabilizationWindowSeconds");
            let window = window.and_then(Value::as_i64).unwrap_or(300);
            if window != i64::from(cooldown) {
                self.missing(&format!("cooldownPeriod {cooldown} s: zero is waited for as long as for any other scale down, behavior.scaleDown.stabilizationWindowSeconds, which is {window} s"));
            }
        }
        if let Some(interval) = spec.polling_interval {
            let period = interval.clamp(1, 3600);
            new["syncPeriodSeconds"] = json!(period);
            self.note(&format!("pollingInterval {interval} s becomes syncPeriodSeconds {period}, the time between two decisions, not about zero only"));
        }
        match annotations.get("autoscaling.keda.sh/paused").and_then(Value::as_str) {
            None | Some("false") => {}
            Some(_) => new["paused"] = json!(true),
        }
        if annotations.get("autoscaling.keda.sh/paused-replicas").is_some() {
            self.missing("the annotation autoscaling.keda.sh/paused-replicas has no counterpart");
        }
        self.note("pause the ScaledObject (annotation autoscaling.keda.sh/paused: \"true\") or delete it first: it has a HorizontalPodAutoscaler of its own, and while that is there, kube-controller-manager scales by it, and the Autoscaler does not (AmbiguousSelector)");
        new
    }

    fn advanced(&mut self, advanced: &Value, new: &mut Value) {
        if let Some(behavior) = advanced.pointer("/horizontalPodAutoscalerConfig/behavior") {
            new["behavior"] = behavior.clone();
        }
        if advanced
            .get("scalingModifiers")
            .is_some_and(|m| m.as_object().is_some_and(|m| !m.is_empty()))
        {
            self.missing("advanced.scalingModifiers is left out: write its formula as one query");
        }
        if advanced.get("restoreToOriginalReplicaCount") == Some(&json!(true)) {
            self.note("restoreToOriginalReplicaCount is left out: deleting an Autoscaler leaves the scale as it is. Set it to false on the ScaledObject before you delete that: KEDA would set the replicas of the beginning, under load");
        }
    }

    fn metric(&mut self, index: usize, trigger: &Trigger) -> Option<Value> {
        let field = |name: &str| {
            trigger.metadata.get(name).map(|value| match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            })
        };
        let path = format!("triggers[{index}]");
        match trigger.kind.as_str() {
            "cpu" | "memory" => {
                let value = field("value").unwrap_or_default();
                let kind = trigger.metric_type.clone().or(field("type"));
                let container = field("containerName");
                match kind.as_deref().unwrap_or("Utilization") {
                    "AverageValue" => Some(resource(
                        &trigger.kind,
                        container,
                        json!({"type": "AverageValue", "averageValue": value}),
                    )),
                    _ => match value.parse::<i32>() {
                        Ok(percent) => Some(utilization(&trigger.kind, container, json!(percent))),
                        Err(_) => {
                            self.missing(&format!(
                                "{path}: metadata.value {value:?} is no percentage"
                            ));
                            None
                        }
                    },
                }
            }
            "prometheus" => self.prometheus(&path, index, trigger, &field),
            other => {
                self.missing(&format!("{path}: a trigger of type {other} can't be converted: Plimsoll asks Prometheus alone"));
                None
            }
        }
    }

    fn prometheus(
        &mut self,
        path: &str,
        index: usize,
        trigger: &Trigger,
        field: &impl Fn(&str) -> Option<String>,
    ) -> Option<Value> {
        let (Some(query), Some(threshold)) = (field("query"), field("threshold")) else {
            self.missing(&format!("{path}: metadata.query and metadata.threshold are needed"));
            return None;
        };
        let Some(series) = first_selector(&query) else {
            self.missing(&format!(
                "{path}: the query can't be read, or selects no series: {query}"
            ));
            return None;
        };
        let name = metric_name(&self.namespace, &self.name, index);
        // The query can be a template as it is: `<<` is no operator of PromQL.
        self.rules.push(json!({
            "seriesQuery": series,
            "resources": {"namespaced": false},
            "name": {"as": name},
            "metricsQuery": query,
        }));
        self.note(&format!("{path}: {name} can be read in every namespace by whoever may read external metrics there; KEDA kept it to the ScaledObject's namespace. Where that matters, select the namespace by a label (`resources` of the rule)"));
        if let Some(address) = field("serverAddress") {
            let plain = |url: &str| url.trim_end_matches('/').to_owned();
            if self.server.as_deref().map(plain) != Some(plain(&address)) {
                self.missing(&format!("{path}: serverAddress {address}: Plimsoll asks the server of its --prometheus-url. Where that is the same, give it to convert as --prometheus-url; name another one in `backends` and in the rule"));
            }
        }
        for left in [
            "authModes",
            "customHeaders",
            "cortexOrgID",
            "namespace",
            "queryParameters",
            "unsafeSsl",
        ] {
            if field(left).is_some_and(|value| !matches!(value.as_str(), "" | "false")) {
                self.missing(&format!("{path}: metadata.{left} is left out: see --prometheus-header, --prometheus-token-file, --prometheus-ca-file and `backends`"));
            }
        }
        if trigger.authentication_ref.is_some() {
            self.missing(&format!(
                "{path}: authenticationRef is left out: Plimsoll logs in by its own flags"
            ));
        }
        if field("activationThreshold").is_some_and(|value| value.parse() != Ok(0.0)) {
            self.missing(&format!("{path}: activationThreshold has no counterpart: zero is left as soon as the metric asks for a replica"));
        }
        if field("ignoreNullValues").as_deref() != Some("false") {
            self.note(&format!("{path}: KEDA treats an empty result as 0. Plimsoll treats it as missing, and does not scale down on it. Append `or vector(0)` to keep KEDA's behaviour"));
        }
        let target = match trigger.metric_type.as_deref() {
            Some("Value") => json!({"type": "Value", "value": threshold}),
            _ => json!({"type": "AverageValue", "averageValue": threshold}),
        };
        Some(json!({"type": "External", "external": {"metric": {"name": name}, "target": target}}))
    }
}

/// A unique name of a trigger's metric.
fn metric_name(namespace: &str, name: &str, index: usize) -> String {
    let plain = |text: &str| text.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    format!("keda_{}_{}_{index}", plain(namespace), plain(name))
}

/// The first selector of a query, for `seriesQuery`.
fn first_selector(query: &str) -> Option<String> {
    let mut first = None;
    tree::selectors(&mut tree::parse(query, &PLANNED_QUERY).ok()?, &mut |selector| {
        (selector.offset, selector.at) = (None, None);
        first.get_or_insert_with(|| selector.to_string());
    });
    first
}
