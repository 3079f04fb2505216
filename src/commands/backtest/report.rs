//! What charts keep of runs, and what they leave out.

use super::Tried;
use crate::backtest::{Candidate, Measure, Options, Recording, TimeAxis};
use crate::commands::story::span;
use crate::time::UnixMillis;

/// The most candidates of a chart: each has a color of its own.
const MAX_CANDIDATES: usize = 8;

/// How much a report keeps of all candidates together.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The most slots of time, of four candidates or fewer; of more, the fewer.
    pub slots: usize,
    /// The most decisions that change replicas, and the most others.
    pub decisions: usize,
}

impl Bounds {
    /// # Errors
    /// If so many candidates don't fit in a chart.
    pub fn check(self, candidates: usize) -> Result<(), String> {
        match candidates {
            0..=MAX_CANDIDATES => Ok(()),
            _ => Err(format!(
                "{candidates} candidates: at most {MAX_CANDIDATES} fit in a chart; give fewer files, or --output text or json"
            )),
        }
    }

    /// The recording of a candidate beside all others, between the first and the last time of all.
    pub fn recording(
        self,
        candidate: &Candidate,
        all: &[Candidate],
        options: &Options,
        (first, last): (UnixMillis, UnixMillis),
    ) -> Recording {
        let periods = all.iter().map(|candidate| candidate.period_ms(options.period));
        let slots = self.slots * 4 / all.len().max(4);
        let axis = TimeAxis::new(first, last, periods.min().unwrap_or(1), slots);
        Recording::new(candidate, axis, self.decisions / all.len().max(1))
    }
}

impl Tried {
    /// The time of the first and of the last decision.
    pub(super) fn span(&self) -> (UnixMillis, UnixMillis) {
        let last = self.runs.iter().map(|run| run.last).max();
        (self.load.first(), last.unwrap_or(self.load.last()))
    }

    /// What is assumed and left out.
    pub(super) fn assumptions(&self) -> Vec<String> {
        let Options { pod_start, window, scrape_interval, warm_up, .. } = self.options;
        let [pod_start, window, scrape_interval, warm_up] =
            [pod_start, window, scrape_interval, warm_up].map(|one| span(one.as_millis() as i64));
        let mut texts = vec![
            format!("A new pod is ready after {pod_start}. The ready pods share the load evenly."),
            match self.recorded {
                Some(_) => "The load is what Prometheus has.".to_owned(),
                None => format!(
                    "A sample is the mean of the load over {window}, scraped every {scrape_interval}."
                ),
            },
            format!("The first {warm_up} are decided on, but not counted."),
        ];
        for candidate in &self.candidates {
            let carries = candidate.metrics.iter().map(Measure::carries);
            let carries: Vec<String> = carries.map(|carries| carries.to_string()).collect();
            texts.push(format!(
                "{}: one pod carries {}; at least {} are needed.",
                candidate.name,
                carries.join(" and "),
                candidate.min()
            ));
        }
        let width = self.recordings.first().map_or(0, |one| one.axis.width);
        texts.push(format!(
            "The charts show each {}: the least and the most load, the most needed and the fewest ready pods, and the last replicas that are wanted.",
            span(width)
        ));
        for (candidate, recording) in self.candidates.iter().zip(&self.recordings) {
            let changes = match recording.every_change {
                0 => "all changes".to_owned(),
                every => format!("one change in {} at most", span(every)),
            };
            texts.push(format!(
                "{}: the decisions shown are {changes}, and one in {}.",
                candidate.name,
                span(recording.every)
            ));
        }
        texts.push(
            "Queues, failing pods, rollouts and scaling by hand are not simulated.".to_owned(),
        );
        texts
    }
}
