//! Leader election. Each replica serves, watches the cluster and decides; only the leader
//! writes. So the next leader is warm when it takes over.
//!
//! The protocol is that of client-go's leader election. In addition, every write is
//! fenced: it needs a [`FencingToken`] of the term in which it was decided. The term ends by
//! this process's own clocks before another replica may acquire the Lease. Before a write to
//! a scale, the Lease itself is read.
//!
//! The Lease also carries the freeze ([`freeze`]), as every replica watches the Lease anyway.

mod candidate;
mod elector;
mod fencing;
pub mod freeze;
mod in_flight;
mod recorder;
mod settings;
mod state;
#[cfg(test)]
mod tests;

pub use elector::LeaderElector;
#[cfg(test)]
use fencing::WriteRefused;
pub use fencing::{FencingToken, is_indeterminate};
pub use freeze::Freeze;
pub use settings::{ElectionSettings, NAME_LABEL, REQUEST_TIMEOUT};
