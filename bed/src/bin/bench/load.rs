//! The HTTP load generator, the same for both sides. It does as little as possible: it shares the
//! CPUs with the process that it measures.

use crate::world::World;
use bed::pki::{AcceptAny, Signed};
use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// How long one request for each path may take.
const ONCE_WITHIN: Duration = Duration::from_secs(60);

/// The result of a load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Successful requests per second.
    pub rps: f64,
    /// Latencies.
    pub p50: Duration,
    pub p99: Duration,
    pub max: Duration,
    /// Requests without a 2xx response that has a value.
    pub errors: usize,
}

/// A certificate of an administrator.
fn admin(world: &World) -> Signed {
    world.cluster.sign("bench", &["system:masters"])
}

/// A client with the administrator's certificate and one connection.
pub fn client(world: &World) -> reqwest::Client {
    let admin = admin(world);
    let [mut pem, key] =
        [admin.certificate, admin.key].map(|file| std::fs::read(file).expect("a file"));
    pem.extend(key);
    let builder = reqwest::Client::builder()
        .identity(reqwest::Identity::from_pem(&pem).expect("a certificate"))
        // The certificates of both sides are self-signed.
        .tls_danger_accept_invalid_certs(true)
        .http1_only()
        .timeout(Duration::from_secs(60))
        .pool_max_idle_per_host(1);
    builder.build().expect("a client")
}

/// Sends requests for the paths in turn, over this number of connections, for this time.
pub async fn send(world: &World, paths: &[String], connections: usize, time: Duration) -> Load {
    send_until(world, paths, connections, time, usize::MAX).await
}

/// Sends one request for each path, over this number of connections.
pub async fn send_once(world: &World, paths: &[String], connections: usize) -> Load {
    send_until(world, paths, connections, ONCE_WITHIN, paths.len()).await
}

async fn send_until(
    world: &World,
    paths: &[String],
    connections: usize,
    time: Duration,
    most: usize,
) -> Load {
    let (tls, port) = (tls(world), world.adapter_port);
    let paths: Arc<Vec<Uri>> =
        Arc::new(paths.iter().map(|path| path.parse().expect("a path")).collect());
    let next = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let connection = |_| {
        let (tls, paths, next) = (tls.clone(), paths.clone(), next.clone());
        tokio::spawn(async move {
            let (mut latencies, mut errors) = (Vec::new(), 0);
            let mut sender = connect(&tls, port).await;
            while start.elapsed() < time {
                let place = next.fetch_add(1, Ordering::Relaxed);
                if place >= most {
                    break;
                }
                let index = place % paths.len();
                let begun = Instant::now();
                match send_one(&mut sender, &paths[index]).await {
                    Ok(true) => latencies.push(begun.elapsed()),
                    Ok(false) => errors += 1,
                    Err(_) => {
                        errors += 1;
                        sender = connect(&tls, port).await;
                    }
                }
            }
            (latencies, errors)
        })
    };
    let tasks: Vec<_> = (0..connections).map(connection).collect();
    let (mut latencies, mut errors) = (Vec::new(), 0);
    for task in tasks {
        let (of_task, failed) = task.await.expect("a connection");
        latencies.extend(of_task);
        errors += failed;
    }
    let seconds = start.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let at = |part: f64| {
        let index = ((latencies.len() as f64 * part) as usize).min(latencies.len().max(1) - 1);
        latencies.get(index).copied().unwrap_or(time)
    };
    Load {
        rps: latencies.len() as f64 / seconds,
        p50: at(0.5),
        p99: at(0.99),
        max: at(1.0),
        errors,
    }
}

/// What a response has that is not empty.
const VALUE: &[u8] = b"\"value\":";

/// TLS with the administrator's certificate.
fn tls(world: &World) -> TlsConnector {
    let admin = admin(world);
    let certificate = CertificateDer::from_pem_file(admin.certificate).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(admin.key).expect("a key");
    let config = ClientConfig::builder()
        .dangerous()
        // The certificates of both sides are self-signed.
        .with_custom_certificate_verifier(Arc::new(AcceptAny))
        .with_client_auth_cert(vec![certificate], key)
        .expect("a certificate and its key");
    TlsConnector::from(Arc::new(config))
}

async fn connect(tls: &TlsConnector, port: u16) -> SendRequest<Empty<Bytes>> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("a connection");
    stream.set_nodelay(true).expect("a socket");
    let name = ServerName::try_from("localhost").expect("a name");
    let stream = tls.connect(name, stream).await.expect("TLS");
    let (sender, connection) = handshake(TokioIo::new(stream)).await.expect("HTTP");
    tokio::spawn(connection);
    sender
}

/// Sends a request. Returns whether the response is a success with a value, as all of them have.
async fn send_one(
    sender: &mut SendRequest<Empty<Bytes>>,
    path: &Uri,
) -> Result<bool, hyper::Error> {
    sender.ready().await?;
    let request = Request::get(path.clone()).header("host", "localhost").body(Empty::new());
    let response = sender.send_request(request.expect("a request")).await?;
    let is_success = response.status().is_success();
    let body = response.into_body().collect().await?.to_bytes();
    Ok(is_success && body.windows(VALUE.len()).any(|part| part == VALUE))
}
