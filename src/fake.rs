//! An API server and a Prometheus for unit tests: a closure responds, and all requests are recorded. And a
//! Prometheus that no request reaches, a server of TLS, and what is logged.

use crate::clock::Clock;
use crate::config::{Cli, Command};
use crate::prometheus;
use crate::rules::{self, RuleSet, Rules};
use crate::samples::Store;
use crate::serve::{ServingCertificate, TlsOptions, listen};
use crate::supervise::Spawner;
use crate::watch::{Cluster, Resources};
use axum::Router;
use axum::extract::{RawForm, State};
use axum::http::Uri;
use clap::Parser;
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{EnvFilter, fmt};

/// A recorded request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Method and path, without the query.
    pub line: String,
    /// The query.
    pub query: String,
    /// The body; null if it is not JSON.
    pub body: Value,
}

impl Request {
    /// The object that it writes, as far as it names it: of a JSON patch, what that tests and adds.
    pub fn object(&self) -> Value {
        let Value::Array(operations) = &self.body else { return self.body.clone() };
        let mut object = json!({});
        for operation in operations {
            let path = operation["path"].as_str().unwrap_or_default().split('/').skip(1);
            *path.fold(&mut object, |value, field| &mut value[field]) = operation["value"].clone();
        }
        object
    }
}

/// The recorded requests, in order.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<Request>>>);

impl Log {
    /// The requests whose line begins with `line`.
    pub fn of(&self, line: &str) -> Vec<Request> {
        let all = self.0.lock().unwrap();
        all.iter().filter(|request| request.line.starts_with(line)).cloned().collect()
    }
}

/// A client of an API server, and its log. `respond` returns the status and the body of a response;
/// with status 0, there is no response. It has no Lease, and does not log requests for it.
pub fn api(respond: impl FnMut(&Request) -> (u16, Value) + Send + 'static) -> (Client, Log) {
    slow_api(|_| Duration::ZERO, respond)
}

/// The same, with the time that each request takes before it is responded to.
pub fn slow_api(
    latency: impl Fn(&Request) -> Duration + Clone + Send + 'static,
    respond: impl FnMut(&Request) -> (u16, Value) + Send + 'static,
) -> (Client, Log) {
    let (log, respond) = (Log::default(), Arc::new(Mutex::new(respond)));
    let recorded = log.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (recorded, respond, latency) = (recorded.clone(), respond.clone(), latency.clone());
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let line = format!("{} {}", parts.method, parts.uri.path());
            let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
            let query = parts.uri.query().unwrap_or_default().to_owned();
            if line.contains("/leases/") {
                let (code, body) = failure(404, "NotFound", "there is no Lease");
                let body = Body::from(body.to_string().into_bytes());
                return Ok(http::Response::builder().status(code).body(body).unwrap());
            }
            let request = Request { line, query, body };
            let latency = latency(&request);
            if !latency.is_zero() {
                tokio::time::sleep(latency).await;
            }
            let (code, body) = respond.lock().unwrap()(&request);
            recorded.0.lock().unwrap().push(request);
            if code == 0 {
                std::future::pending::<()>().await;
            }
            let response = http::Response::builder().status(code);
            Ok::<_, kube::Error>(response.body(Body::from(body.to_string().into_bytes())).unwrap())
        }
    });
    (Client::new(service, "default"), log)
}

/// An error response of the API server: a `Status`.
pub fn failure(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": message});
    (code, status)
}

/// The requests that were received, in order.
pub type Received = Arc<Mutex<Vec<String>>>;

/// A Prometheus that responds to a path and its form by a function, and the requests that it received.
pub async fn prometheus(
    respond: impl Fn(&str) -> String + Send + Sync + 'static,
) -> (prometheus::Client, Received) {
    let (url, received) = prometheus_at(respond).await;
    (prometheus::Client::new(prometheus::Options::new(&url)).unwrap(), received)
}

/// The same, with its address.
pub async fn prometheus_at(
    respond: impl Fn(&str) -> String + Send + Sync + 'static,
) -> (String, Received) {
    // Others may have installed it before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let received = Received::default();
    type Respond = Arc<dyn Fn(&str) -> String + Send + Sync>;
    let respond: Respond = Arc::new(respond);
    let handle =
        async |State((received, respond)): State<(Received, Respond)>, uri: Uri, form: RawForm| {
            let text = format!("{uri} {}", String::from_utf8_lossy(&form.0));
            let text: String = reqwest::Url::parse(&format!("http://h/?{text}"))
                .map(|url| url.query_pairs().map(|(k, v)| format!("{k}={v} ")).collect())
                .unwrap_or(text);
            received.lock().unwrap().push(text.clone());
            respond(&text)
        };
    let router = Router::new().fallback(handle).with_state((received.clone(), respond));
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, received)
}

/// A response to a request for the past: one series, whose value at each time, in Unix seconds, a function says for the
/// query. Raw samples are 15 s apart. It has no metadata.
pub fn past(request: &str, value: impl Fn(&str, f64) -> Option<f64>) -> String {
    let Some((_, form)) = request.split_once("query=") else {
        return json!({"status": "success", "data": {}}).to_string();
    };
    let query = form.split(" timeout=").next().unwrap_or_default();
    let field = |name: &str| -> Option<f64> {
        let (_, rest) = form.split_once(&format!(" {name}="))?;
        rest.split(' ').next()?.parse().ok()
    };
    let times: Vec<f64> = match (field("start"), field("end"), field("step")) {
        (Some(start), Some(end), Some(step)) => {
            let steps = ((end - start) / step + 1e-9) as u32;
            (0..=steps).map(|index| start + f64::from(index) * step).collect()
        }
        _ => {
            let end = field("time").unwrap_or_default();
            let range = query.rsplit_once('[').map_or("", |(_, range)| range);
            let range: f64 = range.trim_end_matches("ms]").parse().unwrap_or_default();
            let first = ((end - range / 1000.0) / 15.0).floor() as u32 + 1;
            (first..=(end / 15.0) as u32).map(|index| f64::from(index) * 15.0).collect()
        }
    };
    let values = times.into_iter().filter_map(|time| Some((time, value(query, time)?.to_string())));
    let values: Vec<(f64, String)> = values.collect();
    let series = match values.is_empty() {
        true => json!([]),
        false => json!([{"metric": {}, "values": values}]),
    };
    json!({"status": "success", "data": {"resultType": "matrix", "result": series}}).to_string()
}

/// A client of a Prometheus that refuses every connection.
pub fn unreachable_prometheus() -> prometheus::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    prometheus::Client::new(prometheus::Options::new("http://127.0.0.1:1")).expect("a client")
}

/// Samples of [`unreachable_prometheus`], and no rules.
pub fn samples_and_rules(client: &Client, cluster: &Cluster) -> (Store, Rules) {
    let (prometheus, minute) = (unreachable_prometheus(), Duration::from_secs(60));
    let samples = Store::new(prometheus.clone(), Duration::ZERO, Spawner::unowned());
    let rules = Rules::new(
        RuleSet::default(),
        rules::ListingSettings { interval: minute, max_age: minute, sample_max_age: minute },
        rules::Dependencies {
            prometheus,
            samples: samples.clone(),
            client: client.clone(),
            cluster: cluster.clone(),
            resources: Resources::new(client.clone()),
            clock: Clock::default(),
            pod_queries: crate::reload::Reloadable::new(
                crate::config::Config::default().pod_queries,
            ),
            spawner: Spawner::unowned(),
        },
    );
    (samples, rules)
}

/// The address of a server whose certificate is of this host, by a CA of its own.
pub async fn tls_server(host: &str) -> String {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let signed = rcgen::generate_simple_self_signed([host.to_owned()]).expect("a certificate");
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("certificate"), signed.cert.pem()).expect("a file");
    std::fs::write(path("key"), signed.signing_key.serialize_pem()).expect("a file");
    let serving = ServingCertificate::from_files(&path("certificate"), &path("key"));
    let (any, options) = (([127, 0, 0, 1], 0).into(), TlsOptions::default());
    let listener = listen(any, serving.expect("a certificate"), options, 0).await.expect("a port");
    let address = listener.address().expect("an address").to_string();
    let router = Router::new().fallback(async || "answered");
    tokio::spawn(listener.serve(router, std::future::pending()));
    address
}

/// What this thread logs, as `plimsoll serve` does without flags of logs.
#[derive(Clone, Default)]
pub struct LogLines(Arc<Mutex<Vec<u8>>>);

impl LogLines {
    /// Begins to keep it, until the guard is dropped.
    pub fn keep() -> (Self, DefaultGuard) {
        let cli = Cli::try_parse_from(["plimsoll", "serve"]).expect("flags");
        let Command::Serve(flags) = cli.command else { panic!("another command") };
        let lines = Self::default();
        let to = lines.clone();
        let layer = fmt::layer().with_ansi(false).with_writer(move || to.clone());
        let registry = tracing_subscriber::registry().with(EnvFilter::new(flags.log_filter()));
        (lines, tracing::subscriber::set_default(registry.with(layer)))
    }

    /// The lines so far.
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).expect("text")
    }

    /// Panics if one has the form that `Debug` gives to an error of kube, or if there is none.
    pub fn assert_plain(&self) {
        let text = self.text();
        assert!(!text.is_empty() && !text.contains("Status {"), "{text}");
        assert!(text.contains("Error from server"), "{text}");
    }
}

impl Write for LogLines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
