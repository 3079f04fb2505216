//! The changes of replicas that decisions tell of.

use super::words::like;
use crate::ledger::api::{ApiConstraint, Decision, Metric};
use crate::ledger::parse_time;
use crate::time::UnixMillis;
use std::borrow::Cow;

/// Who changed the replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Plimsoll.
    Plimsoll,
    /// Whoever else writes the scale, which is kube-controller-manager for a native HPA that is observed.
    KubeControllerManager,
    /// Another client.
    Others,
}

impl By {
    /// The name in texts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Plimsoll => "Plimsoll",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::Others => "another client",
        }
    }
}

/// A change of the replicas.
#[derive(Clone, Debug)]
pub struct Change {
    /// When they were changed, or first seen to be.
    pub at: UnixMillis,
    /// The replicas before.
    pub from: i32,
    /// The replicas after.
    pub to: i32,
    /// Who changed them.
    pub by: By,
    /// How often they were: more than once if another client set them back each time.
    pub times: u64,
    /// The decision to change them, or the first that was made on them.
    pub decision: Decision,
}

/// Finds the changes in decisions, which come in their order.
#[derive(Debug, Default)]
pub struct Changes {
    replicas: Option<i32>,
}

impl Changes {
    /// The changes that the next decision tells of: by others before it, and by itself.
    pub fn next(&mut self, decision: &Decision) -> impl Iterator<Item = Change> {
        let mut found = [None, None];
        if let Some(current) = decision.current_replicas {
            let change = |at: &str, from, to, by| Change {
                at: parse_time(at).unwrap_or_default(),
                from,
                to,
                by,
                times: if by == By::Plimsoll { decision.count } else { 1 },
                decision: decision.clone(),
            };
            if let Some(known) = self.replicas.filter(|known| *known != current) {
                let by = match &*decision.carried_out.by {
                    "plimsoll" => By::Others,
                    _ => By::KubeControllerManager,
                };
                found[0] = Some(change(&decision.first_time, known, current, by));
            }
            self.replicas = Some(current);
            let desired = decision.desired_replicas.filter(|_| decision.carried_out.written);
            if let Some(desired) = desired.filter(|desired| *desired != current) {
                found[1] = Some(change(&decision.last_time, current, desired, By::Plimsoll));
                self.replicas = Some(desired);
            }
        }
        found.into_iter().flatten()
    }
}

impl Change {
    /// Why the replicas were changed, as far as the decision tells.
    pub fn why(&self) -> String {
        let Self { decision, .. } = self;
        match self.by {
            By::Plimsoll => why(decision) + &set_back(self.times),
            By::Others => "the decisions do not say why".to_owned(),
            By::KubeControllerManager => match &*decision.reason {
                _ if decision.desired_replicas.is_none() => "Plimsoll can't decide".to_owned(),
                "Observed" => format!("Plimsoll would have {}", desired(decision)),
                _ => format!("Plimsoll agrees, {}", why(decision)),
            },
        }
    }
}

/// That a run has written the same scale so many times: another client sets it back. Empty for one time.
pub fn set_back(times: u64) -> String {
    match times {
        0 | 1 => String::new(),
        _ => format!("; {times} times, as another client set it back each time"),
    }
}

fn desired(decision: &Decision) -> String {
    decision.desired_replicas.map_or_else(|| "no decision".to_owned(), |n| n.to_string())
}

/// Why a decision is as it is, in a few words.
pub fn why(decision: &Decision) -> String {
    let metric = deciding(decision).map(|metric| {
        let name = name_of(metric, decision);
        let target = metric.target.as_deref();
        let Some(value) = metric.value.as_deref() else {
            return without_value(&name, metric, decision);
        };
        let shown = target.map_or_else(|| "invalid".to_owned(), |text| like(text, target));
        format!("{name} was {}, target {shown}", like(value, target))
    });
    let limit = decision.constraints.last().map(|last| constraint(last, decision));
    match (metric, limit) {
        (Some(metric), Some(limit))
            if !matches!(&*decision.reason, "ReplicaLimit" | "Schedule" | "Fallback") =>
        {
            format!("{metric}; {limit}")
        }
        (_, Some(limit)) => limit,
        (Some(metric), None) => metric,
        (None, None) => decision.message.clone().unwrap_or_else(|| decision.reason.clone()),
    }
}

/// Why a metric without a value asks for what it asks for.
fn without_value(name: &str, metric: &Metric, decision: &Decision) -> String {
    let asked = metric.proposed_replicas.unwrap_or_default();
    let option = match (&*metric.status, metric.on_error.as_deref()) {
        ("Invalid", Some("Hold")) if decision.current_replicas == Some(asked) => {
            return format!("{name} fails, and onError: Hold asks for {asked}");
        }
        ("Invalid", _) => return format!("{name} fails, and its fallback asks for {asked}"),
        _ => "onEmpty: Hold",
    };
    format!("{name} has no value, and {option} asks for {asked}")
}

/// The metric whose proposal was taken: one that was measured, or one that failed and asks for replicas all the same.
pub fn deciding(decision: &Decision) -> Option<&Metric> {
    let taken = |metric: &&Metric| {
        let proposed = metric.proposed_replicas;
        metric.status == "Invalid"
            && proposed.is_some()
            && proposed == decision.recommended_replicas
    };
    used(decision).or_else(|| decision.metrics.iter().find(taken))
}

/// The metric that decided.
pub fn used(decision: &Decision) -> Option<&Metric> {
    decision.metrics.iter().find(|metric| metric.status == "Used")
}

/// The name of a metric as its owner wrote it, with what tells it from another of that name.
pub fn name_of<'a>(metric: &'a Metric, decision: &Decision) -> Cow<'a, str> {
    let name = short_name(metric, decision);
    let same = |other: &&Metric| short_name(other, decision) == name;
    let is_ambiguous = decision.metrics.iter().filter(same).count() > 1;
    match metric.scope.as_deref().filter(|_| is_ambiguous) {
        Some(scope) => format!("{name} of {scope}").into(),
        None => name.into(),
    }
}

/// The name of a metric as its owner wrote it: generated names end with a hash of the labels, the namespace and the
/// autoscaler.
fn short_name<'a>(metric: &'a Metric, decision: &Decision) -> &'a str {
    let name = metric.name.as_str();
    let autoscaler = decision.metadata.name.rsplitn(3, '.').nth(2).unwrap_or_default();
    let rest = name
        .strip_suffix(autoscaler)
        .and_then(|rest| rest.strip_suffix('_'))
        .and_then(|rest| rest.strip_suffix(&*decision.metadata.namespace))
        .and_then(|rest| rest.strip_suffix('_'));
    let hash = rest.and_then(|rest| rest.rsplit_once('_'));
    match hash {
        Some((name, hash)) if hash.len() == 12 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => {
            name
        }
        _ => name,
    }
}

/// What a constraint is, in words.
pub fn constraint(constraint: &ApiConstraint, decision: &Decision) -> String {
    let basis = &decision.basis;
    let window = |seconds: i64| super::words::span(seconds.saturating_mul(1000));
    let ApiConstraint { replicas_after, .. } = constraint;
    let schedule = || constraint.schedule.as_deref().unwrap_or("a schedule");
    match &*constraint.kind {
        "ScaleUpStabilized" => format!(
            "the lowest recommendation of the last {} counts",
            window(basis.scale_up_stabilization_seconds)
        ),
        "ScaleDownStabilized" => format!(
            "the highest recommendation of the last {} counts",
            window(basis.scale_down_stabilization_seconds)
        ),
        "ScaleUpLimit" if basis.scale_up_disabled => {
            "selectPolicy of scaleUp is Disabled".to_owned()
        }
        "ScaleDownLimit" if basis.scale_down_disabled => {
            "selectPolicy of scaleDown is Disabled".to_owned()
        }
        "ScaleUpLimit" => {
            format!("the policies of scaleUp allow {replicas_after} for now")
        }
        "ScaleDownLimit" => {
            format!("the policies of scaleDown allow {replicas_after} for now")
        }
        "TooFewReplicas" if *replicas_after == basis.min_replicas => {
            format!("minReplicas is {replicas_after}")
        }
        "TooFewReplicas" => format!("{replicas_after} at least"),
        "TooManyReplicas" => format!("maxReplicas is {replicas_after}"),
        "ScheduleMinReplicas" => {
            format!("minReplicas of the schedule {} is {replicas_after}", schedule())
        }
        "ScheduleMaxReplicas" => {
            format!("maxReplicas of the schedule {} is {replicas_after}", schedule())
        }
        "PodsNotKnown" => "no pod is removed while the pods are not known yet".to_owned(),
        "MetricsWereAway" => "no pod is removed: the metrics were away until now".to_owned(),
        "RollingOut" => "spec.rollouts holds the replicas during a rollout".to_owned(),
        "Fallback" => {
            format!("the fallback has {replicas_after} replicas, as metrics fail")
        }
        other => other.to_owned(),
    }
}
