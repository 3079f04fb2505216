//! One evaluation of an Autoscaler or native HPA, from its object to the applied decision.

use super::account;
use super::context::{
    ApplyContext, Cancelled, ControllerContext, Execution, NativeHpas, SyncResult,
};
use super::decision_time::DecisionTime;
use super::embedded::{self, with_min_replicas_floor};
use super::evaluate::evaluate;
use super::failures::Failures;
use super::observe::read_target;
use super::state::AutoscalerState;
use super::status::paused_text;
use super::update_status::update_status;
use super::warnings::Warnings;
use super::{follower, native_hpa, pause, schedules, shadow, status, zero};
use crate::crd::{AutoscalerStatus, Executor, Mode, ReadError};
use crate::hpa::{self, ConditionKind, Spec, Status};
use crate::kube_error::worded;
use crate::leader::FencingToken;
use crate::ledger::{CarriedOut, Reason};
use crate::watch::{AutoscalerKind, AutoscalerRecord, AutoscalerRef, HpaRecord, ScalingSpec};

/// How often an autoscaler is evaluated if another writer changes the scale meanwhile.
const EVALUATION_ATTEMPTS: u32 = 5;

/// Evaluates an autoscaler once and applies the decision. None if the autoscaler is gone, or this
/// replica has nothing to decide for it.
pub async fn reconcile(
    ctx: &ControllerContext,
    token: Option<&FencingToken>,
    autoscaler: &AutoscalerRef,
    state: &mut AutoscalerState,
) -> Option<SyncResult> {
    let term = token.map(FencingToken::term);
    match autoscaler.kind {
        AutoscalerKind::Autoscaler => {
            let record = ctx.cluster.read(|index| index.autoscaler(&autoscaler.key))?;
            let spec = record.parsed.as_ref().ok().map(|parsed| &parsed.scaling.spec);
            let of_object = || record.status.clone();
            let begins = !state.belongs_to(&record.uid, term);
            if load_status_for_term(ctx, autoscaler, (&record.uid, spec), term, of_object, state)
                .await
                .is_err()
            {
                return Some(SyncResult::Failed);
            }
            if begins {
                // What the leader before has told of.
                state.active.clone_from(&record.windows);
            }
            Some(sync_autoscaler(ctx, token, autoscaler, &record, state).await)
        }
        AutoscalerKind::Hpa => {
            let record = ctx.cluster.read(|index| index.hpa(&autoscaler.key))?;
            let manages = ctx.settings.native_hpas == NativeHpas::Manage;
            // kube-controller-manager writes the status of an HPA that is only observed.
            let term = term.filter(|_| manages);
            let of_object = || Status::from_api(&record.status);
            let of = (&*record.uid, Some(&record.scaling.spec));
            if load_status_for_term(ctx, autoscaler, of, term, of_object, state).await.is_err() {
                return Some(SyncResult::Failed);
            }
            sync_hpa(ctx, token, autoscaler, &record, state).await
        }
    }
}

/// Loads the status of the object at the beginning of a lease term: another replica may have written it.
/// If the workload may be at zero, it is read from the API server, because a watch may be behind and
/// only the status says whether the workload is to be scaled up again.
async fn load_status_for_term(
    ctx: &ControllerContext,
    autoscaler: &AutoscalerRef,
    (uid, spec): (&str, Option<&Spec>),
    term: Option<u64>,
    of_object: impl FnOnce() -> Status,
    state: &mut AutoscalerState,
) -> Result<(), kube::Error> {
    if state.belongs_to(uid, term) {
        return Ok(());
    }
    let status = match term.is_some() && spec.is_some_and(Spec::may_be_zero) {
        true => status::read(&ctx.client, autoscaler).await.inspect_err(|error| {
            tracing::warn!(%autoscaler, error = worded(error), "Failed to read the status");
        })?,
        false => of_object(),
    };
    state.begin(uid, term, status);
    Ok(())
}

/// Evaluates an Autoscaler by the executor of its spec.
async fn sync_autoscaler(
    ctx: &ControllerContext,
    token: Option<&FencingToken>,
    autoscaler: &AutoscalerRef,
    record: &AutoscalerRecord,
    state: &mut AutoscalerState,
) -> SyncResult {
    let parsed = match &record.parsed {
        Ok(parsed) => parsed,
        Err(error) => return invalid(ctx, token, autoscaler, record, error, state).await,
    };
    let at = DecisionTime::now(&ctx.clock);
    // Also for what is shown of one that is not evaluated.
    state.status.schedule = parsed.scaling.spec.moment(at.server).map(Box::new);
    let mode = parsed.spec.mode_at(at.server);
    let event = pause::note(&parsed.spec, mode, &mut state.status, at.wall);
    if let (Some(event), Some(token)) = (event, token) {
        ctx.events.publish(token, autoscaler, &record.uid, &[event]);
    }
    if parsed.spec.executor == Executor::NativeHPA {
        rest(ctx, autoscaler, state);
        let moment = state.status.schedule.as_deref();
        let change =
            moment.and_then(|one| schedules::next_evaluation(one, at, ctx.period(autoscaler)));
        state.release = [change, pause::end(&parsed.spec, mode, at)].into_iter().flatten().min();
        return match token {
            Some(token) => native_hpa::apply(ctx, token, autoscaler, record, parsed, state).await,
            None => SyncResult::Followed,
        };
    }
    // One that is only previewed leaves the HPA that scales meanwhile.
    if let Some(token) = token.filter(|_| mode != Mode::Preview) {
        if let Err(error) = remove_native_hpa(ctx, token, autoscaler, record).await {
            let (kind, now) = (ConditionKind::AbleToScale, ctx.clock.wall_ms());
            state.status.set(
                kind,
                false,
                hpa::Reason::FailedDeleteHPA,
                format_args!("{error}"),
                now,
            );
            let rendered = status::render(&state.status, &parsed.scaling.spec, record.generation);
            rest(ctx, autoscaler, state);
            update_status(ctx, Some(token), autoscaler, state, rendered);
            let of = (Some(&parsed.scaling.spec), record.generation);
            let why = (Reason::RecommendationFailed, CarriedOut::Failed);
            account::record_none(ctx, autoscaler, of, why, &error, state);
            ctx.metrics.failed(hpa::Reason::FailedDeleteHPA.as_str());
            return SyncResult::Failed;
        }
        state
            .status
            .conditions
            .retain(|condition| condition.reason != hpa::Reason::FailedDeleteHPA);
    }
    if mode == Mode::Paused {
        // Earlier recommendations do not apply to replicas that the owner may choose meanwhile.
        state.history.recommendations.clear();
        state.withheld = None;
        if token.is_some() {
            follow_zero(ctx, token, autoscaler, &parsed.scaling.spec, state).await;
        }
        let text = format_args!("{}: the scale is left alone", paused_text(&parsed.spec));
        state.status.set(
            ConditionKind::Paused,
            true,
            hpa::Reason::PausedBySpec,
            text,
            ctx.clock.wall_ms(),
        );
        for kind in [ConditionKind::Preview, ConditionKind::ConfigurationWarning] {
            state.status.end(kind, "the Autoscaler is paused", at.wall);
        }
        if token.is_some() {
            let of = (Some(&parsed.scaling.spec), record.generation);
            let why = (Reason::Paused, CarriedOut::Paused);
            account::record_none(ctx, autoscaler, of, why, &paused_text(&parsed.spec), state);
        }
        let rendered = status::render(&state.status, &parsed.scaling.spec, record.generation);
        rest(ctx, autoscaler, state);
        state.release = pause::end(&parsed.spec, mode, at);
        update_status(ctx, token, autoscaler, state, rendered);
        return SyncResult::Held;
    }
    state.status.end(ConditionKind::Paused, "decisions are made", ctx.clock.wall_ms());
    let execution = Execution {
        schedules: &parsed.spec.schedules,
        fallback: parsed.spec.fallback.as_ref(),
        generation: record.generation,
        selection: parsed.spec.selection_strategy.unwrap_or_default(),
        rollouts: parsed.spec.rollouts,
        is_preview: mode == Mode::Preview,
    };
    if execution.is_preview {
        ctx.selectors.release(autoscaler);
        if token.is_some() {
            follow_zero(ctx, token, autoscaler, &parsed.scaling.spec, state).await;
        }
    }
    evaluate_and_apply(ctx, token, autoscaler, &parsed.scaling, execution, state).await
}

/// Lets go of what only evaluations need: an autoscaler without them sizes no pods, and repeats no queries.
fn rest(ctx: &ControllerContext, autoscaler: &AutoscalerRef, state: &mut AutoscalerState) {
    ctx.selectors.release(autoscaler);
    state.queries.clear();
    state.warnings = Warnings::default();
    state.status.failing.clear();
    state.failures = Failures::default();
}

/// Resolves the condition `ScaledToZero` of an autoscaler that is paused or a preview, or a zero that the owner sets meanwhile would
/// be taken for Plimsoll's.
async fn follow_zero(
    ctx: &ControllerContext,
    token: Option<&FencingToken>,
    autoscaler: &AutoscalerRef,
    spec: &Spec,
    state: &mut AutoscalerState,
) {
    state.follow_target(&spec.target, ctx.clock.wall_ms());
    if !zero::is_at_zero(&state.status) && zero::pending_since(&state.status).is_none() {
        return;
    }
    let reads = async {
        let (target, _) = read_target(ctx, token, autoscaler, spec, state).await;
        let is_shown = target.is_ok_and(|target| target.replicas.spec_replicas > 0);
        // The watch may not show Plimsoll's zero yet.
        if is_shown && zero::is_at_zero(&state.status) {
            state.is_zero_in_doubt = true;
            let _ = read_target(ctx, token, autoscaler, spec, state).await;
        }
    };
    // What could not be read is read in the next period.
    let _ = ctx.bounded(reads).await;
}

/// Updates the status of an autoscaler with an invalid spec: the last known scale is shown, and what
/// was last written of its target and metrics.
async fn invalid(
    ctx: &ControllerContext,
    token: Option<&FencingToken>,
    autoscaler: &AutoscalerRef,
    record: &AutoscalerRecord,
    error: &ReadError,
    state: &mut AutoscalerState,
) -> SyncResult {
    rest(ctx, autoscaler, state);
    let term = token.map(FencingToken::term);
    let written = match &state.written {
        Some(written) if Some(written.term) == term => {
            ctx.live.get(autoscaler).and_then(|text| serde_json::from_str(&text).ok())
        }
        // Another replica may have written it since.
        _ if token.is_none() => None,
        _ => match status::read_as::<AutoscalerStatus>(&ctx.client, autoscaler).await {
            Ok(written) => written,
            Err(error) => {
                tracing::warn!(%autoscaler, error = worded(&error), "Failed to read the status");
                return SyncResult::Failed;
            }
        },
    };
    let text = format_args!("{error}");
    state.status.set(
        ConditionKind::AbleToScale,
        false,
        hpa::Reason::InvalidSpec,
        text,
        ctx.clock.wall_ms(),
    );
    let last = hpa::render_status(&state.status);
    let shown = AutoscalerStatus {
        observed_generation: record.generation,
        last_scale_time: last.last_scale_time,
        current_replicas: last.current_replicas,
        desired_replicas: Some(last.desired_replicas),
        ..written.unwrap_or_default()
    };
    update_status(ctx, token, autoscaler, state, shown);
    if token.is_some() {
        let why = (Reason::RecommendationFailed, CarriedOut::Failed);
        let text = error.to_string();
        account::record_none(ctx, autoscaler, (None, record.generation), why, &text, state);
    }
    ctx.metrics.failed(hpa::Reason::InvalidSpec.as_str());
    SyncResult::Failed
}

/// Deletes the native HPA that an Autoscaler had while its executor was `NativeHPA`. The HPA's
/// selector is released at once; the watch shows the deletion later.
///
/// # Errors
/// If the HPA can't be deleted, so that kube-controller-manager still scales the target. The text is for a condition.
async fn remove_native_hpa(
    ctx: &ControllerContext,
    token: &FencingToken,
    autoscaler: &AutoscalerRef,
    record: &AutoscalerRecord,
) -> Result<(), String> {
    let ControllerContext { client, cluster, selectors, .. } = ctx;
    let known = cluster.read(|index| index.hpa(&autoscaler.key));
    if !native_hpa::remove(client, token, &autoscaler.key, &record.uid, known.as_deref()).await? {
        return Ok(());
    }
    let hpa = AutoscalerRef::hpa(autoscaler.key.clone());
    cluster.write(|index| {
        let uid = known.map(|known| known.uid.clone());
        if index.hpa(&hpa.key).map(|now| now.uid.clone()) == uid {
            index.remove_hpa(&hpa.key);
        }
    });
    selectors.release(&hpa);
    cluster.changed(hpa);
    Ok(())
}

/// Evaluates a native HPA: in place of kube-controller-manager, or beside it.
async fn sync_hpa(
    ctx: &ControllerContext,
    token: Option<&FencingToken>,
    autoscaler: &AutoscalerRef,
    record: &HpaRecord,
    state: &mut AutoscalerState,
) -> Option<SyncResult> {
    if ctx.settings.native_hpas != NativeHpas::Manage {
        return shadow::apply(ctx, token.is_some(), autoscaler, record, state).await;
    }
    Some(
        evaluate_and_apply(ctx, token, autoscaler, &record.scaling, Execution::default(), state)
            .await,
    )
}

/// Observes, decides and applies, and again if another writer changed the scale meanwhile.
async fn evaluate_and_apply(
    ctx: &ControllerContext,
    token: Option<&FencingToken>,
    autoscaler: &AutoscalerRef,
    scaling: &ScalingSpec,
    execution: Execution<'_>,
    state: &mut AutoscalerState,
) -> SyncResult {
    let scaling = &*with_min_replicas_floor(&ctx.settings.hpa_config, scaling);
    state.follow_target(&scaling.spec.target, ctx.clock.wall_ms());
    if token.is_none() && follower::looked(ctx, autoscaler, (&scaling.spec, execution), state).await
    {
        return SyncResult::Followed;
    }
    let mut attempt = 0;
    loop {
        attempt += 1;
        let evaluated =
            ctx.bounded(evaluate(ctx, token, autoscaler, scaling, execution, state)).await;
        let evaluation = match evaluated {
            Ok(evaluation) => evaluation,
            Err(Cancelled::Stopped) => return SyncResult::Followed,
            Err(Cancelled::TimedOut(timeout)) => {
                state.note_evaluation(false, ctx.clock.elapsed());
                let text = format_args!("the scale could not be read within {timeout:?}");
                state.status.set(
                    ConditionKind::ScalingActive,
                    false,
                    hpa::Reason::DecisionTimedOut,
                    text,
                    ctx.clock.wall_ms(),
                );
                state.status.remove(ConditionKind::FallbackActive);
                let rendered = status::render(&state.status, &scaling.spec, execution.generation);
                update_status(ctx, token, autoscaler, state, rendered);
                if token.is_some() {
                    let of = (Some(&scaling.spec), execution.generation);
                    let why = (Reason::RecommendationFailed, CarriedOut::Failed);
                    let text = format!("the scale could not be read within {timeout:?}");
                    account::record_none(ctx, autoscaler, of, why, &text, state);
                }
                ctx.metrics.failed(hpa::Reason::DecisionTimedOut.as_str());
                return SyncResult::Failed;
            }
        };
        let Some(token) = token else {
            return follower::apply(ctx, autoscaler, (evaluation, execution), state);
        };
        let apply = ApplyContext { ctx, token, autoscaler, execution };
        match embedded::apply(apply, evaluation, attempt == EVALUATION_ATTEMPTS, state).await {
            Some(result) => return result,
            None => tracing::debug!(
                %autoscaler,
                attempt,
                "Scale changed during the evaluation, evaluating again"
            ),
        }
    }
}
