//! The control loop: a queue of autoscalers by the time they are due, and evaluations, never two of the same autoscaler.

use super::checkpoint::{Checkpoint, CheckpointStore};
use super::checkpointer::{Checkpointer, Loaded, all_checkpoints};
use super::context::{ControllerContext, Dependencies, NO_TERM, NativeHpas, SyncResult};
use super::fair_queue::FairQueue;
use super::reconcile::reconcile;
use super::schedule::{Phases, Schedule, turn};
use super::state::AutoscalerState;
use crate::leader::FencingToken;
use crate::samples::QueryHandle;
use crate::supervise::Heartbeat;
use crate::time::UnixMillis;
use crate::watch::{AutoscalerKind, AutoscalerRef, Index, WatchStatuses};
use futures::FutureExt;
use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The control loop.
pub struct ControlLoop {
    ctx: Arc<ControllerContext>,
    synced: WatchStatuses,
    schedule: Schedule,
    phases: Phases,
    /// The states of the autoscalers that are not being evaluated.
    states: HashMap<AutoscalerRef, Box<AutoscalerState>>,
    /// The autoscalers that are queued or being evaluated, with their checkpoints of before that.
    running: HashMap<AutoscalerRef, Option<Box<Checkpoint>>>,
    /// The autoscalers whose last evaluation failed, without HPAs that kube-controller-manager scales.
    failing: HashSet<AutoscalerRef>,
    /// The autoscalers to be evaluated again as soon as their evaluation ends.
    requeue: HashSet<AutoscalerRef>,
    /// The autoscalers that are due, until their evaluation begins.
    queue: FairQueue<DueEvaluation>,
    /// The evaluations in flight.
    evaluations: JoinSet<FinishedEvaluation>,
    stopping: watch::Sender<bool>,
    /// When the last warning of an overrun was logged.
    warned: Option<Instant>,
    checkpointer: Checkpointer,
    /// The lease term of this replica.
    term: Option<u64>,
    /// The checkpoints that were loaded while their autoscalers were being evaluated.
    pending_restore: HashMap<AutoscalerRef, Checkpoint>,
    /// Those of objects that the watch does not show, and when they were loaded: it may be behind.
    unknown: HashMap<AutoscalerRef, (Checkpoint, Instant)>,
    heartbeat: Heartbeat,
    /// When the last evaluation ended, or the first of those that are queued or in flight was due.
    progress: Instant,
}

/// An autoscaler that is due.
struct DueEvaluation {
    autoscaler: AutoscalerRef,
    at: Instant,
    /// How many were due together.
    due_together: usize,
    state: Box<AutoscalerState>,
}

/// An autoscaler that was evaluated.
struct FinishedEvaluation {
    autoscaler: AutoscalerRef,
    /// When it was due, and when its evaluation began.
    due: Instant,
    begun: Instant,
    due_together: usize,
    /// None if its evaluation panicked.
    state: Option<Box<AutoscalerState>>,
    result: Option<SyncResult>,
}

/// The maximum of evaluations in flight; most of them wait for a response.
const MAX_EVALUATIONS_IN_FLIGHT: usize = 256;
/// How long a graceful shutdown waits for the writes of the evaluations in flight. Together with the
/// writes after that it is less than the 60 s of `terminationGracePeriodSeconds`.
const EVALUATION_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(15);
/// How often the loop records a heartbeat at least.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// For how many periods, and how long at least, the loop may be without a heartbeat before `/livez`
/// fails.
const STALL_PERIODS: u32 = 3;
const MIN_STALL_LIMIT: Duration = Duration::from_secs(45);
/// How long the checkpoint of an autoscaler is kept that the watch does not show: longer than it takes to detect that a
/// watch has stalled.
const MAX_UNKNOWN: Duration = Duration::from_secs(300);
/// The least time between two warnings of overruns.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

impl ControlLoop {
    /// A loop over the autoscalers of the cluster.
    pub fn new(dependencies: Dependencies) -> Self {
        let interval = dependencies.settings.checkpoint_interval;
        let (synced, heartbeat) = (dependencies.synced.clone(), dependencies.heartbeat.clone());
        let (stopping, stops) = watch::channel(false);
        let ctx = ControllerContext::new(dependencies, stops);
        let store = (!interval.is_zero()).then(|| {
            let lease = ctx.leader.lease();
            CheckpointStore::new(ctx.client.clone(), lease, ctx.clock.clone(), ctx.metrics.clone())
        });
        Self {
            ctx: Arc::new(ctx),
            synced,
            schedule: Schedule::default(),
            phases: Phases::default(),
            states: HashMap::new(),
            running: HashMap::new(),
            failing: HashSet::new(),
            requeue: HashSet::new(),
            queue: FairQueue::new(MAX_EVALUATIONS_IN_FLIGHT),
            evaluations: JoinSet::new(),
            stopping,
            warned: None,
            checkpointer: Checkpointer::new(store, interval),
            term: None,
            pending_restore: HashMap::new(),
            unknown: HashMap::new(),
            heartbeat,
            progress: Instant::now(),
        }
    }

    /// Evaluates until `stop` ends; then waits for the evaluations in flight.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        tokio::pin!(stop);
        // No evaluation before all watches have listed everything once.
        while !self.synced.missing().is_empty() {
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(20)) => {}
                () = &mut stop => return,
            }
        }
        let loaded = tokio::select! {
            loaded = self.checkpointer.load_at_start() => loaded,
            () = &mut stop => return,
        };
        if let Some(all) = loaded {
            self.restore_checkpoints(all);
        }
        let cluster = self.ctx.cluster.clone();
        let (statuses, events) = (self.ctx.statuses.clone(), self.ctx.events.clone());
        let mut writers = JoinSet::new();
        writers.spawn(async move { tokio::join!(statuses.run(), events.run()) });
        let mut leadership = self.ctx.leader.changes();
        self.leadership_changed();
        let stall_limit = (STALL_PERIODS * self.ctx.settings.period).max(MIN_STALL_LIMIT);
        loop {
            self.heartbeat.beat(stall_limit);
            self.show_due();
            let next = self.schedule.next();
            let due = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let save_due = self.checkpointer.due();
            tokio::select! {
                changed = cluster.changes() => {
                    for autoscaler in changed {
                        self.changed(autoscaler);
                    }
                    self.count();
                }
                () = due => self.start_due(),
                Some(Ok(done)) = self.evaluations.join_next() => self.evaluated(done),
                Ok(()) = leadership.changed() => self.leadership_changed(),
                loaded = self.checkpointer.loading() => self.loaded(loaded),
                () = tokio::time::sleep_until(save_due) => self.save(),
                // A heartbeat while nothing is due, too.
                () = tokio::time::sleep(HEARTBEAT_INTERVAL) => {}
                Some(ended) = writers.join_next() => {
                    panic!("the writer of statuses and events ended: {ended:?}")
                }
                () = &mut stop => break,
            }
        }
        self.stop_evaluations().await;
        // The save in flight, and then the last one.
        self.checkpointer.finish_saving().await;
        self.save();
        self.checkpointer.finish_saving().await;
        tokio::join!(self.ctx.statuses.finish(), self.ctx.events.finish());
    }

    /// Begins no further evaluation, and waits for the writes of those in flight.
    async fn stop_evaluations(&mut self) {
        let _ = self.stopping.send(true);
        self.ctx.statuses.hold(false);
        for DueEvaluation { autoscaler, mut state, .. } in self.queue.clear() {
            self.running.remove(&autoscaler);
            self.merge_pending_restore(&autoscaler, &mut state);
            self.states.insert(autoscaler, state);
        }
        tokio::pin!(let deadline = tokio::time::sleep(EVALUATION_SHUTDOWN_TIMEOUT););
        loop {
            tokio::select! {
                done = self.evaluations.join_next() => match done {
                    Some(Ok(done)) => self.evaluated(done),
                    Some(Err(_)) => {}
                    None => return,
                },
                () = &mut deadline => {
                    tracing::warn!(evaluations = self.evaluations.len(), "Aborted evaluations in flight");
                    return self.evaluations.abort_all();
                }
            }
        }
    }

    /// Restores the scaling history of the previous terms.
    fn restore_checkpoints(&mut self, all: Vec<(AutoscalerRef, Checkpoint)>) {
        let mut known = HashMap::new();
        self.unknown.clear();
        for (autoscaler, checkpoint) in all {
            if self.ignores(&autoscaler) {
                continue;
            }
            known.insert(autoscaler.clone(), checkpoint.clone());
            self.restore(autoscaler, checkpoint, Instant::now());
        }
        self.checkpointer.set_loaded(Some(known));
    }

    /// Restores one, or keeps it until the watch shows its object.
    fn restore(&mut self, autoscaler: AutoscalerRef, checkpoint: Checkpoint, loaded: Instant) {
        let is_shown = |index: &Index| index.uid(&autoscaler) == Some(&checkpoint.uid);
        if !self.ctx.cluster.read(is_shown) {
            self.unknown.insert(autoscaler, (checkpoint, loaded));
            return;
        }
        let (now, longest) = (self.ctx.clock.elapsed(), self.ctx.longest_window());
        if let Some(running) = self.running.get_mut(&autoscaler) {
            // Until its evaluation ends, its checkpoint is merged from both.
            let restored = |before: Box<_>| AutoscalerState::restored(*before, now);
            let mut both = running.take().map(restored).unwrap_or_default();
            both.merge_checkpoint(checkpoint.clone(), now);
            *running = both.checkpoint(now, longest).map(Box::new);
            self.pending_restore.insert(autoscaler, checkpoint);
            return;
        }
        self.states.entry(autoscaler).or_default().merge_checkpoint(checkpoint, now);
    }

    /// Merges a checkpoint that was loaded while its autoscaler was queued or being evaluated.
    fn merge_pending_restore(&mut self, autoscaler: &AutoscalerRef, state: &mut AutoscalerState) {
        let Some(checkpoint) = self.pending_restore.remove(autoscaler) else { return };
        if self.ctx.cluster.read(|index| index.uid(autoscaler) == Some(&checkpoint.uid)) {
            state.merge_checkpoint(checkpoint, self.ctx.clock.elapsed());
        }
    }

    /// The leader or the freeze has changed. A new leader evaluates all autoscalers soon, once it has
    /// loaded the scaling history of the previous terms.
    fn leadership_changed(&mut self) {
        let ControllerContext { leader, metrics, history_loaded_term, .. } = &*self.ctx;
        let term = leader.fencing_token().map(|token| token.term());
        metrics.leads(term.is_some());
        metrics.frozen(leader.frozen().is_some());
        if term != self.term {
            self.term = term;
            match term {
                Some(_) => {
                    self.ctx.ledger.begin_term(self.ctx.clock.wall_ms(), leader.led_by_others());
                }
                None => self.ctx.ledger.end_term(),
            }
            history_loaded_term.store(NO_TERM, Ordering::Release);
            if term.is_some() {
                if !self.checkpointer.start_loading() {
                    self.loaded(Ok(Vec::new()));
                }
                return;
            }
        }
        self.evaluate_all();
    }

    /// The scaling history was loaded, or could not be.
    fn loaded(&mut self, loaded: Loaded) {
        match loaded {
            Ok(all) => self.restore_checkpoints(all),
            Err(error) => {
                self.checkpointer.set_loaded(None);
                tracing::warn!(error, "Failed to read the scaling history, continuing without it");
            }
        }
        let term = self.term.unwrap_or(NO_TERM);
        if self.ctx.history_loaded_term.swap(term, Ordering::AcqRel) != term {
            self.evaluate_all();
        }
    }

    /// Makes all due soon if this replica leads; those in flight are requeued.
    fn evaluate_all(&mut self) {
        if self.ctx.fencing_token().is_some() {
            self.requeue.extend(self.running.keys().cloned());
            self.schedule.bring_forward(Instant::now());
        }
    }

    /// Saves checkpoints of the scaling history if this replica leads.
    fn save(&mut self) {
        let (now, longest) = (self.ctx.clock.elapsed(), self.ctx.longest_window());
        self.unknown.retain(|_, (_, since)| since.elapsed() < MAX_UNKNOWN);
        let (running, states, unknown) = (&self.running, &self.states, &self.unknown);
        let all = || all_checkpoints(running, states, unknown, now, longest);
        self.checkpointer.save(self.ctx.fencing_token(), all);
    }

    /// Whether an autoscaler is not evaluated at all.
    fn ignores(&self, autoscaler: &AutoscalerRef) -> bool {
        autoscaler.kind == AutoscalerKind::Hpa
            && self.ctx.settings.native_hpas == NativeHpas::Ignore
    }

    /// A new or changed autoscaler is evaluated at once; one that is gone is forgotten.
    fn changed(&mut self, autoscaler: AutoscalerRef) {
        if self.ignores(&autoscaler) {
            return;
        }
        if self.ctx.cluster.read(|index| index.has(&autoscaler)) {
            if let Some((checkpoint, loaded)) = self.unknown.remove(&autoscaler) {
                self.restore(autoscaler.clone(), checkpoint, loaded);
            }
            self.states.get_mut(&autoscaler).map(|state| state.followed.take());
            self.schedule.set(autoscaler, Instant::now());
        } else {
            self.forget(&autoscaler);
        }
    }

    fn forget(&mut self, autoscaler: &AutoscalerRef) {
        self.schedule.remove(autoscaler);
        self.failing.remove(autoscaler);
        self.phases.set(autoscaler, None, Instant::now(), 1);
        self.states.remove(autoscaler);
        self.ctx.live.remove(autoscaler);
        self.ctx.ledger.end(autoscaler);
        self.ctx.statuses.forget(autoscaler);
        self.ctx.events.forget(autoscaler);
        self.requeue.remove(autoscaler);
        if autoscaler.kind == AutoscalerKind::Hpa {
            self.ctx.metrics.forget(&autoscaler.key);
            self.ctx.hpa_counts.set(&autoscaler.key, None);
        }
        self.ctx.selectors.release(autoscaler);
    }

    /// Shows since when a decision has been due and none was taken, or when the next one is due.
    fn show_due(&self) {
        let due = if self.running.is_empty() { self.schedule.next() } else { Some(self.progress) };
        let due = due.unwrap_or_else(Instant::now);
        self.ctx.metrics.decision_due(self.ctx.clock.wall_at(due));
    }

    /// Queues all that are due. The queries of their last evaluations are prefetched before any of
    /// them is evaluated, so that they are batched.
    fn start_due(&mut self) {
        let now = Instant::now();
        let due: Vec<_> = std::iter::from_fn(|| self.schedule.take_due(now)).collect();
        let due_together = due.len();
        if self.running.is_empty() {
            self.progress = now;
        }
        let mut batch = Vec::new();
        for (autoscaler, at) in due {
            if self.running.contains_key(&autoscaler) {
                self.requeue.insert(autoscaler);
                continue;
            }
            let mut state = self.states.remove(&autoscaler).unwrap_or_default();
            state.turn = turn(self.ctx.period(&autoscaler), self.ctx.clock.elapsed_at(at));
            let checkpoint = state.checkpoint(self.ctx.clock.elapsed(), self.ctx.longest_window());
            self.running.insert(autoscaler.clone(), checkpoint.map(Box::new));
            batch.push(DueEvaluation { autoscaler, at, due_together, state });
        }
        QueryHandle::prefetch(batch.iter().flat_map(|due| due.state.next_queries(self.term)));
        for due in batch {
            let namespace = due.autoscaler.key.namespace.clone();
            self.queue.push(&namespace, due);
        }
        self.begin_evaluations();
    }

    /// Begins as many evaluations as may be in flight.
    fn begin_evaluations(&mut self) {
        while let Some(mut due) = self.queue.next() {
            self.merge_pending_restore(&due.autoscaler.clone(), &mut due.state);
            // A token that came later would be of a term whose history this state lacks.
            let (ctx, token) = (self.ctx.clone(), self.ctx.fencing_token());
            self.evaluations.spawn(async move { run_evaluation(&ctx, token, due).await });
        }
        self.ctx.statuses.hold(self.queue.is_backlogged());
    }

    /// Notes the result of an evaluation, and schedules the next one. Periods that it overran are
    /// skipped: under overload all are evaluated less often.
    fn evaluated(&mut self, done: FinishedEvaluation) {
        let FinishedEvaluation { autoscaler, due, begun, due_together, state, result } = done;
        self.queue.ended(&autoscaler.key.namespace);
        self.progress = Instant::now();
        if !*self.stopping.borrow() {
            self.begin_evaluations();
        }
        match result == Some(SyncResult::Failed) && self.ctx.scales(&autoscaler) {
            true => self.failing.insert(autoscaler.clone()),
            false => self.failing.remove(&autoscaler),
        };
        let checkpoint = self.running.remove(&autoscaler).flatten();
        let now = self.ctx.clock.elapsed();
        let restored = || checkpoint.map(|one| AutoscalerState::restored(*one, now).into());
        let mut state = state.or_else(restored).unwrap_or_default();
        if std::mem::take(&mut state.is_unsaved) || result == Some(SyncResult::Rescaled) {
            self.checkpointer.bring_forward();
        }
        self.merge_pending_restore(&autoscaler, &mut state);
        let requeue = self.requeue.remove(&autoscaler);
        if !self.ctx.cluster.read(|index| index.has(&autoscaler)) {
            // Deleted during its evaluation, which has created its state again.
            self.forget(&autoscaler);
            return self.count();
        }
        let (period, now) = (self.ctx.period(&autoscaler), Instant::now());
        let (phase, together) = state.phase.take().map_or((due, due_together), |phase| (phase, 1));
        self.phases.set(&autoscaler, state.shape_hash(), phase, together);
        let at_phase = self.phases.next(&autoscaler, period, phase, now, together);
        let release = state.release.take().map(|release| now + self.until(release));
        let next = match release.filter(|release| *release < at_phase) {
            _ if requeue => now,
            Some(release) => {
                state.phase = Some(at_phase);
                release
            }
            None => at_phase,
        };
        // Its next time may be more than a period away if the phase of its cohort has changed.
        let periods = now.duration_since(due).as_nanos() / period.as_nanos();
        if let skipped @ 1.. = periods {
            self.ctx.metrics.missed(u64::try_from(skipped).unwrap_or(u64::MAX));
            if self.warned.is_none_or(|warned| warned.elapsed() > WARNING_INTERVAL) {
                self.warned = Some(Instant::now());
                let lag = begun.duration_since(due);
                tracing::warn!(
                    %autoscaler, ?period, ?lag, took = ?begun.elapsed(),
                    "Evaluation overran its period, skipping the next one"
                );
            }
        }
        let is_next = self.schedule.set_if_none(autoscaler.clone(), next);
        // Of one that was changed meanwhile, a replica that does not lead has read what was before.
        state.followed = state.followed.filter(|_| is_next && !requeue);
        self.states.insert(autoscaler, state);
        self.count();
    }

    /// How long it is until a time of this process's clock; zero if it has passed.
    fn until(&self, time: UnixMillis) -> Duration {
        let wait = time.saturating_sub(self.ctx.clock.elapsed());
        Duration::from_millis(u64::try_from(wait).unwrap_or(0))
    }

    /// Updates the metric of the number of autoscalers.
    fn count(&self) {
        let all = self.schedule.len() + self.running.len();
        let all = all.saturating_sub(self.ctx.observed_hpas());
        self.ctx.metrics.autoscalers(all, self.failing.len());
    }
}

/// Evaluates one autoscaler; a panic ends only this evaluation.
async fn run_evaluation(
    ctx: &ControllerContext,
    token: Option<FencingToken>,
    due: DueEvaluation,
) -> FinishedEvaluation {
    let DueEvaluation { autoscaler, at, due_together, mut state } = due;
    let begun = Instant::now();
    let evaluated = reconcile(ctx, token.as_ref(), &autoscaler, &mut state);
    let (result, state) = match AssertUnwindSafe(evaluated).catch_unwind().await {
        Ok(result) => (result, Some(state)),
        Err(_) => {
            tracing::error!(%autoscaler, "Evaluation panicked");
            (Some(SyncResult::Failed), None)
        }
    };
    if let Some(result) = result {
        ctx.metrics.decided(result.as_str(), begun.duration_since(at), begun.elapsed());
    }
    FinishedEvaluation { autoscaler, due: at, begun, due_together, state, result }
}

#[cfg(test)]
mod tests;
