//! An API server for unit tests, which answers by a closure and remembers what
//! it was asked.

use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

/// A request that was made.
#[derive(Clone, Debug)]
pub struct Request {
    /// Method and path, without the query.
    pub line: String,
    /// The query.
    pub query: String,
    /// The body; null where it is no JSON.
    pub body: Value,
}

/// What was asked, in its order.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<Request>>>);

impl Log {
    /// The requests whose line begins with this.
    pub fn of(&self, line: &str) -> Vec<Request> {
        let all = self.0.lock().unwrap();
        all.iter().filter(|request| request.line.starts_with(line)).cloned().collect()
    }
}

/// A client of an API server that gives these answers: a status and a body; with
/// status 0 it does not answer. It has no Lease, and does not log requests for it.
pub fn api(answer: impl FnMut(&Request) -> (u16, Value) + Send + 'static) -> (Client, Log) {
    let (log, answer) = (Log::default(), Arc::new(Mutex::new(answer)));
    let asked = log.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (asked, answer) = (asked.clone(), answer.clone());
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
            let (code, body) = answer.lock().unwrap()(&request);
            asked.0.lock().unwrap().push(request);
            if code == 0 {
                std::future::pending::<()>().await;
            }
            let response = http::Response::builder().status(code);
            Ok::<_, kube::Error>(response.body(Body::from(body.to_string().into_bytes())).unwrap())
        }
    });
    (Client::new(service, "default"), log)
}

/// A failure as the API server tells it.
pub fn failure(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": message});
    (code, status)
}
