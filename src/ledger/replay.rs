//! The lines of the decision log, and deciding again on the inputs of one.

use super::account::constraint_of;
use super::api::Decision;
use super::entry::ConstraintKind;
use super::inputs::{LoggedInputs, LoggedOutcome};
use crate::watch::AutoscalerRef;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// The version that writes and reads lines.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A line of the decision log: the inputs of a decision, what the algorithm made of them, and the
/// decision as it was accounted for, with what was done with it. The first two are null where nothing was decided.
pub fn line(
    autoscaler: &AutoscalerRef,
    evaluated: Option<(&LoggedInputs, &LoggedOutcome)>,
    decision: &Decision,
) -> serde_json::Result<String> {
    let AutoscalerRef { kind, key } = autoscaler;
    let (inputs, outcome) = evaluated.unzip();
    let mut line = json!({
        "version": VERSION,
        "autoscaler": {"kind": kind.as_str(), "namespace": key.namespace, "name": key.name},
        "inputs": serde_json::to_value(inputs)?,
        "outcome": serde_json::to_value(outcome)?,
        "decision": serde_json::to_value(decision)?,
    });
    line["digest"] = digest(&line)?.into();
    serde_json::to_string(&line)
}

/// The digest of a line without its digest, in an order and form that do not depend on how it was written.
fn digest(line: &Value) -> serde_json::Result<String> {
    let canonical = serde_json::to_string(&sorted(line))?;
    let hash = Sha256::digest(canonical.as_bytes());
    Ok(format!("sha256:{}", hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>()))
}

/// The same with the fields of each object as pairs in the order of their names.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by_key(|(name, _)| name.as_str());
            fields.into_iter().map(|(name, value)| json!([name, sorted(value)])).collect()
        }
        Value::Array(items) => items.iter().map(sorted).collect(),
        // A number as its text: 1 and 1.0 are not the same input.
        other => other.clone(),
    }
}

/// Why a line is not what was decided.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Difference {
    /// It is no decision, such as a line of Plimsoll's own log.
    #[error("not a decision")]
    NoDecision,
    /// It is no whole line of a decision log, such as one that was cut off or damaged.
    #[error("not a complete line of a decision log: {0}")]
    Unreadable(String),
    /// It is of a version with other inputs.
    #[error("it is of Plimsoll {version}, whose inputs {VERSION} can't read: {error}")]
    OtherVersion {
        /// The version that wrote it.
        version: String,
        /// What can't be read.
        error: String,
    },
    /// The line was changed after it was written.
    #[error("the line was changed after it was written: its digest is {0}")]
    Changed(String),
    /// Another decision is made on the inputs.
    #[error("another decision is made on these inputs: {now}, and {then} was logged")]
    Differs {
        /// What is decided now.
        now: String,
        /// What was decided then.
        then: String,
    },
}

/// Decides again on the inputs of a line.
///
/// # Errors
/// If it is not a line as it was written, or another decision is made.
pub fn replay_line(line: &[u8]) -> Result<(), Difference> {
    let mut line: Value = match serde_json::from_slice(line) {
        Err(error) if has_part_of_decision(line) => {
            return Err(Difference::Unreadable(error.to_string()));
        }
        Ok(Value::Object(fields)) if !is_of_own_log(&fields) => Value::Object(fields),
        _ => return Err(Difference::NoDecision),
    };
    let logged = line.as_object_mut().and_then(|line| line.remove("digest"));
    let version = line["version"].as_str().filter(|version| *version != VERSION);
    let version = version.map(str::to_owned);
    let unreadable = |error: serde_json::Error| match &version {
        Some(version) => {
            Difference::OtherVersion { version: version.clone(), error: error.to_string() }
        }
        None => Difference::Unreadable(error.to_string()),
    };
    let missing = |name: &str| Difference::Unreadable(format!("there is no {name}"));
    let logged = logged.ok_or_else(|| missing("digest"))?;
    let outcome = line.get("outcome").ok_or_else(|| missing("outcome"))?;
    let inputs = line.get("inputs").ok_or_else(|| missing("inputs"))?;
    let (again, present) = match inputs {
        Value::Null => (Value::Null, None),
        inputs => {
            let inputs = LoggedInputs::deserialize(inputs).map_err(unreadable)?;
            let again = inputs.decide().map_err(Difference::Unreadable)?;
            (serde_json::to_value(&again).map_err(unreadable)?, inputs.present())
        }
    };
    if again != *outcome {
        let (now, then) = (again.to_string(), outcome.to_string());
        return Err(Difference::Differs { now, then });
    }
    if !inputs.is_null() {
        let decision = line.get("decision").ok_or_else(|| missing("decision"))?;
        let decision = Decision::deserialize(decision).map_err(unreadable)?;
        let rescale = outcome["rescale"].as_i64();
        let (current, is_accounted) = (decision.current_replicas, is_accounted(rescale, &decision));
        if let (Some(then), Some(now)) = (current, present)
            && then != now
        {
            let [now, then] = [now, then].map(|of| format!("{of} present replicas"));
            return Err(Difference::Differs { now, then });
        }
        if let Some(desired) = decision.desired_replicas.filter(|_| !is_accounted) {
            let now = rescale.map_or_else(|| "no change".to_owned(), |to| format!("{to} replicas"));
            let then = format!("{desired} for no reason that its constraints name");
            return Err(Difference::Differs { now, then });
        }
    }
    let actual = digest(&line).map_err(unreadable)?;
    if logged != actual {
        return Err(Difference::Changed(actual));
    }
    Ok(())
}

/// Whether the replicas of a decision are those that the algorithm has for these inputs, or a constraint that is not the
/// algorithm's accounts for others: it left them as they were, or the fallback raised them.
fn is_accounted(rescale: Option<i64>, decision: &Decision) -> bool {
    let (Some(current), Some(desired)) = (decision.current_replicas, decision.desired_replicas)
    else {
        return true;
    };
    let last = decision.constraints.last().filter(|last| last.replicas_after == desired);
    match last.map(|last| &*last.kind) {
        // It never removes replicas.
        Some(kind) if kind == ConstraintKind::Fallback.as_str() => desired > current,
        Some(reason) if constraint_of(reason).is_some() => desired == current,
        _ => i64::from(desired) == rescale.unwrap_or_else(|| i64::from(current)),
    }
}

/// Whether a text that is no JSON may be what is left of a decision. With its first character and all names of its
/// fields, a line has lost its inputs, too.
fn has_part_of_decision(line: &[u8]) -> bool {
    let text = String::from_utf8_lossy(line);
    let names = ["autoscaler", "decision", "digest", "inputs", "outcome"];
    text.starts_with('{') || names.iter().any(|name| text.contains(&format!("\"{name}\"")))
}

/// Whether an object is a line of Plimsoll's own log (`--log-format=json`), which is beside the decisions where they go to
/// the standard output.
fn is_of_own_log(fields: &Map<String, Value>) -> bool {
    ["timestamp", "level", "target"]
        .iter()
        .all(|name| fields.get(*name).is_some_and(Value::is_string))
}
