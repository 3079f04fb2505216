//! The loop itself: takes who is due, decides for many at once, never twice at
//! once for the same.

use super::events::Events;
use super::reconcile::{self, State};
use super::schedule::{Schedule, after, spread};
use super::selectors::Selectors;
use super::targets::Targets;
use crate::config::{LiveConfig, NativeHpas};
use crate::hpa;
use crate::live::LiveStatus;
use crate::rules::Rules;
use crate::samples::Store;
use crate::telemetry::Metrics;
use crate::watch::{Cluster, Subject, SubjectKind, Synced};
use kube::Client;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// How the loop decides.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The rules of decisions.
    pub decisions: hpa::Config,
    /// What is done with native HorizontalPodAutoscalers.
    pub native_hpas: NativeHpas,
    /// The time between two decisions for an autoscaler that sets none.
    pub period: Duration,
    /// The least time between two writes of a status in which only measured
    /// numbers moved.
    pub status_interval: Duration,
}

/// The control loop.
pub struct ControlLoop {
    shared: Arc<Shared>,
    synced: Synced,
    schedule: Schedule,
    states: HashMap<Subject, State>,
    running: HashSet<Subject>,
    tasks: JoinSet<(Subject, State)>,
}

/// What all decisions share.
pub(super) struct Shared {
    pub client: Client,
    pub cluster: Cluster,
    pub samples: Store,
    pub config: LiveConfig,
    pub rules: Rules,
    pub settings: Settings,
    pub targets: Targets,
    pub events: Events,
    pub metrics: Arc<Metrics>,
    pub live: LiveStatus,
    /// The pod selectors of those who scale.
    pub selectors: Selectors,
    /// Bounds the decisions at once.
    slots: Semaphore,
}

/// How many decisions are under way at once.
const AT_ONCE: usize = 64;
/// How soon to look again at one that is being decided.
const BUSY: Duration = Duration::from_millis(200);

impl ControlLoop {
    /// A loop over the autoscalers of the cluster.
    #[allow(clippy::too_many_arguments)] // each is one part that decisions need
    pub fn new(
        client: Client,
        cluster: Cluster,
        synced: Synced,
        samples: Store,
        config: LiveConfig,
        rules: Rules,
        settings: Settings,
        metrics: Arc<Metrics>,
        live: LiveStatus,
    ) -> Self {
        let shared = Shared {
            targets: Targets::new(client.clone()),
            events: Events::new(client.clone()),
            selectors: Selectors::default(),
            slots: Semaphore::new(AT_ONCE),
            client,
            cluster,
            samples,
            config,
            rules,
            settings,
            metrics,
            live,
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
                changed = cluster.changes() => {
                    for subject in changed {
                        self.changed(subject);
                    }
                    self.shared.metrics.autoscalers(self.schedule.len() + self.running.len());
                }
                () = due => self.start_due(),
                Some(done) = self.tasks.join_next() => match done {
                    Ok((subject, state)) => {
                        self.running.remove(&subject);
                        if self.shared.cluster.read(|index| index.has(&subject)) {
                            self.states.insert(subject, state);
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
    fn changed(&mut self, subject: Subject) {
        let ignored = subject.kind == SubjectKind::Hpa
            && self.shared.settings.native_hpas == NativeHpas::Ignore;
        if ignored {
            return;
        }
        if self.shared.cluster.read(|index| index.has(&subject)) {
            self.schedule.set(subject, Instant::now());
            return;
        }
        self.schedule.remove(&subject);
        self.states.remove(&subject);
        self.shared.live.remove(&subject);
        self.shared.metrics.forget(&subject.key);
        self.shared.selectors.release(&subject);
    }

    fn start_due(&mut self) {
        let now = Instant::now();
        let due: Vec<_> = std::iter::from_fn(|| self.schedule.take_due(now)).collect();
        let crowd = due.len();
        for (place, (subject, due)) in due.into_iter().enumerate() {
            if self.running.contains(&subject) {
                self.schedule.set(subject, now + BUSY);
                continue;
            }
            let own = match subject.kind {
                SubjectKind::Autoscaler => {
                    let record = self.shared.cluster.read(|index| index.autoscaler(&subject.key));
                    record.and_then(|r| r.asked.as_ref().ok()?.spec.sync_period_seconds)
                }
                SubjectKind::Hpa => None,
            };
            let period = own.map_or(self.shared.settings.period, |seconds| {
                Duration::from_secs(seconds.clamp(1, 3600).unsigned_abs().into())
            });
            let next = after(due, period - spread(place, crowd, period), now);
            self.schedule.set(subject.clone(), next);
            self.running.insert(subject.clone());
            let (shared, mut state) =
                (self.shared.clone(), self.states.remove(&subject).unwrap_or_default());
            self.tasks.spawn(async move {
                let slot = shared.slots.acquire().await.expect("the semaphore is never closed");
                let lag = due.elapsed();
                if let Some(ended) = reconcile::round(&shared, &subject, &mut state).await {
                    shared.metrics.decided(ended, lag);
                }
                drop(slot);
                (subject, state)
            });
        }
    }
}
