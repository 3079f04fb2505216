//! The closed loop: decisions on recorded load, and the workload that follows them.

use super::candidate::{Candidate, Measure, millis};
use super::figures::{Figures, Tally};
use super::load::Load;
use super::measured::Measured;
use super::observer::{Decided, Observer};
use super::queue::Queue;
use super::source::{Scraped, Source};
use super::workload::Workload;
use crate::hpa::{
    self, ConditionKind, Context, ControllerConfig, Input, Outcome, Scale, ScalingHistory,
    Selected, Status,
};
use crate::time::UnixMillis;
use std::time::Duration;

/// The most decisions of a run: two years at the default period.
pub const MAX_TICKS: i64 = 4_300_000;
/// The most replicas that are simulated.
const MAX_REPLICAS: i64 = 100_000;

/// How the workload and its metric behave.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long a pod takes until it is ready.
    pub pod_start: Duration,
    /// The window of the metric.
    pub window: Duration,
    /// The interval of scrapes.
    pub scrape_interval: Duration,
    /// The time at the beginning that is decided on, but not counted.
    pub warm_up: Duration,
    /// The period of decisions, if not the Autoscaler's own, which is 15 s by default.
    pub period: Option<Duration>,
    /// The metric is the length of a queue, and the load is what arrives in a second: how many entries a ready pod
    /// completes in a second.
    pub service_rate: Option<f64>,
}

/// The run of a candidate.
#[derive(Clone, Debug)]
pub struct Run {
    /// What it costs, and what it leaves short.
    pub figures: Figures,
    /// The ready and the wanted replicas after a decision, where they change.
    pub replicas: Vec<(UnixMillis, usize, i32)>,
    /// The time of the last decision.
    pub last: UnixMillis,
    /// How many decisions were made.
    pub ticks: i64,
}

/// The times of a run.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// The first decision.
    pub first: UnixMillis,
    /// No decision is later.
    pub end: UnixMillis,
    /// The window of the metrics, in ms.
    pub window_ms: i64,
    /// The ready pods at the beginning; none for those that the targets ask for.
    pub start: Option<i64>,
    /// The times of the decisions, if they are not one period after another.
    pub times: Option<&'a [UnixMillis]>,
}

/// Runs a candidate on the load of a file.
///
/// # Errors
/// If that is more than [`MAX_TICKS`] decisions, the load needs more replicas than can be simulated, or the candidate
/// has more than one metric.
pub fn run(candidate: &Candidate, load: &Load, options: &Options) -> Result<Run, String> {
    run_observed(candidate, load, options, &mut ())
}

/// The same, with someone who sees each decision.
///
/// # Errors
/// As [`run`].
pub fn run_observed(
    candidate: &Candidate,
    load: &Load,
    options: &Options,
    observer: &mut impl Observer,
) -> Result<Run, String> {
    candidate.only_metric()?;
    let window_ms = millis(options.window);
    let span = Span { first: load.first(), end: load.last(), window_ms, start: None, times: None };
    let mut scraped = Scraped::new(load, window_ms, millis(options.scrape_interval));
    simulate(candidate, &mut scraped, span, options, observer)
}

/// Refuses runs that are too long.
///
/// # Errors
/// If they have more than [`MAX_TICKS`] decisions.
pub fn check_ticks(ticks: i64) -> Result<(), String> {
    match ticks > MAX_TICKS {
        false => Ok(()),
        true => Err(format!(
            "{ticks} decisions: at most {MAX_TICKS} were expected; choose a part with --from and --to, or a longer --period"
        )),
    }
}

/// Runs a candidate on what a source knows of the load, with someone who sees each decision; `()` is none.
///
/// # Errors
/// If that is more than [`MAX_TICKS`] decisions, the load needs more replicas than can be simulated, or the candidate's
/// [`stop`](Candidate::stop) has ended its runs.
pub fn simulate(
    candidate: &Candidate,
    source: &mut impl Source,
    span: Span<'_>,
    options: &Options,
    observer: &mut impl Observer,
) -> Result<Run, String> {
    let Some(rate) = options.service_rate else {
        return closed_loop(candidate, source, span, options, observer);
    };
    let mut candidate = candidate.clone();
    candidate.set_service_rate(rate)?;
    let mut arrivals = Vec::new();
    source.load(span.first, &mut arrivals);
    let [least, _] = candidate.bounds_at(span.first);
    let start = span.start.or_else(|| candidate.needed(&arrivals, least));
    let mut queue = Queue::new(source, rate);
    closed_loop(&candidate, &mut queue, Span { start, ..span }, options, observer)
}

fn closed_loop(
    candidate: &Candidate,
    source: &mut impl Source,
    span: Span<'_>,
    options: &Options,
    observer: &mut impl Observer,
) -> Result<Run, String> {
    let period = candidate.period_ms(options.period);
    let Span { first, end, window_ms, .. } = span;
    if first > end {
        return Err("its metrics have no time in common in this history".to_owned());
    }
    let ticks = span.times.map_or((end - first) / period + 1, |times| times.len() as i64);
    check_ticks(ticks)?;
    let (spec, config) = (&candidate.spec, config(candidate));
    let (mut values, mut loads) = (Vec::new(), Vec::new());
    source.load(first, &mut loads);
    let [least, _] = candidate.bounds_at(first);
    let start = span.start.or_else(|| candidate.asked(&loads, least)).unwrap_or_default();
    // A workload that was at zero by other hands stays there, and says nothing of the autoscaler.
    let start = if start == 0 && !spec.may_be_zero() { 1 } else { start };
    if start > MAX_REPLICAS {
        let carries: Vec<f64> = candidate.metrics.iter().map(Measure::carries).collect();
        return Err(format!(
            "{start} replicas at the beginning: at most {MAX_REPLICAS} are simulated; is what a pod carries, {carries:?}, in the unit of the load?"
        ));
    }
    let requests = candidate.requests();
    let pod_start = millis(options.pod_start);
    let mut workload = Workload::new(start as usize, first, pod_start, &requests);
    let mut wanted = start as i32;
    let (mut history, mut status) = (ScalingHistory::default(), Status::default());
    if start == 0 {
        // It is the autoscaler's own zero, which it leads back from.
        let why = format_args!("it begins at zero");
        status.set(ConditionKind::ScaledToZero, true, "ScaledToZero", why, first);
    }
    let mut tally = Tally::new(period, wanted);
    let mut replicas: Vec<(UnixMillis, usize, i32)> = Vec::new();
    let mut measured = Measured::new(candidate);
    let counted_from = first.saturating_add(millis(options.warm_up));
    let last = match span.times {
        Some(times) => times.last().copied().unwrap_or(first),
        None => first + (ticks - 1) * period,
    };
    if counted_from > last {
        return Err(format!(
            "--warm-up: at most the {} s until the last decision were expected, as nothing is counted before",
            (last - first) / 1000
        ));
    }
    for tick in 0..ticks {
        candidate.stop.check()?;
        let now = span.times.map_or(first + tick * period, |times| times[tick as usize]);
        workload.advance(now);
        source.measured(now, workload.ready(), &mut values);
        measured.set(&values, &workload, now, window_ms);
        let samples = measured.samples();
        let scale = Scale { spec_replicas: wanted, status_replicas: wanted };
        let context = Context::new(spec, &config, now);
        let input = Input {
            namespace: &candidate.namespace,
            context,
            scale: Ok(scale),
            selected: Selected::Pods(workload.pods()),
            samples: &samples,
        };
        let mut decision = hpa::decide(&input, &mut history, &mut status, observer);
        if let Outcome::Rescale { to, .. } = decision.outcome {
            hpa::complete_rescale(context, &mut decision, Ok(()), &mut history, &mut status);
            wanted = to;
            if i64::from(wanted) > MAX_REPLICAS {
                return Err(format!("{wanted} replicas: at most {MAX_REPLICAS} are simulated"));
            }
        }
        drop(samples);
        workload.scale(wanted.unsigned_abs() as usize, now);
        source.decided(now, workload.ready());
        let after = (workload.ready(), wanted);
        if replicas.last().is_none_or(|(_, ready, wanted)| (*ready, *wanted) != after) {
            replicas.push((now, after.0, after.1));
        }
        source.load(now, &mut loads);
        let needed = candidate.needed(&loads, candidate.least_needed(context));
        tally.count(context, needed, workload.ready(), wanted, now >= counted_from);
        observer.decided(&Decided {
            context,
            current: scale.spec_replicas,
            decision: &decision,
            status: &status,
            history: &history,
            period,
            loads: &loads,
            needed,
            ready: workload.ready(),
            wanted,
        });
    }
    let figures = tally.figures(&candidate.name);
    Ok(Run { figures, replicas, last, ticks })
}

/// The flags by default. An autoscaler that allows zero at any time is decided as where `--scale-to-zero` is on.
fn config(candidate: &Candidate) -> ControllerConfig {
    ControllerConfig { scale_to_zero: candidate.spec.may_be_zero(), ..ControllerConfig::default() }
}
