//! A proxy before Prometheus that lets something not pass.

use super::super::Caller;
use super::super::flight::TableResult;
use super::coalescer::{all, coalescer, empty, failure, get, query};
use crate::prometheus::Error;
use crate::promql::shape::ShapedQuery;
use futures::future::join_all;
use std::sync::{Arc, Mutex};
use std::time::Duration;

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
            let sent = sent.lock().unwrap().len();
            assert!(round < 2 || sent <= 2, "{status}: {sent}");
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
        let sent = sent.lock().unwrap().len();
        assert!(round < 2 || sent <= 3, "round {round}: {sent}");
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

/// A rule against `|`, which only batches have.
#[tokio::test(start_paused = true)]
async fn where_a_proxy_passes_no_batch_each_query_is_sent_by_itself() {
    let (coalescer, sent) = coalescer(|query| match query.contains('|') {
        true => refusal(403),
        false => empty(),
    });
    let ask = async |n: usize| get(&coalescer, &format!("{} + {}", query(n), n % 5)).await;
    for _ in 0..3 {
        sent.lock().unwrap().clear();
        let began = tokio::time::Instant::now();
        let results = join_all((0..200).map(&ask)).await;
        let failed: Vec<usize> = (0..200).filter(|n| results[*n].is_err()).collect();
        assert_eq!(failed, [0; 0], "{:?}", sent.lock().unwrap());
        // Fifty trees of four leaves, and two of each by themselves to see whether the proxy passes any.
        let sent = sent.lock().unwrap().len();
        assert!(sent <= 50 * (7 + 2), "{sent}");
        // A request takes 5 ms.
        assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
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
        // Some of them by themselves, to see whether it is the proxy.
        let many = sent.lock().unwrap().len();
        assert!(many <= 20 * (40 + 16), "{status}: {many}");
        assert!(!sent.lock().unwrap().iter().any(|query| query.contains("pod!=")), "{status}");
        *expired.lock().unwrap() = false;
        sent.lock().unwrap().clear();
        assert!(round().await.iter().all(Result::is_ok));
        assert_eq!(sent.lock().unwrap().len(), 40);
    }
}
