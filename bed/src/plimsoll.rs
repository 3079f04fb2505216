//! Plimsoll in the cluster: installed from `deploy/`, with exactly the permissions of `deploy/`.

use crate::cluster::Cluster;
use crate::options::Options;
use crate::parts::root;
use crate::ports::free_port;
use crate::process::Process;
use crate::wait::eventually;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};
use tokio::sync::OnceCell;

/// A running replica of Plimsoll.
pub struct Plimsoll {
    /// Its process.
    pub process: Process,
    /// The port of its API.
    pub port: u16,
    http: reqwest::Client,
    /// The Authorization header of a service account that may scrape it.
    scraper: OnceCell<String>,
}

/// Applies the manifests. There is no container runtime: the Deployment is scaled to 0, and
/// [`Plimsoll::start`] points the Service at a process on loopback.
pub async fn install(cluster: &Cluster, manifests: &str) {
    let folder = root().join(manifests);
    cluster.kubectl(&["apply", "-k", &folder.display().to_string()]).await;
    cluster.kubectl(&["-n", "plimsoll", "scale", "deployment/plimsoll", "--replicas=0"]).await;
    cluster.kubectl(&["-n", "plimsoll", "create", "serviceaccount", "scraper"]).await;
    cluster
        .kubectl(&[
            "create",
            "clusterrolebinding",
            "plimsoll:scraper",
            "--clusterrole=plimsoll:metrics-reader",
            "--serviceaccount=plimsoll:scraper",
        ])
        .await;
    eventually("the CRD is established", Duration::from_secs(90), async || {
        cluster.try_kubectl(&["get", "autoscalers", "-A"]).await
    })
    .await;
}

/// The binary of Plimsoll, of the same build as this program.
///
/// Panics if it is older than the sources: Cargo builds it with the tests of its package, not
/// with those of this one.
pub fn binary() -> PathBuf {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    let find = || {
        let program = std::env::current_exe().expect("the path of this program");
        // Binaries are in target/PROFILE, test programs in target/PROFILE/deps.
        let of_profile = |folder: &&Path| !folder.ends_with("deps");
        let profile = program.ancestors().skip(1).find(of_profile).expect("a folder of the build");
        let binary = profile.join("plimsoll");
        assert!(
            is_current(&binary),
            "{} is missing or older than src/: build it, such as by `make e2e`",
            binary.display()
        );
        binary
    };
    BINARY.get_or_init(find).clone()
}

/// Whether a file is there that is as new as the sources of the product.
fn is_current(path: &Path) -> bool {
    let built = modified(path);
    built.is_some() && built >= newest_source(&root().join("src"))
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().ok()?.modified().ok()
}

/// When the newest file of a folder was changed.
fn newest_source(folder: &Path) -> Option<SystemTime> {
    let entries = std::fs::read_dir(folder).expect("the sources").flatten();
    let times = entries.map(|entry| match entry.path() {
        path if path.is_dir() => newest_source(&path),
        path => modified(&path),
    });
    times.max().flatten()
}

/// Starts a replica as the service account of `deploy/`, with these URLs of kube-apiserver and
/// Prometheus. Returns its process and port.
pub async fn launch(
    cluster: &Cluster,
    name: &str,
    server: &str,
    prometheus: &str,
    options: &Options,
) -> (Process, u16) {
    let token =
        cluster.kubectl(&["-n", "plimsoll", "create", "token", "plimsoll", "--duration=24h"]).await;
    let kubeconfig = cluster.kubeconfig_at(server, name, &format!("token: {}", token.trim()));
    let port = free_port();
    // Prometheus scrapes every second here: a window of 8 s has enough samples.
    let config = cluster.folder.join(format!("{name}.yaml"));
    let counter = "sum by (<<.GroupBy>>) (rate(<<.Series>>{<<.LabelMatchers>>}[8s]))";
    std::fs::write(
        &config,
        format!("podMetrics:\n  counterQuery: '{counter}'\n{}", options.config),
    )
    .expect("a file");
    let mut arguments = vec![
        "serve".to_owned(),
        format!("--config={}", config.display()),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--prometheus-url={prometheus}"),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        "--log-level=info,plimsoll=debug".to_owned(),
    ];
    arguments.extend(options.decisions.iter().chain(&options.flags).cloned());
    if options.decision_log {
        arguments.push(format!("--decision-log={}", decision_log(cluster, name).display()));
    }
    // `env` execs the program: signals reach Plimsoll.
    let mut line = vec![binary().display().to_string()];
    line.append(&mut arguments);
    line.splice(..0, options.environment.iter().cloned());
    (cluster.run(name, Path::new("/usr/bin/env"), &line), port)
}

/// The log of a replica's decisions, by the replica's name.
pub fn decision_log(cluster: &Cluster, name: &str) -> PathBuf {
    cluster.folder.join(format!("{name}.decisions.jsonl"))
}

impl Plimsoll {
    /// Starts a replica as the service account of `deploy/`, behind its Service.
    pub async fn start(
        cluster: &Cluster,
        server: &str,
        prometheus: &str,
        options: &Options,
    ) -> Self {
        let (process, port) = launch(cluster, "plimsoll", server, prometheus, options).await;
        let ours = r#"jsonpath={.items[?(@.spec.service.namespace=="plimsoll")].metadata.name}"#;
        let names = cluster.kubectl(&["get", "apiservices", "-o", ours]).await;
        for name in names.split_whitespace() {
            let patch = format!(r#"{{"spec":{{"service":{{"port":{port}}}}}}}"#);
            cluster.kubectl(&["patch", "apiservice", name, "--type=merge", "-p", &patch]).await;
        }
        let service = format!(
            r#"{{"spec":{{"type":"ExternalName","externalName":"localhost","selector":null,"clusterIP":null,"clusterIPs":null,"ports":[{{"name":"https","port":{port},"targetPort":{port}}}]}}}}"#
        );
        cluster
            .kubectl(&[
                "-n",
                "plimsoll",
                "patch",
                "service",
                "plimsoll",
                "--type=merge",
                "-p",
                &service,
            ])
            .await;
        // The caBundle may be empty yet, or have only another replica's CA: wait until it
        // verifies this process.
        let what = "kube-apiserver can trust Plimsoll by its caBundle";
        let http = eventually(what, Duration::from_secs(60), async || {
            let path = "jsonpath={.spec.caBundle}";
            let name = "v1beta1.custom.metrics.k8s.io";
            let ca = cluster.try_kubectl(&["get", "apiservice", name, "-o", path]).await?;
            let trusted = reqwest::Certificate::from_pem_bundle(&base64_decode(&ca));
            let http = async {
                let http = reqwest::Client::builder().tls_certs_only(trusted?).build()?;
                http.get(format!("https://localhost:{port}/livez")).send().await?;
                Ok::<_, reqwest::Error>(http)
            };
            http.await.map_err(|error| format!("{error:?}\n{}", process.tail()))
        })
        .await;
        Self { process, port, http, scraper: OnceCell::new() }
    }

    /// `/metrics`, as a service account that may read it.
    pub async fn metrics(&self, cluster: &Cluster) -> String {
        self.get_as_scraper(cluster, "/metrics").await
    }

    /// The sum of the series of a metric of `/metrics` whose labels contain a text.
    pub async fn metric(&self, cluster: &Cluster, name: &str, with: &str) -> f64 {
        let text = self.metrics(cluster).await;
        let series = |line: &&str| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
                && line.contains(with)
        };
        let values = text.lines().filter(series).filter_map(|line| line.rsplit_once(' '));
        values.filter_map(|(_, value)| value.parse::<f64>().ok()).sum()
    }

    /// Waits for this many more decisions, over all autoscalers. A test that expects nothing to
    /// happen waits so, and not for a time: the machine may be slow.
    pub async fn decided(&self, cluster: &Cluster, more: usize) {
        let taken = async || self.metric(cluster, "plimsoll_decisions_total", "").await;
        let before = taken().await;
        eventually("decisions are taken", Duration::from_secs(120), async || {
            match taken().await - before {
                taken if taken >= more as f64 => Ok(()),
                taken => Err(format!("{taken} of {more}\n{}", self.process.tail())),
            }
        })
        .await;
    }

    /// The body of a path, as a service account that may scrape it.
    pub async fn get_as_scraper(&self, cluster: &Cluster, path: &str) -> String {
        let bearer = async || {
            let token = cluster.kubectl(&["-n", "plimsoll", "create", "token", "scraper"]).await;
            format!("Bearer {}", token.trim())
        };
        let bearer = self.scraper.get_or_init(bearer).await;
        let (code, text) = self.get(path, &[("authorization", bearer)]).await;
        assert_eq!(code, 200, "{text}");
        text
    }

    /// Sends a GET request past kube-apiserver. Returns the HTTP status and the body.
    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> (u16, String) {
        let mut request = self.http.get(format!("https://localhost:{}{path}", self.port));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.send().await.expect("Plimsoll responds");
        (response.status().as_u16(), response.text().await.expect("a body"))
    }
}

/// Decodes bytes as kubectl prints them.
fn base64_decode(text: &str) -> Vec<u8> {
    let byte_string = serde_json::from_value(serde_json::json!(text));
    let byte_string: k8s_openapi::ByteString = byte_string.unwrap_or_default();
    byte_string.0
}
