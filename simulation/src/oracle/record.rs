//! What was, as the oracles know it: the truth of each workload, and what each replica of Plimsoll could
//! know of it.

use super::expect::{Measured, PodView, SharedSpec, View, propose};
use super::timeline::Timeline;
use crate::plan::{Millis, SECOND};
use std::collections::VecDeque;
use std::sync::Arc;

/// How old what a replica decides on may be, while nothing fails.
pub const LAG: Millis = 8 * SECOND;
/// The same while something fails, and for so long afterwards: a silent watch is noticed after 90 s, and
/// lists again after a backoff of up to 10 s, with retries.
pub const TROUBLED_LAG: Millis = 200 * SECOND;
/// How old metrics may be that a decision is made on, while something fails: they are read for each evaluation,
/// which waits for them.
pub const TROUBLED_METRICS_LAG: Millis = 60 * SECOND;
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
    /// Whether its autoscaler scaled it to zero, and it has been there since.
    pub slept: bool,
    /// Whether Plimsoll has changed the scale since the autoscaler was created.
    pub scaled: bool,
    /// The requests of a pod.
    pub cpu_request: i64,
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
    /// For which replicas nothing failed.
    pub sound: [bool; crate::plan::REPLICAS],
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
    /// The proposals of all views that a replica may have had in a time, for a scale, by its wall clock offsets.
    pub fn hull(
        &self,
        spec: &SharedSpec,
        (from, to): (Millis, Millis),
        replicas: i32,
        (base, offsets): (i64, &[i64]),
    ) -> Hull {
        let mut hull = Hull::default();
        let measured_from = from.max(to - TROUBLED_METRICS_LAG);
        for pods in self.pods.during(from, to) {
            for counted in distinct(self.counted.during(from, to).copied()) {
                for reading in self.readings.during(measured_from, to) {
                    for measured in reading.iter() {
                        for offset in offsets {
                            let view = View {
                                spec: &spec.spec,
                                scale: (replicas, counted),
                                pods,
                                cpu_request: self.cpu_request,
                                measured: measured.as_deref(),
                                wall: (base + to + offset, base + to),
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
                            if to - from > TROUBLED_LAG / 2 {
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
    /// Whether anything that it depends on fails.
    pub troubled: Timeline<bool>,
    /// Whether its way to the API server fails.
    pub cut_off: Timeline<bool>,
    /// How far its wall clock is off.
    pub offset: Timeline<i64>,
    /// When it acquired the Lease last.
    pub acquired: Option<Millis>,
}

impl ReplicaRecord {
    /// Whether it ran and nothing failed for it in a time.
    pub fn is_sound(&self, from: Millis, to: Millis) -> bool {
        self.alive_since.is_some_and(|since| since <= from)
            && !self.troubled.during(from, to).any(|troubled| *troubled)
    }

    /// How old what it decides on now may be.
    pub fn lag(&self, now: Millis) -> Millis {
        // A view may be as old as what keeps it from being renewed.
        let since = self.troubled.since_when(now - TROUBLED_LAG, |troubled| *troubled);
        since.map_or(LAG, |since| (now - since + LAG).clamp(TROUBLED_LAG, MEMORY))
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
