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
    /// It is frozen, but the leader does not say so: one that is late, or of another version.
    #[error("{0}")]
    FrozenUnheard(String),
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

impl OperateError {
    /// Whether the API server refuses it to this user.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Api { error: kube::Error::Api(status), .. } if status.code == 403)
    }
}

/// Why a request failed, and what gives the right where it is one of those who operate Plimsoll.
fn told(error: &kube::Error) -> String {
    let text = plain(&worded(error)).into_owned();
    let kube::Error::Api(status) = error else { return text };
    let (message, is_of_lease) = (&status.message, status.message.contains("resource \"leases\""));
    match status.code {
        403 if is_of_lease && !message.contains("cannot create") => {
            format!("{text}; the ClusterRole plimsoll:operator gives the right")
        }
        403 if !is_of_lease && message.contains("cannot patch") => {
            format!(
                "{text}; the ClusterRole edit gives the right in its namespace, as does plimsoll:operator"
            )
        }
        _ => text,
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
             User \"ann\" cannot patch it; the ClusterRole edit gives the right in its namespace, as does \
             plimsoll:operator"
        );
        for verb in ["get", "patch"] {
            let lease =
                refused(&format!("User \"ann\" cannot {verb} resource \"leases\" in API group"));
            assert!(
                lease.ends_with("; the ClusterRole plimsoll:operator gives the right"),
                "{lease}"
            );
        }
        for other in ["cannot create resource \"leases\"", "cannot get resource \"autoscalers\""] {
            assert!(!refused(other).contains("ClusterRole"), "{other}");
        }
        assert!(refused("a\u{202e}b").ends_with("a\\u{202e}b"));
    }
}
