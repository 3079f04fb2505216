//! What happened in the run, over time.

use std::time::Instant;

/// The times in which a condition held.
#[derive(Default)]
pub struct Spans(Vec<(Instant, Option<Instant>)>);

impl Spans {
    pub fn begin(&mut self) {
        self.0.push((Instant::now(), None));
    }

    pub fn end(&mut self) {
        if let Some((_, end)) = self.0.last_mut() {
            end.get_or_insert_with(Instant::now);
        }
    }

    /// Since when it holds, if it does now.
    pub fn since(&self) -> Option<Instant> {
        self.0.last().filter(|(_, end)| end.is_none()).map(|(began, _)| *began)
    }

    /// When it first began of the times in which it held within a range.
    pub fn first_within(&self, from: Instant, to: Instant) -> Option<Instant> {
        let within =
            |(began, end): &&(_, Option<_>)| *began <= to && end.is_none_or(|end| end >= from);
        self.0.iter().find(within).map(|(began, _)| *began)
    }
}

/// A change of replicas that Plimsoll made.
#[derive(Clone, Debug)]
pub struct Step {
    pub replica: usize,
    /// When the write arrived at kube-apiserver.
    pub arrived: Instant,
    /// When its answer went out; none if Plimsoll did not get it.
    pub answered: Option<Instant>,
    pub from: i64,
    pub to: i64,
}
