//! What the API server keeps: the objects of each resource by version, and the changes of late.

use super::object::{self, meta};
use super::resource::{self, CONFIG_MAPS, EVENTS, Resource};
use super::{Verb, Write};
use bytes::Bytes;
use http::HeaderValue;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use tokio::sync::Notify;
use tokio::time::Instant;

/// The number of changes of a resource that are kept: a watch from before gets 410.
const HISTORY: usize = 2_000;
/// How long an Event is kept after its last write.
const EVENT_TTL: SignedDuration = SignedDuration::from_hours(1);

/// An object in one version. It never changes.
#[derive(Debug)]
pub(super) struct Stored {
    pub value: Arc<Value>,
    pub version: u64,
    text: OnceLock<Bytes>,
}

impl Stored {
    /// The object as JSON, made once.
    pub fn text(&self) -> Bytes {
        let made = || Bytes::from(serde_json::to_vec(&*self.value).expect("keys are texts"));
        self.text.get_or_init(made).clone()
    }
}

/// A change of an object.
pub(super) struct Change {
    pub version: u64,
    /// When it was made, for delays of watches.
    pub at: Instant,
    pub key: Arc<str>,
    pub before: Option<Arc<Stored>>,
    /// The object; when it was deleted, as it was last, with the version of the deletion.
    pub after: Arc<Stored>,
    pub deleted: bool,
}

/// The objects of one resource.
#[derive(Default)]
pub(super) struct Table {
    /// By `namespace/name`, in etcd's order; by `name` without namespaces.
    pub objects: BTreeMap<Arc<str>, Arc<Stored>>,
    /// The changes after `begin`, in order.
    pub history: VecDeque<Change>,
    /// The version that the history begins after.
    pub begin: u64,
    /// The oldest version that a watch or a page may be asked from. Older changes are kept only for the
    /// watches that are open.
    pub oldest: u64,
    /// The versions that open watches have read up to.
    pub readers: Vec<Weak<AtomicU64>>,
    /// Tells of each change.
    pub changed: Arc<Notify>,
}

/// Who writes, and how.
#[derive(Clone, Copy)]
pub(super) struct By<'a> {
    pub who: &'a Arc<str>,
    pub verb: Verb,
    pub subresource: &'static str,
}

/// The wall clock of the server.
pub(super) type WallClock = Box<dyn Fn() -> Timestamp + Send + Sync>;
/// A function that is told of each write.
pub(super) type Observer = Box<dyn FnMut(&Write) + Send>;

/// All that the server keeps.
pub(super) struct State {
    pub version: u64,
    pub tables: Vec<Table>,
    pub observers: Vec<Observer>,
    /// The requests that it has no model for.
    pub unmodelled: Vec<String>,
    /// Which fields of a ConfigMap belong to whom.
    pub owners: BTreeMap<Arc<str>, super::apply::Owners>,
    now: WallClock,
    uids: u64,
    /// When Events expire, with their keys and versions, in order.
    expiries: VecDeque<(Timestamp, Arc<str>, u64)>,
    /// The present second and its text.
    date: (i64, HeaderValue),
}

/// The key of an object.
pub(super) fn key(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { [namespace, "/", name].concat() }
}

impl State {
    pub fn new(now: WallClock) -> Self {
        Self {
            version: 1,
            tables: resource::ALL.iter().map(|_| Table { oldest: 1, ..Table::default() }).collect(),
            observers: Vec::new(),
            unmodelled: Vec::new(),
            owners: BTreeMap::new(),
            now,
            uids: 0,
            expiries: VecDeque::new(),
            date: (i64::MIN, HeaderValue::from_static("")),
        }
    }

    /// The time by the server's wall clock.
    pub fn now(&self) -> Timestamp {
        (self.now)()
    }

    /// The `Date` of a response.
    pub fn date(&mut self) -> HeaderValue {
        let now = self.now();
        if self.date.0 != now.as_second() {
            let text = now.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
            let value = HeaderValue::from_str(&text).expect("a date is ASCII");
            self.date = (now.as_second(), value);
        }
        self.date.1.clone()
    }

    /// A UID that no other object has.
    pub fn new_uid(&mut self) -> String {
        self.uids += 1;
        format!("00000000-0000-4000-8000-{:012x}", self.uids)
    }

    pub fn table(&self, resource: &Resource) -> &Table {
        &self.tables[resource.index()]
    }

    pub fn find(&self, resource: &Resource, namespace: &str, name: &str) -> Option<&Arc<Stored>> {
        self.table(resource).objects.get(key(namespace, name).as_str())
    }

    /// Writes an object, as its next version.
    pub fn put(&mut self, by: By<'_>, resource: &'static Resource, value: Value) -> Arc<Stored> {
        let key: Arc<str> = key(meta(&value, "namespace"), meta(&value, "name")).into();
        let stored = self.next_version(value);
        let before = self.tables[resource.index()].objects.insert(key.clone(), stored.clone());
        if std::ptr::eq(resource, &EVENTS) {
            let expiry = self.now().checked_add(EVENT_TTL).unwrap_or(Timestamp::MAX);
            self.expiries.push_back((expiry, key.clone(), stored.version));
        }
        self.record(by, resource, key, before, stored.clone(), false);
        stored
    }

    /// Removes an object that is there. Returns it as it was last, with the version of the deletion.
    pub fn remove(
        &mut self,
        by: By<'_>,
        resource: &'static Resource,
        value: &Value,
    ) -> Arc<Stored> {
        let key = key(meta(value, "namespace"), meta(value, "name"));
        let (key, before) = self.tables[resource.index()]
            .objects
            .remove_entry(key.as_str())
            .expect("only what was found is removed");
        if std::ptr::eq(resource, &CONFIG_MAPS) {
            self.owners.remove(&key);
        }
        let last = self.next_version(value.clone());
        self.record(by, resource, key, Some(before), last.clone(), true);
        last
    }

    fn next_version(&mut self, mut value: Value) -> Arc<Stored> {
        self.version += 1;
        object::set_meta(&mut value, "resourceVersion", self.version.to_string().into());
        Arc::new(Stored { value: Arc::new(value), version: self.version, text: OnceLock::new() })
    }

    fn record(
        &mut self,
        by: By<'_>,
        resource: &'static Resource,
        key: Arc<str>,
        before: Option<Arc<Stored>>,
        after: Arc<Stored>,
        deleted: bool,
    ) {
        if !self.observers.is_empty() {
            let write = Write {
                time: self.now(),
                who: by.who.clone(),
                verb: by.verb,
                resource,
                subresource: by.subresource,
                namespace: meta(&after.value, "namespace").to_owned(),
                name: meta(&after.value, "name").to_owned(),
                before: before.as_ref().map(|stored| stored.value.clone()),
                after: (!deleted).then(|| after.value.clone()),
            };
            self.observers.iter_mut().for_each(|observer| observer(&write));
        }
        let table = &mut self.tables[resource.index()];
        if table.history.len() == HISTORY
            && let Some(dropped) = table.history.pop_front()
        {
            table.begin = dropped.version;
            table.oldest = table.oldest.max(table.begin);
        }
        let (version, at) = (after.version, Instant::now());
        table.history.push_back(Change { version, at, key, before, after, deleted });
        table.changed.notify_waiters();
    }

    /// Drops the history, but for what open watches have not read yet: to those, the server has sent it.
    pub fn compact(&mut self) {
        for table in &mut self.tables {
            table.oldest = self.version;
            table.readers.retain(|reader| reader.strong_count() > 0);
            let versions = table.readers.iter().filter_map(Weak::upgrade);
            let read = versions.map(|version| version.load(Ordering::Relaxed)).min();
            let begin = read.unwrap_or(self.version);
            let unread = table.history.partition_point(|change| change.version <= begin);
            table.history.drain(..unread);
            table.begin = table.begin.max(begin);
        }
    }

    /// Removes the Events whose time is over.
    pub fn expire_events(&mut self, who: &Arc<str>) {
        if self.expiries.is_empty() {
            return;
        }
        let now = self.now();
        while self.expiries.front().is_some_and(|(time, ..)| *time <= now)
            && let Some((_, key, version)) = self.expiries.pop_front()
        {
            let found = self.table(&EVENTS).objects.get(&key);
            let Some(expired) = found.filter(|stored| stored.version == version) else { continue };
            let value = expired.value.clone();
            self.remove(By { who, verb: Verb::Delete, subresource: "" }, &EVENTS, &value);
        }
    }

    /// The objects of a resource as they were at a version that the history reaches back to.
    pub fn objects_at(&self, resource: &Resource, version: u64) -> BTreeMap<Arc<str>, Arc<Stored>> {
        let table = self.table(resource);
        let mut objects = table.objects.clone();
        for change in table.history.iter().rev().take_while(|change| change.version > version) {
            match &change.before {
                Some(before) => objects.insert(change.key.clone(), before.clone()),
                None => objects.remove(&change.key),
            };
        }
        objects
    }
}

impl Stored {
    /// An object that is not in a table.
    pub fn detached(value: Value, version: u64) -> Self {
        Self { value: Arc::new(value), version, text: OnceLock::new() }
    }
}
