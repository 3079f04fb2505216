//! A replica: the watches, the rules, the query results, the control loop and the election. `app` runs
//! it beside the API and all that needs the host, a simulation by itself.

mod settings;
mod shutdown;

pub use crate::clock::Clock;
pub use crate::connect::layered;
pub use crate::control::{Checkpoint, read_checkpoints};
pub use crate::supervise::{BackgroundTasks, Spawner, TaskEnded};
pub use settings::SettingsError;
pub(crate) use settings::check;
pub use shutdown::Stop;

use crate::config::{Config, LiveConfig, ServeFlags};
use crate::control::{ControlLoop, Dependencies, MetricRuleStatuses};
use crate::k8s::Selector;
use crate::leader::LeaderElector;
use crate::ledger::{DecisionLog, Ledger};
use crate::live::LiveStatus;
use crate::prometheus;
use crate::rules::{self, Rules};
use crate::samples::{Reader, Store};
use crate::supervise::{Heartbeat, Tasks};
use crate::telemetry::Metrics;
use crate::watch::{Cluster, Resources, WatchStatuses, run_reflectors};
use futures::FutureExt;
use futures::future::BoxFuture;
use shutdown::{Shutdown, spawn_orderly};
use std::sync::Arc;
use std::time::Duration;

/// What a replica is made of.
pub struct Parts {
    /// The flags. Those of addresses, files and the API are not read.
    pub flags: ServeFlags,
    /// The configuration.
    pub config: Config,
    /// The holder identity in the Lease. No other replica may have the same.
    pub identity: String,
    /// A client of kube-apiserver, such as [`layered`] makes.
    pub api: kube::Client,
    /// One without a rate limit, for the Lease: a delayed renewal loses it.
    pub leases: kube::Client,
    /// The client of Prometheus.
    pub prometheus: prometheus::Client,
    /// The clock that learns from the responses to `api` and `leases`.
    pub clock: Clock,
    /// Plimsoll's own metrics.
    pub metrics: Arc<Metrics>,
}

/// A replica. Its tasks end when it is dropped, or the future of [`run`](Self::run): as in a crash,
/// nothing is finished or released.
pub struct Replica {
    shared: Shared,
    api: kube::Client,
    clock: Clock,
    prometheus: prometheus::Client,
    discovery_interval: Duration,
    leader: LeaderElector,
    control: ControlLoop,
    log: Option<DecisionLog>,
    tasks: Tasks,
    /// The tasks that its parts start and do not wait for.
    background: BackgroundTasks,
}

/// What the parts share, each of which keeps clones.
pub(crate) struct Shared {
    pub cluster: Cluster,
    pub synced: WatchStatuses,
    pub heartbeat: Heartbeat,
    pub samples: Store,
    pub resources: Resources,
    pub rules: Rules,
    pub config: LiveConfig,
    pub live: LiveStatus,
    pub ledger: Ledger,
    pub metrics: Arc<Metrics>,
}

impl Shared {
    fn new(parts: &Parts, spawner: &Spawner) -> Self {
        let Parts { flags, config, api, prometheus, metrics, .. } = parts;
        let (cluster, synced) = (Cluster::default(), WatchStatuses::default());
        metrics.show(synced.clone());
        let live = LiveStatus::default();
        metrics.show_autoscalers(cluster.clone(), live.clone(), flags.autoscaler_metrics_limit);
        if flags.memory_interval.is_zero() {
            metrics.history_is_not_written();
        }
        let samples = Store::new(prometheus.clone(), flags.sample_max_age, spawner.clone());
        let resources = Resources::new(api.clone());
        let live_config = LiveConfig::new(config);
        let rules = Rules::new(
            config.rules.clone(),
            settings::listings(flags),
            rules::Dependencies {
                prometheus: prometheus.clone(),
                samples: samples.clone(),
                client: api.clone(),
                cluster: cluster.clone(),
                resources: resources.clone(),
                clock: parts.clock.clone(),
                spawner: spawner.clone(),
                pod_queries: live_config.pod_queries.clone(),
            },
        );
        Self {
            cluster,
            synced,
            heartbeat: Heartbeat::default(),
            samples,
            resources,
            rules,
            config: live_config,
            live,
            ledger: Ledger::new(flags.decision_ledger_bytes, parts.clock.wall_ms()),
            metrics: metrics.clone(),
        }
    }
}

impl Replica {
    /// A replica of these parts. Nothing of it runs yet.
    ///
    /// # Errors
    /// If the flags do not go together, or with the configuration, or the decision log can't be written.
    pub fn new(parts: Parts) -> Result<Self, SettingsError> {
        check(&parts.flags, &parts.config)?;
        let background = BackgroundTasks::default();
        let spawner = background.spawner();
        let shared = Shared::new(&parts, &spawner);
        let Parts { flags, identity, api, leases, prometheus, clock, metrics, config: _ } = parts;
        let election = settings::election(&flags, identity);
        let leader = LeaderElector::new(leases, election, clock.clone(), metrics.clone(), spawner);
        let (log, writer) = settings::decision_log(&flags)?.unzip();
        metrics.show_decisions(shared.ledger.clone(), log.clone());
        let control = ControlLoop::new(Dependencies {
            client: api.clone(),
            leader: leader.clone(),
            cluster: shared.cluster.clone(),
            synced: shared.synced.clone(),
            samples: shared.samples.clone(),
            pod_queries: shared.config.pod_queries.clone(),
            rules: shared.rules.clone(),
            settings: settings::control(&flags),
            metrics: metrics.clone(),
            live: shared.live.clone(),
            ledger: shared.ledger.clone(),
            decision_log: log.clone(),
            clock: clock.clone(),
            heartbeat: shared.heartbeat.clone(),
        });
        let (discovery_interval, mut tasks) = (flags.discovery_interval, Tasks::default());
        if let Some(writer) = writer {
            tasks.spawn("decision log", writer.run());
        }
        Ok(Self {
            shared,
            api,
            clock,
            prometheus,
            discovery_interval,
            leader,
            control,
            log,
            tasks,
            background,
        })
    }

    /// What its parts share.
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// The election.
    pub(crate) fn leader(&self) -> &LeaderElector {
        &self.leader
    }

    /// Reads external metrics as its API does: a function of a namespace and a metric, which says whether there are
    /// values.
    pub fn external_metrics(
        &self,
    ) -> impl Fn(String, String) -> BoxFuture<'static, bool> + Send + use<> {
        let rules = self.shared.rules.clone();
        move |namespace, metric| {
            let rules = rules.clone();
            async move {
                rules
                    .external(&namespace, &metric, &Selector::default(), Reader::Client)
                    .await
                    .is_ok()
            }
            .boxed()
        }
    }

    /// Starts a task beside it that must not end, either.
    pub(crate) fn spawn(
        &mut self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        self.tasks.spawn(name, task);
    }

    /// Runs until `signal`; then stops in order: `api`, which serves until its [`Stop`], the control
    /// loop, and the election. Without an API, give the stop back: `|stop| stop`.
    ///
    /// # Errors
    /// The task that has ended without a signal.
    pub async fn run<A: Future<Output = ()> + Send + 'static>(
        self,
        api: impl FnOnce(Stop) -> A,
        signal: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), TaskEnded> {
        let Self {
            shared,
            prometheus,
            leader,
            control,
            log,
            mut tasks,
            background: _background,
            ..
        } = self;
        let Shared { cluster, synced, resources, rules, ledger, .. } = shared;
        let statuses = MetricRuleStatuses {
            client: self.api.clone(),
            leader: leader.clone(),
            cluster: cluster.clone(),
            rules: rules.metric_rules().clone(),
            clock: self.clock,
        };
        tasks.spawn("watches", run_reflectors(self.api, cluster, synced));
        tasks.spawn("metric rules", rules.clone().follow_metric_rules());
        tasks.spawn("metric rule statuses", statuses.run());
        tasks.spawn("rules", follow_rules(resources, rules, self.discovery_interval));
        let shutdown = Shutdown::at(signal);
        let stop = shutdown.stop.clone();
        let evaluations = control.run(stop.clone());
        let control = async move {
            evaluations.await;
            // The watches of decisions tell of the last ones, and end.
            ledger.close();
        };
        let orderly = spawn_orderly(api(stop), control, |end| async move {
            leader.run(&prometheus, end).await;
            if let Some(log) = log {
                log.finish().await;
            }
        });
        shutdown.run(tasks, orderly).await
    }
}

/// Rules refer to the cluster's resources, which are read first.
async fn follow_rules(resources: Resources, rules: Rules, interval: Duration) {
    let read = resources.refresh().await;
    let refresher = resources.run_refresher(interval, read);
    tokio::join!(refresher, rules.clone().follow_resources(), rules.follow());
}
