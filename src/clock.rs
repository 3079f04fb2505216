//! The clocks of a process: a monotonic one; kube-apiserver's, which is the same for all replicas and known
//! from the `Date` headers of its responses; and the wall clock, which may be set at any time. A simulation
//! runs all of them: the first two are tokio's, and it gives the third.

use crate::time::UnixMillis;
use http::header::DATE;
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// The wall clock: by default that of this host. Cheap to clone.
#[derive(Clone, Default)]
pub struct WallClock(Option<Arc<dyn Fn() -> SystemTime + Send + Sync>>);

impl WallClock {
    /// A simulated clock.
    pub fn new(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(now)))
    }

    /// The present time.
    pub fn now(&self) -> SystemTime {
        #[expect(clippy::disallowed_methods, reason = "all others read it here")]
        self.0.as_ref().map_or_else(SystemTime::now, |now| now())
    }

    /// The present time as a timestamp.
    pub fn timestamp(&self) -> Timestamp {
        // The latest is in the year 9999.
        Timestamp::try_from(self.now()).unwrap_or(Timestamp::MAX)
    }
}

/// A monotonic clock, with the offset of kube-apiserver's clock, and the wall clock. Cheap to clone.
#[derive(Clone)]
pub struct Clock(Arc<Inner>);

struct Inner {
    start: Instant,
    server: Mutex<ServerClock>,
    wall: WallClock,
}

/// What the dates of responses tell about kube-apiserver's clock.
#[derive(Debug, Default)]
struct ServerClock {
    known: Option<ServerOffset>,
    /// The least of what responses say since one said that the clock has leapt ahead, and when that was.
    leap: Option<ServerOffset>,
    /// The process's and the wall clock's time of the last response that `known` has, in ms.
    responded: Option<(i64, UnixMillis)>,
}

/// How far kube-apiserver's clock is ahead of the monotonic one.
#[derive(Clone, Copy, Debug)]
struct ServerOffset {
    /// At least: dates are truncated to seconds and take time to arrive.
    ahead_ms: i64,
    /// At most: a response is dated after its request was sent.
    at_most_ms: i64,
    observed: Instant,
    /// Whether quick responses at different times have it.
    confirmed: bool,
    /// How many more responses contradict it than agree with it, and since when there are any.
    doubts: u32,
    doubted: Instant,
}

impl ServerOffset {
    /// That of a response with this date that took so long, at a time of the monotonic clock.
    fn of(date: UnixMillis, took: Duration, now: i64) -> Self {
        let took = i64::try_from(took.as_millis()).unwrap_or(i64::MAX / 2);
        let ahead_ms = date - now;
        let at_most_ms = ahead_ms + took.saturating_add(1_000).max(MAX_DIFFERENCE_MS);
        let observed = Instant::now();
        Self { ahead_ms, at_most_ms, observed, confirmed: false, doubts: 0, doubted: observed }
    }

    /// Whether both dates can be of one kube-apiserver.
    fn agrees(&self, other: &Self) -> bool {
        self.ahead_ms <= other.at_most_ms && other.ahead_ms <= self.at_most_ms
    }

    /// Whether its response was quick, so that it tells the time.
    fn is_exact(&self) -> bool {
        self.at_most_ms - self.ahead_ms <= MAX_DIFFERENCE_MS
    }

    /// Whether a later one confirms it.
    fn is_confirmed_by(&self, later: &Self) -> bool {
        let are_exact = self.is_exact() && later.is_exact();
        are_exact && self.agrees(later) && later.observed - self.observed >= CONFIRMED_AFTER
    }
}

/// How long the best observation is used, and one that most responses contradict: clocks may be set, and another
/// kube-apiserver may respond.
const OBSERVATION_TTL: Duration = Duration::from_secs(60);
/// How far the dates of quick responses of one clock differ at most from what the monotonic clock expects: a date is of
/// a second, and its response may take another.
const MAX_DIFFERENCE_MS: i64 = 2_000;
/// How much later than a response another must be to confirm it.
const CONFIRMED_AFTER: Duration = Duration::from_secs(1);

impl ServerClock {
    /// No date is ahead of the clock of the server that sent it: the latest is the best. But one server of several may
    /// be ahead of the others, and a freeze that ended by it stays ended. So a time that the monotonic clock
    /// contradicts counts only once no response of a second has contradicted it, and then the least of what
    /// they say. The first of all counts, and gives way to an earlier one as long as no other response
    /// has confirmed it. A slow response tells little, but it does tell what can't be.
    fn observe(&mut self, mut new: ServerOffset) {
        let Some(known) = &mut self.known else {
            self.known = Some(new);
            return;
        };
        if new.ahead_ms > known.at_most_ms {
            let leap = self.leap.get_or_insert(new);
            let ahead_ms = leap.ahead_ms.min(new.ahead_ms);
            let at_most_ms = leap.at_most_ms.min(new.at_most_ms);
            (leap.ahead_ms, leap.at_most_ms) = (ahead_ms, at_most_ms);
            if new.observed - leap.observed >= CONFIRMED_AFTER {
                self.known = Some(ServerOffset { ahead_ms, at_most_ms, confirmed: true, ..new });
                self.leap = None;
            }
            return;
        }
        let is_exact = new.is_exact();
        if is_exact || self.leap.is_some_and(|leap| !leap.agrees(&new)) {
            self.leap = None;
        }
        known.confirmed |= known.is_confirmed_by(&new);
        let is_old = |since: Instant| since.elapsed() >= OBSERVATION_TTL;
        if !new.agrees(known) {
            if known.doubts == 0 {
                known.doubted = new.observed;
            }
            known.doubts += 1;
            if is_old(known.doubted) || !known.confirmed {
                *known = new;
            }
            return;
        }
        known.doubts = known.doubts.saturating_sub(1);
        (new.doubts, new.doubted) = (known.doubts, known.doubted);
        // What the one leaves open, the other closes.
        let least = known.ahead_ms.max(new.ahead_ms) + MAX_DIFFERENCE_MS;
        let at_most_ms = known.at_most_ms.min(new.at_most_ms).max(least);
        (known.at_most_ms, new.at_most_ms, new.confirmed) =
            (at_most_ms, at_most_ms, known.confirmed);
        if known.ahead_ms <= new.ahead_ms || is_exact && is_old(known.observed) {
            *known = new;
        }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::with_wall(WallClock::default())
    }
}

impl Clock {
    /// A clock that starts now, with this wall clock.
    pub fn with_wall(wall: WallClock) -> Self {
        Self(Arc::new(Inner { start: Instant::now(), server: Mutex::default(), wall }))
    }

    /// The wall clock's time.
    pub fn wall(&self) -> SystemTime {
        self.0.wall.now()
    }

    /// The wall clock's time at this one of the monotonic clock, as far as it is not set between.
    pub fn wall_at(&self, at: Instant) -> SystemTime {
        let now = Instant::now();
        self.wall() + at.saturating_duration_since(now) - now.saturating_duration_since(at)
    }

    /// The wall clock's time as a timestamp.
    pub fn wall_timestamp(&self) -> Timestamp {
        self.0.wall.timestamp()
    }

    /// The wall clock's time in milliseconds.
    pub fn wall_ms(&self) -> UnixMillis {
        self.wall_timestamp().as_millisecond()
    }

    /// Milliseconds since the start of this clock. Monotonic, and independent of the wall clock.
    pub fn elapsed(&self) -> i64 {
        i64::try_from(self.0.start.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    /// The same at a time of the monotonic clock.
    pub fn elapsed_at(&self, at: Instant) -> i64 {
        let elapsed = at.saturating_duration_since(self.0.start);
        i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX)
    }

    /// kube-apiserver's time, or up to two seconds less, and more as long as all its responses are slow; none before
    /// the first.
    pub fn server(&self) -> Option<UnixMillis> {
        Some(self.elapsed() + self.server_offset()?.ahead_ms)
    }

    /// kube-apiserver's time, or that of the wall clock before its first response.
    pub fn server_or_wall(&self) -> UnixMillis {
        self.server().unwrap_or_else(|| self.wall_ms())
    }

    /// kube-apiserver's time on a machine that may sleep, while the monotonic clock stands still: what the wall clock
    /// has gained on that since the last response is added. Its own time may be wrong, and counts only before the first
    /// response.
    pub fn latest(&self) -> UnixMillis {
        let (wall, elapsed) = (self.wall_ms(), self.elapsed());
        let responded = self.0.server.lock().unwrap_or_else(PoisonError::into_inner).responded;
        let (Some(server), Some((elapsed_then, wall_then))) = (self.server(), responded) else {
            return wall;
        };
        server + ((wall - wall_then) - (elapsed - elapsed_then)).max(0)
    }

    /// kube-apiserver's time at most; none before its first response.
    pub fn server_at_most(&self) -> Option<UnixMillis> {
        Some(self.elapsed() + self.server_offset()?.at_most_ms)
    }

    fn server_offset(&self) -> Option<ServerOffset> {
        self.0.server.lock().unwrap_or_else(PoisonError::into_inner).known
    }

    /// Records the date of a response that took so long.
    fn observe(&self, date: UnixMillis, took: Duration) {
        let (now, wall) = (self.elapsed(), self.wall_ms());
        let new = ServerOffset::of(date, took, now);
        let mut server = self.0.server.lock().unwrap_or_else(PoisonError::into_inner);
        server.observe(new);
        // As long as a leap may be none, what came before it counts.
        if server.leap.is_none() {
            server.responded = Some((now, wall));
        }
    }
}

/// A service that has a [`Clock`] observe the dates of all responses but errors of servers.
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
        let sent = Instant::now();
        Box::pin(async move {
            let response = response.await?;
            // A proxy may have sent an error, with the date of its own clock.
            let is_servers = !response.status().is_server_error();
            let date = response.headers().get(DATE).filter(|_| is_servers);
            let date = date.and_then(|date| date.to_str().ok());
            if let Some(date) = date.and_then(|date| rfc2822::parse(date).ok()) {
                clock.observe(date.timestamp().as_millisecond(), sent.elapsed());
            }
            Ok(response)
        })
    }
}

#[cfg(test)]
mod tests;
