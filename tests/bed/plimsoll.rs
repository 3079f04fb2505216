//! Plimsoll in the cluster: installed from `deploy/`, run under exactly the
//! RBAC of `deploy/`.

use super::cluster::Cluster;
use super::process::Process;
use super::{eventually, free_port, root};
use std::path::PathBuf;
use std::time::Duration;

/// A running Plimsoll.
pub struct Plimsoll {
    pub process: Process,
    pub port: u16,
}

/// Applies `deploy/`. As there is no container runtime, its Deployment does not
/// come to run; the Service is pointed at the process on loopback instead.
pub async fn install(cluster: &Cluster) {
    let folder = root().join("deploy");
    cluster.kubectl(&["apply", "-k", &folder.display().to_string()]).await;
    cluster.kubectl(&["-n", "plimsoll", "scale", "deployment/plimsoll", "--replicas=0"]).await;
    eventually("the CRD is established", Duration::from_secs(20), async || {
        cluster.try_kubectl(&["get", "autoscalers", "-A"]).await
    })
    .await;
}

impl Plimsoll {
    /// Starts it as the service account of `deploy/`, behind its Service.
    pub async fn start(cluster: &Cluster, prometheus_port: u16, flags: &[String]) -> Self {
        let token = cluster
            .kubectl(&["-n", "plimsoll", "create", "token", "plimsoll", "--duration=24h"])
            .await;
        let kubeconfig = cluster.kubeconfig_with_token("plimsoll", token.trim());
        let port = free_port();
        let mut arguments = vec![
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--prometheus-url=http://127.0.0.1:{prometheus_port}"),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
            "--log-level=info,plimsoll=debug".to_owned(),
        ];
        arguments.extend_from_slice(flags);
        let program = PathBuf::from(env!("CARGO_BIN_EXE_plimsoll"));
        let (parts, folder) = (&cluster.parts, &cluster.folder);
        let process = Process::start(parts, folder, cluster.keep, "plimsoll", &program, &arguments);
        for name in ["v1beta1.custom.metrics.k8s.io", "v1beta2.custom.metrics.k8s.io"] {
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
        Self { process, port }
    }
}
