//! The costs of an evaluation besides the decision and I/O: parsing queries, planning,
//! reading a response, and finding the values of pods in it. `cargo bench --bench kernels`.

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use plimsoll::config::Config;
use plimsoll::k8s::LabelSet;
use plimsoll::promql::cost::{Estimates, Limits};
use plimsoll::promql::plan::{PlanInput, plan};
use plimsoll::promql::query::{MetricType, Per, PrometheusMetric};
use plimsoll::promql::shape::{Arguments, ShapedQuery};
use plimsoll::samples::{QueryResult, Table};
use std::collections::BTreeSet;
use std::hint::black_box;
use std::sync::Arc;

/// The query of one autoscaler; each has a different workload.
fn query(app: usize) -> Arc<str> {
    let metric = PrometheusMetric {
        metric: "http_requests_total".to_owned(),
        per: Per::Pod,
        labels: LabelSet::from([("app".to_owned(), format!("app-{app}"))]),
        query: None,
    };
    let queries = Config::default().pod_queries;
    let namespace = format!("namespace-{}", app % 10);
    queries.query(&metric, MetricType::Counter, &namespace).expect("a query").values
}

/// The response to the queries of `apps` workloads, each with ten pods.
fn response(apps: usize) -> String {
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
    group.bench_function("parse a query", |bencher| {
        bencher.iter(|| ShapedQuery::of(black_box(&text)));
    });
    for count in [1_000, 10_000] {
        let queries: Vec<ShapedQuery> =
            (0..count).map(|app| ShapedQuery::of(&query(app))).collect();
        let pending: BTreeSet<Arguments> =
            queries.iter().map(|query| query.arguments.clone()).collect();
        let none = BTreeSet::new();
        group.throughput(Throughput::Elements(count as u64));
        group.bench_function(BenchmarkId::new("batch queries", count), |bencher| {
            bencher.iter(|| {
                let input =
                    PlanInput { pending: black_box(&pending), expected: &none, recent: &pending };
                plan(&queries[0].shape, input, Estimates::default(), Limits::default())
            });
        });
    }
}

fn decoding(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("read a response");
    group.sample_size(20);
    for series in [10_000, 100_000] {
        let body = response(series / 10);
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_function(BenchmarkId::new("series", series), |bencher| {
            bencher.iter(|| Table::read(black_box(body.as_bytes())).expect("a response"));
        });
    }
}

fn matching(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("find the values of ten pods");
    for series in [10_000, 100_000] {
        let apps = series / 10;
        let body = response(apps);
        let table = Arc::new(Table::read(body.as_bytes()).expect("a response"));
        let of =
            |app: usize| QueryResult::detached(table.clone(), ShapedQuery::of(&query(app)).into());
        let results: Vec<QueryResult> = (0..apps).map(of).collect();
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
                || next.next().expect("an endless cycle"),
                |app| {
                    let by_pod = results[app].by("pod");
                    let values = pods[app].iter().filter_map(|pod| by_pod.get(pod).next());
                    let found =
                        values.map(|series| series.value().milli()).fold(0, i64::wrapping_add);
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
