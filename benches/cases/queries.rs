//! Queries of autoscalers, and the response to them.

use plimsoll::config::Config;
use plimsoll::k8s::LabelSet;
use plimsoll::promql::query::{MetricType, Per, PrometheusMetric};
use std::sync::Arc;

/// The query of one autoscaler; each has a different workload.
pub fn query(app: usize) -> Arc<str> {
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
pub fn response(apps: usize) -> String {
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
