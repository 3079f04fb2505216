//! Authentication, authorization, TLS, and the isolation of namespaces.

use crate::fixture::{any_certificate, wait_ready, with_fixture};
use crate::{SOON, on_own_bed, on_shared_bed};
use bed::adapter::{Adapter, Program};
use bed::pki::{Authority, Signed};
use bed::workload::Namespace;
use bed::{Options, eventually, plimsoll as installed};
use plimsoll::promql::name::generated_name;
use std::io::{Read, Write};
use std::time::Duration;

/// Sends a request with a client certificate and headers; the HTTP status.
pub async fn ask(port: u16, shown: Option<&Signed>, headers: &[(&str, &str)], path: &str) -> u16 {
    let mut builder = reqwest::Client::builder().tls_danger_accept_invalid_certs(true);
    if let Some(Signed { certificate, key }) = shown {
        let pem = [certificate, key].map(|path| std::fs::read(path).expect("a file")).concat();
        builder = builder.identity(reqwest::Identity::from_pem(&pem).expect("an identity"));
    }
    let client = builder.build().expect("a client");
    let mut request = client.get(format!("https://localhost:{port}{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.send().await.expect("an answer").status().as_u16()
}

#[test]
fn front_proxy_headers_count_only_with_its_certificate() {
    on_shared_bed("security-proxy", async |bed, _| {
        let path = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/security-proxy/pods/*/x";
        let admin = [("x-remote-user", "admin"), ("x-remote-group", "system:masters")];
        let cluster = &bed.cluster;
        let alice = cluster.sign("alice", &[]);
        let front = cluster.front_authority.sign("front-proxy-client", &[]);
        let other = cluster.front_authority.sign("someone-else", &[]);
        let folder = tempfile::tempdir().unwrap();
        let own = Authority::new(folder.path(), "own");
        let forged = own.sign("front-proxy-client", &["system:masters"]);
        let bearer = cluster.kubectl(&["-n", "plimsoll", "create", "token", "scraper"]).await;
        let bearer = format!("Bearer {}", bearer.trim());
        let with_token = [admin[0], admin[1], ("authorization", bearer.as_str())];
        for (what, shown, headers, expected) in [
            ("the front proxy", Some(&front), &admin[..], 404),
            ("nobody", None, &admin[..], 401),
            ("a user of the cluster", Some(&alice), &admin[..], 403),
            ("another certificate of the front proxy's CA", Some(&other), &admin[..], 401),
            ("a certificate of one's own CA", Some(&forged), &admin[..], 401),
            ("a token", None, &with_token[..], 403),
            ("the front proxy, for nobody", Some(&front), &[][..], 401),
            ("the front proxy, for an empty name", Some(&front), &[("x-remote-user", "")][..], 401),
            ("the front proxy, for alice", Some(&front), &[("x-remote-user", "alice")][..], 403),
        ] {
            assert_eq!(ask(bed.plimsoll.port, shown, headers, path).await, expected, "{what}");
        }
        // Differently spelled headers are different headers.
        let spelled = [("x_remote_user", "admin"), ("x-remote-users", "admin")];
        assert_eq!(ask(bed.plimsoll.port, Some(&front), &spelled, path).await, 401);
    });
}

/// Sends a ClientHello of an old version; the type of the record that comes back, and its alert.
fn hello(port: u16, version: [u8; 2], suites: &[u16]) -> (u8, u8) {
    let mut body = vec![version[0], version[1]];
    body.extend([7; 32]);
    body.push(0);
    body.extend((suites.len() as u16 * 2).to_be_bytes());
    body.extend(suites.iter().flat_map(|suite| suite.to_be_bytes()));
    body.extend([1, 0]);
    // The groups and signature algorithms of clients of that time.
    let extensions: &[u8] = &[
        0, 10, 0, 6, 0, 4, 0, 23, 0, 29, 0, 11, 0, 2, 1, 0, 0, 13, 0, 10, 0, 8, 4, 1, 4, 3, 5, 1,
        2, 1,
    ];
    body.extend((extensions.len() as u16).to_be_bytes());
    body.extend(extensions);
    let mut message = vec![1, 0];
    message.extend((body.len() as u16).to_be_bytes());
    message.extend(body);
    let mut record = vec![22, 3, 1];
    record.extend((message.len() as u16).to_be_bytes());
    record.extend(message);
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    stream.write_all(&record).expect("a hello");
    let mut answer = [0; 7];
    stream.read_exact(&mut answer).expect("an answer");
    (answer[0], answer[6])
}

#[test]
fn old_tls_and_weak_suites_are_refused() {
    on_shared_bed("security-tls", async |bed, _| {
        let port = bed.plimsoll.port;
        let (alert, handshake) = (21, 22);
        let (no_such_version, no_such_suite) = (70, 40);
        // TLS 1.2 with ECDHE and AES-GCM is accepted.
        assert_eq!(hello(port, [3, 3], &[0xc02b, 0xc02f]).0, handshake);
        for old in [[3, 0], [3, 1], [3, 2]] {
            let answer = hello(port, old, &[0xc02b, 0xc013, 0x002f]);
            assert_eq!(answer, (alert, no_such_version), "{old:?}");
        }
        // RC4, 3DES, CBC, and RSA key exchange.
        for suite in [0x0005, 0x000a, 0xc012, 0xc013, 0xc014, 0x002f, 0x009c, 0xc027] {
            let answer = hello(port, [3, 3], &[suite]);
            assert_eq!(answer, (alert, no_such_suite), "{suite:#06x}");
        }
    });
}

#[test]
fn a_users_query_reads_no_other_namespace_whatever_it_tries() {
    on_own_bed(
        Options { config: "  sharedNamespaces: [commons]\n", ..Options::default() },
        async |bed| {
            for (name, value) in [("vault", "4242"), ("commons", "77")] {
                let ns = Namespace::new(&bed.cluster, name).await;
                ns.workload("StatefulSet", "spy", 1, &format!("secret {value}")).await;
            }
            let ns = Namespace::new(&bed.cluster, "spies").await;
            ns.workload("StatefulSet", "spy", 1, "own 1").await;
            // The pod has the same name in all namespaces, so that a leaked value shows.
            let tries = [
                "secret",
                r#"secret{namespace="vault"}"#,
                r#"secret{namespace=~"vault|spies"}"#,
                r#"secret{namespace!="spies"}"#,
                r#"{__name__="secret"}"#,
                r#"{__name__=~"secr.*",namespace=~".+"}"#,
                r#"{namespace="vault" or namespace="spies"}"#,
                r#"secret{namespace="commons" or namespace="vault"}"#,
                "own or secret",
                r#"own + on (pod) secret{namespace="vault"}"#,
                r#"own * on (pod) group_left () secret"#,
                r#"max_over_time(secret{namespace="vault"}[5m:1s])"#,
                r#"avg_over_time((secret{namespace="vault"} or secret)[1m:5s])"#,
                r#"label_replace(secret{namespace="vault"}, "namespace", "spies", "", "")"#,
                r#"secret{namespace="vault"} @ end()"#,
                r#"secret{namespace="vault"} offset 1s"#,
                r#"last_over_time(secret{namespace="vault"}[5m])"#,
                r#"sum by (pod) (secret{namespace="vault"})"#,
                r#"topk(1, secret)"#,
                r#"topk(scalar(secret{namespace="vault"}), own)"#,
                r#"quantile by (pod) (scalar(secret{namespace="vault"}) / 10000, label_replace(own * 0, "k", "a", "", "") or label_replace(own * 0 + 10000, "k", "b", "", ""))"#,
                r#"own * 0 + on () group_left () count_values("v", secret{namespace="vault"})"#,
                "info(own)",
                r#"info(label_replace(own, "job", "vault/spy", "", ""))"#,
                r#"bottomk by (pod) (scalar(max(secret)), own) or secret"#,
                "limitk(scalar(secret), secret)",
                r#"{"secret","namespace"="vault"}"#,
                "secret{namespace=`vault`}",
                "secret{namespace=~`va\\x75lt`} # {namespace=\"spies\"}",
                r#"sum by () (secret) * on () group_right () own"#,
                r#"-secret{namespace="vault"} * -1"#,
                r#"own unless on (pod) secret{namespace="nobody"} or secret{namespace="vault"}"#,
            ];
            let manifest = |(n, query): (usize, &&str)| {
                format!(
                    "---\napiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\nmetadata: {{name: spy-{n}, namespace: spies}}\n\
                 spec:\n  scaleTargetRef: {{apiVersion: apps/v1, kind: StatefulSet, name: none}}\n  maxReplicas: 2\n\
                 \x20 customMetrics: [{{metricName: spied, averageValue: 1, query: '{query}'}}]\n"
                )
            };
            let manifests: String = tries.iter().enumerate().map(manifest).collect();
            bed.cluster.apply(&manifests).await;
            let shared = r#"secret{namespace="commons"}"#;
            let allowed = manifest((99, &shared));
            bed.cluster.apply(&allowed).await;
            let items = async |n: usize| {
                let name = generated_name("spied", None, "spies", &format!("spy-{n}"));
                ns.raw("v1beta2", &format!("pods/*/{name}"))
                    .await
                    .map(|list| list["items"].to_string())
            };
            // The shared series are read, so the other queries had their chance.
            eventually("the shared namespace is read", SOON, async || {
                let items = items(99).await?;
                if items.contains("\"77\"") { Ok(()) } else { Err(items) }
            })
            .await;
            for (n, query) in tries.iter().enumerate() {
                match items(n).await {
                    Ok(items) => assert!(!items.contains("4242"), "{query}: {items}"),
                    Err(error) => assert!(!error.contains("4242"), "{query}: {error}"),
                }
            }
            println!("{} queries tried", tries.len());
        },
    );
}

#[test]
fn no_secret_gets_into_a_log_or_an_error() {
    on_own_bed(Options::default(), async |bed| {
        let secrets = ["pa55word", "t0ken-of-prometheus", "head3r-secret"];
        let file = bed.cluster.folder.join("prometheus-token");
        std::fs::write(&file, secrets[1]).unwrap();
        let options = Options {
            flags: vec![
                "--log-level=trace".to_owned(),
                "--log-format=json".to_owned(),
                format!("--prometheus-token-file={}", file.display()),
                format!("--prometheus-header=X-Scope-OrgID={}", secrets[2]),
                "--leader-elect-resource-name=other".to_owned(),
                "--leader-elect=false".to_owned(),
                "--memory-interval=0s".to_owned(),
            ],
            ..Options::default()
        };
        // Nothing listens there: errors with the address are logged repeatedly.
        let url = format!("http://user:{}@127.0.0.1:1", secrets[0]);
        let server = format!("https://127.0.0.1:{}", bed.cluster.api_port());
        let ns = Namespace::new(&bed.cluster, "quiet").await;
        ns.deployment("web", 1, "queue 1").await;
        bed.plimsoll.process.stop();
        let (process, port) =
            installed::launch(&bed.cluster, "talkative", &server, &url, &options).await;
        ns.autoscaler("web", "queue", "10", 2).await;
        let told =
            ns.wait_condition("web", "ScalingActive", SOON, |c| c["status"] == "False").await;
        let bearer = bed.cluster.kubectl(&["-n", "plimsoll", "create", "token", "scraper"]).await;
        let http = reqwest::Client::builder().tls_danger_accept_invalid_certs(true);
        let http = http.build().unwrap();
        let path = format!("https://localhost:{port}/apis/custom.metrics.k8s.io/v1beta2");
        for token in [bearer.trim(), "no-t0ken-at-all"] {
            let _ = http.get(&path).bearer_auth(token).send().await;
        }
        let own = std::fs::read_to_string(bed.cluster.folder.join("talkative.kubeconfig")).unwrap();
        let own = own.split("token: ").nth(1).unwrap().split('}').next().unwrap().to_owned();
        let log = std::fs::read_to_string(&process.log).unwrap();
        assert!(log.len() > 10_000 && log.contains("\"level\":\"TRACE\""), "it talks");
        let found = secrets.iter().copied().chain([bearer.trim(), "no-t0ken-at-all", own.trim()]);
        for secret in found {
            assert!(!log.contains(secret), "{secret} is in the log");
            assert!(!told.contains(secret), "{secret} is in a condition");
        }
    });
}

#[test]
fn an_error_of_the_configuration_does_not_show_its_other_lines() {
    with_fixture(async |fixture| {
        let secret = "s3cr3t-beside-a-mistake";
        let config = |word: &str| {
            format!(
                "backends:\n  other:\n    url: 'http://user:{secret}@127.0.0.1:1'\n    headers:\n    - 'Authorization=Bearer {secret}'\n    {word}: 5s\n"
            )
        };
        let prometheus = fixture.cluster.prometheus_port;
        let ours = Adapter::start_as(
            &fixture.cluster,
            Program::Plimsoll,
            "mistaken",
            &config("timeout"),
            prometheus,
        );
        wait_ready(&ours, &fixture.token).await;
        std::fs::write(fixture.cluster.folder.join("mistaken.yaml"), config("timeot")).unwrap();
        let log = eventually("the mistake is told", SOON, async || {
            let log = std::fs::read_to_string(&ours.process.log).map_err(|e| e.to_string())?;
            if log.contains("timeot") { Ok(log) } else { Err(log) }
        })
        .await;
        assert!(!log.contains(secret), "{log}");
        let http = any_certificate().build().unwrap();
        let url = format!("https://localhost:{}/readyz?verbose", ours.port);
        let anybody = http.get(&url).send().await.unwrap();
        assert_eq!(anybody.status(), 200);
        let anybody = anybody.text().await.unwrap();
        // Only authorized users see failing checks; everyone sees success.
        assert!(!anybody.contains("timeot") && !anybody.contains(secret), "{anybody}");
        let told = http.get(&url).bearer_auth(&fixture.token).send().await.unwrap();
        let told = told.text().await.unwrap();
        assert!(told.contains("timeot") && !told.contains(secret), "{told}");
        assert!(told.contains("watch pods"), "{told}");
    });
}

#[test]
fn a_replica_is_ready_only_when_kube_apiserver_can_trust_its_certificate() {
    on_own_bed(Options::default(), async |bed| {
        let cluster = &bed.cluster;
        let role = cluster.kubectl(&["get", "clusterrole", "plimsoll", "-o", "json"]).await;
        let mut role: serde_json::Value = serde_json::from_str(&role).unwrap();
        // It is applied regardless of its resource version.
        for field in ["resourceVersion", "uid", "creationTimestamp", "annotations"] {
            role["metadata"].as_object_mut().unwrap().remove(field);
        }
        let mut without = role.clone();
        let rules = without["rules"].as_array_mut().unwrap();
        let before = rules.len();
        rules.retain(|rule| {
            !(rule["apiGroups"][0] == "apiregistration.k8s.io" && rule["verbs"][0] == "patch")
        });
        assert_eq!(rules.len(), before - 1);
        cluster.apply(&without.to_string()).await;
        let server = format!("https://127.0.0.1:{}", cluster.api_port());
        let prometheus = format!("http://127.0.0.1:{}", cluster.prometheus_port);
        let (second, port) =
            installed::launch(cluster, "second", &server, &prometheus, &Options::default()).await;
        let http = any_certificate().build().unwrap();
        let ready = async || {
            let answer = http.get(format!("https://localhost:{port}/readyz")).send().await;
            let answer = answer.map_err(|error| error.to_string())?;
            let code = answer.status().as_u16();
            Ok::<_, String>((code, answer.text().await.map_err(|error| error.to_string())?))
        };
        eventually("all but the CA is ready", SOON, async || {
            let (code, text) = ready().await?;
            assert_ne!(code, 200, "it is ready, and nobody can trust it: {text}");
            let others = text.lines().filter(|line| line.starts_with("[-]")).count();
            let missing = text.contains("[-]caBundle") && text.contains("v1beta1.custom.metrics");
            let log = std::fs::read_to_string(&second.log).map_err(|error| error.to_string())?;
            let told = log.contains("Failed to write caBundle");
            if others == 1 && missing && told { Ok(()) } else { Err(format!("{text}\n{log}")) }
        })
        .await;
        // The permission is granted: no APIService changes, but the write is retried.
        cluster.apply(&role.to_string()).await;
        eventually("the second replica is ready", SOON, async || {
            let (code, text) = ready().await?;
            if code == 200 { Ok(()) } else { Err(text) }
        })
        .await;
    });
}
