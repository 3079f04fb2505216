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
use crate::clock::Clock;
use crate::config::NativeHpas;
use crate::hpa::{self, ConditionKind, LONGEST_MS, Status};
use crate::leader::{FencingToken, LeaderElector};
use crate::live::LiveStatus;
use crate::promql::query::PodQueries;
use crate::reload::Reloadable;
use crate::rules::Rules;
use crate::samples::{QueryHandle, Store};
use crate::supervise::Heartbeat;
use crate::telemetry::Metrics;
use crate::watch::{Cluster, Subject, SubjectKind, Synced};
use futures::FutureExt;
use kube::Client;
use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
    /// The time between two writes of the scaling history; zero keeps none.
    pub memory_interval: Duration,
    /// How long a decision waits for its metrics.
    pub decision_timeout: Duration,
}

/// The control loop.
pub struct ControlLoop {
    shared: Arc<Shared>,
    synced: Synced,
    schedule: Schedule,
    states: HashMap<Subject, State>,
    phases: Phases,
    /// Those under way, and what was to be kept of them when they began.
    running: HashMap<Subject, Option<Kept>>,
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
    /// What was kept last.
    kept: HashMap<Subject, Kept>,
    /// When to keep it next; when that was begun last; and whether it is under way: it
    /// tells how many bytes were written, where that went well.
    keep_at: Instant,
    kept_at: Instant,
    keeping: Option<JoinHandle<Option<usize>>>,
    /// How many bytes that were last, and whether the last try failed.
    kept_bytes: usize,
    unkept: bool,
    /// The term of this replica, and what is read of the terms before it.
    term: Option<u64>,
    reading: Option<JoinHandle<Read>>,
    /// Whether what was kept before has been read: until then nothing is written over it.
    read: bool,
    /// What was read of those that were being decided.
    inherited: HashMap<Subject, Kept>,
    heartbeat: Heartbeat,
}

/// What was kept, or why it could not be read.
type Read = Result<Vec<(Subject, Kept)>, String>;

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
    /// None where its round panicked.
    state: Option<State>,
    ended: Option<Ended>,
}

/// What all decisions share.
pub(super) struct Shared {
    pub client: Client,
    pub leader: LeaderElector,
    pub cluster: Cluster,
    pub samples: Store,
    pub pod_queries: Reloadable<PodQueries>,
    pub rules: Rules,
    pub settings: Settings,
    pub targets: Targets,
    pub events: Events,
    pub statuses: status::Writer,
    pub metrics: Arc<Metrics>,
    pub live: LiveStatus,
    pub clock: Clock,
    /// The term for which all is remembered that the terms before have left.
    ready: AtomicU64,
    /// The rules of decisions that lead back from zero, even where none leads there.
    waking: hpa::Config,
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
    /// Leave to write, where this replica leads and remembers what was done before.
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.leader
            .fencing_token()
            .filter(|token| token.term() == self.ready.load(Ordering::Acquire))
    }

    /// The longest window that any decision looks back, in ms.
    pub fn longest(&self) -> i64 {
        let default = i64::from(self.settings.decisions.downscale_stabilization_seconds) * 1000;
        default.max(LONGEST_MS)
    }

    /// The rules of decisions for one of such a status: one that was scaled to zero while
    /// that was allowed is led back.
    pub fn decisions(&self, status: &Status) -> &hpa::Config {
        let zero = status.condition(ConditionKind::ScaledToZero);
        if zero.is_some_and(|zero| zero.status) { &self.waking } else { &self.settings.decisions }
    }

    /// Waits for what only reads, as long as a decision may take and the process lives.
    pub async fn bounded<T>(&self, reads: impl Future<Output = T>) -> Result<T, Broken> {
        let mut stopping = self.stopping.clone();
        let timeout = self.settings.decision_timeout + SCALE;
        tokio::select! {
            read = tokio::time::timeout(timeout, reads) => read.map_err(|_| Broken::Late(timeout)),
            Ok(_) = stopping.wait_for(|stopping| *stopping) => Err(Broken::Stopped),
        }
    }
}

/// How many rounds are under way at once; most of them wait for an answer.
const AT_ONCE: usize = 256;
/// How long a decision may read the scale, besides its metrics.
const SCALE: Duration = Duration::from_secs(20);
/// How long the writes of the rounds under way may take at a graceful shutdown. With what
/// is written then, it is less than the 60 s that the manifests give.
const STOPPING: Duration = Duration::from_secs(15);
/// How soon after a change of a scale the scaling history is kept.
const KEEP_SOON: Duration = Duration::from_secs(2);
/// The size from which it is kept less often, and how often then: the whole of it is
/// written each time, and sent to all who watch ConfigMaps.
const LARGE: usize = 64 << 10;
const KEEP_LARGE: Duration = Duration::from_secs(30);
/// How long reading what was kept may take, at the start and when a term begins, before
/// decisions begin without.
const READ_AT_START: Duration = Duration::from_secs(15);
const READ: Duration = Duration::from_secs(3);
/// No term.
const NONE: u64 = u64::MAX;
/// How often the loop turns at least.
const TURN: Duration = Duration::from_secs(1);
/// For how many periods, and how long at least, the loop may stand still before it is
/// taken for dead.
const STILL_PERIODS: u32 = 3;
const STILL: Duration = Duration::from_secs(45);
/// The least time between two warnings that decisions come too late.
const WARNING: Duration = Duration::from_secs(60);

impl ControlLoop {
    /// A loop over the autoscalers of the cluster.
    #[allow(clippy::too_many_arguments)] // each is one part that decisions need
    pub fn new(
        client: Client,
        leader: LeaderElector,
        cluster: Cluster,
        synced: Synced,
        samples: Store,
        pod_queries: Reloadable<PodQueries>,
        rules: Rules,
        settings: Settings,
        metrics: Arc<Metrics>,
        live: LiveStatus,
        clock: Clock,
        heartbeat: Heartbeat,
    ) -> Self {
        let keeps = !settings.memory_interval.is_zero();
        let keeper = keeps
            .then(|| Keeper::new(client.clone(), leader.lease(), clock.clone(), metrics.clone()));
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
            pod_queries,
            rules,
            waking: hpa::Config { scale_to_zero: true, ..settings.decisions },
            settings,
            metrics,
            live,
            clock,
            ready: AtomicU64::new(NONE),
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
            kept_at: Instant::now(),
            keeping: None,
            kept_bytes: 0,
            unkept: false,
            term: None,
            reading: None,
            read: false,
            inherited: HashMap::new(),
            heartbeat,
            shared: Arc::new(shared),
            synced,
            schedule: Schedule::default(),
            states: HashMap::new(),
            running: HashMap::new(),
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
        tokio::select! {
            () = self.read_at_start() => {}
            () = &mut stop => return,
        }
        let statuses = self.shared.statuses.clone();
        let events = self.shared.events.clone();
        let mut writing = tokio::spawn(async move { tokio::join!(statuses.run(), events.run()) });
        let mut leadership = self.shared.leader.changes();
        self.led();
        let still = (STILL_PERIODS * self.shared.settings.period).max(STILL);
        loop {
            self.heartbeat.beat(still);
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
                Some(read) = finished(&mut self.reading) => self.inherit(read),
                () = tokio::time::sleep_until(self.keep_at.into()) => self.keep(),
                // Where nothing is due it turns, too.
                () = tokio::time::sleep(TURN) => {}
                ended = &mut writing => panic!("the writer of statuses and events ended: {ended:?}"),
                () = &mut stop => break,
            }
        }
        self.stop_rounds().await;
        // What is being kept, and then the last of it.
        for last in [false, true] {
            if let Some(keeping) = self.keeping.take() {
                self.wrote(keeping.await.unwrap_or(None));
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
        for Due { subject, mut state, .. } in self.turns.clear() {
            self.running.remove(&subject);
            self.join_inherited(&subject, &mut state);
            self.states.insert(subject, state);
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

    /// Reads what was kept; decisions start without where that takes too long, and it is
    /// read before anything is written over it.
    async fn read_at_start(&mut self) {
        let Some(keeper) = self.keeper.clone() else { return };
        let (start, mut wait) = (Instant::now(), Duration::from_millis(100));
        loop {
            match keeper.load().await {
                Ok(all) => return self.take_in(all),
                Err(error) if start.elapsed() > READ_AT_START => {
                    return tracing::warn!(
                        error,
                        "Failed to read the scaling history: starting without it"
                    );
                }
                Err(_) => tokio::time::sleep(wait).await,
            }
            wait = (wait * 2).min(Duration::from_secs(2));
        }
    }

    /// Takes in what was kept.
    fn take_in(&mut self, all: Vec<(Subject, Kept)>) {
        self.read = true;
        self.kept.clear();
        let cluster = self.shared.cluster.clone();
        let (now, longest) = (self.shared.clock.elapsed(), self.shared.longest());
        for (subject, kept) in all {
            if self.ignores(&subject) || !cluster.read(|index| index.has(&subject)) {
                continue;
            }
            self.kept.insert(subject.clone(), kept.clone());
            if let Some(running) = self.running.get_mut(&subject) {
                // What is kept until its round ends is of both, too.
                let mut both = running.take().map(State::restored).unwrap_or_default();
                both.inherit(kept.clone());
                *running = both.kept(now, longest);
                self.inherited.insert(subject, kept);
            } else if let Some(state) = self.states.get_mut(&subject) {
                state.inherit(kept);
            } else {
                self.states.insert(subject, State::restored(kept));
            }
        }
    }

    /// Joins what was read of one while it was to be decided, or was being decided.
    fn join_inherited(&mut self, subject: &Subject, state: &mut State) {
        if let Some(kept) = self.inherited.remove(subject) {
            state.inherit(kept);
        }
    }

    /// Who leads has changed, or what is frozen: where this replica leads now, it
    /// decides for all soon, once it knows what the leader before has left.
    fn led(&mut self) {
        let Shared { leader, metrics, ready, .. } = &*self.shared;
        let term = leader.fencing_token().map(|token| token.term());
        metrics.leads(term.is_some());
        metrics.frozen(leader.frozen().is_some());
        if term != self.term {
            self.term = term;
            ready.store(NONE, Ordering::Release);
            if term.is_some() {
                return self.read();
            }
        }
        self.decide_all();
    }

    /// Reads what was kept.
    fn read(&mut self) {
        let Some(keeper) = self.keeper.clone() else { return self.inherit(Ok(Vec::new())) };
        self.reading = Some(tokio::spawn(async move {
            let late = |_| Err(format!("it took longer than {READ:?}"));
            tokio::time::timeout(READ, keeper.load()).await.unwrap_or_else(late)
        }));
    }

    /// What was kept has been read, or could not be.
    fn inherit(&mut self, read: Read) {
        match read {
            Ok(all) => self.take_in(all),
            Err(error) => {
                self.read = false;
                tracing::warn!(error, "Failed to read the scaling history: continuing without it");
            }
        }
        let ready = self.term.unwrap_or(NONE);
        if self.shared.ready.swap(ready, Ordering::AcqRel) != ready {
            self.decide_all();
        }
    }

    /// Decides for all soon, where this replica leads: for those under way, again.
    fn decide_all(&mut self) {
        if self.shared.fencing_token().is_some() {
            self.again.extend(self.running.keys().cloned());
            self.schedule.hasten(Instant::now());
        }
    }

    /// Keeps the scaling history, where this replica leads and it is not what
    /// is kept already.
    fn keep(&mut self) {
        self.keep_at = Instant::now() + self.shared.settings.memory_interval.max(self.keep_soon());
        let Some(keeper) = self.keeper.clone() else { return };
        let Some(token) = self.shared.fencing_token() else { return };
        if !self.read {
            if self.reading.is_none() {
                self.read();
            }
            return;
        }
        match self.keeping.take() {
            Some(keeping) if !keeping.is_finished() => {
                self.keeping = Some(keeping);
                self.keep_at = Instant::now() + KEEP_SOON;
                return;
            }
            Some(keeping) => {
                self.wrote(keeping.now_or_never().and_then(Result::ok).flatten());
            }
            None => {}
        }
        let running = self.running.iter();
        let running = running.filter_map(|(subject, kept)| Some((subject.clone(), kept.clone()?)));
        let (now, longest) = (self.shared.clock.elapsed(), self.shared.longest());
        let idle = self.states.iter();
        let idle =
            idle.filter_map(|(subject, state)| Some((subject.clone(), state.kept(now, longest)?)));
        let kept: HashMap<Subject, Kept> = running.chain(idle).collect();
        if kept == self.kept && !self.unkept {
            return;
        }
        let all = kept.iter().map(|(subject, kept)| (subject.clone(), kept.clone())).collect();
        self.kept = kept;
        self.kept_at = Instant::now();
        self.keeping = Some(tokio::spawn(async move { keeper.save(&token, all).await }));
    }

    /// How soon after a change of a scale the scaling history is kept.
    fn keep_soon(&self) -> Duration {
        if self.kept_bytes > LARGE { KEEP_LARGE } else { KEEP_SOON }
    }

    /// What is remembered was written, so many bytes, or was not.
    fn wrote(&mut self, bytes: Option<usize>) {
        self.unkept = bytes.is_none();
        self.kept_bytes = bytes.unwrap_or(self.kept_bytes);
    }

    /// Whether nothing is decided for a subject.
    fn ignores(&self, subject: &Subject) -> bool {
        subject.kind == SubjectKind::Hpa && self.shared.settings.native_hpas == NativeHpas::Ignore
    }

    /// A new or changed one is decided at once; one that is gone is forgotten.
    fn changed(&mut self, subject: Subject) {
        if self.ignores(&subject) {
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
            if self.running.contains_key(&subject) {
                self.again.insert(subject);
                continue;
            }
            let state = self.states.remove(&subject).unwrap_or_default();
            let kept = state.kept(self.shared.clock.elapsed(), self.shared.longest());
            self.running.insert(subject.clone(), kept);
            batch.push(Due { subject, at, crowd, state });
        }
        QueryHandle::prefetch(batch.iter().flat_map(|due| due.state.asked()));
        for due in batch {
            let namespace = due.subject.key.namespace.clone();
            self.turns.push(&namespace, due);
        }
        self.begin_rounds();
    }

    /// Begins as many rounds as there is room for.
    fn begin_rounds(&mut self) {
        while let Some(mut due) = self.turns.next() {
            self.join_inherited(&due.subject.clone(), &mut due.state);
            // One given later would be of a term whose past this state does not know.
            let (shared, token) = (self.shared.clone(), self.shared.fencing_token());
            self.rounds.spawn(async move { round(&shared, token, due).await });
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
        if ended == Some(RESCALED) {
            let soon = (self.kept_at + self.keep_soon()).max(Instant::now() + KEEP_SOON);
            self.keep_at = self.keep_at.min(soon);
        }
        let kept = self.running.remove(&subject).flatten();
        let mut state = state.or_else(|| kept.map(State::restored)).unwrap_or_default();
        self.join_inherited(&subject, &mut state);
        let again = self.again.remove(&subject);
        if !self.shared.cluster.read(|index| index.has(&subject)) {
            // It went in mid-decision, which left its traces again.
            self.forget(&subject);
            return self.count();
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
        self.count();
    }

    fn count(&self) {
        let all = self.schedule.len() + self.running.len();
        self.shared.metrics.autoscalers(all, self.failing.len());
    }

    fn period(&self, subject: &Subject) -> Duration {
        let own = match subject.kind {
            SubjectKind::Autoscaler => {
                let record = self.shared.cluster.read(|index| index.autoscaler(&subject.key));
                record.and_then(|r| r.parsed.as_ref().ok()?.spec.sync_period_seconds)
            }
            SubjectKind::Hpa => None,
        };
        own.map_or(self.shared.settings.period, |seconds| {
            Duration::from_secs(seconds.clamp(1, 3600).unsigned_abs().into())
        })
    }
}

/// What a task gave, once it has ended; never where there is none.
async fn finished(task: &mut Option<JoinHandle<Read>>) -> Option<Read> {
    let Some(running) = task else { return std::future::pending().await };
    let read = running.await.unwrap_or_else(|error| Err(error.to_string()));
    *task = None;
    Some(read)
}

async fn round(shared: &Shared, token: Option<FencingToken>, due: Due) -> Done {
    let Due { subject, at, crowd, mut state } = due;
    let begun = Instant::now();
    let decided = reconcile::round(shared, token.as_ref(), &subject, &mut state);
    let (ended, state) = match AssertUnwindSafe(decided).catch_unwind().await {
        Ok(ended) => (ended, Some(state)),
        Err(_) => {
            tracing::error!(%subject, "a decision was broken off");
            (Some(FAILED), None)
        }
    };
    if let Some(ended) = ended {
        shared.metrics.decided(ended, begun.duration_since(at), begun.elapsed());
    }
    Done { subject, due: at, begun, crowd, state, ended }
}

#[cfg(test)]
mod tests;
