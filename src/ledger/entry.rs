//! An entry of the ledger: one decision, or a run of equal ones. Numbers only; texts that all entries of
//! an autoscaler share are in its [`Basis`].

pub use super::basis::Basis;
use crate::time::UnixMillis;
use crate::watch::{AutoscalerKind, ObjectKey};
use std::sync::Arc;

/// Why the replicas are desired that are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names are those of the API, which `api.rs` describes
pub enum Reason {
    MetricRecommendation,
    WithinTolerance,
    Stabilized,
    PolicyLimited,
    ReplicaLimit,
    InvalidMetrics,
    RecommendationFailed,
    Fallback,
    Schedule,
    Forecast,
    Paused,
    Frozen,
    Observed,
}

impl Reason {
    /// All, in an order that never changes.
    pub const ALL: [Self; 13] = [
        Self::MetricRecommendation,
        Self::WithinTolerance,
        Self::Stabilized,
        Self::PolicyLimited,
        Self::ReplicaLimit,
        Self::InvalidMetrics,
        Self::RecommendationFailed,
        Self::Fallback,
        Self::Schedule,
        Self::Forecast,
        Self::Paused,
        Self::Frozen,
        Self::Observed,
    ];

    /// The name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MetricRecommendation => "MetricRecommendation",
            Self::WithinTolerance => "WithinTolerance",
            Self::Stabilized => "Stabilized",
            Self::PolicyLimited => "PolicyLimited",
            Self::ReplicaLimit => "ReplicaLimit",
            Self::InvalidMetrics => "InvalidMetrics",
            Self::RecommendationFailed => "RecommendationFailed",
            Self::Fallback => "Fallback",
            Self::Schedule => "Schedule",
            Self::Forecast => "Forecast",
            Self::Paused => "Paused",
            Self::Frozen => "Frozen",
            Self::Observed => "Observed",
        }
    }
}

/// What changed the replicas after the metrics had proposed some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names are those of the API, which docs/decisions.md describes
pub enum ConstraintKind {
    ScaleUpStabilized,
    ScaleDownStabilized,
    ScaleUpLimit,
    ScaleDownLimit,
    TooFewReplicas,
    TooManyReplicas,
    ScheduleMinReplicas,
    ScheduleMaxReplicas,
    PodsNotKnown,
    MetricsWereAway,
    RollingOut,
    Fallback,
}

impl ConstraintKind {
    /// All, in an order that never changes.
    pub const ALL: [Self; 12] = [
        Self::ScaleUpStabilized,
        Self::ScaleDownStabilized,
        Self::ScaleUpLimit,
        Self::ScaleDownLimit,
        Self::TooFewReplicas,
        Self::TooManyReplicas,
        Self::ScheduleMinReplicas,
        Self::ScheduleMaxReplicas,
        Self::PodsNotKnown,
        Self::MetricsWereAway,
        Self::RollingOut,
        Self::Fallback,
    ];

    /// The name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ScaleUpStabilized => "ScaleUpStabilized",
            Self::ScaleDownStabilized => "ScaleDownStabilized",
            Self::ScaleUpLimit => "ScaleUpLimit",
            Self::ScaleDownLimit => "ScaleDownLimit",
            Self::TooFewReplicas => "TooFewReplicas",
            Self::TooManyReplicas => "TooManyReplicas",
            Self::ScheduleMinReplicas => "ScheduleMinReplicas",
            Self::ScheduleMaxReplicas => "ScheduleMaxReplicas",
            Self::PodsNotKnown => "PodsNotKnown",
            Self::MetricsWereAway => "MetricsWereAway",
            Self::RollingOut => "RollingOut",
            Self::Fallback => "Fallback",
        }
    }

    /// The reason of a decision that it has changed last.
    pub const fn reason(self) -> Reason {
        match self {
            Self::ScaleUpStabilized
            | Self::ScaleDownStabilized
            | Self::PodsNotKnown
            | Self::MetricsWereAway => Reason::Stabilized,
            Self::ScaleUpLimit | Self::ScaleDownLimit | Self::RollingOut => Reason::PolicyLimited,
            Self::TooFewReplicas | Self::TooManyReplicas => Reason::ReplicaLimit,
            Self::ScheduleMinReplicas | Self::ScheduleMaxReplicas => Reason::Schedule,
            Self::Fallback => Reason::Fallback,
        }
    }
}

/// A step that changed the replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Constraint {
    /// What changed them.
    pub kind: ConstraintKind,
    /// The replicas before it.
    pub before: i32,
    /// The replicas after it.
    pub after: i32,
    /// When its window ends, if it has one and that is known.
    pub until: Option<UnixMillis>,
}

/// What keeps the next change of one direction smaller than the metric would ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Policies, or what holds the replicas.
    pub kind: ConstraintKind,
    /// How far the replicas may go: no further than they are, if that is not known.
    pub replicas: i32,
    /// From when on they may go as far; none: now.
    pub from: Option<UnixMillis>,
}

/// Whether the decision was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names are those of the API, which docs/decisions.md describes
pub enum CarriedOut {
    Written,
    Unchanged,
    Failed,
    WriteFailed,
    Frozen,
    Preview,
    Paused,
    Observed,
}

impl CarriedOut {
    /// All, in an order that never changes.
    pub const ALL: [Self; 8] = [
        Self::Written,
        Self::Unchanged,
        Self::Failed,
        Self::WriteFailed,
        Self::Frozen,
        Self::Preview,
        Self::Paused,
        Self::Observed,
    ];

    /// The name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Written => "Written",
            Self::Unchanged => "Unchanged",
            Self::Failed => "NoDecision",
            Self::WriteFailed => "WriteFailed",
            Self::Frozen => "Frozen",
            Self::Preview => "Preview",
            Self::Paused => "Paused",
            Self::Observed => "Observed",
        }
    }

    /// Who changes the scale.
    pub const fn by(self) -> &'static str {
        match self {
            Self::Observed => "kube-controller-manager",
            _ => "plimsoll",
        }
    }
}

/// Whether a metric decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricStatus {
    /// Its proposal won.
    Used,
    /// It made a proposal.
    Valid,
    /// It failed.
    Invalid,
}

impl MetricStatus {
    /// All, in an order that never changes.
    pub const ALL: [Self; 3] = [Self::Used, Self::Valid, Self::Invalid];

    /// The name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Used => "Used",
            Self::Valid => "Valid",
            Self::Invalid => "Invalid",
        }
    }
}

/// What was measured of one metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Whether it decided.
    pub status: MetricStatus,
    /// The replicas that it proposed, if any.
    pub proposed: Option<i32>,
    /// The value, in the unit of its target.
    pub value: Option<i64>,
    /// The smallest and the largest value of the run.
    pub range: Option<(i64, i64)>,
    /// The ratio of value and target, in millionths.
    pub ratio: Option<i64>,
    /// The same with the pods that are not ready or have no sample, if they count.
    pub weighted: Option<i64>,
    /// When its values were queried.
    pub queried: Option<UnixMillis>,
    /// The age of its newest sample at the decision, in ms.
    pub age: Option<i64>,
    /// The pods: ready, unready, missing and ignored.
    pub pods: [i64; 4],
    /// Why it failed: the reason and the cause.
    pub failure: Option<Box<(String, String)>>,
}

/// What kube-controller-manager decided for a native HPA, as its status says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// The replicas that it desires; none if its conditions say that it can't decide.
    pub desired: Option<i32>,
    /// When it last changed the scale, if it ever did.
    pub scaled: Option<UnixMillis>,
    /// What it measured, and its conditions: where it can't decide, or Plimsoll desires other replicas.
    pub account: Option<Box<(String, String)>>,
}

/// The place of an entry in the order of lists.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The namespace and name of the autoscaler.
    pub key: Arc<ObjectKey>,
    /// Its kind.
    pub kind: AutoscalerKind,
    /// The sequence of the entry.
    pub sequence: u64,
}

/// An entry: one decision, or a run of equal ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Its number among the entries of the autoscaler, from 1.
    pub sequence: u64,
    /// The resource version in which it was added.
    pub added: u64,
    /// The resource version in which it last changed.
    pub version: u64,
    /// The time of its first decision.
    pub first: UnixMillis,
    /// The time of its last decision.
    pub last: UnixMillis,
    /// The number of decisions.
    pub count: u64,
    /// The generation of the spec.
    pub generation: Option<i64>,
    /// The replicas before the decision.
    pub current: Option<i32>,
    /// The replicas that the metrics propose.
    pub recommended: Option<i32>,
    /// The replicas after all constraints.
    pub desired: Option<i32>,
    /// Why these are desired.
    pub reason: Reason,
    /// What changed the proposal, in its order.
    pub constraints: Vec<Constraint>,
    /// What keeps the next change small: of more replicas, and of fewer.
    pub limits: [Option<Limit>; 2],
    /// Whether it was carried out.
    pub carried: CarriedOut,
    /// The metrics, in the order of the spec; empty if none was evaluated.
    pub metrics: Vec<Measured>,
    /// Why there was no decision, or why it was not carried out.
    pub message: Option<Box<str>>,
    /// What kube-controller-manager decided, if it carries out its own decisions.
    pub observed: Option<Observed>,
    /// What it is based on.
    pub basis: Arc<Basis>,
}

impl Measured {
    /// One of which nothing is known.
    pub fn of(status: MetricStatus) -> Self {
        Self {
            status,
            proposed: None,
            value: None,
            range: None,
            ratio: None,
            weighted: None,
            queried: None,
            age: None,
            pods: [0; 4],
            failure: None,
        }
    }

    /// Whether the value is a total though the target is an average: there were no replicas to divide it by.
    pub fn is_total(&self) -> bool {
        self.value.is_some() && self.ratio.is_none()
    }
}

impl Entry {
    /// An entry of one decision about which nothing is known but when it was made.
    pub fn at(time: UnixMillis, basis: Arc<Basis>) -> Self {
        Self {
            sequence: 0,
            added: 0,
            version: 0,
            first: time,
            last: time,
            count: 1,
            generation: None,
            current: None,
            recommended: None,
            desired: None,
            reason: Reason::RecommendationFailed,
            constraints: Vec::new(),
            limits: [None; 2],
            carried: CarriedOut::Failed,
            metrics: Vec::new(),
            message: None,
            observed: None,
            basis,
        }
    }

    /// Whether a later decision continues this run.
    pub fn is_continued_by(&self, next: &Self) -> bool {
        let step = |one: &Constraint| (one.kind, one.before, one.after);
        let metric = |one: &Measured| (one.status, one.proposed, one.is_total());
        self.is_of_the_spec_of(next)
            && (self.reason, self.carried, self.generation)
                == (next.reason, next.carried, next.generation)
            && (self.current, self.desired) == (next.current, next.desired)
            && self.observed.as_ref().map(|observed| observed.desired)
                == next.observed.as_ref().map(|observed| observed.desired)
            && self.constraints.len() == next.constraints.len()
            && self.constraints.iter().zip(&next.constraints).all(|(a, b)| step(a) == step(b))
            && self.metrics.len() == next.metrics.len()
            && self.metrics.iter().zip(&next.metrics).all(|(a, b)| metric(a) == metric(b))
    }

    /// Whether a later decision is on the same spec, as far as that is seen in it, and within the same bounds, which
    /// schedules change, too. A native HPA has no generation, and a copy has no metrics where none was evaluated.
    fn is_of_the_spec_of(&self, next: &Self) -> bool {
        let (old, new) = (&*self.basis, &*next.basis);
        let bounds = |of: &Basis| (of.min, of.max, of.windows, of.tolerance, of.disabled);
        let has_none = self.metrics.is_empty() && next.metrics.is_empty();
        std::ptr::eq(old, new)
            || ((has_none || Arc::ptr_eq(&old.metrics, &new.metrics) || old.metrics == new.metrics)
                && bounds(old) == bounds(new)
                && old.schedules == new.schedules)
    }

    /// Continues this run with a later decision, which it shows from now on.
    pub fn continue_with(&mut self, next: &Self) {
        self.last = next.last;
        self.count += next.count;
        self.recommended = next.recommended;
        self.constraints.clone_from(&next.constraints);
        self.limits = next.limits;
        for (metric, new) in self.metrics.iter_mut().zip(&next.metrics) {
            let range = match (metric.range, new.range) {
                (Some((a, b)), Some((c, d))) => Some((a.min(c), b.max(d))),
                (known, new) => known.or(new),
            };
            metric.clone_from(new);
            metric.range = range;
        }
        if self.message != next.message {
            self.message.clone_from(&next.message);
        }
        if self.observed != next.observed {
            self.observed.clone_from(&next.observed);
        }
        if !Arc::ptr_eq(&self.basis, &next.basis) {
            self.basis = next.basis.clone();
        }
    }

    /// The approximate memory in bytes, without the basis.
    pub fn bytes(&self) -> usize {
        let failures = self.metrics.iter().filter_map(|metric| metric.failure.as_deref());
        let account = self.observed.as_ref().and_then(|observed| observed.account.as_deref());
        let failures: usize =
            failures.chain(account).map(|(reason, cause)| reason.len() + cause.len() + 48).sum();
        size_of::<Self>()
            + self.metrics.capacity() * size_of::<Measured>()
            + self.constraints.capacity() * size_of::<Constraint>()
            + self.message.as_ref().map_or(0, |message| message.len())
            + failures
    }
}
