//! Tests of the bed itself.

use crate::faults::hits;
use crate::runtime;
use bed::cluster::Cluster;
use bed::plimsoll::{self, Plimsoll};
use bed::proxy::Proxy;
use bed::{Options, eventually, free_port, ports};
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
fn free_ports_are_unique_and_not_ephemeral() {
    let usable = ports::usable(&ports::ephemeral());
    let asked: Vec<_> = (0..4)
        .map(|_| std::thread::spawn(|| (0..50).map(|_| free_port()).collect::<Vec<_>>()))
        .collect();
    let ports: Vec<u16> =
        asked.into_iter().flat_map(|asked| asked.join().expect("ports")).collect();
    assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), ports.len());
    for port in ports {
        assert!(usable.contains(&port), "{port} is not in {usable:?}");
    }
}

#[test]
fn there_are_free_ports_where_all_are_ephemeral() {
    assert_eq!(ports::usable(&(32_768..61_000)), 10_240..32_768);
    for all in [1024..65_535, 10_240..65_535, 11_000..65_535] {
        assert_eq!(ports::usable(&all), 10_240..65_535, "{all:?}");
    }
}

#[test]
#[should_panic(expected = "it answers: the check does not return; before: the first")]
fn a_check_that_does_not_return_has_a_deadline() {
    let mut first = true;
    runtime().block_on(eventually("it answers", Duration::from_millis(100), async || {
        if std::mem::take(&mut first) {
            return Err("the first".to_owned());
        }
        std::future::pending::<Result<(), String>>().await
    }));
}
