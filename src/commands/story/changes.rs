//! The changes of replicas that decisions tell of.

use super::words::{clock, like};
use crate::ledger::api::{ApiConstraint, ApiObserved, Decision, Metric, SINCE_ANNOTATION};
use crate::ledger::parse_time;
use crate::time::UnixMillis;
use std::borrow::Cow;

/// Who changed the replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Plimsoll.
    Plimsoll,
    /// kube-controller-manager, for a native HPA that is observed.
    KubeControllerManager,
    /// Another client.
    Others,
    /// It is not known: decisions may be missing since this time.
    Unknown(UnixMillis),
}

impl By {
    /// The name in texts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Plimsoll => "Plimsoll",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::Others => "another client",
            Self::Unknown(_) => "unknown",
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
    /// Whether Plimsoll asked for the replicas after it when there were others.
    pub asked: bool,
    /// How often they were: more than once if another client set them back each time.
    pub times: u64,
    /// The decision to change them, or the first that was made on them.
    pub decision: Decision,
}

/// Finds the changes in decisions, which come in their order.
#[derive(Debug, Default)]
pub struct Changes {
    /// How often decisions are made, in ms; 0 if not known.
    period: i64,
    replicas: Option<i32>,
    /// The end of the decision before, its sequence, and what Plimsoll asked for.
    last: Option<UnixMillis>,
    sequence: Option<u64>,
    asked: [Option<i32>; 2],
    /// What kube-controller-manager desired then, and when it had scaled last.
    desired: Option<i32>,
    scaled: Option<UnixMillis>,
    /// The earliest time of a scaling by it after the present replicas were set.
    since: Option<UnixMillis>,
    /// The end of the last decision before some that may be missing.
    unseen: Option<UnixMillis>,
    /// A change that later decisions may yet show to be kube-controller-manager's: if it scaled since this time.
    open: Option<(Change, UnixMillis)>,
}

/// So much later than its scale the status of an HPA may be seen, in ms.
const LATE: i64 = 60_000;

/// How soon another replica may lead after one that was killed, in ms: the Lease has to end.
const FAILOVER: i64 = 15_000;

impl Changes {
    /// The same of an autoscaler that is decided for so often, in ms.
    pub fn new(period: i64) -> Self {
        Self { period, ..Self::default() }
    }

    /// The changes that are known with the next decision: by others before it, and by itself.
    pub fn next(&mut self, decision: &Decision) -> impl Iterator<Item = Change> {
        let [first, last] = [&decision.first_time, &decision.last_time]
            .map(|time| parse_time(time).unwrap_or_default());
        let mut found = [None, None, None];
        if let Some((mut open, since)) = self.open.take() {
            let is_late = first - open.at > LATE;
            if !is_late && has_scaled(decision, open.to, since) {
                open.by = By::KubeControllerManager;
            }
            let is_known = is_late || open.by == By::KubeControllerManager;
            let is_over = decision.current_replicas.is_some_and(|current| current != open.to);
            match is_known || is_over {
                true => found[0] = Some(open),
                false => self.open = Some((open, since)),
            }
        }
        if self.is_after_others(decision, first) {
            self.unseen = self.unseen.or(self.last);
        }
        if let Some(current) = decision.current_replicas {
            let unseen = self.unseen.take();
            let change = |at: &str, from, to, by| Change {
                at: parse_time(at).unwrap_or_default(),
                from,
                to,
                by,
                asked: self.asked.contains(&Some(to)),
                times: if by == By::Plimsoll { decision.count } else { 1 },
                decision: decision.clone(),
            };
            if let Some(known) = self.replicas.filter(|known| *known != current) {
                let since = self.next_scaling();
                let is_theirs = self.is_expected(current) || has_scaled(decision, current, since);
                self.since = Some(since);
                let by = match is_theirs {
                    true => By::KubeControllerManager,
                    false => unseen.map_or(By::Others, By::Unknown),
                };
                let change = change(&decision.first_time, known, current, by);
                match is_theirs || decision.observed.is_none() {
                    true => found[1] = Some(change),
                    false => self.open = Some((change, since)),
                }
            }
            self.replicas = Some(current);
            let desired = decision.desired_replicas.filter(|_| decision.carried_out.written);
            if let Some(desired) = desired.filter(|desired| *desired != current) {
                found[2] = Some(change(&decision.last_time, current, desired, By::Plimsoll));
                self.replicas = Some(desired);
            }
        }
        (self.last, self.sequence) = (Some(last), sequence(decision));
        self.asked = [decision.recommended_replicas, decision.desired_replicas];
        let observed = decision.observed.as_ref();
        self.desired = observed.and_then(|observed| observed.desired_replicas);
        self.scaled = observed.and_then(last_scaled);
        found.into_iter().flatten()
    }

    /// The last change, where no later decision tells whose it is.
    pub fn finish(&mut self) -> Option<Change> {
        self.open.take().map(|(change, _)| change)
    }

    /// The earliest time of a scaling by kube-controller-manager after the decision before. It tells whole seconds.
    fn next_scaling(&self) -> UnixMillis {
        let end = self.last.unwrap_or_default();
        self.scaled.map_or(end - end.rem_euclid(1000), |before| before + 1)
    }

    /// Whether kube-controller-manager had scaled to these replicas when others were still seen, as its status came
    /// first. A status from before these others tells nothing.
    fn is_expected(&self, replicas: i32) -> bool {
        self.desired == Some(replicas)
            && self.scaled.is_none_or(|scaled| self.since.is_none_or(|since| scaled >= since))
    }

    /// Whether decisions may be missing before the next one: the sequence has a gap, the history began later, or two
    /// evaluations were due.
    fn is_after_others(&self, decision: &Decision, first: UnixMillis) -> bool {
        let Some(last) = self.last else { return false };
        let numbers = self.sequence.zip(sequence(decision));
        let since = decision.metadata.annotations.get(SINCE_ANNOTATION);
        numbers.is_some_and(|(before, now)| now.wrapping_sub(before) > 1)
            || since.and_then(|since| parse_time(since)).is_some_and(|since| since > last)
            || (self.period > 0 && first - last >= FAILOVER.max(2 * self.period))
    }
}

/// When kube-controller-manager had scaled last.
fn last_scaled(observed: &ApiObserved) -> Option<UnixMillis> {
    observed.last_scale_time.as_deref().and_then(parse_time)
}

/// Whether kube-controller-manager has scaled since a time, and to these replicas as far as it tells. What it desires
/// is no proof: within its tolerance it desires those that there are.
fn has_scaled(decision: &Decision, to: i32, since: UnixMillis) -> bool {
    decision.observed.as_ref().is_some_and(|observed| {
        last_scaled(observed).is_some_and(|scaled| scaled >= since)
            && observed.desired_replicas.is_none_or(|desired| desired == to)
    })
}

fn sequence(decision: &Decision) -> Option<u64> {
    decision.metadata.name.rsplit_once('.')?.1.parse().ok()
}

impl Change {
    /// Why the replicas were changed, as far as the decision tells.
    pub fn why(&self) -> String {
        let Self { decision, .. } = self;
        match self.by {
            By::Plimsoll => why(decision) + &set_back(self.times),
            By::Others => match decision.observed.as_ref().and_then(|of| of.desired_replicas) {
                Some(theirs) if theirs == self.to => {
                    format!("kube-controller-manager keeps {theirs}")
                }
                Some(theirs) => format!("kube-controller-manager desires {theirs}"),
                None => "the decisions do not say why".to_owned(),
            },
            By::Unknown(from) => format!(
                "no decision is known from {} to {}",
                clock(from, self.at),
                clock(self.at, self.at)
            ),
            By::KubeControllerManager => match &*decision.reason {
                _ if decision.desired_replicas.is_none() => "Plimsoll can't decide".to_owned(),
                "Observed" => format!("Plimsoll would have {}", desired(decision)),
                _ if self.asked || self.is_asked_for() => {
                    format!("Plimsoll agrees, {}", why(decision))
                }
                _ => format!("Plimsoll holds it, {}", why(decision)),
            },
        }
    }

    /// Whether metrics or bounds ask for the replicas after it. The tolerance and failing metrics hold any.
    fn is_asked_for(&self) -> bool {
        match &*self.decision.reason {
            "ReplicaLimit" => true,
            "WithinTolerance" | "InvalidMetrics" => false,
            _ => self.decision.recommended_replicas == Some(self.to),
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
        match metric.is_total() {
            true => format!("{name} was {} in all, target {shown} per pod", like(value, target)),
            false => format!("{name} was {}, target {shown}", like(value, target)),
        }
    });
    match (metric, limit(decision)) {
        (Some(metric), Some(limit))
            if !matches!(&*decision.reason, "ReplicaLimit" | "Schedule" | "Fallback") =>
        {
            format!("{metric}; {limit}")
        }
        (_, Some(limit)) => limit,
        (Some(metric), None) => metric,
        (None, None) => decision.message.clone().unwrap_or_else(|| match &*decision.reason {
            "Paused" => "only its owner scales it up from zero".to_owned(),
            reason => reason.to_owned(),
        }),
    }
}

/// What limits the replicas: the last constraint, and a bound before it where no metric was asked.
pub fn limit(decision: &Decision) -> Option<String> {
    let all = &decision.constraints;
    let from =
        if decision.recommended_replicas.is_none() { 0 } else { all.len().saturating_sub(1) };
    let told: Vec<String> = all[from..].iter().map(|one| constraint(one, decision)).collect();
    (!told.is_empty()).then(|| told.join("; "))
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

/// The name of a metric as its owner wrote it, with what tells it from another of that name: its scope, or the hash of
/// its labels.
pub fn name_of<'a>(metric: &'a Metric, decision: &Decision) -> Cow<'a, str> {
    let name = short_name(metric, decision);
    let same = |other: &&Metric| short_name(other, decision) == name;
    let is_ambiguous = decision.metrics.iter().filter(same).count() > 1;
    match metric.scope.as_deref() {
        Some(scope) if is_ambiguous => format!("{name} of {scope}").into(),
        None if is_ambiguous => metric.name.as_str().into(),
        _ => name.into(),
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
        "MetricsWereAway" => {
            "no pod is removed until the metrics have been available for as long as they were not"
                .to_owned()
        }
        "RollingOut" => "spec.rollouts holds the replicas during a rollout".to_owned(),
        "Fallback" => {
            format!("the fallback has {replicas_after} replicas, as metrics fail")
        }
        other => other.to_owned(),
    }
}
