//! A machine of real parts: kubelet, kube-proxy, containerd, runc and CNI plugins. The first one has
//! the namespaces of these tests, the second one mounts and a network of its own.

use crate::images;
use crate::isolation::{add_cgroups, run};
use bed::cluster::Cluster;
use bed::eventually;
use bed::process::{Process, printed};
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Addresses of RFC 2544, which are for tests: the nodes', and the range of Services.
pub const ADDRESSES: bed::Node =
    bed::Node { address: Ipv4Addr::new(198, 18, 255, 1), services: Ipv4Addr::new(198, 19, 0, 0) };
/// The range of all pods.
const PODS_RANGE: &str = "198.18.0.0/23";
/// Where cAdvisor looks for containerd. `/run` is the machine's own.
const SOCKET: &str = "/run/containerd/containerd.sock";
/// How long anything may take that pods are started for.
pub const PODS: Duration = Duration::from_secs(180);
/// The name of the first machine.
pub const NAME: &str = "node";
/// The name of the second machine.
pub const SECOND: &str = "second";

/// A machine that can be started.
pub struct Machine {
    name: &'static str,
    address: Ipv4Addr,
    pods: &'static str,
    /// The command that enters its namespaces.
    enter: Vec<String>,
    /// What holds them.
    namespaces: Option<Process>,
}

/// What runs on a machine.
pub struct Running {
    kubelet: Process,
    _others: [Process; 2],
    _namespaces: Option<Process>,
}

impl Running {
    /// The last lines of kubelet's log.
    pub fn tail(&self) -> String {
        self.kubelet.tail()
    }
}

impl Machine {
    /// The machine of the namespaces that this process is in. Its address is on a device of its
    /// own, and its only route leads there.
    pub fn first() -> Self {
        let address = format!("{}/24", ADDRESSES.address);
        ip(&["link", "set", "lo", "up"]);
        ip(&["link", "add", "node0", "type", "bridge"]);
        ip(&["address", "add", &address, "dev", "node0"]);
        ip(&["link", "set", "node0", "up"]);
        ip(&["route", "add", "default", "dev", "node0"]);
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("a network namespace");
        Self {
            name: NAME,
            address: ADDRESSES.address,
            pods: "198.18.0.0/24",
            enter: Vec::new(),
            namespaces: None,
        }
    }

    /// A machine beside it, on the same network.
    pub fn second(cluster: &Cluster) -> Self {
        let folder = cluster.folder.join(SECOND);
        for part in ["lib", "log"] {
            fs::create_dir_all(folder.join(part)).expect("a folder");
        }
        let set_up = format!(
            "set -e; mount --make-rshared /; mount -t tmpfs tmpfs /run\n\
             mount --bind {folder}/lib /var/lib; mount --bind {folder}/log /var/log\n\
             ip link set lo up; echo 1 >/proc/sys/net/ipv4/ip_forward; touch {folder}/made\n\
             exec sleep infinity",
            folder = folder.display()
        );
        let words = ["--mount", "--net", "--propagation=private", "sh", "-c", &set_up];
        let mut namespaces = cluster.run(SECOND, Path::new("unshare"), &words.map(str::to_owned));
        while !folder.join("made").exists() {
            assert!(namespaces.is_running(), "{}", namespaces.tail());
            std::thread::sleep(Duration::from_millis(10));
        }
        let id = namespaces.program_id().to_string();
        let enter = ["--mount", "--net", "--target", &id];
        let address = ADDRESSES.second();
        ip(&["link", "add", SECOND, "type", "veth", "peer", "name", "eth0", "netns", &id]);
        ip(&["link", "set", SECOND, "master", "node0", "up"]);
        ip(&["route", "add", "198.18.1.0/24", "via", &address.to_string()]);
        let (own, first) = (format!("{address}/24"), ADDRESSES.address.to_string());
        for words in [
            ["address", "add", &own, "dev", "eth0"],
            ["link", "set", "dev", "eth0", "up"],
            ["route", "add", "default", "via", &first],
        ] {
            run("nsenter", &[&enter[..], &["ip"], &words].concat());
        }
        let enter = ["nsenter"].iter().chain(&enter).map(|&word| word.to_owned()).collect();
        Self { name: SECOND, address, pods: "198.18.1.0/24", enter, namespaces: Some(namespaces) }
    }

    /// Starts a program on it.
    fn run(&self, cluster: &Cluster, name: &str, program: &Path, arguments: &[String]) -> Process {
        let program = program.display().to_string();
        let words = [&self.enter[..], &[program], arguments].concat();
        let log = if self.name == NAME { name.to_owned() } else { format!("{name}-{}", self.name) };
        cluster.run(&log, Path::new(&words[0]), &words[1..])
    }

    /// A folder of its own in that of the cluster.
    fn folder(&self, cluster: &Cluster) -> PathBuf {
        let folder = cluster.folder.join(format!("machine-{}", self.name));
        fs::create_dir_all(&folder).expect("a folder");
        folder
    }

    /// A kubeconfig for a user that reaches kube-apiserver from the machine.
    fn kubeconfig(&self, cluster: &Cluster, user: &str, groups: &[&str]) -> PathBuf {
        let signed = cluster.sign(user, groups);
        let credentials = format!(
            "client-certificate: {}, client-key: {}",
            signed.certificate.display(),
            signed.key.display()
        );
        let server = format!("https://{}:{}", ADDRESSES.address, cluster.api_port());
        cluster.kubeconfig_at(&server, &format!("{user}-{}", self.name), &credentials)
    }

    /// Starts all that it runs, and waits until the node is ready.
    pub async fn start(self, cluster: &Cluster, archives: &[PathBuf]) -> Running {
        let name = self.name;
        let folder = self.folder(cluster);
        let containerd = self.containerd(cluster, archives).await;
        let user = format!("system:node:{name}");
        let kubeconfig = self.kubeconfig(cluster, &user, &["system:nodes"]);
        let configuration = self.kubelet_configuration(cluster);
        let flags = [
            "kubelet".to_owned(),
            format!("--config={}", write(&folder, "kubelet.yaml", &configuration)),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--hostname-override={name}"),
            format!("--node-ip={}", self.address),
            format!("--root-dir={}", folder.join("kubelet").display()),
            format!("--cert-dir={}", folder.join("kubelet-pki").display()),
            // cAdvisor measures busy containers this often.
            "--housekeeping-interval=2s".to_owned(),
        ];
        let program = cluster.parts.join("kubelet");
        let kubelet = self.run(cluster, "kubelet", &program, &flags);
        let kubeconfig = self.kubeconfig(cluster, "system:kube-proxy", &[]);
        let configuration = format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
             clientConnection: {{kubeconfig: {}}}\nmode: nftables\nclusterCIDR: {PODS_RANGE}\n\
             hostnameOverride: {name}\nconntrack: {{maxPerCore: 0, min: 0}}\n",
            kubeconfig.display()
        );
        let flags = [
            "kube-proxy".to_owned(),
            format!("--config={}", write(&folder, "kube-proxy.yaml", &configuration)),
        ];
        let proxy = self.run(cluster, "kube-proxy", &program, &flags);
        let node = ["wait", "node", name, "--for=condition=Ready", "--timeout=90s"];
        eventually("the node is ready", PODS, async || {
            let ready = cluster.try_kubectl(&node).await;
            ready.map_err(|error| format!("{error}\n{}", kubelet.tail()))
        })
        .await;
        Running { kubelet, _others: [proxy, containerd], _namespaces: self.namespaces }
    }

    /// Starts containerd, and imports the images into it.
    async fn containerd(&self, cluster: &Cluster, archives: &[PathBuf]) -> Process {
        let own = self.folder(cluster);
        let (folder, parts) = (own.display(), cluster.parts.display());
        let cni = own.join("cni");
        fs::create_dir(&cni).expect("a folder");
        // Pods have no network in common, only with the node: all that they send is routed by it, and
        // meets kube-proxy's rules both ways.
        let network = format!(
            r#"{{"cniVersion": "1.0.0", "name": "pods", "plugins": [{{"type": "ptp", "ipMasq": false,
                "ipam": {{"type": "host-local", "ranges": [[{{"subnet": "{}"}}]], "routes": [{{"dst": "0.0.0.0/0"}}]}}}}]}}"#,
            self.pods
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
  # Its profile would stay in the kernel when all else ends.
  disable_apparmor = true
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
        let configuration = write(&own, "containerd.toml", &configuration);
        let path = std::env::var("PATH").unwrap_or_default();
        let arguments = [
            format!("PATH={parts}:{path}"),
            cluster.parts.join("containerd").display().to_string(),
            format!("--config={configuration}"),
        ];
        let process = self.run(cluster, "containerd", Path::new("/usr/bin/env"), &arguments);
        let ctr = async |words: &[&str]| {
            let line = [&self.enter[..], &[format!("{parts}/ctr")]].concat();
            let mut command = tokio::process::Command::new(&line[0]);
            command.args(&line[1..]).args(["--address", SOCKET, "--namespace=k8s.io"]).args(words);
            printed(&command.output().await.expect("ctr can be run"))
        };
        eventually("containerd is ready", PODS, async || {
            ctr(&["version"]).await.map_err(|error| format!("{error}\n{}", process.tail()))
        })
        .await;
        for archive in archives {
            let archive = archive.display().to_string();
            ctr(&["images", "import", &archive]).await.unwrap_or_else(|e| panic!("{archive}: {e}"));
        }
        let [present, next] =
            [images::PRODUCT, images::NEXT].map(|name| format!("docker.io/library/{name}"));
        ctr(&["images", "tag", &present, &next]).await.unwrap_or_else(|e| panic!("{next}: {e}"));
        process
    }

    fn kubelet_configuration(&self, cluster: &Cluster) -> String {
        let signed = cluster.sign(&format!("system:node:{}", self.name), &["system:nodes"]);
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
            cgroup = add_cgroups(self.name),
            dns = ADDRESSES.service(10),
            folder = self.folder(cluster).display(),
        )
    }
}

fn ip(arguments: &[&str]) {
    run("ip", arguments);
}

/// Has the first machine take an image from an archive.
pub async fn import(cluster: &Cluster, archive: &Path) {
    let mut command = tokio::process::Command::new(cluster.parts.join("ctr"));
    command.args(["--address", SOCKET, "--namespace=k8s.io", "images", "import"]).arg(archive);
    let done = printed(&command.output().await.expect("ctr can be run"));
    done.unwrap_or_else(|error| panic!("{}: {error}", archive.display()));
}

/// Writes a file, and returns its path.
pub fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).expect("a file");
    path.display().to_string()
}
