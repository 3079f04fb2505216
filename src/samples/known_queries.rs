//! What is known of queries that may share requests: what each took, and which of them spoil requests.

use super::table::Table;
use crate::prometheus::Error;
use lru::LruCache;
use std::num::NonZeroUsize;
use std::time::Duration;
use tokio::time::Instant;

/// The most time that a query took that is joined.
const MAX_TIME: Duration = Duration::from_millis(250);
/// The most series and bytes of the last result of a query that is joined. The bytes are an eighth of those that the response
/// to a request may have.
const MAX_SERIES: usize = 1_000;
const MAX_BYTES: usize = 256 << 10;
/// After a request that took longer, its queries are measured by themselves again.
const SLOW: Duration = Duration::from_secs(1);
/// For how long what a query took is believed.
const MEASURED: Duration = Duration::from_secs(600);
/// For how long a query is not joined that failed by itself, or spoils requests.
const ALONE: Duration = Duration::from_secs(300);
/// The same of one for whose failure the server may be to blame: it was late or slow, or got a part of the answer.
const ALONE_AFTER_OUTAGE: Duration = Duration::from_secs(60);
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
    /// It is no vector, failed, is too large, or spoils requests, or `was_late` with many: it is not joined until then.
    Alone { until: Instant, was_late: bool },
}

/// What may be the fault of a query.
#[derive(Clone, Copy, Default)]
struct Faults {
    suspected_until: Option<Instant>,
    /// Whether the last request of many with it was.
    was_late: bool,
    /// When the server last failed it by itself as if it were down, if it has not succeeded since.
    told_nothing_at: Option<Instant>,
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
    /// The size of a query, if it may be joined.
    pub fn joinable(&mut self, key: u64) -> Option<Size> {
        match self.0.get(&key)? {
            Known::Fast { until, size, .. } if *until > Instant::now() => Some(*size),
            _ => None,
        }
    }

    /// A query can't be joined, whatever it gives.
    pub fn is_none_to_join(&mut self, key: u64) {
        self.0.put(key, Known::Alone { until: Instant::now() + MEASURED, was_late: false });
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
            (size.took, faults.was_late) = (request_took.mul_f64(part), false);
            faults.told_nothing_at = None;
            let is_large = matches!(table, Ok(table) if !is_small(table));
            if request_took > SLOW || is_large {
                *until = now;
                continue;
            }
            // All of it took no longer than one may by itself.
            if request_took <= MAX_TIME {
                *until = believed_until(key, now);
            }
            let series = table.as_ref().map_or(size.series, Table::series);
            size.response = size.response / size.series.max(1) * series.max(1);
            size.series = series;
        }
    }

    /// A request of few failed so, this query among them.
    pub fn suspect(&mut self, key: u64, error: &Error) {
        let Some(Known::Fast { faults, .. }) = self.0.get_mut(&key) else { return };
        let now = Instant::now();
        let before = faults.suspected_until.replace(now + SUSPECTED);
        if before.is_some_and(|before| now < before) {
            self.0.put(key, Known::Alone { until: now + alone_after(error), was_late: false });
        }
    }

    /// A request of many was so late, this query among them. After two in a row it is not joined: what is late once may be
    /// any of the others, or the server.
    pub fn was_late(&mut self, key: u64, error: &Error) {
        let Some(Known::Fast { faults, .. }) = self.0.get_mut(&key) else { return };
        if std::mem::replace(&mut faults.was_late, true) {
            let until = Instant::now() + alone_after(error);
            self.0.put(key, Known::Alone { until, was_late: true });
        }
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

    /// A query that was sent by itself was answered so, after this time and with a response of so many bytes.
    pub fn answered(
        &mut self,
        key: u64,
        result: &Result<Table, Error>,
        (took, response): (Duration, usize),
    ) {
        let now = Instant::now();
        let before = self.0.peek(&key);
        let known = match result {
            Ok(table) => {
                let (mut faults, mut among_others) = (Faults::default(), Duration::ZERO);
                match before {
                    Some(Known::Alone { until, .. }) if *until > now => return,
                    Some(Known::Alone { was_late: true, .. }) => faults.was_late = true,
                    Some(Known::Alone { .. }) => faults.suspected_until = Some(now + SUSPECTED),
                    // The next request that it shares tells whether it still takes as long among others.
                    Some(Known::Fast { size, faults: before, .. }) => {
                        (faults, among_others) = (*before, size.took.min(MAX_TIME));
                    }
                    None => {}
                }
                faults.told_nothing_at = None;
                let was_late = faults.was_late;
                let is_suspected =
                    was_late || faults.suspected_until.is_some_and(|until| now < until);
                let joinable = is_small(table) && !table.is_scalar();
                match (joinable, took <= MAX_TIME, is_suspected) {
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
                    (false, ..) => Known::Alone { until: now + ALONE, was_late },
                    (true, ..) => Known::Alone { until: now + ALONE_AFTER_OUTAGE, was_late },
                }
            }
            Err(error) if error.is_about_server() => return,
            Err(error) => Known::Alone { until: now + alone_after(error), was_late: false },
        };
        self.0.put(key, known);
    }
}

/// For how long a query is not joined after an error.
fn alone_after(error: &Error) -> Duration {
    let may_be_server =
        error.may_be_about_server() || matches!(error, Error::Partial(_) | Error::Memory { .. });
    if may_be_server { ALONE_AFTER_OUTAGE } else { ALONE }
}

/// Until when what a query took is believed: spread over a fifth of the time, so that those that began together are
/// not all measured at once.
fn believed_until(key: u64, now: Instant) -> Instant {
    now + MEASURED.mul_f64(1.0 - (key % 1024) as f64 / 5_120.0)
}

/// Whether a result is small enough for its query to be joined.
fn is_small(table: &Table) -> bool {
    table.series() <= MAX_SERIES && table.bytes() <= MAX_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One query, which succeeded by itself.
    fn known() -> KnownQueries {
        let mut known = KnownQueries::default();
        known.answered(1, &Ok(Table::default()), (Duration::ZERO, 0));
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
                known.suspect(1, &Error::Refused("no".to_owned()));
                assert!(known.joinable(1).is_some() || !joined);
                succeeds(&mut known);
                tokio::time::advance(Duration::from_secs(seconds)).await;
            }
            assert_eq!(known.joinable(1).is_some(), joined, "{seconds}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn after_requests_of_many_that_were_late_it_is_not_joined_if_they_were_in_a_row() {
        let late = Error::Timeout(Duration::from_secs(2));
        for joined in [true, false] {
            let mut known = known();
            known.was_late(1, &late);
            if joined {
                succeeds(&mut known);
            }
            known.was_late(1, &late);
            assert_eq!(known.joinable(1).is_some(), joined);
            tokio::time::advance(ALONE_AFTER_OUTAGE).await;
            known.answered(1, &Ok(Table::default()), (Duration::ZERO, 0));
            assert!(known.joinable(1).is_some());
            // It was in no request of few that failed.
            known.suspect(1, &late);
            assert!(known.joinable(1).is_some());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_success_does_not_clear_a_query() {
        let (mut known, refused) = (known(), Error::Refused("no".to_owned()));
        known.suspect(1, &refused);
        known.succeeded([(1, Duration::ZERO)].into_iter(), &[Ok(Table::default())], 2 * SLOW);
        assert!(known.joinable(1).is_none(), "it is measured by itself again");
        known.answered(1, &Ok(Table::default()), (Duration::ZERO, 0));
        assert!(known.joinable(1).is_some());
        known.suspect(1, &refused);
        assert!(known.joinable(1).is_none());
    }

    /// It would be joined again with as many as before.
    #[tokio::test(start_paused = true)]
    async fn what_a_query_took_among_others_counts_though_it_is_faster_by_itself() {
        let mut known = known();
        let results: [_; 16] = std::array::from_fn(|_| Ok(Table::default()));
        let same = [(1, Duration::ZERO); 16];
        known.succeeded(same.into_iter(), &results, 2 * SLOW);
        known.answered(1, &Ok(Table::default()), (Duration::from_millis(1), 0));
        assert_eq!(known.joinable(1).map(|size| size.took), Some(SLOW / 8));
        known.succeeded(same.into_iter(), &results, SLOW / 10);
        assert_eq!(known.joinable(1).map(|size| size.took), Some(SLOW / 160));
    }

    #[tokio::test(start_paused = true)]
    async fn a_query_that_told_nothing_in_an_outage_tells_something_once_it_has_succeeded() {
        let mut known = known();
        for succeeds_alone in [true, false] {
            known.told_nothing(1);
            assert!(known.told_nothing_at(1).is_some());
            match succeeds_alone {
                true => known.answered(1, &Ok(Table::default()), (Duration::ZERO, 0)),
                false => succeeds(&mut known),
            }
            assert_eq!(known.told_nothing_at(1), None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_query_that_failed_by_itself_was_not_late() {
        let mut known = known();
        known.answered(1, &Err(Error::Refused("no".to_owned())), (Duration::ZERO, 0));
        tokio::time::advance(ALONE).await;
        known.answered(1, &Ok(Table::default()), (Duration::ZERO, 0));
        known.was_late(1, &Error::GatewayTimeout);
        assert!(known.joinable(1).is_some());
    }
}
