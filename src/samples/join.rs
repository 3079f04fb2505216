//! Joins queries that are sent at the same time into one request, whatever their shapes: Prometheus takes 0.5 ms of CPU
//! for a request besides what the query in it takes, which is often less than 0.1 ms.
//!
//! Only small queries are joined, and none that may spoil the others: a query is sent by itself until it has
//! succeeded quickly with few series. A request of several that fails is sent in parts, down to the few that spoil it; these
//! stay by themselves for a while. If the server is down, which two queries by themselves tell, all of them fail.

use super::flight::TableResult;
use super::known_queries::{self, KnownQueries, Size, TooMuch, alone_after, may_be_servers};
use super::table::Table;
use crate::blocking;
use crate::prometheus::{Body, Client, Error, Flow, Within, shortened};
use crate::promql::union::{self, MEMBER_OVERHEAD};
use crate::supervise::Spawner;
use futures::FutureExt;
use futures::future::{self, BoxFuture, join_all};
use futures::stream::{FuturesUnordered, StreamExt};
use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

/// How long a query waits for others.
const JOIN_DELAY: Duration = Duration::from_millis(1);
/// The most bytes of a request's query, as VictoriaMetrics takes 16 KiB by default, and of a query that is joined.
const MAX_BYTES: usize = 12 << 10;
const MAX_MEMBER_BYTES: usize = MAX_BYTES / 4;
/// The most series of a request, by the last results of its queries.
const MAX_SERIES: usize = 5_000;
/// The most time that the queries of a request took by themselves.
const MAX_TIME: Duration = Duration::from_millis(500);
/// A request that takes longer once it is sent is given up, and its queries are sent by themselves. So they are if the
/// response has more bytes: one of them is not as small as it was.
const WITHIN: Within = Within { time: Duration::from_secs(2), bytes: MAX_RESPONSE };
const MAX_RESPONSE: usize = 2 << 20;
/// The bytes of a request's responses by the last ones, which may have grown since.
const MAX_EXPECTED_RESPONSE: usize = MAX_RESPONSE / 2;
/// The parts in which a request is sent that failed. Of so few queries each is sent by itself.
const PARTS: usize = 4;
/// Requests of one moment are begun within this time.
const TOGETHER: Duration = Duration::from_millis(50);
/// The size from which on decoding a response would block other tasks of the thread, in bytes.
const LARGE_RESPONSE_BYTES: usize = 1 << 20;
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
#[derive(Default)]
struct Group {
    known: KnownQueries,
    /// Those that wait for others.
    waiting: Vec<Member>,
    /// When the newest request was begun that succeeded quickly.
    served_begun: Option<Instant>,
}

impl Group {
    /// Whether a request succeeded quickly that was begun at about that time or later.
    fn served_since(&self, begun: Instant) -> bool {
        self.served_begun.is_some_and(|at| at + TOGETHER >= begun)
    }

    /// A request, begun then, succeeded after this time.
    fn served(&mut self, begun: Instant, took: Duration) {
        if took <= known_queries::MAX_TIME {
            self.served_begun = Some(begun).max(self.served_begun);
        }
    }
}

/// A query that is to be joined.
struct Member {
    key: u64,
    text: String,
    flows: Vec<Flow>,
    size: Size,
    /// The most queries of a request with it.
    most_queries: usize,
    /// Dropped if it must be sent by itself.
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
        let group = group_of(flows);
        let (size, most_queries) = self.groups()[group].known.joinable(key)?;
        let Some(text) = union::member(query).map(|text| text.into_owned()) else {
            self.groups()[group].known.is_none_to_join(key);
            return None;
        };
        let (answer, receiver) = oneshot::channel();
        let member = Member { key, text, flows: flows.to_vec(), size, most_queries, answer };
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
        let mut members = std::mem::take(&mut self.groups()[group].waiting);
        // Queries with a lower limit come last, so that they leave the requests of others whole, beside those of their namespace.
        members.sort_by(|one, other| {
            let by_limit = other.most_queries.cmp(&one.most_queries);
            by_limit.then_with(|| one.flows.cmp(&other.flows))
        });
        let begun = Instant::now();
        let mut request: Vec<Member> = Vec::new();
        let (mut bytes, mut all) = (0, Size::default());
        for member in members {
            let (more, size) = (member.text.len() + MEMBER_OVERHEAD, member.size);
            let full = request.len() >= member.most_queries
                || bytes + more > MAX_BYTES
                || all.series + size.series > MAX_SERIES
                || all.response + size.response > MAX_EXPECTED_RESPONSE
                || all.took + size.took > MAX_TIME;
            if full {
                self.send(group, std::mem::take(&mut request), begun);
                (bytes, all) = (0, Size::default());
            }
            bytes += more;
            all.series += size.series;
            all.response += size.response;
            all.took += size.took;
            request.push(member);
        }
        self.send(group, request, begun);
    }

    /// Sends queries as one request. Those who wait for a query that is dropped send it by itself.
    fn send(&self, group: usize, members: Vec<Member>, begun: Instant) {
        if members.len() < 2 {
            return;
        }
        let joiner = self.clone();
        self.0.spawner.spawn(async move {
            joiner.answer(group, members, begun).await;
        });
    }

    /// Answers queries by one request, or in parts if it fails, these again in parts. Returns whether such requests answered all.
    fn answer(&self, group: usize, members: Vec<Member>, begun: Instant) -> BoxFuture<'_, bool> {
        let answer = async move {
            let keys: Vec<u64> = members.iter().map(|member| member.key).collect();
            let (members, error) = match self.ask(group, members).await {
                Ok(took) => {
                    match took > known_queries::SLOW {
                        true => self.record_late(group, &keys, begun),
                        false => self.groups()[group].served(begun, took),
                    }
                    return true;
                }
                Err(failed) => failed,
            };
            // Of few, two could both be bad: each is sent by itself instead.
            let is_one_of_many = members.len() > PARTS && !error.is_late();
            let may_be_server = is_one_of_many && error.may_be_about_server();
            if is_of_all(&error, group) || may_be_server && !self.serves(group, &members).await {
                fail(members, &error);
            } else if self.record_failure(group, &keys, &error, begun) {
                let parts = parts_of(members);
                let keys: Vec<u64> = parts.iter().flatten().map(|member| member.key).collect();
                let of_part = parts.iter().map(Vec::len).max().unwrap_or(0);
                let now = Instant::now();
                let answered = parts.into_iter().map(|part| self.answer(group, part, now));
                let answered = join_all(answered).await;
                let are_all = !answered.is_empty() && !answered.contains(&false);
                if are_all {
                    self.were_too_much(group, &keys, begun, (of_part, TooMuch::Work));
                }
                return are_all;
            }
            false
        };
        answer.boxed()
    }

    /// Asks queries in one request, and answers them if it succeeds. Returns how long it took.
    async fn ask(
        &self,
        group: usize,
        members: Vec<Member>,
    ) -> Result<Duration, (Vec<Member>, Error)> {
        let queries = members.len();
        let (tables, took) = match self.query_joined(group, &members).await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::debug!(queries, %error, "Failed to query several at once");
                return Err((members, error));
            }
        };
        tracing::debug!(queries, ?took, "Queried Prometheus, several at once");
        let keys = members.iter().map(|member| (member.key, member.size.took));
        self.groups()[group].known.succeeded(keys, &tables, took);
        for (member, table) in members.into_iter().zip(tables) {
            let _ = member.answer.send(Some(table.map(Arc::new).map_err(Into::into)));
        }
        Ok(took)
    }

    /// Whether the server serves one of these queries by itself: a proxy may say that it is down of what is too much at once.
    /// It is asked for two, as one may be bad by itself, by now: if possible, of different namespaces, and not those that told
    /// nothing before.
    async fn serves(&self, group: usize, members: &[Member]) -> bool {
        let now = Instant::now().into_std();
        let any = |of: u64| self.0.hasher.hash_one((now, of));
        let order = |of: &&Member| {
            let told_nothing_at = self.groups()[group].known.told_nothing_at(of.key);
            (told_nothing_at, any(self.0.hasher.hash_one(&of.flows)), any(of.key))
        };
        let mut asked: Vec<&Member> = members.iter().collect();
        asked.sort_by_cached_key(order);
        let Some((one, others)) = asked.split_first() else { return false };
        let is_of_same = |of: &&&Member| of.flows.iter().any(|flow| one.flows.contains(flow));
        let both = [Some(one), others.iter().min_by_key(is_of_same)];
        let both: Vec<&Member> = both.into_iter().flatten().copied().collect();
        let flows = flows_of(group, members);
        let serves = async |member: &Member| {
            let body = self.0.client.query_within(&member.text, &flows, Some(WITHIN)).await;
            let table = body.and_then(|body| decoded(body, Table::from_body));
            let failed = matches!(&table, Err(error) if error.may_be_about_server());
            if failed {
                self.groups()[group].known.told_nothing(member.key);
            }
            // What finds no seat tells nothing either, and would wait again.
            !failed && !matches!(table, Err(Error::Overloaded(_)))
        };
        let answers: FuturesUnordered<_> = both.iter().map(|member| serves(member)).collect();
        // Once it has served one, the other is not waited for.
        answers.any(future::ready).await
    }

    async fn query_joined(&self, group: usize, members: &[Member]) -> Result<Answer, Error> {
        let texts: Vec<&str> = members.iter().map(|member| member.text.as_str()).collect();
        let flows = flows_of(group, members);
        let body = self.0.client.query_within(&union::union(&texts), &flows, Some(WITHIN)).await?;
        let took = body.took();
        // Each table is charged to a flow of its own query.
        let flows: Vec<&Flow> =
            members.iter().map(|member| member.flows.first().unwrap_or(&Flow::Shared)).collect();
        Ok((decoded(body, |body| Table::split_body(body, &flows))?, took))
    }

    /// Notes that a request failed. Returns whether its queries are sent in parts; else each is sent by itself, and may
    /// have spoilt it.
    fn record_failure(&self, group: usize, keys: &[u64], error: &Error, begun: Instant) -> bool {
        // Others' responses fill what they share, and others take their seats.
        let is_own = !matches!(error, Error::Overloaded(_) | Error::Memory { .. });
        let is_of_many = keys.len() > PARTS;
        if error.is_late() {
            self.record_late(group, keys, begun);
        } else if is_of_many && matches!(error, Error::TooLong { .. }) {
            self.were_too_much(group, keys, begun, (keys.len().div_ceil(PARTS), TooMuch::Long));
        } else if !is_of_many && is_own {
            self.suspect(group, keys, begun, (may_be_servers(error), alone_after(error)));
        }
        is_of_many && is_own && !error.is_late()
    }

    /// Notes that a request was late, or succeeded late.
    fn record_late(&self, group: usize, keys: &[u64], begun: Instant) {
        if keys.len() <= PARTS {
            return self.suspect(group, keys, begun, (true, known_queries::ALONE_AFTER_OUTAGE));
        }
        let why = match self.groups()[group].served_since(begun) {
            true => TooMuch::Work,
            false => TooMuch::OrStalled,
        };
        self.were_too_much(group, keys, begun, (keys.len().div_ceil(PARTS), why));
    }

    /// Notes that a request of these few queries failed, perhaps because the server did unless others were served since then. If it
    /// is one of them, it is not joined for this time.
    fn suspect(
        &self,
        group: usize,
        keys: &[u64],
        begun: Instant,
        (may_be_server, alone): (bool, Duration),
    ) {
        let group = &mut self.groups()[group];
        let may_be_server = may_be_server && !group.served_since(begun);
        keys.iter().for_each(|key| group.known.suspect(*key, keys.len(), may_be_server, alone));
    }

    /// Notes that a request of these queries, begun then, was too much at once, and how many may share one, perhaps from now
    /// on.
    fn were_too_much(
        &self,
        group: usize,
        keys: &[u64],
        begun: Instant,
        (most_queries, why): (usize, TooMuch),
    ) {
        let known = &mut self.groups()[group].known;
        let request = (begun, keys.len());
        keys.iter().for_each(|key| known.was_too_much(*key, request, most_queries, why));
    }

    /// Sends a query by itself, and decodes its response.
    async fn query_alone(&self, key: u64, query: String, flows: Vec<Flow>) -> TableResult {
        let started = Instant::now();
        let group = group_of(&flows);
        let mut response = pin!(self.0.client.query(&query, &flows));
        let soon = timeout(known_queries::MAX_TIME, &mut response).await;
        // What is served later may be so as a stall has ended.
        let others_were_served = self.groups()[group].served_since(started);
        let body = match soon {
            Ok(body) => body,
            Err(_) => response.await,
        };
        let took = body.as_ref().map_or_else(|_| started.elapsed(), Body::took);
        let bytes = body.as_ref().map_or(0, Body::bytes);
        let result = body.and_then(|body| decoded(body, Table::from_body));
        // What templates and rules share is filled by others' responses.
        if group == USERS || !matches!(result, Err(Error::Memory { .. })) {
            let group = &mut self.groups()[group];
            group.known.answered(key, &result, (took, bytes), others_were_served);
            if result.is_ok() {
                group.served(started, took);
            }
        }
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
}

/// The flows that a request may be charged to: any one of the users', or that of several namespaces.
fn flows_of(group: usize, members: &[Member]) -> Vec<Flow> {
    let flows: BTreeSet<&Flow> = members.iter().flat_map(|member| &member.flows).collect();
    match group == USERS || flows.len() == 1 {
        true => flows.into_iter().cloned().collect(),
        false => vec![Flow::Shared],
    }
}

/// What a response is decoded to: a large one without blocking the other tasks of the thread.
fn decoded<T>(body: Body, decode: impl FnOnce(Body) -> Result<T, Error>) -> Result<T, Error> {
    match body.bytes() > LARGE_RESPONSE_BYTES {
        true => blocking::run(|| decode(body)),
        false => decode(body),
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

/// Whether the error of a request is that of each of its queries, as more requests would not help. What found no seat for
/// users' own is one user's: others have seats of their own.
fn is_of_all(error: &Error, group: usize) -> bool {
    match error {
        Error::Overloaded(_) => group == TEMPLATES,
        Error::Unavailable { status: 429, .. } | Error::Settings(_) => true,
        error => error.is_of_all_queries(),
    }
}

/// Queries for which the error of their request is theirs.
fn fail(members: Vec<Member>, error: &Error) {
    tracing::warn!(queries = members.len(), %error, "Failed to query Prometheus");
    let error = error.without_query();
    for member in members {
        let _ = member.answer.send(Some(Err(error.clone().into())));
    }
}

/// The group of a query for these flows.
fn group_of(flows: &[Flow]) -> usize {
    match Flow::are_users(flows) {
        true => USERS,
        false => TEMPLATES,
    }
}
