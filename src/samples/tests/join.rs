//! Queries of any shape in one request, of a Prometheus that refuses some, is slow, or lies.

use super::super::join::Joiner;
use crate::prometheus::{BodyStream, Client, Flow, Options, Transport, TransportError};
use crate::promql::union::QUERY_LABEL;
use crate::supervise::Spawner;
use crate::telemetry::Metrics;
use bytes::Bytes;
use futures::future::{self, BoxFuture, join_all};
use futures::{FutureExt, StreamExt, stream};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// More series than a query may have that is joined.
pub(super) const MANY: usize = 1_500;

/// What the server does with a query that names the metric `bad`.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Bad {
    Fine,
    Refused,
    Late,
    /// So late in a request of several.
    LateJoined,
    /// A request of several with it takes 1.5 s.
    SlowJoined,
    /// A request with it takes 1.5 s.
    Slow,
    /// A request of more queries takes 1.5 s.
    SlowAbove(usize),
    /// A tenth of all requests takes 1.5 s.
    SlowAtTimes,
    /// It answers with a series that is of no query.
    Stray,
    /// A proxy before it gives up requests of several, after others are answered.
    Cut,
    /// The same, at once.
    CutAtOnce,
    /// The same, of the query by itself, too.
    CutAlone,
    /// The first so many requests are cut.
    CutFirst(usize),
    /// The server answers this to everything.
    Status(u16),
    /// It has more than may be joined.
    Large,
    /// The response has so many bytes more for each query.
    Padded(usize),
    /// The server can't serve anything.
    Down,
    /// The same, and it quotes the query.
    DownQuoting,
    /// The same, after the second request. The first one gets the same answer.
    Dying,
}

/// A server that gives each query of a metric `hits_<number>` a series with the value of the number.
#[derive(Debug)]
struct Server(Arc<Mutex<Seen>>);

#[derive(Debug)]
pub(super) struct Seen {
    pub(super) bad: Bad,
    /// How long each answer takes.
    pub(super) delay: Duration,
    /// A longer query, in bytes, gets this status at once.
    pub(super) longest: (usize, u16),
    pub(super) queries: Vec<String>,
    /// How many requests it has had.
    requests: u64,
}

impl std::fmt::Debug for Bad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bad")
    }
}

impl Transport for Server {
    fn send(
        &self,
        request: http::Request<Bytes>,
    ) -> BoxFuture<'static, Result<http::Response<BodyStream>, TransportError>> {
        let form = format!("http://h/?{}", String::from_utf8_lossy(request.body()));
        let url = reqwest::Url::parse(&form).unwrap();
        let query = url.query_pairs().find(|(name, _)| name == "query").unwrap().1.into_owned();
        let mut seen = self.0.lock().unwrap();
        seen.queries.push(query.clone());
        seen.requests += 1;
        let bad = match seen.bad {
            Bad::Dying if seen.queries.len() == 2 => Bad::Fine,
            Bad::Down | Bad::Dying => Bad::Down,
            Bad::DownQuoting => Bad::DownQuoting,
            Bad::Status(status) => Bad::Status(status),
            Bad::SlowAbove(most) if query.matches("hits_").count() > most => Bad::Slow,
            Bad::SlowAbove(_) => Bad::Fine,
            Bad::SlowAtTimes if is_drawn(seen.requests) => Bad::Slow,
            Bad::SlowAtTimes => Bad::Fine,
            bad if query.contains("bad") => bad,
            _ => Bad::Fine,
        };
        let joined = query.contains(QUERY_LABEL);
        let (status, body) = match bad {
            _ if query.len() > seen.longest.0 => {
                (seen.longest.1, r#"{"status":"error","error":"no"}"#.to_owned())
            }
            Bad::Late => return future::pending().boxed(),
            Bad::LateJoined if joined => return future::pending().boxed(),
            Bad::Refused => (422, r#"{"status":"error","error":"no"}"#.to_owned()),
            Bad::Down => (503, "down".to_owned()),
            Bad::DownQuoting => (503, format!("error when executing query={query:?}: no storage")),
            Bad::Status(status) => (status, "no".to_owned()),
            Bad::Stray if joined => (200, vector([(r#"{"a":"b"}"#.to_owned(), 7)])),
            Bad::CutAlone => (502, "cut".to_owned()),
            Bad::Cut | Bad::CutAtOnce if joined => (502, "cut".to_owned()),
            Bad::CutFirst(requests) if seen.queries.len() <= requests => (502, "cut".to_owned()),
            Bad::Large if joined => (200, " ".repeat(3 << 20)),
            Bad::Large => {
                let rows = (0..MANY).map(|pod| (format!(r#"{{"pod":"p{pod}"}}"#), 9));
                (200, vector(rows))
            }
            Bad::Padded(bytes) => {
                let queries = query.matches("hits_").count();
                (200, answer(&query) + &" ".repeat(bytes * queries))
            }
            _ => (200, answer(&query)),
        };
        let body = stream::iter([Ok(Bytes::from(body))]).boxed();
        let response = http::Response::builder().status(status).body(body);
        let delay = match bad {
            Bad::Cut => 2 * seen.delay,
            Bad::Slow => Duration::from_millis(1_500),
            Bad::SlowJoined if joined => Duration::from_millis(1_500),
            Bad::CutAtOnce | Bad::CutAlone => Duration::ZERO,
            _ if query.len() > seen.longest.0 => Duration::ZERO,
            _ => seen.delay,
        };
        async move {
            tokio::time::sleep(delay).await;
            Ok(response.unwrap())
        }
        .boxed()
    }
}

/// Whether a request with this number is one of a tenth, of which each is as likely as any other.
fn is_drawn(number: u64) -> bool {
    let mut hasher = DefaultHasher::new();
    number.hash(&mut hasher);
    hasher.finish().is_multiple_of(10)
}

fn answer(query: &str) -> String {
    let value = |text: &str| -> usize {
        let digits = text.split("hits_").nth(1).unwrap_or("9");
        digits.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(9)
    };
    if !query.contains(QUERY_LABEL) {
        return vector([(r#"{"pod":"p"}"#.to_owned(), value(query))]);
    }
    let members = query.split("label_replace(").skip(1).enumerate();
    vector(members.map(|(number, text)| {
        (format!(r#"{{"pod":"p","{QUERY_LABEL}":"{number}"}}"#), value(text))
    }))
}

fn vector(rows: impl IntoIterator<Item = (String, usize)>) -> String {
    let rows = rows.into_iter();
    let rows: Vec<String> = rows
        .map(|(labels, value)| format!(r#"{{"metric":{labels},"value":[5,"{value}"]}}"#))
        .collect();
    let rows = rows.join(",");
    format!(r#"{{"status":"success","data":{{"resultType":"vector","result":[{rows}]}}}}"#)
}

pub(super) fn joiner() -> (Joiner, Arc<Mutex<Seen>>) {
    counted_joiner(&Arc::default())
}

/// The same, with metrics of its requests.
pub(super) fn counted_joiner(metrics: &Arc<Metrics>) -> (Joiner, Arc<Mutex<Seen>>) {
    let (client, seen) = server();
    (Joiner::new(client.counted(metrics.clone()), Spawner::unowned()), seen)
}

/// A client of the server.
pub(super) fn server() -> (Client, Arc<Mutex<Seen>>) {
    let seen = Arc::new(Mutex::new(Seen {
        bad: Bad::Fine,
        delay: Duration::ZERO,
        longest: (usize::MAX, 0),
        queries: Vec::new(),
        requests: 0,
    }));
    let client = Client::over(Arc::new(Server(seen.clone())), Options::new("http://server"));
    (client.unwrap(), seen)
}

/// The values of all queries at once, and how many requests that took.
pub(super) async fn ask(
    joiner: &Joiner,
    seen: &Mutex<Seen>,
    queries: &[String],
) -> (Vec<Result<f64, String>>, usize) {
    seen.lock().unwrap().queries.clear();
    let flow = |query: &String| match query.contains("user") {
        _ if query.contains("each") => Flow::User(query.as_str().into()),
        true if query.contains("bad") => Flow::User("other".into()),
        true => Flow::User("shop".into()),
        false if query.contains("all") => Flow::Shared,
        false => Flow::Namespace("shop".into()),
    };
    let results = queries.iter().map(async |query| {
        let table = joiner.clone().query(query.clone(), vec![flow(query)]).await;
        let table = table.map_err(|error| error.to_string())?;
        let is_large = query.contains("bad") && seen.lock().unwrap().bad == Bad::Large;
        let (pod, series) = if is_large { ("p0", MANY) } else { ("p", 1) };
        assert_eq!(table.labels(0).collect::<Vec<_>>(), [("pod", pod)]);
        assert_eq!(table.series(), series);
        Ok(table.value(0))
    });
    let results = join_all(results).await;
    (results, seen.lock().unwrap().queries.len())
}

pub(super) fn queries(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| format!("sum by (pod) (rate({name}[1m]))")).collect()
}

/// Queries of the metrics with these numbers, whose names end so.
pub(super) fn hits(numbers: std::ops::Range<usize>, end: &str) -> Vec<String> {
    numbers.map(|number| format!("hits_{number}{end}")).collect()
}

pub(super) const TEN: [&str; 10] = [
    "hits_0",
    "hits_1",
    "hits_2",
    "hits_3",
    "hits_4",
    "hits_5",
    "hits_6",
    "hits_7",
    "hits_8",
    "hits_9_bad",
];

#[tokio::test(start_paused = true)]
async fn queries_of_any_shape_share_a_request_once_each_is_known_to_be_small() {
    let (joiner, seen) = joiner();
    let expected: Vec<_> = (0..10).map(|n| Ok(f64::from(n))).collect();
    assert_eq!(ask(&joiner, &seen, &queries(&TEN)).await, (expected.clone(), 10));
    for _ in 0..3 {
        assert_eq!(ask(&joiner, &seen, &queries(&TEN)).await, (expected.clone(), 1));
    }
    // What a query took is measured again now and then.
    tokio::time::advance(Duration::from_secs(601)).await;
    assert_eq!(ask(&joiner, &seen, &queries(&TEN)).await.1, 10);
    // A number without labels is never joined, and no query of a user is with one of a template.
    let mixed = [
        "hits_0".to_owned(),
        "hits_1".to_owned(),
        "hits_2_user".to_owned(),
        "hits_3_user".to_owned(),
    ];
    for requests in [4, 2, 2] {
        assert_eq!(ask(&joiner, &seen, &mixed).await.1, requests);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_has_so_many_queries_and_bytes_at_most() {
    let (joiner, seen) = joiner();
    let many = hits(0..200, "");
    let long: Vec<String> =
        (0..20).map(|n| format!("hits_{n}{{app=\"{}\"}}", "x".repeat(2_500))).collect();
    for (asked, requests) in [(&many, 200), (&many, 4), (&long, 20), (&long, 5)] {
        let (results, sent) = ask(&joiner, &seen, asked).await;
        assert!(results.iter().all(Result::is_ok));
        assert_eq!(sent, requests);
    }
}

#[tokio::test(start_paused = true)]
async fn long_queries_between_others_do_not_keep_these_apart() {
    let (joiner, seen) = joiner();
    let long = |n: usize| format!("hits_{n}_user{{app=\"{}\"}}", "x".repeat(12_500));
    let both: Vec<String> = hits(0..20, "_user")
        .into_iter()
        .enumerate()
        .flat_map(|(n, short)| [short, long(n)])
        .collect();
    ask(&joiner, &seen, &both).await;
    assert_eq!(ask(&joiner, &seen, &both).await.1, 20 + 1);
}

#[tokio::test(start_paused = true)]
async fn many_queries_of_users_do_not_make_those_of_templates_be_forgotten() {
    let (joiner, seen) = joiner();
    ask(&joiner, &seen, &queries(&TEN)).await;
    let many = hits(0..20_000, "_user");
    for some in many.chunks(500) {
        assert!(ask(&joiner, &seen, some).await.0.iter().all(Result::is_ok));
    }
    assert_eq!(ask(&joiner, &seen, &queries(&TEN)).await.1, 1);
}

#[tokio::test(start_paused = true)]
async fn what_a_request_took_corrects_what_its_queries_took_while_all_were_measured_at_once() {
    let (joiner, seen) = joiner();
    seen.lock().unwrap().delay = Duration::from_millis(200);
    assert_eq!(ask(&joiner, &seen, &queries(&TEN)).await.1, 10);
    seen.lock().unwrap().delay = Duration::from_millis(20);
    assert_eq!(ask(&joiner, &seen, &queries(&TEN)).await.1, 5);
    assert_eq!(ask(&joiner, &seen, &queries(&TEN)).await.1, 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_its_turn_is_not_late() {
    let (joiner, seen) = joiner();
    let mine = hits(0..8, "_user");
    ask(&joiner, &seen, &mine).await;
    seen.lock().unwrap().delay = Duration::from_secs(5);
    // A user's queries have two seats.
    let flow = || vec![Flow::User("shop".into())];
    let slow = ["slow_1", "slow_2"].map(|query| joiner.clone().query(query.into(), flow()));
    let slow = tokio::spawn(join_all(slow));
    tokio::time::sleep(Duration::from_secs(1)).await;
    seen.lock().unwrap().delay = Duration::ZERO;
    let (results, sent) = ask(&joiner, &seen, &mine).await;
    assert_eq!(results, (0..8).map(|n| Ok(f64::from(n))).collect::<Vec<_>>());
    assert_eq!(sent, 1);
    slow.await.unwrap();
}
