//! Metrics of rules, read in-process.

use super::fetched::{Fetched, NO_SELECTOR, is_of_pods};
use super::targets::Targets;
use crate::hpa::{Metric, MetricSource, Sample, parse_group, resource_usage};
use crate::k8s::{Quantity, Selector};
use crate::rules::{ObjectMetric, ObjectSelection, RuleQueryError, Rules};
use crate::samples::{QueryHandle, Reader};
use crate::watch::{Cluster, GroupResource};

/// The samples of a metric, and the queries that they come from.
pub type Found = (Fetched, Vec<QueryHandle>);

/// Reads one metric, for the pods that a selector (as text) selects. None if no rule serves the
/// metric.
pub async fn fetch(
    rules: &Rules,
    cluster: &Cluster,
    targets: &Targets,
    namespace: &str,
    selector: &str,
    metric: &Metric,
) -> Option<Found> {
    let failed = |failure: RuleQueryError| failure.to_string();
    // An empty selector would select all pods of the namespace.
    if selector.is_empty() && is_of_pods(metric) {
        return Some((Fetched::PerPod(Err(NO_SELECTOR.to_owned())), Vec::new()));
    }
    let synced = rules.has_synced() && rules.metric_rules().has_synced(namespace);
    if !synced && !is_known(rules, namespace, metric) {
        let error = "the series of the rules are not listed yet".to_owned();
        return Some((Fetched::failed(metric, error), Vec::new()));
    }
    match &metric.source {
        MetricSource::Pods { metric: id, .. } => {
            let pods = GroupResource::core("pods");
            let key =
                ObjectMetric { resource: pods.clone(), namespaced: true, metric: id.name.clone() };
            rules.serves(namespace, &key).then_some(())?;
            let selector: Selector = selector.parse().ok()?;
            let series = id.parsed.as_ref().ok()?;
            let selection = ObjectSelection::Selector(&selector);
            let query =
                rules.query(namespace, &pods, selection, &id.name, series, Reader::Decision);
            let values = async { rules.values(&query.await?).await }.await;
            let (queries, values) = match values {
                Ok(found) => (vec![found.handle], Ok(found.values)),
                Err(failure) => (Vec::new(), Err(failed(failure))),
            };
            let samples = values.map(|values| {
                let sample = |milli, time| Sample { milli, time, window_ms: 0 };
                let values = values.into_iter();
                values.map(|v| (v.name, Some(sample(v.value.milli(), v.time)))).collect()
            });
            Some((Fetched::PerPod(samples), queries))
        }
        MetricSource::Object { object, metric: id, .. } => {
            let group = parse_group(object.api_version.as_deref().unwrap_or_default()).ok()?;
            let resource = targets.resource(group, &object.kind).await.ok()?;
            let resource = GroupResource { group: resource.group, resource: resource.plural };
            // A namespace is described by itself, whatever name is given.
            let itself = resource == GroupResource::core("namespaces");
            let (of, name) = if itself { ("", namespace) } else { (namespace, &*object.name) };
            let (namespaced, metric) = (!of.is_empty(), id.name.clone());
            let key = ObjectMetric { resource: resource.clone(), namespaced, metric };
            rules.serves(of, &key).then_some(())?;
            let series = id.parsed.as_ref().ok()?;
            let selection = ObjectSelection::Name(name);
            let query = rules.query(of, &resource, selection, &id.name, series, Reader::Decision);
            let values = async { rules.values(&query.await?).await }.await;
            Some(match values.map_err(failed) {
                Ok(found) => {
                    let value = found.values.first().map(|value| value.value.milli());
                    let value = value.ok_or_else(|| failed(RuleQueryError::NoValue));
                    (Fetched::Value(value), vec![found.handle])
                }
                Err(error) => (Fetched::Value(Err(error)), Vec::new()),
            })
        }
        MetricSource::External { metric: id, .. } => {
            rules.read(|registry| registry.external(&id.name).is_some()).then_some(())?;
            let values = rules
                .external(namespace, &id.name, id.parsed.as_ref().ok()?, Reader::Decision)
                .await;
            Some(match values.map_err(failed) {
                Ok(samples) => {
                    let values = samples.iter().map(|sampled| sampled.value().milli()).collect();
                    (Fetched::Values(Ok(values)), vec![samples.handle().clone()])
                }
                Err(error) => (Fetched::Values(Err(error)), Vec::new()),
            })
        }
        MetricSource::Resource { name, .. } => {
            usage(rules, cluster, namespace, selector, name, None).await
        }
        MetricSource::ContainerResource { name, container, .. } => {
            usage(rules, cluster, namespace, selector, name, Some(container)).await
        }
        MetricSource::Unknown(_) => None,
    }
}

/// Whether the provider of a metric is known before all series were listed.
fn is_known(rules: &Rules, namespace: &str, metric: &Metric) -> bool {
    let set = rules.rules();
    match &metric.source {
        MetricSource::Pods { metric: id, .. } | MetricSource::Object { metric: id, .. } => {
            rules.metric_rules().knows(namespace, &id.name)
                || (set.custom.is_empty() && rules.metric_rules().has_synced(namespace))
                || rules.read(|registry| {
                    registry.custom_metrics().any(|(known, _)| known.metric == id.name)
                })
        }
        MetricSource::External { metric: id, .. } => {
            set.external.is_empty() || rules.read(|registry| registry.external(&id.name).is_some())
        }
        MetricSource::Resource { .. }
        | MetricSource::ContainerResource { .. }
        | MetricSource::Unknown(_) => true,
    }
}

async fn usage(
    rules: &Rules,
    cluster: &Cluster,
    namespace: &str,
    selector: &str,
    resource: &str,
    container: Option<&str>,
) -> Option<Found> {
    let window = rules.rules().resource.as_ref()?.window;
    let selector: Selector = selector.parse().ok()?;
    let pods: Vec<String> = cluster.read(|index| {
        let pods = index.select(namespace, &selector).into_iter();
        pods.map(|(name, _)| name.to_owned()).collect()
    });
    if pods.is_empty() {
        return Some((Fetched::PerPod(Ok(Vec::new())), Vec::new()));
    }
    let used = match rules.pod_usage(namespace, pods, Reader::Decision).await {
        Ok(used) => used,
        Err(failure) => return Some((Fetched::PerPod(Err(failure.to_string())), Vec::new())),
    };
    let item = |(pod, used): (String, crate::rules::PodUsage)| {
        let containers = used.containers.iter().map(|(name, (cpu, memory))| {
            let usage: Option<Quantity> = match resource {
                "cpu" => Some(*cpu),
                "memory" => Some(*memory),
                _ => None,
            };
            (name.as_str(), usage)
        });
        let sample = resource_usage(containers, container).map(|milli| Sample {
            milli,
            time: used.time,
            window_ms: i64::try_from(window.as_millis()).unwrap_or(i64::MAX),
        });
        (pod, sample)
    };
    Some((Fetched::PerPod(Ok(used.by_pod.into_iter().map(item).collect())), used.handles.into()))
}
