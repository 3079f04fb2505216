//! Watches: the changes of a resource after a version, one after the other.

use super::ApiServer;
use super::failure::Failure;
use super::request::Query;
use super::resource::Resource;
use super::selection::{Form, Selection};
use super::state::{Change, Stored};
use bytes::Bytes;
use serde_json::json;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How often a watch that asked for bookmarks gets one.
pub const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);

/// A watch that a client has opened. It reads the history of its resource at its own pace.
pub struct Watch {
    server: ApiServer,
    resource: &'static Resource,
    selection: Selection,
    form: Form,
    /// The version that it has read up to.
    version: Arc<AtomicU64>,
    /// Whether the server does not know its version any more.
    is_expired: bool,
    /// What a watch without a version begins with.
    initial: VecDeque<Arc<Stored>>,
    bookmarks: bool,
    timeout: Option<Duration>,
    changed: Arc<Notify>,
}

/// An event of a watch.
#[derive(Clone, Debug)]
pub struct WatchEvent {
    /// The event as JSON, with a line feed; empty if the watch just ends.
    pub line: Bytes,
    /// When the change was made.
    pub at: Instant,
    /// Whether the server ends the watch after it.
    pub is_last: bool,
}

impl Watch {
    pub(super) fn open(
        server: &ApiServer,
        resource: &'static Resource,
        selection: Selection,
        query: &Query<'_>,
        form: Form,
    ) -> Result<Self, Failure> {
        let mut state = server.state();
        let state = &mut *state;
        let table = &mut state.tables[resource.index()];
        let (mut initial, mut version) = (VecDeque::new(), state.version);
        match query.resource_version {
            "" | "0" => {
                let selected = table.objects.iter().filter(|(k, o)| selection.selects(k, &o.value));
                initial.extend(selected.map(|(_, stored)| stored.clone()));
            }
            text => {
                let unparsed = |_| Failure::unmodelled(format_args!("watch from version {text:?}"));
                version = text.parse().map_err(unparsed)?;
            }
        }
        let is_expired = version < table.oldest;
        let version = Arc::new(AtomicU64::new(version));
        if !is_expired {
            table.readers.retain(|reader| reader.strong_count() > 0);
            table.readers.push(Arc::downgrade(&version));
        }
        Ok(Self {
            is_expired,
            server: server.clone(),
            resource,
            selection,
            form,
            version,
            initial,
            bookmarks: query.bookmarks,
            timeout: query.timeout_seconds.map(Duration::from_secs),
            changed: table.changed.clone(),
        })
    }

    /// Its resource.
    pub fn resource(&self) -> &'static Resource {
        self.resource
    }

    /// Whether it gets bookmarks.
    pub fn has_bookmarks(&self) -> bool {
        self.bookmarks
    }

    /// When the server ends it, after its beginning.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Tells of the next changes, once it is enabled.
    pub fn changed(&self) -> Arc<Notify> {
        self.changed.clone()
    }

    /// The next event, if there is one already.
    pub fn next_event(&mut self) -> Option<WatchEvent> {
        if let Some(stored) = self.initial.pop_front() {
            let line = self.line("ADDED", &stored);
            return Some(WatchEvent { line, at: Instant::now(), is_last: false });
        }
        let state = self.server.state();
        let table = state.table(self.resource);
        if self.is_expired {
            return Some(self.expired_at(table.oldest));
        }
        let read = self.version.load(Ordering::Relaxed);
        if read < table.begin {
            // As kube-apiserver does with a client that does not read.
            return Some(WatchEvent { line: Bytes::new(), at: Instant::now(), is_last: true });
        }
        let first = table.history.partition_point(|change| change.version <= read);
        for change in table.history.range(first..) {
            self.version.store(change.version, Ordering::Relaxed);
            if let Some(kind) = self.kind_of(change) {
                // An object that is selected no more is shown as it was last, with the new version.
                let line = match (kind, &change.before) {
                    ("DELETED", Some(before)) if !change.deleted => {
                        let mut value = (*before.value).clone();
                        value["metadata"]["resourceVersion"] = change.version.to_string().into();
                        self.line(kind, &Stored::detached(value, change.version))
                    }
                    _ => self.line(kind, &change.after),
                };
                return Some(WatchEvent { line, at: change.at, is_last: false });
            }
        }
        None
    }

    /// The type of event that a change is to this watch.
    fn kind_of(&self, change: &Change) -> Option<&'static str> {
        let selects = |stored: &Arc<Stored>| self.selection.selects(&change.key, &stored.value);
        let before = change.before.as_ref().is_some_and(selects);
        let after = !change.deleted && selects(&change.after);
        match (before, after) {
            (false, false) => None,
            (false, true) => Some("ADDED"),
            (true, true) => Some("MODIFIED"),
            (true, false) => Some("DELETED"),
        }
    }

    fn line(&self, kind: &str, stored: &Stored) -> Bytes {
        let object = self.form.of(stored);
        let mut line = Vec::with_capacity(object.len() + 40);
        line.extend_from_slice(b"{\"type\":\"");
        line.extend_from_slice(kind.as_bytes());
        line.extend_from_slice(b"\",\"object\":");
        line.extend_from_slice(&object);
        line.extend_from_slice(b"}\n");
        line.into()
    }

    /// A bookmark of the present version. Only a watch that has read all events may be sent it.
    pub fn bookmark(&self) -> Bytes {
        let version = self.server.state().version.max(self.version.load(Ordering::Relaxed));
        let (kind, api_version) = match self.form {
            Form::Whole => (self.resource.kind, self.resource.api_version()),
            Form::Metadata => ("PartialObjectMetadata", "meta.k8s.io/v1".to_owned()),
        };
        let event = json!({"type": "BOOKMARK", "object": {"kind": kind, "apiVersion": api_version,
            "metadata": {"resourceVersion": version.to_string()}}});
        format!("{event}\n").into()
    }

    /// The event of a watch whose version the server does not know any more.
    pub fn expired(&self) -> WatchEvent {
        self.expired_at(self.version.load(Ordering::Relaxed).saturating_add(2))
    }

    fn expired_at(&self, oldest: u64) -> WatchEvent {
        let asked = self.version.load(Ordering::Relaxed);
        let status = Failure::expired(asked, oldest.saturating_sub(1)).status();
        let event = json!({"type": "ERROR", "object": status});
        WatchEvent { line: format!("{event}\n").into(), at: Instant::now(), is_last: true }
    }
}
