//! Metrics that answer to scaling.

use super::candidate::{Candidate, Measure};
use super::run::Source;
use crate::time::UnixMillis;

/// What is in the names of metrics that say how long something takes or how much waits: more pods make them smaller, so
/// that what was recorded says nothing of another number of pods.
const WORDS: [&str; 15] = [
    "queue",
    "queued",
    "backlog",
    "lag",
    "pending",
    "waiting",
    "depth",
    "latency",
    "duration",
    "inflight",
    "saturation",
    "oldest",
    "age",
    "unacked",
    "delay",
];

impl Candidate {
    /// Refuses metrics that answer to scaling.
    ///
    /// # Errors
    /// If one of its metrics probably is one.
    pub fn refuse_feedback(&self) -> Result<(), String> {
        match self.metrics.iter().find_map(Measure::feedback) {
            None => Ok(()),
            Some(why) => Err(format!(
                "{}: {why}: it answers to scaling, so that what was recorded with one number of pods says nothing of another; scale on the load itself, such as the rate of what arrives, or name a model of it (plimsoll backtest --feedback queue)",
                self.name
            )),
        }
    }
}

impl Measure {
    /// Why it answers to scaling, if it probably does.
    fn feedback(&self) -> Option<String> {
        let query = self.query.as_ref();
        let text = query.and_then(|query| query.query.as_deref());
        if text.is_some_and(|text| text.contains("histogram_quantile")) {
            return Some(format!("the metric {} is a quantile of durations", self.name));
        }
        // The rate of a counter is a load whatever it counts: durations, or entries of a queue.
        if text.is_some_and(|text| text.contains("rate(") || text.contains("increase(")) {
            return None;
        }
        let name = query.map_or(self.name.as_str(), |query| query.metric.as_str());
        if name.ends_with("_total") || name.ends_with("_count") {
            return None;
        }
        let lower = name.to_ascii_lowercase();
        let words = lower.split(|c: char| !c.is_ascii_alphanumeric());
        let word = words.into_iter().find(|word| WORDS.contains(word))?;
        Some(format!("the metric {name} has {word:?} in its name"))
    }
}

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
