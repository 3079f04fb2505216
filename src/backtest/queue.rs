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
    /// The time until which it is known, what waits then, what arrives in a second, and the ready pods.
    at: UnixMillis,
    waiting: f64,
    arriving: Option<f64>,
    ready: usize,
}

impl<'a, S: Source> Queue<'a, S> {
    /// A queue that is empty at a time.
    pub fn new(arrivals: &'a mut S, rate: f64, at: UnixMillis) -> Self {
        Self { arrivals, rate, at, waiting: 0.0, arriving: None, ready: 0 }
    }
}

impl<S: Source> Source for Queue<'_, S> {
    fn measured(&mut self, now: UnixMillis, _ready: usize, values: &mut Vec<Option<f64>>) {
        self.arrivals.load(now, values);
        let arriving = values.first().copied().flatten();
        let seconds = (now - self.at) as f64 / 1000.0;
        // While it is not known what arrives, it is not known what waits: what was known stays.
        if let (Some(before), Some(after)) = (self.arriving, arriving) {
            let completed = self.rate * self.ready as f64;
            let change = (f64::midpoint(before, after) - completed) * seconds;
            self.waiting = (self.waiting + change).max(0.0);
        }
        (self.at, self.arriving) = (now, arriving);
        values.clear();
        values.push(arriving.map(|_| self.waiting));
    }

    fn load(&mut self, now: UnixMillis, loads: &mut Vec<Option<f64>>) {
        self.arrivals.load(now, loads);
    }

    fn decided(&mut self, _now: UnixMillis, ready: usize) {
        self.ready = ready;
    }
}
