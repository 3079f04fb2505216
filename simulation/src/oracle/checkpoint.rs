//! The oracle of checkpoints: what a leader writes for the one after it has all that the windows and policies
//! of each autoscaler look back to. So a restart changes no decision.

use super::record::{Change, LAG, Record, SLOW};
use super::{Oracle, Oracles, ReplicaRecord, SharedSpec};
use crate::plan::{MINUTE, Millis, SCRAPE, SECOND, WORKLOADS};
use crate::workload::NAMES;
use plimsoll::crd::{Executor, Mode};
use plimsoll::hpa::{ScaleEvent, ScalingHistory, ScalingRules};
use plimsoll::replica::{Checkpoint, read_checkpoints};
use serde_json::Value;

/// For how long the leader must have led, and reached the API server, for its history to be known.
const LED: Millis = 5 * MINUTE;
/// How much earlier and later than the API server shows a change its event may be dated: it is dated
/// when its response is there.
const DATED: std::ops::RangeInclusive<Millis> = -SECOND..=3 * SECOND;
/// By how much each checkpoint makes changes younger, at most, until one who knows better writes their date again.
const YOUNGER: Millis = 5 * SECOND;
/// The windows of an autoscaler that names none, in seconds: of `hpa`, up and down.
const WINDOWS: [i32; 2] = [0, 300];

/// The checkpoints that a replica wrote, by workload.
#[derive(Debug)]
pub struct Written {
    at: Millis,
    by: usize,
    all: [Option<Checkpoint>; WORKLOADS],
}

impl Oracles {
    /// Looks at a checkpoint that a replica has written.
    pub fn check_checkpoint(&mut self, at: Millis, by: usize, map: Option<&Value>) {
        let map = map.cloned().unwrap_or_default();
        let read = serde_json::from_value(map).map_err(|error| error.to_string());
        let checkpoints = match read.and_then(read_checkpoints) {
            Ok(checkpoints) => checkpoints,
            Err(error) => {
                let text = format!("a checkpoint can't be read: {error}");
                return self.violate(Oracle::Restart, at, text);
            }
        };
        let of = |name| checkpoints.iter().find(|(autoscaler, _)| autoscaler.key.name == name);
        let written =
            Written { at, by, all: NAMES.map(|name| of(name).map(|(_, one)| one.clone())) };
        if let Some(before) = self.last_checkpoints.take() {
            self.check_continuity(&before, &written);
        }
        self.check_history(&written);
        self.last_checkpoints = Some(written);
    }

    /// Looks whether a checkpoint has the changes of the one before: a new leader has loaded them.
    fn check_continuity(&mut self, before: &Written, written: &Written) {
        let Written { at, by, .. } = *written;
        let replica = &self.replicas[by];
        let since = match before.by == by {
            true => before.at,
            false => replica.acquired.unwrap_or(Millis::MAX).min(replica.alive_since.unwrap_or(0)),
        };
        let is_later = replica.acquired.is_some_and(|acquired| acquired > before.at);
        let is_same = before.by == by && replica.alive_since.is_some_and(|born| born <= before.at);
        let is_troubled = |replica: &ReplicaRecord, from: Millis, to: Millis| {
            replica.trouble.during(from, to).any(|trouble| trouble.is_of_api())
        };
        // A write that is late has ages from before.
        if !(is_later || is_same)
            || is_troubled(replica, since.min(before.at) - LAG, at)
            || is_troubled(&self.replicas[before.by], before.at - SLOW, before.at)
        {
            return;
        }
        for (workload, name) in NAMES.into_iter().enumerate() {
            let record = &self.records[workload];
            let Some(Some(spec)) = record.specs.now() else { continue };
            let uid = &spec.uid;
            let of = |checkpoints: &Written| {
                let history = |one: &Checkpoint| (one.uid == *uid).then(|| one.history.clone());
                checkpoints.all[workload].as_ref().and_then(history)
            };
            let Some(old) = of(before) else { continue };
            if spec.api.mode == Mode::Paused
                || spec.api.executor != Executor::Embedded
                || record.undisturbed_since + 2 * LAG > before.at
            {
                continue;
            }
            let new = of(written).unwrap_or_default();
            let Some(behavior) = &spec.spec.behavior else { continue };
            let directions = [
                (&behavior.scale_up, &old.ups, &new.ups),
                (&behavior.scale_down, &old.downs, &new.downs),
            ];
            let mut lacks = None;
            let mut looked = false;
            for (rules, old, new) in directions {
                let longest = rules.policies.iter().map(|policy| policy.period_seconds).max();
                let since = at - i64::from(longest.unwrap_or(0)) * SECOND + LAG;
                for event in old.iter().filter(|event| before.at + event.time > since) {
                    looked = true;
                    let later = |one: &ScaleEvent| (at + one.time) - (before.at + event.time);
                    let has = new.iter().any(|one| {
                        one.change == event.change && (-YOUNGER..=LAG).contains(&later(one))
                    });
                    if !has {
                        lacks.get_or_insert_with(|| format!("{event:?}; it has {new:?}"));
                    }
                }
            }
            if let Some(lacks) = lacks {
                let text = format!(
                    "{name}: the checkpoint by replica {by} lacks a change that the one before had, by replica {}: {lacks}",
                    before.by
                );
                return self.violate(Oracle::Continuity, at, text);
            }
            if looked {
                self.checked_of(Oracle::Continuity, workload);
            }
        }
    }

    /// Looks whether a checkpoint of a leader that has led for long has the history.
    fn check_history(&mut self, written: &Written) {
        let Written { at, by, .. } = *written;
        let replica = &self.replicas[by];
        let since = at - LED;
        let led = |begun: Option<Millis>| begun.is_some_and(|begun| begun <= since);
        if !led(replica.alive_since)
            || !led(replica.acquired)
            || replica.trouble.during(since, at).any(|trouble| trouble.is_of_api())
        {
            return;
        }
        let slowest = self.base + replica.offsets(since, at).into_iter().min().unwrap_or(0);
        for (workload, name) in NAMES.into_iter().enumerate() {
            let of = written.all[workload].as_ref();
            let record = &self.records[workload];
            let Some(Some(spec)) = record.specs.now() else { continue };
            if spec.api.mode == Mode::Paused || spec.api.executor != Executor::Embedded {
                continue;
            }
            let checkpoint = of.filter(|one| one.uid == spec.uid);
            let looked = Looked { at, by, record, spec };
            let found = looked.look(checkpoint).and_then(|counts| {
                looked.look_at_last_scale(checkpoint, slowest)?;
                Ok(counts)
            });
            match found {
                Ok(true) => self.checked_of(Oracle::Restart, workload),
                Ok(false) => {}
                Err(fault) => {
                    let text = format!("{name}: the checkpoint {fault}: {checkpoint:?}");
                    self.violate(Oracle::Restart, at, text);
                }
            }
        }
    }
}

/// What a checkpoint of an autoscaler is held against.
struct Looked<'a> {
    at: Millis,
    by: usize,
    record: &'a Record,
    spec: &'a SharedSpec,
}

impl Looked<'_> {
    /// Whether there was anything that it must have; an error says what is wrong with it.
    fn look(&self, checkpoint: Option<&Checkpoint>) -> Result<bool, String> {
        let empty = ScalingHistory::default();
        let history = checkpoint.map_or(&empty, |checkpoint| &checkpoint.history);
        let mut looked = self.look_at_recommendations(history)?;
        if let Some(behavior) = &self.spec.spec.behavior {
            looked |= self.look_at_changes(&behavior.scale_up, &history.ups, true)?;
            looked |= self.look_at_changes(&behavior.scale_down, &history.downs, false)?;
        }
        Ok(looked)
    }

    /// It is not dated before the last change that it has, by the slowest wall clock that its writer had: the
    /// time of that at the start of the simulation.
    fn look_at_last_scale(
        &self,
        checkpoint: Option<&Checkpoint>,
        slowest: i64,
    ) -> Result<(), String> {
        let since = self.since(i32::MAX);
        let last = self.record.changes.back();
        let last = last.filter(|one| one.by == Some(self.by) && one.at > since);
        let (Some(checkpoint), Some(last)) = (checkpoint, last) else { return Ok(()) };
        // An evaluation that has just made it may not have ended.
        if last.at >= self.at - SECOND {
            return Ok(());
        }
        let earliest = (slowest + last.at + DATED.start()).div_euclid(SECOND);
        match checkpoint.last_scale < Some(earliest) {
            true => Err(format!("is dated before its last change: {last:?}")),
            false => Ok(()),
        }
    }

    /// Since when the autoscaler has been undisturbed, within the last seconds.
    fn since(&self, seconds: i32) -> Millis {
        let undisturbed = self.record.undisturbed_since + LAG;
        undisturbed.max(self.at - (i64::from(seconds) * 1000).min(LED) + LAG)
    }

    /// Each change within the longest policy is there once, and no other.
    fn look_at_changes(
        &self,
        rules: &ScalingRules,
        events: &[ScaleEvent],
        up: bool,
    ) -> Result<bool, String> {
        let longest = rules.policies.iter().map(|policy| policy.period_seconds).max();
        let since = self.since(longest.unwrap_or(0));
        let size = |change: &Change| (change.to - change.from) * if up { 1 } else { -1 };
        let mut changes: Vec<&Change> = self.record.changes.iter().collect();
        changes.retain(|change| {
            change.by == Some(self.by) && size(change) > 0 && change.at > since - LAG
        });
        for event in events.iter().filter(|event| self.at + event.time > since) {
            let is = |change: &&Change| {
                size(change) == event.change && DATED.contains(&(self.at + event.time - change.at))
            };
            // One that is unsure may be another's, seen when a term began.
            let is_anyones = |change: &Change| {
                let late = self.at + event.time - change.at;
                size(change) == event.change && (-SECOND..=2 * MINUTE).contains(&late)
            };
            if event.unsure && self.record.changes.iter().any(is_anyones) {
                continue;
            }
            // Of two that it may be, the later: its events are in their order.
            let Some(place) = changes.iter().rposition(is) else {
                return Err(format!("has a change that was not made: {event:?}"));
            };
            changes.remove(place);
        }
        // An evaluation that has just made one may not have ended.
        let mut lacks = changes.iter().filter(|one| one.at > since && one.at < self.at - SECOND);
        match lacks.next() {
            Some(change) => Err(format!("lacks a change: {change:?}")),
            None => Ok(self.record.changes.iter().any(|one| one.at > since && size(one) > 0)),
        }
    }

    /// The highest and the lowest recommendation within the windows are there: one evaluation in each period
    /// is sure.
    fn look_at_recommendations(&self, history: &ScalingHistory) -> Result<bool, String> {
        let behavior = self.spec.spec.behavior.as_ref();
        let windows = behavior.map_or(WINDOWS, |behavior| {
            let of = |rules: &ScalingRules, default| rules.stabilization_seconds.unwrap_or(default);
            [of(&behavior.scale_up, WINDOWS[0]), of(&behavior.scale_down, WINDOWS[1])]
        });
        let since = self.since(windows.into_iter().max().unwrap_or(0));
        let (min, max) = (self.spec.spec.min_replicas, self.spec.spec.max_replicas);
        let recent = history.recommendations.iter().filter(|one| self.at + one.time > since - LAG);
        let (mut lowest, mut highest) = (i32::MAX, i32::MIN);
        for one in recent {
            (lowest, highest) = (lowest.min(one.replicas), highest.max(one.replicas));
        }
        let bounded = lowest > highest;
        if bounded {
            // Without any the present replicas are taken for it, within the bounds.
            let mut replicas = self.record.replicas.during(since - LAG, self.at).flatten();
            let Some(first) = replicas.next() else { return Ok(false) };
            if replicas.any(|other| other != first) {
                return Ok(false);
            }
            (lowest, highest) = (*first, *first);
        }
        let within = |replicas: i32| if bounded { replicas.max(min).min(max) } else { replicas };
        let spans = usize::try_from(self.spec.period() / SCRAPE + 1).unwrap_or(1);
        let known: Vec<_> = self
            .record
            .spans
            .iter()
            .filter(|span| span.from > since && span.from + SCRAPE < self.at - LAG)
            .collect();
        let mut looked = false;
        for group in known.windows(spans) {
            let proposals = group.iter().filter(|span| span.evaluated[self.by]);
            let proposals: Vec<_> = proposals.filter_map(|span| span.proposals).collect();
            if proposals.len() < spans {
                continue;
            }
            let low = proposals.iter().map(|(low, _)| *low).min().map_or(highest, within);
            let high = proposals.iter().map(|(_, high)| *high).max().map_or(lowest, within);
            if low > highest || high < lowest {
                return Err(format!("lacks a recommendation of {low} to {high}"));
            }
            looked = true;
        }
        Ok(looked)
    }
}
