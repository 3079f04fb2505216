//! An API server in memory: it answers as kube-apiserver does to what Plimsoll asks, and the world of
//! the simulation writes its objects directly. It has no clock, no chance and no task of its own.
//!
//! `bed/tests/e2e/simulated_api_server.rs` compares it with the real one.
//!
//! | modelled | as |
//! |---|---|
//! | get, list, watch, create, replace, delete | of all [`resource::ALL`]; objects whole or their metadata |
//! | lists | selectors of labels, of name and namespace; pages of one version; version 0 |
//! | watches | from a version, or from all objects; bookmarks, `ERROR` 410 on the stream, time limit |
//! | merge patch, JSON patch | of an object and of its status; `add`, `remove`, `replace`, `test` |
//! | server-side apply | of ConfigMaps, with force: labels, annotations and data have owners |
//! | `/scale` | get and replace |
//! | refusals | NotFound, AlreadyExists, Conflict, Invalid (UID, version, replicas), Expired, the end of a namespace |
//! | preconditions | UID and version, in bodies and in the options of a deletion |
//! | generation, finalizers, grace of pods, expiry of Events | as in kube-apiserver |
//! | discovery | aggregated and not; `/version` |
//!
//! | not modelled | what happens |
//! |---|---|
//! | other paths, parameters and forms; strategic merge patches; `move` and `copy`; deletion of collections; `generateName`; dry runs; other apply; other propagation than in the background | 501, and a line in [`ApiServer::unmodelled`] |
//! | defaults and validation of specs, `managedFields`, users and permissions, admission webhooks | objects are taken as they are |
//! | garbage collection, controllers, kubelets | the world's |
//! | a write of a scale with the replicas that are there | no new version; the real one may write the owners of the field |
//! | watches of Events after a compaction | as of other resources; the real one words its refusal otherwise |

mod apply;
mod discovery;
mod failure;
mod handle;
mod json_patch;
mod list;
mod network;
mod object;
mod request;
pub mod resource;
mod scale;
mod selection;
mod state;
#[cfg(test)]
mod tests;
mod watch;
mod writes;

pub use failure::Failure;
pub use handle::Answer;
pub use network::{Asked, Body, Delivery, Fate, Faultless, Faults, Network};
pub use resource::Resource;
pub use watch::{BOOKMARK_INTERVAL, Watch, WatchEvent};
pub use writes::{DeleteOptions, Part};

use jiff::Timestamp;
use serde_json::Value;
use state::{State, key};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use writes::Target;

/// An API server. Cheap to clone; clones are the same server.
#[derive(Clone)]
pub struct ApiServer {
    state: Arc<Mutex<State>>,
    /// Who writes directly.
    who: Arc<str>,
}

/// The verb of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verb {
    /// A create.
    Create,
    /// A replace.
    Update,
    /// A merge patch or a JSON patch.
    Patch,
    /// A server-side apply.
    Apply,
    /// A deletion, or its begin.
    Delete,
}

/// A write that was carried out and changed something.
#[derive(Clone, Debug)]
pub struct Write {
    /// When, by the server's wall clock.
    pub time: Timestamp,
    /// Who: the `User-Agent` of the client.
    pub who: Arc<str>,
    /// The verb.
    pub verb: Verb,
    /// The resource.
    pub resource: &'static Resource,
    /// The subresource; empty for the object itself.
    pub subresource: &'static str,
    /// The namespace of the object.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
    /// The object before; none if it was created.
    pub before: Option<Arc<Value>>,
    /// The object after; none if it is gone.
    pub after: Option<Arc<Value>>,
}

impl ApiServer {
    /// A server without objects, with this wall clock.
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        let state = Arc::new(Mutex::new(State::new(Box::new(now))));
        Self { state, who: "world".into() }
    }

    /// The same server, written by another name.
    #[must_use]
    pub fn named(&self, who: &str) -> Self {
        Self { state: self.state.clone(), who: who.into() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn target<'a>(
        &'a self,
        resource: &'static Resource,
        namespace: &'a str,
        name: &'a str,
        part: Part,
    ) -> Target<'a> {
        Target { who: &self.who, resource, namespace, name, part }
    }

    /// Creates an object, without its status, as POST does.
    ///
    /// # Errors
    /// As the API server refuses it.
    pub fn create(
        &self,
        resource: &'static Resource,
        object: Value,
    ) -> Result<Arc<Value>, Failure> {
        let namespace = object::meta(&object, "namespace").to_owned();
        let target = self.target(resource, &namespace, "", Part::Main);
        self.state().create(&target, object).map(|stored| stored.value.clone())
    }

    /// An object, if it is there.
    pub fn get(
        &self,
        resource: &'static Resource,
        namespace: &str,
        name: &str,
    ) -> Option<Arc<Value>> {
        self.state().find(resource, namespace, name).map(|stored| stored.value.clone())
    }

    /// The objects of a namespace, or of all (empty), in the order of their keys.
    pub fn list(&self, resource: &'static Resource, namespace: &str) -> Vec<Arc<Value>> {
        let prefix = if namespace.is_empty() { String::new() } else { key(namespace, "") };
        let state = self.state();
        let range = state
            .table(resource)
            .objects
            .range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded));
        let of_namespace = range.take_while(|(key, _)| key.starts_with(&prefix));
        of_namespace.map(|(_, stored)| stored.value.clone()).collect()
    }

    /// Changes an object or its status, as a replace of the present version does. Nothing is written if
    /// `change` leaves it as it is.
    ///
    /// # Errors
    /// As the API server refuses it.
    pub fn edit(
        &self,
        resource: &'static Resource,
        part: Part,
        (namespace, name): (&str, &str),
        change: impl FnOnce(&mut Value),
    ) -> Result<Arc<Value>, Failure> {
        let mut state = self.state();
        let found = state.find(resource, namespace, name);
        let old = found.cloned().ok_or_else(|| Failure::not_found(resource, name))?;
        let mut new = (*old.value).clone();
        change(&mut new);
        let target = self.target(resource, namespace, name, part);
        state.update(&target, Verb::Update, &old, new).map(|stored| stored.value.clone())
    }

    /// Deletes an object, as DELETE does: a pod that runs gets its time of grace, an object with
    /// finalizers and a namespace wait for them.
    ///
    /// # Errors
    /// As the API server refuses it.
    pub fn delete(
        &self,
        resource: &'static Resource,
        (namespace, name): (&str, &str),
        options: &DeleteOptions,
    ) -> Result<Arc<Value>, Failure> {
        let target = self.target(resource, namespace, name, Part::Main);
        self.state().delete(&target, options).map(|deleted| deleted.object.value.clone())
    }

    /// Removes an object at once, with no grace and whatever its finalizers: as a kubelet does with a
    /// pod that has ended, and the namespace controller with a namespace that is empty. Returns whether
    /// it was there.
    pub fn remove(&self, resource: &'static Resource, namespace: &str, name: &str) -> bool {
        let mut state = self.state();
        let Some(old) = state.find(resource, namespace, name).cloned() else { return false };
        let by = state::By { who: &self.who, verb: Verb::Delete, subresource: "" };
        state.remove(by, resource, &old.value);
        true
    }

    /// Drops the history: a watch from before gets an `ERROR` event of code 410, a next page of before
    /// 410. Watches that are open have been sent what they have not received yet, and go on.
    pub fn compact(&self) {
        self.state().compact();
    }

    /// The version of the last write.
    pub fn version(&self) -> u64 {
        self.state().version
    }

    /// Has a function called at each write, in their order. It runs under the lock of the server, and
    /// must not ask it.
    pub fn observe(&self, observer: impl FnMut(&Write) + Send + 'static) {
        self.state().observers.push(Box::new(observer));
    }

    /// The requests so far that the server has no model for: each was answered with 501. There must be
    /// none.
    pub fn unmodelled(&self) -> Vec<String> {
        self.state().unmodelled.clone()
    }
}
