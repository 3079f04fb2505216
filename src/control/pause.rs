//! Pauses of an Autoscaler that end by themselves, and those that are none.

use super::decision_time::DecisionTime;
use crate::crd::{AutoscalerSpec, Mode};
use crate::hpa::{Condition, ConditionKind, Event, EventKind, Reason, Status};
use crate::time::UnixMillis;

/// When a pause ends, by the clock of this process, if it does.
pub fn end(spec: &AutoscalerSpec, mode: Mode, at: DecisionTime) -> Option<UnixMillis> {
    let until = spec.pause.as_ref()?.until.as_ref().filter(|_| mode == Mode::Paused)?;
    Some(at.process.saturating_add(until.0.as_millisecond().saturating_sub(at.server)))
}

/// Shows that what looks like a pause is none, where whoever has just set it thinks that the scale is left alone: it is
/// over while `mode` still is `Paused`, or `mode` does not say so. Returns the event of it, once.
pub fn note(
    spec: &AutoscalerSpec,
    mode: Mode,
    status: &mut Status,
    now: UnixMillis,
) -> Option<Event> {
    let kind = ConditionKind::Paused;
    let is_ours = |shown: &&Condition| {
        shown.reason == Reason::PauseIsOver || shown.reason == Reason::ModeIsActive
    };
    let shown = status.condition(kind).filter(is_ours);
    let Some((reason, message)) = fault(spec, mode) else {
        if shown.is_some() && mode != Mode::Paused {
            status.set(kind, false, Reason::Ended, format_args!("it is not paused"), now);
        }
        return None;
    };
    let is_known = shown.is_some_and(|shown| shown.message == message);
    status.set(kind, false, reason, format_args!("{message}"), now);
    (!is_known).then_some(Event { kind: EventKind::Warning, reason, message })
}

/// Why a pause is none: a reason, and a text.
fn fault(spec: &AutoscalerSpec, mode: Mode) -> Option<(Reason, String)> {
    if let Some(until) = spec.pause_that_is_over(mode) {
        return Some((
            Reason::PauseIsOver,
            format!(
                "mode is Paused, but pause.until, {until}, is over: the scale is written. `kubectl plimsoll pause` pauses it again, or mode Paused without pause.until"
            ),
        ));
    }
    spec.has_pause_without_mode().then(|| {
        let text = "pause is given, but mode is Active: the scale is written. `kubectl plimsoll pause` pauses it, or mode Paused; `kubectl plimsoll resume` removes pause";
        (Reason::ModeIsActive, text.to_owned())
    })
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
    fn a_pause_that_is_none_is_told_of_once_each_time_the_mode_is_set() {
        let mut status = Status::default();
        for (mode, at, told, reason) in [
            ("Preview", Mode::Preview, false, None),
            ("Paused", Mode::Paused, false, None),
            ("Paused", Mode::Active, true, Some("PauseIsOver")),
            ("Paused", Mode::Active, false, Some("PauseIsOver")),
            ("Preview", Mode::Preview, false, Some("Ended")),
            ("Paused", Mode::Active, true, Some("PauseIsOver")),
            ("Active", Mode::Active, true, Some("ModeIsActive")),
            ("Active", Mode::Active, false, Some("ModeIsActive")),
        ] {
            let event = note(&spec(mode), at, &mut status, 0);
            assert_eq!(event.is_some(), told, "{mode} {at:?}");
            let paused = status.condition(ConditionKind::Paused);
            assert_eq!(paused.map(|paused| &*paused.reason), reason, "{mode} {at:?}");
            assert!(paused.is_none_or(|paused| !paused.status));
            if let Some(event) = event.filter(|event| event.reason == Reason::PauseIsOver) {
                assert!(event.message.contains("2026-11-23T12:00:00Z"), "{event:?}");
            }
        }
        let resumed = AutoscalerSpec { pause: None, ..spec("Active") };
        assert_eq!(note(&resumed, Mode::Active, &mut status, 0), None);
        assert_eq!(status.condition(ConditionKind::Paused).unwrap().reason, "Ended");
    }
}
