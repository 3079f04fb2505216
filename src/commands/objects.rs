//! The objects of YAML files.

use crate::hpa::TargetRef;
use crate::k8s::is_subdomain;
use crate::yaml::{self, Place};
use serde_json::Value;
use std::fmt::Display;
use std::io::Read;
use std::path::{Path, PathBuf};

/// What to do with a template of Helm.
pub const TEMPLATE: &str = "it is a template of Helm: give what `helm template CHART` prints";
/// The same with a file of kustomize.
pub const KUSTOMIZATION: &str =
    "it is a file of kustomize: give what `kubectl kustomize FOLDER` prints";
/// The begin of what a template has in place of a text.
const PLACEHOLDER: &str = "{{";

/// Why a text has no objects. Nothing of it is a value of the text, which may be a secret.
#[derive(Debug, PartialEq)]
pub struct ParseError {
    at: Option<Place>,
    what: String,
    is_of_template: bool,
}

impl ParseError {
    fn new(what: impl Into<String>) -> Self {
        Self { at: None, what: what.into(), is_of_template: false }
    }

    /// The error behind the name of the file, and line and column if they are known.
    pub fn of(&self, file: impl Display) -> String {
        let at = self.at.map_or_else(String::new, |(line, column)| format!(":{line}:{column}"));
        let hint = if self.is_of_template { format!("; {TEMPLATE}") } else { String::new() };
        format!("{file}{at}: {}{hint}", self.what)
    }

    /// Whether the text is a template of Helm.
    pub fn is_of_template(&self) -> bool {
        self.is_of_template
    }
}

/// The text of a file, or of the standard input for `-`.
///
/// # Errors
/// If it can't be read; the text begins with the path.
pub fn read(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    let read = match path.as_os_str() == "-" {
        true => std::io::stdin().read_to_end(&mut bytes),
        false => std::fs::File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)),
    };
    let text = read.and_then(|_| yaml::utf8(bytes));
    text.map_err(|error| format!("{}: {error}", path.display()))
}

/// The files of a folder that kubectl takes for objects, by name, without devices and pipes, which may never end; the path itself if it is no folder.
///
/// # Errors
/// If there are none, or the folder can't be read; the text begins with the path.
pub fn files(path: &Path) -> Result<Vec<PathBuf>, String> {
    const ENDINGS: [&str; 3] = ["yaml", "yml", "json"];
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = std::fs::read_dir(path)
        .and_then(|entries| entries.collect::<std::io::Result<Vec<_>>>())
        .map_err(|error| format!("{}: {error}", path.display()))?;
    let is_meant = |path: &PathBuf| {
        let ending = path.extension().and_then(|ending| ending.to_str());
        ending.is_some_and(|ending| ENDINGS.contains(&ending)) && path.is_file()
    };
    let mut files: Vec<PathBuf> =
        entries.iter().map(std::fs::DirEntry::path).filter(is_meant).collect();
    files.sort();
    match files.is_empty() {
        true => Err(format!("{}: no .yaml, .yml or .json file is in it", path.display())),
        false => Ok(files),
    }
}

/// The objects of a YAML text, which may have several documents and lists.
///
/// # Errors
/// If it is not YAML, or there is something else where an object was expected.
pub fn parse(text: &str) -> Result<Vec<Value>, ParseError> {
    let documents: Vec<Option<Value>> =
        serde_saphyr::from_multiple_with_options(text, yaml::options(text.len())).map_err(
            |error| ParseError {
                at: error.location().map(|at| (at.line(), at.column())),
                what: yaml::described(&error),
                is_of_template: text.contains(PLACEHOLDER),
            },
        )?;
    if documents.iter().flatten().any(Value::is_array) {
        return Err(ParseError::new(
            "a document is a list, where an object was expected: write --- between objects, or put them under items of one with kind: List",
        ));
    }
    let mut objects = Vec::new();
    for document in documents.into_iter().flatten() {
        flatten(document, &mut objects)?;
    }
    Ok(objects)
}

/// Whether it is a template whose fields are still to be filled in.
pub fn is_template(object: &Value) -> bool {
    let fields = ["/spec", "/metadata/name", "/metadata/namespace"].into_iter();
    // In JSON a name stands between two braces, but in texts.
    fields.filter_map(|path| object.pointer(path)).any(|one| one.to_string().contains(PLACEHOLDER))
}

/// What is to be given in the place of objects of which others are to be made, behind a colon; empty if there are none.
pub fn hint(objects: &[Value]) -> String {
    match objects.iter().any(is_kustomization) {
        true => format!(": {KUSTOMIZATION}"),
        false => String::new(),
    }
}

/// Whether it is a file of kustomize, which may leave out what it is.
pub fn is_kustomization(object: &Value) -> bool {
    match text(object, "/kind") {
        "" => object["resources"].is_array(),
        _ => text(object, "/apiVersion").starts_with("kustomize.config.k8s.io/"),
    }
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

/// Adds an object, or those of a list. What a list of one kind has need not say what it is, as
/// `kubectl get --raw` prints it.
fn flatten(mut object: Value, objects: &mut Vec<Value>) -> Result<(), ParseError> {
    let [version, kind] = ["/apiVersion", "/kind"].map(|path| text(&object, path).to_owned());
    let has_items = object.get("items").is_some();
    let Some(of_items) = kind.strip_suffix("List").filter(|_| has_items) else {
        if has_items && kind.eq_ignore_ascii_case("List") {
            return Err(ParseError::new(format!("kind: {kind:?}: expected List")));
        }
        objects.push(object);
        return Ok(());
    };
    let items = match object["items"].take() {
        Value::Array(items) => items,
        Value::Null => Vec::new(),
        _ => return Err(ParseError::new(format!("{kind}: items: expected array"))),
    };
    for mut item in items {
        if let Some(fields) = item.as_object_mut().filter(|_| !of_items.is_empty()) {
            for (name, value) in [("apiVersion", &*version), ("kind", of_items)] {
                fields.entry(name).or_insert_with(|| value.into());
            }
        }
        flatten(item, objects)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        parse(text).expect_err("an error").of("a.yaml")
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
        let no_list = of("items: {a: {metadata: {name: a}}}").expect_err("no list").of("a");
        assert_eq!(no_list, "a: HorizontalPodAutoscalerList: items: expected array");
        let of_any = parse("{apiVersion: v1, kind: List, items: [{metadata: {name: a}}]}");
        assert_eq!(of_any.map(|all| all[0].get("kind").is_none()), Ok(true));
        assert_eq!(error("{kind: list, items: []}"), "a.yaml: kind: \"list\": expected List");
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
            assert!(!error.contains("s3cr3t"), "{error}");
            assert!(error.starts_with("a.yaml:") && !error.starts_with("a.yaml: "), "{error}");
        }
    }

    #[test]
    fn a_file_that_is_not_utf_8_is_told_with_what_to_do() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), b"kind: Pod\nname: \xfc\n").expect("it is written");
        let error = read(file.path()).expect_err("an error");
        assert!(error.ends_with(": line 2 is not UTF-8: save the file as UTF-8"), "{error}");
    }

    #[test]
    fn a_folder_stands_for_its_files_as_kubectl_takes_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let error = files(folder.path()).expect_err("an error");
        assert!(error.contains("no .yaml, .yml or .json file"), "{error}");
        for name in ["b.yaml", "a.yml", "c.json", "README.md"] {
            std::fs::write(path(name), "").expect("it is written");
        }
        std::fs::create_dir(path("more.yaml")).expect("a folder");
        let expected = ["a.yml", "b.yaml", "c.json"].map(path);
        assert_eq!(files(folder.path()), Ok(expected.to_vec()));
        assert_eq!(files(&path("a.yml")), Ok(vec![path("a.yml")]));
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
        let (bomb, deep) = (error(&bomb), error(&deep));
        let expected = ": aliases (*NAME) stand for too much: write out what they stand for, or split the text";
        assert!(bomb.starts_with("a.yaml:6:") && bomb.ends_with(expected), "{bomb}");
        let expected = ": maps and lists are 65 deep in each other: fewer were expected";
        assert!(deep.starts_with("a.yaml:65:") && deep.ends_with(expected), "{deep}");
    }

    #[test]
    fn a_template_of_helm_is_to_be_rendered_first() {
        for text in
            ["name: {{ include \"app\" . }}\n", "{{- if .Values.keda }}\nkind: Pod\n{{- end }}\n"]
        {
            assert!(error(text).ends_with(TEMPLATE), "{}", error(text));
        }
        assert!(!error("a: [").contains(TEMPLATE));
        let quoted = |text: &str| is_template(&parse(text).expect("YAML")[0]);
        assert!(quoted("{spec: {query: 'x{namespace=\"{{ .Release.Namespace }}\"}'}}"));
        assert!(quoted("{metadata: {name: '{{ .Release.Name }}-web'}}"));
        assert!(!quoted("{metadata: {annotations: {a: '{{ $labels.pod }}'}}, spec: {a: {b: {}}}}"));
    }
}
