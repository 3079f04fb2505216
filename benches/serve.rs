//! GET of a workload's ten pods by selector, beside an answer of the same bytes that costs nothing: both over TLS with a
//! client certificate by Plimsoll's own listener, on one thread with their client. It prints the time and
//! what a request allocates beyond the static answer; `tests/serve-cost` counts instructions.

use bytes::Bytes;
use clap::Parser;
use criterion::Criterion;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, future, stream};
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use kube::client::{Body, ClientBuilder};
use plimsoll::app::{self, Reviewers};
use plimsoll::config::{Cli, Command, Config, ServeFlags};
use plimsoll::prometheus::{self, BodyStream, Transport, TransportError};
use plimsoll::replica::{Clock, Parts, Replica, Stop, layered};
use plimsoll::serve::{Listener, ServingCertificate, TlsOptions, TrustOptions, TrustStore, listen};
use plimsoll::telemetry::Metrics;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

const WORKLOADS: usize = 100;
const PODS: usize = 10;
const RULES: &str = r#"rules:
- seriesQuery: 'http_requests_total{namespace!="",pod!=""}'
  resources: {overrides: {namespace: {resource: namespace}, pod: {resource: pod}}}
  name: {matches: "^(.*)_total$", as: "${1}_per_second"}
  metricsQuery: sum(rate(<<.Series>>{<<.LabelMatchers>>}[1m])) by (<<.GroupBy>>)
"#;

fn pods() -> impl Iterator<Item = (usize, String)> {
    (0..WORKLOADS * PODS).map(|pod| (pod / PODS, format!("web-{}-7d4f5b6c8-{pod:05}", pod / PODS)))
}

/// kube-apiserver: it has the pods, and denies nothing. No watch of it tells of a change.
async fn kube_apiserver(
    request: Request<Body>,
) -> Result<Response<BoxBody<Bytes, Infallible>>, kube::Error> {
    let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
    if query.contains("watch=true") {
        return Ok(Response::new(BoxBody::new(StreamBody::new(stream::pending()))));
    }
    let pod = |(app, name): (usize, String)| {
        json!({"metadata": {"namespace": "shop", "name": name, "resourceVersion": "1",
            "labels": {"app": format!("web-{app}")}},
            "spec": {"containers": [{"name": "web"}]}, "status": {"phase": "Running"}})
    };
    let resource = |name: &str, kind: &str, scope: &str| json!({"resource": name, "responseKind": {"kind": kind}, "scope": scope});
    let body = match path {
        "/api" => json!({"items": [{"versions": [{"version": "v1", "resources": [
            resource("pods", "Pod", "Namespaced"), resource("namespaces", "Namespace", "Cluster")]}]}]}),
        "/apis" => json!({"items": []}),
        path if path.ends_with("/pods") => {
            json!({"metadata": {"resourceVersion": "1"}, "items": pods().map(pod).collect::<Vec<_>>()})
        }
        _ => json!({"metadata": {"resourceVersion": "1"}, "items": []}),
    };
    Ok(Response::new(BoxBody::new(Full::from(body.to_string()))))
}

/// A Prometheus with one series of each pod.
#[derive(Debug)]
struct Prometheus;

impl Transport for Prometheus {
    fn send(
        &self,
        request: Request<Bytes>,
    ) -> BoxFuture<'static, Result<Response<BodyStream>, TransportError>> {
        let series = |(_, name): (usize, String)| json!({"metric": {"namespace": "shop", "pod": name}, "value": [1_764_000_000.5, "10.25"]});
        let data = match request.uri().path() {
            "/api/v1/query" => {
                json!({"resultType": "vector", "result": pods().map(series).collect::<Vec<_>>()})
            }
            "/api/v1/series" => {
                json!([{"__name__": "http_requests_total", "namespace": "shop", "pod": "web"}])
            }
            _ => json!({}),
        };
        let body = json!({"status": "success", "data": data}).to_string();
        future::ready(Ok(Response::new(stream::iter([Ok(Bytes::from(body))]).boxed()))).boxed()
    }
}

/// Certificates of one CA, as files.
struct Authority {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let folder = tempfile::tempdir().expect("a folder");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        std::fs::write(folder.path().join("ca"), pem).expect("a file");
        Self { folder, issuer: Issuer::new(params, key) }
    }

    fn path(&self, file: &str) -> std::path::PathBuf {
        self.folder.path().join(file)
    }

    fn sign(&self, name: &str) {
        let mut params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, "system:masters");
        let key = KeyPair::generate().expect("a key");
        let pem = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        std::fs::write(self.path(name), pem).expect("a file");
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).expect("a file");
    }

    /// An administrator's client.
    fn client(&self) -> TlsConnector {
        let certificate = |file| CertificateDer::from_pem_file(self.path(file)).expect("a file");
        let mut roots = RootCertStore::empty();
        roots.add(certificate("ca")).expect("a CA");
        let key = PrivateKeyDer::from_pem_file(self.path("bench.key")).expect("a key");
        let config = ClientConfig::builder().with_root_certificates(roots);
        let config = config.with_client_auth_cert(vec![certificate("bench")], key);
        TlsConnector::from(Arc::new(config.expect("a certificate and its key")))
    }
}

fn flags() -> ServeFlags {
    let line = "plimsoll serve --prometheus-url=http://prometheus:9090 --leader-elect=false \
        --leader-elect-resource-namespace=default --native-hpas=ignore --sample-max-age=10m";
    match Cli::try_parse_from(line.split_whitespace()).expect("flags").command {
        Command::Serve(flags) => *flags,
        _ => panic!("another command"),
    }
}

/// Binds a port of loopback, with the certificate of the server.
async fn bind(authority: &Authority) -> (Listener, SocketAddr) {
    let (certificate, key) = (authority.path("server"), authority.path("server.key"));
    let certificate = ServingCertificate::from_files(&certificate, &key).expect("a certificate");
    let (any, tls) = (([127, 0, 0, 1], 0).into(), TlsOptions::default());
    let listener = listen(any, certificate, tls, 0).await.expect("a port");
    let address = listener.address().expect("an address");
    (listener, address)
}

/// Starts a replica with its API. Returns its address.
async fn start_api(authority: &Authority, tasks: &mut JoinSet<()>) -> SocketAddr {
    let (flags, clock, metrics) = (flags(), Clock::default(), Arc::<Metrics>::default());
    let client = || {
        let builder = ClientBuilder::new(tower::service_fn(kube_apiserver), "default");
        layered(builder, &flags, metrics.clone(), clock.clone(), None)
    };
    let options = prometheus::Options::new(&flags.prometheus_url);
    let rules = authority.path("rules");
    std::fs::write(&rules, RULES).expect("a file");
    let replica = Replica::new(Parts {
        config: Config::read(&rules).expect("rules"),
        identity: "bench".to_owned(),
        api: client(),
        leases: client(),
        prometheus: prometheus::Client::over(Arc::new(Prometheus), options).expect("a client"),
        clock: clock.clone(),
        metrics: metrics.clone(),
        flags: flags.clone(),
    });
    let replica = replica.expect("flags that go together");
    let trust = TrustStore::default();
    let of_clients = Some(authority.path("ca"));
    let options = TrustOptions { client_ca_file: of_clients, ..TrustOptions::default() };
    trust.set(options.bundle(None, &options.read().expect("a file")).expect("a CA"));
    let reviewers = Reviewers { authentication: client(), authorization: client() };
    let router = app::api(&replica, &flags, &reviewers, &trust);
    let (listener, address) = bind(authority).await;
    tasks.spawn(async move {
        let ended = replica.run(|stop: Stop| listener.serve(router, stop), future::pending()).await;
        panic!("{ended:?}");
    });
    address
}

/// Starts a server of a static answer. Returns its address.
async fn start_static(authority: &Authority, answer: Bytes, tasks: &mut JoinSet<()>) -> SocketAddr {
    let (listener, address) = bind(authority).await;
    let json = [("content-type", "application/json")];
    let router = axum::Router::new().fallback(async move || (json, answer));
    tasks.spawn(listener.serve(router, future::pending()));
    address
}

/// A connection to one of them.
struct Connection {
    sender: SendRequest<Empty<Bytes>>,
    sent: usize,
}

impl Connection {
    async fn open(tls: &TlsConnector, address: SocketAddr, tasks: &mut JoinSet<()>) -> Self {
        let stream = TcpStream::connect(address).await.expect("a connection");
        stream.set_nodelay(true).expect("a socket");
        let name = ServerName::try_from("localhost").expect("a name");
        let stream = tls.connect(name, stream).await.expect("TLS");
        let (sender, connection) = handshake(TokioIo::new(stream)).await.expect("HTTP");
        tasks.spawn(connection.map(drop));
        Self { sender, sent: 0 }
    }

    /// The status and the body for the next workload.
    async fn get(&mut self) -> hyper::Result<(u16, Bytes)> {
        self.sent += 1;
        let path = format!(
            "/apis/custom.metrics.k8s.io/v1beta2/namespaces/shop/pods/*/http_requests_per_second?labelSelector=app%3Dweb-{}",
            self.sent % WORKLOADS
        );
        let request = Request::get(path).header("host", "localhost").body(Empty::new());
        self.sender.ready().await?;
        let response = self.sender.send_request(request.expect("a request")).await?;
        let code = response.status().as_u16();
        Ok((code, response.into_body().collect().await?.to_bytes()))
    }
}

/// What is measured: the connections to the API and to the static answer.
struct Bench {
    runtime: Runtime,
    connections: [Connection; 2],
    _tasks: JoinSet<()>,
}

const CASES: [&str; 2] = ["GET by selector", "static answer"];

impl Bench {
    fn new() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let (connections, tasks) = runtime.block_on(async {
            let (authority, mut tasks) = (Authority::new(), JoinSet::new());
            ["server", "bench"].iter().for_each(|name| authority.sign(name));
            let api = start_api(&authority, &mut tasks).await;
            let tls = authority.client();
            let (of_api, answer) = loop {
                // Until the series and all pods are known: before, this API server lists all for any selector. Under valgrind that takes so long that the server closes
                // the connection.
                tokio::time::sleep(Duration::from_millis(20)).await;
                let mut of_api = Connection::open(&tls, api, &mut tasks).await;
                if let Ok((200, body)) = of_api.get().await {
                    let list: Value = serde_json::from_slice(&body).expect("JSON");
                    if list["items"].as_array().is_some_and(|items| items.len() == PODS) {
                        break (of_api, body);
                    }
                }
            };
            let address = start_static(&authority, answer, &mut tasks).await;
            let of_constant = Connection::open(&tls, address, &mut tasks).await;
            ([of_api, of_constant], tasks)
        });
        let mut bench = Self { runtime, connections, _tasks: tasks };
        (0..CASES.len()).for_each(|case| bench.send(case, 5 * WORKLOADS));
        bench
    }

    /// Sends so many requests, one after the other.
    fn send(&mut self, case: usize, requests: usize) {
        self.runtime.block_on(async {
            for _ in 0..requests {
                let (code, body) = self.connections[case].get().await.expect("a response");
                assert!(code == 200 && !black_box(body).is_empty());
            }
        });
    }
}

/// With `REQUESTS` and the name of a `CASE`, so many requests and nothing else; with `ALLOCATIONS` these alone.
fn main() {
    let mut bench = Bench::new();
    if let Ok(requests) = std::env::var("REQUESTS") {
        let case = std::env::var("CASE").expect("the name of a case");
        let case = CASES.iter().position(|of| *of == case).expect("a case");
        return bench.send(case, requests.parse().expect("a number"));
    }
    let allocated = [0, 1].map(|case| {
        allocation_counter::measure(|| bench.send(case, 1_000)).count_total as f64 / 1_000.0
    });
    println!(
        "a GET by selector allocates {:.1} times, {:.1} times more than the static answer",
        allocated[0],
        allocated[0] - allocated[1]
    );
    if std::env::var("ALLOCATIONS").is_ok() {
        return;
    }
    let mut criterion = Criterion::default().configure_from_args();
    for (case, name) in CASES.iter().enumerate() {
        criterion.bench_function(name, |bencher| bencher.iter(|| bench.send(case, 1)));
    }
    criterion.final_summary();
}
