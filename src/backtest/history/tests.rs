//! What is asked of a Prometheus, and what is made of its answers.

use super::*;
use crate::config::Config;
use crate::fake;
use serde_json::{Value, json};

/// An hour, with a point each minute.
const GRID: Grid = Grid { first: 3_600_000, last: 7_200_000, step: 60_000 };

/// The candidate of a spec with these fields.
fn candidate(fields: Value) -> Candidate {
    let mut spec = json!({
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "minReplicas": 1, "maxReplicas": 100,
    });
    let fields = fields.as_object().expect("fields").clone();
    spec.as_object_mut().expect("a spec").extend(fields);
    Candidate::new("web", "shop", spec).expect("a candidate")
}

fn requests() -> Value {
    json!({"customMetrics": [{"metricName": "requests", "averageValue": "10"}]})
}

/// CPU as a utilization, and a total.
fn cpu_and_total() -> Value {
    json!({
        "resourceMetrics": [
            {"resourceName": "cpu", "targetType": "Utilization", "averageUtilization": 50}],
        "customMetrics": [{"metricName": "jobs", "per": "Workload", "averageValue": "10",
            "query": "sum(rate(jobs_total{namespace=\"shop\"}[1m]))"}],
    })
}

/// What a history is read by.
#[derive(Default)]
struct Given {
    config: Config,
    totals: BTreeMap<String, String>,
    requests: BTreeMap<String, f64>,
}

impl Given {
    fn history<'a>(&'a self, prometheus: &'a Client) -> History<'a> {
        let Self { config, totals, requests } = self;
        History { prometheus, queries: &config.pod_queries, totals, requests }
    }
}

/// What a load is at the first and the last time.
fn ends(load: &Load) -> [(UnixMillis, f64); 2] {
    let points: Vec<_> = load.points().collect();
    [points[0], *points.last().expect("a point")]
}

#[tokio::test]
async fn the_load_of_each_metric_is_asked_for_and_known_while_all_are() {
    let (prometheus, received) = fake::prometheus(|request| {
        fake::past(request, |query, time| match query {
            query if query.starts_with("quantile(0.5, sum by (pod)") => Some(0.25),
            query if query.contains("container_cpu_usage") => Some(2.0),
            query if query.contains("jobs_total") => (time >= 5_400.0).then_some(time / 100.0),
            _ => None,
        })
    })
    .await;
    let given = Given::default();
    let mut both = candidate(cpu_and_total());
    let recorded = given.history(&prometheus).recorded(&mut both, GRID).await.unwrap();
    let [cpu, jobs] = &*recorded.loads else { panic!("{recorded:?}") };
    assert_eq!(ends(cpu), [(5_400_000, 2.0), (7_200_000, 2.0)]);
    assert_eq!(ends(jobs), [(5_400_000, 54.0), (7_200_000, 72.0)]);
    // Half of a request of 0.25 cores, and ten of the total.
    let carries: Vec<f64> = both.metrics.iter().map(Measure::carries).collect();
    assert!((carries[0] - 0.125).abs() < 1e-9 && (carries[1] - 10.0).abs() < 1e-9, "{carries:?}");
    let all = received.lock().unwrap().join("\n");
    for part in [
        "sum(sum by (pod) (rate(container_cpu_usage_seconds_total{namespace=\"shop\",pod=~\"web-",
        "kube_pod_container_resource_requests{resource=\"cpu\",namespace=\"shop\",pod=~\"web-",
        "sum(sum(rate(jobs_total{",
        "start=3600.000 end=7200.000 step=60.000",
    ] {
        assert!(all.contains(part), "{part}: {all}");
    }
}

#[tokio::test]
async fn what_is_given_is_not_asked_for() {
    let (prometheus, received) = fake::prometheus(|request| {
        fake::past(request, |query, _| match query {
            "sum(arrivals)" => Some(-3.0),
            query if query.contains("container_memory_working_set_bytes") => Some(4e9),
            _ => None,
        })
    })
    .await;
    let given = Given {
        totals: [("jobs".to_owned(), "sum(arrivals)".to_owned())].into(),
        requests: [("memory".to_owned(), 1e9)].into(),
        ..Given::default()
    };
    let mut fields = cpu_and_total();
    fields["resourceMetrics"][0]["resourceName"] = json!("memory");
    let mut both = candidate(fields);
    let recorded = given.history(&prometheus).recorded(&mut both, GRID).await.unwrap();
    let values: Vec<f64> = recorded.loads.iter().map(|load| ends(load)[1].1).collect();
    // A total below zero is none.
    assert_eq!(values, [4e9, 0.0]);
    assert!((both.metrics[0].carries() - 5e8).abs() < 1.0);
    let all = received.lock().unwrap().join("\n");
    assert!(!all.contains("resource_requests") && !all.contains("jobs_total"), "{all}");
}

#[tokio::test]
async fn a_metric_without_a_value_is_told_from_a_query_that_fails() {
    let (prometheus, _) = fake::prometheus(|request| fake::past(request, |_, _| None)).await;
    let given = Given::default();
    let mut web = candidate(requests());
    let error = given.history(&prometheus).recorded(&mut web, GRID).await.unwrap_err();
    assert!(matches!(&error, HistoryError::Empty { metric, .. } if metric.starts_with("requests")));
    assert!(error.to_string().contains("no value of it in this time"), "{error}");
    let nobody = fake::unreachable_prometheus();
    let error = given.history(&nobody).recorded(&mut web, GRID).await.unwrap_err();
    assert!(matches!(error, HistoryError::Failed(_)), "{error}");
}

#[tokio::test]
async fn replicas_are_those_of_kube_state_metrics_or_pods_are_counted() {
    let was_there = async |has_state_metrics: bool| {
        let (prometheus, _) = fake::prometheus(move |request| {
            fake::past(request, |query, _| match query {
                query if query.starts_with("kube_deployment_spec_replicas{") => {
                    has_state_metrics.then_some(5.0)
                }
                query if query.starts_with("kube_deployment_status_replicas_ready{") => {
                    has_state_metrics.then_some(4.0)
                }
                query if query.starts_with("count(") => Some(3.0),
                _ => None,
            })
        })
        .await;
        let given = Given::default();
        given.history(&prometheus).was_there(&candidate(requests()), GRID).await.unwrap()
    };
    let known = was_there(true).await;
    let at = |replicas: &Replicas| replicas.at(GRID.last);
    assert_eq!((at(&known.replicas), at(&known.ready)), (Some(5), Some(4)));
    assert_eq!((&*known.source, known.is_counted), ("kube-state-metrics", false));
    let counted = was_there(false).await;
    assert_eq!((at(&counted.replicas), at(&counted.ready)), (Some(3), Some(3)));
    assert!(counted.source.starts_with("pods counted by their samples of requests"));
    assert!(counted.is_counted);
}

#[tokio::test]
async fn pods_start_as_they_did_by_their_own_times_or_after_scale_ups() {
    let start = async |has_ready_times: bool, is_counted: bool| {
        let (prometheus, _) = fake::prometheus(move |request| {
            fake::past(request, |query, _| match query {
                query if !has_ready_times || !query.contains("kube_pod_status_ready_time") => None,
                query if query.starts_with("quantile(0.5,") => Some(20.5),
                query if query.starts_with("quantile(0.9,") => Some(70.0),
                _ => None,
            })
        })
        .await;
        // Ten scale-ups, of which the pods are ready after 30, 60, ... 300 s.
        let hour = 3_600_000;
        let ups = 0..10_i64;
        let replicas =
            ups.clone().flat_map(|up| [(up * hour, 1 + up), (up * hour + hour / 2, 2 + up)]);
        let ready = ups.flat_map(|up| {
            let risen = up * hour + hour / 2;
            [(risen, 1 + up), (risen + (up + 1) * 30_000, 2 + up)]
        });
        let [replicas, ready] = [replicas.collect(), ready.collect()].map(Replicas::new);
        let was = WasThere { replicas, is_counted, ready, source: String::new() };
        let given = Given::default();
        let history = given.history(&prometheus);
        let found = history.pod_start(&candidate(requests()), &was, GRID).await.unwrap();
        found.map(|found| (found.p50.as_secs_f64(), found.p90.as_secs_f64(), found.source))
    };
    assert_eq!(start(true, false).await, Some((20.5, 70.0, "kube_pod_status_ready_time")));
    let after = "the ready replicas after scale-ups";
    assert_eq!(start(false, false).await, Some((180.0, 300.0, after)));
    // The pods that are counted are ready.
    assert_eq!(start(false, true).await, None);
}
