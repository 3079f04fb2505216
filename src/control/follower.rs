//! A decision of a replica that does not lead: its history is kept, so that no window starts empty
//! when the replica acquires the Lease, and nothing is written.

use super::context::{ControllerContext, SyncResult};
use super::evaluate::Evaluation;
use super::state::AutoscalerState;
use super::status;
use crate::hpa::Outcome;
use crate::watch::AutoscalerRef;
use std::sync::Arc;

/// Keeps the history of a decision and shows it in the live status.
pub fn apply(
    ctx: &ControllerContext,
    autoscaler: &AutoscalerRef,
    evaluation: Evaluation<'_>,
    state: &mut AutoscalerState,
) -> SyncResult {
    let Evaluation { context, target, decision, history, mut status, at, account, .. } = evaluation;
    state.account = account;
    state.set_history(history, at, ctx.longest_window());
    state.count_failure(&decision, target.is_ok(), (at.process, ctx.period(autoscaler)));
    if let Ok(target) = &target {
        status.desired_replicas = match decision.outcome {
            Outcome::Rescale { to, .. } => to,
            Outcome::Hold | Outcome::Failed => target.replicas.spec_replicas,
        };
    }
    let rendered = status::render(&status, context.spec, None);
    ctx.live.set(autoscaler, Arc::new(rendered));
    SyncResult::Followed
}
