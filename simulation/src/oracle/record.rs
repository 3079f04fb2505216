//! What was, as the oracles know it: the truth of each workload, and what each replica of Plimsoll could
//! know of it.

use super::expect::{Measured, PodView, SharedSpec, View, propose};
use super::timeline::Timeline;
use crate::conditions::Trouble;
use crate::plan::{Millis, SCRAPE, SECOND};
use std::collections::VecDeque;
use std::sync::Arc;

/// How old what a replica decides on may be, while nothing fails.
pub const LAG: Millis = 8 * SECOND;
/// The same while something fails, and for so long afterwards: a silent watch is noticed after 90 s, and
/// lists again after a backoff of up to 10 s, with retries.
pub const TROUBLED_LAG: Millis = 200 * SECOND;
/// How old metrics may be that a decision is made on, while something fails: they are read for each evaluation,
/// which waits for them.
pub const SLOW: Millis = 60 * SECOND;
/// How old what is read right before a write may be, while nothing fails: the scale, whether scales are frozen, and
/// whether the spec is still the one that was decided on.
pub const FRESH: Millis = 3 * SECOND;

/// The same for a write that was on its way for long, as single ones are that fail.
pub const LATE: Millis = 20 * SECOND;

/// How long a pod is young: until the end of the CPU initialization period, and of the window of its first sample.
const YOUNG: Millis = 360 * SECOND;

/// How old each kind of what a replica decides on may be.
#[derive(Clone, Copy, Debug)]
pub struct Lags {
    /// What its watches show: pods, and the scale as long as nothing is written.
    pub views: Millis,
    /// The specs of autoscalers.
    pub specs: Millis,
    /// The scale that is written, and whether scales are frozen.
    pub scale: Millis,
    /// The metrics.
    pub metrics: Millis,
}

impl Lags {
    /// The same for all.
    pub fn all(lag: Millis) -> Self {
        Self { views: lag, specs: lag, scale: lag, metrics: lag }
    }
}
/// How long anything is remembered: the longest window and policy period of the workloads, a sync period, and a
/// lag.
pub const MEMORY: Millis = 1_800 * SECOND;

/// The values of the metrics at the beginning and at the end of the time between two scrapes: rates
/// change in between, too. None where Prometheus has no result.
pub type Reading = [Option<Vec<Measured>>; 2];

/// A workload as it was.
#[derive(Debug, Default)]
pub struct Record {
    /// The specs of its autoscaler; none while it has none.
    pub specs: Timeline<Option<SharedSpec>>,
    /// The desired replicas; none while the workload does not exist.
    pub replicas: Timeline<Option<i32>>,
    /// The replicas that there are.
    pub counted: Timeline<i32>,
    /// Its pods.
    pub pods: Timeline<Arc<[PodView]>>,
    /// The values of its metrics.
    pub readings: Timeline<Arc<Reading>>,
    /// Whether another autoscaler selects its pods, too.
    pub ambiguous: Timeline<bool>,
    /// The proposals between two scrapes, newest last.
    pub spans: VecDeque<Span>,
    /// The changes of its scale, newest last.
    pub changes: VecDeque<Change>,
    /// When its scale was changed last.
    pub changed: Millis,
    /// Whether the last change by its autoscaler was to zero: at zero, it is its autoscaler's to scale up again. Like
    /// upstream's condition, changes by others keep it, but for those that an evaluation sees during a pause, or the first
    /// one of a term.
    pub slept: bool,
    /// Whether it had replicas of somebody else's since.
    pub slept_in_doubt: bool,
    /// Whether Plimsoll has changed the scale since the autoscaler was created.
    pub scaled: bool,
    /// When the status last told another time of the last change, and by which replica.
    pub reported: Option<(Millis, usize)>,
    /// The requests of a pod.
    pub cpu_request: i64,
    /// Since when its autoscaler exists, by the object that it is now.
    pub created: Option<Millis>,
    /// Whether a window or a policy withholds what its metrics propose.
    pub is_withheld: bool,
    /// Since when a write has been due.
    pub due_since: Option<Millis>,
    /// Since when its autoscaler has been undisturbed: no hand, no new object, no pause.
    pub undisturbed_since: Millis,
}

/// The proposals between two scrapes.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// When it began.
    pub from: Millis,
    /// The lowest and the highest proposal of any view; none where an evaluation may have failed.
    pub proposals: Option<(i32, i32)>,
    /// Whether an evaluation may have failed for its metrics.
    pub may_fail: bool,
    /// Which replicas had whole answers from Prometheus, in time.
    pub answered: [bool; crate::plan::REPLICAS],
    /// Which replicas have evaluated for sure.
    pub evaluated: [bool; crate::plan::REPLICAS],
}

/// A change of a scale.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// When.
    pub at: Millis,
    /// The replicas before.
    pub from: i32,
    /// The replicas after.
    pub to: i32,
    /// The replica of Plimsoll that made it; none if another writer did.
    pub by: Option<usize>,
}

/// The lowest and highest proposal of some views.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hull {
    /// None if no view gives a proposal.
    pub range: Option<(i32, i32)>,
    /// Whether a view gives none.
    pub may_fail: bool,
}

impl Record {
    /// The proposals of all views that a replica may have had at a time, for a scale, by its wall clock offsets.
    pub fn hull(
        &self,
        spec: &SharedSpec,
        (to, lags): (Millis, Lags),
        replicas: i32,
        (base, offsets): (i64, &[i64]),
    ) -> Hull {
        let mut hull = Hull::default();
        for pods in self.pods.during(to - lags.views, to) {
            // Whether the usage of a pod counts depends on how long ago it became ready.
            let is_new = |pod: &PodView| pod.start.is_some_and(|start| start > base + to - YOUNG);
            let times = [to, to - lags.metrics.min(SCRAPE)];
            let is_young = self.cpu_request > 0 && pods.iter().any(is_new);
            let times = if is_young { &times[..] } else { &times[..1] };
            for counted in distinct(self.counted.during(to - lags.scale, to).copied()) {
                for reading in self.readings.during(to - lags.metrics, to) {
                    for measured in reading.iter() {
                        for (time, offset) in times
                            .iter()
                            .flat_map(|time| offsets.iter().map(move |offset| (*time, *offset)))
                        {
                            let view = View {
                                spec: &spec.spec,
                                scale: (replicas, counted),
                                pods,
                                cpu_request: self.cpu_request,
                                measured: measured.as_deref(),
                                wall: (base + time + offset, base + time),
                                slept: self.slept,
                            };
                            let proposal = propose(&view);
                            // Nothing is removed while pods are missing (for at most 5 minutes).
                            let known = pods.iter().filter(|pod| pod.is_active()).count();
                            let lacks = usize::try_from(counted).is_ok_and(|all| known < all);
                            hull.add(
                                proposal.map(|one| if lacks { one.max(replicas) } else { one }),
                            );
                            // While something fails, one metric may fail without the others.
                            if lags.metrics >= SLOW {
                                for lacking in measured.iter().flat_map(|all| lacking_one(all)) {
                                    hull.add(propose(&View { measured: Some(&lacking), ..view }));
                                }
                            }
                        }
                        if reading[0] == reading[1] {
                            break;
                        }
                    }
                }
            }
        }
        hull
    }

    /// Whether a replica may report another time of the last change: its own change, after the one that was reported
    /// last, unless that was so shortly before it began to lead that it may not have seen it.
    pub fn may_report(&self, by: usize, acquired: Option<Millis>) -> bool {
        let of = |one: usize, until: Millis| {
            let mut all = self.changes.iter().rev();
            all.find(|change| change.by == Some(one) && change.at <= until).map(|change| change.at)
        };
        match self.reported {
            Some((at, other))
                if other != by && acquired.is_none_or(|acquired| at < acquired - FRESH) =>
            {
                of(by, Millis::MAX) > of(other, at)
            }
            _ => true,
        }
    }

    /// Whether a later change may have taken the place of a change, as upstream's do: it was older than all policies of
    /// its own direction by then, though those of the other direction may look further back.
    pub fn is_replaced(&self, change: &Change, spec: &SharedSpec) -> bool {
        let is_up = |change: &Change| change.to > change.from;
        let Some(behavior) = &spec.spec.behavior else { return true };
        let rules = if is_up(change) { &behavior.scale_up } else { &behavior.scale_down };
        let longest = rules.policies.iter().map(|policy| policy.period_seconds).max().unwrap_or(0);
        let outdated = change.at + i64::from(longest) * SECOND - LAG;
        self.changes.iter().any(|later| is_up(later) == is_up(change) && later.at >= outdated)
    }

    /// Whether it had so many replicas in a time, by its spec or by its status.
    pub fn had(&self, from: Millis, to: Millis, replicas: &serde_json::Value) -> bool {
        let desired = self.replicas.during(from, to).map(|one| one.unwrap_or(0));
        let mut all = desired.chain(self.counted.during(from, to).copied());
        all.any(|one| i64::from(one) == replicas.as_i64().unwrap_or(0))
    }

    /// Whether its metrics have proposed the same since a time, within the bounds. At the edge of the tolerance they
    /// may not, though nothing changes.
    pub fn is_steady(&self, since: Millis) -> bool {
        let Some(Some(spec)) = self.specs.now() else { return true };
        let bounded =
            |proposal: i32| proposal.max(spec.spec.min_replicas).min(spec.spec.max_replicas);
        let spans = self.spans.iter().filter(|span| span.from >= since);
        let proposals = spans.filter_map(|span| span.proposals);
        let all = distinct(proposals.flat_map(|(low, high)| [bounded(low), bounded(high)]));
        all.len() <= 1
    }

    /// Forgets what no window sees any longer.
    pub fn forget(&mut self, now: Millis) {
        let before = now - MEMORY;
        self.specs.forget(before);
        self.replicas.forget(before);
        self.counted.forget(before);
        self.pods.forget(before);
        self.readings.forget(before);
        self.ambiguous.forget(before);
        while self.spans.front().is_some_and(|span| span.from < before) {
            self.spans.pop_front();
        }
        while self.changes.front().is_some_and(|change| change.at < before) {
            self.changes.pop_front();
        }
    }
}

impl Hull {
    /// Widens it by the proposal of a view.
    pub fn add(&mut self, proposal: Option<i32>) {
        match (proposal, self.range) {
            (None, _) => self.may_fail = true,
            (Some(one), None) => self.range = Some((one, one)),
            (Some(one), Some((low, high))) => self.range = Some((low.min(one), high.max(one))),
        }
    }
}

/// The values of several metrics, with one of them missing.
fn lacking_one(all: &[Measured]) -> impl Iterator<Item = Vec<Measured>> + '_ {
    let several = if all.len() > 1 { 0..all.len() } else { 0..0 };
    several.map(|missing| {
        let mut lacking = all.to_vec();
        lacking[missing] = match &all[missing] {
            Measured::Pods(_) => Measured::Pods(Default::default()),
            Measured::Value(_) => Measured::Value(None),
        };
        lacking
    })
}

fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut all: Vec<T> = Vec::new();
    for value in values {
        if !all.contains(&value) {
            all.push(value);
        }
    }
    all
}

/// A replica of Plimsoll as it was.
#[derive(Debug, Default)]
pub struct ReplicaRecord {
    /// Since when its process runs; none if it does not.
    pub alive_since: Option<Millis>,
    /// What fails of all that it depends on.
    pub trouble: Timeline<Trouble>,
    /// Whether what its watches show may be old.
    pub views: Timeline<bool>,
    /// Whether Prometheus gives it no whole answer.
    pub unanswered: Timeline<bool>,
    /// How far its wall clock is off.
    pub offset: Timeline<i64>,
    /// When it acquired the Lease last.
    pub acquired: Option<Millis>,
}

impl ReplicaRecord {
    /// One that has not run yet, with the right time.
    pub fn new() -> Self {
        let mut record = Self::default();
        record.offset.set(0, 0);
        record
    }

    /// What fails for it from now on.
    pub fn set_trouble(&mut self, at: Millis, trouble: Trouble) {
        if self.trouble.now() != Some(&trouble) {
            self.trouble.set(at, trouble);
        }
        if self.views.now() != Some(&trouble.watches) {
            self.views.set(at, trouble.watches);
        }
    }

    /// Whether Prometheus gives it no whole answer from now on.
    pub fn set_unanswered(&mut self, at: Millis, is_unanswered: bool) {
        if self.unanswered.now() != Some(&is_unanswered) {
            self.unanswered.set(at, is_unanswered);
        }
    }

    /// Whether it has no metrics at all: what it read before is too old to decide on.
    pub fn has_no_metrics(&self, now: Millis) -> bool {
        self.unanswered.now() == Some(&true)
            && self.unanswered.during(now - SLOW, now).all(|is_unanswered| *is_unanswered)
    }

    /// Whether it ran and nothing failed for it in a time.
    pub fn is_sound(&self, from: Millis, to: Millis) -> bool {
        self.alive_since.is_some_and(|since| since <= from)
            && !self.trouble.during(from, to).any(|trouble| trouble.is_any())
    }

    /// Whether it ran, and Prometheus answered it in a time.
    pub fn is_answered(&self, from: Millis, to: Millis) -> bool {
        self.alive_since.is_some_and(|since| since <= from)
            && !self.trouble.during(from, to).any(|trouble| trouble.queries)
    }

    /// How old what its watches show may be.
    pub fn lag(&self, now: Millis) -> Millis {
        // A view may be as old as what keeps it from being renewed.
        let since = self.views.since_when(now - TROUBLED_LAG, |are_old| *are_old);
        // A watch that ends, as each does in time, may take long to begin again.
        let is_slow = self.trouble.during(now - SLOW, now).any(|trouble| trouble.requests);
        let least = if is_slow { SLOW } else { LAG };
        since.map_or(least, |since| (now - since + LAG).clamp(TROUBLED_LAG, MEMORY))
    }

    /// How old each kind of what it decides on now may be.
    pub fn lags(&self, now: Millis) -> Lags {
        let views = self.lag(now);
        let during = || self.trouble.during(now - SLOW, now);
        let is_slow = during().any(|trouble| trouble.is_of_evaluations());
        let is_late = during().any(|trouble| trouble.writes);
        let specs = if is_late { LATE } else { FRESH };
        Lags {
            views,
            specs: if views == LAG { specs } else { views },
            scale: if is_slow { SLOW } else { FRESH },
            metrics: if is_slow { SLOW } else { LAG },
        }
    }

    /// The offsets that its wall clock had in a time.
    pub fn offsets(&self, from: Millis, to: Millis) -> Vec<i64> {
        let mut offsets = distinct(self.offset.during(from, to).copied());
        if offsets.is_empty() {
            offsets.push(0);
        }
        offsets
    }
}
