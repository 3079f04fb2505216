//! A watch of decisions. It holds no queue: when the client can take more, it looks into the ledger for a page of what
//! has changed since, so that a client that reads slowly costs nothing but its place and that page.

use super::super::body::LongRunning;
use super::super::error::ApiError;
use super::options::{DecisionOptions, is_set, rendered, value};
use super::selection::Selection;
use super::table;
use crate::ledger::api::{GROUP, LEADERSHIP_ANNOTATION, SINCE_ANNOTATION, VERSION};
use crate::ledger::{
    Change, ChangesAfter, Ledger, Listed, Position, Scope, Versions, metadata, time,
};
use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use futures::stream;
use serde::Serialize;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep_until, timeout_at};

/// How long a watch lasts unless it asks for less: clients continue with another. One of a replica has the time to copy
/// a large ledger.
const MAX_DURATION: Duration = Duration::from_secs(600);
const MAX_DURATION_OF_REPLICA: Duration = Duration::from_secs(3600);
/// The time between two looks into the ledger, once all was sent.
const INTERVAL: Duration = Duration::from_millis(250);
/// The time between two bookmarks.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(30);

/// With what a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// With the changes after this resource version.
    After(u64),
    /// With all that there are, and a bookmark that they were all, if asked for.
    WithAll { ends_with_bookmark: bool },
}

impl Begin {
    /// From the parameters of a watch.
    ///
    /// # Errors
    /// 400 if they are invalid, 504 if the resource version is not known here yet.
    pub fn parse(options: &DecisionOptions, versions: Versions) -> Result<Self, ApiError> {
        let initial = options.send_initial_events.as_ref();
        let ends_with_bookmark = is_set(initial) && is_set(options.allow_watch_bookmarks.as_ref());
        let wanted = match options.version()? {
            // As in kube-apiserver: without a version, or at any, all come first.
            None if initial.is_none() || is_set(initial) => {
                return Ok(Self::WithAll { ends_with_bookmark });
            }
            None => versions.last,
            Some(wanted) => wanted,
        };
        if wanted > versions.last {
            return Err(ApiError::too_large_resource_version(wanted, versions.last));
        }
        if is_set(initial) {
            return Ok(Self::WithAll { ends_with_bookmark });
        }
        // Whether the changes since then are known is told by the first event.
        Ok(Self::After(wanted))
    }
}

/// A watch.
pub struct Watch {
    ledger: Ledger,
    scope: Scope,
    selection: Selection,
    /// The object of a row, if it is of tables.
    table: Option<fn(&Value) -> Value>,
    /// Whether the columns were sent: as in kube-apiserver, the first table has them.
    has_columns: bool,
    changes: watch::Receiver<u64>,
    /// The resource version up to which all was sent.
    version: u64,
    /// The last one up to which there was nothing else: what was added after it may not have been sent.
    known: u64,
    /// With which the leadership began that it is of.
    began: u64,
    /// While all that there are are sent: those after this one are left.
    initial: Option<Option<Position>>,
    ends_with_bookmark: bool,
    bookmarks: bool,
    next_look: Instant,
    next_bookmark: Instant,
    end: Instant,
    is_over: bool,
    _seats: Vec<OwnedSemaphorePermit>,
}

#[derive(Serialize)]
struct Event<'a, T> {
    r#type: &'a str,
    object: &'a T,
}

impl Watch {
    /// A watch in these seats.
    pub fn new(
        ledger: Ledger,
        scope: Scope,
        selection: Selection,
        table: Option<fn(&Value) -> Value>,
        seats: Vec<OwnedSemaphorePermit>,
    ) -> Self {
        let now = Instant::now();
        let changes = ledger.changes();
        Self {
            ledger,
            scope,
            selection,
            table,
            has_columns: false,
            changes,
            version: 0,
            known: 0,
            began: 0,
            initial: None,
            ends_with_bookmark: false,
            bookmarks: false,
            next_look: now,
            next_bookmark: now + BOOKMARK_INTERVAL,
            end: now + MAX_DURATION,
            is_over: false,
            _seats: seats,
        }
    }

    /// The response, whose body are the events. As with kube-apiserver, 410 is one of them, if the changes since the
    /// resource version are not known: clients such as kube's list again after it, but not after a status of 410.
    pub fn respond(
        mut self,
        begin: Begin,
        versions: Versions,
        options: &DecisionOptions,
        is_replica: bool,
    ) -> Response<Body> {
        let now = Instant::now();
        let longest = if is_replica { MAX_DURATION_OF_REPLICA } else { MAX_DURATION };
        let wanted = options.timeout_seconds.filter(|seconds| *seconds > 0);
        self.end =
            now + wanted.map_or(longest, |seconds| longest.min(Duration::from_secs(seconds)));
        self.bookmarks = is_set(options.allow_watch_bookmarks.as_ref());
        self.began = versions.began;
        match begin {
            Begin::After(version) => self.version = version,
            Begin::WithAll { ends_with_bookmark } => {
                self.version = versions.last;
                (self.initial, self.ends_with_bookmark) = (Some(None), ends_with_bookmark);
            }
        }
        self.known = self.version;
        let events = stream::unfold(self, async |mut watch| {
            let events = watch.next().await?;
            Some((Ok::<_, Infallible>(events), watch))
        });
        let json = HeaderValue::from_static("application/json");
        let mut response =
            ([(header::CONTENT_TYPE, json)], Body::from_stream(events)).into_response();
        response.extensions_mut().insert(LongRunning);
        response
    }

    /// The next events; none at the end.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.is_over || Instant::now() >= self.end {
                return None;
            }
            // Once no more is recorded, what is left of the changes is told of, but no list begins.
            let is_closed = self.ledger.is_closed();
            if is_closed && self.initial.is_some() {
                return None;
            }
            // A replica that does not hear from the leader has nothing to tell.
            let versions = self.ledger.versions().ok()?;
            // It is of another leadership.
            if versions.began != self.began || self.version < versions.began {
                self.is_over = true;
                return Some(error_event(&expired()));
            }
            if let Some(after) = self.initial.take() {
                let events = self.initial_events(after, versions);
                if events.is_empty() {
                    continue;
                }
                return Some(events.into());
            }
            if !is_closed {
                tokio::select! {
                    () = sleep_until(self.next_look.min(self.end)) => {}
                    () = self.ledger.closed() => continue,
                }
            }
            self.changes.mark_unchanged();
            let filter = self.selection.filter();
            let namespace = self.scope.namespace.as_ref();
            let found = self.ledger.changes_after(self.version, |of| {
                // The changes of other namespaces cost a tenant's selector nothing: others wait meanwhile.
                let is_within = namespace.is_none_or(|name| *name == of.key.namespace);
                is_within.then(|| filter(of)).flatten()
            });
            drop(filter);
            let Ok(ChangesAfter { changes, version, is_all }) = found else {
                self.is_over = true;
                return Some(error_event(&expired()));
            };
            let events = self.events(changes, versions);
            self.version = version;
            if is_all {
                self.known = version;
                self.is_over = is_closed;
                self.next_look = Instant::now() + INTERVAL;
            }
            if !events.is_empty() {
                return Some(events.into());
            }
            if !is_all || self.is_over {
                continue;
            }
            if Instant::now() >= self.next_bookmark {
                self.next_bookmark = Instant::now() + BOOKMARK_INTERVAL;
                if self.bookmarks {
                    return Some(self.bookmark(false));
                }
            }
            let until = self.end.min(self.next_bookmark);
            tokio::select! {
                changed = timeout_at(until, self.changes.changed()) => if let Ok(Err(_)) = changed {
                    return None;
                },
                () = self.ledger.closed() => {}
            }
        }
    }

    /// A page of what there was when the watch began.
    fn initial_events(&mut self, after: Option<Position>, versions: Versions) -> Vec<u8> {
        let page = self.ledger.list(&self.scope, after.as_ref(), self.selection.filter());
        let mut events = Vec::new();
        for listed in &page.found {
            self.write_entry(&mut events, "ADDED", listed, versions);
        }
        if page.next.is_some() {
            self.initial = Some(page.next);
        } else if self.ends_with_bookmark {
            events.extend_from_slice(&self.bookmark(true));
        }
        events
    }

    /// The events of changes.
    fn events(&mut self, changes: Vec<Change>, versions: Versions) -> Vec<u8> {
        let mut events = Vec::new();
        for change in changes {
            match change {
                Change::Set(listed) => {
                    let kind = if listed.entry.added > self.known { "ADDED" } else { "MODIFIED" };
                    self.write_entry(&mut events, kind, &listed, versions);
                }
                Change::Dropped { autoscaler, sequence, first, version } => {
                    // Who reads tables would take the row for a decision.
                    if self.table.is_none() && self.selection.selects(&autoscaler, sequence) {
                        let stamps = (sequence, first, version);
                        let metadata = metadata(&autoscaler, stamps, versions.since);
                        write(&mut events, "DELETED", &object("Decision", &json!(metadata)));
                    }
                }
            }
        }
        events
    }

    fn write_entry(
        &mut self,
        events: &mut Vec<u8>,
        kind: &str,
        listed: &Listed,
        versions: Versions,
    ) {
        if !self.selection.selects(&listed.autoscaler, listed.entry.sequence) {
            return;
        }
        let decision = rendered(listed, versions.since);
        match self.table {
            None => write(events, kind, &decision),
            Some(object) => {
                let columns = match std::mem::replace(&mut self.has_columns, true) {
                    false => table::columns(),
                    true => json!([]),
                };
                write(events, kind, &table::of(&value(&decision), object, columns));
            }
        }
    }

    /// A bookmark: all was sent up to this resource version.
    fn bookmark(&self, ends_initial: bool) -> Bytes {
        let mut metadata = json!({"resourceVersion": self.version.to_string()});
        let since = self.ledger.versions().map_or(0, |versions| versions.since);
        metadata["annotations"] = json!({
            SINCE_ANNOTATION: time(since),
            LEADERSHIP_ANNOTATION: self.began.to_string(),
        });
        if ends_initial {
            metadata["annotations"]["k8s.io/initial-events-end"] = "true".into();
        }
        let object = match self.table {
            None => object("Decision", &metadata),
            Some(_) => json!({
                "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {
                    "resourceVersion": self.version.to_string()},
                "columnDefinitions": [],
                "rows": [{"cells": [], "object": {
                    "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                    "metadata": metadata}}],
            }),
        };
        let mut event = Vec::new();
        write(&mut event, "BOOKMARK", &object);
        event.into()
    }
}

fn expired() -> ApiError {
    ApiError::expired("the changes since then are no longer known: list again")
}

fn write(events: &mut Vec<u8>, kind: &str, object: &impl Serialize) {
    let event = Event { r#type: kind, object };
    serde_json::to_writer(&mut *events, &event).expect("an event can be written as JSON");
    events.push(b'\n');
}

fn object(kind: &str, metadata: &Value) -> Value {
    json!({"kind": kind, "apiVersion": format!("{GROUP}/{VERSION}"), "metadata": metadata})
}

/// The last event of a watch that can't continue.
fn error_event(error: &ApiError) -> Bytes {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": error.message, "reason": error.reason, "code": error.code.as_u16(),
    });
    let mut event = Vec::new();
    write(&mut event, "ERROR", &status);
    event.into()
}
