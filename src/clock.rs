//! Clocks that do not depend on the wall clock of this host: a monotonic one, and kube-apiserver's, which
//! is the same for all replicas and known from the `Date` headers of its responses.

use crate::time::UnixMillis;
use http::header::DATE;
use jiff::fmt::rfc2822;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// A monotonic clock, with the offset of kube-apiserver's clock. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Clock(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    start: Instant,
    server: Mutex<Option<ServerOffset>>,
}

/// How far kube-apiserver's clock is ahead of the monotonic one.
#[derive(Clone, Copy, Debug)]
struct ServerOffset {
    ahead_ms: i64,
    observed: Instant,
}

/// How long the best observation is used: clocks may be set, and
/// another kube-apiserver may respond.
const OBSERVATION_TTL: Duration = Duration::from_secs(60);

impl Default for Clock {
    fn default() -> Self {
        Self(Arc::new(Inner { start: Instant::now(), server: Mutex::default() }))
    }
}

impl Clock {
    /// Milliseconds since the start of this clock. Monotonic, and independent of the wall clock.
    pub fn elapsed(&self) -> i64 {
        i64::try_from(self.0.start.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    /// kube-apiserver's time, to about a second; none before its first response.
    pub fn server(&self) -> Option<UnixMillis> {
        let server = *self.0.server.lock().unwrap_or_else(PoisonError::into_inner);
        Some(self.elapsed() + server?.ahead_ms)
    }

    /// Records the date of a response. Dates are truncated to seconds and take
    /// time to arrive, so none is ahead of the server's clock: the latest is the best.
    fn observe(&self, date: UnixMillis) {
        let new = ServerOffset { ahead_ms: date - self.elapsed(), observed: Instant::now() };
        let mut server = self.0.server.lock().unwrap_or_else(PoisonError::into_inner);
        let best = server.filter(|best| best.observed.elapsed() < OBSERVATION_TTL);
        if best.is_none_or(|best| best.ahead_ms <= new.ahead_ms) {
            *server = Some(new);
        }
    }
}

/// A service that has a [`Clock`] observe the dates of all responses.
#[derive(Clone)]
pub struct Dated<S> {
    inner: S,
    clock: Clock,
}

impl<S> Dated<S> {
    /// Wraps a service.
    pub const fn new(inner: S, clock: Clock) -> Self {
        Self { inner, clock }
    }
}

impl<S, B, C> tower::Service<http::Request<B>> for Dated<S>
where
    S: tower::Service<http::Request<B>, Response = http::Response<C>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = futures::future::BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let (response, clock) = (self.inner.call(request), self.clock.clone());
        Box::pin(async move {
            let response = response.await?;
            let date = response.headers().get(DATE).and_then(|date| date.to_str().ok());
            if let Some(date) = date.and_then(|date| rfc2822::parse(date).ok()) {
                clock.observe(date.timestamp().as_millisecond());
            }
            Ok(response)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tower::{Service, service_fn};

    #[tokio::test]
    async fn the_servers_time_is_that_of_its_responses_to_a_second() {
        let clock = Clock::default();
        assert_eq!(clock.server(), None);
        let answer = async |_: http::Request<()>| {
            let answer = http::Response::builder().header(DATE, "Sat, 21 Nov 2026 22:01:28 GMT");
            answer.body(())
        };
        let mut service = Dated::new(service_fn(answer), clock.clone());
        service.call(http::Request::new(())).await.unwrap();
        let date = "2026-11-21T22:01:28Z".parse::<jiff::Timestamp>().unwrap().as_millisecond();
        let seen = clock.server().unwrap();
        assert!((date..date + 1_000).contains(&seen), "{seen}");
        // A delayed response does not set the clock back.
        clock.observe(date - 5_000);
        assert!(clock.server().unwrap() >= seen);
        clock.observe(date + 5_000);
        assert!(clock.server().unwrap() >= date + 5_000);
    }
}
