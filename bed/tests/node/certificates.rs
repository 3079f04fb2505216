//! What Plimsoll proves who it is with: a serving certificate in a Secret, and the token of its
//! service account.

use crate::install::{replicas, works};
use crate::installation::{By, Installation, apply_folder, prepare, upgrade};
use crate::load::{Load, REQUESTS, of_api};
use crate::node::{Node, PODS};
use crate::processes;
use crate::scaling::pods;
use bed::eventually;
use bed::pki::{AcceptAny, Authority, Signed};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;

/// The certificate that a pod of Plimsoll serves with.
async fn served(node: &Node, pod: &str) -> Result<Vec<u8>, String> {
    let address = node.field(&["-n", "plimsoll", "pod", pod], "{.status.podIP}").await?;
    let config = ClientConfig::builder()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAny))
        .with_no_client_auth();
    let connected = async {
        let stream = TcpStream::connect((address.as_str(), 6443)).await?;
        let name = "plimsoll".try_into().expect("a name");
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    };
    let stream = connected.await.map_err(|error| format!("{address}: {error}"))?;
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    certificates.first().map(|first| first.to_vec()).ok_or("no certificate".to_owned())
}

/// Writes a certificate into the Secret.
async fn write_secret(node: &Node, signed: &Signed) {
    let [certificate, key] = [&signed.certificate, &signed.key].map(|path| path.display());
    let [certificate, key] = [format!("--cert={certificate}"), format!("--key={key}")];
    let words = ["-n=plimsoll", "create", "secret", "tls", "serving", &certificate, &key];
    let words = [&words[..], &["--dry-run=client", "-o=json"]].concat();
    let object = node.cluster.kubectl(&words).await;
    node.cluster.apply(&object).await;
}

pub fn secret(node: &Node) {
    node.run(async {
        Installation::chart(node).await;
        apply_folder(node, "shop").await;
        eventually("the metric is served", PODS, async || node.cluster.raw(REQUESTS).await).await;
        let mut authority = Authority::new(&node.cluster.folder, "serving-ca");
        authority.names = vec!["plimsoll.plimsoll.svc".to_owned()];
        write_secret(node, &authority.sign("plimsoll", &[])).await;
        let ca = format!("--set-file=tls.caBundle={}", authority.certificate.display());
        upgrade(node, &["--set=tls.secret=serving", &ca]).await;
        Installation::changed(Some(By::Helm)).await;
        works(node).await;
        let before = replicas(node).await.expect("pods");
        let first = served(node, &before[0].name).await.expect("a certificate");
        let load = of_api(node, 20);
        write_secret(node, &authority.sign("plimsoll", &[])).await;
        let started = Instant::now();
        for pod in &before {
            eventually("the new certificate is served", PODS, async || {
                let now = served(node, &pod.name).await?;
                if now == first { Err("it is that of before".to_owned()) } else { Ok(()) }
            })
            .await;
        }
        println!("served by both after {:.1} s", started.elapsed().as_secs_f64());
        works(node).await;
        assert_eq!(replicas(node).await.expect("pods"), before);
        load.stop().await.all_succeeded();
    });
}

/// What a token may ask for at least, in seconds. kubelet renews one after 80 % of its life.
const TOKEN: u32 = 600;

pub fn token(node: &Node) {
    node.run(async {
        prepare(node).await;
        // As a service account's token is projected by itself, but for its life of an hour.
        let sources = format!(
            r#"[{{"serviceAccountToken":{{"path":"token","expirationSeconds":{TOKEN}}}}},
                {{"configMap":{{"name":"kube-root-ca.crt","items":[{{"key":"ca.crt","path":"ca.crt"}}]}}}},
                {{"downwardAPI":{{"items":[{{"path":"namespace","fieldRef":{{"fieldPath":"metadata.namespace"}}}}]}}}}]"#
        );
        let patch = format!(
            r#"{{"spec":{{"template":{{"spec":{{"automountServiceAccountToken":false,
                "volumes":[{{"name":"token","projected":{{"sources":{sources}}}}}],
                "containers":[{{"name":"plimsoll","volumeMounts":[{{"name":"token","readOnly":true,
                    "mountPath":"/var/run/secrets/kubernetes.io/serviceaccount"}}]}}]}}}}}}}}"#
        );
        node.cluster.kubectl(&["-n=plimsoll", "patch", "deployment", "plimsoll", "-p", &patch]).await;
        node.rolled_out("plimsoll", "deployment/plimsoll").await;
        Installation::changed(Some(By::Kustomize)).await;
        let started = Instant::now();
        let mut before = Vec::new();
        eventually("the pods of before are gone", PODS, async || {
            before = replicas(node).await?;
            if before.len() == 2 { Ok(()) } else { Err(format!("{before:?}")) }
        })
        .await;
        let token = |pod: &str| {
            let process = processes::of_plimsoll(pod).ok_or("no process")?;
            let path = "root/var/run/secrets/kubernetes.io/serviceaccount/token";
            std::fs::read_to_string(format!("/proc/{process}/{path}")).map_err(|e| e.to_string())
        };
        let first: Vec<_> = before.iter().map(|pod| token(&pod.name).expect("a token")).collect();
        for (pod, first) in before.iter().zip(&first) {
            eventually("kubelet renews the token", Duration::from_secs(900), async || {
                let renewed = token(&pod.name)? != *first;
                if renewed { Ok(()) } else { Err("it is that of before".to_owned()) }
            })
            .await;
            println!("renewed after {:.1} s", started.elapsed().as_secs_f64());
        }
        // kube-apiserver takes one a little longer than it lives.
        let expired = Duration::from_secs(u64::from(TOKEN) + 60);
        tokio::time::sleep(expired.saturating_sub(started.elapsed())).await;
        let load = Load::of_url(17, node.url("shop", "web").await);
        pods(node, 2).await;
        load.stop().await;
        pods(node, 1).await;
        works(node).await;
        assert_eq!(replicas(node).await.expect("pods"), before);
    });
}
