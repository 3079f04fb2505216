//! The closed loop: decisions on recorded load, and the workload that follows them.

use super::candidate::{Candidate, Measure, millis};
use super::figures::{Figures, Minutes, Tally};
use super::load::Load;
use super::measured::Measured;
use super::observer::{Decided, Observer};
use super::queue::Queue;
use super::source::{Following, Scraped, Source};
use super::workload::Workload;
use crate::hpa::{
    self, ConditionKind, Context, ControllerConfig, Input, Outcome, Reason, Scale, ScalingHistory,
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
    /// The minutes that are counted, and those of them in which the load is known.
    pub minutes: Minutes,
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
/// has more than one metric with a load.
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
    let scraped = Scraped::new(load, window_ms, millis(options.scrape_interval));
    let mut source = Following::new(scraped, &candidate.metrics);
    simulate(candidate, &mut source, span, options, observer)
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
    let least = candidate.least_needed_at(span.first);
    let start = span.start.or_else(|| candidate.needed(&arrivals, least));
    let mut queue = Following::new(Queue::new(source, rate), &candidate.metrics);
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
    let least = candidate.least_needed_at(first);
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
        status.set(ConditionKind::ScaledToZero, true, Reason::ScaledToZero, why, first);
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
    let (figures, minutes) = (tally.figures(&candidate.name), tally.minutes());
    Ok(Run { figures, replicas, last, ticks, minutes })
}

/// The flags by default. An autoscaler that allows zero at any time is decided as where `--scale-to-zero` is on.
fn config(candidate: &Candidate) -> ControllerConfig {
    ControllerConfig { scale_to_zero: candidate.spec.may_be_zero(), ..ControllerConfig::default() }
}

#[cfg(test)]
mod tests {
    use super::super::{Recorded, Trace, WorstUnder};
    use super::*;
    use serde_json::{Value, json};

    /// A candidate whose pods carry 10 each, with these fields beside.
    fn candidate(fields: Value) -> Candidate {
        let mut spec = json!({
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": 1, "maxReplicas": 100,
            "customMetrics": [{"metricName": "requests", "averageValue": "10"}],
        });
        let fields = fields.as_object().unwrap().clone();
        spec.as_object_mut().unwrap().extend(fields);
        Candidate::new("web", "shop", spec).unwrap()
    }

    /// Decisions each minute on the load at that time.
    fn options() -> Options {
        Options {
            pod_start: Duration::from_secs(60),
            window: Duration::from_secs(1),
            scrape_interval: Duration::from_secs(1),
            warm_up: Duration::ZERO,
            period: Some(Duration::from_secs(60)),
            service_rate: None,
        }
    }

    fn load(rows: &str) -> Load {
        Load::read(format!("time,value\n{rows}").as_bytes()).unwrap()
    }

    #[test]
    fn the_figures_are_those_that_are_counted_by_hand() {
        // Two pods from 0 to 5 min, six from 6 to 10, and two from 11 to 15. The six are ready a minute late, and one of the
        // decisions after them waits for the window.
        let rows = "0,20\n300,20\n301,60\n600,60\n601,12\n900,12\n";
        let behavior = json!({"scaleDown": {"stabilizationWindowSeconds": 100}});
        let fields = json!({"minReplicas": 2, "maxReplicas": 6, "behavior": behavior});
        let run = run(&candidate(fields), &load(rows), &options()).unwrap();
        let expected = [(0, 2, 2), (360_000, 2, 6), (420_000, 6, 6), (720_000, 2, 2)];
        assert_eq!(run.replicas, expected);
        assert_eq!((run.ticks, run.last), (16, 900_000));
        assert_eq!(run.minutes, Minutes { counted: 16.0, known: 16.0 });
        let figures = Figures {
            name: "web".to_owned(),
            replica_hours: (6.0 * 2.0 + 6.0 * 6.0 + 4.0 * 2.0) / 60.0,
            needed_replica_hours: (6.0 * 2.0 + 5.0 * 6.0 + 5.0 * 2.0) / 60.0,
            under_minutes: 1.0,
            under_pod_minutes: 4.0,
            worst_under: Some(WorstUnder { time: 360.0, needed: 6, ready: 2 }),
            over_pod_minutes: 4.0,
            scale_events: 2,
            reversals: 1,
            minutes_at_min: 10.0,
            minutes_at_max: 6.0,
        };
        assert_eq!(run.figures, figures);
    }

    #[test]
    fn it_begins_with_the_pods_that_the_load_needs_whatever_a_schedule_asks_for() {
        let window = |least: i64| {
            json!([{"name": "now", "timeZone": "UTC", "start": "0 0 * * *", "end": "0 8 * * *",
                "minReplicas": least}])
        };
        let day = load("0,20\n86400,20\n");
        let begin = |fields: Value, options: &Options| {
            let (time, ready, _) = run(&candidate(fields), &day, options).unwrap().replicas[0];
            (time, ready)
        };
        let raised = json!({"minReplicas": 1, "schedules": window(15)});
        assert_eq!(begin(raised.clone(), &options()), (0, 2));
        // Where it allows fewer, it needs fewer.
        let lowered = json!({"minReplicas": 10, "schedules": window(2)});
        assert_eq!(begin(lowered, &options()), (0, 2));
        let queue = Options { service_rate: Some(10.0), ..options() };
        assert_eq!(begin(raised, &queue), (0, 2));
    }

    /// As `plimsoll convert` makes of an `idleReplicaCount`.
    #[test]
    fn a_bound_that_follows_from_the_load_is_computed_of_it() {
        let of = |bound: &str| {
            let query = "sum(rate(x_total[2m])) < Inf";
            let bound = bound.replace("LOAD", query);
            candidate(json!({
                "minReplicas": 0,
                "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
                "customMetrics": [
                    {"metricName": "x", "per": "Workload", "averageValue": "10", "query": query},
                    {"metricName": "least", "per": "Workload", "averageValue": "1", "query": bound},
                ],
            }))
        };
        let load = load("0,0\n300,0\n301,5\n600,5\n601,50\n900,50\n901,0\n1200,0\n");
        let wanted = |candidate: &Candidate| -> Vec<i32> {
            let run = run(candidate, &load, &options()).unwrap();
            let mut wanted: Vec<i32> = run.replicas.iter().map(|(_, _, wanted)| *wanted).collect();
            wanted.dedup();
            wanted
        };
        assert_eq!(wanted(&of("((LOAD\n) > bool 0) * 3")), [0, 3, 5, 0]);
        assert_eq!(wanted(&of("vector(4)")), [4, 5, 4]);
        let trace = Trace::File(load.clone());
        assert_eq!(trace.needs(&of("((LOAD\n) > bool 0) * 3"), &options())[10..12], [0, 3]);
        for stray in ["hour() > bool 8", "(sum(rate(y_total[2m])) > bool 0) * 3"] {
            let error = run(&of(stray), &load, &options()).unwrap_err();
            assert!(error.contains("a value that follows from the load was expected"), "{error}");
        }
    }

    #[test]
    fn nothing_is_needed_while_one_of_several_metrics_is_unknown() {
        let both = candidate(json!({"resourceMetrics": [
            {"resourceName": "cpu", "targetType": "AverageValue", "averageValue": "1"}]}));
        let minutes = |value: f64, gap: std::ops::Range<i64>| {
            let known = (0..100_i64).filter(|minute| !gap.contains(minute));
            Load::of(known.map(|minute| (minute * 60_000, value, minute == gap.end)))
        };
        // CPU needs two pods, and the requests six.
        let loads = vec![minutes(2.0, 0..0), minutes(60.0, 20..70)];
        let trace = Trace::Recorded(Recorded { loads, step: 60_000, ..Recorded::default() });
        let run = trace.run(&both, &options()).unwrap();
        assert_eq!(run.replicas, [(0, 6, 6)]);
        assert_eq!(run.minutes, Minutes { counted: 100.0, known: 50.0 });
        let figures = run.figures;
        assert!(figures.over_pod_minutes.abs() < 1e-9, "{figures:?}");
        assert!((figures.needed_replica_hours - 50.0 * 6.0 / 60.0).abs() < 1e-9, "{figures:?}");
    }
}
