//! Native HPAs that kube-controller-manager decides for: Plimsoll evaluates beside it and compares.
//! That costs the cluster next to nothing: only the leader does, and only if it watches the scale
//! and serves all metrics itself.

use super::account;
use super::comparison::{ComparisonResult, Decisions};
use super::context::{Cancelled, ControllerContext, Execution, SyncResult};
use super::evaluate::{Evaluation, evaluate};
use super::hpa_counts::ShadowStatus;
use super::noted;
use super::observe::needs_samples;
use super::state::AutoscalerState;
use crate::hpa::{Context, Metric, MetricSource, Outcome, Status, parse_group};
use crate::ledger::account::{Facts, constraint_of};
use crate::ledger::{Observed, bounded};
use crate::promql::query::PrometheusMetric;
use crate::rules::{ObjectMetric, Rules};
use crate::watch::{AutoscalerRef, GroupResource, HpaRecord, Workload};
use k8s_openapi::api::autoscaling::v2::{HorizontalPodAutoscalerCondition, MetricStatus};
use std::time::Duration;
use tokio::time::Instant;

/// How long the selector of a target is cached whose kind is not watched.
const SELECTOR_TTL: Duration = Duration::from_secs(600);

/// Evaluates beside kube-controller-manager and compares. None if this HPA is not observed; its
/// selector is registered in any case.
pub async fn apply(
    ctx: &ControllerContext,
    leads: bool,
    autoscaler: &AutoscalerRef,
    record: &HpaRecord,
    state: &mut AutoscalerState,
) -> Option<SyncResult> {
    let shadow_status = shadow_status(&ctx.rules, leads, record);
    ctx.hpa_counts.set(&autoscaler.key, Some(shadow_status));
    if shadow_status != ShadowStatus::Yes {
        state.queries.clear();
        if let Some(comparison) = &mut state.comparison {
            comparison.reset();
        }
        let _ = ctx.bounded(claim(ctx, autoscaler, record, state)).await;
        return None;
    }
    match ctx
        .bounded(evaluate(ctx, None, autoscaler, &record.scaling, Execution::default(), state))
        .await
    {
        Ok(evaluation) => Some(compare(ctx, autoscaler, record, evaluation, state)),
        Err(Cancelled::TimedOut(_)) => Some(SyncResult::Failed),
        Err(Cancelled::Stopped) => None,
    }
}

fn shadow_status(rules: &Rules, leads: bool, record: &HpaRecord) -> ShadowStatus {
    let spec = &record.scaling.spec;
    let watched = parse_group(&spec.target.api_version)
        .is_ok_and(|group| Workload::of(group, &spec.target.kind).is_some());
    let mut metrics = spec.metrics.iter().zip(&record.scaling.prometheus_metrics);
    match () {
        () if !leads => ShadowStatus::NoLeader,
        () if !watched => ShadowStatus::NoScale,
        () if !metrics.all(|(metric, prometheus_metric)| {
            is_served(rules, metric, prometheus_metric.as_deref())
        }) =>
        {
            ShadowStatus::NoMetrics
        }
        () => ShadowStatus::Yes,
    }
}

/// Whether Plimsoll itself serves a metric, so that no other adapter is queried for it.
fn is_served(rules: &Rules, metric: &Metric, prometheus_metric: Option<&PrometheusMetric>) -> bool {
    match &metric.source {
        _ if prometheus_metric.is_some() => true,
        MetricSource::Pods { metric, .. } => {
            let (resource, metric) = (GroupResource::core("pods"), metric.name.clone());
            let key = ObjectMetric { resource, namespaced: true, metric };
            rules.read(|registry| registry.custom(&key).is_some())
        }
        MetricSource::Object { metric, .. } => rules.read(|registry| {
            registry.custom_metrics().any(|(known, _)| known.metric == metric.name)
        }),
        MetricSource::External { metric, .. } => {
            rules.read(|registry| registry.external(&metric.name).is_some())
        }
        MetricSource::Resource { .. } | MetricSource::ContainerResource { .. } => {
            rules.rules().resource.is_some()
        }
        MetricSource::Unknown(_) => true,
    }
}

/// Registers the selector of an HPA, so that no Autoscaler sizes the same pods. The scale of a kind
/// that is not watched is read every [`SELECTOR_TTL`].
async fn claim(
    ctx: &ControllerContext,
    autoscaler: &AutoscalerRef,
    record: &HpaRecord,
    state: &mut AutoscalerState,
) {
    let (namespace, target) = (&autoscaler.key.namespace, &record.scaling.spec.target);
    let cached = ctx.targets.cached(&ctx.cluster, namespace, target);
    let target = match cached {
        Some(cached) => cached,
        None if state.selector_read.is_some_and(|at| at.elapsed() < SELECTOR_TTL) => return,
        None => {
            state.selector_read = Some(Instant::now());
            let Ok(read) = ctx.targets.read(namespace, target).await else { return };
            read
        }
    };
    let status = Status::from_api(&record.status);
    let (spec, config) = (&record.scaling.spec, ctx.hpa_config(&status));
    if needs_samples(Context::new(spec, config, ctx.clock.wall_ms()), &target, &status) {
        let target = Some(&target);
        ctx.cluster.read(|index| drop(ctx.selectors.select(index, autoscaler, target, true)));
    }
}

/// What kube-controller-manager decided and when it last scaled, with its account where Plimsoll's decision is another one.
fn observed(record: &HpaRecord, ours: Option<i32>) -> Observed {
    let status = &record.status;
    let conditions = || status.conditions.iter().flatten();
    let holds = |kind: &str| conditions().any(|one| one.type_ == kind && one.status == "True");
    let can_decide = holds("AbleToScale") && holds("ScalingActive");
    let desired = can_decide.then_some(status.desired_replicas);
    let scaled = status.last_scale_time.as_ref().map(|time| time.0.as_millisecond());
    let account = (desired.is_none() || desired != ours).then(|| {
        let values = status.current_metrics.iter().flatten().map(value);
        let condition = |one: &HorizontalPodAutoscalerCondition| {
            let [reason, message] =
                [&one.reason, &one.message].map(|text| text.as_deref().unwrap_or_default());
            format!("{} is {} ({reason}): {message}", one.type_, one.status)
        };
        let conditions: Vec<String> = conditions().map(condition).collect();
        let values: Vec<String> = values.collect();
        Box::new((bounded(&values.join(", ")), bounded(&conditions.join("; "))))
    });
    Observed { desired, scaled, account }
}

/// What kube-controller-manager measured of a metric.
fn value(metric: &MetricStatus) -> String {
    let current = [
        metric.pods.as_ref().map(|metric| &metric.current),
        metric.object.as_ref().map(|metric| &metric.current),
        metric.external.as_ref().map(|metric| &metric.current),
        metric.resource.as_ref().map(|metric| &metric.current),
        metric.container_resource.as_ref().map(|metric| &metric.current),
    ];
    let Some(current) = current.into_iter().flatten().next() else { return "unknown".to_owned() };
    match current.average_utilization {
        Some(percent) => format!("{percent}%"),
        None => {
            let value = current.average_value.as_ref().or(current.value.as_ref());
            value.map_or_else(|| "unknown".to_owned(), |value| value.0.clone())
        }
    }
}

/// Compares a decision with kube-controller-manager's and writes nothing.
fn compare(
    ctx: &ControllerContext,
    autoscaler: &AutoscalerRef,
    record: &HpaRecord,
    evaluation: Evaluation<'_>,
    state: &mut AutoscalerState,
) -> SyncResult {
    let Evaluation { context, target, decision, history, status, at, account, .. } = evaluation;
    state.set_history(history, at, ctx.longest_window());
    let wanted = noted::wanted(&decision);
    let scale = target.as_ref().map(|target| target.replicas.spec_replicas);
    let is_held =
        decision.held_back.is_some_and(|(reason, _)| constraint_of(reason.as_str()).is_some());
    let ours = wanted.filter(|_| !is_held).or(scale.ok());
    let ours = ours.filter(|_| decision.outcome != Outcome::Failed);
    let facts = Facts {
        context,
        at: at.wall,
        generation: None,
        scale,
        decision: &decision,
        status: &status,
        wanted,
        raised: None,
        ahead: at.wall - at.process,
        holds: account.holds,
        is_preview: false,
        is_frozen: false,
        observed: Some(observed(record, ours)),
    };
    account::record(ctx, autoscaler, facts, account, state);
    let failed = decision.outcome == Outcome::Failed;
    if failed {
        ctx.metrics.forget(&autoscaler.key);
    }
    let replicas = target.as_ref().map(|target| target.replicas.spec_replicas);
    let desired = match (&decision.outcome, &replicas) {
        (Outcome::Rescale { to, .. }, _) => *to,
        (Outcome::Hold | Outcome::Failed, Ok(replicas)) => *replicas,
        (_, Err(_)) => return SyncResult::Failed,
    };
    let present = replicas.unwrap_or(desired);
    let previous_desired = state.desired.replace(desired);
    let kcm_desired = record.status.desired_replicas;
    if !failed {
        ctx.metrics.desired(&autoscaler.key, desired, kcm_desired);
    }
    let decisions = Decisions {
        desired,
        previous_desired,
        kcm_desired,
        would_scale: desired != present,
        failed,
    };
    let comparison = state.comparison.get_or_insert_default();
    if let Some(result) = comparison.compare(record, decisions) {
        ctx.metrics.compared(result.as_str());
        if result != ComparisonResult::Agreed {
            let error = decision.error.as_deref();
            tracing::info!(
                %autoscaler, desired, kcm_desired, error,
                "Shadow decision differs from kube-controller-manager"
            );
        }
    }
    if failed { SyncResult::Failed } else { SyncResult::Observed }
}
