//! Why a command failed.

use super::super::story::plain;
use crate::connect::ConnectError;
use crate::kube_error::worded;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum OperateError {
    /// The cluster can't be connected to.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A request to the API server failed.
    #[error("{object}: {}", told(error))]
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

/// Why a request failed, and what gives the right where it is one of those who operate Plimsoll.
fn told(error: &kube::Error) -> String {
    let text = plain(&worded(error)).into_owned();
    let kube::Error::Api(status) = error else { return text };
    let is_of_operators = status.message.contains("cannot patch")
        || status.message.contains("resource \"leases\"")
            && !status.message.contains("cannot create");
    match status.code == 403 && is_of_operators {
        true => format!("{text}; the ClusterRole plimsoll:operator gives the right"),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    #[test]
    fn a_refusal_is_said_once_and_names_the_role() {
        let refused = |message: &str| {
            let status = Status::failure(message, "Forbidden").with_code(403);
            api_error("autoscaler shop/web")(kube::Error::Api(status.boxed())).to_string()
        };
        assert_eq!(
            refused("autoscalers.plimsoll.dev \"web\" is forbidden: User \"ann\" cannot patch it"),
            "autoscaler shop/web: Error from server (Forbidden): autoscalers.plimsoll.dev \"web\" is forbidden: \
             User \"ann\" cannot patch it; the ClusterRole plimsoll:operator gives the right"
        );
        for other in ["cannot create resource \"leases\"", "cannot get resource \"autoscalers\""] {
            assert!(!refused(other).contains("ClusterRole"), "{other}");
        }
        assert!(refused("a\u{202e}b").ends_with("a\\u{202e}b"));
    }
}
