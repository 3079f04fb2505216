//! The proposal of one metric, and upstream's words if it fails.
//! Source: `computeReplicasForMetric` of upstream.

use super::input::{AlignedSamples, Input, Pod, Sample, Samples};
use super::options::{MetricOptions, OnEmpty, OnError};
use super::reason::Reason;
use super::replica_calculator::{Proposal, Resource, Tolerance, average, scalar, utilization};
use super::spec::{MetricId, MetricSource, ResourceTarget, ScalarTarget};

/// Why one metric could not be computed.
pub(super) struct MetricFailure {
    /// The reason of the event and of the condition.
    pub reason: Reason,
    /// The event's message.
    pub cause: String,
    /// The same with the words for the whole decision around it.
    pub error: String,
}

const MISMATCH: &str = "the samples given are not of this metric's kind";

/// Computes the proposal of one metric. One that is to hold proposes the present replicas.
pub(super) fn compute(
    input: &Input<'_>,
    pods: &[Pod<'_>],
    scale: super::Scale,
    index: usize,
    tolerance: Tolerance,
) -> Result<Proposal, MetricFailure> {
    let metric = &input.context.spec.metrics[index];
    let samples = input.samples.get(index).copied().unwrap_or(Samples::Value(Err(MISMATCH)));
    let of = |samples| of_source(input, pods, scale, &metric.source, samples, tolerance);
    match metric.options.on_empty {
        OnEmpty::Zero if samples.is_empty() => {
            let zero = Sample { milli: 0, time: input.context.now, window_ms: 0 };
            let of_pods = AlignedSamples::of_pods(vec![Some(zero); pods.len()]);
            of(match samples {
                Samples::PerPod(_) => Samples::PerPod(Ok(of_pods.view())),
                Samples::Value(_) | Samples::Values(_) => Samples::Values(Ok(&[0])),
            })
        }
        OnEmpty::Hold if samples.is_empty() => Ok(Proposal::hold(scale.spec_replicas)),
        OnEmpty::Missing | OnEmpty::Zero | OnEmpty::Hold => of(samples),
    }
}

/// The proposal of a metric by its source.
fn of_source(
    input: &Input<'_>,
    pods: &[Pod<'_>],
    scale: super::Scale,
    source: &MetricSource,
    samples: Samples<'_>,
    tolerance: Tolerance,
) -> Result<Proposal, MetricFailure> {
    match source {
        MetricSource::Pods { metric, average_milli } => {
            pods_metric(input, pods, scale, metric, *average_milli, samples, tolerance)
        }
        MetricSource::Resource { name, target } => {
            let of = Resource { name, container: None };
            resource(input, pods, scale, of, *target, samples, tolerance)
        }
        MetricSource::ContainerResource { name, container, target } => {
            let of = Resource { name, container: Some(container) };
            resource(input, pods, scale, of, *target, samples, tolerance)
        }
        MetricSource::Object { object, metric, target } => {
            let read = || {
                selector(metric)?;
                let Samples::Value(value) = samples else { return Err(MISMATCH.to_owned()) };
                value.map_err(|error| {
                    format!(
                        "unable to get metric {}: {} on {} {}/unable to fetch metrics from custom metrics API: {error}",
                        metric.name, object.kind, input.namespace, object.name
                    )
                })
            };
            scalar(read, pods, scale, *target, tolerance).map_err(|fault| {
                let around = match (fault.is_compute_failure, target) {
                    (true, ScalarTarget::Average(_)) => {
                        format!("failed to get {} object metric: {}", metric.name, fault.cause)
                    }
                    (_, ScalarTarget::Invalid) => {
                        fault.cause.replacen("invalid", "invalid object", 1)
                    }
                    _ => fault.cause.clone(),
                };
                MetricFailure {
                    reason: Reason::FailedGetObjectMetric,
                    cause: match target {
                        ScalarTarget::Invalid => around.clone(),
                        _ => fault.cause,
                    },
                    error: format!("failed to get object metric value: {around}"),
                }
            })
        }
        MetricSource::External { metric, target } => {
            let read = || {
                selector(metric)?;
                let Samples::Values(values) = samples else { return Err(MISMATCH.to_owned()) };
                let named = |error: &str| {
                    format!(
                        "unable to get external metric {}/{}/{}: {error}",
                        input.namespace,
                        metric.name,
                        metric.selector_text()
                    )
                };
                let values = values.map_err(|error| {
                    named(&format!("unable to fetch metrics from external metrics API: {error}"))
                })?;
                if values.is_empty() {
                    return Err(named("no metrics returned from external metrics API"));
                }
                Ok(sum_saturating(values, *target))
            };
            scalar(read, pods, scale, *target, tolerance).map_err(|fault| {
                let name = &metric.name;
                let around = match target {
                    ScalarTarget::Average(_) => {
                        format!("failed to get {name} external metric: {}", fault.cause)
                    }
                    ScalarTarget::Value(_) => {
                        format!("failed to get external metric {name}: {}", fault.cause)
                    }
                    ScalarTarget::Invalid => fault.cause.replacen("invalid", "invalid external", 1),
                };
                MetricFailure {
                    reason: Reason::FailedGetExternalMetric,
                    cause: match target {
                        ScalarTarget::Invalid => around.clone(),
                        _ => fault.cause,
                    },
                    error: format!("failed to get {name} external metric value: {around}"),
                }
            })
        }
        MetricSource::Unknown(kind) => {
            let cause = format!("unknown metric source type {kind:?}");
            Err(MetricFailure {
                reason: Reason::InvalidMetricSourceType,
                error: cause.clone(),
                cause,
            })
        }
    }
}

/// Whether any total is active: greater than its `activation`, or than 0 without one. One that has no
/// value may be: it does not wake the workload, and does not send it to sleep.
pub(super) fn is_any_active(input: &Input<'_>, scale: super::Scale) -> bool {
    let metrics = input.context.spec.metrics.iter().zip(input.samples);
    metrics.into_iter().any(|(metric, samples)| {
        let MetricSource::External { target, .. } = &metric.source else { return false };
        let is_zero = metric.options.on_empty == OnEmpty::Zero;
        match samples {
            Samples::Values(Ok(values)) if !values.is_empty() || is_zero => {
                sum_saturating(values, *target) > metric.options.activation_milli.unwrap_or(0)
            }
            _ => scale.spec_replicas > 0 && metric.options.on_error != Some(OnError::Ignore),
        }
    })
}

/// Applies the `activation` of a metric to its proposal, where the workload may be at zero: 0 unless
/// any total is active, and then at least 1 for one that is.
pub(super) fn apply_activation(
    proposal: &mut Proposal,
    options: &MetricOptions,
    is_any_active: bool,
) {
    let Some(activation) = options.activation_milli.filter(|_| proposal.is_measured) else {
        return;
    };
    if !is_any_active {
        proposal.replicas = 0;
    } else if proposal.trace.sum_milli > activation {
        proposal.replicas = proposal.replicas.max(1);
    }
    proposal.trace.proposal = Some(proposal.replicas);
}

fn selector(metric: &MetricId) -> Result<(), String> {
    metric.parsed.as_ref().map(|_| ()).map_err(Clone::clone)
}

/// Upstream sums the values for the two targets of External metrics with different overflow rules.
fn sum_saturating(values: &[i64], target: ScalarTarget) -> i64 {
    let mut sum: i64 = 0;
    for &value in values {
        if matches!(target, ScalarTarget::Average(_)) {
            sum = sum.wrapping_add(value);
            if sum < 0 {
                return i64::MAX;
            }
        } else if value > 0 && sum > i64::MAX - value {
            return i64::MAX;
        } else {
            sum = sum.wrapping_add(value);
        }
    }
    sum
}

fn pods_metric(
    input: &Input<'_>,
    pods: &[Pod<'_>],
    scale: super::Scale,
    metric: &MetricId,
    average_milli: i64,
    samples: Samples<'_>,
    tolerance: Tolerance,
) -> Result<Proposal, MetricFailure> {
    let compute = || {
        selector(metric)?;
        let Samples::PerPod(samples) = samples else { return Err(MISMATCH.to_owned()) };
        let samples = samples.map_err(|error| {
            format!(
                "unable to get metric {}: unable to fetch metrics from custom metrics API: {error}",
                metric.name
            )
        })?;
        if samples.items == 0 {
            return Err(format!(
                "unable to get metric {}: no metrics returned from custom metrics API",
                metric.name
            ));
        }
        average(input, pods, scale, average_milli, samples, None, tolerance)
    };
    compute().map_err(|cause| MetricFailure {
        reason: Reason::FailedGetPodsMetric,
        error: format!("failed to get pods metric value: {cause}"),
        cause,
    })
}

fn resource(
    input: &Input<'_>,
    pods: &[Pod<'_>],
    scale: super::Scale,
    of: Resource<'_>,
    target: ResourceTarget,
    samples: Samples<'_>,
    tolerance: Tolerance,
) -> Result<Proposal, MetricFailure> {
    let Resource { name, container } = of;
    let compute = || {
        let Samples::PerPod(samples) = samples else { return Err(MISMATCH.to_owned()) };
        let samples = samples.map_err(|error| {
            format!(
                "unable to get metrics for resource {name}: unable to fetch metrics from resource metrics API: {error}"
            )
        })?;
        if samples.items == 0 {
            return Err(format!(
                "unable to get metrics for resource {name}: no metrics returned from resource metrics API"
            ));
        }
        match target {
            ResourceTarget::Average(milli) => {
                average(input, pods, scale, milli, samples, Some(name), tolerance)
            }
            ResourceTarget::Utilization(percent) => {
                utilization(input, pods, scale, percent, samples, of, tolerance)
            }
            ResourceTarget::Invalid => unreachable!("refused before anything is computed"),
        }
    };
    let cause = match target {
        ResourceTarget::Invalid => Err("invalid resource metric source: neither an average utilization target nor an average value (usage) target was set".to_owned()),
        ResourceTarget::Average(_) => {
            compute().map_err(|error| format!("failed to get {name} usage: {error}"))
        }
        ResourceTarget::Utilization(_) => {
            compute().map_err(|error| format!("failed to get {name} utilization: {error}"))
        }
    };
    cause.map_err(|cause| match container {
        None => MetricFailure {
            reason: Reason::FailedGetResourceMetric,
            error: format!("failed to get {name} resource metric value: {cause}"),
            cause,
        },
        Some(container) => MetricFailure {
            reason: Reason::FailedGetContainerResourceMetric,
            error: format!("failed to get {container} container metric value: {cause}"),
            cause,
        },
    })
}
