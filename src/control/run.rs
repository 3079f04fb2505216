//! The loop itself: takes who is due, decides for many at once, never twice at
//! once for the same.

use super::events::Events;
use super::keep::{Keeper, Kept};
use super::observe::Census;
use super::reconcile::{self, Ended, FAILED, RESCALED, State};
use super::schedule::{Phases, Schedule};
use super::selectors::Selectors;
use super::status;
use super::targets::Targets;
use super::turns::Turns;
use crate::config::{LiveConfig, NativeHpas};
use crate::hpa;
use crate::leader::Leader;
use crate::live::LiveStatus;
use crate::rules::Rules;
use crate::samples::{Asked, Store};
use crate::telemetry::Metrics;
use crate::watch::{Cluster, Subject, SubjectKind, Synced};
use futures::FutureExt;
use kube::Client;
use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

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
    /// The time between two writes of what decisions remember; zero keeps none.
    pub memory_interval: Duration,
    /// The longest time in which a decision may read the scale and the metrics.
    pub decision_timeout: Duration,
}

/// The control loop.
pub struct ControlLoop {
    shared: Arc<Shared>,
    synced: Synced,
    schedule: Schedule,
    states: HashMap<Subject, State>,
    phases: Phases,
    running: HashSet<Subject>,
    /// Those whose last decision failed.
    failing: HashSet<Subject>,
    /// Those that are to be decided again as soon as they are done.
    again: HashSet<Subject>,
    /// Those whose time has come, until their round is begun.
    turns: Turns<Due>,
    /// The rounds under way.
    rounds: JoinSet<Done>,
    stopping: watch::Sender<bool>,
    warned: Option<Instant>,
    keeper: Option<Keeper>,
    /// What was kept last, for those that are being decided when it is kept anew.
    kept: HashMap<Subject, Kept>,
    /// When to keep it next, and whether that is under way; it tells whether it went well.
    keep_at: Instant,
    keeping: Option<JoinHandle<bool>>,
    /// Whether the last try to keep it failed.
    unkept: bool,
}

/// One whose time has come.
struct Due {
    subject: Subject,
    at: Instant,
    /// How many were due together.
    crowd: usize,
    state: State,
}

/// One that was decided.
struct Done {
    subject: Subject,
    /// When it was due, and begun.
    due: Instant,
    begun: Instant,
    crowd: usize,
    state: State,
    ended: Option<Ended>,
}

/// What all decisions share.
pub(super) struct Shared {
    pub client: Client,
    pub leader: Leader,
    pub cluster: Cluster,
    pub samples: Store,
    pub config: LiveConfig,
    pub rules: Rules,
    pub settings: Settings,
    pub targets: Targets,
    pub events: Events,
    pub statuses: status::Writer,
    pub metrics: Arc<Metrics>,
    pub live: LiveStatus,
    /// The pod selectors of those who scale.
    pub selectors: Selectors,
    /// Which native HPAs are observed.
    pub census: Census,
    /// Whether the process ends.
    stopping: watch::Receiver<bool>,
}

/// Why a decision was broken off before anything was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// It took longer than it may.
    Late(Duration),
    /// The process ends.
    Stopped,
}

impl Shared {
    /// Waits for what only reads, as long as a decision may take and the process lives.
    pub async fn bounded<T>(&self, reads: impl Future<Output = T>) -> Result<T, Broken> {
        let (mut stopping, timeout) = (self.stopping.clone(), self.settings.decision_timeout);
        tokio::select! {
            read = tokio::time::timeout(timeout, reads) => read.map_err(|_| Broken::Late(timeout)),
            Ok(_) = stopping.wait_for(|stopping| *stopping) => Err(Broken::Stopped),
        }
    }
}

/// How many rounds are under way at once; most of them wait for an answer.
const AT_ONCE: usize = 256;
/// How long the writes of the rounds under way may take at an orderly end. With what
/// is written then, it is less than the 45 s that the manifests give.
const STOPPING: Duration = Duration::from_secs(15);
/// How soon after a change of a scale what decisions remember is kept.
const KEEP_SOON: Duration = Duration::from_secs(2);
/// The least time between two warnings that decisions come too late.
const WARNING: Duration = Duration::from_secs(60);

impl ControlLoop {
    /// A loop over the autoscalers of the cluster.
    #[allow(clippy::too_many_arguments)] // each is one part that decisions need
    pub fn new(
        client: Client,
        leader: Leader,
        cluster: Cluster,
        synced: Synced,
        samples: Store,
        config: LiveConfig,
        rules: Rules,
        settings: Settings,
        metrics: Arc<Metrics>,
        live: LiveStatus,
    ) -> Self {
        let keeps = !settings.memory_interval.is_zero();
        let keeper = keeps.then(|| Keeper::new(client.clone(), leader.lease()));
        let events = Events::new(client.clone(), metrics.clone());
        let (stopping, stops) = watch::channel(false);
        let shared = Shared {
            leader,
            targets: Targets::new(client.clone()),
            statuses: status::Writer::new(
                client.clone(),
                events.clone(),
                metrics.status_writes_waiting(),
            ),
            events,
            selectors: Selectors::default(),
            census: Census::new(metrics.clone()),
            client,
            cluster,
            samples,
            config,
            rules,
            settings,
            metrics,
            live,
            stopping: stops,
        };
        Self {
            phases: Phases::default(),
            again: HashSet::new(),
            turns: Turns::new(AT_ONCE),
            rounds: JoinSet::new(),
            stopping,
            warned: None,
            keeper,
            kept: HashMap::new(),
            keep_at: Instant::now() + KEEP_SOON,
            keeping: None,
            unkept: false,
            shared: Arc::new(shared),
            synced,
            schedule: Schedule::default(),
            states: HashMap::new(),
            running: HashSet::new(),
            failing: HashSet::new(),
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
        if let Some(keeper) = &self.keeper {
            self.kept = keeper.load().await.into_iter().collect();
            cluster.read(|index| self.kept.retain(|subject, _| index.has(subject)));
            let restored = |(subject, kept): (&Subject, &Kept)| {
                (subject.clone(), State::restored(kept.clone()))
            };
            self.states = self.kept.iter().map(restored).collect();
        }
        let statuses = self.shared.statuses.clone();
        let events = self.shared.events.clone();
        let writing = tokio::spawn(async move { tokio::join!(statuses.run(), events.run()) });
        let mut leadership = self.shared.leader.changes();
        self.led();
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
                    self.count();
                }
                () = due => self.start_due(),
                Some(Ok(done)) = self.rounds.join_next() => self.decided(done),
                Ok(()) = leadership.changed() => self.led(),
                () = tokio::time::sleep_until(self.keep_at.into()) => self.keep(),
                () = &mut stop => break,
            }
        }
        self.stop_rounds().await;
        // What is being kept, and then the last of it.
        for last in [false, true] {
            if let Some(keeping) = self.keeping.take() {
                self.unkept = !keeping.await.unwrap_or(false);
            }
            if !last {
                self.keep();
            }
        }
        tokio::join!(self.shared.statuses.finish(), self.shared.events.finish());
        writing.abort();
    }

    /// Begins no further round, and waits for the writes of those under way.
    async fn stop_rounds(&mut self) {
        let _ = self.stopping.send(true);
        for due in self.turns.clear() {
            self.running.remove(&due.subject);
            self.states.insert(due.subject, due.state);
        }
        let deadline = tokio::time::sleep(STOPPING);
        tokio::pin!(deadline);
        loop {
            tokio::select! {
                done = self.rounds.join_next() => match done {
                    Some(Ok(done)) => self.decided(done),
                    Some(Err(_)) => {}
                    None => return,
                },
                () = &mut deadline => {
                    tracing::warn!(rounds = self.rounds.len(), "Gave up writes under way");
                    return self.rounds.abort_all();
                }
            }
        }
    }

    /// Who leads has changed, or what is frozen: where this replica leads now, it
    /// decides for all at once.
    fn led(&mut self) {
        let Shared { leader, metrics, .. } = &*self.shared;
        let leads = leader.permit().is_some();
        metrics.leads(leads);
        metrics.frozen(leader.frozen().is_some());
        if leads {
            self.schedule.set_all(Instant::now());
        }
    }

    /// Keeps what decisions remember, where this replica leads and it is not what
    /// is kept already.
    fn keep(&mut self) {
        self.keep_at = Instant::now() + self.shared.settings.memory_interval.max(KEEP_SOON);
        let Some(keeper) = self.keeper.clone() else { return };
        let Some(permit) = self.shared.leader.permit() else { return };
        match self.keeping.take() {
            Some(keeping) if !keeping.is_finished() => {
                self.keeping = Some(keeping);
                self.keep_at = Instant::now() + KEEP_SOON;
                return;
            }
            Some(keeping) => self.unkept = !matches!(keeping.now_or_never(), Some(Ok(true))),
            None => {}
        }
        let running = self.running.iter().filter_map(|subject| self.kept.get_key_value(subject));
        let running = running.map(|(subject, kept)| (subject.clone(), kept.clone()));
        let idle = self.states.iter();
        let idle = idle.filter_map(|(subject, state)| Some((subject.clone(), state.kept()?)));
        let kept: HashMap<Subject, Kept> = running.chain(idle).collect();
        if kept == self.kept && !self.unkept {
            return;
        }
        let all = kept.iter().map(|(subject, kept)| (subject.clone(), kept.clone())).collect();
        self.kept = kept;
        self.keeping = Some(tokio::spawn(async move { keeper.save(&permit, all).await }));
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
        } else {
            self.forget(&subject);
        }
    }

    fn forget(&mut self, subject: &Subject) {
        self.schedule.remove(subject);
        self.failing.remove(subject);
        self.phases.set(subject, None, Instant::now(), 1);
        self.states.remove(subject);
        self.shared.live.remove(subject);
        self.shared.statuses.forget(subject);
        self.shared.events.forget(subject);
        self.again.remove(subject);
        if subject.kind == SubjectKind::Hpa {
            self.shared.metrics.forget(&subject.key);
            self.shared.census.forget(&subject.key);
        }
        self.shared.selectors.release(subject);
    }

    /// Gives all that are due their turn. What they asked for last time is asked again
    /// before any of them is decided, so that it is asked for all of them together.
    fn start_due(&mut self) {
        let now = Instant::now();
        let due: Vec<_> = std::iter::from_fn(|| self.schedule.take_due(now)).collect();
        let crowd = due.len();
        let mut batch = Vec::new();
        for (subject, at) in due {
            if !self.running.insert(subject.clone()) {
                self.again.insert(subject);
                continue;
            }
            let state = self.states.remove(&subject).unwrap_or_default();
            batch.push(Due { subject, at, crowd, state });
        }
        Asked::again(batch.iter().flat_map(|due| due.state.asked()));
        for due in batch {
            let namespace = due.subject.key.namespace.clone();
            self.turns.push(&namespace, due);
        }
        self.begin_rounds();
    }

    /// Begins as many rounds as there is room for.
    fn begin_rounds(&mut self) {
        while let Some(due) = self.turns.next() {
            let shared = self.shared.clone();
            self.rounds.spawn(async move { round(&shared, due).await });
        }
    }

    /// One was decided; sets the time of its next decision. What it missed, where
    /// it took longer than a period, is not made up for: under overload all are
    /// decided less often, each in its turn.
    fn decided(&mut self, done: Done) {
        let Done { subject, due, begun, crowd, state, ended } = done;
        self.turns.ended(&subject.key.namespace);
        if !*self.stopping.borrow() {
            self.begin_rounds();
        }
        if ended == Some(FAILED) {
            self.failing.insert(subject.clone());
        } else {
            self.failing.remove(&subject);
        }
        self.count();
        if ended == Some(RESCALED) {
            self.keep_at = self.keep_at.min(Instant::now() + KEEP_SOON);
        }
        self.running.remove(&subject);
        let again = self.again.remove(&subject);
        if !self.shared.cluster.read(|index| index.has(&subject)) {
            // It went in mid-decision, which left its traces again.
            return self.forget(&subject);
        }
        let period = self.period(&subject);
        self.phases.set(&subject, state.form(), due, crowd);
        let now = Instant::now();
        let next = match again {
            true => now,
            false => self.phases.next(&subject, period, due, now, crowd),
        };
        // Its next time may be more than a period away where its group's has moved.
        let periods = now.duration_since(due).as_nanos() / period.as_nanos();
        if let missed @ 1.. = periods {
            self.shared.metrics.missed(u64::try_from(missed).unwrap_or(u64::MAX));
            if self.warned.is_none_or(|warned| warned.elapsed() > WARNING) {
                self.warned = Some(Instant::now());
                let lag = begun.duration_since(due);
                tracing::warn!(
                    %subject, ?period, ?lag, took = ?begun.elapsed(),
                    "a decision took until after the next was due: it is missed"
                );
            }
        }
        self.states.insert(subject.clone(), state);
        self.schedule.set_if_none(subject, next);
    }

    fn count(&self) {
        let all = self.schedule.len() + self.running.len();
        self.shared.metrics.autoscalers(all, self.failing.len());
    }

    fn period(&self, subject: &Subject) -> Duration {
        let own = match subject.kind {
            SubjectKind::Autoscaler => {
                let record = self.shared.cluster.read(|index| index.autoscaler(&subject.key));
                record.and_then(|r| r.asked.as_ref().ok()?.spec.sync_period_seconds)
            }
            SubjectKind::Hpa => None,
        };
        own.map_or(self.shared.settings.period, |seconds| {
            Duration::from_secs(seconds.clamp(1, 3600).unsigned_abs().into())
        })
    }
}

async fn round(shared: &Shared, due: Due) -> Done {
    let Due { subject, at, crowd, mut state } = due;
    let begun = Instant::now();
    let decided = AssertUnwindSafe(reconcile::round(shared, &subject, &mut state));
    let ended = match decided.catch_unwind().await {
        Ok(ended) => ended,
        Err(_) => {
            tracing::error!(%subject, "a decision was broken off");
            state = State::default();
            Some(FAILED)
        }
    };
    if let Some(ended) = ended {
        shared.metrics.decided(ended, begun.duration_since(at), begun.elapsed());
    }
    Done { subject, due: at, begun, crowd, state, ended }
}
