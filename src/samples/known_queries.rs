//! What is known of queries that may share requests: what each took, and which of them spoil requests.

use super::table::Table;
use crate::prometheus::Error;
use lru::LruCache;
use std::num::NonZeroUsize;
use std::time::Duration;
use tokio::time::Instant;

/// The most time that a query took that is joined.
pub const MAX_TIME: Duration = Duration::from_millis(250);
/// The most series of the last result of a query that is joined, and its most bytes, both as a table and as a response: an
/// eighth of those that the response to a request may have.
const MAX_SERIES: usize = 1_000;
const MAX_BYTES: usize = 256 << 10;
/// The most queries of a request.
const MAX_QUERIES: usize = 64;
/// For how long a request with a query has fewer, after one that was too much at once.
const FEWER: Duration = Duration::from_secs(300);
/// Within this time a second one is no chance any more.
const TOO_MUCH_AGAIN: Duration = Duration::from_secs(600);
/// The most queries of a request with one that has spoilt requests before.
const FEWEST_QUERIES: usize = 4;
/// The lowest limit of queries per request after late requests, if nothing else succeeded meanwhile.
const LEAST_AFTER_STALL: usize = 16;
/// If so many requests with a query failed in a row, after each of which it succeeded by itself, a stall of the server is not the
/// reason of the next one.
const NO_STALL: u8 = 2;
/// After a request that took longer, its queries are measured by themselves again.
pub const SLOW: Duration = Duration::from_secs(1);
/// For how long what a query took is believed.
const MEASURED: Duration = Duration::from_secs(600);
/// For how long a query is not joined that failed by itself, or spoils requests.
const ALONE: Duration = Duration::from_secs(300);
/// The same of one for whose failure the server may be to blame: it was late or slow, or got a part of the answer.
pub const ALONE_AFTER_OUTAGE: Duration = Duration::from_secs(60);
/// For how long a query is suspected after a request of few failed, it among them. After another one it is not joined.
/// Successes in between don't matter: it may fail now and then.
const SUSPECTED: Duration = Duration::from_secs(300);
/// The most queries that are known.
const MAX_KNOWN: usize = 20_000;
/// The most bytes of what is known of the queries of a server: of templates and rules, and of users.
pub const KNOWN_QUERY_BYTES: usize = 7 << 20;
/// The key of a query, and its places in the map and in the list of the cache.
const ENTRY_OVERHEAD: usize = 64;
const _: () = assert!(2 * MAX_KNOWN * (size_of::<Known>() + ENTRY_OVERHEAD) <= KNOWN_QUERY_BYTES);

/// By a hash of their texts.
pub struct KnownQueries(LruCache<u64, Known>);

/// What is known of a query.
enum Known {
    /// It succeeded by itself, and its size is believed until `until`.
    Fast { until: Instant, size: Size, faults: Faults },
    /// It is no vector, failed, is too large, or spoils requests: it is not joined until then. If its own failure may be the
    /// server's fault, it `spoils` none.
    Alone { until: Instant, spoils: bool },
}

/// Why a request was too much at once.
#[derive(Clone, Copy, PartialEq)]
pub enum TooMuch {
    /// It was too long.
    Long,
    /// It was late while others were served, or failed though all its parts succeeded.
    Work,
    /// It was late while nothing else was served: perhaps the server stalled.
    OrStalled,
}

/// What may be the fault of a query.
#[derive(Clone, Copy)]
struct Faults {
    suspected_until: Option<Instant>,
    /// When a request of many with it was last too much at once: too long or late, or failed though all its parts succeeded.
    too_much_at: Option<Instant>,
    /// The most queries of a request with it, for a while after that.
    most_queries: u8,
    /// The failures in a row of requests with it, after each of which it succeeded by itself.
    failures: u8,
    /// Whether one failed since it last succeeded.
    failed: bool,
    /// The queries of the last one that failed.
    failed_queries: u8,
    /// When the server last failed it by itself as if it were down, if it has not succeeded since.
    told_nothing_at: Option<Instant>,
}

impl Default for Faults {
    fn default() -> Self {
        let most_queries = MAX_QUERIES as u8;
        Self {
            suspected_until: None,
            too_much_at: None,
            most_queries,
            failures: 0,
            failed: false,
            failed_queries: 0,
            told_nothing_at: None,
        }
    }
}

impl Faults {
    /// The most queries of a request with it now.
    fn most_queries(&self, now: Instant) -> usize {
        match self.too_much_at.is_some_and(|at| now < at + FEWER) {
            true => self.most_queries.into(),
            false => MAX_QUERIES,
        }
    }

    /// Whether the quick success of a request of so many queries says that the last one that failed did so by chance: not if it
    /// had less than half of its queries, or of those that a request may have since.
    fn are_cleared_by(&self, queries: usize, now: Instant) -> bool {
        2 * queries >= self.most_queries(now).min(self.failed_queries.into())
    }

    /// Whether it is suspected to spoil requests.
    fn is_suspected(&self, now: Instant) -> bool {
        self.suspected_until.is_some_and(|until| now < until)
    }

    /// A request of so many queries failed, this one among them.
    fn failed_with(&mut self, queries: usize) {
        self.failed = true;
        self.failed_queries = queries.min(MAX_QUERIES) as u8;
    }

    /// Whether a request with this query failed recently, so that the next failure may not be a coincidence.
    fn are_recent(&self, now: Instant) -> bool {
        self.is_suspected(now) || self.too_much_at.is_some_and(|at| now < at + FEWER)
    }
}

/// What a query took by itself, or as its part of the last request, if that had several queries.
#[derive(Clone, Copy, Default)]
pub struct Size {
    /// How long it took.
    pub took: Duration,
    /// The series of its result.
    pub series: usize,
    /// The bytes of the response, which repeats the names of labels.
    pub response: usize,
}

impl Default for KnownQueries {
    fn default() -> Self {
        Self(LruCache::new(NonZeroUsize::new(MAX_KNOWN).expect("it is not zero")))
    }
}

impl KnownQueries {
    /// The size of a query, and the most queries of a request with it, if it may be joined.
    pub fn joinable(&mut self, key: u64) -> Option<(Size, usize)> {
        let now = Instant::now();
        match self.0.get(&key)? {
            Known::Fast { until, size, faults } if *until > now => {
                Some((*size, faults.most_queries(now)))
            }
            _ => None,
        }
    }

    /// A query can't be joined, whatever it gives.
    pub fn is_none_to_join(&mut self, key: u64) {
        let until = Instant::now() + MEASURED;
        self.0.put(key, Known::Alone { until, spoils: true });
    }

    /// A request of these queries, which took so long by themselves, succeeded with these results.
    pub fn succeeded(
        &mut self,
        queries: impl Iterator<Item = (u64, Duration)> + Clone,
        tables: &[Result<Table, Error>],
        request_took: Duration,
    ) {
        let now = Instant::now();
        let alone: Duration = queries.clone().map(|(_, took)| took).sum();
        for ((key, took), table) in queries.zip(tables) {
            let part = match alone.is_zero() {
                true => 1.0 / tables.len() as f64,
                false => took.as_secs_f64() / alone.as_secs_f64(),
            };
            let known = self.0.get_mut(&key);
            let Some(Known::Fast { until, size, faults }) = known else { continue };
            size.took = request_took.mul_f64(part);
            faults.told_nothing_at = None;
            if request_took <= SLOW && faults.are_cleared_by(tables.len(), now) {
                (faults.failures, faults.failed) = (0, false);
            }
            let series = table.as_ref().map_or(size.series, Table::series);
            size.response = size.response / size.series.max(1) * series.max(1);
            size.series = series;
            let is_large = matches!(table, Ok(table) if !is_small(table, size.response));
            if request_took > SLOW || is_large {
                *until = now;
            } else if request_took <= MAX_TIME {
                // All of it took no longer than one may by itself.
                *until = believed_until(key, now);
            }
        }
    }

    /// A request of so few queries failed, this one among them, perhaps because the server did. The second time it is not joined
    /// for this time.
    pub fn suspect(&mut self, key: u64, queries: usize, may_be_server: bool, alone: Duration) {
        let Some(Known::Fast { faults, .. }) = self.0.get_mut(&key) else { return };
        let now = Instant::now();
        faults.failed_with(queries);
        if faults.is_suspected(now) {
            self.0.put(key, Known::Alone { until: now + alone, spoils: true });
        } else if !may_be_server || faults.failures >= NO_STALL {
            faults.suspected_until = Some(now + SUSPECTED);
        }
    }

    /// A request of so many queries, begun then, was too much at once, this one among them. From the second one on, or at once,
    /// requests with it have no more than `most_queries` for a while: the first may be chance, which strikes all that are under way.
    pub fn was_too_much(
        &mut self,
        key: u64,
        (begun, queries): (Instant, usize),
        most_queries: usize,
        why: TooMuch,
    ) {
        let Some(Known::Fast { faults, .. }) = self.0.get_mut(&key) else { return };
        if faults.too_much_at.is_some_and(|before| begun <= before) {
            return;
        }
        let now = Instant::now();
        faults.failed_with(queries);
        let may_be_stall = why == TooMuch::OrStalled && faults.failures < NO_STALL;
        let most_queries = most_queries.max(if may_be_stall { LEAST_AFTER_STALL } else { 0 });
        let is_again = faults.too_much_at.is_some_and(|before| begun < before + TOO_MUCH_AGAIN);
        let before = faults.most_queries(now);
        let is_sure = is_again || why == TooMuch::Long;
        let most = if is_sure { most_queries.min(before) } else { before };
        faults.most_queries = most.min(MAX_QUERIES) as u8;
        faults.too_much_at = Some(now);
    }

    /// When a query was last of no use to tell whether the server is down, as the server failed it, too. None if it has
    /// succeeded since.
    pub fn told_nothing_at(&self, key: u64) -> Option<Instant> {
        match self.0.peek(&key)? {
            Known::Fast { faults, .. } => faults.told_nothing_at,
            Known::Alone { .. } => None,
        }
    }

    /// A query was of no use to tell that.
    pub fn told_nothing(&mut self, key: u64) {
        if let Some(Known::Fast { faults, .. }) = self.0.peek_mut(&key) {
            faults.told_nothing_at = Some(Instant::now());
        }
    }

    /// A query that was sent by itself was answered so, after this time and with a response of so many bytes, perhaps while others
    /// were served quickly.
    pub fn answered(
        &mut self,
        key: u64,
        result: &Result<Table, Error>,
        (took, response): (Duration, usize),
        others_were_served: bool,
    ) {
        let now = Instant::now();
        let before = self.0.peek(&key);
        let known = match result {
            Ok(table) => {
                let (mut faults, mut among_others) = (Faults::default(), Duration::ZERO);
                match before {
                    Some(Known::Alone { until, .. }) if *until > now => return,
                    Some(Known::Alone { spoils, .. }) => {
                        faults.too_much_at = Some(now);
                        if *spoils {
                            faults.suspected_until = Some(now + SUSPECTED);
                            faults.most_queries = FEWEST_QUERIES as u8;
                        }
                    }
                    // The next request that it shares tells whether it still takes as long among others.
                    Some(Known::Fast { size, faults: before, .. }) => {
                        (faults, among_others) = (*before, size.took.min(MAX_TIME));
                    }
                    None => {}
                }
                faults.told_nothing_at = None;
                if std::mem::take(&mut faults.failed) {
                    faults.failures = faults.failures.saturating_add(1);
                }
                let spoils = faults.is_suspected(now) || others_were_served;
                let joinable = is_small(table, response) && !table.is_scalar();
                match (joinable, took <= MAX_TIME, faults.are_recent(now)) {
                    (true, true, _) => {
                        let took = took.max(among_others);
                        let size = Size { took, series: table.series(), response };
                        Known::Fast { until: believed_until(key, now), size, faults }
                    }
                    (_, _, false) => {
                        self.0.pop(&key);
                        return;
                    }
                    // It was this one.
                    (false, ..) => Known::Alone { until: now + ALONE, spoils },
                    (true, ..) => Known::Alone { until: now + ALONE_AFTER_OUTAGE, spoils },
                }
            }
            Err(error) if error.is_about_server() => return,
            Err(error) => {
                let spoils = !may_be_servers(error) || error.is_late() && others_were_served;
                Known::Alone { until: now + alone_after(error), spoils }
            }
        };
        self.0.put(key, known);
    }
}

/// For how long a query is not joined after an error.
pub fn alone_after(error: &Error) -> Duration {
    if may_be_servers(error) { ALONE_AFTER_OUTAGE } else { ALONE }
}

/// Whether the server may have caused an error, rather than the query.
pub fn may_be_servers(error: &Error) -> bool {
    error.may_be_about_server()
        || error.may_be_about_some()
        || matches!(error, Error::Memory { .. })
}

/// Until when what a query took is believed: spread over a fifth of the time, so that those that began together are
/// not all measured at once.
fn believed_until(key: u64, now: Instant) -> Instant {
    now + MEASURED.mul_f64(1.0 - (key % 1024) as f64 / 5_120.0)
}

/// Whether a result, with a response of so many bytes, is small enough for its query to be joined.
fn is_small(table: &Table, response: usize) -> bool {
    table.series() <= MAX_SERIES && table.bytes().max(response) <= MAX_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One query, which succeeded by itself.
    fn known() -> KnownQueries {
        let mut known = KnownQueries::default();
        known.answered(1, &Ok(Table::default()), (Duration::ZERO, 0), false);
        assert!(known.joinable(1).is_some());
        known
    }

    fn succeeds(known: &mut KnownQueries) {
        let result = [Ok(Table::default())];
        known.succeeded([(1, Duration::ZERO)].into_iter(), &result, Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_second_failure_of_few_within_five_minutes_it_is_not_joined() {
        for (seconds, joined) in [(299, false), (301, true)] {
            let mut known = known();
            for _ in 0..2 {
                known.suspect(1, 1, false, ALONE);
                assert!(known.joinable(1).is_some() || !joined);
                succeeds(&mut known);
                tokio::time::advance(Duration::from_secs(seconds)).await;
            }
            assert_eq!(known.joinable(1).is_some(), joined, "{seconds}");
        }
    }

    fn most(known: &mut KnownQueries) -> Option<usize> {
        known.joinable(1).map(|(_, most)| most)
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_second_request_that_was_too_much_fewer_share_one_for_five_minutes() {
        for (seconds, expected) in [(600, 64), (599, 16), (0, 64)] {
            let mut known = known();
            known.was_too_much(1, (Instant::now(), 1), 16, TooMuch::Work);
            assert_eq!(most(&mut known), Some(64));
            succeeds(&mut known);
            tokio::time::advance(Duration::from_secs(seconds)).await;
            known.answered(1, &Ok(Table::default()), (Duration::ZERO, 0), false);
            known.was_too_much(1, (Instant::now(), 1), 16, TooMuch::Work);
            assert_eq!(most(&mut known), Some(expected), "{seconds}");
            tokio::time::advance(FEWER).await;
            assert_eq!(most(&mut known), Some(64));
        }
        let mut known = known();
        for fewer in [16, 4] {
            known.was_too_much(1, (Instant::now(), 1), fewer, TooMuch::Long);
            assert_eq!(most(&mut known), Some(fewer));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    }

    /// In an outage it fails by itself, too, or finds no seat.
    #[tokio::test(start_paused = true)]
    async fn a_row_of_late_requests_is_no_stall_once_the_query_succeeded_after_each() {
        for (succeeds_alone, few) in [(true, 4), (false, LEAST_AFTER_STALL)] {
            let mut known = known();
            for _ in 0..3 {
                known.was_too_much(1, (Instant::now(), 1), 4, TooMuch::OrStalled);
                if succeeds_alone {
                    known.answered(1, &Ok(Table::default()), (Duration::ZERO, 0), false);
                }
                tokio::time::advance(Duration::from_secs(15)).await;
            }
            assert_eq!(most(&mut known), Some(few));
            for suspected in [true, false] {
                known.suspect(1, 1, true, ALONE);
                assert_eq!(known.joinable(1).is_some(), suspected || !succeeds_alone);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_success_does_not_clear_a_query() {
        let mut known = known();
        known.suspect(1, 1, false, ALONE);
        known.succeeded([(1, Duration::ZERO)].into_iter(), &[Ok(Table::default())], 2 * SLOW);
        assert!(known.joinable(1).is_none(), "it is measured by itself again");
        known.answered(1, &Ok(Table::default()), (Duration::ZERO, 0), false);
        assert!(known.joinable(1).is_some());
        known.suspect(1, 1, false, ALONE);
        assert!(known.joinable(1).is_none());
    }

    /// It would be joined again with as many as before.
    #[tokio::test(start_paused = true)]
    async fn what_a_query_took_among_others_counts_though_it_is_faster_by_itself() {
        let mut known = known();
        let results: [_; 16] = std::array::from_fn(|_| Ok(Table::default()));
        let same = [(1, Duration::ZERO); 16];
        known.succeeded(same.into_iter(), &results, 2 * SLOW);
        known.answered(1, &Ok(Table::default()), (Duration::from_millis(1), 0), false);
        assert_eq!(known.joinable(1).map(|(size, _)| size.took), Some(SLOW / 8));
        known.succeeded(same.into_iter(), &results, SLOW / 10);
        assert_eq!(known.joinable(1).map(|(size, _)| size.took), Some(SLOW / 160));
    }

    #[tokio::test(start_paused = true)]
    async fn a_query_that_told_nothing_in_an_outage_tells_something_once_it_has_succeeded() {
        let mut known = known();
        for succeeds_alone in [true, false] {
            known.told_nothing(1);
            assert!(known.told_nothing_at(1).is_some());
            match succeeds_alone {
                true => known.answered(1, &Ok(Table::default()), (Duration::ZERO, 0), false),
                false => succeeds(&mut known),
            }
            assert_eq!(known.told_nothing_at(1), None);
        }
    }

    /// Also where Thanos has no store.
    #[tokio::test(start_paused = true)]
    async fn a_query_whose_failure_may_be_the_servers_is_joined_as_before_in_a_minute() {
        let no_store =
            || Error::Unavailable { status: 422, message: "expanding series".to_owned() };
        for error in [no_store(), Error::Partial("a store".to_owned()), Error::GatewayTimeout] {
            let mut known = known();
            known.answered(1, &Err(error), (Duration::ZERO, 0), false);
            assert_eq!(most(&mut known), None);
            tokio::time::advance(ALONE_AFTER_OUTAGE).await;
            known.answered(1, &Ok(Table::default()), (Duration::ZERO, 0), false);
            assert_eq!(most(&mut known), Some(MAX_QUERIES));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_query_that_failed_by_itself_shares_a_request_with_few_at_first() {
        let mut known = known();
        known.answered(1, &Err(Error::Refused("no".to_owned())), (Duration::ZERO, 0), false);
        tokio::time::advance(ALONE).await;
        known.answered(1, &Ok(Table::default()), (Duration::ZERO, 0), false);
        assert_eq!(most(&mut known), Some(FEWEST_QUERIES));
        tokio::time::advance(FEWER).await;
        assert_eq!(most(&mut known), Some(MAX_QUERIES));
    }
}
