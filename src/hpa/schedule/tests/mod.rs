mod bounds;
mod brute_force;
mod spec;
mod window;

use super::*;
use jiff::Timestamp;
use serde_json::json;

const SECOND: i64 = 1000;
const MINUTE: i64 = 60 * SECOND;
const DAY: i64 = 24 * 60 * MINUTE;

fn ms(time: &str) -> i64 {
    time.parse::<Timestamp>().unwrap().as_millisecond()
}

fn specs(list: serde_json::Value) -> Vec<ScheduleSpec> {
    serde_json::from_value(list).unwrap()
}

fn schedules(list: serde_json::Value) -> Schedules {
    parse(&specs(list)).unwrap_or_else(|error| panic!("{error}"))
}

fn recurring(zone: &str, start: &str, end: &str) -> Schedules {
    schedules(json!([
        {"name": "a", "start": start, "end": end, "timeZone": zone, "minReplicas": 3}
    ]))
}

/// The bounds, and which schedules they are by.
fn bounds(schedules: &Schedules, now: i64, min: i32, max: i32) -> (i32, i32, Vec<Option<usize>>) {
    let bounds = schedules.at(now, min, max).bounds;
    (bounds.min, bounds.max, vec![bounds.min_by, bounds.max_by])
}
