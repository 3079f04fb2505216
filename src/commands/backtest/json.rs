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
    /// By what one pod carries it is judged; none of a queue, whose rate is among the assumptions.
    #[serde(skip_serializing_if = "Option::is_none")]
    judged: Option<String>,
    assumptions: Vec<String>,
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
    let ((first, last), ticks, assumptions) = (tried.span(), tried.ticks(), tried.assumptions());
    let Tried { runs, judged, low_confidence, recorded, .. } = tried;
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
        from: seconds(first),
        to: seconds(last),
        ticks,
        judged,
        assumptions,
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
