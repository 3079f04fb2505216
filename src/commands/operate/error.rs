//! Why a command failed.

use crate::connect::ConnectError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum OperateError {
    /// The cluster can't be connected to.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A request to the API server failed.
    #[error("{object}: {error}")]
    Api {
        /// The object of the request.
        object: String,
        /// The cause.
        error: kube::Error,
    },
    /// The object is not in a state in which that can be done.
    #[error("{0}")]
    Refused(String),
    /// There is no such Lease, so there is no leader to freeze.
    #[error(
        "there is no Lease {lease}, so nobody would hear it and nothing was written; \
         --plimsoll-namespace and --lease name that of Plimsoll{others}"
    )]
    NoLease {
        /// The namespace and name of the flags.
        lease: String,
        /// The flags of other Leases of Plimsoll.
        others: String,
    },
    /// No leader acknowledged.
    #[error(
        "nobody answers: Lease {lease} was last renewed at {renewed}. It is marked as {done}, which \
         counts for whoever leads next; look at the pods of Plimsoll, and at --plimsoll-namespace and --lease"
    )]
    NotAcknowledged {
        /// The namespace and name of the Lease.
        lease: String,
        /// `frozen` or `thawed`.
        done: &'static str,
        /// The time of the last renewal.
        renewed: String,
    },
    /// Another user froze or thawed at the same time, or the freeze has ended, or the Lease was recreated.
    #[error(
        "Lease {lease} was frozen, thawed or made anew meanwhile, or the freeze has ended; \
         `plimsoll status` says how it is now"
    )]
    Superseded {
        /// The namespace and name of the Lease.
        lease: String,
    },
}

/// Adds the object of a request to its error.
pub fn api_error(object: impl Into<String>) -> impl FnOnce(kube::Error) -> OperateError {
    let object = object.into();
    |error| OperateError::Api { object, error }
}
