//! The story on a bed: pods are servers on loopback, and Plimsoll is a process.

use bed::Bed;
use bed::cluster::Cluster;
use bed::story::Stage;
use bed::workload::Namespace;
use serde_json::Value;

/// The bed that the story happens on.
pub struct Loopback<'a>(pub &'a Bed);

impl Stage for Loopback<'_> {
    fn cluster(&self) -> &Cluster {
        &self.0.cluster
    }

    async fn deployment(&self, namespace: &Namespace<'_>, name: &str, replicas: i32) {
        namespace.deployment(name, replicas, "").await;
    }

    async fn load(&self, name: &str, metric: &str, qps: u32) {
        let selector = format!("app={name}");
        self.cluster().load("shop", &selector, &format!("/hit/{metric}"), f64::from(qps)).await;
    }

    async fn query(&self, query: &str) -> Option<Value> {
        let url = format!("http://127.0.0.1:{}/api/v1/query", self.cluster().prometheus_port);
        let url = reqwest::Url::parse_with_params(&url, [("query", query)]).ok()?;
        serde_json::from_slice(&reqwest::get(url).await.ok()?.bytes().await.ok()?).ok()
    }

    async fn processes(&self) -> String {
        self.0.plimsoll.process.id().to_string()
    }
}
