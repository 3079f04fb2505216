//! A queue: its length is the metric, and what arrives in it the load.

use super::source::Source;
use crate::time::UnixMillis;

/// The length of a queue, as a metric: what arrives waits in it until a pod has completed it. Each ready pod completes
/// as much in a second, however long the queue is, and nothing is dropped.
#[derive(Debug)]
pub struct Queue<'a, S> {
    arrivals: &'a mut S,
    /// How much a pod completes in a second.
    rate: f64,
    /// What waits, and the pods that are ready since the last decision.
    waiting: f64,
    ready: usize,
}

impl<'a, S: Source> Queue<'a, S> {
    /// A queue that is empty at the first time that is asked for.
    pub fn new(arrivals: &'a mut S, rate: f64) -> Self {
        Self { arrivals, rate, waiting: 0.0, ready: 0 }
    }
}

impl<S: Source> Source for Queue<'_, S> {
    fn measured(&mut self, now: UnixMillis, _ready: usize, values: &mut Vec<Option<f64>>) {
        // While it is not known what arrives, it is not known what waits: what was known stays.
        let arrived = self.arrivals.arrived(now);
        if let Some((arrived, seconds)) = arrived {
            let completed = self.rate * self.ready as f64 * seconds;
            self.waiting = (self.waiting + arrived - completed).max(0.0);
        }
        values.clear();
        values.push(arrived.map(|_| self.waiting));
    }

    fn load(&mut self, now: UnixMillis, loads: &mut Vec<Option<f64>>) {
        self.arrivals.load(now, loads);
    }

    fn decided(&mut self, _now: UnixMillis, ready: usize) {
        self.ready = ready;
    }
}
