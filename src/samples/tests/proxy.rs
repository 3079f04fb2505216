//! A proxy before Prometheus that lets something not pass.

use super::super::Caller;
use super::super::MetricError;
use super::super::coalesce::{Coalescer, SendQuery};
use super::super::flight::TableResult;
use super::super::table::Table;
use super::coalescer::{Sent, all, empty, failure, get, query};
use super::sending;
use crate::prometheus::{BodyStream, Client, Error, Options, Transport, TransportError};
use crate::promql::shape::ShapedQuery;
use crate::supervise::Spawner;
use bytes::Bytes;
use futures::future::{BoxFuture, join_all};
use futures::{FutureExt, StreamExt};
use reqwest::Url;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// A server over HTTP.
struct Server(SendQuery);

impl fmt::Debug for Server {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Server")
    }
}

impl Transport for Server {
    fn send(
        &self,
        request: http::Request<Bytes>,
    ) -> BoxFuture<'static, Result<http::Response<BodyStream>, TransportError>> {
        let url = Url::parse(&request.uri().to_string()).unwrap();
        let query = url.query_pairs().find(|(name, _)| name == "query").unwrap().1.into_owned();
        let answer = (self.0)(query, Vec::new());
        async move {
            let (status, body) = match answer.await {
                Ok(_) => (200, EMPTY.to_owned()),
                Err(MetricError::Prometheus(Error::Unavailable { status, message })) => {
                    (status, message)
                }
                Err(error) => panic!("{error}"),
            };
            let body = futures::stream::iter([Ok(Bytes::from(body))]).boxed();
            Ok(http::Response::builder().status(status).body(body).unwrap())
        }
        .boxed()
    }
}

const EMPTY: &str = r#"{"status":"success","data":{"resultType":"vector","result":[]}}"#;

/// A coalescer with a server, and all queries that come there.
fn coalescer(
    respond: impl Fn(&str) -> TableResult + Send + Sync + 'static,
) -> (Arc<Coalescer>, Sent) {
    let sent = Sent::default();
    (of_server(sending(respond, sent.clone())), sent)
}

fn of_server(server: SendQuery) -> Arc<Coalescer> {
    let options = Options { get: true, ..Options::new("http://prometheus") };
    let client = Client::over(Arc::new(Server(server)), options).unwrap();
    let send: SendQuery = Arc::new(move |query, flows| {
        let client = client.clone();
        async move { Ok(Arc::new(Table::from_body(client.query(&query, &flows).await?)?)) }.boxed()
    });
    Arc::new(Coalescer::new(Duration::from_secs(1), send, Spawner::unowned()))
}

/// The number of queries that came, and of them those that tell whether any passes.
fn counts(sent: &Sent) -> (usize, usize) {
    let sent = sent.lock().unwrap();
    let probes = sent.iter().filter(|query| *query == "vector(1)").count();
    (sent.len() - probes, probes)
}

fn refusal(status: u16) -> TableResult {
    failure(Error::Unavailable { status, message: "<html>Forbidden</html>".to_owned() })
}

#[tokio::test(start_paused = true)]
async fn a_query_that_a_proxy_does_not_pass_fails_no_other() {
    for status in [403, 405, 406] {
        let (coalescer, sent) = coalescer(move |query| match query.contains("a7") {
            true => refusal(status),
            false => empty(),
        });
        for round in 0..40 {
            sent.lock().unwrap().clear();
            let results = all(&coalescer, 0..50).await;
            let failed: Vec<usize> = (0..50).filter(|app| results[*app].is_err()).collect();
            assert_eq!(failed, [7], "{status}");
            let (queries, probes) = counts(&sent);
            assert!(round < 2 || queries <= 2 && probes <= 1, "{status}: {queries} {probes}");
            tokio::time::sleep(Duration::from_secs(15)).await;
        }
    }
}

/// They are next to each other in every part of a batch.
#[tokio::test(start_paused = true)]
async fn two_neighbours_that_a_proxy_does_not_pass_fail_no_other() {
    let (coalescer, sent) = coalescer(|query| {
        let names = query.split(['"', '|']);
        if names.into_iter().any(|name| ["a0", "a1"].contains(&name)) {
            refusal(403)
        } else {
            empty()
        }
    });
    for round in 0..40 {
        sent.lock().unwrap().clear();
        let results = all(&coalescer, 0..50).await;
        let failed: Vec<usize> = (0..50).filter(|app| results[*app].is_err()).collect();
        assert_eq!(failed, [0, 1], "round {round}");
        let (queries, probes) = counts(&sent);
        assert!(round < 2 || queries <= 3 && probes <= 2, "round {round}: {queries} {probes}");
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
}

/// Another tenant's queries, all of which a proxy does not pass, come three seconds before.
#[tokio::test(start_paused = true)]
async fn a_batch_of_which_all_are_refused_fails_no_query_of_another() {
    let (coalescer, _) =
        coalescer(|query| match query.contains("passwd") || query.contains("a7") {
            true => refusal(403),
            false => empty(),
        });
    // Ten shapes of two queries.
    let blocked = |n: usize| format!(r#"max by (pod) (y{{path="passwd{n}"}}) + {}"#, n % 10);
    let ask =
        async |n: usize| coalescer.get(&ShapedQuery::of(&blocked(n)), &Caller::user("other")).await;
    for round in 0..10 {
        let of_other = join_all((0..20).map(&ask)).await;
        assert!(of_other.iter().all(Result::is_err));
        tokio::time::sleep(Duration::from_secs(3)).await;
        let results = all(&coalescer, 0..50).await;
        let failed: Vec<usize> = (0..50).filter(|app| results[*app].is_err()).collect();
        assert_eq!(failed, [7], "round {round}");
        tokio::time::sleep(Duration::from_secs(12)).await;
    }
}

/// Nearly all of a batch are one tenant's, and bad.
#[tokio::test(start_paused = true)]
async fn one_query_among_many_that_a_proxy_does_not_pass_succeeds() {
    let (coalescer, _) = coalescer(|query| match query.contains("passwd") {
        true => refusal(403),
        false => empty(),
    });
    for round in 0..10 {
        let ask = async |n: usize| {
            let query = match n {
                0 => query(0),
                n => format!(r#"sum by (pod) (x{{app="passwd{n}"}})"#),
            };
            coalescer.get(&ShapedQuery::of(&query), &Caller::user("shop")).await
        };
        // New ones in each round.
        let others = round * 50 + 1..round * 50 + 51;
        let results = join_all(std::iter::once(0).chain(others).map(&ask)).await;
        assert!(results[0].is_ok(), "round {round}");
        assert!(results[1..].iter().all(Result::is_err));
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
}

/// Of administrators' rules, which all namespaces use.
#[tokio::test(start_paused = true)]
async fn many_batches_of_one_tenant_that_a_proxy_does_not_pass_fail_no_batch_of_all() {
    let (coalescer, _) =
        coalescer(|query| match query.contains("passwd") || query.contains("a7") {
            true => refusal(403),
            false => empty(),
        });
    let ask = async |query: String, namespace: &str| {
        coalescer.get(&ShapedQuery::of(&query), &Caller::of(namespace)).await
    };
    let of_tenant =
        |n: usize| ask(format!(r#"max by (pod) (y{{k="passwd{n}"}}) + {}"#, n % 20), "");
    for round in 0..5 {
        let of_tenant = join_all((0..40).map(of_tenant)).await;
        assert!(of_tenant.iter().all(Result::is_err));
        let all = (0..50).map(|app| ask(query(app), if app % 2 == 0 { "shop" } else { "team" }));
        let results = join_all(all).await;
        let failed: Vec<usize> = (0..50).filter(|app| results[*app].is_err()).collect();
        assert_eq!(failed, [7], "round {round}");
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
}

/// What was sent before the token expired and is answered after that tells nothing of the token, though it was sent after
/// what is refused now.
#[tokio::test(start_paused = true)]
async fn a_batch_that_waited_while_the_token_expired_is_not_split() {
    let expires = Instant::now() + Duration::from_secs(10);
    let sent = Sent::default();
    let respond = move |_: &str| match Instant::now() >= expires {
        true => refusal(403),
        false => empty(),
    };
    let quick = sending(respond, sent.clone());
    let slow: SendQuery = {
        let quick = quick.clone();
        Arc::new(move |query, flows| {
            let quick = quick.clone();
            async move {
                if !query.contains("quick") && query != "vector(1)" {
                    tokio::time::sleep(Duration::from_secs(5)).await;
                }
                quick(query, flows).await
            }
            .boxed()
        })
    };
    let coalescer = of_server(slow);
    assert!(all(&coalescer, 0..200).await.iter().all(Result::is_ok));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = sent.lock().unwrap().len();
    let waits = {
        let coalescer = coalescer.clone();
        tokio::spawn(async move { all(&coalescer, 0..200).await })
    };
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(get(&coalescer, "max by (pod) (quick)").await.is_ok());
    assert!(waits.await.unwrap().iter().all(Result::is_err));
    // Of the other, of these, and whether the server passes any.
    let many = sent.lock().unwrap().len() - before;
    assert!(many <= 3, "{many}");
}

/// A rule against `|`, which only batches have.
#[tokio::test(start_paused = true)]
async fn where_a_proxy_passes_no_batch_each_query_is_sent_by_itself() {
    let (coalescer, sent) = coalescer(|query| match query.contains('|') {
        true => refusal(403),
        false => empty(),
    });
    // Of many namespaces: those of one would wait for seats.
    let ask = async |n: usize| {
        let query = ShapedQuery::of(&format!("{} + {}", query(n), n % 5));
        coalescer.get(&query, &Caller::of(&format!("team-{}", n % 20))).await
    };
    for _ in 0..3 {
        sent.lock().unwrap().clear();
        let began = tokio::time::Instant::now();
        let results = join_all((0..200).map(&ask)).await;
        let failed: Vec<usize> = (0..200).filter(|n| results[*n].is_err()).collect();
        assert_eq!(failed, [0; 0], "{:?}", sent.lock().unwrap());
        // Fifty trees of four leaves, and what tells whether the proxy passes any.
        let (queries, probes) = counts(&sent);
        assert!(queries + probes <= 50 * (7 + 2), "{queries} {probes}");
        // A request takes 5 ms.
        assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
}

/// Prometheus hangs, and the proxy refuses some queries at once: none waits for more than two probes of two seconds.
#[tokio::test(start_paused = true)]
async fn while_prometheus_hangs_a_refused_query_is_told_soon() {
    let quick = sending(|_| refusal(403), Sent::default());
    let hanging: SendQuery = Arc::new(move |query, flows| match query.contains("passwd") {
        true => quick(query, flows),
        false => std::future::pending().boxed(),
    });
    let coalescer = of_server(hanging);
    let began = Instant::now();
    let blocked = |n: usize| format!(r#"max by (pod) (y{{path="passwd{n}"}}) + {n}"#);
    let results = join_all((0..60).map(async |n| get(&coalescer, &blocked(n)).await)).await;
    assert!(results.iter().all(Result::is_err));
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn queries_too_long_for_a_proxy_that_answers_403_are_sent_in_smaller_parts() {
    let (coalescer, sent) = coalescer(|query| match query.len() > 200 {
        true => refusal(403),
        false => empty(),
    });
    for _ in 0..4 {
        sent.lock().unwrap().clear();
        assert!(all(&coalescer, 0..100).await.iter().all(Result::is_ok));
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    assert!(sent.lock().unwrap().iter().all(|query| query.len() <= 200));
}

/// One that has just been accepted.
#[tokio::test(start_paused = true)]
async fn when_a_token_expires_no_batch_is_split() {
    let expired = Arc::new(Mutex::new(false));
    let state = expired.clone();
    let (coalescer, sent) = coalescer(move |query| match *state.lock().unwrap() {
        true if !query.contains("slow") => refusal(403),
        _ => empty(),
    });
    let many = || sent.lock().unwrap().len();
    for _ in 0..3 {
        assert!(all(&coalescer, 0..200).await.iter().all(Result::is_ok));
        tokio::time::sleep(Duration::from_millis(1_100)).await;
    }
    // Another was sent before, and its result arrives afterwards: it tells nothing about the token.
    let slow = {
        let (coalescer, query) = (coalescer.clone(), "max by (pod) (slow)");
        tokio::spawn(async move { get(&coalescer, query).await })
    };
    tokio::time::sleep(Duration::from_millis(3)).await;
    let before = many();
    *expired.lock().unwrap() = true;
    assert!(all(&coalescer, 0..200).await.iter().all(Result::is_err));
    assert!(many() - before <= 1 + 2, "{}", many() - before);
    assert!(slow.await.unwrap().is_ok());
    tokio::time::sleep(Duration::from_secs(9)).await;
    *expired.lock().unwrap() = false;
    let before = many();
    assert!(all(&coalescer, 0..200).await.iter().all(Result::is_ok));
    assert_eq!(many() - before, 1);
}

#[tokio::test(start_paused = true)]
async fn with_an_expired_token_no_batch_is_split() {
    for status in [401, 403] {
        let expired = Arc::new(Mutex::new(true));
        let state = expired.clone();
        let (coalescer, sent) = coalescer(move |_| match *state.lock().unwrap() {
            true => refusal(status),
            false => empty(),
        });
        let required = |app: usize| query(app).replace("})", r#",pod!=""})"#);
        // Of forty shapes, at the same time.
        let ask = async |n: usize| get(&coalescer, &format!("{} + {}", required(n), n % 40)).await;
        let round = async || join_all((0..240).map(&ask)).await;
        for _ in 0..20 {
            assert!(round().await.iter().all(Result::is_err));
            tokio::time::sleep(Duration::from_secs(15)).await;
        }
        let (queries, probes) = counts(&sent);
        assert!(queries <= 20 * 40 && probes <= 20 * 2, "{status}: {queries} {probes}");
        assert!(!sent.lock().unwrap().iter().any(|query| query.contains("pod!=")), "{status}");
        *expired.lock().unwrap() = false;
        sent.lock().unwrap().clear();
        assert!(round().await.iter().all(Result::is_ok));
        assert_eq!(sent.lock().unwrap().len(), 40);
    }
}
