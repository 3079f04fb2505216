//! What a metric has to be for one replica more, and for one fewer.

use super::basis::Basis;
use super::entry::{CarriedOut, Constraint, ConstraintKind, Entry, Measured, MetricStatus};
use crate::hpa::OnError;
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

/// Why no value of the metric gives other replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prevented {
    /// The replicas are at their bound.
    Bound,
    /// `selectPolicy: Disabled`.
    SelectPolicy,
    /// No value of the metric leaves the tolerance.
    Tolerance,
    /// Another metric, by its index, asks for as many replicas, or fails.
    Metric(usize),
    /// What holds the replicas, for as long as it does.
    Held(ConstraintKind),
    /// No decision is carried out.
    CarriedOut(CarriedOut),
}

/// What the metric that decided has to be for more and for fewer replicas than there are after the decision, if all pods
/// are ready; the index of the metric first.
pub fn would_change(entry: &Entry) -> Option<(usize, [Result<Turning, Prevented>; 2])> {
    let desired = entry.desired?;
    let is_written = entry.carried == CarriedOut::Written;
    let present = if is_written { desired } else { entry.current? };
    let used = |status| entry.metrics.iter().position(move |metric| metric.status == status);
    let index = used(MetricStatus::Used).or_else(|| used(MetricStatus::Valid))?;
    let number = entry.basis.metrics.get(index)?.target.number();
    if present <= 0 || number <= 0 {
        return None;
    }
    let of = Of { entry, index, present, number: number as f64 };
    Some((index, [of.more(), of.fewer()]))
}

/// The decision and metric that it is asked of.
struct Of<'a> {
    entry: &'a Entry,
    index: usize,
    present: i32,
    /// The number of the target.
    number: f64,
}

impl Of<'_> {
    fn more(&self) -> Result<Turning, Prevented> {
        let Self { entry, present, number, .. } = *self;
        let basis: &Basis = &entry.basis;
        if present >= basis.max {
            return Err(Prevented::Bound);
        }
        self.is_prevented(basis.disabled[0])?;
        let most = 1.0 + basis.tolerance[1];
        let within = (number * most).floor();
        if within >= i64::MAX as f64 {
            return Err(Prevented::Tolerance);
        }
        let value = self.first_outside(within as i64, 1, |ratio| ratio <= most);
        let replicas = self.asked(value).clamp(present.saturating_add(1), basis.max);
        let is_asked = entry.recommended.is_some_and(|recommended| recommended > present);
        self.limited(true, is_asked, replicas, value)
    }

    fn fewer(&self) -> Result<Turning, Prevented> {
        let Self { entry, index, present, number } = *self;
        let basis: &Basis = &entry.basis;
        if present <= basis.min {
            return Err(Prevented::Bound);
        }
        let prevents = |(of, metric): &(usize, &Measured)| *of != index && self.keeps(*of, metric);
        if let Some((of, _)) = entry.metrics.iter().enumerate().find(prevents) {
            return Err(Prevented::Metric(of));
        }
        self.is_prevented(basis.disabled[1])?;
        let least = 1.0 - basis.tolerance[0];
        let within = (number * least).ceil() as i64;
        let outside = self.first_outside(within, -1, |ratio| ratio >= least);
        let activation = basis.metrics[index].activation.filter(|_| present == 1);
        let (value, replicas) = match activation {
            // It is not active, whatever the tolerance.
            Some(activation) => (activation, 0),
            None if outside < 0 => return Err(Prevented::Tolerance),
            None => {
                let share = f64::from(present - 1) / f64::from(present);
                let value = outside.min((number * share).floor() as i64);
                let least = if present > 1 { basis.min.max(1) } else { 0 };
                (value, self.asked(value).clamp(least, present - 1))
            }
        };
        let is_asked = entry.recommended.is_some_and(|recommended| recommended < present);
        self.limited(false, is_asked, replicas, value)
    }

    /// The first value whose ratio to the target is outside of the tolerance, a step beyond a limit that was rounded:
    /// the values are whole numbers of the target's unit, and what is within is decided by the ratio.
    fn first_outside(&self, limit: i64, step: i64, is_within: impl Fn(f64) -> bool) -> i64 {
        let values = [limit, limit.saturating_add(step)];
        let is_outside = |value: &i64| !is_within(*value as f64 / self.number);
        values.into_iter().find(is_outside).unwrap_or(limit.saturating_add(2 * step))
    }

    /// The replicas that a value asks for.
    fn asked(&self, value: i64) -> i32 {
        (value as f64 / self.number * f64::from(self.present)).ceil() as i32
    }

    /// Whether another metric keeps the present replicas. One without a value that holds (`onEmpty`, `onError`) asks for
    /// those that there are, however many they will be.
    fn keeps(&self, index: usize, metric: &Measured) -> bool {
        let on_error = self.entry.basis.metrics.get(index).and_then(|of| of.on_error);
        match metric.proposed {
            Some(_) if metric.value.is_none() && metric.status != MetricStatus::Invalid => true,
            Some(_) if metric.value.is_none() && on_error == Some(OnError::Hold) => true,
            Some(proposed) => proposed >= self.present,
            None => on_error != Some(OnError::Ignore),
        }
    }

    fn is_prevented(&self, is_disabled: bool) -> Result<(), Prevented> {
        let carried = self.entry.carried;
        match carried {
            CarriedOut::Frozen => Err(Prevented::CarriedOut(carried)),
            _ if is_disabled => Err(Prevented::SelectPolicy),
            _ => Ok(()),
        }
    }

    /// The same within what policies and stabilization windows allow. `is_asked`: whether the metrics already ask for it.
    fn limited(
        &self,
        up: bool,
        is_asked: bool,
        replicas: i32,
        value: i64,
    ) -> Result<Turning, Prevented> {
        let Self { entry, present, .. } = *self;
        let holds = |one: &&Constraint| (one.after < one.before) == up;
        let until = entry.constraints.iter().filter(holds).filter_map(|one| one.until).max();
        // What is recommended now holds for a window from now on, unless the metrics ask for the change.
        let window = if is_asked { 0 } else { entry.basis.windows[usize::from(!up)] };
        let earliest = (entry.last + window).max(until.unwrap_or(entry.last));
        let Some(limit) = entry.limits[usize::from(!up)] else {
            return Ok(Turning { replicas, value, earliest });
        };
        if if up { limit.replicas <= present } else { limit.replicas >= present } {
            return Err(Prevented::Held(limit.kind));
        }
        let replicas = if up { replicas.min(limit.replicas) } else { replicas.max(limit.replicas) };
        let earliest = earliest.max(limit.from.unwrap_or(earliest));
        Ok(Turning { replicas, value, earliest })
    }
}
