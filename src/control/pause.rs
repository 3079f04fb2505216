//! Pauses of an Autoscaler that end by themselves.

use super::decision_time::DecisionTime;
use crate::crd::{AutoscalerSpec, Mode};
use crate::hpa::{ConditionKind, Event, EventKind, Status};
use crate::time::UnixMillis;

/// The reason of the condition `Paused` while `mode` says so and `pause.until` is over.
const PAUSE_IS_OVER: &str = "PauseIsOver";

/// When a pause ends, by the clock of this process, if it does.
pub fn end(spec: &AutoscalerSpec, mode: Mode, at: DecisionTime) -> Option<UnixMillis> {
    let until = spec.pause.as_ref()?.until.as_ref().filter(|_| mode == Mode::Paused)?;
    Some(at.process.saturating_add(until.0.as_millisecond().saturating_sub(at.server)))
}

/// Shows that a pause is over while `mode` still is `Paused`, where whoever has just set that thinks that the scale is left
/// alone. Returns the event of it, once.
pub fn note_end(
    spec: &AutoscalerSpec,
    mode: Mode,
    status: &mut Status,
    now: UnixMillis,
) -> Option<Event> {
    let kind = ConditionKind::Paused;
    let shown = status.condition(kind).filter(|shown| shown.reason == PAUSE_IS_OVER);
    let Some(until) = spec.pause_that_is_over(mode) else {
        if shown.is_some() && mode != Mode::Paused {
            status.set(kind, false, "Ended", format_args!("it is not paused"), now);
        }
        return None;
    };
    let message = format!(
        "mode is Paused, but pause.until, {until}, is over: the scale is written. `kubectl plimsoll pause` pauses it again, or mode Paused without pause.until"
    );
    let is_known = shown.is_some_and(|shown| shown.message == message);
    status.set(kind, false, PAUSE_IS_OVER, format_args!("{message}"), now);
    (!is_known).then_some(Event { kind: EventKind::Warning, reason: PAUSE_IS_OVER, message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(mode: &str) -> AutoscalerSpec {
        AutoscalerSpec::read(json!({"maxReplicas": 9, "mode": mode,
            "pause": {"until": "2026-11-23T12:00:00Z"},
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}))
        .expect("a spec")
    }

    #[test]
    fn a_pause_that_is_over_is_told_of_once_each_time_the_mode_is_set() {
        let mut status = Status::default();
        for (mode, at, told, reason) in [
            ("Active", Mode::Active, false, None),
            ("Paused", Mode::Paused, false, None),
            ("Paused", Mode::Active, true, Some(PAUSE_IS_OVER)),
            ("Paused", Mode::Active, false, Some(PAUSE_IS_OVER)),
            ("Active", Mode::Active, false, Some("Ended")),
            ("Paused", Mode::Active, true, Some(PAUSE_IS_OVER)),
        ] {
            let event = note_end(&spec(mode), at, &mut status, 0);
            assert_eq!(event.is_some(), told, "{mode} {at:?}");
            let paused = status.condition(ConditionKind::Paused);
            assert_eq!(paused.map(|paused| &*paused.reason), reason, "{mode} {at:?}");
            assert!(paused.is_none_or(|paused| !paused.status));
            if let Some(event) = event {
                assert!(event.message.contains("2026-11-23T12:00:00Z"), "{event:?}");
            }
        }
    }
}
