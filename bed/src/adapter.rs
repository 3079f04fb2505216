//! prometheus-adapter 0.12, or Plimsoll with the same flags.

use crate::cluster::Cluster;
use crate::parts::parts;
use crate::plimsoll;
use crate::ports::free_port;
use crate::process::Process;
use crate::wait::eventually;
use std::time::Duration;

/// A running metrics adapter.
pub struct Adapter {
    /// Its process.
    pub process: Process,
    /// The port of its API.
    pub port: u16,
}

/// The program of an [`Adapter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// prometheus-adapter.
    PrometheusAdapter,
    /// Plimsoll, in the place of prometheus-adapter.
    Plimsoll,
}

impl Adapter {
    /// Starts prometheus-adapter with this configuration.
    pub fn start(cluster: &Cluster, name: &str, config: &str) -> Self {
        Self::start_as(cluster, Program::PrometheusAdapter, name, config, cluster.prometheus_port)
    }

    /// Starts either program with this configuration and the same flags.
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
            // The defaults are minutes.
            "--metrics-relist-interval=2s".to_owned(),
            "--metrics-max-age=60s".to_owned(),
            "--discovery-interval=5s".to_owned(),
            "--audit-log-maxage=1".to_owned(),
            "--v=4".to_owned(),
        ];
        let path = match program {
            Program::PrometheusAdapter => parts(&["prometheus-adapter"]).join("prometheus-adapter"),
            // Outside of a pod Plimsoll needs the subcommand.
            Program::Plimsoll => {
                arguments.insert(0, "serve".to_owned());
                plimsoll::binary()
            }
        };
        let process = cluster.run(name, &path, &arguments);
        Self { process, port }
    }

    /// Registers it with kube-apiserver for a version of an API group.
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
