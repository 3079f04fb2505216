//! What Plimsoll proves who it is with: a serving certificate in a Secret, and the token of its
//! service account.

use crate::install::{replicas, works};
use crate::installation::{By, Installation, apply_folder, prepare, upgrade};
use crate::load::{Load, REQUESTS, of_api};
use crate::node::{Node, PODS};
use crate::processes;
use crate::scaling::pods;
use bed::eventually;
use bed::pki::{Authority, Signed};
use k8s_openapi::ByteString;
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// The name by which kube-apiserver verifies the certificate.
const NAME: &str = "plimsoll.plimsoll.svc";

/// The certificate of a file.
fn read(path: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(path).expect("a certificate")
}

/// The certificate that a pod of Plimsoll serves with, verified as kube-apiserver does it.
async fn served(
    node: &Node,
    pod: &str,
    authority: &Authority,
) -> Result<CertificateDer<'static>, String> {
    let address = node.field(&["-n", "plimsoll", "pod", pod], "{.status.podIP}").await?;
    let mut roots = RootCertStore::empty();
    roots.add(read(&authority.certificate)).expect("a CA");
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let connected = async {
        let stream = TcpStream::connect((address.as_str(), 6443)).await?;
        let name = NAME.try_into().expect("a name");
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    };
    let stream = connected.await.map_err(|error| format!("{address}: {error}"))?;
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let first = certificates.first().ok_or("no certificate")?;
    Ok(first.clone().into_owned())
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
        authority.names = vec![NAME.to_owned()];
        let first = authority.sign("plimsoll", &[]);
        write_secret(node, &first).await;
        let ca = format!("--set-file=tls.caBundle={}", authority.certificate.display());
        upgrade(node, &["--set=tls.secret=serving", &ca]).await;
        Installation::changed(Some(By::Helm)).await;
        works(node).await;
        let before = replicas(node).await.expect("pods");
        let now = served(node, &before[0].name, &authority).await.expect("a certificate");
        assert_eq!(now, read(&first.certificate));
        let load = of_api(node, 20);
        let second = authority.sign("plimsoll", &[]);
        write_secret(node, &second).await;
        let started = Instant::now();
        for pod in &before {
            eventually("the new certificate is served", PODS, async || {
                let now = served(node, &pod.name, &authority).await?;
                let is_new = now == read(&second.certificate);
                if is_new { Ok(()) } else { Err("it is another one".to_owned()) }
            })
            .await;
        }
        println!("served by both after {:.1} s", started.elapsed().as_secs_f64());
        // With another `caBundle` kube-apiserver uses none of its connections of before.
        let other = Authority::new(&node.cluster.folder, "other-ca");
        let bundle: Vec<u8> = [&authority, &other]
            .iter()
            .flat_map(|one| std::fs::read(&one.certificate).expect("a file"))
            .collect();
        let patch = json!({"spec": {"caBundle": ByteString(bundle)}});
        let path = "/apis/apiregistration.k8s.io/v1/apiservices/v1beta2.custom.metrics.k8s.io";
        node.cluster.patch(path, &patch).await.expect("it can be changed");
        eventually("the metric is served", PODS, async || node.cluster.raw(REQUESTS).await).await;
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
