//! What a round costs beside decisions and I/O: taking queries apart, planning,
//! reading an answer, and finding the values of pods in it. `cargo bench --bench kernels`.

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use plimsoll::config::Config;
use plimsoll::promql::plan::{Asking, Learned, Limits, Own, Shape, plan};
use plimsoll::promql::query::{MetricKind, PodMetric};
use plimsoll::samples::{Samples, Table};
use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::sync::Arc;

/// The query of one autoscaler of a workload of its own.
fn query(app: usize) -> Arc<str> {
    let metric = PodMetric {
        metric: "http_requests_total".to_owned(),
        labels: BTreeMap::from([("app".to_owned(), format!("app-{app}"))]),
        query: None,
    };
    let queries = Config::default().pod_queries;
    let namespace = format!("namespace-{}", app % 10);
    queries.query(&metric, MetricKind::Counter, &namespace).expect("a query").values
}

/// The answer to the queries of so many of them, each with ten pods.
fn answer(apps: usize) -> String {
    let series = (0..apps * 10).map(|pod| {
        let app = pod / 10;
        format!(
            r#"{{"metric":{{"app":"app-{app}","namespace":"namespace-{}","pod":"app-{app}-7d4f5b6c8-{pod:05}"}},"value":[1764000000.123,"{}.5"]}}"#,
            app % 10,
            pod % 17
        )
    });
    let series = series.collect::<Vec<_>>().join(",");
    format!(r#"{{"status":"success","data":{{"resultType":"vector","result":[{series}]}}}}"#)
}

fn planning(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan");
    let text = query(7);
    group.bench_function("take a query apart", |bencher| {
        bencher.iter(|| Shape::of(black_box(&text)));
    });
    for count in [1_000, 10_000] {
        let shapes: Vec<Shape> = (0..count).map(|app| Shape::of(&query(app))).collect();
        let waiting: BTreeSet<Own> = shapes.iter().map(|shape| shape.own.clone()).collect();
        let none = BTreeSet::new();
        group.throughput(Throughput::Elements(count as u64));
        group.bench_function(BenchmarkId::new("join queries", count), |bencher| {
            bencher.iter(|| {
                let asking =
                    Asking { waiting: black_box(&waiting), expected: &none, lately: &waiting };
                plan(&shapes[0].form, asking, Learned::default(), Limits::default())
            });
        });
    }
}

fn decoding(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("read an answer");
    group.sample_size(20);
    for series in [10_000, 100_000] {
        let body = answer(series / 10);
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_function(BenchmarkId::new("series", series), |bencher| {
            bencher.iter(|| Table::read(black_box(body.as_bytes())).expect("an answer"));
        });
    }
}

fn matching(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("find the values of ten pods");
    for series in [10_000, 100_000] {
        let apps = series / 10;
        let body = answer(apps);
        let table = Arc::new(Table::read(body.as_bytes()).expect("an answer"));
        let of = |app: usize| Samples::alone(table.clone(), Shape::of(&query(app)).into());
        let samples: Vec<Samples> = (0..apps).map(of).collect();
        let pods: Vec<Vec<String>> = (0..apps)
            .map(|app| {
                (app * 10..app * 10 + 10)
                    .map(|pod| format!("app-{app}-7d4f5b6c8-{pod:05}"))
                    .collect()
            })
            .collect();
        let mut next = (0..apps).cycle();
        group.bench_function(BenchmarkId::new("of series", series), |bencher| {
            bencher.iter_batched(
                || next.next().expect("it goes round"),
                |app| {
                    let by_pod = samples[app].by("pod");
                    let values = pods[app].iter().filter_map(|pod| by_pod.get(pod).next());
                    let found =
                        values.map(|sampled| sampled.value().milli()).fold(0, i64::wrapping_add);
                    assert!(found > 0);
                    found
                },
                BatchSize::SmallInput,
            );
        });
    }
}

criterion_group!(kernels, planning, decoding, matching);
criterion_main!(kernels);
