//! Joins queries that are sent at the same time into one request, whatever their shapes: Prometheus takes 0.5 ms of CPU
//! for a request besides what the query in it takes, which is often less than 0.1 ms.
//!
//! Only small queries are joined, and none that may spoil the others: a query is sent by itself until it has
//! succeeded quickly with few series. A request of several that fails is sent in parts, down to the few that spoil it; these
//! stay by themselves for a while. If the server is down, which one query by itself tells, all of them fail.

use super::flight::TableResult;
use super::request_failure::{RequestFailure, SLOW, is_of_server};
use super::table::Table;
use crate::blocking;
use crate::prometheus::{Body, Client, Error, Flow, Within, shortened};
use crate::promql::union::{self, MEMBER_OVERHEAD};
use crate::supervise::Spawner;
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
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
/// The same for a while after one that was too long, too large, or otherwise too much at once.
const FEWER_QUERIES: usize = 16;
const FEWER: Duration = Duration::from_secs(300);
/// The most bytes of a request's query, as VictoriaMetrics takes 16 KiB by default, and of a query that is joined.
const MAX_BYTES: usize = 12 << 10;
const MAX_MEMBER_BYTES: usize = MAX_BYTES / 4;
/// The most series of a request, and of a query that is joined, by its last result.
const MAX_SERIES: usize = 5_000;
const MAX_QUERY_SERIES: usize = 1_000;
/// The most time that the queries of a request took by themselves, and that a query that is joined took.
const MAX_TIME: Duration = Duration::from_millis(500);
const MAX_QUERY_TIME: Duration = Duration::from_millis(250);
/// A request that takes longer once it is sent is given up, and its queries are sent by themselves. So they are if the
/// response has more bytes: one of them is not as small as it was.
const WITHIN: Within = Within { time: Duration::from_secs(2), bytes: MAX_RESPONSE };
const MAX_RESPONSE: usize = 2 << 20;
/// The parts in which a request is sent that failed. Of so few queries each is sent by itself.
const PARTS: usize = 4;
/// The most bytes of the result of a query that is joined.
const MAX_QUERY_BYTES: usize = MAX_RESPONSE / 8;
/// For how long what a query took is believed.
const MEASURED: Duration = Duration::from_secs(600);
/// For how long a query is not joined that failed by itself, or spoils requests.
const ALONE: Duration = Duration::from_secs(300);
/// The same of one that was late or slow, or got a part of the answer: that may have been the server.
const ALONE_AFTER_OUTAGE: Duration = Duration::from_secs(60);
/// The most queries of a group that are known, each with about 100 bytes.
const MAX_KNOWN: usize = 20_000;
/// The size from which on decoding a response would block other tasks of the thread, in bytes.
const LARGE_RESPONSE_BYTES: usize = 1 << 20;
/// After so many requests in a row that failed with a query among those in question, it is not joined.
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
    /// Until when a request has fewer queries.
    fewer_until: Option<Instant>,
}

impl Default for Group {
    fn default() -> Self {
        Self {
            known: LruCache::new(NonZeroUsize::new(MAX_KNOWN).expect("it is not zero")),
            waiting: Vec::new(),
            fewer_until: None,
        }
    }
}

/// What is known of a query.
#[derive(Clone)]
enum Known {
    /// It succeeded by itself. What it took is its part of the last request, if that had several queries; `spoilt` are
    /// the requests that failed with it among those in question, since the last one with others that succeeded.
    Fast { until: Instant, took: Duration, series: usize, spoilt: u32 },
    /// It is no vector, failed, is too large, or spoils requests: it is not joined until then.
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
        if query.len() > MAX_MEMBER_BYTES {
            return None;
        }
        let now = Instant::now();
        let group = group_of(flows);
        let known = self.groups()[group].known.get(&key).cloned()?;
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
            let fewer = group.fewer_until.is_some_and(|until| Instant::now() < until);
            let max_queries = if fewer { FEWER_QUERIES } else { MAX_QUERIES };
            (std::mem::take(&mut group.waiting), max_queries)
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

    /// Sends queries as one request. Those who wait for a query that is dropped send it by itself.
    fn send(&self, group: usize, members: Vec<Member>) {
        if members.len() < 2 {
            return;
        }
        let joiner = self.clone();
        self.0.spawner.spawn(async move {
            joiner.answer(group, members).await;
        });
    }

    /// Answers queries by one request, or in parts if it fails, these again in parts. Returns whether one request did.
    fn answer(&self, group: usize, members: Vec<Member>) -> BoxFuture<'_, bool> {
        let answer = async move {
            let Err((members, failure)) = self.ask(group, members).await else { return true };
            if failure.is_of_all(group == USERS)
                || failure.is_about_server() && !self.serves(group, &members).await
            {
                fail(members, &failure.error);
            } else if self.record_failure(group, &members, &failure) {
                let queries = members.len();
                let parts = parts_of(members).into_iter().map(|part| self.answer(group, part));
                let answered = join_all(parts).await;
                let are_all = !answered.is_empty() && !answered.contains(&false);
                if are_all && queries > FEWER_QUERIES {
                    self.groups()[group].fewer_until = Some(Instant::now() + FEWER);
                }
            }
            false
        };
        answer.boxed()
    }

    /// Asks queries in one request, and answers them if it succeeds.
    async fn ask(
        &self,
        group: usize,
        members: Vec<Member>,
    ) -> Result<(), (Vec<Member>, RequestFailure)> {
        let (queries, started) = (members.len(), Instant::now());
        let (tables, took) = match self.query_joined(group, &members).await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::debug!(queries, %error, "Failed to query several at once");
                return Err((members, RequestFailure { error, after: started.elapsed() }));
            }
        };
        tracing::debug!(queries, ?took, "Queried Prometheus, several at once");
        self.groups()[group].succeeded(&members, &tables, took);
        for (member, table) in members.into_iter().zip(tables) {
            let _ = member.answer.send(Some(table.map(Arc::new).map_err(Into::into)));
        }
        Ok(())
    }

    /// Whether the server serves one of these queries by itself. A proxy may say it is down of what is too much at once.
    /// If they are of several namespaces, it is asked for two: the query of one may be bad by itself, by now.
    async fn serves(&self, group: usize, members: &[Member]) -> bool {
        let now = Instant::now().into_std();
        let hash = |of: &Member| self.0.hasher.hash_one((now, &of.flows));
        let any = |of: &&Member| (hash(of), self.0.hasher.hash_one((now, of.key)));
        let one = members.iter().max_by_key(any);
        let another = members.iter().filter(|of| one.is_some_and(|one| one.flows != of.flows));
        let flows = flows_of(group, members);
        let asked = one.into_iter().chain(another.max_by_key(any)).map(async |member| {
            let result = self.0.client.query_within(&member.text, &flows, Some(WITHIN)).await;
            !result.is_err_and(|error| is_of_server(&error))
        });
        join_all(asked).await.contains(&true)
    }

    async fn query_joined(&self, group: usize, members: &[Member]) -> Result<Answer, Error> {
        let texts: Vec<&str> = members.iter().map(|member| member.text.as_str()).collect();
        let flows = flows_of(group, members);
        let body = self.0.client.query_within(&union::union(&texts), &flows, Some(WITHIN)).await?;
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

    /// Notes that a request failed. Returns whether its queries are sent in parts; else each is sent by itself, and may
    /// have spoilt it.
    fn record_failure(&self, group: usize, members: &[Member], failure: &RequestFailure) -> bool {
        let (now, error) = (Instant::now(), &failure.error);
        let of_group = &mut self.groups()[group];
        let is_of_size = matches!(error, Error::TooLong { .. } | Error::InvalidResponse(_));
        if is_of_size && members.len() > FEWER_QUERIES {
            of_group.fewer_until = Some(now + FEWER);
        }
        let is_late = failure.is_late() || matches!(error, Error::Memory { .. });
        if members.len() > PARTS && !is_late && !matches!(error, Error::Overloaded(_)) {
            return true;
        }
        // Others' responses fill what templates and rules share, and others take their seats.
        let is_own = match error {
            Error::Memory { .. } => group == USERS,
            error => !matches!(error, Error::Overloaded(_)),
        };
        let may_be_server =
            is_late || failure.is_about_server() || matches!(error, Error::Partial(_));
        let until = now + if may_be_server { ALONE_AFTER_OUTAGE } else { ALONE };
        for member in members.iter().filter(|_| is_own) {
            of_group.spoilt(member, until);
        }
        false
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
        let before = group.known.peek(&key).cloned();
        let known = match result {
            Ok(table) => {
                if matches!(before, Some(Known::Alone { until }) if until > now) {
                    return;
                }
                // Requests that it may have spoilt count until one succeeds.
                let spoilt = match before {
                    Some(Known::Fast { spoilt, .. }) => spoilt,
                    // One more sets it apart again.
                    Some(Known::Alone { .. }) => MAX_SPOILT - 1,
                    None => 0,
                };
                let joinable = is_small(table) && !table.is_scalar();
                match (joinable, took <= MAX_QUERY_TIME, spoilt) {
                    (true, true, _) => {
                        let until = believed_until(key, now);
                        Known::Fast { until, took, series: table.series(), spoilt }
                    }
                    (_, _, 0) => {
                        group.known.pop(&key);
                        return;
                    }
                    // It was this one.
                    (false, ..) => Known::Alone { until: now + ALONE },
                    (true, ..) => Known::Alone { until: now + ALONE_AFTER_OUTAGE },
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

/// The parts of a request that failed, without those that nobody waits for any more: of two queries at least, as of one
/// nothing would be learned.
fn parts_of(mut members: Vec<Member>) -> Vec<Vec<Member>> {
    members.retain(|member| !member.answer.is_closed());
    let of_part = members.len().div_ceil(PARTS).max(2);
    let mut parts = Vec::new();
    while members.len() > of_part + 1 {
        let rest = members.split_off(of_part);
        parts.push(std::mem::replace(&mut members, rest));
    }
    if members.len() > 1 {
        parts.push(members);
    }
    parts
}

/// Queries for which the error of their request is theirs.
fn fail(members: Vec<Member>, error: &Error) {
    for member in members {
        let _ = member.answer.send(Some(Err(error.clone().into())));
    }
}

impl Group {
    /// A request of these queries succeeded.
    fn succeeded(
        &mut self,
        members: &[Member],
        tables: &[Result<Table, Error>],
        request_took: Duration,
    ) {
        let now = Instant::now();
        let alone: Duration = members.iter().map(|member| member.took).sum();
        for (member, table) in members.iter().zip(tables) {
            let part = match alone.is_zero() {
                true => 1.0 / members.len() as f64,
                false => member.took.as_secs_f64() / alone.as_secs_f64(),
            };
            let is_large = matches!(table, Ok(table) if !is_small(table));
            if request_took > SLOW || is_large {
                self.known.pop(&member.key);
                continue;
            }
            let known = self.known.get_mut(&member.key);
            let Some(Known::Fast { until, took, series, spoilt }) = known else { continue };
            (*took, *spoilt) = (request_took.mul_f64(part), 0);
            // All of it took no longer than one may by itself.
            if request_took <= MAX_QUERY_TIME {
                *until = believed_until(member.key, now);
            }
            *series = table.as_ref().map_or(*series, Table::series);
        }
    }

    /// A request failed with this query among those in question. After a few it is not joined until then.
    fn spoilt(&mut self, member: &Member, until: Instant) {
        let Some(Known::Fast { spoilt, .. }) = self.known.get_mut(&member.key) else { return };
        *spoilt += 1;
        if *spoilt >= MAX_SPOILT {
            self.known.put(member.key, Known::Alone { until });
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

/// The group of a query for these flows.
fn group_of(flows: &[Flow]) -> usize {
    match Flow::are_users(flows) {
        true => USERS,
        false => TEMPLATES,
    }
}
