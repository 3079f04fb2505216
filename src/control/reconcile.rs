//! One decision for one autoscaler, from observation to effect.

use super::gather::{Aligned, Gathered, gather, note_types};
use super::keep::Kept;
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
use crate::leader::Permit;
use crate::samples::Asked;
use crate::watch::{AutoscalerRecord, Demand, HpaRecord, Subject, SubjectKind};
use jiff::Timestamp;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is kept of a subject from decision to decision.
#[derive(Default)]
pub struct State {
    pub(super) memory: Memory,
    pub(super) status: Status,
    written: Option<Written>,
    failed_rounds: i32,
    /// The replicas seen and wanted in the last round in which nothing was written.
    pub(super) observed: Option<Observed>,
    /// Whether the status is of this replica's own last round; else it is read
    /// from the object, to which another may have written.
    own_status: bool,
    /// Since when fewer pods are known than the scale has replicas.
    lacking: Option<Instant>,
    /// What was seen of a native HPA that is observed.
    pub(super) seen: observe::Seen,
    /// Why the last decision failed, where it did and that was told.
    told: Option<String>,
    /// When the scale was last written, in Unix seconds, as far as `memory` knows.
    last_scale: Option<i64>,
    /// What was asked of Prometheus for each metric when that last went well, and
    /// will be the next time.
    pub(super) asked: Vec<Vec<Asked>>,
    /// The UID it is of: one that was deleted and made anew starts anew.
    uid: String,
}

/// What was seen and decided.
pub struct Observed {
    /// The replicas asked for.
    pub replicas: i32,
    /// The replicas wanted.
    pub wanted: i32,
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
/// How often a decision is taken anew where the scale is changed meanwhile.
const TRIES: u32 = 5;
/// Nothing could be decided, or not be written.
pub const FAILED: Ended = "failed";
/// A native HPA was decided for beside kube-controller-manager.
pub const OBSERVED: Ended = "observed";
/// Another replica leads, and writes.
const FOLLOWED: Ended = "followed";

/// Decides once for a subject and carries the decision out, or only compares it,
/// where another decides, or only remembers it, where another replica leads; none
/// if the subject is gone, or nothing is to be decided for it here.
pub async fn round(shared: &Shared, subject: &Subject, state: &mut State) -> Option<Ended> {
    let permit = shared.leader.permit();
    match subject.kind {
        SubjectKind::Autoscaler => {
            let record = shared.cluster.read(|index| index.autoscaler(&subject.key))?;
            state.begin(&record.uid, permit.is_some(), || record.status.clone());
            Some(autoscaler(shared, permit.as_ref(), subject, &record, state).await)
        }
        SubjectKind::Hpa => {
            let record = shared.cluster.read(|index| index.hpa(&subject.key))?;
            let manages = shared.settings.native_hpas == NativeHpas::Manage;
            // Of one that is observed kube-controller-manager writes the status.
            let own = manages && permit.is_some();
            state.begin(&record.uid, own, || Status::from_api(&record.status));
            hpa(shared, permit.as_ref(), subject, &record, state).await
        }
    }
}

impl State {
    /// What is likely to be asked of Prometheus in its next round.
    pub fn asked(&self) -> impl Iterator<Item = &Asked> {
        self.asked.iter().flatten()
    }

    /// The form of query that it is asked by first, as a hash.
    pub fn form(&self) -> Option<u64> {
        self.asked().next().map(|asked| hash(asked.form()))
    }

    /// One that remembers what was kept.
    pub fn restored(kept: Kept) -> Self {
        Self { uid: kept.uid, memory: kept.memory, ..Self::default() }
    }

    /// What is to be kept; none where nothing is remembered but that the present
    /// replicas are right, as a decision that starts anew takes them to be.
    pub fn kept(&self) -> Option<Kept> {
        let memory = self.memory.essential(now());
        let Memory { recommendations, ups, downs } = &memory;
        let wanted = recommendations.iter().map(|recommendation| recommendation.replicas);
        let anew = ups.is_empty()
            && downs.is_empty()
            && wanted.eq(std::iter::once(self.status.current_replicas));
        (!anew).then(|| Kept { uid: self.uid.clone(), memory })
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

    /// Begins a round. `own` says whether its status will be of this replica's making.
    fn begin(&mut self, uid: &str, own: bool, status: impl FnOnce() -> Status) {
        if self.uid != uid {
            *self = Self { uid: uid.to_owned(), ..Self::default() };
        }
        if !self.own_status {
            self.status = status();
            self.written = None;
        }
        self.own_status = own;
    }

    /// Counts rounds in a row in which the metrics failed; whether they did in this one.
    fn count_failure(&mut self, decision: &Decision) -> bool {
        // Only what is said last says that the metrics were at fault.
        let failed = decision.late_event.is_some();
        self.failed_rounds = if failed { self.failed_rounds.saturating_add(1) } else { 0 };
        failed
    }

    /// Remembers a change of the scale that another replica wrote, as the status says.
    fn note_scale(&mut self, spec: &Spec) {
        let Status { last_scale, desired_replicas, .. } = self.status;
        let known = std::mem::replace(&mut self.last_scale, last_scale.map(seconds));
        if known == self.last_scale {
            return;
        }
        if let (Some(at), Some(before)) = (last_scale, &self.observed)
            && before.replicas != desired_replicas
        {
            self.memory.scaled(before.replicas, desired_replicas, spec, at);
        }
    }
}

async fn autoscaler(
    shared: &Shared,
    permit: Option<&Permit>,
    subject: &Subject,
    record: &AutoscalerRecord,
    state: &mut State,
) -> Ended {
    let status = &mut state.status;
    let asked = match &record.asked {
        Ok(asked) => asked,
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
            write_status(shared, permit, subject, state, shown);
            shared.metrics.failed("InvalidSpec");
            return FAILED;
        }
    };
    if asked.spec.executor == Executor::NativeHPA {
        shared.selectors.release(subject);
        return match permit {
            Some(permit) => native::delegate(shared, permit, subject, record, asked, state).await,
            None => FOLLOWED,
        };
    }
    if let Some(permit) = permit {
        let known = shared.cluster.read(|index| index.hpa(&subject.key));
        let Shared { client, cluster, selectors, .. } = shared;
        if native::remove(client, permit, &subject.key, &record.uid, known.as_deref()).await {
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
    if asked.spec.paused {
        status.set(
            ConditionKind::Paused,
            true,
            "PausedBySpec",
            format_args!("spec.paused is set: the scale is left alone"),
            now(),
        );
        let shown = status::shown(status, &asked.demand.decided, record.generation);
        shared.selectors.release(subject);
        write_status(shared, permit, subject, state, shown);
        return HELD;
    }
    status.remove(ConditionKind::Paused);
    let limits = (asked.spec.fallback.as_ref(), record.generation);
    effect(shared, permit, subject, &asked.demand, limits, state).await
}

/// Decides and carries out, anew where another hand changed the scale in between.
async fn effect(
    shared: &Shared,
    permit: Option<&Permit>,
    subject: &Subject,
    demand: &Demand,
    (fallback, generation): (Option<&Fallback>, Option<i64>),
    state: &mut State,
) -> Ended {
    let mut tries = 0;
    loop {
        tries += 1;
        let round = match shared.bounded(decide(shared, permit, subject, demand, state)).await {
            Ok(round) => round,
            Err(broken) => return broken_off(shared, permit, subject, demand, broken, state),
        };
        let Some(permit) = permit else { return follow(shared, subject, round, state) };
        let last = tries == TRIES;
        let carried_out =
            carry_out(shared, permit, subject, (fallback, generation), round, last, state).await;
        match carried_out {
            Some(ended) => return ended,
            None => tracing::debug!(%subject, tries, "Decides again: the scale was changed"),
        }
    }
}

/// A decision that took too long is no decision; one that the end of the process
/// broke off is none either, and nothing is said of it.
fn broken_off(
    shared: &Shared,
    permit: Option<&Permit>,
    subject: &Subject,
    demand: &Demand,
    broken: Broken,
    state: &mut State,
) -> Ended {
    let Broken::Late(deadline) = broken else { return FOLLOWED };
    let (kind, reason) = (ConditionKind::ScalingActive, "DecisionTimedOut");
    let text = format_args!("the scale and the metrics could not be read within {deadline:?}");
    state.status.set(kind, false, reason, text, now());
    let generation = shared.cluster.read(|index| index.autoscaler(&subject.key)?.generation);
    let shown = status::shown(&state.status, &demand.decided, generation);
    write_status(shared, permit, subject, state, shown);
    shared.metrics.failed(reason);
    FAILED
}

async fn hpa(
    shared: &Shared,
    permit: Option<&Permit>,
    subject: &Subject,
    record: &HpaRecord,
    state: &mut State,
) -> Option<Ended> {
    if shared.settings.native_hpas != NativeHpas::Manage {
        return observe::round(shared, permit.is_some(), subject, record, state).await;
    }
    Some(effect(shared, permit, subject, &record.demand, (None, None), state).await)
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
    pub(super) memory: Memory,
    pub(super) status: Status,
}

/// Observes and decides; a decision that will be written is one on what is there now.
pub async fn decide<'a>(
    shared: &'a Shared,
    permit: Option<&Permit>,
    subject: &Subject,
    demand: &'a Demand,
    state: &mut State,
) -> Round<'a> {
    let (spec, namespace) = (&demand.decided, &subject.key.namespace);
    let writes = permit.is_some() && shared.leader.frozen().is_none();
    state.note_scale(spec);
    let targets = &shared.targets;
    let mut target = targets.scale(&shared.cluster, namespace, &spec.target).await;
    let context = Context { spec, config: &shared.settings.decisions, now: now() };
    loop {
        let gathered = match &target {
            Ok(target) if needs_samples(context, target, &state.status) => {
                gather(shared, namespace, demand, &target.selector, state).await
            }
            _ => {
                state.asked.clear();
                Vec::new()
            }
        };
        let (mut memory, mut status) = (state.memory.clone(), state.status.clone());
        let (mut decision, known) =
            compute(shared, subject, context, &target, &gathered, &mut memory, &mut status);
        if subject.kind == SubjectKind::Autoscaler && !gathered.is_empty() {
            note_types(&gathered, &demand.pod_metrics, &mut status, context.now);
        }
        let replicas = target.as_ref().map_or(0, |target| target.replicas.status_replicas);
        if state.lacks_pods(known, replicas)
            && withhold(context, known, replicas, &mut decision, &mut status)
        {
            memory.clone_from(&state.memory);
        }
        let rescales = writes && matches!(decision.outcome, Outcome::Rescale { .. });
        let seen = match &target {
            Ok(seen) if seen.object.is_none() && rescales => seen,
            _ => break Round { context, target, decision, memory, status },
        };
        // What was seen may be behind: a write follows what is there now alone.
        let read = targets.read(namespace, &spec.target).await;
        let same = read.as_ref().is_ok_and(|read| read.is_as(seen));
        target = read;
        if same {
            break Round { context, target, decision, memory, status };
        }
    }
}

/// Whether a decision on such a target looks at metrics at all.
fn needs_samples(context: Context<'_>, target: &Target, status: &Status) -> bool {
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
    shared.cluster.read(|index| {
        let selection = Selection::of(shared, index, subject, selector);
        let pods: Vec<Pod<'_>> = selection.pods.iter().map(|(name, pod)| pod.view(name)).collect();
        let aligned: Vec<Aligned<'_>> =
            gathered.iter().map(|samples| Aligned::new(samples, &pods)).collect();
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

/// Leaves the scale as it is where the metrics of too few pods ask for fewer replicas:
/// the watch of pods is behind. True where it does.
fn withhold(
    context: Context<'_>,
    known: usize,
    replicas: i32,
    decision: &mut Decision,
    status: &mut Status,
) -> bool {
    let Outcome::Rescale { from, to, .. } = decision.outcome else { return false };
    if to >= from || from > context.spec.max_replicas {
        return false;
    }
    let text = format_args!(
        "{known} pods are known of the {replicas} that the scale has: none is removed until all are"
    );
    let (kind, reason) = (ConditionKind::ScalingLimited, "PodsNotKnown");
    status.set(kind, true, reason, text, context.now);
    status.desired_replicas = from;
    decision.outcome = Outcome::Hold;
    true
}

/// Writes the scale, the events and the status of a decision; none where the scale
/// was changed by another and is to be decided again, unless this is the last try.
async fn carry_out(
    shared: &Shared,
    permit: &Permit,
    subject: &Subject,
    (fallback, generation): (Option<&Fallback>, Option<i64>),
    round: Round<'_>,
    last: bool,
    state: &mut State,
) -> Option<Ended> {
    let Round { context, target, mut decision, memory, mut status } = round;
    let before = std::mem::replace(&mut state.memory, memory);
    if !is_current(shared, subject, &state.uid, generation, context.spec) {
        // Deleted or changed in mid-decision: what it asked for counts no more.
        return Some(HELD);
    }
    let frozen = shared.leader.frozen();
    match &frozen {
        Some(why) => freeze(context, why, &mut decision, &mut status),
        None => status.remove(ConditionKind::Frozen),
    }
    let object = target.as_ref().ok().and_then(|target| target.object.as_ref());
    if let (Outcome::Rescale { to, .. }, Some(object)) = (&decision.outcome, object) {
        let written = shared.targets.write(permit, object, *to).await;
        if written.is_err() && !permit.holds() {
            return Some(FOLLOWED);
        }
        if written == Err(WriteError::Changed) && !last {
            state.memory = before;
            return None;
        }
        let outcome = written.map_err(|error| error.to_string());
        let outcome = outcome.as_ref().copied().map_err(String::as_str);
        hpa::settle(context, &mut decision, outcome, &mut state.memory, &mut status);
    }
    let metrics_failed = state.count_failure(&decision);
    match (fallback, &target) {
        (Some(fallback), Ok(seen))
            if metrics_failed
                && frozen.is_none()
                && state.failed_rounds >= fallback.failed_rounds =>
        {
            let replicas = seen.replicas.spec_replicas;
            let fallen = fall_back(context, fallback, replicas, state.failed_rounds, &mut status);
            if let Some((to, event)) = fallen {
                match raise(shared, permit, subject, context.spec, to).await {
                    Ok(()) => {
                        status.desired_replicas = to;
                        status.last_scale = Some(context.now);
                        decision.events.push(event);
                    }
                    Err(error) => tracing::warn!(%subject, error, "could not fall back"),
                }
            }
        }
        _ if metrics_failed => {}
        _ => status.remove(ConditionKind::FallbackActive),
    }

    let mut events = std::mem::take(&mut decision.events);
    events.extend(decision.late_event.take());
    shared.events.publish(permit, subject, &state.uid, &events);
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
    state.last_scale = state.status.last_scale.map(seconds);
    write_status(shared, Some(permit), subject, state, shown);
    Some(match decision.outcome {
        Outcome::Rescale { .. } => RESCALED,
        Outcome::Hold => HELD,
        Outcome::Failed => FAILED,
    })
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
        SubjectKind::Hpa => {
            index.hpa(&subject.key).is_some_and(|now| now.uid == uid && now.demand.decided == *spec)
        }
    })
}

/// Leaves the scale as it is, and says what is wanted.
fn freeze(context: Context<'_>, why: &str, decision: &mut Decision, status: &mut Status) {
    let reason = "FrozenByAdministrator";
    match decision.outcome {
        Outcome::Rescale { from, to, .. } => {
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
    let Round { context, target, decision, memory, mut status } = round;
    state.memory = memory;
    state.count_failure(&decision);
    if let Ok(target) = &target {
        let replicas = target.replicas.spec_replicas;
        let wanted = match decision.outcome {
            Outcome::Rescale { to, .. } => to,
            Outcome::Hold | Outcome::Failed => replicas,
        };
        state.observed = Some(Observed { replicas, wanted });
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

/// Writes more replicas than there are; where there are as many by now, whoever
/// wrote them and at whichever try, nothing.
async fn raise(
    shared: &Shared,
    permit: &Permit,
    subject: &Subject,
    spec: &Spec,
    to: i32,
) -> Result<(), String> {
    for _ in 0..TRIES {
        let target = shared.targets.read(&subject.key.namespace, &spec.target).await?;
        let Some(object) = target.object.filter(|_| target.replicas.spec_replicas < to) else {
            return Ok(());
        };
        match shared.targets.write(permit, &object, to).await {
            Err(WriteError::Changed) => {}
            written => return written.map_err(|error| error.to_string()),
        }
    }
    Err(WriteError::Changed.to_string())
}

/// Has a status written where the one written last is no longer good enough, and
/// this replica leads.
pub fn write_status(
    shared: &Shared,
    permit: Option<&Permit>,
    subject: &Subject,
    state: &mut State,
    shown: AutoscalerStatus,
) {
    let shown = Arc::new(shown);
    shared.live.set(subject, shown.clone());
    let Some(permit) = permit else { return };
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
        shared.statuses.put(permit, subject, &state.uid, shown.clone());
        state.written = Some(Written::now(shown));
    }
}
