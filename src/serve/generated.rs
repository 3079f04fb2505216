//! Metrics by the generated names of autoscalers.

use super::server::Server;
use crate::k8s::Selector;
use crate::promql::name::GeneratedName;
use crate::promql::query::{Per, PrometheusMetric};
use std::sync::Arc;
use std::time::Duration;

/// How long a request waits for a metric with a well-formed generated name that no known
/// autoscaler uses: the watch may not have sent the autoscaler yet.
const NEW_AUTOSCALER_WAIT: Duration = Duration::from_millis(500);

/// The metric of a generated name, the same as long as its autoscaler is; none if no autoscaler of the namespace uses it, or if the request's
/// labels are not those of the name.
pub async fn published(
    server: &Server,
    namespace: &str,
    name: &str,
    per: Per,
    labels: &Selector,
) -> Option<Arc<PrometheusMetric>> {
    if namespace.is_empty() {
        return None;
    }
    let lookup = || server.cluster.read(|index| index.published(namespace, name, per).cloned());
    let mut found = lookup();
    if found.is_none() && is_well_formed(namespace, name, labels) {
        let wait = async {
            let mut changes = server.cluster.watch_published();
            found = lookup();
            while found.is_none() && changes.changed().await.is_ok() {
                found = lookup();
            }
        };
        let _ = tokio::time::timeout(NEW_AUTOSCALER_WAIT, wait).await;
    }
    found.filter(|metric| {
        labels.is_empty() || labels.as_equalities().as_ref() == Some(&metric.labels)
    })
}

/// Whether a name is a generated one, of this namespace and with the hash of the request's
/// labels.
fn is_well_formed(namespace: &str, name: &str, labels: &Selector) -> bool {
    GeneratedName::parse(name).is_some_and(|name| {
        name.namespace == namespace && name.is_of(labels.as_equalities().as_ref())
    })
}
