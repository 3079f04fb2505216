//! The objects of YAML files.

use crate::hpa::TargetRef;
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
    use super::*;

    fn error(text: &str) -> String {
        parse(text).expect_err("an error")
    }

    #[test]
    fn a_plain_list_is_no_object() {
        let error = error("- {kind: Pod}\n- {kind: Pod}\n");
        assert!(error.contains("kind: List"), "{error}");
        assert_eq!(
            parse("{kind: List, items: [{kind: Pod}, {kind: Pod}]}").map(|all| all.len()),
            Ok(2)
        );
    }

    /// As `kubectl get --raw` prints it.
    #[test]
    fn what_a_list_of_one_kind_has_is_of_that_kind() {
        let of = |items: &str| {
            parse(&format!(
                "{{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscalerList, {items}}}"
            ))
        };
        let named = |kind: &str, version: &str| serde_json::json!({"kind": kind, "apiVersion": version, "metadata": {"name": "a"}});
        assert_eq!(
            of("items: [{metadata: {name: a}}, {kind: Pod, apiVersion: v1, metadata: {name: a}}]"),
            Ok(vec![named("HorizontalPodAutoscaler", "autoscaling/v2"), named("Pod", "v1")])
        );
        assert_eq!((of("items: []"), of("items: null")), (Ok(vec![]), Ok(vec![])));
        let error = of("items: {a: {metadata: {name: a}}}").expect_err("no list");
        assert_eq!(error, "HorizontalPodAutoscalerList: items: expected array");
        let of_any = parse("{apiVersion: v1, kind: List, items: [{metadata: {name: a}}]}");
        assert_eq!(of_any.map(|all| all[0].get("kind").is_none()), Ok(true));
        assert_eq!(
            parse("{kind: list, items: []}"),
            Err("kind: \"list\": expected List".to_owned())
        );
    }

    /// Whoever reads the objects of a cluster keeps the errors in a log.
    #[test]
    fn an_error_has_no_text_of_the_file() {
        for text in [
            "a:\n  url: https://reader:s3cr3t@prom:9090\n  query: x: bad\n",
            "a:\n  password: s3cr3t\n  b: 'x\n",
            "a: [s3cr3t\nb: {s3cr3t\n",
            "a: !!int s3cr3t\n",
            "a: !!binary s3cr3t\n",
            "s3cr3t: *s3cr3t\n",
        ] {
            let error = error(text);
            assert!(!error.contains("s3cr3t") && error.contains("line "), "{error}");
        }
    }

    #[test]
    fn a_text_is_read_whatever_its_size_is() {
        assert_eq!(parse(&"---\nkind: Pod\n".repeat(1_100)).map(|all| all.len()), Ok(1_100));
        let items = "- {a: b}\n".repeat(90_000);
        assert_eq!(parse(&format!("kind: List\nitems:\n{items}")).map(|all| all.len()), Ok(90_000));
    }

    #[test]
    fn what_stands_for_too_much_is_refused_with_what_to_do() {
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..9 {
            bomb += &format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 10].join(", "));
        }
        let deep: String = (0..100).map(|n| "  ".repeat(n) + "a:\n").collect();
        assert_eq!(
            error(&bomb),
            "aliases (*NAME) stand for too much at line 6: write out what they stand for, or split the text"
        );
        assert_eq!(
            error(&deep),
            "maps and lists are 65 deep in each other at line 65: fewer were expected"
        );
    }

    #[test]
    fn a_template_of_helm_is_to_be_rendered_first() {
        for text in
            ["name: {{ include \"app\" . }}\n", "{{- if .Values.keda }}\nkind: Pod\n{{- end }}\n"]
        {
            assert!(error(text).contains("it is a template of Helm"), "{}", error(text));
        }
        assert!(!error("a: [").contains("Helm"));
    }
}
