//! Whether the Autoscalers are well, and whether a metric can be read by the metrics API.

use super::apis::ServiceName;
use super::report::Group;
use crate::commands::operate::{Cluster, fault};
use crate::control::within;
use crate::crd::Autoscaler;
use crate::kube_error::{message, worded};
use crate::promql::name::generated_name;
use crate::promql::query::Per;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde_json::Value;
use std::collections::BTreeMap;

/// The most Autoscalers whose metric is tried, and that are named.
const MAX_TRIED: usize = 5;
/// The most Autoscalers that are read.
const MAX_READ: u32 = 500;

/// The APIService by which metrics are read.
const CUSTOM: &str = "v1beta2.custom.metrics.k8s.io";

/// Checks the Autoscalers and reads a metric of one.
pub async fn check(cluster: &Cluster, services: &BTreeMap<String, ServiceName>) -> Group {
    let mut group = Group::new("plimsoll-metrics");
    let what = "the metrics of all Autoscalers can be read";
    let api: Api<Autoscaler> = Api::all(cluster.client.clone());
    let list = within(api.list(&ListParams::default().limit(MAX_READ))).await;
    let all = match list {
        Ok(all) => all.items,
        Err(error) => {
            group.skipped(what, &worded(&error), "");
            return group;
        }
    };
    failing(&mut group, what, &all);
    if services.contains_key(CUSTOM) {
        read_one(&mut group, &cluster.client, &all).await;
    }
    group
}

fn failing(group: &mut Group, what: &str, all: &[Autoscaler]) {
    let failing: Vec<(&Autoscaler, String)> = all
        .iter()
        .filter_map(|object| {
            let condition = object.status.as_ref().and_then(fault)?;
            Some((object, format!("{}: {}", condition.reason, condition.message)))
        })
        .collect();
    let Some((first, why)) = failing.first() else {
        return group.passed(&format!("{what} ({})", all.len()));
    };
    let (namespace, name) = (first.namespace().unwrap_or_default(), first.name_any());
    let found = format!("{} of {} fail, as {namespace}/{name}: {why}", failing.len(), all.len());
    let hint = format!("kubectl plimsoll status; kubectl plimsoll explain {name} -n {namespace}");
    // All of them have one cause, and it is not theirs.
    match failing.len() == all.len() && all.len() > 1 {
        true => group.failed(what, &found, &hint),
        false => group.warn(what, &found, &hint),
    }
}

/// Reads a metric of the pods of the first Autoscalers that have one.
async fn read_one(group: &mut Group, client: &Client, all: &[Autoscaler]) {
    let what = "a metric can be read by custom.metrics.k8s.io";
    let metrics = all.iter().flat_map(|object| {
        let of_pods = object.spec.custom_metrics.iter().filter(|metric| metric.per == Per::Pod);
        of_pods.map(move |metric| (object, metric))
    });
    let mut failure = None;
    for (object, metric) in metrics.take(MAX_TRIED) {
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        let published =
            generated_name(&metric.metric_name, metric.labels.as_ref(), &namespace, &name);
        let path = format!(
            "/apis/custom.metrics.k8s.io/v1beta2/namespaces/{namespace}/pods/*/{published}"
        );
        let Ok(request) = http::Request::get(path).body(Vec::new()) else { continue };
        let of = format!("{} of {namespace}/{name}", metric.metric_name);
        match within(client.request::<Value>(request)).await {
            Ok(list) if list["items"].as_array().is_some_and(|items| !items.is_empty()) => {
                let pods = list["items"].as_array().map_or(0, Vec::len);
                return group.passed(&format!("{what} ({of}, {pods} pods)"));
            }
            Ok(_) => failure = Some((false, format!("{of} has no series"))),
            Err(kube::Error::Api(status)) if status.code == 404 => {
                failure = Some((false, format!("{of}: {}", status.message)));
            }
            Err(error) => failure = Some((true, format!("{of}: {}", message(&error)))),
        }
    }
    match failure {
        None => group.skipped(what, "no Autoscaler has a metric of pods", ""),
        Some((true, found)) => group.failed(what, &found, "see prometheus above, and the log of Plimsoll"),
        Some((false, found)) => group.warn(what, &found, "query it in Prometheus: the labels of its series have to name the namespace and the pods"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Outcome::{Failed, Passed, Skipped, Warning};
    use super::*;
    use serde_json::json;

    async fn outcomes(items: Value, code: u16) -> Vec<super::super::report::Outcome> {
        let (client, _) = crate::fake::api(move |request| {
            match request.line.contains("/custom.metrics.k8s.io/") {
                true if code == 200 => (200, json!({"items": [{"value": "1"}]})),
                true => crate::fake::failure(code, "Reason", "Prometheus did not answer"),
                false => (200, json!({"metadata": {}, "items": items})),
            }
        });
        let services = [(CUSTOM.to_owned(), ("plimsoll".to_owned(), "plimsoll".to_owned()))].into();
        check(&Cluster::fake(client), &services).await.outcomes()
    }

    #[tokio::test]
    async fn a_metric_of_an_autoscaler_is_read() {
        let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
        let object = |metrics: Value| {
            json!({"metadata": {"namespace": "shop", "name": "web"},
                "spec": {"scaleTargetRef": target, "maxReplicas": 3, "customMetrics": metrics}})
        };
        let qps = json!([{"metricName": "qps", "averageValue": "1"}]);
        assert_eq!(outcomes(json!([object(qps.clone())]), 200).await, [Passed, Passed]);
        assert_eq!(outcomes(json!([object(qps.clone())]), 404).await, [Passed, Warning]);
        assert_eq!(outcomes(json!([object(qps)]), 503).await, [Passed, Failed]);
        assert_eq!(outcomes(json!([object(json!([]))]), 200).await, [Passed, Skipped]);
        let mut failing = object(json!([]));
        failing["status"] = json!({"conditions": [{"type": "ScalingActive", "status": "False",
            "reason": "FailedGetPodsMetric", "message": "x", "lastTransitionTime": "2026-11-25T10:00:00Z"}]});
        assert_eq!(outcomes(json!([failing]), 200).await, [Warning, Skipped]);
        assert_eq!(outcomes(json!([failing, failing]), 200).await, [Failed, Skipped]);
    }
}
