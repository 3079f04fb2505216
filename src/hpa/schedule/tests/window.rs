use super::*;

#[test]
fn windows_follow_the_clock_of_their_time_zone() {
    // The zone, the start and the end; then a time, and the window that is active or comes next.
    for (zone, start, end, from, begin, until) in [
        // A day like any other: 08:00 is 13:00 in winter, 12:00 in summer.
        (
            "America/New_York",
            "0 8 * * *",
            "0 18 * * *",
            "2026-01-15T00:00Z",
            "2026-01-15T13:00Z",
            "2026-01-15T23:00Z",
        ),
        (
            "America/New_York",
            "0 8 * * *",
            "0 18 * * *",
            "2026-07-15T00:00Z",
            "2026-07-15T12:00Z",
            "2026-07-15T22:00Z",
        ),
        // 02:00 to 03:00 are skipped at 07:00Z. The start is skipped, the end, and both.
        (
            "America/New_York",
            "30 2 * * *",
            "0 5 * * *",
            "2026-03-08T06:59Z",
            "2026-03-08T07:00Z",
            "2026-03-08T09:00Z",
        ),
        (
            "America/New_York",
            "0 1 * * *",
            "30 2 * * *",
            "2026-03-08T05:00Z",
            "2026-03-08T06:00Z",
            "2026-03-08T07:00Z",
        ),
        (
            "America/New_York",
            "15 2 * * *",
            "45 2 * * *",
            "2026-03-08T06:59Z",
            "2026-03-09T06:15Z",
            "2026-03-09T06:45Z",
        ),
        // As are thirty windows of a minute.
        (
            "America/New_York",
            "0-58/2 2 * * *",
            "1-59/2 2 * * *",
            "2026-03-08T06:59Z",
            "2026-03-09T06:00Z",
            "2026-03-09T06:01Z",
        ),
        // The window of the day before ends in the gap, and the next one begins there.
        (
            "America/New_York",
            "45 2 * * *",
            "15 2 * * *",
            "2026-03-08T06:59Z",
            "2026-03-07T07:45Z",
            "2026-03-08T07:00Z",
        ),
        (
            "America/New_York",
            "45 2 * * *",
            "15 2 * * *",
            "2026-03-08T07:00Z",
            "2026-03-08T07:00Z",
            "2026-03-09T06:15Z",
        ),
        // 01:00 to 02:00 are at 05:00Z and 06:00Z. Only the first counts.
        (
            "America/New_York",
            "30 1 * * *",
            "0 4 * * *",
            "2026-11-01T05:00Z",
            "2026-11-01T05:30Z",
            "2026-11-01T09:00Z",
        ),
        (
            "America/New_York",
            "0 0 * * *",
            "30 1 * * *",
            "2026-11-01T04:30Z",
            "2026-11-01T04:00Z",
            "2026-11-01T05:30Z",
        ),
        (
            "America/New_York",
            "30 1 * * *",
            "45 1 * * *",
            "2026-11-01T05:50Z",
            "2026-11-02T06:30Z",
            "2026-11-02T06:45Z",
        ),
        (
            "America/New_York",
            "45 1 * * *",
            "30 1 * * *",
            "2026-11-01T06:40Z",
            "2026-11-01T05:45Z",
            "2026-11-02T06:30Z",
        ),
        // In the repeated hour, an open window stays open.
        (
            "America/New_York",
            "50 * * * *",
            "0 * * * *",
            "2026-11-01T06:30Z",
            "2026-11-01T05:50Z",
            "2026-11-01T07:00Z",
        ),
        (
            "America/New_York",
            "0 * * * *",
            "50 * * * *",
            "2026-11-01T06:30Z",
            "2026-11-01T07:00Z",
            "2026-11-01T07:50Z",
        ),
        (
            "Europe/Berlin",
            "30 2 * * *",
            "0 5 * * *",
            "2026-03-29T00:59Z",
            "2026-03-29T01:00Z",
            "2026-03-29T03:00Z",
        ),
        (
            "Europe/Berlin",
            "30 2 * * *",
            "0 5 * * *",
            "2026-10-25T00:00Z",
            "2026-10-25T00:30Z",
            "2026-10-25T04:00Z",
        ),
        // 02:00 to 02:30 are skipped at 15:30Z.
        (
            "Australia/Lord_Howe",
            "15 2 * * *",
            "45 2 * * *",
            "2026-10-03T15:00Z",
            "2026-10-03T15:30Z",
            "2026-10-03T15:45Z",
        ),
        // 01:30 to 02:00 are repeated from 15:00Z on.
        (
            "Australia/Lord_Howe",
            "45 1 * * *",
            "0 3 * * *",
            "2026-04-04T15:20Z",
            "2026-04-04T14:45Z",
            "2026-04-04T16:30Z",
        ),
        // All of 30 December is skipped at 10:00Z.
        (
            "Pacific/Apia",
            "0 8 * * *",
            "0 18 * * *",
            "2011-12-30T05:00Z",
            "2011-12-30T18:00Z",
            "2011-12-31T04:00Z",
        ),
        (
            "Pacific/Apia",
            "0 12 29 12 *",
            "0 12 30 12 *",
            "2011-12-30T00:00Z",
            "2011-12-29T22:00Z",
            "2011-12-30T10:00Z",
        ),
        (
            "Pacific/Apia",
            "0 12 30 12 *",
            "0 12 31 12 *",
            "2011-12-30T00:00Z",
            "2011-12-30T10:00Z",
            "2011-12-30T22:00Z",
        ),
        // Midnight is skipped.
        (
            "Africa/Cairo",
            "0 0 * * *",
            "0 6 * * *",
            "2026-04-23T21:00Z",
            "2026-04-23T22:00Z",
            "2026-04-24T03:00Z",
        ),
        // Across midnight, the weekend and the year's end.
        (
            "Europe/Berlin",
            "0 22 * * *",
            "0 6 * * *",
            "2026-06-10T00:00Z",
            "2026-06-09T20:00Z",
            "2026-06-10T04:00Z",
        ),
        (
            "Etc/UTC",
            "0 18 * * FRI",
            "0 8 * * MON",
            "2026-06-14T12:00Z",
            "2026-06-12T18:00Z",
            "2026-06-15T08:00Z",
        ),
        (
            "Etc/UTC",
            "0 0 20 DEC *",
            "0 0 7 JAN *",
            "2026-12-31T23:59Z",
            "2026-12-20T00:00Z",
            "2027-01-07T00:00Z",
        ),
        (
            "Etc/UTC",
            "@weekly",
            "0 1 * * 7",
            "2026-11-21T12:00Z",
            "2026-11-22T00:00Z",
            "2026-11-22T01:00Z",
        ),
        // Leap days, also across 2100, which has none.
        (
            "Etc/UTC",
            "0 0 29 2 *",
            "0 0 1 3 *",
            "2026-01-01T00:00Z",
            "2028-02-29T00:00Z",
            "2028-03-01T00:00Z",
        ),
        (
            "Etc/UTC",
            "0 0 1 3 *",
            "0 0 29 2 *",
            "2103-12-31T00:00Z",
            "2096-03-01T00:00Z",
            "2104-02-29T00:00Z",
        ),
        // The 13th and every Friday; every second day that is a Monday.
        (
            "Etc/UTC",
            "0 0 13 * FRI",
            "0 1 13 * FRI",
            "2026-05-10T00:00Z",
            "2026-05-13T00:00Z",
            "2026-05-13T01:00Z",
        ),
        (
            "Etc/UTC",
            "0 0 13 * FRI",
            "0 1 13 * FRI",
            "2026-05-14T00:00Z",
            "2026-05-15T00:00Z",
            "2026-05-15T01:00Z",
        ),
        (
            "Etc/UTC",
            "0 0 */2 * MON",
            "0 1 * * *",
            "2026-05-03T02:00Z",
            "2026-05-04T00:00Z",
            "2026-05-04T01:00Z",
        ),
        // A start within the window doesn't begin another; one at the minute of its end does.
        (
            "Etc/UTC",
            "0 8,12 * * *",
            "0 18 * * *",
            "2026-05-03T13:00Z",
            "2026-05-03T08:00Z",
            "2026-05-03T18:00Z",
        ),
        (
            "Etc/UTC",
            "0 8 * * *",
            "0 8,18 * * *",
            "2026-05-03T08:00Z",
            "2026-05-03T08:00Z",
            "2026-05-03T18:00Z",
        ),
        (
            "Etc/UTC",
            "0 */6 * * *",
            "0 0 * * *",
            "2026-05-03T00:00Z",
            "2026-05-03T00:00Z",
            "2026-05-04T00:00Z",
        ),
    ] {
        let stamp = |text: &str| ms(&text.replace('Z', ":00Z"));
        let (from, begin, until) = (stamp(from), stamp(begin), stamp(until));
        let schedules = recurring(zone, start, end);
        let case = format!("{zone} {start} {end} at {from}");
        let found = schedules.windows(from, i64::MAX).next().unwrap();
        let found = (found.begin_ms, found.end_ms);
        assert_eq!(found, (begin, Some(until)), "{case}");
        let moment = schedules.at(from, 1, 9);
        assert_eq!(moment.active.len(), usize::from(begin <= from), "{case}");
        let next = if begin <= from { until } else { begin };
        assert_eq!(moment.next_change_ms, Some(next), "{case}");
    }
}

#[test]
fn a_window_has_its_begin_and_not_its_end() {
    let once = json!([{"name": "sale", "from": "2026-11-27T06:00:00+01:00",
        "until": "2026-11-27T09:00:00.250+01:00", "minReplicas": 20, "maxReplicas": 80}]);
    let (begin, end) = (ms("2026-11-27T05:00:00Z"), ms("2026-11-27T08:00:00.250Z"));
    let schedules = schedules(once);
    let spec = (2, 10, vec![None, None]);
    let own = (20, 80, vec![Some(0), Some(0)]);
    for (now, expected, next) in [
        (i64::MIN, &spec, Some(begin)),
        (begin - 1, &spec, Some(begin)),
        (begin, &own, Some(end)),
        (end - 1, &own, Some(end)),
        (end, &spec, None),
        (i64::MAX, &spec, None),
    ] {
        assert_eq!(&bounds(&schedules, now, 2, 10), expected, "{now}");
        assert_eq!(schedules.at(now, 2, 10).next_change_ms, next, "{now}");
    }
    assert_eq!(schedules.name(0), Some("sale"));
    let daily = recurring("Europe/Berlin", "0 8 * * *", "0 9 * * *");
    let begin = ms("2026-05-05T06:00:00Z");
    for (now, min) in [(-1, 1), (0, 3), (60 * MINUTE - 1, 3), (60 * MINUTE, 1)] {
        assert_eq!(daily.at(begin + now, 1, 9).bounds.min, min, "{now}");
    }
}

#[test]
fn no_time_is_too_far_away() {
    let zones = ["Etc/UTC", "America/New_York", "Pacific/Apia", "Australia/Lord_Howe"];
    for zone in zones {
        let schedules = recurring(zone, "0 0 29 2 *", "* * * * *");
        for now in [i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX - 1, i64::MAX] {
            let moment = schedules.at(now, 1, 9);
            assert!(moment.next_change_ms.is_none_or(|next| next > now), "{zone} {now} {moment:?}");
        }
        for limit in [Timestamp::MIN.as_millisecond(), Timestamp::MAX.as_millisecond()] {
            for now in (limit - 2 * DAY..limit + 2 * DAY).step_by(1_234_567) {
                let moment = schedules.at(now, 1, 9);
                assert!(moment.next_change_ms.is_none_or(|next| next > now), "{zone} {now}");
            }
        }
    }
}
