//! The flags and configuration of the control plane's components and of Prometheus.

use crate::options::{Node, Options};
use crate::pki::{Authority, token_keys};
use crate::ports::free_port;
use std::path::Path;

/// The controllers that kube-controller-manager runs without a real node, beside that of HPAs.
const CONTROLLERS: [&str; 8] = [
    "deployment-controller",
    "replicaset-controller",
    "statefulset-controller",
    "namespace-controller",
    "garbage-collector-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "clusterrole-aggregation-controller",
];

/// Prometheus scrapes every running pod every second.
pub fn prometheus_config(kubeconfig: &str) -> String {
    format!(
        r#"global: {{scrape_interval: 1s, scrape_timeout: 900ms, external_labels: {{cluster: bed}}}}
scrape_configs:
  - job_name: pods
    kubernetes_sd_configs:
      - role: pod
        kubeconfig_file: {kubeconfig}
    relabel_configs:
      - {{source_labels: [__meta_kubernetes_pod_phase], regex: Running, action: keep}}
      - {{source_labels: [__meta_kubernetes_pod_ip], regex: (.+), target_label: __address__, replacement: "$1:8080"}}
      - {{source_labels: [__meta_kubernetes_namespace], target_label: namespace}}
      - {{source_labels: [__meta_kubernetes_pod_name], target_label: pod}}
"#
    )
}

/// The command line of kube-apiserver.
pub fn apiserver_flags(
    folder: &Path,
    authority: &Authority,
    front_authority: &Authority,
    etcd_port: u16,
    api_port: u16,
    node: Option<Node>,
) -> Vec<String> {
    let serving = authority.sign("kube-apiserver", &[]);
    let front = front_authority.sign("front-proxy-client", &[]);
    let (public, private) = token_keys(folder);
    let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
    let mut flags = vec![
        "kube-apiserver".to_owned(),
        format!("--etcd-servers=http://127.0.0.1:{etcd_port}"),
        format!("--secure-port={api_port}"),
        flag("cert-dir", &folder.join("kube-apiserver")),
        flag("tls-cert-file", &serving.certificate),
        flag("tls-private-key-file", &serving.key),
        flag("client-ca-file", &authority.certificate),
        flag("requestheader-client-ca-file", &front_authority.certificate),
        "--requestheader-allowed-names=front-proxy-client".to_owned(),
        "--requestheader-username-headers=X-Remote-User".to_owned(),
        "--requestheader-group-headers=X-Remote-Group".to_owned(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
        flag("proxy-client-cert-file", &front.certificate),
        flag("proxy-client-key-file", &front.key),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        flag("service-account-key-file", &public),
        flag("service-account-signing-key-file", &private),
        "--enable-aggregator-routing=false".to_owned(),
    ];
    match node {
        None => flags.extend(
            [
                "--bind-address=127.0.0.1",
                "--advertise-address=127.0.0.1",
                "--endpoint-reconciler-type=none",
                "--service-cluster-ip-range=10.0.0.0/16",
                "--authorization-mode=RBAC",
            ]
            .map(str::to_owned),
        ),
        Some(node) => {
            let kubelet = authority.sign("kube-apiserver-kubelet-client", &["system:masters"]);
            flags.extend([
                format!("--advertise-address={}", node.address),
                format!("--service-cluster-ip-range={}/24", node.services),
                "--authorization-mode=Node,RBAC".to_owned(),
                "--enable-admission-plugins=NodeRestriction".to_owned(),
                "--kubelet-preferred-address-types=InternalIP".to_owned(),
                flag("kubelet-certificate-authority", &authority.certificate),
                flag("kubelet-client-certificate", &kubelet.certificate),
                flag("kubelet-client-key", &kubelet.key),
            ]);
        }
    }
    flags
}

/// The command line of kube-controller-manager.
pub fn controller_manager_flags(
    folder: &Path,
    kubeconfig: &Path,
    ca: &Path,
    options: &Options,
) -> Vec<String> {
    let mut controllers = match options.node {
        None => CONTROLLERS.to_vec(),
        Some(_) => vec!["*"],
    };
    if options.hpa_controller {
        controllers.push("horizontal-pod-autoscaler-controller");
    }
    let mut flags = vec![
        "kube-controller-manager".to_owned(),
        format!("--service-account-private-key-file={}", folder.join("sa.key").display()),
        format!("--root-ca-file={}", ca.display()),
        "--use-service-account-credentials=true".to_owned(),
        format!("--controllers={}", controllers.join(",")),
    ];
    flags.extend(client_flags(folder, "kube-controller-manager", kubeconfig));
    flags.extend_from_slice(&options.decisions);
    flags
}

/// The command line of kube-scheduler.
pub fn scheduler_flags(folder: &Path, kubeconfig: &Path) -> Vec<String> {
    let mut flags = vec!["kube-scheduler".to_owned()];
    flags.extend(client_flags(folder, "kube-scheduler", kubeconfig));
    flags
}

/// The flags that kube-controller-manager and kube-scheduler share.
fn client_flags(folder: &Path, name: &str, kubeconfig: &Path) -> [String; 9] {
    let kubeconfig = kubeconfig.display();
    [
        format!("--kubeconfig={kubeconfig}"),
        format!("--authentication-kubeconfig={kubeconfig}"),
        format!("--authorization-kubeconfig={kubeconfig}"),
        "--leader-elect=false".to_owned(),
        format!("--secure-port={}", free_port()),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--cert-dir={}", folder.join(name).display()),
        // The defaults (20 and 30) would delay the pods that tests wait for.
        "--kube-api-qps=500".to_owned(),
        "--kube-api-burst=1000".to_owned(),
    ]
}

/// The flags of Prometheus.
pub fn prometheus_flags(folder: &Path, port: u16) -> [String; 4] {
    [
        format!("--config.file={}", folder.join("prometheus.yml").display()),
        format!("--storage.tsdb.path={}", folder.join("prometheus").display()),
        format!("--web.listen-address=127.0.0.1:{port}"),
        "--log.level=warn".to_owned(),
    ]
}
