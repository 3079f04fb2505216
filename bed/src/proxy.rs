//! What stands between Plimsoll and a server and can be told to fail.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, Response, Uri, header};
use futures::StreamExt;
use plimsoll::serve::{ServingCertificate, TlsOptions, listen};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// An HTTP proxy on this machine. Requests that speak of a word (in their method,
/// address or body) are treated as told; all else is passed on.
pub struct Proxy {
    pub port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    fault: Mutex<Option<(String, Fault)>>,
    /// What was asked that may change something, and when.
    writes: Mutex<Vec<(Instant, String)>>,
    /// The scales that were written.
    scaled: Mutex<Vec<Scaled>>,
    /// How many requests were treated as told.
    failed: Mutex<usize>,
    /// Since when nothing new is silenced.
    heals: Mutex<Option<Instant>>,
    /// When all answers under way were ended last.
    ended: Mutex<Option<Instant>>,
}

/// A scale that was written, and the answer that it was.
#[derive(Clone, Debug)]
pub struct Scaled {
    /// When it was asked for.
    pub at: Instant,
    pub name: String,
    /// The version of the object that it made.
    pub version: String,
}

/// What is done with a request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It is not answered as long as this holds, and what is being answered stands still.
    Stall,
    /// It is passed on, but nothing that comes later on the same answer.
    Silence,
    /// It is passed on after a while.
    Slow(Duration),
    /// It is passed on at once, and its answer comes after a while.
    Late(Duration),
    /// It is answered like this.
    Answer { status: u16, headers: Vec<(&'static str, String)>, body: String },
    /// It is passed on, and half of the answer comes back.
    Cut,
    /// It is passed on, and the answer comes back with one text for another.
    Replace(String, String),
    /// The next so many are answered with this status, and all others passed on.
    Times(usize, u16, String),
}

impl Fault {
    /// What a watch says that is asked to go on from a version that is no longer kept: the
    /// request is answered with 200, and an event of 410 is all that comes.
    pub fn expired_watch() -> Self {
        let status = serde_json::json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "too old resource version: 1 (2)", "reason": "Expired", "code": 410,
        });
        let event = serde_json::json!({"type": "ERROR", "object": status});
        Self::Answer { status: 200, headers: Vec::new(), body: format!("{event}\n") }
    }
}

#[derive(Clone)]
struct Passing {
    to: String,
    shared: Arc<Shared>,
    http: reqwest::Client,
}

impl Proxy {
    /// Starts one before a server without TLS on a port of this machine.
    pub async fn start(to: u16) -> Self {
        Self::before(format!("http://127.0.0.1:{to}"), reqwest::Client::new()).await
    }

    /// Starts one before a server with TLS, which it trusts by its CA.
    pub async fn before_tls(to: u16, ca: &Path) -> Self {
        let ca = std::fs::read(ca).expect("the CA");
        let ca = reqwest::Certificate::from_pem(&ca).expect("a certificate");
        let http = reqwest::Client::builder().tls_certs_only([ca]).build().expect("a client");
        Self::before(format!("https://127.0.0.1:{to}"), http).await
    }

    async fn before(to: String, http: reqwest::Client) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let (router, shared) = Self::router(to, http);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { port, shared }
    }

    /// Starts one that speaks TLS itself, with this certificate.
    pub async fn with_tls(to: u16, certificate: &Path, key: &Path) -> Self {
        let certificate = ServingCertificate::from_files(certificate, key).expect("a certificate");
        let address = ([127, 0, 0, 1], 0).into();
        let listener = listen(address, certificate, TlsOptions::default(), 0).await;
        let listener = listener.expect("a free port");
        let port = listener.address().expect("an address").port();
        let (router, shared) =
            Self::router(format!("http://127.0.0.1:{to}"), reqwest::Client::new());
        tokio::spawn(listener.serve(router, std::future::pending()));
        Self { port, shared }
    }

    fn router(to: String, http: reqwest::Client) -> (Router, Arc<Shared>) {
        let shared = Arc::<Shared>::default();
        let state = Passing { to, shared: shared.clone(), http };
        (Router::new().fallback(pass).with_state(state), shared)
    }

    /// From now on requests that speak of a word are not answered.
    pub fn stall(&self, word: &str) {
        self.fail(word, Fault::Stall);
    }

    /// From now on requests that speak of a word fail like this.
    pub fn fail(&self, word: &str, fault: Fault) {
        *self.shared.failed.lock().expect("no panic") = 0;
        *self.shared.fault.lock().expect("no panic") = Some((word.to_owned(), fault));
    }

    /// From now on everything is passed on again.
    pub fn pass(&self) {
        *self.shared.fault.lock().expect("no panic") = None;
    }

    /// From now on what is asked anew is no longer silenced; what fell silent stays so.
    pub fn only_old(&self) {
        *self.shared.heals.lock().expect("no panic") = Some(Instant::now());
    }

    /// Ends all answers that are under way, such as watches.
    pub fn end_answers(&self) {
        *self.shared.ended.lock().expect("no panic") = Some(Instant::now());
    }

    /// How many requests were treated as told last.
    pub fn failed(&self) -> usize {
        *self.shared.failed.lock().expect("no panic")
    }

    /// The requests with a word in them that may have changed something, and when.
    pub fn writes(&self, word: &str) -> Vec<(Instant, String)> {
        let writes = self.shared.writes.lock().expect("no panic");
        writes.iter().filter(|(_, request)| request.contains(word)).cloned().collect()
    }

    /// The scales that were written since this was asked last.
    pub fn take_scaled(&self) -> Vec<Scaled> {
        std::mem::take(&mut *self.shared.scaled.lock().expect("no panic"))
    }
}

impl Shared {
    /// The fault that holds for a request now.
    fn fault(&self, words: &str) -> Option<Fault> {
        let mut fault = self.fault.lock().expect("no panic");
        let (_, found) = fault.as_mut().filter(|(word, _)| words.contains(&**word))?;
        let found = match found {
            Fault::Times(0, ..) => return None,
            Fault::Times(left, status, body) => {
                *left -= 1;
                Fault::Answer { status: *status, headers: Vec::new(), body: body.clone() }
            }
            other => other.clone(),
        };
        *self.failed.lock().expect("no panic") += 1;
        Some(found)
    }

    /// Whether what is under way since a time stands still.
    fn holds_back(&self, words: &str, silent_since: Option<Instant>) -> bool {
        let heals = *self.heals.lock().expect("no panic");
        let fault = self.fault.lock().expect("no panic");
        fault.as_ref().is_some_and(|(word, fault)| {
            let silent = silent_since.is_some_and(|since| heals.is_none_or(|heals| since < heals));
            let holds =
                matches!(fault, Fault::Stall) || (silent && matches!(fault, Fault::Silence));
            holds && words.contains(&**word)
        })
    }

    /// Notes a scale that was written.
    fn note_scaled(&self, at: Instant, path: &str, answer: &[u8]) {
        let name = path.trim_end_matches("/scale").rsplit('/').next().unwrap_or_default();
        let answer: serde_json::Value = serde_json::from_slice(answer).unwrap_or_default();
        let version = answer["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        let (name, version) = (name.to_owned(), version.to_owned());
        self.scaled.lock().expect("no panic").push(Scaled { at, name, version });
    }

    fn ended(&self, since: Instant) -> bool {
        self.ended.lock().expect("no panic").is_some_and(|ended| since < ended)
    }
}

async fn pass(
    State(state): State<Passing>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let Passing { to, shared, http } = state;
    let words = format!("{method} {uri} {}", String::from_utf8_lossy(&body));
    let mut fault = shared.fault(&words);
    while matches!(fault, Some(Fault::Stall)) {
        tokio::time::sleep(Duration::from_millis(20)).await;
        if !shared.holds_back(&words, None) {
            fault = shared.fault(&words);
        }
    }
    if let Some(Fault::Answer { status, headers, body }) = fault {
        let answer = headers
            .into_iter()
            .fold(Response::builder().status(status), |a, (name, value)| a.header(name, value));
        return answer
            .header(header::CONTENT_TYPE, "application/json")
            .body(body.into())
            .expect("an answer");
    }
    if let Some(Fault::Slow(wait)) = fault {
        tokio::time::sleep(wait).await;
    }
    let asked = Instant::now();
    let scales = method == Method::PUT && uri.path().ends_with("/scale");
    if method != Method::GET {
        let mut writes = shared.writes.lock().expect("no panic");
        writes.push((asked, format!("{method} {uri}")));
    }
    // Over HTTP/2 an address has the host in it, too.
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = http.request(method, format!("{to}{path}")).body(body);
    let own = [header::HOST, header::CONNECTION, header::TRANSFER_ENCODING, header::CONTENT_LENGTH];
    for (name, value) in headers.iter().filter(|(name, _)| !own.contains(name)) {
        request = request.header(name, value);
    }
    let answer = Response::builder();
    let answered = match request.send().await {
        Ok(answered) => answered,
        Err(error) => {
            return answer.status(502).body(error.to_string().into()).expect("an answer");
        }
    };
    if let Some(Fault::Late(wait)) = fault {
        tokio::time::sleep(wait).await;
    }
    let mut answer = answer.status(answered.status());
    for name in [header::CONTENT_TYPE, header::RETRY_AFTER, header::CONTENT_ENCODING] {
        if let Some(value) = answered.headers().get(&name) {
            answer = answer.header(name, value);
        }
    }
    let body = match fault {
        Some(Fault::Cut) => {
            let body = answered.bytes().await.unwrap_or_default();
            body.slice(..body.len() / 2).into()
        }
        Some(Fault::Replace(from, to)) => {
            let body = answered.text().await.unwrap_or_default();
            body.replace(&from, &to).into()
        }
        _ if scales && answered.status().is_success() => {
            let body = answered.bytes().await.unwrap_or_default();
            shared.note_scaled(asked, uri.path(), &body);
            body.into()
        }
        _ => Body::from_stream(flowing(shared, words, answered.bytes_stream())),
    };
    answer.body(body).expect("an answer")
}

/// An answer as it comes, unless it is held back or ended.
fn flowing<E: Send + 'static>(
    shared: Arc<Shared>,
    words: String,
    chunks: impl futures::Stream<Item = Result<Bytes, E>> + Send + 'static,
) -> impl futures::Stream<Item = Result<Bytes, E>> + Send {
    let since = Instant::now();
    let over = {
        let shared = shared.clone();
        async move {
            while !shared.ended(since) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    let chunks = chunks.then(move |chunk| {
        let (shared, words) = (shared.clone(), words.clone());
        async move {
            while shared.holds_back(&words, Some(since)) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            chunk
        }
    });
    chunks.take_until(Box::pin(over))
}
