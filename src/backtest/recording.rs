//! What a chart shows of a run: the state in slots of time, and accounts of decisions. Bounded, however long the
//! run is.

use super::candidate::Candidate;
use super::observer::{Decided, Observer};
use crate::hpa::{MetricTrace, Step, Trace};
use crate::ledger::account::{self, Facts};
use crate::ledger::{Basis, DecisionTrace, Entry, MetricBasis};
use crate::time::UnixMillis;
use std::sync::Arc;

/// The time axis of a chart: slots of equal width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeAxis {
    /// The beginning of the first slot.
    pub first: UnixMillis,
    /// The width of a slot, in ms.
    pub width: i64,
    /// The number of slots.
    pub slots: usize,
}

impl TimeAxis {
    /// At most so many slots between two times, each of one period (in ms) or a multiple of it.
    pub fn new(first: UnixMillis, last: UnixMillis, period: i64, most: usize) -> Self {
        let period = period.max(1);
        let ticks = (last - first).max(0) / period + 1;
        let most = i64::try_from(most).unwrap_or(i64::MAX).max(1);
        let width = (ticks.unsigned_abs().div_ceil(most.unsigned_abs()) as i64) * period;
        Self { first, width, slots: ((last - first).max(0) / width + 1) as usize }
    }

    /// The slot of a time.
    fn slot(&self, time: UnixMillis) -> usize {
        (((time - self.first) / self.width).max(0) as usize).min(self.slots - 1)
    }
}

/// The state in a slot, over all decisions in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Slot {
    /// The least and the most load of each metric.
    pub loads: Vec<Option<(f64, f64)>>,
    /// The most pods that are needed.
    pub needed: Option<i64>,
    /// The fewest pods that are ready.
    pub ready: usize,
    /// The last desired replicas.
    pub wanted: i32,
    /// The most pods that are short.
    pub short: i64,
}

impl Slot {
    fn of(decided: &Decided<'_>) -> Self {
        let &Decided { needed, ready, wanted, .. } = decided;
        Self {
            loads: decided.loads.iter().map(|load| load.map(|load| (load, load))).collect(),
            needed,
            ready,
            wanted,
            short: (needed.unwrap_or(0) - ready as i64).max(0),
        }
    }

    fn add(&mut self, later: Self) {
        for (known, load) in self.loads.iter_mut().zip(later.loads) {
            *known = match (*known, load) {
                (Some((least, most)), Some((lower, upper))) => {
                    Some((least.min(lower), most.max(upper)))
                }
                (known, load) => known.or(load),
            };
        }
        self.needed = self.needed.max(later.needed);
        self.ready = self.ready.min(later.ready);
        self.wanted = later.wanted;
        self.short = self.short.max(later.short);
    }
}

/// What is kept of a run, while it is observed.
#[derive(Clone, Debug)]
pub struct Recording {
    /// The times of the slots.
    pub axis: TimeAxis,
    /// The slots; none where no decision was made.
    pub slots: Vec<Option<Slot>>,
    /// The decisions that changed the replicas, and one in each [`every`](Self::every) beside, by their times.
    pub decisions: Vec<Entry>,
    /// The distance of decisions without a change, in ms.
    pub every: i64,
    /// The least distance of those with one, in ms: 0 if all are there.
    pub every_change: i64,
    most: usize,
    changes: usize,
    last_change: Option<UnixMillis>,
    next: UnixMillis,
    metrics: Arc<[MetricBasis]>,
    basis: Option<Arc<Basis>>,
    trace: DecisionTrace,
}

impl Recording {
    /// Of a candidate's run on a time axis, with at most so many decisions that change the replicas, and as many that don't.
    pub fn new(candidate: &Candidate, axis: TimeAxis, most: usize) -> Self {
        let metrics = candidate.spec.metrics.iter();
        let metrics = metrics.map(|metric| account::metric_basis(metric, None)).collect();
        let span = axis.width.saturating_mul(axis.slots as i64);
        let most = most.max(1);
        Self {
            axis,
            slots: vec![None; axis.slots],
            decisions: Vec::new(),
            every: (span as u64).div_ceil(most as u64) as i64,
            every_change: 0,
            most,
            changes: 0,
            last_change: None,
            next: axis.first,
            metrics,
            basis: None,
            trace: DecisionTrace::default(),
        }
    }

    /// The metrics of its spec.
    pub fn metrics(&self) -> &[MetricBasis] {
        &self.metrics
    }

    /// The account of a decision, as the ledger has it.
    fn entry(&mut self, decided: &Decided<'_>) -> Entry {
        let &Decided { context, current, decision, status, history, wanted, .. } = decided;
        let known = self.basis.take().filter(|basis| account::is_basis(basis, context, status));
        let basis = known
            .unwrap_or_else(|| Arc::new(account::basis(context, status, self.metrics.clone())));
        self.basis = Some(basis.clone());
        let facts = Facts {
            context,
            at: context.now,
            generation: None,
            scale: Ok(current),
            decision,
            status,
            wanted: (wanted != current).then_some(wanted),
            raised: None,
            ahead: 0,
            holds: [None; 2],
            is_preview: false,
            is_frozen: false,
            observed: None,
        };
        account::entry(&facts, history, &self.trace, &[], basis)
    }

    /// Makes room for changes: those that follow another one too soon are left out.
    fn thin(&mut self, period: i64) {
        self.every_change = (self.every_change * 2).max(period);
        let (every, mut last) = (self.every_change, None);
        let mut changes = 0;
        self.decisions.retain(|entry| {
            if !is_change(entry) {
                return true;
            }
            let is_kept = last.is_none_or(|last| entry.first - last >= every);
            if is_kept {
                (last, changes) = (Some(entry.first), changes + 1);
            }
            is_kept
        });
        self.changes = changes;
    }
}

/// Whether a decision changes the replicas.
pub fn is_change(entry: &Entry) -> bool {
    entry.desired.is_some_and(|desired| Some(desired) != entry.current)
}

impl Trace for Recording {
    fn metric(&mut self, index: usize, trace: &MetricTrace) {
        self.trace.metric(index, trace);
    }

    fn step(&mut self, step: Step) {
        self.trace.step(step);
    }

    fn failure(&mut self, index: usize, reason: &'static str, cause: &str) {
        self.trace.failure(index, reason, cause);
    }
}

impl Observer for Recording {
    fn decided(&mut self, decided: &Decided<'_>) {
        let now = decided.context.now;
        let slot = Slot::of(decided);
        match &mut self.slots[self.axis.slot(now)] {
            Some(known) => known.add(slot),
            none => *none = Some(slot),
        }
        let is_change = decided.wanted != decided.current;
        let is_close = self.last_change.is_some_and(|last| now - last < self.every_change);
        let is_due = now >= self.next;
        if is_due || (is_change && !is_close) {
            let entry = self.entry(decided);
            self.decisions.push(entry);
            if is_due {
                self.next = now + self.every;
            }
            if is_change {
                (self.last_change, self.changes) = (Some(now), self.changes + 1);
                if self.changes > self.most {
                    self.thin(decided.period);
                }
            }
        }
        self.trace.clear();
    }
}
