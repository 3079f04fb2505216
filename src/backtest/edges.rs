//! Whether load falls from a level as from a ceiling.

use crate::time::UnixMillis;

/// How much longer a load is within four times a distance of its top than within that distance, where its top is an edge. At
/// a smooth peak it is twice as long, and about 1.4 times at one that is as flat as a fourth power.
const EDGE: f64 = 1.4;
/// The distances, in what is flat: the least that are wider than the noise tell.
const DEPTHS: [f64; 3] = [1.0, 2.0, 4.0];
/// So far around a part its edges are looked for, in ms.
const REACH_MS: i64 = 43_200_000;
/// So many rows are passed at once, so that what is far away is found without a look at each.
const BLOCK: usize = 128;

/// The rows of a load, with the least and the largest value of each [`BLOCK`].
pub(super) struct Rows<'a> {
    pub(super) points: &'a [(UnixMillis, f64)],
    blocks: Vec<[f64; 2]>,
}

impl<'a> Rows<'a> {
    pub(super) fn new(points: &'a [(UnixMillis, f64)]) -> Self {
        let extremes = |block: &[(UnixMillis, f64)]| {
            let values = block.iter().map(|(_, value)| *value);
            [values.clone().fold(f64::INFINITY, f64::min), values.fold(0.0, f64::max)]
        };
        Self { points, blocks: points.chunks(BLOCK).map(extremes).collect() }
    }

    /// The first row from this one on whose value is beyond a level, if it is so soon after the row before.
    pub(super) fn next(
        &self,
        mut row: usize,
        within_ms: i64,
        is_beyond: impl Fn(f64) -> bool,
    ) -> Option<usize> {
        let until = self.points.get(row.checked_sub(1)?)?.0 + within_ms;
        while self.points.get(row).is_some_and(|(time, _)| *time <= until) {
            let is_passed =
                row.is_multiple_of(BLOCK) && !self.blocks[row / BLOCK].into_iter().any(&is_beyond);
            match is_passed {
                true => row += BLOCK,
                false if is_beyond(self.points[row].1) => return Some(row),
                false => row += 1,
            }
        }
        None
    }

    /// The last row before this one whose value is beyond a level, if it is so near.
    pub(super) fn last(
        &self,
        mut row: usize,
        within_ms: i64,
        is_beyond: impl Fn(f64) -> bool,
    ) -> Option<usize> {
        let from = self.points.get(row)?.0 - within_ms;
        while row > 0 && self.points[row - 1].0 >= from {
            let is_passed = row.is_multiple_of(BLOCK)
                && !self.blocks[row / BLOCK - 1].into_iter().any(&is_beyond);
            match is_passed {
                true => row -= BLOCK,
                false if is_beyond(self.points[row - 1].1) => return Some(row - 1),
                false => row -= 1,
            }
        }
        None
    }

    /// Whether the load falls from the level of a part, its first and its last row, as from a ceiling, and not as from the
    /// peak of a wave, however smooth it is.
    pub(super) fn have_edges(&self, part: (usize, usize), level: f64, flat: f64) -> bool {
        DEPTHS.iter().any(|depth| {
            let [near, far] = [1.0, 4.0]
                .map(|times| Around::of(self, part, level * (1.0 - flat * depth * times)));
            far.has_end && far.length < EDGE * near.length
        })
    }
}

/// How long a load is above a level, around a part of it.
struct Around {
    length: f64,
    /// It is seen to leave it, before or after.
    has_end: bool,
}

impl Around {
    fn of(rows: &Rows<'_>, (first, last): (usize, usize), level: f64) -> Self {
        // When the load is at the level between two rows, of which it is below in the second one.
        let crossing = |inner: usize, outer: usize| {
            let [(from, above), (to, below)] = [rows.points[inner], rows.points[outer]];
            let share = ((above - level) / (above - below)).clamp(0.0, 1.0);
            from as f64 + (to - from) as f64 * share
        };
        let is_below = |value: f64| value < level;
        let before = rows.last(first, REACH_MS, is_below);
        let after = rows.next(last + 1, REACH_MS, is_below);
        let [begin, end] = [rows.points[0].0, rows.points[rows.points.len() - 1].0];
        let from = before.map_or_else(
            || begin.max(rows.points[first].0 - REACH_MS) as f64,
            |outer| crossing(outer + 1, outer),
        );
        let to = after.map_or_else(
            || end.min(rows.points[last].0 + REACH_MS) as f64,
            |outer| crossing(outer - 1, outer),
        );
        Self { length: to - from, has_end: before.is_some() || after.is_some() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_beyond_a_level_are_found_as_by_a_look_at_each() {
        let value = |row: usize| ((row * 7_919) % 1_009) as f64;
        let points: Vec<_> = (0..1_000).map(|row| (row as UnixMillis, value(row))).collect();
        let rows = Rows::new(&points);
        for level in [1.0, 20.0, 300.0, 2_000.0] {
            for within in [3, 200, 5_000] {
                for row in (1..1_000).step_by(13) {
                    let near = within as usize;
                    let is_below = |value: f64| value < level;
                    let is_found = |other: &usize| is_below(points[*other].1);
                    let next = (row..points.len().min(row + near)).find(is_found);
                    assert_eq!(rows.next(row, within, is_below), next, "{level} {within} {row}");
                    let last = (row.saturating_sub(near)..row).rev().find(is_found);
                    assert_eq!(rows.last(row, within, is_below), last, "{level} {within} {row}");
                    let is_above = |value: f64| value > level;
                    let next = (row..points.len().min(row + near))
                        .find(|other| is_above(points[*other].1));
                    assert_eq!(rows.next(row, within, is_above), next, "{level} {within} {row}");
                }
            }
        }
    }
}
