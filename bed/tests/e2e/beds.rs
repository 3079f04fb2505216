//! Tests of the bed itself.

use crate::faults::hits;
use crate::runtime;
use bed::cluster::Cluster;
use bed::plimsoll::{self, Plimsoll};
use bed::proxy::Proxy;
use bed::{Options, free_port, ports};
use std::collections::BTreeSet;
use std::time::Duration;

#[test]
fn a_bed_waits_until_the_ca_bundle_verifies_plimsoll() {
    runtime().block_on(async {
        let cluster = Cluster::control_plane(&Options::default()).await;
        plimsoll::install(&cluster, "deploy").await;
        // The caBundle has another CA, and Plimsoll cannot write its own for a while.
        let other =
            rcgen::generate_simple_self_signed(["other".to_owned()]).expect("a certificate");
        let other = k8s_openapi::ByteString(other.cert.pem().into_bytes());
        for name in ["v1beta1.custom.metrics.k8s.io", "v1beta2.custom.metrics.k8s.io"] {
            let patch =
                serde_json::json!({"spec": {"caBundle": &other, "insecureSkipTLSVerify": null}});
            let patch = ["patch", "apiservice", name, "--type=merge", "-p", &patch.to_string()];
            cluster.kubectl(&patch).await;
        }
        let api = Proxy::to_https(cluster.api_port(), cluster.ca()).await;
        api.stall("PATCH /apis/apiregistration.k8s.io");
        let options = Options::default();
        let server = format!("http://127.0.0.1:{}", api.port);
        let start = Plimsoll::start(&cluster, &server, "http://127.0.0.1:1", &options);
        tokio::pin!(start);
        let stalled = async {
            hits(&api, 1, "it writes its CA").await;
            // Long enough for a bed that does not wait to become ready.
            tokio::time::sleep(Duration::from_secs(4)).await;
        };
        tokio::select! {
            plimsoll = &mut start => {
                let (code, _) = plimsoll.get("/livez", &[]).await;
                panic!("ready before its CA was written: {code}");
            }
            () = stalled => {}
        }
        api.clear();
        assert_eq!(start.await.get("/livez", &[]).await.0, 200);
    });
}

#[test]
fn free_ports_are_unique_and_never_ephemeral() {
    let ephemeral = ports::ephemeral();
    let asked: Vec<_> = (0..4)
        .map(|_| std::thread::spawn(|| (0..50).map(|_| free_port()).collect::<Vec<_>>()))
        .collect();
    let ports: Vec<u16> =
        asked.into_iter().flat_map(|asked| asked.join().expect("ports")).collect();
    assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), ports.len());
    for port in ports {
        assert!(!ephemeral.contains(&port), "{port} is in {ephemeral:?}");
    }
}
