//! The objects of YAML files.

use crate::hpa::TargetRef;
use crate::k8s::is_subdomain;
use serde_json::Value;
use std::io::Read;
use std::path::Path;

/// The text of a file, or of the standard input for `-`.
///
/// # Errors
/// If it can't be read; the text begins with the path.
pub fn read(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = match path.as_os_str() == "-" {
        true => std::io::stdin().read_to_string(&mut text),
        false => std::fs::File::open(path).and_then(|mut file| file.read_to_string(&mut text)),
    };
    read.map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(text)
}

/// The objects of a YAML text, which may have several documents and lists.
///
/// # Errors
/// If it is not YAML, or a document is a plain list.
pub fn parse(text: &str) -> Result<Vec<Value>, String> {
    let documents: Vec<Option<Value>> =
        serde_saphyr::from_multiple(text).map_err(|error| error.to_string())?;
    if documents.iter().flatten().any(Value::is_array) {
        return Err("a document is a list, where an object was expected: write --- between objects, or put them under items of one with kind: List".to_owned());
    }
    let mut objects = Vec::new();
    documents.into_iter().flatten().for_each(|document| flatten(document, &mut objects));
    Ok(objects)
}

/// The Autoscaler or ScaledObject that has made an HorizontalPodAutoscaler, if one has: its kind and name.
pub fn maker(object: &Value) -> Option<String> {
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    owners.into_iter().flatten().find_map(|owner| {
        let text = |field: &str| owner.get(field).and_then(Value::as_str).unwrap_or_default();
        let (group, kind) = (text("apiVersion").split('/').next(), text("kind"));
        let is_known = matches!(
            (group, kind),
            (Some("plimsoll.dev"), "Autoscaler") | (Some("keda.sh"), "ScaledObject")
        );
        is_known.then(|| format!("{kind} {}", text("name").escape_debug()))
    })
}

/// A text of an object; empty if it has none there.
pub fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

/// What is wrong with the name of an object, if anything is.
pub fn name_fault(name: &str) -> Option<String> {
    (!is_subdomain(name)).then(|| {
        format!("{name:?}: expected lower-case letters, digits, '-' and '.', with a letter or digit first and last")
    })
}

/// What an autoscaler sizes, if it says so: KEDA's default is a Deployment, and the others say all of it.
pub fn target(object: &Value) -> Option<TargetRef> {
    let field = |name: &str, default: &str| {
        let text = text(object, &format!("/spec/scaleTargetRef/{name}"));
        if text.is_empty() { default.to_owned() } else { text.to_owned() }
    };
    let (api_version, kind) = (field("apiVersion", "apps/v1"), field("kind", "Deployment"));
    let name = field("name", "");
    (!name.is_empty()).then_some(TargetRef { api_version, kind, name })
}

fn flatten(mut object: Value, objects: &mut Vec<Value>) {
    let is_list = object["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
    match object.get_mut("items").filter(|_| is_list) {
        Some(items) => {
            let items = items.as_array_mut().into_iter().flatten();
            items.for_each(|item| flatten(item.take(), objects));
        }
        None => objects.push(object),
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_plain_list_is_no_object() {
        let error = parse("- {kind: Pod}\n- {kind: Pod}\n").expect_err("a list");
        assert!(error.contains("kind: List"), "{error}");
        assert_eq!(
            parse("{kind: List, items: [{kind: Pod}, {kind: Pod}]}").map(|all| all.len()),
            Ok(2)
        );
    }
}
