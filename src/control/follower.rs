//! A replica that does not lead: it keeps the history, so that no window starts empty when it acquires the Lease, and
//! writes nothing. It looks at each scale in each period. An autoscaler at rest decides alike without a history: its
//! metrics, which the leader asks for too, are read in one of a few periods, unless they fail and have a fallback.

use super::context::{ControllerContext, Execution, SyncResult};
use super::evaluate::Evaluation;
use super::observe::read_target;
use super::state::AutoscalerState;
use super::status;
use crate::hpa::{Condition, ConditionKind, Metric, Outcome, Spec};
use crate::watch::AutoscalerRef;

/// Keeps the history of a decision and shows it in the live status.
pub fn apply(
    ctx: &ControllerContext,
    autoscaler: &AutoscalerRef,
    (evaluation, execution): (Evaluation<'_>, Execution<'_>),
    state: &mut AutoscalerState,
) -> SyncResult {
    let Evaluation { context, target, decision, history, mut status, at, .. } = evaluation;
    state.set_history(history, at, ctx.longest_window());
    let failed =
        state.count_failure(&decision, target.is_ok(), (at.process, ctx.period(autoscaler)));
    state.status.note_failing(&status);
    state.followed = None;
    if let Ok(target) = &target {
        let replicas = target.replicas.spec_replicas;
        // A fallback counts how long they fail.
        let is_failing = (failed || status.failing.iter().any(Option::is_some))
            && has_fallback(context.spec, execution);
        let is_at_rest = !is_failing && state.is_at_rest(context, replicas, at.process);
        state.followed = state.turn.zip(is_at_rest.then_some(replicas));
        status.desired_replicas = match decision.outcome {
            Outcome::Rescale { to, .. } => to,
            Outcome::Hold | Outcome::Failed => target.replicas.spec_replicas,
        };
    }
    let rendered = status::render(&status, context.spec, None);
    ctx.live.set(autoscaler, rendered, &status.conditions);
    SyncResult::Followed
}

/// Notes changes of the scale. Returns whether that is enough: its metrics were read in this turn, at the same
/// replicas. These count as recommended then, so that no window ends before those of the leader: it would have
/// scaled up, and where the load has fallen since, replicas are kept a little longer.
pub async fn looked(
    ctx: &ControllerContext,
    autoscaler: &AutoscalerRef,
    (spec, execution): (&Spec, Execution<'_>),
    state: &mut AutoscalerState,
) -> bool {
    let Some(replicas) = state.followed_at() else { return false };
    if has_fallback(spec, execution) && leader_shows_failure(ctx, autoscaler, spec, state) {
        return false;
    }
    let read = ctx.bounded(read_target(ctx, None, autoscaler, spec, state)).await;
    let Ok((Ok(target), at)) = read else { return false };
    state.note_scale(spec, &target, at, ctx.scales(autoscaler) && !execution.is_preview);
    let is_enough = target.replicas.spec_replicas == replicas;
    if is_enough {
        state.history.keep(replicas, at.process);
    }
    is_enough
}

/// Whether something replaces metrics that fail for a while. Where nothing does, a server in trouble is not asked more.
fn has_fallback(spec: &Spec, execution: Execution<'_>) -> bool {
    let of_metric = |metric: &Metric| metric.options.fallback.is_some();
    execution.fallback.is_some() || spec.metrics.iter().any(of_metric)
}

/// Whether the leader shows that it could not read the metrics, or one that has a fallback of its own.
fn leader_shows_failure(
    ctx: &ControllerContext,
    autoscaler: &AutoscalerRef,
    spec: &Spec,
    state: &AutoscalerState,
) -> bool {
    let active = state.status.condition(ConditionKind::ScalingActive);
    if active.is_some_and(Condition::is_fault) {
        return true;
    }
    let Some(record) = ctx.cluster.read(|index| index.autoscaler(&autoscaler.key)) else {
        return false;
    };
    let mut metrics = spec.metrics.iter().enumerate();
    metrics.any(|(index, of)| of.options.fallback.is_some() && record.digest.lacks_value(index))
}
