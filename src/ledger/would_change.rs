//! What a metric has to be for one replica more, and for one fewer.

use super::entry::{Basis, Constraint, Entry, Measured, MetricStatus};
use crate::time::UnixMillis;

/// What has to be for other replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turning {
    /// The replicas that this value asks for, if they are ready: more than one may be added or removed, as ratios
    /// within the tolerance change nothing.
    pub replicas: i32,
    /// The value of the metric, in the unit of its target: at least, or at most.
    pub value: i64,
    /// When that can take effect at the earliest.
    pub earliest: UnixMillis,
}

/// What the metric that decided has to be for more and for fewer replicas, if all pods are ready; the index of the
/// metric first. None of a direction that a bound prevents, or for fewer another metric that asks for as many, or is
/// not known.
pub fn would_change(entry: &Entry) -> Option<(usize, [Option<Turning>; 2])> {
    let desired = entry.desired.filter(|desired| *desired > 0)?;
    let used = |status| entry.metrics.iter().position(move |metric| metric.status == status);
    let index = used(MetricStatus::Used).or_else(|| used(MetricStatus::Valid))?;
    let basis: &Basis = &entry.basis;
    let target = basis.metrics.get(index)?.target;
    let [down, up] = basis.tolerance;
    let (replicas, number) = (f64::from(desired), target.number() as f64);
    if number <= 0.0 {
        return None;
    }
    // The values are whole numbers of the target's unit. The ratio has to leave the tolerance, and the
    // replicas that follow from it have to be others.
    let least = (number * (1.0 + up)).floor() as i64 + 1;
    let outside = (number * (1.0 - down)).ceil() as i64 - 1;
    let most = outside.min((number * (replicas - 1.0) / replicas).floor() as i64);
    let asked = |value: i64| (value as f64 / number * replicas).ceil() as i32;
    let held = |up: bool| {
        let of = |constraint: &Constraint| {
            let raises = constraint.after < constraint.before;
            constraint.until.filter(|_| raises == up)
        };
        entry.constraints.iter().filter_map(of).max()
    };
    let [up_window, down_window] = basis.windows;
    let more = (desired < basis.max).then(|| Turning {
        replicas: asked(least).clamp(desired + 1, basis.max),
        value: least,
        earliest: (entry.last + up_window).max(held(true).unwrap_or(0)),
    });
    // What is recommended now holds for a window from now on, unless it is already fewer.
    let is_lower = entry.recommended.is_some_and(|recommended| recommended < desired);
    let of_window = if is_lower { entry.last } else { entry.last + down_window };
    let allows_fewer = |(of, metric): (usize, &Measured)| {
        let is_lower = metric.proposed.is_some_and(|proposed| proposed < desired);
        of == index || (is_lower && metric.status != MetricStatus::Invalid)
    };
    let allow_fewer = entry.metrics.iter().enumerate().all(allows_fewer);
    let fewer = (desired > basis.min.max(1) && allow_fewer).then(|| Turning {
        replicas: asked(most).clamp(basis.min.max(1), desired - 1),
        value: most,
        earliest: of_window.max(held(false).unwrap_or(0)),
    });
    Some((index, [more, fewer]))
}
