//! What kube-apiserver answers to a request that fails, in kubectl's words.

use kube::core::Status;
use kube::runtime::watcher;

/// Why a request failed: `Error from server (Forbidden): ...` where kube-apiserver says it.
pub fn worded(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => from_server(status),
        other => other.to_string(),
    }
}

/// The same of a watch.
pub fn worded_watch(error: &watcher::Error) -> String {
    status(error).map_or_else(|| error.to_string(), from_server)
}

/// The status with which kube-apiserver answered a watch.
pub fn status(error: &watcher::Error) -> Option<&Status> {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status))
        | WatchError(status) => Some(status),
        _ => None,
    }
}

fn from_server(status: &Status) -> String {
    let message = status.message.trim();
    match status.reason.as_str() {
        "" => format!("Error from server: {message}"),
        reason => format!("Error from server ({reason}): {message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_worded_as_by_kubectl() {
        let message = "autoscalers.plimsoll.dev \"web\" is forbidden: User \"ann\" cannot patch it";
        let status = Box::new(Status::failure(message, "Forbidden").with_code(403));
        let expected = format!("Error from server (Forbidden): {message}");
        assert_eq!(worded(&kube::Error::Api(status.clone())), expected);
        assert_eq!(worded_watch(&watcher::Error::WatchError(status.clone())), expected);
        let failed = watcher::Error::InitialListFailed(kube::Error::Api(status));
        assert_eq!(worded_watch(&failed), expected);
        let without = Status { message: "overloaded\n".to_owned(), ..Status::default() };
        let error = kube::Error::Api(Box::new(without));
        assert_eq!(worded(&error), "Error from server: overloaded");
    }
}
