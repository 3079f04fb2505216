//! Thanos in front of the cluster's Prometheus: a sidecar and a querier.

use crate::cluster::Cluster;
use crate::parts::parts;
use crate::ports::free_port;
use crate::process::Process;
use crate::wait::eventually;
use std::time::Duration;

/// A running Thanos.
pub struct Thanos {
    /// The port of the querier.
    pub port: u16,
    sidecar: Process,
    _querier: Process,
}

impl Thanos {
    /// Starts Thanos and waits until the querier returns series of Prometheus.
    pub async fn start(cluster: &Cluster) -> Self {
        let program = parts(&["thanos"]).join("thanos");
        let start = |name: &str, arguments: &[String]| cluster.run(name, &program, arguments);
        let [store, store_http, query, port] = std::array::from_fn(|_| free_port());
        let sidecar = start(
            "thanos-sidecar",
            &[
                "sidecar".to_owned(),
                format!("--prometheus.url=http://127.0.0.1:{}", cluster.prometheus_port),
                format!("--tsdb.path={}", cluster.folder.join("prometheus").display()),
                format!("--grpc-address=127.0.0.1:{store}"),
                format!("--http-address=127.0.0.1:{store_http}"),
            ],
        );
        let querier = start(
            "thanos-query",
            &[
                "query".to_owned(),
                format!("--endpoint=127.0.0.1:{store}"),
                format!("--grpc-address=127.0.0.1:{query}"),
                format!("--http-address=127.0.0.1:{port}"),
            ],
        );
        eventually("Thanos responds", Duration::from_secs(180), async || {
            let url = format!("http://127.0.0.1:{port}/api/v1/query?query=up");
            let text = async { reqwest::get(&url).await?.text().await }.await;
            let text = text.map_err(|error| format!("{error}\n{}", querier.tail()))?;
            if text.contains("\"cluster\":\"bed\"") { Ok(()) } else { Err(text) }
        })
        .await;
        Self { port, sidecar, _querier: querier }
    }

    /// Stops the only store of the querier.
    pub fn stop_store(&mut self) {
        self.sidecar.stop();
    }
}
