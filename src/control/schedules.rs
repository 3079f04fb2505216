//! What is said of the schedules of an autoscaler: their part of the status, and events when a window
//! begins or ends.

use super::decision_time::DecisionTime;
use crate::crd::{ScheduleStatus, ScheduleWindow};
use crate::hpa::schedule::{ActiveWindow, Bounds, Moment, Schedules};
use crate::hpa::{Event, EventKind, Reason, Spec};
use crate::time::UnixMillis;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::time::Duration;

/// How long ago a window may have begun that is told of where no status says which ones are known.
const RECENT_MS: i64 = 60_000;

/// The time between two decisions during a ramp, if the period is longer.
const RAMP_PERIOD_MS: i64 = 15_000;

fn time(ms: UnixMillis) -> Option<Time> {
    Timestamp::from_second(ms.div_euclid(1000)).ok().map(Time)
}

/// Without what a status has no place for.
const fn seconds(ms: UnixMillis) -> UnixMillis {
    ms - ms.rem_euclid(1000)
}

fn name(schedules: &Schedules, index: usize) -> String {
    schedules.name(index).unwrap_or_default().to_owned()
}

/// The part of the status.
pub fn render(spec: &Spec, moment: &Moment) -> ScheduleStatus {
    let Bounds { min, max, min_by, max_by, conflict } = moment.bounds;
    let by = |index: Option<usize>| index.map(|index| name(&spec.schedules, index));
    let of = |by: &Option<String>| by.clone().unwrap_or_else(|| "the spec".to_owned());
    let (min_replicas_by, max_replicas_by) = (by(min_by), by(max_by));
    let conflict = conflict.then(|| {
        format!(
            "minReplicas of {} is above maxReplicas {max} of {}, which holds",
            of(&min_replicas_by),
            of(&max_replicas_by)
        )
    });
    let window = |window: &ActiveWindow| ScheduleWindow {
        name: name(&spec.schedules, window.index),
        since: time(window.begin_ms),
        until: window.end_ms.and_then(time),
    };
    ScheduleStatus {
        min_replicas: min,
        min_replicas_by,
        max_replicas: max,
        max_replicas_by,
        conflict,
        active: moment.active.iter().map(window).collect(),
        next_change: moment.next_window_ms.and_then(time),
    }
}

/// When to decide again because of the schedules, by the clock of this process, if that is before the
/// next decision is due: at the begin and the end of a window, and not at each step of a ramp.
pub fn next_evaluation(moment: &Moment, at: DecisionTime, period: Duration) -> Option<UnixMillis> {
    let period = i64::try_from(period.as_millis()).unwrap_or(i64::MAX / 2);
    let of_process = |time: UnixMillis| at.process.saturating_add(time.saturating_sub(at.server));
    let window = moment.next_window_ms.map(of_process);
    let step = moment.next_change_ms.map(of_process);
    let step = step.map(|step| step.max(at.process + period.min(RAMP_PERIOD_MS)));
    let next = [window, step].into_iter().flatten().min()?;
    (next < at.process + period).then_some(next)
}

/// The bounds that schedules give, for the column of the targets; empty if none does.
pub fn column(status: &ScheduleStatus) -> String {
    let ScheduleStatus { min_replicas, min_replicas_by, max_replicas, max_replicas_by, .. } =
        status;
    let bound = |bound: &str, replicas: &i32, by: &Option<String>| {
        by.as_ref().map(|by| format!("{bound} {replicas} by {by}"))
    };
    let bounds =
        [bound("min", min_replicas, min_replicas_by), bound("max", max_replicas, max_replicas_by)];
    bounds.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The events of windows that began or ended since the last decision, whose windows `known` has: of the first one in a
/// lease term those of the status. Without it only of those that have just begun, by the clock that windows go by.
pub fn events(
    spec: &Spec,
    known: &mut Option<Vec<(String, UnixMillis)>>,
    moment: Option<&Moment>,
    at: DecisionTime,
) -> Vec<Event> {
    let active: &[ActiveWindow] = moment.map_or(&[], |moment| &moment.active);
    let windows: Vec<(String, UnixMillis)> = active
        .iter()
        .map(|one| (name(&spec.schedules, one.index), seconds(one.begin_ms)))
        .collect();
    let event = |reason, message| Event { kind: EventKind::Normal, reason, message };
    let mut events = Vec::new();
    let before = known.as_deref().unwrap_or_default();
    for (name, _) in before.iter().filter(|window| !windows.contains(window)) {
        events.push(event(
            Reason::ScheduleEnded,
            format!("The window of the schedule {name} has ended"),
        ));
    }
    let is_new = |(window, began): &(&ActiveWindow, &(String, UnixMillis))| match known.as_ref() {
        Some(known) => !known.contains(began),
        None => at.server - window.begin_ms < RECENT_MS,
    };
    for (window, (name, _)) in active.iter().zip(&windows).filter(is_new) {
        let until = window.end_ms.and_then(|end| Timestamp::from_millisecond(end).ok());
        let until = until.map(|until| format!(" until {until}")).unwrap_or_default();
        let message = format!("A window of the schedule {name} has begun, and lasts{until}");
        events.push(event(Reason::ScheduleStarted, message));
    }
    *known = Some(windows);
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crd::AutoscalerSpec;
    use crate::hpa::schedule;
    use serde_json::json;

    fn spec() -> Spec {
        let spec = AutoscalerSpec::read(json!({"minReplicas": 2, "maxReplicas": 10,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "schedules": [
                {"name": "peak", "start": "0 8 * * *", "end": "0 18 * * *", "minReplicas": 20},
                {"name": "sale", "from": "2026-11-27T12:00:00Z", "until": "2026-11-28T00:00:00Z",
                 "maxReplicas": 50}]}))
        .expect("a spec");
        let mut scaling = Spec::from_api(&spec.as_hpa("shop", "web"));
        scaling.schedules = schedule::parse(&spec.schedules).expect("schedules");
        scaling
    }

    fn ms(time: &str) -> UnixMillis {
        time.parse::<Timestamp>().expect("a time").as_millisecond()
    }

    #[test]
    fn the_status_says_which_schedule_gives_a_bound_and_what_contradicts_it() {
        let spec = spec();
        let at = |time| render(&spec, &spec.moment(ms(time)).expect("schedules"));
        let morning = at("2026-11-27T09:00:00Z");
        assert_eq!((morning.min_replicas, morning.max_replicas), (10, 10));
        assert_eq!(
            morning.conflict.as_deref(),
            Some("minReplicas of peak is above maxReplicas 10 of the spec, which holds")
        );
        assert_eq!(column(&morning), "min 10 by peak");
        let noon = at("2026-11-27T12:00:00Z");
        assert_eq!(
            (column(&noon).as_str(), noon.conflict.as_deref()),
            ("min 20 by peak, max 50 by sale", None)
        );
        assert_eq!(noon.next_change, time(ms("2026-11-27T18:00:00Z")));
        assert_eq!(noon.active[1].until, time(ms("2026-11-28T00:00:00Z")));
        assert_eq!(column(&at("2026-11-28T07:59:59Z")), "");
    }

    #[test]
    fn decisions_come_early_for_windows_and_not_for_each_step_of_a_ramp() {
        let spec = AutoscalerSpec::read(json!({"maxReplicas": 1_000_000,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "schedules": [{"name": "peak", "start": "0 8 * * *", "end": "0 18 * * *",
                "minReplicas": 1_000_000, "ramp": "1h"}]}))
        .expect("a spec");
        let schedules = schedule::parse(&spec.schedules).expect("schedules");
        let begin = ms("2026-11-27T08:00:00Z");
        for (server, period, expected) in [
            (begin - 3_000, 15, Some(3_000)),
            (begin - 20_000, 15, None),
            (begin, 3_600, Some(15_000)),
            (begin + 1, 15, None),
            (begin + 10 * 3_600_000 - 2_000, 3_600, Some(2_000)),
        ] {
            let moment = schedules.at(server, 1, 1_000_000);
            let at = DecisionTime { wall: 0, process: 100, server };
            let next = next_evaluation(&moment, at, Duration::from_secs(period));
            assert_eq!(next, expected.map(|after| 100 + after), "{server}");
        }
    }

    #[test]
    fn a_window_is_told_of_when_it_begins_and_when_it_ends() {
        let spec = spec();
        let mut known = None;
        let told = |known: &mut _, time: &str| -> Vec<&'static str> {
            // The wall clock may be behind, or ahead.
            let at = DecisionTime { wall: 0, process: 0, server: ms(time) };
            let moment = spec.moment(at.server);
            let events = events(&spec, known, moment.as_ref(), at);
            events.iter().map(|event| event.reason.as_str()).collect()
        };
        // A process that starts within a window does not tell of it again.
        assert_eq!(told(&mut known, "2026-11-26T12:00:00Z"), [""; 0]);
        assert_eq!(told(&mut known, "2026-11-26T18:00:00Z"), ["ScheduleEnded"]);
        assert_eq!(told(&mut known, "2026-11-27T08:00:05Z"), ["ScheduleStarted"]);
        assert_eq!(told(&mut known, "2026-11-27T12:00:00Z"), ["ScheduleStarted"]);
        // Windows that follow each other while nothing was decided.
        assert_eq!(
            told(&mut known, "2026-11-28T08:00:00Z"),
            ["ScheduleEnded", "ScheduleEnded", "ScheduleStarted"]
        );
        // A leader that follows one knows what the status has.
        known = Some(vec![("peak".to_owned(), ms("2026-11-28T08:00:00Z"))]);
        assert_eq!(told(&mut known, "2026-11-28T09:00:00Z"), [""; 0]);
        known = Some(Vec::new());
        assert_eq!(told(&mut known, "2026-11-28T09:00:00Z"), ["ScheduleStarted"]);
        known = None;
        let now = ms("2026-11-29T08:00:30Z");
        let at = DecisionTime { wall: now + 600_000, process: 0, server: now };
        assert_eq!(events(&spec, &mut known, spec.moment(now).as_ref(), at).len(), 1);
    }
}
