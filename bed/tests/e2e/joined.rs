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

/// Sends the queries together, by a new store: the first time each shape by itself, as nothing is known of
/// it, and then joined.
pub async fn compare(url: &str, prometheus: &Client, mut asked: Vec<Asked>, seed: u64) {
    let background = BackgroundTasks::default();
    let store = Store::new(prometheus.clone(), Duration::ZERO, background.spawner());
    let mut random = Random(seed);
    let (mut first, mut again) = (0, 0);
    while !asked.is_empty() {
        let count = TOGETHER.min(asked.len());
        let random_one = |_| asked.swap_remove(random.below(asked.len()));
        let together: Vec<Asked> = (0..count).map(random_one).collect();
        for time in 0..3 {
            let before = requests(url).await;
            let caller = Caller::of("shop");
            let results = together.iter().map(|(query, _)| store.series(query, &caller));
            let results = join_all(results).await;
            let sent = requests(url).await - before;
            match time {
                0 => first += sent,
                _ => again += sent,
            }
            for ((query, alone), result) in together.iter().zip(results) {
                match (alone, result) {
                    (Ok(rows), Ok(samples)) => {
                        assert_eq!(rows_of(&samples), *rows, "time {time}, seed {seed}: {query}");
                    }
                    (Err(_), Err(_)) => {}
                    (alone, result) => panic!(
                        "time {time}, seed {seed}: {query}\n alone: {alone:?}\n joined: {:?}",
                        result.map(|samples| rows_of(&samples)).map_err(|e| e.to_string())
                    ),
                }
            }
        }
    }
    println!("{first} requests by shape, and then {again} twice");
    // Of those that are left most are errors, numbers without labels, and such as must be learned by
    // themselves first.
    assert!(again < first, "{again} requests, twice, after {first}");
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
