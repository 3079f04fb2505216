//! Thanos in front of a bed's Prometheus: a sidecar, and the querier that users ask.

use crate::cluster::Cluster;
use crate::process::Process;
use crate::{eventually, free_port};
use std::time::Duration;

/// A running Thanos.
pub struct Thanos {
    pub port: u16,
    sidecar: Process,
    _querier: Process,
}

impl Thanos {
    /// Starts it and waits until it answers with what Prometheus has.
    pub async fn start(cluster: &Cluster) -> Self {
        let program = crate::parts(&["thanos"]).join("thanos");
        let (parts, folder) = (&cluster.parts, &cluster.folder);
        let start = |name: &str, arguments: &[String]| {
            Process::start(parts, folder, cluster.keep, name, &program, arguments)
        };
        let [store, store_http, query, port] = std::array::from_fn(|_| free_port());
        let sidecar = start(
            "thanos-sidecar",
            &[
                "sidecar".to_owned(),
                format!("--prometheus.url=http://127.0.0.1:{}", cluster.prometheus_port),
                format!("--tsdb.path={}", folder.join("prometheus").display()),
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
        eventually("Thanos answers", Duration::from_secs(180), async || {
            let url = format!("http://127.0.0.1:{port}/api/v1/query?query=up");
            let text = async { reqwest::get(&url).await?.text().await }.await;
            let text = text.map_err(|error| format!("{error}\n{}", querier.tail()))?;
            if text.contains("\"cluster\":\"bed\"") { Ok(()) } else { Err(text) }
        })
        .await;
        Self { port, sidecar, _querier: querier }
    }

    /// Stops the only store that the querier has.
    pub fn stop_store(&mut self) {
        self.sidecar.stop();
    }
}
