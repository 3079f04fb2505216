//! Why a command failed.

use crate::connect::ConnectError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum OperateError {
    /// The cluster can't be connected to.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A request to the API server failed.
    #[error("{what}: {error}")]
    Api {
        /// The object of the request.
        what: String,
        /// The cause.
        error: kube::Error,
    },
    /// There is no such Lease, so there is no leader to freeze.
    #[error(
        "there is no Lease {place}, so nobody would hear it and nothing was written; \
         --plimsoll-namespace and --lease name that of Plimsoll{others}"
    )]
    NoLease {
        /// The namespace and name of the flags.
        place: String,
        /// The flags of other Leases of Plimsoll.
        others: String,
    },
    /// No leader acknowledged.
    #[error(
        "nobody answers: Lease {place} was last renewed at {renewed}. It is marked as {done}, which \
         counts for whoever leads next; look at the pods of Plimsoll, and at --plimsoll-namespace and --lease"
    )]
    Nobody {
        /// The namespace and name of the Lease.
        place: String,
        /// `frozen` or `thawed`.
        done: &'static str,
        /// The time of the last renewal.
        renewed: String,
    },
    /// Another user froze or thawed at the same time, or the freeze has ended, or the Lease was made anew.
    #[error(
        "Lease {place} was frozen, thawed or made anew meanwhile; `plimsoll status` says how it is now"
    )]
    Overtaken {
        /// The namespace and name of the Lease.
        place: String,
    },
}

/// Adds the object of a request to its error.
pub fn api_error(what: impl Into<String>) -> impl FnOnce(kube::Error) -> OperateError {
    let what = what.into();
    |error| OperateError::Api { what, error }
}
