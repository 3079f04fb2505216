//! Joins queries that are sent at the same time into one request, whatever their shapes: Prometheus takes 0.5 ms of CPU
//! for a request besides what the query in it takes, which is often less than 0.1 ms.
//!
//! Only small queries are joined, and none that may spoil the others: a query is sent by itself until it has
//! succeeded quickly with few series. If a request of several fails because of what was asked, all are sent by themselves; one that
//! fails then stays by itself for a while. Failures of the server are those of all.

use super::flight::TableResult;
use super::table::Table;
use crate::blocking;
use crate::prometheus::{Body, Client, Error, Flow, shortened};
use crate::promql::union::{self, MEMBER_OVERHEAD};
use crate::supervise::Spawner;
use lru::LruCache;
use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// How long a query waits for others.
const JOIN_DELAY: Duration = Duration::from_millis(1);
/// The most queries of a request.
const MAX_QUERIES: usize = 64;
/// The most bytes of a request's query: VictoriaMetrics takes 16 KiB by default.
const MAX_BYTES: usize = 12 << 10;
/// The most series of a request, and of a query that is joined, by its last result.
const MAX_SERIES: usize = 5_000;
const MAX_QUERY_SERIES: usize = 1_000;
/// The most time that the queries of a request took by themselves, and that a query that is joined took.
const MAX_TIME: Duration = Duration::from_millis(500);
const MAX_QUERY_TIME: Duration = Duration::from_millis(250);
/// A request that takes longer once it is sent is cancelled, and its queries are sent by themselves.
const TIMEOUT: Duration = Duration::from_secs(2);
/// After a request that took longer, its queries are measured by themselves again.
const SLOW: Duration = Duration::from_secs(1);
/// The most bytes of the result of a query that is joined.
const MAX_QUERY_BYTES: usize = MAX_RESPONSE / 8;
/// For how long what a query took is believed.
const MEASURED: Duration = Duration::from_secs(600);
/// For how long a query that failed by itself is not joined.
const ALONE: Duration = Duration::from_secs(300);
/// The same of one that was late, or got a part of the answer: that may have been the server.
const ALONE_AFTER_OUTAGE: Duration = Duration::from_secs(60);
/// The most queries of a group that are known, each with about 100 bytes.
const MAX_KNOWN: usize = 20_000;
/// The size from which on decoding a response would block other tasks of the thread, in bytes.
const LARGE_RESPONSE_BYTES: usize = 1 << 20;
/// The most bytes of the response to several queries: one of them is not as small as it was.
const MAX_RESPONSE: usize = 2 << 20;
/// After so many requests of several in a row that failed because of what was asked, none is sent for a while: the
/// server may not know how.
const MAX_FAILURES: u32 = 3;
/// After so many of them in a row a query is not joined.
const MAX_SPOILT: u32 = 2;
/// The most bytes of a query in a warning.
const MAX_LOGGED_BYTES: usize = 500;

/// Sends the queries to one server.
#[derive(Clone)]
pub struct Joiner(Arc<Inner>);

struct Inner {
    client: Client,
    spawner: Spawner,
    hasher: RandomState,
    /// Queries of templates and rules, and users' own: neither spoils the requests of the other, or makes the other's be
    /// forgotten.
    groups: Mutex<[Group; 2]>,
}

/// The places of the groups.
const TEMPLATES: usize = 0;
const USERS: usize = 1;

/// Queries that may share requests.
struct Group {
    /// What is known of queries, by a hash of their texts.
    known: LruCache<u64, Known>,
    /// Those that wait for others.
    waiting: Vec<Member>,
    /// The most queries of a request; fewer after one that failed.
    max_queries: usize,
    /// The requests of several that failed since the last one that succeeded.
    failures: u32,
    /// Until when none is sent.
    paused_until: Option<Instant>,
}

impl Default for Group {
    fn default() -> Self {
        Self {
            known: LruCache::new(NonZeroUsize::new(MAX_KNOWN).expect("it is not zero")),
            waiting: Vec::new(),
            max_queries: MAX_QUERIES,
            failures: 0,
            paused_until: None,
        }
    }
}

/// What is known of a query.
#[derive(Clone)]
enum Known {
    /// It succeeded by itself. What it took is its part of the last request, if that had several queries; `spoilt` are
    /// the requests of several that it was in and that failed since the last that succeeded.
    Fast { until: Instant, took: Duration, series: usize, spoilt: u32 },
    /// It is no vector, failed, or is too large: it is not joined until then.
    Alone { until: Instant },
}

/// A query that is to be joined.
struct Member {
    key: u64,
    text: String,
    flows: Vec<Flow>,
    took: Duration,
    series: usize,
    /// None if it must be sent by itself.
    answer: oneshot::Sender<Option<TableResult>>,
}

impl Joiner {
    /// A joiner in front of a server. Requests of several queries are tasks, which may outlive their callers.
    pub fn new(client: Client, spawner: Spawner) -> Self {
        let (hasher, groups) = (RandomState::new(), Mutex::default());
        Self(Arc::new(Inner { client, spawner, hasher, groups }))
    }

    /// The result of a query, charged to one of these flows.
    pub async fn query(self, query: String, flows: Vec<Flow>) -> TableResult {
        let key = self.0.hasher.hash_one(&query);
        if let Some(answer) = self.join(key, &query, &flows)
            && let Ok(Some(result)) = answer.await
        {
            return result;
        }
        self.query_alone(key, query, flows).await
    }

    fn groups(&self) -> MutexGuard<'_, [Group; 2]> {
        self.0.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a query among those that wait for others, if it may be joined.
    fn join(
        &self,
        key: u64,
        query: &str,
        flows: &[Flow],
    ) -> Option<oneshot::Receiver<Option<TableResult>>> {
        let now = Instant::now();
        let group = group_of(flows);
        let known = {
            let group = &mut self.groups()[group];
            if group.paused_until.is_some_and(|until| now < until) {
                return None;
            }
            group.known.get(&key).cloned()?
        };
        let Known::Fast { until, took, series, .. } = known else { return None };
        if until < now {
            return None;
        }
        let Some(text) = union::member(query).map(|text| text.into_owned()) else {
            self.groups()[group].known.put(key, Known::Alone { until: now + MEASURED });
            return None;
        };
        let (answer, receiver) = oneshot::channel();
        let member = Member { key, text, flows: flows.to_vec(), took, series, answer };
        let mut groups = self.groups();
        let waiting = &mut groups[group].waiting;
        waiting.push(member);
        if waiting.len() == 1 {
            let joiner = self.clone();
            self.0.spawner.spawn(async move {
                tokio::time::sleep(JOIN_DELAY).await;
                joiner.send_waiting(group);
            });
        }
        Some(receiver)
    }

    /// Sends those that wait, in as few requests as the limits allow.
    fn send_waiting(&self, group: usize) {
        let (members, max_queries) = {
            let group = &mut self.groups()[group];
            (std::mem::take(&mut group.waiting), group.max_queries)
        };
        let mut request: Vec<Member> = Vec::new();
        let (mut bytes, mut series, mut took) = (0, 0, Duration::ZERO);
        for member in members {
            let more = member.text.len() + MEMBER_OVERHEAD;
            let full = request.len() >= max_queries
                || bytes + more > MAX_BYTES
                || series + member.series > MAX_SERIES
                || took + member.took > MAX_TIME;
            if full {
                self.send(group, std::mem::take(&mut request));
                (bytes, series, took) = (0, 0, Duration::ZERO);
            }
            bytes += more;
            series += member.series;
            took += member.took;
            request.push(member);
        }
        self.send(group, request);
    }

    fn send(&self, group: usize, members: Vec<Member>) {
        if members.len() < 2 {
            // Those who wait send it by themselves.
            return;
        }
        let joiner = self.clone();
        self.0.spawner.spawn(async move {
            let result = joiner.query_joined(group, &members).await;
            let queries = members.len();
            match &result {
                Ok((_, took)) => {
                    tracing::debug!(queries, ?took, "Queried Prometheus, several at once")
                }
                Err(error) => tracing::debug!(queries, %error, "Failed to query several at once"),
            }
            joiner.groups()[group].record_joined(group, &members, &result);
            match result {
                Ok((tables, _)) => {
                    for (member, table) in members.into_iter().zip(tables) {
                        let _ = member.answer.send(Some(table.map(Arc::new).map_err(Into::into)));
                    }
                }
                Err(error) if is_about_all(&error, group) => {
                    for member in members {
                        let _ = member.answer.send(Some(Err(error.clone().into())));
                    }
                }
                // They are dropped: those who wait send them by themselves.
                Err(_) => {}
            }
        });
    }

    async fn query_joined(&self, group: usize, members: &[Member]) -> Result<Answer, Error> {
        let texts: Vec<&str> = members.iter().map(|member| member.text.as_str()).collect();
        let flows = flows_of(group, members);
        let body = self.0.client.query_within(&union::union(&texts), &flows, Some(TIMEOUT)).await?;
        if body.len() > MAX_RESPONSE {
            return Err(Error::InvalidResponse(format!("it is larger than {MAX_RESPONSE} bytes")));
        }
        let took = body.took();
        // Each table is charged to a flow of its own query.
        let flows: Vec<&Flow> =
            members.iter().map(|member| member.flows.first().unwrap_or(&Flow::Shared)).collect();
        let tables = match body.len() > LARGE_RESPONSE_BYTES {
            true => blocking::run(|| Table::split_body(body, &flows)),
            false => Table::split_body(body, &flows),
        };
        Ok((tables?, took))
    }

    /// Sends a query by itself, and decodes its response.
    async fn query_alone(&self, key: u64, query: String, flows: Vec<Flow>) -> TableResult {
        let started = Instant::now();
        let body = self.0.client.query(&query, &flows).await;
        let took = body.as_ref().map_or_else(|_| started.elapsed(), Body::took);
        let result = body.and_then(|body| match body.len() > LARGE_RESPONSE_BYTES {
            true => blocking::run(|| Table::from_body(body)),
            false => Table::from_body(body),
        });
        self.record_alone(key, &flows, &result, took);
        match &result {
            Ok(table) => {
                tracing::debug!(%query, series = table.series(), ?took, "Queried Prometheus");
            }
            Err(error) => {
                tracing::debug!(%query, %error, ?took, "Full text of the failed query");
                let query = shortened(&query, MAX_LOGGED_BYTES);
                tracing::warn!(query, %error, ?took, "Failed to query Prometheus");
            }
        }
        Ok(Arc::new(result?))
    }

    fn record_alone(
        &self,
        key: u64,
        flows: &[Flow],
        result: &Result<Table, Error>,
        took: Duration,
    ) {
        let now = Instant::now();
        let group = &mut self.groups()[group_of(flows)];
        let known = match result {
            Ok(table) => {
                let stays =
                    matches!(group.known.peek(&key), Some(Known::Alone { until }) if *until > now);
                let fast = took <= MAX_QUERY_TIME && is_small(table);
                match (stays, fast && !table.is_scalar()) {
                    (true, _) => return,
                    (false, true) => {
                        // Requests that it has spoilt count until one succeeds.
                        let spoilt = match group.known.peek(&key) {
                            Some(Known::Fast { spoilt, .. }) => *spoilt,
                            _ => 0,
                        };
                        let until = believed_until(key, now);
                        Known::Fast { until, took, series: table.series(), spoilt }
                    }
                    (false, false) => {
                        group.known.pop(&key);
                        return;
                    }
                }
            }
            Err(error) if error.is_about_server() => return,
            // Of what templates and rules share: others' responses fill it.
            Err(Error::Memory { .. }) if group_of(flows) == TEMPLATES => return,
            Err(Error::Timeout(_) | Error::Partial(_)) => {
                Known::Alone { until: now + ALONE_AFTER_OUTAGE }
            }
            Err(_) => Known::Alone { until: now + ALONE },
        };
        group.known.put(key, known);
    }
}

/// The flows that a request may be charged to: any one of the users', or that of several namespaces.
fn flows_of(group: usize, members: &[Member]) -> Vec<Flow> {
    let flows: BTreeSet<&Flow> = members.iter().flat_map(|member| &member.flows).collect();
    match group == USERS || flows.len() == 1 {
        true => flows.into_iter().cloned().collect(),
        false => vec![Flow::Shared],
    }
}

/// The tables of the members, and how long the request took.
type Answer = (Vec<Result<Table, Error>>, Duration);

impl Group {
    fn record_joined(&mut self, group: usize, members: &[Member], result: &Result<Answer, Error>) {
        match result {
            Ok((tables, took)) => {
                self.max_queries = MAX_QUERIES.min(self.max_queries + 1);
                self.failures = 0;
                let alone: Duration = members.iter().map(|member| member.took).sum();
                for (member, table) in members.iter().zip(tables) {
                    let part = match alone.is_zero() {
                        true => 1.0 / members.len() as f64,
                        false => member.took.as_secs_f64() / alone.as_secs_f64(),
                    };
                    let is_large = matches!(table, Ok(table) if !is_small(table));
                    if *took > SLOW || is_large {
                        self.known.pop(&member.key);
                    } else {
                        let times = (took.mul_f64(part), *took <= MAX_QUERY_TIME);
                        self.succeeded_joined(member, table.as_ref().ok(), times);
                    }
                }
            }
            Err(error) if error.is_about_server() => {}
            Err(error) => {
                let now = Instant::now();
                self.max_queries = (members.len() / 2).max(2);
                if matches!(error, Error::Memory { .. }) && group == TEMPLATES {
                    return;
                }
                self.failures += 1;
                if self.failures >= MAX_FAILURES {
                    // Only late: that may have been the server.
                    let pause = match error {
                        Error::Timeout(_) => ALONE_AFTER_OUTAGE,
                        _ => ALONE,
                    };
                    (self.failures, self.paused_until) = (0, Some(now + pause));
                }
                for member in members {
                    self.failed_joined(member, now);
                }
            }
        }
    }

    /// A request with this query succeeded.
    fn succeeded_joined(
        &mut self,
        member: &Member,
        table: Option<&Table>,
        (part, was_fast): (Duration, bool),
    ) {
        let Some(known) = self.known.get_mut(&member.key) else { return };
        if let Known::Fast { until, took, series, spoilt } = known {
            (*took, *spoilt) = (part, 0);
            // All of it took no longer than one may by itself.
            if was_fast {
                *until = believed_until(member.key, Instant::now());
            }
            *series = table.map_or(*series, Table::series);
        }
    }

    /// A request with this query failed, for whichever of its queries.
    fn failed_joined(&mut self, member: &Member, now: Instant) {
        if let Some(Known::Fast { spoilt, .. }) = self.known.get_mut(&member.key) {
            *spoilt += 1;
            if *spoilt >= MAX_SPOILT {
                self.known.put(member.key, Known::Alone { until: now + ALONE });
            }
        }
    }
}

/// Until when what a query took is believed: spread over a fifth of the time, so that those that began together are
/// not all measured at once.
fn believed_until(key: u64, now: Instant) -> Instant {
    now + MEASURED.mul_f64(1.0 - (key % 1024) as f64 / 5_120.0)
}

/// Whether a result is small enough for its query to be joined.
fn is_small(table: &Table) -> bool {
    table.series() <= MAX_QUERY_SERIES && table.bytes() <= MAX_QUERY_BYTES
}

/// Whether a failure of a request is that of each of its queries. If it found no seat, one user's were taken: others
/// have seats of their own.
fn is_about_all(error: &Error, group: usize) -> bool {
    error.is_about_server() && !(matches!(error, Error::Overloaded(_)) && group == USERS)
}

/// The group of a query for these flows.
fn group_of(flows: &[Flow]) -> usize {
    match Flow::are_users(flows) {
        true => USERS,
        false => TEMPLATES,
    }
}
