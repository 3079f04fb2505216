//! The oracles of a write: who writes, for whom, and which number; and of a write that is due.

use super::expect::{Past, decide};
use super::record::{Hull, LAG};
use super::{Oracle, Oracles, SharedSpec};
use crate::plan::{MINUTE, Millis, SCRAPE, SECOND};
use crate::workload::NAMES;
use plimsoll::crd::Executor;

/// How much later than it was made a change may be noted.
const NOTED_LATE: Millis = 65 * SECOND;
/// How long a replica may take to be evaluating again after a disturbance.
const SETTLED: Millis = 2 * MINUTE;

/// Which past a bound is of: what a replica must know, or all that it may know.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    Surely,
    Maybe,
}

impl Oracles {
    /// Looks at a write of a scale by a replica.
    pub(super) fn check_write(
        &mut self,
        at: Millis,
        workload: usize,
        by: usize,
        (from, to): (i32, i32),
    ) {
        self.checked(Oracle::OneWriter);
        if self.holder != Some(by) {
            let text = format!("replica {by} writes, the Lease is held by {:?}", self.holder);
            return self.violate(Oracle::OneWriter, at, text);
        }
        let name = NAMES[workload];
        let lag = self.replicas[by].lag(at);
        self.checked(Oracle::LeftAlone);
        if self.frozen.during(at - lag, at).all(|frozen| *frozen) && self.frozen.now().is_some() {
            let text = format!("{name}: {from} -> {to} while scales are frozen");
            return self.violate(Oracle::LeftAlone, at, text);
        }
        let record = &self.records[workload];
        let specs: Vec<SharedSpec> = record
            .specs
            .during(at - lag, at)
            .flatten()
            .filter(|spec| !spec.api.paused && spec.api.executor == Executor::Embedded)
            .cloned()
            .collect();
        if specs.is_empty() {
            let text = format!("{name}: {from} -> {to}, but its autoscaler is paused or gone");
            return self.violate(Oracle::LeftAlone, at, text);
        }
        self.check_number(at, workload, by, (from, to), &specs);
    }

    fn check_number(
        &mut self,
        at: Millis,
        workload: usize,
        by: usize,
        (from, to): (i32, i32),
        specs: &[SharedSpec],
    ) {
        self.checked(Oracle::Number);
        let name = NAMES[workload];
        let lag = self.replicas[by].lag(at);
        let record = &self.records[workload];
        let mut findings = Vec::new();
        let mut blame = Oracle::Number;
        for spec in specs {
            let (min, max) = (spec.spec.min_replicas, spec.spec.max_replicas);
            if from > max || (from < min && from > 0) {
                let bound = from.clamp(min, max);
                if to == bound {
                    return;
                }
                findings.push(format!("the bounds {min} to {max} give {bound}"));
                continue;
            }
            if from == 0 && !record.slept {
                blame = Oracle::LeftAlone;
                findings.push("somebody else switched it off".to_owned());
                continue;
            }
            if self.is_fallback(at, workload, by, (from, to), spec) {
                return;
            }
            let ambiguous = record.ambiguous.during(at - lag, at).all(|ambiguous| *ambiguous)
                && record.ambiguous.now().is_some();
            if ambiguous {
                blame = Oracle::LeftAlone;
                findings.push("its selector is ambiguous".to_owned());
                continue;
            }
            let offsets = self.replicas[by].offsets(at - lag, at);
            let hull = record.hull(spec, (at - lag, at), from, (self.base, &offsets));
            let Some((low, high)) = hull.range else {
                if to < from {
                    blame = Oracle::NoWayDown;
                }
                findings.push("no view gives a proposal".to_owned());
                continue;
            };
            let strict = |proposal| self.follows(at, workload, by, from, proposal, spec, to, Known::Surely);
            let loose = |proposal| self.follows(at, workload, by, from, proposal, spec, to, Known::Maybe);
            let bounds = match to > from {
                true => (loose(low).min(from), strict(high)),
                false => (strict(low), loose(high).max(from)),
            };
            if (bounds.0..=bounds.1).contains(&to) {
                return self.count_write(at, from, to, (low, high));
            }
            // Without the past it would be right.
            let bare = |proposal| decide(spec, from, proposal, &Past::default(), record.slept, 0);
            if (bare(low).min(from)..=bare(high).max(from)).contains(&to) {
                blame = Oracle::Windows;
            }
            findings.push(format!(
                "proposals of {low} to {high} give {} to {}",
                bounds.0, bounds.1
            ));
        }
        let text = format!("{name}: {from} -> {to}, but {}", findings.join(", or "));
        self.violate(blame, at, text);
    }

    fn count_write(&mut self, _at: Millis, from: i32, to: i32, (low, high): (i32, i32)) {
        self.checked(Oracle::Windows);
        if to < from {
            self.checked(Oracle::NoWayDown);
        }
        // A window or a policy allowed less than the metrics propose.
        if to < low || to > high {
            self.withheld(Oracle::Windows);
        }
    }

    /// The replicas that follow from a proposal, in the direction of `to`.
    #[expect(clippy::too_many_arguments, reason = "a decision has as many parts")]
    fn follows(
        &self,
        at: Millis,
        workload: usize,
        by: usize,
        from: i32,
        proposal: i32,
        spec: &SharedSpec,
        to: i32,
        known: Known,
    ) -> i32 {
        let past = self.past(at, workload, by, proposal, spec, to > from, known);
        decide(spec, from, proposal, &past, self.records[workload].slept, at)
    }

    /// The past of a workload as a bound of a change upwards or downwards needs it.
    fn past(
        &self,
        at: Millis,
        workload: usize,
        by: usize,
        proposal: i32,
        spec: &SharedSpec,
        up: bool,
        known: Known,
    ) -> Past {
        let record = &self.records[workload];
        let mut past = Past::default();
        past.recommendations.push((proposal, at - 1));
        match known {
            Known::Surely => {
                // One evaluation in each period, of which only the most lenient proposal is sure.
                let spans = (spec.period() / SCRAPE + 1) as usize;
                let all: Vec<_> = record.spans.iter().rev().collect();
                for group in all.chunks_exact(spans) {
                    let surely = group.iter().all(|span| {
                        span.proposals.is_some() && self.knows(by, span.from + SCRAPE, |other| span.evaluated[other])
                    });
                    if !surely {
                        continue;
                    }
                    let proposals = group.iter().filter_map(|span| span.proposals);
                    let one = match up {
                        true => proposals.map(|(_, high)| high).max(),
                        false => proposals.map(|(low, _)| low).min(),
                    };
                    let oldest = group.last().map_or(at, |span| span.from);
                    past.recommendations.extend(one.map(|one| (one, oldest)));
                }
            }
            Known::Maybe => {
                for span in &record.spans {
                    if let Some((low, high)) = span.proposals {
                        let late = (span.from + SCRAPE + LAG).min(at);
                        past.recommendations.extend([(low, late), (high, late)]);
                    }
                }
                for replicas in record.replicas.during(at - 10 * MINUTE, at).flatten() {
                    past.recommendations.push((*replicas, at - 1));
                }
            }
        }
        for change in &record.changes {
            let is_up = change.to > change.from;
            // A change in the same direction limits, one in the other allows more.
            let must_be_known = (is_up == up) == (known == Known::Surely);
            if must_be_known {
                let is_own = change.by.is_some_and(|writer| {
                    let sound = |other: usize| other == writer || self.replicas[other].is_sound(change.at - 30 * SECOND, change.at + NOTED_LATE);
                    self.knows(by, change.at, sound)
                });
                if is_own {
                    past.changes.push((change.from, change.to, change.at));
                }
            } else {
                past.changes.push((change.from, change.to, (change.at + NOTED_LATE).min(at)));
            }
        }
        past
    }

    /// Whether a replica knows of something that was seen at a time by those for whom `saw` holds: by itself
    /// since then, or by way of a checkpoint that was written before it led.
    fn knows(&self, by: usize, seen: Millis, saw: impl Fn(usize) -> bool) -> bool {
        let replica = &self.replicas[by];
        if saw(by) && replica.alive_since.is_some_and(|since| since <= seen - 30 * SECOND) {
            return true;
        }
        let loaded = replica.acquired.unwrap_or(Millis::MAX);
        let loaded = replica.alive_since.map_or(loaded, |since| since.max(loaded));
        self.checkpoints
            .iter()
            .any(|(written, writer)| *written > seen + SECOND && *written < loaded && saw(*writer))
    }

    /// Whether a write is that of a fallback: metrics have failed for as many evaluations as it asks for.
    fn is_fallback(
        &self,
        at: Millis,
        workload: usize,
        by: usize,
        (from, to): (i32, i32),
        spec: &SharedSpec,
    ) -> bool {
        let Some(fallback) = &spec.api.fallback else { return false };
        let least = fallback.replicas.clamp(spec.spec.min_replicas, spec.spec.max_replicas);
        if !(1..to).contains(&from) || to != least {
            return false;
        }
        let failed_for = i64::from(fallback.failed_rounds - 1) * spec.period() - SCRAPE;
        let record = &self.records[workload];
        let failing = |span: &&super::Span| {
            span.from < at - failed_for || !span.evaluated[by] || span.proposals.is_none()
        };
        record.spans.iter().all(|span| failing(&span))
    }

    /// Looks for a write that is due for longer than two periods.
    pub(super) fn check_in_time(&mut self, at: Millis, workload: usize) {
        let due = self.is_due(at, workload);
        let record = &mut self.records[workload];
        let Some((due, period, text)) = due else {
            record.due_since = None;
            return;
        };
        if !due {
            record.due_since = None;
            return;
        }
        let since = *record.due_since.get_or_insert(at);
        if at - since > 2 * period + 2 * SCRAPE {
            let text = format!("{}: {text} since {}", NAMES[workload], super::time(since));
            self.violate(Oracle::InTime, at, text);
        }
    }

    /// Whether a write is due for sure; none if nothing can be told, because something was disturbed.
    fn is_due(&mut self, at: Millis, workload: usize) -> Option<(bool, Millis, String)> {
        let leader = self.holder?;
        let replica = &self.replicas[leader];
        let record = &self.records[workload];
        let from = (*record.replicas.now()?)?;
        let spec = record.specs.now()?.clone()?;
        let settled = at - SETTLED.max(2 * spec.period());
        let undisturbed = record.undisturbed_since < settled
            && replica.acquired.is_some_and(|acquired| acquired < settled)
            && replica.is_sound(settled, at)
            && !self.frozen.during(settled, at).any(|frozen| *frozen)
            && !record.ambiguous.during(settled, at).any(|ambiguous| *ambiguous)
            && !spec.api.paused
            && spec.api.executor == Executor::Embedded;
        if !undisturbed {
            return None;
        }
        let (min, max) = (spec.spec.min_replicas, spec.spec.max_replicas);
        self.checked(Oracle::InTime);
        let record = &self.records[workload];
        if from > max || (from < min && from > 0) {
            return Some((true, spec.period(), format!("{from} is out of {min} to {max}")));
        }
        if from == 0 && !record.slept {
            self.withheld(Oracle::LeftAlone);
            return Some((false, spec.period(), String::new()));
        }
        let offsets = self.replicas[leader].offsets(at - LAG, at);
        let hull: Hull = record.hull(&spec, (at - SCRAPE - LAG, at), from, (self.base, &offsets));
        let Some((low, high)) = hull.range else {
            self.withheld(Oracle::NoWayDown);
            return None;
        };
        if hull.may_fail {
            return None;
        }
        let lowest = self.follows(at, workload, leader, from, low, &spec, i32::MAX, Known::Maybe);
        let highest = self.follows(at, workload, leader, from, high, &spec, i32::MIN, Known::Maybe);
        // After a gap in the metrics nothing is removed for a while.
        let steady = self.replicas[leader].is_sound(at - 20 * MINUTE, at)
            && self.records[workload].spans.iter().all(|span| span.proposals.is_some());
        let due = lowest > from || (highest < from && steady);
        if !due && (low > from || high < from) {
            self.withheld(Oracle::Windows);
            self.withheld(Oracle::Number);
        }
        Some((due, spec.period(), format!("{from} replicas, {low} to {high} are proposed")))
    }
}
