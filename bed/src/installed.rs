//! A cluster with Plimsoll installed in it.

use crate::cluster::Cluster;
use crate::options::Options;
use crate::plimsoll::{Plimsoll, install};
use crate::proxy::Proxy;
use crate::wait::eventually;
use std::time::Duration;

/// A running cluster with Plimsoll in it.
pub struct Bed {
    /// The cluster.
    pub cluster: Cluster,
    /// Plimsoll, installed in it.
    pub plimsoll: Plimsoll,
    /// The proxies, with [`Options::faults`].
    pub faults: Option<Faults>,
}

/// The proxies that inject faults.
pub struct Faults {
    /// Between Plimsoll and Prometheus.
    pub prometheus: Proxy,
    /// Between Plimsoll and kube-apiserver.
    pub api: Proxy,
}

impl Bed {
    /// Starts everything and waits until it is ready.
    pub async fn start(options: Options) -> Self {
        let cluster = Cluster::start(&options).await;
        (options.progress)(&format!(
            "installing Plimsoll with kubectl apply -k {}",
            options.manifests
        ));
        install(&cluster, options.manifests).await;
        let faults = match options.faults {
            true => Some(Faults {
                prometheus: Proxy::start(cluster.prometheus_port).await,
                api: Proxy::to_https(cluster.api_port(), cluster.ca()).await,
            }),
            false => None,
        };
        let [server, prometheus] = match &faults {
            Some(Faults { prometheus, api }) => {
                [api, prometheus].map(|proxy| format!("http://127.0.0.1:{}", proxy.port))
            }
            None => [
                format!("https://127.0.0.1:{}", cluster.api_port()),
                format!("http://127.0.0.1:{}", cluster.prometheus_port),
            ],
        };
        let plimsoll = Plimsoll::start(&cluster, &server, &prometheus, &options).await;
        let bed = Self { cluster, plimsoll, faults };
        (options.progress)("waiting for the aggregated API");
        eventually("the APIServices are available", Duration::from_secs(60), async || {
            let out = bed.cluster.try_kubectl(&[
                "get",
                "apiservices",
                "v1beta1.custom.metrics.k8s.io",
                "v1beta2.custom.metrics.k8s.io",
                "-o",
                r#"jsonpath={.items[*].status.conditions[?(@.type=="Available")].status}"#,
            ]);
            match out.await {
                Ok(text) if text == "True True" => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        bed
    }
}
