//! `decide` in the steady state with 10, 100 and 1,000 pods: the time, and that nothing is allocated.
//! `tests/decide-cost` counts instructions.

#[path = "cases/workload.rs"]
mod workload;

use criterion::{BenchmarkId, Criterion, criterion_group};
use workload::{Workload, cases};

fn decide(criterion: &mut Criterion) {
    for (name, metric, behavior, traced) in cases() {
        let mut group = criterion.benchmark_group(name);
        for pods in [10, 100, 1_000] {
            let workload = Workload::new(pods, metric.clone(), behavior.clone());
            workload.with_evaluations(traced, |evaluate| {
                let allocated = allocation_counter::measure(|| (0..1_000).for_each(|_| evaluate()));
                println!(
                    "{name}/{pods}: {} allocations in 1,000 evaluations",
                    allocated.count_total
                );
                assert_eq!(allocated.count_total, 0, "the steady state allocates nothing");
                let id = BenchmarkId::from_parameter(pods);
                group.bench_function(id, |bencher| bencher.iter(&mut *evaluate));
            });
        }
    }
}

criterion_group!(benches, decide);

/// With `DECISIONS` and the name of a `CASE`, so many decisions on 10 pods and nothing else.
fn main() {
    let Ok(decisions) = std::env::var("DECISIONS") else {
        benches();
        return Criterion::default().configure_from_args().final_summary();
    };
    let case = std::env::var("CASE").expect("the name of a case");
    let (_, metric, behavior, traced) =
        cases().into_iter().find(|of| of.0 == case).expect("a case");
    let decisions: u32 = decisions.parse().expect("a number");
    Workload::new(10, metric, behavior)
        .with_evaluations(traced, |evaluate| (0..decisions).for_each(|_| evaluate()));
}
