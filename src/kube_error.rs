//! What kube-apiserver answers to a request that fails, in kubectl's words; or why it does not answer.

use crate::causes::causes;
use hyper_util::client::legacy;
use kube::client::AuthError;
use kube::core::Status;
use kube::runtime::watcher;
use std::borrow::Cow;
use std::error::Error;
use std::iter::successors;

/// Why a request failed: `Error from server (Forbidden): ...` where kube-apiserver says it, or else the error with all
/// its causes. The `Display` of kube's errors has the `Debug` of a whole `Status`, and no causes of a lost connection.
pub fn worded(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => from_server(status),
        other => without_status(other),
    }
}

/// The same for a condition or an event: the API server's own message alone.
pub fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => own_message(status).into_owned(),
        other => without_status(other),
    }
}

fn without_status(error: &kube::Error) -> String {
    match error {
        kube::Error::SerdeError(error) if !error.is_data() => {
            format!("the response is not JSON (a proxy or a login page?): {error}")
        }
        other => causes(other),
    }
}

/// Whether the API server has no such objects at all, as without their CustomResourceDefinition. That is no `Status` with
/// the reason `NotFound`.
pub fn is_unknown_kind(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404 && status.reason == NO_STATUS)
}

/// Whether a request was not sent: there was no connection, or there were no credentials.
pub fn is_unsent(error: &kube::Error) -> bool {
    let mut causes = successors(Some(error as &(dyn Error + 'static)), |&cause| cause.source());
    causes.any(|cause| {
        let is_connect = cause.downcast_ref().is_some_and(legacy::Error::is_connect);
        is_connect || cause.is::<AuthError>()
    })
}

/// Why a watch failed, as [`worded`] says it.
pub fn worded_watch(error: &watcher::Error) -> String {
    status(error).map_or_else(|| causes(error), from_server)
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

/// The reason that kube gives to an answer that is no `Status`.
const NO_STATUS: &str = "Failed to parse error data";

/// The most characters of such an answer that are told: it may be a page.
const MAX_TOLD: usize = 200;

/// The message; of what is no `Status`, how it begins.
fn own_message(status: &Status) -> Cow<'_, str> {
    match status.reason == NO_STATUS {
        true => status.message.lines().next().unwrap_or_default().chars().take(MAX_TOLD).collect(),
        false => Cow::Borrowed(&status.message),
    }
}

fn from_server(status: &Status) -> String {
    let message = own_message(status);
    let message = message.trim();
    match status.reason.as_str() {
        NO_STATUS => format!("Error from server ({}): {message}", status.code),
        "" => format!("Error from server: {message}"),
        reason => format!("Error from server ({reason}): {message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::message;
    use watcher::Error::InitialListFailed;

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

    #[tokio::test]
    async fn an_answer_of_no_api_server_is_told_in_words() {
        let answer = async |code: u16, body: &'static str| {
            let service =
                tower::service_fn(move |_: http::Request<kube::client::Body>| async move {
                    let body = kube::client::Body::from(body.as_bytes().to_vec());
                    let answer = http::Response::builder().status(code).body(body);
                    Ok::<_, kube::Error>(answer.expect("an answer"))
                });
            kube::Client::new(service, "default").apiserver_version().await.unwrap_err()
        };
        let error = answer(404, "404 page not found\n").await;
        assert_eq!(worded(&error), "Error from server (404): 404 page not found");
        assert!(is_unknown_kind(&error) && !is_unsent(&error));
        let page = answer(502, "<html>\n<body>Bad Gateway").await;
        assert_eq!(worded(&page), "Error from server (502): <html>");
        let login = worded(&answer(200, "<html>login</html>").await);
        assert!(login.starts_with("the response is not JSON (a proxy"), "{login}");
        let missing = Status::failure("no web", "NotFound").with_code(404);
        assert!(!is_unknown_kind(&kube::Error::Api(missing.boxed())));
    }

    /// A token is asked for anew while the process runs, also by each watch.
    #[test]
    fn what_a_plugin_answers_is_in_no_text() {
        use kube::client::AuthError;
        let output = || std::process::Output {
            status: std::process::ExitStatus::default(),
            stdout: b"s3cret\n".to_vec(),
            stderr: b"no login\n".to_vec(),
        };
        let failed = || AuthError::AuthExecRun { cmd: "x s3cret".to_owned(), out: output().into() };
        let errors = || {
            let boxed: Box<dyn std::error::Error + Send + Sync> = Box::new(failed());
            [kube::Error::Auth(failed()), kube::Error::Service(boxed)]
        };
        for (error, again) in errors().into_iter().zip(errors()) {
            for text in [worded(&error), message(&error), worded_watch(&InitialListFailed(again))] {
                assert!(!text.contains("s3cret"), "{text}");
                assert!(text.ends_with("no login"), "{text}");
            }
        }
    }

    /// A closed port and a wrong certificate are told apart.
    #[tokio::test]
    async fn why_there_is_no_connection_is_said_with_all_causes() {
        let address = crate::fake::tls_server("api.example").await;
        let other = rcgen::generate_simple_self_signed(["api.example".to_owned()]).unwrap();
        for (server, expected) in
            [("localhost:1", "Connection refused"), (&*address, "invalid peer certificate: ")]
        {
            let mut config = kube::Config::new(format!("https://{server}").parse().unwrap());
            config.root_cert = Some(vec![other.cert.der().to_vec()]);
            config.tls_server_name = Some("api.example".to_owned());
            config.default_retry = false;
            let client = kube::Client::try_from(config).unwrap();
            let error = client.apiserver_version().await.unwrap_err();
            assert!(is_unsent(&error), "{error}");
            let texts = [worded(&error), message(&error)];
            let texts = texts.into_iter().chain([worded_watch(&InitialListFailed(error))]);
            for text in texts {
                assert!(text.contains(expected) && !text.contains("ServiceError"), "{text}");
                assert_eq!(text.matches("client error (Connect)").count(), 1, "{text}");
            }
        }
    }
}
