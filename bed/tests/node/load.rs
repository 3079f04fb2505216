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
        println!("{} requests, {} failed", self.sent, self.failures.len());
        assert!(self.sent > 0 && self.failures.is_empty(), "{:?}", self.failures.first());
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
