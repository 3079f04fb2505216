//! The embedded executor: this replica leads and writes the scale, events and status itself.

use super::account;
use super::context::{ApplyContext, ControllerContext, SyncResult};
use super::decision_time::DecisionTime;
use super::evaluate::Evaluation;
use super::fallback;
use super::noted;
use super::rescales::Change;
use super::schedules;
use super::state::AutoscalerState;
use super::status;
use super::targets::{WriteError, is_watched};
use super::update_status::update_status;
use super::zero;
use crate::hpa::{self, ConditionKind, Context, Decision, Outcome, Reason, Spec, Status};
use crate::ledger::account::Facts;
use crate::watch::{AutoscalerKind, AutoscalerRef, ScalingSpec};
use k8s_openapi::api::autoscaling::v1::Scale;
use kube::Api;
use kube::core::DynamicObject;
use std::borrow::Cow;
use std::sync::Arc;
use tokio::time::Instant;

/// How writing the scale ended.
enum ScaleWrite {
    /// It was written, failed, or was frozen, in which case `freeze` is the reason. The decision and the
    /// status are completed.
    Done { freeze: Option<Arc<str>> },
    /// Another writer changed the scale: it is to be evaluated again.
    Changed,
    /// This replica no longer leads.
    LostTerm,
}

/// Writes the scale, the events and the status of a decision. None if another writer changed
/// the scale, so that it is to be evaluated again, unless this is the last attempt.
pub async fn apply(
    apply: ApplyContext<'_>,
    evaluation: Evaluation<'_>,
    is_last_attempt: bool,
    state: &mut AutoscalerState,
) -> Option<SyncResult> {
    let ctx = apply.ctx;
    let Evaluation {
        context,
        target,
        mut decision,
        history,
        mut status,
        at,
        frozen,
        account,
        release,
    } = evaluation;
    let before = state.history.clone();
    state.set_history(history, at, ctx.longest_window());
    if !apply.is_current(&state.uid, context.spec) {
        // It was deleted or changed during the evaluation: its old spec no longer counts.
        return Some(SyncResult::Held);
    }
    let mut frozen = frozen.or_else(|| ctx.leader.frozen());
    match &frozen {
        Some(why) => freeze(ctx, context, why, &mut decision, &mut status, state),
        None => status.end(ConditionKind::Frozen, "scales are written", context.now),
    }
    match apply.execution.is_preview {
        true => preview(ctx, context, &mut decision, &mut status, state),
        false => status.end(ConditionKind::Preview, "the scale is written", context.now),
    }
    let wanted = noted::wanted(&decision);
    if let (&Outcome::Rescale { to, .. }, Ok(seen)) = (&decision.outcome, &target)
        && let Some(object) = &seen.object
    {
        let rescale = (&**object, seen.replicas.spec_replicas, to);
        let completes = (&mut decision, &mut status);
        match apply.write_scale(context, at, rescale, completes, is_last_attempt, state).await {
            ScaleWrite::Done { freeze } => frozen = freeze,
            ScaleWrite::LostTerm => return Some(SyncResult::Followed),
            ScaleWrite::Changed => {
                state.history = before;
                return None;
            }
        }
    }
    let replicas = match (&decision.outcome, &target) {
        (Outcome::Rescale { to, .. }, _) => Some(*to),
        (Outcome::Hold | Outcome::Failed, Ok(seen)) => Some(seen.replicas.spec_replicas),
        (Outcome::Hold | Outcome::Failed, Err(_)) => None,
    };
    let period = ctx.period(apply.autoscaler);
    let due = ctx.clock.elapsed().saturating_add_unsigned(period.as_millis() as u64);
    state.release = decision.rate_limited.zip(replicas).and_then(|(direction, replicas)| {
        hpa::release(context.spec, &state.history, direction, replicas, at.process, due, period)
    });
    let mut raised = None;
    let moment = status.schedule.as_deref();
    decision.events.extend(schedules::events(context.spec, &mut state.active, moment, at));
    let change = moment.and_then(|moment| schedules::next_evaluation(moment, at, period));
    state.release = [state.release, change, release].into_iter().flatten().min();
    let metrics_failed = state.count_failure(&decision, target.is_ok(), (at.process, period));
    match (apply.execution.fallback, &target) {
        (Some(fallback), Ok(seen))
            if metrics_failed
                && frozen.is_none()
                && !apply.execution.is_preview
                && state.failures.rounds() >= fallback.failure_threshold =>
        {
            let replicas = seen.replicas.spec_replicas;
            let events =
                fallback::apply(apply, context, fallback, replicas, &mut status, state).await;
            raised = events.is_some().then_some(status.desired_replicas);
            decision.events.extend(events);
        }
        (Some(_), target) if (metrics_failed || target.is_err()) && !apply.execution.is_preview => {
            fallback::end_stand_ins(&mut status, context.now);
        }
        _ => fallback::show(&decision, metrics_failed, &mut status, context.now),
    }
    if apply.autoscaler.kind == AutoscalerKind::Autoscaler {
        decision.events.extend(state.warnings.take_event());
        let target = &context.spec.target;
        let is_unseen = apply.execution.rollouts.is_some() && !is_watched(target);
        state.warnings.note_unseen(is_unseen.then_some(&*target.kind));
        state.warnings.scales = frozen.is_none() && !apply.execution.is_preview;
        state.warnings.show(&mut status, at);
    }
    let facts = Facts {
        context,
        at: at.wall,
        generation: apply.execution.generation,
        scale: target.as_ref().map(|target| target.replicas.spec_replicas),
        decision: &decision,
        status: &status,
        wanted,
        raised,
        ahead: at.wall - at.process,
        holds: account.holds,
        is_preview: apply.execution.is_preview,
        is_frozen: frozen.is_some(),
        observed: None,
    };
    account::record(ctx, apply.autoscaler, facts, account, state);
    Some(apply.report(context, decision, status, state))
}

impl ApplyContext<'_> {
    /// Whether the autoscaler is still the one that was decided for, with the same spec.
    pub(super) fn is_current(&self, uid: &str, spec: &Spec) -> bool {
        let Self { ctx, autoscaler, execution, .. } = self;
        ctx.cluster.read(|index| match autoscaler.kind {
            AutoscalerKind::Autoscaler => index
                .autoscaler(&autoscaler.key)
                .is_some_and(|now| now.uid == uid && now.generation == execution.generation),
            AutoscalerKind::Hpa => index.hpa(&autoscaler.key).is_some_and(|now| {
                now.uid == uid
                    && with_min_replicas_floor(&ctx.settings.hpa_config, &now.scaling).spec == *spec
            }),
        })
    }

    /// Writes the scale of a decision to rescale from `from` to `to` replicas, and completes the
    /// decision by the outcome.
    async fn write_scale(
        &self,
        context: Context<'_>,
        at: DecisionTime,
        (object, from, to): (&(Api<DynamicObject>, Scale), i32, i32),
        (decision, status): (&mut Decision, &mut Status),
        is_last_attempt: bool,
        state: &mut AutoscalerState,
    ) -> ScaleWrite {
        let Self { ctx, token, autoscaler, .. } = self;
        let announced_before = zero::pending_since(status);
        let written = match self.announce_zero(context, to, state, status).await {
            Ok(()) => {
                let is_current = || self.is_current(&state.uid, context.spec);
                ctx.targets.write(token, object, to, is_current).await
            }
            Err(error) => Err(WriteError::Failed(error)),
        };
        let is_indeterminate = matches!(written, Err(WriteError::Indeterminate(_)));
        if is_indeterminate {
            // The write may have begun long after the decision, and may yet take effect.
            state.rescales.note_indeterminate(Change { from, to, at: ctx.clock.elapsed() });
        }
        if written.is_err() && !token.is_valid() {
            return ScaleWrite::LostTerm;
        }
        if written == Err(WriteError::Changed) && !is_last_attempt {
            return ScaleWrite::Changed;
        }
        // Whether an indeterminate write took effect is seen from the scale, now or later. The failure of
        // this write does not tell whether an earlier one did.
        let announced = zero::pending_since(status);
        let zero_may_come =
            zero::may_come(announced_before, state.zero_pending_since, &state.rescales, at);
        let written = match written {
            Err(_)
                if is_indeterminate
                    && scale_has_replicas(ctx, autoscaler, context.spec, to).await =>
            {
                Ok(())
            }
            Err(_) if !is_indeterminate && announced.is_some() && !zero_may_come => {
                zero::resolve(status, from, DecisionTime::now(&ctx.clock).wall);
                written
            }
            _ => written,
        };
        // A change is dated after its write, as upstream's is: no policy's period begins before it.
        let at = DecisionTime::now(&ctx.clock);
        let context = Context { now: at.wall, ..context };
        let frozen = ctx.leader.frozen().filter(|_| written.is_err());
        match &frozen {
            Some(why) => freeze(ctx, context, why, decision, status, state),
            None => {
                let outcome = written.map_err(|error| error.to_string());
                let outcome = outcome.as_ref().copied().map_err(String::as_str);
                state.edit_history(at, |history| {
                    hpa::complete_rescale(context, decision, outcome, history, status);
                });
                if outcome.is_ok() {
                    state.rescaled(from, to, at.process, at.wall);
                }
            }
        }
        ScaleWrite::Done { freeze: frozen }
    }

    /// Writes the condition that the workload is being scaled to zero, before it is: the leader that
    /// scales it up again, whichever that is, recognizes it by that condition only.
    async fn announce_zero(
        &self,
        context: Context<'_>,
        to: i32,
        state: &mut AutoscalerState,
        status: &mut Status,
    ) -> Result<(), String> {
        if to != 0 || !context.config.scale_to_zero {
            return Ok(());
        }
        zero::announce(status, DecisionTime::now(&self.ctx.clock).wall);
        let rendered = status::render(status, context.spec, self.execution.generation);
        (state.written, state.is_unsaid_in_term) = (None, false);
        let statuses = &self.ctx.statuses;
        let recorded = statuses.record(self.token, self.autoscaler, &state.uid, &rendered).await;
        recorded.map_err(|error| {
            format!("the status that it is scaled to zero can't be written: {error}")
        })
    }

    /// Publishes the events, the status, the log line and the metrics of a decision.
    fn report(
        &self,
        context: Context<'_>,
        mut decision: Decision,
        status: Status,
        state: &mut AutoscalerState,
    ) -> SyncResult {
        let Self { ctx, token, autoscaler, .. } = self;
        let mut events = std::mem::take(&mut decision.events);
        events.extend(decision.late_event.take());
        ctx.events.publish(token, autoscaler, &state.uid, &events);
        let mut failure = None;
        if decision.outcome == Outcome::Failed {
            let fault = [ConditionKind::AbleToScale, ConditionKind::ScalingActive]
                .into_iter()
                .filter_map(|kind| status.condition(kind))
                .find(|condition| !condition.status);
            let reason = fault.map_or("Unknown", |condition| &condition.reason);
            ctx.metrics.failed(reason);
            failure = Some(reason.into());
        }
        log(autoscaler, &decision, failure, state);
        let rendered = status::render(&status, context.spec, self.execution.generation);
        state.status = status;
        update_status(ctx, Some(token), autoscaler, state, rendered);
        match decision.outcome {
            Outcome::Rescale { .. } => SyncResult::Rescaled,
            Outcome::Hold => SyncResult::Held,
            Outcome::Failed => SyncResult::Failed,
        }
    }
}

/// The metrics and bounds to decide on: at least one replica if scaling to zero is off.
pub fn with_min_replicas_floor<'a>(
    config: &hpa::ControllerConfig,
    scaling: &'a ScalingSpec,
) -> Cow<'a, ScalingSpec> {
    if config.scale_to_zero || !scaling.spec.may_be_zero() {
        return Cow::Borrowed(scaling);
    }
    let mut scaling = scaling.clone();
    let spec = &mut scaling.spec;
    spec.min_replicas = spec.min_replicas.max(1);
    spec.schedules = std::mem::take(&mut spec.schedules).with_floor(1);
    Cow::Owned(scaling)
}

/// Whether the scale of a target now has this number of replicas.
async fn scale_has_replicas(
    ctx: &ControllerContext,
    autoscaler: &AutoscalerRef,
    spec: &Spec,
    replicas: i32,
) -> bool {
    let read = ctx.targets.read(&autoscaler.key.namespace, &spec.target).await;
    read.is_ok_and(|read| read.replicas.spec_replicas == replicas)
}

/// Turns a rescale into a hold, and shows the desired replicas: at once, and then no more often
/// than `--status-interval`, because they may change in every evaluation.
fn freeze(
    ctx: &ControllerContext,
    context: Context<'_>,
    why: &str,
    decision: &mut Decision,
    status: &mut Status,
    state: &mut AutoscalerState,
) {
    let condition = (ConditionKind::Frozen, Reason::FrozenByAdministrator);
    leave_alone(ctx, context, condition, why, decision, status, state);
}

/// Turns a rescale of a preview into a hold, as [`freeze`] does.
fn preview(
    ctx: &ControllerContext,
    context: Context<'_>,
    decision: &mut Decision,
    status: &mut Status,
    state: &mut AutoscalerState,
) {
    let condition = (ConditionKind::Preview, Reason::PreviewBySpec);
    leave_alone(ctx, context, condition, "spec.mode is Preview", decision, status, state);
}

fn leave_alone(
    ctx: &ControllerContext,
    context: Context<'_>,
    (kind, reason): (ConditionKind, Reason),
    why: &str,
    decision: &mut Decision,
    status: &mut Status,
    state: &mut AutoscalerState,
) {
    match decision.outcome {
        Outcome::Rescale { from, to, .. } => {
            let interval = ctx.settings.status_interval;
            let is_recent =
                |(at, shown): &(Instant, i32)| at.elapsed() < interval && *shown != from;
            let shown = state.frozen_shown.as_deref().copied().filter(is_recent);
            let shown = shown.unwrap_or((Instant::now(), to));
            state.frozen_shown = Some(shown.into());
            let desired = to;
            let (_, to) = shown;
            let text = format_args!("the scale stays at {from} (desired: {to}): {why}");
            status.set(kind, true, reason, text, context.now);
            status.desired_replicas = to;
            decision.outcome = Outcome::Hold;
            decision.held_back = Some((reason, desired));
        }
        Outcome::Hold | Outcome::Failed => {
            let text = format_args!("the scale is left alone: {why}");
            status.set(kind, true, reason, text, context.now);
        }
    }
}

/// Logs a decision. A failure is logged as a warning only when its reason is new: thousands may
/// fail in every evaluation.
fn log(
    autoscaler: &AutoscalerRef,
    decision: &Decision,
    failure: Option<Box<str>>,
    state: &mut AutoscalerState,
) {
    match &decision.outcome {
        Outcome::Rescale { from, to, reason } => {
            tracing::info!(%autoscaler, from, to, reason, "Rescaled");
        }
        Outcome::Hold => tracing::debug!(%autoscaler, "Scale unchanged"),
        Outcome::Failed if failure != state.logged_failure => {
            tracing::warn!(%autoscaler, error = decision.error, "Failed to evaluate");
        }
        Outcome::Failed => {
            tracing::debug!(%autoscaler, error = decision.error, "Failed to evaluate");
        }
    }
    if failure.is_none() && state.logged_failure.is_some() {
        tracing::info!(%autoscaler, "Evaluation recovered");
    }
    state.logged_failure = failure;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_scale_to_zero_at_least_one_replica_is_desired() {
        let spec = serde_json::json!({"minReplicas": 0, "maxReplicas": 3,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}});
        let spec = Spec::from_api(&serde_json::from_value(spec).unwrap());
        let scaling = ScalingSpec { spec, prometheus_metrics: Vec::new() };
        let least = |scale_to_zero| {
            let config =
                hpa::ControllerConfig { scale_to_zero, ..hpa::ControllerConfig::default() };
            with_min_replicas_floor(&config, &scaling).spec.min_replicas
        };
        assert_eq!((least(true), least(false)), (0, 1));
    }
}
