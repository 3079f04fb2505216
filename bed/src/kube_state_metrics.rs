//! kube-state-metrics, scraped by the cluster's Prometheus.

use crate::cluster::Cluster;
use crate::parts::{parts, root};
use crate::ports::free_port;
use crate::process::Process;
use crate::wait::eventually;
use std::time::Duration;

/// A running kube-state-metrics.
pub struct KubeStateMetrics {
    _process: Process,
}

impl KubeStateMetrics {
    /// Starts it with the configuration for Autoscalers, has Prometheus scrape it every second, and waits until it was scraped. Prometheus is started again.
    pub async fn start(cluster: &mut Cluster) -> Self {
        let program = parts(&["kube-state-metrics"]).join("kube-state-metrics");
        let [port, telemetry] = std::array::from_fn(|_| free_port());
        let arguments = [
            format!("--kubeconfig={}", cluster.kubeconfig.display()),
            "--resources=deployments,statefulsets,replicasets,pods".to_owned(),
            format!(
                "--custom-resource-state-config-file={}",
                root().join("deploy/monitoring/kube-state-metrics.yaml").display()
            ),
            "--host=127.0.0.1".to_owned(),
            format!("--port={port}"),
            "--telemetry-host=127.0.0.1".to_owned(),
            format!("--telemetry-port={telemetry}"),
        ];
        let process = cluster.run("kube-state-metrics", &program, &arguments);
        let path = cluster.folder.join("prometheus.yml");
        let mut config = std::fs::read_to_string(path).expect("a file");
        config += &format!(
            "  - {{job_name: kube-state-metrics, honor_labels: true, static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}\n"
        );
        cluster.write_prometheus_config(&config);
        cluster.stop_prometheus();
        cluster.start_prometheus();
        cluster.wait_prometheus().await;
        let url = format!(
            "http://127.0.0.1:{}/api/v1/query?query=kube_deployment_spec_replicas",
            cluster.prometheus_port
        );
        eventually("kube-state-metrics was scraped", Duration::from_secs(60), async || {
            let text = async { reqwest::get(&url).await?.text().await }.await;
            let text = text.map_err(|error| format!("{error}\n{}", process.tail()))?;
            if text.contains("kube-state-metrics") { Ok(()) } else { Err(text) }
        })
        .await;
        Self { _process: process }
    }
}
