//! What stands between Plimsoll and Prometheus and can be told to fail.

use super::free_port;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, Response, Uri, header};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// An HTTP proxy to a port of this machine. What it is told to stall it never
/// answers; all else it passes on.
pub struct Proxy {
    pub port: u16,
    stalled: Arc<Mutex<Option<String>>>,
}

#[derive(Clone)]
struct Passing {
    to: u16,
    stalled: Arc<Mutex<Option<String>>>,
    http: reqwest::Client,
}

impl Proxy {
    /// Starts one that passes everything on.
    pub async fn start(to: u16) -> Self {
        let port = free_port();
        let listener =
            tokio::net::TcpListener::bind(("127.0.0.1", port)).await.expect("a free port");
        let stalled: Arc<Mutex<Option<String>>> = Arc::default();
        let state = Passing { to, stalled: stalled.clone(), http: reqwest::Client::new() };
        let router = Router::new().fallback(pass).with_state(state);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { port, stalled }
    }

    /// From now on requests that speak of a word are not answered.
    pub fn stall(&self, word: &str) {
        *self.stalled.lock().expect("no panic") = Some(word.to_owned());
    }

    /// From now on everything is passed on again.
    pub fn pass(&self) {
        *self.stalled.lock().expect("no panic") = None;
    }
}

async fn pass(
    State(state): State<Passing>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response<axum::body::Body> {
    let words = format!("{uri} {}", String::from_utf8_lossy(&body));
    let is_stalled = || {
        let stalled = state.stalled.lock().expect("no panic");
        stalled.as_ref().is_some_and(|word| words.contains(word))
    };
    while is_stalled() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut request =
        state.http.request(method, format!("http://127.0.0.1:{}{uri}", state.to)).body(body);
    if let Some(kind) = headers.get(header::CONTENT_TYPE) {
        request = request.header(header::CONTENT_TYPE, kind);
    }
    let answer = Response::builder();
    match request.send().await {
        Ok(response) => {
            let answer = answer.status(response.status());
            answer.body(response.bytes().await.unwrap_or_default().into())
        }
        Err(error) => answer.status(502).body(error.to_string().into()),
    }
    .expect("an answer")
}
