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
                let known = ServerOffset { ahead_ms, at_most_ms, confirmed: true, ..new };
                *self = Self { known: Some(known), leap: None };
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

    /// kube-apiserver's time, or up to two seconds less, and more as long as all its responses are slow; none before
    /// the first.
    pub fn server(&self) -> Option<UnixMillis> {
        Some(self.elapsed() + self.server_offset()?.ahead_ms)
    }

    /// kube-apiserver's time or the wall clock's, whichever is later: a machine's clock may be behind, and the monotonic
    /// one stands still while the machine sleeps.
    pub fn latest(&self) -> UnixMillis {
        self.server().map_or_else(|| self.wall_ms(), |server| server.max(self.wall_ms()))
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
        let new = ServerOffset::of(date, took, self.elapsed());
        self.0.server.lock().unwrap_or_else(PoisonError::into_inner).observe(new);
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
mod tests {
    use super::*;
    use tower::{Service, service_fn};

    #[tokio::test(start_paused = true)]
    async fn a_wall_clock_that_is_set_moves_no_other_clock() {
        let ahead = Arc::new(Mutex::new(Duration::ZERO));
        let set = ahead.clone();
        let wall = move || SystemTime::UNIX_EPOCH + *set.lock().unwrap();
        let clock = Clock::with_wall(WallClock::new(wall));
        clock.observe(1_000_000, Duration::ZERO);
        for (seconds, passed, latest) in [(3600, 0, 3600), (5, 60, 1060), (7200, 0, 7200)] {
            let before = clock.elapsed();
            tokio::time::advance(Duration::from_secs(passed)).await;
            *ahead.lock().unwrap() = Duration::from_secs(seconds);
            assert_eq!(clock.wall_ms(), seconds as i64 * 1000);
            assert_eq!(clock.latest(), latest * 1000);
            assert_eq!(clock.elapsed(), before + passed as i64 * 1000);
            assert_eq!(clock.server(), Some(1_000_000 + clock.elapsed()));
        }
    }

    #[tokio::test(start_paused = true)]
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
        tokio::time::advance(Duration::from_secs(1)).await;
        clock.observe(date + 1_000, Duration::ZERO);
        clock.observe(date - 5_000, Duration::ZERO);
        assert!(clock.server().unwrap() > seen);
        clock.observe(date + 1_900, Duration::ZERO);
        assert!(clock.server().unwrap() >= date + 1_900);
    }

    /// The time that a clock gives after responses, each some seconds after the one before with a date that is
    /// so many seconds ahead.
    async fn ahead_after(responses: &[(u64, i64)]) -> i64 {
        let clock = Clock::default();
        for &(later, ahead) in responses {
            tokio::time::advance(Duration::from_secs(later)).await;
            clock.observe(clock.elapsed() + ahead * 1000, Duration::ZERO);
        }
        (clock.server().unwrap() - clock.elapsed()) / 1000
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_that_leaps_ahead_counts_when_a_later_response_has_it_too() {
        assert_eq!(ahead_after(&[(0, 0), (5, 0), (5, 30)]).await, 0);
        assert_eq!(ahead_after(&[(0, 0), (5, 0), (5, 30), (0, 30)]).await, 0, "at the same time");
        assert_eq!(ahead_after(&[(0, 0), (5, 0), (5, 30), (1, 30)]).await, 30);
        // What is known is no older than the clock that it is added to.
        assert_eq!(ahead_after(&[(0, 0), (5, 0), (3_600, 30)]).await, 0);
        // One of several servers is ahead, and they answer in turn.
        let in_turn = [(0, 0), (5, 0), (5, 30), (5, 0), (5, 30), (5, 0), (5, 30)];
        assert_eq!(ahead_after(&in_turn).await, 0);
        // Of two that are ahead and differ, the earlier.
        assert_eq!(ahead_after(&[(0, 0), (5, 0), (5, 30), (5, 60)]).await, 30);
        assert_eq!(ahead_after(&[(0, 0), (5, 0), (5, 603), (5, 600), (5, 603)]).await, 600);
        assert_eq!(ahead_after(&[(0, 0), (5, 0), (5, 60), (5, 30), (5, 30)]).await, 30);
    }

    #[tokio::test(start_paused = true)]
    async fn a_first_time_that_no_other_response_has_gives_way_to_an_earlier_one() {
        assert_eq!(ahead_after(&[(0, 30), (1, 0)]).await, 0);
        // Once another has had it, one that was delayed does not set the clock back.
        assert_eq!(ahead_after(&[(0, 30), (1, 30), (1, 0)]).await, 30);
    }

    /// It is older than it seems by as long as it took. A checkpoint that is dated by it would seem older, too.
    #[tokio::test(start_paused = true)]
    async fn a_slow_response_does_not_set_the_clock_back() {
        let clock = Clock::default();
        for (took, date, known) in [
            (20, "Sat, 21 Nov 2026 22:01:28 GMT", 0),
            (0, "Sat, 21 Nov 2026 22:01:30 GMT", 2_000),
            (120, "Sat, 21 Nov 2026 22:01:31 GMT", 122_000),
            (0, "Sat, 21 Nov 2026 22:03:31 GMT", 123_000),
        ] {
            let answer = move |_: http::Request<()>| async move {
                tokio::time::sleep(Duration::from_secs(took)).await;
                http::Response::builder().header(DATE, date).body(())
            };
            let mut service = Dated::new(service_fn(answer), clock.clone());
            service.call(http::Request::new(())).await.unwrap();
            assert_eq!(clock.server(), Some(1_795_298_488_000 + known), "{date}");
        }
    }

    fn millis(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Responses on a slow way are late, but none is of a time to come.
    #[tokio::test(start_paused = true)]
    async fn slow_responses_correct_a_first_one_that_was_slower() {
        let clock = Clock::default();
        clock.observe(clock.elapsed() - 20_000, millis(20_000));
        assert_eq!(clock.server(), Some(clock.elapsed() - 20_000));
        clock.observe(clock.elapsed() - 1_000, millis(1_200));
        assert_eq!(clock.server(), Some(clock.elapsed() - 1_000));
        // It may be of then or of now.
        assert_eq!(clock.server_at_most(), Some(clock.elapsed() + 1_000));
        // A quick one that is right corrects it at once.
        let clock = Clock::default();
        clock.observe(clock.elapsed() - 20_000, millis(20_000));
        clock.observe(clock.elapsed(), millis(0));
        assert_eq!(clock.server(), Some(clock.elapsed()));
    }

    /// What a slow first response leaves open, the next ones close.
    #[tokio::test(start_paused = true)]
    async fn a_time_that_leaps_ahead_is_one_after_a_slow_first_response_too() {
        let clock = Clock::default();
        clock.observe(clock.elapsed(), millis(20_000));
        clock.observe(clock.elapsed() - 50, millis(10));
        assert_eq!(clock.server_at_most(), Some(clock.elapsed() + 2_000));
        tokio::time::advance(Duration::from_secs(5)).await;
        clock.observe(clock.elapsed() + 18_000, millis(10));
        assert_eq!(clock.server(), Some(clock.elapsed()));
    }

    /// What a slow response leaves open confirms nothing.
    #[tokio::test(start_paused = true)]
    async fn a_time_within_what_a_slow_response_left_open_gives_way() {
        let clock = Clock::default();
        clock.observe(clock.elapsed(), millis(20_000));
        tokio::time::advance(Duration::from_secs(5)).await;
        clock.observe(clock.elapsed() + 18_000, millis(10));
        tokio::time::advance(Duration::from_secs(1)).await;
        clock.observe(clock.elapsed(), millis(10));
        assert_eq!(clock.server(), Some(clock.elapsed()));
    }

    /// The others agree with what is known, though none of them is better.
    #[tokio::test(start_paused = true)]
    async fn one_server_that_is_behind_does_not_set_a_confirmed_time_back() {
        for behind in [10, 1_200] {
            let clock = Clock::default();
            clock.observe(clock.elapsed(), millis(0));
            tokio::time::advance(millis(500)).await;
            for second in 0..300 {
                clock.observe(clock.elapsed() - 100, millis(10));
                tokio::time::advance(millis(600)).await;
                if second > 58 {
                    clock.observe(clock.elapsed() - 60_000, millis(behind));
                }
                tokio::time::advance(millis(400)).await;
                let off = clock.elapsed() - clock.server().unwrap();
                assert!((0..=100).contains(&off), "{second}: {off}");
            }
        }
    }

    /// What most responses say is believed, whoever was confirmed first.
    #[tokio::test(start_paused = true)]
    async fn one_response_in_thirty_does_not_hold_a_time_that_the_others_contradict() {
        // One server is ahead; or the clock was set back, and a slow response may be of before.
        for (first, rare, slow) in [(30_000, 30_000, 10), (0, -5_000, 4_500)] {
            let clock = Clock::default();
            for _ in 0..2 {
                clock.observe(clock.elapsed() + first, millis(0));
                tokio::time::advance(millis(1_200)).await;
            }
            for second in 0..120 {
                tokio::time::advance(millis(1_000)).await;
                let (ahead, took) = match second % 30 {
                    29 => (rare, millis(slow)),
                    _ => (rare.min(0), millis(10)),
                };
                clock.observe(clock.elapsed() + ahead, took);
            }
            assert_eq!(clock.server(), Some(clock.elapsed() + rare.min(0)), "{first}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_set_back_is_believed_after_a_minute_though_all_responses_are_slow() {
        let clock = Clock::default();
        for ahead in [0, 0] {
            clock.observe(clock.elapsed() + ahead, millis(0));
            tokio::time::advance(Duration::from_secs(2)).await;
        }
        for (seconds, back) in [(1, 0), (60, 60_000)] {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            clock.observe(clock.elapsed() - 60_000, millis(1_100));
            assert_eq!(clock.server(), Some(clock.elapsed() - back), "{seconds}");
        }
    }

    /// One server is ahead and quick, the other is right and slow.
    #[tokio::test(start_paused = true)]
    async fn a_slow_response_contradicts_a_time_that_leaps_ahead() {
        let clock = Clock::default();
        clock.observe(clock.elapsed(), millis(0));
        for _ in 0..10 {
            tokio::time::advance(Duration::from_secs(1)).await;
            clock.observe(clock.elapsed() + 60_000, millis(0));
            clock.observe(clock.elapsed() - 1_100, millis(1_100));
            assert_eq!(clock.server(), Some(clock.elapsed()));
        }
    }

    #[tokio::test]
    async fn an_error_of_the_server_or_of_a_proxy_says_no_time() {
        let clock = Clock::default();
        for (status, known) in [(502, false), (500, false), (404, true)] {
            let answer = move |_: http::Request<()>| {
                let date = "Sat, 21 Nov 2026 22:01:28 GMT";
                let answer = http::Response::builder().status(status).header(DATE, date);
                std::future::ready(answer.body(()))
            };
            let mut service = Dated::new(service_fn(answer), clock.clone());
            service.call(http::Request::new(())).await.unwrap();
            assert_eq!(clock.server().is_some(), known, "{status}");
        }
    }
}
