//! Records decisions in the ledger.

use super::context::ControllerContext;
use super::decision_time::DecisionTime;
use super::noted::{Account, Described};
use super::state::AutoscalerState;
use super::targets::watched_scale;
use crate::hpa::{Context, MetricSource, Spec, Status};
use crate::ledger::account::{self, Facts};
use crate::ledger::{Basis, CarriedOut, Entry, LoggedOutcome, Reason, bounded};
use crate::watch::{AutoscalerRef, ScaleRecord};
use std::sync::Arc;

/// Records a decision in the ledger, and in the log, if there is one.
pub fn record(
    ctx: &ControllerContext,
    autoscaler: &AutoscalerRef,
    facts: Facts<'_>,
    account: Account,
    state: &mut AutoscalerState,
) {
    if !is_kept(ctx) {
        return;
    }
    let basis = basis(facts.context, facts.status, state);
    let Account { trace, times, .. } = &account;
    let mut entry = account::entry(&facts, &state.history, trace, times, basis);
    entry.observed = facts.observed;
    ctx.ledger.record(autoscaler, &entry);
    if let Some(log) = &ctx.decision_log {
        match account.inputs {
            Some(inputs) => {
                let (rescale, error) = account.decided;
                let trace = account.trace.recorded;
                let outcome = LoggedOutcome { rescale, error, trace };
                log.write(autoscaler, Some((inputs, outcome)), &entry);
            }
            None if account.lacks_room => log.drop_one(),
            // It was no leader's when it was made.
            None => {}
        }
    }
}

/// Whether decisions are kept, in the ledger or in the log.
fn is_kept(ctx: &ControllerContext) -> bool {
    ctx.ledger.is_on() || ctx.decision_log.is_some()
}

/// Records that there was no decision, and why.
pub fn record_none(
    ctx: &ControllerContext,
    autoscaler: &AutoscalerRef,
    (spec, generation): (Option<&Spec>, Option<i64>),
    (reason, carried): (Reason, CarriedOut),
    message: &str,
    state: &mut AutoscalerState,
) {
    if !is_kept(ctx) {
        return;
    }
    let at = DecisionTime::now(&ctx.clock);
    let basis = match spec {
        Some(spec) => {
            let config = ctx.hpa_config(&state.status);
            let context = Context::scheduled_at(spec, config, at.wall, at.server);
            let status = std::mem::take(&mut state.status);
            let basis = basis(context, &status, state);
            state.status = status;
            basis
        }
        None => Arc::new(Basis {
            min: 0,
            max: 0,
            schedules: [None, None],
            bounds_until: None,
            windows: [0; 2],
            tolerance: [0.0; 2],
            disabled: [false; 2],
            metrics: Arc::default(),
        }),
    };
    let mut entry = Entry::at(at.wall, basis);
    entry.generation = generation;
    // The status has the replicas of the last decision, which may be gone.
    entry.current = spec.filter(|_| carried == CarriedOut::Paused).and_then(|spec| {
        let namespace = &autoscaler.key.namespace;
        let replicas = |scale: &ScaleRecord| scale.replicas.spec_replicas;
        ctx.cluster.read(|index| watched_scale(index, namespace, &spec.target).map(replicas))
    });
    entry.desired = entry.current;
    (entry.reason, entry.carried) = (reason, carried);
    entry.message = Some(bounded(message).into());
    ctx.ledger.record(autoscaler, &entry);
    if let Some(log) = &ctx.decision_log {
        log.write(autoscaler, None, &entry);
    }
}

/// What a decision is based on: the same as the last one, if nothing changed.
fn basis(context: Context<'_>, status: &Status, state: &mut AutoscalerState) -> Arc<Basis> {
    let specs = &context.spec.metrics;
    let query = |index: usize| {
        let handles = &state.queries.get(index)?.queries;
        // The usage of memory is the second query of the usage of resources.
        let is_memory = matches!(&specs[index].source,
            MetricSource::Resource { name, .. } | MetricSource::ContainerResource { name, .. }
                if name == "memory");
        handles.get(usize::from(is_memory)).or(handles.first())
    };
    let known = state.described.take();
    let is_same = |known: &Described| {
        let mut queries = known.queries.iter().enumerate();
        std::ptr::eq(&*known.specs, &**specs)
            // A metric that could not be read has no query then.
            && queries.all(|(index, known)| match (query(index), known) {
                (Some(now), Some(known)) => now.is_of(known),
                (Some(_), None) => false,
                (None, _) => true,
            })
    };
    let known = known.filter(|known| is_same(known));
    let described = match known {
        Some(known) if account::is_basis(&known.basis, context, status) => known,
        known => {
            let metrics = match &known {
                Some(known) => known.basis.metrics.clone(),
                None => {
                    let all = specs.iter().enumerate();
                    let text = |index| query(index).map(|query| query.query().text().into());
                    all.map(|(index, metric)| account::metric_basis(metric, text(index))).collect()
                }
            };
            let queries = match known {
                Some(known) => known.queries,
                None => {
                    let all = 0..specs.len();
                    all.map(|index| query(index).map(|query| query.query().clone())).collect()
                }
            };
            let basis = account::basis(context, status, metrics);
            Described { specs: specs.clone(), queries, basis: Arc::new(basis) }.into()
        }
    };
    let basis = described.basis.clone();
    state.described = Some(described);
    basis
}
