//! The two servers, and the same request to both.

use super::normal::Names;
use bytes::Bytes;
use futures::StreamExt;
use http::Request;
use http_body_util::BodyExt;
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use plimsoll_simulation::api_server::{Answer, ApiServer, Watch};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A request, with references to earlier answers.
#[derive(Clone, Debug, Default)]
pub struct Operation {
    pub method: &'static str,
    pub path: String,
    /// The query. `$version` and `$continue` are those of `base`.
    pub query: String,
    pub content: &'static str,
    pub accept: &'static str,
    /// The number of an earlier answer.
    pub base: Option<usize>,
    /// Whether the body is that of `base`, with `body` as a merge patch.
    pub from_base: bool,
    /// The body; `$uid` and `$version` are those of `base`.
    pub body: Value,
}

/// The answer of one server: the status, and the body.
pub type Reply = (u16, Value);

impl Operation {
    fn request(&self, base: Option<&Value>) -> Request<Bytes> {
        let text = |pointer: &str| {
            let found = base.and_then(|base| base.pointer(pointer)).and_then(Value::as_str);
            found.unwrap_or_default().to_owned()
        };
        let names = [
            ("$uid", text("/metadata/uid")),
            ("$version", text("/metadata/resourceVersion")),
            ("$continue", text("/metadata/continue")),
        ];
        let mut query = self.query.clone();
        let mut body = self.body.clone();
        for (name, value) in &names {
            query = query.replace(name, &value.replace('+', "%2B"));
        }
        replace(&mut body, &names);
        if let (true, Some(base)) = (self.from_base, base) {
            let mut whole = base.clone();
            // A scale is sent with its owners, as Plimsoll does.
            if whole["kind"] != "Scale"
                && let Some(metadata) = whole["metadata"].as_object_mut()
            {
                for field in ["managedFields", "deletionTimestamp", "deletionGracePeriodSeconds"] {
                    metadata.remove(field);
                }
            }
            merge(&mut whole, &body);
            body = whole;
        }
        let uri =
            if query.is_empty() { self.path.clone() } else { format!("{}?{query}", self.path) };
        let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        let accept = if self.accept.is_empty() { "application/json" } else { self.accept };
        Request::builder()
            .method(self.method)
            .uri(uri)
            .header("content-type", self.content)
            .header("accept", accept)
            .body(body)
            .expect("a request")
    }
}

fn replace(value: &mut Value, names: &[(&str, String)]) {
    match value {
        Value::String(text) => {
            if let Some((_, known)) = names.iter().find(|(name, _)| name == text) {
                text.clone_from(known);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| replace(item, names)),
        Value::Object(fields) => fields.values_mut().for_each(|value| replace(value, names)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Applies a merge patch.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (field, value) in patch {
        match target.as_object_mut() {
            Some(target) if value.is_null() => drop(target.remove(field)),
            _ => merge(&mut target[field], value),
        }
    }
}

/// A watch of both servers.
struct Watches {
    what: String,
    real: Arc<Mutex<Vec<Value>>>,
    reader: tokio::task::JoinHandle<()>,
    simulated: Box<Watch>,
}

/// Both servers, with the names that they have shown.
pub struct Sides {
    client: Client,
    pub simulated: ApiServer,
    names: [Names; 2],
    watches: Vec<Watches>,
    /// In what the servers differ.
    pub differences: Vec<String>,
}

impl Sides {
    pub fn new(client: Client) -> Self {
        let simulated = ApiServer::new(Timestamp::now);
        Self {
            client,
            simulated,
            names: Default::default(),
            watches: Vec::new(),
            differences: Vec::new(),
        }
    }

    /// Sends a request to both, and compares the answers. Returns both as they are.
    pub async fn send(&mut self, operation: &Operation, base: Option<&[Reply; 2]>) -> [Reply; 2] {
        let of = |side: usize| operation.request(base.map(|base| &base[side].1));
        let response = self.client.send(of(0).map(Body::from)).await.expect("a response");
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        let real = (code, serde_json::from_slice(&body).unwrap_or(Value::Null));
        let Answer::Response(response) = self.simulated.handle(of(1)) else {
            panic!("a watch: {operation:?}")
        };
        let body = serde_json::from_slice(response.body()).unwrap_or(Value::Null);
        let simulated = (response.status().as_u16(), body);
        let normal = [real.clone(), simulated.clone()];
        let replies = self.normalized(normal);
        self.compare(&replies, &format!("{:?}", of(0)));
        [real, simulated]
    }

    fn normalized(&mut self, replies: [Reply; 2]) -> [Reply; 2] {
        let [real, simulated] = &mut self.names;
        let [(code, theirs), (our_code, ours)] = replies;
        [(code, real.normalized(theirs)), (our_code, simulated.normalized(ours))]
    }

    /// Notes in what two answers differ.
    fn compare(&mut self, [real, simulated]: &[Reply; 2], what: &str) {
        if real != simulated {
            let fields = difference("", &real.1, &simulated.1);
            let codes = (real.0, simulated.0);
            self.differences.push(format!("{what}\n{codes:?}\n{fields}"));
        }
    }

    /// Opens a watch of both.
    pub async fn watch(&mut self, operation: &Operation, base: Option<&[Reply; 2]>) {
        let of = |side: usize| operation.request(base.map(|base| &base[side].1));
        let response = self.client.send(of(0).map(Body::from)).await.expect("a response");
        assert_eq!(response.status(), 200, "{operation:?}");
        let real = Arc::new(Mutex::new(Vec::new()));
        let events = real.clone();
        let reader = tokio::spawn(async move {
            let mut body = response.into_body().into_data_stream();
            let mut unread = Vec::new();
            while let Some(Ok(data)) = body.next().await {
                unread.extend_from_slice(&data);
                while let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = unread.drain(..=end).collect();
                    let event: Value = serde_json::from_slice(&line).expect("an event");
                    if event["type"] != "BOOKMARK" {
                        events.lock().expect("no panic").push(event);
                    }
                }
            }
        });
        let what = format!("{:?}", of(0));
        let Answer::Watch { watch: simulated, .. } = self.simulated.handle(of(1)) else {
            panic!("no watch: {operation:?}")
        };
        self.watches.push(Watches { what, real, reader, simulated });
    }

    /// Compares the events of all watches so far, and ends them. Returns the number of events, and how many of them
    /// say that a version has expired.
    pub async fn end_watches(&mut self) -> (usize, usize) {
        let (mut count, mut expired) = (0, 0);
        for Watches { what, real, reader, mut simulated } in std::mem::take(&mut self.watches) {
            let mut ours = Vec::new();
            while let Some(event) = simulated.next_event() {
                ours.push(serde_json::from_slice::<Value>(&event.line).expect("an event"));
                if event.is_last {
                    break;
                }
            }
            for _ in 0..200 {
                if real.lock().expect("no panic").len() >= ours.len() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(25)).await;
            }
            reader.abort();
            let theirs = std::mem::take(&mut *real.lock().expect("no panic"));
            let kinds = |events: &[Value]| -> Vec<String> {
                let kind = |e: &Value| format!("{} {}", e["type"], e["object"]["metadata"]["name"]);
                events.iter().map(kind).collect()
            };
            if kinds(&theirs) != kinds(&ours) {
                let (theirs, ours) = (kinds(&theirs), kinds(&ours));
                self.differences.push(format!("{what}\n{theirs:?}\nis\n{ours:?}"));
            }
            count += theirs.len();
            let is_expired = |e: &&Value| e["type"] == "ERROR" && e["object"]["code"] == 410;
            expired += theirs.iter().filter(is_expired).count();
            for (theirs, ours) in theirs.into_iter().zip(ours) {
                let replies = self.normalized([(200, theirs), (200, ours)]);
                self.compare(&replies, &what);
            }
        }
        (count, expired)
    }
}

fn difference(path: &str, real: &Value, simulated: &Value) -> String {
    if let (Value::Array(a), Value::Array(b)) = (real, simulated)
        && a.len() == b.len()
    {
        let differing = a.iter().zip(b).filter(|(a, b)| a != b);
        return differing.map(|(a, b)| difference(&format!("{path}/*"), a, b)).collect();
    }
    if let (Value::Object(a), Value::Object(b)) = (real, simulated) {
        let fields: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
        let each = fields.into_iter().map(|field| (field, &real[field], &simulated[field]));
        let first = each
            .filter(|(_, a, b)| a != b)
            .map(|(field, a, b)| difference(&format!("{path}/{field}"), a, b));
        return first.collect::<Vec<_>>().join("\n");
    }
    format!("{path}: {real} is {simulated}")
}
