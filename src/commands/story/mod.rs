//! Decisions in words: pure, from objects of the decision ledger to text.
//!
//! [`story()`] tells of one decision, [`Listing`] of the changes of a span of time with a [`chart`](chart::chart),
//! [`Agreement`] of decisions beside those of kube-controller-manager, and [`standing()`] of an autoscaler without decisions. The cluster is read in `operate`.

mod account;
mod advice;
mod agreement;
mod changes;
mod chart;
mod held;
mod listing;
mod measured;
mod standing;
mod tell;
#[cfg(test)]
mod tests;
mod words;

pub use account::{Account, Subject};
pub use agreement::{Agreement, event_line, total};
pub use changes::{Change, Changes};
pub use chart::{Screen, paint};
pub use listing::Listing;
pub use standing::{Standing, Status, decided_natively, no_decision, standing};
pub use tell::story;
pub use words::{clean, counted, enumerated, is_unsafe, plain, plain_lines, span};
