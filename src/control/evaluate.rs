//! One decision on an observation, and the reasons beyond upstream's to withhold a scale-down.

use super::context::{ControllerContext, Execution};
use super::decision_time::DecisionTime;
use super::gather::{Aligned, note_types};
use super::noted::Account;
use super::observe::{Observation, needs_samples, observe, read_target};
use super::owners::foreign;
use super::state::AutoscalerState;
use super::targets::{Target, watched_scale};
use super::warnings::Warnings;
use crate::crd::{Rollouts, SelectionStrategy};
use crate::hpa::{
    self, ConditionKind, Context, Decision, Input, Outcome, Phase, Pod, Ready, Reason, Samples,
    ScalingHistory, Status,
};
use crate::leader::FencingToken;
use crate::ledger::DecisionLog;
use crate::time::UnixMillis;
use crate::watch::{AutoscalerKind, AutoscalerRef, Index, ScalingSpec};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A decision before anything is written.
pub struct Evaluation<'a> {
    /// Spec, settings and time of the decision.
    pub context: Context<'a>,
    /// The scale target that was decided on, or upstream's error text.
    pub target: Result<Target, String>,
    pub decision: Decision,
    /// The scaling history after the decision, by the wall clock.
    pub history: ScalingHistory,
    /// The status after the decision.
    pub status: Status,
    /// The time of the decision by both clocks.
    pub at: DecisionTime,
    /// The reason of the freeze that was in effect when the evaluation began.
    pub frozen: Option<Arc<str>>,
    /// What the ledger keeps of it.
    pub account: Account,
    /// When what a rollout held back may be done, at the earliest, by the clock of this process.
    pub release: Option<UnixMillis>,
}

/// Observes and decides. A decision that will be written is made on the present scale: a watch may
/// be behind, so the scale is read again, and decided on again if it differs.
pub async fn evaluate<'a>(
    ctx: &'a ControllerContext,
    token: Option<&FencingToken>,
    autoscaler: &AutoscalerRef,
    scaling: &'a ScalingSpec,
    execution: Execution<'_>,
    state: &mut AutoscalerState,
) -> Evaluation<'a> {
    let frozen = ctx.leader.frozen();
    let writes = token.is_some() && frozen.is_none() && !execution.is_preview;
    let spec = &scaling.spec;
    let (mut target, at) = read_target(ctx, token, autoscaler, spec, state).await;
    loop {
        let observation = observe(ctx, autoscaler, scaling, execution, target, at, state).await;
        let evaluation =
            decide_on(ctx, autoscaler, scaling, execution, observation, frozen.clone(), state);
        let Some(cached) = evaluation.rescales_on_cached_target().filter(|_| writes) else {
            return evaluation;
        };
        let read = ctx.targets.read(&autoscaler.key.namespace, &spec.target).await;
        if read.as_ref().is_ok_and(|read| read.is_same_scale(cached)) {
            state.note_equal_read();
            return Evaluation { target: read, ..evaluation };
        }
        target = read;
    }
}

impl Evaluation<'_> {
    /// The target of a decision to rescale, if it comes from the watch cache only.
    fn rescales_on_cached_target(&self) -> Option<&Target> {
        let rescales = matches!(self.decision.outcome, Outcome::Rescale { .. });
        self.target.as_ref().ok().filter(|target| rescales && target.object.is_none())
    }
}

/// Decides on an observation.
fn decide_on<'a>(
    ctx: &ControllerContext,
    autoscaler: &AutoscalerRef,
    scaling: &ScalingSpec,
    execution: Execution<'_>,
    observation: Observation<'a>,
    frozen: Option<Arc<str>>,
    state: &mut AutoscalerState,
) -> Evaluation<'a> {
    let (context, at) = (observation.context, observation.at);
    state.note_evaluation(observation.target.is_ok(), at.process);
    let (mut history, mut status) = (at.to_wall_clock(state.history.clone()), state.status.clone());
    status.shift_failing(at.wall - at.process);
    let mut account = Account::default();
    state.warnings.begin(execution.generation);
    let changed = (&mut history, &mut status, &mut account, &mut state.warnings);
    let (mut decision, known_pods) =
        compute(ctx, autoscaler, scaling, execution, &observation, changed);
    status.shift_failing(at.process - at.wall);
    let Observation { target, gathered, needs_samples, .. } = observation;
    if autoscaler.kind == AutoscalerKind::Autoscaler && !gathered.is_empty() {
        note_types(&gathered, &scaling.prometheus_metrics, &mut status, context.now);
    }
    let is_withheld = match decision.outcome {
        Outcome::Failed if needs_samples || target.is_err() => {
            state.measured = false;
            false
        }
        Outcome::Hold | Outcome::Rescale { .. } if needs_samples => {
            let before = state.history.recommendations.iter().map(|one| one.time).max();
            let [_, window] = context.windows();
            state.withholds_removals(before, window, at.process)
        }
        _ => false,
    };
    let replicas = target.as_ref().map_or(0, |target| target.replicas.status_replicas);
    if state.lacks_pods(known_pods, replicas) {
        let text = format_args!(
            "{known_pods} pods are known of the {replicas} that the scale has: none is removed until all are"
        );
        account.holds[1] = Some(Reason::PodsNotKnown.as_str());
        if withhold(context, Reason::PodsNotKnown, text, &mut decision, &mut status) {
            history = at.to_wall_clock(state.history.clone());
        }
    }
    let mut release = None;
    if let Some(rollouts) = execution.rollouts
        && let Some(left) = ctx.cluster.read(|index| rollout_left(index, autoscaler, context))
    {
        let replicas = target.as_ref().map_or(0, |target| target.replicas.spec_replicas);
        let changed = (&mut account, &mut decision, &mut history, &mut status);
        let is_held = hold_rollout(context, rollouts, replicas, changed);
        // Not a part of a millisecond early, or it would be held once more.
        let left = left.as_millis() as u64 + 1;
        release = is_held.then(|| ctx.clock.elapsed().saturating_add_unsigned(left));
    }
    if is_withheld {
        let text = format_args!(
            "the metrics were away: no replica is removed before they are back for as long"
        );
        account.holds[1] = Some(Reason::MetricsWereAway.as_str());
        withhold(context, Reason::MetricsWereAway, text, &mut decision, &mut status);
    }
    keep_transition(&state.status, &mut status);
    Evaluation { context, target, decision, history, status, at, frozen, account, release }
}

/// Holds what a rollout prevents at these replicas, and returns whether there was something.
fn hold_rollout(
    context: Context<'_>,
    rollouts: Rollouts,
    replicas: i32,
    (account, decision, history, status): (
        &mut Account,
        &mut Decision,
        &mut ScalingHistory,
        &mut Status,
    ),
) -> bool {
    let (least, what) = match rollouts {
        Rollouts::Cap => (i32::MIN, "no replica is added"),
        Rollouts::Hold => (replicas, "no replica is added or removed"),
    };
    let text = format_args!("the workload is rolled out: {what}");
    account.holds[0] = Some(Reason::RollingOut.as_str());
    let mut is_held = cap(context, Reason::RollingOut, text, decision, status);
    if rollouts == Rollouts::Hold {
        account.holds[1] = Some(Reason::RollingOut.as_str());
        is_held |= withhold(context, Reason::RollingOut, text, decision, status);
    }
    if replicas > 0 {
        // Or the metrics of the rollout would have it done once that is over, or another bound that held it is.
        history.bound_recommendation(context.now, least, replicas);
    }
    is_held
}

/// Keeps the time since which the scale is limited where it was before: the decision itself may have
/// found it unlimited in between, which would be worth a write each time.
fn keep_transition(before: &Status, status: &mut Status) {
    let kind = ConditionKind::ScalingLimited;
    let Some(before) = before.condition(kind).filter(|before| before.status) else { return };
    let now = status.conditions.iter_mut().find(|now| now.kind == kind && now.status);
    if let Some(now) = now {
        now.since = before.since;
    }
}

/// What a decision changes.
type Changed<'a> = (&'a mut ScalingHistory, &'a mut Status, &'a mut Account, &'a mut Warnings);

/// Runs the HPA algorithm on an observation. Also returns the number of pods that the watch knows.
fn compute(
    ctx: &ControllerContext,
    autoscaler: &AutoscalerRef,
    scaling: &ScalingSpec,
    execution: Execution<'_>,
    observation: &Observation<'_>,
    (history, status, account, warnings): Changed<'_>,
) -> (Decision, usize) {
    let Observation { context, target, gathered, owned, at, .. } = observation;
    let scale = target.as_ref().map(|target| target.replicas).map_err(String::as_str);
    let selector = target.as_ref().map_or("", |target| &target.selector);
    // The HPA controller, too, registers a selector only once it reads metrics.
    let claims = !execution.is_preview
        && target.as_ref().is_ok_and(|target| needs_samples(*context, target, status));
    ctx.cluster.read(|index| {
        let mut selection = ctx.selectors.select(index, autoscaler, target.as_ref().ok(), claims);
        let by_labels = execution.selection == SelectionStrategy::LabelSelector;
        if autoscaler.kind == AutoscalerKind::Autoscaler
            && by_labels
            && let Some(controller) = foreign(&context.spec.target, &selection.pods)
        {
            warnings.note_others(selector, controller, at.process);
        }
        selection.keep(owned);
        let pods: Vec<Pod<'_>> = selection.pods.iter().map(|(name, pod)| pod.view(name)).collect();
        let metrics = gathered.iter().zip(context.spec.metrics.iter());
        let aligned: Vec<Aligned<'_>> =
            metrics.map(|(samples, metric)| Aligned::new(samples, metric, &pods, owned)).collect();
        let samples: Vec<Samples<'_>> = aligned.iter().map(Aligned::view).collect();
        if autoscaler.kind == AutoscalerKind::Autoscaler {
            let is_measured = pods.iter().any(|pod| is_measured(pod, at.wall));
            let are_empty = gathered.iter().zip(&samples);
            let are_empty = are_empty.map(|(of, samples)| of.is_empty(samples, is_measured));
            warnings.note_results(are_empty, scaling, *at);
        }
        let input = Input {
            context: *context,
            namespace: &autoscaler.key.namespace,
            scale,
            selected: selection.selected(selector, &pods),
            samples: &samples,
        };
        let floor = (!ctx.settings.hpa_config.scale_to_zero).then_some(1);
        let schedules = (execution.schedules, floor);
        // Only the leader's decisions are logged.
        let log = ctx.decision_log.as_ref().filter(|_| ctx.leader.fencing_token().is_some());
        let keeps = log.is_some_and(DecisionLog::has_room);
        account.begin(keeps, schedules, &input, history, status);
        account.lacks_room = log.is_some() && !keeps;
        let times = gathered.iter().zip(&aligned);
        account.times.extend(times.map(|(gathered, aligned)| gathered.times(aligned, context.now)));
        let active = pods.iter().filter(|pod| is_active(pod)).count();
        let decision = hpa::decide(&input, history, status, &mut account.trace);
        account.decided(&decision);
        (decision, active)
    })
}

/// Whether a pod has been ready for so long that it was scraped, and rates of its counters have values.
fn is_measured(pod: &Pod<'_>, now: UnixMillis) -> bool {
    let is_settled = |ready: Ready| ready.status == Some(true) && now - ready.since > 300_000;
    is_active(pod) && pod.ready.is_some_and(is_settled)
}

/// Whether the replicas of a scale's status count a pod.
fn is_active(pod: &Pod<'_>) -> bool {
    !pod.deleting && !matches!(pod.phase, Phase::Succeeded | Phase::Failed)
}

/// How much longer a rollout of the target counts, if there is one and its kind is watched.
fn rollout_left(
    index: &Index,
    autoscaler: &AutoscalerRef,
    context: Context<'_>,
) -> Option<Duration> {
    let scale = watched_scale(index, &autoscaler.key.namespace, &context.spec.target)?;
    scale.rollout.left(Instant::now())
}

/// Turns a scale-up into a hold, unless it is one to `minReplicas` or from zero. Returns whether there was one.
fn cap(
    context: Context<'_>,
    reason: Reason,
    text: fmt::Arguments<'_>,
    decision: &mut Decision,
    status: &mut Status,
) -> bool {
    let Outcome::Rescale { from, to, .. } = decision.outcome else { return false };
    let is_capped = to > from && from >= context.bounds.min.max(1);
    if is_capped {
        hold(context, (from, to), reason, text, decision, status);
    }
    is_capped
}

/// Turns a scale-down into a hold. Returns whether there was one. A scale above `maxReplicas` is
/// brought back within bounds all the same.
fn withhold(
    context: Context<'_>,
    reason: Reason,
    text: fmt::Arguments<'_>,
    decision: &mut Decision,
    status: &mut Status,
) -> bool {
    let Outcome::Rescale { from, to, .. } = decision.outcome else { return false };
    if to >= from || from > context.bounds.max {
        return false;
    }
    hold(context, (from, to), reason, text, decision, status);
    true
}

/// Turns a rescale into a hold at `from` replicas, and says why.
fn hold(
    context: Context<'_>,
    (from, to): (i32, i32),
    reason: Reason,
    text: fmt::Arguments<'_>,
    decision: &mut Decision,
    status: &mut Status,
) {
    status.set(ConditionKind::ScalingLimited, true, reason, text, context.now);
    status.desired_replicas = from;
    decision.outcome = Outcome::Hold;
    decision.held_back = Some((reason, to));
}
