//! How costs grow with each size, beside the tuned peers' on the same fleet: the figures of
//! docs/growth.md.

use crate::block::block;
use crate::bounds::are_met;
use crate::report;
use crate::sides::{Peers, Side};
use crate::world::{MetricChoice, Size, World};
use futures::future::{Either, select};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

const ROUNDS: usize = 2;
/// Where there are few decisions a round, or the load moves.
const MORE_ROUNDS: usize = 4;
const SIZE: Size = Size { autoscalers: 1_000, pods: 10 };
/// The smaller number of autoscalers.
const FEW: usize = 100;

/// The size that grows, its value, and the measurements.
type Row = (&'static str, usize, Value);

/// The name of the row whose load moves.
const LOAD: &str = "load, % of change in 2 minutes";

/// Measures some values of each size, or of the one with this name, and prints a table. Returns whether the stack takes
/// less with Plimsoll in each row.
pub async fn run(only: Option<&str>) -> bool {
    let wanted = |what: &str| only.is_none_or(|only| only == what);
    let mut rows: Vec<Row> = Vec::new();
    let mut world = World::start(SIZE, true).await;
    world.make_autoscalers().await;
    let own = MetricChoice::OWN_LABEL;
    let one: fn(usize) -> String = |_| "all".to_owned();
    let base = row(&world, ROUNDS).await;
    for what in ["label sets", "autoscalers"] {
        rows.push((what, 1_000, base.clone()));
    }
    for what in ["metrics", "series of a pod"] {
        rows.push((what, 1, base.clone()));
    }
    rows.push((LOAD, 0, base.clone()));
    rows.push(("pods of an autoscaler", 10, base));
    let choices: [(&str, usize, MetricChoice); 5] = [
        ("label sets", 1, MetricChoice { label: ("fleet", one), ..own }),
        (
            "metrics",
            10,
            MetricChoice {
                metric: |app| format!("one_of_ten_{}_total", app % 10),
                names: "one_of_ten_.*",
                ..own
            },
        ),
        (
            "metrics",
            1_000,
            MetricChoice { metric: |app| format!("own_{app}_total"), names: "own_.*", ..own },
        ),
        (
            "series of a pod",
            3,
            MetricChoice { metric: |_| "split_3_total".to_owned(), names: "split_3", ..own },
        ),
        (
            "series of a pod",
            9,
            MetricChoice { metric: |_| "split_9_total".to_owned(), names: "split_9", ..own },
        ),
    ];
    for (what, count, metrics) in choices.into_iter().filter(|(what, ..)| wanted(what)) {
        world.set_metrics(metrics).await;
        rows.push((what, count, row(&world, ROUNDS).await));
    }
    world.set_metrics(own).await;
    if wanted(LOAD) {
        set_loads(&world, |app| load_of(app, 1)).await;
        let moving = async {
            // The rate of each has then been that of such a load for all of its window.
            tokio::time::sleep(SWAY / 2).await;
            row(&world, MORE_ROUNDS).await
        };
        let row = match select(pin!(moving), pin!(sway(&world))).await {
            Either::Left((row, _)) => row,
            Either::Right(_) => unreachable!("it does not end"),
        };
        let written = row["ours"]["apiserver_requests_per_round"].as_f64();
        assert!(written.is_some_and(|requests| requests > 50.0), "no statuses: {row}");
        rows.push((LOAD, 11, row));
        set_loads(&world, |_| 1.0).await;
    }
    if wanted("autoscalers") {
        world.keep_only(FEW).await;
        rows.push(("autoscalers", FEW, row(&world, MORE_ROUNDS).await));
    }
    drop(world);
    let other: &[usize] = if wanted("pods of an autoscaler") { &[3, 30] } else { &[] };
    for &pods in other {
        let world = World::start(Size { pods, ..SIZE }, false).await;
        world.make_autoscalers().await;
        rows.push(("pods of an autoscaler", pods, row(&world, ROUNDS).await));
    }
    rows.sort_by_key(|(what, count, _)| (*what, *count));
    print(&rows);
    let cheaper = |(what, count, row): &Row| {
        let stack = |side: &str| row[side]["stack_cpu_ms_per_decision"].as_f64();
        let met = stack("ours").zip(stack("peers")).map(|(ours, peers)| ours < peers);
        (format!("{what}, {count}: the stack takes less than with the peers"), met)
    };
    let aims: Vec<(String, Option<bool>)> = rows.iter().map(cheaper).collect();
    are_met(&aims.iter().map(|(aim, met)| (aim.as_str(), *met)).collect::<Vec<_>>())
}

/// How long each load stays: twice the window of its rate, which shows it for half of the time.
const SWAY: Duration = Duration::from_secs(120);
/// The loads: more than a tenth apart, so that statuses change, and both within the tolerance, so that hardly a scale does.
const LOADS: [f64; 2] = [1.06, 0.94];

/// Moves the load of each workload to and fro, one after the other, for ever.
async fn sway(world: &World) -> Infallible {
    let each = SWAY / SIZE.autoscalers as u32;
    let (mut next, http) = (tokio::time::Instant::now(), reqwest::Client::new());
    for turn in (0..LOADS.len()).cycle() {
        for app in 0..SIZE.autoscalers {
            set_load(world, &http, app, load_of(app, turn)).await;
            next += each;
            tokio::time::sleep_until(next).await;
        }
    }
    unreachable!("the turns do not end")
}

/// The load of a workload in a turn.
fn load_of(app: usize, turn: usize) -> f64 {
    LOADS[(turn + app) % LOADS.len()]
}

/// Sets the loads of all workloads.
async fn set_loads(world: &World, load: impl Fn(usize) -> f64) {
    let http = reqwest::Client::new();
    for app in 0..SIZE.autoscalers {
        set_load(world, &http, app, load(app)).await;
    }
}

async fn set_load(world: &World, http: &reqwest::Client, app: usize, factor: f64) {
    let url = format!("http://127.0.0.1:{}/step?app={app}&factor={factor}", world.series_port);
    let response = http.post(url).send().await;
    response.and_then(reqwest::Response::error_for_status).expect("the load is set");
}

/// The figures of Plimsoll with Autoscalers, and of the peers with HPAs of the same metrics. What is used when idle is
/// measured before: it differs by more, from row to row, than Plimsoll takes.
async fn row(world: &World, rounds: usize) -> Value {
    let idle = block(world, None, rounds).await;
    let ours = block(world, Some(Side::Alone), rounds).await;
    world.make_native_hpas().await;
    let peers = block(world, Some(Side::Peers(Peers::Tuned)), rounds).await;
    world.delete_native_hpas().await;
    let [ours, peers] = [ours, peers].map(|block| report::alone(world.size, &idle, &block));
    json!({"ours": ours, "peers": peers})
}

/// The columns of both sides, and their figures.
const COLUMNS: [(&str, &str); 8] = [
    ("Prometheus, CPU ms a decision", "prometheus_cpu_ms_per_decision"),
    ("stack, CPU ms a decision", "stack_cpu_ms_per_decision"),
    ("the same, with idle use", "stack_cpu_ms_per_decision_with_idle"),
    ("requests to Prometheus a round", "prometheus_requests_per_round"),
    ("API server requests a round", "apiserver_requests_per_round"),
    ("evaluation, s a round", "prometheus_evaluation_seconds_per_round"),
    ("lag, p99, s", "lag_p99_seconds"),
    ("peak memory, MiB", "peak_memory_mib"),
];

/// A row for each, with the figures of Plimsoll and of the peers in one cell.
fn print(rows: &[Row]) {
    println!("\nEach figure: Plimsoll / prometheus-adapter and kube-controller-manager, tuned\n");
    let names = COLUMNS.map(|(name, _)| name).join(" | ");
    println!("| what grows | to | Plimsoll, CPU ms a decision | {names} | stack, peers / ours |");
    println!("|---|---|---|{}---|", "---|".repeat(COLUMNS.len()));
    for (what, count, row) in rows {
        let figures =
            COLUMNS.map(|(_, name)| format!("{} / {}", row["ours"][name], row["peers"][name]));
        let stack =
            |side: &str| row[side]["stack_cpu_ms_per_decision"].as_f64().unwrap_or(f64::NAN);
        println!(
            "| {what} | {count} | {} | {} | {:.1} |",
            row["ours"]["cpu_ms_per_decision"],
            figures.join(" | "),
            stack("peers") / stack("ours")
        );
    }
    let all: Vec<Value> = rows
        .iter()
        .map(|(what, count, row)| json!({"what": what, "to": count, "figures": row}))
        .collect();
    println!("bench-growth: {}", Value::from(all));
}
