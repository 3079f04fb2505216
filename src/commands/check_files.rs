//! `plimsoll check -f`: the Autoscalers and MetricRules of files, without a cluster.

use super::check_context::{Context, FileAutoscaler, Texts};
use super::check_targets::{self, Scaler};
use super::{check_autoscaler, check_metric_rule, check_schema, objects};
use crate::config::CONFIG_FIELDS;
use crate::crd::{AutoscalerSpec, MetricRuleSpec};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

const API_VERSION: &str = "plimsoll.dev/v1alpha1";
const KINDS: [&str; 2] = ["Autoscaler", "MetricRule"];

/// What was found in files. Each text begins with the object and the field.
#[derive(Default)]
pub struct Found {
    /// What is invalid, and what is probably a mistake.
    pub texts: Texts,
    /// The Autoscalers that are valid.
    pub autoscalers: Vec<FileAutoscaler>,
    /// The MetricRules that are valid, such as `metricrule shop/requests`.
    pub metric_rules: Vec<String>,
    /// All that scales a target.
    scalers: Vec<Scaler>,
    /// The kinds, namespaces and names of Plimsoll's objects.
    names: BTreeSet<(String, String, String)>,
}

/// Checks the Autoscalers and MetricRules of files, or of the standard input for `-`. Objects of other APIs are
/// ignored, but those that scale a target, too.
pub fn check<'a>(paths: impl IntoIterator<Item = &'a Path>, context: &Context<'_>) -> Found {
    let mut found = Found::default();
    let (mut any, mut of_others) = (false, Vec::new());
    for path in paths {
        match check_file(path, context, &mut found) {
            Contents::Ours => any = true,
            Contents::Scalers => of_others.push(path),
            Contents::Others { hint } => {
                let text = "no Autoscaler or MetricRule is in it";
                found.texts.errors.push(format!("{}: {text}{hint}", path.display()));
            }
        }
    }
    // Beside an Autoscaler they are there to be compared with it.
    for path in of_others.into_iter().filter(|_| !any) {
        found.texts.errors.push(format!("{}: no Autoscaler or MetricRule is in it: plimsoll convert makes Autoscalers of HorizontalPodAutoscalers and ScaledObjects", path.display()));
    }
    found.texts.warnings.extend(check_targets::warnings(&found.scalers));
    for autoscaler in &found.autoscalers {
        let of_namespace = format!("metricrule {}/", autoscaler.namespace);
        let has_rules = found.metric_rules.iter().any(|rule| rule.starts_with(&of_namespace));
        let config = context.config.into_iter();
        let warnings = config
            .flat_map(|config| check_autoscaler::not_given(&autoscaler.spec, config, has_rules));
        found.texts.warnings.extend(warnings.map(|warning| autoscaler.about(&warning)));
    }
    found
}

/// What is in a file.
enum Contents {
    /// An object of Plimsoll's, or what is meant to be one, or can't be read.
    Ours,
    /// None, but an HPA or a ScaledObject.
    Scalers,
    /// Neither.
    Others {
        /// What to do instead, if anything is known.
        hint: String,
    },
}

fn check_file(path: &Path, context: &Context<'_>, found: &mut Found) -> Contents {
    let parse = |text: String| {
        objects::parse(&text).map_err(|error| format!("{}: {error}", path.display()))
    };
    let objects = match objects::read(path).and_then(parse) {
        Ok(objects) => objects,
        Err(error) => {
            found.texts.errors.push(error);
            return Contents::Ours;
        }
    };
    let (mut any, scalers) = (false, found.scalers.len());
    for (index, object) in objects.iter().enumerate() {
        if object["kind"].as_str().is_none_or(str::is_empty) {
            let path = path.display();
            found.texts.errors.push(match is_configuration(object) {
                true => {
                    format!("{path}: this is a configuration: plimsoll check {path}, without -f")
                }
                false => {
                    let hint = objects::hint(std::slice::from_ref(object));
                    format!("{path}: object {} has no kind{hint}", index + 1)
                }
            });
            any = true;
        } else {
            any |= check_object(object, context, found);
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

/// Checks an object, and returns whether it is one of Plimsoll's, or meant to be.
fn check_object(object: &Value, context: &Context<'_>, found: &mut Found) -> bool {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (kind, version) = (text(&object["kind"]), text(&object["apiVersion"]));
    let (own, name) = (text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]));
    let namespace = if own.is_empty() { context.default.to_owned() } else { own };
    found.scalers.extend(Scaler::read(object, &namespace));
    let known = KINDS.into_iter().find(|known| known.eq_ignore_ascii_case(&kind));
    if known.is_none() && !version.starts_with("plimsoll.dev/") {
        return false;
    }
    let about = format!("{} {namespace}/{name}", kind.to_lowercase());
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
            if !name.is_empty() && !found.names.insert(identity) {
                let text = "metadata.name: an object before it has the same kind, namespace and name, and kubectl would apply the last: rename or delete one";
                texts.errors.push(text.to_owned());
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
                            found.metric_rules.push(about.clone());
                        }
                    }
                },
            }
        }
    }
    let of_object = |text: String| format!("{about}: {text}");
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

    /// The same, each in a file of its own.
    fn checked_files(documents: &[&str]) -> Found {
        let config = Config::default();
        let context = Context {
            required: None,
            default: "",
            queries: &config.pod_queries,
            config: None,
            scrape_interval: Duration::from_secs(30),
            // 2026-11-25T00:00:00Z
            now: 1_795_564_800_000,
        };
        let written = |text: &&str| {
            let file = tempfile::NamedTempFile::new().expect("a file");
            std::fs::write(file.path(), text).expect("it is written");
            file
        };
        let files: Vec<_> = documents.iter().map(written).collect();
        check(files.iter().map(|file| file.path()), &context)
    }

    fn object(version: &str, kind: &str, metadata: &str, spec: &str) -> String {
        format!(
            "---\napiVersion: {version}\nkind: {kind}\nmetadata: {{{metadata}}}\nspec: {{{spec}}}\n"
        )
    }

    const SCALE: &str =
        "scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, maxReplicas: 3";
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
        assert!(errors[0].starts_with("autoscaler shop/web: metadata.name: an object before it"));
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
                Some("metricrule shop/: metadata.name: missing"),
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
