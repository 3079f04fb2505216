//! JSON patches (RFC 6902), as kube-apiserver's library applies them.

use super::failure::Failure;
use json_patch::{AddOperation, PatchOperation};
use serde_json::Value;

/// Applies a JSON patch. If it fails, the object may be half patched.
///
/// # Errors
/// One refusal for whatever does not apply: kube-apiserver does not say what.
pub(super) fn apply(object: &mut Value, patch: &Value) -> Result<(), Failure> {
    for operation in patch.as_array().ok_or_else(|| unmodelled(patch))? {
        let parsed = serde_json::from_value(operation.clone());
        let parsed = parsed.map_err(|_| unmodelled(operation))?;
        let parsed = as_library(object, parsed).ok_or_else(|| unmodelled(operation))?;
        json_patch::patch_unsafe(object, &[parsed]).map_err(|_| Failure::inapplicable())?;
    }
    Ok(())
}

fn unmodelled(what: &Value) -> Failure {
    Failure::unmodelled(format_args!("JSON patch {what}"))
}

/// What an operation is for kube-apiserver's library: a field of an object can be replaced though it
/// is missing. None for what is not modelled.
fn as_library(object: &Value, operation: PatchOperation) -> Option<PatchOperation> {
    let (parent, _) = operation.path().split_back()?;
    let of_fields = object.pointer(parent.as_str()).is_some_and(Value::is_object);
    match operation {
        PatchOperation::Replace(replace) if of_fields => {
            let (path, value) = (replace.path, replace.value);
            Some(PatchOperation::Add(AddOperation { path, value }))
        }
        // A null is for it what is missing.
        PatchOperation::Test(test) if test.value.is_null() => None,
        PatchOperation::Add(_)
        | PatchOperation::Remove(_)
        | PatchOperation::Replace(_)
        | PatchOperation::Test(_) => Some(operation),
        PatchOperation::Move(_) | PatchOperation::Copy(_) => None,
    }
}
