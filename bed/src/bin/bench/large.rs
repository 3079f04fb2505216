//! What ten times the size takes of Plimsoll: the start, a steady state with one replica and with two, pods that are
//! replaced, and a failover. `make bench-large` runs it.

use crate::block::block;
use crate::first_decisions;
use crate::load;
use crate::measure::{Asked, Block, Meter, cpu_seconds, memory, peak_memory, sum};
use crate::report::{self, fine};
use crate::round::{ROUND, show_progress};
use crate::sides::{self, Running};
use crate::world::{Size, World};
use bed::free_port;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The rounds of each measurement of one replica.
const ROUNDS: usize = 6;
/// The rounds of a measurement of two: one turn of the one that does not lead.
const ROUNDS_OF_TWO: usize = 6;
/// One of so many autoscalers has a scale to write at the start.
const WRITES: usize = 100;
/// The pods that are replaced.
const REPLACED: usize = 1_000;
/// The default window for scaling down. That it has ended changes the status of what was scaled at the start: not after
/// the failover.
const WINDOW: Duration = Duration::from_secs(300);
/// How long the other replica is watched after a failover.
const AFTER_FAILOVER: Duration = Duration::from_secs(45);
/// The bound of all waiting.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often it is read what Prometheus was asked, to find the round in which it is asked most.
const STEP: Duration = Duration::from_secs(3);

/// What figures may be at most, with these flags.
fn bounds(flags: &[String]) -> [(&'static str, f64); 10] {
    let has_ledger = !flags.iter().any(|flag| flag == "--decision-ledger-bytes=0");
    // 130 MB, and 150 MB more.
    let memory = if has_ledger { 267.0 } else { 124.0 };
    [
        ("start_to_first_decision_of_each_seconds", 15.0),
        ("start_to_all_statuses_seconds", 60.0),
        ("peak_memory_mib", memory),
        ("second_replica_peak_memory_mib", memory),
        ("cpu_share", 1.0),
        ("failover_statuses_written", 0.0),
        ("failover_scales_written", 0.0),
        ("two_replicas_requests", 1.3),
        ("two_replicas_evaluation", 1.3),
        ("two_replicas_prometheus_cpu", 1.3),
    ]
}

/// Measures `autoscalers` with ten pods each, and prints the figures.
/// Returns whether all are within their bounds.
pub async fn run(autoscalers: usize, flags: &[String]) -> bool {
    let size = Size { autoscalers, pods: 10 };
    let world = World::start(size, false).await;
    world.make_autoscalers().await;
    let lowered = world.lower_maximum(WRITES).await;
    let idle = block(&world, None, 2).await;
    show_progress("starting Plimsoll");
    let begun = (Instant::now(), Timestamp::now());
    let mut running = sides::start_replica(&world, world.adapter_port, flags);
    let start = start(&world, &running, lowered.len(), begun).await;
    world.remove_last_pods(&lowered).await;
    // As in a cluster: kube-apiserver polls each APIService.
    sides::register(&world, world.adapter_port, &sides::CUSTOM_METRICS).await;
    show_progress(&format!("measuring one replica: {ROUNDS} rounds of {} s", ROUND.as_secs()));
    tokio::time::sleep(ROUND).await;
    let meter = Meter::new(&world, Some(&running));
    let (one, most_of_one) = futures::join!(meter.measure(ROUNDS), largest_round(&world, ROUNDS));
    one.check("one replica", autoscalers);
    let mut figures = report::alone(size, &idle, &one);
    let mut add = |more: Value| {
        let (Some(all), Value::Object(more)) = (figures.as_object_mut(), more) else { return };
        all.extend(more);
    };
    add(start);
    add(json!({"memory_mib": fine(memory(running.processes[0].1.program_id()))}));

    let port = free_port();
    let mut second = sides::start_replica(&world, port, flags);
    wait_until(&world, port, "the second replica is ready", |text| {
        sum(text, "plimsoll_decisions_total", "") >= autoscalers as f64
    })
    .await;
    show_progress(&format!(
        "measuring two replicas: {ROUNDS_OF_TWO} rounds of {} s",
        ROUND.as_secs()
    ));
    tokio::time::sleep(ROUND).await;
    running.processes.push(("second", second.processes.remove(0).1));
    let meter = Meter::new(&world, Some(&running));
    let (two, most_of_two) =
        futures::join!(meter.measure(ROUNDS_OF_TWO), largest_round(&world, ROUNDS_OF_TWO));
    two.check("two replicas", autoscalers);
    add(of_two(&one, &two, &idle));
    add(json!({
        "two_replicas_requests_largest_round": fine(most_of_two.requests / most_of_one.requests),
        "two_replicas_evaluation_largest_round": fine(most_of_two.seconds / most_of_one.seconds),
    }));
    add(replace_pods(&world, &running, &one).await);

    show_progress("waiting until no window for scaling down is left of the start");
    tokio::time::sleep_until((begun.0 + WINDOW + 4 * ROUND).into()).await;
    let leader = running.processes.remove(0);
    // Of all of its life.
    add(json!({"peak_memory_mib": fine(peak_memory(leader.1.program_id()))}));
    leader.1.signal("KILL");
    add(fail_over(&world, port).await);
    let second = running.processes[0].1.program_id();
    add(json!({"second_replica_peak_memory_mib": fine(peak_memory(second))}));
    println!();
    report::print_alone(&figures, &bounds(flags))
}

/// Plimsoll's own metrics, of the replica at a port; none if it does not respond.
async fn metrics(client: &reqwest::Client, port: u16) -> Option<String> {
    let url = format!("https://127.0.0.1:{port}/metrics");
    client.get(url).send().await.ok()?.error_for_status().ok()?.text().await.ok()
}

/// Waits for metrics of a replica.
async fn wait_until(world: &World, port: u16, what: &str, holds: impl Fn(&str) -> bool) -> Instant {
    let (begun, client) = (Instant::now(), load::client(world));
    loop {
        let text = metrics(&client, port).await.unwrap_or_default();
        if holds(&text) {
            return Instant::now();
        }
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// How long the first decisions, the writes of scales and the first statuses take from the start of the process.
async fn start(
    world: &World,
    running: &Running,
    lowered: usize,
    (begun, begun_at): (Instant, Timestamp),
) -> Value {
    let (all, port) = (world.size.autoscalers as f64, running.metrics_port);
    let decided = |text: &str| sum(text, "plimsoll_decisions_total", "");
    let first = wait_until(world, port, "a decision", |text| decided(text) > 0.0).await;
    let scaled = wait_until(world, port, "scales are written", |text| {
        sum(text, "plimsoll_decisions_total", "outcome=\"rescaled\"") >= lowered as f64
    })
    .await;
    // Those that were evaluated again meanwhile count twice.
    wait_until(world, port, "all are decided", |text| decided(text) >= 1.2 * all).await;
    let written = wait_until(world, port, "all statuses are written", |text| {
        statuses(text) >= all && sum(text, "plimsoll_status_writes_waiting", "") == 0.0
    })
    .await;
    let peak = peak_memory(running.processes[0].1.program_id());
    let seconds = |at: Instant| fine((at - begun).as_secs_f64());
    let each = first_decisions::last(world, port, begun_at).await;
    let each = each.map_err(|why| show_progress(&format!("the first decision of each: {why}")));
    json!({
        "start_to_a_decision_seconds": seconds(first),
        "start_to_first_decision_of_each_seconds": each.ok().map(fine),
        "start_to_scales_written_seconds": seconds(scaled),
        "start_to_all_statuses_seconds": seconds(written),
        "start_peak_memory_mib": fine(peak),
    })
}

/// The status writes that a replica has sent.
fn statuses(text: &str) -> f64 {
    sum(text, "plimsoll_kube_requests_total", "resource=\"autoscalers/status\"")
}

/// What it costs that pods are replaced, beyond a round in which none is.
async fn replace_pods(world: &World, running: &Running, usual: &Block) -> Value {
    show_progress(&format!("replacing {REPLACED} pods"));
    let process = running.processes[0].1.program_id();
    let client = load::client(world);
    let read = async || {
        let text = metrics(&client, running.metrics_port).await.expect("metrics");
        let of = |name: &str| sum(&text, name, "");
        [cpu_seconds(process), of("plimsoll_kube_requests_total"), of(REQUESTS)]
    };
    let (before, begun) = (read().await, Instant::now());
    world.replace_pods(REPLACED).await;
    let took = begun.elapsed().as_secs_f64();
    tokio::time::sleep_until((begun + ROUND).into()).await;
    let after = read().await;
    let of_round = |process: &str| {
        let cpu = usual.rounds.iter().filter_map(|round| round.cpu.get(process));
        cpu.sum::<f64>() / usual.rounds.len() as f64
    };
    let [cpu, kube, requests] = [0, 1, 2].map(|index| after[index] - before[index]);
    json!({
        "pods_replaced": REPLACED,
        "pods_replaced_within_seconds": fine(took),
        "pods_replaced_cpu_seconds_beyond_a_round": fine(cpu - of_round("plimsoll")),
        "pods_replaced_kube_requests": kube,
        "pods_replaced_requests_of_the_round": requests,
    })
}

/// Plimsoll's counter of its requests to Prometheus.
const REQUESTS: &str = "plimsoll_prometheus_requests_total";

/// What Prometheus is asked within the round in which it is asked most: a replica that does not lead asks in one of
/// some rounds for all of them.
async fn largest_round(world: &World, rounds: usize) -> Asked {
    let (begun, mut read) = (tokio::time::Instant::now(), vec![Asked::read(world).await]);
    let a_round = (ROUND.as_secs() / STEP.as_secs()) as usize;
    for step in 1..=rounds * a_round {
        tokio::time::sleep_until(begun + STEP * step as u32).await;
        read.push(Asked::read(world).await);
    }
    let rounds = read.iter().zip(&read[a_round..]).map(|(from, to)| to.since(*from));
    rounds.fold(Asked::default(), |most, round| Asked {
        requests: most.requests.max(round.requests),
        seconds: most.seconds.max(round.seconds),
    })
}

/// What two replicas cost Prometheus, as a multiple of one.
fn of_two(one: &Block, two: &Block, idle: &Block) -> Value {
    let net = |block: &Block, of: &dyn Fn(&Block) -> f64| {
        of(block) / block.seconds() - of(idle) / idle.seconds()
    };
    let ratio = |of: &dyn Fn(&Block) -> f64| fine(net(two, of) / net(one, of));
    let cpu = |name: &'static str| {
        move |block: &Block| -> f64 {
            block.rounds.iter().filter_map(|round| round.cpu.get(name)).sum()
        }
    };
    json!({
        "two_replicas_requests": ratio(&|block| block.asked.requests),
        "two_replicas_evaluation": ratio(&|block| block.asked.seconds),
        "two_replicas_prometheus_cpu": ratio(&cpu("prometheus")),
        "second_replica_cpu_share": fine(cpu("second")(two) / two.seconds()),
    })
}

/// What the other replica does when it takes over: when it has decided on each, and how many statuses it writes.
async fn fail_over(world: &World, port: u16) -> Value {
    show_progress("failing over");
    let (client, killed) = (load::client(world), Instant::now());
    let leads = |text: &str| sum(text, "plimsoll_leader", "") == 1.0;
    let led = wait_until(world, port, "the other replica leads", leads).await;
    let before = metrics(&client, port).await.expect("metrics");
    let of_all = |text: &str| sum(text, "plimsoll_decisions_total", "");
    let each = of_all(&before) + world.size.autoscalers as f64;
    let decided =
        wait_until(world, port, "as many decisions as autoscalers", |text| of_all(text) >= each);
    let decided = decided.await;
    tokio::time::sleep_until((led + AFTER_FAILOVER).into()).await;
    let after = metrics(&client, port).await.expect("metrics");
    let decisions = |text: &str, outcome: &str| sum(text, "plimsoll_decisions_total", outcome);
    json!({
        "failover_to_the_lease_seconds": fine((led - killed).as_secs_f64()),
        "failover_to_as_many_decisions_as_autoscalers_seconds": fine((decided - killed).as_secs_f64()),
        "failover_statuses_written": statuses(&after),
        "failover_scales_written": decisions(&after, "outcome=\"rescaled\""),
        "failover_decisions": decisions(&after, "") - decisions(&before, ""),
        "failover_seconds_watched": AFTER_FAILOVER.as_secs(),
    })
}
