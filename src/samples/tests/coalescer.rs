//! The coalescer, with a Prometheus that fails or is slow.

use super::super::coalesce::{Coalescer, SendQuery};
use super::super::error::MetricError;
use super::super::flight::TableResult;
use super::super::table::Table;
use super::super::{Caller, QueryResult};
use super::sending;
use crate::prometheus::{Error, Flow};
use crate::promql::shape::ShapedQuery;
use crate::supervise::Spawner;
use futures::FutureExt;
use futures::future::join_all;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// The queries that were sent, in order.
pub(super) type Sent = Arc<Mutex<Vec<String>>>;

/// A coalescer with a function for a server, and the queries that it sends.
pub(super) fn coalescer(
    respond: impl Fn(&str) -> TableResult + Send + Sync + 'static,
) -> (Arc<Coalescer>, Sent) {
    let sent = Sent::default();
    let send = sending(respond, sent.clone());
    (Arc::new(Coalescer::new(Duration::from_secs(1), send, Spawner::unowned())), sent)
}

pub(super) async fn get(coalescer: &Arc<Coalescer>, query: &str) -> TableResult {
    coalescer.get(&ShapedQuery::of(query), &Caller::of("shop")).await
}

pub(super) fn query(app: usize) -> String {
    format!(r#"sum by (pod) (x{{app="a{app}"}})"#)
}

pub(super) fn empty() -> TableResult {
    let body = br#"{"status":"success","data":{"resultType":"vector","result":[]}}"#;
    Ok(Arc::new(Table::read(body).unwrap()))
}

pub(super) fn failure(error: Error) -> TableResult {
    Err(error.into())
}

pub(super) fn refused(result: &TableResult) -> bool {
    matches!(result, Err(MetricError::Prometheus(Error::Refused(_))))
}

pub(super) async fn all(
    coalescer: &Arc<Coalescer>,
    apps: std::ops::Range<usize>,
) -> Vec<TableResult> {
    join_all(apps.map(async |app| get(coalescer, &query(app)).await)).await
}

#[tokio::test(start_paused = true)]
async fn of_one_shape_only_a_few_batches_are_in_flight() {
    let in_flight = Arc::new(Mutex::new((0_usize, 0_usize)));
    let counted = in_flight.clone();
    let send: SendQuery = Arc::new(move |_, _| {
        let counted = counted.clone();
        async move {
            {
                let mut now = counted.lock().unwrap();
                *now = (now.0 + 1, now.1.max(now.0 + 1));
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            counted.lock().unwrap().0 -= 1;
            empty()
        }
        .boxed()
    });
    let coalescer = Arc::new(Coalescer::new(Duration::from_secs(1), send, Spawner::unowned()));
    // Twenty batches of two, each planned while those before are in flight.
    let batches = (0..20).map(async |n| {
        tokio::time::sleep(Duration::from_millis(20 * n as u64)).await;
        all(&coalescer, 2 * n..2 * n + 2).await
    });
    assert!(join_all(batches).await.iter().flatten().all(Result::is_ok));
    assert_eq!(in_flight.lock().unwrap().1, 4);
}

#[tokio::test(start_paused = true)]
async fn queries_that_were_split_while_prometheus_was_slow_are_batched_again() {
    let slow = Arc::new(Mutex::new(true));
    let state = slow.clone();
    let (coalescer, sent) = coalescer(move |_| match *state.lock().unwrap() {
        true => failure(Error::Timeout(Duration::from_secs(10))),
        false => empty(),
    });
    for _ in 0..40 {
        all(&coalescer, 0..60).await;
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
    *slow.lock().unwrap() = false;
    for _ in 0..20 {
        all(&coalescer, 0..60).await;
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
    sent.lock().unwrap().clear();
    assert!(all(&coalescer, 0..60).await.iter().all(Result::is_ok));
    assert_eq!(sent.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_query_that_is_refused_is_isolated_from_then_on() {
    let (coalescer, sent) =
        coalescer(|query| match query.contains("a7\"") || query.contains("a7|") {
            true => failure(Error::Refused("many-to-many matching not allowed".to_owned())),
            false => empty(),
        });
    let results = all(&coalescer, 0..32).await;
    let bad: Vec<usize> = (0..32).filter(|app| refused(&results[*app])).collect();
    assert_eq!(bad, [7]);
    tokio::time::sleep(Duration::from_secs(15)).await;
    sent.lock().unwrap().clear();
    let results = all(&coalescer, 0..32).await;
    assert!(refused(&results[7]) && results[8].is_ok());
    let sent = sent.lock().unwrap();
    assert!(sent.len() <= 2, "{sent:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_query_that_fails_its_batch_is_isolated_from_then_on() {
    for error in [
        Error::Partial("11 more warning annotations omitted".to_owned()),
        Error::InvalidResponse("it has more series than the limit".to_owned()),
        // A limit of Thanos.
        Error::Unavailable { status: 422, message: "expanding series: limit".to_owned() },
    ] {
        let (said, spoils) = (error.clone(), |query: &str| query.contains("a7"));
        let (coalescer, sent) = coalescer(move |query| match spoils(query) {
            true => failure(said.clone()),
            false => empty(),
        });
        let apps = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
        for round in 0..40 {
            sent.lock().unwrap().clear();
            let results = join_all(apps.map(async |app| get(&coalescer, &query(app)).await)).await;
            let bad: Vec<usize> = (0..10).filter(|app| results[*app].is_err()).collect();
            assert_eq!(bad, [7], "{error}");
            let sent = sent.lock().unwrap().clone();
            assert!(round == 0 || sent.len() <= 2, "{error}: {sent:#?}");
            tokio::time::sleep(Duration::from_secs(15)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_partial_unfiltered_result_objects_are_named() {
    let (coalescer, _) = coalescer(|query| match query.contains("app=") {
        false => failure(Error::Partial("11 more warning annotations omitted".to_owned())),
        true => empty(),
    });
    let query = |app: usize| format!(r#"sum by (pod) (x{{app="{app}",ns="n"}})"#);
    for _ in 0..3 {
        let all = join_all((0..100).map(async |app| get(&coalescer, &query(app)).await)).await;
        assert!(all.iter().all(Result::is_ok));
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn while_all_results_are_partial_batches_are_not_split_every_time() {
    let down = Arc::new(Mutex::new(true));
    let state = down.clone();
    let (coalescer, sent) = coalescer(move |_| match *state.lock().unwrap() {
        true => failure(Error::Partial("No StoreAPIs matched for this query".to_owned())),
        false => empty(),
    });
    for _ in 0..20 {
        all(&coalescer, 0..60).await;
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
    // Once a minute, and once in each of the other rounds.
    let many = sent.lock().unwrap().len();
    assert!(many < 5 * 120 + 20, "{many}");
    *down.lock().unwrap() = false;
    sent.lock().unwrap().clear();
    assert!(all(&coalescer, 0..60).await.iter().all(Result::is_ok));
    assert_eq!(sent.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn queries_with_partial_results_fail_no_others_even_after_splitting_did_not_help() {
    for ever_new in [false, true] {
        let (coalescer, sent) = coalescer(|query| match query.contains("bad") {
            true => failure(Error::Partial("11 more warning annotations omitted".to_owned())),
            false => empty(),
        });
        let mut sent_for_good = Vec::new();
        // Two bad queries every second, always the same or always new, and the good ones of their
        // shape now and then.
        for second in 0..100 {
            let bad = |n: usize| {
                let n = if ever_new { 2 * second + n } else { n };
                format!(r#"sum by (pod) (x{{app="bad{n}"}})"#)
            };
            sent.lock().unwrap().clear();
            let [bad, other] = [bad(0), bad(1)];
            let apps = if second > 8 && second % 7 == 3 { 2..10 } else { 0..0 };
            let has_good = !apps.is_empty();
            let (bad, other, good) =
                tokio::join!(get(&coalescer, &bad), get(&coalescer, &other), all(&coalescer, apps));
            assert!(bad.is_err() && other.is_err());
            assert!(good.iter().all(Result::is_ok), "at {second}, ever new: {ever_new}");
            if has_good {
                sent_for_good.push(sent.lock().unwrap().len());
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        // The same two are soon isolated.
        assert!(ever_new || sent_for_good[2..].iter().all(|sent| *sent <= 3), "{sent_for_good:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_query_does_not_split_those_whose_results_stay_partial() {
    let (coalescer, sent) =
        coalescer(|_| failure(Error::Partial("No StoreAPIs matched for this query".to_owned())));
    for round in 0..20 {
        let new = all(&coalescer, 1_000 + round..1_001 + round);
        tokio::join!(all(&coalescer, 0..60), new);
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
    // All of them once a minute; for each new query two parts more, the earlier ones and itself.
    let many = sent.lock().unwrap().len();
    assert!(many < 5 * 125 + 20 * 3, "{many}");
}

#[tokio::test(start_paused = true)]
async fn a_query_that_takes_too_long_fails_its_batch_a_few_times_and_not_again() {
    let sent = Sent::default();
    let seen = sent.clone();
    let send: SendQuery = Arc::new(move |query: String, _| {
        let seen = seen.clone();
        async move {
            seen.lock().unwrap().push(query.clone());
            let slow = query.contains("a7\"") || query.contains("a7|");
            let time = Duration::from_secs(if slow { 10 } else { 1 });
            tokio::time::sleep(time).await;
            if slow { failure(Error::Timeout(time)) } else { empty() }
        }
        .boxed()
    });
    let coalescer = Arc::new(Coalescer::new(Duration::from_secs(2), send, Spawner::unowned()));
    let mut failed = Vec::new();
    for _ in 0..60 {
        sent.lock().unwrap().clear();
        let results = all(&coalescer, 0..255).await;
        failed.push(results.iter().filter(|result| result.is_err()).count());
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
    // All of the first, then a quarter, and so on.
    assert_eq!(failed[0], 255);
    assert!(failed.windows(2).all(|two| two[1] <= two[0].div_ceil(3)), "{failed:?}");
    assert!(failed[5..].iter().all(|failed| *failed == 1), "{failed:?}");
    assert!(sent.lock().unwrap().len() <= 2);
}

#[tokio::test(start_paused = true)]
async fn callers_of_a_good_part_do_not_wait_for_the_bad_one() {
    let send: SendQuery = Arc::new(|query: String, _| {
        async move {
            let (bad, batched) = (query.contains("a0"), query.contains('|'));
            if bad && !batched {
                tokio::time::sleep(Duration::from_secs(60)).await;
            }
            if bad { failure(Error::Refused("bad".to_owned())) } else { empty() }
        }
        .boxed()
    });
    let coalescer = Arc::new(Coalescer::new(Duration::from_secs(1), send, Spawner::unowned()));
    let began = tokio::time::Instant::now();
    let last = async {
        get(&coalescer, &query(7)).await.unwrap();
        began.elapsed()
    };
    let (_, took) = tokio::join!(all(&coalescer, 0..7), last);
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_caller_covered_by_a_failed_unfiltered_query_sends_one_query_and_not_one_each_time() {
    let (coalescer, sent) = coalescer(|query| match query.contains("pod=") {
        false => failure(Error::Unavailable { status: 500, message: String::new() }),
        true => empty(),
    });
    let pods = |app: usize| {
        let names: Vec<String> = (0..10).map(|pod| format!("p-{app}-{pod}")).collect();
        format!(r#"sum by (pod) (x{{ns="n",pod=~"{}"}})"#, names.join("|"))
    };
    // So many that the pod is not named, which fails.
    let many = join_all((0..100).map(async |app| get(&coalescer, &pods(app)).await)).await;
    assert!(many.iter().all(Result::is_err));
    sent.lock().unwrap().clear();
    let late = join_all((0..50).map(async |_| get(&coalescer, &pods(200)).await)).await;
    assert!(late.iter().all(Result::is_ok));
    assert_eq!(sent.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_result_is_dropped_once_it_expires() {
    let cached = Arc::new(Mutex::new(Weak::new()));
    let last = cached.clone();
    let (coalescer, _) = coalescer(move |_| {
        let result = empty();
        *last.lock().unwrap() = Arc::downgrade(result.as_ref().unwrap());
        result
    });
    let is_cached = || cached.lock().unwrap().upgrade().is_some();
    drop(get(&coalescer, "x").await);
    tokio::time::sleep(Duration::from_millis(900)).await;
    assert!(is_cached());
    tokio::time::sleep(Duration::from_millis(360)).await;
    assert!(!is_cached());
}

/// One that comes after its expiry, and after others were dropped.
#[tokio::test(start_paused = true)]
async fn a_slow_result_is_dropped_too() {
    let cached = Arc::new(Mutex::new(Vec::new()));
    let seen = cached.clone();
    let send: SendQuery = Arc::new(move |query: String, _| {
        let seen = seen.clone();
        async move {
            let wait = if query.contains("a1\"") { 1_400 } else { 1_700 };
            tokio::time::sleep(Duration::from_millis(wait)).await;
            let result = empty();
            seen.lock().unwrap().push(Arc::downgrade(result.as_ref().unwrap()));
            result
        }
        .boxed()
    });
    let coalescer = Arc::new(Coalescer::new(Duration::from_secs(1), send, Spawner::unowned()));
    // Planned one after the other, so that they are two queries.
    let ask = async |app: u64| {
        tokio::time::sleep(Duration::from_millis(2 * app)).await;
        drop(get(&coalescer, &query(app as usize)).await);
    };
    tokio::join!(ask(1), ask(2));
    tokio::time::sleep(Duration::from_millis(600)).await;
    let cached = cached.lock().unwrap();
    assert_eq!(cached.len(), 2);
    assert!(cached.iter().all(|result| result.upgrade().is_none()));
}

#[tokio::test(start_paused = true)]
async fn a_batch_beyond_one_namespaces_bytes_is_split() {
    let send: SendQuery = Arc::new(|_, flows: Vec<Flow>| {
        let full = flows.contains(&Flow::User("greedy".into()));
        let result = if full { failure(Error::Memory { limit: 1 }) } else { empty() };
        std::future::ready(result).boxed()
    });
    let coalescer = Arc::new(Coalescer::new(Duration::from_secs(1), send, Spawner::unowned()));
    let ask = async |namespace: &str| {
        let query = format!(r#"sum by (pod) (x{{namespace="{namespace}"}})"#);
        coalescer.get(&ShapedQuery::of(&query), &Caller::user(namespace)).await
    };
    for _ in 0..3 {
        let (greedy, good, other) = tokio::join!(ask("greedy"), ask("good"), ask("other"));
        assert!(greedy.is_err() && good.is_ok() && other.is_ok());
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
}

/// Prometheus refuses what loads too many samples.
#[tokio::test(start_paused = true)]
async fn a_batch_that_is_too_large_only_as_a_whole_is_not_sent_each_time() {
    let (coalescer, sent) = coalescer(|query| match query.matches('|').count() >= 20 {
        true => failure(Error::Refused("query processing would load too many samples".to_owned())),
        false => empty(),
    });
    assert!(all(&coalescer, 0..100).await.iter().all(Result::is_ok));
    tokio::time::sleep(Duration::from_secs(5)).await;
    sent.lock().unwrap().clear();
    assert!(all(&coalescer, 0..100).await.iter().all(Result::is_ok));
    let sent = sent.lock().unwrap();
    assert!(sent.iter().all(|query| query.matches('|').count() < 20), "{sent:#?}");
    assert!(sent.len() < 20, "{}", sent.len());
}

/// Others' responses fill the budget that templates share: none of their queries is at fault.
#[tokio::test(start_paused = true)]
async fn a_lack_of_memory_isolates_no_query_of_a_template() {
    let is_full = Arc::new(Mutex::new(true));
    let full = is_full.clone();
    let (coalescer, sent) =
        coalescer(move |query| match *full.lock().unwrap() && query.contains("a7\"") {
            true => failure(Error::Memory { limit: 1 }),
            false => empty(),
        });
    // It fails by itself while another succeeds.
    let (seventh, eighth) = (query(7), query(8));
    let (alone, other) = tokio::join!(get(&coalescer, &seventh), async {
        tokio::time::sleep(Duration::from_millis(2)).await;
        get(&coalescer, &eighth).await
    });
    assert!(alone.is_err() && other.is_ok());
    *is_full.lock().unwrap() = false;
    tokio::time::sleep(Duration::from_secs(15)).await;
    sent.lock().unwrap().clear();
    assert!(all(&coalescer, 0..32).await.iter().all(Result::is_ok));
    assert_eq!(sent.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_a_response_is_decoded_fails_only_that_metric() {
    let (coalescer, _) = coalescer(|query| match query.contains("bad") {
        true => panic!("a fault of our own"),
        false => empty(),
    });
    for _ in 0..2 {
        assert!(get(&coalescer, "bad").await.is_err());
        assert!(get(&coalescer, "good").await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn a_query_that_is_too_long_for_a_proxy_is_split() {
    let (coalescer, sent) = coalescer(|query| match query.len() > 200 {
        true => failure(Error::TooLong { status: 413, message: String::new() }),
        false => empty(),
    });
    assert!(all(&coalescer, 0..100).await.iter().all(Result::is_ok));
    tokio::time::sleep(Duration::from_secs(15)).await;
    sent.lock().unwrap().clear();
    assert!(all(&coalescer, 0..100).await.iter().all(Result::is_ok));
    assert!(sent.lock().unwrap().iter().all(|query| query.len() <= 200));
}

#[tokio::test(start_paused = true)]
async fn a_required_label_is_matched_only_after_a_query_without_it_failed() {
    // As where series without the label match several others.
    let body = br#"{"status":"success","data":{"resultType":"vector","result":[
        {"metric":{"app":"a0","pod":"p"},"value":[5,"1"]},{"metric":{"app":"a0"},"value":[5,"2"]}]}}"#;
    let fails = Arc::new(Mutex::new(false));
    let failing = fails.clone();
    let (coalescer, sent) =
        coalescer(move |query| match *failing.lock().unwrap() && !query.contains("pod!=") {
            true => failure(Error::Refused("many-to-many matching not allowed".to_owned())),
            false => Ok(Arc::new(Table::read(body).unwrap())),
        });
    let required = |app: usize| format!(r#"sum by (pod) (x{{app="a{app}",pod!=""}})"#);
    let sent_for = async |apps: std::ops::Range<usize>| {
        sent.lock().unwrap().clear();
        let queries = apps.map(async |app| get(&coalescer, &required(app)).await);
        assert!(join_all(queries).await.iter().all(Result::is_ok));
        let sent = sent.lock().unwrap();
        [sent.len(), sent.iter().filter(|query| query.contains("pod!=")).count()]
    };
    assert_eq!(sent_for(0..4).await, [1, 0]);
    // The rows without the label are of no query.
    let table = get(&coalescer, &required(0)).await.unwrap();
    let query = Arc::new(ShapedQuery::of(&required(0)));
    assert!(query.text().contains(r#"{app="a0",pod!=""}"#));
    let result = QueryResult::detached(table, query);
    assert_eq!(result.iter().map(|series| series.label("pod")).collect::<Vec<_>>(), ["p"]);
    *fails.lock().unwrap() = true;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(sent_for(0..4).await, [2, 1]);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(sent_for(0..4).await, [1, 1]);
    *fails.lock().unwrap() = false;
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert_eq!(sent_for(0..4).await, [1, 0]);
}

/// VictoriaMetrics, for example.
#[tokio::test(start_paused = true)]
async fn a_server_that_quotes_a_batch_shows_no_namespace_the_queries_of_another() {
    let quoting =
        |query: &str| Error::Unavailable { status: 503, message: format!("executing {query:?}") };
    let (coalescer, sent) = coalescer(move |query| failure(quoting(query)));
    let queries = [("shop", 1), ("zz", 2)].map(|(namespace, app)| {
        let (coalescer, query) = (&coalescer, ShapedQuery::of(&query(app)));
        async move { coalescer.get(&query, &Caller::of(namespace)).await }
    });
    for result in join_all(queries).await {
        let error = result.unwrap_err().to_string();
        assert!(error.contains("503") && !error.contains("pod"), "{error}");
    }
    assert_eq!(sent.lock().unwrap().len(), 1);
    // Of one namespace it helps.
    let result = get(&coalescer, &query(3)).await;
    assert!(result.unwrap_err().to_string().contains("pod"));
}
