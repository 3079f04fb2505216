//! The types of metrics by the metadata of a real Prometheus.

use crate::planned::prometheus_with;
use crate::runtime;
use axum::Router;
use axum::routing::get;
use bed::eventually;
use plimsoll::config::Config;
use plimsoll::prometheus::{Client, Options, metric_kinds};
use plimsoll::promql::query::MetricType;
use plimsoll::samples::MetricTypes;
use std::time::Duration;

/// Any tenant's pods may declare the metric of another.
#[test]
fn the_metadata_of_another_namespace_does_not_change_the_type_of_a_metric() {
    runtime().block_on(async {
        let of = |kind: &'static str| get(async move || format!("# TYPE depth {kind}\ndepth 7\n"));
        let target = Router::new().route("/shop", of("gauge")).route("/evil", of("counter"));
        let jobs = ["shop", "evil"];
        let (process, url, _folder) = prometheus_with(target, "1s", |address| {
            let job = |namespace| {
                format!(
                    "{{job_name: {namespace}, metrics_path: /{namespace}, \
                     static_configs: [{{targets: [\"{address}\"], labels: {{namespace: {namespace}}}}}]}}"
                )
            };
            jobs.map(job).join(", ")
        })
        .await;
        let prometheus = Client::new(Options::new(&url)).expect("a client");
        eventually("the metadata of both", Duration::from_secs(60), async || {
            match metric_kinds(&prometheus, "depth", &[]).await {
                Ok(kinds) if kinds.counter && kinds.other => Ok(()),
                other => Err(format!("{other:?}\n{}", process.tail())),
            }
        })
        .await;
        let (types, queries) = (MetricTypes::new(prometheus), Config::default().pod_queries);
        let of = async |namespace| types.of(&queries, "depth", namespace).await;
        assert_eq!(of("shop").await, Ok(Some(MetricType::Gauge)));
        assert_eq!(of("evil").await, Ok(Some(MetricType::Counter)));
        let error = of("bank").await.expect_err("it is not guessed").to_string();
        assert!(error.contains("write a query"), "{error}");
    });
}
