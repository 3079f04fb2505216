//! `plimsoll backtest --prometheus-url`: load and replicas from Prometheus, and what was is reproduced first.

use super::names;
use super::report::{Bounds, FromPrometheus, POD_START, Start, Tried, in_order, low_confidence};
use crate::backtest::{
    self, Candidate, Grid, History, HistoryError, LowConfidence, Options, PodStart, Recorded, Span,
    WasThere,
};
use crate::blocking;
use crate::clock::WallClock;
use crate::commands::story::span;
use crate::config::{BacktestFlags, Config, Moment, RecordedFlags};
use crate::connect;
use crate::prometheus::Client;
use crate::time::UnixMillis;
use std::collections::BTreeMap;

/// The history that is tried without `--from`, in ms: a week.
const DEFAULT_SPAN: i64 = 7 * 86_400_000;
/// The last part of the history that is reproduced, in ms: a day.
const REPRODUCED_SPAN: i64 = 86_400_000;
/// At how many points of it the load is read, and their least distance in ms.
const REPRODUCED_POINTS: i64 = 28_800;
const REPRODUCED_STEP: i64 = 1_000;

/// The Prometheus that has the load, and the part of it that is tried.
#[derive(Debug)]
pub struct Backend {
    flags: RecordedFlags,
    prometheus: Client,
    config: Config,
    totals: BTreeMap<String, String>,
    requests: BTreeMap<String, f64>,
    first: UnixMillis,
    last: UnixMillis,
}

/// What Prometheus has of the workload of an autoscaler.
#[derive(Debug)]
pub struct OfWorkload {
    /// Its load.
    pub recorded: Recorded,
    /// What is said of it besides.
    pub about: FromPrometheus,
    /// How its pods behave.
    pub options: Options,
    /// The parts of the time that was asked for without all of its metrics.
    pub not_tried: Vec<LowConfidence>,
}

impl Backend {
    /// # Errors
    /// If a flag or the configuration is invalid.
    pub fn open(flags: &RecordedFlags, url: &str) -> Result<Self, String> {
        let prometheus = connect::prometheus_of_command(url, &flags.prometheus)
            .map_err(|error| error.to_string())?;
        let config = match &flags.config {
            Some(file) => Config::read(file).map_err(|error| error.with_lines())?,
            None => Config::default(),
        };
        let now = WallClock::default().timestamp().as_millisecond();
        let time = |moment: Option<Moment>| moment.map(|moment| moment.before(now));
        let last = time(flags.to).unwrap_or(now).min(now);
        let first = time(flags.from).unwrap_or(last.saturating_sub(DEFAULT_SPAN));
        let requests = flags.requests.iter().cloned().collect();
        let totals = flags.queries.iter().cloned().collect();
        Ok(Self { flags: flags.clone(), prometheus, config, totals, requests, first, last })
    }

    fn history(&self) -> History<'_> {
        History {
            prometheus: &self.prometheus,
            queries: &self.config.pod_queries,
            totals: &self.totals,
            requests: &self.requests,
        }
    }

    /// The times at which the load is read for decisions of this period.
    fn grid(&self, step: i64) -> Result<Grid, String> {
        let Self { first, last, .. } = *self;
        if first >= last {
            return Err("--from: a time before --to, and before now, was expected".to_owned());
        }
        if first + step > last {
            let [there, period] = [last - first, step].map(span);
            return Err(format!(
                "--from: there are {there} of history until --to: at least a period, which is {period}, was expected"
            ));
        }
        // Before it is all read.
        backtest::check_ticks((last - first) / step)?;
        Ok(Grid { first, last, step })
    }

    /// The beginning of the part that is reproduced.
    fn reproduced_from(&self) -> UnixMillis {
        self.first.max(self.last - REPRODUCED_SPAN)
    }

    /// The behavior of a workload's pods, and where it is from.
    async fn options(
        &self,
        candidate: &Candidate,
        was_there: &WasThere,
        grid: Grid,
    ) -> Result<(Options, Start), String> {
        let known = match self.flags.pod_start {
            Some(_) => None,
            None => self.history().pod_start(candidate, was_there, grid).await?,
        };
        let options = self.flags.options(known.as_ref().map_or(POD_START, |start| start.p50));
        Ok((options, Start::of(&self.flags, known)))
    }

    /// What there is of the workload of an autoscaler. Of the replicas of one of many, that is what there was in the part that
    /// is reproduced, so that what was cut off while pods started is seen there only. The part that is reproduced has as many points as the
    /// rest, so that decisions of then are reproduced less exactly than [`run`] does.
    ///
    /// # Errors
    /// If Prometheus can't be read, or has nothing of the metrics in this time.
    pub async fn of_workload(
        &self,
        candidate: &mut Candidate,
        is_one: bool,
    ) -> Result<OfWorkload, String> {
        if candidate.namespace.is_empty() {
            return Err("it has no namespace: give metadata.namespace or --namespace".to_owned());
        }
        candidate.refuse_feedback(&self.totals)?;
        let step = candidate.period_ms(self.flags.period);
        let (grid, history) = (self.grid(step)?, self.history());
        let from = self.reproduced_from();
        let earlier = candidate.window_ms() + 2 * step;
        let first = if is_one { grid.first } else { from } - earlier;
        let was_there = history.was_there(candidate, Grid { first, ..grid }).await?;
        let (options, start) = self.options(candidate, &was_there, grid).await?;
        let recorded = history.recorded(candidate, grid).await;
        let mut recorded = recorded.map_err(|error| error.to_string())?;
        if let Ok(part) = recorded.between(Some(first), None) {
            recorded.cut_off = backtest::while_starting(candidate, &part, &was_there);
        }
        let reproduction = match recorded.between(Some(from - earlier), None) {
            Ok(part) => backtest::reproduce(candidate, &part, &was_there, from, &options)?,
            Err(_) => None,
        };
        let about = FromPrometheus { reproduction, pod_start: start };
        let not_tried = not_tried(grid, recorded.first(), recorded.last());
        Ok(OfWorkload { recorded, about, options, not_tried })
    }
}

/// Checks what the flags say of Prometheus and of its queries, without a request.
///
/// # Errors
/// If a flag or the configuration is invalid.
pub fn check(flags: &RecordedFlags, url: &str) -> Result<(), String> {
    Backend::open(flags, url).map(|_| ())
}

/// Refuses a query for a metric that none of these candidates has.
///
/// # Errors
/// If there is one.
pub fn check_queries<'a>(
    flags: &RecordedFlags,
    candidates: impl Iterator<Item = &'a Candidate> + Clone,
) -> Result<(), String> {
    flags.queries.iter().try_for_each(|(name, _)| {
        let known = names::check(candidates.clone(), name);
        known.map_err(|error| format!("--query: {error}"))
    })
}

/// The parts of the time that was asked for which are not tried, where that is from a first to a last time.
fn not_tried(asked: Grid, first: UnixMillis, last: UnixMillis) -> Vec<LowConfidence> {
    let why = "a metric of a candidate has no value in the history: it is not tried";
    [(asked.first, first), (last, asked.last)]
        .into_iter()
        .filter(|(from, to)| to - from > 2 * asked.step)
        .map(|(from, to)| LowConfidence::new(from, to, why))
        .collect()
}

/// Tries candidates for one workload on what Prometheus recorded.
///
/// # Errors
/// If Prometheus can't be read, or has nothing of the metrics in this time.
pub async fn run(
    flags: &BacktestFlags,
    url: &str,
    mut candidates: Vec<Candidate>,
) -> Result<Tried, String> {
    let backend = Backend::open(&flags.recorded, url)?;
    let history = backend.history();
    for candidate in &candidates {
        if candidate.namespace.is_empty() {
            return Err(format!(
                "{}: it has no namespace: give metadata.namespace or --namespace",
                candidate.name
            ));
        }
    }
    let steps = candidates.iter().map(|candidate| candidate.period_ms(flags.recorded.period));
    let step = steps.min().unwrap_or(REPRODUCED_STEP);
    let grid = backend.grid(step)?;
    let Grid { first, last, .. } = grid;
    let in_force = candidates.first_mut().ok_or("there is no candidate")?;
    // What its stabilization windows hold at the beginning was before it.
    let earlier = in_force.window_ms() + 2 * step;
    let was_there = history.was_there(in_force, Grid { first: first - earlier, ..grid }).await?;
    let (options, start) = backend.options(in_force, &was_there, grid).await?;
    let options = flags.modeled(options);
    // What was decided was decided on values of that very time.
    let from = backend.reproduced_from();
    let fine_step = ((last - from) / REPRODUCED_POINTS).max(REPRODUCED_STEP).min(step);
    let fine = Grid { first: from - earlier, last, step: fine_step };
    let reproduction = match history.recorded(in_force, fine).await {
        Ok(recorded) => {
            blocking::run(|| backtest::reproduce(in_force, &recorded, &was_there, from, &options))?
        }
        // It ended before that.
        Err(HistoryError::Empty { .. }) => None,
        Err(HistoryError::Failed(error)) => return Err(error),
    };
    let mut tried = Vec::new();
    for candidate in &mut candidates {
        let recorded = history.recorded(candidate, grid).await;
        tried.push(recorded.map_err(|error| format!("{}: {error}", candidate.name))?);
    }
    let bounds = Bounds::of(flags.output);
    // All are tried on the time of which the metrics of all are known.
    let begin = tried.iter().map(Recorded::first).max().unwrap_or(first);
    let end = tried.iter().map(Recorded::last).min().unwrap_or(last);
    if begin >= end {
        return Err("the metrics of the candidates have no time in common".to_owned());
    }
    let (mut runs, mut recordings) = (Vec::new(), Vec::new());
    for (candidate, recorded) in candidates.iter().zip(&tried) {
        // Here a run ends that nobody waits for any more.
        tokio::task::yield_now().await;
        let start = was_there.replicas.at(begin);
        let window_ms = candidate.sample_window_ms(step);
        let span = Span { first: begin, end, window_ms, start, times: None };
        let mut recording =
            bounds.map(|one| one.recording(candidate, &candidates, &options, (begin, end)));
        let source = &mut recorded.source();
        let run =
            blocking::run(|| backtest::simulate(candidate, source, span, &options, &mut recording));
        recordings.extend(recording);
        runs.push(run.map_err(|error| format!("{}: {error}", candidate.name))?);
    }
    let loads = tried.iter().flat_map(|recorded| &recorded.loads);
    let mut low_confidence = low_confidence(loads);
    let of_one = candidates.iter().zip(&tried).next();
    low_confidence.extend(of_one.into_iter().flat_map(|(candidate, recorded)| {
        backtest::while_starting(candidate, recorded, &was_there)
    }));
    low_confidence
        .retain(|part| part.to * 1000.0 > begin as f64 && part.from * 1000.0 < end as f64);
    low_confidence.extend(not_tried(grid, begin, end));
    let low_confidence = in_order(low_confidence);
    let recorded = Some(FromPrometheus { reproduction, pod_start: start });
    let was = was_there.replicas.samples().to_vec();
    Ok(Tried {
        runs,
        begin,
        low_confidence,
        coarse: None,
        judged: None,
        recorded,
        was,
        recordings,
        candidates,
        options,
    })
}

impl Start {
    fn of(flags: &RecordedFlags, known: Option<PodStart>) -> Self {
        match (flags.pod_start, known) {
            (Some(given), _) => {
                Self { seconds: given.as_secs_f64(), p90: None, source: "--pod-start".to_owned() }
            }
            (None, Some(known)) => Self {
                seconds: known.p50.as_secs_f64(),
                p90: Some(known.p90.as_secs_f64()),
                source: known.source.to_owned(),
            },
            (None, None) => Self {
                seconds: POD_START.as_secs_f64(),
                p90: None,
                source: "assumed: nothing was recorded; give --pod-start".to_owned(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_tried_is_told_but_for_the_rest_of_a_period() {
        let asked = Grid { first: 0, last: 3_650_000, step: 60_000 };
        assert!(not_tried(asked, 0, 3_600_000).is_empty());
        let parts = not_tried(asked, 600_000, 1_800_000);
        let times: Vec<_> = parts.iter().map(|part| (part.from, part.to)).collect();
        assert_eq!(times, [(0.0, 600.0), (1_800.0, 3_650.0)]);
    }
}
