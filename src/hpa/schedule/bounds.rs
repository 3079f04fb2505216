//! The bounds of the replicas by the active schedules.

use super::window::{ActiveWindow, Schedule};
use crate::time::UnixMillis;

/// The bounds of the replicas, and what they are by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The lower bound; at most `max`.
    pub min: i32,
    /// The upper bound.
    pub max: i32,
    /// The schedule whose minReplicas it is, from 0 on, the first of equals; the specification's if
    /// no active schedule gives one. In a conflict it is the schedule whose bound was lowered.
    pub min_by: Option<usize>,
    /// The schedule whose maxReplicas it is, likewise.
    pub max_by: Option<usize>,
    /// Whether the lower bound was above the upper one, and was lowered to it.
    pub conflict: bool,
}

impl Bounds {
    /// Those of a specification without schedules.
    pub fn fixed(min: i32, max: i32) -> Self {
        Self { min, max, min_by: None, max_by: None, conflict: false }
    }
}

/// A bound, and when a ramp moves it next.
struct Bound {
    replicas: i32,
    by: Option<usize>,
    step: Option<UnixMillis>,
}

/// The bounds at a time, and when a ramp moves one of them next. `windows`, which is in the order of the begins, has the
/// active ones, and those that have ended and held when one of these or of the active ones began whose ramp is not over.
pub(super) fn at(
    schedules: &[Schedule],
    time: UnixMillis,
    windows: &[ActiveWindow],
    spec_min: i32,
    spec_max: i32,
) -> (Bounds, Option<UnixMillis>) {
    let min =
        bound(schedules, time, windows, spec_min, |schedule| schedule.min, |new, old| new > old);
    let max =
        bound(schedules, time, windows, spec_max, |schedule| schedule.max, |new, old| new < old);
    let conflict = min.replicas > max.replicas;
    let bounds = Bounds {
        min: min.replicas.min(max.replicas),
        max: max.replicas,
        min_by: min.by,
        max_by: max.by,
        conflict,
    };
    (bounds, [min.step, max.step].into_iter().flatten().min())
}

fn bound(
    schedules: &[Schedule],
    time: UnixMillis,
    windows: &[ActiveWindow],
    spec: i32,
    own: impl Fn(&Schedule) -> Option<i32>,
    wins: impl Fn(i32, i32) -> bool,
) -> Bound {
    let mut best: Option<(i32, usize)> = None;
    let mut step: Option<UnixMillis> = None;
    // Without the windows that begin at the same time, so that their order does not matter.
    let (mut earlier, mut begin) = (None, None);
    // What the bound was by those that have ended.
    let mut ended: Vec<(i32, &ActiveWindow)> = Vec::new();
    for window in windows {
        if begin != Some(window.begin_ms) {
            (earlier, begin) = (best.map(|(replicas, _)| replicas), Some(window.begin_ms));
        }
        let Some(schedule) = schedules.get(window.index) else { continue };
        let Some(own) = own(schedule) else { continue };
        let held = ended.iter().filter(|(_, one)| {
            one.begin_ms < window.begin_ms && one.end_ms.is_some_and(|end| end > window.begin_ms)
        });
        let held = held.map(|(replicas, _)| *replicas);
        let from = earlier.into_iter().chain(held);
        let from = from.reduce(|one, other| if wins(other, one) { other } else { one });
        let until = window.end_ms.map_or(time, |end| end.min(time));
        let elapsed = until.saturating_sub(window.begin_ms);
        let (replicas, next) = on_ramp(from.unwrap_or(spec), own, elapsed, schedule.ramp_ms);
        if window.end_ms.is_some_and(|end| end <= time) {
            ended.push((replicas, window));
            continue;
        }
        let next = next.map(|elapsed| window.begin_ms.saturating_add(elapsed));
        step = [step, next].into_iter().flatten().min();
        let is_better = best.is_none_or(|(old, index)| {
            wins(replicas, old) || replicas == old && window.index < index
        });
        if is_better {
            best = Some((replicas, window.index));
        }
    }
    let (replicas, by) = best.map_or((spec, None), |(replicas, by)| (replicas, Some(by)));
    Bound { replicas, by, step }
}

/// Where on the line from one bound to another it is after `elapsed` of `length`, and after how much
/// of it the next step is. Both in milliseconds, at most a day.
///
/// It is rounded up in both directions: capacity that comes is never late, and capacity that goes
/// never goes early.
fn on_ramp(from: i32, to: i32, elapsed: i64, length: i64) -> (i32, Option<i64>) {
    let change = i64::from(to) - i64::from(from);
    if elapsed >= length || change == 0 {
        return (to, None);
    }
    // Within 64 bits: the change has 33, and a day has 27.
    let moved = -(-change * elapsed).div_euclid(length);
    let next = match change > 0 {
        true => (moved * length).div_euclid(change) + 1,
        false => -((moved - 1) * length).div_euclid(-change),
    };
    (i32::try_from(i64::from(from) + moved).unwrap_or(to), Some(next))
}
