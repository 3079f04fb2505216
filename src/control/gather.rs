//! Gathers the samples of an autoscaler's metrics, whichever provider serves them, and aligns them
//! with its pods.

use super::context::ControllerContext;
use super::fetched::Fetched;
use super::owners::Owned;
use super::state::{AutoscalerState, RepeatedQueries};
use super::{api_metrics, rule_metrics};
use crate::hpa::{
    self, AlignedSamples, ConditionKind, MetricSource, OnEmpty, Pod, Reason, ResourceTarget,
    Sample, Samples, Status,
};
use crate::promql::query::{Per, PrometheusMetric};
use crate::samples::{MetricError, ObjectSample, ObjectSamples, Reader, TypeWarning};
use crate::time::UnixMillis;
use crate::watch::ScalingSpec;
use futures::future::join_all;
use std::borrow::Cow;
use std::sync::Arc;
use tokio::time::Instant;

/// A metric's samples before they are aligned with pods.
pub enum Gathered {
    /// A metric of the pods that Plimsoll queries itself.
    Pods(Result<ObjectSamples, String>),
    /// A metric of the workload that Plimsoll queries itself; none if the result is empty.
    Total(Result<TotalValue, String>),
    /// A metric of a rule or of another provider.
    Fetched(Fetched),
}

/// The value of a metric of the workload, in milli-units, as the one value of an External metric; or
/// none.
pub struct TotalValue {
    milli: Option<[i64; 1]>,
    time: Option<UnixMillis>,
    type_warning: Option<TypeWarning>,
}

impl Gathered {
    /// When its values were queried and when the newest was measured, by what was aligned with the pods; `now` is
    /// when they were read. Values whose time was not asked for have that of the query.
    pub fn times(&self, aligned: &Aligned<'_>, now: UnixMillis) -> [Option<UnixMillis>; 2] {
        match self {
            Self::Pods(_) => [aligned.newest(); 2],
            Self::Total(total) => [total.as_ref().ok().and_then(|total| total.time); 2],
            Self::Fetched(_) => [Some(now), aligned.newest()],
        }
    }
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
    let one = async |metric: &hpa::Metric, prometheus_metric: &Option<Arc<PrometheusMetric>>| {
        match prometheus_metric {
            Some(metric) => {
                let queries = ctx.pod_queries.load();
                match metric.per {
                    Per::Pod => {
                        let samples =
                            ctx.samples.pods(&queries, metric, namespace, Reader::Decision).await;
                        let queries =
                            samples.iter().map(|pods| pods.values.handle().clone()).collect();
                        (Gathered::Pods(samples.map_err(|error| error.to_string())), queries)
                    }
                    Per::Workload => {
                        let total =
                            ctx.samples.total(&queries, metric, namespace, Reader::Decision).await;
                        let queries =
                            total.iter().map(|total| total.values.handle().clone()).collect();
                        let value = total.map(|total| TotalValue {
                            milli: total.sample.map(|sample| [sample.value.milli()]),
                            time: total.sample.map(|sample| sample.time),
                            type_warning: total.type_warning,
                        });
                        (Gathered::Total(value.map_err(|error| error.to_string())), queries)
                    }
                }
            }
            None => {
                let ControllerContext { client, targets, rules, cluster, .. } = ctx;
                let by_rule =
                    rule_metrics::fetch(rules, cluster, targets, namespace, selector, metric).await;
                match by_rule {
                    Some((fetched, queries)) => (Gathered::Fetched(fetched), queries),
                    None => {
                        let fetched =
                            api_metrics::fetch(client, targets, namespace, selector, metric).await;
                        (Gathered::Fetched(fetched), Vec::new())
                    }
                }
            }
        }
    };
    let one = async |(metric, prometheus_metric)| match tokio::time::timeout_at(
        until,
        one(metric, prometheus_metric),
    )
    .await
    {
        Ok(read) => read,
        Err(_) => {
            let limit = ctx.settings.decision_timeout;
            let late = format!("the metric could not be read within {limit:?}");
            let late = match prometheus_metric.as_ref().map(|metric| metric.per) {
                Some(Per::Pod) => Gathered::Pods(Err(late)),
                Some(Per::Workload) => Gathered::Total(Err(late)),
                None => Gathered::Fetched(Fetched::failed(metric, late)),
            };
            (late, Vec::new())
        }
    };
    let metrics = scaling.spec.metrics.iter().zip(&scaling.prometheus_metrics);
    let (gathered, queries): (Vec<_>, Vec<_>) =
        join_all(metrics.map(one)).await.into_iter().unzip();
    state.queries.reserve_exact(queries.len().saturating_sub(state.queries.len()));
    state.queries.resize_with(queries.len(), RepeatedQueries::default);
    for (known, new) in state.queries.iter_mut().zip(queries).filter(|(_, new)| !new.is_empty()) {
        *known = RepeatedQueries { queries: new, read: Some(Instant::now()) };
    }
    gathered
}

impl Gathered {
    /// Whether a query of Plimsoll's own has no value for the workload, with its samples of the pods that count. None
    /// if it failed, has no pods yet that must have one, and for metrics of rules and of other providers.
    pub fn is_empty(&self, samples: &Samples<'_>, are_pods_measured: bool) -> Option<bool> {
        match (self, samples) {
            (Self::Pods(Ok(_)), Samples::PerPod(Ok(samples))) if samples.items > 0 => Some(false),
            (Self::Pods(Ok(_)), Samples::PerPod(Ok(_))) => are_pods_measured.then_some(true),
            (Self::Total(Ok(total)), _) => Some(total.milli.is_none()),
            _ => None,
        }
    }
}

/// Sets the condition `MetricTypeUnknown` for metrics that are read as gauges because their type is
/// unknown. A metric that could not be read leaves the condition as it is.
pub fn note_types(
    gathered: &[Gathered],
    metrics: &[Option<Arc<PrometheusMetric>>],
    status: &mut Status,
    now: UnixMillis,
) {
    let mut warnings: Vec<(&PrometheusMetric, TypeWarning)> = Vec::new();
    for (gathered, metric) in gathered.iter().zip(metrics) {
        let warning = match gathered {
            Gathered::Pods(Err(_)) | Gathered::Total(Err(_)) => return,
            Gathered::Pods(Ok(samples)) => samples.type_warning(),
            Gathered::Total(Ok(total)) => total.type_warning,
            Gathered::Fetched(_) => None,
        };
        warnings.extend(metric.as_deref().zip(warning));
    }
    // A metric that looks like a counter comes first.
    warnings.sort_by_key(|(_, warning)| *warning != TypeWarning::LooksLikeCounter);
    let kind = ConditionKind::MetricTypeUnknown;
    let Some((metric, warning)) = warnings.first() else {
        status.remove(kind);
        return;
    };
    let by = match metric.per {
        Per::Pod => " by (pod)",
        Per::Workload => "",
    };
    let metric = &metric.metric;
    match warning {
        TypeWarning::UnknownType => status.set(
            kind,
            true,
            Reason::NoMetadata,
            format_args!(
                "neither the name of {metric} nor Prometheus's metadata says whether it is a counter: it is read as a gauge"
            ),
            now,
        ),
        TypeWarning::LooksLikeCounter => status.set(
            kind,
            true,
            Reason::NeverFalls,
            format_args!(
                "{metric} is read as a gauge and has not fallen for an hour: if it is a counter, ask for its rate by query, such as sum{by} (rate({metric}[2m]))"
            ),
            now,
        ),
    }
}

/// The error of values whose sum would overflow in a decision, such as to a negative number.
const OVERFLOW_ERROR: &str = "the values together are beyond the most that can be counted: 9.2e15, or 9.2e13 of a utilization";

/// The maximum sum of the values of a metric, in milli-units: a utilization is a hundred times the
/// usage, divided by the requests.
fn max_sum(metric: &hpa::Metric) -> u64 {
    let by_percent = matches!(
        &metric.source,
        MetricSource::Resource { target: ResourceTarget::Utilization(_), .. }
            | MetricSource::ContainerResource { target: ResourceTarget::Utilization(_), .. }
    );
    i64::MAX.unsigned_abs() / if by_percent { 100 } else { 1 }
}

/// Whether the sum of any of these values is within a limit.
fn sum_fits(millis: impl Iterator<Item = i64>, limit: u64) -> bool {
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
    ///
    /// A provider that selects pods by their labels gives samples of other workloads' pods, too. Upstream
    /// counts them; they don't count if only the target's own pods do. `pods` are in the order of
    /// their names.
    pub fn new(
        gathered: &'a Gathered,
        metric: &hpa::Metric,
        pods: &[Pod<'_>],
        owned: &Owned,
    ) -> Self {
        let limit = max_sum(metric);
        let counts = |name: &str| match owned {
            Owned::All => true,
            Owned::By(_) => pods.binary_search_by(|pod| pod.name.cmp(name)).is_ok(),
        };
        match gathered {
            Gathered::Pods(Ok(samples)) => {
                // Only the pods of the selector, as the API returns them.
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
                // What is said of an empty result does not hold for one of other pods, or of no numbers.
                let is_none = |of_pods: &Vec<Option<Sample>>| of_pods.iter().all(Option::is_none);
                let of_pods = match of_pods {
                    Ok(of_pods)
                        if metric.options.on_empty != OnEmpty::Missing
                            && is_none(&of_pods)
                            && !samples.values.is_empty() =>
                    {
                        let text = "the query gives series, but none with a number for a pod of the workload";
                        Err(MetricError::Series(text.to_owned()))
                    }
                    of_pods => of_pods,
                };
                Self::PerPod(match of_pods {
                    Ok(of_pods)
                        if !sum_fits(of_pods.iter().flatten().map(|one| one.milli), limit) =>
                    {
                        Err(OVERFLOW_ERROR.into())
                    }
                    Ok(of_pods) => Ok(AlignedSamples::of_pods(of_pods)),
                    Err(error) => Err(error.to_string().into()),
                })
            }
            Gathered::Pods(Err(error)) => Self::PerPod(Err(error.into())),
            Gathered::Total(total) => Self::Values(match total {
                Ok(total) => Ok(total.milli.as_ref().map_or(&[], <[i64; 1]>::as_slice)),
                Err(error) => Err(error),
            }),
            Gathered::Fetched(Fetched::PerPod(items)) => Self::PerPod(match items {
                Ok(items) => {
                    let items = items.iter().map(|(name, sample)| (name.as_str(), *sample));
                    let items = items.filter(|(name, _)| counts(name));
                    let millis = items.clone().filter_map(|(_, one)| Some(one?.milli));
                    match sum_fits(millis, limit) {
                        true => Ok(AlignedSamples::new(pods, items)),
                        false => Err(OVERFLOW_ERROR.into()),
                    }
                }
                Err(error) => Err(error.into()),
            }),
            Gathered::Fetched(Fetched::Value(value)) => {
                Self::Value(value.as_ref().copied().map_err(String::as_str))
            }
            Gathered::Fetched(Fetched::Values(values)) => Self::Values(match values {
                Ok(values) if !sum_fits(values.iter().copied(), limit) => Err(OVERFLOW_ERROR),
                Ok(values) => Ok(values),
                Err(error) => Err(error),
            }),
        }
    }

    /// When the newest sample was measured, as far as that is known.
    pub fn newest(&self) -> Option<UnixMillis> {
        let Self::PerPod(Ok(samples)) = self else { return None };
        samples.view().of_pods.iter().flatten().map(|sample| sample.time).max()
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
    fn values_whose_sum_overflows_are_an_error() {
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
        let values = |values: &[i64]| Gathered::Fetched(Fetched::Values(Ok(values.to_vec())));
        let half = i64::MAX / 2;
        for (gathered, fits) in [
            (values(&[half, half]), true),
            (values(&[half, half, 2]), false),
            (values(&[i64::MIN]), false),
        ] {
            let aligned = Aligned::new(&gathered, queue, &[], &Owned::All);
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
            let gathered = Gathered::Fetched(Fetched::PerPod(Ok(of_pods)));
            let aligned = Aligned::new(&gathered, metric, &[], &Owned::All);
            assert!(matches!(aligned, Aligned::PerPod(read) if read.is_ok() == fits), "{milli}");
        }
    }
}
