//! Gathers the samples of an autoscaler's metrics, whichever provider serves them, and aligns them
//! with its pods.

use super::context::ControllerContext;
use super::fetched::Fetched;
use super::state::AutoscalerState;
use super::{api_metrics, rule_metrics};
use crate::hpa::{
    self, AlignedSamples, ConditionKind, Pod, ResourceTarget, Sample, Samples, Source, Status,
    UnixMillis,
};
use crate::promql::query::PodMetric;
use crate::samples::{MetricError, ObjectSample, ObjectSamples, TypeWarning};
use crate::watch::ScalingSpec;
use futures::future::join_all;
use std::borrow::Cow;
use tokio::time::Instant;

/// A metric's samples before they are aligned with pods.
pub enum Gathered {
    /// A generated metric, queried by Plimsoll.
    Own(Result<ObjectSamples, String>),
    /// A metric of a rule or of another provider.
    Other(Fetched),
}

/// Reads all metrics concurrently, and keeps the queries to repeat them. A metric that has not
/// been read by `until` has failed.
pub async fn gather(
    ctx: &ControllerContext,
    namespace: &str,
    scaling: &ScalingSpec,
    selector: &str,
    until: Instant,
    state: &mut AutoscalerState,
) -> Vec<Gathered> {
    let one = async |metric: &hpa::Metric, own: &Option<PodMetric>| match own {
        Some(own) => {
            let queries = ctx.pod_queries.now();
            let samples = ctx.samples.pods(&queries, own, namespace, false).await;
            let queries = samples.iter().map(|pods| pods.values.handle().clone()).collect();
            (Gathered::Own(samples.map_err(|error| error.to_string())), queries)
        }
        None => {
            let ControllerContext { client, targets, rules, cluster, .. } = ctx;
            let by_rule =
                rule_metrics::fetch(rules, cluster, targets, namespace, selector, metric).await;
            match by_rule {
                Some((fetched, queries)) => (Gathered::Other(fetched), queries),
                None => {
                    let fetched =
                        api_metrics::fetch(client, targets, namespace, selector, metric).await;
                    (Gathered::Other(fetched), Vec::new())
                }
            }
        }
    };
    let one = async |(metric, own)| match tokio::time::timeout_at(until, one(metric, own)).await {
        Ok(read) => read,
        Err(_) => {
            let limit = ctx.settings.decision_timeout;
            let late = format!("the metric could not be read within {limit:?}");
            let late = match own {
                Some(_) => Gathered::Own(Err(late)),
                None => Gathered::Other(Fetched::failed(metric, late)),
            };
            (late, Vec::new())
        }
    };
    let metrics = scaling.spec.metrics.iter().zip(&scaling.pod_metrics);
    let (gathered, queries): (Vec<_>, Vec<_>) =
        join_all(metrics.map(one)).await.into_iter().unzip();
    state.queries.resize_with(queries.len(), Vec::new);
    for (known, new) in state.queries.iter_mut().zip(queries).filter(|(_, new)| !new.is_empty()) {
        *known = new;
    }
    gathered
}

/// Sets the condition `MetricTypeUnknown` for metrics that are read as gauges because their type is
/// unknown. A metric that could not be read leaves the condition as it is.
pub fn note_types(
    gathered: &[Gathered],
    metrics: &[Option<PodMetric>],
    status: &mut Status,
    now: UnixMillis,
) {
    let mut warnings: Vec<(&str, TypeWarning)> = Vec::new();
    for (gathered, metric) in gathered.iter().zip(metrics) {
        match (gathered, metric) {
            (Gathered::Own(Err(_)), _) => return,
            (Gathered::Own(Ok(samples)), Some(metric)) => {
                warnings.extend(
                    samples.type_warning().map(|warning| (metric.metric.as_str(), warning)),
                );
            }
            _ => {}
        }
    }
    // A metric that looks like a counter comes first.
    warnings.sort_by_key(|(_, warning)| *warning != TypeWarning::LooksLikeCounter);
    let kind = ConditionKind::MetricTypeUnknown;
    let Some((metric, warning)) = warnings.first() else {
        status.remove(kind);
        return;
    };
    match warning {
        TypeWarning::UnknownType => status.set(
            kind,
            true,
            "NoMetadata",
            format_args!(
                "neither the name of {metric} nor Prometheus's metadata says whether it is a counter: it is read as a gauge"
            ),
            now,
        ),
        TypeWarning::LooksLikeCounter => status.set(
            kind,
            true,
            "NeverFalls",
            format_args!(
                "{metric} is read as a gauge and has not fallen for an hour: if it is a counter, ask for its rate by query, such as sum by (pod) (rate({metric}[2m]))"
            ),
            now,
        ),
    }
}

/// The sum that a decision makes of these values would overflow, to a number such as one below
/// zero.
const TOO_MUCH: &str = "the values together are beyond the most that can be counted: 9.2e15, or 9.2e13 of a utilization";

/// The maximum sum of the values of a metric, in milli-units: a utilization is a hundred times the
/// usage, divided by the requests.
fn max_sum(metric: &hpa::Metric) -> u64 {
    let by_percent = matches!(
        &metric.source,
        Source::Resource { target: ResourceTarget::Utilization(_), .. }
            | Source::ContainerResource { target: ResourceTarget::Utilization(_), .. }
    );
    i64::MAX.unsigned_abs() / if by_percent { 100 } else { 1 }
}

/// Whether the sum of these values is within a limit, whichever of them are counted.
fn fit(millis: impl Iterator<Item = i64>, limit: u64) -> bool {
    let mut left = limit;
    for milli in millis {
        match left.checked_sub(milli.unsigned_abs()) {
            Some(less) => left = less,
            None => return false,
        }
    }
    true
}

/// A metric's samples, aligned with pods.
pub enum Aligned<'a> {
    PerPod(Result<AlignedSamples, Cow<'a, str>>),
    Value(Result<i64, &'a str>),
    Values(Result<&'a [i64], &'a str>),
}

impl<'a> Aligned<'a> {
    /// Aligns samples with these pods.
    pub fn new(gathered: &'a Gathered, metric: &hpa::Metric, pods: &[Pod<'_>]) -> Self {
        let limit = max_sum(metric);
        match gathered {
            Gathered::Own(Ok(samples)) => {
                // As through the API, which returns only the pods of the selector.
                let by_pod = samples.by_object();
                let of_pod = |pod: &Pod<'_>| {
                    let sample = by_pod.one(pod.name)?;
                    let milli = |ObjectSample { value, time }| Sample {
                        milli: value.milli(),
                        time,
                        window_ms: 0,
                    };
                    Ok(sample.map(milli))
                };
                let of_pods: Result<Vec<Option<Sample>>, MetricError> =
                    pods.iter().map(of_pod).collect();
                Self::PerPod(match of_pods {
                    Ok(of_pods) if !fit(of_pods.iter().flatten().map(|one| one.milli), limit) => {
                        Err(TOO_MUCH.into())
                    }
                    Ok(of_pods) => Ok(AlignedSamples::of_pods(of_pods)),
                    Err(error) => Err(error.to_string().into()),
                })
            }
            Gathered::Own(Err(error)) => Self::PerPod(Err(error.into())),
            Gathered::Other(Fetched::PerPod(items)) => Self::PerPod(match items {
                Ok(items)
                    if !fit(items.iter().filter_map(|(_, one)| Some((*one)?.milli)), limit) =>
                {
                    Err(TOO_MUCH.into())
                }
                Ok(items) => Ok(AlignedSamples::new(
                    pods,
                    items.iter().map(|(name, sample)| (name.as_str(), *sample)),
                )),
                Err(error) => Err(error.into()),
            }),
            Gathered::Other(Fetched::Value(value)) => {
                Self::Value(value.as_ref().copied().map_err(String::as_str))
            }
            Gathered::Other(Fetched::Values(values)) => Self::Values(match values {
                Ok(values) if !fit(values.iter().copied(), limit) => Err(TOO_MUCH),
                Ok(values) => Ok(values),
                Err(error) => Err(error),
            }),
        }
    }

    /// The samples as an input of the decision.
    pub fn view(&self) -> Samples<'_> {
        match self {
            Self::PerPod(samples) => {
                Samples::PerPod(samples.as_ref().map(AlignedSamples::view).map_err(|e| &**e))
            }
            Self::Value(value) => Samples::Value(*value),
            Self::Values(values) => Samples::Values(*values),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_whose_sum_does_not_fit_are_none() {
        let spec = serde_json::json!({"maxReplicas": 3, "scaleTargetRef": {"kind": "A", "name": "a"},
            "metrics": [
                {"type": "External", "external": {"metric": {"name": "queue"},
                    "target": {"type": "AverageValue", "averageValue": "1"}}},
                {"type": "Resource", "resource": {"name": "cpu",
                    "target": {"type": "AverageValue", "averageValue": "1"}}},
                {"type": "Resource", "resource": {"name": "cpu",
                    "target": {"type": "Utilization", "averageUtilization": 80}}}]});
        let spec = hpa::Spec::from_api(&serde_json::from_value(spec).unwrap());
        let [queue, average, utilization] = &spec.metrics[..] else { panic!("three metrics") };
        let values = |values: &[i64]| Gathered::Other(Fetched::Values(Ok(values.to_vec())));
        let half = i64::MAX / 2;
        for (gathered, fits) in [
            (values(&[half, half]), true),
            (values(&[half, half, 2]), false),
            (values(&[i64::MIN]), false),
        ] {
            let aligned = Aligned::new(&gathered, queue, &[]);
            assert!(matches!(aligned, Aligned::Values(read) if read.is_ok() == fits));
        }
        let sample = |milli| Some(Sample { milli, time: 0, window_ms: 0 });
        for (metric, milli, fits) in [
            (average, half, true),
            (average, half + 1, false),
            (utilization, half / 100, true),
            (utilization, half / 100 + 1, false),
        ] {
            let of_pods = ["a", "b"].map(|name| (name.to_owned(), sample(milli))).to_vec();
            let gathered = Gathered::Other(Fetched::PerPod(Ok(of_pods)));
            let aligned = Aligned::new(&gathered, metric, &[]);
            assert!(matches!(aligned, Aligned::PerPod(read) if read.is_ok() == fits), "{milli}");
        }
    }
}
