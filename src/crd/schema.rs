//! The CustomResourceDefinition made from the types.

use super::Autoscaler;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Value, json};

/// The definition of `Autoscaler`, as it is installed.
pub fn custom_resource_definition() -> CustomResourceDefinition {
    let mut value = json!(Autoscaler::crd());
    allow_numbers_for_quantities(&mut value);
    serde_json::from_value(value).expect("the schema keeps its form")
}

/// The same as YAML, as it is checked in at `deploy/base/crd.yaml`.
pub fn custom_resource_definition_yaml() -> String {
    let body = serde_saphyr::to_string(&custom_resource_definition())
        .expect("a definition has nothing that YAML can't say");
    format!("# Made by `make generate` from src/crd/autoscaler.rs.\n{body}")
}

/// Lets quantities be numbers, as they may be in a HorizontalPodAutoscaler.
fn allow_numbers_for_quantities(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                let named = matches!(name.as_str(), "averageValue" | "tolerance" | "value");
                if named && field.get("type") == Some(&json!("string")) {
                    let description = field.get("description").cloned();
                    *field = json!({
                        "anyOf": [{"type": "integer"}, {"type": "string"}],
                        "x-kubernetes-int-or-string": true,
                        "maxLength": 64,
                        "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
                    });
                    if let Some(description) = description {
                        field["description"] = description;
                    }
                } else {
                    allow_numbers_for_quantities(field);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(allow_numbers_for_quantities),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_checked_in_is_the_one_made_from_the_types() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/base/crd.yaml");
        let checked_in = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            checked_in == custom_resource_definition_yaml(),
            "{path} is out of date: run `make generate`"
        );
    }
}
