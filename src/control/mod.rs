//! The control loop: decides for each autoscaler in its time, and carries the
//! decisions out.

mod api_metrics;
mod events;
#[cfg(test)]
mod fake;
mod gather;
mod keep;
mod native;
mod observe;
mod reconcile;
mod rule_metrics;
mod run;
mod schedule;
mod selectors;
mod status;
mod targets;

pub use run::{ControlLoop, Settings};

use std::time::Duration;

/// How long one request to the API server may take.
const REQUEST: Duration = Duration::from_secs(10);

/// Waits for a request to the API server, for a bounded time.
async fn within<T>(
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, kube::Error> {
    match tokio::time::timeout(REQUEST, request).await {
        Ok(result) => result,
        Err(elapsed) => Err(kube::Error::Service(elapsed.into())),
    }
}

/// What a user is told of a failed request: the API server's own message.
fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        kube::Error::Service(cause) if cause.is::<tokio::time::error::Elapsed>() => {
            format!("the API server did not answer within {REQUEST:?}")
        }
        other => other.to_string(),
    }
}
