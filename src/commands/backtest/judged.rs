//! The numbers by which candidates are judged: what one pod carries.

use super::carries::{self, ANNOTATION};
use super::names;
use super::subjects::Subject;
use crate::backtest::{Candidate, Measure};
use crate::commands::story::plain;

/// What one pod is taken to carry of a metric, and who says so.
struct Number {
    /// The name of the metric.
    metric: String,
    /// In the unit of the target.
    carries: f64,
    /// That in words, and with the metric.
    amount: String,
    shown: String,
    by: String,
    /// The metric has a load.
    is_load: bool,
}

/// Sets what one pod carries for each candidate, and returns what is to be said of it: the number of the flag, or else of
/// the annotation of its object, or of another one's, or else its target. `is_one_load` says that all are tried on the load
/// of a file, whatever their metrics are called; else the target of the first one counts for all that have its metric.
///
/// # Errors
/// If the flag is for one metric and there are more, or an annotation is invalid.
pub fn judge(
    subjects: &mut [Subject],
    flag: Option<f64>,
    is_one_load: bool,
) -> Result<String, String> {
    if let Some(carries) = flag {
        for subject in subjects {
            carries::set_only(&mut subject.candidate, carries)?;
        }
        return Ok(format!("Judged by what one pod carries: {carries} (as given)."));
    }
    let annotated = |one: &Subject| {
        let given = carries::annotated(&one.candidate, &one.written);
        given.map_err(|error| format!("{}: {error}", one.candidate.name))
    };
    let given = subjects.iter().map(annotated).collect::<Result<Vec<_>, _>>()?;
    let candidates: Vec<(&Candidate, &[Option<f64>])> =
        subjects.iter().map(|one| &one.candidate).zip(given.iter().map(Vec::as_slice)).collect();
    let numbers = candidates.iter().map(|own| numbers(own, &candidates, is_one_load));
    let numbers: Vec<Vec<Number>> = numbers.collect();
    for (subject, numbers) in subjects.iter_mut().zip(&numbers) {
        for (metric, number) in subject.candidate.metrics.iter_mut().zip(numbers) {
            metric.set_carries_as_target(number.carries);
        }
    }
    Ok(said(&numbers, is_one_load))
}

/// A candidate with what its annotation says of each of its metrics.
type Annotated<'a> = (&'a Candidate, &'a [Option<f64>]);

/// The numbers for the metrics of one candidate of these.
fn numbers(own: &Annotated<'_>, all: &[Annotated<'_>], is_one_load: bool) -> Vec<Number> {
    let (candidate, given) = own;
    let is_same = |one: &Measure, other: &Measure| {
        let is_one_load = is_one_load && !one.is_constant() && !other.is_constant();
        is_one_load || names::is_same(one, other)
    };
    let number = |(metric, given): (&Measure, &Option<f64>)| {
        let by_annotation = given.map(|carries| (carries, candidate.name.as_str()));
        let by_annotation = by_annotation.or_else(|| {
            all.iter().find_map(|(other, given)| {
                let mut metrics = other.metrics.iter().zip(*given);
                metrics.find_map(|(one, given)| {
                    given.filter(|_| is_same(one, metric)).map(|carries| (carries, &*other.name))
                })
            })
        });
        let first = all.first().filter(|_| !is_one_load).and_then(|(first, _)| {
            let metric = first.metrics.iter().find(|one| is_same(one, metric))?;
            Some((metric.carries_as_target(), &*first.name))
        });
        let (carries, by) = match by_annotation {
            Some((carries, name)) => {
                (carries, format!("the annotation {ANNOTATION} of {}", plain(name)))
            }
            None => {
                let own = (metric.carries_as_target(), &*candidate.name);
                let (carries, name) = first.unwrap_or(own);
                (carries, format!("the target of {}", plain(name)))
            }
        };
        let name = plain(names::short(candidate, metric)).into_owned();
        // What floating point adds is left out.
        let rounded = (carries * 1e6).round() / 1e6;
        let (amount, shown) = match metric.is_utilization {
            true => (format!("{rounded} %"), format!("{rounded} % of the {name} request")),
            false => (rounded.to_string(), format!("{rounded} of {name}")),
        };
        Number { metric: name, carries, amount, shown, by, is_load: !metric.is_constant() }
    };
    candidate.metrics.iter().zip(*given).map(number).collect()
}

/// By which numbers, and whose they are.
fn said(numbers: &[Vec<Number>], is_one_load: bool) -> String {
    let mut distinct: Vec<&Number> = Vec::new();
    let mut is_one = true;
    // A file has one load, and numbers of other metrics are of other loads.
    let agree = |one: &Number, other: &Number| match is_one_load {
        true => one.amount == other.amount,
        false => one.metric != other.metric,
    };
    for number in numbers.iter().flatten().filter(|number| number.is_load) {
        if distinct.iter().all(|other| other.shown != number.shown) {
            is_one &= distinct.iter().all(|other| agree(other, number));
            distinct.push(number);
        }
    }
    let shown = distinct.iter().map(|number| format!("{} ({})", number.shown, number.by));
    let shown = shown.collect::<Vec<_>>().join(", ");
    match is_one {
        true => format!("Judged by what one pod carries: {shown}."),
        false => format!(
            "Each is judged by a number of its own, so that their pod-minutes short do not compare: one pod carries {shown}. --pod-carries or the annotation {ANNOTATION} says one number for all."
        ),
    }
}
