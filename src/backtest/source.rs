//! What a run knows of the load.

use super::candidate::Measure;
use super::load::{Areas, Cursor, Load, Means};
use crate::time::UnixMillis;

/// What a run knows of the load, at times that increase.
pub trait Source {
    /// The value of each metric for all of the workload, as a decision sees it, with so many ready pods. None where it
    /// is unknown.
    fn measured(&mut self, now: UnixMillis, ready: usize, values: &mut Vec<Option<f64>>);
    /// The load of each metric, by which the need for pods is counted.
    fn load(&mut self, now: UnixMillis, loads: &mut Vec<Option<f64>>);
    /// What the first metric adds up to since the time that was asked for before, and in how many seconds it is known:
    /// between decisions there may be more or less than at them. None at a time at which it is not known.
    fn arrived(&mut self, _now: UnixMillis) -> Option<(f64, f64)> {
        None
    }
    /// So many pods are ready after a decision.
    fn decided(&mut self, _now: UnixMillis, _ready: usize) {}
}

/// The load of a file as it is scraped: the mean over a window until the last scrape.
#[derive(Debug)]
pub struct Scraped<'a> {
    means: Means<'a>,
    now: Cursor<'a>,
    areas: Areas<'a>,
    first: UnixMillis,
    interval: i64,
    /// The last scrape, and what it found.
    last: Option<(UnixMillis, Option<f64>)>,
}

impl<'a> Scraped<'a> {
    /// Over a window and at an interval in ms.
    pub fn new(load: &'a Load, window: i64, interval: i64) -> Self {
        let (now, areas, first) = (load.cursor(), load.areas(), load.first());
        let means = Means::new(load, window);
        Self { means, now, areas, first, interval: interval.max(1), last: None }
    }

    /// What is known at a time. Before the first scrape it is the load at the beginning.
    fn at(&mut self, now: UnixMillis) -> Option<f64> {
        let scrape = now - (now - self.first) % self.interval;
        match self.last {
            Some((last, value)) if last == scrape => value,
            _ => {
                let value = self.means.until(scrape);
                self.last = Some((scrape, value));
                value
            }
        }
    }
}

impl Source for Scraped<'_> {
    fn measured(&mut self, now: UnixMillis, _ready: usize, values: &mut Vec<Option<f64>>) {
        values.clear();
        values.push(self.at(now));
    }

    fn load(&mut self, now: UnixMillis, loads: &mut Vec<Option<f64>>) {
        loads.clear();
        loads.push(self.now.at(now));
    }

    fn arrived(&mut self, now: UnixMillis) -> Option<(f64, f64)> {
        self.areas.until(now)
    }
}

/// A source of one load, and the values of all metrics of a candidate, which follow from it.
#[derive(Debug)]
pub struct Following<'a, S> {
    source: S,
    metrics: &'a [Measure],
}

impl<'a, S: Source> Following<'a, S> {
    /// Of a source whose first value is the load.
    pub fn new(source: S, metrics: &'a [Measure]) -> Self {
        Self { source, metrics }
    }

    fn follow(&self, values: &mut Vec<Option<f64>>) {
        let load = values.first().copied().flatten();
        let value = |metric: &Measure| match &metric.of_load {
            Some(of) => load.map(|load| of.at(load)),
            None => load,
        };
        values.clear();
        values.extend(self.metrics.iter().map(value));
    }
}

impl<S: Source> Source for Following<'_, S> {
    fn measured(&mut self, now: UnixMillis, ready: usize, values: &mut Vec<Option<f64>>) {
        self.source.measured(now, ready, values);
        self.follow(values);
    }

    fn load(&mut self, now: UnixMillis, loads: &mut Vec<Option<f64>>) {
        self.source.load(now, loads);
        self.follow(loads);
    }

    fn arrived(&mut self, now: UnixMillis) -> Option<(f64, f64)> {
        self.source.arrived(now)
    }

    fn decided(&mut self, now: UnixMillis, ready: usize) {
        self.source.decided(now, ready);
    }
}
