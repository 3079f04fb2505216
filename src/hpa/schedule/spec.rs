//! The schedules of a specification, and what is invalid about them.

use super::cron::Cron;
use super::schedules::Schedules;
use super::window::{Schedule, Timing, Window};
use super::zone::Zone;
use crate::time::UnixMillis;
use jiff::civil::DateTime;
use jiff::{SignedDuration, Timestamp};
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// The most schedules of an autoscaler.
pub const MAX_SCHEDULES: usize = 32;
/// The longest text of a field, in bytes.
const MAX_TEXT: usize = 256;
/// The longest name: a DNS label.
const MAX_NAME: usize = 63;
const RAMP_MS: std::ops::RangeInclusive<i64> = 1_000..=24 * 3_600_000;

/// A time window with its own bounds of the replicas: recurring from `start` to `end`, or once from
/// `from` until `until`.
///
/// While several are active, the largest minReplicas and the smallest maxReplicas hold; where
/// those contradict each other, maxReplicas.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(
    validation = Rule::new("has(self.start) == has(self.end) && has(self.from) == has(self.until) && has(self.start) != has(self.from)")
        .message("start and end, or from and until are required"),
    validation = Rule::new("has(self.minReplicas) || has(self.maxReplicas)")
        .message("minReplicas, maxReplicas or both are required"),
    validation = Rule::new("!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas")
        .message("maxReplicas must be at least minReplicas")
        .field_path(".maxReplicas")
)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleSpec {
    /// name of the schedule, unique among the schedules of the autoscaler: 1 to 63 lower-case
    /// letters, digits and `-`.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,

    /// start of each window, as a cron expression of five fields (minute, hour, day of month,
    /// month, day of week) or a macro such as `@daily`, in timeZone. A local time that a clock
    /// change skips happens at the instant of the change; one that occurs twice happens the first
    /// time. Needs `end`. If it is not set, `from` and `until` are required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub start: Option<String>,

    /// end of each window, as a cron expression like `start`: a window lasts from a start to the
    /// next end, exclusive. A start at the same minute as an end begins a new window. Needs
    /// `start`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub end: Option<String>,

    /// timeZone of `start` and `end`, and of a `from` and `until` without an offset, as an IANA name such
    /// as `Europe/Berlin`. If it is not set, Etc/UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub time_zone: Option<String>,

    /// from is the start of a single window, inclusive: an RFC 3339 time such as
    /// `2026-11-27T06:00:00+01:00`, or a local time in timeZone such as `2026-11-27T06:00:00`. Needs `until`. If it is not set, `start` and `end` are
    /// required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub from: Option<String>,

    /// until is the end of a single window, exclusive: a time like `from`, and later than
    /// it. Needs `from`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub until: Option<String>,

    /// minReplicas while the schedule is active, instead of the autoscaler's; it may be lower.
    /// At least 0, and at most maxReplicas. If it is not set, the schedule leaves the lower bound
    /// alone, and maxReplicas is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_replicas: Option<i32>,

    /// maxReplicas while the schedule is active, instead of the autoscaler's; it may be higher.
    /// At least 1. If it is not set, the schedule leaves the upper bound alone, and minReplicas is
    /// required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_replicas: Option<i32>,

    /// ramp is the time from the start of a window in which the bounds move in a straight line to
    /// those of the schedule, rounded up to whole replicas: a duration such as `10m` or `1h30m`,
    /// from 1s to 24h. If it is not set, they move at once. At the end of a window they always do;
    /// the policies of behavior.scaleDown limit how fast replicas are removed; with selectPolicy Disabled all go at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub ramp: Option<String>,
}

/// What is invalid about a schedule. As text it says where, and what would be right:
/// `schedules[1].start: "0 25 * * *": hour 25 is not in 0-23`.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("schedules[{index}]{}{field}: {problem}", if field.is_empty() { "" } else { "." })]
pub struct ScheduleError {
    /// The schedule in the list, from 0 on.
    pub index: usize,
    /// Its field as it is written in the specification; empty if it is the schedule as a whole.
    pub field: &'static str,
    /// What is wrong, and what would be right.
    pub problem: String,
}

/// What is wrong: the field and the problem.
type Problem = (&'static str, String);

/// Reads and validates the schedules of a specification.
///
/// # Errors
///
/// The first [`ScheduleError`] in the order of the list.
pub fn parse(specs: &[ScheduleSpec]) -> Result<Schedules, ScheduleError> {
    let read = |(index, spec): (usize, &ScheduleSpec)| {
        let problem = |(field, problem)| ScheduleError { index, field, problem };
        if index >= MAX_SCHEDULES {
            return Err(problem(("", format!("expected at most {MAX_SCHEDULES} schedules"))));
        }
        let schedule = schedule(spec).map_err(problem)?;
        match specs[..index].iter().position(|other| other.name == spec.name) {
            None => Ok(schedule),
            Some(other) => Err(problem((
                "name",
                format!("{:?} is the name of schedules[{other}], too", spec.name),
            ))),
        }
    };
    specs.iter().enumerate().map(read).collect::<Result<_, _>>().map(Schedules::new)
}

fn schedule(spec: &ScheduleSpec) -> Result<Schedule, Problem> {
    let name = &spec.name;
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if !(1..=MAX_NAME).contains(&name.len()) || !name.bytes().all(is_inner) || is_dashed(name) {
        let expected = "expected 1 to 63 lower-case letters, digits and -, as in weekday-morning";
        let shown: String = name.chars().take(MAX_NAME).collect();
        return Err(("name", format!("{shown:?}: {expected}")));
    }
    Ok(Schedule {
        name: name.clone(),
        timing: timing(spec)?,
        min: replicas("minReplicas", spec.min_replicas, 0)?,
        max: match (spec.min_replicas, replicas("maxReplicas", spec.max_replicas, 1)?) {
            (None, None) => {
                let problem = "minReplicas, maxReplicas or both are required";
                return Err(("", problem.to_owned()));
            }
            (Some(min), Some(max)) if min > max => {
                let problem = format!("{max} is less than minReplicas {min}");
                return Err(("maxReplicas", problem));
            }
            (_, max) => max,
        },
        ramp_ms: spec.ramp.as_deref().map_or(Ok(0), |text| read("ramp", text, ramp))?,
    })
}

fn is_dashed(name: &str) -> bool {
    name.starts_with('-') || name.ends_with('-')
}

fn replicas(field: &'static str, given: Option<i32>, least: i32) -> Result<Option<i32>, Problem> {
    match given {
        Some(replicas) if replicas < least => {
            Err((field, format!("{replicas} is less than {least}")))
        }
        given => Ok(given),
    }
}

fn timing(spec: &ScheduleSpec) -> Result<Timing, Problem> {
    const BOTH_WAYS: &str = "can't be set with start and end: a window is recurring, or once";
    let required = |field, with: &str| (field, format!("required with {with}"));
    let zone = spec.time_zone.as_deref().unwrap_or("Etc/UTC");
    let times = [&spec.start, &spec.end, &spec.from, &spec.until].map(Option::as_deref);
    match times {
        [Some(start), Some(end), None, None] => {
            let timing = Timing::Recurring {
                start: read("start", start, Cron::parse)?,
                end: read("end", end, Cron::parse)?,
                zone: read("timeZone", zone, time_zone)?,
            };
            match &timing {
                Timing::Recurring { start: same, end: other, .. } if same == other => {
                    Err(("end", format!("{end:?}: the same times as start, so no window ends")))
                }
                _ => Ok(timing),
            }
        }
        [None, None, Some(from), Some(until)] => {
            let zone = read("timeZone", zone, time_zone)?;
            let time = |text: &str| timestamp(text, &zone);
            let (begin, end) = (read("from", from, time)?, read("until", until, time)?);
            match begin < end {
                true => Ok(Timing::Once(Window { begin, end: Some(end) })),
                false => Err(("until", format!("{until:?}: not later than from {from:?}"))),
            }
        }
        [None, None, None, None] => {
            Err(("", "start and end, or from and until are required".to_owned()))
        }
        [Some(_), None, None, None] => Err(required("end", "start")),
        [None, Some(_), None, None] => Err(required("start", "end")),
        [None, None, Some(_), None] => Err(required("until", "from")),
        [None, None, None, Some(_)] => Err(required("from", "until")),
        [_, _, Some(_), _] => Err(("from", BOTH_WAYS.to_owned())),
        [_, _, None, Some(_)] => Err(("until", BOTH_WAYS.to_owned())),
    }
}

/// Reads the text of a field. The problem quotes it.
fn read<T>(
    field: &'static str,
    text: &str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, Problem> {
    if text.len() > MAX_TEXT {
        let problem = format!("{} bytes long, expected at most {MAX_TEXT}", text.len());
        return Err((field, problem));
    }
    parse(text).map_err(|problem| (field, format!("{text:?}: {problem}")))
}

fn time_zone(name: &str) -> Result<Zone, String> {
    match name.eq_ignore_ascii_case("local") {
        true => Err("would depend on the host, expected an IANA name such as Europe/Berlin".into()),
        false => Zone::parse(name),
    }
}

/// Reads a time as in RFC 3339, of whose forms an annotation, a week date or a time without
/// seconds are none, or the same without an offset in a time zone.
fn timestamp(text: &str, zone: &Zone) -> Result<UnixMillis, String> {
    let expected = "expected a time as in RFC 3339: 2026-11-27T06:00:00+01:00";
    if text.len() == "2026-11-27T06:00:00".len()
        && matches!(text.as_bytes()[10], b'T' | b't')
        && let Ok(local) = text.parse::<DateTime>()
    {
        return zone.instant(local).ok_or_else(|| expected.to_owned());
    }
    let bytes = text.as_bytes();
    let is_offset = matches!(bytes, [.., b'Z' | b'z'] | [.., b'+' | b'-', _, _, b':', _, _]);
    let is_shaped = bytes.len() >= 20
        && is_offset
        && [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')].iter().all(|&(i, b)| bytes[i] == b)
        && matches!(bytes[10], b'T' | b't')
        && matches!(bytes[19], b'.' | b'Z' | b'z' | b'+' | b'-');
    let time = text.parse::<Timestamp>().ok().filter(|_| is_shaped);
    time.map(Timestamp::as_millisecond).ok_or_else(|| expected.to_owned())
}

fn ramp(text: &str) -> Result<i64, String> {
    let expected = || "expected a duration from 1s to 24h, such as 10m or 1h30m".to_owned();
    let is_shaped = text.bytes().all(|byte| byte.is_ascii_digit() || b"hms".contains(&byte));
    let ramp = text.parse::<SignedDuration>().ok().filter(|_| is_shaped).ok_or_else(expected)?;
    let ms = i64::try_from(ramp.as_millis()).map_err(|_| expected())?;
    if RAMP_MS.contains(&ms) { Ok(ms) } else { Err(expected()) }
}
