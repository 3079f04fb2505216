//! MetricRules: rules that teams write for their own namespaces.
//!
//! Each is kept in its namespace, by the label that the administrator configured: the series that are listed for
//! it, and every query that it renders. What a rule of the administrator serves is never taken from one.

mod compiled;
mod namespace;
mod service;
mod standing;

pub use compiled::{Source, check};
pub use service::{Dependencies, MetricRules};
#[cfg(test)]
pub use standing::Reason as StandingReason;
pub use standing::Standing;
