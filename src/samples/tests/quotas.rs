//! The memory for shapes and recent queries, with callers that use all that they may.

use super::super::coalesce::Coalescer;
use super::super::flight::TableResult;
use super::super::recent_quota::USER_RECENT_QUERY_BYTES;
use super::super::{Caller, QueryHandle};
use super::coalescer::{all, coalescer, empty, failure, get, query, refused};
use crate::prometheus::Error;
use crate::promql::shape::ShapedQuery;
use futures::future::join_all;
use std::sync::Arc;
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn a_query_whose_failure_finds_no_room_is_isolated() {
    let (coalescer, sent) = coalescer(|query| match query.contains("bad") {
        true => failure(Error::Refused("many-to-many matching not allowed".to_owned())),
        false => empty(),
    });
    for _ in 0..3 {
        // Everything that the namespace may have, down to the last few bytes.
        for values in [20_000, 1_000, 50, 1] {
            let large = |n: usize| {
                let query = ShapedQuery::of(&format!(r#"sum by (pod) (x{values}_{n}{{a="v"}})"#));
                ShapedQuery { arguments: Arc::from([vec!["v".to_owned(); values]]), ..query }
            };
            let ask = async |n| coalescer.get(&large(n), &Caller::user("greedy")).await.unwrap();
            join_all((0..40).map(ask)).await;
        }
        sent.lock().unwrap().clear();
        let bad = ShapedQuery::of(r#"sum by (pod) (x{app="bad"})"#);
        let user = Caller::user("greedy");
        let (bad, good) = tokio::join!(coalescer.get(&bad, &user), all(&coalescer, 0..10));
        assert!(refused(&bad) && good.iter().all(Result::is_ok));
        let sent = sent.lock().unwrap().clone();
        assert_eq!(sent.len(), 2, "{sent:#?}");
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
}

/// Uses all bytes of recent queries that a caller may have, down to the last few. The queries are
/// refused, and so are remembered for minutes.
async fn fill(coalescer: &Arc<Coalescer>, caller: &Caller) {
    let used = || coalescer.recent_bytes_of(&caller.namespace);
    for values in [20_000, 1_000, 50, 1] {
        for n in 0.. {
            let query = format!(r#"sum by (pod) ({}_{values}_{n}{{a="v"}})"#, caller.namespace);
            let query = ShapedQuery::of(&query);
            let arguments = Arc::from([vec!["v".to_owned(); values]]);
            let query = ShapedQuery { arguments, ..query };
            let before = used();
            assert!(refused(&coalescer.get(&query, caller).await));
            if used() == before {
                break;
            }
        }
    }
}

fn refuse_greedy(query: &str) -> TableResult {
    match query.contains("greedy") {
        true => failure(Error::Refused("many-to-many matching not allowed".to_owned())),
        false => empty(),
    }
}

#[tokio::test(start_paused = true)]
async fn users_recent_queries_leave_those_of_templates_room() {
    let (coalescer, sent) = coalescer(refuse_greedy);
    for n in 0..10 {
        fill(&coalescer, &Caller::user(&format!("greedy_{n}"))).await;
    }
    for _ in 0..2 {
        sent.lock().unwrap().clear();
        assert!(all(&coalescer, 0..1_000).await.iter().all(Result::is_ok));
        let sent = sent.lock().unwrap().len();
        assert!(sent <= 4, "{sent}");
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn templates_queries_without_room_are_batched_all_the_same() {
    let (coalescer, sent) = coalescer(refuse_greedy);
    let greedy = Caller::of("greedy");
    fill(&coalescer, &greedy).await;
    sent.lock().unwrap().clear();
    let ask = async |app| coalescer.get(&ShapedQuery::of(&query(app)), &greedy).await;
    assert!(join_all((0..100).map(ask)).await.iter().all(Result::is_ok));
    assert_eq!(sent.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn ever_new_queries_of_a_namespace_are_forgotten_and_leave_others_room() {
    let (coalescer, _) = coalescer(|_| empty());
    let ask = async |namespace: &str, query: ShapedQuery| {
        coalescer.get(&query, &Caller::user(namespace)).await.unwrap();
    };
    for round in 0..5 {
        // Each with a shape of its own, that is not repeated, and half a MiB of values.
        let large = |n: usize| {
            let query = ShapedQuery::of(&format!(r#"sum by (pod) (x{round}_{n}{{a="v"}})"#));
            ShapedQuery { arguments: Arc::from([vec!["v".to_owned(); 20_000]]), ..query }
        };
        join_all((0..40).map(|n| ask("greedy", large(n)))).await;
        let greedy = coalescer.recent_bytes_of("greedy");
        assert!((3 << 20..=USER_RECENT_QUERY_BYTES / 2).contains(&greedy), "{greedy}");
        ask("good", ShapedQuery::of(&query(round))).await;
        assert!(coalescer.recent_bytes_of("good") > 0);
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert_eq!(
            (coalescer.recent_bytes_of("greedy"), coalescer.recent_bytes_of("good")),
            (0, 0)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_shape_is_not_forgotten_because_one_namespace_has_many() {
    let (coalescer, sent) = coalescer(|_| empty());
    let query_of = |n: usize| ShapedQuery::of(&format!(r#"x{n}{{a!="{}"}}"#, "v".repeat(30_000)));
    let queries: Vec<ShapedQuery> = (0..1_000).map(query_of).collect();
    get(&coalescer, &query(0)).await.unwrap();
    for _ in 0..3 {
        for query in &queries {
            coalescer.touch(query, &Caller::user("greedy"));
        }
    }
    sent.lock().unwrap().clear();
    get(&coalescer, &query(0)).await.unwrap();
    assert_eq!(sent.lock().unwrap().len(), 0);
}

/// A query whose shape takes 30 KB.
fn large(name: &str, app: usize) -> ShapedQuery {
    let padding = "v".repeat(30_000);
    ShapedQuery::of(&format!(r#"sum by (pod) ({name}{{a!="{padding}",app="a{app}"}})"#))
}

#[tokio::test(start_paused = true)]
async fn users_shapes_leave_those_of_templates_half_of_the_room_however_many_namespaces_query() {
    let (coalescer, sent) = coalescer(|_| empty());
    for namespace in 0..8 {
        let caller = Caller::user(&format!("greedy-{namespace}"));
        let name = |n: usize| format!("x{namespace}_{n}");
        let queries: Vec<ShapedQuery> =
            (0..300_usize >> namespace).map(|n| large(&name(n), 0)).collect();
        for _ in 0..10 {
            queries.iter().for_each(|query| coalescer.touch(query, &caller));
        }
    }
    let template = Caller::of("shop");
    let queries: Vec<ShapedQuery> = (0..100).map(|n| large(&format!("y{n}"), 0)).collect();
    for _ in 0..2 {
        join_all(queries.iter().map(|query| coalescer.get(query, &template))).await;
        coalescer.touch(&queries[0], &template);
    }
    assert_eq!(sent.lock().unwrap().len(), queries.len());
}

#[tokio::test(start_paused = true)]
async fn a_users_shape_without_room_is_queried_once_per_period() {
    let (coalescer, sent) = coalescer(|_| empty());
    let greedy = Caller::user("greedy");
    for n in 0..300 {
        coalescer.touch(&large(&format!("x{n}"), 0), &greedy);
    }
    let queries: Vec<Arc<ShapedQuery>> = (0..10).map(|app| Arc::new(large("y", app))).collect();
    for _ in 0..3 {
        let handle = |query: &Arc<ShapedQuery>| {
            QueryHandle::new(coalescer.clone(), greedy.clone(), query.clone())
        };
        let handles: Vec<_> = queries.iter().map(handle).collect();
        QueryHandle::prefetch(&handles);
        let results = join_all(queries.iter().map(|query| coalescer.get(query, &greedy))).await;
        assert!(results.iter().all(Result::is_ok));
        assert_eq!(std::mem::take(&mut *sent.lock().unwrap()).len(), 1);
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
}
