//! A replica of Plimsoll: the product's own parts, over the simulated ways.

use crate::api_server::{self, ApiServer};
use crate::network::{Dead, Network, ToApiServer, ToPrometheus};
use crate::workload::CONFIG;
use clap::Parser;
use futures::future::BoxFuture;
use kube::client::ClientBuilder;
use plimsoll::clock::WallClock;
use plimsoll::config::{Cli, Command, Config, ServeFlags};
use plimsoll::prometheus;
use plimsoll::replica::{Clock, Parts, Replica, TaskEnded, layered};
use plimsoll::telemetry::Metrics;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// A replica that runs. Its tasks end when it is dropped.
pub struct RunningReplica {
    stop: Option<oneshot::Sender<()>>,
    task: JoinSet<Result<(), TaskEnded>>,
    dead: Dead,
    external_metrics: Box<dyn Fn(String, String) -> BoxFuture<'static, bool> + Send>,
    /// The requests to its API that are under way.
    requests: JoinSet<bool>,
    /// Its own metrics.
    pub metrics: Arc<Metrics>,
}

impl Drop for RunningReplica {
    fn drop(&mut self) {
        self.dead.store(true, Ordering::Relaxed);
    }
}

impl RunningReplica {
    /// Starts a replica, whose process is the `number`th of all. `rules` are external rules besides those of [`CONFIG`].
    pub fn start(
        network: &Arc<Network>,
        api: &ApiServer,
        replica: usize,
        number: u64,
        scales_to_zero: bool,
        rules: &str,
    ) -> Self {
        let wall = {
            let network = network.clone();
            WallClock::new(move || {
                let millis = network.base() + network.now() + network.offset(replica);
                SystemTime::UNIX_EPOCH + Duration::from_millis(millis.unsigned_abs())
            })
        };
        let clock = Clock::with_wall(wall);
        let metrics = Arc::new(Metrics::default());
        let flags = flags(scales_to_zero);
        let dead = Dead::default();
        let client = |leases: bool| {
            let faults = ToApiServer { network: network.clone(), replica, dead: dead.clone() };
            let name = if leases {
                format!("replica-{replica}-leases")
            } else {
                format!("replica-{replica}")
            };
            let service = api_server::Network::new(api, &name, faults);
            let builder = ClientBuilder::new(service, crate::world::OWN_NAMESPACE);
            layered(builder, &flags, metrics.clone(), clock.clone(), None)
        };
        let transport = ToPrometheus { network: network.clone(), replica, dead: dead.clone() };
        let options = prometheus::Options {
            timeout: flags.prometheus.prometheus_timeout,
            ..prometheus::Options::new("http://prometheus:9090")
        };
        let prometheus = prometheus::Client::over(Arc::new(transport), options)
            .expect("a valid address")
            .counted(metrics.clone());
        let parts = Parts {
            config: config(rules),
            identity: format!("replica-{replica}-{number}"),
            api: client(false),
            leases: client(true),
            prometheus,
            clock,
            metrics: metrics.clone(),
            flags,
        };
        let made = Replica::new(parts).expect("flags that go together");
        let external_metrics = Box::new(made.external_metrics());
        let (stop, stopped) = oneshot::channel();
        let signal = async move {
            // Nobody stops it in order if the sender is dropped.
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let mut task = JoinSet::new();
        task.spawn(made.run(|stop| stop, signal));
        let requests = JoinSet::new();
        Self { stop: Some(stop), task, dead, external_metrics, requests, metrics }
    }

    /// Asks its API for an external metric. Nobody waits for the response.
    pub fn ask_external(&mut self, namespace: &str, metric: &str) {
        while self.requests.try_join_next().is_some() {}
        self.requests.spawn((self.external_metrics)(namespace.to_owned(), metric.to_owned()));
    }

    /// How many comparisons of observed HPAs had an outcome.
    pub fn comparisons(&self, outcome: &str) -> u64 {
        let text = self.metrics.openmetrics();
        let name = format!("plimsoll_native_hpa_comparisons_total{{outcome=\"{outcome}\"}} ");
        let count = text.lines().find_map(|line| line.strip_prefix(&name));
        count.and_then(|count| count.parse().ok()).unwrap_or(0)
    }

    /// Stops it in order.
    pub fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    /// Whether it was told to stop.
    pub fn is_stopping(&self) -> bool {
        self.stop.is_none()
    }

    /// How it ended, if it did.
    pub fn ended(&mut self) -> Option<Result<(), String>> {
        let ended = self.task.try_join_next()?;
        Some(
            ended
                .map_err(|error| error.to_string())
                .and_then(|ended| ended.map_err(|error| error.to_string())),
        )
    }
}

fn flags(scales_to_zero: bool) -> ServeFlags {
    let zero = format!("--scale-to-zero={scales_to_zero}");
    let line = [
        "plimsoll",
        "serve",
        "--prometheus-url=http://prometheus:9090",
        "--leader-elect=true",
        "--leader-elect-resource-namespace=plimsoll",
        "--native-hpas=observe",
        &zero,
    ];
    match Cli::try_parse_from(line).expect("valid flags").command {
        Command::Serve(flags) => *flags,
        _ => unreachable!("the command is serve"),
    }
}

fn config(rules: &str) -> Config {
    let mut file = tempfile::NamedTempFile::new().expect("a folder for temporary files");
    let text = [CONFIG.trim_end(), rules].concat();
    file.write_all(text.as_bytes()).expect("room for a small file");
    Config::read(file.path()).expect("a valid configuration")
}
