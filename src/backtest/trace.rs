//! The load that specs are tried on.

use super::candidate::Candidate;
use super::load::Load;
use super::recorded::Recorded;
use super::run::{Options, Run, Scraped, Source, Span, run, simulate};
use crate::time::UnixMillis;

/// The load that specs are tried on.
#[derive(Clone, Debug)]
pub enum Trace {
    /// Of a file, for autoscalers with one metric: its samples are means over the window of the options.
    File(Load),
    /// Of Prometheus, whose values have the window of their query.
    Recorded(Recorded),
}

impl Trace {
    /// The load of each metric.
    pub fn loads(&self) -> &[Load] {
        match self {
            Self::File(load) => std::slice::from_ref(load),
            Self::Recorded(recorded) => &recorded.loads,
        }
    }

    /// The first time at which a metric is known.
    pub fn first(&self) -> UnixMillis {
        self.loads().iter().map(Load::first).min().unwrap_or_default()
    }

    /// The last one.
    pub fn last(&self) -> UnixMillis {
        self.loads().iter().map(Load::last).max().unwrap_or_default()
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
        Ok(match self {
            Self::File(load) => Self::File(load.between(from, to)?),
            Self::Recorded(recorded) => Self::Recorded(recorded.between(from, to)?),
        })
    }

    /// Runs a candidate, which begins with the replicas that its targets ask for.
    ///
    /// # Errors
    /// As [`simulate`].
    pub fn run(&self, candidate: &Candidate, options: &Options) -> Result<Run, String> {
        match self {
            Self::File(load) => run(candidate, load, options),
            Self::Recorded(recorded) => {
                let (first, end) = (self.first(), self.last());
                let span = Span { first, end, window_ms: recorded.step, start: None, times: None };
                simulate(candidate, &mut recorded.source(), span, options, &mut ())
            }
        }
    }

    /// The pods that the load needs whatever the bounds are, at each period, the fewest first.
    pub(super) fn needs(&self, candidate: &Candidate, options: &Options) -> Vec<i64> {
        let mut source: Box<dyn Source> = match self {
            Self::File(load) => Box::new(Scraped::new(load, options)),
            Self::Recorded(recorded) => Box::new(recorded.source()),
        };
        let period = candidate.period_ms(options.period);
        let ticks = 0..=(self.last() - self.first()) / period;
        let mut loads = Vec::new();
        let needs = ticks.filter_map(|tick| {
            source.load(self.first() + tick * period, &mut loads);
            candidate.carried_by(&loads)
        });
        let mut needs: Vec<i64> = needs.collect();
        needs.sort_unstable();
        needs
    }
}
