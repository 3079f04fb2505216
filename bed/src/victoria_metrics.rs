//! VictoriaMetrics beside the cluster's Prometheus: it scrapes the same pods.

use crate::cluster::Cluster;
use crate::parts::parts;
use crate::ports::free_port;
use crate::process::Process;
use crate::wait::eventually;
use std::time::Duration;

/// A running single-node VictoriaMetrics.
pub struct VictoriaMetrics {
    /// Its port.
    pub port: u16,
    _process: Process,
}

impl VictoriaMetrics {
    /// Starts it with the configuration of Prometheus and waits until a query has a result.
    pub async fn start(cluster: &Cluster, query: &str) -> Self {
        let folder = tokio::task::spawn_blocking(|| parts(&["victoria-metrics"])).await;
        let program = folder.expect("the parts").join("victoria-metrics");
        let port = free_port();
        let folder = &cluster.folder;
        let flags = [
            format!("-httpListenAddr=127.0.0.1:{port}"),
            format!("-storageDataPath={}", folder.join("victoria-metrics").display()),
            format!("-promscrape.config={}", folder.join("prometheus.yml").display()),
            // Results must be as recent as those of Prometheus.
            "-search.latencyOffset=0s".to_owned(),
            "-search.disableCache".to_owned(),
            "-loggerLevel=WARN".to_owned(),
        ];
        let process = cluster.run("victoria-metrics", &program, &flags);
        eventually("VictoriaMetrics responds", Duration::from_secs(90), async || {
            let url = format!("http://127.0.0.1:{port}/api/v1/query");
            let url = reqwest::Url::parse_with_params(&url, [("query", query)]).expect("a URL");
            let text = async { reqwest::get(url).await?.text().await }.await;
            let text = text.map_err(|error| format!("{error}\n{}", process.tail()))?;
            if text.contains("\"value\"") { Ok(()) } else { Err(text) }
        })
        .await;
        Self { port, _process: process }
    }
}
