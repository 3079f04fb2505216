//! `plimsoll check`: what to do with a file that is no configuration.

use super::objects;
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;

/// What to do instead with a text of a file that has Kubernetes objects in it; none for other texts. `has_objects` is
/// whether other files are given as such.
pub fn object_hint(path: &Path, text: &str, has_objects: bool) -> Option<String> {
    let objects = match objects::parse(text) {
        Ok(objects) => objects,
        Err(error) if error.is_of_template() => return Some(error.of(path.display())),
        Err(_) => return None,
    };
    let object = objects.iter().find(|object| object.get("apiVersion").is_some())?;
    let kind = object.get("kind")?.as_str()?;
    let instead = match kind {
        "ConfigMap" => out_of_config_map(object),
        "Autoscaler" | "MetricRule" if has_objects => {
            "write -f before each file with objects, or -f FOLDER".to_owned()
        }
        "Autoscaler" | "MetricRule" => "check it with `plimsoll check -f FILE`".to_owned(),
        _ => "a configuration was expected, as config/plimsoll.yaml is one".to_owned(),
    };
    Some(format!("{}: this is an object of the kind {kind}: {instead}", path.display()))
}

/// How a configuration is taken out of a ConfigMap.
fn out_of_config_map(object: &Value) -> String {
    let keys: Vec<&String> =
        object["data"].as_object().into_iter().flatten().map(|(key, _)| key).collect();
    let [key, others @ ..] = &*keys else {
        return "a configuration was expected, and it has no data".to_owned();
    };
    let named = |field: &str, otherwise: &str| match objects::text(object, field) {
        "" => otherwise.to_owned(),
        name => name.to_owned(),
    };
    let namespace = named("/metadata/namespace", "NAMESPACE");
    let name = named("/metadata/name", "NAME");
    let mut text = format!(
        "take the file out of it: kubectl -n {namespace} get configmap {name} -o jsonpath='{{.data.{}}}'",
        key.replace('.', "\\.")
    );
    if !others.is_empty() {
        let others: Vec<&str> = others.iter().map(|key| key.as_str()).collect();
        let _ = write!(text, ", or another of its keys: {}", others.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_configuration_is_said_with_what_to_do() {
        let of = |text: &str| object_hint(Path::new("a.yaml"), text, false);
        let map = "{apiVersion: v1, kind: ConfigMap, metadata: {name: rules, namespace: shop}, data: {a.yaml: x, b: y}}";
        let hint = of(map).expect("a hint");
        assert!(hint.contains("kubectl -n shop get configmap rules -o jsonpath='{.data.a\\.yaml}', or another of its keys: b"), "{hint}");
        let hint = of("kind: Service\napiVersion: v1\n---\nkind: Pod\napiVersion: v1\n");
        assert!(hint.expect("a hint").contains("of the kind Service"));
        let hint = of("apiVersion: v1\nmetadata:\n  name: {{ .Release.Name }}\n");
        assert!(hint.expect("a hint").contains("it is a template of Helm"));
        let ours = "apiVersion: plimsoll.dev/v1alpha1\nkind: Autoscaler\n";
        for (has_objects, expected) in
            [(false, "`plimsoll check -f FILE`"), (true, "write -f before each file")]
        {
            let hint = object_hint(Path::new("a.yaml"), ours, has_objects).expect("a hint");
            assert!(hint.contains(expected), "{hint}");
        }
    }
}
