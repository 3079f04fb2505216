//! Range queries, in pieces below the limits of Prometheus.

use crate::prometheus::{Client, Error, RangeSeries, decode_matrix};
use crate::time::UnixMillis;

/// The most points of a piece. Prometheus refuses more than 11,000.
const MAX_POINTS: i64 = 10_000;
/// The least points of a piece of a query that is too much for Prometheus in larger ones.
const MIN_POINTS: i64 = 50;
/// The length of a piece of raw samples, in ms.
const RAW_PIECE: i64 = 24 * 3_600_000;
/// How long two series may say different numbers of one thing, in ms, as where its exporter is replaced. A sample that is
/// further away than this says nothing of a time.
const BOTH: i64 = 300_000;
/// And the share of the time in which both are there: copies see other moments of a rollout.
const BOTH_SHARE: f64 = 0.02;

/// The times of a range query: from the first to the last, both included.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// The first time.
    pub first: UnixMillis,
    /// No time is later.
    pub last: UnixMillis,
    /// Their distance, in ms.
    pub step: i64,
}

/// The series of a query at the times of a grid.
///
/// # Errors
/// As [`Error`] says; a piece that is too much for the server is asked for in smaller ones first.
pub async fn range(client: &Client, query: &str, grid: Grid) -> Result<Vec<RangeSeries>, Error> {
    let mut all: Vec<RangeSeries> = Vec::new();
    let (mut at, mut points) = (grid.first, MAX_POINTS);
    while at <= grid.last {
        let last = grid.last.min(at + (points - 1) * grid.step);
        match client.query_range(query, at, last, grid.step).await {
            Ok(body) => {
                // Some servers align the times of an answer to its step.
                let asked = [at.saturating_sub(grid.step), last.saturating_add(grid.step)];
                add(&mut all, within(body.read(decode_matrix)?, asked)?);
                at = last + grid.step;
            }
            Err(error) if is_too_much(&error) && points > MIN_POINTS => points = points / 4 + 1,
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// The samples of a selector as they were scraped, in the order of time. Its series are one thing that exporters
/// replaced one after the other.
///
/// # Errors
/// As [`Error`] says, or if its series are several things.
pub async fn raw(
    client: &Client,
    selector: &str,
    first: UnixMillis,
    last: UnixMillis,
) -> Result<Vec<(UnixMillis, f64)>, String> {
    let mut all: Vec<RangeSeries> = Vec::new();
    let mut from = first;
    while from < last {
        let to = last.min(from + RAW_PIECE);
        let length = to - from;
        let read = client.query_at(&format!("{selector}[{length}ms]"), to).await;
        let series = read.and_then(|body| within(body.read(decode_matrix)?, [from, to]));
        add(&mut all, series.map_err(|error| error.to_string())?);
        from = to;
    }
    one_thing(all)
}

fn one_thing(mut all: Vec<RangeSeries>) -> Result<Vec<(UnixMillis, f64)>, String> {
    all.sort_by_key(|series| series.points.first().map(|(time, _)| *time));
    let mut samples: Vec<(UnixMillis, f64)> = Vec::new();
    let mut before: Option<RangeSeries> = None;
    for series in all {
        let until = samples.last().map_or(UnixMillis::MIN, |(time, _)| *time);
        let is_other = differ(&series.points, &samples);
        if let Some(before) = before.filter(|_| is_other) {
            return Err(format!(
                "two series say different numbers at the same time, that with the labels {:?} and that with {:?}: a Prometheus, or a view of it, with one cluster was expected",
                before.labels, series.labels
            ));
        }
        samples.extend(series.points.iter().filter(|(time, _)| *time > until));
        before = Some(series);
    }
    Ok(samples)
}

/// Whether a series says other numbers than another one for long: numbers that are not between the samples around each of
/// its own. Copies of one thing are scraped at times of their own, so that a change is in one before it is in the other.
fn differ(own: &[(UnixMillis, f64)], other: &[(UnixMillis, f64)]) -> bool {
    let (mut both, mut different) = (0, 0);
    for pair in own.windows(2) {
        let [(last, _), (time, value)] = [pair[0], pair[1]];
        let next = other.partition_point(|(at, _)| *at <= time);
        let around = next.checked_sub(1).and_then(|last| other.get(last..=next));
        let Some([(before, one), (after, two)]) = around else { continue };
        if time - before <= BOTH && after - time <= BOTH {
            let length = (time - last).min(BOTH);
            both += length;
            if value < one.min(*two) || value > one.max(*two) {
                different += length;
            }
        }
    }
    different > BOTH && different as f64 > both as f64 * BOTH_SHARE
}

/// Whether a query may succeed over less time.
fn is_too_much(error: &Error) -> bool {
    match error {
        error if error.is_late() => true,
        Error::Overloaded(_) | Error::Memory { .. } => true,
        Error::Refused(why) => why.contains("too many samples") || why.contains("resolution"),
        Error::InvalidResponse(why) => why.contains("larger than"),
        Error::Unavailable { status, .. } => matches!(status, 413 | 422 | 503),
        _ => false,
    }
}

/// What of an answer is of the time that was asked for. Other points are left out: what comes of them would be computed over
/// all the time to them. If nothing is left, the answer is of another time, such as one in another unit.
fn within(
    mut series: Vec<RangeSeries>,
    [first, last]: [UnixMillis; 2],
) -> Result<Vec<RangeSeries>, Error> {
    let found = series.iter().flat_map(|series| &series.points).map(|(time, _)| *time).next();
    for series in &mut series {
        series.points.retain(|(time, _)| (first..=last).contains(time));
    }
    series.retain(|series| !series.points.is_empty());
    match found {
        Some(time) if series.is_empty() => Err(Error::InvalidResponse(format!(
            "it has a point at {} s and none from {} to {} s, which was asked for",
            seconds(time),
            seconds(first),
            seconds(last)
        ))),
        _ => Ok(series),
    }
}

fn seconds(time: UnixMillis) -> f64 {
    time as f64 / 1000.0
}

/// Adds the points of later pieces. One that is not later than those before is left out.
fn add(all: &mut Vec<RangeSeries>, later: Vec<RangeSeries>) {
    for series in later {
        let known = all.iter().position(|other| other.labels == series.labels);
        let index = known.unwrap_or_else(|| {
            all.push(RangeSeries { labels: series.labels, points: Vec::new() });
            all.len() - 1
        });
        let points = &mut all[index].points;
        for point in series.points {
            if points.last().is_none_or(|(last, _)| *last < point.0) {
                points.push(point);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_of_one_thing_follow_each_other_and_others_are_refused() {
        let series = |exporter: &str, minutes: std::ops::Range<i64>, value: f64| RangeSeries {
            labels: [("instance".to_owned(), exporter.to_owned())].into(),
            points: minutes.map(|minute| (minute * 60_000, value)).collect(),
        };
        let replaced = one_thing(vec![series("b", 10..20, 5.0), series("a", 0..12, 3.0)]).unwrap();
        assert_eq!(replaced.len(), 20);
        assert_eq!((replaced[11].1, replaced[12].1), (3.0, 5.0));
        let copies = one_thing(vec![series("a", 0..60, 3.0), series("b", 0..60, 3.0)]).unwrap();
        assert_eq!(copies.len(), 60);
        let clusters = one_thing(vec![series("a", 0..60, 3.0), series("b", 0..60, 20.0)]);
        assert!(clusters.unwrap_err().contains("one cluster"));
    }

    #[test]
    fn series_that_have_the_same_numbers_at_other_times_are_refused_and_late_copies_are_not() {
        let series = |cluster: &str, value: &dyn Fn(i64) -> f64, phase: i64| RangeSeries {
            labels: [("cluster".to_owned(), cluster.to_owned())].into(),
            points: (0..240).map(|n| (n * 15_000 + phase, value(n * 15_000 + phase))).collect(),
        };
        // 2 to 10 in turn, each for a time, and always 3.
        for each in [15_000, 60_000, 600_000] {
            let turn = |time: i64| (2 + time / each % 9) as f64;
            for (a, b) in [(0, 3_000), (3_000, 0)] {
                let both = vec![series("a", &turn, a), series("b", &|_| 3.0, b)];
                let error = one_thing(both).unwrap_err();
                assert!(error.contains("one cluster"), "{each}: {error}");
            }
            let copies = vec![series("a", &turn, 0), series("b", &turn, 7_000)];
            assert!(one_thing(copies).is_ok(), "{each}");
        }
        // One of them sees a moment of a rollout that the other does not, every hour for a day.
        let moment = |time: i64| 10.0 - f64::from(time % 3_600_000 == 7_000);
        let copies = [0, 7_000].map(|phase| RangeSeries {
            points: (0..5_760)
                .map(|n| n * 15_000 + phase)
                .map(|time| (time, moment(time)))
                .collect(),
            ..RangeSeries::default()
        });
        assert!(one_thing(copies.into()).is_ok());
    }

    #[test]
    fn times_that_were_not_asked_for_are_left_out() {
        let series = |times: &[UnixMillis]| RangeSeries {
            points: times.iter().map(|time| (*time, 1.0)).collect(),
            ..RangeSeries::default()
        };
        let odd = series(&[-1_000_000_000_000_000, 60_000, 75_000, UnixMillis::MAX]);
        let kept = within(vec![odd], [60_000, 120_000]).unwrap();
        assert_eq!(kept, [series(&[60_000, 75_000])]);
        let mut all = kept;
        add(&mut all, vec![series(&[75_000, 90_000, 30_000, 90_000, 105_000])]);
        assert_eq!(all, [series(&[60_000, 75_000, 90_000, 105_000])]);
        let error = within(vec![series(&[60, 75])], [60_000, 120_000]).unwrap_err().to_string();
        assert!(error.contains("a point at 0.06 s and none from 60 to 120 s"), "{error}");
        assert_eq!(within(vec![series(&[])], [60_000, 120_000]), Ok(Vec::new()));
        assert_eq!(within(Vec::new(), [60_000, 120_000]), Ok(Vec::new()));
    }
}
