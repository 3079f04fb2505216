//! Updates the status of an evaluation: at once in the live status, and in the object if it differs
//! enough from the last write.

use super::context::ControllerContext;
use super::state::AutoscalerState;
use super::status::{LastWrite, conditions, set_ready};
use crate::crd::AutoscalerStatus;
use crate::hpa::Status;
use crate::leader::FencingToken;
use crate::watch::{AutoscalerKind, AutoscalerRef};
use std::sync::Arc;

/// Sets the live status, and queues a write if this replica leads and the status written last is
/// outdated or was overwritten by another writer.
pub fn update_status(
    ctx: &ControllerContext,
    token: Option<&FencingToken>,
    autoscaler: &AutoscalerRef,
    state: &mut AutoscalerState,
    mut status: AutoscalerStatus,
) {
    if autoscaler.kind == AutoscalerKind::Autoscaler {
        set_ready(&mut state.status, ctx.clock.wall_ms());
        status.conditions = Some(conditions(&state.status, status.observed_generation));
    }
    let status = Arc::new(status);
    ctx.live.set(autoscaler, status.clone());
    let Some(token) = token else { return };
    let interval = ctx.settings.status_interval;
    let of_object = || {
        ctx.cluster.read(|index| match autoscaler.kind {
            AutoscalerKind::Autoscaler => {
                index.autoscaler(&autoscaler.key).map(|now| now.status.clone())
            }
            AutoscalerKind::Hpa => {
                index.hpa(&autoscaler.key).map(|now| Status::from_api(&now.status))
            }
        })
    };
    let is_outdated = match &mut state.written {
        Some(written) => {
            // Whether it is written again or equal: it is of this term.
            written.term = token.term();
            written.is_outdated_by(&status, interval)
                || (!ctx.statuses.has(autoscaler) && written.was_overwritten(of_object))
        }
        None => true,
    };
    if is_outdated {
        ctx.statuses.put(token, autoscaler, &state.uid, status.clone());
        state.written = Some(LastWrite::now(status, token.term()));
    }
}
