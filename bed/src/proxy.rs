//! A reverse proxy between Plimsoll and a server, which injects faults.

use crate::traffic::{Filter, Passed, Recording, Traffic};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, Response, Uri, header};

use futures::StreamExt;
use plimsoll::serve::{ServingCertificate, TlsOptions, listen};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A reverse proxy on loopback. The fault hits requests that contain a text in their method, URL
/// or body; all others are forwarded.
pub struct Proxy {
    /// Its port.
    pub port: u16,
    state: Arc<ProxyState>,
}

#[derive(Default)]
struct ProxyState {
    /// The text, and the fault of requests that contain it.
    fault: Mutex<Option<(String, Fault)>>,
    /// Requests other than GET.
    writes: Mutex<Vec<(Instant, String)>>,
    /// What passed, if it is recorded.
    traffic: Arc<Traffic>,
    /// How many requests the present fault has hit.
    hits: Mutex<usize>,
    /// Responses that begin later are not silenced.
    silenced_until: Mutex<Option<Instant>>,
    /// Responses that began earlier are ended.
    ended_at: Mutex<Option<Instant>>,
}

/// What happens to a request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It waits until the fault ends, and responses in flight stop.
    Stall,
    /// It is forwarded, and the response, such as a watch, stops.
    Silence,
    /// It is forwarded after a delay.
    Slow(Duration),
    /// It is forwarded, and the response is delayed.
    Late(Duration),
    /// This is the response.
    Response {
        /// The HTTP status.
        status: u16,
        /// Headers beside the content type.
        headers: Vec<(&'static str, String)>,
        /// The body.
        body: String,
    },
    /// It is forwarded, and only the first half of the body comes back.
    Cut,
    /// It is forwarded, and the first text in the body is replaced by the second.
    Replace(String, String),
    /// The next requests get a response with this status and body, until the count is 0.
    Times(usize, u16, String),
}

impl Fault {
    /// The response to a watch from a resource version that was compacted: 200 with one event of
    /// status 410.
    pub fn expired_watch() -> Self {
        let status = serde_json::json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "too old resource version: 1 (2)", "reason": "Expired", "code": 410,
        });
        let event = serde_json::json!({"type": "ERROR", "object": status});
        Self::Response { status: 200, headers: Vec::new(), body: format!("{event}\n") }
    }
}

#[derive(Clone)]
struct Upstream {
    url: String,
    state: Arc<ProxyState>,
    http: reqwest::Client,
}

impl Proxy {
    /// A proxy of an HTTP server on a port of loopback.
    pub async fn start(port: u16) -> Self {
        Self::before(format!("http://127.0.0.1:{port}"), reqwest::Client::new()).await
    }

    /// A proxy of an HTTPS server on a port of loopback, with this CA.
    pub async fn to_https(port: u16, ca: &Path) -> Self {
        let ca = std::fs::read(ca).expect("the CA");
        let ca = reqwest::Certificate::from_pem(&ca).expect("a certificate");
        let http = reqwest::Client::builder().tls_certs_only([ca]).build().expect("a client");
        Self::before(format!("https://127.0.0.1:{port}"), http).await
    }

    async fn before(url: String, http: reqwest::Client) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let (router, state) = Self::router(url, http);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { port, state }
    }

    /// A proxy of an HTTP server that serves HTTPS itself, with this certificate.
    pub async fn with_tls(upstream: u16, certificate: &Path, key: &Path) -> Self {
        let certificate = ServingCertificate::from_files(certificate, key).expect("a certificate");
        let address = ([127, 0, 0, 1], 0).into();
        let listener = listen(address, certificate, TlsOptions::default(), 0).await;
        let listener = listener.expect("a free port");
        let port = listener.address().expect("an address").port();
        let (router, state) =
            Self::router(format!("http://127.0.0.1:{upstream}"), reqwest::Client::new());
        tokio::spawn(listener.serve(router, std::future::pending()));
        Self { port, state }
    }

    fn router(url: String, http: reqwest::Client) -> (Router, Arc<ProxyState>) {
        let state = Arc::<ProxyState>::default();
        let upstream = Upstream { url, state: state.clone(), http };
        (Router::new().fallback(forward).with_state(upstream), state)
    }

    /// Stalls requests that contain a text.
    pub fn stall(&self, text: &str) {
        self.fail(text, Fault::Stall);
    }

    /// Sets the fault of requests that contain a text; it replaces the present one.
    pub fn fail(&self, text: &str, fault: Fault) {
        *self.state.hits.lock().expect("no panic") = 0;
        *self.state.fault.lock().expect("no panic") = Some((text.to_owned(), fault));
    }

    /// Ends the fault.
    pub fn clear(&self) {
        *self.state.fault.lock().expect("no panic") = None;
    }

    /// Lets new responses through a [`Fault::Silence`]; those that are silent stay so.
    pub fn release_new(&self) {
        *self.state.silenced_until.lock().expect("no panic") = Some(Instant::now());
    }

    /// Ends all responses in flight, such as watches.
    pub fn end_responses(&self) {
        *self.state.ended_at.lock().expect("no panic") = Some(Instant::now());
    }

    /// How many requests the present fault has hit.
    pub fn hits(&self) -> usize {
        *self.state.hits.lock().expect("no panic")
    }

    /// The requests other than GET that contain a text, and when they came.
    pub fn writes(&self, text: &str) -> Vec<(Instant, String)> {
        let writes = self.state.writes.lock().expect("no panic");
        writes.iter().filter(|(_, request)| request.contains(text)).cloned().collect()
    }

    /// Records the requests whose method and path this is true for, and their responses, from now on.
    pub fn record(&self, filter: Filter) {
        self.state.traffic.record(filter);
    }

    /// What was recorded since the last call.
    pub fn take_traffic(&self) -> Vec<Passed> {
        self.state.traffic.take()
    }
}

impl ProxyState {
    /// The present fault of a request.
    fn fault(&self, request: &str) -> Option<Fault> {
        let mut fault = self.fault.lock().expect("no panic");
        let (_, found) = fault.as_mut().filter(|(text, _)| request.contains(&**text))?;
        let found = match found {
            Fault::Times(0, ..) => return None,
            Fault::Times(left, status, body) => {
                *left -= 1;
                Fault::Response { status: *status, headers: Vec::new(), body: body.clone() }
            }
            other => other.clone(),
        };
        *self.hits.lock().expect("no panic") += 1;
        Some(found)
    }

    /// Whether a response stops that began at `began`; without it, whether a request does.
    fn stops(&self, request: &str, began: Option<Instant>) -> bool {
        let silenced_until = *self.silenced_until.lock().expect("no panic");
        let fault = self.fault.lock().expect("no panic");
        fault.as_ref().is_some_and(|(text, fault)| {
            let silent =
                began.is_some_and(|began| silenced_until.is_none_or(|until| began < until));
            let stops =
                matches!(fault, Fault::Stall) || (silent && matches!(fault, Fault::Silence));
            stops && request.contains(&**text)
        })
    }

    fn ended(&self, began: Instant) -> bool {
        self.ended_at.lock().expect("no panic").is_some_and(|ended| began < ended)
    }
}

async fn forward(
    State(upstream): State<Upstream>,
    method: Method,
    uri: Uri,
    mut headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let traffic = upstream.state.traffic.clone();
    if !traffic.is_recorded(&method, &uri) {
        return respond(upstream, method, uri, headers, body).await;
    }
    let recording = Recording::begin(traffic, (&method, &uri, &body));
    // Without it the client of the proxy asks for compression itself, and ends it.
    headers.remove(header::ACCEPT_ENCODING);
    recording.finish(respond(upstream, method, uri, headers, body).await).await
}

/// The response to a request, after its fault.
async fn respond(
    upstream: Upstream,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let Upstream { url, state, http } = upstream;
    let text = format!("{method} {uri} {}", String::from_utf8_lossy(&body));
    let mut fault = state.fault(&text);
    while matches!(fault, Some(Fault::Stall)) {
        tokio::time::sleep(Duration::from_millis(20)).await;
        if !state.stops(&text, None) {
            fault = state.fault(&text);
        }
    }
    if let Some(Fault::Response { status, headers, body }) = fault {
        let response = headers
            .into_iter()
            .fold(Response::builder().status(status), |r, (name, value)| r.header(name, value));
        return response
            .header(header::CONTENT_TYPE, "application/json")
            .body(body.into())
            .expect("a response");
    }
    if let Some(Fault::Slow(wait)) = fault {
        tokio::time::sleep(wait).await;
    }
    let began = Instant::now();
    if method != Method::GET {
        let mut writes = state.writes.lock().expect("no panic");
        writes.push((began, format!("{method} {uri}")));
    }
    // Over HTTP/2 the URI has the host.
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut forwarded = http.request(method, format!("{url}{path}")).body(body);
    let of_connection =
        [header::HOST, header::CONNECTION, header::TRANSFER_ENCODING, header::CONTENT_LENGTH];
    for (name, value) in headers.iter().filter(|(name, _)| !of_connection.contains(name)) {
        forwarded = forwarded.header(name, value);
    }
    let response = Response::builder();
    let received = match forwarded.send().await {
        Ok(response) => response,
        Err(error) => {
            return response.status(502).body(error.to_string().into()).expect("a response");
        }
    };
    if let Some(Fault::Late(wait)) = fault {
        tokio::time::sleep(wait).await;
    }
    let mut response = response.status(received.status());
    for name in [header::CONTENT_TYPE, header::RETRY_AFTER, header::CONTENT_ENCODING] {
        if let Some(value) = received.headers().get(&name) {
            response = response.header(name, value);
        }
    }
    let body = match fault {
        Some(Fault::Cut) => {
            let body = received.bytes().await.unwrap_or_default();
            body.slice(..body.len() / 2).into()
        }
        Some(Fault::Replace(from, to)) => {
            let body = received.text().await.unwrap_or_default();
            body.replace(&from, &to).into()
        }
        _ => Body::from_stream(stream(state, text, received.bytes_stream())),
    };
    response.body(body).expect("a response")
}

/// Streams a response, unless the fault stops or ends it.
fn stream<E: Send + 'static>(
    state: Arc<ProxyState>,
    request: String,
    chunks: impl futures::Stream<Item = Result<Bytes, E>> + Send + 'static,
) -> impl futures::Stream<Item = Result<Bytes, E>> + Send {
    let began = Instant::now();
    let ended = {
        let state = state.clone();
        async move {
            while !state.ended(began) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    let chunks = chunks.then(move |chunk| {
        let (state, request) = (state.clone(), request.clone());
        async move {
            while state.stops(&request, Some(began)) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            chunk
        }
    });
    chunks.take_until(Box::pin(ended))
}
