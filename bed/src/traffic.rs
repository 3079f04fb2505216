//! What passed a proxy: requests with their responses, and the lines of watches, each with its time.

use axum::body::{Body, Bytes};
use axum::http::{Method, Response, Uri};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// The most of a response that is kept, in bytes: all that the parts send is far smaller.
const MAX_BODY: usize = 64 << 20;

/// A request, and what came of it.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// When the request had come: the sender can't have sent it later.
    pub arrived: Instant,
    /// Its method.
    pub method: Method,
    /// Its path and query.
    pub path: String,
    /// Its body.
    pub body: Bytes,
    /// The response; none if the sender went away before it: nobody knows what the server did then.
    pub answer: Option<Answer>,
}

/// A response as it went to the sender of the request, with what the fault made of it.
#[derive(Clone, Debug)]
pub struct Answer {
    /// When it went out: the sender can't have known of it earlier.
    pub at: Instant,
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: Bytes,
}

/// A line of a watch as it went out: one event.
#[derive(Clone, Debug)]
pub struct WatchLine {
    /// When it went out.
    pub at: Instant,
    /// The path and query of the watch.
    pub path: String,
    /// The event, as JSON.
    pub line: Vec<u8>,
}

/// What passed.
#[derive(Clone, Debug)]
pub enum Passed {
    /// A request that is no watch, once it is over.
    Exchange(Exchange),
    /// An event of a watch.
    Watch(WatchLine),
}

/// What is recorded: requests whose method and path, with a space between, this is true for.
pub type Filter = fn(&str) -> bool;

/// The record of a proxy. Nothing is recorded before there is a filter.
#[derive(Default)]
pub(crate) struct Traffic {
    filter: Mutex<Option<Filter>>,
    passed: Mutex<Vec<Passed>>,
}

impl Traffic {
    pub(crate) fn record(&self, filter: Filter) {
        *self.filter.lock().expect("no panic") = Some(filter);
    }

    /// What passed since the last call, in the order in which it was over.
    pub(crate) fn take(&self) -> Vec<Passed> {
        std::mem::take(&mut *self.passed.lock().expect("no panic"))
    }

    /// Whether a request is recorded.
    pub(crate) fn is_recorded(&self, method: &Method, uri: &Uri) -> bool {
        let filter = *self.filter.lock().expect("no panic");
        filter.is_some_and(|filter| filter(&format!("{method} {}", path(uri))))
    }

    fn push(&self, passed: Passed) {
        self.passed.lock().expect("no panic").push(passed);
    }
}

/// Over HTTP/2 the URI has the host.
fn path(uri: &Uri) -> &str {
    uri.path_and_query().map_or("/", |path| path.as_str())
}

/// A request under way. It is recorded when this is dropped, with or without an answer.
pub(crate) struct Recording {
    traffic: Arc<Traffic>,
    exchange: Option<Exchange>,
}

impl Recording {
    pub(crate) fn begin(
        traffic: Arc<Traffic>,
        (method, uri, body): (&Method, &Uri, &Bytes),
    ) -> Self {
        let (method, path, body) = (method.clone(), path(uri).to_owned(), body.clone());
        let exchange = Exchange { arrived: Instant::now(), method, path, body, answer: None };
        Self { traffic, exchange: Some(exchange) }
    }

    /// Reads the response, and records it; that of a watch passes, and is recorded line by line.
    pub(crate) async fn finish(mut self, response: Response<Body>) -> Response<Body> {
        let exchange = self.exchange.as_mut().expect("it is not over");
        let (head, body) = response.into_parts();
        if exchange.path.contains("watch=true") && head.status.is_success() {
            let mut lines = Lines { path: exchange.path.clone(), rest: Vec::new() };
            let traffic = self.traffic.clone();
            self.exchange = None;
            use futures::TryStreamExt;
            let body = body.into_data_stream().inspect_ok(move |chunk| lines.push(chunk, &traffic));
            return Response::from_parts(head, Body::from_stream(body));
        }
        let Ok(body) = axum::body::to_bytes(body, MAX_BODY).await else {
            return Response::builder().status(502).body(Body::empty()).expect("a response");
        };
        let (at, status) = (Instant::now(), head.status.as_u16());
        exchange.answer = Some(Answer { at, status, body: body.clone() });
        Response::from_parts(head, body.into())
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if let Some(exchange) = self.exchange.take() {
            self.traffic.push(Passed::Exchange(exchange));
        }
    }
}

/// Splits a watch into lines.
struct Lines {
    path: String,
    rest: Vec<u8>,
}

impl Lines {
    fn push(&mut self, chunk: &[u8], traffic: &Traffic) {
        self.rest.extend_from_slice(chunk);
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line = self.rest.drain(..=end).collect();
            let (at, path) = (Instant::now(), self.path.clone());
            traffic.push(Passed::Watch(WatchLine { at, path, line }));
        }
    }
}
