//! Aggregations of series.

use super::error::EvaluateError;
use super::eval::Sample;
use super::labels::{Labels, METRIC_NAME};
use super::math::{self, Mean, Sum};
use super::node::{Aggregation, Grouping};
use super::number;
use super::over_time::{larger, smaller};
use std::collections::HashMap;

impl Grouping {
    /// The labels by which a series is told apart; never the metric's name unless it is named.
    pub fn key(&self, labels: &Labels) -> Labels {
        match self {
            Self::By(names) if names.is_empty() => Labels::empty(),
            Self::By(names) => labels.filtered(|name| names.iter().any(|own| own == name)),
            Self::Without(names) => {
                labels.filtered(|name| name != METRIC_NAME && names.iter().all(|own| own != name))
            }
        }
    }
}

/// The series of each group, in the order in which the groups first appear.
fn groups(samples: Vec<Sample>, by: &Grouping) -> Vec<(Labels, Vec<Sample>)> {
    let mut places: HashMap<Labels, usize> = HashMap::new();
    let mut groups: Vec<(Labels, Vec<Sample>)> = Vec::new();
    for sample in samples {
        let key = by.key(&sample.labels);
        let place = *places.entry(key).or_insert_with_key(|key| {
            groups.push((key.clone(), Vec::new()));
            groups.len() - 1
        });
        groups[place].1.push(sample);
    }
    groups
}

/// The result of an aggregation.
///
/// # Errors
/// If its parameter is no count of series.
pub(super) fn aggregate(
    operation: Aggregation,
    parameter: Option<f64>,
    samples: Vec<Sample>,
    by: &Grouping,
) -> Result<Vec<Sample>, EvaluateError> {
    if let (Aggregation::TopK | Aggregation::BottomK, Some(parameter)) = (operation, parameter) {
        return first(operation == Aggregation::TopK, parameter, samples, by);
    }
    let groups = groups(samples, by).into_iter();
    let result = groups.map(|(labels, samples)| {
        let value = of_group(operation, parameter.unwrap_or(f64::NAN), &samples);
        Sample { labels, value }
    });
    Ok(result.collect())
}

/// The value of a group of at least one series.
fn of_group(operation: Aggregation, parameter: f64, samples: &[Sample]) -> f64 {
    let first = samples[0].value;
    let others = samples[1..].iter().map(|sample| sample.value);
    match operation {
        Aggregation::Sum => others.fold(Sum::of(first), Sum::plus).total(),
        Aggregation::Avg => {
            let mut mean = Mean::of(first);
            others.for_each(|value| mean.add(value));
            mean.value()
        }
        Aggregation::Min => others.fold(first, smaller),
        Aggregation::Max => others.fold(first, larger),
        Aggregation::Count => samples.len() as f64,
        Aggregation::Group => 1.0,
        Aggregation::Stddev => variance(samples).sqrt(),
        Aggregation::Stdvar => variance(samples),
        Aggregation::Quantile => {
            let mut values: Vec<f64> = samples.iter().map(|sample| sample.value).collect();
            math::quantile(parameter, &mut values)
        }
        Aggregation::TopK | Aggregation::BottomK => unreachable!("`aggregate` takes them apart"),
    }
}

fn variance(samples: &[Sample]) -> f64 {
    let (mut count, mut mean) = (1.0, samples[0].value);
    let mut squares = if mean.is_finite() { 0.0 } else { f64::NAN };
    for sample in &samples[1..] {
        count += 1.0;
        let delta = sample.value - mean;
        mean += delta / count;
        squares += delta * (sample.value - mean);
    }
    squares / count
}

/// The `count` largest or smallest of each group, these first; NaNs last.
fn first(
    largest: bool,
    count: f64,
    samples: Vec<Sample>,
    by: &Grouping,
) -> Result<Vec<Sample>, EvaluateError> {
    if count < 1.0 {
        return Ok(Vec::new());
    }
    if count.is_nan() {
        return Err(EvaluateError::Failed("Parameter value is NaN".to_owned()));
    }
    if count >= i64::MAX as f64 {
        return Err(EvaluateError::Failed(format!("Scalar value {count} overflows int64")));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within bounds")]
    let count = (count as u64).min(samples.len() as u64) as usize;
    let mut result = Vec::new();
    for (_, group) in groups(samples, by) {
        let mut heap = Heap { largest, samples: Vec::with_capacity(count.min(group.len())) };
        for sample in group {
            if heap.samples.len() < count {
                heap.push(sample);
            } else if heap.is_better(sample.value) {
                heap.samples[0] = sample;
                heap.sift_down();
            }
        }
        heap.sort();
        result.append(&mut heap.samples);
    }
    Ok(result)
}

/// The best samples so far, the worst of them first: Go's `container/heap`, so that of equal values the
/// same ones stay.
struct Heap {
    largest: bool,
    samples: Vec<Sample>,
}

impl Heap {
    /// Whether the sample at `one` is worse than the one at `other`; NaN is worse than all.
    fn is_worse(&self, one: usize, other: usize) -> bool {
        let (one, other) = (self.samples[one].value, self.samples[other].value);
        one.is_nan() || if self.largest { one < other } else { one > other }
    }

    /// Whether a value is better than the worst.
    fn is_better(&self, value: f64) -> bool {
        let worst = self.samples[0].value;
        let better = if self.largest { worst < value } else { worst > value };
        better || worst.is_nan() && !value.is_nan()
    }

    fn push(&mut self, sample: Sample) {
        self.samples.push(sample);
        let mut place = self.samples.len() - 1;
        while place > 0 {
            let parent = (place - 1) / 2;
            if !self.is_worse(place, parent) {
                break;
            }
            self.samples.swap(place, parent);
            place = parent;
        }
    }

    fn sift_down(&mut self) {
        let mut place = 0;
        loop {
            let left = 2 * place + 1;
            if left >= self.samples.len() {
                return;
            }
            let right = left + 1;
            let child = match right < self.samples.len() && self.is_worse(right, left) {
                true => right,
                false => left,
            };
            if !self.is_worse(child, place) {
                return;
            }
            self.samples.swap(place, child);
            place = child;
        }
    }

    /// The best first: Go's insertion sort, which is what it sorts up to twelve values with.
    fn sort(&mut self) {
        for end in 1..self.samples.len() {
            let mut place = end;
            while place > 0 && self.is_worse(place - 1, place) {
                self.samples.swap(place, place - 1);
                place -= 1;
            }
        }
    }
}

/// How many series of each group have each value.
///
/// # Errors
/// If the label is no label.
pub(super) fn count_values(
    label: &str,
    samples: Vec<Sample>,
    by: &Grouping,
) -> Result<Vec<Sample>, EvaluateError> {
    if label.is_empty() {
        return Err(EvaluateError::Failed("invalid label name \"\"".to_owned()));
    }
    let with_value = samples.into_iter().map(|sample| {
        let value = number::decimal(sample.value);
        Sample { labels: sample.labels.with(label, &value), value: sample.value }
    });
    let mut by = by.clone();
    if let Grouping::By(names) = &mut by {
        names.push(label.to_owned());
    }
    let groups = groups(with_value.collect(), &by).into_iter();
    Ok(groups.map(|(labels, group)| Sample { labels, value: group.len() as f64 }).collect())
}
