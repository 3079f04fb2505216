//! Where a recorded load can't be trusted: gaps, and load that was cut off because the pods could not carry more.

use super::ceiling::at_ceiling;
use super::constant::{Constant, constant};
use super::edges::Rows;
use super::load::Load;
use super::run::Options;
use crate::time::UnixMillis;
use serde::Serialize;
use std::collections::VecDeque;

/// A load that is cut off stays within this share of its level, or more where it varies a lot elsewhere.
const FLAT: f64 = 0.002;
/// At most within this share, and this part of what it varies in as much time elsewhere.
const MOST_FLAT: f64 = 0.01;
const FLAT_PART: f64 = 0.2;
/// The least time that it does so, in ms; twice as long where it is within more than [`FLAT`].
const LEAST_MS: i64 = 300_000;
/// And the least rows.
const LEAST_ROWS: usize = 5;
/// Nothing is above a load that is cut off, for so long before and after, in ms.
const CEILING_MS: i64 = 7_200_000;
/// Where the load bends by more than this share of its median from row to row, it is rough: an edge alone says little of it.
const ROUGH: f64 = 0.005;
/// A part of a rough load that bends by less than this share of what is usual is cut off,
const STILL: f64 = 0.1;
/// and one that bends by less than this share is so where it has an edge.
const QUIET: f64 = 0.5;
/// How many windows say how much a load varies.
const WINDOWS: usize = 2_000;
/// A distance of rows that is more than so many times as long as is usual is a hole, if it is not short, either.
const HOLE: i64 = 10;
/// Parts that are cut off and as near as this are one, in ms.
const NEAR_MS: i64 = 600_000;

/// A part of the load that says less than the others.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LowConfidence {
    /// Its beginning, in Unix seconds.
    pub from: f64,
    /// Its end, in Unix seconds.
    pub to: f64,
    /// Why.
    pub reason: String,
}

impl LowConfidence {
    /// From a time to another one.
    pub fn new(from: UnixMillis, to: UnixMillis, reason: &str) -> Self {
        let seconds = |time: UnixMillis| time as f64 / 1000.0;
        Self { from: seconds(from), to: seconds(to), reason: reason.to_owned() }
    }
}

/// For how long they say less, in minutes. Parts of several loads may be at the same time.
pub fn minutes<'a>(parts: impl IntoIterator<Item = &'a LowConfidence>) -> f64 {
    let mut parts: Vec<[f64; 2]> = parts.into_iter().map(|part| [part.from, part.to]).collect();
    parts.sort_by(|one, other| one[0].total_cmp(&other[0]));
    let (mut sum, mut end) = (0.0, f64::NEG_INFINITY);
    for [from, to] in parts {
        sum += (to - from.max(end)).max(0.0);
        end = end.max(to);
    }
    sum / 60.0
}

/// The parts of a load that say less than the others, in their order.
pub fn low_confidence(load: &Load) -> Vec<LowConfidence> {
    let mut parts = [unknown(load), cut_off(load), unchanged(load)].concat();
    parts.sort_by(|a, b| a.from.total_cmp(&b.from));
    parts
}

/// The gaps of a load, and where rows are missing.
pub(super) fn unknown(load: &Load) -> Vec<LowConfidence> {
    let points: Vec<(UnixMillis, f64)> = load.points().collect();
    let gaps = load.gaps();
    let gaps =
        gaps.map(|(from, to)| LowConfidence::new(from, to, "there is no load in the history"));
    let holes = holes(load, &points).map(|(from, to)| {
        let reason = "there is no row for longer than usual: the load is taken to be linear here";
        LowConfidence::new(from, to, reason)
    });
    gaps.chain(holes).collect()
}

/// Where a load was cut off: it stays at a high level with nothing above it, while it does not below. Users ask for more than
/// the pods can carry, and what is measured is what they carry. A load that has steps at low levels, too, has them by nature.
pub(super) fn cut_off(load: &Load) -> Vec<LowConfidence> {
    let points: Vec<(UnixMillis, f64)> = load.points().collect();
    let low = |part: Flat| {
        let reason = format!(
            "the load stays at {:.6} while it varies elsewhere: more may have been asked for than the pods could carry",
            part.level
        );
        LowConfidence::new(points[part.first].0, points[part.last].0, &reason)
    };
    flat_or_at_ceiling(&points).into_iter().map(low).collect()
}

/// Where a load is constant, as it is not on other days.
pub(super) fn unchanged(load: &Load) -> Vec<LowConfidence> {
    let low = |Constant { from, to, value }: Constant| {
        let reason = format!(
            "the load is {value} all the time, as at this time of no other day: does its query still find the series?"
        );
        LowConfidence::new(from, to, &reason)
    };
    constant(load).into_iter().map(low).collect()
}

/// How far the rows of a load are apart, where that is usually further than the window of the metric and than the start of a pod, in words.
pub fn coarse(load: &Load, options: &Options) -> Option<String> {
    let distance = load.usual_distance();
    let seen = options.window.max(options.pod_start).as_millis();
    let minutes = (distance as f64 / 6_000.0).round() / 10.0;
    (distance as u128 > seen).then(|| {
        format!("the rows of the load are {minutes} min apart: peaks between them are not seen")
    })
}

/// The times of rows that are much further apart than usual, with no gap between them.
fn holes<'a>(
    load: &'a Load,
    points: &'a [(UnixMillis, f64)],
) -> impl Iterator<Item = (UnixMillis, UnixMillis)> + 'a {
    let pairs = points.windows(2).map(|pair| (pair[0].0, pair[1].0));
    let longest = load.usual_distance().saturating_mul(HOLE).max(LEAST_MS);
    let mut gaps = load.gaps().peekable();
    pairs.filter(move |pair| gaps.next_if_eq(pair).is_none() && pair.1 - pair.0 > longest)
}

/// A part that is flat: the first and the last point, and the highest level.
#[derive(Clone, Copy, Debug)]
struct Flat {
    first: usize,
    last: usize,
    level: f64,
}

impl Flat {
    fn rows(&self) -> usize {
        self.last - self.first + 1
    }
}

/// The parts that are flat to the eye, and those at a ceiling that only all of the load shows.
fn flat_or_at_ceiling(points: &[(UnixMillis, f64)]) -> Vec<Flat> {
    let values: Vec<f64> = points.iter().map(|(_, value)| *value).collect();
    let at_ceiling = at_ceiling(&values).into_iter();
    let at_ceiling =
        at_ceiling.map(|part| Flat { first: part.first, last: part.last, level: part.level });
    let mut parts: Vec<Flat> = flat_at_the_top(points).into_iter().chain(at_ceiling).collect();
    parts.sort_by_key(|part| part.first);
    let mut joined: Vec<Flat> = Vec::new();
    for part in parts {
        match joined.last_mut() {
            Some(last) if points[part.first].0 - points[last.last].0 <= NEAR_MS => {
                last.last = last.last.max(part.last);
                last.level = last.level.max(part.level);
            }
            _ => joined.push(part),
        }
    }
    joined
}

/// The parts that are flat at the top: within [`FLAT`], and where the load varies a lot within more, too.
fn flat_at_the_top(points: &[(UnixMillis, f64)]) -> Vec<Flat> {
    let (rows, usual) = (Rows::new(points), bend(points));
    let mut parts = at_the_top(&rows, usual, FLAT, LEAST_MS);
    let widest = (variation(points) * FLAT_PART).min(MOST_FLAT);
    if widest > FLAT {
        parts.extend(at_the_top(&rows, usual, widest, 2 * LEAST_MS));
    }
    parts
}

/// Those within a share of their level, for at least so many ms, and the rows around them at their level.
fn at_the_top(rows: &Rows<'_>, usual: f64, flat: f64, least: i64) -> Vec<Flat> {
    let points = rows.points;
    let parts = flat_parts(points, flat, least);
    // The levels at which it is not flat.
    let mut varying = Vec::new();
    let mut next = 0;
    for part in &parts {
        varying.extend(points[next..part.first].iter().map(|(_, value)| *value));
        next = part.last + 1;
    }
    varying.extend(points[next..].iter().map(|(_, value)| *value));
    if varying.len() * 50 < points.len() {
        return Vec::new();
    }
    let middle = varying.len() / 2;
    let Some((_, median, _)) =
        (!varying.is_empty()).then(|| varying.select_nth_unstable_by(middle, f64::total_cmp))
    else {
        return Vec::new();
    };
    let (mut high, low): (Vec<Flat>, Vec<Flat>) =
        parts.into_iter().partition(|part| part.level > *median);
    if low.iter().map(Flat::rows).sum::<usize>() * 10 > points.len() {
        return Vec::new();
    }
    let is_rough = usual > ROUGH * *median;
    high.retain(|part| {
        let is_above = |value: f64| value > part.level * (1.0 + flat);
        let has_edges = || rows.have_edges((part.first, part.last), part.level, flat);
        rows.last(part.first, CEILING_MS, is_above).is_none()
            && rows.next(part.last + 1, CEILING_MS, is_above).is_none()
            && match bend(&points[part.first..=part.last]) {
                _ if !is_rough => has_edges(),
                own if own < usual * STILL => true,
                own => own < usual * QUIET && has_edges(),
            }
    });
    let alike = alike(points, &high);
    high.extend(alike);
    high
}

/// The rows between parts, as near as [`CEILING_MS`] to one of them, that are as high as it is: load that falls below its ceiling
/// now and then is flat for a short time only.
fn alike(points: &[(UnixMillis, f64)], parts: &[Flat]) -> Vec<Flat> {
    let mut alike = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        let values = points[part.first..=part.last].iter().map(|(_, value)| *value);
        let lowest = values.fold(part.level, f64::min);
        let from = index.checked_sub(1).map_or(0, |before| parts[before].last + 1);
        let to = parts.get(index + 1).map_or(points.len(), |after| after.first);
        let [begin, end] = [points[part.first].0 - CEILING_MS, points[part.last].0 + CEILING_MS];
        let around = (from..part.first).chain(part.last + 1..to);
        let is_alike = |row: &usize| {
            let (time, value) = points[*row];
            (begin..=end).contains(&time) && value >= lowest
        };
        let row = |row: usize| Flat { first: row, last: row, level: part.level };
        alike.extend(around.filter(is_alike).map(row));
    }
    alike
}

/// How much a load differs from a line through the rows before and after, usually. A wave bends most at its peak.
fn bend(points: &[(UnixMillis, f64)]) -> f64 {
    let bend = |rows: &[(UnixMillis, f64)]| (rows[2].1 - 2.0 * rows[1].1 + rows[0].1).abs();
    let mut bends: Vec<f64> = points.windows(3).map(bend).collect();
    let middle = bends.len() / 2;
    match bends.is_empty() {
        true => 0.0,
        false => *bends.select_nth_unstable_by(middle, f64::total_cmp).1,
    }
}

/// How much of its level a load varies within [`LEAST_MS`]: so much or less in three of four windows.
fn variation(points: &[(UnixMillis, f64)]) -> f64 {
    let mut ranges: Vec<f64> = Vec::new();
    for first in (0..points.len()).step_by(points.len().div_ceil(WINDOWS).max(1)) {
        let end = points[first].0 + LEAST_MS;
        let count = points[first..].iter().take_while(|(time, _)| *time < end).count();
        // With the first point that is not within it, as points may be further apart.
        let window = &points[first..(first + count + 1).min(points.len())];
        let values = window.iter().map(|(_, value)| *value);
        let most = values.clone().fold(0.0, f64::max);
        if most > 0.0 {
            ranges.push((most - values.fold(most, f64::min)) / most);
        }
    }
    ranges.sort_by(f64::total_cmp);
    ranges.get(ranges.len() * 3 / 4).copied().unwrap_or_default()
}

/// The longest parts that are flat within a share of their level, of at least so many ms.
fn flat_parts(points: &[(UnixMillis, f64)], flat: f64, least: i64) -> Vec<Flat> {
    let value = |index: usize| points[index].1;
    // The least and the largest of the part come first; behind each are those that will be after it has left.
    let (mut smallest, mut largest) = (VecDeque::<usize>::new(), VecDeque::<usize>::new());
    let (mut parts, mut start, mut end) = (Vec::new(), 0, 0);
    while start < points.len() {
        while end < points.len() {
            let most = largest.front().map_or(value(end), |index| value(*index).max(value(end)));
            let lowest = smallest.front().map_or(value(end), |index| value(*index).min(value(end)));
            if most - lowest > flat * most {
                break;
            }
            while smallest.back().is_some_and(|last| value(*last) >= value(end)) {
                smallest.pop_back();
            }
            while largest.back().is_some_and(|last| value(*last) <= value(end)) {
                largest.pop_back();
            }
            smallest.push_back(end);
            largest.push_back(end);
            end += 1;
        }
        let last = end - 1;
        let is_long = points[last].0 - points[start].0 >= least && end - start >= LEAST_ROWS;
        // The next part may begin within one that is too short.
        let next = if is_long { end } else { start + 1 };
        if is_long {
            let level = largest.front().map_or(value(start), |index| value(*index));
            parts.push(Flat { first: start, last, level });
        }
        for kept in [&mut smallest, &mut largest] {
            while kept.front().is_some_and(|first| *first < next) {
                kept.pop_front();
            }
        }
        start = next;
        end = end.max(start);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two weeks of a smooth daily wave whose peaks differ, in rows of so many seconds, with this share of noise, and at most a
    /// limit.
    fn smooth_days(step: i64, noise: f64, limit: f64) -> Load {
        let by_day = [1.0, 1.03, 0.98, 1.01, 0.95, 0.7, 0.65];
        Load::of((0..=14 * 86_400 / step).map(|row| {
            let day = (row * step) as f64 / 86_400.0;
            let noise = 1.0 + noise * (((row * 7_919) % 101) as f64 / 100.0 - 0.5);
            let wave = 1.0 + 0.6 * ((day - 0.4) * std::f64::consts::TAU).sin();
            let value = (by_day[day as usize % 7] * 10_000.0 * wave).min(limit) * noise;
            (row * step * 1_000, value, false)
        }))
    }

    #[test]
    fn the_peak_of_a_smooth_day_is_no_ceiling() {
        for step in [60, 300] {
            for noise in [0.0, 0.001, 0.002, 0.004] {
                let parts = low_confidence(&smooth_days(step, noise, f64::INFINITY));
                assert_eq!(parts, [], "{step} {noise}");
            }
            for noise in [0.0, 0.002] {
                let whole = smooth_days(step, 0.0, f64::INFINITY);
                let parts = low_confidence(&smooth_days(step, noise, 12_000.0));
                let is_marked =
                    |time: f64| parts.iter().any(|part| (part.from..=part.to).contains(&time));
                let cut = || whole.points().filter(|(_, value)| *value > 12_000.0);
                let marked = cut().filter(|(time, _)| is_marked(*time as f64 / 1000.0)).count();
                assert!(marked * 10 >= cut().count() * 9, "{step} {noise}: {marked}");
                let share = minutes(&parts) * 60.0 / (cut().count() as i64 * step) as f64;
                assert!(share < 1.2, "{step} {noise}: {share}");
                // The lower peaks of the weekend are whole.
                assert!(
                    parts.iter().all(|part| (part.from / 86_400.0) as usize % 7 < 5),
                    "{parts:?}"
                );
            }
        }
    }
    /// The share of the rows above a limit that are marked where the load was cut off there, and the rows that are marked as a
    /// multiple of them. `cut` is what is recorded of a row.
    fn marked(
        points: &[(UnixMillis, f64)],
        limit: f64,
        cut: impl Fn(usize, f64) -> f64,
    ) -> [f64; 2] {
        let rows = points.iter().enumerate();
        let recorded = Load::of(rows.map(|(row, (time, value))| (*time, cut(row, *value), false)));
        let parts = low_confidence(&recorded);
        let is_marked = |time: UnixMillis| {
            let time = time as f64 / 1000.0;
            parts.iter().any(|part| (part.from..=part.to).contains(&time))
        };
        let [mut above, mut found, mut all] = [0.0; 3];
        for (time, value) in points {
            let is_marked = f64::from(u8::from(is_marked(*time)));
            let is_above = f64::from(u8::from(*value > limit));
            above += is_above;
            found += is_above * is_marked;
            all += is_marked;
        }
        [found / above, all / above]
    }

    fn trace(name: &str) -> Vec<(UnixMillis, f64)> {
        let path = format!("{}/tests/data/traces/{name}.csv.gz", env!("CARGO_MANIFEST_DIR"));
        let file = flate2::read::MultiGzDecoder::new(std::fs::File::open(path).unwrap());
        let load = Load::read(std::io::BufReader::new(file)).unwrap();
        load.points().collect()
    }

    /// Repeatable noise from 0 to 1, which has no pattern from row to row.
    fn noise(row: usize) -> f64 {
        let x = (row as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((x ^ (x >> 27)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Of load that is cut off for a twentieth of the time or less, which is no pile of all rows.
    #[test]
    fn the_top_of_a_peak_that_was_cut_off_is_marked() {
        for (name, shares) in [
            ("crane-00", &[0.96, 0.97, 0.98, 0.99, 0.995][..]),
            ("crane-08", &[0.95, 0.96, 0.97, 0.98]),
            ("crane-14", &[0.96, 0.97, 0.98, 0.99, 0.995]),
            ("worldcup98-may-june", &[0.96, 0.98, 0.99, 0.995]),
        ] {
            let points = trace(name);
            let mut sorted: Vec<f64> = points.iter().map(|(_, value)| *value).collect();
            sorted.sort_unstable_by(f64::total_cmp);
            for share in shares {
                let limit = sorted[(sorted.len() as f64 * share) as usize];
                let [found, all] = marked(&points, limit, |_, value| value.min(limit));
                assert!(found >= 0.9 && all < 2.0, "{name} {share}: {found} {all}");
                // With a little noise of the measurement less is found of some.
                let [found, _] = marked(&points, limit, |row, value| {
                    value.min(limit * (1.0 - 0.002 * noise(row)))
                });
                assert!(found >= 0.8, "{name} {share}: {found}");
            }
        }
        let points = trace("crane-00");
        let limit = 0.9 * points.iter().map(|(_, value)| *value).fold(0.0, f64::max);
        let [found, _] = marked(&points, limit, |_, value| value.min(limit));
        assert!(found >= 0.9, "{found}");
    }

    #[test]
    fn five_minutes_at_a_ceiling_are_marked_where_the_load_varies() {
        let noise = |row: i64| (((row * 7_919) % 101) as f64 / 100.0 - 0.5) * 0.1;
        for minutes in [6, 8, 40] {
            let value = |row: i64| {
                let wave = 50.0 + 10.0 * (row as f64 / 1_440.0 * std::f64::consts::TAU).sin();
                let is_rush = (600..600 + minutes).contains(&(row % 1_440));
                (wave + if is_rush { 100.0 } else { 0.0 }) * (1.0 + noise(row))
            };
            let week: Vec<_> = (0..7 * 1_440).map(|row| (row * 60_000, value(row))).collect();
            let whole = Load::of(week.iter().map(|(time, value)| (*time, *value, false)));
            assert_eq!(low_confidence(&whole), [], "{minutes}");
            let [found, all] = marked(&week, 100.0, |_, value| value.min(100.0));
            assert!(found >= 0.9 && all < 1.2, "{minutes}: {found} {all}");
        }
    }
}
