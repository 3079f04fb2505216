//! A cluster on loopback: the control plane, Prometheus, the fleet and the load generator.

mod components;
mod kubeconfig;
mod requests;

use crate::options::Options;
use crate::parts::parts;
use crate::pki::{Authority, Signed};
use crate::ports::free_port;
use crate::process::Process;
use crate::wait::eventually;
use components::{
    apiserver_flags, controller_manager_flags, prometheus_config, prometheus_flags, scheduler_flags,
};
use kube::Client;
use kubeconfig::{connect, write_kubeconfig, write_user_kubeconfig};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::Semaphore;

/// A running cluster.
pub struct Cluster {
    /// A client of its administrator.
    pub client: Client,
    /// The kubeconfig of its administrator.
    pub kubeconfig: PathBuf,
    /// The port of Prometheus.
    pub prometheus_port: u16,
    /// The folder of the binaries.
    pub parts: PathBuf,
    /// The folder of all that is written: certificates, logs, the data of etcd and Prometheus.
    pub folder: PathBuf,
    /// Whether it outlives this process.
    pub keep: bool,
    api_port: u16,
    etcd_port: u16,
    load_port: u16,
    authority: Authority,
    /// The CA of front proxies, such as kube-apiserver.
    pub front_authority: Authority,
    // Dropped, that is ended, in this order.
    processes: Vec<Process>,
    prometheus: Option<Process>,
    apiserver: Option<Process>,
    apiserver_flags: Vec<String>,
    kubernetes: &'static str,
    etcd: Process,
    _temporary: Option<TempDir>,
}

/// How long a component may take to become ready.
const READY: Duration = Duration::from_secs(90);
/// The control planes that may start at the same time: all at once they would starve the clusters whose tests run.
static STARTS: Semaphore = Semaphore::const_new(3);

impl Cluster {
    /// Starts a cluster and waits until it is ready.
    pub async fn start(options: &Options) -> Self {
        let mut cluster = Self::with_controllers(options).await;
        (options.progress)("starting the fleet and Prometheus");
        let admin = cluster.kubeconfig.display().to_string();
        cluster.add("kubelet", "fleet", &["kubelet".to_owned(), admin.clone()]);
        let control = format!("127.0.0.1:{}", cluster.load_port);
        cluster.add("load", "fleet", &["load".to_owned(), admin.clone(), control]);
        cluster.write_prometheus_config(&prometheus_config(&admin));
        cluster.start_prometheus();
        cluster.wait_prometheus().await;
        cluster
    }

    /// Starts a control plane, without what runs pods: etcd, kube-apiserver, which is waited for,
    /// kube-controller-manager and kube-scheduler.
    pub async fn with_controllers(options: &Options) -> Self {
        let mut cluster = Self::control_plane(options).await;
        let folder = cluster.folder.clone();
        (options.progress)("starting kube-controller-manager and kube-scheduler");
        let kubeconfig = cluster.kubeconfig_of("system:kube-controller-manager", &[]);
        let ca = &cluster.authority.certificate;
        let flags = controller_manager_flags(&folder, &kubeconfig, ca, options);
        cluster.add("kube-controller-manager", options.kubernetes, &flags);
        let kubeconfig = cluster.kubeconfig_of("system:kube-scheduler", &[]);
        cluster.add("kube-scheduler", options.kubernetes, &scheduler_flags(&folder, &kubeconfig));
        cluster
    }

    /// Starts only etcd and kube-apiserver, and waits until they are ready.
    pub async fn control_plane(options: &Options) -> Self {
        let Options { keep, progress, kubernetes, .. } = *options;
        let _ = rustls::crypto::ring::default_provider().install_default();
        let parts = tokio::task::spawn_blocking(move || {
            let base = parts(&[]);
            if kubernetes == "cluster" { base } else { parts(&[kubernetes]) }
        });
        let parts = parts.await.expect("the parts");
        remove_abandoned();
        let temporary = tempfile::Builder::new().prefix(FOLDER_PREFIX).tempdir().expect("a folder");
        let folder = temporary.path().to_owned();
        let temporary = if keep {
            let _ = temporary.keep();
            None
        } else {
            std::fs::write(folder.join(OWNER), std::process::id().to_string()).expect("a file");
            Some(temporary)
        };
        let mut authority = Authority::new(&folder, "ca");
        authority
            .addresses
            .extend(options.node.iter().flat_map(|n| [n.address, n.second(), n.service(1)]));
        let [etcd_port, peer_port, api_port, prometheus_port, load_port] =
            std::array::from_fn(|_| free_port());
        let start = |name: &str, program: &str, arguments: &[String]| {
            Process::start(&parts, &folder, keep, name, &parts.join(program), arguments)
        };

        let _start = STARTS.acquire().await.expect("it is never closed");
        progress("starting etcd and kube-apiserver");
        let etcd = start(
            "etcd",
            "cluster",
            &[
                "etcd".to_owned(),
                format!("--data-dir={}", folder.join("etcd").display()),
                format!("--listen-client-url=http://127.0.0.1:{etcd_port}"),
                format!("--listen-peer-url=http://127.0.0.1:{peer_port}"),
            ],
        );
        let front_authority = Authority::new(&folder, "front-proxy-ca");
        let mut apiserver_flags = apiserver_flags(
            &folder,
            &authority,
            &front_authority,
            etcd_port,
            api_port,
            options.node,
        );
        apiserver_flags.extend(options.apiserver.iter().cloned());
        let apiserver = start("kube-apiserver", kubernetes, &apiserver_flags);
        let kubeconfig =
            write_user_kubeconfig(&folder, &authority, api_port, "admin", &["system:masters"]);
        let client = connect(&kubeconfig).await;
        let cluster = Self {
            client,
            kubeconfig,
            prometheus_port,
            folder: folder.clone(),
            keep,
            api_port,
            etcd_port,
            load_port,
            authority,
            front_authority,
            processes: Vec::new(),
            prometheus: None,
            apiserver: Some(apiserver),
            apiserver_flags,
            kubernetes,
            etcd,
            _temporary: temporary,
            parts: parts.clone(),
        };
        cluster.wait_ready().await;
        cluster
    }

    /// Starts a program of the parts that ends with the cluster.
    pub fn add(&mut self, name: &str, program: &str, arguments: &[String]) {
        let process = self.run(name, &self.parts.join(program), arguments);
        self.processes.push(process);
    }

    /// Starts a program; it ends when the value is dropped.
    pub fn run(&self, name: &str, program: &Path, arguments: &[String]) -> Process {
        Process::start(&self.parts, &self.folder, self.keep, name, program, arguments)
    }

    /// The process ids of etcd, kube-apiserver and Prometheus.
    pub fn program_ids(&self) -> [u32; 3] {
        let id =
            |process: &Option<Process>| process.as_ref().expect("a running process").program_id();
        [self.etcd.program_id(), id(&self.apiserver), id(&self.prometheus)]
    }

    /// A certificate for a user.
    pub fn sign(&self, user: &str, groups: &[&str]) -> Signed {
        self.authority.sign(user, groups)
    }

    /// A kubeconfig for a user by certificate.
    pub fn kubeconfig_of(&self, user: &str, groups: &[&str]) -> PathBuf {
        write_user_kubeconfig(&self.folder, &self.authority, self.api_port, user, groups)
    }

    /// A kubeconfig for a user by bearer token.
    pub fn kubeconfig_with_token(&self, name: &str, token: &str) -> PathBuf {
        let server = format!("https://127.0.0.1:{}", self.api_port);
        self.kubeconfig_at(&server, name, &format!("token: {token}"))
    }

    /// A kubeconfig for a user of the API server at another address.
    pub fn kubeconfig_at(&self, server: &str, name: &str, credentials: &str) -> PathBuf {
        write_kubeconfig(&self.folder, &self.authority, server, name, credentials)
    }

    /// The port of kube-apiserver.
    pub fn api_port(&self) -> u16 {
        self.api_port
    }

    /// A serving certificate that expires in `days`; negative: it has expired.
    pub fn sign_until(&self, name: &str, days: i64) -> Signed {
        self.authority.sign_until(name, &[], Some(days))
    }

    /// The certificate of the CA that signs for kube-apiserver.
    pub fn ca(&self) -> &Path {
        &self.authority.certificate
    }

    /// Stops Prometheus.
    pub fn stop_prometheus(&mut self) {
        drop(self.prometheus.take());
    }

    /// Starts Prometheus, with the data that it had.
    pub fn start_prometheus(&mut self) {
        let flags = prometheus_flags(&self.folder, self.prometheus_port);
        self.prometheus = Some(self.run("prometheus", &self.parts.join("prometheus"), &flags));
    }

    /// Waits until Prometheus is ready.
    pub async fn wait_prometheus(&self) {
        let url = format!("http://127.0.0.1:{}/-/ready", self.prometheus_port);
        eventually("Prometheus is ready", READY, async || {
            let response = reqwest::get(&url).await.map_err(|error| error.to_string())?;
            response.error_for_status().map(|_| ()).map_err(|error| error.to_string())
        })
        .await;
    }

    /// Has etcd drop all versions but the present one of each object.
    pub async fn compact_etcd(&self) {
        let url = |path: &str| format!("http://127.0.0.1:{}/v3/kv/{path}", self.etcd_port);
        let ask = async |path: &str, body: String| {
            let request = reqwest::Client::new().post(url(path)).body(body);
            let response = request.send().await.and_then(reqwest::Response::error_for_status);
            let text = response.expect("etcd answers").bytes().await.expect("a body");
            serde_json::from_slice::<serde_json::Value>(&text).expect("JSON")
        };
        let present = ask("range", r#"{"key": "AA=="}"#.to_owned()).await;
        let revision = &present["header"]["revision"];
        ask("compaction", format!("{{\"revision\": {revision}, \"physical\": true}}")).await;
    }

    /// Restarts kube-apiserver.
    pub async fn restart_apiserver(&mut self) {
        self.stop_apiserver();
        self.start_apiserver().await;
    }

    /// Stops kube-apiserver.
    pub fn stop_apiserver(&mut self) {
        drop(self.apiserver.take());
    }

    /// Starts kube-apiserver, with the data of etcd, and waits until it is ready.
    pub async fn start_apiserver(&mut self) {
        let program = self.parts.join(self.kubernetes);
        self.apiserver = Some(self.run("kube-apiserver", &program, &self.apiserver_flags));
        self.wait_ready().await;
    }

    async fn wait_ready(&self) {
        eventually("kube-apiserver is ready", READY, async || {
            let ready = self
                .client
                .request_text(http::Request::get("/readyz").body(Vec::new()).expect("a request"));
            ready.await.map(|_| ()).map_err(|error| {
                let log = self.apiserver.as_ref().map(Process::tail).unwrap_or_default();
                format!("{error}\n{log}")
            })
        })
        .await;
    }

    /// Writes the configuration of Prometheus, which reads it when it starts.
    pub fn write_prometheus_config(&self, text: &str) {
        std::fs::write(self.folder.join("prometheus.yml"), text).expect("a file");
    }
}

impl Drop for Cluster {
    /// Asks all to stop at the same time; dropping them then waits for each.
    fn drop(&mut self) {
        if !self.keep {
            let processes = self.processes.iter_mut().chain(&mut self.prometheus);
            processes.chain(&mut self.apiserver).for_each(Process::ask_to_stop);
        }
    }
}

/// The prefix of the folders of clusters.
const FOLDER_PREFIX: &str = "plimsoll-bed-";
/// The file with the id of the process that a cluster ends with.
const OWNER: &str = "owner";

/// Removes the folders of processes that were killed.
fn remove_abandoned() {
    for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let owner = std::fs::read_to_string(entry.path().join(OWNER));
        let gone = |pid: String| !Path::new("/proc").join(pid).exists();
        if entry.file_name().to_string_lossy().starts_with(FOLDER_PREFIX) && owner.is_ok_and(gone) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
