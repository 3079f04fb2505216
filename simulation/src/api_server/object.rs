//! Objects as JSON: their metadata, merge patches, and the fields that only the server sets.

use super::resource::{Generation, Resource};
use serde_json::{Map, Value};

/// A text field of the metadata; empty without it.
pub(super) fn meta<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

/// Sets a field of the metadata; null removes it.
pub(super) fn set_meta(object: &mut Value, field: &str, value: Value) {
    let Some(object) = object.as_object_mut() else { return };
    let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    set(metadata, field, value);
}

/// Sets a field of an object; null removes it.
pub(super) fn set(object: &mut Value, field: &str, value: Value) {
    let Some(object) = object.as_object_mut() else { return };
    if value.is_null() {
        object.remove(field);
    } else if let Some(known) = object.get_mut(field) {
        *known = value;
    } else {
        object.insert(field.to_owned(), value);
    }
}

/// Applies a JSON merge patch (RFC 7386).
pub(super) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else { return };
    for (field, value) in patch {
        if value.is_null() {
            target.remove(field);
        } else {
            merge(target.entry(field.clone()).or_insert(Value::Null), value);
        }
    }
}

/// Drops null fields, zeros of the status that are not written, empty maps of a ConfigMap, empty maps and lists of the metadata, and `managedFields`, which this server
/// does not have.
pub(super) fn tidy(resource: &Resource, object: &mut Value) {
    drop_nulls(object);
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        status.retain(|field, value| *value != 0 || !resource.no_zeros.contains(&field.as_str()));
    }
    for map in ["data", "binaryData"] {
        if object[map].as_object().is_some_and(Map::is_empty) {
            set(object, map, Value::Null);
        }
    }
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    metadata.remove("managedFields");
    metadata.retain(|_, value| match value {
        Value::Object(map) => !map.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::String(text) => !text.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) => true,
    });
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Whether an object is being deleted.
pub(super) fn is_terminating(object: &Value) -> bool {
    !meta(object, "deletionTimestamp").is_empty()
}

/// Whether an object has finalizers.
pub(super) fn has_finalizers(object: &Value) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty())
}

/// Gives an update what is not its own to set: the metadata of the server from the old object, the
/// other part from it too, and the generation.
pub(super) fn prepare_update(resource: &Resource, is_status: bool, new: &mut Value, old: &Value) {
    if is_status && resource.custom {
        // Of a custom resource only the status is taken.
        let status = new["status"].take();
        *new = old.clone();
        set(new, "status", status);
        return;
    }
    for field in [
        "uid",
        "name",
        "namespace",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "resourceVersion",
    ] {
        set_meta(new, field, old["metadata"][field].clone());
    }
    for field in ["apiVersion", "kind"] {
        set(new, field, old[field].clone());
    }
    if is_status {
        set(new, "spec", old["spec"].clone());
        if resource.generation == Generation::SpecOrAnnotations {
            // As the strategy of Deployments.
            set_meta(new, "labels", old["metadata"]["labels"].clone());
        }
    } else if resource.status {
        set(new, "status", old["status"].clone());
    }
    let grows = match resource.generation {
        _ if is_status => false,
        Generation::Never => false,
        Generation::Spec => new["spec"] != old["spec"],
        Generation::SpecOrAnnotations => {
            new["spec"] != old["spec"]
                || new["metadata"]["annotations"] != old["metadata"]["annotations"]
        }
        Generation::AllButStatus => rest(new).ne(rest(old)),
    };
    if grows {
        grow_generation(new);
    }
}

/// All fields but metadata and status.
fn rest(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
    let fields = object.as_object().into_iter().flatten();
    fields.filter(|(field, _)| !matches!(field.as_str(), "metadata" | "status"))
}

/// Counts the generation up, if there is one.
pub(super) fn grow_generation(object: &mut Value) {
    if let Some(generation) = object["metadata"]["generation"].as_i64() {
        set_meta(object, "generation", (generation + 1).into());
    }
}
