//! The oracles of a write: who writes, for whom, and which number; and of a write that is due.

use super::expect::{Past, decide};
use super::record::{Hull, LAG, Lags, MEMORY, SLOW};
use super::{Oracle, Oracles, ReplicaRecord, SharedSpec};
use crate::plan::{MINUTE, Millis, SCRAPE, SECOND};
use crate::workload::NAMES;
use plimsoll::crd::{Executor, Mode};

/// How much later than it was made a change may be noted.
const NOTED_LATE: Millis = 65 * SECOND;
/// How long a replica may take to be evaluating again after a disturbance.
const SETTLED: Millis = 2 * MINUTE;

/// Which bound of what follows from a proposal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bound {
    Lower,
    Upper,
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
        let lags = self.replicas[by].lags(at);
        self.checked(Oracle::LeftAlone);
        // The Lease, which says so, is read right before a write.
        let is_api_sound =
            !self.replicas[by].trouble.during(at - SLOW, at).any(|trouble| trouble.is_of_api());
        let read = if is_api_sound { SECOND } else { lags.scale };
        if self.frozen.during(at - read, at).all(|frozen| *frozen) && self.frozen.now().is_some() {
            let text = format!("{name}: {from} -> {to} while scales are frozen");
            return self.violate(Oracle::LeftAlone, at, text);
        }
        let record = &self.records[workload];
        let specs: Vec<SharedSpec> = record
            .specs
            .during(at - lags.specs, at)
            .flatten()
            .filter(|spec| spec.api.mode != Mode::Paused && spec.api.executor == Executor::Embedded)
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
        self.checked_of(Oracle::Number, workload);
        let name = NAMES[workload];
        let lags = self.replicas[by].lags(at);
        let lag = lags.views;
        let record = &self.records[workload];
        let mut findings = Vec::new();
        let mut blame = Oracle::Number;
        let present = record.specs.now().and_then(Option::as_ref).map(|spec| spec.uid.clone());
        for spec in specs {
            if Some(&spec.uid) != present.as_ref() {
                // A replica whose watches are behind may still go by an object that was deleted, and its history.
                let (min, max) = (spec.spec.min_replicas, spec.spec.max_replicas);
                if (min..=max).contains(&to) {
                    return;
                }
                findings.push(format!("the bounds were {min} to {max}"));
                continue;
            }
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
            // What is at zero has no pods that another could select, too.
            let has_pods = record.replicas.during(at - lag, at).flatten().all(|one| *one > 0);
            let ambiguous = has_pods
                && record.ambiguous.during(at - lag, at).all(|ambiguous| *ambiguous)
                && record.ambiguous.now().is_some();
            if ambiguous {
                blame = Oracle::LeftAlone;
                findings.push("its selector is ambiguous".to_owned());
                continue;
            }
            if self.is_fallback(at, workload, by, (from, to), spec) {
                return;
            }
            let offsets = self.replicas[by].offsets(at - lag, at);
            let hull = match self.replicas[by].has_no_metrics(at) {
                true => Hull { may_fail: true, ..Hull::default() },
                false => record.hull(spec, (at, lags), from, (self.base, &offsets)),
            };
            let Some((low, high)) = hull.range else {
                if to < from {
                    blame = Oracle::NoWayDown;
                }
                findings.push("no view gives a proposal".to_owned());
                continue;
            };
            let of =
                |proposal, bound| self.follows(at, workload, by, (from, proposal), spec, bound);
            let bounds = (of(low, Bound::Lower), of(high, Bound::Upper));
            if (bounds.0..=bounds.1).contains(&to) {
                return self.count_write(workload, (from, to), (low, high), bounds);
            }
            // Without the past it would be right.
            let bare = |proposal| decide(spec, from, proposal, &Past::default(), record.slept, 0);
            if (bare(low).min(from)..=bare(high).max(from)).contains(&to) {
                blame = Oracle::Windows;
            }
            findings
                .push(format!("proposals of {low} to {high} give {} to {}", bounds.0, bounds.1));
        }
        let text = format!("{name}: {from} -> {to}, but {}", findings.join(", or "));
        self.violate(blame, at, text);
    }

    fn count_write(
        &mut self,
        workload: usize,
        (from, to): (i32, i32),
        (low, high): (i32, i32),
        (lowest, highest): (i32, i32),
    ) {
        self.checked_of(Oracle::Windows, workload);
        // It was due, whatever the replica had seen.
        if lowest > from || highest < from {
            self.checked_of(Oracle::InTime, workload);
        }
        // A window or a policy allowed less than the metrics propose.
        if to < low || to > high {
            self.withheld_of(Oracle::Windows, workload);
        }
    }

    /// The bound of what follows from a scale and a proposal, with what a replica must know of the past, and
    /// all that it may know.
    fn follows(
        &self,
        at: Millis,
        workload: usize,
        by: usize,
        (from, proposal): (i32, i32),
        spec: &SharedSpec,
        bound: Bound,
    ) -> i32 {
        let past = self.past(at, workload, by, (from, proposal), spec, bound);
        decide(spec, from, proposal, &past, self.records[workload].slept, at)
    }

    /// The past that leads to the lowest or highest replicas. A recommendation below the proposal can only
    /// lower the result, and one above it can only raise it: one side is what the replica must know, the
    /// other what it may know. So are changes upwards and downwards for the policies.
    fn past(
        &self,
        at: Millis,
        workload: usize,
        by: usize,
        (from, proposal): (i32, i32),
        spec: &SharedSpec,
        bound: Bound,
    ) -> Past {
        let record = &self.records[workload];
        let lags = self.replicas[by].lags(at);
        let mut past = Past::default();
        past.recommendations.push((proposal, at - 1));
        // Those since the last scrape, too, such as of the evaluation after an edit: its replicas may have been others.
        let is_changed = record.changes.back().is_some_and(|change| change.at > at - SCRAPE);
        let newest = is_changed.then(|| self.proposals_in(workload, at - SCRAPE, at).range);
        let closed = record.spans.iter().map(|span| (span.from, span.proposals));
        for (begin, proposals) in closed.chain(newest.map(|range| (at - SCRAPE, range))) {
            let Some((low, high)) = proposals else { continue };
            let late = (begin + SCRAPE + LAG.max(lags.scale)).min(at);
            match bound {
                Bound::Lower if low < proposal => past.recommendations.push((low, late)),
                Bound::Upper if high > proposal => past.recommendations.push((high, late)),
                Bound::Lower | Bound::Upper => {}
            }
        }
        // One evaluation in each period is sure, of which only the most lenient proposal is.
        let spans = usize::try_from(spec.period() / SCRAPE + 1).unwrap_or(1);
        let all: Vec<_> = record.spans.iter().rev().collect();
        for group in all.chunks_exact(spans) {
            let is_known = group.iter().all(|span| {
                let saw = |replica: usize| span.evaluated[replica];
                span.proposals.is_some() && self.knows(by, span.from + SCRAPE, saw)
            });
            if !is_known {
                continue;
            }
            let proposals = group.iter().filter_map(|span| span.proposals);
            let oldest = group.last().map_or(at, |span| span.from);
            let one = match bound {
                Bound::Lower => proposals.map(|(low, _)| low).min().filter(|low| *low > proposal),
                Bound::Upper => {
                    proposals.map(|(_, high)| high).max().filter(|high| *high < proposal)
                }
            };
            past.recommendations.extend(one.map(|one| (one, oldest)));
        }
        // A history that begins anew begins with the replicas of then: that of this replica, or of one that has led
        // since.
        let led = |replica: usize| {
            replica == by || self.acquisitions.iter().any(|(_, leader)| *leader == replica)
        };
        let begun = (0..self.replicas.len()).filter(|replica| led(*replica));
        let begun = begun.filter_map(|replica| self.replicas[replica].alive_since).max();
        if begun.unwrap_or(at).max(record.undisturbed_since) > at - 10 * MINUTE {
            for replicas in record.replicas.during(at - 10 * MINUTE, at).flatten() {
                if (*replicas < proposal) == (bound == Bound::Lower) {
                    past.recommendations.push((*replicas, at - 1));
                }
            }
        }
        // A new object's history begins with the replicas of then, whoever evaluates it first.
        if let Some(created) = record.created.filter(|_| from > 0)
            && record.replicas.during(created, at).all(|replicas| *replicas == Some(from))
            && (from > proposal) == (bound == Bound::Lower)
        {
            past.recommendations.push((from, created));
        }
        for change in &record.changes {
            let is_up = change.to > change.from;
            if is_up == (bound == Bound::Lower) {
                if change.by.is_none() && !self.may_count(workload, change.at, spec.period()) {
                    continue;
                }
                let is_own = change.by == Some(by)
                    && self.replicas[by].is_sound(change.at - 30 * SECOND, change.at + LAG);
                let late = match is_own {
                    // A decision may be that much older than its write.
                    true => lags.scale,
                    // It is noted when a watch shows it at last.
                    false if self.replicas[by].lag(at) > LAG => MEMORY,
                    false => NOTED_LATE.max(spec.period() + LAG),
                };
                let noted = change.at + late;
                past.changes.push((change.from, change.to, noted.min(at)));
                continue;
            }
            let is_known = change.by.is_some_and(|writer| {
                // A writer whose watches were behind may have made it for the object before this one.
                let lag = self.replicas[writer].lag(change.at);
                if record.created.is_some_and(|created| created > change.at - lag) {
                    return false;
                }
                let sound = |replica: usize| {
                    let after = change.at + NOTED_LATE;
                    replica == writer
                        || self.replicas[replica].is_sound(change.at - 30 * SECOND, after)
                };
                self.knows(by, change.at, sound)
            });
            // What no status or checkpoint tells frees nothing in the other direction.
            let is_opposite = is_up == (proposal < from);
            let is_sure = change.by.is_some_and(|writer| {
                let saved = |(at, by): &(Millis, usize)| *by == writer && *at > change.at + SECOND;
                writer == by && self.knows(by, change.at, |one| one == by)
                    || self.checkpoints.iter().any(saved)
            });
            if is_known && (is_sure || !is_opposite) && !record.is_replaced(change, spec) {
                past.changes.push((change.from, change.to, change.at));
            }
        }
        past
    }

    /// Whether a change by another writer may count: a replica that begins to lead can't tell those of the last minute
    /// from such of a leader that died, nor can one whose own write may have taken effect later.
    fn may_count(&self, workload: usize, changed: Millis, period: Millis) -> bool {
        // It sees the change in its next evaluation, and looks a minute later at the earliest whether a status came.
        let around =
            |at: Millis| (at - NOTED_LATE - 2 * period - LAG..=at + LAG).contains(&changed);
        let follows = |at: Millis| (at - LAG..=at + LAG).contains(&changed);
        let (from, to) = (changed - 5 * MINUTE, changed + NOTED_LATE);
        let troubled = |replica: &ReplicaRecord| {
            replica.trouble.during(from, to).any(|trouble| trouble.is_of_views())
        };
        // So does a term that a step of its clock ends.
        let steps = |replica: &ReplicaRecord| {
            let (from, to) = (changed - LAG, changed + NOTED_LATE + 2 * period + LAG);
            replica.offset.during(from, to).count() > 1
        };
        let changes = self.records[workload].changes.iter();
        self.replicas.iter().any(steps)
            || self.acquisitions.iter().any(|(at, _)| around(*at))
            || changes.filter(|change| change.by.is_some()).any(|change| follows(change.at))
            || self.replicas.iter().any(troubled)
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
        let record = &self.records[workload];
        // The first of those evaluations was in one of these times between two scrapes, or before. The last may be a
        // quarter of a period early.
        let rounds = fallback.failure_threshold.saturating_sub(1).max(0);
        let failed_for = i64::from(rounds) * spec.period() - spec.period() / 4 - SECOND;
        let failed_for = failed_for.max(0);
        let ended = |span: &&super::Span| span.from + SCRAPE < at - failed_for;
        let spans = record.spans.iter().skip_while(ended);
        spans.into_iter().all(|span| !span.answered[by] || span.may_fail)
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
        self.checked_of(Oracle::InTime, workload);
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
            && spec.api.executor == Executor::Embedded;
        if !undisturbed {
            return None;
        }
        if spec.api.mode == Mode::Paused {
            // By now an evaluation has seen the replicas.
            let record = &mut self.records[workload];
            record.slept &= !record.slept_in_doubt || from == 0;
            record.slept_in_doubt &= from == 0;
            return None;
        }
        if from == 0 && record.slept_in_doubt {
            return None;
        }
        let (min, max) = (spec.spec.min_replicas, spec.spec.max_replicas);
        let record = &self.records[workload];
        if from > max || (from < min && from > 0) {
            return Some((true, spec.period(), format!("{from} is out of {min} to {max}")));
        }
        if from == 0 && !record.slept {
            return Some((false, spec.period(), String::new()));
        }
        let offsets = self.replicas[leader].offsets(at - LAG, at);
        let hull: Hull =
            record.hull(&spec, (at, Lags::all(SCRAPE + LAG)), from, (self.base, &offsets));
        let (low, high) = hull.range?;
        if hull.may_fail {
            return None;
        }
        let of =
            |proposal, bound| self.follows(at, workload, leader, (from, proposal), &spec, bound);
        let (lowest, highest) = (of(low, Bound::Lower), of(high, Bound::Upper));
        // After a gap in the metrics nothing is removed for a while.
        let steady = self.replicas[leader].is_sound(at - 20 * MINUTE, at)
            && self.records[workload].spans.iter().all(|span| span.proposals.is_some());
        let due = lowest > from || (highest < from && steady);
        let is_withheld = !due && (low > from || high < from);
        // Counted once for as long as it lasts.
        if is_withheld && !self.records[workload].is_withheld {
            self.withheld_of(Oracle::Windows, workload);
            self.withheld_of(Oracle::Number, workload);
        }
        self.records[workload].is_withheld = is_withheld;
        Some((due, spec.period(), format!("{from} replicas, {low} to {high} are proposed")))
    }
}
