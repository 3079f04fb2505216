//! The report: all figures side by side.

use crate::load::Load;
use crate::machine::machine;
use crate::measure::{Block, millis};
use crate::round::ROUND;
use crate::sides::{CONNECTIONS, ServeResult};
use crate::world::Size;
use bed::root;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Selects the results of one kind of request.
type Loads = fn(&ServeResult) -> &Vec<Load>;

/// All measurements.
#[derive(Default)]
pub struct Report {
    /// Without any side, for comparison.
    pub idle: Vec<Block>,
    pub plimsoll: Vec<Block>,
    pub tuned: Vec<Block>,
    pub defaults: Vec<Block>,
    pub plimsoll_api: Vec<ServeResult>,
    pub tuned_api: Vec<ServeResult>,
    pub defaults_api: Vec<ServeResult>,
    /// The binaries of Plimsoll and of prometheus-adapter, in bytes.
    pub sizes: [u64; 2],
}

/// The totals of a side.
pub struct Summary {
    /// CPU milliseconds per decision by process, above the idle usage.
    pub cpu: BTreeMap<&'static str, f64>,
    /// The sum of `cpu`.
    pub stack: f64,
    /// The minimum and maximum over the rounds.
    pub stack_range: [f64; 2],
    /// CPU milliseconds per decision of all processes, idle usage included.
    pub gross: f64,
    pub decisions_per_second: f64,
    pub failed_per_second: f64,
    /// Requests to Prometheus of a round with one decision for each autoscaler.
    pub requests: f64,
    pub api_requests: f64,
    pub query_seconds: f64,
    /// Peak memory in MiB, of all processes and of each.
    pub memory: f64,
    pub memory_of: BTreeMap<&'static str, f64>,
    pub lag_p99: Option<f64>,
}

/// CPU seconds per second by process, without any side.
fn idle_rates(idle: &[Block]) -> BTreeMap<&'static str, f64> {
    let seconds: f64 = idle.iter().map(Block::seconds).sum();
    let mut rates = BTreeMap::new();
    for (name, cpu) in idle.iter().flat_map(|block| &block.rounds).flat_map(|round| &round.cpu) {
        *rates.entry(*name).or_default() += cpu / seconds;
    }
    rates
}

/// The totals of the blocks of a side, beyond what the idle blocks used.
pub fn summary(blocks: &[Block], idle: &[Block], size: Size) -> Summary {
    let rates = idle_rates(idle);
    let rate = |name: &str| rates.get(name).copied().unwrap_or(0.0);
    let seconds: f64 = blocks.iter().map(Block::seconds).sum();
    let decisions: f64 = blocks.iter().map(Block::decisions).sum::<f64>().max(1.0);
    let (mut cpu, mut gross) = (BTreeMap::new(), 0.0);
    let mut of_rounds = Vec::new();
    for round in blocks.iter().flat_map(|block| &block.rounds) {
        let mut of_round = 0.0;
        for (name, used) in &round.cpu {
            let net = used - rate(name) * round.seconds;
            *cpu.entry(*name).or_insert(0.0) += net * 1000.0 / decisions;
            gross += used * 1000.0 / decisions;
            of_round += net * 1000.0 / round.decisions.max(1.0);
        }
        of_rounds.push(of_round);
    }
    let idle_seconds: f64 = idle.iter().map(Block::seconds).sum();
    let per_round = |of: fn(&Block) -> f64| {
        let anyway = idle.iter().map(of).sum::<f64>() / idle_seconds * seconds;
        let net = (blocks.iter().map(of).sum::<f64>() - anyway).max(0.0);
        net * size.autoscalers as f64 / decisions
    };
    let mut memory_of: BTreeMap<&'static str, f64> = BTreeMap::new();
    for (name, memory) in blocks.iter().flat_map(|block| &block.memory) {
        let most = memory_of.entry(*name).or_default();
        *most = most.max(*memory);
    }
    Summary {
        // A process below its idle usage is noise: it takes nothing from the sum.
        stack: cpu.values().map(|ms: &f64| ms.max(0.0)).sum(),
        stack_range: [
            of_rounds.iter().copied().fold(f64::INFINITY, f64::min),
            of_rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        ],
        cpu,
        gross,
        decisions_per_second: decisions / seconds,
        failed_per_second: blocks.iter().map(Block::failed).sum::<f64>() / seconds,
        requests: per_round(|block| block.asked.requests),
        api_requests: per_round(|block| block.api_requests),
        query_seconds: per_round(|block| block.asked.seconds),
        memory: memory_of.values().sum(),
        memory_of,
        lag_p99: blocks.iter().filter_map(|block| block.lag_p99).max_by(f64::total_cmp),
    }
}

/// The median, or the larger of the two in the middle.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A figure of a kind of request, over the turns.
fn served(
    turns: &[ServeResult],
    of: impl Fn(&ServeResult) -> &Vec<Load>,
    index: usize,
    figure: impl Fn(&Load) -> f64,
) -> f64 {
    median(turns.iter().map(|turn| figure(&of(turn)[index])).collect())
}

impl Report {
    /// Prints the table and the line of ratios, and writes the file.
    pub fn print(&self, size: Size) {
        let of = |blocks| summary(blocks, &self.idle, size);
        let (ours, tuned, defaults) = (of(&self.plimsoll), of(&self.tuned), of(&self.defaults));
        let sides = [&ours, &tuned, &defaults];
        let mut rows: Vec<(String, [f64; 3])> = Vec::new();
        let mut row = |name: &str, figure: &dyn Fn(&Summary) -> f64| {
            rows.push((name.to_owned(), sides.map(figure)));
        };
        row("CPU a decision, whole stack, ms", &|s| s.stack);
        for process in [
            "plimsoll",
            "prometheus-adapter",
            "kube-controller-manager",
            "kube-apiserver",
            "etcd",
            "prometheus",
        ] {
            row(&format!("  {process}"), &|s| s.cpu.get(process).copied().unwrap_or(0.0));
        }
        row("  what they use anyway included", &|s| s.gross);
        row("decisions a second", &|s| s.decisions_per_second);
        row("failed ones a second", &|s| s.failed_per_second);
        row("seconds between two decisions of one", &|s| {
            size.autoscalers as f64 / s.decisions_per_second
        });
        row("requests to Prometheus a round", &|s| s.requests);
        row("seconds of evaluation a round", &|s| s.query_seconds);
        row("API server requests a round", &|s| s.api_requests);
        row("peak memory, MiB", &|s| s.memory);
        let turns = [&self.plimsoll_api, &self.tuned_api, &self.defaults_api];
        for (index, connections) in CONNECTIONS.iter().enumerate() {
            let kinds: [(&str, Loads); 2] =
                [("by selector", |s| &s.selector), ("of one pod", |s| &s.one)];
            for (kind, loads) in kinds {
                let figure = |figure: fn(&Load) -> f64| {
                    turns.map(|turns| served(turns, loads, index, figure))
                };
                let name = format!("GET {kind}, {connections} connections");
                rows.push((format!("{name}, requests/s"), figure(|load| load.rps)));
                rows.push((format!("{name}, p50 ms"), figure(|load| millis(load.p50))));
                rows.push((format!("{name}, p99 ms"), figure(|load| millis(load.p99))));
                rows.push((format!("{name}, errors"), figure(|load| load.errors as f64)));
            }
        }
        let first = |turns: &Vec<ServeResult>| {
            median(turns.iter().map(|turn| millis(turn.first_value)).collect())
        };
        rows.push(("start to first value, ms".to_owned(), turns.map(first)));
        let [plimsoll, adapter] = self.sizes.map(|bytes| bytes as f64 / 1e6);
        rows.push(("binary, MB (the adapter's)".to_owned(), [plimsoll, adapter, adapter]));

        println!(
            "\n{} autoscalers x {} pods, {} rounds of {} s a side; the peers are prometheus-adapter 0.12.0 and",
            size.autoscalers,
            size.pods,
            self.plimsoll.iter().map(|block| block.rounds.len()).sum::<usize>(),
            ROUND.as_secs()
        );
        println!(
            "kube-controller-manager 1.36.3. CPU is what is used beyond what an idle stack uses.\n"
        );
        println!(
            "{:<44} {:>10} {:>12} {:>14} {:>9}",
            "", "Plimsoll", "peers tuned", "peers default", "tuned/our"
        );
        for (name, [ours, tuned, defaults]) in &rows {
            let ratio = if *ours > 0.0 { format!("{:.1}", tuned / ours) } else { String::new() };
            println!("{name:<44} {ours:>10.3} {tuned:>12.2} {defaults:>14.2} {ratio:>9}");
        }
        if let Some(lag) = ours.lag_p99 {
            println!("{:<44} {lag:>10.3}", "lag behind its time, p99, s");
        }
        let [least, most] = ours.stack_range;
        println!("{:<44} {least:>10.3} to {most:.3}", "CPU a decision, by round");
        let of = |index: usize, loads: Loads, figure: fn(&Load) -> f64| {
            let [ours, tuned, _] = turns.map(|turns| served(turns, loads, index, figure));
            [ours, tuned]
        };
        let [our_rps, their_rps] = of(1, |s| &s.selector, |load| load.rps);
        let [our_p99, their_p99] = of(1, |s| &s.selector, |load| millis(load.p99));
        let [our_one, their_one] = of(1, |s| &s.one, |load| load.rps);
        // Plimsoll may need no request at all: count at least one.
        let least = 1.0;
        let ratios = json!({
            "stack_cpu_per_decision": round(tuned.stack / ours.stack),
            // The name that outside checks know, and what is counted: one request can have many queries.
            "prometheus_queries_per_round": round(tuned.requests / ours.requests),
            "prometheus_requests_per_round": round(tuned.requests / ours.requests),
            "apiserver_requests_per_round": round(tuned.api_requests / ours.api_requests.max(least)),
            "get_selector_rps": round(our_rps / their_rps),
            "get_selector_p99": round(their_p99 / our_p99),
            "get_one_rps": round(our_one / their_one),
            "memory": round(tuned.memory / ours.memory),
        });
        let figures: BTreeMap<&str, Value> = rows
            .iter()
            .map(|(name, [ours, tuned, defaults])| {
                let of = json!({"plimsoll": ours, "peers_tuned": tuned, "peers_default": defaults});
                (name.trim(), of)
            })
            .collect();
        let file = root().join("target/bench/peers.json");
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        let text = json!({"machine": machine(), "autoscalers": size.autoscalers, "pods": size.pods, "figures": figures,
            "memory": {"plimsoll": ours.memory_of, "peers_tuned": tuned.memory_of}, "ratios": ratios});
        std::fs::write(&file, format!("{text:#}\n")).expect("a file");
        println!("\nwritten to target/bench/peers.json");
        println!("bench: {ratios}");
    }
}

/// A ratio with one digit behind the point.
pub fn round(ratio: f64) -> f64 {
    (ratio * 10.0).round() / 10.0
}

/// A figure with three digits behind the point.
pub fn fine(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// What Plimsoll alone takes.
pub fn alone(size: Size, idle: &Block, block: &Block) -> Value {
    let summary = summary(std::slice::from_ref(block), std::slice::from_ref(idle), size);
    let cpu: f64 = block.rounds.iter().filter_map(|round| round.cpu.get("plimsoll")).sum();
    let of = |process: &str| summary.cpu.get(process).copied().map(fine);
    let memory: Map<String, Value> = summary
        .memory_of
        .iter()
        .map(|(name, mib)| ((*name).to_owned(), json!(round(*mib))))
        .collect();
    json!({
        "autoscalers": size.autoscalers,
        "pods": size.autoscalers * size.pods,
        "rounds": block.rounds.len(),
        "decisions_per_second": round(summary.decisions_per_second),
        "seconds_between_decisions": round(size.autoscalers as f64 / summary.decisions_per_second),
        "lag_p99_seconds": summary.lag_p99,
        "cpu_share": fine(cpu / block.seconds()),
        "cpu_ms_per_decision": of("plimsoll"),
        "prometheus_cpu_ms_per_decision": of("prometheus"),
        "stack_cpu_ms_per_decision": fine(summary.stack),
        "stack_cpu_ms_per_decision_with_idle": fine(summary.gross),
        "peak_memory_mib": round(summary.memory),
        "peak_memory_mib_by_process": memory,
        "prometheus_requests_per_round": round(summary.requests),
        "prometheus_evaluation_seconds_per_round": fine(summary.query_seconds),
        "apiserver_requests_per_round": round(summary.api_requests),
    })
}

/// Prints what Plimsoll alone takes, and whether it is within what a figure may be at most.
/// Returns whether all are within their bounds.
pub fn print_alone(figures: &Value, bounds: &[(&str, f64)]) -> bool {
    println!();
    let mut all_met = true;
    for (name, figure) in figures.as_object().into_iter().flatten() {
        let bound = bounds.iter().find(|(of, _)| of == name);
        let verdict = bound.map_or(String::new(), |(_, most)| {
            let verdict = match figure.as_f64() {
                // A net figure below nothing is noise.
                None | Some(..-0.001) => "not measured",
                Some(figure) if figure <= *most => "met",
                Some(_) => "not met",
            };
            all_met &= verdict == "met";
            format!("  at most {most}: {verdict}")
        });
        println!("{name:<44} {figure:>12}{verdict}");
    }
    for (name, most) in bounds.iter().filter(|(name, _)| figures.get(name).is_none()) {
        println!("{name:<44} {:>12}  at most {most}: not measured", "");
        all_met = false;
    }
    println!("bench-large: {figures}");
    all_met
}
