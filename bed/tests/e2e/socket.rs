//! Connections under attack: silent and slow ones, guessed tokens, many slow requests, and
//! non-canonical paths.

use crate::fixture::{any_certificate, ask, wait_ready, with_fixture};
use crate::security::ask as ask_as;
use crate::{on_own_bed, on_shared_bed};
use bed::Options;
use bed::adapter::{Adapter, Program};
use bed::pki::{AcceptAny, Signed};
use futures::StreamExt;
use futures::future::join_all;
use rustls::pki_types::ServerName;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// A TLS connection, with one ALPN protocol or none.
async fn tls(port: u16, protocol: Option<&str>) -> std::io::Result<TlsStream<TcpStream>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAny))
        .with_no_client_auth();
    config.alpn_protocols = protocol.map(|name| name.as_bytes().to_vec()).into_iter().collect();
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let name = ServerName::try_from("localhost").expect("a name");
    tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// Waits until the server has closed a connection.
async fn closed(stream: &mut TlsStream<TcpStream>, within: Duration) -> bool {
    let read = async {
        let mut bytes = [0; 1024];
        while !matches!(stream.read(&mut bytes).await, Ok(0) | Err(_)) {}
    };
    tokio::time::timeout(within, read).await.is_ok()
}

/// Sends a request with this path as it is; the HTTP status.
async fn raw(port: u16, token: &str, path: &str) -> u16 {
    let mut stream = tls(port, Some("http/1.1")).await.expect("TLS");
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("a request");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let text = String::from_utf8_lossy(&answer);
    text.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("{text}"))
}

#[test]
fn silent_tls_connections_take_no_room_from_others_and_are_ended() {
    with_fixture(async |fixture| {
        let config = "rules: []\n";
        let ours = Adapter::start_as(
            &fixture.cluster,
            Program::Plimsoll,
            "silent",
            config,
            fixture.cluster.prometheus_port,
        );
        wait_ready(&ours, &fixture.token).await;
        // More connections than the limit; some negotiate HTTP/2 and then stay silent.
        let open =
            futures::stream::iter(0..1200).map(|n| tls(ours.port, [None, Some("h2")][n % 2]));
        let opened: Vec<_> = open.buffer_unordered(100).collect().await;
        let mut silent: Vec<_> = opened.into_iter().flatten().collect();
        let asked = Instant::now();
        let (code, body) =
            ask(ours.port, &fixture.token, "/apis/custom.metrics.k8s.io/v1beta2").await;
        assert_eq!(code, 200, "{body}");
        assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
        // Half of the headers, and HTTP/2 that stays idle without authentication.
        let mut half = tls(ours.port, Some("http/1.1")).await.expect("TLS");
        half.write_all(b"GET /livez HTTP/1.1\r\nhost: ").await.expect("half a head");
        let mut idle = tls(ours.port, Some("h2")).await.expect("TLS");
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        idle.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("a preface");
        idle.write_all(&settings).await.expect("settings");
        let start = Instant::now();
        let within = Duration::from_secs(40);
        let (half, idle) = tokio::join!(closed(&mut half, within), closed(&mut idle, within));
        assert!(half && idle, "half a head is ended: {half}, idle HTTP/2 is ended: {idle}");
        let ended = join_all(silent.iter_mut().map(|stream| closed(stream, within))).await;
        assert!(ended.iter().all(|ended| *ended), "{:?}", start.elapsed());
    });
}

/// The HTTP status of a request of a user.
async fn timed(port: u16, who: &Signed, path: &str) -> (u16, Duration) {
    let start = Instant::now();
    let code = ask_as(port, Some(who), &[], path).await;
    (code, start.elapsed())
}

/// Sends requests while those of others are in flight, which are held for ten seconds: all succeed, and
/// none waits until those are over. A busy machine takes seconds for the connections of the others alone, but not
/// each of three times.
async fn beside<T: Send + 'static>(
    mut others: impl FnMut() -> tokio::task::JoinSet<T>,
    mut ask: impl AsyncFnMut() -> (u16, Duration),
) {
    let mut slow = Vec::new();
    for _ in 0..3 {
        let mut others = others();
        let start = Instant::now();
        let mut all = Vec::new();
        while start.elapsed() < Duration::from_secs(6) {
            let (code, took) = ask().await;
            assert_eq!(code, 200, "after {took:?}");
            all.push(took);
            // Some of the others are refused at once.
            while others.try_join_next().is_some() {}
            let after = start.elapsed();
            assert!(!others.is_empty(), "no other is in flight after {after:?}: {all:?}");
        }
        others.shutdown().await;
        all.sort_unstable();
        let (median, longest) = (all[all.len() / 2], all[all.len() - 1]);
        println!("{} answers, median {median:?}, longest {longest:?}", all.len());
        if median < Duration::from_secs(3) && longest < Duration::from_secs(9) {
            return;
        }
        slow.push((median, longest));
    }
    panic!("medians and longest: {slow:?}");
}

#[test]
fn guessed_tokens_do_not_delay_known_users() {
    on_own_bed(Options { faults: true, ..Options::default() }, async |bed| {
        let port = bed.plimsoll.port;
        let admin = bed.cluster.sign("known", &["system:masters"]);
        let path = "/apis/custom.metrics.k8s.io/v1beta2";
        assert_eq!(timed(port, &admin, path).await.0, 200);
        // TokenReviews of kube-apiserver are slow.
        bed.faults.as_ref().expect("faults").api.stall("tokenreviews");
        // A connection carries up to 250 concurrent requests.
        let clients = [(); 2].map(|()| any_certificate().build().expect("a client"));
        let mut guesses = 0..;
        let others = || {
            let asked = guesses.by_ref().take(500).map(|n| {
                let guess = clients[n % 2].get(format!("https://localhost:{port}{path}"));
                guess.bearer_auth(format!("guess-{n}")).send()
            });
            asked.collect()
        };
        beside(others, async || timed(port, &admin, path).await).await;
        bed.faults.as_ref().expect("faults").api.clear();
    });
}

#[test]
fn a_tenants_slow_requests_delay_others_by_less_than_a_period() {
    with_fixture(async |fixture| {
        // Another adapter that accepts connections and never responds.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = silent.local_addr().expect("an address");
        let config = format!(
            "passOn: {{external.metrics.k8s.io: {{url: 'https://{address}', insecureSkipTLSVerify: true}}}}\n"
        );
        let prometheus = fixture.cluster.prometheus_port;
        let ours =
            Adapter::start_as(&fixture.cluster, Program::Plimsoll, "tenants", &config, prometheus);
        wait_ready(&ours, &fixture.token).await;
        let port = ours.port;
        let slow = "/apis/external.metrics.k8s.io/v1beta1/namespaces/shop/slow";
        let tenant = fixture.cluster.sign("tenant", &["system:masters"]);
        let pem =
            [&tenant.certificate, &tenant.key].map(|path| std::fs::read(path).expect("a file"));
        let identity = reqwest::Identity::from_pem(&pem.concat()).expect("an identity");
        // A connection carries up to 250 concurrent requests.
        let clients = [(); 2].map(|()| {
            let client = any_certificate().identity(identity.clone()).build();
            client.expect("a client")
        });
        let others = || {
            let url = format!("https://localhost:{port}{slow}");
            (0..500).map(|n| clients[n % 2].get(&url).send()).collect()
        };
        let path = "/apis/custom.metrics.k8s.io/v1beta2";
        let neighbour = fixture.cluster.sign("neighbour", &["system:masters"]);
        let front = fixture.cluster.front_authority.sign("front-proxy-client", &[]);
        let controller = [
            ("x-remote-user", "system:kube-controller-manager"),
            ("x-remote-group", "system:masters"),
        ];
        let mut turn = 0;
        beside(others, async || {
            turn += 1;
            if turn % 2 == 0 {
                return timed(port, &neighbour, path).await;
            }
            let begun = Instant::now();
            let code = ask_as(port, Some(&front), &controller, path).await;
            (code, begun.elapsed())
        })
        .await;
    });
}

#[test]
fn ambiguous_paths_are_refused_and_never_forwarded() {
    with_fixture(async |fixture| {
        let config = "rules: []\n";
        let prometheus = fixture.cluster.prometheus_port;
        let ours =
            Adapter::start_as(&fixture.cluster, Program::Plimsoll, "paths", config, prometheus);
        wait_ready(&ours, &fixture.token).await;
        let custom = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/shop";
        let external = "/apis/external.metrics.k8s.io/v1beta1/namespaces/shop";
        for path in [
            format!("/{custom}/pods/a/m"),
            format!("{custom}//pods/a/m"),
            format!("{custom}/../bank/pods/a/m"),
            format!("{custom}/pods/../m"),
            format!("{custom}/pods/%2e%2e/m"),
            format!("{custom}/pods/./m"),
            format!("{custom}/pods/a%2fb/m"),
            format!("{custom}/pods/a%00b/m"),
            format!("{custom}/pods/a%zz/m"),
            format!("{external}/../bank/m"),
            format!("{external}/a%252fb"),
            "/healthz/../metrics".to_owned(),
            "//metrics".to_owned(),
            "/live/autoscalers/shop/..".to_owned(),
        ] {
            assert_eq!(raw(ours.port, &fixture.token, &path).await, 400, "{path}");
        }
        assert_eq!(raw(ours.port, &fixture.token, "/metrics").await, 200);
    });
}

#[test]
fn impersonation_is_refused_not_ignored() {
    on_shared_bed("socket-impersonation", async |bed, _| {
        let admin = bed.cluster.sign("admin", &["system:masters"]);
        let ask = async |headers: &[(&str, &str)]| {
            ask_as(bed.plimsoll.port, Some(&admin), headers, "/metrics").await
        };
        assert_eq!(ask(&[]).await, 200);
        for header in
            ["Impersonate-User", "Impersonate-Group", "Impersonate-Uid", "Impersonate-Extra-team"]
        {
            assert_eq!(ask(&[(header, "nobody")]).await, 403, "{header}");
        }
    });
}
