//! Requests that are repeated have the response that they would have if nothing of them were kept.

use super::super::known_requests::{CLUSTER, KNOWN_REQUEST_BYTES};
use super::*;
use crate::clock::Clock;
use crate::config::Config;
use crate::prometheus::{BodyStream, Client as Prometheus, Options, Transport, TransportError};
use crate::promql::name::generated_name;
use crate::rules::{Dependencies, ListingSettings, Rules};
use crate::samples::Store;
use crate::supervise::Spawner;
use crate::watch::{ObjectKey, PodRecord, Resources, read_autoscaler};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use std::sync::atomic::{AtomicU32, Ordering};

/// How long results are cached.
const MAX_AGE: Duration = Duration::from_secs(5);
/// How long a query takes.
const QUERY_TIME: Duration = Duration::from_millis(100);

/// A Prometheus with a series of each pod, all of one node and value, which `avg` doubles.
#[derive(Debug)]
struct Pods(Arc<AtomicU32>);

impl Transport for Pods {
    fn send(
        &self,
        request: http::Request<Bytes>,
    ) -> BoxFuture<'static, Result<http::Response<BodyStream>, TransportError>> {
        let times = if request.body().windows(3).any(|text| text == b"avg") { 2 } else { 1 };
        let value = (self.0.load(Ordering::Relaxed) * times).to_string();
        let series = |pod| json!({"metric": {"namespace": "shop", "pod": pod, "node": "a"}, "value": [1, value]});
        let mut took = Duration::ZERO;
        let data = match request.uri().path() {
            "/api/v1/series" => json!([
                {"__name__": "hits_total", "namespace": "shop", "pod": "web-1", "node": "a"}]),
            "/api/v1/query" => {
                took = QUERY_TIME;
                let series = ["web-1", "web-2", "web-3", "api-1"].map(series);
                json!({"resultType": "vector", "result": series})
            }
            _ => json!({}),
        };
        let body = json!({"status": "success", "data": data}).to_string();
        let response = http::Response::new(stream::iter([Ok(Bytes::from(body))]).boxed());
        tokio::time::sleep(took).map(|()| Ok(response)).boxed()
    }
}

fn config(query: &str) -> Config {
    let rules = format!(
        r#"rules:
- seriesQuery: hits_total
  resources: {{overrides: {{namespace: {{resource: namespace}}, pod: {{resource: pod}}, node: {{resource: node}}}}}}
  name: {{as: hits_per_second}}
  metricsQuery: {query}(<<.Series>>{{<<.LabelMatchers>>}}) by (<<.GroupBy>>)
"#
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), rules).unwrap();
    Config::read(file.path()).unwrap()
}

/// A server with rules and pods, and the value of its series.
async fn server_of_pods() -> (Arc<Server>, Arc<AtomicU32>) {
    let resource = |name, kind, scope| json!({"resource": name, "responseKind": {"kind": kind}, "scope": scope});
    let resources = [
        resource("pods", "Pod", "Namespaced"),
        resource("namespaces", "Namespace", "Cluster"),
        resource("nodes", "Node", "Cluster"),
    ];
    let (client, _) = fake::api(move |request| {
        let core = json!({"items": [{"versions": [{"version": "v1", "resources": resources}]}]});
        (200, if request.line == "GET /api" { core } else { json!({"items": []}) })
    });
    let value = Arc::new(AtomicU32::new(1));
    let mut server = server(&client);
    let prometheus =
        Prometheus::over(Arc::new(Pods(value.clone())), Options::new("http://prometheus"));
    let prometheus = prometheus.unwrap();
    server.samples = Store::new(prometheus.clone(), MAX_AGE, Spawner::unowned());
    server.rules = Rules::new(
        config("sum").rules,
        ListingSettings { interval: MINUTE, max_age: MINUTE, sample_max_age: MINUTE },
        Dependencies {
            prometheus,
            samples: server.samples.clone(),
            client: client.clone(),
            cluster: server.cluster.clone(),
            resources: Resources::new(client),
            clock: Clock::default(),
            spawner: Spawner::unowned(),
            pod_queries: server.pod_queries.clone(),
        },
    );
    assert!(server.rules.resources().refresh().await);
    tokio::spawn(server.rules.clone().follow());
    while !server.rules.has_synced() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for (name, app) in [("web-1", "web"), ("web-2", "web"), ("api-1", "api")] {
        put(&server, name, app);
    }
    server.cluster.write(|index| index.set_pods_known());
    (Arc::new(server), value)
}

fn key(name: &str) -> ObjectKey {
    ObjectKey { namespace: "shop".to_owned(), name: name.to_owned() }
}

fn put(server: &Server, name: &str, app: &str) {
    let labels = [("app".to_owned(), app.to_owned())].into_iter().collect();
    let pod = PodRecord {
        labels: Arc::new(labels),
        phase: crate::hpa::Phase::Running,
        deleting: false,
        start: None,
        ready: None,
        requests: Arc::default(),
        owner: None,
    };
    server.cluster.write(|index| index.put_pod(key(name), pod));
}

fn remove(server: &Server, name: &str) {
    server.cluster.write(|index| index.remove_pod(&key(name)));
}

/// Puts an autoscaler, and returns the name of its metric.
fn put_autoscaler(server: &Server) -> String {
    let object = json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "executor": "NativeHPA", "maxReplicas": 3,
        "customMetrics": [{"metricName": "hits_total", "averageValue": "1"}]}});
    let record = read_autoscaler(serde_json::from_value(object).unwrap(), None);
    server.cluster.write(|index| index.put_autoscaler(key("web"), record));
    generated_name("hits_total", None, "shop", "web")
}

async fn ask(server: &Arc<Server>, path: &str, accept: &str) -> Result<Bytes, ApiError> {
    let response = handled(server, ("GET", path, accept)).await?;
    Ok(axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap())
}

/// The response, which is the same without known requests, and whether what was asked for was known.
async fn asked(server: &Arc<Server>, path: &str) -> (String, bool) {
    let known = || server.known_requests.get(&path.parse().unwrap());
    let before = known();
    let mut json = String::new();
    for accept in ["application/json", "application/yaml"] {
        let fresh = Arc::new(Server { known_requests: Default::default(), ..(**server).clone() });
        let (response, fresh) = (ask(server, path, accept).await, ask(&fresh, path, accept).await);
        assert_eq!(response, fresh, "{path}");
        if accept == "application/json" {
            json = response.map_or_else(
                |error| error.message,
                |body| String::from_utf8(body.to_vec()).unwrap(),
            );
        }
    }
    let same = known().zip(before).is_some_and(|(now, before)| Arc::ptr_eq(&now, &before));
    (json, same)
}

fn path(version: &str, metric: &str, app: &str) -> String {
    let group = format!("/apis/custom.metrics.k8s.io/{version}/namespaces/shop");
    format!("{group}/pods/*/{metric}?labelSelector=app%3D{app}")
}

/// Whether what a request asks for is known, and the pods and the value of the response.
async fn found(server: &Arc<Server>, path: &str) -> (bool, Vec<String>, String) {
    let (text, known) = asked(server, path).await;
    let list: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
    let items = list["items"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let pods = items.iter().map(|item| text(&item["describedObject"]["name"])).collect();
    (known, pods, items.first().map(|item| text(&item["value"])).unwrap_or_default())
}

#[tokio::test(start_paused = true)]
async fn a_repeated_request_sees_each_change_of_pods_values_and_what_it_is_served_from() {
    let (server, value) = server_of_pods().await;
    let generated = put_autoscaler(&server);
    for metric in ["hits_per_second", &generated] {
        let web = path("v1beta2", metric, "web");
        let seen = async |known: bool, pods: &[&str], value: &str| {
            let pods = pods.iter().map(|pod| (*pod).to_owned()).collect();
            assert_eq!(found(&server, &web).await, (known, pods, value.to_owned()), "{metric}");
        };
        seen(false, &["web-1", "web-2"], "1").await;
        seen(true, &["web-1", "web-2"], "1").await;
        put(&server, "web-3", "web");
        seen(false, &["web-1", "web-2", "web-3"], "1").await;
        // As when its readiness changes.
        put(&server, "web-3", "web");
        seen(true, &["web-1", "web-2", "web-3"], "1").await;
        put(&server, "web-3", "api");
        seen(false, &["web-1", "web-2"], "1").await;
        remove(&server, "web-3");
        remove(&server, "web-2");
        seen(false, &["web-1"], "1").await;
        put(&server, "web-2", "web");
        seen(false, &["web-1", "web-2"], "1").await;
        for number in [20, 1] {
            value.store(number, Ordering::Relaxed);
            tokio::time::advance(2 * MAX_AGE).await;
            seen(true, &["web-1", "web-2"], &number.to_string()).await;
        }
        let other = async |path: &str| asked(&server, path).await.0;
        assert!(other(&path("v1beta1", metric, "web")).await.contains("metricName"));
        assert!(other(&path("v1beta2", metric, "api")).await.contains("api-1"));
        assert!(!other(&path("v1beta2", metric, "none")).await.contains("web-1"));
        assert!(other(&web.replace("app%3Dweb", "%21%21")).await.contains("labelSelector: "));
        assert!(other(&web.replace("/*/", "/web-1/")).await.contains("web-1"));
        assert!(other(&web.replace("/*/", "/web-9/")).await.contains("web-9"));
        other(&format!("{web}&metricLabelSelector=a%3D1")).await;
        seen(true, &["web-1", "web-2"], "1").await;
    }
    let [by_rule, by_name] = ["hits_per_second", &generated].map(|of| path("v1beta2", of, "web"));
    let both = async || (found(&server, &by_rule).await, found(&server, &by_name).await);
    let pods = || vec!["web-1".to_owned(), "web-2".to_owned()];
    let of = |known: bool, value: &str| (known, pods(), value.to_owned());
    both().await;
    server.rules.replace(config("avg").rules);
    assert_eq!(both().await, (of(false, "2"), of(true, "1")));
    put_autoscaler(&server);
    assert_eq!(both().await, (of(true, "2"), of(false, "1")));
    server.pod_queries.replace(PodQueries::clone(&server.pod_queries.load()));
    assert_eq!(both().await, (of(true, "2"), of(false, "1")));
}

#[tokio::test(start_paused = true)]
async fn a_request_stays_known_while_other_pods_of_its_namespace_come_and_go() {
    let (server, _) = server_of_pods().await;
    for metric in [put_autoscaler(&server), "hits_per_second".to_owned()] {
        let web = path("v1beta2", &metric, "web");
        let seen = || (true, vec!["web-1".to_owned(), "web-2".to_owned()], "1".to_owned());
        found(&server, &web).await;
        put(&server, "api-2", "api");
        assert_eq!(found(&server, &web).await, seen());
        remove(&server, "api-2");
        assert_eq!(found(&server, &web).await, seen());
        let one = web.replace("/*/", "/web-1/");
        found(&server, &one).await;
        put(&server, "web-2", "web");
        remove(&server, "api-1");
        assert!(asked(&server, &one).await.1);
        put(&server, "api-1", "api");
    }
}

/// Those of a rule are named by its query.
#[tokio::test(start_paused = true)]
async fn the_pods_of_a_response_are_those_that_there_are_once_prometheus_has_answered() {
    let (server, _) = server_of_pods().await;
    let web = path("v1beta2", &put_autoscaler(&server), "web");
    for _ in 0..2 {
        let (asking, path) = (server.clone(), web.clone());
        let response = tokio::spawn(async move { ask(&asking, &path, "*/*").await });
        tokio::time::sleep(QUERY_TIME / 2).await;
        remove(&server, "web-2");
        put(&server, "web-3", "web");
        let response = String::from_utf8(response.await.unwrap().unwrap().to_vec()).unwrap();
        assert!(response.contains("web-3") && !response.contains("web-2"), "{response}");
        remove(&server, "web-3");
        put(&server, "web-2", "web");
        // It is known next time.
        found(&server, &web).await;
        tokio::time::advance(2 * MAX_AGE).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_kept_anew_takes_no_room_beside_what_it_replaces_though_that_is_in_use() {
    let (server, _) = server_of_pods().await;
    let web = path("v1beta2", "hits_per_second", "web");
    let long = "x".repeat(48 << 10);
    let paths: Vec<String> = (0..100).map(|number| format!("{web}&n={number}&{long}")).collect();
    let mut in_use = Vec::new();
    for _ in 0..2 {
        for path in &paths {
            ask(&server, path, "*/*").await.unwrap();
            let known = server.known_requests.get(&path.parse().unwrap());
            in_use.push(known.expect("there is room"));
        }
        tokio::time::advance(MINUTE).await;
    }
}

#[tokio::test(start_paused = true)]
async fn ever_new_requests_about_a_namespace_or_the_cluster_leave_those_of_others_known() {
    let (server, _) = server_of_pods().await;
    let web = path("v1beta2", "hits_per_second", "web");
    let pod = server.cluster.read(|index| index.pod("shop", "web-1").cloned()).unwrap();
    let crowded = ObjectKey { namespace: "crowd".to_owned(), ..key("web-1") };
    server.cluster.write(|index| index.put_pod(crowded, pod));
    let long = "x".repeat(48 << 10);
    let node = "/apis/custom.metrics.k8s.io/v1beta2/nodes/a/hits_per_second?a=b";
    for (flow, path) in [("crowd", &*web.replace("/shop/", "/crowd/")), (CLUSTER, node)] {
        for number in 0..200 {
            ask(&server, &format!("{path}&n={number}&{long}"), "*/*").await.unwrap();
        }
        let used = server.known_requests.used_by(flow);
        assert!((KNOWN_REQUEST_BYTES / 6..=KNOWN_REQUEST_BYTES / 2).contains(&used), "{used}");
        asked(&server, &web).await;
        assert!(asked(&server, &web).await.1);
    }
}
