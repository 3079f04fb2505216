//! Requests at a steady rate, whose outcomes are counted.

use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval};

/// The requests that the pods of `shop/web` count, by the name that its Autoscaler publishes them under.
pub const REQUESTS: &str = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/shop/pods/*/http_requests_total_74234e98afe7_shop_web";

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
                response.map(|_| ()).map_err(|error| error.to_string())
            }
        })
    }

    /// Stops it, and returns what became of the requests.
    pub async fn stop(self) -> Outcome {
        let _ = self.stop.send(());
        self.task.await.expect("the load")
    }
}
