//! Queries of different shapes in one request, on a real Prometheus: each has exactly the values,
//! labels and errors that it has by itself.

use crate::rows::{Asked, rows_of};
use bed::random::Random;
use futures::future::join_all;
use plimsoll::prometheus::Client;
use plimsoll::replica::BackgroundTasks;
use plimsoll::samples::{Caller, Store};
use std::time::Duration;

/// The queries that are sent at the same time.
const TOGETHER: usize = 250;

/// The most times that the queries are sent until they are joined: on a busy machine a query may take too long by
/// itself at first.
const TIMES: usize = 12;

/// Sends the queries together, by a new store: the first time each shape by itself, as nothing is known of
/// it, and then joined.
pub async fn compare(url: &str, prometheus: &Client, mut asked: Vec<Asked>, seed: u64) {
    let background = BackgroundTasks::default();
    let store = Store::new(prometheus.clone(), Duration::ZERO, background.spawner());
    let mut random = Random(seed);
    while asked.len() >= TOGETHER {
        let random_one = |_| asked.swap_remove(random.below(asked.len()));
        let together: Vec<Asked> = (0..TOGETHER).map(random_one).collect();
        let first = send(url, &store, &together, seed).await;
        let mut again = Vec::new();
        // What is left by itself are errors and numbers without labels.
        while again.last().is_none_or(|again| 2 * again > first) {
            assert!(again.len() < TIMES, "seed {seed}: {first} requests, and then {again:?}");
            again.push(send(url, &store, &together, seed).await);
        }
        println!("{first} requests by shape, and then {again:?}");
    }
}

/// Sends the queries at once, and compares what they give with what they gave by themselves. Returns the number of
/// requests.
async fn send(url: &str, store: &Store, together: &[Asked], seed: u64) -> u64 {
    let before = requests(url).await;
    let caller = Caller::of("shop");
    let results = join_all(together.iter().map(|(query, _)| store.series(query, &caller))).await;
    let sent = requests(url).await - before;
    for ((query, alone), result) in together.iter().zip(results) {
        match (alone, result) {
            (Ok(rows), Ok(samples)) => {
                assert_eq!(rows_of(&samples), *rows, "seed {seed}: {query}");
            }
            (Err(_), Err(_)) => {}
            (alone, result) => panic!(
                "seed {seed}: {query}\n alone: {alone:?}\n joined: {:?}",
                result.map(|samples| rows_of(&samples)).map_err(|e| e.to_string())
            ),
        }
    }
    sent
}

/// The requests of queries that Prometheus has served.
async fn requests(url: &str) -> u64 {
    let text = reqwest::get(format!("{url}/metrics")).await.expect("metrics");
    let text = text.text().await.expect("metrics");
    let of_queries = |line: &&str| {
        line.starts_with("prometheus_http_requests_total")
            && line.contains("handler=\"/api/v1/query\"")
    };
    let count = |line: &str| line.rsplit_once(' ').expect("a value").1.parse::<f64>();
    text.lines().filter(of_queries).map(|line| count(line).expect("a count") as u64).sum()
}
