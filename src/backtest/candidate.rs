//! An autoscaler that is tried.

use super::run::millis;
use crate::hpa::{Metric, MetricSource, ScalarTarget, Spec};
use crate::k8s::Quantity;
use crate::watch::parse_spec;
use k8s_openapi::api::autoscaling::v2::MetricSpec;
use serde_json::Value;
use std::time::Duration;

/// The period where neither the flag nor the Autoscaler says another one.
const PERIOD: Duration = Duration::from_secs(15);

/// An autoscaler that is tried, with one metric.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its name.
    pub name: String,
    /// Its spec, as the decision reads it.
    pub spec: Spec,
    /// Its `syncPeriodSeconds`.
    pub period: Option<Duration>,
    /// What one pod carries, in the metric's unit: the `averageValue` as it is written, unless that is a target with
    /// headroom and something else is set here.
    pub pod_carries: f64,
    /// Whether the metric is one of each pod, or the total of the workload.
    pub is_per_pod: bool,
}

impl Candidate {
    /// The candidate of an Autoscaler's spec.
    ///
    /// # Errors
    /// If the spec is invalid, or its metrics are not one with an `averageValue`.
    pub fn new(name: &str, namespace: &str, spec: Value) -> Result<Self, String> {
        let parsed = parse_spec(spec, namespace, name).map_err(|error| error.to_string())?;
        let (crd, spec) = (parsed.spec, parsed.scaling.spec);
        let [Metric { source, .. }] = &*spec.metrics else {
            let count = spec.metrics.len();
            return Err(format!("{count} metrics: one was expected, with an averageValue"));
        };
        let (milli, is_per_pod) = match source {
            MetricSource::Pods { average_milli, .. } => (*average_milli, true),
            MetricSource::External { target: ScalarTarget::Average(milli), .. } => (*milli, false),
            _ => {
                return Err("its metric: one of pods, or an External metric with an averageValue was expected: a file of load says nothing of others".to_owned());
            }
        };
        if milli <= 0 {
            return Err("its averageValue: more than 0 was expected".to_owned());
        }
        let hpa = crd.as_hpa(namespace, name);
        let written = hpa.metrics.iter().flatten().next().and_then(written_average);
        let pod_carries = written.unwrap_or(milli as f64 / 1000.0);
        let period = crd.sync_period_seconds;
        let period = period.map(|seconds| Duration::from_secs(seconds.unsigned_abs().into()));
        Ok(Self { name: name.to_owned(), spec, period, pod_carries, is_per_pod })
    }

    /// The period of its decisions in ms, if a flag does not say another one.
    pub fn period_ms(&self, flag: Option<Duration>) -> i64 {
        millis(flag.or(self.period).unwrap_or(PERIOD)).max(1)
    }

    /// The least replicas.
    pub fn min(&self) -> i32 {
        self.spec.min_replicas
    }

    /// The pods that a load needs.
    pub fn needed(&self, load: f64) -> i64 {
        ((load / self.pod_carries).ceil() as i64).max(self.min().into())
    }
}

/// The `averageValue` of a metric, which the decision reads in whole thousandths.
fn written_average(metric: &MetricSpec) -> Option<f64> {
    let of_pods = metric.pods.as_ref().map(|pods| &pods.target);
    let target = of_pods.or_else(|| metric.external.as_ref().map(|external| &external.target))?;
    let text = &target.average_value.as_ref()?.0;
    text.parse().ok().or_else(|| text.parse().ok().map(Quantity::as_f64))
}
