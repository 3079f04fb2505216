//! `plimsoll convert`: converts HorizontalPodAutoscalers and KEDA ScaledObjects to Autoscalers, and
//! notes what has no equivalent.
//!
//! Sources: `autoscaling/v1` and `autoscaling/v2` of Kubernetes 1.36.

mod conversion;
mod fallback;
mod fields;
mod hpa_v1;
mod metadata;
mod scaled_object;
mod server;
mod trigger;
mod userinfo;
mod zero;

use super::story::{is_unsafe, plain};
use super::{check_schema, objects};
use crate::config::ConvertFlags;
use crate::crd::{Autoscaler, AutoscalerSpec};
pub(super) use conversion::DELETE_HPA;
use conversion::{About, Conversion};
use kube::Resource;
use scaled_object::ScaledObject;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use userinfo::without_userinfos;

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
    /// Leaves no password of a URL in the notes and errors.
    fn strip_userinfos(&mut self) {
        for text in self.notes.iter_mut().chain(&mut self.errors) {
            *text = without_userinfos(text);
        }
    }
}

/// Converts the objects of files. Returns the text to print, and the result.
///
/// # Errors
/// If a file can't be read, or none has an object that can be converted.
pub fn run(flags: &ConvertFlags) -> Result<(String, Converted), String> {
    let (servers, namespace) = (flags.prometheus_url.clone(), flags.namespace.clone());
    let mut converted = Converted { servers, namespace, ..Converted::default() };
    for path in &flags.files {
        let text = objects::read(path)?;
        convert(&text, &mut converted).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if converted.objects.is_empty() && converted.errors.is_empty() {
        let none = "no HorizontalPodAutoscaler (autoscaling/v1, v2), ScaledObject \
                    (keda.sh/v1alpha1) or Autoscaler (plimsoll.dev/v1alpha1) found";
        // It says why the first object is none.
        let notes = converted.notes.first().map(|note| format!("; {note}"));
        return Err(format!("{none}{}", notes.unwrap_or_default()));
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
    converted.strip_userinfos();
    match converted.errors.first() {
        Some(error) => Err(error.clone()),
        None => Ok((converted.objects.pop(), converted.notes)),
    }
}

/// Converts all objects of a YAML text, which may have several documents and lists. Nothing in the notes and errors
/// controls a terminal,
/// or has the password of a URL.
///
/// # Errors
/// If it is not YAML.
pub fn convert(text: &str, converted: &mut Converted) -> Result<(), String> {
    for object in objects::parse(text)? {
        convert_object(&object, converted);
    }
    converted.strip_userinfos();
    for text in converted.notes.iter_mut().chain(&mut converted.errors) {
        *text = plain(text).into_owned();
    }
    Ok(())
}

fn convert_object(object: &Value, converted: &mut Converted) {
    let text = |object: &Value, path: &str| -> String {
        object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let (version, kind) = (text(object, "/apiVersion"), text(object, "/kind"));
    let own = Some(text(object, "/metadata/namespace")).filter(|own| !own.is_empty());
    let mut conversion = Conversion {
        namespace: own.or_else(|| converted.namespace.clone()).unwrap_or_default(),
        name: text(object, "/metadata/name"),
        notes: Vec::new(),
        incomplete: false,
        servers: converted.servers.clone(),
    };
    let about = format!("{kind} {}/{}", conversion.namespace, conversion.name);
    if let Some(maker) = objects::maker(object) {
        let note = format!("{about}: left out: {maker} made it, and makes it again");
        converted.notes.push(note);
        return;
    }
    let is_tried = converted.is_tried;
    let spec = match (version.as_str(), kind.as_str()) {
        ("autoscaling/v2", "HorizontalPodAutoscaler") => Ok(conversion.of_hpa(&object["spec"])),
        ("autoscaling/v1", "HorizontalPodAutoscaler") => {
            conversion.of_hpa_v1(&object["spec"], &object["metadata"]["annotations"])
        }
        ("keda.sh/v1alpha1", "ScaledObject") => {
            fields::note_unknown(&object["spec"], &mut conversion);
            match serde_json::from_value::<ScaledObject>(object["spec"].clone()) {
                Ok(spec) => {
                    Ok(conversion.of_scaled_object(spec, &object["metadata"]["annotations"]))
                }
                Err(error) => Err(format!("spec: {error}")),
            }
        }
        ("plimsoll.dev/v1alpha1", "Autoscaler") => Ok(conversion.of_autoscaler(&object["spec"])),
        _ => match misnamed(&version, &kind) {
            Some(why) => Err(why),
            None => {
                let note = format!("{about} ({version}): left out: it can't be converted");
                converted.notes.push(note);
                return;
            }
        },
    };
    // Without a name, or with what is no text, what it says is not what it was meant to say.
    let spec = metadata::fault(object, is_tried).map_or(spec, Err);
    let mut spec = match spec {
        Ok(spec) => spec,
        Err(why) => {
            converted.errors.push(format!("{about}: left out: {why}"));
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
    let (invalid, unknown) = faults(object, &spec);
    let refused = none_converts.or_else(|| match (invalid?, &*kind) {
        (why, "ScaledObject") => Some(format!("of the Autoscaler that it would be, {why}")),
        (why, _) => Some(why),
    });
    let refused = refused.or_else(|| {
        // Of other kinds it is what their controllers do not read, either.
        (kind == "Autoscaler" && !unknown.is_empty()).then(|| unknown.join("; "))
    });
    for text in unknown.iter().filter(|_| kind != "Autoscaler") {
        conversion.note(text);
    }
    let name = (conversion.namespace.clone(), conversion.name.clone());
    let refused = refused.or_else(|| {
        let is_known = converted.names.contains(&name);
        is_known.then(|| {
            "another object has become the Autoscaler of this namespace and name: rename one"
                .to_owned()
        })
    });
    if let Some(why) = refused {
        converted.notes.extend(notes(&conversion, false));
        converted.errors.push(format!("{about}: left out: {why}"));
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
    converted.notes.extend(notes(&conversion, true));
}

/// What is wrong with the version or the kind of an object that was meant to be converted; none of other objects.
fn misnamed(version: &str, kind: &str) -> Option<String> {
    if kind.eq_ignore_ascii_case("ScaledJob") {
        return Some("it can't be converted".to_owned());
    }
    let known = [
        ("autoscaling/v2 or autoscaling/v1", "HorizontalPodAutoscaler"),
        ("keda.sh/v1alpha1", "ScaledObject"),
        ("plimsoll.dev/v1alpha1", "Autoscaler"),
    ];
    let (versions, known) =
        known.into_iter().find(|(_, known)| known.eq_ignore_ascii_case(kind))?;
    Some(match known == kind {
        true => format!("apiVersion: {version:?}: expected {versions}"),
        false => format!("kind: {kind:?}: expected {known}"),
    })
}

/// Why kube-apiserver or Plimsoll would refuse a spec, and the fields that an Autoscaler does not have. Those of the
/// object around the spec are those of an Autoscaler only if it is one.
fn faults(object: &Value, spec: &Value) -> (Option<String>, Vec<String>) {
    let mut whole = match object["kind"] == "Autoscaler" {
        true => object.clone(),
        false => json!({}),
    };
    whole["spec"] = spec.clone();
    let faults = check_schema::check("Autoscaler", &whole);
    let of_schema = faults.invalid.into_iter().find(|fault| fault.starts_with("spec"));
    let read = || AutoscalerSpec::read(spec.clone()).err().map(|error| error.to_string());
    (of_schema.or_else(read), faults.unknown)
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
