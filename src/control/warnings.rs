//! What is probably a mistake in the configuration around an Autoscaler, as its condition
//! `ConfigurationWarning` shows it. It changes no decision. Kept in the memory of this process.

use super::decision_time::DecisionTime;
use super::rescales::Change;
use crate::hpa::{ConditionKind, Event, EventKind, OnEmpty, Reason, Status, object_time};
use crate::k8s::managed_fields::{ReplicasOwner, Way};
use crate::time::UnixMillis;
use crate::watch::{Owner, ScalingSpec};
use std::fmt;

/// How long a warning stays after what it warns of was last seen, in ms.
const KEPT_MS: i64 = 3_600_000;
/// For how long `onEmpty: Hold` keeps the replicas without a warning, in ms.
const HELD_MS: i64 = 900_000;
/// The least time between two lookups of who writes the replicas of a target, in ms.
const LOOKUP_INTERVAL_MS: i64 = 300_000;

/// The warnings of an Autoscaler.
#[derive(Default)]
pub struct Warnings {
    /// Whether the last evaluation was to write the scale: the owner may change it while it is not.
    pub scales: bool,
    /// Since when this process has looked, by its clock: what another replica found stays for as long.
    since: Option<UnixMillis>,
    /// Whether this process itself has shown one that has not ended.
    is_shown: bool,
    /// When it was last looked up who writes the replicas.
    looked_up: Option<UnixMillis>,
    write: Option<Box<ForeignWrite>>,
    event: Option<Box<Event>>,
    others: Option<Box<Others>>,
    /// The generation of the spec that these are of.
    generation: Option<i64>,
    /// When the query of each metric last gave a series.
    with_series: Vec<Option<UnixMillis>>,
    gaps: Vec<Gap>,
    /// The kind of a target whose rollouts are not seen, though the spec says what they prevent.
    unseen: Option<Box<str>>,
}

/// A change of the replicas by another writer.
struct ForeignWrite {
    change: Change,
    by: Option<ReplicasOwner>,
    /// When it was seen, by the wall clock.
    at: UnixMillis,
    /// When the last of them was.
    last: UnixMillis,
}

/// Pods of others that the selector of the target selects.
struct Others {
    selector: Box<str>,
    /// Whose they are.
    of: Box<str>,
    last: UnixMillis,
}

/// Times at which a query was empty that had series before.
struct Gap {
    index: usize,
    metric: String,
    /// When the first was, by the wall clock, and by that of this process.
    began: UnixMillis,
    since: UnixMillis,
    last: UnixMillis,
    /// Whether `onEmpty: Hold` keeps the replicas meanwhile.
    is_held: bool,
}

impl Gap {
    /// Whether it is worth a warning. With `onEmpty: Hold` a gap is expected, but not for ever.
    fn is_told(&self) -> bool {
        !self.is_held || self.last - self.since >= HELD_MS
    }
}

/// The writer of the replicas that a lookup found.
pub enum Writer {
    /// Plimsoll itself, before this replica led.
    Plimsoll,
    /// It could not be read.
    Unknown,
    /// Another one, which is known only if it has field managers.
    Other(Option<ReplicasOwner>),
}

impl Warnings {
    /// Whether to look up who writes the replicas now that another writer has changed them. Those who did so
    /// soon before are taken for the same.
    pub fn is_lookup_due(&self, now: UnixMillis) -> bool {
        self.looked_up.is_none_or(|at| now - at >= LOOKUP_INTERVAL_MS)
    }

    /// Notes a change of the replicas by another writer, and whose a lookup found it to be. Returns whether it
    /// counts.
    pub fn note_write(&mut self, change: Change, found: Option<Writer>, at: DecisionTime) -> bool {
        match (found, &mut self.write) {
            // The next change is looked up again.
            (Some(Writer::Plimsoll | Writer::Unknown), _) => {}
            (Some(Writer::Other(by)), write) => {
                self.looked_up = Some(at.process);
                let (last, at) = (at.process, at.wall);
                let write = write.insert(ForeignWrite { change, by, at, last }.into());
                let message = write.to_string();
                let (kind, reason) = (EventKind::Warning, Reason::ReplicasWrittenByOthers);
                self.event = Some(Event { kind, reason, message }.into());
                return true;
            }
            (None, Some(write)) => {
                write.last = at.process;
                return true;
            }
            (None, None) => {}
        }
        false
    }

    /// The event of the last such change, once.
    pub fn take_event(&mut self) -> Option<Event> {
        self.event.take().map(|event| *event)
    }

    /// Begins an evaluation: what was found for another spec counts no longer.
    pub fn begin(&mut self, generation: Option<i64>) {
        if self.generation != generation {
            self.generation = generation;
            self.others = None;
            self.with_series.clear();
            self.gaps.clear();
        }
    }

    /// Begins a lease term: what this process showed before is not what another replica has shown since.
    pub fn begin_term(&mut self) {
        (self.since, self.is_shown) = (None, false);
    }

    /// Notes that the selector of the target selects a pod of another controller, or one without any.
    pub fn note_others(&mut self, selector: &str, controller: Option<&Owner>, now: UnixMillis) {
        if let Some(others) = &mut self.others {
            others.last = now;
            return;
        }
        let of = match controller {
            None => "no workload".to_owned(),
            // Those of jobs are made anew each time.
            Some(Owner { kind, name, .. }) if kind != "Job" => format!("{kind} {name}"),
            Some(Owner { kind, .. }) => format!("a {kind}"),
        };
        let (selector, of) = (selector.into(), of.into());
        self.others = Some(Others { selector, of, last: now }.into());
    }

    /// Notes which queries of this evaluation are empty that had series within an hour before; of each metric none
    /// if that is not known.
    pub fn note_results(
        &mut self,
        are_empty: impl ExactSizeIterator<Item = Option<bool>>,
        scaling: &ScalingSpec,
        at: DecisionTime,
    ) {
        let now = at.process;
        // Without pods there are no series of them either, and none of the first for a while.
        self.with_series.resize(are_empty.len(), None);
        for (index, is_empty) in are_empty.enumerate() {
            let had_series = self.with_series[index].is_some_and(|last| now - last <= KEPT_MS);
            let is_held = match (is_empty, scaling.spec.metrics[index].options.on_empty) {
                (Some(false), _) => {
                    self.with_series[index] = Some(now);
                    self.gaps.retain(|gap| gap.index != index || !gap.is_held);
                    continue;
                }
                (Some(true), OnEmpty::Missing) if had_series => false,
                (Some(true), OnEmpty::Hold) => true,
                _ => continue,
            };
            if let Some(gap) = self.gaps.iter_mut().find(|gap| gap.index == index) {
                gap.last = now;
            } else if let Some(metric) = &scaling.prometheus_metrics[index] {
                let metric = metric.metric.clone();
                let (began, since, last) = (at.wall, now, now);
                self.gaps.push(Gap { index, metric, began, since, last, is_held });
            }
        }
    }

    /// Notes the kind of a target whose rollouts are not seen, though the spec says what they prevent; none of another.
    pub fn note_unseen(&mut self, kind: Option<&str>) {
        if self.unseen.as_deref() != kind {
            self.unseen = kind.map(Into::into);
        }
    }

    /// Sets the condition, and ends it an hour after its cause was last seen.
    pub fn show(&mut self, status: &mut Status, at: DecisionTime) {
        let is_over = |last: UnixMillis| at.process - last > KEPT_MS;
        self.write.take_if(|write| is_over(write.last));
        self.others.take_if(|others| is_over(others.last));
        self.gaps.retain(|gap| !is_over(gap.last));
        let since = *self.since.get_or_insert(at.process);
        let kind = ConditionKind::ConfigurationWarning;
        // The gravest first.
        let found = [
            (self.write.is_some(), Reason::ReplicasWrittenByOthers),
            (self.others.is_some(), Reason::SelectsOtherPods),
            (self.gaps.iter().any(Gap::is_told), Reason::QueryWasEmpty),
            (self.unseen.is_some(), Reason::RolloutsNotSeen),
        ];
        let Some((_, reason)) = found.into_iter().find(|(is_found, _)| *is_found) else {
            if std::mem::take(&mut self.is_shown) || is_over(since) {
                status.end(kind, "no longer observed", at.wall);
            }
            return;
        };
        self.is_shown = true;
        status.set(kind, true, reason, format_args!("{self}"), at.wall);
    }
}

impl fmt::Display for ForeignWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Change { from, to, .. } = self.change;
        match &self.by {
            Some(by) => write!(f, "{by}")?,
            None => write!(f, "another client ({})", object_time(self.at).0)?,
        }
        let advice = self.by.as_ref().map_or(Way::Scale, |by| by.way).advice();
        write!(f, " changed spec.replicas from {from} to {to}: {advice}")
    }
}

impl fmt::Display for Warnings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        if let Some(write) = &self.write {
            write!(f, "{write}")?;
            separator = "; ";
        }
        if let Some(Others { selector, of, .. }) = self.others.as_deref() {
            write!(
                f,
                "{separator}the selector {selector} of the target selects pods of {of}, too, which count as its replicas in each average: set selectionStrategy: OwnerReference, or give one of the two a label of its own"
            )?;
            separator = "; ";
        }
        for Gap { metric, began, is_held, .. } in self.gaps.iter().filter(|gap| gap.is_told()) {
            let began = object_time(*began).0;
            if *is_held {
                write!(
                    f,
                    "{separator}the query of {metric} has no series since {began}, and onEmpty: Hold keeps the replicas: look at it in Prometheus (an exporter that is away, another namespace, a typo)"
                )?;
                separator = "; ";
                continue;
            }
            write!(
                f,
                "{separator}the query of {metric} had series and then none, first at {began}: look at it in Prometheus over that time (pods that are not scraped, a range of fewer than two scrapes, a filter that drops zeros), or set onEmpty"
            )?;
            separator = "; ";
        }
        if let Some(kind) = &self.unseen {
            write!(
                f,
                "{separator}rollouts has no effect: those of a {kind} are not seen, only those of a Deployment or StatefulSet"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
