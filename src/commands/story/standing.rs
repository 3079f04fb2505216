//! An autoscaler as its status has it, where there is no decision to tell of.

use super::account::Subject;
use super::advice::advice;
use super::words::{date, span};
use crate::time::UnixMillis;
use std::fmt::Write;
use std::time::Duration;

/// A condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Its type.
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Its reason.
    pub reason: String,
    /// Its message.
    pub message: String,
    /// Since when it is so.
    pub since: Option<UnixMillis>,
}

/// What the status of an autoscaler has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The replicas now, the desired ones, and the fewest and most that are allowed.
    pub current: Option<i32>,
    pub desired: Option<i32>,
    pub bounds: (i32, i32),
    /// Each metric over its target, if the status has that.
    pub metrics: Option<String>,
    /// When the replicas were changed last.
    pub last_scaled: Option<UnixMillis>,
    /// The conditions.
    pub conditions: Vec<Standing>,
}

/// That no decision is known at a time and for so long before it, with the first that is, and since when there are any.
pub fn no_decision(
    subject: &Subject,
    (at, before): (UnixMillis, Duration),
    first: Option<UnixMillis>,
    began: Option<UnixMillis>,
) -> String {
    let Subject { kind, namespace, name, .. } = subject;
    let mut text = format!("{kind} {namespace}/{name}: no decision is known at {}\n", date(at));
    match first {
        Some(first) if first > at => {
            let _ = writeln!(
                text,
                "Known     from {} on: earlier ones were dropped, or not made",
                date(first)
            );
        }
        Some(first) => {
            let before = span(i64::try_from(before.as_millis()).unwrap_or(i64::MAX));
            let _ =
                writeln!(text, "Known     since {}, but none in the {before} before", date(first));
        }
        None => {
            text += "Known     none: Plimsoll never decided for it, or all replicas were restarted since\n"
        }
    }
    if let Some(began) = began {
        let _ = writeln!(text, "History   began at {}, when Plimsoll was started", date(began));
    }
    text + "To do     --decision-log keeps decisions for longer; kubectl plimsoll status says who leads\n"
}

/// That kube-controller-manager decides for an Autoscaler, and where a command has more.
pub fn decided_natively(command: &str, name: &str) -> String {
    format!("kube-controller-manager decides (executor: NativeHPA): {command} hpa/{name} has more")
}

/// The status in words, after a first line that says why there is no more.
pub fn standing(subject: &Subject, status: &Status, why: &str, now: UnixMillis) -> String {
    let Subject { kind, namespace, name, target, .. } = subject;
    let mut text = format!("{kind} {namespace}/{name}: by its status, as {why}\n");
    let count = |count: Option<i32>| count.map_or_else(|| "?".to_owned(), |n| n.to_string());
    let _ = writeln!(text, "Target      {}", target.as_deref().unwrap_or("?"));
    let (min, max) = status.bounds;
    let _ = writeln!(
        text,
        "Replicas    {} now, {} desired, {min} to {max} allowed",
        count(status.current),
        count(status.desired)
    );
    if let Some(metrics) = &status.metrics {
        let _ = writeln!(text, "Metrics     {metrics}");
    }
    let last = status.last_scaled;
    let last = last.map_or_else(|| "never".to_owned(), |time| format!("{} ago", span(now - time)));
    let _ = writeln!(text, "Last scaled {last}");
    for one in &status.conditions {
        let since = one.since.map(|since| format!(", for {}", span(now - since)));
        let since = since.unwrap_or_default();
        let _ = writeln!(text, "{} is {}{since}: {}", one.kind, one.status, one.reason);
        let _ = writeln!(text, "    {}", one.message);
    }
    if let Some(advice) = advice(None, &subject.faults, (namespace, name)) {
        let _ = writeln!(text, "To do       {advice}");
    }
    text
}
