//! Queries of any shape in one request, of a Prometheus that refuses some, is slow, or lies.

use super::super::join::Joiner;
use crate::prometheus::{BodyStream, Client, Flow, Options, Transport, TransportError};
use crate::promql::union::QUERY_LABEL;
use crate::supervise::Spawner;
use crate::telemetry::Metrics;
use bytes::Bytes;
use futures::future::{self, BoxFuture, join_all};
use futures::{FutureExt, StreamExt, stream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// More series than a query may have that is joined.
const MANY: usize = 1_500;

/// What the server does with a query that names the metric `bad`.
#[derive(Clone, Copy, PartialEq)]
enum Bad {
    Fine,
    Refused,
    Late,
    /// It answers with a series that is of no query.
    Stray,
    /// A proxy before it gives up requests of several.
    Cut,
    /// It has more than may be joined.
    Large,
    /// The server can't serve anything.
    Down,
}

/// A server that gives each query of a metric `hits_<number>` a series with the value of the number.
#[derive(Debug)]
struct Server(Arc<Mutex<Seen>>);

#[derive(Debug)]
struct Seen {
    bad: Bad,
    /// How long each answer takes.
    delay: Duration,
    /// The longest query that is taken, in bytes.
    longest: usize,
    queries: Vec<String>,
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
        let bad = if query.contains("bad") || seen.bad == Bad::Down { seen.bad } else { Bad::Fine };
        seen.queries.push(query.clone());
        let joined = query.contains(QUERY_LABEL);
        let (status, body) = match bad {
            _ if query.len() > seen.longest => (414, "too long".to_owned()),
            Bad::Late => return future::pending().boxed(),
            Bad::Refused => (422, r#"{"status":"error","error":"no"}"#.to_owned()),
            Bad::Down => (503, "down".to_owned()),
            Bad::Stray if joined => (200, vector([(r#"{"a":"b"}"#.to_owned(), 7)])),
            Bad::Cut if joined => (502, "cut".to_owned()),
            Bad::Large if joined => (200, " ".repeat(3 << 20)),
            Bad::Large => {
                let rows = (0..MANY).map(|pod| (format!(r#"{{"pod":"p{pod}"}}"#), 9));
                (200, vector(rows))
            }
            _ => (200, answer(&query)),
        };
        let body = stream::iter([Ok(Bytes::from(body))]).boxed();
        let response = http::Response::builder().status(status).body(body);
        // Others are answered meanwhile.
        let delay = if bad == Bad::Cut { 2 * seen.delay } else { seen.delay };
        async move {
            tokio::time::sleep(delay).await;
            Ok(response.unwrap())
        }
        .boxed()
    }
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

fn joiner() -> (Joiner, Arc<Mutex<Seen>>) {
    counted_joiner(&Arc::default())
}

/// The same, with metrics of its requests.
fn counted_joiner(metrics: &Arc<Metrics>) -> (Joiner, Arc<Mutex<Seen>>) {
    let seen = Arc::new(Mutex::new(Seen {
        bad: Bad::Fine,
        delay: Duration::ZERO,
        longest: usize::MAX,
        queries: Vec::new(),
    }));
    let client = Client::over(Arc::new(Server(seen.clone())), Options::new("http://server"));
    let client = client.unwrap().counted(metrics.clone());
    (Joiner::new(client, Spawner::unowned()), seen)
}

/// The values of all queries at once, and how many requests that took.
async fn ask(
    joiner: &Joiner,
    seen: &Mutex<Seen>,
    queries: &[String],
) -> (Vec<Result<f64, String>>, usize) {
    seen.lock().unwrap().queries.clear();
    let flow = |query: &String| match query.contains("user") {
        true => Flow::User("shop".into()),
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

fn queries(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| format!("sum by (pod) (rate({name}[1m]))")).collect()
}

/// Queries of the metrics with these numbers, whose names end so.
fn hits(numbers: std::ops::Range<usize>, end: &str) -> Vec<String> {
    numbers.map(|number| format!("hits_{number}{end}")).collect()
}

const TEN: [&str; 10] = [
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
        (0..20).map(|n| format!("hits_{n}{{app=\"{}\"}}", "x".repeat(5_000))).collect();
    for (asked, requests) in [(&many, 200), (&many, 4), (&long, 20), (&long, 10)] {
        let (results, sent) = ask(&joiner, &seen, asked).await;
        assert!(results.iter().all(Result::is_ok));
        assert_eq!(sent, requests);
    }
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
async fn a_query_that_spoils_a_request_fails_alone_and_stays_alone() {
    for (bad, late) in [(Bad::Refused, false), (Bad::Late, true)] {
        let (joiner, seen) = joiner();
        ask(&joiner, &seen, &queries(&TEN)).await;
        seen.lock().unwrap().bad = bad;
        let begun = tokio::time::Instant::now();
        let others = join_all(queries(&TEN[..9]).into_iter().map(async |query| {
            let flows = vec![Flow::Namespace("shop".into())];
            let result = joiner.clone().query(query, flows).await;
            (result.is_ok(), begun.elapsed())
        }));
        let spoiled = joiner.clone().query(queries(&TEN).remove(9), vec![Flow::Shared]);
        let (others, spoiled) = future::join(others, spoiled).await;
        assert!(spoiled.is_err());
        for (ok, took) in others {
            assert!(ok && took < Duration::from_secs(if late { 3 } else { 1 }), "{took:?}");
        }
        for _ in 0..2 {
            let (results, sent) = ask(&joiner, &seen, &queries(&TEN)).await;
            assert!(results[..9].iter().all(Result::is_ok) && results[9].is_err());
            assert_eq!(sent, 2);
        }
        // It succeeds again: for five minutes it is not trusted.
        seen.lock().unwrap().bad = Bad::Fine;
        assert_eq!(ask(&joiner, &seen, &queries(&TEN)).await.1, 2);
        tokio::time::advance(Duration::from_secs(301)).await;
        assert_eq!(ask(&joiner, &seen, &queries(&TEN)).await.1, 2);
        assert_eq!(ask(&joiner, &seen, &queries(&TEN)).await.1, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_of_several_that_is_given_up_is_no_failure_of_prometheus() {
    let metrics = Arc::default();
    let (joiner, seen) = counted_joiner(&metrics);
    ask(&joiner, &seen, &queries(&TEN)).await;
    seen.lock().unwrap().delay = Duration::from_secs(3);
    let (results, _) = ask(&joiner, &seen, &queries(&TEN)).await;
    assert!(results.iter().all(Result::is_ok));
    let text = metrics.prometheus_text();
    let counted = |line: &&str| line.starts_with("plimsoll_prometheus_requests_total");
    let counted: Vec<&str> = text.lines().filter(counted).collect();
    assert!(
        counted.contains(&"plimsoll_prometheus_requests_total{outcome=\"given_up\"} 1")
            && counted.len() == 2,
        "{counted:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_of_none_of_the_queries_is_no_answer() {
    let (joiner, seen) = joiner();
    ask(&joiner, &seen, &queries(&TEN)).await;
    seen.lock().unwrap().bad = Bad::Stray;
    let (results, sent) = ask(&joiner, &seen, &queries(&TEN)).await;
    assert_eq!(results, (0..10).map(|n| Ok(f64::from(n))).collect::<Vec<_>>());
    // All, a part of three, another, one of four, and each of these.
    assert_eq!(sent, 8);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_down_is_asked_once() {
    let (joiner, seen) = joiner();
    ask(&joiner, &seen, &queries(&TEN)).await;
    seen.lock().unwrap().bad = Bad::Down;
    let (results, sent) = ask(&joiner, &seen, &queries(&TEN)).await;
    assert!(results.iter().all(|result| result.as_ref().is_err_and(|error| error.contains("503"))));
    assert_eq!(sent, 1);
    seen.lock().unwrap().bad = Bad::Fine;
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

#[tokio::test(start_paused = true)]
async fn after_an_outage_queries_are_joined_again_within_two_minutes() {
    let (joiner, seen) = joiner();
    ask(&joiner, &seen, &queries(&TEN)).await;
    // Nothing answers: each query of the request is then late by itself.
    seen.lock().unwrap().delay = Duration::from_secs(100);
    let (results, _) = ask(&joiner, &seen, &queries(&TEN)).await;
    assert!(results.iter().all(Result::is_err));
    seen.lock().unwrap().delay = Duration::ZERO;
    tokio::time::advance(Duration::from_secs(61)).await;
    ask(&joiner, &seen, &queries(&TEN)).await;
    let sent = ask(&joiner, &seen, &queries(&TEN)).await.1;
    assert!(sent <= 2, "{sent}");
}

#[tokio::test(start_paused = true)]
async fn what_spoils_users_requests_leaves_those_of_templates_as_they_are() {
    let (joiner, seen) = joiner();
    let users = hits(0..20, "_user_bad");
    let templates = hits(0..64, "");
    ask(&joiner, &seen, &users).await;
    ask(&joiner, &seen, &templates).await;
    seen.lock().unwrap().bad = Bad::Stray;
    ask(&joiner, &seen, &users).await;
    assert_eq!(ask(&joiner, &seen, &templates).await.1, 1);
}

#[tokio::test(start_paused = true)]
async fn a_query_that_is_good_by_itself_and_spoils_every_request_is_set_apart() {
    let (joiner, seen) = joiner();
    ask(&joiner, &seen, &queries(&TEN)).await;
    seen.lock().unwrap().bad = Bad::Stray;
    // Others succeed in between.
    let others = hits(20..30, "");
    ask(&joiner, &seen, &others).await;
    for _ in 0..4 {
        ask(&joiner, &seen, &queries(&TEN)).await;
        ask(&joiner, &seen, &others).await;
    }
    let (results, _) = ask(&joiner, &seen, &queries(&TEN)).await;
    assert!(results.iter().all(Result::is_ok));
    let spoils = |query: &&String| query.contains("bad") && query.contains(QUERY_LABEL);
    assert_eq!(seen.lock().unwrap().queries.iter().find(spoils), None);
}

/// Of 64 queries those beside them, and of no other namespace's.
#[tokio::test(start_paused = true)]
async fn queries_that_spoil_each_request_do_not_end_the_joining_of_others() {
    let (joiner, seen) = joiner();
    let bad = hits(0..200, "_user_bad");
    let good = hits(0..64, "_user");
    ask(&joiner, &seen, &bad).await;
    ask(&joiner, &seen, &good).await;
    seen.lock().unwrap().bad = Bad::Stray;
    for _ in 0..3 {
        assert!(ask(&joiner, &seen, &bad).await.0.iter().all(Result::is_ok));
        let sent = ask(&joiner, &seen, &good).await.1;
        assert!(sent <= 4, "{sent}");
    }
    // One of many: the request is sent in parts until it is found.
    let few: Vec<String> = good.iter().chain(&bad[..1]).cloned().collect();
    tokio::time::advance(Duration::from_secs(301)).await;
    ask(&joiner, &seen, &few).await;
    for most in [14, 14, 6] {
        let sent = ask(&joiner, &seen, &few).await.1;
        assert!(sent <= most, "{sent}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_query_that_is_small_now_and_then_is_not_joined() {
    let (joiner, seen) = joiner();
    for round in 0..6 {
        seen.lock().unwrap().bad = if round % 2 == 0 { Bad::Fine } else { Bad::Large };
        assert!(ask(&joiner, &seen, &queries(&TEN)).await.0.iter().all(Result::is_ok));
        tokio::time::advance(Duration::from_secs(15)).await;
    }
    let sent = ask(&joiner, &seen, &queries(&TEN)).await.1;
    assert_eq!(sent, 2, "the nine others share a request");
}

/// A proxy that gives up some answers, for example.
#[tokio::test(start_paused = true)]
async fn what_fails_with_others_as_if_the_server_were_down_is_found() {
    for others in [0, 70] {
        let (joiner, seen) = joiner();
        let others = hits(20..20 + others, "");
        ask(&joiner, &seen, &queries(&TEN)).await;
        ask(&joiner, &seen, &others).await;
        (seen.lock().unwrap().bad, seen.lock().unwrap().delay) =
            (Bad::Cut, Duration::from_millis(5));
        for round in 0..40 {
            let both = [queries(&TEN), others.clone()].concat();
            let (results, sent) = ask(&joiner, &seen, &both).await;
            let failures = results.iter().filter(|result| result.is_err()).count();
            assert!(round == 0 || failures == 0, "{round}: {failures}");
            assert!(round == 0 || sent <= 100, "{round}: {sent}");
            tokio::time::advance(Duration::from_secs(15)).await;
        }
    }
}

/// An outage costs no storm.
#[tokio::test(start_paused = true)]
async fn a_server_that_stays_down_is_asked_a_few_times() {
    let (joiner, seen) = joiner();
    let many = hits(0..300, "");
    ask(&joiner, &seen, &many).await;
    ask(&joiner, &seen, &many).await;
    seen.lock().unwrap().bad = Bad::Down;
    for _ in 0..10 {
        let sent = ask(&joiner, &seen, &many).await.1;
        assert!(sent <= 25, "{sent}");
        tokio::time::advance(Duration::from_secs(15)).await;
    }
    seen.lock().unwrap().bad = Bad::Fine;
    assert_eq!(ask(&joiner, &seen, &many).await.1, 5);
}

/// Together they are too large for a proxy: fewer are joined for a while.
#[tokio::test(start_paused = true)]
async fn what_is_too_large_together_is_sent_twice_no_more_than_now_and_then() {
    let (joiner, seen) = joiner();
    let many = hits(0..600, "");
    ask(&joiner, &seen, &many).await;
    seen.lock().unwrap().longest = 2_000;
    ask(&joiner, &seen, &many).await;
    let mut sent = 0;
    for _ in 0..10 {
        let (results, requests) = ask(&joiner, &seen, &many).await;
        assert!(results.iter().all(Result::is_ok));
        sent += requests;
        tokio::time::advance(Duration::from_secs(15)).await;
    }
    assert!(sent <= 10 * 40, "{sent}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_moment_of_the_server_ends_the_joining_for_a_minute() {
    let (joiner, seen) = joiner();
    let many = hits(0..300, "");
    ask(&joiner, &seen, &many).await;
    assert_eq!(ask(&joiner, &seen, &many).await.1, 5);
    seen.lock().unwrap().delay = Duration::from_secs(3);
    ask(&joiner, &seen, &many).await;
    seen.lock().unwrap().delay = Duration::ZERO;
    tokio::time::advance(Duration::from_secs(61)).await;
    ask(&joiner, &seen, &many).await;
    let sent = ask(&joiner, &seen, &many).await.1;
    assert!(sent < 20, "{sent}");
}

#[tokio::test(start_paused = true)]
async fn one_users_slow_queries_fail_none_of_the_others() {
    let (joiner, seen) = joiner();
    let flow = |name: &str| vec![Flow::User(name.into())];
    let ask_both = async || {
        let query = |text: &str, user: &str| joiner.clone().query(text.to_owned(), flow(user));
        future::join(query("hits_1_user", "shop"), query("hits_2_user", "zz")).await
    };
    ask_both().await.0.unwrap();
    // The seats of `zz` are taken for longer than a user's query may wait.
    seen.lock().unwrap().delay = Duration::from_secs(100);
    let slow = (0..40).map(|n| joiner.clone().query(format!("slow_{n}"), flow("zz")));
    let slow = tokio::spawn(join_all(slow));
    tokio::time::sleep(Duration::from_secs(1)).await;
    seen.lock().unwrap().delay = Duration::ZERO;
    let begun = tokio::time::Instant::now();
    let both =
        future::select(Box::pin(ask_both()), Box::pin(tokio::time::sleep(Duration::from_secs(60))));
    let future::Either::Left((both, _)) = both.await else { panic!("they wait") };
    assert!(both.0.is_ok(), "{:?} after {:?}", both.0.err(), begun.elapsed());
    slow.abort();
}
