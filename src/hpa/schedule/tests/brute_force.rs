//! Schedules compared with a scan of every minute around clock changes.

use super::super::window::Window;
use super::*;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use proptest::prelude::*;

/// The scan begins so many days early that each expression has occurred before the days compared.
const EARLY: i64 = 33;
const COMPARED: i64 = 3;
/// And it ends so many days late.
const LATE: i64 = 3;

/// Zones, and a time near a clock change of each.
const CHANGES: [(&str, &str); 14] = [
    ("America/New_York", "2026-03-08T07:00:00Z"),
    ("America/New_York", "2026-11-01T06:00:00Z"),
    ("Europe/Berlin", "2026-03-29T01:00:00Z"),
    ("Europe/Berlin", "2026-10-25T01:00:00Z"),
    ("Australia/Lord_Howe", "2026-10-03T15:30:00Z"),
    ("Australia/Lord_Howe", "2026-04-04T15:00:00Z"),
    ("Pacific/Apia", "2011-12-30T10:00:00Z"),
    ("Africa/Cairo", "2026-04-23T22:00:00Z"),
    ("Africa/Cairo", "2026-10-29T21:00:00Z"),
    ("America/Havana", "2026-11-01T05:00:00Z"),
    ("Africa/Casablanca", "2026-02-15T02:00:00Z"),
    ("Antarctica/Troll", "2026-10-25T01:00:00Z"),
    ("Asia/Kathmandu", "2026-12-31T18:15:00Z"),
    ("Etc/UTC", "2028-02-29T00:00:00Z"),
];

/// The values that a field has, and how they are written.
#[derive(Clone, Debug)]
struct Values(String, Vec<i8>);

impl Values {
    fn has(&self, value: i8) -> bool {
        self.1.contains(&value)
    }

    fn list(values: Vec<i8>) -> Self {
        let texts: Vec<String> = values.iter().map(ToString::to_string).collect();
        Self(texts.join(","), values)
    }
}

#[derive(Clone, Debug)]
struct Expression([Values; 4]);

impl Expression {
    fn text(&self) -> String {
        let [minute, hour, day, weekday] = &self.0;
        format!("{} {} {} * {}", minute.0, hour.0, day.0, weekday.0)
    }

    fn matches(&self, at: DateTime) -> bool {
        let [minutes, hours, days, weekdays] = &self.0;
        let day = days.has(at.day());
        let weekday = weekdays.has(at.weekday().to_sunday_zero_offset());
        let is_any = days.0 == "*" || weekdays.0 == "*";
        let is_day = if is_any { day && weekday } else { day || weekday };
        minutes.has(at.minute()) && hours.has(at.hour()) && is_day
    }
}

/// A schedule's windows in the order of time, by a scan of every minute.
fn scan(start: &Expression, end: &Expression, zone: &TimeZone, from: i64, to: i64) -> Vec<Window> {
    let local = |ms: i64| zone.to_datetime(Timestamp::from_millisecond(ms).unwrap());
    let mut windows: Vec<Window> = Vec::new();
    let mut open: Option<i64> = None;
    let mut reached = local(from);
    for now in (from..to).step_by(MINUTE as usize) {
        // All local minutes that are reached for the first time, skipped ones included.
        while reached < local(now) {
            reached = reached.checked_add(jiff::ToSpan::minutes(1)).unwrap();
            if end.matches(reached)
                && let Some(begin) = open.take()
                && begin < now
            {
                windows.push(Window { begin, end: Some(now) });
            }
            if start.matches(reached) && open.is_none() {
                open = Some(now);
            }
        }
    }
    windows.extend(open.map(|begin| Window { begin, end: None }));
    windows
}

fn values(max: i8, any: u32) -> impl Strategy<Value = Values> {
    let all: Vec<i8> = (0..=max).collect();
    let (stepped, ranged) = (all.clone(), all.clone());
    prop_oneof![
        any => Just(Values("*".to_owned(), all.clone())),
        6 => proptest::sample::subsequence(all, 1..=3).prop_map(Values::list),
        1 => (2..=max / 2).prop_map(move |step| {
            let values = stepped.iter().copied().step_by(step as usize).collect();
            Values(format!("*/{step}"), values)
        }),
        1 => (0..=max, 0..=max, 1_i8..4).prop_map(move |(a, b, step)| {
            let (first, last) = (a.min(b), a.max(b));
            let values = ranged.iter().copied().filter(|value| (first..=last).contains(value));
            Values(format!("{first}-{last}/{step}"), values.step_by(step as usize).collect())
        }),
    ]
}

fn days() -> impl Strategy<Value = Values> {
    let all: Vec<i8> = (1..=31).collect();
    prop_oneof![
        6 => Just(Values("*".to_owned(), all.clone())),
        1 => Just(Values("*/2".to_owned(), all.iter().copied().step_by(2).collect())),
        1 => proptest::sample::subsequence((1..=28).collect::<Vec<i8>>(), 1..=4)
            .prop_map(Values::list),
    ]
}

fn expression() -> impl Strategy<Value = Expression> {
    // Mostly in the hours of the changes.
    let hours = prop_oneof![2 => proptest::sample::subsequence(vec![0_i8, 1, 2, 3, 23], 1..=3)
        .prop_map(Values::list), 2 => values(23, 1)];
    let weekdays =
        prop_oneof![3 => Just(Values("*".to_owned(), (0..7).collect())), 1 => values(6, 1)];
    (values(59, 1), hours, days(), weekdays)
        .prop_filter("too rare for the scan", |(_, _, days, weekdays)| {
            let is_either = days.0 != "*" && weekdays.0 != "*";
            is_either || days.1.len() == 31 || weekdays.1.len() == 7
        })
        .prop_map(|(minute, hour, day, weekday)| Expression([minute, hour, day, weekday]))
}

fn zoned() -> impl Strategy<Value = (&'static str, i64)> {
    proptest::sample::select(&CHANGES[..])
        .prop_map(|(zone, change)| (zone, change.parse::<Timestamp>().unwrap().as_millisecond()))
}

fn recurring(start: &Expression, end: &Expression, zone: &str) -> ScheduleSpec {
    ScheduleSpec {
        name: "a".to_owned(),
        start: Some(start.text()),
        end: Some(end.text()),
        time_zone: Some(zone.to_owned()),
        min_replicas: Some(3),
        ..ScheduleSpec::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("SCHEDULE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(24)
    ))]

    #[test]
    fn windows_are_those_of_a_scan_of_every_minute(
        start in expression(),
        end in expression(),
        (zone, change) in zoned(),
    ) {
        let spec = recurring(&start, &end, zone);
        let Ok(schedules) = parse(&[spec]) else {
            // The only reason here: the same times.
            prop_assert_eq!(start.0.map(|values| values.1), end.0.map(|values| values.1));
            return Ok(());
        };
        let tz = TimeZoneDatabase::bundled().get(zone).unwrap();
        let from = change - COMPARED * DAY / 2;
        let to = from + COMPARED * DAY;
        let expected = scan(&start, &end, &tz, from - EARLY * DAY, to + LATE * DAY);
        for now in (from..to).step_by(MINUTE as usize) {
            let moment = schedules.at(now, 1, 9);
            let index = expected.partition_point(|window| window.begin <= now);
            let open = index.checked_sub(1).map(|index| expected[index]);
            let open = open.filter(|window| window.end.is_none_or(|end| now < end));
            let found = moment.active.first().map(|window| window.begin_ms);
            prop_assert_eq!(found, open.map(|window| window.begin), "at {}", now);
            let next = open.map_or_else(
                || expected.get(index).map(|window| window.begin),
                |window| window.end,
            );
            // What is beyond the scan may be found.
            let found = moment.next_change_ms.filter(|&next| next < to + LATE * DAY);
            prop_assert_eq!(found, next, "at {}", now);
        }
        // And as a list.
        let listed: Vec<i64> = schedules.windows(from, to).map(|window| window.begin_ms).collect();
        let overlapping = expected.iter().filter(|window| {
            window.begin < to && window.end.is_none_or(|end| end > from)
        });
        prop_assert_eq!(listed, overlapping.map(|window| window.begin).collect::<Vec<_>>());
    }

    #[test]
    fn a_moment_holds_until_the_next_change_and_no_longer(
        schedules in proptest::collection::vec(
            (expression(), expression(), 0_i32..12, 1_i32..12, 0_u8..3, 0_i64..7200),
            1..=4,
        ),
        (zone, change) in zoned(),
        nows in proptest::collection::vec(0.0_f64..1.0, 8),
    ) {
        let specs: Vec<ScheduleSpec> = schedules
            .iter()
            .enumerate()
            .map(|(index, (start, end, low, high, which, ramp))| ScheduleSpec {
                name: format!("schedule-{index}"),
                min_replicas: (*which != 1).then_some(*low.min(high)),
                max_replicas: (*which != 0).then_some(*high.max(low)),
                ramp: (*ramp > 0).then(|| format!("{ramp}s")),
                ..recurring(start, end, zone)
            })
            .collect();
        let Ok(schedules) = parse(&specs) else { return Ok(()) };
        let at = |now| {
            let moment = schedules.at(now, 4, 8);
            ((moment.bounds, moment.active), moment.next_change_ms)
        };
        for now in nows {
            let mut now = change - DAY + (now * (2 * DAY) as f64) as i64;
            for _ in 0..12 {
                let (moment, next) = at(now);
                prop_assert!(moment.0.min <= moment.0.max);
                let Some(next) = next else { break };
                prop_assert!(next > now);
                for part in 0..40 {
                    let between = now + (next - 1 - now) * part / 39;
                    prop_assert_eq!(&at(between), &(moment.clone(), Some(next)), "at {}", between);
                }
                prop_assert_ne!(&at(next).0, &moment, "at {}", next);
                now = next;
            }
        }
    }
}
