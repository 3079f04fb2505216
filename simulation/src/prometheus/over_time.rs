//! Functions of the samples of one series over time.

use super::math::{self, Mean, Sum};
use super::node::OverTime;
use super::storage::Point;

/// What a function is of, besides the samples.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// The time before its first moment, in Unix ms.
    pub start: i64,
    /// Its last moment, in Unix ms.
    pub end: i64,
    /// When the query is evaluated, in Unix ms.
    pub now: i64,
    /// The scalar of the functions that take one.
    pub parameter: f64,
}

/// The value of a function of samples in the order of time; none if there are too few.
pub(super) fn over_time(function: OverTime, points: &[Point], window: Window) -> Option<f64> {
    let (first, last) = (points.first()?, points.last()?);
    let values = || points.iter().map(|point| point.value);
    let pairs = || points.windows(2).map(|pair| (pair[0].value, pair[1].value));
    #[expect(clippy::float_cmp, reason = "as Prometheus counts changes")]
    Some(match function {
        OverTime::Rate => extrapolated(points, window, true)?.per_second,
        OverTime::Increase => extrapolated(points, window, true)?.total,
        OverTime::Delta => extrapolated(points, window, false)?.total,
        OverTime::Irate => instant(points, true)?,
        OverTime::Idelta => instant(points, false)?,
        OverTime::Sum => {
            let sum = values().fold(Sum::default(), Sum::plus);
            if sum.sum.is_infinite() { sum.sum } else { sum.total() }
        }
        OverTime::Avg => {
            let mut mean = Mean::of(first.value);
            values().skip(1).for_each(|value| mean.add(value));
            mean.value()
        }
        OverTime::Min => values().fold(first.value, smaller),
        OverTime::Max => values().fold(first.value, larger),
        OverTime::Count => points.len() as f64,
        OverTime::Last => last.value,
        OverTime::Present => 1.0,
        OverTime::Quantile => math::quantile(window.parameter, &mut values().collect::<Vec<_>>()),
        OverTime::Stddev => variance(values()).sqrt(),
        OverTime::Stdvar => variance(values()),
        OverTime::Changes => {
            let changed =
                |(one, next): &(f64, f64)| one != next && !(one.is_nan() && next.is_nan());
            pairs().filter(changed).count() as f64
        }
        OverTime::Resets => pairs().filter(|(one, next)| next < one).count() as f64,
        OverTime::Deriv if points.len() < 2 => return None,
        OverTime::Deriv => math::line(points, first.at).0,
        OverTime::PredictLinear if points.len() < 2 => return None,
        OverTime::PredictLinear => {
            let (slope, now) = math::line(points, window.now);
            slope * window.parameter + now
        }
    })
}

/// The smaller one; any number before NaN.
pub(super) fn smaller(one: f64, other: f64) -> f64 {
    if other < one || one.is_nan() { other } else { one }
}

/// The larger one; any number before NaN.
pub(super) fn larger(one: f64, other: f64) -> f64 {
    if other > one || one.is_nan() { other } else { one }
}

fn variance(values: impl Iterator<Item = f64>) -> f64 {
    let (mut count, mut mean, mut squares) = (0.0, Sum::default(), Sum::default());
    for value in values {
        count += 1.0;
        let delta = value - mean.total();
        mean = mean.plus(delta / count);
        squares = squares.plus(delta * (value - mean.total()));
    }
    squares.total() / count
}

/// By how much a series rises in a window.
struct Rise {
    total: f64,
    per_second: f64,
}

/// The difference of the last and the first sample, stretched to the whole window if these are close to
/// its ends, and by half of the distance of two samples where not. A counter adds what it had before each
/// reset, and is not stretched to before it was 0.
fn extrapolated(points: &[Point], window: Window, is_counter: bool) -> Option<Rise> {
    let [first, .., last] = points else { return None };
    let mut rise = last.value - first.value;
    if is_counter {
        for pair in points.windows(2) {
            if pair[1].value < pair[0].value {
                rise += pair[0].value;
            }
        }
    }
    let seconds = |from: i64, to: i64| (to - from) as f64 / 1000.0;
    let mut to_start = seconds(window.start, first.at);
    let mut to_end = seconds(last.at, window.end);
    let sampled = seconds(first.at, last.at);
    let between = sampled / (points.len() - 1) as f64;
    let threshold = between * 1.1;
    if to_start >= threshold {
        to_start = between / 2.0;
    }
    if is_counter && rise > 0.0 && first.value >= 0.0 {
        let to_zero = sampled * (first.value / rise);
        if to_zero < to_start {
            to_start = to_zero;
        }
    }
    if to_end >= threshold {
        to_end = between / 2.0;
    }
    let factor = (sampled + to_start + to_end) / sampled;
    let range = duration(window.end - window.start);
    Some(Rise { total: rise * factor, per_second: rise * (factor / range) })
}

/// A number of ms in seconds, as Go's `Duration.Seconds` rounds it.
fn duration(ms: i64) -> f64 {
    (ms / 1000) as f64 + (ms % 1000 * 1_000_000) as f64 / 1e9
}

/// The difference of the last two samples; per second for a counter.
fn instant(points: &[Point], is_rate: bool) -> Option<f64> {
    let [.., one, last] = points else { return None };
    if last.at == one.at {
        return None;
    }
    let reset = is_rate && last.value < one.value;
    let rise = if reset { last.value } else { last.value - one.value };
    Some(if is_rate { rise / ((last.at - one.at) as f64 / 1000.0) } else { rise })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(values: &[(i64, f64)], function: OverTime) -> Option<f64> {
        let points: Vec<Point> = values
            .iter()
            .map(|(second, value)| Point { at: second * 1000, value: *value })
            .collect();
        let window = Window { start: 0, end: 60_000, now: 60_000, parameter: 0.0 };
        over_time(function, &points, window)
    }

    #[test]
    fn a_rate_is_extrapolated_to_the_ends_that_are_near() {
        let rise = |values: &[(i64, f64)]| rate(values, OverTime::Increase);
        assert_eq!(rise(&[(10, 1.0)]), None);
        // Both ends are one distance away.
        assert_eq!(rise(&[(20, 100.0), (40, 120.0)]), Some(60.0));
        // The end is far: half of the distance.
        assert_eq!(rise(&[(10, 100.0), (20, 110.0)]), Some(25.0));
        // Never to before the counter was 0.
        assert_eq!(rise(&[(20, 0.0), (40, 20.0)]), Some(40.0));
        // A reset.
        assert_eq!(rise(&[(20, 100.0), (40, 20.0)]), Some(60.0));
        assert_eq!(rate(&[(20, 100.0), (40, 20.0)], OverTime::Delta), Some(-240.0));
        assert_eq!(rate(&[(20, 100.0), (40, 20.0)], OverTime::Irate), Some(1.0));
    }
}
