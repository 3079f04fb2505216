//! What an outage costs, and how long recovery takes: Prometheus and then kube-apiserver are
//! stopped for a while, under thousands of autoscalers. `make bench-outage` runs it.

use crate::load;
use crate::measure::{Meter, log_lines, memory, sum};
use crate::round::show_progress;
use crate::sides::{self, Running};
use crate::world::{Size, World};
use bed::process::Process;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The number of autoscalers, and the length of each outage.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub autoscalers: usize,
    pub prometheus: Duration,
    pub apiserver: Duration,
}

/// The limits: events per second in any span, and the time until each autoscaler has a decision
/// again.
const MAX_EVENTS: f64 = 20.0;
const MAX_RECOVERY: Duration = Duration::from_secs(30);
/// How much the memory may grow from the second quarter of an outage to the last: a factor and MiB.
const MAX_GROWTH: (f64, f64) = (1.1, 8.0);
/// The time of one observation.
const SPAN: Duration = Duration::from_secs(10);

/// The counts of one span.
#[derive(Clone, Copy, Debug)]
struct SpanCounts {
    seconds: f64,
    /// Requests for events to kube-apiserver; they cannot be counted while it is stopped.
    events: f64,
    statuses: f64,
    lines: f64,
    /// In MiB, at the end.
    memory: f64,
}

/// A part of the run.
struct Phase {
    name: &'static str,
    spans: Vec<SpanCounts>,
}

impl Phase {
    fn rate(&self, of: fn(&SpanCounts) -> f64) -> f64 {
        let seconds: f64 = self.spans.iter().map(|span| span.seconds).sum();
        self.spans.iter().map(of).sum::<f64>() / seconds.max(1.0)
    }

    fn most(&self, of: fn(&SpanCounts) -> f64) -> f64 {
        self.spans.iter().map(|span| of(span) / span.seconds).fold(0.0, f64::max)
    }

    fn peak(&self) -> f64 {
        self.spans.iter().map(|span| span.memory).fold(0.0, f64::max)
    }

    /// The memory of its second quarter and of its last.
    fn quarters(&self) -> [f64; 2] {
        let quarter = (self.spans.len() / 4).max(1);
        let middle = |spans: &[SpanCounts]| {
            let mut memory: Vec<f64> = spans.iter().map(|span| span.memory).collect();
            memory.sort_by(f64::total_cmp);
            memory.get(memory.len() / 2).copied().unwrap_or(0.0)
        };
        let second = self.spans.get(quarter..quarter * 2).unwrap_or(&self.spans);
        [middle(second), middle(&self.spans[self.spans.len() - quarter..])]
    }

    fn figures(&self) -> Value {
        let [second, last] = self.quarters();
        json!({
            "events_per_second": fine(self.rate(|span| span.events)),
            "most_events_per_second": fine(self.most(|span| span.events)),
            "status_writes_per_second": fine(self.rate(|span| span.statuses)),
            "log_lines_per_second": fine(self.rate(|span| span.lines)),
            "peak_memory_mib": fine(self.peak()),
            "memory_mib_second_and_last_quarter": [fine(second), fine(last)],
        })
    }
}

/// Runs both outages and checks the limits.
pub async fn run(plan: Plan) -> ExitCode {
    let size = Size { autoscalers: plan.autoscalers, pods: 10 };
    let mut world = World::start(size, false).await;
    world.make_autoscalers().await;
    let running = sides::start_leading(&world);
    Meter::new(&world, Some(&running)).wait_settled().await;
    let calm = Duration::from_secs(60).min(plan.prometheus);
    show_progress("looking at the calm before");
    let mut phases = vec![observe(&world, &running, "before", calm, true).await];
    let mut faults = Vec::new();

    show_progress(&format!("Prometheus is away for {} s", plan.prometheus.as_secs()));
    world.cluster.stop_prometheus();
    phases.push(observe(&world, &running, "Prometheus away", plan.prometheus, true).await);
    let failing = plimsoll_metric(&world, &running, "plimsoll_autoscalers_failing").await;
    if failing < plan.autoscalers as f64 * 0.99 {
        faults.push(format!("only {failing} autoscalers noticed that Prometheus was away"));
    }
    world.cluster.start_prometheus();
    world.cluster.wait_prometheus().await;
    let after_prometheus = all_evaluated(&world, &running).await;
    phases.push(observe(&world, &running, "Prometheus back", calm, true).await);

    show_progress(&format!("kube-apiserver is away for {} s", plan.apiserver.as_secs()));
    world.cluster.stop_apiserver();
    phases.push(observe(&world, &running, "kube-apiserver away", plan.apiserver, false).await);
    world.cluster.start_apiserver().await;
    let after_apiserver = all_evaluated(&world, &running).await;
    phases.push(observe(&world, &running, "kube-apiserver back", calm, true).await);

    for phase in &phases {
        let [second, last] = phase.quarters();
        if phase.name.ends_with("away") && last > second * MAX_GROWTH.0 + MAX_GROWTH.1 {
            faults.push(format!("{}: memory grew from {second:.0} to {last:.0} MiB", phase.name));
        }
        let most = phase.most(|span| span.events);
        if most > MAX_EVENTS {
            faults.push(format!("{}: {most:.0} events a second", phase.name));
        }
    }
    let again = [("Prometheus", after_prometheus), ("kube-apiserver", after_apiserver)];
    for (name, again) in again {
        if again.is_none_or(|again| again > MAX_RECOVERY) {
            faults.push(format!("{name} back: all were evaluated again after {again:?}"));
        }
    }
    print(plan, &phases, again, &faults);
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The sum of a metric of Plimsoll over all labels.
async fn plimsoll_metric(world: &World, running: &Running, name: &str) -> f64 {
    sum(&plimsoll_metrics(world, running).await.unwrap_or_default(), name, "")
}

async fn plimsoll_metrics(world: &World, running: &Running) -> Option<String> {
    let url = format!("https://127.0.0.1:{}/metrics", running.metrics_port);
    let response = load::client(world).get(url).send().await.ok()?;
    response.error_for_status().ok()?.text().await.ok()
}

fn plimsoll(running: &Running) -> &Process {
    &running.processes[0].1
}

/// Observes for a time, span by span.
async fn observe(
    world: &World,
    running: &Running,
    name: &'static str,
    time: Duration,
    counting: bool,
) -> Phase {
    let process = plimsoll(running);
    let id = process.program_id();
    let requests = async || {
        if !counting {
            return [0.0; 2];
        }
        let text = world.cluster.raw("/metrics").await.expect("kube-apiserver is there");
        let of = |resource: &str| sum(&text, "apiserver_request_total", resource);
        [
            of("resource=\"events\",scope=\"resource\""),
            of("resource=\"autoscalers\",scope=\"resource\",subresource=\"status\""),
        ]
    };
    let start = Instant::now();
    let mut spans = Vec::new();
    let (mut at, mut before, mut lines) = (start, requests().await, log_lines(&process.log));
    while start.elapsed() < time {
        tokio::time::sleep_until((at + SPAN.min(time)).into()).await;
        let (now, after, written) = (Instant::now(), requests().await, log_lines(&process.log));
        spans.push(SpanCounts {
            seconds: (now - at).as_secs_f64(),
            events: after[0] - before[0],
            statuses: after[1] - before[1],
            lines: written - lines,
            memory: memory(id),
        });
        (at, before, lines) = (now, after, written);
    }
    Phase { name, spans }
}

/// The time until each autoscaler was evaluated again and none fails; none after five minutes.
async fn all_evaluated(world: &World, running: &Running) -> Option<Duration> {
    let start = Instant::now();
    let good = |text: &str| {
        ["held", "rescaled"]
            .map(|outcome| sum(text, "plimsoll_decisions_total", &format!("outcome=\"{outcome}\"")))
            .iter()
            .sum::<f64>()
    };
    let mut before = plimsoll_metrics(world, running).await.map(|text| good(&text));
    let mut shown = start;
    while start.elapsed() < Duration::from_secs(300) {
        tokio::time::sleep(Duration::from_millis(250)).await;
        let Some(text) = plimsoll_metrics(world, running).await else { continue };
        let since = good(&text) - *before.get_or_insert_with(|| good(&text));
        let leads = sum(&text, "plimsoll_leader", "") == 1.0;
        let failing = sum(&text, "plimsoll_autoscalers_failing", "");
        if leads && failing == 0.0 && since >= world.size.autoscalers as f64 {
            return Some(start.elapsed());
        }
        if shown.elapsed() >= SPAN {
            shown = Instant::now();
            let why = first_failure(world).await.unwrap_or_default();
            let seconds = start.elapsed().as_secs();
            show_progress(&format!(
                "  {since} decided after {seconds} s, {failing} failing; {why}"
            ));
        }
    }
    None
}

/// The message of the first Autoscaler whose scaling is not active.
async fn first_failure(world: &World) -> Option<String> {
    let list = world.cluster.raw("/apis/plimsoll.dev/v1alpha1/autoscalers?limit=200").await.ok()?;
    let list: Value = serde_json::from_str(&list).ok()?;
    let conditions = |item: &Value| item["status"]["conditions"].as_array().cloned();
    let all = list["items"].as_array()?.iter().filter_map(conditions).flatten();
    let mut failed = all.filter(|c| c["type"] == "ScalingActive" && c["status"] == "False");
    failed.next().map(|condition| condition["message"].to_string())
}

fn fine(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

fn print(plan: Plan, phases: &[Phase], again: [(&str, Option<Duration>); 2], faults: &[String]) {
    println!(
        "\n{} autoscalers; Prometheus away for {} s, kube-apiserver for {} s\n",
        plan.autoscalers,
        plan.prometheus.as_secs(),
        plan.apiserver.as_secs()
    );
    println!(
        "{:<22} {:>9} {:>12} {:>10} {:>9} {:>9}",
        "", "events/s", "most events", "statuses/s", "log/s", "peak MiB"
    );
    for phase in phases {
        println!(
            "{:<22} {:>9.1} {:>12.1} {:>10.1} {:>9.1} {:>9.0}",
            phase.name,
            phase.rate(|span| span.events),
            phase.most(|span| span.events),
            phase.rate(|span| span.statuses),
            phase.rate(|span| span.lines),
            phase.peak()
        );
    }
    println!();
    for (name, again) in again {
        let again =
            again.map_or("never".to_owned(), |again| format!("{:.1} s", again.as_secs_f64()));
        println!("all evaluated again after {name} came back: {again}");
    }
    for fault in faults {
        println!("BROKEN: {fault}");
    }
    let figures: serde_json::Map<String, Value> =
        phases.iter().map(|phase| (phase.name.to_owned(), phase.figures())).collect();
    let seconds = |again: Option<Duration>| again.map(|again| fine(again.as_secs_f64()));
    let line = json!({
        "autoscalers": plan.autoscalers,
        "prometheus_away_seconds": plan.prometheus.as_secs(),
        "apiserver_away_seconds": plan.apiserver.as_secs(),
        "phases": figures,
        "decided_again_seconds": {
            "prometheus": seconds(again[0].1), "apiserver": seconds(again[1].1)},
        "broken": faults,
    });
    println!("outage: {line}");
}
