//! The condition `ScaledToZero`: it is written before the scale is, because only it leads back
//! from zero, and it is resolved by the scale afterwards.

use super::decision_time::DecisionTime;
use super::rescales::Rescales;
use crate::hpa::{ConditionKind, Reason, Status};
use crate::time::UnixMillis;

/// How long a scale to zero may take effect after it was announced, by this or another replica: one
/// request for the status, one for the scale, and the API server's own time.
const PENDING_MS: i64 = 30_000;
/// Upstream's messages.
const SCALED: &str = "the HPA controller scaled the workload to zero";
const NOT_SCALED: &str = "the HPA controller did not scale the workload to zero";

/// Resolves an announced scale to zero by the replicas that the scale has now.
pub fn resolve(status: &mut Status, replicas: i32, now: UnixMillis) {
    let kind = ConditionKind::ScaledToZero;
    match replicas {
        0 => status.set(kind, true, Reason::ScaledToZero, format_args!("{SCALED}"), now),
        _ => status.set(kind, false, Reason::NotScaledToZero, format_args!("{NOT_SCALED}"), now),
    }
}

/// Resolves the condition after this replica has changed the scale other than by a decision, which
/// does so itself. One that never was at zero has no condition.
pub fn note_rescale(status: &mut Status, replicas: i32, now: UnixMillis) {
    if replicas == 0 || status.condition(ConditionKind::ScaledToZero).is_some() {
        resolve(status, replicas, now);
    }
}

/// Since when a status announces a scale to zero that is not resolved.
pub fn pending_since(status: &Status) -> Option<UnixMillis> {
    let condition = status.condition(ConditionKind::ScaledToZero)?;
    (condition.reason == Reason::ScalingToZero).then_some(condition.since)
}

/// Whether a status says that the workload was scaled to zero.
pub fn is_at_zero(status: &Status) -> bool {
    status
        .condition(ConditionKind::ScaledToZero)
        .is_some_and(|condition| condition.status && condition.reason == Reason::ScaledToZero)
}

/// Whether a scale to zero may still take effect: one that this or another replica announced at this
/// time, by its own wall clock, and that this process has known of since `known`, by its clock, or an
/// indeterminate write of this replica.
pub fn may_come(
    announced: Option<UnixMillis>,
    known: Option<UnixMillis>,
    rescales: &Rescales,
    at: DecisionTime,
) -> bool {
    announced.is_some_and(|since| (at.wall - since).abs() < PENDING_MS)
        || (announced.is_some() && known.is_some_and(|since| at.process - since < PENDING_MS))
        || rescales.is_indeterminate(0, at.process - PENDING_MS)
}

/// Announces a scale to zero, with the present as its time: the workload may have been at zero
/// before.
pub fn announce(status: &mut Status, now: UnixMillis) {
    let text = format_args!("the workload is being scaled to zero");
    status.remove(ConditionKind::ScaledToZero);
    status.set(ConditionKind::ScaledToZero, true, Reason::ScalingToZero, text, now);
}
