//! A fleet with many different metrics (`mix.rs`), decided by Plimsoll, by prometheus-adapter and by
//! KEDA with kube-controller-manager, on the same series in one run. Each side has a Prometheus of its own,
//! which has seen no load that was stepped before; idle use is measured before each side, and
//! the second seed has the sides in the opposite order.

mod keda;
mod mix;
mod objects;
mod report;
mod result;
mod rules;
mod side;
mod step;

use crate::decided;
use crate::measure::Meter;
use crate::report::summary;
use crate::round::{ROUND, show_progress};
use crate::sides::{Running, start_with};
use crate::world::{Size, World};
use bed::random::Random;
use mix::App;
use result::OfSeed;
use side::Side;
use std::time::SystemTime;
use step::Steps;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    pub size: Size,
    /// The mixes that are dealt, one after the other.
    pub seeds: Vec<u64>,
    /// Whether Plimsoll is measured with Autoscalers, too, on the first mix.
    pub with_autoscalers: bool,
}

/// Without any side, before each.
const IDLE_ROUNDS: usize = 1;

/// A seed for a run.
pub fn drawn_seed() -> u64 {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Random(time.as_nanos() as u64).next_u64() % 1_000_000
}

/// Measures all sides on each seed, and prints the table and the line of ratios. Returns whether the aims are met.
pub async fn run(plan: Plan) -> bool {
    mix::print();
    let mut world = World::without_workloads(plan.size).await;
    world.make_workloads().await;
    let mut measured = Vec::new();
    for (place, seed) in plan.seeds.iter().enumerate() {
        show_progress(&format!("seed {seed}"));
        // A run is to stay below 20 minutes: steps are of the first seed alone.
        let is_first = place == 0;
        let count =
            if plan.with_autoscalers && is_first { Side::ALL.len() } else { Side::COMPARED };
        let mut sides = Side::ALL[..count].to_vec();
        if place % 2 == 1 {
            sides.reverse();
        }
        measured.push(of_seed(&mut world, &plan, (*seed, is_first), &sides).await);
    }
    report::print(plan.size, &measured)
}

/// Measures these sides on a seed, and what an idle stack uses before each of them; on the first one also steps.
async fn of_seed(
    world: &mut World,
    plan: &Plan,
    (seed, is_first): (u64, bool),
    sides: &[Side],
) -> OfSeed {
    let apps = mix::deal(plan.size.autoscalers, seed);
    let stepped = step::choose(&apps);
    let mut of = OfSeed::new(seed, mix::distinct(&apps));
    for side in sides {
        expose(world, plan.size, &apps).await;
        show_progress("measuring nothing, for comparison");
        // With the time until Prometheus has all series, about two rounds after the last write.
        tokio::time::sleep(ROUND).await;
        of.idle.push(Meter::new(world, None).measure(IDLE_ROUNDS).await);
        let rounds = side.rounds();
        show_progress(&format!("measuring {}: {rounds} rounds", side.name()));
        side.make_objects(world, &apps).await;
        let running = side.start(world, &apps).await;
        let (name, pods) = (side.name(), Some(plan.size.pods));
        decided::wait(world, name, side.path(), pods).await;
        tokio::time::sleep(ROUND).await;
        let block = Meter::new(world, Some(&running)).measure(rounds).await;
        block.check(name, plan.size.autoscalers);
        decided::wait(world, name, side.path(), pods).await;
        let took = if is_first && side.is_compared() {
            show_progress(&format!("  stepping the load of {} workloads", stepped.len()));
            // At times that are drawn anew in each run: fixed ones would show one phase of the rounds alone.
            let times = plan.seeds.last().copied().unwrap_or(seed);
            step::measure(world, &stepped, times).await
        } else {
            Steps::default()
        };
        drop(running);
        side.clear(world, &apps).await;
        step::reset_scales(world).await;
        let of_side = summary(std::slice::from_ref(&block), &of.idle, plan.size);
        let median = match took.seconds.is_empty() {
            true => String::new(),
            false => format!(", {:.1} s from a step to its scale", took.quantile(0.5)),
        };
        show_progress(&format!(
            "  {:.2} ms of CPU a decision, {:.1} decisions a second{median}",
            of_side.stack, of_side.decisions_per_second
        ));
        of.sides.push((*side, block, took));
    }
    of
}

/// Plimsoll with these flags and with Autoscalers of the first mix, on a fleet without any.
pub async fn start_in_small(world: &mut World, flags: &[&str]) -> Running {
    let (size, apps) = (world.size, mix::deal(world.size.autoscalers, 1));
    expose(world, size, &apps).await;
    Side::Autoscalers.make_objects(world, &apps).await;
    start_with(world, &rules::usage(), flags)
}

/// Exposes the metrics, as they are without a step, to an empty Prometheus, and waits until it has them all.
async fn expose(world: &mut World, size: Size, apps: &[App]) {
    let write = |name: &str, text: String| {
        let path = world.cluster.folder.join(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let exposed = write("mix.json", mix::exposed(size, apps).to_string());
    let recording = write("recording.yaml", rules::recording(apps));
    show_progress("exposing the metrics to an empty Prometheus");
    world
        .expose("mixed", &[exposed], &[("pods", 5)], &format!("rule_files: [{recording}]\n"))
        .await;
    let pods = size.autoscalers * size.pods;
    world.wait_for("count(container_cpu_usage_seconds_total)", pods).await;
    let recorded = apps.iter().filter(|app| app.kind == mix::Kind::Recorded).count();
    // A rule records the pods of all who have its metric, also with another window.
    let query = "count(count by (namespace, pod) ({__name__=~\"pod:calls_.*\"}))";
    world.wait_for(query, recorded * size.pods).await;
}
