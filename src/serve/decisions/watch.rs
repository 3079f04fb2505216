//! A watch of decisions. It holds no queue: each time it looks into the ledger for what has changed since, so
//! that a client that reads slowly costs nothing but its place.

use super::super::error::ApiError;
use super::super::layers::LongRunning;
use super::options::{DecisionOptions, invalid_version, is_set, rendered, value};
use super::selection::Selection;

use crate::ledger::api::{GROUP, LEADERSHIP_ANNOTATION, SINCE_ANNOTATION, VERSION};
use crate::ledger::{Change, Ledger, Listed, Position, Scope, Versions, metadata, time};
use crate::watch::AutoscalerRef;
use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use futures::stream;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep_until, timeout_at};

/// How long a watch lasts unless it asks for less: clients go on with another.
const MAX_DURATION: Duration = Duration::from_secs(600);
/// The time between two looks into the ledger.
const INTERVAL: Duration = Duration::from_millis(250);
/// The time between two bookmarks.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(30);
/// The decisions that are rendered at a time.
const PAGE: usize = 200;

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
    /// 400 if they are invalid, 410 if the resource version is one of another leadership, 504 if it is not known
    /// here yet.
    pub fn parse(options: &DecisionOptions, versions: Versions) -> Result<Self, ApiError> {
        let initial = options.send_initial_events.as_ref();
        let ends_with_bookmark = is_set(initial) && is_set(options.allow_watch_bookmarks.as_ref());
        let wanted = match options.resource_version.as_str() {
            // As in kube-apiserver: without a version, or at any, all come first.
            "" | "0" if initial.is_none() || is_set(initial) => {
                return Ok(Self::WithAll { ends_with_bookmark });
            }
            "" | "0" => versions.last,
            text => text.parse().map_err(|_| invalid_version(text))?,
        };
        if wanted > versions.last {
            return Err(ApiError::too_large_resource_version(wanted, versions.last));
        }
        if is_set(initial) {
            return Ok(Self::WithAll { ends_with_bookmark });
        }
        if wanted < versions.began {
            return Err(ApiError::expired(format!(
                "resource version {wanted} is of an earlier leader: list again"
            )));
        }
        Ok(Self::After(wanted))
    }
}

/// A watch.
pub struct Watch {
    ledger: Ledger,
    scope: Scope,
    selection: Selection,
    table: Option<fn(&Value) -> Value>,
    changes: watch::Receiver<u64>,
    /// The resource version up to which all was sent.
    version: u64,
    /// While all that there are are sent: those after this one are left.
    initial: Option<Option<Position>>,
    ends_with_bookmark: bool,
    bookmarks: bool,
    pending: VecDeque<Change>,
    /// Up to where `pending` leads.
    pending_version: u64,
    next_look: Instant,
    next_bookmark: Instant,
    end: Instant,
    is_over: bool,
    _seats: (OwnedSemaphorePermit, OwnedSemaphorePermit),
}

impl Watch {
    /// A watch in these seats.
    pub fn new(
        ledger: Ledger,
        scope: Scope,
        selection: Selection,
        table: Option<fn(&Value) -> Value>,
        seats: (OwnedSemaphorePermit, OwnedSemaphorePermit),
    ) -> Self {
        let now = Instant::now();
        let mut changes = ledger.changes();
        changes.mark_changed();
        Self {
            ledger,
            scope,
            selection,
            table,
            changes,
            version: 0,
            initial: None,
            ends_with_bookmark: false,
            bookmarks: false,
            pending: VecDeque::new(),
            pending_version: 0,
            next_look: now,
            next_bookmark: now + BOOKMARK_INTERVAL,
            end: now + MAX_DURATION,
            is_over: false,
            _seats: seats,
        }
    }

    /// The response, whose body are the events.
    ///
    /// # Errors
    /// 410 if the changes since the resource version are not known.
    pub fn respond(
        mut self,
        begin: Begin,
        options: &DecisionOptions,
    ) -> Result<Response<Body>, ApiError> {
        if let Some(seconds) = options.timeout_seconds.filter(|seconds| *seconds > 0) {
            self.end = Instant::now() + MAX_DURATION.min(Duration::from_secs(seconds));
        }
        self.bookmarks = is_set(options.allow_watch_bookmarks.as_ref());
        match begin {
            Begin::After(version) => {
                self.version = version;
                self.look()?;
            }
            Begin::WithAll { ends_with_bookmark } => {
                self.version = self.ledger.versions().last;
                (self.initial, self.ends_with_bookmark) = (Some(None), ends_with_bookmark);
            }
        }
        let events = stream::unfold(self, async |mut watch| {
            let events = watch.next().await?;
            Some((Ok::<_, Infallible>(events), watch))
        });
        let json = HeaderValue::from_static("application/json");
        let mut response =
            ([(header::CONTENT_TYPE, json)], Body::from_stream(events)).into_response();
        response.extensions_mut().insert(LongRunning);
        Ok(response)
    }

    /// Takes what has changed.
    fn look(&mut self) -> Result<(), ApiError> {
        let versions = self.ledger.versions();
        let expired =
            || ApiError::expired("the changes since then are no longer known: list again");
        if !versions.is_complete {
            return Err(expired());
        }
        let changes = self.ledger.changes_after(&self.scope, self.version);
        let (changes, version) = changes.map_err(|_| expired())?;
        (self.pending, self.pending_version) = (changes.into(), version);
        Ok(())
    }

    /// The next events; none at the end.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.is_over || Instant::now() >= self.end || self.ledger.is_closed() {
                return None;
            }
            if let Some(events) = self.initial_events() {
                if !events.is_empty() {
                    return Some(events);
                }
                continue;
            }
            if let Some(events) = self.pending_events() {
                return Some(events);
            }
            if Instant::now() >= self.next_bookmark {
                self.next_bookmark = Instant::now() + BOOKMARK_INTERVAL;
                if self.bookmarks {
                    return Some(self.bookmark(false));
                }
            }
            sleep_until(self.next_look.min(self.end)).await;
            let until = self.end.min(self.next_bookmark);
            match timeout_at(until, self.changes.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return None,
                Err(_) => continue,
            }
            self.changes.mark_unchanged();
            self.next_look = Instant::now() + INTERVAL;
            if let Err(error) = self.look() {
                self.is_over = true;
                return Some(error_event(&error));
            }
        }
    }

    /// A page of what there was when the watch began.
    fn initial_events(&mut self) -> Option<Bytes> {
        let after = self.initial.take()?;
        let versions = self.ledger.versions();
        if !versions.is_complete || versions.began > self.version {
            self.is_over = true;
            return Some(error_event(&ApiError::expired("another leader has begun: list again")));
        }
        let filter = self.selection.filter();
        let (page, is_more) = self.ledger.list(&self.scope, after.as_ref(), PAGE, filter);
        let mut events = Vec::new();
        for listed in &page {
            self.write(&mut events, "ADDED", &value(&rendered(listed, versions.since)));
        }
        if let Some(Listed { autoscaler, entry }) = page.last().filter(|_| is_more) {
            let AutoscalerRef { kind, key } = &**autoscaler;
            let last = Position { key: key.clone(), kind: *kind, sequence: entry.sequence };
            self.initial = Some(Some(last));
        } else if self.ends_with_bookmark {
            events.extend_from_slice(&self.bookmark(true));
        }
        Some(events.into())
    }

    /// The events of some of the changes that were found.
    fn pending_events(&mut self) -> Option<Bytes> {
        let since = self.ledger.versions().since;
        let mut events = Vec::new();
        let mut count = 0;
        while count < PAGE
            && let Some(change) = self.pending.pop_front()
        {
            match change {
                Change::Set(listed) => {
                    let Listed { autoscaler, entry } = &*listed;
                    if self.selection.selects(autoscaler, entry.sequence) {
                        let kind = if entry.added > self.version { "ADDED" } else { "MODIFIED" };
                        self.write(&mut events, kind, &value(&rendered(&listed, since)));
                        count += 1;
                    }
                }
                Change::Dropped(Position { key, kind, sequence }, version) => {
                    let autoscaler = AutoscalerRef { kind, key };
                    if self.selection.selects(&autoscaler, sequence) {
                        let metadata = metadata(&autoscaler, (sequence, 0, version), since);
                        let object = object("Decision", &json!(metadata));
                        self.write(&mut events, "DELETED", &object);
                        count += 1;
                    }
                }
            }
        }
        if self.pending.is_empty() {
            self.version = self.version.max(self.pending_version);
        }
        (!events.is_empty()).then(|| events.into())
    }

    fn write(&self, events: &mut Vec<u8>, kind: &str, object: &Value) {
        let table = self.table.map(|table| table(object));
        let event = json!({"type": kind, "object": table.as_ref().unwrap_or(object)});
        serde_json::to_writer(&mut *events, &event).expect("an event can be written as JSON");
        events.push(b'\n');
    }

    /// A bookmark: all was sent up to this resource version.
    fn bookmark(&self, ends_initial: bool) -> Bytes {
        let mut metadata = json!({"resourceVersion": self.version.to_string()});
        let versions = self.ledger.versions();
        metadata["annotations"] = json!({
            SINCE_ANNOTATION: time(versions.since),
            LEADERSHIP_ANNOTATION: versions.began.to_string(),
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
        let mut event = serde_json::to_vec(&json!({"type": "BOOKMARK", "object": object}))
            .expect("an event can be written as JSON");
        event.push(b'\n');
        event.into()
    }
}

fn object(kind: &str, metadata: &Value) -> Value {
    json!({"kind": kind, "apiVersion": format!("{GROUP}/{VERSION}"), "metadata": metadata})
}

/// The last event of a watch that can't go on.
fn error_event(error: &ApiError) -> Bytes {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": error.message, "reason": error.reason, "code": error.code.as_u16(),
    });
    let mut event = serde_json::to_vec(&json!({"type": "ERROR", "object": status}))
        .expect("an event can be written as JSON");
    event.push(b'\n');
    event.into()
}
