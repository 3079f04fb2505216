//! What one metric asks for.
//! Source: `replica_calculator.go` and `computeReplicasForMetric` of upstream.

use super::account::MetricAccount;
use super::observe::{Input, Phase, Pod, PodSamples, Sample, Samples};
use super::spec::{MetricId, ResourceTarget, ScalarTarget, Source};
use super::status::Current;

/// What one metric asks for, and what it was.
pub(super) struct Proposal {
    pub replicas: i32,
    pub current: Current,
    pub account: MetricAccount,
}

/// Why one metric could not be computed.
pub(super) struct Failure {
    /// The reason of the event and of the condition.
    pub reason: &'static str,
    /// The event's message.
    pub cause: String,
    /// The same with the words for the whole decision around it.
    pub error: String,
}

/// The ratios by which a metric may be off without a change.
#[derive(Clone, Copy)]
pub(super) struct Tolerance {
    pub down: f64,
    pub up: f64,
}

impl Tolerance {
    fn allows(self, ratio: f64) -> bool {
        1.0 - self.down <= ratio && ratio <= 1.0 + self.up
    }

    fn account(self) -> MetricAccount {
        MetricAccount { tolerance_down: self.down, tolerance_up: self.up, ..Default::default() }
    }
}

const NO_PODS: &str = "no pods returned by selector while calculating replica count";
const NO_SAMPLES: &str = "did not receive metrics for targeted pods (pods might be unready)";
const MISMATCH: &str = "the samples given are not of this metric's kind";

/// Computes one metric.
pub(super) fn compute(
    input: &Input<'_>,
    pods: &[Pod<'_>],
    scale: super::Scale,
    index: usize,
    tolerance: Tolerance,
) -> Result<Proposal, Failure> {
    let source = &input.context.spec.metrics[index].source;
    let samples = input.samples.get(index).copied().unwrap_or(Samples::Value(Err(MISMATCH)));
    match source {
        Source::Pods { metric, average_milli } => {
            pods_metric(input, pods, scale, metric, *average_milli, samples, tolerance)
        }
        Source::Resource { name, target } => {
            resource(input, pods, scale, name, None, *target, samples, tolerance)
        }
        Source::ContainerResource { name, container, target } => {
            resource(input, pods, scale, name, Some(container), *target, samples, tolerance)
        }
        Source::Object { object, metric, target } => {
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
                let around = match (fault.computing, target) {
                    (true, ScalarTarget::Average(_)) => {
                        format!("failed to get {} object metric: {}", metric.name, fault.cause)
                    }
                    (_, ScalarTarget::Invalid) => {
                        fault.cause.replacen("invalid", "invalid object", 1)
                    }
                    _ => fault.cause.clone(),
                };
                Failure {
                    reason: "FailedGetObjectMetric",
                    cause: match target {
                        ScalarTarget::Invalid => around.clone(),
                        _ => fault.cause,
                    },
                    error: format!("failed to get object metric value: {around}"),
                }
            })
        }
        Source::External { metric, target } => {
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
                Failure {
                    reason: "FailedGetExternalMetric",
                    cause: match target {
                        ScalarTarget::Invalid => around.clone(),
                        _ => fault.cause,
                    },
                    error: format!("failed to get {name} external metric value: {around}"),
                }
            })
        }
        Source::Unknown(kind) => {
            let cause = format!("unknown metric source type {kind:?}");
            Err(Failure { reason: "InvalidMetricSourceType", error: cause.clone(), cause })
        }
    }
}

fn selector(metric: &MetricId) -> Result<(), String> {
    metric.parsed.as_ref().map(|_| ()).map_err(Clone::clone)
}

/// Upstream sums the two targets of External metrics by different overflow rules.
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
) -> Result<Proposal, Failure> {
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
    compute().map_err(|cause| Failure {
        reason: "FailedGetPodsMetric",
        error: format!("failed to get pods metric value: {cause}"),
        cause,
    })
}

#[allow(clippy::too_many_arguments)] // each is one thing a resource metric depends on
fn resource(
    input: &Input<'_>,
    pods: &[Pod<'_>],
    scale: super::Scale,
    name: &str,
    container: Option<&str>,
    target: ResourceTarget,
    samples: Samples<'_>,
    tolerance: Tolerance,
) -> Result<Proposal, Failure> {
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
                utilization(input, pods, scale, percent, samples, name, container, tolerance)
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
        None => Failure {
            reason: "FailedGetResourceMetric",
            error: format!("failed to get {name} resource metric value: {cause}"),
            cause,
        },
        Some(container) => Failure {
            reason: "FailedGetContainerResourceMetric",
            error: format!("failed to get {container} container metric value: {cause}"),
            cause,
        },
    })
}

/// What a pod counts as, for one metric.
enum Group {
    Ready(Sample),
    Unready,
    Missing,
    Ignored,
}

/// Source: `groupPods` of upstream.
fn group(pod: &Pod<'_>, sample: Option<Sample>, cpu: bool, input: &Input<'_>) -> Group {
    if pod.deleting || pod.phase == Phase::Failed {
        return Group::Ignored;
    }
    if pod.phase == Phase::Pending {
        return Group::Unready;
    }
    let Some(sample) = sample else {
        return Group::Missing;
    };
    if cpu {
        let unready = match (pod.ready, pod.start) {
            (Some(ready), Some(start)) => {
                if start + input.context.config.cpu_initialization_ms > input.context.now {
                    // It may still be starting: one whole window since it became ready counts.
                    ready.status == Some(false) || sample.time < ready.since + sample.window_ms
                } else {
                    // It has been up for long: unready counts only if it was never ready.
                    ready.status == Some(false)
                        && start + input.context.config.initial_readiness_delay_ms > ready.since
                }
            }
            _ => true,
        };
        if unready {
            return Group::Unready;
        }
    }
    Group::Ready(sample)
}

/// Whether the pods without a counted sample change nothing, so that the ratio
/// of the others decides alone.
fn decided_by_ready_pods(account: &MetricAccount) -> bool {
    account.missing == 0 && !(account.unready > 0 && account.ratio > 1.0)
}

/// The replicas for the ratio of the ready pods alone.
fn ready_replicas(account: &MetricAccount, tolerance: Tolerance, now: i32) -> i32 {
    if tolerance.allows(account.ratio) {
        return now;
    }
    (account.ratio * account.ready as f64).ceil() as i32
}

/// The replicas for a ratio in which unready and missing pods are weighed in,
/// over so many pods; never against the direction of the first ratio.
fn weighed_replicas(account: &MetricAccount, tolerance: Tolerance, pods: i64, now: i32) -> i32 {
    let (first, ratio) = (account.ratio, account.weighed_ratio.unwrap_or(account.ratio));
    if tolerance.allows(ratio) || (first < 1.0 && ratio > 1.0) || (first > 1.0 && ratio < 1.0) {
        return now;
    }
    let replicas = (ratio * pods as f64).ceil() as i32;
    if (ratio < 1.0 && replicas > now) || (ratio > 1.0 && replicas < now) {
        return now;
    }
    replicas
}

/// Source: `calcPlainMetricReplicas` of upstream.
fn average(
    input: &Input<'_>,
    pods: &[Pod<'_>],
    scale: super::Scale,
    target: i64,
    samples: PodSamples<'_>,
    resource: Option<&str>,
    tolerance: Tolerance,
) -> Result<Proposal, String> {
    if pods.is_empty() {
        return Err(NO_PODS.to_owned());
    }
    let mut account = tolerance.account();
    account.strays = samples.strays.count;
    account.sum_milli = samples.strays.sum_milli;
    let cpu = resource == Some("cpu");
    for (pod, sample) in pods.iter().zip(samples.of_pods) {
        match group(pod, *sample, cpu, input) {
            Group::Ready(sample) => {
                account.ready += 1;
                account.sum_milli = account.sum_milli.wrapping_add(sample.milli);
            }
            Group::Unready => account.unready += 1,
            Group::Missing => account.missing += 1,
            Group::Ignored => account.ignored += 1,
        }
    }
    let counted = account.ready + account.strays;
    if counted == 0 {
        return Err(NO_SAMPLES.to_owned());
    }
    let usage = account.sum_milli / counted;
    account.ratio = usage as f64 / target as f64;

    let replicas = if decided_by_ready_pods(&account) {
        ready_replicas(&account, tolerance, scale.spec_replicas)
    } else {
        let (mut sum, mut weighed) = (account.sum_milli, counted);
        if account.ratio < 1.0 {
            sum = sum.wrapping_add(target.wrapping_mul(account.missing));
        }
        if account.ratio != 1.0 {
            weighed += account.missing;
        }
        if account.ratio > 1.0 {
            weighed += account.unready;
        }
        account.weighed_ratio = Some((sum / weighed) as f64 / target as f64);
        weighed_replicas(&account, tolerance, weighed, scale.spec_replicas)
    };
    account.proposal = Some(replicas);
    Ok(Proposal { replicas, current: Current::Average(usage), account })
}

/// Source: `GetResourceReplicas` of upstream.
#[allow(clippy::too_many_arguments)] // each is one thing a utilization depends on
fn utilization(
    input: &Input<'_>,
    pods: &[Pod<'_>],
    scale: super::Scale,
    target: i32,
    samples: PodSamples<'_>,
    resource: &str,
    container: Option<&str>,
    tolerance: Tolerance,
) -> Result<Proposal, String> {
    if pods.is_empty() {
        return Err(NO_PODS.to_owned());
    }
    let mut account = tolerance.account();
    account.strays = samples.strays.count;
    let cpu = resource == "cpu";
    let fallback = i64::from(target.max(100));
    let (mut requests, mut unready, mut missing) = (0_i64, 0_i64, 0_i64);
    let mut missing_usage = 0_i64;
    let mut fault = None;
    for (pod, sample) in pods.iter().zip(samples.of_pods) {
        let request = match pod.requests.milli(resource, container, pod.name) {
            Ok(request) => request,
            Err(error) => {
                fault.get_or_insert(error);
                0
            }
        };
        match group(pod, *sample, cpu, input) {
            Group::Ready(sample) => {
                account.ready += 1;
                account.sum_milli = account.sum_milli.wrapping_add(sample.milli);
                requests = requests.wrapping_add(request);
            }
            Group::Unready => {
                account.unready += 1;
                unready = unready.wrapping_add(request);
            }
            Group::Missing => {
                account.missing += 1;
                missing = missing.wrapping_add(request);
                missing_usage = missing_usage.wrapping_add(request.wrapping_mul(fallback) / 100);
            }
            Group::Ignored => account.ignored += 1,
        }
    }
    let counted = account.ready + account.strays;
    if counted == 0 {
        return Err(NO_SAMPLES.to_owned());
    }
    if let Some(fault) = fault {
        return Err(fault);
    }
    let ratio = |usage: i64, requests: i64| {
        if requests == 0 {
            return Err("no metrics returned matched known pods".to_owned());
        }
        let percent = (usage.wrapping_mul(100) / requests) as i32;
        Ok((percent, f64::from(percent) / f64::from(target)))
    };
    let (percent, first) = ratio(account.sum_milli, requests)?;
    account.ratio = first;

    let replicas = if decided_by_ready_pods(&account) {
        ready_replicas(&account, tolerance, scale.spec_replicas)
    } else {
        let (mut sum, mut weighed) = (account.sum_milli, counted);
        if account.ratio < 1.0 {
            sum = sum.wrapping_add(missing_usage);
        }
        if account.ratio != 1.0 {
            requests = requests.wrapping_add(missing);
            weighed += account.missing;
        }
        if account.ratio > 1.0 {
            requests = requests.wrapping_add(unready);
            weighed += account.unready;
        }
        account.weighed_ratio = Some(ratio(sum, requests)?.1);
        weighed_replicas(&account, tolerance, weighed, scale.spec_replicas)
    };
    account.proposal = Some(replicas);
    let average = account.sum_milli / account.ready;
    Ok(Proposal { replicas, current: Current::Utilization(percent, average), account })
}

/// Why an Object or External metric could not be computed.
struct ScalarFault {
    cause: String,
    /// Whether a target was there to compute with and the selector was good.
    computing: bool,
}

/// Object and External metrics: one number for the whole workload.
fn scalar(
    read: impl FnOnce() -> Result<i64, String>,
    pods: &[Pod<'_>],
    scale: super::Scale,
    target: ScalarTarget,
    tolerance: Tolerance,
) -> Result<Proposal, ScalarFault> {
    if target == ScalarTarget::Invalid {
        let cause =
            "invalid metric source: neither a value target nor an average value target was set";
        return Err(ScalarFault { cause: cause.to_owned(), computing: false });
    }
    let value = read().map_err(|cause| {
        let computing = cause.starts_with("unable to get");
        ScalarFault { cause, computing }
    })?;
    let mut account = tolerance.account();
    account.sum_milli = value;
    let (replicas, current) = match target {
        ScalarTarget::Value(target) => {
            account.ratio = value as f64 / target as f64;
            let replicas = match scale.spec_replicas {
                0 => account.ratio.ceil() as i32,
                replicas if tolerance.allows(account.ratio) => replicas,
                _ => {
                    account.ready =
                        ready_pods(pods).map_err(|cause| ScalarFault { cause, computing: true })?;
                    (account.ratio * account.ready as f64).ceil() as i32
                }
            };
            (replicas, Current::Value(value))
        }
        ScalarTarget::Average(target) => {
            let status_replicas = f64::from(scale.status_replicas);
            account.ratio = value as f64 / (target as f64 * status_replicas);
            let replicas = if tolerance.allows(account.ratio) {
                scale.status_replicas
            } else {
                (value as f64 / target as f64).ceil() as i32
            };
            let average = if value == i64::MAX {
                value
            } else {
                (value as f64 / status_replicas).ceil() as i64
            };
            (replicas, Current::Average(average))
        }
        ScalarTarget::Invalid => unreachable!("refused before anything is read"),
    };
    account.proposal = Some(replicas);
    Ok(Proposal { replicas, current, account })
}

fn ready_pods(pods: &[Pod<'_>]) -> Result<i64, String> {
    if pods.is_empty() {
        return Err(format!("unable to calculate ready pods: {NO_PODS}"));
    }
    let ready = |pod: &&Pod<'_>| {
        pod.phase == Phase::Running && pod.ready.is_some_and(|ready| ready.status == Some(true))
    };
    Ok(pods.iter().filter(ready).count() as i64)
}
