//! The decision ledger: why each decision was made, in memory, bounded, and the oldest dropped first.
//!
//! The control loop builds an [`Entry`] of each decision and records it in the [`Ledger`], which merges
//! equal ones to runs. The API server renders entries as objects when they are read.

pub mod account;
pub mod api;
mod basis;
mod changes;
mod codec;
mod content;
#[cfg(test)]
mod copy_tests;
mod entry;
mod history;
mod inputs;
mod log;
mod log_files;
mod render;
mod replay;
mod shares;
mod store;
#[cfg(test)]
mod store_tests;
#[cfg(test)]
mod tests;
mod trace;
mod would_change;

pub use basis::{Basis, MAX_QUERY, MetricBasis, Target, bounded};
pub use changes::Expired;
pub use codec::ratio_millionths;
pub use content::{Change, ChangesAfter, Listed, Page, Scope, Sequences};
pub use entry::{
    CarriedOut, Constraint, ConstraintKind, Entry, Limit, Measured, MetricStatus, Observed,
    Position, Reason,
};
pub use inputs::{LoggedInputs, LoggedOutcome};
#[cfg(test)]
pub use log::{BATCH_BYTES, MAX_QUEUED_BYTES};
pub use log::{DecisionLog, DecisionLogWriter, MAX_LINE_BYTES, MIN_LOG_BYTES, decision_log};
pub use render::{autoscaler_label, decision, metadata, name, parse_time, position, time};
pub use replay::{Difference, replay_line};
pub use store::{Behind, CopyError, CopyId, Ledger, Size, Versions};
pub use trace::DecisionTrace;
