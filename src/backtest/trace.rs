//! The load that specs are tried on.

use super::candidate::Candidate;
use super::load::Load;
use super::recorded::Recorded;
use super::run::{Options, Run, Span, run, simulate};
use super::saturation::{LowConfidence, coarse, cut_off, minutes, unchanged, unknown};
use super::source::{Following, Scraped, Source};
use crate::time::UnixMillis;

/// The load that specs are tried on.
#[derive(Clone, Debug)]
pub enum Trace {
    /// Of a file, for autoscalers with one metric that has a load: its samples are means over the window of the options.
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

    /// The first time at which all metrics are known.
    pub fn first(&self) -> UnixMillis {
        match self {
            Self::File(load) => load.first(),
            Self::Recorded(recorded) => recorded.first(),
        }
    }

    /// The last one.
    pub fn last(&self) -> UnixMillis {
        match self {
            Self::File(load) => load.last(),
            Self::Recorded(recorded) => recorded.last(),
        }
    }

    /// How long all metrics are known, in ms.
    pub fn known_ms(&self) -> i64 {
        let (mut end, last) = (self.first(), self.last());
        let mut known = (last - end).max(0);
        let mut gaps: Vec<_> = self.loads().iter().flat_map(Load::gaps).collect();
        gaps.sort_unstable();
        for (from, to) in gaps {
            let to = to.min(last);
            known -= (to - from.max(end)).max(0);
            end = end.max(to);
        }
        known
    }

    /// Where a metric is unknown.
    pub fn unknown(&self) -> Vec<LowConfidence> {
        self.loads().iter().flat_map(unknown).collect()
    }

    /// Where a metric was cut off.
    pub fn cut_off(&self) -> Vec<LowConfidence> {
        let mut parts: Vec<LowConfidence> = self.loads().iter().flat_map(cut_off).collect();
        if let Self::Recorded(recorded) = self {
            parts.extend(recorded.cut_off.iter().cloned());
        }
        parts
    }

    /// Where a metric is constant, as it is not on other days: of a part of the load it may be so by nature.
    pub fn unchanged(&self) -> Vec<LowConfidence> {
        self.loads().iter().flat_map(unchanged).collect()
    }

    /// In how many minutes a metric can't be trusted.
    pub fn doubtful_minutes(&self) -> f64 {
        self.minutes(&[self.unknown(), self.cut_off(), self.unchanged()].concat())
    }

    /// How many minutes of it these parts are.
    pub fn minutes(&self, parts: &[LowConfidence]) -> f64 {
        let [first, last] = [self.first(), self.last()].map(|time| time as f64 / 1000.0);
        let mut parts = parts.to_vec();
        for part in &mut parts {
            (part.from, part.to) = (part.from.max(first), part.to.min(last));
        }
        minutes(&parts)
    }

    /// As [`coarse`]. Values of Prometheus have a point for each decision.
    pub fn coarse(&self, options: &Options) -> Option<String> {
        match self {
            Self::File(load) => coarse(load, options),
            Self::Recorded(_) => None,
        }
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
            Self::File(load) => {
                Box::new(Following::new(Scraped::new(load, 0, 0), &candidate.metrics))
            }
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
