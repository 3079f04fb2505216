//! The result of a decision.

use super::options::StandIn;
use super::reason::Reason;
use std::fmt::Write;

/// A decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The action.
    pub outcome: Outcome,
    /// An error for the log. The decision may hold in spite of it.
    pub error: Option<String>,
    /// Events to publish, before the status is written.
    pub events: Vec<Event>,
    /// An event to publish after the status is written, as upstream does.
    pub late_event: Option<Event>,
    /// Whether no decision was possible because metrics failed. If the selector is
    /// invalid, or the scale can't be read, metrics were not evaluated.
    pub metrics_failed: bool,
    /// Whether the rate of changes limited it, and in which direction.
    pub rate_limited: Option<Direction>,
    /// What stands for the metrics that failed, where something does: the decision was made without them.
    pub substitute: Option<Substitute>,
    /// Whether the replicas are those of a metric's own fallback.
    pub is_by_fallback: bool,
    /// What kept it from being carried out, if something did: its condition's reason, and the replicas
    /// that would have been written. Then the outcome is [`Outcome::Hold`].
    pub held_back: Option<(Reason, i32)>,
}

/// What stands for metrics that failed, by what the autoscaler says of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Substitute {
    /// What stands for the first of them, as one word.
    pub reason: Reason,
    /// The metrics, and what stands for each.
    pub message: String,
}

/// The direction of a change of the scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// More replicas.
    Up,
    /// Fewer replicas.
    Down,
}

/// The action on the scale.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Write this number of replicas, then call [`complete_rescale`](super::complete_rescale).
    Rescale {
        /// The replicas there were.
        from: i32,
        /// The replicas to write.
        to: i32,
        /// Why, for the event.
        reason: String,
    },
    /// Leave the scale as it is.
    Hold,
    /// No decision was possible; leave the scale as it is.
    Failed,
}

/// An event about the autoscaler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its type.
    pub kind: EventKind,
    /// Why, as one word.
    pub reason: Reason,
    /// Why, in words.
    pub message: String,
}

/// The type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Everything is as expected.
    Normal,
    /// Something failed.
    Warning,
}

impl EventKind {
    /// Its name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

impl Decision {
    pub(super) fn new() -> Self {
        Self {
            outcome: Outcome::Hold,
            error: None,
            events: Vec::new(),
            late_event: None,
            metrics_failed: false,
            rate_limited: None,
            substitute: None,
            is_by_fallback: false,
            held_back: None,
        }
    }

    /// Notes what stands for a metric that failed, by its label.
    pub(super) fn substitute(&mut self, stand_in: StandIn, label: &str) {
        let (reason, message) = (stand_in.reason(), format!("{label} failed, and {stand_in}"));
        match &mut self.substitute {
            None => self.substitute = Some(Substitute { reason, message }),
            Some(known) => {
                // Nothing stands for a metric that is ignored: the reason is that of another, if one has any.
                if known.reason == StandIn::Ignore.reason() {
                    known.reason = reason;
                }
                let _ = write!(known.message, "; {message}");
            }
        }
    }

    pub(super) fn warn(&mut self, reason: Reason, message: impl Into<String>) {
        self.events.push(Event { kind: EventKind::Warning, reason, message: message.into() });
    }
}
