//! Which objects a list or a watch is about, and in which form it shows them.

use super::failure::Failure;
use super::object::meta;
use super::resource::Resource;
use super::state::{Stored, key};
use bytes::Bytes;
use plimsoll::k8s::Selector;
use serde_json::{Value, json};

/// A namespace, labels, and fields.
#[derive(Clone, Debug, Default)]
pub(super) struct Selection {
    /// `namespace/`, the beginning of the keys; empty for all.
    prefix: String,
    /// The labels, if any are asked for.
    labels: Option<Selector>,
    /// The name, if one is asked for.
    name: Option<String>,
    /// The namespace in a field selector.
    namespace: Option<String>,
}

impl Selection {
    /// What the parameters `labelSelector` and `fieldSelector` say.
    pub fn new(namespace: &str, labels: &str, fields: &str) -> Result<Self, Failure> {
        let prefix = if namespace.is_empty() { String::new() } else { key(namespace, "") };
        let mut selection = Self { prefix, ..Self::default() };
        if !labels.is_empty() {
            let parsed = labels.parse::<Selector>();
            let unparsed = |_| Failure::unmodelled(format_args!("label selector {labels:?}"));
            selection.labels = Some(parsed.map_err(unparsed)?);
        }
        for term in fields.split(',').filter(|term| !term.is_empty()) {
            let unknown = || Failure::unmodelled(format_args!("field selector {fields:?}"));
            let (field, value) = term.split_once('=').ok_or_else(unknown)?;
            let value = value.strip_prefix('=').unwrap_or(value).to_owned();
            match field {
                "metadata.name" => selection.name = Some(value),
                "metadata.namespace" => selection.namespace = Some(value),
                _ => return Err(unknown()),
            }
        }
        Ok(selection)
    }

    /// The beginning of the keys of all that may be selected.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The key of the only object that may be selected, if there is one.
    pub fn only(&self) -> Option<String> {
        let name = self.name.as_ref()?;
        (!self.prefix.is_empty()).then(|| format!("{}{name}", self.prefix))
    }

    /// Whether it has no selector.
    pub fn is_plain(&self) -> bool {
        self.labels.is_none() && self.name.is_none() && self.namespace.is_none()
    }

    /// Whether an object of this key is selected.
    pub fn selects(&self, key: &str, object: &Value) -> bool {
        key.starts_with(&self.prefix)
            && self.name.as_deref().is_none_or(|name| name == meta(object, "name"))
            && self.namespace.as_deref().is_none_or(|name| name == meta(object, "namespace"))
            && self.labels.as_ref().is_none_or(|labels| {
                labels.matches(|label| object["metadata"]["labels"][label].as_str())
            })
    }
}

/// The form of objects in a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// All of an object.
    Whole,
    /// Its metadata.
    Metadata,
}

impl Form {
    /// The form that a client accepts.
    pub fn accepted(accept: &str) -> Result<Self, Failure> {
        match accept.split(',').next().unwrap_or_default() {
            "" | "*/*" | "application/json" => Ok(Self::Whole),
            first if first.contains("as=PartialObjectMetadata") => Ok(Self::Metadata),
            other => Err(Failure::unmodelled(format_args!("response in the form {other:?}"))),
        }
    }

    /// An object in this form.
    pub fn of(self, stored: &Stored) -> Bytes {
        match self {
            Self::Whole => stored.text(),
            Self::Metadata => metadata_of(stored).into(),
        }
    }

    /// Appends an object in this form as an item of a list. Objects of built-in resources have no kind
    /// there.
    pub fn append_item(self, resource: &Resource, stored: &Stored, text: &mut Vec<u8>) {
        match self {
            Self::Whole if resource.custom => text.extend_from_slice(&stored.text()),
            Self::Whole => append_bare(&stored.value, text),
            Self::Metadata => text.extend_from_slice(&metadata_of(stored)),
        }
    }
}

fn metadata_of(stored: &Stored) -> Vec<u8> {
    let object = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": stored.value["metadata"]});
    serde_json::to_vec(&object).expect("keys are texts")
}

/// Appends an object without its kind.
fn append_bare(object: &Value, text: &mut Vec<u8>) {
    let fields = object.as_object().into_iter().flatten();
    let mut separator = b'{';
    for (field, value) in
        fields.filter(|(field, _)| !["apiVersion", "kind"].contains(&field.as_str()))
    {
        text.push(separator);
        separator = b',';
        serde_json::to_writer(&mut *text, field).expect("a Vec takes all");
        text.push(b':');
        serde_json::to_writer(&mut *text, value).expect("a Vec takes all");
    }
    text.push(b'}');
}
