//! One decision for one autoscaler, from observation to effect.

use super::gather::{Aligned, Gathered, gather, note_types};
use super::keep::Kept;
use super::moment::Moment;
use super::rescales::{Change, Rescales};
use super::run::{Broken, Shared};
use super::schedule::hash;
use super::selectors::Selection;
use super::status::{self, Written};
use super::targets::{Target, WriteError};
use super::{native, observe};
use crate::config::NativeHpas;
use crate::crd::{AutoscalerStatus, Executor, Fallback};
use crate::hpa::{
    self, ConditionKind, Context, Decision, Event, EventKind, Input, Memory, Outcome, Phase, Pod,
    Samples, Spec, Status, UnixMillis,
};
use crate::k8s::Selector;
use crate::leader::FencingToken;
use crate::samples::QueryHandle;
use crate::watch::{AutoscalerRecord, HpaRecord, ScalingSpec, Subject, SubjectKind};
use jiff::Timestamp;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is kept of a subject from decision to decision.
#[derive(Default)]
pub struct State {
    /// By the clock of this process.
    pub(super) memory: Memory,
    pub(super) status: Status,
    written: Option<Written>,
    failed_rounds: i32,
    /// Whether its last round in this process could decide on the metrics.
    measured: bool,
    /// Since when, and until when, none of its replicas is removed, as the metrics were away:
    /// by the clock of this process.
    pub(super) held: Option<(UnixMillis, UnixMillis)>,
    /// The replicas wanted in the last round in which an observed HPA was compared.
    pub(super) wanted: Option<i32>,
    /// The term in which this replica made the status; in another it is read from the
    /// object, to which another may have written.
    term: Option<u64>,
    /// Whether this is its first round in that term.
    took_over: bool,
    /// The least and most replicas that may be wanted, where that was looked at.
    bounds: Option<(i32, i32)>,
    /// When a frozen status was last made to say what is wanted, and that.
    frozen_shown: Option<(Instant, i32)>,
    /// Since when fewer pods are known than the scale has replicas.
    lacking: Option<Instant>,
    /// What was seen of a native HPA that is observed.
    pub(super) seen: observe::Seen,
    /// Why the last decision failed, where it did and that was told.
    told: Option<String>,
    /// Which changes of the scale `memory` knows of.
    rescales: Rescales,
    /// What was asked of Prometheus for each metric when that last went well, and
    /// will be the next time.
    pub(super) asked: Vec<Vec<QueryHandle>>,
    /// The UID it is of: one that was deleted and made anew starts anew.
    uid: String,
}

/// How a decision ended, for the metrics.
pub type Ended = &'static str;

/// The scale was written.
pub const RESCALED: Ended = "rescaled";
/// Nothing was to be written.
pub const HELD: Ended = "held";
/// How long fewer known pods than replicas withhold a scale-down: longer than a watch
/// that fell silent goes unnoticed.
const LACKING: Duration = Duration::from_secs(300);
/// Why a decision that took too long failed.
const TIMED_OUT: &str = "DecisionTimedOut";
/// How often a decision is taken anew where the scale is changed meanwhile.
const TRIES: u32 = 5;
/// Nothing could be decided, or not be written.
pub const FAILED: Ended = "failed";
/// A native HPA was decided for beside kube-controller-manager.
pub const OBSERVED: Ended = "observed";
/// How many recommendations are kept before those that no window can tell apart go.
const RECOMMENDATIONS: usize = 64;
/// The reason of the condition ScaledToZero from before the scale is written until it
/// was seen to be, and upstream's messages of that condition.
const GOES_TO_ZERO: &str = "ScalingToZero";
const SCALED_TO_ZERO: &str = "the HPA controller scaled the workload to zero";
const NOT_SCALED: &str = "the HPA controller did not scale the workload to zero";
/// For how long the API server may yet carry out a scale to zero of which the status speaks,
/// whoever asked for it: a request for the status, one for the scale, and what the API server
/// takes for that.
const GOING_TO_ZERO_MS: i64 = 30_000;
/// Another replica leads, and writes.
const FOLLOWED: Ended = "followed";

/// Decides once for a subject and carries the decision out, or only compares it,
/// where another decides, or only remembers it, where another replica leads; none
/// if the subject is gone, or nothing is to be decided for it here.
pub async fn round(
    shared: &Shared,
    token: Option<&FencingToken>,
    subject: &Subject,
    state: &mut State,
) -> Option<Ended> {
    let term = token.map(FencingToken::term);
    match subject.kind {
        SubjectKind::Autoscaler => {
            let record = shared.cluster.read(|index| index.autoscaler(&subject.key))?;
            let spec = record.parsed.as_ref().ok().map(|parsed| &parsed.scaling.spec);
            let seen = || record.status.clone();
            if state.begin(shared, subject, (&record.uid, spec), term, seen).await.is_err() {
                return Some(FAILED);
            }
            Some(autoscaler(shared, token, subject, &record, state).await)
        }
        SubjectKind::Hpa => {
            let record = shared.cluster.read(|index| index.hpa(&subject.key))?;
            let manages = shared.settings.native_hpas == NativeHpas::Manage;
            // Of one that is observed kube-controller-manager writes the status.
            let own = term.filter(|_| manages);
            let seen = || Status::from_api(&record.status);
            let of = (&*record.uid, Some(&record.scaling.spec));
            if state.begin(shared, subject, of, own, seen).await.is_err() {
                return Some(FAILED);
            }
            hpa(shared, token, subject, &record, state).await
        }
    }
}

impl State {
    /// What is likely to be asked of Prometheus in its next round.
    pub fn asked(&self) -> impl Iterator<Item = &QueryHandle> {
        self.asked.iter().flatten()
    }

    /// The form of query that it is asked by first, as a hash.
    pub fn form(&self) -> Option<u64> {
        self.asked().next().map(|asked| hash(asked.shape()))
    }

    /// One that remembers what was kept.
    pub fn restored(kept: Kept) -> Self {
        let mut state = Self { uid: kept.uid.clone(), ..Self::default() };
        state.inherit(kept);
        state
    }

    /// Takes in what a leader before kept.
    pub fn inherit(&mut self, kept: Kept) {
        if self.uid.is_empty() {
            self.uid.clone_from(&kept.uid);
        }
        if self.uid == kept.uid {
            let complete = kept.last_scale.is_some() && kept.last_scale >= self.rescales.last();
            self.memory.join(kept.memory, complete);
            self.rescales.inherit(kept.last_scale);
            let until = |held: &(UnixMillis, UnixMillis)| held.1;
            self.held = self.held.into_iter().chain(kept.held).max_by_key(until);
        }
    }

    /// What is to be kept, at a time of this process's clock; none where a decision that
    /// starts anew sees all of it anyway: that the present replicas are right.
    pub fn kept(&self, now: UnixMillis, longest: i64) -> Option<Kept> {
        let mut memory = self.memory.essential(now, longest);
        // Recommendations are made before min and max are looked at.
        if let ([only], Some((min, max))) = (&*memory.recommendations, self.bounds)
            && only.replicas.max(min).min(max) == self.status.current_replicas
        {
            memory.recommendations.clear();
        }
        let last_scale = self.rescales.last();
        let held = self.held.filter(|(_, until)| now < *until);
        let says_something = !memory.is_empty() || held.is_some();
        says_something.then(|| Kept { uid: self.uid.clone(), memory, last_scale, held })
    }

    /// Remembers what a decision leaves.
    pub(super) fn remember(&mut self, memory: Memory, at: Moment, longest: i64) {
        self.memory = at.remember(memory);
        if self.memory.recommendations.len() > RECOMMENDATIONS {
            self.memory = self.memory.essential(at.process, longest);
        }
    }

    /// Changes what is remembered of the scale, by the wall clock of a decision.
    fn amend(&mut self, at: Moment, change: impl FnOnce(&mut Memory)) {
        let mut memory = at.read(std::mem::take(&mut self.memory));
        change(&mut memory);
        self.memory = at.remember(memory);
    }

    /// Whether fewer pods are known than the scale has replicas, and not for so long
    /// that its kind must count them otherwise.
    fn lacks_pods(&mut self, known: usize, replicas: i32) -> bool {
        if usize::try_from(replicas).is_ok_and(|replicas| known < replicas) {
            let since = self.lacking.get_or_insert_with(Instant::now);
            return since.elapsed() < LACKING;
        }
        self.lacking = None;
        false
    }

    /// Begins a round in a term of this replica's, or in none, with the status that was seen
    /// where that may be another's. Of one that may be at zero the object itself tells: a watch
    /// may be behind, and nothing but the status leads back from there, or leaves it there.
    async fn begin(
        &mut self,
        shared: &Shared,
        subject: &Subject,
        (uid, spec): (&str, Option<&Spec>),
        term: Option<u64>,
        seen: impl FnOnce() -> Status,
    ) -> Result<(), kube::Error> {
        if self.is_of(uid, term) {
            return Ok(());
        }
        let mut status = seen();
        if term.is_some() && spec.is_some_and(|spec| spec.min_replicas == 0) {
            status = status::read(&shared.client, subject).await.inspect_err(|error| {
                tracing::warn!(%subject, %error, "Failed to read the status");
            })?;
        }
        self.begin_with(uid, term, status);
        Ok(())
    }

    /// Whether its status is this replica's own.
    fn is_of(&self, uid: &str, term: Option<u64>) -> bool {
        self.uid == uid && term.is_some() && self.term == term
    }

    fn begin_with(&mut self, uid: &str, term: Option<u64>, status: Status) {
        if self.uid != uid {
            *self = Self { uid: uid.to_owned(), ..Self::default() };
        }
        self.status = status;
        if let Some(written) = &mut self.written {
            written.look_at_once();
        }
        self.took_over = term.is_some();
        self.term = term;
    }

    /// Counts rounds in a row in which the metrics failed; whether they did in this one. One
    /// in which the scale could not be read says nothing of them.
    fn count_failure(&mut self, decision: &Decision, scale_is_known: bool) -> bool {
        match decision.metrics_failed {
            true => self.failed_rounds = self.failed_rounds.saturating_add(1),
            false if scale_is_known => self.failed_rounds = 0,
            false => {}
        }
        decision.metrics_failed
    }

    /// The metrics could be decided on, the last time before this at a time of the process's
    /// clock. Whether none of the replicas is to be removed: where they were away, until they
    /// are back for as long, at most a window of scale-down. The first rates after a gap are of
    /// too few samples, and the recommendations from before it may be out of the window.
    ///
    /// Short gaps that follow each other share one window, so that metrics which fail every few
    /// rounds don't withhold removals for ever; a gap of more than half a window has one of its
    /// own, as the window of stabilization has little from before it.
    fn holds(&mut self, before: Option<UnixMillis>, window: i64, now: UnixMillis) -> bool {
        if !std::mem::replace(&mut self.measured, true)
            && let Some(before) = before
        {
            let gap = (now - before).max(0);
            let shared = self.held.filter(|_| gap <= window / 2);
            let (since, until) = shared.unwrap_or((now, now));
            let longer = now.saturating_add(gap).min(since + window);
            self.held = Some((since, until.max(longer)));
        }
        self.held = self.held.filter(|(_, until)| now < *until);
        self.held.is_some()
    }

    /// Remembers the changes of the scale that another replica made, by what the status
    /// says and by what the scale is; and the one that this replica made without knowing.
    fn note_scale(&mut self, spec: &Spec, target: &Target, at: Moment) {
        let replicas = target.replicas.spec_replicas;
        let now = at.process;
        self.bounds = Some((spec.min_replicas, spec.max_replicas));
        if self.term.is_none() || self.took_over {
            self.rescales.see(replicas, now);
            let Status { last_scale, desired_replicas, .. } = self.status;
            let told = self.rescales.hear(last_scale.map(seconds), desired_replicas, now);
            let untold = std::mem::take(&mut self.took_over).then(|| self.rescales.take_over());
            if let Some(Change { from, to, at }) = told {
                self.memory.scaled(from, to, spec, at);
            }
            for Change { from, to, at } in untold.into_iter().flatten() {
                self.memory.maybe_scaled(from, to, spec, at);
            }
        }
        if self.term.is_some()
            && let Some(Change { from, to, at: done }) =
                self.rescales.lead(replicas, target.object.is_some(), now)
        {
            self.memory.scaled(from, to, spec, done);
            self.did(from, to, at.wall - (now - done));
            if to == 0 {
                settle_zero(&mut self.status, 0, at.wall);
            }
        }
    }

    /// This replica has changed the scale, at a time of the wall clock.
    fn did(&mut self, from: i32, to: i32, wall: UnixMillis) {
        self.status.last_scale = Some(wall);
        self.rescales.did(from, to, Some(seconds(wall)));
    }
}

/// Settles whether the scale to zero was done that a status speaks of, by the scale as it
/// is now.
fn settle_zero(status: &mut Status, replicas: i32, now: UnixMillis) {
    let kind = ConditionKind::ScaledToZero;
    match replicas {
        0 => status.set(kind, true, "ScaledToZero", format_args!("{SCALED_TO_ZERO}"), now),
        _ => status.set(kind, false, "NotScaledToZero", format_args!("{NOT_SCALED}"), now),
    }
}

/// Since when a status says that the workload is being scaled to zero, where it does not
/// say yet whether it was.
fn goes_to_zero(status: &Status) -> Option<UnixMillis> {
    let condition = status.condition(ConditionKind::ScaledToZero)?;
    (condition.reason == GOES_TO_ZERO).then_some(condition.since)
}

async fn autoscaler(
    shared: &Shared,
    token: Option<&FencingToken>,
    subject: &Subject,
    record: &AutoscalerRecord,
    state: &mut State,
) -> Ended {
    let status = &mut state.status;
    let parsed = match &record.parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            status.set(
                ConditionKind::AbleToScale,
                false,
                "InvalidSpec",
                format_args!("{error}"),
                now(),
            );
            // What was seen of the scale last stands, as nothing else is known.
            let last = hpa::render_status(status);
            let shown = AutoscalerStatus {
                observed_generation: record.generation,
                last_scale_time: last.last_scale_time,
                current_replicas: last.current_replicas,
                desired_replicas: last.desired_replicas,
                conditions: last.conditions,
                ..Default::default()
            };
            shared.selectors.release(subject);
            write_status(shared, token, subject, state, shown);
            shared.metrics.failed("InvalidSpec");
            return FAILED;
        }
    };
    if parsed.spec.executor == Executor::NativeHPA {
        shared.selectors.release(subject);
        return match token {
            Some(token) => native::delegate(shared, token, subject, record, parsed, state).await,
            None => FOLLOWED,
        };
    }
    if let Some(token) = token {
        let known = shared.cluster.read(|index| index.hpa(&subject.key));
        let Shared { client, cluster, selectors, .. } = shared;
        if native::remove(client, token, &subject.key, &record.uid, known.as_deref()).await {
            // Its claim on the pods goes at once; the watch tells of it later.
            let hpa = Subject::hpa(subject.key.clone());
            cluster.write(|index| {
                let uid = known.map(|known| known.uid.clone());
                if index.hpa(&hpa.key).map(|now| now.uid.clone()) == uid {
                    index.remove_hpa(&hpa.key);
                }
            });
            selectors.release(&hpa);
            cluster.changed(hpa);
        }
    }
    if parsed.spec.paused {
        // What was right before says nothing of the replicas that an owner chose since.
        state.memory.recommendations.clear();
        (state.failed_rounds, state.held) = (0, None);
        status.set(
            ConditionKind::Paused,
            true,
            "PausedBySpec",
            format_args!("spec.paused is set: the scale is left alone"),
            now(),
        );
        let shown = status::shown(status, &parsed.scaling.spec, record.generation);
        shared.selectors.release(subject);
        write_status(shared, token, subject, state, shown);
        return HELD;
    }
    status.remove(ConditionKind::Paused);
    let limits = (parsed.spec.fallback.as_ref(), record.generation);
    effect(shared, token, subject, &parsed.scaling, limits, state).await
}

/// Decides and carries out, anew where another hand changed the scale in between.
async fn effect(
    shared: &Shared,
    token: Option<&FencingToken>,
    subject: &Subject,
    scaling: &ScalingSpec,
    (fallback, generation): (Option<&Fallback>, Option<i64>),
    state: &mut State,
) -> Ended {
    let scaling = &*allowed(&shared.settings.decisions, scaling);
    let mut tries = 0;
    loop {
        tries += 1;
        let round = match shared.bounded(decide(shared, token, subject, scaling, state)).await {
            Ok(round) => round,
            Err(Broken::Stopped) => return FOLLOWED,
            Err(Broken::Late(timeout)) => {
                timed_out(timeout, &mut state.status);
                state.status.remove(ConditionKind::FallbackActive);
                let shown = status::shown(&state.status, &scaling.spec, generation);
                write_status(shared, token, subject, state, shown);
                shared.metrics.failed(TIMED_OUT);
                return FAILED;
            }
        };
        let Some(token) = token else { return follow(shared, subject, round, state) };
        let last = tries == TRIES;
        let carried_out =
            carry_out(shared, token, subject, (fallback, generation), round, last, state).await;
        match carried_out {
            Some(ended) => return ended,
            None => tracing::debug!(%subject, tries, "Decides again: the scale was changed"),
        }
    }
}

/// Says that a decision took too long, which is then none.
fn timed_out(timeout: Duration, status: &mut Status) {
    let text = format_args!("the scale could not be read within {timeout:?}");
    status.set(ConditionKind::ScalingActive, false, TIMED_OUT, text, now());
}

async fn hpa(
    shared: &Shared,
    token: Option<&FencingToken>,
    subject: &Subject,
    record: &HpaRecord,
    state: &mut State,
) -> Option<Ended> {
    if shared.settings.native_hpas != NativeHpas::Manage {
        return observe::round(shared, token.is_some(), subject, record, state).await;
    }
    Some(effect(shared, token, subject, &record.scaling, (None, None), state).await)
}

/// The time of a decision.
pub fn now() -> UnixMillis {
    Timestamp::now().as_millisecond()
}

/// As a status shows a time.
fn seconds(time: UnixMillis) -> i64 {
    time.div_euclid(1000)
}

/// What was observed and decided, before anything is written.
pub struct Round<'a> {
    pub(super) context: Context<'a>,
    pub(super) target: Result<Target, String>,
    pub(super) decision: Decision,
    /// By the wall clock.
    pub(super) memory: Memory,
    pub(super) status: Status,
    pub(super) at: Moment,
    /// Why nothing is to be written, as it was when the round began.
    frozen: Option<Arc<str>>,
}

/// Observes and decides; a decision that will be written is one on what is there now.
pub async fn decide<'a>(
    shared: &'a Shared,
    token: Option<&FencingToken>,
    subject: &Subject,
    scaling: &'a ScalingSpec,
    state: &mut State,
) -> Round<'a> {
    let (spec, namespace) = (&scaling.spec, &subject.key.namespace);
    let frozen = shared.leader.frozen();
    let writes = token.is_some() && frozen.is_none();
    let targets = &shared.targets;
    // While frozen, too: a zero that its owner sets then must not be taken for its own.
    let unsettled = token.and_then(|_| goes_to_zero(&state.status));
    let mut target = match unsettled {
        Some(_) => targets.read(namespace, &spec.target).await,
        None => targets.scale(&shared.cluster, namespace, &spec.target).await,
    };
    let at = Moment::now(&shared.clock);
    if let (Ok(target), Some(since)) = (&target, unsettled) {
        let replicas = target.replicas.spec_replicas;
        let is_open = (at.wall - since).abs() < GOING_TO_ZERO_MS
            || state.rescales.tries(0, at.process - GOING_TO_ZERO_MS);
        if replicas == 0 || !is_open {
            settle_zero(&mut state.status, replicas, at.wall);
        }
    }
    loop {
        let until = tokio::time::Instant::now() + shared.settings.decision_timeout;
        if let Ok(target) = &target {
            state.note_scale(spec, target, at);
        }
        let config = shared.decisions(&state.status);
        let context = Context { spec, config, now: at.wall };
        let measures =
            target.as_ref().is_ok_and(|target| needs_samples(context, target, &state.status));
        let gathered = match &target {
            Ok(target) if measures => {
                gather(shared, namespace, scaling, &target.selector, until, state).await
            }
            _ => {
                state.asked.clear();
                Vec::new()
            }
        };
        let (mut memory, mut status) = (at.read(state.memory.clone()), state.status.clone());
        let (mut decision, known) =
            compute(shared, subject, context, &target, &gathered, &mut memory, &mut status);
        if subject.kind == SubjectKind::Autoscaler && !gathered.is_empty() {
            note_types(&gathered, &scaling.pod_metrics, &mut status, context.now);
        }
        let is_held = match decision.outcome {
            Outcome::Failed if measures || target.is_err() => {
                state.measured = false;
                false
            }
            Outcome::Hold | Outcome::Rescale { .. } if measures => {
                let before = state.memory.recommendations.iter().map(|one| one.time).max();
                let [_, window] = context.windows();
                state.holds(before, window, at.process)
            }
            _ => false,
        };
        let replicas = target.as_ref().map_or(0, |target| target.replicas.status_replicas);
        if state.lacks_pods(known, replicas) {
            let text = format_args!(
                "{known} pods are known of the {replicas} that the scale has: none is removed until all are"
            );
            if withhold(context, "PodsNotKnown", text, &mut decision, &mut status) {
                memory = at.read(state.memory.clone());
            }
        }
        if is_held {
            let text = format_args!(
                "the metrics were away: no replica is removed before they are back for as long"
            );
            withhold(context, "MetricsWereAway", text, &mut decision, &mut status);
        }
        let rescales = writes && matches!(decision.outcome, Outcome::Rescale { .. });
        let seen = match &target {
            Ok(seen) if seen.object.is_none() && rescales => seen,
            _ => break Round { context, target, decision, memory, status, at, frozen },
        };
        // What was seen may be behind: a write follows what is there now alone.
        let read = targets.read(namespace, &spec.target).await;
        let same = read.as_ref().is_ok_and(|read| read.is_as(seen));
        target = read;
        if same {
            break Round { context, target, decision, memory, status, at, frozen };
        }
    }
}

/// Whether a decision on such a target looks at metrics at all.
pub(super) fn needs_samples(context: Context<'_>, target: &Target, status: &Status) -> bool {
    let selector = &target.selector;
    let selects = !selector.is_empty() && selector.parse::<Selector>().is_ok();
    selects && hpa::needs_samples(context, target.replicas, status)
}

/// Decides on what was gathered; and how many pods are known.
fn compute(
    shared: &Shared,
    subject: &Subject,
    context: Context<'_>,
    target: &Result<Target, String>,
    gathered: &[Gathered],
    memory: &mut Memory,
    status: &mut Status,
) -> (Decision, usize) {
    let scale = target.as_ref().map(|target| target.replicas).map_err(String::as_str);
    let selector = target.as_ref().map_or("", |target| &target.selector);
    // As the HPA controller, which registers a selector only once it reads metrics.
    let claims = target.as_ref().is_ok_and(|target| needs_samples(context, target, status));
    shared.cluster.read(|index| {
        let selection = Selection::of(shared, index, subject, selector, claims);
        let pods: Vec<Pod<'_>> = selection.pods.iter().map(|(name, pod)| pod.view(name)).collect();
        let metrics = gathered.iter().zip(context.spec.metrics.iter());
        let aligned: Vec<Aligned<'_>> =
            metrics.map(|(samples, metric)| Aligned::new(samples, metric, &pods)).collect();
        let samples: Vec<Samples<'_>> = aligned.iter().map(Aligned::view).collect();
        let input = Input {
            context,
            namespace: &subject.key.namespace,
            scale,
            selected: selection.selected(selector, &pods),
            samples: &samples,
        };
        let active = pods.iter().filter(|pod| is_active(pod)).count();
        (hpa::decide(&input, memory, status, &mut ()), active)
    })
}

/// Whether a pod is one that the replicas of a scale's status count.
fn is_active(pod: &Pod<'_>) -> bool {
    !pod.deleting && !matches!(pod.phase, Phase::Succeeded | Phase::Failed)
}

/// Leaves the scale as it is where fewer replicas are asked for; true where it does.
fn withhold(
    context: Context<'_>,
    reason: &str,
    text: fmt::Arguments<'_>,
    decision: &mut Decision,
    status: &mut Status,
) -> bool {
    let Outcome::Rescale { from, to, .. } = decision.outcome else { return false };
    if to >= from || from > context.spec.max_replicas {
        return false;
    }
    status.set(ConditionKind::ScalingLimited, true, reason, text, context.now);
    status.desired_replicas = from;
    decision.outcome = Outcome::Hold;
    true
}

/// Writes the scale, the events and the status of a decision; none where the scale
/// was changed by another and is to be decided again, unless this is the last try.
async fn carry_out(
    shared: &Shared,
    token: &FencingToken,
    subject: &Subject,
    (fallback, generation): (Option<&Fallback>, Option<i64>),
    round: Round<'_>,
    last: bool,
    state: &mut State,
) -> Option<Ended> {
    let Round { context, target, mut decision, memory, mut status, at, frozen } = round;
    let before = state.memory.clone();
    state.remember(memory, at, shared.longest());
    if !is_current(shared, subject, &state.uid, generation, context.spec) {
        // Deleted or changed in mid-decision: what it asked for counts no more.
        return Some(HELD);
    }
    let mut frozen = frozen.or_else(|| shared.leader.frozen());
    match &frozen {
        Some(why) => freeze(shared, context, why, &mut decision, &mut status, state),
        None => status.remove(ConditionKind::Frozen),
    }
    let object = target.as_ref().ok().and_then(|target| target.object.as_ref());
    if let (Outcome::Rescale { to, .. }, Some(object)) = (&decision.outcome, object) {
        let (from, to) = (target.as_ref().map_or(0, |seen| seen.replicas.spec_replicas), *to);
        let written = match announce_zero(
            shared,
            token,
            subject,
            context,
            to,
            generation,
            state,
            &mut status,
        )
        .await
        {
            Ok(()) => shared.targets.write(token, object, to).await,
            Err(error) => Err(WriteError::Failed(error)),
        };
        let unanswered = matches!(written, Err(WriteError::Unanswered(_)));
        if unanswered {
            // The write may have begun long after the decision, and be carried out yet.
            state.rescales.tried(Change { from, to, at: shared.clock.elapsed() });
        }
        if written.is_err() && !token.is_valid() {
            return Some(FOLLOWED);
        }
        if written == Err(WriteError::Changed) && !last {
            state.memory = before;
            return None;
        }
        // An answer that did not come says nothing of the write: the scale does, now or later.
        let written = match written {
            Err(_) if unanswered && has(shared, subject, context.spec, to).await => Ok(()),
            Err(_) if !unanswered && goes_to_zero(&status).is_some() => {
                settle_zero(&mut status, from, context.now);
                written
            }
            _ => written,
        };
        frozen = shared.leader.frozen().filter(|_| written.is_err());
        match (&frozen, written) {
            (Some(why), _) => freeze(shared, context, why, &mut decision, &mut status, state),
            (None, written) => {
                let outcome = written.map_err(|error| error.to_string());
                let outcome = outcome.as_ref().copied().map_err(String::as_str);
                state.amend(at, |memory| {
                    hpa::settle(context, &mut decision, outcome, memory, &mut status);
                });
                if outcome.is_ok() {
                    state.rescales.did(from, to, Some(seconds(context.now)));
                }
            }
        }
    }
    let metrics_failed = state.count_failure(&decision, target.is_ok());
    match (fallback, &target) {
        (Some(fallback), Ok(seen))
            if metrics_failed
                && frozen.is_none()
                && state.failed_rounds >= fallback.failed_rounds =>
        {
            let replicas = seen.replicas.spec_replicas;
            let fallen = fall_back(context, fallback, replicas, state.failed_rounds, &mut status);
            if let Some((to, event)) = fallen {
                match raise(shared, token, subject, context.spec, to, state).await {
                    Ok(Some(from)) => {
                        status.desired_replicas = to;
                        status.last_scale = Some(context.now);
                        let raised = |memory: &mut Memory| {
                            memory.raised(from, to, context.spec, context.now);
                        };
                        state.amend(at, raised);
                        state.rescales.did(from, to, Some(seconds(context.now)));
                        decision.events.push(event);
                    }
                    Ok(None) => {}
                    Err(error) => tracing::warn!(%subject, %error, "could not fall back"),
                }
            }
        }
        (Some(_), target) if metrics_failed || target.is_err() => {}
        _ => status.remove(ConditionKind::FallbackActive),
    }

    let mut events = std::mem::take(&mut decision.events);
    events.extend(decision.late_event.take());
    shared.events.publish(token, subject, &state.uid, &events);
    let mut failure = None;
    if decision.outcome == Outcome::Failed {
        let fault = [ConditionKind::AbleToScale, ConditionKind::ScalingActive]
            .into_iter()
            .filter_map(|kind| status.condition(kind))
            .find(|condition| !condition.status);
        let reason = fault.map_or("Unknown", |condition| &condition.reason);
        shared.metrics.failed(reason);
        failure = Some(reason.to_owned());
    }
    log(subject, &decision, failure, state);
    let shown = status::shown(&status, context.spec, generation);
    state.status = status;
    write_status(shared, Some(token), subject, state, shown);
    Some(match decision.outcome {
        Outcome::Rescale { .. } => RESCALED,
        Outcome::Hold => HELD,
        Outcome::Failed => FAILED,
    })
}

/// What may be asked of decisions: without scaling to zero no less than one replica.
fn allowed<'a>(config: &hpa::Config, scaling: &'a ScalingSpec) -> Cow<'a, ScalingSpec> {
    if config.scale_to_zero || scaling.spec.min_replicas > 0 {
        return Cow::Borrowed(scaling);
    }
    let mut scaling = scaling.clone();
    scaling.spec.min_replicas = 1;
    Cow::Owned(scaling)
}

/// Whether a subject is still the one that was decided for, and asks for the same.
fn is_current(
    shared: &Shared,
    subject: &Subject,
    uid: &str,
    generation: Option<i64>,
    spec: &Spec,
) -> bool {
    shared.cluster.read(|index| match subject.kind {
        SubjectKind::Autoscaler => index
            .autoscaler(&subject.key)
            .is_some_and(|now| now.uid == uid && now.generation == generation),
        // It may have no generation.
        SubjectKind::Hpa => index.hpa(&subject.key).is_some_and(|now| {
            now.uid == uid && allowed(&shared.settings.decisions, &now.scaling).spec == *spec
        }),
    })
}

/// Tells in the status, before it is done, that the workload is scaled to zero: from
/// there nothing but that leads back, whoever leads by then. The status stands until the
/// scale was seen to be zero, or not.
#[allow(clippy::too_many_arguments)] // all of them are of the round
async fn announce_zero(
    shared: &Shared,
    token: &FencingToken,
    subject: &Subject,
    context: Context<'_>,
    to: i32,
    generation: Option<i64>,
    state: &mut State,
    status: &mut Status,
) -> Result<(), String> {
    if to != 0 || !context.config.scale_to_zero {
        return Ok(());
    }
    let text = format_args!("the workload is being scaled to zero");
    // Since now, though it may have been at zero before.
    status.remove(ConditionKind::ScaledToZero);
    status.set(ConditionKind::ScaledToZero, true, GOES_TO_ZERO, text, context.now);
    let shown = status::shown(status, context.spec, generation);
    state.written = None;
    let recorded = shared.statuses.record(token, subject, &state.uid, &shown).await;
    recorded
        .map_err(|error| format!("the status that it is scaled to zero can't be written: {error}"))
}

/// Whether a target is asked to have so many replicas by now.
async fn has(shared: &Shared, subject: &Subject, spec: &Spec, replicas: i32) -> bool {
    let read = shared.targets.read(&subject.key.namespace, &spec.target).await;
    read.is_ok_and(|read| read.replicas.spec_replicas == replicas)
}

/// Leaves the scale as it is, and says what is wanted: anew at once, and then no more
/// often than measured numbers are, as it may move in each round.
fn freeze(
    shared: &Shared,
    context: Context<'_>,
    why: &str,
    decision: &mut Decision,
    status: &mut Status,
    state: &mut State,
) {
    let reason = "FrozenByAdministrator";
    match decision.outcome {
        Outcome::Rescale { from, to, .. } => {
            let interval = shared.settings.status_interval;
            let lately = |(at, shown): &(Instant, i32)| at.elapsed() < interval && *shown != from;
            let shown = state.frozen_shown.filter(lately).unwrap_or((Instant::now(), to));
            state.frozen_shown = Some(shown);
            let (_, to) = shown;
            let text = format_args!("the scale is left at {from}, though {to} are wanted: {why}");
            status.set(ConditionKind::Frozen, true, reason, text, context.now);
            status.desired_replicas = to;
            decision.outcome = Outcome::Hold;
        }
        Outcome::Hold | Outcome::Failed => {
            let text = format_args!("the scale is left alone: {why}");
            status.set(ConditionKind::Frozen, true, reason, text, context.now);
        }
    }
}

/// Writes nothing, as another replica leads; remembers what was decided, to be
/// warm when it takes over.
fn follow(shared: &Shared, subject: &Subject, round: Round<'_>, state: &mut State) -> Ended {
    let Round { context, target, decision, memory, mut status, at, .. } = round;
    state.remember(memory, at, shared.longest());
    state.count_failure(&decision, target.is_ok());
    if let Ok(target) = &target {
        let replicas = target.replicas.spec_replicas;
        let wanted = match decision.outcome {
            Outcome::Rescale { to, .. } => to,
            Outcome::Hold | Outcome::Failed => replicas,
        };
        status.desired_replicas = wanted;
    }
    let shown = status::shown(&status, context.spec, None);
    shared.live.set(subject, Arc::new(shown));
    FOLLOWED
}

/// Tells what was decided; that nothing could be only when its reason is new, as it
/// may be so for thousands in each round.
fn log(subject: &Subject, decision: &Decision, failure: Option<String>, state: &mut State) {
    match &decision.outcome {
        Outcome::Rescale { from, to, reason } => {
            tracing::info!(%subject, from, to, reason, "rescaled");
        }
        Outcome::Hold => tracing::debug!(%subject, "held"),
        Outcome::Failed if failure != state.told => {
            tracing::warn!(%subject, error = decision.error, "could not decide");
        }
        Outcome::Failed => {
            tracing::debug!(%subject, error = decision.error, "could not decide");
        }
    }
    if failure.is_none() && state.told.is_some() {
        tracing::info!(%subject, "decides again");
    }
    state.told = failure;
}

/// What the fallback does: more replicas and the event of it, or nothing, as
/// there are enough.
fn fall_back(
    context: Context<'_>,
    fallback: &Fallback,
    now: i32,
    failed_rounds: i32,
    status: &mut Status,
) -> Option<(i32, Event)> {
    let spec = context.spec;
    let least = fallback.replicas.clamp(spec.min_replicas, spec.max_replicas);
    status.set(
        ConditionKind::FallbackActive,
        true,
        "MetricsFailed",
        format_args!("the metrics failed; there are to be at least {least} replicas"),
        context.now,
    );
    // At zero the workload was switched off, and no metric says otherwise.
    (now > 0 && now < least).then(|| {
        let message = format!(
            "New size: {least}; reason: fallback, the metrics failed {failed_rounds} times in a row"
        );
        (least, Event { kind: EventKind::Warning, reason: "FallbackRescale", message })
    })
}

/// Writes more replicas than there are, and tells how many there were. Where there are as
/// many by now, whoever wrote them and at whichever try, or the workload was switched off,
/// it writes nothing.
async fn raise(
    shared: &Shared,
    token: &FencingToken,
    subject: &Subject,
    spec: &Spec,
    to: i32,
    state: &mut State,
) -> Result<Option<i32>, WriteError> {
    for _ in 0..TRIES {
        let target = shared.targets.read(&subject.key.namespace, &spec.target).await;
        let target = target.map_err(WriteError::Failed)?;
        let from = target.replicas.spec_replicas;
        let Some(object) = target.object.filter(|_| (1..to).contains(&from)) else {
            return Ok(None);
        };
        match shared.targets.write(token, &object, to).await {
            Ok(()) => return Ok(Some(from)),
            Err(WriteError::Changed) => {}
            Err(error) => {
                if matches!(error, WriteError::Unanswered(_)) {
                    state.rescales.tried(Change { from, to, at: shared.clock.elapsed() });
                }
                return Err(error);
            }
        }
    }
    Err(WriteError::Changed)
}

/// Has a status written where the one written last is no longer good enough, and
/// this replica leads.
pub fn write_status(
    shared: &Shared,
    token: Option<&FencingToken>,
    subject: &Subject,
    state: &mut State,
    shown: AutoscalerStatus,
) {
    let shown = Arc::new(shown);
    shared.live.set(subject, shown.clone());
    let Some(token) = token else { return };
    let interval = shared.settings.status_interval;
    let shows = || {
        shared.cluster.read(|index| match subject.kind {
            SubjectKind::Autoscaler => index.autoscaler(&subject.key).map(|now| now.status.clone()),
            SubjectKind::Hpa => index.hpa(&subject.key).map(|now| Status::from_api(&now.status)),
        })
    };
    let outdated = match &mut state.written {
        Some(written) => {
            written.is_outdated_by(&shown, interval)
                || (!shared.statuses.has(subject) && written.is_undone(shows))
        }
        None => true,
    };
    if outdated {
        shared.statuses.put(token, subject, &state.uid, shown.clone());
        state.written = Some(Written::now(shown));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hpa::{LONGEST_MS, Recommendation, ScaleEvent};

    fn status(last_scale: Option<UnixMillis>) -> Status {
        Status { last_scale, current_replicas: 1, desired_replicas: 1, ..Status::default() }
    }

    #[test]
    fn the_status_is_read_anew_in_each_term() {
        let mut state = State::default();
        state.begin_with("u", Some(1), status(None));
        assert!(state.is_of("u", Some(1)), "it is this replica's own");
        // Another led in between, though this one had no round then.
        assert!(!state.is_of("u", Some(2)) && !state.is_of("another", Some(1)));
        state.begin_with("u", Some(2), status(Some(9_000)));
        assert_eq!(state.status.last_scale, Some(9_000));
        assert!(state.took_over && state.written.is_none());
        for _ in 0..2 {
            state.begin_with("u", None, status(Some(10_000)));
            assert!(!state.is_of("u", None));
        }
        assert_eq!(state.status.last_scale, Some(10_000));
        state.begin_with("another", Some(2), status(None));
        assert_eq!(state.status.last_scale, None);
    }

    #[test]
    fn after_a_gap_replicas_are_held_for_as_long_and_no_longer_than_a_window() {
        let (period, window) = (15_000, 300_000);
        // How long removals are withheld once metrics are back after so long, and fail again in
        // each round but every nth.
        let withheld = |gap: i64, nth: i64| {
            let mut state = State::default();
            let mut last = None;
            assert!(!state.holds(last, window, -gap), "nothing was away before");
            (last, state.measured) = (Some(-gap), false);
            let round = (0..1_000).find(|round| {
                let now = round * period;
                if round % nth != 0 {
                    state.measured = false;
                    return false;
                }
                let holds = state.holds(last, window, now);
                last = Some(now);
                !holds
            });
            round.expect("removals are withheld for ever") * period
        };
        assert_eq!(withheld(60_000, 1), 60_000);
        assert_eq!(withheld(600_000, 1), 300_000);
        for nth in 2..6 {
            let time = withheld(60_000, nth);
            assert!((window..window + nth * period).contains(&time), "{nth}: {time}");
        }
        // A second outage that ends after the hold of the first is one of its own.
        let mut state = State::default();
        assert!(state.holds(Some(-600_000), window, 0));
        state.measured = false;
        assert!(state.holds(Some(105_000), window, 720_000), "away for 10 minutes");
        assert!(state.holds(Some(720_000), window, 735_000));
        assert!(!state.holds(Some(1_005_000), window, 1_020_000));
        let mut state = State::default();
        assert!(!state.holds(Some(-600_000), 0, 0), "no window");
        // Steady rounds hold nothing.
        assert!((1..100).all(|n| !state.holds(Some((n - 1) * period), window, n * period)));
    }

    #[test]
    fn what_an_idle_autoscaler_remembers_is_not_kept() {
        let at = |time| Recommendation { replicas: 0, time };
        let mut state = State { bounds: Some((1, 5)), status: status(None), ..State::default() };
        assert_eq!(state.kept(0, LONGEST_MS), None, "nothing is remembered");
        // At its minimum: what was recommended is below.
        state.memory.recommendations = vec![at(0), at(15_000)];
        assert_eq!(state.kept(15_000, LONGEST_MS), None);
        // Its window holds more replicas.
        state.memory.recommendations.insert(0, Recommendation { replicas: 4, time: 0 });
        assert_eq!(state.kept(15_000, LONGEST_MS).unwrap().memory.recommendations.len(), 2);
        // A change of its scale is kept, and nothing that moves each round beside it.
        state.memory.recommendations = vec![at(15_000)];
        state.memory.downs =
            vec![ScaleEvent { change: 3, time: 0, outdated: false, unsure: false }];
        let kept = state.kept(15_000, LONGEST_MS).unwrap();
        assert!(kept.memory.recommendations.is_empty() && kept.memory.downs.len() == 1);
        assert_eq!(state.kept(LONGEST_MS + 1, LONGEST_MS), None);
    }

    #[test]
    fn without_scale_to_zero_nothing_is_asked_for_less_than_one_replica() {
        let spec = serde_json::json!({"minReplicas": 0, "maxReplicas": 3,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}});
        let spec = Spec::from_api(&serde_json::from_value(spec).unwrap());
        let scaling = ScalingSpec { spec, pod_metrics: Vec::new() };
        let least = |scale_to_zero| {
            let config = hpa::Config { scale_to_zero, ..hpa::Config::default() };
            allowed(&config, &scaling).spec.min_replicas
        };
        assert_eq!((least(true), least(false)), (0, 1));
    }

    #[test]
    fn only_metrics_that_failed_lead_to_the_fallback() {
        let spec = serde_json::json!({"maxReplicas": 3,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "metrics": [{"type": "External", "external": {"metric": {"name": "queue"},
                "target": {"type": "AverageValue", "averageValue": "1"}}}]});
        let spec = Spec::from_api(&serde_json::from_value(spec).unwrap());
        let config = hpa::Config::default();
        let names = ["shop/a".to_owned(), "shop/b".to_owned()];
        let ambiguous = hpa::Selected::Ambiguous { selector: "app=web", autoscalers: &names };
        for (selected, failed) in
            [(ambiguous, false), (hpa::Selected::Missing, false), (hpa::Selected::Pods(&[]), true)]
        {
            let input = Input {
                context: Context { spec: &spec, config: &config, now: 0 },
                namespace: "shop",
                scale: Ok(hpa::Scale { spec_replicas: 1, status_replicas: 1 }),
                selected,
                samples: &[Samples::Values(Err("Prometheus is away"))],
            };
            let (mut memory, mut status) = (Memory::default(), Status::default());
            let decision = hpa::decide(&input, &mut memory, &mut status, &mut ());
            assert_eq!(State::default().count_failure(&decision, true), failed, "{selected:?}");
        }
    }
}
