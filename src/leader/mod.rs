//! Leader election. Each replica serves, watches the cluster and decides, so that the next leader is
//! warm when its term begins. Only the leader writes scales, statuses, events of autoscalers, HPAs and
//! checkpoints.
//!
//! The protocol is that of client-go's leader election. In addition, each of these writes is fenced:
//! it needs a [`FencingToken`] of the term in which it was decided. The term ends by this process's
//! clocks before another replica may acquire the Lease. Before a write to a scale, the Lease itself is
//! read. Other writes need no token: each replica writes the CA of its certificate into the
//! APIServices, and the election writes the Lease and its events.
//!
//! The Lease also carries the freeze ([`freeze`]), as every replica watches the Lease anyway.

mod backoff;
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
#[cfg(test)]
pub use recorder::LeaseEvent;
pub use settings::{ElectionSettings, NAME_LABEL, REQUEST_TIMEOUT};
pub use state::LeaderAddress;
