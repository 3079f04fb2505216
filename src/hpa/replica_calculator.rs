//! The replicas that the samples of one metric propose.
//! Source: `replica_calculator.go` of upstream.

use super::input::{Input, Phase, Pod, PodSamples, Sample};
use super::spec::ScalarTarget;
use super::status::Current;
use super::trace::MetricTrace;

/// The proposal of one metric, and its current value.
pub(super) struct Proposal {
    pub replicas: i32,
    pub current: Current,
    pub trace: MetricTrace,
    /// Whether it comes from a sample, or only holds the present replicas.
    pub is_measured: bool,
}

impl Proposal {
    /// The proposal to leave these replicas as they are.
    pub fn hold(replicas: i32) -> Self {
        Self { is_measured: false, ..Self::fixed(replicas) }
    }

    /// The proposal of this number of replicas, without a value.
    pub fn fixed(replicas: i32) -> Self {
        let trace = MetricTrace { proposal: Some(replicas), ..Default::default() };
        Self { replicas, current: Current::None, trace, is_measured: true }
    }
}

/// How far the ratio may be from 1 without a change.
#[derive(Clone, Copy)]
pub(super) struct Tolerance {
    pub down: f64,
    pub up: f64,
}

impl Tolerance {
    fn allows(self, ratio: f64) -> bool {
        1.0 - self.down <= ratio && ratio <= 1.0 + self.up
    }

    fn trace(self) -> MetricTrace {
        MetricTrace { tolerance_down: self.down, tolerance_up: self.up, ..Default::default() }
    }
}

const NO_PODS: &str = "no pods returned by selector while calculating replica count";
const NO_SAMPLES: &str = "did not receive metrics for targeted pods (pods might be unready)";

/// How a pod counts for one metric.
enum PodGroup {
    Ready(Sample),
    Unready,
    Missing,
    Ignored,
}

/// Source: `groupPods` of upstream.
fn group(pod: &Pod<'_>, sample: Option<Sample>, cpu: bool, input: &Input<'_>) -> PodGroup {
    if pod.deleting || pod.phase == Phase::Failed {
        return PodGroup::Ignored;
    }
    if pod.phase == Phase::Pending {
        return PodGroup::Unready;
    }
    let Some(sample) = sample else {
        return PodGroup::Missing;
    };
    if cpu {
        let (config, warm_up) = (input.context.config, input.context.spec.warm_up);
        let initialization = warm_up.cpu_initialization_ms.unwrap_or(config.cpu_initialization_ms);
        let delay = warm_up.initial_readiness_delay_ms.unwrap_or(config.initial_readiness_delay_ms);
        let unready = match (pod.ready, pod.start) {
            (Some(ready), Some(start)) => {
                if start + initialization > input.context.now {
                    // It may still be starting: only a sample whose whole window is since it became ready counts.
                    ready.status == Some(false) || sample.time < ready.since + sample.window_ms
                } else {
                    // It is past its start: it counts as unready only if it was never ready.
                    ready.status == Some(false) && start + delay > ready.since
                }
            }
            _ => true,
        };
        if unready {
            return PodGroup::Unready;
        }
    }
    PodGroup::Ready(sample)
}

/// Whether the pods without a counted sample change nothing, so that only the ratio
/// of the ready pods counts.
fn decided_by_ready_pods(trace: &MetricTrace) -> bool {
    trace.missing == 0 && !(trace.unready > 0 && trace.ratio > 1.0)
}

/// The replicas for the ratio of only the ready pods.
fn ready_replicas(trace: &MetricTrace, tolerance: Tolerance, now: i32) -> i32 {
    if tolerance.allows(trace.ratio) {
        return now;
    }
    (trace.ratio * trace.ready as f64).ceil() as i32
}

/// The replicas for a ratio that includes unready and missing pods,
/// for `pods` pods; never against the direction of the first ratio.
fn weighted_replicas(trace: &MetricTrace, tolerance: Tolerance, pods: i64, now: i32) -> i32 {
    let (first, ratio) = (trace.ratio, trace.weighted_ratio.unwrap_or(trace.ratio));
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
pub(super) fn average(
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
    let mut trace = tolerance.trace();
    trace.unselected = samples.unselected.count;
    trace.sum_milli = samples.unselected.sum_milli;
    let cpu = resource == Some("cpu");
    for (pod, sample) in pods.iter().zip(samples.of_pods) {
        match group(pod, *sample, cpu, input) {
            PodGroup::Ready(sample) => {
                trace.ready += 1;
                trace.sum_milli = trace.sum_milli.wrapping_add(sample.milli);
            }
            PodGroup::Unready => trace.unready += 1,
            PodGroup::Missing => trace.missing += 1,
            PodGroup::Ignored => trace.ignored += 1,
        }
    }
    let counted = trace.ready + trace.unselected;
    if counted == 0 {
        return Err(NO_SAMPLES.to_owned());
    }
    let usage = trace.sum_milli / counted;
    trace.ratio = usage as f64 / target as f64;

    let replicas = if decided_by_ready_pods(&trace) {
        ready_replicas(&trace, tolerance, scale.spec_replicas)
    } else {
        let (mut sum, mut weighted) = (trace.sum_milli, counted);
        if trace.ratio < 1.0 {
            sum = sum.wrapping_add(target.wrapping_mul(trace.missing));
        }
        if trace.ratio != 1.0 {
            weighted += trace.missing;
        }
        if trace.ratio > 1.0 {
            weighted += trace.unready;
        }
        trace.weighted_ratio = Some((sum / weighted) as f64 / target as f64);
        weighted_replicas(&trace, tolerance, weighted, scale.spec_replicas)
    };
    trace.proposal = Some(replicas);
    Ok(Proposal { replicas, current: Current::Average(usage), trace, is_measured: true })
}

/// A resource of whole pods, or of one container of each.
#[derive(Clone, Copy)]
pub(super) struct Resource<'a> {
    pub name: &'a str,
    pub container: Option<&'a str>,
}

/// Source: `GetResourceReplicas` of upstream.
pub(super) fn utilization(
    input: &Input<'_>,
    pods: &[Pod<'_>],
    scale: super::Scale,
    target: i32,
    samples: PodSamples<'_>,
    resource: Resource<'_>,
    tolerance: Tolerance,
) -> Result<Proposal, String> {
    if pods.is_empty() {
        return Err(NO_PODS.to_owned());
    }
    let mut trace = tolerance.trace();
    trace.unselected = samples.unselected.count;
    let cpu = resource.name == "cpu";
    let fallback = i64::from(target.max(100));
    let (mut requests, mut unready, mut missing) = (0_i64, 0_i64, 0_i64);
    let mut missing_usage = 0_i64;
    let mut fault = None;
    for (pod, sample) in pods.iter().zip(samples.of_pods) {
        let request = match pod.requests.milli(resource.name, resource.container, pod.name) {
            Ok(request) => request,
            Err(error) => {
                fault.get_or_insert(error);
                0
            }
        };
        match group(pod, *sample, cpu, input) {
            PodGroup::Ready(sample) => {
                trace.ready += 1;
                trace.sum_milli = trace.sum_milli.wrapping_add(sample.milli);
                requests = requests.wrapping_add(request);
            }
            PodGroup::Unready => {
                trace.unready += 1;
                unready = unready.wrapping_add(request);
            }
            PodGroup::Missing => {
                trace.missing += 1;
                missing = missing.wrapping_add(request);
                missing_usage = missing_usage.wrapping_add(request.wrapping_mul(fallback) / 100);
            }
            PodGroup::Ignored => trace.ignored += 1,
        }
    }
    let counted = trace.ready + trace.unselected;
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
    let (percent, first) = ratio(trace.sum_milli, requests)?;
    trace.ratio = first;

    let replicas = if decided_by_ready_pods(&trace) {
        ready_replicas(&trace, tolerance, scale.spec_replicas)
    } else {
        let (mut sum, mut weighted) = (trace.sum_milli, counted);
        if trace.ratio < 1.0 {
            sum = sum.wrapping_add(missing_usage);
        }
        if trace.ratio != 1.0 {
            requests = requests.wrapping_add(missing);
            weighted += trace.missing;
        }
        if trace.ratio > 1.0 {
            requests = requests.wrapping_add(unready);
            weighted += trace.unready;
        }
        trace.weighted_ratio = Some(ratio(sum, requests)?.1);
        weighted_replicas(&trace, tolerance, weighted, scale.spec_replicas)
    };
    trace.proposal = Some(replicas);
    let average = trace.sum_milli / trace.ready;
    Ok(Proposal {
        replicas,
        current: Current::Utilization(percent, average),
        trace,
        is_measured: true,
    })
}

/// Why an Object or External metric could not be computed.
pub(super) struct ScalarFault {
    pub cause: String,
    /// Whether there was a target and the selector was valid, so that the computation itself failed.
    pub is_compute_failure: bool,
}

/// Object and External metrics: one number for the whole workload.
pub(super) fn scalar(
    read: impl FnOnce() -> Result<i64, String>,
    pods: &[Pod<'_>],
    scale: super::Scale,
    target: ScalarTarget,
    tolerance: Tolerance,
) -> Result<Proposal, ScalarFault> {
    if target == ScalarTarget::Invalid {
        let cause =
            "invalid metric source: neither a value target nor an average value target was set";
        return Err(ScalarFault { cause: cause.to_owned(), is_compute_failure: false });
    }
    let value = read().map_err(|cause| {
        let is_compute_failure = cause.starts_with("unable to get");
        ScalarFault { cause, is_compute_failure }
    })?;
    let mut trace = tolerance.trace();
    trace.sum_milli = value;
    let (replicas, current) = match target {
        ScalarTarget::Value(target) => {
            trace.ratio = value as f64 / target as f64;
            let replicas = match scale.spec_replicas {
                0 => trace.ratio.ceil() as i32,
                replicas if tolerance.allows(trace.ratio) => replicas,
                _ => {
                    trace.ready = ready_pods(pods)
                        .map_err(|cause| ScalarFault { cause, is_compute_failure: true })?;
                    (trace.ratio * trace.ready as f64).ceil() as i32
                }
            };
            (replicas, Current::Value(value))
        }
        ScalarTarget::Average(target) => {
            let status_replicas = f64::from(scale.status_replicas);
            trace.ratio = value as f64 / (target as f64 * status_replicas);
            let replicas = if tolerance.allows(trace.ratio) {
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
    trace.proposal = Some(replicas);
    Ok(Proposal { replicas, current, trace, is_measured: true })
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
