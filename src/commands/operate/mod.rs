//! The commands of operators: `plimsoll status`, `explain`, `pause`, `freeze` and others. Installed
//! as `kubectl-plimsoll`, they are `kubectl plimsoll status` and so on.

mod cluster;
mod compare;
pub(super) mod decisions;
mod error;
mod explain;
mod freeze;
mod history;
mod missing;
mod named;
mod pause;
mod status;
mod terminal;

pub(super) use cluster::{Cluster, lease_name, named_leases};
pub use compare::compare;
pub use error::OperateError;
pub(super) use error::{error_before_write, write_error};
pub use explain::explain;
pub use freeze::{freeze, thaw};
pub use history::history;
pub(super) use missing::with_hint;
pub use pause::{pause, resume};
pub(super) use status::fault;
pub use status::status;
pub(super) use terminal::screen;
