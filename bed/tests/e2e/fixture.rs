//! The cluster that tests of the metrics adapters share, with objects and series of many kinds, and
//! the adapters in it: Plimsoll, and prometheus-adapter beside it.

use crate::{SOON, runtime};
use bed::adapter::{Adapter, Program};
use bed::cluster::Cluster;
use bed::workload::Namespace;
use bed::{Options, eventually};
use serde_json::Value;
use std::sync::OnceLock;
use std::time::Duration;

/// The shared cluster, and a token of its administrator.
pub struct Fixture {
    pub cluster: Cluster,
    pub token: String,
}

/// Runs a test that breaks nothing on the shared cluster, which the first such test creates.
pub fn with_fixture(test: impl AsyncFnOnce(&Fixture)) {
    static FIXTURE: OnceLock<Fixture> = OnceLock::new();
    let fixture = FIXTURE.get_or_init(|| {
        runtime().block_on(async {
            let cluster = Cluster::start(&Options::default()).await;
            let token = admin_token(&cluster).await;
            populate(&cluster).await;
            Fixture { cluster, token }
        })
    });
    runtime().block_on(test(fixture));
}

/// The series that pods expose; Prometheus adds `job`, `instance`, `namespace` and `pod`.
const WEB: &str = "http_requests_total{service=\"web\",kube_apps_deployment=\"web\",ingress=\"main\",zone=\"a\",code=\"200\"} 120\n\
http_requests_total{service=\"web\",kube_apps_deployment=\"web\",ingress=\"main\",zone=\"b\",code=\"500\"} 30\n\
queue_depth{service=\"web\",zone=\"a\"} 7.25\n\
container_memory_bytes{container=\"app\"} 1048576\n\
container_memory_bytes{container=\"proxy\"} 2097153\n\
container_cpu_usage_seconds_total{container=\"app\"} 12\n\
cpu_usage{container=\"app\",node=\"fleet\"} 0.25\n\
cpu_usage{container=\"proxy\",node=\"fleet\"} 0.125\n\
gizmo_load{gizmo=\"first\"} 4\n\
gizmo_load{gizmo=\"second\"} 5\n\
node_load{node=\"fleet\"} 1.5\n\
volume_used{persistentvolume=\"disk\"} 3\n\
tenant_credit{tenant=\"a-b\"} 9";
const BANK: &str = "http_requests_total{service=\"web\",zone=\"c\"} 999\n\
queue_depth{service=\"web\",zone=\"c\"} 41\n\
odd_zero 0\nodd_negative -5.5\nodd_huge 123456789012\nodd_whole 3\nodd_fraction 0.125\nodd_third 0.3333333\nodd_nan NaN\nodd_infinite +Inf\nodd_tiny 0.0004\n\
cpu_usage{container=\"app\",node=\"fleet\"} 0.5\n\
container_memory_bytes{container=\"app\"} 4194304";

/// Creates the objects of the cluster, and waits until Prometheus has their series.
async fn populate(cluster: &Cluster) {
    let shop = Namespace::new(cluster, "shop").await;
    let bank = Namespace::new(cluster, "bank").await;
    shop.workload("StatefulSet", "web", 3, WEB).await;
    bank.workload("StatefulSet", "web", 2, BANK).await;
    shop.workload("StatefulSet", "idle", 1, "").await;
    cluster
        .apply(
            "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop, labels: {app: web}}\n\
             spec: {ports: [{port: 80}]}\n---\n\
             apiVersion: v1\nkind: Service\nmetadata: {name: other, namespace: shop}\n\
             spec: {ports: [{port: 80}]}\n---\n\
             apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: main, namespace: shop}\n\
             spec: {defaultBackend: {service: {name: web, port: {number: 80}}}}\n---\n\
             apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: disk}\n\
             spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], hostPath: {path: /nowhere}}\n---\n\
             apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: shop}\n\
             spec: {replicas: 0, selector: {matchLabels: {app: d}}, template: {metadata: {labels: {app: d}}, spec: {containers: [{name: a, image: b}]}}}\n---\n\
             apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: gizmos.example.com}\n\
             spec:\n  group: example.com\n  scope: Namespaced\n  names: {plural: gizmos, singular: gizmo, kind: Gizmo}\n\
             \x20 versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]\n",
        )
        .await;
    eventually("the CRD is there", Duration::from_secs(30), async || {
        cluster.try_kubectl(&["get", "gizmos", "-A"]).await
    })
    .await;
    for name in ["first", "second", "third"] {
        let manifest = format!(
            "apiVersion: example.com/v1\nkind: Gizmo\nmetadata: {{name: {name}, namespace: shop}}\n"
        );
        cluster.apply(&manifest).await;
    }
    eventually("all is scraped", Duration::from_secs(30), async || {
        let query = [("query", "count({pod!=\"\",__name__=~\"odd_third|node_load\"})")];
        let url = format!("http://127.0.0.1:{}/api/v1/query", cluster.prometheus_port);
        let url = reqwest::Url::parse_with_params(&url, query).expect("a URL");
        let text = async { reqwest::get(url).await?.text().await }.await;
        let text = text.map_err(|error| error.to_string())?;
        if text.contains("\"5\"") { Ok(()) } else { Err(text) }
    })
    .await;
    eventually("there are rates of some seconds", Duration::from_secs(60), async || {
        // One sample is older than the window of the rules.
        let query = [("query", "count(http_requests_total{zone!=\"\"} offset 9s)")];
        let url = format!("http://127.0.0.1:{}/api/v1/query", cluster.prometheus_port);
        let url = reqwest::Url::parse_with_params(&url, query).expect("a URL");
        let text = async { reqwest::get(url).await?.text().await }.await;
        let text = text.map_err(|error| error.to_string())?;
        if text.contains("\"8\"") { Ok(()) } else { Err(text) }
    })
    .await;
}

async fn admin_token(cluster: &Cluster) -> String {
    cluster.kubectl(&["-n", "default", "create", "serviceaccount", "asker"]).await;
    let binding = [
        "create",
        "clusterrolebinding",
        "asker",
        "--clusterrole=cluster-admin",
        "--serviceaccount=default:asker",
    ];
    cluster.kubectl(&binding).await;
    cluster.kubectl(&["-n", "default", "create", "token", "asker"]).await.trim().to_owned()
}

pub const OVERRIDES: &str =
    "  resources: {overrides: {namespace: {resource: namespace}, pod: {resource: pod}}}\n";
pub const SUM: &str = "  metricsQuery: 'sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)'\n";
/// The custom metrics API.
pub const API: &str = "/apis/custom.metrics.k8s.io/v1beta2";

/// A rule that sums the series of a series query.
pub fn rule(series: &str) -> String {
    format!("- seriesQuery: '{series}'\n{OVERRIDES}{SUM}")
}

/// Starts Plimsoll with a configuration and the flags of prometheus-adapter.
pub async fn ours(fixture: &Fixture, name: &str, config: &str) -> Adapter {
    let port = fixture.cluster.prometheus_port;
    let ours = Adapter::start_as(&fixture.cluster, Program::Plimsoll, name, config, port);
    wait_ready(&ours, &fixture.token).await;
    ours
}

/// Sends a request until its response is 200 with an item.
pub async fn served(adapter: &Adapter, token: &str, path: &str) -> Value {
    eventually(path, SOON, async || {
        let (code, body) = ask(adapter.port, token, path).await;
        let items = body["items"].as_array().map_or(0, Vec::len);
        if code == 200 && items > 0 { Ok(body) } else { Err(format!("{code} {body}")) }
    })
    .await
}

/// Starts prometheus-adapter and Plimsoll with the same configuration, and waits until both are
/// ready.
pub async fn pair(cluster: &Cluster, token: &str, name: &str, config: &str) -> (Adapter, Adapter) {
    let theirs = format!("{name}-theirs");
    let theirs = Adapter::start(cluster, &theirs, config);
    let ours = format!("{name}-ours");
    let port = cluster.prometheus_port;
    let ours = Adapter::start_as(cluster, Program::Plimsoll, &ours, config, port);
    for adapter in [&theirs, &ours] {
        wait_ready(adapter, token).await;
    }
    (theirs, ours)
}

/// Waits until an adapter is ready.
pub async fn wait_ready(adapter: &Adapter, token: &str) {
    eventually("the adapter is ready", Duration::from_secs(60), async || {
        let url = format!("https://127.0.0.1:{}/readyz", adapter.port);
        let http = any_certificate().build().expect("a client");
        match http.get(url).bearer_auth(token).send().await {
            Ok(response) if response.status() == 200 => Ok(()),
            other => Err(format!("{other:?}\n{}", adapter.process.tail())),
        }
    })
    .await;
}

/// A client that accepts any certificate: prometheus-adapter's is self-signed.
pub fn any_certificate() -> reqwest::ClientBuilder {
    reqwest::Client::builder().tls_danger_accept_invalid_certs(true)
}

/// Sends a GET request; the HTTP status and the body.
pub async fn ask(port: u16, token: &str, path: &str) -> (u16, Value) {
    let http = any_certificate().build().expect("a client");
    let request = http.get(format!("https://127.0.0.1:{port}{path}")).bearer_auth(token);
    let response = request.send().await.expect("an answer");
    let code = response.status().as_u16();
    let body = response.bytes().await.expect("a body");
    (code, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

/// `/readyz?verbose`, as a user who may see the details.
pub async fn ask_verbose(port: u16, token: &str) -> (u16, String) {
    let http = any_certificate().build().expect("a client");
    let request = http.get(format!("https://127.0.0.1:{port}/readyz?verbose")).bearer_auth(token);
    let response = request.send().await.expect("an answer");
    (response.status().as_u16(), response.text().await.expect("a body"))
}
