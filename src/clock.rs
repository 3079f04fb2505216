//! Time that no hand sets: that of this process, and, where its answers are seen,
//! that of kube-apiserver, which is the same for all replicas.

use crate::hpa::UnixMillis;
use http::header::DATE;
use jiff::fmt::rfc2822;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// A monotonic clock, and what it tells of kube-apiserver's. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Clock(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    start: Instant,
    server: Mutex<Option<Server>>,
}

/// How far kube-apiserver's clock is before this process's.
#[derive(Clone, Copy, Debug)]
struct Server {
    ahead_ms: i64,
    at: Instant,
}

/// How long the best of what was seen is believed: a clock may be set, and
/// another kube-apiserver may answer.
const BELIEVED: Duration = Duration::from_secs(60);

impl Default for Clock {
    fn default() -> Self {
        Self(Arc::new(Inner { start: Instant::now(), server: Mutex::default() }))
    }
}

impl Clock {
    /// Milliseconds since this clock was made. Never goes back, and moves as real
    /// time does, whatever the wall clock is set to.
    pub fn elapsed(&self) -> i64 {
        i64::try_from(self.0.start.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    /// kube-apiserver's time, to about a second; none before its first answer.
    pub fn server(&self) -> Option<UnixMillis> {
        let server = *self.0.server.lock().unwrap_or_else(PoisonError::into_inner);
        Some(self.elapsed() + server?.ahead_ms)
    }

    /// An answer with this date has come. Dates are cut off to seconds and take
    /// time to come, so none is ahead of the server's clock: the latest is the best.
    fn saw(&self, date: UnixMillis) {
        let seen = Server { ahead_ms: date - self.elapsed(), at: Instant::now() };
        let mut server = self.0.server.lock().unwrap_or_else(PoisonError::into_inner);
        let best = server.filter(|best| best.at.elapsed() < BELIEVED);
        if best.is_none_or(|best| best.ahead_ms <= seen.ahead_ms) {
            *server = Some(seen);
        }
    }
}

/// Has a [`Clock`] see the dates of all answers.
#[derive(Clone)]
pub struct Dated<S> {
    inner: S,
    clock: Clock,
}

impl<S> Dated<S> {
    /// A service whose answers a clock sees.
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
        let (answer, clock) = (self.inner.call(request), self.clock.clone());
        Box::pin(async move {
            let answer = answer.await?;
            let date = answer.headers().get(DATE).and_then(|date| date.to_str().ok());
            if let Some(date) = date.and_then(|date| rfc2822::parse(date).ok()) {
                clock.saw(date.timestamp().as_millisecond());
            }
            Ok(answer)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tower::{Service, service_fn};

    #[tokio::test]
    async fn the_servers_time_is_that_of_its_answers_to_a_second() {
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
        // One that was long on its way is older than what is known already.
        clock.saw(date - 5_000);
        assert!(clock.server().unwrap() >= seen);
        clock.saw(date + 5_000);
        assert!(clock.server().unwrap() >= date + 5_000);
    }
}
