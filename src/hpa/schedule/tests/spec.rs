use super::*;

#[test]
fn an_invalid_schedule_is_refused_with_what_would_be_right() {
    let long = "0".repeat(300);
    let long = long.as_str();
    let cron = |start: &str| json!({"start": start, "end": "0 1 * * *", "minReplicas": 1});
    let once = |from: &str, until: &str| json!({"from": from, "until": until, "minReplicas": 1});
    let with = |field: &str, value: serde_json::Value| {
        let mut schedule = cron("0 8 * * *");
        schedule[field] = value;
        schedule
    };
    let new_year = "2026-01-01T00:00:00Z";
    for (schedule, expected) in [
        (cron("0 25 * * *"), r#".start: "0 25 * * *": hour 25 is not in 0-23"#),
        (cron("60 1 * * *"), "minute 60 is not in 0-59"),
        (cron("0 1 0 * *"), "day of month 0 is not in 1-31"),
        (cron("0 1 * 13 *"), "month 13 is not in 1-12"),
        (cron("0 1 * FOO *"), r#"month "FOO" is not in 1-12 or JAN-DEC"#),
        (cron("0 1 * * 8"), "day of week 8 is not in 0-7"),
        (cron("0 1 * * JAN"), r#"day of week "JAN" is not in 0-7 or SUN-SAT"#),
        (cron("*/0 * * * *"), r#"minute "*/0" has a step that is not a number from 1 to 99"#),
        (cron("*/ * * * *"), "has a step that is not a number"),
        (cron("5/15 * * * *"), "has a step without a range, expected such as 5-59/2 or */2"),
        (cron("9-5 * * * *"), "minute 9-5 is a range that ends before it starts"),
        (cron("0 1 * * FRI-SUN"), "a range that ends before it starts; Sunday is also 7"),
        (cron("1,,2 * * * *"), r#"minute "" is not in 0-59"#),
        (cron("1-2-3 * * * *"), r#"minute "2-3" is not in 0-59"#),
        (cron("*-5 * * * *"), r#"minute "*" is not in 0-59"#),
        (cron("+1 * * * *"), r#"minute "+1" is not in 0-59"#),
        (cron("0 1 L * ?"), r#"is not in"#),
        (cron("٣ * * * *"), r#"minute "٣" is not in 0-59"#),
        (cron("0\u{a0}8 * * *"), "4 fields, expected five"),
        (cron(""), "0 fields, expected five"),
        (cron("0 0 8 * * *"), "6 fields, expected five, without seconds"),
        (cron("TZ=Asia/Tokyo 0 8 * * *"), "timeZone: Asia/Tokyo"),
        (cron("CRON_TZ=Asia/Tokyo 0 8 * * *"), "timeZone: Asia/Tokyo"),
        (cron("@reboot"), "expected one of @yearly, "),
        (cron("@every 5m"), "expected one of @yearly, "),
        (cron("0 0 30 2 *"), r#".start: "0 0 30 2 *": it has no occurrence, as no such day"#),
        (cron("0 0 31 4,6,9,11 *"), "it has no occurrence"),
        (cron(long), ".start: 300 bytes long, expected at most 256"),
        (cron("0 1 * * *"), ".end: \"0 1 * * *\": the same times as start, so no window ends"),
        (cron("0 01 1-31 * */1"), "the same times as start"),
        (with("timeZone", json!("Local")), r#".timeZone: "Local": would depend on the host"#),
        (with("timeZone", json!("Mars/Olympus")), "expected an IANA name such as Europe/Berlin"),
        (with("timeZone", json!("")), "no such time zone"),
        (with("timeZone", json!("Etc/Unknown")), "no such time zone"),
        (with("timeZone", json!("EST5EDT,M3.2.0,M11.1.0")), "no such time zone"),
        (with("timeZone", json!("../../etc/passwd")), "no such time zone"),
        (with("timeZone", json!(long)), ".timeZone: 300 bytes long"),
        (with("end", json!(null)), ".end: required with start"),
        (with("start", json!(null)), ".start: required with end"),
        (with("from", json!(new_year)), ".from: can't be set with start and end"),
        (with("until", json!(new_year)), ".until: can't be set with start and end"),
        (json!({"minReplicas": 1}), "schedules[1]: start and end, or from and until are required"),
        (json!({"from": new_year, "minReplicas": 1}), ".until: required with from"),
        (json!({"until": new_year, "minReplicas": 1}), ".from: required with until"),
        (once(new_year, new_year), ".until: \"2026-01-01T00:00:00Z\": not later than from"),
        (once(new_year, "2026-01-01T01:00:00+02:00"), "not later than from"),
        (once("2026-01-01T00:00:00", new_year), "not later than from"),
        (once("2026-01-01", new_year), "as in RFC 3339"),
        (once("2026-02-30T00:00:00Z", new_year), "RFC 3339"),
        (once("2026-01-01T00:00:00+01:00[Europe/Berlin]", new_year), "RFC 3339"),
        (once("20260101T000000+01:00", new_year), "RFC 3339"),
        (once("২০২৬-01-01T00:00:00Z", new_year), "RFC 3339"),
        (with("minReplicas", json!(-1)), ".minReplicas: -1 is less than 0"),
        (with("maxReplicas", json!(0)), ".maxReplicas: 0 is less than 1"),
        (
            json!({"start": "0 8 * * *", "end": "0 9 * * *", "minReplicas": 5, "maxReplicas": 4}),
            ".maxReplicas: 4 is less than minReplicas 5",
        ),
        (with("minReplicas", json!(null)), "schedules[1]: minReplicas, maxReplicas or both"),
        (with("ramp", json!("0s")), r#".ramp: "0s": expected a duration from 1s to 24h"#),
        (with("ramp", json!("500ms")), "expected a duration"),
        (with("ramp", json!("24h1s")), "expected a duration"),
        (with("ramp", json!("-5m")), "expected a duration"),
        (with("ramp", json!("PT5M")), "expected a duration"),
        (with("ramp", json!("10")), "expected a duration"),
        (with("ramp", json!("")), "expected a duration"),
        (with("ramp", json!("9999999999999999999h")), "expected a duration"),
        (with("name", json!("A")), r#".name: "A": expected 1 to 63 lower-case letters"#),
        (with("name", json!("-a")), "expected 1 to 63"),
        (with("name", json!("")), "expected 1 to 63"),
        (with("name", json!(long)), "expected 1 to 63"),
        (with("name", json!("first")), r#".name: "first" is the name of schedules[0], too"#),
    ] {
        let mut second = json!({"name": "second"});
        second.as_object_mut().unwrap().extend(schedule.as_object().unwrap().clone());
        let mut first = cron("0 8 * * *");
        first["name"] = json!("first");
        let error = parse(&specs(json!([first, second]))).expect_err(expected);
        let text = error.to_string();
        assert!(text.starts_with("schedules[1]"), "{text}");
        assert!(text.contains(expected), "{text} has no {expected}");
        assert!(text.len() < 500, "{text}");
    }
    // A time without an offset is one of the time zone.
    let timed = json!([{"name": "a", "from": "2026-01-01T00:00:00", "until": "2026-01-02T00:00:00Z",
        "timeZone": "Asia/Tokyo", "minReplicas": 1}]);
    let window = parse(&specs(timed)).expect("a schedule").windows(0, i64::MAX).next();
    assert_eq!(window.expect("a window").begin_ms, ms("2025-12-31T15:00:00Z"));
    let many: Vec<ScheduleSpec> = (0..=MAX_SCHEDULES)
        .map(|index| ScheduleSpec {
            name: format!("a{index}"),
            ..specs(json!([with("name", json!("a"))]))[0].clone()
        })
        .collect();
    assert!(parse(&many[1..]).is_ok());
    let error = parse(&many).expect_err("too many").to_string();
    assert_eq!(error, "schedules[32]: expected at most 32 schedules");
}

#[test]
fn valid_schedules_of_all_forms_are_read() {
    for (start, other) in [
        ("@daily", "0 0 * * *"),
        ("@Midnight", "00 0 1-31 * *"),
        ("@yearly", "0 0 1 JAN *"),
        ("@hourly", "0 */1 * * 0-7"),
        (" 0\t8 *  * mon-Fri ", "0 8 * * 1-5"),
        ("0 8 * * 5-7", "0 8 * * 0,5,6"),
        ("0 8 * * SAT,SUN", "0 8 * * 6-7"),
        ("*/20 8 * * *", "0-40/20 8 * * *"),
        ("0 8 */10 * *", "0 8 1-31/10 * *"),
        ("0 8 29 feb *", "0 8 29 2 *"),
    ] {
        assert_eq!(cron::Cron::parse(start), cron::Cron::parse(other), "{start} and {other}");
        assert!(cron::Cron::parse(start).is_ok(), "{start}");
    }
    for ramp in ["1s", "90s", "10m", "1h30m", "24h", "1500ms"] {
        schedules(json!([{"name": "a-1", "from": "2026-01-01T00:00:00.5Z", "maxReplicas": 1,
            "until": "2026-01-01T00:00:00.501-00:00", "ramp": ramp}]));
    }
    assert!(parse(&[]).is_ok_and(|schedules| schedules.is_empty()));
    let round_trip = serde_json::to_value(specs(json!([{"name": "a", "timeZone": "Etc/UTC"}])));
    assert_eq!(round_trip.unwrap(), json!([{"name": "a", "timeZone": "Etc/UTC"}]));
}
