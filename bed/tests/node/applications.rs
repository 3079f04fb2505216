//! Applications in pods of the node.

use crate::node::Node;

/// Creates a workload of a kind of `apps/v1` and its Service in a namespace, and waits until it is
/// ready. Prometheus scrapes its pods.
pub async fn application(node: &Node, namespace: &str, kind: &str, name: &str, replicas: i32) {
    let fields = match kind {
        "StatefulSet" => format!("  serviceName: {name}\n  podManagementPolicy: Parallel\n"),
        _ => String::new(),
    };
    node.cluster
        .apply(&format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}}}\n\
             ---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             spec: {{selector: {{app: {name}}}, ports: [{{port: 80, targetPort: 8080}}]}}\n\
             ---\napiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             spec:\n  replicas: {replicas}\n{fields}\
             \x20 selector: {{matchLabels: {{app: {name}}}}}\n\
             \x20 template:\n    metadata:\n      labels: {{app: {name}}}\n\
             \x20     annotations: {{prometheus.io/scrape: \"true\"}}\n\
             \x20   spec:\n      terminationGracePeriodSeconds: 1\n      containers:\n\
             \x20       - name: app\n          image: localhost/app:1\n\
             \x20         ports: [{{containerPort: 8080}}]\n\
             \x20         resources: {{requests: {{cpu: 100m, memory: 16Mi}}}}\n\
             \x20         readinessProbe: {{httpGet: {{path: /healthz, port: 8080}}, periodSeconds: 1}}\n"
        ))
        .await;
    node.rolled_out(namespace, &format!("{}/{name}", kind.to_lowercase())).await;
}

/// Removes a namespace, and does not wait for it.
pub async fn remove_namespace(node: &Node, name: &str) {
    node.cluster.kubectl(&["delete", "namespace", name, "--wait=false"]).await;
}
