//! What a report is made of, and what its charts keep of runs.

use super::names;
use crate::backtest::{
    self, Candidate, Load, LowConfidence, Measure, Options, Recording, Reproduction, Run, TimeAxis,
};
use crate::commands::story::{plain, span};
use crate::config::{BacktestFlags, RecordedFlags, ReportFormat};
use crate::time::UnixMillis;
use serde::Serialize;
use std::time::Duration;

/// The most candidates of a chart: each has a color of its own.
const MAX_CANDIDATES: usize = 8;

/// How long a pod takes until it is ready, where nothing says it.
pub const POD_START: Duration = Duration::from_secs(60);

/// What was tried, and on which load.
#[derive(Debug)]
pub struct Tried {
    /// The run of each candidate.
    pub runs: Vec<Run>,
    /// The time of the first decision.
    pub begin: UnixMillis,
    /// Where it can't be trusted.
    pub low_confidence: Vec<LowConfidence>,
    /// That rows are too far apart to see each peak, in words, where they are.
    pub coarse: Option<String>,
    /// By what one pod carries it is judged, in words; none of a queue, which has a rate.
    pub judged: Option<String>,
    /// What Prometheus says besides; none for a file of load.
    pub recorded: Option<FromPrometheus>,
    /// How many replicas there were, from each of these times on; empty if that is unknown.
    pub was: Vec<(UnixMillis, i64)>,
    /// What charts show of each run; none where the report has no chart.
    pub recordings: Vec<Recording>,
    /// What was tried.
    pub candidates: Vec<Candidate>,
    /// How the workload behaves.
    pub options: Options,
}

/// What Prometheus says besides the load.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FromPrometheus {
    /// How far the first candidate's run is what was; none if the replicas of then are unknown.
    pub reproduction: Option<Reproduction>,
    /// How long pods take to become ready, in seconds, and where that is from.
    pub pod_start: Start,
}

/// How long pods take to become ready.
#[derive(Debug, Serialize)]
pub struct Start {
    /// What is simulated, in seconds.
    pub seconds: f64,
    /// What nine of ten took at most, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p90: Option<f64>,
    /// Where that is from.
    pub source: String,
}

/// How much a report keeps.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The most slots of time.
    pub slots: usize,
    /// The most slots of all candidates together.
    pub of_all: usize,
    /// The most decisions of all candidates together that change replicas, and the most others.
    pub decisions: usize,
}

/// What the page keeps, so that it is below 5 MB: two numbers of the load and four of each candidate for each slot of
/// time, and about 60 bytes for each decision.
const PAGE: Bounds = Bounds { slots: 16_384, of_all: 65_536, decisions: 16_000 };
/// What a picture keeps, which has no accounts: one slot for two pixels of its width.
const PICTURE: Bounds = Bounds { slots: 444, of_all: usize::MAX, decisions: 1 };

impl Bounds {
    /// What charts of this format keep of runs; none where it has no chart.
    pub fn of(format: ReportFormat) -> Option<Self> {
        match format {
            ReportFormat::Text | ReportFormat::Json => None,
            ReportFormat::Html => Some(PAGE),
            ReportFormat::Svg | ReportFormat::Png => Some(PICTURE),
        }
    }

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
        let slots = self.slots.min(self.of_all / all.len().max(1));
        let axis = TimeAxis::new(first, last, periods.min().unwrap_or(1), slots);
        Recording::new(candidate, axis, self.decisions / all.len().max(1))
    }
}

impl Tried {
    /// The time of the first and of the last decision.
    pub fn span(&self) -> (UnixMillis, UnixMillis) {
        let last = self.runs.iter().map(|run| run.last).max();
        (self.begin, last.unwrap_or(self.begin))
    }

    /// How many decisions were made, of the candidate with the most.
    pub fn ticks(&self) -> i64 {
        self.runs.iter().map(|run| run.ticks).max().unwrap_or_default()
    }

    /// By what one pod carries it is judged, or what is assumed of a queue, which has a rate.
    pub fn basis(&self) -> Option<String> {
        self.judged.clone().or_else(|| self.options.service_rate.map(queue))
    }

    /// Why little that is found of a candidate can be trusted.
    pub fn doubts(&self) -> Vec<String> {
        let of_one = |candidate: &Candidate| {
            let line = |doubt| format!("Low trust: {}: {doubt}.", candidate.name);
            candidate.doubts.iter().map(line).map(|line| plain(&line).into_owned()).collect()
        };
        let coarse = self.coarse.iter().map(|coarse| format!("Low trust: {coarse}."));
        coarse.chain(self.candidates.iter().flat_map::<Vec<String>, _>(of_one)).collect()
    }

    /// The replicas that there were in each slot of the charts: the last ones. None before the first that are known.
    pub fn was_in_slots(&self) -> Vec<Option<i64>> {
        let Some(axis) =
            self.recordings.first().map(|one| one.axis).filter(|_| !self.was.is_empty())
        else {
            return Vec::new();
        };
        let (mut next, mut last) = (self.was.iter().peekable(), None);
        let ends = (1..=axis.slots as i64).map(|slot| axis.first + slot * axis.width);
        ends.map(|end| {
            while let Some((_, replicas)) = next.next_if(|(time, _)| *time < end) {
                last = Some(*replicas);
            }
            last
        })
        .collect()
    }

    /// Which metrics are taken for loads; none where a model says what they are.
    pub fn loads(&self) -> Vec<String> {
        match self.options.service_rate {
            Some(_) => Vec::new(),
            None => self.candidates.iter().map(loads).collect(),
        }
    }

    /// What is assumed and left out.
    pub fn assumptions(&self) -> Vec<String> {
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
        texts.extend(self.candidates.iter().map(|candidate| self.needed_of(candidate)));
        texts.extend(self.loads());
        texts.push(match self.options.service_rate {
            Some(rate) => queue(rate),
            None => "Queues are not simulated.".to_owned(),
        });
        texts.extend(self.doubts());
        texts.push("Failing pods, rollouts and scaling by hand are not simulated.".to_owned());
        texts
    }

    /// How many pods the load needs, by a candidate.
    fn needed_of(&self, candidate: &Candidate) -> String {
        let carries = with_loads(candidate).map(Measure::carries);
        // Of a queue, the target is a length of it.
        let carries = carries.map(|carries| self.options.service_rate.unwrap_or(carries));
        let carries: Vec<String> = carries.map(|carries| carries.to_string()).collect();
        let fewer = match candidate.spec.schedules.is_empty() {
            true => "",
            false => ", or fewer where a schedule allows fewer",
        };
        format!(
            "{}: one pod carries {}; at least {} are needed{fewer}.",
            candidate.name,
            carries.join(" and "),
            candidate.min(),
        )
    }

    /// What the charts of the page show.
    pub fn shown(&self) -> Vec<String> {
        let width = self.recordings.first().map_or(0, |one| one.axis.width);
        let mut texts = vec![format!(
            "The charts show each {}: the least and the most load, the most needed and the fewest ready pods, and the last desired replicas.",
            span(width)
        )];
        for (candidate, recording) in self.candidates.iter().zip(&self.recordings) {
            let changes = match recording.every_change {
                0 => "all changes".to_owned(),
                every => format!("one change in {} at most", span(every)),
            };
            let period = candidate.period_ms(self.options.period);
            texts.push(format!(
                "{}: the decisions shown are {changes}, and one in {}.",
                candidate.name,
                span(recording.every.max(period))
            ));
        }
        texts
    }
}

/// Where one of several loads can't be trusted, or is unknown before or after what is tried, in the order of time.
pub fn low_confidence<'a>(loads: impl IntoIterator<Item = &'a Load>) -> Vec<LowConfidence> {
    let of_one = |load: &'a Load| {
        let why = "there is no load in the history: it is not tried";
        let ends = load.unknown_ends().map(move |(from, to)| LowConfidence::new(from, to, why));
        backtest::low_confidence(load).into_iter().chain(ends)
    };
    in_order(loads.into_iter().flat_map(of_one).collect())
}

/// Parts in the order of time, each once.
pub fn in_order(mut parts: Vec<LowConfidence>) -> Vec<LowConfidence> {
    parts.sort_by(|one, other| one.from.total_cmp(&other.from));
    parts.dedup();
    parts
}

/// The metrics of a candidate but those that are bounds.
fn with_loads(candidate: &Candidate) -> impl Iterator<Item = &Measure> {
    candidate.metrics.iter().filter(|metric| !metric.is_constant())
}

/// What is assumed of the metrics of a candidate.
fn loads(candidate: &Candidate) -> String {
    let names = with_loads(candidate).map(|metric| names::short(candidate, metric));
    let names: Vec<&str> = names.collect();
    let taken = match names.len() {
        1 => "is taken for a load, which is",
        _ => "are taken for loads, which are",
    };
    format!("{}: {} {taken} the same with any number of pods.", candidate.name, names.join(" and "))
}

/// What is assumed of a queue.
pub fn queue(rate: f64) -> String {
    format!(
        "Assumed: the load is what arrives in a queue, each ready pod completes {rate} of it in a second however much waits, nothing is dropped, the queue is empty at the beginning, and its length is known at each decision."
    )
}

impl RecordedFlags {
    /// How the workload and its metric behave; how long its pods take to start, if no flag says it.
    pub(in crate::commands) fn options(&self, pod_start: Duration) -> Options {
        Options {
            pod_start: self.pod_start.unwrap_or(pod_start),
            window: self.window,
            scrape_interval: self.scrape_interval,
            warm_up: Duration::ZERO,
            period: self.period,
            service_rate: None,
        }
    }
}

impl BacktestFlags {
    /// The same with what only a backtest has.
    pub(super) fn modeled(&self, options: Options) -> Options {
        Options { warm_up: self.warm_up, service_rate: self.service_rate, ..options }
    }
}
