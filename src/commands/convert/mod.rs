//! `plimsoll convert`: converts HorizontalPodAutoscalers and KEDA ScaledObjects to Autoscalers, and
//! notes what has no equivalent.
//!
//! Sources: `autoscaling/v1` and `autoscaling/v2` of Kubernetes 1.36.

mod conversion;
mod fallback;
mod fields;
mod given;
mod hpa_v1;
mod metadata;
mod scaled_object;
mod server;
mod trigger;
mod userinfo;
mod zero;

use super::check_schema::{self, Unknown};
use super::objects::{self, KUSTOMIZATION, ParseError, TEMPLATE};
use super::story::{is_unsafe, plain};
use crate::config::ConvertFlags;
use crate::crd::{Autoscaler, AutoscalerSpec};
use crate::yaml::without_values;
pub(super) use conversion::DELETE_HPA;
use conversion::{About, Conversion};
use kube::Resource;
use scaled_object::ScaledObject;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use userinfo::without_userinfos;

/// The other kinds of the groups whose objects are converted.
const OTHERS: [&str; 4] =
    ["ClusterTriggerAuthentication", "MetricRule", "Scale", "TriggerAuthentication"];

/// The result of a conversion.
#[derive(Debug, Default)]
pub struct Converted {
    /// The addresses of the Prometheus that Plimsoll queries, if known.
    pub servers: Vec<String>,
    /// The namespace of objects that have none, if known.
    pub namespace: Option<String>,
    /// The Autoscalers.
    pub objects: Vec<Value>,
    /// What was left out or has another meaning, object by object.
    pub notes: Vec<String>,
    /// The objects that could not be converted, and why.
    pub errors: Vec<String>,
    /// What is converted is tried, and not made: only what changes decisions is noted.
    pub is_tried: bool,
    /// The namespaces and names of the Autoscalers.
    names: BTreeSet<(String, String)>,
}

impl Converted {
    fn note(&mut self, note: &str) {
        self.notes.push(told(note));
    }

    fn error(&mut self, error: &str) {
        self.errors.push(told(error));
    }
}

/// A note or error, which does not control a terminal, and has no secret of a URL.
fn told(text: &str) -> String {
    plain(&without_userinfos(text)).into_owned()
}

/// Converts the objects of files. Returns the text to print, and the result.
///
/// # Errors
/// If a file can't be read, or none has an object that can be converted.
pub fn run(flags: &ConvertFlags) -> Result<(String, Converted), String> {
    let (servers, namespace) = (flags.prometheus_url.clone(), flags.namespace.clone());
    let mut converted = Converted { servers, namespace, ..Converted::default() };
    for path in flags.all_files() {
        let text = objects::read(path)?;
        convert(&text, &mut converted).map_err(|error| error.of(path.display()))?;
    }
    if converted.objects.is_empty() && converted.errors.is_empty() {
        let none = "no HorizontalPodAutoscaler (autoscaling/v1, v2), ScaledObject \
                    (keda.sh/v1alpha1) or Autoscaler (plimsoll.dev/v1alpha1) found";
        // It says why the first object is none.
        let notes = converted.notes.first().map(|note| format!("; {note}"));
        return Err(format!("{none}{}", notes.unwrap_or_default()));
    }
    if flags.preview {
        let specs = converted.objects.iter_mut().map(|object| &mut object["spec"]);
        for spec in specs.filter(|spec| spec.is_object() && spec["mode"] != "Paused") {
            spec["mode"] = "Preview".into();
        }
    }
    let mut text = String::new();
    for object in &converted.objects {
        text += "---\n";
        text += &yaml(object);
    }
    Ok((text, converted))
}

/// An object as YAML. What would not be seen, or turn the direction of writing, is escaped: of YAML, only texts in double
/// quotes can have that, and so it is JSON then, which is YAML.
pub(super) fn yaml(value: &Value) -> String {
    let yaml = serde_saphyr::to_string(value).expect("plain data has nothing that YAML can't say");
    let is_hidden = |one: char| !matches!(one, '\n' | '\t') && is_unsafe(one);
    if !yaml.contains(is_hidden) {
        return yaml;
    }
    let mut text = String::new();
    for one in format!("{value:#}\n").chars() {
        // All of them are of the basic plane.
        match is_hidden(one) {
            true => text += &format!("\\u{:04x}", u32::from(one)),
            false => text.push(one),
        }
    }
    text
}

/// The Autoscaler that an object is or becomes, to be tried, with what was left out or has another meaning; none of an
/// object that becomes none. `server` is the Prometheus that is queried, if one is.
///
/// # Errors
/// If it can't be converted.
pub(super) fn convert_one(
    object: &Value,
    server: Option<&str>,
) -> Result<(Option<Value>, Vec<String>), String> {
    let servers = server.map(str::to_owned).into_iter().collect();
    let mut converted = Converted { servers, is_tried: true, ..Converted::default() };
    convert_object(object, &mut converted);
    match converted.errors.first() {
        Some(error) => Err(error.clone()),
        None => Ok((converted.objects.pop(), converted.notes)),
    }
}

/// Converts all objects of a YAML text, which may have several documents and lists. Nothing in the notes and errors
/// controls a terminal, or has a secret of a URL.
///
/// # Errors
/// If it is not YAML.
pub fn convert(text: &str, converted: &mut Converted) -> Result<(), ParseError> {
    for object in objects::parse(text)? {
        convert_object(&object, converted);
    }
    Ok(())
}

fn convert_object(object: &Value, converted: &mut Converted) {
    let text = |path: &str| objects::text(object, path).to_owned();
    let (version, kind) = (text("/apiVersion"), text("/kind"));
    let own = Some(text("/metadata/namespace")).filter(|own| !own.is_empty());
    let mut conversion = Conversion {
        namespace: own.or_else(|| converted.namespace.clone()).unwrap_or_default(),
        name: text("/metadata/name"),
        notes: Vec::new(),
        incomplete: false,
        servers: converted.servers.clone(),
        origins: Vec::new(),
    };
    let what = if kind.is_empty() { "an object" } else { kind.as_str() };
    let name = match &*conversion.namespace {
        "" => conversion.name.clone(),
        namespace => format!("{namespace}/{}", conversion.name),
    };
    let about = if name.is_empty() { what.to_owned() } else { format!("{what} {name}") };
    if let Some(maker) = objects::maker(object) {
        converted.note(&format!("{about}: left out: {maker} made it, and makes it again"));
        return;
    }
    let is_tried = converted.is_tried;
    let Some(spec) = spec_of(object, (&version, &kind), is_tried, &mut conversion) else {
        let why = match objects::is_kustomization(object) {
            true => KUSTOMIZATION,
            false => "it can't be converted",
        };
        converted.note(&format!("{about} ({version}): left out: {why}"));
        return;
    };
    // Without a name, or with what is no text, what it says is not what it was meant to say.
    let spec = spec.and_then(|spec| metadata::fault(object, is_tried).map_or(Ok(spec), Err));
    let mut spec = match spec {
        Ok(spec) => spec,
        Err(why) => {
            converted.error(&format!("{about}: left out: {why}"));
            return;
        }
    };
    let has_server = !converted.servers.is_empty();
    let notes = |conversion: &Conversion, is_made: bool| -> Vec<String> {
        let is_meant = |of: About| match of {
            About::Decisions => is_made,
            About::Server => !is_tried || has_server,
            About::Making => is_made && !is_tried,
            About::Fault => true,
        };
        let notes = conversion.notes.iter().filter(|(of, _)| is_meant(*of));
        notes.map(|(_, note)| format!("{about}: {note}")).collect()
    };
    let has_metrics = ["metrics", "customMetrics"].iter().any(|field| spec.get(field).is_some());
    let none_converts = (kind == "ScaledObject" && !has_metrics).then(|| {
        "none of its triggers can be converted: without metrics it would scale on 80 % CPU"
            .to_owned()
    });
    let refused = none_converts.or_else(|| {
        let fault = fault(object, &spec)?;
        Some(match kind == "ScaledObject" {
            true => given::fault(&conversion.origins, &spec, &fault),
            false => fault,
        })
    });
    let name = (conversion.namespace.clone(), conversion.name.clone());
    let refused = refused.or_else(|| {
        let is_known = converted.names.contains(&name);
        is_known.then(|| {
            "another object has become the Autoscaler of this namespace and name: rename one"
                .to_owned()
        })
    });
    if let Some(why) = refused {
        notes(&conversion, false).iter().for_each(|note| converted.note(note));
        converted.error(&format!("{about}: left out: {why}"));
        return;
    }
    if conversion.incomplete {
        // A pause leaves the scale alone, too, and is its owner's to end.
        let note = match spec["mode"] == "Paused" {
            true => {
                "it may not scale as before. KEDA has it paused, and so it stays: set `mode: Preview` to see what it would do, and review it before you set `mode: Active`"
            }
            false => {
                spec["mode"] = json!("Preview");
                "it may not scale as before: with `mode: Preview` it shows what it would do. Review it, then set `mode: Active`"
            }
        };
        conversion.advise(note);
    }
    let metadata = metadata::kept(object, &mut conversion);
    converted.names.insert(name);
    converted.objects.push(json!({
        "apiVersion": Autoscaler::api_version(&()),
        "kind": "Autoscaler",
        "metadata": metadata,
        "spec": spec,
    }));
    notes(&conversion, true).iter().for_each(|note| converted.note(note));
}

/// The spec of the Autoscaler that an object becomes, or why it becomes none; nothing of one that is not meant to be
/// converted.
fn spec_of(
    object: &Value,
    (version, kind): (&str, &str),
    is_tried: bool,
    conversion: &mut Conversion,
) -> Option<Result<Value, String>> {
    let is_known = matches!(
        (version, kind),
        ("autoscaling/v1" | "autoscaling/v2", "HorizontalPodAutoscaler")
            | ("keda.sh/v1alpha1", "ScaledObject")
            | ("plimsoll.dev/v1alpha1", "Autoscaler")
    );
    if !is_known {
        return misnamed(object, version, kind).map(Err);
    }
    if objects::is_template(object) {
        return Some(Err(TEMPLATE.to_owned()));
    }
    let spec = match &object["spec"] {
        Value::Null => return Some(Err("spec: missing, and required".to_owned())),
        spec => spec.clone(),
    };
    let annotations = &object["metadata"]["annotations"];
    Some(match (version, kind) {
        ("autoscaling/v1", _) => conversion.of_hpa_v1(spec, annotations),
        ("autoscaling/v2", _) => conversion.of_hpa(spec),
        (_, "Autoscaler") => Ok(conversion.of_autoscaler(spec)),
        _ => fields::of_scaled_object(spec, is_tried).and_then(|(spec, unknown)| {
            for Unknown { path, known } in unknown {
                conversion.fault(&format!(
                    "{path}: KEDA knows no such field, and it is left out: expected one of {known}"
                ));
            }
            let read = serde_json::from_value::<ScaledObject>(spec);
            let spec =
                read.map_err(|error| format!("spec: {}", without_values(&error.to_string())))?;
            Ok(conversion.of_scaled_object(spec, annotations))
        }),
    })
}

/// What is wrong with the version or the kind of an object that was meant to be converted; none of other objects.
fn misnamed(object: &Value, version: &str, kind: &str) -> Option<String> {
    if kind.is_empty() {
        let is_kustomization = objects::is_kustomization(object);
        let why = if is_kustomization { KUSTOMIZATION } else { "kind: missing, and required" };
        return Some(why.to_owned());
    }
    if kind.eq_ignore_ascii_case("ScaledJob") {
        return Some("it can't be converted".to_owned());
    }
    let known = [
        ("autoscaling", "autoscaling/v2 or autoscaling/v1", "HorizontalPodAutoscaler"),
        ("keda.sh", "keda.sh/v1alpha1", "ScaledObject"),
        ("plimsoll.dev", "plimsoll.dev/v1alpha1", "Autoscaler"),
    ];
    let group = version.split('/').next().unwrap_or_default();
    let of_kind = known.iter().find(|(_, _, known)| known.eq_ignore_ascii_case(kind));
    let of_group = || known.iter().find(|(of, _, _)| *of == group && !OTHERS.contains(&kind));
    let (_, versions, known) = of_kind.or_else(of_group)?;
    Some(match *known == kind {
        true => format!("apiVersion: {version:?}: expected {versions}"),
        false => format!("kind: {kind:?}: expected {known}"),
    })
}

/// Why kube-apiserver or Plimsoll would refuse a spec. Of the object around the spec, an Autoscaler's is that of one.
fn fault(object: &Value, spec: &Value) -> Option<String> {
    let mut whole = match object["kind"] == "Autoscaler" {
        true => object.clone(),
        false => json!({}),
    };
    whole["spec"] = spec.clone();
    let faults = check_schema::check("Autoscaler", &whole);
    let of_schema = faults.invalid.into_iter().find(|fault| fault.starts_with("spec"));
    let read = || AutoscalerSpec::read(spec.clone()).err().map(|error| error.to_string());
    let unknown: Vec<String> = faults.unknown.iter().map(ToString::to_string).collect();
    let unknown = Some(unknown.join("; ")).filter(|text| !text.is_empty());
    of_schema.or_else(read).or(unknown)
}

#[cfg(test)]
mod corpus;
#[cfg(test)]
mod kedas;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_given;
#[cfg(test)]
mod tests_of_keda;
#[cfg(test)]
mod tests_of_triggers;
