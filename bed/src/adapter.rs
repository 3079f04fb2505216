//! prometheus-adapter 0.12, the real one.

use crate::cluster::Cluster;
use crate::process::Process;
use crate::{eventually, free_port};
use std::time::Duration;

/// A running metrics adapter: the peer, or Plimsoll in its place.
pub struct Adapter {
    pub process: Process,
    pub port: u16,
}

/// Which program it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    PrometheusAdapter,
    Plimsoll,
}

impl Adapter {
    /// Starts prometheus-adapter with this configuration.
    pub fn start(cluster: &Cluster, name: &str, config: &str) -> Self {
        Self::start_as(cluster, Program::PrometheusAdapter, name, config, cluster.prometheus_port)
    }

    /// Starts either with this configuration and the very same flags.
    pub fn start_as(
        cluster: &Cluster,
        program: Program,
        name: &str,
        config: &str,
        prometheus_port: u16,
    ) -> Self {
        let port = free_port();
        let file = cluster.folder.join(format!("{name}.yaml"));
        std::fs::write(&file, config).expect("a file");
        let kubeconfig = cluster.kubeconfig.display();
        let mut arguments = vec![
            format!("--config={}", file.display()),
            format!("--prometheus-url=http://127.0.0.1:{prometheus_port}"),
            format!("--lister-kubeconfig={kubeconfig}"),
            format!("--authentication-kubeconfig={kubeconfig}"),
            format!("--authorization-kubeconfig={kubeconfig}"),
            format!("--secure-port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--cert-dir={}", cluster.folder.join(name).display()),
            // Their defaults of ten minutes are for clusters, not for tests.
            "--metrics-relist-interval=2s".to_owned(),
            "--metrics-max-age=60s".to_owned(),
            "--discovery-interval=5s".to_owned(),
            "--audit-log-maxage=1".to_owned(),
            "--v=4".to_owned(),
        ];
        let (parts, folder) = (&cluster.parts, &cluster.folder);
        let path = match program {
            Program::PrometheusAdapter => {
                crate::parts(&["prometheus-adapter"]).join("prometheus-adapter")
            }
            // In a pod it is called as prometheus-adapter is; this is none.
            Program::Plimsoll => {
                arguments.insert(0, "serve".to_owned());
                crate::plimsoll::binary()
            }
        };
        let process = Process::start(parts, folder, cluster.keep, name, &path, &arguments);
        Self { process, port }
    }

    /// Has kube-apiserver send the requests for a group's version to it.
    pub async fn register(&self, cluster: &Cluster, group: &str, version: &str) {
        let port = self.port;
        cluster
            .apply(&format!(
                "apiVersion: v1\nkind: Service\n\
                 metadata: {{name: prometheus-adapter, namespace: kube-system}}\n\
                 spec:\n  type: ExternalName\n  externalName: localhost\n\
                 \x20 ports: [{{name: https, port: {port}, targetPort: {port}}}]\n\
                 ---\napiVersion: apiregistration.k8s.io/v1\nkind: APIService\n\
                 metadata: {{name: {version}.{group}}}\n\
                 spec:\n  group: {group}\n  version: {version}\n  insecureSkipTLSVerify: true\n\
                 \x20 groupPriorityMinimum: 100\n  versionPriority: 100\n\
                 \x20 service: {{name: prometheus-adapter, namespace: kube-system, port: {port}}}\n"
            ))
            .await;
        let name = format!("{version}.{group}");
        eventually("prometheus-adapter is available", Duration::from_secs(60), async || {
            let path = r#"jsonpath={.status.conditions[?(@.type=="Available")].status}"#;
            match cluster.try_kubectl(&["get", "apiservice", &name, "-o", path]).await {
                Ok(text) if text == "True" => Ok(()),
                other => Err(format!("{other:?}\n{}", self.process.tail())),
            }
        })
        .await;
    }
}
