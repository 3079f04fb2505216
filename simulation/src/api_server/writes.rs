//! Creates, updates, patches and deletions, in the order of kube-apiserver's checks.

use super::failure::Failure;
use super::object::{
    grow_generation, has_finalizers, is_terminating, merge, meta, prepare_update, set, set_meta,
    tidy,
};
use super::resource::{Generation, NAMESPACES, PODS, Resource};
use super::state::{By, State, Stored};
use super::{Verb, json_patch};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::sync::Arc;

/// The part of an object that a write is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All but the status.
    Main,
    /// The status.
    Status,
    /// The replicas.
    Scale,
}

impl Part {
    /// The name of the subresource; empty for the object itself.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Main => "",
            Self::Status => "status",
            Self::Scale => "scale",
        }
    }
}

/// A form of patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PatchForm {
    /// A JSON merge patch.
    Merge,
    /// A JSON patch: a list of operations.
    Json,
}

/// The object that a request is about, and who sends it.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub who: &'a Arc<str>,
    pub resource: &'static Resource,
    pub namespace: &'a str,
    pub name: &'a str,
    pub part: Part,
}

impl<'a> Target<'a> {
    fn by(&self, verb: Verb) -> By<'a> {
        By { who: self.who, verb, subresource: self.part.name() }
    }

    fn not_found(&self) -> Failure {
        Failure::not_found(self.resource, self.name)
    }
}

/// The options of a deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// The UID that the object must have.
    pub uid: Option<String>,
    /// The `resourceVersion` that the object must have.
    pub resource_version: Option<String>,
    /// The time that a pod gets to end, in seconds; without it, what its spec says.
    pub grace_period_seconds: Option<i64>,
}

/// The outcome of a deletion.
pub(super) struct Deleted {
    /// The object as it was last, or as it waits for its end.
    pub object: Arc<Stored>,
    pub gone: bool,
}

/// A time as metadata has it: RFC 3339, in whole seconds.
pub(super) fn time_text(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

impl State {
    /// Creates an object.
    pub fn create(
        &mut self,
        target: &Target<'_>,
        mut object: Value,
    ) -> Result<Arc<Stored>, Failure> {
        let Target { resource, namespace, .. } = *target;
        self.check_body(target, &object)?;
        let name = meta(&object, "name").to_owned();
        self.check_namespace(resource, namespace, &name)?;
        if name.is_empty() {
            return Err(match meta(&object, "generateName") {
                "" => {
                    let why = "name or generateName is required";
                    let field = ("FieldValueRequired", &*format!("Required value: {why}"));
                    Failure::invalid((resource.group, resource.kind), "", "metadata.name", field)
                }
                _ => Failure::unmodelled("generateName"),
            });
        }
        if !meta(&object, "resourceVersion").is_empty() {
            return Err(Failure::new(
                500,
                "",
                "resourceVersion should not be set on objects to be created",
            ));
        }
        if let Some(found) = self.find(resource, namespace, &name) {
            let mut failure = Failure::already_exists(resource, &name);
            if is_terminating(&found.value) {
                failure.message.insert_str(0, "object is being deleted: ");
            }
            return Err(failure);
        }
        tidy(resource, &mut object);
        let system = [
            ("namespace", if namespace.is_empty() { Value::Null } else { namespace.into() }),
            ("uid", self.new_uid().into()),
            ("creationTimestamp", time_text(self.now()).into()),
            ("deletionTimestamp", Value::Null),
            ("deletionGracePeriodSeconds", Value::Null),
            (
                "generation",
                match resource.generation {
                    Generation::Never => Value::Null,
                    Generation::Spec | Generation::SpecOrAnnotations | Generation::AllButStatus => {
                        1.into()
                    }
                },
            ),
        ];
        for (field, value) in system {
            set_meta(&mut object, field, value);
        }
        set(&mut object, "apiVersion", resource.api_version().into());
        set(&mut object, "kind", resource.kind.into());
        if resource.status {
            set(&mut object, "status", (resource.new_status)());
        }
        if std::ptr::eq(resource, &NAMESPACES) {
            set(&mut object, "spec", json!({"finalizers": ["kubernetes"]}));
            object["metadata"]["labels"]["kubernetes.io/metadata.name"] = name.into();
        }
        Ok(self.put(target.by(Verb::Create), resource, object))
    }

    /// Replaces an object, or a part of it. Returns whether it was created.
    pub fn replace(
        &mut self,
        target: &Target<'_>,
        mut object: Value,
    ) -> Result<(Arc<Stored>, bool), Failure> {
        let Target { resource, namespace, name, part, .. } = *target;
        self.check_body(target, &object)?;
        let given = meta(&object, "name");
        if given.is_empty() {
            set_meta(&mut object, "name", name.into());
        }
        let uid = meta(&object, "uid");
        let Some(old) = self.find(resource, namespace, name).cloned() else {
            if !resource.create_on_put || part != Part::Main {
                return Err(target.not_found());
            }
            if !uid.is_empty() {
                return Err(Failure::precondition(resource, (namespace, name), (uid, "")));
            }
            set_meta(&mut object, "resourceVersion", Value::Null);
            return self.create(target, object).map(|stored| (stored, true));
        };
        let old_uid = meta(&old.value, "uid");
        if !uid.is_empty() && uid != old_uid {
            return Err(Failure::precondition(resource, (namespace, name), (uid, old_uid)));
        }
        let version = meta(&object, "resourceVersion");
        if version.is_empty() && !resource.unconditional {
            let text = "Invalid value: 0: must be specified for an update";
            let (of, field) = ((resource.group, resource.plural), "metadata.resourceVersion");
            return Err(Failure::invalid(of, name, field, ("FieldValueInvalid", text)));
        }
        tidy(resource, &mut object);
        self.update(target, Verb::Update, &old, object).map(|stored| (stored, false))
    }

    /// Patches an object, or a part of it.
    pub fn patch(
        &mut self,
        target: &Target<'_>,
        form: PatchForm,
        patch: &Value,
    ) -> Result<Arc<Stored>, Failure> {
        let Target { resource, namespace, name, .. } = *target;
        let old =
            self.find(resource, namespace, name).cloned().ok_or_else(|| target.not_found())?;
        let mut object = (*old.value).clone();
        match form {
            PatchForm::Merge => merge(&mut object, patch),
            PatchForm::Json => json_patch::apply(&mut object, patch)?,
        }
        self.check_body(target, &object)?;
        tidy(resource, &mut object);
        let (uid, old_uid) = (meta(&object, "uid"), meta(&old.value, "uid"));
        let version = meta(&object, "resourceVersion");
        let is_present = version.is_empty() || version == meta(&old.value, "resourceVersion");
        // Of a patch of the status of a custom resource, the UID is not looked at.
        let is_looked_at = !(resource.custom && target.part == Part::Status);
        if !uid.is_empty() && uid != old_uid && is_present && is_looked_at {
            return Err(Failure::other_uid(resource, name, uid));
        }
        self.update(target, Verb::Patch, &old, object)
    }

    /// Writes a new state of an object, unless it is the old one. Its version must be the old one's, or
    /// empty.
    pub(super) fn update(
        &mut self,
        target: &Target<'_>,
        verb: Verb,
        old: &Stored,
        mut new: Value,
    ) -> Result<Arc<Stored>, Failure> {
        let Target { resource, namespace, name, .. } = *target;
        let version = meta(&new, "resourceVersion");
        if !version.is_empty() && version != meta(&old.value, "resourceVersion") {
            return Err(Failure::modified(resource, name));
        }
        prepare_update(resource, target.part == Part::Status, &mut new, &old.value);
        // An apply that changes only what the manager owns changes `managedFields`.
        if new == *old.value && verb != Verb::Apply {
            let found = self.find(resource, namespace, name);
            return Ok(found.expect("it was found just now").clone());
        }
        if is_terminating(&new)
            && let Some(added) = new_finalizers(&new, &old.value)
        {
            return Err(Failure::new_finalizers(resource, name, &added));
        }
        let by = target.by(verb);
        self.note_owners(target, verb, &old.value, &new);
        let grace = new["metadata"]["deletionGracePeriodSeconds"].as_i64();
        if is_terminating(&new) && grace.unwrap_or(0) == 0 && !has_finalizers(&new) {
            let is_namespace = std::ptr::eq(resource, &NAMESPACES);
            if !is_namespace && has_finalizers(&old.value) {
                // Watches are shown the object as it was stored; the answer has the version before.
                self.remove(by, resource, &old.value);
                return Ok(Arc::new(Stored::detached(new, old.version)));
            }
        }
        Ok(self.put(by, resource, new))
    }

    /// Deletes an object, or begins to.
    pub fn delete(
        &mut self,
        target: &Target<'_>,
        options: &DeleteOptions,
    ) -> Result<Deleted, Failure> {
        let Target { resource, namespace, name, .. } = *target;
        let old =
            self.find(resource, namespace, name).cloned().ok_or_else(|| target.not_found())?;
        check_preconditions(resource, name, options, &old.value)?;
        let by = target.by(Verb::Delete);
        let grace = if std::ptr::eq(resource, &PODS) { grace_of(&old.value, options) } else { 0 };
        let mut new = (*old.value).clone();
        let known = new["metadata"]["deletionGracePeriodSeconds"].as_i64();
        if std::ptr::eq(resource, &NAMESPACES) {
            if is_terminating(&new) {
                return Ok(Deleted { object: old, gone: false });
            }
            set_meta(&mut new, "deletionTimestamp", time_text(self.now()).into());
            set(&mut new["status"], "phase", "Terminating".into());
            return Ok(Deleted { object: self.put(by, resource, new), gone: false });
        }
        let gone = grace == 0 && !has_finalizers(&new);
        if gone && !std::ptr::eq(resource, &PODS) {
            return Ok(Deleted { object: self.remove(by, resource, &new), gone });
        }
        let now = self.now();
        let (mut begin, mut grace) = (now, grace);
        if is_terminating(&new) {
            // A later deletion may only shorten the grace period, which has begun.
            let known = known.unwrap_or(0);
            let is_shorter = grace < known && options.grace_period_seconds.is_some();
            if !gone && !is_shorter {
                return Ok(Deleted { object: old, gone });
            }
            let end = meta(&new, "deletionTimestamp").parse().unwrap_or(now);
            begin = end.checked_sub(SignedDuration::from_secs(known)).unwrap_or(now);
        } else {
            grow_generation(&mut new);
        }
        let mut end = begin.checked_add(SignedDuration::from_secs(grace)).unwrap_or(Timestamp::MAX);
        if end < now && grace > 0 {
            (end, grace) = (now, 1);
        }
        set_meta(&mut new, "deletionTimestamp", time_text(end).into());
        set_meta(&mut new, "deletionGracePeriodSeconds", grace.into());
        if gone {
            // A pod is first shown with its deletion.
            let shown = self.put(by, resource, new);
            return Ok(Deleted { object: self.remove(by, resource, &shown.value), gone });
        }
        Ok(Deleted { object: self.put(by, resource, new), gone: false })
    }

    /// The body must be an object of the path.
    fn check_body(&self, target: &Target<'_>, object: &Value) -> Result<(), Failure> {
        let Target { resource, namespace, name, .. } = *target;
        if !object.is_object() {
            return Err(Failure::bad_request("the body is no object"));
        }
        let (given, given_namespace) = (meta(object, "name"), meta(object, "namespace"));
        if !name.is_empty() && !given.is_empty() && given != name {
            return Err(Failure::bad_request(format!(
                "the name of the object ({given}) does not match the name on the URL ({name})"
            )));
        }
        if resource.namespaced && !given_namespace.is_empty() && given_namespace != namespace {
            return Err(Failure::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        let (version, kind) = (object["apiVersion"].as_str(), object["kind"].as_str());
        let other = version.is_some_and(|version| version != resource.api_version())
            || kind.is_some_and(|kind| kind != resource.kind);
        if other {
            let what = format!("{} as a {}", object["kind"], resource.kind);
            return Err(Failure::unmodelled(format_args!("write of a {what}")));
        }
        Ok(())
    }

    /// Objects are created only in namespaces that are there to stay.
    fn check_namespace(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<(), Failure> {
        if !resource.namespaced {
            return Ok(());
        }
        match self.find(&NAMESPACES, "", namespace) {
            None => Err(Failure::not_found(&NAMESPACES, namespace)),
            Some(found) if is_terminating(&found.value) => {
                Err(Failure::terminating(resource, name, namespace))
            }
            Some(_) => Ok(()),
        }
    }
}

/// The finalizers that are not in the old object, if there are any.
fn new_finalizers(new: &Value, old: &Value) -> Option<Vec<String>> {
    let list = |object: &Value| object["metadata"]["finalizers"].as_array().cloned();
    let old = list(old).unwrap_or_default();
    let new = list(new).unwrap_or_default();
    let added = new.iter().filter(|name| !old.contains(name));
    let added: Vec<String> = added.map(ToString::to_string).collect();
    (!added.is_empty()).then_some(added)
}

fn check_preconditions(
    resource: &Resource,
    name: &str,
    options: &DeleteOptions,
    old: &Value,
) -> Result<(), Failure> {
    let checks = [
        ("UID", &options.uid, meta(old, "uid"), "deleted and then recreated"),
        ("ResourceVersion", &options.resource_version, meta(old, "resourceVersion"), "modified"),
    ];
    for (what, wanted, found, happened) in checks {
        if let Some(wanted) = wanted.as_deref().filter(|wanted| *wanted != found) {
            let why = format!(
                "the {what} in the precondition ({wanted}) does not match the {what} in record ({found}). The object might have been {happened}"
            );
            return Err(Failure::conflict(resource.group, resource.kind, name, &why));
        }
    }
    Ok(())
}

/// The grace time of a pod, in seconds. A pod that no node runs has none.
fn grace_of(pod: &Value, options: &DeleteOptions) -> i64 {
    let ended = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    if ended || pod["spec"]["nodeName"].as_str().is_none_or(str::is_empty) {
        return 0;
    }
    let of_spec = || pod["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(30);
    options.grace_period_seconds.unwrap_or_else(of_spec).max(0)
}
