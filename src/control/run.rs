//! The loop itself: takes who is due, decides for many at once, never twice at
//! once for the same.

use super::events::Events;
use super::reconcile::{Ended, State, reconcile};
use super::schedule::{Schedule, after};
use super::targets::Targets;
use crate::config::Config;
use crate::hpa;
use crate::k8s::Selector;
use crate::samples::Store;
use crate::telemetry::Metrics;
use crate::watch::{Cluster, ObjectKey, Synced};
use kube::Client;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// How the loop decides.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The rules of decisions.
    pub decisions: hpa::Config,
    /// The time between two decisions for an autoscaler that sets none.
    pub period: Duration,
}

/// The control loop.
pub struct ControlLoop {
    shared: Arc<Shared>,
    synced: Synced,
    schedule: Schedule,
    states: HashMap<ObjectKey, State>,
    running: HashSet<ObjectKey>,
    tasks: JoinSet<(ObjectKey, State)>,
}

/// What all decisions share.
pub(super) struct Shared {
    pub client: Client,
    pub cluster: Cluster,
    pub samples: Store,
    pub config: Arc<Config>,
    pub settings: Settings,
    pub targets: Targets,
    pub events: Events,
    pub metrics: Arc<Metrics>,
    /// The pod selectors of Autoscalers, by namespace, then by `namespace/name`.
    pub selectors: Mutex<HashMap<String, BTreeMap<String, Selector>>>,
    /// Bounds the decisions at once.
    slots: Semaphore,
}

/// How many decisions are under way at once.
const AT_ONCE: usize = 64;
/// How soon to look again at one that is being decided.
const BUSY: Duration = Duration::from_millis(200);

impl ControlLoop {
    /// A loop over the Autoscalers of the cluster.
    pub fn new(
        client: Client,
        cluster: Cluster,
        synced: Synced,
        samples: Store,
        config: Arc<Config>,
        settings: Settings,
        metrics: Arc<Metrics>,
    ) -> Self {
        let shared = Shared {
            targets: Targets::new(client.clone()),
            events: Events::new(client.clone()),
            selectors: Mutex::default(),
            slots: Semaphore::new(AT_ONCE),
            client,
            cluster,
            samples,
            config,
            settings,
            metrics,
        };
        Self {
            shared: Arc::new(shared),
            synced,
            schedule: Schedule::default(),
            states: HashMap::new(),
            running: HashSet::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Decides until `stop` ends; then waits for the decisions under way.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        tokio::pin!(stop);
        // Nothing is decided on half a view of the cluster.
        while !self.synced.missing().is_empty() {
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(20)) => {}
                () = &mut stop => return,
            }
        }
        let cluster = self.shared.cluster.clone();
        loop {
            let next = self.schedule.next();
            let due = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = cluster.changed_autoscalers() => {
                    for key in changed {
                        self.changed(key);
                    }
                    self.shared.metrics.autoscalers(self.schedule.len() + self.running.len());
                }
                () = due => self.start_due(),
                Some(done) = self.tasks.join_next() => match done {
                    Ok((key, state)) => {
                        self.running.remove(&key);
                        if self.shared.cluster.read(|index| index.autoscaler(&key)).is_some() {
                            self.states.insert(key, state);
                        }
                    }
                    Err(error) => tracing::error!(%error, "a decision was broken off"),
                },
                () = &mut stop => break,
            }
        }
        while self.tasks.join_next().await.is_some() {}
    }

    /// A new or changed one is decided at once; one that is gone is forgotten.
    fn changed(&mut self, key: ObjectKey) {
        if self.shared.cluster.read(|index| index.autoscaler(&key)).is_some() {
            self.schedule.set(key, Instant::now());
            return;
        }
        self.schedule.remove(&key);
        self.states.remove(&key);
        let mut selectors = self.shared.selectors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of_namespace) = selectors.get_mut(&key.namespace) {
            of_namespace.remove(&key.to_string());
            if of_namespace.is_empty() {
                selectors.remove(&key.namespace);
            }
        }
    }

    fn start_due(&mut self) {
        let now = Instant::now();
        while let Some((key, due)) = self.schedule.take_due(now) {
            let record = self.shared.cluster.read(|index| index.autoscaler(&key));
            let Some(record) = record else { continue };
            if self.running.contains(&key) {
                self.schedule.set(key, now + BUSY);
                continue;
            }
            let own = record.asked.as_ref().ok().and_then(|a| a.spec.sync_period_seconds);
            let period = own.map_or(self.shared.settings.period, |seconds| {
                Duration::from_secs(seconds.clamp(1, 3600).unsigned_abs().into())
            });
            self.schedule.set(key.clone(), after(due, period, now));
            self.running.insert(key.clone());
            let (shared, mut state) =
                (self.shared.clone(), self.states.remove(&key).unwrap_or_default());
            self.tasks.spawn(async move {
                let slot = shared.slots.acquire().await.expect("the semaphore is never closed");
                let lag = due.elapsed();
                let ended: Ended = reconcile(&shared, &key, &record, &mut state).await;
                drop(slot);
                shared.metrics.decided(ended, lag);
                (key, state)
            });
        }
    }
}
