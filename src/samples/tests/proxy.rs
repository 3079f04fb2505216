//! A proxy before Prometheus that lets something not pass.

use super::super::flight::TableResult;
use super::coalescer::{all, coalescer, empty, failure, get, query};
use crate::prometheus::Error;
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
        // Of ten shapes, at the same time.
        let ask = async |n: usize| get(&coalescer, &format!("{} + {}", required(n), n % 10)).await;
        let round = async || join_all((0..60).map(&ask)).await;
        for _ in 0..20 {
            assert!(round().await.iter().all(Result::is_err));
            tokio::time::sleep(Duration::from_secs(15)).await;
        }
        // Two of them all by themselves, to see whether it is the proxy.
        let many = sent.lock().unwrap().len();
        assert!(many <= 20 * (10 + 2), "{status}: {many}");
        assert!(!sent.lock().unwrap().iter().any(|query| query.contains("pod!=")), "{status}");
        *expired.lock().unwrap() = false;
        sent.lock().unwrap().clear();
        assert!(round().await.iter().all(Result::is_ok));
        assert_eq!(sent.lock().unwrap().len(), 10);
    }
}
