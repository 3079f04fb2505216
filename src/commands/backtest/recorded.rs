//! `plimsoll backtest --prometheus-url`: load and replicas from Prometheus, and what was is reproduced first.

use super::report::{Bounds, FromPrometheus, POD_START, Start, Tried};
use crate::backtest::{self, Candidate, Grid, History, PodStart, Recorded, Span};
use crate::clock::WallClock;
use crate::config::{BacktestFlags, Config, Moment};
use crate::connect;
use std::collections::BTreeMap;

/// The history that is tried without `--from`, in ms: a week.
const DEFAULT_SPAN: i64 = 7 * 86_400_000;
/// The last part of the history that is reproduced, in ms: a day.
const REPRODUCED_SPAN: i64 = 86_400_000;
/// At how many points of it the load is read, and their least distance in ms.
const REPRODUCED_POINTS: i64 = 28_800;
const REPRODUCED_STEP: i64 = 1_000;

/// Tries candidates on what Prometheus recorded.
///
/// # Errors
/// If Prometheus can't be read, or has nothing of the metrics in this time.
pub async fn run(
    flags: &BacktestFlags,
    url: &str,
    mut candidates: Vec<Candidate>,
) -> Result<Tried, String> {
    let prometheus =
        connect::prometheus(url, &flags.prometheus).map_err(|error| error.to_string())?;
    let config = match &flags.config {
        Some(file) => Config::read(file).map_err(|error| error.with_lines())?,
        None => Config::default(),
    };
    let requests: BTreeMap<String, f64> = flags.requests.iter().cloned().collect();
    let totals: BTreeMap<String, String> = flags.queries.iter().cloned().collect();
    let history = History {
        prometheus: &prometheus,
        queries: &config.pod_queries,
        totals: &totals,
        requests: &requests,
    };
    for candidate in &mut candidates {
        if candidate.namespace.is_empty() {
            let given = flags.namespace.clone();
            candidate.namespace = given.ok_or_else(|| {
                format!(
                    "{}: it has no namespace: give metadata.namespace or --namespace",
                    candidate.name
                )
            })?;
        }
        candidate.refuse_feedback()?;
    }
    let now = WallClock::default().timestamp().as_millisecond();
    let time = |moment: Option<Moment>| moment.map(|moment| moment.before(now));
    let last = time(flags.to).unwrap_or(now).min(now);
    let first = time(flags.from).unwrap_or(last.saturating_sub(DEFAULT_SPAN));
    let steps = candidates.iter().map(|candidate| candidate.period_ms(flags.period));
    let step = steps.min().unwrap_or(REPRODUCED_STEP);
    if first + step > last {
        return Err("--from: a time before --to, and before now, was expected".to_owned());
    }
    // Before it is all read.
    backtest::check_ticks((last - first) / step)?;
    let grid = Grid { first, last, step };
    let in_force = candidates.first_mut().ok_or("there is no candidate")?;
    // What its stabilization windows hold at the beginning was before it.
    let earlier = in_force.window_ms() + 2 * step;
    let was_there = history.was_there(in_force, Grid { first: first - earlier, ..grid }).await?;
    let known = match flags.pod_start {
        Some(_) => None,
        None => history.pod_start(in_force, &was_there, grid).await?,
    };
    let options = flags.options(known.as_ref().map_or(POD_START, |start| start.p50));
    // What was decided was decided on values of that very time.
    let from = first.max(last - REPRODUCED_SPAN);
    let step = ((last - from) / REPRODUCED_POINTS).clamp(REPRODUCED_STEP, step);
    let fine = Grid { first: from - earlier, last, step };
    let recorded = history.recorded(in_force, fine).await?;
    let reproduction = backtest::reproduce(in_force, &recorded, &was_there, from, &options)?;
    let mut tried = Vec::new();
    for candidate in &mut candidates {
        let recorded = history.recorded(candidate, grid).await;
        tried.push(recorded.map_err(|error| format!("{}: {error}", candidate.name))?);
    }
    let bounds = Bounds::of(flags.output);
    let firsts = tried.iter().map(Recorded::first).min();
    let lasts = tried.iter().map(Recorded::last).max();
    let whole = firsts.zip(lasts).ok_or("there is no candidate")?;
    let (mut runs, mut recordings) = (Vec::new(), Vec::new());
    for (candidate, recorded) in candidates.iter().zip(&tried) {
        let (first, end) = (recorded.first(), recorded.last());
        let start = was_there.replicas.at(first);
        let span = Span { first, end, window_ms: step, start, times: None };
        let mut recording =
            bounds.map(|one| one.recording(candidate, &candidates, &options, whole));
        let source = &mut recorded.source();
        let run = backtest::simulate(candidate, source, span, &options, &mut recording);
        recordings.extend(recording);
        runs.push(run.map_err(|error| format!("{}: {error}", candidate.name))?);
    }
    let load = tried.first().and_then(|recorded| recorded.loads.first()).cloned();
    let load = load.ok_or("there is no load")?;
    let low_confidence = backtest::low_confidence(&load);
    let recorded = FromPrometheus { reproduction, pod_start: Start::of(flags, known) };
    let recorded = Some(recorded);
    let was = was_there.replicas.samples().to_vec();
    Ok(Tried { runs, load, low_confidence, recorded, was, recordings, candidates, options })
}

impl Start {
    fn of(flags: &BacktestFlags, known: Option<PodStart>) -> Self {
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
