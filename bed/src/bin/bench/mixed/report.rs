//! The table of a mixed fleet, its file and its line of ratios.

use super::result::OfSeed;
use super::side::Side;
use super::step::Steps;
use crate::bounds;
use crate::measure::Block;
use crate::report::{Summary, fine, round, summary};
use crate::round::ROUND;
use crate::world::Size;
use bed::root;
use serde_json::{Map, Value, json};

/// A side over some seeds.
struct Figures {
    side: Side,
    summary: Summary,
    steps: Steps,
}

/// How far the stack's CPU a decision of two seeds may be apart.
const WITHIN: f64 = 0.2;
/// How many times Plimsoll's CPU a decision that of each peer is at least, over the whole stack, on a fleet of this size or more.
const LEAST_RATIO: (f64, usize) = (10.0, 1_000);

fn figures(size: Size, seeds: &[&OfSeed], side: Side) -> Option<Figures> {
    let mut steps = Steps::default();
    let mut blocks: Vec<Block> = Vec::new();
    for seed in seeds {
        if let Some((_, block, took)) = seed.sides.iter().find(|(of, ..)| *of == side) {
            blocks.push(block.clone());
            steps.seconds.extend(&took.seconds);
            steps.missing += took.missing;
        }
    }
    steps.seconds.sort_unstable_by(f64::total_cmp);
    let summary = (!blocks.is_empty()).then(|| summary(&blocks, &idle_of(seeds), size))?;
    Some(Figures { side, summary, steps })
}

/// What was measured without a side.
fn idle_of(seeds: &[&OfSeed]) -> Vec<Block> {
    seeds.iter().flat_map(|seed| seed.idle.iter().cloned()).collect()
}

type Row<'a> = (&'a str, &'a dyn Fn(&Figures) -> f64);

/// Prints all, and writes target/bench/mixed.json. Returns whether the aims are met.
pub fn print(size: Size, seeds: &[OfSeed]) -> bool {
    let all: Vec<&OfSeed> = seeds.iter().collect();
    let of = |seeds: &[&OfSeed]| -> Vec<Figures> {
        Side::ALL.iter().filter_map(|side| figures(size, seeds, *side)).collect()
    };
    let totals = of(&all);
    println!(
        "\n{} autoscalers x {} pods, {} rounds of {} s of Plimsoll on each seed and {} of the others; the peers are prometheus-adapter 0.12.0 and KEDA 2.21.0 (which answers\n\
         from its cache, up to 30 s old, for half of the queries), each with kube-controller-manager 1.36.3, tuned. CPU is what is used beyond what an idle stack uses.",
        size.autoscalers,
        size.pods,
        Side::Plimsoll.rounds(),
        ROUND.as_secs(),
        Side::Peers.rounds()
    );
    for seed in seeds {
        let order: Vec<&str> = seed.sides.iter().map(|(side, ..)| side.name()).collect();
        println!(
            "seed {}: {} different metrics and windows; measured in the order {}",
            seed.seed,
            seed.metrics,
            order.join(", ")
        );
    }
    let idle = idle_of(&all);
    let idle_cpu = idle.iter().map(|block| {
        let used: f64 = block.rounds.iter().flat_map(|round| round.cpu.values()).sum();
        fine(used * 1000.0 * ROUND.as_secs_f64() / (block.seconds() * size.autoscalers as f64))
    });
    let idle_cpu: Vec<f64> = idle_cpu.collect();
    println!("used when idle before each side, ms for each decision: {idle_cpu:?}");
    println!();
    print!("{:<38}", "");
    for figures in &totals {
        print!(" {:>21}", figures.side.name());
    }
    println!(" {:>10} {:>10}", "adapter/our", "KEDA/our");
    let mut text = Map::new();
    let mut row = |name: &str, sides: &[Figures], figure: &dyn Fn(&Figures) -> f64| {
        let values: Vec<f64> = sides.iter().map(figure).collect();
        print!("{name:<38}");
        for value in &values {
            print!(" {:>21}", if value.is_nan() { String::new() } else { format!("{value:.3}") });
        }
        for peer in &values[1..Side::COMPARED] {
            // A quantile is the upper bound of a bucket, and each has its own buckets.
            let is_ratio = values[0] > 0.0 && *peer > 0.0 && !name.starts_with("lag");
            print!(
                " {:>10}",
                if is_ratio { format!("{:.1}", peer / values[0]) } else { String::new() }
            );
        }
        println!();
        let values =
            sides.iter().zip(values).map(|(of, value)| (of.side.name().to_owned(), json!(value)));
        text.insert(name.trim().to_owned(), Value::Object(values.collect()));
    };
    let cpu = |process: &'static str| {
        move |figures: &Figures| figures.summary.cpu.get(process).copied().unwrap_or(0.0)
    };
    row("CPU a decision, whole stack, ms", &totals, &|f| f.summary.stack);
    for (name, process) in PROCESSES {
        row(name, &totals, &cpu(process));
    }
    row("  with what is used when idle, ms", &totals, &|f| f.summary.gross);
    let rows: [Row; 11] = [
        ("decisions a second", &|f| f.summary.decisions_per_second),
        ("seconds between two decisions of one", &|f| {
            size.autoscalers as f64 / f.summary.decisions_per_second
        }),
        ("lag, p99, at most, s", &|f| f.summary.lag_p99.unwrap_or(f64::NAN)),
        ("requests to Prometheus a round", &|f| f.summary.requests),
        ("seconds of evaluation a round", &|f| f.summary.query_seconds),
        ("API server requests a round", &|f| f.summary.api_requests),
        ("peak memory, MiB", &|f| f.summary.memory),
        ("  without kube-controller-manager, MiB", &own_memory),
        ("step to scale, median, s", &|f| f.steps.quantile(0.5)),
        ("step to scale, p90, s", &|f| f.steps.quantile(0.9)),
        ("step to scale, slowest, s", &|f| f.steps.quantile(1.0)),
    ];
    for (name, figure) in rows {
        row(name, &totals, figure);
    }
    row("steps without a scale", &totals, &|f| {
        if f.steps.seconds.is_empty() { f64::NAN } else { f.steps.missing as f64 }
    });
    for seed in seeds {
        let name = format!("CPU a decision, whole stack, seed {}", seed.seed);
        row(&name, &of(&[seed]), &|f| f.summary.stack);
    }
    let stacks: Vec<f64> = seeds
        .iter()
        .filter_map(|seed| figures(size, &[seed], Side::Plimsoll))
        .map(|figures| figures.summary.stack)
        .collect();
    let least = stacks.iter().copied().fold(f64::INFINITY, f64::min);
    let most = stacks.iter().copied().fold(0.0, f64::max);
    let agree = most <= least * (1.0 + WITHIN);
    if stacks.len() > 1 {
        let apart = (most / least - 1.0) * 100.0;
        println!(
            "\nPlimsoll's seeds are {apart:.0} % apart: {}",
            if agree { "within 20 %" } else { "MORE THAN 20 %" }
        );
    }
    let ratios = |peer: &Figures| {
        let ours = &totals[0];
        let of = |figure: &dyn Fn(&Figures) -> f64, least: f64| {
            round(figure(peer) / figure(ours).max(least))
        };
        json!({
            "stack_cpu_per_decision": of(&|f| f.summary.stack, 0.0),
            "stack_cpu_per_decision_with_idle": of(&|f| f.summary.gross, 0.0),
            "prometheus_requests_per_round": of(&|f| f.summary.requests, 0.0),
            // Plimsoll may need no request at all: count at least one.
            "apiserver_requests_per_round": of(&|f| f.summary.api_requests, 1.0),
            "memory": of(&|f| f.summary.memory, 0.0),
            // A cluster with Plimsoll has one, too.
            "memory_without_kube_controller_manager": of(&own_memory, 0.0),
            "prometheus_evaluation_per_round": of(&|f| f.summary.query_seconds, 0.0),
            "step_median": of(&|f| f.steps.quantile(0.5), 0.0),
            "step_p90": of(&|f| f.steps.quantile(0.9), 0.0),
        })
    };
    // Autoscalers are measured on the first seed.
    let own = of(&[&seeds[0]]);
    let autoscalers = own.iter().find(|figures| figures.side == Side::Autoscalers).map(|ours| {
        let ratios = |peer: &Figures| {
            json!({
                "stack_cpu_per_decision": round(peer.summary.stack / ours.summary.stack),
                "stack_cpu_per_decision_with_idle": round(peer.summary.gross / ours.summary.gross),
            })
        };
        json!({"prometheus_adapter": ratios(&own[1]), "keda": ratios(&own[2])})
    });
    let line = json!({
        "autoscalers_on_the_first_seed": autoscalers,
        "seeds": seeds.iter().map(|seed| seed.seed).collect::<Vec<_>>(),
        "seeds_within_20_percent": agree,
        "prometheus_adapter": ratios(&totals[1]),
        "keda": ratios(&totals[2]),
    });
    let file = root().join("target/bench/mixed.json");
    std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
    let memory: Map<String, Value> =
        totals.iter().map(|f| (f.side.name().to_owned(), json!(f.summary.memory_of))).collect();
    let text = json!({"autoscalers": size.autoscalers, "pods": size.pods, "figures": text,
        "memory": memory, "idle_ms_per_decision": idle_cpu, "ratios": line});
    std::fs::write(&file, format!("{text:#}\n")).expect("a file");
    println!("\nwritten to target/bench/mixed.json");
    println!("bench-mixed: {line}");
    let (least, size_of_aim) = LEAST_RATIO;
    let ratio = |peer: &Figures| peer.summary.stack / totals[0].summary.stack;
    let is_tenfold = || totals[1..Side::COMPARED].iter().all(|peer| ratio(peer) >= least);
    let is_below = || {
        seeds.iter().all(|seed| {
            let stacks: Vec<f64> =
                of(&[seed]).iter().map(|figures| figures.summary.stack).collect();
            stacks[1..Side::COMPARED].iter().all(|peer| stacks[0] < *peer)
        })
    };
    let aims = [
        ("Plimsoll's seeds are within 20 %", (stacks.len() > 1).then_some(agree)),
        (
            "each peer's stack takes ten times Plimsoll's, beyond idle use",
            (size.autoscalers >= size_of_aim).then(is_tenfold),
        ),
        (
            "each peer's stack takes more than Plimsoll's on each mix",
            (size.autoscalers >= size_of_aim).then(is_below),
        ),
        ("each step has a scale of Plimsoll", Some(totals[0].steps.missing == 0)),
    ];
    bounds::are_met(&aims)
}

/// The peak memory of the processes that only this side has.
fn own_memory(of: &Figures) -> f64 {
    let manager = of.summary.memory_of.get("kube-controller-manager");
    of.summary.memory - manager.copied().unwrap_or(0.0)
}

/// The processes of all sides, and their rows.
const PROCESSES: [(&str, &str); 8] = [
    ("  plimsoll", "plimsoll"),
    ("  prometheus-adapter", "prometheus-adapter"),
    ("  keda-operator", "keda-operator"),
    ("  keda-metrics-server", "keda-metrics-server"),
    ("  kube-controller-manager", "kube-controller-manager"),
    ("  kube-apiserver", "kube-apiserver"),
    ("  etcd", "etcd"),
    ("  prometheus", "prometheus"),
];
