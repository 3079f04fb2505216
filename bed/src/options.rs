//! The options of a bed.

use std::net::Ipv4Addr;

/// The addresses of a cluster with a real node.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// Of the node.
    pub address: Ipv4Addr,
    /// Of the Services, a range of 256 whose first is kube-apiserver's.
    pub services: Ipv4Addr,
}

impl Node {
    /// The address of a second node.
    pub fn second(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.address.to_bits() + 1)
    }

    /// The address of a Service by its last byte.
    pub fn service(&self, last: u8) -> Ipv4Addr {
        let [a, b, c, _] = self.services.octets();
        Ipv4Addr::new(a, b, c, last)
    }
}

/// Options of a [`Bed`](crate::Bed).
#[derive(Clone, Debug)]
pub struct Options {
    /// Flags of decisions, which kube-controller-manager and Plimsoll both take.
    pub decisions: Vec<String>,
    /// More flags of Plimsoll.
    pub flags: Vec<String>,
    /// More environment variables of Plimsoll, as NAME=VALUE.
    pub environment: Vec<String>,
    /// Whether each replica of Plimsoll writes the log of its decisions.
    pub decision_log: bool,
    /// Whether Plimsoll reaches Prometheus and kube-apiserver through proxies that inject faults.
    pub faults: bool,
    /// Whether everything outlives this process.
    pub keep: bool,
    /// Whether kube-controller-manager runs its HPA controller.
    pub hpa_controller: bool,
    /// The kustomization that Plimsoll is installed from.
    pub manifests: &'static str,
    /// The address of a real node, which kube-apiserver is to be reached by.
    pub node: Option<Node>,
    /// The part with kube-apiserver, kube-controller-manager and kube-scheduler: `cluster`, or
    /// `kubernetes-oldest`.
    pub kubernetes: &'static str,
    /// More flags of kube-apiserver.
    pub apiserver: Vec<String>,
    /// More of Plimsoll's configuration file.
    pub config: &'static str,
    /// Called with each step of the start.
    pub progress: fn(&str),
}

impl Default for Options {
    fn default() -> Self {
        Self {
            decisions: vec![
                "--horizontal-pod-autoscaler-sync-period=2s".to_owned(),
                "--horizontal-pod-autoscaler-downscale-stabilization=10s".to_owned(),
            ],
            flags: vec!["--status-interval=1s".to_owned()],
            environment: Vec::new(),
            decision_log: false,
            faults: false,
            keep: false,
            hpa_controller: true,
            // The default manifests, and the permissions of the executor that some tests need.
            manifests: "deploy/overlays/native-hpa-executor",
            node: None,
            kubernetes: "cluster",
            apiserver: Vec::new(),
            config: "",
            progress: |_| {},
        }
    }
}
