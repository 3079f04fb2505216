//! KEDA's operator and metrics server, tuned.

use crate::world::World;
use bed::process::Process;
use bed::{free_port, parts};
use std::path::{Path, PathBuf};

/// The folder of KEDA's sources, of which it is built.
pub async fn sources() -> PathBuf {
    tokio::task::spawn_blocking(bed::keda_sources).await.expect("KEDA's sources")
}

/// Starts both. Returns them, and the port of the metrics server.
///
/// Of what KEDA's documentation has for large clusters (Operate, Cluster): the clients of
/// kube-apiserver are not throttled (`--kube-api-qps`, `--kube-api-burst`), and as many ScaledObjects
/// are reconciled at once as kube-controller-manager decides for (`KEDA_SCALEDOBJECT_CTRL_MAX_RECONCILES`,
/// 5 by default). `useCachedMetrics` of the triggers halves the queries: the operator sends one every
/// `pollingInterval`, 30 s by default, and answers kube-controller-manager, which asks every 15 s, with
/// the last value, which is up to 30 s old. Without it each of these answers is a query, and the polls of what
/// keeps a replica are none. Only errors are logged.
pub async fn start(world: &World) -> (Vec<(&'static str, Process)>, u16) {
    let folder = world.cluster.folder.join("keda");
    certificates(world, &folder);
    let [health, metrics, grpc, port, adapter_metrics] = std::array::from_fn(|_| free_port());
    let kubeconfig = world.cluster.kubeconfig.display();
    let files = folder.display();
    let rates = ["--kube-api-qps=5000", "--kube-api-burst=10000"].map(str::to_owned);
    let binaries = tokio::task::spawn_blocking(|| parts(&["keda", "keda-adapter"]));
    let binaries = binaries.await.expect("KEDA");
    let run = |name: &str, program: &str, mut flags: Vec<String>| {
        flags.extend(rates.iter().cloned());
        // What its Deployment sets; the namespace is that of the pod.
        let mut line = [
            "KEDA_CLUSTER_OBJECT_NAMESPACE=kube-system",
            "POD_NAMESPACE=kube-system",
            "WATCH_NAMESPACE=",
            "OPERATOR_NAME=keda-operator",
            "KEDA_HTTP_DEFAULT_TIMEOUT=3000",
            "KEDA_SCALEDOBJECT_CTRL_MAX_RECONCILES=50",
        ]
        .map(str::to_owned)
        .to_vec();
        line.push(format!("KUBECONFIG={kubeconfig}"));
        line.push(binaries.join(program).display().to_string());
        line.append(&mut flags);
        world.cluster.run(name, Path::new("/usr/bin/env"), &line)
    };
    let operator = run(
        "keda-operator",
        "keda",
        vec![
            format!("--metrics-bind-address=127.0.0.1:{metrics}"),
            format!("--health-probe-bind-address=127.0.0.1:{health}"),
            format!("--metrics-service-bind-address=127.0.0.1:{grpc}"),
            format!("--cert-dir={files}"),
            "--enable-webhook-patching=false".to_owned(),
            "--zap-log-level=error".to_owned(),
        ],
    );
    let adapter = run(
        "keda-metrics-server",
        "keda-adapter",
        vec![
            format!("--secure-port={port}"),
            format!("--port={adapter_metrics}"),
            format!("--metrics-service-address=localhost:{grpc}"),
            format!("--cert-dir={files}"),
            format!("--tls-cert-file={files}/tls.crt"),
            format!("--tls-private-key-file={files}/tls.key"),
            format!("--kubeconfig={kubeconfig}"),
            format!("--lister-kubeconfig={kubeconfig}"),
            format!("--authentication-kubeconfig={kubeconfig}"),
            format!("--authorization-kubeconfig={kubeconfig}"),
        ],
    );
    (vec![("keda-operator", operator), ("keda-metrics-server", adapter)], port)
}

/// The certificates that both use between them, by the names that they read.
fn certificates(world: &World, folder: &Path) {
    std::fs::create_dir_all(folder).expect("a folder");
    let signed = world.cluster.sign("keda", &[]);
    for (from, name) in
        [(world.cluster.ca(), "ca.crt"), (&signed.certificate, "tls.crt"), (&signed.key, "tls.key")]
    {
        std::fs::copy(from, folder.join(name)).expect("a file");
    }
}
