//! What the API server refuses, with kube-apiserver's codes, reasons and messages.

use super::resource::Resource;
use serde_json::{Map, Value, json};
use std::fmt;

/// A refusal: the `Status` that a client gets.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The HTTP status.
    pub code: u16,
    /// The reason, one word; empty if there is none.
    pub reason: &'static str,
    /// The message.
    pub message: String,
    /// `details`, or null.
    pub details: Value,
    /// The token that continues a list without consistency (410).
    pub(super) continues: Option<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.code, self.reason, self.message)
    }
}

impl std::error::Error for Failure {}

impl Failure {
    /// A refusal without details.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: Value::Null, continues: None }
    }

    /// The `Status`.
    pub fn status(&self) -> Value {
        let mut metadata = Map::new();
        if let Some(token) = &self.continues {
            metadata.insert("continue".to_owned(), token.as_str().into());
        }
        let mut status = json!({"kind": "Status", "apiVersion": "v1", "metadata": metadata,
            "status": "Failure", "message": self.message, "code": self.code});
        if !self.reason.is_empty() {
            status["reason"] = self.reason.into();
        }
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        status
    }

    fn about(mut self, group: &str, kind: &str, name: &str) -> Self {
        let mut details = json!({"name": name, "kind": kind});
        if !group.is_empty() {
            details["group"] = group.into();
        }
        self.details = details;
        self
    }

    fn cause(mut self, reason: &str, message: &str, field: &str) -> Self {
        self.details["causes"] = json!([{"reason": reason, "message": message, "field": field}]);
        self
    }

    /// There is no such object.
    pub fn not_found(resource: &Resource, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", resource.qualified());
        Self::new(404, "NotFound", message).about(resource.group, resource.plural, name)
    }

    /// There is no such path.
    pub fn no_path() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource")
    }

    /// There is an object of this name.
    pub fn already_exists(resource: &Resource, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", resource.qualified());
        Self::new(409, "AlreadyExists", message).about(resource.group, resource.plural, name)
    }

    /// The version of a write is not that of the object.
    pub fn modified(resource: &Resource, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(resource.group, resource.plural, name, why)
    }

    /// A conflict for this reason.
    pub fn conflict(group: &str, kind: &str, name: &str, why: &str) -> Self {
        let dot = if group.is_empty() { "" } else { "." };
        let message =
            format!("Operation cannot be fulfilled on {kind}{dot}{group} \"{name}\": {why}");
        Self::new(409, "Conflict", message).about(group, kind, name)
    }

    /// A field of an object of this group and kind has no valid value.
    pub fn invalid(
        (group, kind): (&str, &str),
        name: &str,
        field: &str,
        (reason, text): (&str, &str),
    ) -> Self {
        let dot = if group.is_empty() { "" } else { "." };
        let message = format!("{kind}{dot}{group} \"{name}\" is invalid: {field}: {text}");
        Self::new(422, "Invalid", message).about(group, kind, name).cause(reason, text, field)
    }

    /// A patch has another UID than its object.
    pub fn other_uid(resource: &Resource, name: &str, uid: &str) -> Self {
        let text = format!("Invalid value: \"{uid}\": field is immutable");
        Self::invalid_metadata(resource, name, "metadata.uid", ("FieldValueInvalid", &text))
    }

    /// A JSON patch does not apply to its object, or one of its tests fails.
    pub fn inapplicable() -> Self {
        let text = "the server rejected our request due to an error in our request";
        Self { details: json!({}), ..Self::new(422, "Invalid", text) }
    }

    /// An object that is being deleted gets these finalizers (in quotes).
    pub fn new_finalizers(resource: &Resource, name: &str, added: &[String]) -> Self {
        let text = format!(
            "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
            added.join(", ")
        );
        let cause = ("FieldValueForbidden", text.as_str());
        Self::invalid_metadata(resource, name, "metadata.finalizers", cause)
    }

    fn invalid_metadata(resource: &Resource, name: &str, field: &str, cause: (&str, &str)) -> Self {
        let mut failure = Self::invalid((resource.group, resource.kind), name, field, cause);
        if resource.kind != "Event"
            && let Some(causes) = failure.details["causes"].as_array_mut()
        {
            // kube-apiserver checks it twice.
            causes.extend_from_within(..);
        }
        failure
    }

    /// A replace has another UID than its object; without an object, `old` is empty.
    pub fn precondition(
        resource: &Resource,
        (namespace, name): (&str, &str),
        (uid, old): (&str, &str),
    ) -> Self {
        let group = if resource.custom { format!("{}/", resource.group) } else { String::new() };
        let key = format!("/registry/{group}{}/{namespace}/{name}", resource.plural);
        let why = format!(
            "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {uid}, UID in object meta: {old}"
        );
        Self::conflict(resource.group, resource.plural, name, &why)
    }

    /// A write or a read that makes no sense.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// A create in a namespace that is being deleted.
    pub fn terminating(resource: &Resource, name: &str, namespace: &str) -> Self {
        let message = format!(
            "{} \"{name}\" is forbidden: unable to create new content in namespace {namespace} because it is being terminated",
            resource.qualified()
        );
        let cause = format!("namespace {namespace} is being terminated");
        Self::new(403, "Forbidden", message).about(resource.group, resource.plural, name).cause(
            "NamespaceTerminating",
            &cause,
            "metadata.namespace",
        )
    }

    /// The history does not reach back to the version of a watch.
    pub fn expired(asked: u64, oldest: u64) -> Self {
        Self::new(410, "Expired", format!("too old resource version: {asked} ({oldest})"))
    }

    /// The history does not reach back to the version of a list in pages; `token` continues without it.
    pub fn continue_expired(token: String) -> Self {
        let message = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";
        Self { continues: Some(token), ..Self::new(410, "Expired", message) }
    }

    /// What this model does not know. No test and no simulation may pass with it: see
    /// [`super::ApiServer::unmodelled`].
    pub fn unmodelled(what: impl fmt::Display) -> Self {
        Self::new(501, "NotImplemented", format!("the simulated API server has no {what}"))
    }
}
