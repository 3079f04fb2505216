//! The speed of the API (`make bench-api`): GET of a workload's pods by selector from Plimsoll, from prometheus-adapter
//! with its rate limits raised, and of the same bytes as a constant from Plimsoll's own listener, in an order that rotates.

use crate::bounds;
use crate::load::Load;
use crate::measure::millis;
use crate::round::show_progress;
use crate::sides::{self, CONNECTIONS, Peers, Side};
use crate::world::{Size, World};
use serde_json::{Value, json};
use std::time::Duration;

const SIZE: Size = Size { autoscalers: 1_000, pods: 10 };
const TURNS: usize = 5;
/// How long requests are sent to a side over each number of connections.
const EACH: Duration = Duration::from_secs(8);

/// The loads of one side: in each turn, one for each of [`CONNECTIONS`], and the first requests.
struct Served {
    name: &'static str,
    turns: Vec<Vec<Load>>,
}

impl Served {
    fn of(name: &'static str) -> Self {
        Self { name, turns: Vec::new() }
    }

    /// A figure over this number of connections, by turn.
    fn figures(&self, index: usize, figure: impl Fn(&Load) -> f64) -> Vec<f64> {
        self.turns.iter().map(|turn| figure(&turn[index])).collect()
    }

    /// The requests per second beside those of another side in the same turn.
    fn ratios(&self, other: &Self, index: usize) -> Vec<f64> {
        let both = self.figures(index, |load| load.rps).into_iter();
        both.zip(other.figures(index, |load| load.rps))
            .map(|(ours, others)| ours / others)
            .collect()
    }
}

/// Measures all sides, and prints a table and a line of JSON. Returns whether the aims are met in each turn.
pub async fn run() -> bool {
    let world = World::start(SIZE, false).await;
    // No side is the static answer.
    let mut sides = [
        (Some(Side::Plimsoll), Served::of("Plimsoll")),
        (None, Served::of("static answer")),
        (Some(Side::Peers(Peers::Tuned)), Served::of("prometheus-adapter tuned")),
    ];
    let mut answer = Vec::new();
    for turn in 0..TURNS {
        show_progress(&format!("turn {} of {TURNS}", turn + 1));
        // The order rotates; in the first turn Plimsoll gives the answer.
        for place in 0..sides.len() {
            let (side, served) = &mut sides[(turn + place) % 3];
            let loads = match *side {
                Some(side) => {
                    let (loads, given) = sides::serve_selectors(&world, side, EACH).await;
                    if side == Side::Plimsoll {
                        answer = given;
                    }
                    loads
                }
                None => sides::serve_static(&world, &answer, EACH).await,
            };
            served.turns.push(loads);
        }
    }
    let [(_, ours), (_, constant), (_, tuned)] = sides;
    print(&[&ours, &tuned, &constant]);
    let of_connections = |of: &dyn Fn(usize) -> Vec<f64>| -> Value {
        let figures = names().into_iter().enumerate();
        figures.map(|(index, name)| (name, json!(rounded(of(index))))).collect()
    };
    let side = |side: &Served| {
        json!({
            "rps": of_connections(&|index| side.figures(index, |load| load.rps)),
            "p99_ms": of_connections(&|index| side.figures(index, |load| millis(load.p99))),
            "max_ms": of_connections(&|index| side.figures(index, |load| millis(load.max))),
            "errors": side.turns.iter().flatten().map(|load| load.errors).sum::<usize>(),
        })
    };
    let line = json!({
        "plimsoll": side(&ours),
        "peers_tuned": side(&tuned),
        "static_answer": side(&constant),
        "times_peers": of_connections(&|index| ours.ratios(&tuned, index)),
        "of_static": of_connections(&|index| ours.ratios(&constant, index)),
    });
    println!("bench-api: {line}");
    let p99 = |index: usize| ours.figures(index, |load| millis(load.p99));
    let errors: usize = [&ours, &constant, &tuned]
        .iter()
        .flat_map(|side| side.turns.iter().flatten())
        .map(|l| l.errors)
        .sum();
    let least = |values: Vec<f64>, bound: f64| values.iter().all(|value| *value >= bound);
    let aims = [
        ("no request failed", errors == 0),
        ("1 connection: 80 % of the static answer", least(ours.ratios(&constant, 0), 0.8)),
        ("16 connections: 50 times the peers", least(ours.ratios(&tuned, 1), 50.0)),
        ("64 connections: 50 times the peers", least(ours.ratios(&tuned, 2), 50.0)),
        ("16 connections: p99 below 5 ms", p99(1).iter().all(|p99| *p99 < 5.0)),
    ];
    println!("in each turn:");
    bounds::are_met(&aims.map(|(aim, is_met)| (aim, Some(is_met))))
}

/// The numbers of connections, and the first request for each workload.
fn names() -> Vec<String> {
    CONNECTIONS.iter().map(usize::to_string).chain(["16, first".to_owned()]).collect()
}

/// The table of medians over the turns.
fn print(sides: &[&Served]) {
    println!(
        "\nGET of {} pods by selector, {} workloads; medians of {TURNS} turns of {} s\n",
        SIZE.pods,
        SIZE.autoscalers,
        EACH.as_secs()
    );
    println!(
        "{:<28} {:>11} {:>12} {:>8} {:>8} {:>8}",
        "", "connections", "requests/s", "p50 ms", "p99 ms", "max ms"
    );
    for side in sides {
        for (index, connections) in names().into_iter().enumerate() {
            let figure = |of: &dyn Fn(&Load) -> f64| median(side.figures(index, of));
            let [p50, p99, max] = [
                figure(&|load| millis(load.p50)),
                figure(&|load| millis(load.p99)),
                figure(&|load| millis(load.max)),
            ];
            let rps = figure(&|load| load.rps);
            println!(
                "{:<28} {connections:>11} {rps:>12.0} {p50:>8.2} {p99:>8.2} {max:>8.2}",
                side.name
            );
        }
    }
    println!();
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

fn rounded(values: Vec<f64>) -> Vec<f64> {
    values.into_iter().map(|value| (value * 100.0).round() / 100.0).collect()
}
