//! Requests to the API server: time limits, error texts and backoff.

use crate::kube_error;
use crate::leader::REQUEST_TIMEOUT;
use crate::retry::HandledOnce;
use kube::Client;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// Waits for a request to the API server, at most [`REQUEST_TIMEOUT`].
pub async fn within<T>(
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, kube::Error> {
    match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
        Ok(result) => result,
        Err(elapsed) => Err(kube::Error::Service(elapsed.into())),
    }
}

/// A write that is retried only after 429, so that a response that refuses it leaves no other attempt
/// which may take effect: one that a freeze, or the record of an indeterminate write, rests on.
pub fn handled_once(
    request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
) -> Result<http::Request<Vec<u8>>, kube::core::request::Error> {
    let mut request = request?;
    request.extensions_mut().insert(HandledOnce);
    Ok(request)
}

/// Sends a write with `?timeout=`, so that the API server carries it out within [`REQUEST_TIMEOUT`] or
/// not at all: a write that was given up here must not take effect later.
pub async fn send<T: DeserializeOwned>(
    client: &Client,
    request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
) -> Result<T, kube::Error> {
    let mut request = request.map_err(kube::Error::BuildRequest)?;
    let separator = if request.uri().query().is_none() { '?' } else { '&' };
    let uri = format!("{}{separator}timeout={}s", request.uri(), REQUEST_TIMEOUT.as_secs());
    *request.uri_mut() =
        uri.parse().map_err(|error| kube::Error::HttpError(http::Error::from(error)))?;
    client.request(request).await
}

/// The text of a failed request for conditions and logs: the API server's own message, or the error with its causes.
pub fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Service(cause) if cause.is::<tokio::time::error::Elapsed>() => {
            format!("the API server did not answer within {REQUEST_TIMEOUT:?}")
        }
        other => kube_error::message(other),
    }
}

/// Whether an error is transient: the API server is unreachable or overloaded, so that other
/// requests would fail, too, and a later one may succeed.
pub fn is_transient(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => matches!(status.code, 429 | 502 | 503 | 504),
        _ => true,
    }
}

/// Exponential backoff after `failures` in a row: 1 s, doubled each time, at most `max`.
pub fn backoff(failures: u32, max: Duration) -> Duration {
    Duration::from_secs(1).saturating_mul(1 << failures.saturating_sub(1).min(16)).min(max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retry::Retries;
    use kube::client::Body;
    use serde_json::Value;
    use std::sync::{Arc, Mutex};
    use tower::{BoxError, Layer, retry::RetryLayer};

    /// After any other response the first attempt may be applied though the last one is refused.
    #[tokio::test(start_paused = true)]
    async fn a_write_is_retried_only_after_429() {
        for (responses, told) in [([504, 403], 504), ([503, 403], 503), ([429, 403], 403)] {
            let left = Arc::new(Mutex::new(responses.into_iter()));
            let service = tower::service_fn(move |_: http::Request<Body>| {
                let code = left.lock().unwrap().next().expect("a response");
                async move {
                    let response = http::Response::builder().status(code).body(Body::empty());
                    Ok::<_, BoxError>(response.unwrap())
                }
            });
            let client = Client::new(RetryLayer::new(Retries::new()).layer(service), "default");
            let request = http::Request::put("/scale").body(Vec::new()).unwrap();
            match send::<Value>(&client, handled_once(Ok(request))).await {
                Err(kube::Error::Api(status)) => assert_eq!(status.code, told, "{responses:?}"),
                other => panic!("{other:?}"),
            }
        }
    }
}
