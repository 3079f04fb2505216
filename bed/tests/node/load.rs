//! Requests at a steady rate, whose outcomes are counted.

use crate::node::Node;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval};

/// The requests that the pods of `shop/web` count, by the name that its Autoscaler publishes them under.
pub const REQUESTS: &str = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/shop/pods/*/http_requests_total_74234e98afe7_shop_web";

/// This many requests a second for [`REQUESTS`] to kube-apiserver, on connections that are kept.
pub fn of_api(node: &Node, per_second: u32) -> Load {
    let client = node.cluster.client.clone();
    Load::start(per_second, move || {
        let request = http::Request::get(REQUESTS).body(Vec::new()).expect("a request");
        let client = client.clone();
        async move {
            let text = client.request_text(request).await.map_err(|error| error.to_string())?;
            if text.contains("MetricValueList") { Ok(()) } else { Err(text) }
        }
    })
}

/// How a client of the metrics API connects.
#[derive(Clone, Copy)]
pub struct Connections {
    /// Whether they are kept, or each request has one of its own.
    pub kept: bool,
    /// Whether they are of HTTP/1.1, or of HTTP/2.
    pub http1: bool,
}

/// This many requests a second for [`REQUESTS`] to a server, `HOST:PORT`, with the token of a service account. None
/// is sent again, but for those that a connection which was closed meanwhile has not taken, as every client does it:
/// over HTTP/1.1 on a connection that ended before it was used, over HTTP/2 after a GOAWAY without an error (RFC 9113,
/// section 6.8), which may arrive while a request is on its way to a connection.
pub fn of_server(server: &str, token: &str, per_second: u32, connections: Connections) -> Load {
    let url = format!("https://{server}{REQUESTS}");
    let client = reqwest::Client::builder()
        .tls_danger_accept_invalid_certs(true)
        .pool_max_idle_per_host(if connections.kept { usize::MAX } else { 0 })
        .timeout(Duration::from_secs(10));
    let client = if connections.http1 { client.http1_only() } else { client };
    let (client, token) = (client.build().expect("a client"), token.to_owned());
    Load::start(per_second, move || {
        let request = client.get(&url).bearer_auth(&token).send();
        async move {
            let response = request.await.and_then(reqwest::Response::error_for_status);
            response.map(|_| ()).map_err(|error| format!("{error:?}"))
        }
    })
}

/// Requests that are sent until they are stopped.
pub struct Load {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Outcome>,
}

/// What became of the requests.
pub struct Outcome {
    /// How many were sent.
    pub sent: usize,
    /// Why some failed.
    pub failures: Vec<String>,
}

impl Outcome {
    /// Checks that there were requests, and that none failed.
    pub fn all_succeeded(&self) {
        self.failed_at_most(0);
    }

    /// Checks that there were more requests than this, and that no more failed.
    pub fn failed_at_most(&self, most: usize) {
        let failed = self.failures.len();
        println!("{} requests, {failed} failed: {:?}", self.sent, self.failures.first());
        assert!(self.sent > most && failed <= most, "{failed} failed: {:?}", self.failures.first());
    }
}

impl Load {
    /// Sends this many requests a second, each on time, whether or not those before were answered.
    pub fn start<F>(per_second: u32, request: impl Fn() -> F + Send + 'static) -> Self
    where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let mut ticks = interval(Duration::from_secs(1) / per_second);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            let mut requests = JoinSet::new();
            let mut outcome = Outcome { sent: 0, failures: Vec::new() };
            loop {
                tokio::select! {
                    _ = ticks.tick() => {
                        outcome.sent += 1;
                        requests.spawn(request());
                    }
                    Some(done) = requests.join_next() => outcome.failures.extend(done.expect("a request").err()),
                    _ = &mut stopped => break,
                }
            }
            while let Some(done) = requests.join_next().await {
                outcome.failures.extend(done.expect("a request").err());
            }
            outcome
        });
        Self { stop, task }
    }

    /// The same to a URL, each request on a connection of its own.
    pub fn of_url(per_second: u32, url: String) -> Self {
        let client = reqwest::Client::builder().pool_max_idle_per_host(0);
        let client = client.timeout(Duration::from_secs(10)).build().expect("a client");
        Self::start(per_second, move || {
            let request = client.get(&url).send();
            async move {
                let response = request.await.and_then(reqwest::Response::error_for_status);
                response.map(|_| ()).map_err(|error| format!("{error:?}"))
            }
        })
    }

    /// Stops it, and returns what became of the requests.
    pub async fn stop(self) -> Outcome {
        let _ = self.stop.send(());
        self.task.await.expect("the load")
    }
}
