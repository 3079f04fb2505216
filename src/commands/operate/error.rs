//! Why a command failed.

use super::super::story::plain;
use crate::connect::ConnectError;
use crate::kube_error::{is_unknown_kind, is_unsent, worded};
use crate::leader::is_indeterminate;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum OperateError {
    /// The cluster can't be connected to.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A request to the API server failed.
    #[error("{object}: {}{written}", told(error))]
    Api {
        /// The object of the request.
        object: String,
        /// The cause.
        error: kube::Error,
        /// Of a command that writes, whether that was written.
        written: &'static str,
    },
    /// What failed in a cluster.
    #[error("{place}: {error}")]
    In {
        /// The cluster, as `context prod (https://10.0.0.1:6443)`.
        place: String,
        /// Why it failed.
        error: Box<Self>,
    },
    /// It failed for some of several objects.
    #[error("{error}")]
    Partly {
        /// What is printed of the others.
        shown: String,
        /// The errors, a line each.
        error: String,
    },
    /// The object is not in a state in which that can be done.
    #[error("{0}")]
    Refused(String),
    /// There is no such Lease, so there is no leader to freeze.
    #[error(
        "there is no Lease {lease}, so nothing was written; \
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
        "no replica renews the Lease: {lease} was last renewed at {renewed}. It is marked as {done}, \
         which the next leader obeys; check the pods of Plimsoll, --plimsoll-namespace and --lease"
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
        "Lease {lease} was frozen, thawed or recreated meanwhile, or the freeze has ended; \
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
    |error| OperateError::Api { object, error, written: "" }
}

/// The same of a request that is made before anything is written.
pub fn error_before_write(object: impl Into<String>) -> impl FnOnce(kube::Error) -> OperateError {
    let object = object.into();
    |error| OperateError::Api { object, error, written: UNWRITTEN }
}

/// The same of a request that writes.
pub fn write_error(object: impl Into<String>) -> impl FnOnce(kube::Error) -> OperateError {
    let object = object.into();
    |error| {
        let written = match is_indeterminate(&error) && !is_unsent(&error) {
            true => "; whether it was written is not known: run it again",
            false if matches!(&error, kube::Error::Api(status) if status.reason == "AlreadyExists") => {
                "; nothing was written: kubectl edit changes it"
            }
            false => UNWRITTEN,
        };
        OperateError::Api { object, error, written }
    }
}

const UNWRITTEN: &str = "; nothing was written";

impl OperateError {
    /// Whether the API server refuses it to this user.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Api { error: kube::Error::Api(status), .. } if status.code == 403)
    }

    /// Whether there is no object of that name.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Api { error: kube::Error::Api(status), .. } if status.code == 404 && status.reason == "NotFound")
    }

    /// Whether the API server has no such objects at all.
    pub fn is_unknown_kind(&self) -> bool {
        matches!(self, Self::Api { error, .. } if is_unknown_kind(error))
    }

    /// Whether the API server has said nothing.
    pub fn is_unanswered(&self) -> bool {
        let is_answer =
            |error: &kube::Error| matches!(error, kube::Error::Api(_) | kube::Error::SerdeError(_));
        matches!(self, Self::Api { error, .. } if !is_answer(error))
    }
}

/// What a server is that has no such objects at all.
const UNKNOWN_KIND: &str = "it has no such objects: Plimsoll's definitions are not installed there, or it is no API server of Kubernetes";

/// Why a request failed, and what gives the right where it is one of those who operate Plimsoll.
fn told(error: &kube::Error) -> String {
    let text = plain(&worded(error)).into_owned();
    let kube::Error::Api(status) = error else { return text };
    if is_unknown_kind(error) {
        return format!("{text}; {UNKNOWN_KIND}");
    }
    let (message, is_of_lease) = (&status.message, status.message.contains("resource \"leases\""));
    match status.code {
        403 if is_of_lease && !message.contains("cannot create") => {
            format!("{text}; the ClusterRole plimsoll:operator gives the right")
        }
        403 if !is_of_lease && message.contains("cannot patch") => {
            format!(
                "{text}; the ClusterRole edit gives the right in its namespace, as does plimsoll:pauser"
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
    fn what_exists_can_be_edited() {
        let status =
            Status::failure("autoscalers.plimsoll.dev \"web\" already exists", "AlreadyExists");
        let error =
            write_error("autoscaler shop/web")(kube::Error::Api(status.with_code(409).boxed()));
        let text = error.to_string();
        assert!(
            text.ends_with("already exists; nothing was written: kubectl edit changes it"),
            "{text}"
        );
    }

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
             plimsoll:pauser"
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

    /// Who freezes must know whether anything is frozen.
    #[test]
    fn an_error_of_a_write_says_what_is_known_of_it() {
        let answered = |code: u16| {
            let status = Status::failure("no", "Reason").with_code(code);
            kube::Error::Api(status.boxed())
        };
        let written = |error| write_error("the Lease")(error).to_string();
        for code in [403, 409, 429] {
            let text = written(answered(code));
            assert!(text.ends_with("; nothing was written"), "{text}");
        }
        let lost = kube::Error::Service("connection error: timed out".into());
        for error in [answered(500), answered(503), answered(504), lost] {
            let text = written(error);
            assert!(text.ends_with("whether it was written is not known: run it again"), "{text}");
        }
        let before = error_before_write("the Lease")(answered(503)).to_string();
        assert_eq!(before, "the Lease: Error from server (Reason): no; nothing was written");
    }
}
