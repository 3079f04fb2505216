//! The benchmark: Plimsoll and prometheus-adapter with kube-controller-manager's HPA controller, on
//! real parts, in one run (`make bench`). `--large` measures only Plimsoll at ten times the size,
//! `--growth` it at several sizes, `--outage` what an outage costs, `--fairness` what one tenant
//! costs the others, and `--backtest` what backtests cost; `--short` tries all of it in small.

mod backtest;
mod block;
mod fairness;
mod growth;
mod load;
mod machine;
mod measure;
mod outage;
mod report;
mod round;
mod sides;
mod world;

use block::block;
use report::Report;
use round::show_progress;
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
        ["--large"] => {
            let size = Size { autoscalers: 10_000, pods: 10 };
            Plan { size, turns: 1, rounds: 8, requests: Duration::from_secs(5), peers: false }
        }
        ["--alone", autoscalers, pods] => {
            let [autoscalers, pods] =
                [autoscalers, pods].map(|number| number.parse().expect("a number"));
            let size = Size { autoscalers, pods };
            Plan { size, turns: 1, rounds: 4, requests: Duration::from_secs(5), peers: false }
        }
        ["--growth", rest @ ..] => {
            runtime().block_on(growth::run(rest.first().copied()));
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
                "usage: bench [--short | --large | --growth [SIZE] | --alone AUTOSCALERS PODS |\n\
                 \x20             --outage [AUTOSCALERS [PROMETHEUS_SECONDS [APISERVER_SECONDS]]] |\n\
                 \x20             --fairness [SECONDS] | --backtest [AUTOSCALERS]]"
            );
            return ExitCode::from(2);
        }
    };
    runtime().block_on(run(plan));
    ExitCode::SUCCESS
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
            for (side, blocks) in [
                (Side::Plimsoll, &mut report.plimsoll),
                (Side::Peers(Peers::Tuned), &mut report.tuned),
                (Side::Peers(Peers::Default), &mut report.defaults),
            ] {
                blocks.push(block(&world, Some(side), plan.rounds).await);
            }
            for (side, loads) in [
                (Side::Plimsoll, &mut report.plimsoll_api),
                (Side::Peers(Peers::Tuned), &mut report.tuned_api),
                (Side::Peers(Peers::Default), &mut report.defaults_api),
            ] {
                loads.push(sides::serve(&world, side, plan.requests).await);
            }
        }
        report.sizes = sides::binary_sizes();
        report.print(plan.size);
    } else {
        world.make_autoscalers().await;
        let idle = block(&world, None, 2).await;
        let plimsoll = block(&world, Some(Side::Alone), plan.rounds).await;
        report::print_alone(&report::alone(plan.size, &idle, &plimsoll));
    }
}
