//! A node of real parts: kubelet, kube-proxy, containerd, runc, CNI plugins and CoreDNS, beside a
//! control plane, in a network of its own that has no way out.

use crate::images;
use crate::isolation::{cgroup, folder, image, run};
use bed::cluster::Cluster;
use bed::process::{Process, printed};
use bed::{Options, eventually};
use serde_json::Value;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

/// How long anything may take that pods are started for.
pub const PODS: Duration = Duration::from_secs(180);

/// Addresses of RFC 2544, which are for tests: the node's, and the ranges of Services and pods.
const ADDRESSES: bed::Node =
    bed::Node { address: Ipv4Addr::new(198, 18, 255, 1), services: Ipv4Addr::new(198, 19, 0, 0) };
const PODS_RANGE: &str = "198.18.0.0/24";
/// Where cAdvisor looks for containerd. `/run` is the node's own.
const SOCKET: &str = "/run/containerd/containerd.sock";
/// The name of the node.
pub const NAME: &str = "node";

/// A running node with its control plane, CoreDNS and Prometheus.
pub struct Node {
    /// Its control plane.
    pub cluster: Cluster,
    runtime: Runtime,
    prepared: OnceCell<()>,
    _processes: [Process; 3],
}

impl Node {
    /// The node that all tests share.
    pub fn shared() -> &'static Self {
        static NODE: OnceLock<Node> = OnceLock::new();
        NODE.get_or_init(|| {
            let runtime = Runtime::new().expect("a runtime");
            let (cluster, processes) = runtime.block_on(start());
            Self { cluster, runtime, prepared: OnceCell::new(), _processes: processes }
        })
    }

    /// Runs a test.
    pub fn run(&self, test: impl Future<Output = ()>) {
        self.runtime.block_on(test);
    }

    /// Installs Plimsoll with all its APIs and the configuration of these tests, the first time that a
    /// test needs it, and the application `shop/web`.
    pub async fn prepare(&self) {
        let prepare = async || {
            self.apply_folder("plimsoll").await;
            self.rolled_out("plimsoll", "deployment/plimsoll").await;
            self.apply_folder("shop").await;
            self.rolled_out("shop", "deployment/web").await;
        };
        self.prepared.get_or_init(prepare).await;
    }

    /// Applies a kustomization of `bed/tests/node/objects`.
    pub async fn apply_folder(&self, name: &str) {
        let folder = bed::root().join("bed/tests/node/objects").join(name);
        eventually("the objects are applied", PODS, async || {
            // An Autoscaler is unknown until its definition is established.
            self.cluster.try_kubectl(&["apply", "-k", &folder.display().to_string()]).await
        })
        .await;
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
            Pod {
                name: object["metadata"]["name"].as_str().expect("a name").to_owned(),
                ready: status["conditions"].as_array().is_some_and(|all| all.iter().any(is_true)),
                restarts: status["containerStatuses"][0]["restartCount"].as_u64().unwrap_or(0),
            }
        };
        Ok(list["items"].as_array().expect("a list").iter().map(pod).collect())
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
    /// Whether it is ready.
    pub ready: bool,
    /// How often its first container was restarted.
    pub restarts: u64,
}

async fn start() -> (Cluster, [Process; 3]) {
    let started = Instant::now();
    let progress: fn(&str) = |step| println!("{step}");
    network();
    let parts = bed::parts(&["node"]);
    let options = Options { node: Some(ADDRESSES), progress, ..Options::default() };
    // Archives are written while the control plane starts.
    let archives = tokio::task::spawn_blocking(move || images::write(&parts, &folder()));
    let cluster = Cluster::with_controllers(&options).await;
    let containerd = containerd(&cluster, archives.await.expect("the images")).await;
    let signed = cluster.sign(&format!("system:node:{NAME}"), &["system:nodes"]);
    let configuration = kubelet_configuration(&cluster, &signed);
    let kubeconfig = cluster.kubeconfig_of(&format!("system:node:{NAME}"), &["system:nodes"]);
    let flags = [
        "kubelet".to_owned(),
        format!("--config={}", write(&cluster.folder, "kubelet.yaml", &configuration)),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--hostname-override={NAME}"),
        format!("--node-ip={}", ADDRESSES.address),
        format!("--root-dir={}", cluster.folder.join("kubelet").display()),
        format!("--cert-dir={}", cluster.folder.join("kubelet-pki").display()),
    ];
    let kubelet = cluster.run("kubelet", &cluster.parts.join("kubelet"), &flags);
    let kubeconfig = cluster.kubeconfig_of("system:kube-proxy", &[]);
    let configuration = format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
         clientConnection: {{kubeconfig: {}}}\nmode: nftables\nclusterCIDR: {PODS_RANGE}\n\
         hostnameOverride: {NAME}\nconntrack: {{maxPerCore: 0, min: 0}}\n",
        kubeconfig.display()
    );
    let flags = [
        "kube-proxy".to_owned(),
        format!("--config={}", write(&cluster.folder, "kube-proxy.yaml", &configuration)),
    ];
    let proxy = cluster.run("kube-proxy", &cluster.parts.join("kubelet"), &flags);
    let node = ["wait", "node", NAME, "--for=condition=Ready", "--timeout=90s"];
    eventually("the node is ready", PODS, async || {
        let ready = cluster.try_kubectl(&node).await;
        ready.map_err(|error| format!("{error}\n{}", kubelet.tail()))
    })
    .await;
    println!("a ready node after {:.1} s", started.elapsed().as_secs_f64());
    for (name, service) in [("dns", 10)] {
        let manifest = include_str!("objects/dns.yaml");
        let manifest = manifest.replace("CLUSTER_IP", &ADDRESSES.service(service).to_string());
        let manifest = write(&cluster.folder, &format!("{name}.yaml"), &manifest);
        cluster.kubectl(&["apply", "-f", &manifest]).await;
    }
    let prometheus = bed::root().join("bed/tests/node/objects/prometheus.yaml");
    cluster.kubectl(&["apply", "-f", &prometheus.display().to_string()]).await;
    for (namespace, name) in
        [("kube-system", "deployment/coredns"), ("monitoring", "deployment/prometheus")]
    {
        let words = ["-n", namespace, "rollout", "status", name, "--timeout=120s"];
        if let Err(error) = cluster.try_kubectl(&words).await {
            let pods = cluster.try_kubectl(&["-n", namespace, "describe", "pods"]).await;
            panic!("{error}\n{}\n{}", pods.unwrap_or_else(|error| error), kubelet.tail());
        }
    }
    println!("CoreDNS and Prometheus after {:.1} s", started.elapsed().as_secs_f64());
    (cluster, [kubelet, proxy, containerd])
}

/// The node's address on a device of its own. Its only route leads there.
fn network() {
    let address = format!("{}/24", ADDRESSES.address);
    run("ip", &["link", "set", "lo", "up"]);
    run("ip", &["link", "add", "node0", "type", "bridge"]);
    run("ip", &["address", "add", &address, "dev", "node0"]);
    run("ip", &["link", "set", "node0", "up"]);
    run("ip", &["route", "add", "default", "dev", "node0"]);
    fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("a network namespace");
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).expect("a file");
    path.display().to_string()
}

/// Starts containerd, and imports the images into it.
async fn containerd(cluster: &Cluster, mut archives: Vec<std::path::PathBuf>) -> Process {
    let (folder, parts) = (cluster.folder.display(), cluster.parts.display());
    let cni = cluster.folder.join("cni");
    fs::create_dir(&cni).expect("a folder");
    // Pods have no network in common, only with the node: all that they send is routed by it, and
    // meets kube-proxy's rules both ways.
    let network = format!(
        r#"{{"cniVersion": "1.0.0", "name": "pods", "plugins": [{{"type": "ptp", "ipMasq": false,
            "ipam": {{"type": "host-local", "ranges": [[{{"subnet": "{PODS_RANGE}"}}]], "routes": [{{"dst": "0.0.0.0/0"}}]}}}}]}}"#
    );
    write(&cni, "10-pods.conflist", &network);
    let configuration = format!(
        r#"version = 3
root = "{folder}/containerd"
state = "{folder}/containerd-state"
[grpc]
  address = "{SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{pause}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["{parts}"]
  conf_dir = "{cni}"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  BinaryName = "{parts}/runc"
"#,
        pause = images::PAUSE,
        cni = cni.display(),
    );
    let configuration = write(&cluster.folder, "containerd.toml", &configuration);
    let path = std::env::var("PATH").unwrap_or_default();
    let arguments = [
        format!("PATH={parts}:{path}"),
        cluster.parts.join("containerd").display().to_string(),
        format!("--config={configuration}"),
    ];
    let process = cluster.run("containerd", Path::new("/usr/bin/env"), &arguments);
    let ctr = async |words: &[&str]| {
        let mut command = tokio::process::Command::new(cluster.parts.join("ctr"));
        command.args(["--address", SOCKET, "--namespace=k8s.io"]).args(words);
        printed(&command.output().await.expect("ctr can be run"))
    };
    eventually("containerd is ready", PODS, async || {
        ctr(&["version"]).await.map_err(|error| format!("{error}\n{}", process.tail()))
    })
    .await;
    archives.push(image());
    for archive in archives {
        let archive = archive.display().to_string();
        ctr(&["images", "import", &archive]).await.unwrap_or_else(|e| panic!("{archive}: {e}"));
    }
    process
}

fn kubelet_configuration(cluster: &Cluster, signed: &bed::pki::Signed) -> String {
    let folder = cluster.folder.display();
    format!(
        r#"apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: true}}, x509: {{clientCAFile: {ca}}}}}
authorization: {{mode: Webhook}}
tlsCertFile: {certificate}
tlsPrivateKeyFile: {key}
containerRuntimeEndpoint: unix://{SOCKET}
cgroupDriver: cgroupfs
cgroupRoot: {cgroup}
failCgroupV1: false
failSwapOn: false
clusterDNS: [{dns}]
clusterDomain: cluster.local
resolvConf: ""
makeIPTablesUtilChains: false
# A changed ConfigMap reaches pods with the next sync.
syncFrequency: 5s
evictionHard: {{memory.available: 1Mi, nodefs.available: 1%, imagefs.available: 1%}}
imageGCHighThresholdPercent: 100
podLogsDir: {folder}/pods
volumePluginDir: {folder}/volume-plugins
"#,
        ca = cluster.ca().display(),
        certificate = signed.certificate.display(),
        key = signed.key.display(),
        cgroup = cgroup(),
        dns = ADDRESSES.service(10),
    )
}
