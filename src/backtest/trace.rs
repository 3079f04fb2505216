//! The load that specs are tried on.

use super::candidate::Candidate;
use super::load::Load;
use super::recorded::Recorded;
use super::run::{Options, Run, Span, run, simulate};
use super::saturation::low_confidence;
use super::source::{Scraped, Source};
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

    /// How long all metrics are known, in ms.
    pub fn known_ms(&self) -> i64 {
        let known = |load: &Load| load.last() - load.first() - load.gap_ms();
        self.loads().iter().map(known).min().unwrap_or_default()
    }

    /// The share of the time in which a metric can't be trusted.
    pub fn doubtful_share(&self) -> f64 {
        let minutes = |load: &Load| -> f64 {
            low_confidence(load).iter().map(|part| (part.to - part.from) * 1000.0).sum()
        };
        let most = self.loads().iter().map(minutes).fold(0.0, f64::max);
        most / ((self.last() - self.first()) as f64).max(1.0)
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
                let window_ms = candidate.sample_window_ms(recorded.step);
                let span = Span { first, end, window_ms, start: None, times: None };
                simulate(candidate, &mut recorded.source(), span, options, &mut ())
            }
        }
    }

    /// The pods that the load needs whatever the bounds are, at each period, the fewest first.
    pub(super) fn needs(&self, candidate: &Candidate, options: &Options) -> Vec<i64> {
        let mut source: Box<dyn Source> = match self {
            Self::File(load) => Box::new(Scraped::new(load, 0, 0)),
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
