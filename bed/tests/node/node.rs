//! A node of real parts beside a control plane, with CoreDNS and Prometheus, in a network of its own
//! that has no way out.

use crate::images;
use crate::isolation::{built, folder};
pub use crate::machine::PODS;
use crate::machine::{self, ADDRESSES, Machine, Running, write};
use bed::cluster::Cluster;
use bed::{Options, eventually};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// The table of nftables that cuts a pod off.
pub const CUT: &str = "cut";

/// A running node with its control plane, CoreDNS and Prometheus.
pub struct Node {
    /// Its control plane.
    pub cluster: Cluster,
    runtime: Runtime,
    /// The archives of all images.
    pub archives: Vec<PathBuf>,
    _machine: Running,
}

impl Node {
    /// The node that all tests share.
    ///
    /// # Panics
    /// If it does not start, each time: what it needs is there once.
    pub fn shared() -> &'static Self {
        static NODE: OnceLock<Option<Node>> = OnceLock::new();
        let started = NODE.get_or_init(|| {
            let start = || {
                let runtime = Runtime::new().expect("a runtime");
                let (cluster, archives, machine) = runtime.block_on(start());
                Self { cluster, runtime, archives, _machine: machine }
            };
            // The panic has been printed.
            std::panic::catch_unwind(start).ok()
        });
        started.as_ref().expect("the node has started; the first failure says why not")
    }

    /// Undoes what a test that failed may have left between others and their pods.
    pub fn repair(&self) {
        let _ = std::process::Command::new("nft").args(["delete", "table", "ip", CUT]).output();
        self.run(async {
            self.cluster.kubectl(&["uncordon", machine::NAME]).await;
            let second = ["delete", "node", machine::SECOND, "--ignore-not-found"];
            self.cluster.kubectl(&second).await;
        });
    }

    /// Runs a test.
    pub fn run<T>(&self, test: impl Future<Output = T>) -> T {
        self.runtime.block_on(test)
    }

    /// Waits until a Deployment is rolled out.
    pub async fn rolled_out(&self, namespace: &str, name: &str) {
        let words = ["-n", namespace, "rollout", "status", name, "--timeout=180s"];
        if let Err(error) = self.cluster.try_kubectl(&words).await {
            let pods = ["-n", namespace, "describe", "pods"];
            let pods = self.cluster.try_kubectl(&pods).await.unwrap_or_else(|error| error);
            panic!("{error}\n{pods}");
        }
    }

    /// The pods of a namespace by their label.
    pub async fn pods(&self, namespace: &str, label: &str) -> Result<Vec<Pod>, String> {
        let path = format!("/api/v1/namespaces/{namespace}/pods?labelSelector={label}");
        let list: Value = serde_json::from_str(&self.cluster.raw(&path).await?).expect("JSON");
        let pod = |object: &Value| {
            let status = &object["status"];
            let is_true = |one: &Value| one["type"] == "Ready" && one["status"] == "True";
            let stays = object["metadata"]["deletionTimestamp"].is_null();
            Pod {
                name: object["metadata"]["name"].as_str().expect("a name").to_owned(),
                ready: stays
                    && status["conditions"].as_array().is_some_and(|all| all.iter().any(is_true)),
                stays,
                restarts: status["containerStatuses"][0]["restartCount"].as_u64().unwrap_or(0),
            }
        };
        Ok(list["items"].as_array().expect("a list").iter().map(pod).collect())
    }

    /// The URL of an application, by the address of its Service, once that leads to a pod.
    pub async fn url(&self, namespace: &str, name: &str) -> String {
        let address = self.field(&["-n", namespace, "service", name], "{.spec.clusterIP}").await;
        let url = format!("http://{}", address.expect("a Service"));
        eventually("kube-proxy knows a pod", PODS, async || get(&format!("{url}/healthz")).await)
            .await;
        url
    }

    /// Prometheus's response to an instant query.
    pub async fn query(&self, query: &str) -> Result<Value, String> {
        let service = "/api/v1/namespaces/monitoring/services/prometheus:9090/proxy";
        let url = format!("http://localhost{service}/api/v1/query");
        let url = reqwest::Url::parse_with_params(&url, [("query", query)]).expect("a URL");
        let path = format!("{}?{}", url.path(), url.query().unwrap_or_default());
        serde_json::from_str(&self.cluster.raw(&path).await?).map_err(|error| error.to_string())
    }

    /// A field of an object, as kubectl's `jsonpath` prints it.
    pub async fn field(&self, object: &[&str], path: &str) -> Result<String, String> {
        let output = format!("-o=jsonpath={path}");
        let words: Vec<&str> = [&["get"], object, &[&*output]].concat();
        self.cluster.try_kubectl(&words).await
    }
}

/// A pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// Whether it is ready and not being deleted: a pod that ends stays ready for a while.
    pub ready: bool,
    /// Whether it is not being deleted.
    pub stays: bool,
    /// How often its first container was restarted.
    pub restarts: u64,
}

/// Sends a GET request, which the pod of an application answers at once.
pub async fn get(url: &str) -> Result<(), String> {
    let client = reqwest::Client::builder().timeout(Duration::from_secs(10)).build();
    let response = client.expect("a client").get(url).send().await;
    let response = response.and_then(reqwest::Response::error_for_status);
    response.map(|_| ()).map_err(|error| format!("{error:?}"))
}

async fn start() -> (Cluster, Vec<PathBuf>, Running) {
    let started = Instant::now();
    let progress: fn(&str) = |step| println!("{step}");
    let machine = Machine::first();
    let parts = bed::parts(&["node"]);
    let options = Options { node: Some(ADDRESSES), progress, ..Options::default() };
    // Archives are written while the control plane starts.
    let archives = tokio::task::spawn_blocking(move || images::write(&parts, &folder()));
    let cluster = Cluster::with_controllers(&options).await;
    let mut archives = archives.await.expect("the images");
    archives.extend(built());
    let running = machine.start(&cluster, &archives).await;
    println!("a ready node after {:.1} s", started.elapsed().as_secs_f64());
    let manifest = include_str!("objects/dns.yaml");
    let manifest = manifest.replace("CLUSTER_IP", &ADDRESSES.service(10).to_string());
    let manifest = write(&cluster.folder, "dns.yaml", &manifest);
    cluster.kubectl(&["apply", "-f", &manifest]).await;
    let prometheus = bed::root().join("bed/tests/node/objects/prometheus.yaml");
    cluster.kubectl(&["apply", "-f", &prometheus.display().to_string()]).await;
    for (namespace, name) in
        [("kube-system", "deployment/coredns"), ("monitoring", "deployment/prometheus")]
    {
        let words = ["-n", namespace, "rollout", "status", name, "--timeout=120s"];
        if let Err(error) = cluster.try_kubectl(&words).await {
            let pods = cluster.try_kubectl(&["-n", namespace, "describe", "pods"]).await;
            panic!("{error}\n{}\n{}", pods.unwrap_or_else(|error| error), running.tail());
        }
    }
    println!("CoreDNS and Prometheus after {:.1} s", started.elapsed().as_secs_f64());
    (cluster, archives, running)
}
