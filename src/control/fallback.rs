//! The fallback: a minimum of replicas after a number of evaluations in a row whose metrics failed.
//! It never removes a replica, and never scales up a workload that is at zero.

use super::context::ApplyContext;
use super::decision_time::DecisionTime;
use super::rescales::Change;
use super::state::AutoscalerState;
use super::targets::WriteError;
use super::zero;
use crate::crd::Fallback;
use crate::hpa::{
    ConditionKind, Context, Decision, Event, EventKind, Reason, ScalingHistory, Spec, Status,
    Substitute,
};
use crate::time::UnixMillis;

/// How often a scale-up is tried if other writers change the scale.
const FALLBACK_ATTEMPTS: u32 = 5;

/// Scales up to the fallback's replicas if there are fewer. Returns the event.
pub async fn apply(
    apply: ApplyContext<'_>,
    context: Context<'_>,
    fallback: &Fallback,
    replicas: i32,
    status: &mut Status,
    state: &mut AutoscalerState,
) -> Option<Event> {
    let ApplyContext { ctx, autoscaler, .. } = apply;
    let spec = context.spec;
    let least = fallback.replicas.clamp(context.bounds.min, context.bounds.max);
    status.set(
        ConditionKind::FallbackActive,
        true,
        Reason::MetricsFailed,
        format_args!("metrics unavailable: the fallback requires at least {least} replicas"),
        context.now,
    );
    // A workload at zero was switched off, and no metric says that it is needed.
    if replicas <= 0 || replicas >= least {
        return None;
    }
    let times = state.failures.rounds();
    let reported = state.status.last_scale;
    let zero_before = state.status.condition(ConditionKind::ScaledToZero).cloned();
    let written = scale_up(apply, spec, least, state).await;
    if state.status.last_scale != reported {
        // It has read that an earlier write took effect.
        let Status { last_scale, desired_replicas, .. } = state.status;
        (status.last_scale, status.desired_replicas) = (last_scale, desired_replicas);
        zero::note_rescale(status, desired_replicas, context.now);
    }
    if state.status.condition(ConditionKind::ScaledToZero) != zero_before.as_ref() {
        // It has read that the workload is no longer at Plimsoll's zero.
        zero::note_rescale(status, replicas, context.now);
    }
    match written {
        Ok(Some(from)) => {
            // The time of the write, not of the decision.
            let at = DecisionTime::now(&ctx.clock);
            status.desired_replicas = least;
            status.last_scale = Some(at.wall);
            zero::note_rescale(status, least, at.wall);
            let raised =
                |history: &mut ScalingHistory| history.record_fallback(from, least, spec, at.wall);
            state.edit_history(at, raised);
            state.rescaled(from, least, at.process, at.wall);
            state.is_unsaved = true;
            let message = format!(
                "New size: {least}; reason: fallback, the metrics failed {times} times in a row"
            );
            Some(Event { kind: EventKind::Warning, reason: Reason::FallbackRescale, message })
        }
        Ok(None) => None,
        Err(error) => {
            tracing::warn!(%autoscaler, error = error.to_string(), "Failed to scale up to the fallback");
            None
        }
    }
}

/// Shows what stands for metrics that failed, where the fallback of the whole does not apply.
pub fn show(decision: &Decision, metrics_failed: bool, status: &mut Status, now: UnixMillis) {
    let kind = ConditionKind::FallbackActive;
    match &decision.substitute {
        Some(Substitute { reason, message }) => {
            status.set(kind, true, *reason, format_args!("{message}"), now);
        }
        None if metrics_failed => status.end(kind, "nothing stands for the metrics", now),
        None => status.end(kind, "nothing stands for a metric", now),
    }
}

/// Shows that nothing stands for single metrics, where there is no decision. The fallback of the whole lasts until
/// there is one.
pub fn end_stand_ins(status: &mut Status, now: UnixMillis) {
    let kind = ConditionKind::FallbackActive;
    if status.condition(kind).is_some_and(|one| one.reason != Reason::MetricsFailed) {
        status.end(kind, "nothing stands for the metrics", now);
    }
}

/// Writes `to` replicas if there are fewer, and returns the number before. It writes nothing if by
/// now there are enough, the workload was switched off, or the autoscaler was deleted or changed.
async fn scale_up(
    apply: ApplyContext<'_>,
    spec: &Spec,
    to: i32,
    state: &mut AutoscalerState,
) -> Result<Option<i32>, WriteError> {
    let ApplyContext { ctx, token, autoscaler, .. } = apply;
    for _ in 0..FALLBACK_ATTEMPTS {
        let target = ctx.targets.read(&autoscaler.key.namespace, &spec.target).await;
        let target = target.map_err(WriteError::Failed)?;
        state.note_scale(spec, &target, DecisionTime::now(&ctx.clock), true);
        let from = target.replicas.spec_replicas;
        let Some(object) = target.object.filter(|_| (1..to).contains(&from)) else {
            return Ok(None);
        };
        let is_current = || apply.is_current(&state.uid, spec);
        match ctx.targets.write(token, &object, to, is_current).await {
            Ok(()) => return Ok(Some(from)),
            Err(WriteError::Changed) if !apply.is_current(&state.uid, spec) => return Ok(None),
            Err(WriteError::Changed) => {}
            Err(error) => {
                if matches!(error, WriteError::Indeterminate(_)) {
                    let change = Change { from, to, at: ctx.clock.elapsed() };
                    state.rescales.note_indeterminate(change);
                    state.open_fallback = Some(change);
                }
                return Err(error);
            }
        }
    }
    Err(WriteError::Changed)
}
