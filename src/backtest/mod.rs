//! Backtests: an autoscaler on recorded load, decided by [`hpa::decide`](crate::hpa::decide), which decides live, too.
//!
//! Only the workload is simulated: its pods take time to become ready, and share the load evenly. Nothing that is
//! decided at a time depends on later load.

mod candidate;
mod figures;
mod load;
mod observer;
mod recording;
mod reversal;
mod run;
mod saturation;
#[cfg(test)]
mod tests;
mod workload;

pub use candidate::Candidate;
pub use figures::{Figures, WorstUnder};
pub use load::{Load, LoadError};
pub use observer::{Decided, Observer};
pub use recording::{Grid, Recording, Slot};
pub use reversal::Reversals;
pub use run::{MAX_TICKS, Options, Run, run, run_observed};
pub use saturation::{LowConfidence, low_confidence};
