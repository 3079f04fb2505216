//! The names by which flags and annotations tell the metrics of an autoscaler.

use crate::backtest::{Candidate, Measure, Of};
use std::collections::BTreeMap;

fn is_named(metric: &Measure, name: &str) -> bool {
    metric.key == name || metric.names().any(|one| one == name)
}

/// The name by which a user tells a metric: its `metricName` if no other has it, or else its key.
pub fn short<'a>(candidate: &Candidate, metric: &'a Measure) -> &'a str {
    let short = metric.written();
    match candidate.metrics.iter().filter(|other| is_named(other, short)).count() {
        1 => short,
        _ => &metric.key,
    }
}

/// Refuses a name that no metric of these candidates has.
///
/// # Errors
/// If it is one; the text has those that there are.
pub fn check<'a>(
    candidates: impl IntoIterator<Item = &'a Candidate>,
    name: &str,
) -> Result<(), String> {
    let mut known: Vec<&str> = Vec::new();
    for candidate in candidates {
        for metric in &candidate.metrics {
            if is_named(metric, name) {
                return Ok(());
            }
            let short = short(candidate, metric);
            if !known.contains(&short) {
                known.push(short);
            }
        }
    }
    Err(format!("{name:?} is no metric of it: {} was expected", known.join(" or ")))
}

/// What is given for metrics of a candidate by a name of each: the same by their keys.
///
/// # Errors
/// If a name is that of no metric, or of several.
pub fn by_key<T>(
    candidate: &Candidate,
    given: BTreeMap<String, T>,
) -> Result<BTreeMap<String, T>, String> {
    let key = |(name, value): (String, T)| {
        check([candidate], &name)?;
        let key = candidate.named(&name)?.map(|metric| metric.key.clone());
        Ok((key.unwrap_or(name), value))
    };
    given.into_iter().map(key).collect()
}

/// Whether a metric is that of another spec, in the same unit: the targets of both are shares of the request, or of none.
pub fn is_same(one: &Measure, other: &Measure) -> bool {
    let is_resource = |metric: &Measure| matches!(metric.of, Of::Resource { .. });
    let is_named = match is_resource(one) || is_resource(other) {
        true => one.key == other.key,
        false => one.key == other.key || one.written() == other.written(),
    };
    is_named && one.is_utilization == other.is_utilization
}
