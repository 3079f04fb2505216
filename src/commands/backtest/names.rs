//! The names by which flags and annotations tell the metrics of an autoscaler.

use crate::backtest::{Candidate, Measure, Of};
use crate::promql::name::metric_of;
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

/// Takes the metrics of these names for loads.
pub fn take_for_loads(candidate: &mut Candidate, names: &[String]) {
    for metric in &mut candidate.metrics {
        metric.is_load |= names.iter().any(|name| is_named(metric, name));
    }
}

/// What is given for metrics of a candidate by a name of each: the same by their keys. A generated name may be that of another
/// namespace, autoscaler or set of labels: it was right where it was written.
///
/// # Errors
/// If a name is that of no metric, or of several, or a metric is given twice.
pub fn by_key<T>(
    candidate: &Candidate,
    given: Vec<(String, T)>,
) -> Result<BTreeMap<String, T>, String> {
    let mut by_key = BTreeMap::new();
    for (name, value) in given {
        let key = match elsewhere(candidate, &name) {
            Some(metric) => metric.key.clone(),
            None => {
                check([candidate], &name)?;
                candidate.named(&name)?.map_or(name, |metric| metric.key.clone())
            }
        };
        if by_key.contains_key(&key) {
            return Err(format!("{key:?} is given twice: once was expected"));
        }
        by_key.insert(key, value);
    }
    Ok(by_key)
}

/// The metric of a name that was generated elsewhere: the only one with these labels, or else the only one of this metric.
fn elsewhere<'a>(candidate: &'a Candidate, name: &str) -> Option<&'a Measure> {
    if candidate.metrics.iter().any(|metric| is_named(metric, name)) {
        return None;
    }
    // One of several that had the same generated name has a number.
    let (generated, number) = name.split_at(name.find('#').unwrap_or(name.len()));
    let metric = metric_of(generated);
    if metric == generated {
        return None;
    }
    let labels = |name: &str| name.rsplitn(3, '_').nth(2).map(str::to_owned);
    let mut same = candidate.metrics.iter().filter(|one| labels(&one.name) == labels(generated));
    match (same.next(), same.next()) {
        (Some(only), None) if number.is_empty() => Some(only),
        _ => candidate.named(&format!("{metric}{number}")).ok().flatten(),
    }
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
