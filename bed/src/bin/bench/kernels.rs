//! What the parts of an evaluation allocate, and the instructions that they take, which no clock changes.

#[path = "../../../../benches/cases/queries.rs"]
mod queries;
#[path = "../../../../benches/cases/workload.rs"]
mod workload;

use crate::bounds::{Count, FILE, Slack};
use allocation_counter::{AllocationInfo, measure};
use bed::root;
use plimsoll::promql::cost::{Estimates, Limits};
use plimsoll::promql::plan::{PlanInput, plan};
use plimsoll::promql::shape::{Arguments, ShapedQuery};
use plimsoll::samples::{QueryResult, Table};
use queries::{query, response};
use std::collections::BTreeSet;
use std::hint::black_box;
use std::process::Command;
use std::sync::Arc;

const QUERIES: usize = 1_000;
/// The workloads of a response, each with ten pods.
const WORKLOADS: usize = 1_000;

const PARSED: &str = "a query parsed";
const DECODED: &str = "100 series decoded";
/// How often a kernel runs: the difference of both leaves out its preparation.
const TIMES: [usize; 2] = [100, 300];

/// Runs a kernel: a case of decisions, or one of the others.
pub fn repeat(kernel: &str, times: usize) {
    match kernel {
        PARSED => {
            let text = query(0);
            (0..times).for_each(|_| drop(black_box(ShapedQuery::of(black_box(&text)))));
        }
        DECODED => {
            let body = response(10);
            let read = || Table::read(black_box(body.as_bytes())).expect("a response");
            (0..times).for_each(|_| drop(black_box(read())));
        }
        _ => {
            let (_, metric, behavior, traced) = workload::cases()
                .into_iter()
                .find(|(name, ..)| *name == kernel)
                .expect("the name of a kernel");
            let of = workload::Workload::new(10, metric, behavior);
            of.with_evaluations(traced, |evaluate| (0..times).for_each(|_| evaluate()));
        }
    }
}

/// Counts the instructions of each kernel, by Valgrind: of this build, which is not optimized, as a hint. None with another compiler
/// or processor than those of the bounds, whose counts are others.
pub fn instructions() -> Vec<Count> {
    if !is_compiler_of_bounds() {
        println!(
            "instructions are not compared: {FILE} has those of the Dockerfile's Rust on x86-64"
        );
        return Vec::new();
    }
    let cases = workload::cases().map(|(name, ..)| name);
    let kernels = cases.into_iter().chain([PARSED, DECODED]);
    kernels
        .map(|kernel| {
            let [few, many] = TIMES.map(|times| collected(kernel, times));
            let measured = (many - few) / (TIMES[1] - TIMES[0]) as f64;
            let name = match kernel {
                PARSED | DECODED => format!("{kernel}: instructions"),
                _ => format!("a decision, {kernel}: instructions"),
            };
            // Hashes are seeded anew in each process, and the C library copies by what the processor has.
            Count { name, measured: measured.round(), slack: Slack { share: 0.1, more: 0.0 } }
        })
        .collect()
}

/// Whether this is x86-64 with the Rust of the Dockerfile, as in CI.
fn is_compiler_of_bounds() -> bool {
    let dockerfile = std::fs::read_to_string(root().join("Dockerfile")).unwrap_or_default();
    let image = dockerfile.split_whitespace().find_map(|word| word.strip_prefix("rust:"));
    let wanted = image.and_then(|tag| tag.split('-').next()).unwrap_or("none");
    let output = Command::new("rustc").arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let version = text.unwrap_or_default();
    let version = version.split_whitespace().nth(1).unwrap_or_default();
    cfg!(target_arch = "x86_64")
        && (version == wanted || version.starts_with(&format!("{wanted}.")))
}

/// The instructions of this program when it runs a kernel so many times.
fn collected(kernel: &str, times: usize) -> f64 {
    let program = std::env::current_exe().expect("this program");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(["--kernel", kernel, &times.to_string()])
        .output()
        .expect("valgrind runs: it is a package of this name");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{kernel}: {text}");
    let collected = text.lines().find_map(|line| line.split_once("Collected : "));
    collected
        .and_then(|(_, number)| number.trim().parse().ok())
        .unwrap_or_else(|| panic!("valgrind counts nothing: {text}"))
}

/// Counts the allocations of decisions, of planning, and of reading a response.
pub fn counts() -> Vec<Count> {
    let mut counts = Vec::new();
    for (name, metric, behavior, traced) in workload::cases() {
        let of = workload::Workload::new(10, metric, behavior);
        let used =
            of.with_evaluations(traced, |evaluate| measure(|| (0..1_000).for_each(|_| evaluate())));
        let name = format!("1,000 decisions, {name}: allocations");
        let slack = Slack { share: 0.0, more: 0.0 };
        counts.push(Count { name, measured: used.count_total as f64, slack });
    }
    let texts: Vec<Arc<str>> = (0..QUERIES).map(query).collect();
    let mut shaped: Vec<ShapedQuery> = Vec::with_capacity(QUERIES);
    let used = measure(|| shaped.extend(texts.iter().map(|text| ShapedQuery::of(text))));
    counts.extend(of("1,000 queries parsed", used));
    let pending: BTreeSet<Arguments> = shaped.iter().map(|q| q.arguments.clone()).collect();
    let none = BTreeSet::new();
    let used = measure(|| {
        let input = PlanInput { pending: &pending, expected: &none, recent: &pending };
        let known = Estimates {
            filtered_series: Some(10.0),
            unfiltered_series: Some(1_000.0),
            ..Estimates::default()
        };
        drop(plan(&shaped[0].shape, input, known, Limits::default()));
    });
    counts.extend(of("1,000 queries planned", used));
    let body = response(WORKLOADS);
    let mut table = None;
    let used = measure(|| table = Some(Table::read(body.as_bytes()).expect("a response")));
    counts.extend(of("10,000 series decoded", used));
    let table = Arc::new(table.expect("a table"));
    let results: Vec<QueryResult> = shaped
        .iter()
        .map(|query| QueryResult::detached(table.clone(), query.clone().into()))
        .collect();
    let pods: Vec<String> =
        (0..WORKLOADS * 10).map(|pod| format!("app-{}-7d4f5b6c8-{pod:05}", pod / 10)).collect();
    let used = measure(|| {
        for (result, pods) in results.iter().zip(pods.chunks(10)) {
            let by_pod = result.by("pod");
            let found = pods.iter().filter(|pod| by_pod.get(pod).next().is_some()).count();
            assert_eq!(found, 10);
        }
    });
    counts.extend(of("values of 10,000 pods found", used));
    counts
}

fn of(name: &str, used: AllocationInfo) -> [Count; 2] {
    // Other versions of the standard library grow their collections in other steps.
    let slack = Slack { share: 0.05, more: 10.0 };
    [("allocations", used.count_total), ("bytes allocated", used.bytes_total)].map(
        |(what, measured)| Count {
            name: format!("{name}: {what}"),
            measured: measured as f64,
            slack,
        },
    )
}
