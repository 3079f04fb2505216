//! Load that is constant for hours at a time of the day at which it is not on other days: the metric may be gone, and its query
//! say 0 or repeat the last value.

use super::load::Load;
use crate::time::UnixMillis;
use std::collections::HashMap;

/// It is constant for so long at least, in ms,
const LEAST_MS: i64 = 2 * HOUR_MS;
/// and in so many rows.
const LEAST_ROWS: usize = 5;
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
type ByHour = [u32; HOURS];

fn hour(time: UnixMillis) -> usize {
    (time.div_euclid(HOUR_MS)).rem_euclid(HOURS as i64) as usize
}

/// The parts in which a load is constant, while it never has that value in the same hours of other days; all of it if it is 0
/// all the time.
pub(super) fn constant(load: &Load) -> Vec<Constant> {
    let points: Vec<(UnixMillis, f64)> = load.points().collect();
    let gaps: Vec<UnixMillis> = load.gaps().map(|(from, _)| from).collect();
    let is_one = |one: &(UnixMillis, f64), next: &(UnixMillis, f64)| {
        one.1 == next.1 && gaps.binary_search(&one.0).is_err()
    };
    let is_long = |part: &&[(UnixMillis, f64)]| {
        part.len() >= LEAST_ROWS && part[part.len() - 1].0 - part[0].0 >= LEAST_MS
    };
    let parts: Vec<_> = points.chunk_by(is_one).filter(is_long).collect();
    let mut rows: ByHour = [0; HOURS];
    let mut with_value: HashMap<u64, ByHour> =
        parts.iter().map(|part| (part[0].1.to_bits(), [0; HOURS])).collect();
    for (time, value) in &points {
        rows[hour(*time)] += 1;
        if let Some(with_value) = with_value.get_mut(&value.to_bits()) {
            with_value[hour(*time)] += 1;
        }
    }
    let is_doubtful = |part: &&[(UnixMillis, f64)]| {
        let value = part[0].1;
        if part.len() == points.len() {
            return value == 0.0;
        }
        let mut own: ByHour = [0; HOURS];
        part.iter().for_each(|(time, _)| own[hour(*time)] += 1);
        let with_value = &with_value[&value.to_bits()];
        let differs = |hour: &usize| rows[*hour] > own[*hour] && with_value[*hour] == own[*hour];
        let differing: u32 = (0..HOURS).filter(differs).map(|hour| own[hour]).sum();
        let length = part[part.len() - 1].0 - part[0].0;
        length as f64 * f64::from(differing) / part.len() as f64 >= LEAST_MS as f64
    };
    let constant = |part: &[(UnixMillis, f64)]| {
        let ((from, value), (to, _)) = (part[0], part[part.len() - 1]);
        Constant { from, to, value }
    };
    parts.into_iter().filter(is_doubtful).map(constant).collect()
}
