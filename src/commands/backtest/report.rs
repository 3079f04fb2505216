//! What a report is made of.

use crate::backtest::{
    Candidate, Grid, Load, LowConfidence, Options, Recording, Run, run_observed,
};
use crate::commands::story::span;
use crate::time::UnixMillis;

/// The most candidates of a chart: each has a color of its own.
const MAX_CANDIDATES: usize = 8;
/// The most parts of low confidence that are listed.
pub const MAX_SHOWN: usize = 100;

/// The runs of all candidates, and what charts show of them.
pub struct Report {
    /// The runs.
    pub runs: Vec<Run>,
    /// What was recorded of each.
    pub recordings: Vec<Recording>,
    /// What one pod carries, and the least replicas, of each.
    pub needs: Vec<(f64, i32)>,
    /// The time of the first and of the last decision.
    pub span: (UnixMillis, UnixMillis),
    /// Where the load says less.
    pub low_confidence: Vec<LowConfidence>,
    options: Options,
}

/// How much a report keeps of all candidates together.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The most slots of time, of four candidates or fewer.
    pub slots: usize,
    /// The most decisions that change replicas, and the most others.
    pub decisions: usize,
}

impl Report {
    /// Runs all candidates and records them.
    ///
    /// # Errors
    /// If there are more than 8, or one can't be run.
    pub fn new(
        candidates: &[Candidate],
        load: &Load,
        options: &Options,
        low_confidence: Vec<LowConfidence>,
        bounds: Bounds,
    ) -> Result<Self, String> {
        let count = candidates.len();
        if count > MAX_CANDIDATES {
            return Err(format!(
                "{count} candidates: at most {MAX_CANDIDATES} fit in a chart; give fewer files, or --output text or json"
            ));
        }
        let periods = candidates.iter().map(|candidate| candidate.period_ms(options.period));
        let period = periods.min().unwrap_or(1);
        let slots = bounds.slots * 4 / count.max(4);
        let grid = Grid::new(load.first(), load.last(), period, slots);
        let (mut runs, mut recordings) = (Vec::new(), Vec::new());
        for candidate in candidates {
            let mut recording = Recording::new(candidate, grid, bounds.decisions / count.max(1));
            let run = run_observed(candidate, load, options, &mut recording);
            runs.push(run.map_err(|error| format!("{}: {error}", candidate.name))?);
            recordings.push(recording);
        }
        let last = runs.iter().map(|run| run.last).max().unwrap_or(load.last());
        let needs = candidates.iter().map(|one| (one.pod_carries, one.min())).collect();
        let span = (load.first(), last);
        Ok(Self { runs, recordings, needs, span, low_confidence, options: *options })
    }

    /// What is assumed and left out.
    pub fn assumptions(&self) -> Vec<String> {
        let Options { pod_start, window, scrape_interval, warm_up, .. } = self.options;
        let [pod_start, window, scrape_interval, warm_up] =
            [pod_start, window, scrape_interval, warm_up].map(|one| span(one.as_millis() as i64));
        let mut texts = vec![
            format!("A new pod is ready after {pod_start}. The ready pods share the load evenly."),
            format!(
                "A sample is the mean of the load over {window}, scraped every {scrape_interval}."
            ),
            format!("The first {warm_up} are decided on, but not counted."),
        ];
        for (run, (carries, min)) in self.runs.iter().zip(&self.needs) {
            texts.push(format!(
                "{}: one pod carries {carries}; at least {min} are needed.",
                run.figures.name
            ));
        }
        let grid = self.recordings.first().map_or(0, |one| one.grid.width);
        texts.push(format!(
            "The charts show each {}: the least and the most load, the most needed and the fewest ready pods, and the last replicas that are wanted.",
            span(grid)
        ));
        for (run, recording) in self.runs.iter().zip(&self.recordings) {
            let changes = match recording.every_change {
                0 => "all changes".to_owned(),
                every => format!("one change in {} at most", span(every)),
            };
            texts.push(format!(
                "{}: the decisions shown are {changes}, and one in {}.",
                run.figures.name,
                span(recording.every)
            ));
        }
        texts.push(
            "Queues, failing pods, rollouts and scaling by hand are not simulated.".to_owned(),
        );
        texts
    }
}
