//! A whole cluster on loopback, of real parts: etcd, kube-apiserver,
//! kube-controller-manager, kube-scheduler, Prometheus, a fleet of HTTP servers
//! as pods, a load generator, and Plimsoll. Shared by the end-to-end tests and
//! the demo; each uses its own part of it.

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

/// What may be set of a bed.
#[derive(Clone, Debug)]
pub struct Options {
    /// How decisions are made: flags of kube-controller-manager and of Plimsoll.
    pub decisions: Vec<String>,
    /// Flags of Plimsoll beside those that every bed sets.
    pub flags: Vec<String>,
    /// Its environment beside that of this process, as NAME=VALUE.
    pub environment: Vec<String>,
    /// Whether Prometheus and the API server are reached through proxies that can be
    /// told to fail.
    pub faults: bool,
    /// Whether all goes on when this process ends.
    pub keep: bool,
    /// Whether kube-controller-manager's own HPA controller runs.
    pub hpa_controller: bool,
    /// The folder of manifests that Plimsoll is installed from.
    pub manifests: &'static str,
    /// Flags of kube-apiserver beside those that every bed sets.
    pub apiserver: Vec<String>,
    /// What is in Plimsoll's configuration besides.
    pub config: &'static str,
    /// Told what is being done.
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
            // The manifests as they are, and the right to the executor that some tests need.
            manifests: "deploy/overlays/native-hpa-executor",
            apiserver: Vec::new(),
            config: "",
            progress: |_| {},
        }
    }
}

/// A running cluster with Plimsoll in it.
pub struct Bed {
    pub cluster: Cluster,
    pub plimsoll: Plimsoll,
    /// What stands between Plimsoll and Prometheus, and the API server, where faults
    /// are wanted.
    pub faults: Option<Faults>,
}

/// What can be told to fail.
pub struct Faults {
    pub prometheus: proxy::Proxy,
    pub api: proxy::Proxy,
}

impl Bed {
    /// Starts everything and waits until all of it is ready.
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
                api: proxy::Proxy::before_tls(cluster.api_port(), cluster.ca()).await,
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

/// Where the parts are, built where they are missing; without names those that
/// every bed needs.
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

/// Tries a check until it holds; panics with the last reason if it never does.
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
