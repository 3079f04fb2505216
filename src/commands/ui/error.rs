//! Why the page can't be served, and what it says of requests to the cluster that fail.

use crate::causes::causes;
use crate::connect::ConnectError;
use crate::kube_error::status;
use crate::supervise::TaskEnded;
use kube::runtime::watcher;

/// Why the page can't be served.
#[derive(Debug, thiserror::Error)]
pub enum UiError {
    /// The cluster can't be connected to.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The port can't be listened on.
    #[error("can't listen on 127.0.0.1:{port}: {error}; --port=0 takes any free port")]
    Bind {
        /// The port of the flags.
        port: u16,
        /// The cause.
        error: std::io::Error,
    },
    /// What the flags say of Prometheus is invalid.
    #[error("{0}")]
    Prometheus(String),
    /// The system gives no random numbers for the key of the page.
    #[error("no random numbers for the key of the page")]
    Random,
    /// Ctrl-C could not be noticed.
    #[error("can't receive signals: {0}")]
    Signals(std::io::Error),
    /// A part of the command ended.
    #[error(transparent)]
    Ended(#[from] TaskEnded),
}

/// The longest message of a server that is shown, in characters.
const MAX_MESSAGE: usize = 500;

/// A text, cut off after so many characters.
pub fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Whether the server refuses it until someone changes rights or flags, or installs something.
pub fn is_refused(error: &watcher::Error) -> bool {
    status(error).is_some_and(|status| matches!(status.code, 401 | 403..=405))
}

/// What a failed watch of a resource (`autoscalers.plimsoll.dev`) of a namespace, or of all, means, and what helps.
pub fn problem(error: &watcher::Error, resource: &str, namespace: Option<&str>) -> String {
    let place = match namespace {
        Some(namespace) => format!("in the namespace {namespace}"),
        None => "in all namespaces".to_owned(),
    };
    let said = status(error).map(|status| (status.code, cut(&status.message, MAX_MESSAGE)));
    match said {
        Some((401, said)) => format!(
            "The API server does not accept the credentials of the kubeconfig: {said}. Log in again, and start \
             plimsoll ui again."
        ),
        Some((403, said)) => {
            let instead = match namespace {
                Some(_) => "",
                None => ", or start plimsoll ui with -n NAMESPACE for one that you may read",
            };
            format!(
                "You may not list and watch {resource} {place}: ask for the ClusterRole view there{instead}. \
                 ({said})"
            )
        }
        Some((404, _)) => format!(
            "The cluster has no {resource}: install Plimsoll, or its CustomResourceDefinitions and APIServices."
        ),
        Some((405, said)) => format!("The cluster has no {resource}: {said}."),
        Some((code, said)) => {
            format!("Failed to list and watch {resource} {place}, trying again: {code} {said}")
        }
        None => {
            let error = cut(&causes(error), MAX_MESSAGE);
            format!("Failed to list and watch {resource} {place}, trying again: {error}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    fn refused(code: u16) -> watcher::Error {
        let status = Status { code, message: "said so".to_owned(), ..Status::default() };
        watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn a_refusal_names_verbs_resource_and_namespace_and_what_helps() {
        let all = problem(&refused(403), "autoscalers.plimsoll.dev", None);
        for part in ["list and watch", "autoscalers.plimsoll.dev", "all namespaces", "-n NAMESPACE"]
        {
            assert!(all.contains(part), "{all}");
        }
        let one = problem(&refused(403), "autoscalers.plimsoll.dev", Some("shop"));
        assert!(one.contains("namespace shop") && !one.contains("-n NAMESPACE"), "{one}");
        assert!(problem(&refused(404), "decisions", None).contains("install"));
        assert!(is_refused(&refused(404)) && !is_refused(&refused(503)));
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        assert_eq!(cut("äöü", 2), "äö…");
        assert_eq!(cut("äöü", 3), "äöü");
    }
}
