//! Where a recorded load can't be trusted: gaps, and load that was cut off because the pods could not carry more.

use super::load::Load;
use crate::time::UnixMillis;
use serde::Serialize;

/// A load that is cut off stays within this share of its level.
const FLAT: f64 = 0.002;
/// The least time that it does so, in ms.
const LEAST_MS: i64 = 300_000;
/// And the least rows.
const LEAST_ROWS: usize = 5;

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

/// The parts of a load that say less than the others, in their order.
///
/// Load that was cut off is flat at a high level, while it is not flat below: users ask for more than the pods can
/// carry, and what is measured is what they carry. A load that has steps at all levels is one by nature.
pub fn low_confidence(load: &Load) -> Vec<LowConfidence> {
    let points: Vec<(UnixMillis, f64)> = load.points().collect();
    let mut values: Vec<f64> = points.iter().map(|(_, value)| *value).collect();
    values.sort_by(f64::total_cmp);
    let median = values.get(values.len() / 2).copied().unwrap_or_default();
    let (high, low): (Vec<_>, Vec<_>) =
        flat_parts(&points).into_iter().partition(|(_, _, level)| *level > median);
    let rows = |parts: &[(usize, usize, f64)]| -> usize {
        parts.iter().map(|(start, end, _)| end - start + 1).sum()
    };
    let is_stepped = rows(&low) * 10 > points.len() || rows(&high) * 2 > points.len();
    let seconds = |time: UnixMillis| time as f64 / 1000.0;
    let part = |from, to, reason| LowConfidence { from: seconds(from), to: seconds(to), reason };
    let mut parts: Vec<LowConfidence> = load
        .gaps()
        .map(|(from, to)| part(from, to, "there is no load in the history".to_owned()))
        .collect();
    if !is_stepped {
        parts.extend(high.into_iter().map(|(start, end, level)| {
            let reason = format!(
                "the load stays at {level:.6} while it varies elsewhere: more may have been asked for than the pods could carry"
            );
            part(points[start].0, points[end].0, reason)
        }));
    }
    parts.sort_by(|a, b| a.from.total_cmp(&b.from));
    parts
}

/// The longest parts that are flat: the first and the last point of each, and its level.
fn flat_parts(points: &[(UnixMillis, f64)]) -> Vec<(usize, usize, f64)> {
    let (mut parts, mut start) = (Vec::new(), 0);
    while start < points.len() {
        let (mut least, mut most) = (points[start].1, points[start].1);
        let mut end = start;
        while let Some((_, value)) = points.get(end + 1) {
            let (lower, upper) = (least.min(*value), most.max(*value));
            if upper - lower > FLAT * upper {
                break;
            }
            (least, most, end) = (lower, upper, end + 1);
        }
        let is_long = points[end].0 - points[start].0 >= LEAST_MS && end + 1 - start >= LEAST_ROWS;
        if is_long {
            parts.push((start, end, most));
            start = end + 1;
        } else {
            // The next part may begin within this one.
            start += 1;
        }
    }
    parts
}
