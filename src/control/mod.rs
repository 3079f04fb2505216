//! The control loop: decides for each autoscaler in its time, and carries the
//! decisions out.

mod api_metrics;
mod correlate;
mod events;
#[cfg(test)]
mod fake;
mod gather;
mod keep;
mod moment;
mod native;
mod observe;
mod reconcile;
mod rescales;
mod rule_metrics;
mod run;
mod schedule;
mod selectors;
mod status;
mod targets;
mod turns;

pub use run::{ControlLoop, Settings};

use crate::leader::REQUEST_TIMEOUT;
use kube::Client;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// Waits for a request to the API server, for a bounded time.
async fn within<T>(
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, kube::Error> {
    match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
        Ok(result) => result,
        Err(elapsed) => Err(kube::Error::Service(elapsed.into())),
    }
}

/// Sends a write that the API server carries out in a request's time or not at all: what was
/// given up here must not be done later.
async fn send<T: DeserializeOwned>(
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

/// What a user is told of a failed request: the API server's own message.
fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        kube::Error::Service(cause) if cause.is::<tokio::time::error::Elapsed>() => {
            format!("the API server did not answer within {REQUEST_TIMEOUT:?}")
        }
        other => other.to_string(),
    }
}

/// Whether a failed request says nothing of what was asked, but that the API server
/// can't be reached or is overloaded: others would fail, too, and it may be well again.
fn is_passing(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => matches!(status.code, 429 | 502 | 503 | 504),
        _ => true,
    }
}

/// How long to wait after so many failures in a row: it doubles, up to `most`.
fn growing(failures: u32, most: Duration) -> Duration {
    Duration::from_secs(1).saturating_mul(1 << failures.saturating_sub(1).min(16)).min(most)
}
