//! What a story is made of, and its lines.

use super::changes::Change;
use crate::ledger::api::Decision;
use crate::ledger::parse_time;
use crate::time::UnixMillis;

/// The autoscaler that a story is about.
#[derive(Clone, Debug, Default)]
pub struct Subject {
    /// `Autoscaler` or `HorizontalPodAutoscaler`.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its target as KIND/NAME, if known.
    pub target: Option<String>,
    /// How often it is decided for, in ms; 0 if not known.
    pub period: i64,
    /// Its conditions that say what is wrong, each as reason and message.
    pub faults: Vec<(String, String)>,
    /// What else is to be said of it, such as a warning.
    pub notes: Vec<String>,
}

/// What a story is told of.
#[derive(Clone, Debug)]
pub struct Account {
    /// Whom it is about.
    pub subject: Subject,
    /// The decision.
    pub decision: Decision,
    /// The last change of the replicas until then, if it is known.
    pub change: Option<Change>,
    /// The begin of the first decision that was looked at.
    pub since: UnixMillis,
    /// The time that was asked for: now, or one in the past.
    pub at: UnixMillis,
    /// The time now.
    pub now: UnixMillis,
}

/// How old the last decision may be in periods, and at least in ms, before that is said.
const STALE: (i64, i64) = (4, 300_000);

impl Account {
    /// Whether it is told of the past.
    pub fn is_past(&self) -> bool {
        self.at != self.now
    }

    /// Whether the run continues after the time that was asked for: what was measured is known of its end.
    pub fn ends_later(&self) -> bool {
        self.is_past() && last(&self.decision) > self.at
    }

    /// How old the last decision is, if equal ones may have followed that are not written yet.
    pub fn unwritten_for(&self) -> Option<i64> {
        let age = self.at - last(&self.decision);
        let is_open = !self.is_past() && self.stale_for().is_none();
        (is_open && age > self.subject.period).then_some(age)
    }

    /// How old the last decision is, if it is too old to tell of the present.
    pub fn stale_for(&self) -> Option<i64> {
        let (periods, least) = STALE;
        let age = self.at - last(&self.decision);
        (age > self.subject.period.saturating_mul(periods).max(least)).then_some(age)
    }
}

/// The time of the last decision of a run.
pub fn last(decision: &Decision) -> UnixMillis {
    parse_time(&decision.last_time).unwrap_or_default()
}

/// The replicas after a decision.
pub fn replicas(decision: &Decision) -> Option<i32> {
    let written = decision.desired_replicas.filter(|_| decision.carried_out.written);
    written.or(decision.current_replicas)
}

/// A story in lines, each with a label, or none where the line before continues.
pub struct Lines(pub String);

/// The longest line of a text of others, in characters.
const MAX_NOTE: usize = 400;

impl Lines {
    /// Adds a line.
    pub fn say(&mut self, label: &str, text: impl AsRef<str>) {
        let line = format!("{label:<9} {}", text.as_ref());
        self.0.push_str(line.trim_end());
        self.0.push('\n');
    }

    /// Adds a line of a text of others, which is cut.
    pub fn note(&mut self, label: &str, text: &str) {
        match text.char_indices().nth(MAX_NOTE) {
            Some((end, _)) => self.say(label, format!("{}...", &text[..end])),
            None => self.say(label, text),
        }
    }
}
