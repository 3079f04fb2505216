//! Metrics that answer to scaling.

use super::candidate::{Candidate, Measure};

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
                "{}: {why}: it answers to scaling, so that what was recorded with one number of pods says nothing of another; give the load itself, such as the rate of what arrives",
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
