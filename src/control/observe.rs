//! The inputs of an evaluation: the scale of its target and the samples of its metrics.

use super::context::{ControllerContext, Execution};
use super::decision_time::DecisionTime;
use super::foreign_writes;
use super::gather::{Gathered, gather};
use super::owners::Owned;
use super::state::AutoscalerState;
use super::targets::Target;
use super::zero;
use crate::crd::SelectionStrategy;
use crate::hpa::{self, Context, Spec, Status};
use crate::leader::FencingToken;
use crate::watch::{AutoscalerRef, ScalingSpec};
use tokio::time::Instant;

/// The inputs of one decision.
pub struct Observation<'a> {
    /// Spec, settings and time of the decision.
    pub context: Context<'a>,
    /// The scale target, or upstream's error text.
    pub target: Result<Target, String>,
    /// Whether the decision uses metrics: not at zero, out of bounds or without a selector.
    pub needs_samples: bool,
    /// The samples, one entry per metric; empty if the decision uses none.
    pub gathered: Vec<Gathered>,
    /// Which of the selected pods count.
    pub owned: Owned,
    /// The time of the decision by both clocks.
    pub at: DecisionTime,
}

/// Reads the scale of a target: from the watch cache, if its kind is watched. A pending scale to zero
/// is resolved by the scale in the API server, and so is one in doubt that was resolved before: at the beginning of a
/// term, because a leader that died may have scaled it up since, and not said so, and where the watch shows replicas.
pub async fn read_target(
    ctx: &ControllerContext,
    token: Option<&FencingToken>,
    autoscaler: &AutoscalerRef,
    spec: &Spec,
    state: &mut AutoscalerState,
) -> (Result<Target, String>, DecisionTime) {
    let (targets, namespace) = (&ctx.targets, &autoscaler.key.namespace);
    // While frozen, too: a zero that the owner sets then must not be taken for Plimsoll's.
    let pending = token.and_then(|_| zero::pending_since(&state.status));
    let is_in_doubt = token.is_some() && state.is_zero_in_doubt && zero::is_at_zero(&state.status);
    let target = match pending.is_some() || is_in_doubt {
        true => targets.read(namespace, &spec.target).await,
        false => targets.scale(&ctx.cluster, namespace, &spec.target).await,
    };
    let at = DecisionTime::now(&ctx.clock);
    state.is_zero_in_doubt &= is_in_doubt && target.is_err();
    if let (true, Ok(target)) = (is_in_doubt, &target) {
        zero::resolve(&mut state.status, target.replicas.spec_replicas, at.wall);
    }
    state.zero_pending_since =
        pending.and(state.zero_pending_since).or(pending.map(|_| at.process));
    if let (Ok(target), Some(since)) = (&target, pending) {
        let replicas = target.replicas.spec_replicas;
        if replicas == 0
            || !zero::may_come(Some(since), state.zero_pending_since, &state.rescales, at)
        {
            zero::resolve(&mut state.status, replicas, at.wall);
        }
    }
    (target, at)
}

/// Gathers the samples for a decision on this target.
pub async fn observe<'a>(
    ctx: &'a ControllerContext,
    autoscaler: &AutoscalerRef,
    scaling: &'a ScalingSpec,
    execution: Execution<'_>,
    target: Result<Target, String>,
    at: DecisionTime,
    state: &mut AutoscalerState,
) -> Observation<'a> {
    let spec = &scaling.spec;
    if let Ok(target) = &target {
        let scaled = ctx.scales(autoscaler) && !execution.is_preview;
        state.note_scale(spec, target, at, scaled);
        if let Some(change) = state.rescales.take_foreign() {
            foreign_writes::note(ctx, autoscaler, &spec.target, change, at, &mut state.warnings)
                .await;
        }
    }
    let until = Instant::now() + ctx.settings.decision_timeout;
    let context = Context::scheduled_at(spec, ctx.hpa_config(&state.status), at.wall, at.server);
    let needs_samples =
        target.as_ref().is_ok_and(|target| needs_samples(context, target, &state.status));
    let (gathered, owned) = match &target {
        Ok(target) if needs_samples => {
            let namespace = &autoscaler.key.namespace;
            tokio::join!(
                gather(ctx, namespace, scaling, &target.selector, until, state),
                owned(ctx, namespace, spec, execution.selection, target, until),
            )
        }
        _ => {
            state.queries.clear();
            (Vec::new(), Owned::All)
        }
    };
    Observation { context, target, needs_samples, gathered, owned, at }
}

/// Which of the selected pods count.
async fn owned(
    ctx: &ControllerContext,
    namespace: &str,
    spec: &Spec,
    selection: SelectionStrategy,
    target: &Target,
    until: Instant,
) -> Owned {
    let (SelectionStrategy::OwnerReference, Ok(selector)) = (selection, &target.parsed_selector)
    else {
        return Owned::All;
    };
    let owners = ctx.owners.of(&ctx.cluster, namespace, selector, &spec.target);
    let late = |_| format!("they were not read within {:?}", ctx.settings.decision_timeout);
    Owned::By(tokio::time::timeout_at(until, owners).await.map_err(late).flatten())
}

/// Whether a decision on such a target uses metrics at all.
pub fn needs_samples(context: Context<'_>, target: &Target, status: &Status) -> bool {
    let selects = !target.selector.is_empty() && target.parsed_selector.is_ok();
    selects && hpa::needs_samples(context, target.replicas, status)
}
