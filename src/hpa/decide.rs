//! One reconciliation, in two steps: [`decide`] before the scale is written,
//! [`complete_rescale`] after. Source: `reconcileAutoscaler` of upstream.

use super::decision::{Decision, Event, EventKind, Outcome};
use super::history::ScalingHistory;
use super::input::{Context, Input, NotSelected, Pod, Scale, Selected};
use super::metric;
use super::normalize::{normalize, rate_limited, removable};
use super::options::StandIn;
use super::reason::Reason;
use super::replica_calculator::{Proposal, Tolerance};
use super::status::{ConditionKind, Current, Status};
use super::trace::{Step, Trace};
use std::fmt::Arguments;

/// The proposal of all metrics together.
enum Proposed {
    Replicas {
        replicas: i32,
        metric: usize,
    },
    /// No proposal; the error.
    Nothing(String),
}

/// The state of a scale before any metric is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScaleState {
    /// At zero, and only its owner may scale it up.
    Disabled,
    AboveMax,
    BelowMin,
    /// The metrics decide.
    Measured,
}

impl ScaleState {
    fn of(context: Context<'_>, scale: Scale, status: &Status) -> Self {
        let (spec, current) = (context.spec, scale.spec_replicas);
        if current == 0 {
            let wakes = context.bounds.min != 0 || spec.has_object_or_external_metric();
            let measured = wakes && scaled_to_zero(context, status);
            // A schedule asks for replicas whatever the metrics say, or fail to.
            let is_scheduled = context.bounds.min > 0 && !spec.schedules.is_empty();
            if measured && is_scheduled {
                return Self::BelowMin;
            }
            return if measured { Self::Measured } else { Self::Disabled };
        }
        match current {
            _ if current > context.bounds.max => Self::AboveMax,
            _ if current < context.bounds.min => Self::BelowMin,
            _ => Self::Measured,
        }
    }
}

/// Whether the autoscaler itself scaled the workload to zero.
fn scaled_to_zero(context: Context<'_>, status: &Status) -> bool {
    context.config.scale_to_zero
        && status.condition(ConditionKind::ScaledToZero).is_some_and(|c| c.status)
}

/// Whether metrics may scale the workload to zero.
fn may_be_zero(context: Context<'_>) -> bool {
    context.config.scale_to_zero && context.bounds.min == 0
}

/// Whether [`decide`] evaluates metrics for a target with such a scale. If not,
/// `samples` may be empty.
pub fn needs_samples(context: Context<'_>, scale: Scale, status: &Status) -> bool {
    ScaleState::of(context, scale, status) == ScaleState::Measured
}

/// Decides once. Afterwards `status` is ready to be written, unless the
/// outcome is [`Outcome::Rescale`]: then [`complete_rescale`] completes it.
pub fn decide(
    input: &Input<'_>,
    history: &mut ScalingHistory,
    status: &mut Status,
    trace: &mut impl Trace,
) -> Decision {
    let mut decision = Decision::new();
    let Context { spec, now, bounds, .. } = input.context;
    let scale = match input.scale {
        Ok(scale) => scale,
        Err(error) => {
            decision.warn(Reason::FailedGetScale, error);
            let message = format_args!(
                "the HPA controller was unable to get the target's current scale: {error}"
            );
            status.set(ConditionKind::AbleToScale, false, Reason::FailedGetScale, message, now);
            decision.outcome = Outcome::Failed;
            decision.error = Some(error.to_owned());
            return decision;
        }
    };
    set(
        input.context,
        status,
        ConditionKind::AbleToScale,
        true,
        Reason::SucceededGetScale,
        format_args!("the HPA controller was able to get the target's current scale"),
    );
    let current = scale.spec_replicas;
    history.record_initial(current, now);
    status.current.clear();
    status.schedule = spec.moment(input.context.schedule_time).map(Box::new);
    if !status.metrics.is(&spec.metrics) {
        status.failing.clear();
    }
    status.metrics.clone_from(&spec.metrics);

    let scale_state = ScaleState::of(input.context, scale, status);
    if scale_state != ScaleState::Measured {
        // A metric fails only while it is measured.
        status.failing.clear();
    }
    let (desired, reason) = match scale_state {
        ScaleState::Disabled => {
            set(
                input.context,
                status,
                ConditionKind::ScalingActive,
                false,
                Reason::ScalingDisabled,
                format_args!("scaling is disabled since the replica count of the target is zero"),
            );
            if !input.context.config.scale_to_zero {
                status.remove(ConditionKind::ScaledToZero);
            }
            (0, String::new())
        }
        ScaleState::AboveMax => {
            // Those of a window that is over go as the policies allow.
            let moves_max = spec.schedules.moves_max();
            let desired = match moves_max && !spec.disables_scale_down() {
                true => removable(input, history, current).max(bounds.max),
                false => bounds.max,
            };
            trace.step(Step::OutOfBounds { replicas: desired });
            (desired, "Current number of replicas above Spec.MaxReplicas".to_owned())
        }
        ScaleState::BelowMin => {
            trace.step(Step::OutOfBounds { replicas: bounds.min });
            (bounds.min, BELOW_MIN.to_owned())
        }
        ScaleState::Measured => match propose(input, scale, status, &mut decision, trace) {
            Proposed::Nothing(error) => {
                status.current_replicas = current;
                decision.outcome = Outcome::Failed;
                decision.late_event = Some(Event {
                    kind: EventKind::Warning,
                    reason: Reason::FailedComputeMetricsReplicas,
                    message: error.clone(),
                });
                decision.error = Some(error);
                return decision;
            }
            Proposed::Replicas { replicas, metric } => {
                trace.step(Step::Proposed { replicas, metric });
                let replicas = replicas.max(0);
                let wanted = measured(input, history, status, current, replicas, metric, trace);
                decision.rate_limited = rate_limited(status);
                wanted
            }
        },
    };

    status.current_replicas = current;
    if desired == current {
        status.desired_replicas = current;
    } else {
        decision.outcome = Outcome::Rescale { from: current, to: desired, reason };
    }
    decision
}

const BELOW_MIN: &str = "Current number of replicas below Spec.MinReplicas";

/// The replicas within all limits, and why they are wanted, from the present ones and those that a
/// metric proposes.
fn measured(
    input: &Input<'_>,
    history: &mut ScalingHistory,
    status: &mut Status,
    current: i32,
    proposed: i32,
    metric: usize,
    trace: &mut impl Trace,
) -> (i32, String) {
    let spec = input.context.spec;
    let scaled_to_zero = scaled_to_zero(input.context, status);
    let mut desired = normalize(input, history, status, current, proposed, trace);
    let mut reason = String::new();
    if desired != current {
        reason = match proposed.cmp(&current) {
            // Upstream names a metric only if it asks for at least one replica.
            std::cmp::Ordering::Greater => format!("{} above target", spec.metrics[metric].label),
            std::cmp::Ordering::Less => "All metrics below target".to_owned(),
            std::cmp::Ordering::Equal => String::new(),
        };
    }
    if current == 0 && scaled_to_zero && desired < input.context.bounds.min {
        desired = input.context.bounds.min;
        if proposed == current {
            reason = BELOW_MIN.to_owned();
        } else if reason.is_empty() {
            reason = format!("{} above target", spec.metrics[metric].label);
        }
    }
    (desired, reason)
}

/// Completes a decision to rescale with the result of the write. Afterwards
/// `status` is ready to be written.
pub fn complete_rescale(
    context: Context<'_>,
    decision: &mut Decision,
    written: Result<(), &str>,
    history: &mut ScalingHistory,
    status: &mut Status,
) {
    let Outcome::Rescale { from, to, reason } = &decision.outcome else {
        return;
    };
    let (from, to) = (*from, *to);
    if let Err(error) = written {
        let message = format!("New size: {to}; reason: {reason}; error: {error}");
        decision.warn(Reason::FailedRescale, message);
        decision.outcome = Outcome::Failed;
        decision.error = Some(format!("failed to rescale: {error}"));
        set(
            context,
            status,
            ConditionKind::AbleToScale,
            false,
            Reason::FailedUpdateScale,
            format_args!("the HPA controller was unable to update the target scale: {error}"),
        );
        return;
    }
    set(
        context,
        status,
        ConditionKind::AbleToScale,
        true,
        Reason::SucceededRescale,
        format_args!("the HPA controller was able to update the target scale to {to}"),
    );
    decision.events.push(Event {
        kind: EventKind::Normal,
        reason: Reason::SuccessfulRescale,
        message: format!("New size: {to}; reason: {reason}"),
    });
    history.scaled(from, to, context.spec, context.now);
    if !context.config.scale_to_zero {
        status.remove(ConditionKind::ScaledToZero);
    } else if from > 0
        && to == 0
        && context.bounds.min == 0
        && context.spec.has_object_or_external_metric()
    {
        set(
            context,
            status,
            ConditionKind::ScaledToZero,
            true,
            Reason::ScaledToZero,
            format_args!("the HPA controller scaled the workload to zero"),
        );
    } else {
        set(
            context,
            status,
            ConditionKind::ScaledToZero,
            false,
            Reason::NotScaledToZero,
            format_args!("the HPA controller did not scale the workload to zero"),
        );
    }
    status.desired_replicas = to;
    status.last_scale = Some(context.now);
}

fn set(
    context: Context<'_>,
    status: &mut Status,
    kind: ConditionKind,
    holds: bool,
    reason: Reason,
    message: Arguments<'_>,
) {
    status.set(kind, holds, reason, message, context.now);
}

/// Computes every metric. The largest proposal wins, and a failed metric
/// prevents a scale-down.
fn propose(
    input: &Input<'_>,
    scale: Scale,
    status: &mut Status,
    decision: &mut Decision,
    trace: &mut impl Trace,
) -> Proposed {
    let pods = match select(input, status, decision) {
        Ok(pods) => pods,
        Err(error) => {
            // It is not known what the metrics say of the workload, as where they can't be read.
            decision.metrics_failed = matches!(input.selected, Selected::Unowned(_));
            if !decision.metrics_failed {
                status.failing.clear();
            }
            return Proposed::Nothing(error);
        }
    };
    let tolerance = tolerance(input);
    let metrics = &input.context.spec.metrics;
    let activity = (may_be_zero(input.context) && input.context.spec.has_activation())
        .then(|| metric::is_any_active(input, scale));
    let mut best = (0, None);
    let (mut best_measured, mut winner) = (None, None);
    let mut failed = 0;
    let (mut first_failure, mut first_ignored) = (None, None);
    for (index, of) in metrics.iter().enumerate() {
        let computed = metric::compute(input, pods, scale, index, tolerance);
        let failed_for = status.note_failure(index, computed.is_err(), input.context.now);
        let mut stand_in = None;
        let proposal = match computed {
            Ok(mut proposal) => {
                if let Some(is_any_active) = activity {
                    metric::apply_activation(&mut proposal, &of.options, is_any_active);
                }
                Some(proposal)
            }
            Err(failure) => {
                trace.failure(index, failure.reason.as_str(), &failure.cause);
                decision.warn(failure.reason, failure.cause.clone());
                stand_in = of.options.stand_in(failed_for, scale.spec_replicas > 0);
                if let Some(stand_in) = stand_in {
                    decision.substitute(stand_in, &of.label);
                }
                match stand_in {
                    Some(StandIn::Fallback(replicas)) => Some(Proposal::fixed(replicas)),
                    Some(StandIn::Hold) => Some(Proposal::hold(scale.spec_replicas)),
                    Some(StandIn::Ignore) => {
                        first_ignored.get_or_insert(failure);
                        None
                    }
                    None => {
                        failed += 1;
                        first_failure.get_or_insert(failure);
                        None
                    }
                }
            }
        };
        let Some(proposal) = proposal else {
            status.current.push(Current::None);
            trace.metric(index, &super::MetricTrace::default());
            continue;
        };
        if proposal.is_measured {
            best_measured = best_measured.max(Some(proposal.replicas));
        }
        status.current.push(proposal.current);
        trace.metric(index, &proposal.trace);
        if best.0 == 0 || proposal.replicas > best.0 {
            best = (proposal.replicas, Some(index));
            winner = stand_in;
        }
    }
    decision.is_by_fallback = matches!(winner, Some(StandIn::Fallback(_)));
    if best.1.is_none() && first_failure.is_none() {
        // Nothing is left to decide on.
        failed += usize::from(first_ignored.is_some());
        first_failure = first_ignored;
    }
    let total = metrics.len();
    decision.error = first_failure.as_ref().map(|failure| {
        format!(
            "invalid metrics ({failed} invalid out of {total}), first error is: {}",
            failure.error
        )
    });
    match (best, first_failure) {
        ((replicas, Some(metric)), None) => {
            active(input, status, (replicas, metric), winner, decision)
        }
        // Metrics that only hold do not stand for one that failed: the fallback does.
        ((replicas, Some(metric)), Some(_))
            if replicas >= scale.spec_replicas
                && best_measured.is_some_and(|best| best >= scale.spec_replicas) =>
        {
            active(input, status, (replicas, metric), winner, decision)
        }
        (_, first_failure) => {
            decision.metrics_failed = first_failure.is_some();
            decision.substitute = None;
            if let Some(failure) = first_failure {
                set(
                    input.context,
                    status,
                    ConditionKind::ScalingActive,
                    false,
                    failure.reason,
                    format_args!(
                        "the HPA was unable to compute the replica count: {}",
                        failure.cause
                    ),
                );
            }
            Proposed::Nothing(
                decision.error.take().unwrap_or_else(|| "no metrics are given".to_owned()),
            )
        }
    }
}

/// The replicas by a metric, or by what stands for it.
fn active(
    input: &Input<'_>,
    status: &mut Status,
    (replicas, metric): (i32, usize),
    stand_in: Option<StandIn>,
    decision: &Decision,
) -> Proposed {
    let kind = ConditionKind::ScalingActive;
    match (stand_in, &decision.substitute) {
        (Some(stand_in), Some(substitute)) => {
            let message = format_args!("{}", substitute.message);
            set(input.context, status, kind, true, stand_in.reason(), message);
        }
        _ => {
            let label = &input.context.spec.metrics[metric].label;
            let message = format_args!(
                "the HPA was able to successfully calculate a replica count from {label}"
            );
            set(input.context, status, kind, true, Reason::ValidMetricFound, message);
        }
    }
    Proposed::Replicas { replicas, metric }
}

/// The selected pods, or why the selector is invalid.
fn select<'a>(
    input: &Input<'a>,
    status: &mut Status,
    decision: &mut Decision,
) -> Result<&'a [Pod<'a>], String> {
    let NotSelected { event, reason, cause, message } = match input.selected.pods() {
        Ok(pods) => return Ok(pods),
        Err(not) => not,
    };
    decision.warn(event, cause.clone());
    set(
        input.context,
        status,
        ConditionKind::ScalingActive,
        false,
        reason,
        format_args!("{message}"),
    );
    Err(cause)
}

fn tolerance(input: &Input<'_>) -> Tolerance {
    let default = input.context.config.tolerance;
    let of = |rules: fn(&super::Behavior) -> &super::ScalingRules| {
        input.context.spec.behavior.as_ref().and_then(|b| rules(b).tolerance).unwrap_or(default)
    };
    Tolerance { down: of(|b| &b.scale_down), up: of(|b| &b.scale_up) }
}
