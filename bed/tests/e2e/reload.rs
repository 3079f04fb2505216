//! What takes effect without a restart: the configuration, certificates, and new kinds.

use crate::SOON;
use crate::fixture::{API, SUM, ask, ask_verbose, ours, rule, served, wait_ready, with_fixture};
use bed::adapter::{Adapter, Program};
use bed::eventually;
use std::time::{Duration, Instant};

#[test]
fn a_changed_configuration_is_reloaded() {
    with_fixture(async |fixture| {
        // As in a ConfigMap volume: a file behind a link to a directory that is swapped.
        let folder = fixture.cluster.folder.join("config-volume");
        let version = |name: &str, config: &str| {
            let of = folder.join(name);
            std::fs::create_dir_all(&of).expect("a folder");
            std::fs::write(of.join("config.yaml"), config).expect("a file");
            let (link, new) = (folder.join("..data"), folder.join("..new"));
            std::os::unix::fs::symlink(&of, &new).expect("a link");
            std::fs::rename(&new, &link).expect("the link is swapped");
        };
        version("1", &format!("rules:\n{}", rule("queue_depth")));
        let file = fixture.cluster.folder.join("live.yaml");
        let ours = Adapter::start_as(
            &fixture.cluster,
            Program::Plimsoll,
            "live",
            "",
            fixture.cluster.prometheus_port,
        );
        // The flag names this file; now it links to the volume.
        std::fs::remove_file(&file).expect("the file");
        std::os::unix::fs::symlink(folder.join("..data/config.yaml"), &file).expect("a link");
        wait_ready(&ours, &fixture.token).await;
        let of = |metric: &str| format!("{API}/namespaces/shop/pods/*/{metric}");
        served(&ours, &fixture.token, &of("queue_depth")).await;
        let process = ours.process.id();

        let swapped = Instant::now();
        version("2", &format!("rules:\n{}{}", rule("queue_depth"), rule("tenant_credit")));
        served(&ours, &fixture.token, &of("tenant_credit")).await;
        assert!(swapped.elapsed() < Duration::from_secs(2), "{:?}", swapped.elapsed());

        version("3", "rules:\n- seriesQuery: queue_depth\n  name: {matches: '('}\n");
        let told = eventually("the error is told", SOON, async || {
            let (_, body) = ask_verbose(ours.port, &fixture.token).await;
            if body.contains("[!]config") { Ok(body) } else { Err(body) }
        })
        .await;
        assert!(told.contains("live.yaml:3:") && told.contains("rules[0].name.matches"), "{told}");
        // The last valid configuration stays in effect.
        assert_eq!(ask(ours.port, &fixture.token, &of("tenant_credit")).await.0, 200);
        version("4", &format!("rules:\n{}", rule("queue_depth")));
        eventually("the rule is gone", SOON, async || {
            match ask(ours.port, &fixture.token, &of("tenant_credit")).await {
                (404, _) => Ok(()),
                (code, body) => Err(format!("{code} {body}")),
            }
        })
        .await;
        assert_eq!(ours.process.id(), process);
        let (_, body) = ask_verbose(ours.port, &fixture.token).await;
        assert!(!body.contains("[!]config"), "{body}");
    });
}

#[test]
fn a_renewed_serving_certificate_is_reloaded() {
    with_fixture(async |fixture| {
        let folder = fixture.cluster.folder.join("renewed");
        std::fs::create_dir_all(&folder).expect("a folder");
        let renew = || {
            let key = rcgen::KeyPair::generate().expect("a key");
            let certificate = rcgen::CertificateParams::new(vec!["localhost".to_owned()])
                .and_then(|params| params.self_signed(&key))
                .expect("a certificate");
            std::fs::write(folder.join("apiserver.crt"), certificate.pem()).expect("a file");
            std::fs::write(folder.join("apiserver.key"), key.serialize_pem()).expect("a file");
            certificate.pem()
        };
        let trusted = async |port: u16, pem: &str| {
            let root = reqwest::Certificate::from_pem(pem.as_bytes()).expect("a certificate");
            let http = reqwest::Client::builder().tls_certs_only([root]).build().expect("a client");
            http.get(format!("https://localhost:{port}/livez")).send().await.is_ok()
        };
        let first = renew();
        // --cert-dir ends with the name of the adapter.
        let ours = ours(fixture, "renewed", "").await;
        assert!(trusted(ours.port, &first).await);
        let second = renew();
        eventually("the new certificate is served", SOON, async || {
            if trusted(ours.port, &second).await { Ok(()) } else { Err("not yet".to_owned()) }
        })
        .await;
        assert!(!trusted(ours.port, &first).await);
    });
}

#[test]
fn a_kind_that_is_new_in_the_cluster_needs_no_restart() {
    with_fixture(async |fixture| {
        let config =
            "rules:\n- seriesQuery: 'tenant_credit'\n  resources: {template: '<<.Resource>>'}\n"
                .to_owned()
                + SUM;
        let ours = ours(fixture, "new-kind", &config).await;
        let path = format!("{API}/namespaces/shop/tenants.example.org/a-b/tenant_credit");
        assert_eq!(ask(ours.port, &fixture.token, &path).await.0, 404);
        fixture
            .cluster
            .apply(
                "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: tenants.example.org}\n\
                 spec:\n  group: example.org\n  scope: Namespaced\n  names: {plural: tenants, singular: tenant, kind: Tenant}\n\
                 \x20 versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]\n",
            )
            .await;
        let body = served(&ours, &fixture.token, &path).await;
        assert_eq!(body["items"][0]["describedObject"]["kind"], "Tenant");
    });
}
