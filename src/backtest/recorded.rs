//! What was recorded of a workload: the load of its metrics, and its replicas.

use super::load::{Areas, Cursor, Load};
use super::saturation::LowConfidence;
use super::source::Source;
use crate::time::UnixMillis;

/// What was recorded of an autoscaler's workload.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// For each metric, its value for all of the workload, at the times of a grid.
    pub loads: Vec<Load>,
    /// The distance of these times, in ms.
    pub step: i64,
    /// The parts of it that were probably cut off while pods started.
    pub cut_off: Vec<LowConfidence>,
}

impl Recorded {
    /// The first time at which all metrics are known: without one of them, fewer pods are needed than in truth.
    pub fn first(&self) -> UnixMillis {
        self.loads.iter().map(Load::first).max().unwrap_or_default()
    }

    /// The last one.
    pub fn last(&self) -> UnixMillis {
        self.loads.iter().map(Load::last).min().unwrap_or_default()
    }

    /// What is known while all metrics are. What one of them has besides is not tried, and says nothing of how far the rest
    /// can be trusted.
    pub(super) fn in_common(mut self) -> Self {
        let (first, last) = (self.first(), self.last());
        if self.loads.len() > 1 && first <= last {
            self.loads.iter_mut().for_each(|load| *load = load.within(first, last));
        }
        self
    }

    /// The part from a time to another one, both included.
    ///
    /// # Errors
    /// If fewer than two points of a metric are in it.
    pub fn between(
        &self,
        from: Option<UnixMillis>,
        to: Option<UnixMillis>,
    ) -> Result<Self, String> {
        let loads = self.loads.iter().map(|load| load.between(from, to));
        let cut_off = self.cut_off.clone();
        Ok(Self { loads: loads.collect::<Result<_, _>>()?, step: self.step, cut_off })
    }

    /// The source of a run.
    pub fn source(&self) -> Replayed<'_> {
        let cursors = || self.loads.iter().map(Load::cursor).collect();
        let areas = self.loads.first().map(Load::areas);
        Replayed { step: self.step, measured: cursors(), load: cursors(), areas }
    }
}

/// The recorded values as the source of a run: each is known until the next one, and at most for a step.
#[derive(Clone, Debug)]
pub struct Replayed<'a> {
    step: i64,
    measured: Vec<Cursor<'a>>,
    load: Vec<Cursor<'a>>,
    areas: Option<Areas<'a>>,
}

impl Source for Replayed<'_> {
    fn measured(&mut self, now: UnixMillis, _ready: usize, values: &mut Vec<Option<f64>>) {
        read(&mut self.measured, now, self.step, values);
    }

    fn load(&mut self, now: UnixMillis, loads: &mut Vec<Option<f64>>) {
        read(&mut self.load, now, self.step, loads);
    }

    fn arrived(&mut self, now: UnixMillis) -> Option<(f64, f64)> {
        self.areas.as_mut()?.until(now)
    }
}

fn read(cursors: &mut [Cursor<'_>], now: UnixMillis, step: i64, values: &mut Vec<Option<f64>>) {
    values.clear();
    values.extend(cursors.iter_mut().map(|cursor| cursor.held(now, step)));
}

/// How many replicas there were: each number from its time until the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replicas {
    samples: Vec<(UnixMillis, i64)>,
}

impl Replicas {
    /// Of samples whose times increase.
    pub fn new(samples: Vec<(UnixMillis, i64)>) -> Self {
        Self { samples }
    }

    /// The samples.
    pub fn samples(&self) -> &[(UnixMillis, i64)] {
        &self.samples
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// The last sample that is not later than a time, or else the first one.
    pub fn at(&self, time: UnixMillis) -> Option<i64> {
        let index = self.samples.partition_point(|(sample, _)| *sample <= time);
        let sample = self.samples.get(index.saturating_sub(1));
        sample.map(|(_, replicas)| (*replicas).max(0))
    }

    /// The first sample at or after a time and before another one.
    pub fn within(&self, from: UnixMillis, to: UnixMillis) -> Option<(UnixMillis, i64)> {
        let index = self.samples.partition_point(|(time, _)| *time < from);
        self.samples.get(index).filter(|(time, _)| *time < to).copied()
    }

    /// How long it took after each rise until as many were ready, in ms; those that never were, because the number
    /// changed again, are left out.
    pub fn starts(&self, ready: &Self) -> Vec<i64> {
        let changes: Vec<Change> = self.changes().collect();
        let mut starts = Vec::new();
        for (index, change) in
            changes.iter().enumerate().filter(|(_, change)| change.to > change.from)
        {
            let until = changes.get(index + 1).map_or(UnixMillis::MAX, |next| next.seen);
            let from = ready.samples.partition_point(|(time, _)| *time < change.seen);
            let later = ready.samples[from..].iter().take_while(|(time, _)| *time < until);
            let reached = later.clone().find(|(_, ready)| *ready >= change.to);
            // Both are seen some time after they happen, and the same time on average.
            starts.extend(reached.map(|(time, _)| time - change.seen));
        }
        starts
    }

    /// The changes: the time of the sample before each, its own, and the numbers before and after.
    pub fn changes(&self) -> impl Iterator<Item = Change> + '_ {
        let changes = self.samples.windows(2).filter(|pair| pair[0].1 != pair[1].1);
        changes.map(|pair| Change {
            after: pair[0].0,
            seen: pair[1].0,
            from: pair[0].1,
            to: pair[1].1,
        })
    }
}

/// A change of the replicas that was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The last time with the number before.
    pub after: UnixMillis,
    /// The first time with the number after.
    pub seen: UnixMillis,
    /// The number before.
    pub from: i64,
    /// The number after.
    pub to: i64,
}
