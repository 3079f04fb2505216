//! The account of a decision for the ledger: what the algorithm did, and what was done with it.

use super::context::ControllerContext;
use super::decision_time::DecisionTime;
use super::noted::{Account, Described};
use super::state::AutoscalerState;
use crate::hpa::{
    ConditionKind, Context, Current, Decision, Metric, MetricSource, MetricTrace, Outcome,
    ResourceTarget, ScalarTarget, Spec, Status, Step,
};
use crate::ledger::{
    Basis, CarriedOut, Constraint, ConstraintKind, Entry, LoggedOutcome, Measured, MetricBasis,
    MetricStatus, Observed, Reason, Target, bounded,
};
use crate::time::UnixMillis;
use crate::watch::AutoscalerRef;
use std::sync::Arc;

/// A decision, and what came of it.
pub struct Facts<'a> {
    pub context: Context<'a>,
    pub at: DecisionTime,
    /// The generation of the spec.
    pub generation: Option<i64>,
    /// The replicas of the scale, or why they could not be read.
    pub scale: Result<i32, &'a String>,
    pub decision: &'a Decision,
    pub status: &'a Status,
    /// The replicas that were to be written, if any.
    pub wanted: Option<i32>,
    /// The replicas that the fallback has written, if it has.
    pub raised: Option<i32>,
    /// When the policies that limited it first allow more, by the clock of this process.
    pub released: Option<UnixMillis>,
    /// What kube-controller-manager decided, if it carries out its own decisions.
    pub observed: Option<Observed>,
}

/// Records a decision in the ledger, and in the log, if there is one.
pub fn record(
    ctx: &ControllerContext,
    autoscaler: &AutoscalerRef,
    facts: Facts<'_>,
    mut account: Account,
    state: &mut AutoscalerState,
) {
    let basis = basis(facts.context, facts.status, state);
    let mut entry = entry(&facts, &account, basis);
    entry.observed = facts.observed;
    ctx.ledger.record(autoscaler, &entry);
    if let Some(log) = &ctx.decision_log {
        match account.inputs.take() {
            Some(inputs) => {
                let (rescale, error) = std::mem::take(&mut account.decided);
                let trace = account.trace.recorded.clone();
                let outcome = LoggedOutcome { rescale, error, trace };
                log.write(autoscaler, Some((inputs, outcome)), &entry);
            }
            None => log.drop_one(),
        }
    }
    state.account = account;
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
            metrics: Arc::default(),
        }),
    };
    let mut entry = Entry::at(at.wall, basis);
    entry.generation = generation;
    entry.current = Some(state.status.current_replicas).filter(|_| carried == CarriedOut::Paused);
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
    let known = known.filter(is_same);
    let bounds = context.bounds;
    let schedule = |index: Option<usize>| context.spec.schedules.name(index?);
    let names = [schedule(bounds.min_by), schedule(bounds.max_by)];
    let bounds_until = status.schedule.as_ref().and_then(|moment| moment.next_change_ms);
    let (windows, tolerance) = (context.windows(), tolerance(context));
    let is_bounded_so = |basis: &Basis| {
        (basis.min, basis.max, basis.bounds_until) == (bounds.min, bounds.max, bounds_until)
            && (basis.windows, basis.tolerance) == (windows, tolerance)
            && [0, 1].iter().all(|&i| basis.schedules[i].as_deref() == names[i])
    };
    let described = match known {
        Some(known) if is_bounded_so(&known.basis) => known,
        known => {
            let metrics = match &known {
                Some(known) => known.basis.metrics.clone(),
                None => {
                    let all = specs.iter().enumerate();
                    let text = |index| query(index).map(|query| query.query().text().into());
                    all.map(|(index, metric)| metric_basis(metric, text(index))).collect()
                }
            };
            let queries = match known {
                Some(known) => known.queries,
                None => {
                    let all = 0..specs.len();
                    all.map(|index| query(index).map(|query| query.query().clone())).collect()
                }
            };
            let basis = Basis {
                min: bounds.min,
                max: bounds.max,
                schedules: names.map(|name| name.map(Into::into)),
                bounds_until,
                windows,
                tolerance,
                metrics,
            };
            Described { specs: specs.clone(), queries, basis: Arc::new(basis) }
        }
    };
    let basis = described.basis.clone();
    state.described = Some(described);
    basis
}

/// How far below and above 1 a ratio may be without a change.
fn tolerance(context: Context<'_>) -> [f64; 2] {
    let default = context.config.tolerance;
    match &context.spec.behavior {
        None => [default; 2],
        Some(behavior) => [&behavior.scale_down, &behavior.scale_up]
            .map(|rules| rules.tolerance.unwrap_or(default)),
    }
}

fn metric_basis(metric: &Metric, query: Option<Arc<str>>) -> MetricBasis {
    let resource = |target: &ResourceTarget| match target {
        ResourceTarget::Average(milli) => Target::Average(*milli),
        ResourceTarget::Utilization(percent) => Target::Utilization(*percent),
        ResourceTarget::Invalid => Target::Invalid,
    };
    let (name, target) = match &metric.source {
        MetricSource::Pods { metric, average_milli } => {
            (metric.name.as_str(), Target::Average(*average_milli))
        }
        MetricSource::Resource { name, target }
        | MetricSource::ContainerResource { name, target, .. } => (name.as_str(), resource(target)),
        MetricSource::Object { metric, target, .. } | MetricSource::External { metric, target } => {
            let target = match target {
                ScalarTarget::Value(milli) => Target::Value(*milli),
                ScalarTarget::Average(milli) => Target::Average(*milli),
                ScalarTarget::Invalid => Target::Invalid,
            };
            (metric.name.as_str(), target)
        }
        MetricSource::Unknown(kind) => (kind.as_str(), Target::Invalid),
    };
    MetricBasis::new(name, query, target)
}

fn entry(facts: &Facts<'_>, account: &Account, basis: Arc<Basis>) -> Entry {
    let Facts { context, at, decision, status, .. } = *facts;
    let mut entry = Entry::at(at.wall, basis);
    entry.generation = facts.generation;
    let current = match facts.scale {
        Ok(current) => current,
        Err(error) => {
            entry.message = Some(bounded(error).into());
            return entry;
        }
    };
    entry.current = Some(current);
    let mut used = None;
    for step in &account.trace.recorded.steps {
        if let Step::Proposed { replicas, metric } = *step {
            (entry.recommended, used) = (Some(replicas), Some(metric));
        }
    }
    let metrics = account.trace.recorded.metrics.iter();
    entry.metrics.extend(metrics.map(|(index, trace)| {
        let is_used = used == Some(*index);
        measured(account, status, (*index, trace), is_used, at.wall)
    }));
    let last = steps(&mut entry, facts, account, current);
    let is_fallback = status.condition(ConditionKind::FallbackActive).is_some_and(|one| one.status);
    if decision.outcome == Outcome::Failed && facts.wanted.is_none() {
        entry.message = decision.error.as_deref().map(|error| bounded(error).into());
        entry.reason = match decision.metrics_failed {
            true if is_fallback => Reason::Fallback,
            true => Reason::InvalidMetrics,
            false => Reason::RecommendationFailed,
        };
        if let Some(raised) = facts.raised {
            let kind = ConstraintKind::Fallback;
            let raise = Constraint { kind, before: current, after: raised, until: None };
            entry.constraints.push(raise);
            (entry.desired, entry.carried) = (Some(raised), CarriedOut::Written);
        }
        return entry;
    }
    let desired = match (decision.held_back, facts.wanted) {
        (Some((reason, _)), _) if constraint_of(reason).is_some() => current,
        (_, Some(wanted)) => wanted,
        (_, None) => current,
    };
    if last != desired {
        // The bounds hold a workload that wakes from zero, too.
        let by_schedule = context.bounds.min_by.is_some();
        let kind = if by_schedule {
            ConstraintKind::ScheduleMinReplicas
        } else {
            ConstraintKind::TooFewReplicas
        };
        entry.constraints.push(Constraint { kind, before: last, after: desired, until: None });
    }
    entry.desired = Some(desired);
    let fallback = used.filter(|used| account.trace.failures.iter().any(|one| one.0 == *used));
    entry.reason = match (entry.constraints.last(), entry.recommended, fallback) {
        (Some(last), ..) => last.kind.reason(),
        (None, Some(_), Some(metric))
            if context.spec.metrics[metric].options.fallback.is_some() =>
        {
            Reason::Fallback
        }
        (None, Some(_), Some(_)) => Reason::InvalidMetrics,
        (None, Some(recommended), None) if recommended == current => Reason::WithinTolerance,
        (None, Some(_), None) => Reason::MetricRecommendation,
        // Only its owner scales a workload up that is at zero.
        (None, None, _) => Reason::Paused,
    };
    (entry.carried, entry.reason) = carried(facts, current, entry.reason);
    if entry.carried == CarriedOut::WriteFailed {
        entry.message = decision.error.as_deref().map(|error| bounded(error).into());
    }
    entry
}

/// Notes what changed the replicas on the way to the decision, and returns the replicas after that.
fn steps(entry: &mut Entry, facts: &Facts<'_>, account: &Account, current: i32) -> i32 {
    let Facts { context, at, decision, .. } = *facts;
    let by_schedule = |by: Option<usize>, is, is_not| if by.is_some() { is } else { is_not };
    let least = by_schedule(
        context.bounds.min_by,
        ConstraintKind::ScheduleMinReplicas,
        ConstraintKind::TooFewReplicas,
    );
    let most = by_schedule(
        context.bounds.max_by,
        ConstraintKind::ScheduleMaxReplicas,
        ConstraintKind::TooManyReplicas,
    );
    let mut last = current;
    let [up_window, down_window] = context.windows();
    for step in &account.trace.recorded.steps {
        let (kind, after, until) = match *step {
            Step::Proposed { replicas, .. } => {
                last = replicas.max(0);
                continue;
            }
            Step::Stabilized { replicas, recommended_at } => {
                let (kind, window) = match replicas > last {
                    true => (ConstraintKind::ScaleDownStabilized, down_window),
                    false => (ConstraintKind::ScaleUpStabilized, up_window),
                };
                (kind, replicas, recommended_at.map(|at| at + window))
            }
            Step::OutOfBounds { replicas } => {
                (if replicas < current { most } else { least }, replicas, None)
            }
            Step::Limited { replicas, by } => {
                let released = facts.released.map(|release| release - at.process + at.wall);
                match by {
                    "ScaleUpLimit" => (ConstraintKind::ScaleUpLimit, replicas, released),
                    "ScaleDownLimit" => (ConstraintKind::ScaleDownLimit, replicas, released),
                    "TooManyReplicas" => (most, replicas, None),
                    _ => (least, replicas, None),
                }
            }
        };
        entry.constraints.push(Constraint { kind, before: last, after, until });
        last = after;
    }
    if let Some((reason, to)) = decision.held_back
        && let Some(kind) = constraint_of(reason)
    {
        if last != to {
            let step = Constraint { kind: least, before: last, after: to, until: None };
            entry.constraints.push(step);
        }
        let held = Constraint { kind, before: to, after: current, until: None };
        entry.constraints.push(held);
        last = current;
    }
    last
}

/// The constraint that keeps the replicas, by the reason of its condition.
fn constraint_of(reason: &str) -> Option<ConstraintKind> {
    match reason {
        "PodsNotKnown" => Some(ConstraintKind::PodsNotKnown),
        "MetricsWereAway" => Some(ConstraintKind::MetricsWereAway),
        "RollingOut" => Some(ConstraintKind::RollingOut),
        _ => None,
    }
}

/// What came of a decision, and its reason after that.
fn carried(facts: &Facts<'_>, current: i32, reason: Reason) -> (CarriedOut, Reason) {
    let Facts { decision, .. } = facts;
    match (decision.held_back, &decision.outcome) {
        (Some(("PreviewBySpec", _)), _) => (CarriedOut::Preview, Reason::Observed),
        (Some((reason, _)), _) if constraint_of(reason).is_none() => {
            (CarriedOut::Frozen, Reason::Frozen)
        }
        _ if facts.observed.is_some() => match facts.wanted.is_some_and(|wanted| wanted != current)
        {
            true => (CarriedOut::Observed, Reason::Observed),
            false => (CarriedOut::Observed, reason),
        },
        (_, Outcome::Failed) => (CarriedOut::WriteFailed, reason),
        (_, Outcome::Rescale { .. }) => (CarriedOut::Written, reason),
        (_, Outcome::Hold) => (CarriedOut::Unchanged, reason),
    }
}

fn measured(
    account: &Account,
    status: &Status,
    (index, trace): (usize, &MetricTrace),
    is_used: bool,
    now: UnixMillis,
) -> Measured {
    let failure = account.trace.failures.iter().find(|failure| failure.0 == index);
    let mut measured = Measured::of(match failure {
        Some(_) => MetricStatus::Invalid,
        None if is_used => MetricStatus::Used,
        None => MetricStatus::Valid,
    });
    measured.failure =
        failure.map(|(_, reason, cause)| Box::new(((*reason).to_owned(), bounded(cause))));
    measured.proposed = trace.proposal;
    measured.value = match status.current.get(index) {
        Some(Current::Value(milli) | Current::Average(milli)) => Some(*milli),
        Some(Current::Utilization(percent, _)) => Some(i64::from(*percent)),
        Some(Current::None) | None => None,
    };
    measured.range = measured.value.map(|value| (value, value));
    measured.ratio = measured
        .value
        .filter(|_| trace.ratio.is_finite())
        .map(|_| (trace.ratio * 1e6).round() as i64);
    if let Some([queried, newest]) = account.times.get(index).filter(|_| failure.is_none()) {
        measured.queried = *queried;
        measured.age = newest.map(|newest| now - newest);
    }
    measured.pods = [trace.ready, trace.unready, trace.missing, trace.ignored];
    measured
}
