//! Retries and counts requests to the API server.

use crate::telemetry::Metrics;
use futures::future::BoxFuture;
use kube::client::Body;
use kube::client::retry::RetryPolicy;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};
use tower::BoxError;
use tower::retry::Policy;

/// The longest backoff between two attempts, and the number of retries.
const MAX_BACKOFF: Duration = Duration::from_secs(2);
const MAX_RETRIES: u32 = 5;

/// An extension of a request that is retried only after 429, with which the API server handles none:
/// each other response is that of the only attempt that was handled.
#[derive(Clone)]
pub struct HandledOnce;

/// Retries requests that an overloaded server refused, for a few seconds. After that, the caller is
/// told: a watch that does not know of a failure could not report that it is stale.
#[derive(Clone)]
pub struct Retries {
    policy: RetryPolicy,
    tell: fn(u16),
}

impl Retries {
    /// The policy of all clients of the API server.
    pub fn new() -> Self {
        Self::telling(|_| {})
    }

    /// The same, which tells of the status of each response after which it retries.
    pub fn telling(tell: fn(u16)) -> Self {
        let policy = RetryPolicy::new(Duration::from_millis(50), MAX_BACKOFF, MAX_RETRIES, true);
        let policy = policy.expect("the first backoff is shorter than the longest");
        Self { policy, tell }
    }
}

impl<B> Policy<http::Request<Body>, http::Response<B>, BoxError> for Retries {
    type Future = Sleep;

    fn retry(
        &mut self,
        request: &mut http::Request<Body>,
        result: &mut Result<http::Response<B>, BoxError>,
    ) -> Option<Sleep> {
        let is_handled = |response: &http::Response<B>| response.status().as_u16() != 429;
        if request.extensions().get::<HandledOnce>().is_some()
            && result.as_ref().is_ok_and(is_handled)
        {
            return None;
        }
        let wait = self.policy.retry(request, result)?;
        // `Retry-After` may be longer.
        let is_short = wait.deadline() <= Instant::now() + MAX_BACKOFF;
        if let Some(response) = result.as_ref().ok().filter(|_| is_short) {
            (self.tell)(response.status().as_u16());
        }
        is_short.then_some(wait)
    }

    fn clone_request(&mut self, request: &http::Request<Body>) -> Option<http::Request<Body>> {
        Policy::<_, http::Response<B>, BoxError>::clone_request(&mut self.policy, request)
    }
}

/// Counts requests and their responses, each attempt by itself.
#[derive(Clone)]
pub struct Counting<S> {
    /// The counted service.
    pub inner: S,
    /// The metrics.
    pub metrics: Arc<Metrics>,
}

impl<S, B, C> tower::Service<http::Request<B>> for Counting<S>
where
    S: tower::Service<http::Request<B>, Response = http::Response<C>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let mut timer = self.metrics.kube.start_request(request.method(), request.uri());
        let response = self.inner.call(request);
        Box::pin(async move {
            let response = response.await;
            if let Ok(response) = &response {
                timer.responded(response.status().as_u16());
            }
            response
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tower::retry::RetryLayer;

    #[tokio::test(start_paused = true)]
    async fn a_long_outage_is_reported_within_seconds() {
        use tower::{Layer, ServiceExt};
        for (code, after, longest) in
            [(503, None, 11), (503, Some("1"), 11), (429, Some("2"), 11), (429, Some("600"), 0)]
        {
            let service = tower::service_fn(move |_: http::Request<Body>| async move {
                let mut answer = http::Response::builder().status(code);
                if let Some(after) = after {
                    answer = answer.header("retry-after", after);
                }
                Ok::<_, BoxError>(answer.body(Body::empty()).expect("an answer"))
            });
            let service = RetryLayer::new(Retries::new()).layer(service);
            let request = http::Request::get("/api/v1/pods").body(Body::empty());
            let begun = Instant::now();
            let answer = service.oneshot(request.expect("a request")).await.expect("an answer");
            assert_eq!(answer.status(), code);
            let took = begun.elapsed();
            assert!(took <= Duration::from_secs(longest), "{code} {after:?}: {took:?}");
        }
    }

    /// A server that fails twice, and then hangs.
    #[tokio::test(start_paused = true)]
    async fn each_attempt_is_counted_and_a_cancelled_one_too() {
        use tower::{Layer, ServiceExt};
        let metrics = Arc::new(Metrics::default());
        let tries = Arc::new(std::sync::atomic::AtomicU16::new(0));
        let service = tower::service_fn(move |_: http::Request<Body>| {
            let number = tries.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            async move {
                if number >= 2 {
                    std::future::pending::<()>().await;
                }
                let answer = http::Response::builder().status(503).body(Body::empty());
                Ok::<_, tower::BoxError>(answer.expect("an answer"))
            }
        });
        let counting = Counting { inner: service, metrics: metrics.clone() };
        let retry = RetryLayer::new(Retries::new()).layer(counting);
        let request = http::Request::get("/api/v1/pods").body(Body::empty()).expect("a request");
        let given_up = tokio::time::timeout(Duration::from_secs(600), retry.oneshot(request));
        assert!(given_up.await.is_err());
        let text = metrics.openmetrics();
        for (code, count) in [(503, 2), (0, 1)] {
            let line = format!(
                "plimsoll_kube_requests_total{{verb=\"list\",resource=\"pods\",code=\"{code}\"}} {count}\n"
            );
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }
}
