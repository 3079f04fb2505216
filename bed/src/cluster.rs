//! The control plane, Prometheus, the fleet and the load generator.

use crate::pki::{Authority, Signed, token_keys};
use crate::process::{Process, printed};
use crate::{Options, eventually, free_port};
use kube::Client;
use kube::Resource;
use kube::api::{DynamicObject, GroupVersionKind, TypeMeta};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::discovery::Scope;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// A running cluster.
pub struct Cluster {
    pub client: Client,
    pub kubeconfig: PathBuf,
    pub prometheus_port: u16,
    pub parts: PathBuf,
    pub folder: PathBuf,
    pub keep: bool,
    api_port: u16,
    load_port: u16,
    authority: Authority,
    /// The authority of front proxies, such as kube-apiserver.
    pub front_authority: Authority,
    // In the order in which they are ended.
    processes: Vec<Process>,
    prometheus: Option<Process>,
    apiserver: Option<Process>,
    apiserver_flags: Vec<String>,
    etcd: Process,
    _temporary: Option<TempDir>,
}

const READY: Duration = Duration::from_secs(90);

/// The controllers that kube-controller-manager runs.
const CONTROLLERS: [&str; 8] = [
    "deployment-controller",
    "replicaset-controller",
    "statefulset-controller",
    "namespace-controller",
    "garbage-collector-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "clusterrole-aggregation-controller",
];

impl Cluster {
    /// Starts one and waits until it is ready.
    pub async fn start(options: &Options) -> Self {
        let mut cluster = Self::control_plane(options).await;
        let folder = cluster.folder.clone();
        let load_port = cluster.load_port;

        (options.progress)(
            "starting kube-controller-manager, kube-scheduler, the fleet and Prometheus",
        );
        let kubeconfig = cluster.kubeconfig_of("system:kube-controller-manager", &[]);
        let mut controllers = CONTROLLERS.to_vec();
        if options.hpa_controller {
            controllers.push("horizontal-pod-autoscaler-controller");
        }
        let scheduler = cluster.kubeconfig_of("system:kube-scheduler", &[]);
        let admin = cluster.kubeconfig.display().to_string();
        let ca = cluster.authority.certificate.display().to_string();
        let mut flags = vec![
            "kube-controller-manager".to_owned(),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--authentication-kubeconfig={}", kubeconfig.display()),
            format!("--authorization-kubeconfig={}", kubeconfig.display()),
            format!("--service-account-private-key-file={}", folder.join("sa.key").display()),
            format!("--root-ca-file={ca}"),
            "--use-service-account-credentials=true".to_owned(),
            format!("--controllers={}", controllers.join(",")),
            "--leader-elect=false".to_owned(),
            format!("--secure-port={}", free_port()),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--cert-dir={}", folder.join("kube-controller-manager").display()),
            // As fast as the fleet is asked for.
            "--kube-api-qps=500".to_owned(),
            "--kube-api-burst=1000".to_owned(),
        ];
        flags.extend_from_slice(&options.decisions);
        cluster.add("kube-controller-manager", "cluster", &flags);
        cluster.add(
            "kube-scheduler",
            "cluster",
            &[
                "kube-scheduler".to_owned(),
                format!("--kubeconfig={}", scheduler.display()),
                format!("--authentication-kubeconfig={}", scheduler.display()),
                format!("--authorization-kubeconfig={}", scheduler.display()),
                "--leader-elect=false".to_owned(),
                format!("--secure-port={}", free_port()),
                "--bind-address=127.0.0.1".to_owned(),
                format!("--cert-dir={}", folder.join("kube-scheduler").display()),
                "--kube-api-qps=500".to_owned(),
                "--kube-api-burst=1000".to_owned(),
            ],
        );
        cluster.add("kubelet", "fleet", &["kubelet".to_owned(), admin.clone()]);
        cluster.add(
            "load",
            "fleet",
            &["load".to_owned(), admin.clone(), format!("127.0.0.1:{load_port}")],
        );
        cluster.write_prometheus_config(&scrape_pods(&admin));
        cluster.start_prometheus();
        cluster.wait_prometheus().await;
        cluster
    }

    /// Starts etcd and kube-apiserver alone, and waits until they are ready.
    pub async fn control_plane(options: &Options) -> Self {
        let Options { keep, progress, .. } = *options;
        let _ = rustls::crypto::ring::default_provider().install_default();
        let parts = tokio::task::spawn_blocking(|| crate::parts(&[])).await.expect("the parts");
        sweep();
        let temporary = tempfile::Builder::new().prefix(FOLDERS).tempdir().expect("a folder");
        let folder = temporary.path().to_owned();
        let temporary = if keep {
            let _ = temporary.keep();
            None
        } else {
            std::fs::write(folder.join(OWNER), std::process::id().to_string()).expect("a file");
            Some(temporary)
        };
        let authority = Authority::new(&folder, "ca");
        let [etcd_port, peer_port, api_port, prometheus_port, load_port] =
            std::array::from_fn(|_| free_port());
        let start = |name: &str, program: &str, arguments: &[String]| {
            Process::start(&parts, &folder, keep, name, &parts.join(program), arguments)
        };

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
        let mut apiserver_flags =
            apiserver_flags(&folder, &authority, &front_authority, etcd_port, api_port);
        apiserver_flags.extend(options.apiserver.iter().cloned());
        let apiserver = start("kube-apiserver", "cluster", &apiserver_flags);
        let kubeconfig =
            write_kubeconfig(&folder, &authority, api_port, "admin", &["system:masters"]);
        let client = connect(&kubeconfig).await;
        let cluster = Self {
            client,
            kubeconfig,
            prometheus_port,
            folder: folder.clone(),
            keep,
            api_port,
            load_port,
            authority,
            front_authority,
            processes: Vec::new(),
            prometheus: None,
            apiserver: Some(apiserver),
            apiserver_flags,
            etcd,
            _temporary: temporary,
            parts: parts.clone(),
        };
        cluster.wait_ready().await;
        cluster
    }

    /// Starts a program that ends with the cluster.
    pub fn add(&mut self, name: &str, program: &str, arguments: &[String]) {
        let process = self.run(name, &self.parts.join(program), arguments);
        self.processes.push(process);
    }

    /// Starts a program.
    pub fn run(&self, name: &str, program: &Path, arguments: &[String]) -> Process {
        Process::start(&self.parts, &self.folder, self.keep, name, program, arguments)
    }

    /// The process ids of etcd, kube-apiserver and Prometheus.
    pub fn program_ids(&self) -> [u32; 3] {
        let id = |process: &Option<Process>| process.as_ref().expect("it runs").program_id();
        [self.etcd.program_id(), id(&self.apiserver), id(&self.prometheus)]
    }

    /// Runs kubectl; panics where it fails.
    pub async fn kubectl(&self, arguments: &[&str]) -> String {
        match self.try_kubectl(arguments).await {
            Ok(output) => output,
            Err(error) => panic!("kubectl {}: {error}", arguments.join(" ")),
        }
    }

    /// Runs kubectl; what it prints, or its complaint.
    pub async fn try_kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        self.kubectl_as(&self.kubeconfig, arguments, "").await
    }

    /// Runs Helm; what it prints, or its complaint.
    pub async fn helm(&self, arguments: &[&str]) -> Result<String, String> {
        let parts = tokio::task::spawn_blocking(|| crate::parts(&["helm"])).await;
        let mut command = tokio::process::Command::new(parts.expect("the parts").join("helm"));
        command.args(arguments).env("KUBECONFIG", &self.kubeconfig);
        for folder in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(folder, self.folder.join("helm"));
        }
        printed(&command.output().await.expect("helm can be run"))
    }

    /// A certificate for a user.
    pub fn sign(&self, user: &str, groups: &[&str]) -> Signed {
        self.authority.sign(user, groups)
    }

    /// Applies a manifest, as `kubectl apply --server-side` does.
    pub async fn apply(&self, manifest: &str) {
        let objects: Vec<Option<Value>> = serde_saphyr::from_multiple(manifest)
            .unwrap_or_else(|error| panic!("{error}\n{manifest}"));
        // Those of a List stand each for itself, as with kubectl.
        let each = objects.into_iter().flatten().flat_map(|object| match &object["items"] {
            Value::Array(items) if object["kind"] == "List" => items.clone(),
            _ => vec![object],
        });
        for object in each {
            let applied = eventually("its kind is known", READY, async || {
                match self.apply_one(&object).await {
                    // A kind may have been made a moment ago, and its discovery follow.
                    Err(error) if error.contains("NotFound") => Err(error),
                    applied => Ok(applied),
                }
            });
            if let Err(error) = applied.await {
                panic!("{error}\n{manifest}");
            }
        }
    }

    async fn apply_one(&self, object: &Value) -> Result<(), String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let types =
            TypeMeta { api_version: text(&object["apiVersion"]), kind: text(&object["kind"]) };
        let kind = GroupVersionKind::try_from(&types).map_err(|error| error.to_string())?;
        let found = kube::discovery::pinned_kind(&self.client, &kind).await;
        let (resource, capabilities) =
            found.map_err(|error| format!("NotFound: {}", words_of(&error)))?;
        let scope = match capabilities.scope {
            Scope::Cluster => None,
            Scope::Namespaced => {
                Some(object["metadata"]["namespace"].as_str().unwrap_or("default"))
            }
        };
        let path = DynamicObject::url_path(&resource, scope);
        let name = text(&object["metadata"]["name"]);
        let path = format!("{path}/{name}?fieldManager=bed&force=true");
        let kind = "application/apply-patch+yaml";
        self.request("PATCH", &path, kind, object.to_string()).await.map(|_| ())
    }

    /// Patches an object by a merge.
    pub async fn patch(&self, path: &str, patch: &Value) -> Result<String, String> {
        self.request("PATCH", path, "application/merge-patch+json", patch.to_string()).await
    }

    /// Asks kube-apiserver for a path; what it answers, or its complaint as kubectl says it.
    pub async fn raw(&self, path: &str) -> Result<String, String> {
        self.request("GET", path, "application/json", String::new()).await
    }

    /// Sends kube-apiserver a request, without what a run of kubectl costs.
    pub async fn request(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        body: String,
    ) -> Result<String, String> {
        let request = http::Request::builder().method(method).uri(path);
        let request = request.header("content-type", kind).body(body.into_bytes());
        let answer = self.client.request_text(request.expect("a request")).await;
        answer.map_err(|error| words_of(&error))
    }

    /// Runs kubectl with another kubeconfig and some input.
    pub async fn kubectl_as(
        &self,
        kubeconfig: &Path,
        arguments: &[&str],
        input: &str,
    ) -> Result<String, String> {
        use tokio::io::AsyncWriteExt;
        let mut child = tokio::process::Command::new(self.parts.join("cluster"))
            .arg("kubectl")
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--cache-dir")
            .arg(self.folder.join("kubectl-cache"))
            .args(arguments)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("kubectl can be run");
        let mut stdin = child.stdin.take().expect("an input");
        stdin.write_all(input.as_bytes()).await.expect("kubectl reads its input");
        drop(stdin);
        printed(&child.wait_with_output().await.expect("kubectl ends"))
    }

    /// A kubeconfig for a user by certificate.
    pub fn kubeconfig_of(&self, user: &str, groups: &[&str]) -> PathBuf {
        write_kubeconfig(&self.folder, &self.authority, self.api_port, user, groups)
    }

    /// A kubeconfig for a user by bearer token.
    pub fn kubeconfig_with_token(&self, name: &str, token: &str) -> PathBuf {
        let server = format!("https://127.0.0.1:{}", self.api_port);
        self.kubeconfig_at(&server, name, &format!("token: {token}"))
    }

    /// A kubeconfig for a user of the API server at another address.
    pub fn kubeconfig_at(&self, server: &str, name: &str, credentials: &str) -> PathBuf {
        write_kubeconfig_of(&self.folder, &self.authority, server, name, credentials)
    }

    /// The port of kube-apiserver.
    pub fn api_port(&self) -> u16 {
        self.api_port
    }

    /// A serving certificate that ends so many days from now.
    pub fn sign_until(&self, name: &str, days: i64) -> Signed {
        self.authority.sign_until(name, &[], Some(days))
    }

    /// The certificate of the authority that signs for kube-apiserver.
    pub fn ca(&self) -> &Path {
        &self.authority.certificate
    }

    /// Sets how many requests a second go to a path of the pods of a selector.
    pub async fn load(&self, namespace: &str, selector: &str, path: &str, qps: f64) {
        let url = format!("http://127.0.0.1:{}/load", self.load_port);
        let query = [
            ("namespace", namespace.to_owned()),
            ("selector", selector.to_owned()),
            ("path", path.to_owned()),
            ("qps", qps.to_string()),
        ];
        let url = reqwest::Url::parse_with_params(&url, query).expect("a URL");
        let set = async || {
            let answer = reqwest::Client::new().put(url.clone()).send().await;
            let answer = answer.map_err(|error| error.to_string())?;
            answer.error_for_status().map(|_| ()).map_err(|error| error.to_string())
        };
        eventually("the load generator answers", READY, set).await;
    }

    /// Ends Prometheus.
    pub fn stop_prometheus(&mut self) {
        drop(self.prometheus.take());
    }

    /// Starts Prometheus, with what it had stored.
    pub fn start_prometheus(&mut self) {
        let folder = &self.folder;
        self.prometheus = Some(Process::start(
            &self.parts,
            folder,
            self.keep,
            "prometheus",
            &self.parts.join("prometheus"),
            &[
                format!("--config.file={}", folder.join("prometheus.yml").display()),
                format!("--storage.tsdb.path={}", folder.join("prometheus").display()),
                format!("--web.listen-address=127.0.0.1:{}", self.prometheus_port),
                "--log.level=warn".to_owned(),
            ],
        ));
    }

    /// Waits until Prometheus answers.
    pub async fn wait_prometheus(&self) {
        let url = format!("http://127.0.0.1:{}/-/ready", self.prometheus_port);
        eventually("Prometheus is ready", READY, async || {
            let answer = reqwest::get(&url).await.map_err(|error| error.to_string())?;
            answer.error_for_status().map(|_| ()).map_err(|error| error.to_string())
        })
        .await;
    }

    /// Ends kube-apiserver and starts it again.
    pub async fn restart_apiserver(&mut self) {
        self.stop_apiserver();
        self.start_apiserver().await;
    }

    /// Ends kube-apiserver.
    pub fn stop_apiserver(&mut self) {
        drop(self.apiserver.take());
    }

    /// Starts kube-apiserver, with what etcd has, and waits until it is ready.
    pub async fn start_apiserver(&mut self) {
        let program = self.parts.join("cluster");
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

    /// Writes the configuration that Prometheus is started with.
    pub fn write_prometheus_config(&self, text: &str) {
        std::fs::write(self.folder.join("prometheus.yml"), text).expect("a file");
    }
}

/// A complaint of kube-apiserver's, in the words of kubectl.
fn words_of(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.reason.is_empty() => {
            format!("Error from server: {}", status.message)
        }
        kube::Error::Api(status) => {
            format!("Error from server ({}): {}", status.reason, status.message)
        }
        other => other.to_string(),
    }
}

/// Has Prometheus scrape every running pod each second.
fn scrape_pods(kubeconfig: &str) -> String {
    format!(
        r#"global: {{scrape_interval: 1s, scrape_timeout: 900ms, external_labels: {{cluster: bed}}}}
scrape_configs:
  - job_name: pods
    kubernetes_sd_configs:
      - role: pod
        kubeconfig_file: {kubeconfig}
    relabel_configs:
      - {{source_labels: [__meta_kubernetes_pod_phase], regex: Running, action: keep}}
      - {{source_labels: [__meta_kubernetes_pod_ip], regex: (.+), target_label: __address__, replacement: "$1:8080"}}
      - {{source_labels: [__meta_kubernetes_namespace], target_label: namespace}}
      - {{source_labels: [__meta_kubernetes_pod_name], target_label: pod}}
"#
    )
}

impl Drop for Cluster {
    /// All are asked to end at once; then each is waited for.
    fn drop(&mut self) {
        if !self.keep {
            let processes = self.processes.iter_mut().chain(&mut self.prometheus);
            processes.chain(&mut self.apiserver).for_each(Process::ask_to_stop);
        }
    }
}

/// How the folders of beds begin.
const FOLDERS: &str = "plimsoll-bed-";
/// The file with the number of the process that a bed ends with.
const OWNER: &str = "owner";

/// Removes what runs that were killed left behind.
fn sweep() {
    for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let owner = std::fs::read_to_string(entry.path().join(OWNER));
        let gone = |pid: String| !Path::new("/proc").join(pid).exists();
        if entry.file_name().to_string_lossy().starts_with(FOLDERS) && owner.is_ok_and(gone) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn apiserver_flags(
    folder: &Path,
    authority: &Authority,
    front_authority: &Authority,
    etcd_port: u16,
    api_port: u16,
) -> Vec<String> {
    let serving = authority.sign("kube-apiserver", &[]);
    let front = front_authority.sign("front-proxy-client", &[]);
    let (public, private) = token_keys(folder);
    let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
    vec![
        "kube-apiserver".to_owned(),
        format!("--etcd-servers=http://127.0.0.1:{etcd_port}"),
        "--bind-address=127.0.0.1".to_owned(),
        "--advertise-address=127.0.0.1".to_owned(),
        "--endpoint-reconciler-type=none".to_owned(),
        format!("--secure-port={api_port}"),
        flag("cert-dir", &folder.join("kube-apiserver")),
        flag("tls-cert-file", &serving.certificate),
        flag("tls-private-key-file", &serving.key),
        flag("client-ca-file", &authority.certificate),
        flag("requestheader-client-ca-file", &front_authority.certificate),
        "--requestheader-allowed-names=front-proxy-client".to_owned(),
        "--requestheader-username-headers=X-Remote-User".to_owned(),
        "--requestheader-group-headers=X-Remote-Group".to_owned(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
        flag("proxy-client-cert-file", &front.certificate),
        flag("proxy-client-key-file", &front.key),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        flag("service-account-key-file", &public),
        flag("service-account-signing-key-file", &private),
        "--service-cluster-ip-range=10.0.0.0/16".to_owned(),
        "--authorization-mode=RBAC".to_owned(),
        "--enable-aggregator-routing=false".to_owned(),
    ]
}

fn write_kubeconfig(
    folder: &Path,
    authority: &Authority,
    api_port: u16,
    user: &str,
    groups: &[&str],
) -> PathBuf {
    let signed = authority.sign(user, groups);
    let credentials = format!(
        "client-certificate: {}, client-key: {}",
        signed.certificate.display(),
        signed.key.display()
    );
    let server = format!("https://127.0.0.1:{api_port}");
    write_kubeconfig_of(folder, authority, &server, user, &credentials)
}

fn write_kubeconfig_of(
    folder: &Path,
    authority: &Authority,
    server: &str,
    name: &str,
    credentials: &str,
) -> PathBuf {
    let path = folder.join(format!("{}.kubeconfig", name.replace(':', "-")));
    let ca = authority.certificate.display();
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: bed\n\
         clusters: [{{name: bed, cluster: {{server: \"{server}\", certificate-authority: {ca}}}}}]\n\
         users: [{{name: user, user: {{{credentials}}}}}]\n\
         contexts: [{{name: bed, context: {{cluster: bed, user: user}}}}]\n"
    );
    std::fs::write(&path, text).expect("a file");
    path
}

async fn connect(kubeconfig: &Path) -> Client {
    let file = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let options = KubeConfigOptions::default();
    let mut config =
        kube::Config::from_custom_kubeconfig(file, &options).await.expect("a kubeconfig");
    // A 503 is an answer here: 15 more tries would take minutes.
    config.default_retry = false;
    Client::try_from(config).expect("a client")
}
