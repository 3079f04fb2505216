//! What stands between Plimsoll and Prometheus and can be told to fail.

use super::free_port;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, Response, Uri, header};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// An HTTP proxy to a port of this machine. Requests that speak of a word are
/// treated as told; all else is passed on.
pub struct Proxy {
    pub port: u16,
    fault: Shared,
}

type Shared = Arc<Mutex<Option<(String, Fault)>>>;

/// What is done with a request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It is never answered.
    Stall,
    /// It is answered like this.
    Answer { status: u16, headers: Vec<(&'static str, String)>, body: String },
    /// It is passed on, and half of the answer comes back.
    Cut,
}

#[derive(Clone)]
struct Passing {
    to: u16,
    fault: Shared,
    http: reqwest::Client,
}

impl Proxy {
    /// Starts one that passes everything on.
    pub async fn start(to: u16) -> Self {
        let port = free_port();
        let listener =
            tokio::net::TcpListener::bind(("127.0.0.1", port)).await.expect("a free port");
        let fault = Shared::default();
        let state = Passing { to, fault: fault.clone(), http: reqwest::Client::new() };
        let router = Router::new().fallback(pass).with_state(state);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { port, fault }
    }

    /// From now on requests that speak of a word are not answered.
    pub fn stall(&self, word: &str) {
        self.fail(word, Fault::Stall);
    }

    /// From now on requests that speak of a word fail like this.
    pub fn fail(&self, word: &str, fault: Fault) {
        *self.fault.lock().expect("no panic") = Some((word.to_owned(), fault));
    }

    /// From now on everything is passed on again.
    pub fn pass(&self) {
        *self.fault.lock().expect("no panic") = None;
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
    let fault = || {
        let fault = state.fault.lock().expect("no panic").clone();
        fault.filter(|(word, _)| words.contains(word)).map(|(_, fault)| fault)
    };
    while matches!(fault(), Some(Fault::Stall)) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let fault = fault();
    if let Some(Fault::Answer { status, headers, body }) = fault {
        let answer = headers
            .into_iter()
            .fold(Response::builder().status(status), |a, (name, value)| a.header(name, value));
        return answer.body(body.into()).expect("an answer");
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
            let body = response.bytes().await.unwrap_or_default();
            match fault {
                Some(Fault::Cut) => answer.body(body.slice(..body.len() / 2).into()),
                _ => answer.body(body.into()),
            }
        }
        Err(error) => answer.status(502).body(error.to_string().into()),
    }
    .expect("an answer")
}
