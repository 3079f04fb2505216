//! The data of the page: numbers in columns, and decisions as short rows.

use super::json::seconds;
use super::report::Tried;
use crate::backtest::{LowConfidence, Recording, Slot};
use crate::commands::story::plain;
use crate::k8s::Quantity;
use crate::ledger::{
    Basis, ConstraintKind, Entry, Measured, MetricBasis, MetricStatus, Reason, Target,
};
use crate::time::UnixMillis;
use serde::Serialize;
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

/// The data of the page. Times are Unix seconds; those of decisions count from the beginning.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Data {
    from: f64,
    /// The seconds of a slot.
    step: f64,
    loads: Vec<LoadColumns>,
    candidates: Vec<Shown>,
    /// The same number is needed of all candidates.
    is_need_shared: bool,
    /// Some changes are left out.
    is_thinned: bool,
    /// The replicas that there were; empty if that is unknown.
    was: Vec<Option<i64>>,
    /// Where the load says less: from and to; parts that are closer than a slot are one.
    low: Vec<[f64; 2]>,
    reasons: Vec<&'static str>,
    statuses: Vec<&'static str>,
    constraints: Vec<&'static str>,
    /// Why decisions and metrics failed.
    texts: Vec<String>,
}

/// Texts that many decisions share, by their numbers.
#[derive(Default)]
struct Texts(HashMap<String, usize>);

impl Texts {
    fn number(&mut self, text: &str) -> usize {
        let next = self.0.len();
        *self.0.entry(plain(text).into_owned()).or_insert(next)
    }

    fn in_order(self) -> Vec<String> {
        let mut texts: Vec<_> = self.0.into_iter().collect();
        texts.sort_by_key(|(_, number)| *number);
        texts.into_iter().map(|(text, _)| text).collect()
    }
}

#[derive(Serialize)]
struct LoadColumns {
    name: String,
    low: Vec<Option<f64>>,
    high: Vec<Option<f64>>,
}

#[derive(Serialize)]
struct Shown {
    name: String,
    needed: Vec<Option<i64>>,
    ready: Vec<usize>,
    wanted: Vec<i32>,
    short: Vec<i64>,
    metrics: Vec<Value>,
    bases: Vec<Value>,
    decisions: Vec<Value>,
}

/// The data of what was tried.
pub fn data(tried: &Tried) -> Data {
    let axis = tried.recordings.first().map(|one| one.axis);
    let (first, step) = axis.map_or((0, 1), |axis| (axis.first, axis.width));
    let names = tried.runs.iter().map(|run| &*run.figures.name);
    let mut texts = Texts::default();
    let recordings = names.zip(&tried.recordings);
    let shown = recordings.map(|(name, one)| shown(name, one, first, &mut texts));
    let candidates: Vec<Shown> = shown.collect();
    let is_need_shared = candidates.windows(2).all(|pair| pair[0].needed == pair[1].needed);
    Data {
        from: first as f64 / 1000.0,
        step: step as f64 / 1000.0,
        loads: loads(tried),
        candidates,
        is_need_shared,
        is_thinned: tried.recordings.iter().any(|one| one.every_change > 0),
        was: tried.was_in_slots(),
        low: low(&tried.low_confidence, step as f64 / 1000.0),
        reasons: Reason::ALL.map(Reason::as_str).to_vec(),
        statuses: MetricStatus::ALL.map(MetricStatus::as_str).to_vec(),
        constraints: ConstraintKind::ALL.map(ConstraintKind::as_str).to_vec(),
        texts: texts.in_order(),
    }
}

fn low(parts: &[LowConfidence], step: f64) -> Vec<[f64; 2]> {
    let mut joined: Vec<[f64; 2]> = Vec::new();
    for part in parts {
        match joined.last_mut() {
            Some(last) if part.from <= last[1] + step => last[1] = last[1].max(part.to),
            _ => joined.push([part.from, part.to]),
        }
    }
    joined
}

/// The slots, each without a decision as the one before it.
fn slots(recording: &Recording) -> impl Iterator<Item = &Slot> {
    let mut last = recording.slots.iter().flatten().next();
    recording.slots.iter().filter_map(move |slot| {
        last = slot.as_ref().or(last);
        last
    })
}

/// The load of each metric of the candidates, of the one with the most decisions that has it.
fn loads(tried: &Tried) -> Vec<LoadColumns> {
    let known = |one: &&Recording| Reverse(one.slots.iter().flatten().count());
    let recordings = tried.recordings.iter();
    let mut recordings: Vec<&Recording> =
        recordings.filter(|one| one.slots.iter().any(Option::is_some)).collect();
    recordings.sort_by_key(known);
    let mut columns: Vec<LoadColumns> = Vec::new();
    for recording in recordings {
        let before = columns.len();
        for (index, metric) in recording.metrics().iter().enumerate() {
            let name = plain(&metric.name).into_owned();
            // Several of one name are those of one candidate.
            if columns[..before].iter().any(|column| column.name == name) {
                continue;
            }
            let values =
                || slots(recording).map(move |slot| slot.loads.get(index).copied().flatten());
            columns.push(LoadColumns {
                name,
                low: values().map(|load| load.map(|(low, _)| short(low))).collect(),
                high: values().map(|load| load.map(|(_, high)| short(high))).collect(),
            });
        }
    }
    columns
}

/// A number with six significant digits.
fn short(number: f64) -> f64 {
    format!("{number:.5e}").parse().unwrap_or(number)
}

fn shown(name: &str, recording: &Recording, first: UnixMillis, texts: &mut Texts) -> Shown {
    let mut known: Vec<&Arc<Basis>> = Vec::new();
    let decisions = recording.decisions.iter().map(|entry| {
        if !known.last().is_some_and(|basis| Arc::ptr_eq(basis, &entry.basis)) {
            known.push(&entry.basis);
        }
        decision(entry, known.len() - 1, first, texts)
    });
    let decisions = decisions.collect();
    Shown {
        name: plain(name).into_owned(),
        needed: slots(recording).map(|slot| slot.needed).collect(),
        ready: slots(recording).map(|slot| slot.ready).collect(),
        wanted: slots(recording).map(|slot| slot.wanted).collect(),
        short: slots(recording).map(|slot| slot.short).collect(),
        metrics: recording.metrics().iter().map(metric).collect(),
        bases: known.into_iter().map(|basis| basis_of(basis)).collect(),
        decisions,
    }
}

fn metric(metric: &MetricBasis) -> Value {
    let quantity = |milli: i64| Quantity::from_milli(milli).to_string();
    let (kind, target) = match metric.target {
        Target::Average(milli) => ("AverageValue", quantity(milli)),
        Target::Value(milli) => ("Value", quantity(milli)),
        Target::Utilization(percent) => ("Utilization", format!("{percent}%")),
        Target::Invalid => ("", String::new()),
    };
    let scope = metric.scope.as_deref().map(plain);
    json!({"name": plain(&metric.name), "scope": scope, "type": kind, "target": target})
}

fn basis_of(basis: &Basis) -> Value {
    let schedules = basis.schedules.each_ref().map(|name| name.as_deref());
    json!({"min": basis.min, "max": basis.max, "schedules": schedules})
}

/// `[time, basis, current, recommended, desired, reason, metrics, constraints, message]`, without a message where there
/// is none; it is the number of a text.
fn decision(entry: &Entry, basis: usize, first: UnixMillis, texts: &mut Texts) -> Value {
    let constraints = entry.constraints.iter().map(|one| {
        let until = one.until.map(|until| seconds(until - first));
        json!([one.kind as u8, one.before, one.after, until])
    });
    let constraints: Vec<Value> = constraints.collect();
    let metrics: Vec<Value> = entry.metrics.iter().map(|one| measured(one, texts)).collect();
    let mut row = json!([
        seconds(entry.first - first),
        basis,
        entry.current,
        entry.recommended,
        entry.desired,
        entry.reason as u8,
        metrics,
        constraints,
    ]);
    if let (Some(message), Some(row)) = (&entry.message, row.as_array_mut()) {
        row.push(json!(texts.number(message)));
    }
    row
}

/// `[status, proposed, value, ready, unready, missing, ignored, why]`, without a number of a text where it did not fail.
fn measured(measured: &Measured, texts: &mut Texts) -> Value {
    let [ready, unready, missing, ignored] = measured.pods;
    let (status, proposed, value) = (measured.status as u8, measured.proposed, measured.value);
    let mut row = json!([status, proposed, value, ready, unready, missing, ignored]);
    if let (Some(failure), Some(row)) = (&measured.failure, row.as_array_mut()) {
        row.push(json!(texts.number(&failure.1)));
    }
    row
}
