//! The report as JSON: a contract.

use super::report::{FromPrometheus, Tried};
use crate::backtest::{Figures, LowConfidence, Run};
use crate::time::UnixMillis;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

/// The result for all candidates, as `--output json` has it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    candidates: Vec<OfCandidate>,
    from: Value,
    to: Value,
    ticks: i64,
    low_confidence: Vec<LowConfidence>,
    #[serde(flatten)]
    recorded: Option<FromPrometheus>,
}

#[derive(Serialize)]
struct OfCandidate {
    #[serde(flatten)]
    figures: Figures,
    replicas: Vec<(Value, usize, i32)>,
}

/// The report, for a program.
pub fn json(tried: Tried) -> String {
    let Tried { runs, load, low_confidence, recorded, .. } = tried;
    let last = runs.iter().map(|run| run.last).max().unwrap_or(load.last());
    let ticks = runs.iter().map(|run| run.ticks).max().unwrap_or_default();
    let of_candidate = |run: Run| OfCandidate {
        figures: run.figures,
        replicas: run
            .replicas
            .into_iter()
            .map(|(time, ready, wanted)| (seconds(time), ready, wanted))
            .collect(),
    };
    let report = Report {
        candidates: runs.into_iter().map(of_candidate).collect(),
        from: seconds(load.first()),
        to: seconds(last),
        ticks,
        low_confidence,
        recorded,
    };
    serde_json::to_string(&report).expect("numbers and texts are JSON") + "\n"
}

/// Unix seconds: a whole number where it is one.
pub fn seconds(time: UnixMillis) -> Value {
    match time % 1000 {
        0 => json!(time / 1000),
        _ => json!(time as f64 / 1000.0),
    }
}

/// Serializes a time as [`seconds`].
pub fn as_seconds<S: Serializer>(time: &UnixMillis, serializer: S) -> Result<S::Ok, S::Error> {
    seconds(*time).serialize(serializer)
}
