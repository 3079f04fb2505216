//! `plimsoll check -f`: the Autoscalers and MetricRules of files, without a cluster.

use super::check_context::{Context, FileAutoscaler, Texts, named};
use super::check_targets::{self, Scaler};
use super::{check_autoscaler, check_metric_rule, check_schema, objects};
use crate::config::CONFIG_FIELDS;
use crate::crd::{AutoscalerSpec, MetricRuleSpec};
use crate::yaml::Places;
use serde_json::Value;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const API_VERSION: &str = "plimsoll.dev/v1alpha1";
const KINDS: [&str; 2] = ["Autoscaler", "MetricRule"];

/// What was found in files. Each text begins with the file, what is about a field with its place and the object, too.
#[derive(Default)]
pub struct Found {
    /// What is invalid, and what is probably a mistake.
    pub texts: Texts,
    /// The Autoscalers that are valid.
    pub autoscalers: Vec<FileAutoscaler>,
    /// The namespaces of the MetricRules that are valid, and what they are called, such as `metricrule shop/requests`.
    pub metric_rules: Vec<(String, String)>,
    /// All that scales a target.
    scalers: Vec<Scaler>,
    /// The kinds, namespaces and names of Plimsoll's objects, and their files.
    names: BTreeMap<(String, String, String), PathBuf>,
}

/// Checks the Autoscalers and MetricRules of files and folders, or of the standard input for `-`. Objects of other APIs
/// are ignored, but those that scale a target, too.
pub fn check<'a>(paths: impl IntoIterator<Item = &'a Path>, context: &Context<'_>) -> Found {
    let mut found = Found::default();
    let (mut any, mut of_others) = (false, Vec::new());
    for path in paths {
        let files = match objects::files(path) {
            Ok(files) => files,
            Err(error) => {
                found.texts.errors.push(error);
                any = true;
                continue;
            }
        };
        let contents = files.iter().map(|file| check_file(file, context, &mut found));
        match contents.max() {
            Some(Contents::Ours) => any = true,
            Some(Contents::Scalers) => of_others.push(path),
            Some(Contents::Others { hint }) => {
                let text = "no Autoscaler or MetricRule is in it";
                found.texts.errors.push(format!("{}: {text}{hint}", path.display()));
            }
            None => {}
        }
    }
    // Beside an Autoscaler they are there to be compared with it.
    for path in of_others.into_iter().filter(|_| !any) {
        found.texts.errors.push(format!("{}: no Autoscaler or MetricRule is in it: plimsoll convert makes Autoscalers of HorizontalPodAutoscalers and ScaledObjects", path.display()));
    }
    found.texts.warnings.extend(check_targets::warnings(&found.scalers));
    for autoscaler in &found.autoscalers {
        let has_rules =
            found.metric_rules.iter().any(|(namespace, _)| *namespace == autoscaler.namespace);
        let config = context.config.into_iter();
        let warnings = config
            .flat_map(|config| check_autoscaler::not_given(&autoscaler.spec, config, has_rules));
        found.texts.warnings.extend(warnings.map(|warning| autoscaler.about(&warning)));
    }
    found
}

/// What is in a file, or in the most relevant one of a folder.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Contents {
    /// Neither of the others.
    Others {
        /// What to do instead, if anything is known.
        hint: String,
    },
    /// None, but an HPA or a ScaledObject.
    Scalers,
    /// An object of Plimsoll's, or what is meant to be one, or can't be read.
    Ours,
}

/// A file, and where its objects and their fields stand.
struct Source<'a> {
    path: &'a Path,
    text: &'a str,
    objects: usize,
    places: OnceCell<Vec<Places>>,
}

impl Source<'_> {
    /// The file, with the place of the field of an object that a text begins with.
    fn place(&self, index: usize, text: &str) -> String {
        let path = self.path.display();
        let places = self.places.get_or_init(|| Places::of_objects(self.text));
        match places.get(index).filter(|_| places.len() == self.objects) {
            Some(object) => {
                let (line, column) = object.of(text).unwrap_or_else(|| object.start());
                format!("{path}:{line}:{column}")
            }
            None => path.to_string(),
        }
    }
}

fn check_file(path: &Path, context: &Context<'_>, found: &mut Found) -> Contents {
    let parse = |text: String| match objects::parse(&text) {
        Ok(objects) => Ok((text, objects)),
        Err(error) => Err(error.of(path.display())),
    };
    let (text, objects) = match objects::read(path).and_then(parse) {
        Ok(read) => read,
        Err(error) => {
            found.texts.errors.push(error);
            return Contents::Ours;
        }
    };
    let source = Source { path, text: &text, objects: objects.len(), places: OnceCell::new() };
    let (mut any, scalers) = (false, found.scalers.len());
    for (index, object) in objects.iter().enumerate() {
        if object["kind"].as_str().is_none_or(str::is_empty) {
            found.texts.errors.push(match is_configuration(object) {
                true => {
                    let path = path.display();
                    format!("{path}: this is a configuration: plimsoll check {path}, without -f")
                }
                false => {
                    let hint = objects::hint(std::slice::from_ref(object));
                    format!("{}: object {} has no kind{hint}", source.place(index, ""), index + 1)
                }
            });
            any = true;
        } else {
            any |= check_object(&source, index, object, context, found);
        }
    }
    match (any, found.scalers.len() > scalers) {
        (true, _) => Contents::Ours,
        (false, true) => Contents::Scalers,
        (false, false) => Contents::Others { hint: objects::hint(&objects) },
    }
}

/// Whether it is a configuration of the server, and no object.
fn is_configuration(object: &Value) -> bool {
    let mut fields = object.as_object().into_iter().flatten();
    fields.any(|(field, _)| CONFIG_FIELDS.contains(&&**field))
}

/// Checks an object of a file, and returns whether it is one of Plimsoll's, or meant to be.
fn check_object(
    source: &Source<'_>,
    index: usize,
    object: &Value,
    context: &Context<'_>,
    found: &mut Found,
) -> bool {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (kind, version) = (text(&object["kind"]), text(&object["apiVersion"]));
    let (own, name) = (text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]));
    let namespace = if own.is_empty() { context.default.to_owned() } else { own };
    found.scalers.extend(Scaler::read(object, &namespace));
    let known = KINDS.into_iter().find(|known| known.eq_ignore_ascii_case(&kind));
    if known.is_none() && !version.starts_with("plimsoll.dev/") {
        return false;
    }
    let about = named(&kind.to_lowercase(), &namespace, &name);
    let mut texts = Texts::default();
    match known.filter(|known| *known == kind) {
        None => {
            let text = format!("kind: {kind:?}: expected {}", KINDS.join(" or "));
            texts.errors.push(text);
        }
        Some(_) if objects::is_template(object) => {
            texts.errors.push(objects::TEMPLATE.to_owned());
        }
        Some(known) => {
            identity(&version, &name, &namespace, context, &mut texts);
            let identity = (kind.clone(), namespace.clone(), name.clone());
            if !name.is_empty()
                && let Some(before) = found.names.insert(identity, source.path.to_owned())
            {
                let before = before.display();
                texts.errors.push(format!(
                    "metadata.name: an object before it, in {before}, has the same kind, namespace and name, and kubectl would apply the last: rename or delete one"
                ));
            }
            let faults = check_schema::check(known, object);
            let is_readable = faults.invalid.is_empty();
            let unknown = faults.unknown.iter().map(ToString::to_string);
            texts.errors.extend(faults.invalid.into_iter().chain(unknown));
            let spec = object["spec"].clone();
            match known {
                "Autoscaler" => match AutoscalerSpec::read(spec) {
                    Err(error) if is_readable => texts.errors.push(error.to_string()),
                    // The schema has said what can't be read.
                    Err(_) => {}
                    Ok(spec) => {
                        check_autoscaler::check(&spec, &namespace, context, &mut texts);
                        if texts.errors.is_empty() {
                            found.autoscalers.push(FileAutoscaler { namespace, name, spec });
                        }
                    }
                },
                _ => match serde_json::from_value::<MetricRuleSpec>(spec) {
                    Err(error) if is_readable => texts.errors.push(format!("spec: {error}")),
                    Err(_) => {}
                    Ok(spec) => {
                        check_metric_rule::check(&spec, &namespace, context, &mut texts);
                        if texts.errors.is_empty() {
                            found.metric_rules.push((namespace, about.clone()));
                        }
                    }
                },
            }
        }
    }
    let of_object = |text: String| format!("{}: {about}: {text}", source.place(index, &text));
    found.texts.errors.extend(texts.errors.into_iter().map(of_object));
    found.texts.warnings.extend(texts.warnings.into_iter().map(of_object));
    true
}

/// Checks what every object has.
fn identity(version: &str, name: &str, namespace: &str, context: &Context<'_>, texts: &mut Texts) {
    let mut wrong = |text: String| texts.errors.push(text);
    if version != API_VERSION {
        wrong(format!("apiVersion: {version:?}: expected {API_VERSION}"));
    }
    if name.is_empty() {
        wrong("metadata.name: missing, and required".to_owned());
    } else if let Some(fault) = objects::name_fault(name) {
        wrong(format!("metadata.name: {fault}"));
    }
    if let Some(required) = context.required.filter(|required| *required != namespace) {
        wrong(format!("metadata.namespace: {namespace:?}: --namespace is {required:?}"));
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::config::Config;
    use std::time::Duration;

    /// What is found in these documents, without a namespace of the command line.
    pub fn checked(documents: &str) -> Found {
        checked_files(&[documents])
    }

    /// A text without the file and the place in it.
    pub fn without_place(text: &str) -> &str {
        text.split_once(": ").expect("a place").1
    }

    /// The same, each in a file of its own.
    fn checked_files(documents: &[&str]) -> Found {
        let config = Config::default();
        let context = context(&config);
        let written = |text: &&str| {
            let file = tempfile::NamedTempFile::new().expect("a file");
            std::fs::write(file.path(), text).expect("it is written");
            file
        };
        let files: Vec<_> = documents.iter().map(written).collect();
        check(files.iter().map(|file| file.path()), &context)
    }

    fn context(config: &Config) -> Context<'_> {
        Context {
            required: None,
            default: "",
            queries: &config.pod_queries,
            config: None,
            scrape_interval: Duration::from_secs(30),
            // 2026-11-25T00:00:00Z
            now: 1_795_564_800_000,
        }
    }

    fn object(version: &str, kind: &str, metadata: &str, spec: &str) -> String {
        format!(
            "---\napiVersion: {version}\nkind: {kind}\nmetadata: {{{metadata}}}\nspec: {{{spec}}}\n"
        )
    }

    const SCALE: &str = "scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, maxReplicas: 3, \
        resourceMetrics: [{resourceName: cpu, averageUtilization: 60}]";
    const RULE: &str = "seriesQuery: x, metricsQuery: '<<.Series>>{<<.LabelMatchers>>}'";

    #[test]
    fn a_rival_may_be_in_a_file_of_its_own() {
        let named = "name: web, namespace: shop";
        let ours = object("plimsoll.dev/v1alpha1", "Autoscaler", named, SCALE);
        let hpa = object("autoscaling/v2", "HorizontalPodAutoscaler", named, SCALE);
        let found = checked_files(&[&hpa, &ours]);
        assert_eq!(found.texts.errors, [""; 0]);
        assert_eq!(found.texts.warnings.len(), 1, "{:?}", found.texts);
        let alone = checked(&hpa).texts.errors;
        assert!(alone.len() == 1 && alone[0].contains("plimsoll convert makes"), "{alone:?}");
    }

    #[test]
    fn a_configuration_is_told_from_an_object() {
        for (text, expected) in [
            ("rules: []\n", "this is a configuration: plimsoll check "),
            ("podMetrics: {podLabel: pod}\n", "this is a configuration: plimsoll check "),
            ("metadata: {name: web}\n", "object 1 has no kind"),
        ] {
            let errors = checked(text).texts.errors;
            assert!(errors.len() == 1 && errors[0].contains(expected), "{errors:?}");
        }
    }

    #[test]
    fn the_same_object_twice_is_an_error() {
        let ours = "plimsoll.dev/v1alpha1";
        let one = object(ours, "Autoscaler", "name: web, namespace: shop", SCALE);
        let rule = object(ours, "MetricRule", "name: web, namespace: shop", RULE);
        let other = one.replace("shop", "bank");
        assert!(checked(&(one.clone() + &other + &rule)).texts.errors.is_empty());
        let errors = checked(&(one.clone() + &other + &one)).texts.errors;
        assert!(errors.len() == 1, "{errors:?}");
        let file = errors[0].split(':').next().expect("a file");
        let expected = format!(
            "{file}:14:18: autoscaler shop/web: metadata.name: an object before it, in {file}, has"
        );
        assert!(errors[0].starts_with(&expected), "{errors:?}");
    }

    #[test]
    fn an_error_names_file_line_and_column() {
        let text = object("plimsoll.dev/v1alpha1", "Autoscaler", "name: web", SCALE);
        let items = "kind: List\nitems:\n- apiVersion: plimsoll.dev/v1alpha1\n  kind: Autoscaler\n  metadata: {name: api}\n  spec:\n    maxReplicas: many\n";
        for (text, expected) in [
            (text.replace("maxReplicas: 3", "maxReplicas: x"), ":5:"),
            (
                format!("{text}---\n{items}    scaleTargetRef: {{name: web}}\n"),
                ":13:18: autoscaler api: spec.maxReplicas: ",
            ),
            (format!("{text}---\nmetadata: {{}}\n"), ":7:1: object 2 has no kind"),
            (text.replace("{name: web}", "{name: [web}"), ":4:"),
        ] {
            let errors = checked(&text).texts.errors;
            assert!(errors.iter().any(|error| error.contains(expected)), "{expected}: {errors:?}");
        }
    }

    #[test]
    fn a_folder_is_checked_as_its_files_together() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).expect("it is written");
        };
        let config = Config::default();
        let context = context(&config);
        let check = || check(std::iter::once(folder.path()), &context);
        write("deployment.yaml", "apiVersion: apps/v1\nkind: Deployment\n");
        let errors = check().texts.errors;
        assert!(
            errors.len() == 1 && errors[0].contains("no Autoscaler or MetricRule"),
            "{errors:?}"
        );
        write("web.yaml", &object("plimsoll.dev/v1alpha1", "Autoscaler", "name: web", SCALE));
        let found = check();
        assert_eq!(
            (found.texts.errors.len(), found.autoscalers.len()),
            (0, 1),
            "{:?}",
            found.texts
        );
    }

    #[test]
    fn what_the_api_server_would_refuse_or_drop_is_an_error() {
        let ours = "plimsoll.dev/v1alpha1";
        let named = "name: web, namespace: shop";
        let unknown = format!("{SCALE}, foo: 1");
        let unknown_of_rule = format!("{RULE}, foo: 1");
        for (version, kind, metadata, spec, expected) in [
            (ours, "Autoscaler", named, SCALE, None),
            (ours, "MetricRule", named, RULE, None),
            (
                ours,
                "Autoscaler",
                named,
                &*unknown,
                Some("autoscaler shop/web: spec.foo: unknown field"),
            ),
            (
                ours,
                "MetricRule",
                named,
                &*unknown_of_rule,
                Some("metricrule shop/web: spec.foo: unknown"),
            ),
            (
                "plimsoll.dev/v1beta7",
                "Autoscaler",
                named,
                SCALE,
                Some(
                    "shop/web: apiVersion: \"plimsoll.dev/v1beta7\": expected plimsoll.dev/v1alpha1",
                ),
            ),
            ("v1", "MetricRule", named, RULE, Some("apiVersion: \"v1\": expected")),
            (
                ours,
                "Autoscaler",
                "name: My_App, namespace: shop",
                SCALE,
                Some(
                    "autoscaler shop/My_App: metadata.name: \"My_App\": expected lower-case letters",
                ),
            ),
            (
                ours,
                "MetricRule",
                "namespace: shop",
                RULE,
                Some("metricrule: metadata.name: missing"),
            ),
            (
                ours,
                "AutoScaler",
                named,
                SCALE,
                Some("kind: \"AutoScaler\": expected Autoscaler or MetricRule"),
            ),
            ("v1", "autoscaler", named, SCALE, Some("kind: \"autoscaler\": expected")),
            ("''", "''", named, SCALE, Some("object 2 has no kind")),
            (ours, "Autoscaler", "name: '{{ .Name }}'", SCALE, Some("it is a template of Helm")),
            (ours, "Metric", named, RULE, Some("kind: \"Metric\": expected")),
            ("apps/v1", "Deployment", named, "foo: 1", None),
        ] {
            // Beside a valid one.
            let valid = object(ours, "Autoscaler", "name: one", SCALE);
            let found = checked(&(valid + &object(version, kind, metadata, spec)));
            let errors = found.texts.errors;
            match expected {
                None => assert!(errors.is_empty(), "{errors:?}"),
                Some(text) => {
                    assert!(errors.len() == 1 && errors[0].contains(text), "{text}: {errors:?}");
                    assert!(found.autoscalers.len() == 1 && found.metric_rules.is_empty());
                }
            }
        }
    }
}
