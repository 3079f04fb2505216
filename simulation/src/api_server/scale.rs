//! The `scale` subresource.

use super::Verb;
use super::failure::Failure;
use super::object::{meta, set, set_meta};
use super::resource::{Resource, ScaleSelector};
use super::state::{State, Stored};
use super::writes::Target;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use plimsoll::k8s::Selector;
use serde_json::{Map, Value, json};

impl State {
    /// Reads the scale of an object.
    pub fn scale(&self, target: &Target<'_>) -> Result<Value, Failure> {
        let Target { resource, namespace, name, .. } = *target;
        let found = self.find(resource, namespace, name);
        scale_of(resource, found.ok_or_else(|| Failure::not_found(resource, name))?)
    }

    /// Replaces the scale of an object: its replicas.
    pub fn put_scale(&mut self, target: &Target<'_>, scale: &Value) -> Result<Value, Failure> {
        let Target { resource, namespace, name, .. } = *target;
        let found = self.find(resource, namespace, name).cloned();
        let old = found.ok_or_else(|| Failure::not_found(resource, name))?;
        if scale["kind"] != "Scale" || scale["apiVersion"] != "autoscaling/v1" {
            return Err(Failure::unmodelled("scale of another kind"));
        }
        for (field, known, what) in
            [("name", name, "name of the scale"), ("namespace", namespace, "namespace")]
        {
            if ![known, ""].contains(&meta(scale, field)) {
                return Err(Failure::unmodelled(format_args!("scale of another {what}")));
            }
        }
        let (uid, old_uid) = (meta(scale, "uid"), meta(&old.value, "uid"));
        if !uid.is_empty() && uid != old_uid {
            return Err(Failure::precondition(resource, (namespace, name), (uid, old_uid)));
        }
        let version = meta(scale, "resourceVersion");
        if resource.custom && !["", meta(&old.value, "resourceVersion")].contains(&version) {
            return Err(Failure::modified(resource, name));
        }
        let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
        if replicas < 0 {
            let (of, field, must) = if resource.custom {
                let of = (resource.group, resource.kind);
                (of, ".spec.replicas", "should be a non-negative integer")
            } else {
                (("autoscaling", "Scale"), "spec.replicas", "must be greater than or equal to 0")
            };
            let text = format!("Invalid value: {replicas}: {must}");
            return Err(Failure::invalid(of, name, field, ("FieldValueInvalid", &text)));
        }
        let mut new = (*old.value).clone();
        set_meta(&mut new, "resourceVersion", meta(scale, "resourceVersion").into());
        set(&mut new["spec"], "replicas", replicas.into());
        let written = self.update(target, Verb::Update, &old, new)?;
        scale_of(resource, &written)
    }
}

fn scale_of(resource: &Resource, stored: &Stored) -> Result<Value, Failure> {
    let object = &*stored.value;
    let selector = match resource.scale {
        None => return Err(Failure::no_path()),
        Some(ScaleSelector::Status) => {
            object["status"]["selector"].as_str().unwrap_or_default().to_owned()
        }
        Some(ScaleSelector::Spec) => {
            let selector =
                serde_json::from_value::<LabelSelector>(object["spec"]["selector"].clone());
            let selector = selector.map_err(|error| error.to_string());
            let parsed = selector.and_then(|selector| {
                Selector::from_object(&selector).map_err(|error| error.to_string())
            });
            parsed.map_err(|error| Failure::new(500, "InternalError", error))?.to_string()
        }
    };
    let fields = ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"];
    let metadata: Map<String, Value> = fields
        .into_iter()
        .map(|field| (field.to_owned(), object["metadata"][field].clone()))
        .collect();
    let count = |part: &str| object[part]["replicas"].as_i64().unwrap_or(0);
    let mut status = json!({"replicas": count("status")});
    if !selector.is_empty() {
        status["selector"] = selector.into();
    }
    let spec = match count("spec") {
        0 => json!({}),
        replicas => json!({"replicas": replicas}),
    };
    Ok(json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
        "spec": spec, "status": status}))
}
