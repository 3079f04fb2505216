//! Operators between series and series.

use super::error::EvaluateError;
use super::eval::Sample;
use super::labels::Labels;
use super::node::{Grouping, Matching, Operator, SetOperator, Sides};
use std::collections::{HashMap, HashSet};

/// `and`, `or`, `unless`.
pub(super) fn set(
    operator: SetOperator,
    mut left: Vec<Sample>,
    mut right: Vec<Sample>,
    on: &Grouping,
) -> Vec<Sample> {
    let keys = |samples: &[Sample]| -> HashSet<Labels> {
        samples.iter().map(|sample| on.key(&sample.labels)).collect()
    };
    match operator {
        SetOperator::And => {
            let others = keys(&right);
            left.retain(|sample| others.contains(&on.key(&sample.labels)));
        }
        SetOperator::Unless => {
            let others = keys(&right);
            left.retain(|sample| !others.contains(&on.key(&sample.labels)));
        }
        SetOperator::Or => {
            let others = keys(&left);
            right.retain(|sample| !others.contains(&on.key(&sample.labels)));
            left.append(&mut right);
        }
    }
    left
}

/// Arithmetic and comparisons.
///
/// # Errors
/// If the series of one side match several of the other, but for those of the side that may be many.
pub(super) fn binary(
    operator: Operator,
    left: Vec<Sample>,
    right: Vec<Sample>,
    matching: &Matching,
    as_bool: bool,
) -> Result<Vec<Sample>, EvaluateError> {
    if left.is_empty() || right.is_empty() {
        return Ok(Vec::new());
    }
    let swapped = matches!(matching.sides, Sides::OneToMany(_));
    let (many, one) = if swapped { (right, left) } else { (left, right) };
    let mut ones: HashMap<Labels, &Sample> = HashMap::with_capacity(one.len());
    for sample in &one {
        if ones.insert(matching.on.key(&sample.labels), sample).is_some() {
            return Err(failed(
                "found duplicate series for the match group;many-to-many matching not allowed: \
                 matching labels must be unique on one side",
            ));
        }
    }
    let mut matched: HashSet<(Labels, Labels)> = HashSet::new();
    let mut result = Vec::new();
    for sample in &many {
        let key = matching.on.key(&sample.labels);
        let Some(one) = ones.get(&key) else { continue };
        let (lhs, rhs) = match swapped {
            true => (one.value, sample.value),
            false => (sample.value, one.value),
        };
        let (value, holds) = operator.apply(lhs, rhs);
        let value = if as_bool { f64::from(u8::from(holds)) } else { value };
        let drops_metric = as_bool || !operator.compares();
        let labels = result_labels(&sample.labels, &one.labels, matching, drops_metric);
        let (same, message) = match matching.sides {
            Sides::OneToOne => (
                Labels::empty(),
                "multiple matches for labels: many-to-one matching must be explicit \
                 (group_left/group_right)",
            ),
            Sides::ManyToOne(_) | Sides::OneToMany(_) => (
                labels.clone(),
                "multiple matches for labels: grouping labels must ensure unique matches",
            ),
        };
        if !matched.insert((key, same)) {
            return Err(failed(message));
        }
        if holds || as_bool {
            result.push(Sample { labels, value });
        }
    }
    Ok(result)
}

fn failed(message: &str) -> EvaluateError {
    EvaluateError::Failed(message.to_owned())
}

/// The labels of the result of a pair: those of the side that may be many, and what is taken from the
/// other.
fn result_labels(many: &Labels, one: &Labels, matching: &Matching, drops_metric: bool) -> Labels {
    let mut labels = if drops_metric { many.without_metric() } else { many.clone() };
    match &matching.sides {
        Sides::OneToOne => match &matching.on {
            Grouping::By(names) => labels.filtered(|name| names.iter().any(|own| own == name)),
            Grouping::Without(names) => labels.filtered(|name| names.iter().all(|own| own != name)),
        },
        Sides::ManyToOne(taken) | Sides::OneToMany(taken) => {
            for name in taken {
                labels = labels.with(name, one.get(name));
            }
            labels
        }
    }
}
