//! Load that is constant for hours at a time of the day at which it is not on other days: the metric may be gone, and its query
//! say 0 or repeat the last value.

use super::load::Load;
use crate::time::UnixMillis;
use std::collections::HashMap;

/// It is constant for so long at least, in ms,
const LEAST_MS: i64 = 2 * HOUR_MS;
/// and in so many rows.
const LEAST_ROWS: usize = 5;
/// A workload may rest for as long as a weekend with a day before or after it, in ms: from a day
const DAY_MS: i64 = 24 * HOUR_MS;
/// to three days and four nights.
const REST_MS: i64 = 90 * HOUR_MS;
const HOUR_MS: i64 = 3_600_000;
const HOURS: usize = 24;

/// A part of the load that has one value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Constant {
    pub(super) from: UnixMillis,
    pub(super) to: UnixMillis,
    pub(super) value: f64,
}

/// How many rows are in each hour of the day.
#[derive(Clone, Copy, Default)]
struct ByHour([u32; HOURS]);

impl ByHour {
    fn of(times: impl Iterator<Item = UnixMillis>) -> Self {
        let mut rows = Self::default();
        times.for_each(|time| rows.0[hour(time)] += 1);
        rows
    }

    fn add(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, rows)| *sum += rows);
    }
}

fn hour(time: UnixMillis) -> usize {
    (time.div_euclid(HOUR_MS)).rem_euclid(HOURS as i64) as usize
}

/// The parts in which a load is constant, while it never has that value in the same hours of other days; all of it if it is 0
/// all the time. Gaps end no part. One that is over after a day of rest, or a few, is none.
pub(super) fn constant(load: &Load) -> Vec<Constant> {
    let points: Vec<(UnixMillis, f64)> = load.points().collect();
    let Some(&(last, _)) = points.last() else { return Vec::new() };
    let length = |part: &[(UnixMillis, f64)]| part[part.len() - 1].0 - part[0].0;
    let rows_of = |part: &[(UnixMillis, f64)]| ByHour::of(part.iter().map(|(time, _)| *time));
    let parts = points.chunk_by(|one, next| one.1 == next.1);
    let parts: Vec<_> =
        parts.filter(|part| part.len() >= LEAST_ROWS && length(part) >= LEAST_MS).collect();
    let goes_on = |part: &[(UnixMillis, f64)]| part[part.len() - 1].0 == last;
    let is_too_long = |part: &[(UnixMillis, f64)]| goes_on(part) || length(part) > REST_MS;
    let all = rows_of(&points);
    // The rows with the value of a part, and those of them that say nothing of other days.
    let mut with_value: HashMap<u64, [ByHour; 2]> =
        parts.iter().map(|part| (part[0].1.to_bits(), Default::default())).collect();
    for (time, value) in &points {
        if let Some([rows, _]) = with_value.get_mut(&value.to_bits()) {
            rows.0[hour(*time)] += 1;
        }
    }
    for part in parts.iter().filter(|part| is_too_long(part)) {
        with_value.entry(part[0].1.to_bits()).or_default()[1].add(rows_of(part));
    }
    let is_doubtful = |part: &&[(UnixMillis, f64)]| {
        let (value, own) = (part[0].1, rows_of(part));
        if part.len() == points.len() {
            return value == 0.0;
        }
        let [rows, mut left_out] = with_value[&value.to_bits()];
        if !is_too_long(part) {
            if length(part) >= DAY_MS {
                return false;
            }
            left_out.add(own);
        }
        let differs =
            |hour: &usize| all.0[*hour] > left_out.0[*hour] && rows.0[*hour] == left_out.0[*hour];
        let differing: u32 = (0..HOURS).filter(differs).map(|hour| own.0[hour]).sum();
        length(part) as f64 * f64::from(differing) / part.len() as f64 >= LEAST_MS as f64
    };
    let constant = |part: &[(UnixMillis, f64)]| {
        let ((from, value), (to, _)) = (part[0], part[part.len() - 1]);
        Constant { from, to, value }
    };
    parts.into_iter().filter(is_doubtful).map(constant).collect()
}
