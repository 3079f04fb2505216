//! The account of a decision: what the algorithm did, and what was done with it.

use super::basis::{Basis, MetricBasis, Target, bounded};
use super::entry::{
    CarriedOut, Constraint, ConstraintKind, Entry, Limit, Measured, MetricStatus, Observed, Reason,
};
use super::trace::DecisionTrace;
use super::would_change::would_change;
use crate::hpa::{
    self, ConditionKind, Context, Current, Decision, Direction, Metric, MetricSource, MetricTrace,
    Outcome, ResourceTarget, ScalarTarget, ScalingHistory, SelectPolicy, Status, Step,
};
use crate::time::UnixMillis;
use std::sync::Arc;

/// A decision, and what came of it.
pub struct Facts<'a> {
    /// The spec and its bounds then.
    pub context: Context<'a>,
    /// When it was made, by the wall clock.
    pub at: UnixMillis,
    /// The generation of the spec.
    pub generation: Option<i64>,
    /// The replicas of the scale, or why they could not be read.
    pub scale: Result<i32, &'a String>,
    /// What was decided.
    pub decision: &'a Decision,
    /// The status after it.
    pub status: &'a Status,
    /// The replicas that were to be written, if any.
    pub wanted: Option<i32>,
    /// The replicas that the fallback has written, if it has.
    pub raised: Option<i32>,
    /// By how much the wall clock is ahead of that of the scaling history, in ms.
    pub ahead: UnixMillis,
    /// What holds the replicas beside the algorithm, by the reason of its condition: more of them, and fewer.
    pub holds: [Option<&'static str>; 2],
    /// Whether the autoscaler is a preview, which writes no scale.
    pub is_preview: bool,
    /// Whether all scales are frozen.
    pub is_frozen: bool,
    /// What kube-controller-manager decided, if it carries out its own decisions.
    pub observed: Option<Observed>,
}

/// A metric of the spec, with its query.
pub fn metric_basis(metric: &Metric, query: Option<Arc<str>>) -> MetricBasis {
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
    let is_total = matches!(metric.source, MetricSource::External { .. });
    MetricBasis {
        activation: metric.options.activation_milli.filter(|_| is_total),
        on_error: metric.options.on_error,
        ..MetricBasis::new(name, query, target).with_scope(scope(&metric.source).as_deref())
    }
}

/// What tells a metric from others of its name.
fn scope(source: &MetricSource) -> Option<String> {
    match source {
        MetricSource::ContainerResource { container, .. } => Some(format!("container {container}")),
        MetricSource::Object { object, .. } => Some(format!("{}/{}", object.kind, object.name)),
        MetricSource::Pods { metric, .. } | MetricSource::External { metric, .. } => {
            let selector = metric.parsed.as_ref().ok().filter(|_| metric.selector.is_some())?;
            Some(selector.to_string()).filter(|text| !text.is_empty())
        }
        MetricSource::Resource { .. } | MetricSource::Unknown(_) => None,
    }
}

/// What a decision is based on, with these metrics.
pub fn basis(context: Context<'_>, status: &Status, metrics: Arc<[MetricBasis]>) -> Basis {
    let bounds = context.bounds;
    Basis {
        min: bounds.min,
        max: bounds.max,
        schedules: schedules(context).map(|name| name.map(Into::into)),
        bounds_until: bounds_until(status),
        windows: context.windows(),
        tolerance: tolerance(context),
        disabled: disabled(context),
        metrics,
    }
}

/// Whether that is what a decision is based on, whose metrics are the same.
pub fn is_basis(basis: &Basis, context: Context<'_>, status: &Status) -> bool {
    let bounds = context.bounds;
    let names = schedules(context);
    (basis.min, basis.max, basis.bounds_until) == (bounds.min, bounds.max, bounds_until(status))
        && (basis.windows, basis.tolerance) == (context.windows(), tolerance(context))
        && basis.disabled == disabled(context)
        && [0, 1].iter().all(|&i| basis.schedules[i].as_deref() == names[i])
}

/// The schedules whose bounds are in force: of the lower and of the upper one.
fn schedules(context: Context<'_>) -> [Option<&str>; 2] {
    let bounds = context.bounds;
    [bounds.min_by, bounds.max_by].map(|index| context.spec.schedules.name(index?))
}

fn bounds_until(status: &Status) -> Option<UnixMillis> {
    status.schedule.as_ref().and_then(|moment| moment.next_change_ms)
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

/// Whether `selectPolicy` prevents more replicas, and fewer.
fn disabled(context: Context<'_>) -> [bool; 2] {
    let behavior = context.spec.behavior.as_ref();
    behavior.map_or([false; 2], |behavior| {
        [&behavior.scale_up, &behavior.scale_down]
            .map(|rules| rules.select_policy == SelectPolicy::Disabled)
    })
}

/// The entry of a decision: the scaling history after it, its trace, and when the values of each metric were queried, and
/// the newest was measured.
pub fn entry(
    facts: &Facts<'_>,
    history: &ScalingHistory,
    trace: &DecisionTrace,
    times: &[[Option<UnixMillis>; 2]],
    basis: Arc<Basis>,
) -> Entry {
    let Facts { context, at, decision, status, .. } = *facts;
    let mut entry = Entry::at(at, basis);
    entry.generation = facts.generation;
    if facts.observed.is_some() {
        // It sizes the workload whether Plimsoll can decide or not.
        entry.carried = CarriedOut::Observed;
    }
    let current = match facts.scale {
        Ok(current) => current,
        Err(error) => {
            entry.message = Some(bounded(error).into());
            return entry;
        }
    };
    entry.current = Some(current);
    let mut used = None;
    for step in &trace.recorded.steps {
        if let Step::Proposed { replicas, metric } = *step {
            (entry.recommended, used) = (Some(replicas), Some(metric));
        }
    }
    let metrics = trace.recorded.metrics.iter();
    entry.metrics.extend(metrics.map(|(index, counts)| {
        let failure = trace.failures.iter().find(|failure| failure.0 == *index);
        let mut measured = Measured::of(match failure {
            Some(_) => MetricStatus::Invalid,
            None if used == Some(*index) => MetricStatus::Used,
            None => MetricStatus::Valid,
        });
        measured.failure =
            failure.map(|(_, reason, cause)| Box::new(((*reason).to_owned(), bounded(cause))));
        count(&mut measured, status.current.get(*index), counts);
        if let Some([queried, newest]) = times.get(*index).filter(|_| failure.is_none()) {
            measured.queried = *queried;
            measured.age = newest.map(|newest| at - newest);
        }
        measured
    }));
    let last = steps(&mut entry, facts, history, trace, current);
    let is_fallback = status
        .condition(ConditionKind::FallbackActive)
        .is_some_and(|one| one.status && one.reason == hpa::Reason::MetricsFailed);
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
        (Some((reason, _)), _) if constraint_of(reason.as_str()).is_some() => current,
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
    let failed = used.filter(|used| trace.failures.iter().any(|one| one.0 == *used));
    entry.reason = match (entry.constraints.last(), entry.recommended, failed) {
        (Some(last), ..) => last.kind.reason(),
        (None, Some(_), Some(_)) if decision.is_by_fallback => Reason::Fallback,
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
    entry.limits = limits(facts, history, &entry);
    entry
}

/// What keeps the next change of each direction smaller than the metric would ask for.
fn limits(facts: &Facts<'_>, history: &ScalingHistory, entry: &Entry) -> [Option<Limit>; 2] {
    let Some((_, turns)) = would_change(entry) else { return [None; 2] };
    let Facts { context, at, holds, ahead, .. } = *facts;
    let is_written = entry.carried == CarriedOut::Written;
    let Some(present) = (if is_written { entry.desired } else { entry.current }) else {
        return [None; 2];
    };
    [Direction::Up, Direction::Down].map(|direction| {
        let up = direction == Direction::Up;
        let wanted = turns[usize::from(!up)].ok()?.replicas;
        if let Some(kind) = holds[usize::from(!up)].and_then(constraint_of) {
            return Some(Limit { kind, replicas: present, from: None });
        }
        let kind = if up { ConstraintKind::ScaleUpLimit } else { ConstraintKind::ScaleDownLimit };
        let of = |at| hpa::allowed(context.spec, history, direction, present, at);
        let (now, allowed) = (at - ahead, of(at - ahead));
        if if up { allowed >= wanted } else { allowed <= wanted } {
            return None;
        }
        if allowed != present {
            return Some(Limit { kind, replicas: allowed, from: None });
        }
        let from = hpa::eased(context.spec, history, direction, present, now);
        let replicas = from.map_or(present, of);
        Some(Limit { kind, replicas, from: from.map(|from| from + ahead) })
    })
}

/// Notes what changed the replicas on the way to the decision, and returns the replicas after that.
fn steps(
    entry: &mut Entry,
    facts: &Facts<'_>,
    history: &ScalingHistory,
    trace: &DecisionTrace,
    current: i32,
) -> i32 {
    let Facts { context, at, decision, ahead, .. } = *facts;
    // The time is that of the replicas after the decision.
    let replicas = match decision.outcome {
        Outcome::Rescale { to, .. } => to,
        Outcome::Hold | Outcome::Failed => current,
    };
    let eased = |direction| {
        let eased = hpa::eased(context.spec, history, direction, replicas, at - ahead);
        eased.map(|eased| eased + ahead)
    };
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
    for step in &trace.recorded.steps {
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
                let bounds = context.bounds;
                let (kind, after) = match current > bounds.max {
                    true => (most, bounds.max),
                    false => (least, bounds.min),
                };
                if replicas == after {
                    (kind, after, None)
                } else {
                    // The policies let it go there little by little.
                    entry.constraints.push(Constraint { kind, before: last, after, until: None });
                    last = after;
                    (ConstraintKind::ScaleDownLimit, replicas, eased(Direction::Down))
                }
            }
            Step::Limited { replicas, by } => match by {
                "ScaleUpLimit" => (ConstraintKind::ScaleUpLimit, replicas, eased(Direction::Up)),
                "ScaleDownLimit" => {
                    (ConstraintKind::ScaleDownLimit, replicas, eased(Direction::Down))
                }
                "TooManyReplicas" => (most, replicas, None),
                _ => (least, replicas, None),
            },
        };
        entry.constraints.push(Constraint { kind, before: last, after, until });
        last = after;
    }
    if let Some((reason, to)) = decision.held_back
        && let Some(kind) = constraint_of(reason.as_str())
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
pub fn constraint_of(reason: &str) -> Option<ConstraintKind> {
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
        (Some((hpa::Reason::PreviewBySpec, _)), _) => (CarriedOut::Preview, Reason::Observed),
        (Some((reason, _)), _) if constraint_of(reason.as_str()).is_none() => {
            (CarriedOut::Frozen, Reason::Frozen)
        }
        _ if facts.observed.is_some() => match facts.wanted.is_some_and(|wanted| wanted != current)
        {
            true => (CarriedOut::Observed, Reason::Observed),
            false => (CarriedOut::Observed, reason),
        },
        (_, Outcome::Failed) => (CarriedOut::WriteFailed, reason),
        (_, Outcome::Rescale { .. }) => (CarriedOut::Written, reason),
        (_, Outcome::Hold) if facts.is_frozen => (CarriedOut::Frozen, reason),
        (_, Outcome::Hold) if facts.is_preview => (CarriedOut::Preview, reason),
        (_, Outcome::Hold) => (CarriedOut::Unchanged, reason),
    }
}

/// Sets what was measured of a metric, and what it proposes.
fn count(measured: &mut Measured, current: Option<&Current>, counts: &MetricTrace) {
    measured.proposed = counts.proposal;
    let is_total = !counts.ratio.is_finite();
    measured.value = match current {
        // There are no replicas to divide it by.
        Some(Current::Average(_)) if is_total => Some(counts.sum_milli),
        Some(Current::Value(milli) | Current::Average(milli)) => Some(*milli),
        Some(Current::Utilization(percent, _)) => Some(i64::from(*percent)),
        Some(Current::None) | None => None,
    };
    measured.range = measured.value.map(|value| (value, value));
    measured.ratio = measured
        .value
        .filter(|_| counts.ratio.is_finite())
        .map(|_| (counts.ratio * 1e6).round() as i64);
    let weighted = counts.weighted_ratio.filter(|ratio| ratio.is_finite());
    measured.weighted = weighted.map(|ratio| (ratio * 1e6).round() as i64);
    measured.pods = [counts.ready, counts.unready, counts.missing, counts.ignored];
}
