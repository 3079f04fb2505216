//! Load by which nothing becomes cheaper.

use super::super::load::Load;
use super::super::saturation::low_confidence;
use super::tests::{LIMITS, days, searched_from, spec, waves};
use super::*;
use serde_json::json;

const DAY: i64 = 1_440;
/// What is cheaper is asked for.
const SAVING: Limits = Limits { budget: None, under_minutes: Some(300.0), ..LIMITS };

/// Nothing becomes cheaper by this load for a spec that has far more than it needs, and why is said.
fn assert_nothing_cheaper(load: &Load, why: &str) {
    let mut large = spec();
    large["minReplicas"] = json!(3);
    let found = searched_from(&large, Some(14.0), load, SAVING);
    let cost = |of: &Trial| [of.tuned.replica_hours, of.shown().replica_hours];
    if let Some(chosen) = &found.recommended {
        let is_cheaper = cost(chosen).iter().zip(cost(&found.present)).any(|(a, b)| *a < b);
        assert!(!is_cheaper, "{why}: {}", chosen.label);
    }
    assert!(found.doubt.as_ref().is_some_and(|doubt| doubt.contains(why)), "{:?}", found.doubt);
}

#[test]
fn without_a_doubt_it_becomes_cheaper() {
    let found = searched_from(&spec(), Some(14.0), &days(8, |_, value| value), SAVING);
    let chosen = found.recommended.as_ref().expect(&found.reason);
    assert!(chosen.tuned.replica_hours < found.present.tuned.replica_hours * 0.9);
}

/// Its series is gone, and the query says 0 or repeats the last value.
#[test]
fn a_metric_that_died_makes_nothing_cheaper() {
    for still in [0.0, 40.0] {
        let died = days(9, |minute, value| if minute < 3 * DAY { value } else { still });
        let parts = low_confidence(&died);
        let expected = (3.0 * 86_400.0, (9 * DAY - 1) as f64 * 60.0);
        assert_eq!(parts.iter().map(|part| (part.from, part.to)).collect::<Vec<_>>(), [expected]);
        assert!(parts[0].reason.starts_with(&format!("the load is {still} ")), "{parts:?}");
        assert_nothing_cheaper(&died, "can't be trusted");
    }
    let zero = days(8, |_, _| 0.0);
    assert_eq!(low_confidence(&zero).len(), 1);
    assert_nothing_cheaper(&zero, "can't be trusted");
}

/// Prometheus was restarted meanwhile, or the series was gone twice, and is there again.
#[test]
fn a_gap_or_a_return_hides_no_metric_that_died() {
    let gap = |minute: i64, value: f64| if minute % (4 * DAY) == 1_000 { f64::NAN } else { value };
    let zero = days(8, |minute, _| gap(minute, 0.0));
    assert_nothing_cheaper(&zero, "can't be trusted");
    let back = days(11, |minute, value| {
        let is_gone =
            (2 * DAY..6 * DAY).contains(&minute) || (6 * DAY + 300..10 * DAY).contains(&minute);
        gap(minute, if is_gone { 0.0 } else { value })
    });
    assert_nothing_cheaper(&back, "can't be trusted");
    let is_marked = |day: i64| {
        low_confidence(&back).iter().any(|part| {
            part.reason.starts_with("the load is 0 ")
                && (part.from..part.to).contains(&(day as f64 * 86_400.0))
        })
    };
    assert!([3, 5, 8].into_iter().all(is_marked) && ![1, 10].into_iter().any(is_marked));
}

/// It is at 0 each night, and on weekends.
#[test]
fn a_load_that_stands_still_at_the_same_times_is_known() {
    let office = days(14, |minute, value| {
        let is_day = (480..1_080).contains(&(minute % DAY)) && minute / DAY % 7 < 5;
        if is_day { value } else { 0.0 }
    });
    assert_eq!(low_confidence(&office), []);
    // Of a week with one weekend, too.
    let week = office.between(None, Some(8 * 86_400_000)).unwrap();
    assert_eq!(low_confidence(&week), []);
    let nights = days(2, |minute, value| if minute % DAY < 480 { 7.0 } else { value });
    assert_eq!(low_confidence(&nights), []);
}

#[test]
fn a_rest_that_never_needs_more_than_the_minimum_makes_nothing_cheaper() {
    let idle = days(9, |minute, value| if minute < 6 * DAY - 10 { value } else { value / 10.0 });
    assert_nothing_cheaper(&idle, "the rest never needs more than minReplicas");
}

#[test]
fn a_peak_that_is_cut_off_each_day_makes_nothing_cheaper() {
    let cut =
        days(9, |minute, value| if (600..660).contains(&(minute % DAY)) { 250.0 } else { value });
    assert_nothing_cheaper(&cut, "more may have been asked for than was carried");
}

#[test]
fn less_than_a_week_makes_nothing_cheaper() {
    assert_nothing_cheaper(&days(6, |_, value| value), "less than a week");
}

#[test]
fn rows_that_are_far_apart_make_nothing_cheaper() {
    let hourly = Load::of((0..9 * 24).map(|hour: i64| {
        let wave = (hour as f64 / 24.0 * std::f64::consts::TAU).sin();
        (hour * 3_600_000, 120.0 + 80.0 * wave + (hour * 7 % 13) as f64, false)
    }));
    assert_nothing_cheaper(&hourly, "rows of the load are 60 min apart");
}

#[test]
fn an_hour_of_the_night_makes_nothing_smaller() {
    let mut high = spec();
    high["minReplicas"] = json!(20);
    for (minutes, step) in [(60, 15_000), (4 * 1_440, 60_000)] {
        let rows = i64::from(minutes) * 60_000 / step;
        let night = Load::of((0..rows).map(|row| (row * step, 30.0, false)));
        let found = searched_from(&high, None, &night, SAVING);
        let chosen = found.recommended.map(|chosen| chosen.label);
        assert_eq!(chosen, None, "by {minutes} minutes");
    }
}

#[test]
fn nothing_becomes_smaller_by_a_load_that_can_t_be_trusted() {
    let mut high = spec();
    high["minReplicas"] = json!(30);
    let whole = searched_from(&high, None, &waves(), SAVING).recommended.expect("a lower minimum");
    assert!(whole.spec["minReplicas"].as_i64().unwrap() < 30, "{}", whole.label);
    let two_thirds = waves().last() * 2 / 3;
    // All of it, what is tuned on, or the rest, which would confirm what is cheaper.
    let parts: [(&str, &dyn Fn(i64) -> bool); 3] = [
        ("all", &|_| true),
        ("tuned", &|time| time <= two_thirds),
        ("rest", &|time| time > two_thirds),
    ];
    for (name, is_cut) in parts {
        let load = waves();
        let cut = load.points().map(|(time, value)| {
            (time, if is_cut(time) { value.min(110.0) } else { value }, false)
        });
        let cut: Vec<_> = cut.collect();
        let found = searched_from(&high, None, &Load::of(cut), SAVING);
        let chosen = found.recommended.map(|chosen| chosen.label);
        assert_eq!(chosen, None, "{name}");
    }
}

#[test]
fn hours_of_load_make_nothing_cheaper() {
    let path = format!("{}/tests/data/traces/crane-02.csv.gz", env!("CARGO_MANIFEST_DIR"));
    let file = flate2::read::MultiGzDecoder::new(std::fs::File::open(path).unwrap());
    let load = Load::read(std::io::BufReader::new(file)).unwrap();
    let mut spec = spec();
    spec["maxReplicas"] = json!(1_000);
    spec["customMetrics"][0]["averageValue"] = json!("16.8806");
    for hours in [1, 2, 6] {
        let part = load.between(Some(load.last() - hours * 3_600_000), None).unwrap();
        let found = searched_from(&spec, None, &part, LIMITS);
        let before = &found.present;
        match &found.recommended {
            Some(after) => {
                assert!(after.tuned.replica_hours >= before.tuned.replica_hours, "{}", after.label);
                assert!(after.shown().replica_hours >= before.shown().replica_hours, "{hours}");
            }
            None => assert!(found.reason.contains("less than a week"), "{}", found.reason),
        }
        // There is something cheaper, which is ruled out.
        let is_cheaper = |trial: &&Trial| trial.tuned.replica_hours < before.tuned.replica_hours;
        let cheaper: Vec<_> = found.others.iter().filter(is_cheaper).collect();
        assert!(!cheaper.is_empty(), "{hours}");
        for trial in cheaper {
            assert!(trial.ruled_out.as_ref().is_some_and(|why| why.contains("less than a week")));
        }
    }
}
