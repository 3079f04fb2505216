//! The exact decision for one workload, `queue`: its only metric is one value, which Prometheus was seen to give,
//! so that while all is calm each decision follows to the replica and to the millisecond. Computed here from the
//! rules of `autoscaling/v2`, without [`plimsoll::hpa`].

use super::{Oracle, Oracles};
use crate::plan::{MINUTE, Millis, SECOND};
use crate::workload::MESSAGES_PER_POD;
use plimsoll::crd::{Executor, Mode};
use std::collections::VecDeque;

/// The number of the workload.
const QUEUE: usize = 2;
/// The stabilization window and the policy's period of its `scaleDown`, in which half of the replicas may go.
const DOWN: Millis = 60 * SECOND;
/// The period of the policies of `scaleUp`, which are the defaults: 4 replicas or twice as many, whichever is more.
const UP: Millis = 15 * SECOND;
/// The tolerance, in both directions.
const TOLERANCE: f64 = 0.1;
/// How long all must have been calm.
const CALM: Millis = 150 * SECOND;
/// How far apart the time of a decision and that of its query may be.
const EDGE: Millis = SECOND / 2;
/// How long a query and a write take while nothing fails.
const JITTER: Millis = 60;
/// How long a write may take.
const WRITTEN: Millis = 3 * SECOND;

/// The decisions that were seen.
#[derive(Debug, Default)]
pub struct Exact {
    /// When the first of those below was made.
    since: Option<Millis>,
    /// When metrics were read, and what they proposed.
    proposals: VecDeque<(Millis, i32)>,
    /// The messages that the last decision was made on, and by whom.
    measured: Option<(usize, f64)>,
    /// The last decision.
    due: Option<Due>,
}

/// A decision.
#[derive(Clone, Copy, Debug)]
struct Due {
    at: Millis,
    from: i32,
    /// To how many replicas, if what is at the edge of a policy's period has left it, and if it has not.
    to: [i32; 2],
}

impl Due {
    /// Whether so many replicas follow, wherever in between the edge was.
    fn allows(&self, replicas: i32) -> bool {
        let [one, other] = self.to;
        (one.min(other)..=one.max(other)).contains(&replicas)
    }
}

impl Oracles {
    /// Prometheus was asked at a time by a replica for the length of the queue, and answered this.
    pub fn measured(&mut self, at: Millis, by: usize, messages: Option<f64>) {
        self.check_exact(at);
        // Those who do not lead decide, too.
        if self.holder != Some(by) {
            return;
        }
        // NaN proposes nothing.
        let messages = messages.filter(|messages| messages.is_finite());
        let decision = messages.and_then(|messages| self.decide_exactly(at, by, messages));
        match decision {
            Some(decision) => {
                self.exact.measured = messages.map(|messages| (by, messages));
                self.exact.due = decision;
            }
            None => self.exact = Exact::default(),
        }
    }

    /// A decision to write that is not carried out in time.
    pub(super) fn check_exact(&mut self, at: Millis) {
        let Some(due) = self.exact.due.filter(|due| at > due.at + WRITTEN) else { return };
        self.exact.due = None;
        // Nothing may have happened since, of course.
        if !due.allows(due.from) && self.is_calm(at) {
            let text = format!("queue: {due:?} was due at {}", super::time(due.at));
            self.violate(Oracle::Exact, at, text);
        }
    }

    /// A scale was written.
    pub(super) fn check_exact_write(&mut self, at: Millis, workload: usize, written: i32) {
        if workload != QUEUE {
            return;
        }
        let Some(due) = self.exact.due.take() else { return };
        // A decision that was brought forward to the end of a policy's period may use the same measurement.
        let (by, messages) = self.exact.measured.take().expect("it was decided on one");
        let Some(Some(again)) = self.decide_exactly(at, by, messages) else { return };
        if at - due.at > WRITTEN {
            return;
        }
        self.checked(Oracle::Exact);
        if !due.allows(written) && !again.allows(written) {
            let text = format!("queue: {} -> {written}, but {due:?} follows exactly", due.from);
            self.violate(Oracle::Exact, at, text);
        }
    }

    /// Whether nothing disturbs the workload and its leader.
    fn is_calm(&self, at: Millis) -> bool {
        let Some(leader) = self.holder else { return false };
        let (replica, record) = (&self.replicas[leader], &self.records[QUEUE]);
        let calm = at - CALM;
        let mut specs = record.specs.during(calm, at);
        let is_executed = |spec: &super::SharedSpec| {
            spec.api.mode != Mode::Paused && spec.api.executor == Executor::Embedded
        };
        replica.is_sound(at - 20 * MINUTE, at)
            && replica.acquired.is_some_and(|acquired| acquired < calm)
            && record.undisturbed_since < calm
            && specs.all(|spec| spec.as_ref().is_some_and(is_executed))
            && !self.frozen.during(calm, at).any(|frozen| *frozen)
            && !record.ambiguous.during(calm, at).any(|ambiguous| *ambiguous)
            && record.spans.iter().all(|span| span.proposals.is_some())
    }

    /// What follows, if it does for sure; `None` within if it takes more proposals to tell.
    #[expect(clippy::option_option, reason = "nothing can be told, or not yet")]
    fn decide_exactly(&mut self, at: Millis, by: usize, messages: f64) -> Option<Option<Due>> {
        if !self.is_calm(at) || self.holder != Some(by) {
            return None;
        }
        let record = &self.records[QUEUE];
        let replicas = (*record.replicas.now()?)?;
        // The tolerance depends on the replicas that there are.
        let is_settled = record.counted.during(at - 10 * SECOND, at).all(|one| *one == replicas);
        if replicas == 0 || !is_settled {
            return None;
        }
        let ratio = messages / (MESSAGES_PER_POD * f64::from(replicas));
        let proposal = match (1.0 - TOLERANCE..=1.0 + TOLERANCE).contains(&ratio) {
            true => replicas,
            false => (messages / MESSAGES_PER_POD).ceil() as i32,
        };
        let proposals = &mut self.exact.proposals;
        proposals.retain(|(made, _)| *made > at - DOWN - EDGE);
        proposals.push_back((at, proposal));
        let since = *self.exact.since.get_or_insert(at);
        if since > at - DOWN - 20 * SECOND {
            return Some(None);
        }
        let spec = record.specs.now()?.as_ref()?;
        let (min, max) = (spec.spec.min_replicas, spec.spec.max_replicas);
        // Up at once, and down to the highest of the window.
        let highest = |since: Millis| {
            let within = self.exact.proposals.iter().filter(|(made, _)| *made > since);
            within.map(|(_, one)| *one).max()
        };
        let (highest, sure) = (highest(at - DOWN - EDGE)?, highest(at - DOWN + EDGE)?);
        if highest != sure {
            return Some(None);
        }
        let stabilized = if proposal > replicas { proposal } else { highest.min(replicas) };
        let changed = |period: Millis, is_up: bool| -> i32 {
            let within = record.changes.iter().filter(|change| change.at > at - period);
            let within = within.filter(|change| (change.to > change.from) == is_up);
            within.map(|change| (change.to - change.from).abs()).sum()
        };
        let begun = |period| replicas - changed(period, true) + changed(period, false);
        // Several changes up may have taken the place of each other in the history.
        let ups = record.changes.iter().filter(|one| one.to > one.from && one.at > at - DOWN);
        if ups.count() > 1 {
            return Some(None);
        }
        let to = [-JITTER, JITTER].map(|jitter| {
            let decided = if stabilized > replicas {
                let begun = begun(UP + jitter);
                stabilized.min((begun + 4).max(begun * 2).min(max).max(replicas))
            } else {
                stabilized.max((begun(DOWN + jitter) / 2).min(replicas))
            };
            decided.clamp(min, max)
        });
        Some(Some(Due { at, from: replicas, to }))
    }
}
