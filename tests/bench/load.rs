//! The HTTP load tool: the same for both sides.

use crate::world::World;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What came of a load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Requests answered, a second.
    pub rps: f64,
    /// Latencies.
    pub p50: Duration,
    pub p99: Duration,
    /// Requests that were not answered with 200.
    pub errors: usize,
}

/// A client with the administrator's certificate and one connection.
pub fn client(world: &World) -> reqwest::Client {
    let read = |end: &str| {
        std::fs::read(world.cluster.folder.join(format!("admin.{end}"))).expect("a file")
    };
    let mut pem = read("crt");
    pem.extend(read("key"));
    let builder = reqwest::Client::builder()
        .identity(reqwest::Identity::from_pem(&pem).expect("a certificate"))
        // Both make their own certificates, and nothing but figures is read from them.
        .tls_danger_accept_invalid_certs(true)
        .http1_only()
        .timeout(Duration::from_secs(60))
        .pool_max_idle_per_host(1);
    builder.build().expect("a client")
}

/// Asks for the paths in turn, over so many connections, for so long.
pub async fn send(world: &World, paths: &[String], connections: usize, time: Duration) -> Load {
    let urls: Arc<Vec<reqwest::Url>> = {
        let url = |path| format!("https://127.0.0.1:{}{path}", world.adapter_port);
        Arc::new(paths.iter().map(|path| url(path).parse().expect("a URL")).collect())
    };
    let next = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let connection = |_| {
        let (client, urls, next) = (client(world), urls.clone(), next.clone());
        tokio::spawn(async move {
            let (mut latencies, mut errors) = (Vec::new(), 0);
            while start.elapsed() < time {
                let place = next.fetch_add(1, Ordering::Relaxed) % urls.len();
                let begun = Instant::now();
                let good = match client.get(urls[place].clone()).send().await {
                    Ok(answer) => {
                        let good = answer.status().is_success();
                        answer.bytes().await.is_ok_and(|body| !body.is_empty()) && good
                    }
                    Err(_) => false,
                };
                if good { latencies.push(begun.elapsed()) } else { errors += 1 }
            }
            (latencies, errors)
        })
    };
    let tasks: Vec<_> = (0..connections).map(connection).collect();
    let (mut latencies, mut errors) = (Vec::new(), 0);
    for task in tasks {
        let (of_task, failed) = task.await.expect("a connection");
        latencies.extend(of_task);
        errors += failed;
    }
    let seconds = start.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let at = |part: f64| {
        let place = ((latencies.len() as f64 * part) as usize).min(latencies.len().max(1) - 1);
        latencies.get(place).copied().unwrap_or(time)
    };
    Load { rps: latencies.len() as f64 / seconds, p50: at(0.5), p99: at(0.99), errors }
}
