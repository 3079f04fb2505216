//! The evaluation of a query.

use super::aggregate;
use super::binary;
use super::error::{EvaluateError, same_labels};
use super::histogram;
use super::labels::Labels;
use super::math;
use super::node::{At, Each, Operator, OverTime, Range, Scalar, Selector, Vector, When};
use super::over_time::{Window, over_time};
use super::storage::{LOOKBACK, Point, Series, Storage};
use std::collections::{HashMap, HashSet};

/// The most steps that a subquery may have.
const MAX_STEPS: i64 = 100_000;

/// A series with one value.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub labels: Labels,
    pub value: f64,
}

/// Evaluates at one time.
#[derive(Clone, Copy)]
pub(super) struct Evaluator<'a> {
    storage: &'a Storage,
    /// The time of the query, in Unix ms.
    query: i64,
    /// The time of the evaluation: another one in a subquery.
    now: i64,
    /// Whether this is one step of a subquery.
    is_step: bool,
}

/// The samples of some series.
type Ranges = Vec<(Labels, Vec<Point>)>;

impl<'a> Evaluator<'a> {
    /// At a time in Unix ms.
    pub fn new(storage: &'a Storage, now: i64) -> Self {
        Self { storage, query: now, now, is_step: false }
    }

    /// The value of a number.
    ///
    /// # Errors
    /// As [`EvaluateError`] says.
    pub fn scalar(&self, scalar: &Scalar) -> Result<f64, EvaluateError> {
        Ok(match scalar {
            Scalar::Number(number) => *number,
            Scalar::Time => self.now as f64 / 1000.0,
            Scalar::Of(vector) => match &self.vector(vector)?[..] {
                [only] => only.value,
                _ => f64::NAN,
            },
            Scalar::Negated(scalar) => -self.scalar(scalar)?,
            Scalar::Binary(operator, left, right) => {
                let (value, holds) = operator.apply(self.scalar(left)?, self.scalar(right)?);
                if operator.compares() { f64::from(u8::from(holds)) } else { value }
            }
        })
    }

    /// The series of a query, in Prometheus's order where it has one.
    ///
    /// # Errors
    /// As [`EvaluateError`] says.
    pub fn vector(&self, vector: &Vector) -> Result<Vec<Sample>, EvaluateError> {
        match vector {
            Vector::Selected(selector) => self.selected(selector, |_, point| point.value),
            Vector::Times(selector) => {
                let times = self.selected(selector, |_, point| point.at as f64 / 1000.0)?;
                without_metrics(times, |_| None)
            }
            Vector::Now(vector) => {
                let now = self.now as f64 / 1000.0;
                without_metrics(self.vector(vector)?, |_| Some(now))
            }
            Vector::Of(scalar) => {
                Ok(vec![Sample { labels: Labels::empty(), value: self.scalar(scalar)? }])
            }
            Vector::OverTime { function, range, parameter } => {
                let parameter = parameter.as_ref().map(|parameter| self.scalar(parameter));
                self.over_time(*function, range, parameter.transpose()?.unwrap_or(f64::NAN))
            }
            Vector::Each { function, vector, parameters } => {
                let parameters = parameters.iter().map(|parameter| self.scalar(parameter));
                each(*function, self.vector(vector)?, &parameters.collect::<Result<Vec<_>, _>>()?)
            }
            Vector::Negated(vector) => without_metrics(self.vector(vector)?, |value| Some(-value)),
            Vector::Absent(vector, labels) => Ok(match self.vector(vector)?.is_empty() {
                true => vec![Sample { labels: labels.clone(), value: 1.0 }],
                false => Vec::new(),
            }),
            Vector::AbsentOverTime(range, labels) => Ok(match self.range(range)?.0.is_empty() {
                true => vec![Sample { labels: labels.clone(), value: 1.0 }],
                false => Vec::new(),
            }),
            Vector::LabelReplace { vector, target, replacement, source, regex } => {
                let mut samples = self.vector(vector)?;
                for sample in &mut samples {
                    if let Some(found) = regex.captures(sample.labels.get(source)) {
                        let mut value = String::new();
                        found.expand(replacement, &mut value);
                        sample.labels = sample.labels.with(target, &value);
                    }
                }
                unique(samples)
            }
            Vector::LabelJoin { vector, target, separator, sources } => {
                let mut samples = self.vector(vector)?;
                for sample in &mut samples {
                    let values: Vec<&str> =
                        sources.iter().map(|source| sample.labels.get(source)).collect();
                    sample.labels = sample.labels.with(target, &values.join(separator));
                }
                unique(samples)
            }
            Vector::HistogramQuantile { quantile, vector } => {
                unique(histogram::quantile(self.scalar(quantile)?, self.vector(vector)?))
            }
            Vector::Aggregate { operation, vector, parameter, by } => {
                let parameter = parameter.as_ref().map(|parameter| self.scalar(parameter));
                let parameter = parameter.transpose()?;
                aggregate::aggregate(*operation, parameter, self.vector(vector)?, by)
            }
            Vector::CountValues { label, vector, by } => {
                unique(aggregate::count_values(label, self.vector(vector)?, by)?)
            }
            Vector::WithScalar { operator, vector, scalar, swapped, as_bool } => {
                let scalar = self.scalar(scalar)?;
                with_scalar(*operator, self.vector(vector)?, scalar, *swapped, *as_bool)
            }
            Vector::Binary { operator, left, right, matching, as_bool } => {
                let (left, right) = (self.vector(left)?, self.vector(right)?);
                unique(binary::binary(*operator, left, right, matching, *as_bool)?)
            }
            Vector::Set { operator, left, right, on } => {
                let (left, right) = (self.vector(left)?, self.vector(right)?);
                unique(binary::set(*operator, left, right, on))
            }
        }
    }

    /// The time that `offset` and `@` name.
    fn time(&self, when: When) -> i64 {
        let base = match when.at {
            At::Evaluation => self.now,
            At::Query => self.query,
            At::Time(at) => at,
        };
        base - when.offset
    }

    /// The series that a selector selects, if all samples after `after` are there.
    fn series(&self, selector: &Selector, after: i64) -> Result<Vec<&'a Series>, EvaluateError> {
        if !self.storage.is_complete_after(after) {
            let what = "times from before the retention of its samples";
            return Err(EvaluateError::Unsupported(what.to_owned()));
        }
        Ok(self.storage.select(&selector.matchers))
    }

    fn selected(
        &self,
        selector: &Selector,
        value: impl Fn(&Series, Point) -> f64,
    ) -> Result<Vec<Sample>, EvaluateError> {
        let at = self.time(selector.when);
        let sample = |series: &'a Series| {
            let value = value(series, series.at(at)?);
            Some(Sample { labels: series.labels.clone(), value })
        };
        Ok(self.series(selector, at - LOOKBACK)?.into_iter().filter_map(sample).collect())
    }

    /// The samples of each series that has any, and their window.
    fn range(&self, range: &Range) -> Result<(Ranges, Window), EvaluateError> {
        let window = |end: i64, range: i64| Window {
            start: end - range,
            end,
            now: self.now,
            parameter: f64::NAN,
        };
        // Prometheus evaluates all steps at once, and fails if two series of different steps
        // differ in nothing but their metric.
        let may_collide = match range {
            Range::Selected(selector, _) => selector.matchers.iter().all(|m| m.metric().is_none()),
            Range::Subquery { .. } => true,
        };
        if self.is_step && may_collide {
            let what = "samples of several metrics, or a subquery, in a subquery";
            return Err(EvaluateError::Unsupported(what.to_owned()));
        }
        match range {
            Range::Selected(selector, range) => {
                let window = window(self.time(selector.when), *range);
                let mut ranges = Vec::new();
                for series in self.series(selector, window.start)? {
                    let mut points = Vec::new();
                    series.between(window.start, window.end, &mut points);
                    if !points.is_empty() {
                        ranges.push((series.labels.clone(), points));
                    }
                }
                Ok((ranges, window))
            }
            Range::Subquery { vector, range, step, when } => {
                let window = window(self.time(*when), *range);
                Ok((self.subquery(vector, window, *step)?, window))
            }
        }
    }

    /// The results of a query at all multiples of `step` in a window.
    fn subquery(
        &self,
        vector: &Vector,
        window: Window,
        step: i64,
    ) -> Result<Ranges, EvaluateError> {
        if step < 1 || (window.end - window.start) / step > MAX_STEPS {
            return Err(EvaluateError::Unsupported("a subquery with so many steps".to_owned()));
        }
        let mut places: HashMap<Labels, usize> = HashMap::new();
        let mut ranges: Ranges = Vec::new();
        let mut at = step * (window.start / step);
        if at <= window.start {
            at += step;
        }
        while at <= window.end {
            let inner = Self { now: at, is_step: true, ..*self };
            for Sample { labels, value } in inner.vector(vector)? {
                let place = *places.entry(labels).or_insert_with_key(|labels| {
                    ranges.push((labels.clone(), Vec::new()));
                    ranges.len() - 1
                });
                ranges[place].1.push(Point { at, value });
            }
            at += step;
        }
        Ok(ranges)
    }

    fn over_time(
        &self,
        function: OverTime,
        range: &Range,
        parameter: f64,
    ) -> Result<Vec<Sample>, EvaluateError> {
        let (ranges, window) = self.range(range)?;
        let window = Window { parameter, ..window };
        let sample = |(labels, points): (Labels, Vec<Point>)| {
            let value = over_time(function, &points, window)?;
            let keeps = function == OverTime::Last;
            Some(Sample { labels: if keeps { labels } else { labels.without_metric() }, value })
        };
        unique(ranges.into_iter().filter_map(sample).collect())
    }
}

/// The same series, if no two have the same labels.
///
/// # Errors
/// If two have.
pub(super) fn unique(samples: Vec<Sample>) -> Result<Vec<Sample>, EvaluateError> {
    if samples.len() > 1 {
        let mut seen = HashSet::with_capacity(samples.len());
        if !samples.iter().all(|sample| seen.insert(&sample.labels)) {
            return Err(same_labels());
        }
    }
    Ok(samples)
}

/// The series without their metrics' names, with other values if there are any.
fn without_metrics(
    mut samples: Vec<Sample>,
    value: impl Fn(f64) -> Option<f64>,
) -> Result<Vec<Sample>, EvaluateError> {
    for sample in &mut samples {
        sample.labels = sample.labels.without_metric();
        sample.value = value(sample.value).unwrap_or(sample.value);
    }
    unique(samples)
}

fn each(
    function: Each,
    samples: Vec<Sample>,
    parameters: &[f64],
) -> Result<Vec<Sample>, EvaluateError> {
    let wrong = || EvaluateError::Refused("wrong number of arguments".to_owned());
    let parameter = |n: usize| parameters.get(n).copied();
    let (low, high) = match function {
        Each::Clamp => (parameter(0).ok_or_else(wrong)?, parameter(1).ok_or_else(wrong)?),
        Each::ClampMin => (parameter(0).ok_or_else(wrong)?, f64::INFINITY),
        Each::ClampMax => (f64::NEG_INFINITY, parameter(0).ok_or_else(wrong)?),
        _ => (f64::NAN, f64::NAN),
    };
    if high < low {
        return Ok(Vec::new());
    }
    let nearest = 1.0 / parameter(0).unwrap_or(1.0);
    without_metrics(samples, |value| {
        Some(match function {
            Each::Abs => value.abs(),
            Each::Ceil => value.ceil(),
            Each::Floor => value.floor(),
            Each::Sqrt => value.sqrt(),
            Each::Exp => value.exp(),
            Each::Ln => value.ln(),
            Each::Log2 => value.log2(),
            Each::Log10 => value.log10(),
            Each::Sgn if value < 0.0 => -1.0,
            Each::Sgn if value > 0.0 => 1.0,
            Each::Sgn => value,
            Each::Round => (value * nearest + 0.5).floor() / nearest,
            Each::Clamp | Each::ClampMin | Each::ClampMax => math::max(low, math::min(high, value)),
        })
    })
}

fn with_scalar(
    operator: Operator,
    samples: Vec<Sample>,
    scalar: f64,
    swapped: bool,
    as_bool: bool,
) -> Result<Vec<Sample>, EvaluateError> {
    let drops_metric = as_bool || !operator.compares();
    let result = samples.into_iter().filter_map(|Sample { labels, value: own }| {
        let (left, right) = if swapped { (scalar, own) } else { (own, scalar) };
        let (value, holds) = operator.apply(left, right);
        let value = match (as_bool, operator.compares()) {
            (true, _) => f64::from(u8::from(holds)),
            (false, true) if !holds => return None,
            // A comparison gives the series' value, also if that is on the right.
            (false, true) => own,
            (false, false) => value,
        };
        let labels = if drops_metric { labels.without_metric() } else { labels };
        Some(Sample { labels, value })
    });
    unique(result.collect())
}
