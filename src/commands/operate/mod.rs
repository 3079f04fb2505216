//! The commands of operators: `plimsoll status`, `explain`, `pause`, `freeze` and others. Installed
//! as `kubectl-plimsoll`, they are `kubectl plimsoll status` and so on.

mod age;
mod cluster;
mod error;
mod explain;
mod freeze;
mod pause;
mod status;

pub use error::OperateError;
pub use explain::explain;
pub use freeze::{freeze, thaw};
pub use pause::{pause, resume};
pub use status::status;
