//! Backtests: an autoscaler on recorded load, decided by [`hpa::decide`](crate::hpa::decide), which decides live, too.
//!
//! Only the workload is simulated: its pods take time to become ready, and share the load evenly. Nothing that is
//! decided at a time depends on later load.

mod agreement;
mod candidate;
mod ceiling;
mod constant;
mod edges;
mod feedback;
mod figures;
mod history;
mod load;
mod measured;
mod observer;
#[cfg(test)]
mod properties;
mod queue;
mod recorded;
mod recording;
mod reproduce;
mod reversal;
mod run;
mod saturation;
mod search;
mod source;
mod starting;
mod stop;
#[cfg(test)]
mod tests;
mod trace;
mod workload;

pub use agreement::{Agreement, Comparison, Trust};
pub use candidate::{Candidate, Measure, Of};
pub use figures::{Figures, Minutes, WorstUnder};
pub use history::{Grid, History, HistoryError, PodStart, WasThere};
pub use load::{Cursor, Load, LoadError};
pub use observer::{Decided, Observer};
pub use recorded::{Change, Recorded, Replayed, Replicas};
pub use recording::{Recording, Slot, TimeAxis};
pub use reproduce::{Reproduction, reproduce};
pub use reversal::Reversals;
pub use run::{MAX_TICKS, Options, Run, Span, check_ticks, run, run_observed, simulate};
pub use saturation::{LowConfidence, coarse, low_confidence, minutes};
pub use search::{Keep, Limits, Recommendation, Trial, search};
pub use source::Source;
pub use starting::while_starting;
pub use stop::{Stop, StopOnDrop};
pub use trace::Trace;
