//! A whole cluster on loopback, of real parts: etcd, kube-apiserver,
//! kube-controller-manager, kube-scheduler, Prometheus, a fleet of HTTP servers
//! as pods, a load generator, and Plimsoll. The end-to-end tests, the demo, the benchmark and the
//! soak run on it.
//!
//! It panics where a part fails: its users are tests and programs that then end.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod adapter;
pub mod clock;
pub mod cluster;
pub mod pki;
pub mod plimsoll;
pub mod ports;
pub mod process;
pub mod proxy;
pub mod random;
pub mod thanos;
pub mod victoria_metrics;
pub mod workload;

use cluster::Cluster;
use plimsoll::Plimsoll;
pub use ports::free_port;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Options of a [`Bed`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Flags of decisions, which kube-controller-manager and Plimsoll both take.
    pub decisions: Vec<String>,
    /// More flags of Plimsoll.
    pub flags: Vec<String>,
    /// More environment variables of Plimsoll, as NAME=VALUE.
    pub environment: Vec<String>,
    /// Whether Plimsoll reaches Prometheus and kube-apiserver through proxies that inject faults.
    pub faults: bool,
    /// Whether everything outlives this process.
    pub keep: bool,
    /// Whether kube-controller-manager runs its HPA controller.
    pub hpa_controller: bool,
    /// The kustomization that Plimsoll is installed from.
    pub manifests: &'static str,
    /// More flags of kube-apiserver.
    pub apiserver: Vec<String>,
    /// More of Plimsoll's configuration file.
    pub config: &'static str,
    /// Called with each step of the start.
    pub progress: fn(&str),
}

impl Default for Options {
    fn default() -> Self {
        Self {
            decisions: vec![
                "--horizontal-pod-autoscaler-sync-period=2s".to_owned(),
                "--horizontal-pod-autoscaler-downscale-stabilization=10s".to_owned(),
            ],
            flags: vec!["--status-interval=1s".to_owned()],
            environment: Vec::new(),
            faults: false,
            keep: false,
            hpa_controller: true,
            // The default manifests, and the permissions of the executor that some tests need.
            manifests: "deploy/overlays/native-hpa-executor",
            apiserver: Vec::new(),
            config: "",
            progress: |_| {},
        }
    }
}

/// A running cluster with Plimsoll in it.
pub struct Bed {
    /// The cluster.
    pub cluster: Cluster,
    /// Plimsoll, installed in it.
    pub plimsoll: Plimsoll,
    /// The proxies, with [`Options::faults`].
    pub faults: Option<Faults>,
}

/// The proxies that inject faults.
pub struct Faults {
    /// Between Plimsoll and Prometheus.
    pub prometheus: proxy::Proxy,
    /// Between Plimsoll and kube-apiserver.
    pub api: proxy::Proxy,
}

impl Bed {
    /// Starts everything and waits until it is ready.
    pub async fn start(options: Options) -> Self {
        let cluster = Cluster::start(&options).await;
        (options.progress)(&format!(
            "installing Plimsoll with kubectl apply -k {}",
            options.manifests
        ));
        plimsoll::install(&cluster, options.manifests).await;
        let faults = match options.faults {
            true => Some(Faults {
                prometheus: proxy::Proxy::start(cluster.prometheus_port).await,
                api: proxy::Proxy::to_https(cluster.api_port(), cluster.ca()).await,
            }),
            false => None,
        };
        let [server, prometheus] = match &faults {
            Some(Faults { prometheus, api }) => {
                [api, prometheus].map(|proxy| format!("http://127.0.0.1:{}", proxy.port))
            }
            None => [
                format!("https://127.0.0.1:{}", cluster.api_port()),
                format!("http://127.0.0.1:{}", cluster.prometheus_port),
            ],
        };
        let plimsoll = Plimsoll::start(&cluster, &server, &prometheus, &options).await;
        let bed = Self { cluster, plimsoll, faults };
        (options.progress)("waiting for the aggregated API");
        eventually("the APIServices are available", Duration::from_secs(60), async || {
            let out = bed.cluster.try_kubectl(&[
                "get",
                "apiservices",
                "v1beta1.custom.metrics.k8s.io",
                "v1beta2.custom.metrics.k8s.io",
                "-o",
                r#"jsonpath={.items[*].status.conditions[?(@.type=="Available")].status}"#,
            ]);
            match out.await {
                Ok(text) if text == "True True" => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        bed
    }
}

/// The root of the repository.
pub fn root() -> &'static Path {
    let bed = Path::new(env!("CARGO_MANIFEST_DIR"));
    bed.parent().expect("the bed is a folder of the repository")
}

/// The folder of the binaries of these parts, which are built if they are missing; without names
/// those that every cluster needs.
pub fn parts(names: &[&str]) -> PathBuf {
    let built = std::process::Command::new(root().join("bed/build"))
        .args(names)
        .stderr(std::process::Stdio::inherit())
        .output()
        .expect("bed/build can be run");
    assert!(built.status.success(), "bed/build failed");
    let path = String::from_utf8(built.stdout).expect("a path");
    PathBuf::from(path.trim())
}

/// Retries a check until it succeeds; panics with its last error after `within`.
pub async fn eventually<T>(
    what: &str,
    within: Duration,
    mut check: impl AsyncFnMut() -> Result<T, String>,
) -> T {
    let start = Instant::now();
    loop {
        match check().await {
            Ok(value) => return value,
            Err(_) if start.elapsed() < within => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(reason) => panic!("not within {within:?}: {what}: {reason}"),
        }
    }
}
