//! A fleet with many different metrics (`mix.rs`), decided by Plimsoll, by prometheus-adapter and by
//! KEDA with kube-controller-manager, on the same series in one run.

mod decided;
mod keda;
mod mix;
mod objects;
mod report;
mod result;
mod rules;
mod side;
mod step;

use crate::block::block;
use crate::measure::Meter;
use crate::report::summary;
use crate::round::{ROUND, show_progress};
use crate::world::{Size, World};
use bed::random::Random;
use result::OfSeed;
use side::Side;
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::SystemTime;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    pub size: Size,
    /// The mixes that are dealt, one after the other.
    pub seeds: Vec<u64>,
    /// The rounds of each side.
    pub rounds: usize,
}

/// Without any side.
const IDLE_ROUNDS: usize = 2;

/// A seed for a run.
pub fn drawn_seed() -> u64 {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Random(time.as_nanos() as u64).next_u64() % 1_000_000
}

/// Measures all sides on each seed, and prints the table and the line of ratios.
pub async fn run(plan: Plan) -> ExitCode {
    mix::print();
    let mut world = World::without_workloads(plan.size).await;
    world.make_workloads().await;
    let mut measured = Vec::new();
    for (place, seed) in plan.seeds.iter().enumerate() {
        show_progress(&format!("seed {seed}"));
        // With Autoscalers only once: a run is to stay below 20 minutes.
        let sides = if place == 0 { &Side::ALL[..] } else { &Side::ALL[..Side::COMPARED] };
        measured.push(of_seed(&mut world, &plan, *seed, sides).await);
    }
    report::print(plan.size, &measured);
    ExitCode::SUCCESS
}

async fn of_seed(world: &mut World, plan: &Plan, seed: u64, sides: &[Side]) -> OfSeed {
    let apps = mix::deal(plan.size.autoscalers, seed);
    let write = |name: &str, text: String| {
        let path = world.cluster.folder.join(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let exposed = write("mix.json", mix::exposed(plan.size, &apps).to_string());
    let recording = write("recording.yaml", rules::recording(&apps));
    world
        .expose("mixed", &[exposed], &[("pods", 5)], &format!("rule_files: [{recording}]\n"))
        .await;
    let pods = plan.size.autoscalers * plan.size.pods;
    world.wait_for("count(container_cpu_usage_seconds_total)", pods).await;
    let recorded = apps.iter().filter(|app| app.kind == mix::Kind::Recorded).count();
    // A rule records the pods of all who have its metric, also with another window.
    let query = "count(count by (namespace, pod) ({__name__=~\"pod:calls_.*\"}))";
    world.wait_for(query, recorded * plan.size.pods).await;

    let idle = block(world, None, IDLE_ROUNDS).await;
    let mut stepped = BTreeSet::new();
    let mut blocks = Vec::new();
    for (place, side) in sides.iter().enumerate() {
        let steps = step::choose(&apps, place);
        show_progress(&format!("measuring {}: {} rounds", side.name(), plan.rounds));
        side.make_objects(world, &apps).await;
        let running = side.start(world, &apps).await;
        decided::wait(world, *side, &stepped).await;
        tokio::time::sleep(ROUND).await;
        let block = Meter::new(world, Some(&running)).measure(plan.rounds).await;
        decided::wait(world, *side, &stepped).await;
        show_progress(&format!("  stepping the load of {} workloads", steps.len()));
        let took = step::measure(world, &steps, seed).await;
        drop(running);
        side.clear(world, &apps).await;
        step::reset(world, &steps).await;
        stepped.extend(steps.iter().map(|app| app.name()));
        let of_side = summary(std::slice::from_ref(&block), std::slice::from_ref(&idle), plan.size);
        show_progress(&format!(
            "  {:.2} ms of CPU a decision, {:.1} decisions a second, {:.1} s from a step to its scale",
            of_side.stack,
            of_side.decisions_per_second,
            took.quantile(0.5)
        ));
        blocks.push((*side, block, took));
    }
    OfSeed { seed, metrics: mix::distinct(&apps), idle, sides: blocks }
}
