//! Arithmetic in the order in which Prometheus does it, so that each bit is the same.

/// A sum with compensation for what rounding loses (Kahan's, with Neumaier's improvement).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    /// The sum so far.
    pub sum: f64,
    /// What it lacks.
    pub compensation: f64,
}

impl Sum {
    /// A sum of one value.
    pub fn of(sum: f64) -> Self {
        Self { sum, compensation: 0.0 }
    }

    /// With one more value.
    pub fn plus(self, value: f64) -> Self {
        let Self { sum, compensation } = self;
        let total = sum + value;
        let compensation = if total.is_infinite() {
            0.0
        } else if sum.abs() >= value.abs() {
            compensation + ((sum - total) + value)
        } else {
            compensation + ((value - total) + sum)
        };
        Self { sum: total, compensation }
    }

    /// Both parts times a factor.
    fn times(self, factor: f64) -> Self {
        Self { sum: factor * self.sum, compensation: factor * self.compensation }
    }

    /// The sum and what it lacks.
    pub fn total(self) -> f64 {
        self.sum + self.compensation
    }
}

/// A mean: of the sum while that is finite, else updated by each value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mean {
    state: Sum,
    count: f64,
    incremental: bool,
}

impl Mean {
    /// The mean of one value.
    pub fn of(value: f64) -> Self {
        Self { state: Sum::of(value), count: 1.0, incremental: false }
    }

    /// With one more value.
    pub fn add(&mut self, value: f64) {
        self.count += 1.0;
        if !self.incremental {
            let next = self.state.plus(value);
            if !next.sum.is_infinite() {
                self.state = next;
                return;
            }
            self.incremental = true;
            let before = self.count - 1.0;
            self.state.sum /= before;
            self.state.compensation /= before;
        }
        let share = (self.count - 1.0) / self.count;
        self.state = self.state.times(share).plus(value / self.count);
    }

    /// The mean.
    pub fn value(self) -> f64 {
        match self.incremental {
            true => self.state.total(),
            false => self.state.sum / self.count + self.state.compensation / self.count,
        }
    }
}

/// The quantile of values, which are sorted for it; NaNs come first.
pub(super) fn quantile(quantile: f64, values: &mut [f64]) -> f64 {
    if values.is_empty() || quantile.is_nan() {
        return f64::NAN;
    }
    if quantile < 0.0 {
        return f64::NEG_INFINITY;
    }
    if quantile > 1.0 {
        return f64::INFINITY;
    }
    values.sort_by(|one, other| match (one.is_nan(), other.is_nan()) {
        (false, false) => one.partial_cmp(other).expect("two numbers"),
        (one, other) => other.cmp(&one),
    });
    let last = (values.len() - 1) as f64;
    let rank = quantile * last;
    let lower = rank.floor().max(0.0);
    let upper = (lower + 1.0).min(last);
    let weight = rank - rank.floor();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "both are indices")]
    let (lower, upper) = (values[lower as usize], values[upper as usize]);
    lower * (1.0 - weight) + upper * weight
}

/// The larger one, as Go's `math.Max`: infinity even beside NaN.
pub(super) fn max(one: f64, other: f64) -> f64 {
    if one == f64::INFINITY || other == f64::INFINITY {
        f64::INFINITY
    } else if one.is_nan() || other.is_nan() {
        f64::NAN
    } else if one == 0.0 && other == 0.0 {
        if one.is_sign_negative() { other } else { one }
    } else if one > other {
        one
    } else {
        other
    }
}

/// The smaller one, as Go's `math.Min`.
pub(super) fn min(one: f64, other: f64) -> f64 {
    -max(-one, -other)
}

/// A line through points by least squares: its slope, and its value at the time `origin` (in ms).
pub(super) fn line(points: &[super::storage::Point], origin: i64) -> (f64, f64) {
    let first = points[0].value;
    #[expect(clippy::float_cmp, reason = "as Prometheus finds a constant")]
    if points.iter().all(|point| point.value == first) || points.len() == 1 {
        return if first.is_infinite() { (f64::NAN, f64::NAN) } else { (0.0, first) };
    }
    let (mut x_sum, mut y_sum, mut xy_sum, mut xx_sum) = <(Sum, Sum, Sum, Sum)>::default();
    for point in points {
        let (x, y) = ((point.at - origin) as f64 / 1e3, point.value);
        x_sum = x_sum.plus(x);
        y_sum = y_sum.plus(y);
        xy_sum = xy_sum.plus(x * y);
        xx_sum = xx_sum.plus(x * x);
    }
    let count = points.len() as f64;
    let (x, y, xy, xx) = (x_sum.total(), y_sum.total(), xy_sum.total(), xx_sum.total());
    let slope = (xy - x * y / count) / (xx - x * x / count);
    (slope, y / count - slope * x / count)
}
