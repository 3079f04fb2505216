//! The store, with a Prometheus whose responses are broken, partial or large.

use super::super::{MetricError, MetricTypes, ObjectSamples, Reader, Store, Table};
use crate::config::Config;
use crate::fake;
use crate::prometheus::{Client, Error, Flow, Options, metric_kinds};
use crate::promql::query::{MetricType, Per, PrometheusMetric};
use crate::supervise::Spawner;
use crate::telemetry::Metrics;
use axum::Router;
use futures::future::join_all;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn vector(result: &str, more: &str) -> String {
    format!(r#"{{"status":"success","data":{{"resultType":"vector","result":[{result}]}}{more}}}"#)
}

fn store(client: Client) -> Store {
    Store::new(client, Duration::from_secs(1), Spawner::unowned())
}

async fn pods(store: &Store, name: &str) -> Result<ObjectSamples, MetricError> {
    let metric = PrometheusMetric {
        metric: name.to_owned(),
        per: Per::Pod,
        labels: Default::default(),
        query: None,
    };
    store.pods(&Config::default().pod_queries, &metric, "shop", Reader::Decision).await
}

async fn type_of(
    types: &MetricTypes,
    metric: &str,
    namespace: &str,
) -> Result<Option<MetricType>, Error> {
    types.of(&Config::default().pod_queries, metric, namespace).await
}

#[tokio::test]
async fn a_counter_is_never_read_raw_regardless_of_metadata() {
    let (client, received) = fake::prometheus(|text| match text.contains("metadata") {
        true => r#"{"status":"success","data":{}}"#.to_owned(),
        false => vector("", ""),
    })
    .await;
    let store = store(client);
    for name in ["http_request_duration_seconds_count", "x_sum", "x_bucket", "x_total"] {
        received.lock().unwrap().clear();
        pods(&store, name).await.unwrap();
        let received = received.lock().unwrap();
        assert!(received.len() == 1 && received[0].contains("rate("), "{received:#?}");
    }
}

#[tokio::test]
async fn an_unknown_type_is_queried_once_a_minute_and_not_every_time() {
    let (client, received) = fake::prometheus(|text| match text.contains("metadata") {
        true => r#"{"status":"success","data":{}}"#.to_owned(),
        false => vector("", ""),
    })
    .await;
    let store = store(client);
    join_all((0..20).map(async |_| pods(&store, "queue").await.unwrap())).await;
    pods(&store, "queue").await.unwrap();
    pods(&store, "job:queue:sum").await.unwrap();
    let lookups = || {
        let received = received.lock().unwrap();
        received.iter().filter(|text| text.contains("metadata")).count()
    };
    assert_eq!(lookups(), 1);
    for (seconds, expected) in [(55, 1), (6, 2)] {
        pass(Duration::from_secs(seconds)).await;
        pods(&store, "queue").await.unwrap();
        assert_eq!(lookups(), expected);
    }
}

/// Lets time pass for everything but a response.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_known_type_outlives_an_empty_response_and_an_outage() {
    let says = Arc::new(Mutex::new(r#"{"data":{"hits":[{"type":"counter"}]}}"#));
    let told = says.clone();
    let (client, _) = fake::prometheus(move |_| told.lock().unwrap().to_string()).await;
    let types = MetricTypes::new(client);
    for response in [None, Some(r#"{"data":{}}"#), Some("starting")] {
        if let Some(response) = response {
            *says.lock().unwrap() = response;
        }
        pass(Duration::from_secs(600)).await;
        let hits = type_of(&types, "hits", "shop").await;
        assert_eq!(hits, Ok(Some(MetricType::Counter)), "{response:?}");
    }
    // A type that was never known can't be guessed while Prometheus is down.
    assert!(type_of(&types, "others", "shop").await.is_err());
}

/// Any tenant's pods may declare the metric of another.
#[tokio::test]
async fn the_metadata_of_another_namespace_does_not_change_the_type_of_a_metric() {
    let is_attacked = Arc::new(AtomicBool::new(false));
    let attacked = is_attacked.clone();
    let (client, received) = fake::prometheus(move |text| {
        let data = match text {
            _ if text.contains("targets") && text.contains("shop") => {
                r#"[{"target":{},"type":"gauge","help":"","unit":""}]"#
            }
            _ if text.contains("targets") => "[]",
            _ if attacked.load(Relaxed) => r#"{"depth":[{"type":"counter"},{"type":"gauge"}]}"#,
            _ => r#"{"depth":[{"type":"gauge"}]}"#,
        };
        format!(r#"{{"status":"success","data":{data}}}"#)
    })
    .await;
    let types = MetricTypes::new(client);
    let of = async |namespace| type_of(&types, "depth", namespace).await;
    assert_eq!(of("bank").await, Ok(Some(MetricType::Gauge)));
    is_attacked.store(true, Relaxed);
    pass(Duration::from_secs(601)).await;
    for namespace in ["shop", "bank"] {
        assert_eq!(of(namespace).await, Ok(Some(MetricType::Gauge)));
    }
    let received = received.lock().unwrap();
    assert!(received.iter().any(|text| text.contains(r#"{namespace="shop"}"#)), "{received:#?}");
}

#[tokio::test]
async fn a_type_that_targets_disagree_about_and_was_never_known_is_not_guessed() {
    // As many entries as are asked for: there may be others.
    let many = vec![r#"{"type":"counter"}"#; 100].join(",");
    for entries in [r#"{"type":"counter"},{"type":"gauge"}"#.to_owned(), many] {
        let (client, _) = fake::prometheus(move |text| {
            let all = format!(r#"{{"depth":[{entries}]}}"#);
            let data = if text.contains("targets") { "[]" } else { &all };
            format!(r#"{{"status":"success","data":{data}}}"#)
        })
        .await;
        let error = type_of(&MetricTypes::new(client), "depth", "shop").await;
        let error = error.unwrap_err().to_string();
        assert!(error.contains("depth is a counter and something else"), "{error}");
    }
}

#[tokio::test]
async fn a_partial_response_is_an_error() {
    let series = r#"{"metric":{"pod":"a"},"value":[1700000000,"3"]}"#;
    for (more, whole) in [
        (r#","warnings":["No StoreAPIs matched for this query"]"#, false),
        (r#","isPartial":true"#, false),
        (r#","isPartial":false,"warnings":[]"#, true),
        (r#","warnings":["PromQL warning: quantile value should be between 0 and 1 (1:2)"]"#, true),
        (r#","infos":["PromQL info: metric might not be a counter (1:6)"]"#, true),
        (r#","warnings":["3 more warning annotations omitted"]"#, false),
    ] {
        let (client, _) = fake::prometheus(move |_| vector(series, more)).await;
        let result = pods(&store(client), "x_total").await;
        assert_eq!(result.is_ok(), whole, "{more}");
        if let Err(error) = result {
            assert!(error.to_string().contains("part of"), "{error}");
        }
    }
}

#[tokio::test]
async fn a_number_that_does_not_fit_is_no_valid_sample() {
    let value = |value: &str| {
        format!(r#"{{"metric":{{"pod":"{value}","namespace":"shop"}},"value":[1,"{value}"]}}"#)
    };
    let all = ["1e16", "-1e16", "1e300", "1.7e18", "9e15", "5"].map(value).join(",");
    let (client, _) = fake::prometheus(move |_| vector(&all, "")).await;
    let found = pods(&store(client), "x_total").await.unwrap();
    let names: Vec<&str> = found.values.iter().map(|series| series.label("pod")).collect();
    assert_eq!(names, ["9e15", "5"]);
}

/// kube-controller-manager takes a sum below zero for an overflow, and asks for maxReplicas.
#[tokio::test]
async fn a_total_below_zero_is_zero() {
    for (value, expected) in [("-5", 0), ("-0.0001", 0), ("-9e15", 0), ("0", 0), ("2.5", 2500)] {
        let series = format!(r#"{{"metric":{{"namespace":"shop"}},"value":[1,"{value}"]}}"#);
        let (client, _) = fake::prometheus(move |_| vector(&series, "")).await;
        let metric = PrometheusMetric {
            metric: "backlog".to_owned(),
            per: Per::Workload,
            labels: Default::default(),
            query: Some("sum(backlog)".to_owned()),
        };
        let queries = Config::default().pod_queries;
        let total = store(client).total(&queries, &metric, "shop", Reader::Decision).await.unwrap();
        assert_eq!(total.sample.unwrap().value.milli(), expected, "{value}");
    }
}

#[tokio::test]
async fn a_native_histogram_is_named_in_the_error() {
    let mixed = r#"{"metric":{"pod":"a","namespace":"shop"},"value":[1,"3"]},
        {"metric":{"pod":"b","namespace":"shop"},"histogram":[1,{"count":"6","sum":"2","buckets":[]}]}"#;
    let (client, _) = fake::prometheus(|_| vector(mixed, "")).await;
    let error = pods(&store(client), "x_total").await.err().unwrap().to_string();
    assert!(error.contains("histogram_quantile"), "{error}");
}

#[tokio::test]
async fn a_server_that_refuses_the_token_counts_as_failing() {
    use axum::http::StatusCode;
    let _ = rustls::crypto::ring::default_provider().install_default();
    for (status, serves) in [(401, false), (403, false), (302, false), (500, false), (422, true)] {
        let status = StatusCode::from_u16(status).unwrap();
        let router = Router::new().fallback(async move || (status, "no"));
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let client = Client::new(Options::new(&url)).unwrap();
        assert!(client.query("up", &[]).await.is_err());
        assert_eq!(client.failing_for().is_none(), serves, "{status}");
    }
}

/// The alerts compare the failures with all of them.
#[tokio::test]
async fn a_query_is_counted_as_often_as_it_is_sent_not_as_it_is_read() {
    use axum::http::StatusCode;
    let router = Router::new().fallback(async || (StatusCode::NOT_FOUND, "default backend"));
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    let _ = rustls::crypto::ring::default_provider().install_default();
    let metrics = Arc::new(Metrics::default());
    let client = Client::new(Options::new(&url)).unwrap().counted(metrics.clone());
    let store = store(client.clone());
    for _ in 0..10 {
        assert!(pods(&store, "requests_total").await.is_err());
    }
    let text = metrics.prometheus_text();
    // A wrong path of the address answers 404 to everything.
    assert!(text.contains("plimsoll_queries_total{outcome=\"unavailable\"} 1\n"), "{text}");
    assert!(!text.contains("plimsoll_queries_total{outcome=\"answered\"}"), "{text}");
    let requests = |outcome: &str, count: usize| {
        let line = format!("plimsoll_prometheus_requests_total{{outcome=\"{outcome}\"}} {count}\n");
        assert!(metrics.prometheus_text().contains(&line), "{line}: {}", metrics.prometheus_text());
    };
    // Once without the matcher for the label, and once with it.
    requests("unavailable", 2);
    assert!(client.series("up", 0.0, &[]).await.is_err());
    requests("unavailable", 3);
    // Not every compatible server has metadata.
    metric_kinds(&client, "up", &[]).await.unwrap();
    requests("answered", 1);
}

#[tokio::test]
async fn users_queries_have_less_time_and_smaller_responses() {
    let long = format!(r#","pad":"{}""#, "x".repeat(9 << 20));
    let (client, received) = fake::prometheus(move |_| vector("", &long)).await;
    assert!(client.query("up", &[Flow::Shared]).await.is_ok());
    let error = client.query("up", &[Flow::User("shop".into())]).await.err().unwrap();
    assert!(error.to_string().contains("the most of a user's own query"), "{error}");
    let received = received.lock().unwrap();
    assert!(
        received[0].contains("timeout=30000ms") && !received[0].contains("limit="),
        "{received:?}"
    );
    assert!(
        received[1].contains("timeout=15000ms") && received[1].contains("limit=50000"),
        "{received:?}"
    );
    assert!(received.iter().all(|text| text.contains("partial_response=false")));
}

#[tokio::test]
async fn the_largest_response_is_read_and_leaves_others_room_while_it_is_used() {
    let series = |n: usize| {
        let [pod, path] = [format!("pod-{n:050}"), format!("/path/{n:040}")];
        format!(r#"{{"metric":{{"pod":"{pod}","path":"{path}"}},"value":[1700000000.123,"12.5"]}}"#)
    };
    let all: Vec<String> = (0..49_000).map(series).collect();
    let body = vector(&all.join(","), "");
    assert!((7 << 20..8 << 20).contains(&body.len()), "{}", body.len());
    let small = vector(&all[..20_000].join(","), "");
    let (client, _) = fake::prometheus(move |text| match text.contains("small") {
        true => small.clone(),
        false => body.clone(),
    })
    .await;
    let get = async |namespace: &str, query: &str| {
        let body = client.query(query, &[Flow::User(namespace.into())]).await?;
        Table::from_body(body)
    };
    let kept = get("greedy", "large").await.unwrap();
    // A second would leave others nothing.
    assert!(matches!(get("greedy", "large").await, Err(Error::Memory { .. })));
    assert_eq!(get("good", "small").await.unwrap().series(), 20_000);
    drop(kept);
    assert_eq!(get("greedy", "large").await.unwrap().series(), 49_000);
}

#[tokio::test]
async fn a_broken_query_is_sent_to_the_parser_of_prometheus_once() {
    let queries = Config::default().pod_queries;
    let ask = async |store: &Store, query: &str| {
        let query = Some(query.to_owned());
        let metric = PrometheusMetric {
            metric: "own".to_owned(),
            per: Per::Pod,
            labels: Default::default(),
            query,
        };
        store.pods(&queries, &metric, "shop", Reader::Decision).await.err().unwrap().to_string()
    };
    let (client, received) = fake::prometheus(|text| match text.contains("[5m*2]") {
        true => r#"{"status":"success","data":"formatted"}"#.to_owned(),
        false => {
            r#"{"status":"error","errorType":"bad_data","error":"1:5: parse error"}"#.to_owned()
        }
    })
    .await;
    let store = store(client);
    for _ in 0..3 {
        // The error says that only our parser refuses it.
        let error = ask(&store, "rate(x[5m*2])").await;
        assert!(error.contains("Plimsoll's own parser"), "{error}");
        // A query that is out of bounds is not sent to Prometheus.
        let error = ask(&store, &"-".repeat(8_000)).await;
        assert!(error.contains("1:101: the query is nested"), "{error}");
        let error = ask(&store, "info(own)").await;
        assert!(error.contains("info()"), "{error}");
        // Nor is a long text that our lexer does not accept, as its depth is unknown.
        let error = ask(&store, &("(".repeat(4_000) + "1_0" + &")".repeat(4_000))).await;
        assert!(error.contains("the query of own can't be run"), "{error}");
    }
    assert_eq!(received.lock().unwrap().len(), 1, "{received:#?}");
}

#[tokio::test]
async fn a_failing_parser_of_prometheus_is_not_queried_every_time() {
    let (client, received) = fake::prometheus(|_| "x".repeat(9 << 20)).await;
    let store = store(client);
    let query = Some("rate(x[5m*2])".to_owned());
    let metric = PrometheusMetric {
        metric: "own".to_owned(),
        per: Per::Pod,
        labels: Default::default(),
        query,
    };
    for _ in 0..3 {
        let queries = Config::default().pod_queries;
        assert!(store.pods(&queries, &metric, "shop", Reader::Decision).await.is_err());
    }
    assert_eq!(received.lock().unwrap().len(), 1);
}
