//! The closed loop: decisions on recorded load, and the workload that follows them.

use super::candidate::Candidate;
use super::figures::{Figures, Tally};
use super::load::{Load, Means};
use super::observer::{Decided, Observer};
use super::workload::Workload;
use crate::hpa::{
    self, AlignedSamples, Context, ControllerConfig, Input, Outcome, Requests, Sample, Samples,
    Scale, ScalingHistory, Selected, Status,
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

/// Runs a candidate on a load.
///
/// # Errors
/// If that is more than [`MAX_TICKS`] decisions, or the load needs more replicas than can be simulated.
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
    let period = candidate.period_ms(options.period);
    let (first, end) = (load.first(), load.last());
    let ticks = (end - first) / period + 1;
    if ticks > MAX_TICKS {
        return Err(format!(
            "{ticks} decisions: at most {MAX_TICKS} were expected; choose a part with --from and --to, or a longer --period"
        ));
    }
    let (spec, config) = (&candidate.spec, config(candidate));
    let mut now_load = load.cursor();
    let mut metric = Metric::new(load, options.window, options.scrape_interval);
    let start = now_load.at(first).map_or(0, |load| candidate.needed(load));
    if start > MAX_REPLICAS {
        return Err(format!(
            "{start} replicas at the beginning: at most {MAX_REPLICAS} are simulated; is what a pod carries, {}, in the unit of the load?",
            candidate.pod_carries
        ));
    }
    let requests = Requests::default();
    let pod_start = millis(options.pod_start);
    let mut workload = Workload::new(start as usize, first, pod_start, &requests);
    let mut wanted = start as i32;
    let (mut history, mut status) = (ScalingHistory::default(), Status::default());
    let mut tally = Tally::new(spec, period, wanted);
    let mut replicas: Vec<(UnixMillis, usize, i32)> = Vec::new();
    let mut of_pods: Vec<Option<Sample>> = Vec::new();
    let counted_from = first.saturating_add(millis(options.warm_up));
    let mut now = first;
    for _ in 0..ticks {
        workload.advance(now);
        let mean = metric.at(now);
        of_pods.clear();
        let ready = workload.ready();
        if let Some(mean) = mean.filter(|_| ready > 0) {
            let milli = (1000.0 * mean / ready as f64 - 0.001).ceil() as i64;
            let window_ms = millis(options.window);
            of_pods.resize(ready, Some(Sample { milli, time: now, window_ms }));
        }
        of_pods.resize(workload.pods().len(), None);
        let aligned = AlignedSamples::of_pods(std::mem::take(&mut of_pods));
        let total = mean.map(|mean| [(1000.0 * mean - 0.001).ceil() as i64]);
        let samples = if candidate.is_per_pod {
            Samples::PerPod(Ok(aligned.view()))
        } else {
            Samples::Values(total.as_ref().map(<[i64; 1]>::as_slice).ok_or("there is no load"))
        };
        let scale = Scale { spec_replicas: wanted, status_replicas: wanted };
        let context = Context::new(spec, &config, now);
        let input = Input {
            namespace: "",
            context,
            scale: Ok(scale),
            selected: Selected::Pods(workload.pods()),
            samples: &[samples],
        };
        let mut decision = hpa::decide(&input, &mut history, &mut status, observer);
        if let Outcome::Rescale { to, .. } = decision.outcome {
            hpa::complete_rescale(context, &mut decision, Ok(()), &mut history, &mut status);
            wanted = to;
            if i64::from(wanted) > MAX_REPLICAS {
                return Err(format!("{wanted} replicas: at most {MAX_REPLICAS} are simulated"));
            }
        }
        of_pods = aligned.into_of_pods();
        workload.scale(wanted.unsigned_abs() as usize, now);
        let after = (workload.ready(), wanted);
        if replicas.last().is_none_or(|(_, ready, wanted)| (*ready, *wanted) != after) {
            replicas.push((now, after.0, after.1));
        }
        let load = now_load.at(now);
        let needed = load.map(|load| candidate.needed(load));
        tally.count(context, needed, workload.ready(), wanted, now >= counted_from);
        observer.decided(&Decided {
            context,
            current: scale.spec_replicas,
            decision: &decision,
            status: &status,
            history: &history,
            period,
            loads: &[load],
            needed,
            ready: workload.ready(),
            wanted,
        });
        now += period;
    }
    let figures = tally.figures(&candidate.name);
    Ok(Run { figures, replicas, last: now - period, ticks })
}

/// A duration in ms.
pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// The flags by default. An Autoscaler that allows zero is decided as where `--scale-to-zero` is on.
fn config(candidate: &Candidate) -> ControllerConfig {
    ControllerConfig { scale_to_zero: candidate.min() == 0, ..ControllerConfig::default() }
}

/// The metric as it is scraped: the mean over a window until the last scrape.
struct Metric<'a> {
    means: Means<'a>,
    first: UnixMillis,
    interval: i64,
    /// The last scrape, and what it found.
    last: Option<(UnixMillis, Option<f64>)>,
}

impl<'a> Metric<'a> {
    fn new(load: &'a Load, window: Duration, scrape_interval: Duration) -> Self {
        let means = Means::new(load, millis(window));
        Self { means, first: load.first(), interval: millis(scrape_interval).max(1), last: None }
    }

    /// What is known at a time, which increases from call to call. Before the first scrape it is the load at the
    /// beginning.
    fn at(&mut self, now: UnixMillis) -> Option<f64> {
        let scrape = now - (now - self.first) % self.interval;
        match self.last {
            Some((last, value)) if last == scrape => value,
            _ => {
                let value = self.means.until(scrape);
                self.last = Some((scrape, value));
                value
            }
        }
    }
}
