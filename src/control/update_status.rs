//! Updates the status of an evaluation: at once in the live status, and in the object if it differs
//! enough from the last write.

use super::context::ControllerContext;
use super::state::AutoscalerState;
use super::status::{LastWrite, digest, set_ready};
use crate::crd::{AutoscalerStatus, StatusDigest, conditions, digest_of_hpa};
use crate::leader::FencingToken;
use crate::watch::{AutoscalerKind, AutoscalerRef};

/// Sets the live status, and queues a write if this replica leads and the status written last is
/// outdated or was overwritten by another writer. What the object says already is not written again by a new leader.
pub fn update_status(
    ctx: &ControllerContext,
    token: Option<&FencingToken>,
    autoscaler: &AutoscalerRef,
    state: &mut AutoscalerState,
    mut status: AutoscalerStatus,
) {
    if autoscaler.kind == AutoscalerKind::Autoscaler {
        set_ready(&mut state.status, ctx.clock.wall_ms());
        status.conditions = Some(conditions(&state.status.conditions, status.observed_generation));
    }
    let (interval, shown) = (ctx.settings.status_interval, digest(autoscaler.kind, &status));
    let latest = ctx.live.set(autoscaler, status, &state.status.conditions);
    let Some(token) = token else { return };
    let is_pending = ctx.statuses.has(autoscaler, token.term());
    if std::mem::take(&mut state.is_unsaid_in_term) && !is_pending {
        // Whatever this replica wrote in an earlier term.
        state.written = of_object(ctx, autoscaler).map(|now| LastWrite::now(now, token.term()));
    }
    let decides_otherwise =
        state.written.as_ref().is_none_or(|written| written.decides_otherwise(&shown));
    let is_outdated = match &mut state.written {
        Some(written) => {
            // Whether it is written again or equal: it is of this term.
            written.term = token.term();
            written.is_outdated_by(&shown, interval)
                || (!is_pending && written.was_overwritten(|| of_object(ctx, autoscaler)))
        }
        None => true,
    };
    let is_queued = if is_outdated {
        ctx.statuses.put(token, autoscaler, &state.uid, (latest, decides_otherwise));
        true
    } else {
        // The older status is no longer in memory then.
        is_pending && ctx.statuses.renew(token, autoscaler, latest)
    };
    if is_queued {
        state.written = Some(LastWrite::now(shown, token.term()));
    }
}

/// The digest of the status that the object has, according to the watch.
fn of_object(ctx: &ControllerContext, autoscaler: &AutoscalerRef) -> Option<StatusDigest> {
    ctx.cluster.read(|index| match autoscaler.kind {
        AutoscalerKind::Autoscaler => {
            index.autoscaler(&autoscaler.key).map(|now| now.digest.clone())
        }
        AutoscalerKind::Hpa => index.hpa(&autoscaler.key).map(|now| digest_of_hpa(&now.status)),
    })
}
