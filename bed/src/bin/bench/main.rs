//! The benchmark: Plimsoll and prometheus-adapter with kube-controller-manager's HPA controller, on
//! real parts, in one run (`make bench`). `--large` measures only Plimsoll at ten times the size, with its start and a failover,
//! `--growth` it at several sizes, `--outage` what an outage costs, `--fairness` what one tenant
//! costs the others, `--api` the speed of the API, and `--backtest` what backtests cost; `--short` tries
//! all of it in small.
//! `--mixed` measures Plimsoll, prometheus-adapter and KEDA on a fleet with many different metrics.
//! `--smoke` compares counts with their bounds, and `--reaction` measures how soon a step in the load is answered.

mod api;
mod backtest;
mod block;
mod bounds;
mod decided;
mod fairness;
mod first_decisions;
mod growth;
mod kernels;
mod large;
mod load;
mod machine;
mod measure;
mod mixed;
mod outage;
mod reaction;
mod report;
mod round;
mod sides;
mod smoke;
mod world;

use block::block;
use report::Report;
use round::{passed, show_progress};
use sides::{Peers, Side};
use std::process::ExitCode;
use std::time::Duration;
use world::{Size, World};

/// What is measured, and how often.
#[derive(Clone, Copy, Debug)]
struct Plan {
    size: Size,
    /// How often each side is measured, alternating with the others.
    turns: usize,
    /// The rounds of each turn.
    rounds: usize,
    /// How long each kind of request is sent.
    requests: Duration,
    peers: bool,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    println!("machine: {}", machine::machine());
    passed();
    let code = run_command(&arguments);
    eprintln!("  {} done", passed());
    code
}

fn run_command(arguments: &[String]) -> ExitCode {
    let peers = Size { autoscalers: 1_000, pods: 10 };
    let plan = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => {
            let requests = Duration::from_secs(3);
            Plan { size: peers, turns: 2, rounds: 4, requests, peers: true }
        }
        // To test the benchmark itself.
        ["--short"] => {
            let size = Size { autoscalers: 100, pods: 10 };
            Plan { size, turns: 1, rounds: 2, requests: Duration::from_secs(1), peers: true }
        }
        ["--large", rest @ ..] => {
            let autoscalers =
                rest.first().map_or(10_000, |number| number.parse().expect("a number"));
            let flags: Vec<String> = rest.iter().skip(1).map(|flag| (*flag).to_owned()).collect();
            return met(runtime().block_on(large::run(autoscalers, &flags)));
        }
        ["--alone", autoscalers, pods] => {
            let [autoscalers, pods] =
                [autoscalers, pods].map(|number| number.parse().expect("a number"));
            let size = Size { autoscalers, pods };
            Plan { size, turns: 1, rounds: 4, requests: Duration::from_secs(5), peers: false }
        }
        ["--api"] => return met(runtime().block_on(api::run())),
        ["--mixed", rest @ ..] => {
            let autoscalers = rest.first() == Some(&"autoscalers");
            let seed = rest.get(usize::from(autoscalers));
            let seed = seed.map_or_else(mixed::drawn_seed, |seed| number(seed));
            return run_mixed(1_000, vec![1, seed], autoscalers);
        }
        // To test it.
        ["--mixed-short", rest @ ..] => {
            let (autoscalers, seeds) = match rest {
                [] => (100, vec![1]),
                [autoscalers, seeds @ ..] => {
                    let seeds = seeds.iter().map(|seed| number(seed));
                    (number(autoscalers) as usize, [1].into_iter().chain(seeds).collect())
                }
            };
            return run_mixed(autoscalers, seeds, true);
        }
        ["--growth", rest @ ..] => {
            return met(runtime().block_on(growth::run(rest.first().copied())));
        }
        ["--reaction", rest @ ..] => {
            let steps = rest.first().map_or(16, |number| number.parse().expect("a number"));
            return met(runtime().block_on(reaction::run(steps)));
        }
        ["--smoke"] => return runtime().block_on(smoke::run()),
        // What bench-smoke counts the instructions of.
        ["--kernel", kernel, times] => {
            kernels::repeat(kernel, number(times) as usize);
            return ExitCode::SUCCESS;
        }
        ["--outage", rest @ ..] => {
            let mut numbers = rest.iter().map(|number| number.parse().expect("a number"));
            let mut next = |default: u64| numbers.next().unwrap_or(default);
            let autoscalers = next(10_000) as usize;
            let [prometheus, apiserver] = [600, 120].map(|time| Duration::from_secs(next(time)));
            let plan = outage::Plan { autoscalers, prometheus, apiserver };
            return runtime().block_on(outage::run(plan));
        }
        ["--fairness", rest @ ..] => {
            let seconds = rest.first().map_or(180, |number| number.parse().expect("a number"));
            return runtime().block_on(fairness::run(Duration::from_secs(seconds)));
        }
        ["--backtest", rest @ ..] => {
            let autoscalers =
                rest.first().map_or(1_000, |number| number.parse().expect("a number"));
            return runtime().block_on(backtest::run(autoscalers));
        }
        _ => {
            eprintln!(
                "usage: bench [--short | --smoke | --large [AUTOSCALERS [FLAG...]] | --growth [SIZE] | --api | --alone AUTOSCALERS PODS |\n\
                 \x20             --mixed [autoscalers] [SEED] | --mixed-short [AUTOSCALERS [SEED ...]] |\n\
                 \x20             --outage [AUTOSCALERS [PROMETHEUS_SECONDS [APISERVER_SECONDS]]] |\n\
                 \x20             --fairness [SECONDS] | --backtest [AUTOSCALERS] | --reaction [STEPS]]"
            );
            return ExitCode::from(2);
        }
    };
    runtime().block_on(run(plan));
    ExitCode::SUCCESS
}

/// The exit code of a benchmark with aims.
fn met(aims: bool) -> ExitCode {
    if aims { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn number(text: &str) -> u64 {
    text.parse().expect("a number")
}

fn run_mixed(autoscalers: usize, seeds: Vec<u64>, with_autoscalers: bool) -> ExitCode {
    let size = Size { autoscalers, pods: 10 };
    met(runtime().block_on(mixed::run(mixed::Plan { size, seeds, with_autoscalers })))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().expect("a runtime")
}

async fn run(plan: Plan) {
    let world = World::start(plan.size, false).await;
    if plan.peers {
        world.make_native_hpas().await;
        let mut report = Report::default();
        for turn in 1..=plan.turns {
            show_progress(&format!("turn {turn} of {}", plan.turns));
            report.idle.push(block(&world, None, plan.rounds).await);
            let mut sides = [
                (Side::Plimsoll, &mut report.plimsoll, &mut report.plimsoll_api),
                (Side::Peers(Peers::Tuned), &mut report.tuned, &mut report.tuned_api),
                (Side::Peers(Peers::Default), &mut report.defaults, &mut report.defaults_api),
            ];
            // What a side leaves behind is not always that of the same one.
            if turn % 2 == 0 {
                sides.reverse();
            }
            for (side, blocks, _) in &mut sides {
                blocks.push(block(&world, Some(*side), plan.rounds).await);
            }
            for (side, _, loads) in sides {
                loads.push(sides::serve(&world, side, plan.requests).await);
            }
        }
        report.sizes = sides::binary_sizes();
        report.print(plan.size);
    } else {
        world.make_autoscalers().await;
        let idle = block(&world, None, 2).await;
        let plimsoll = block(&world, Some(Side::Alone), plan.rounds).await;
        report::print_alone(&report::alone(plan.size, &idle, &plimsoll), &[]);
    }
}
