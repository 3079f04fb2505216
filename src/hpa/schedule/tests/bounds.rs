use super::*;

#[test]
fn a_ramp_is_a_straight_line_that_is_rounded_up() {
    let schedules = schedules(json!([{"name": "a", "start": "0 8 * * *", "end": "0 9 * * *",
        "minReplicas": 6, "maxReplicas": 6, "ramp": "10m"}]));
    let begin = ms("2026-05-05T08:00:00Z");
    // Up from 2 by 4, one in 2.5 minutes; down from 10 by 4, likewise.
    let steps = [
        (-1, (2, 10), 0),
        (0, (2, 10), 1),
        (1, (3, 10), 150_000),
        (149_999, (3, 10), 150_000),
        (150_000, (3, 9), 150_001),
        (150_001, (4, 9), 300_000),
        (300_000, (4, 8), 300_001),
        (300_001, (5, 8), 450_000),
        (450_000, (5, 7), 450_001),
        (450_001, (6, 7), 600_000),
        (600_000, (6, 6), 60 * MINUTE),
        (60 * MINUTE - 1, (6, 6), 60 * MINUTE),
        (60 * MINUTE, (2, 10), DAY),
    ];
    for (after, expected, next) in steps {
        let moment = schedules.at(begin + after, 2, 10);
        assert_eq!((moment.bounds.min, moment.bounds.max), expected, "{after}");
        assert_eq!(moment.next_change_ms, Some(begin + next), "{after}");
    }
    // A minimum that falls, and a maximum that rises.
    for (after, expected) in [
        (0, (8, 4)),
        (1, (8, 5)),
        (299_999, (8, 5)),
        (300_000, (7, 5)),
        (300_001, (7, 6)),
        (600_000, (6, 6)),
    ] {
        let moment = schedules.at(begin + after, 8, 4);
        let min = expected.0.min(expected.1);
        assert_eq!((moment.bounds.min, moment.bounds.max), (min, expected.1), "{after}");
    }
}

#[test]
fn a_ramp_begins_at_the_bounds_by_the_windows_that_began_earlier() {
    let schedules = schedules(json!([
        {"name": "peak", "start": "0 8 * * *", "end": "0 9 * * *", "maxReplicas": 30, "ramp": "10m"},
        {"name": "day", "start": "0 7 * * *", "end": "0 18 * * *", "maxReplicas": 50},
        {"name": "also", "start": "0 8 * * *", "end": "0 9 * * *", "maxReplicas": 40, "ramp": "10m"},
    ]));
    let begin = ms("2026-05-05T08:00:00Z");
    for (after, max, by) in [(-1, 50, 1), (0, 50, 0), (5, 40, 0), (10, 30, 0), (60, 50, 1)] {
        let (_, found, by_whom) = bounds(&schedules, begin + after * MINUTE, 1, 10);
        assert_eq!((found, by_whom[1]), (max, Some(by)), "{after}");
    }
}

#[test]
fn a_window_that_ends_during_a_ramp_leaves_its_line_straight() {
    let schedules = schedules(json!([
        {"name": "night", "start": "0 22 * * *", "end": "0 9 * * *", "minReplicas": 20},
        {"name": "day", "start": "50 8 * * *", "end": "0 18 * * *", "minReplicas": 30, "ramp": "30m"},
        {"name": "late", "start": "5 9 * * *", "end": "0 10 * * *", "minReplicas": 40, "ramp": "10m"},
    ]));
    let nine = ms("2026-05-05T09:00:00Z");
    for (after, min, by) in [
        (-11, 20, 0),
        (-10, 20, 0),
        (-1, 23, 1),
        (0, 24, 1),
        // The next ramp begins where the first one is, and not at the night's.
        (5, 25, 1),
        (10, 34, 2),
        (15, 40, 2),
        (60, 30, 1),
    ] {
        let (found, _, by_whom) = bounds(&schedules, nine + after * MINUTE, 2, 50);
        assert_eq!((found, by_whom[0]), (min, Some(by)), "{after}");
    }
}

/// Else the line of the last one would begin lower as soon as the second window ends, which was on its own ramp.
#[test]
fn a_ramp_that_began_on_the_ramp_of_a_window_that_ends_has_no_step_back() {
    let schedules = schedules(json!([
        {"name": "a", "start": "0 8 * * *", "end": "30 8 * * *", "minReplicas": 20, "ramp": "1h"},
        {"name": "b", "start": "15 8 * * *", "end": "0 18 * * *", "minReplicas": 30, "ramp": "1h"},
        {"name": "c", "start": "0 7 * * *", "end": "10 8 * * *", "minReplicas": 10},
    ]));
    let eight = ms("2026-05-05T08:00:00Z");
    let min = |after| schedules.at(eight + after * MINUTE, 2, 50).bounds.min;
    // From 10 to 20, and from there to 30, which is the line from 15 once the first window has ended.
    assert_eq!([9, 15, 29, 30, 45, 75].map(min), [12, 13, 19, 19, 23, 30]);
    assert!((1..75).all(|after| min(after - 1) <= min(after)));
}

#[test]
fn a_ramp_without_effect_is_no_change() {
    let list = |top: i32| {
        schedules(json!([
            {"name": "high", "start": "0 8 * * *", "end": "0 9 * * *", "minReplicas": 1000},
            {"name": "low", "start": "0 8 * * *", "end": "0 9 * * *", "minReplicas": top, "ramp": "10m"}
        ]))
    };
    let begin = ms("2026-05-05T08:00:00Z");
    assert_eq!(list(900).at(begin, 1, 2000).next_change_ms, Some(begin + 60 * MINUTE));
    // It overtakes at 999 of 1,999 parts, and a millisecond more.
    let overtakes = begin + 999 * 600_000 / 1999 + 1;
    assert_eq!(list(2000).at(begin, 1, 2000).next_change_ms, Some(overtakes));
    assert_eq!(list(2000).at(overtakes, 1, 2000).bounds.min, 1001);
    // Too many steps to look through: an early look is safe.
    let huge = list(i32::MAX).at(begin, 2, i32::MAX);
    assert!(huge.next_change_ms.is_some_and(|next| next > begin));
}

#[test]
fn the_largest_min_and_the_smallest_max_of_the_active_schedules_hold() {
    let every = |name: &str, bounds: serde_json::Value| {
        let mut schedule = json!({"name": name,
            "from": "2026-01-01T00:00:00Z", "until": "2027-01-01T00:00:00Z"});
        schedule.as_object_mut().unwrap().extend(bounds.as_object().unwrap().clone());
        schedule
    };
    let now = ms("2026-05-05T00:00:00Z");
    let min = |replicas: i32| json!({"minReplicas": replicas});
    let max = |replicas: i32| json!({"maxReplicas": replicas});
    for (list, expected) in [
        (json!([]), (2, 10, vec![None, None], false)),
        // Each bound is replaced, be it by a lower one.
        (json!([every("a", min(0))]), (0, 10, vec![Some(0), None], false)),
        (json!([every("a", max(4))]), (2, 4, vec![None, Some(0)], false)),
        (json!([every("a", min(3)), every("b", min(5))]), (5, 10, vec![Some(1), None], false)),
        (json!([every("a", max(30)), every("b", max(50))]), (2, 30, vec![None, Some(0)], false)),
        // The first of equals.
        (json!([every("a", min(5)), every("b", min(5))]), (5, 10, vec![Some(0), None], false)),
        // Of min and max, max.
        (json!([every("a", min(20))]), (10, 10, vec![Some(0), None], true)),
        (json!([every("a", max(1))]), (1, 1, vec![None, Some(0)], true)),
        (json!([every("a", min(9)), every("b", max(6))]), (6, 6, vec![Some(0), Some(1)], true)),
    ] {
        let moment = schedules(list.clone()).at(now, 2, 10);
        let found = moment.bounds;
        let found = (found.min, found.max, vec![found.min_by, found.max_by], found.conflict);
        assert_eq!(found, expected, "{list}");
        assert_eq!(moment.active.len(), list.as_array().unwrap().len(), "{list}");
    }
}
