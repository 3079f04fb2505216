//! The CustomResourceDefinitions, generated from the types.

use super::autoscaler::Autoscaler;
use super::metric_rule::MetricRule;
use super::validation;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Value, json};

/// The CustomResourceDefinition of `Autoscaler`, as it is installed.
pub fn custom_resource_definition() -> CustomResourceDefinition {
    let mut value = json!(Autoscaler::crd());
    let schema = "/spec/versions/0/schema/openAPIV3Schema";
    let schema = value.pointer_mut(schema).expect("the definition has a schema");
    schema["description"] = json!(
        "Autoscaler scales a workload horizontally, by metrics of Prometheus and of Kubernetes."
    );
    absent_instead_of_null(schema);
    allow_numbers_for_quantities(schema);
    validation::add(&mut schema["properties"]["spec"]);
    serde_json::from_value(value).expect("the schema keeps its form")
}

/// The CustomResourceDefinition of `MetricRule`, as it is installed.
pub fn metric_rule_definition() -> CustomResourceDefinition {
    let mut value = json!(MetricRule::crd());
    let schema = "/spec/versions/0/schema/openAPIV3Schema";
    let schema = value.pointer_mut(schema).expect("the definition has a schema");
    schema["description"] = json!(
        "MetricRule makes metrics of a namespace's objects of its series, as a rule of prometheus-adapter does."
    );
    absent_instead_of_null(schema);
    serde_json::from_value(value).expect("the schema keeps its form")
}

/// Both as YAML, as they are checked in at `deploy/base/crd.yaml`.
pub fn custom_resource_definitions_yaml() -> String {
    let definitions = [custom_resource_definition(), metric_rule_definition()];
    let bodies = definitions.map(|definition| {
        serde_saphyr::to_string(&definition).expect("a definition has nothing that YAML can't say")
    });
    format!("# Made by `make generate` from src/crd.\n{}", bodies.join("---\n"))
}

/// Removes `nullable`, so that the API server drops fields that are `null`, as in built-in objects.
fn absent_instead_of_null(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("nullable");
            fields.values_mut().for_each(absent_instead_of_null);
        }
        Value::Array(items) => items.iter_mut().for_each(absent_instead_of_null),
        _ => {}
    }
}

/// Allows numbers for quantities, as in a HorizontalPodAutoscaler.
fn allow_numbers_for_quantities(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                let named =
                    matches!(name.as_str(), "activation" | "averageValue" | "tolerance" | "value");
                let quantity = field.get("type") == Some(&json!("string"))
                    || field.get("x-kubernetes-int-or-string") == Some(&json!(true));
                if named && quantity {
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
    use crate::hpa::ConditionKind;

    #[test]
    fn the_checked_in_definition_is_generated_from_the_types() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/base/crd.yaml");
        let checked_in = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            checked_in == custom_resource_definitions_yaml(),
            "{path} is out of date: run `make generate`"
        );
    }

    /// The fields of a schema and below whose descriptions do not begin with their names.
    fn unnamed(schema: &Value) -> Vec<String> {
        let mut found = Vec::new();
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let help = field["description"].as_str().unwrap_or_default();
            if help.strip_prefix(name.as_str()).is_none_or(|rest| !rest.starts_with(' ')) {
                found.push(format!("{name}: {help}"));
            }
            for below in [field, &field["items"], &field["additionalProperties"]] {
                found.extend(unnamed(below));
            }
        }
        found
    }

    /// As in Kubernetes, so that they can be read without it: `kubectl explain` shows many at once.
    #[test]
    fn the_description_of_a_field_of_a_metric_rule_begins_with_its_name() {
        let definition = json!(metric_rule_definition());
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let metadata = ["apiVersion", "kind", "metadata"];
        let mut found = unnamed(schema);
        found.retain(|field| metadata.iter().all(|name| !field.starts_with(name)));
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn each_column_of_a_condition_reads_one_that_is_written() {
        let definition = json!(custom_resource_definition());
        let columns = &definition["spec"]["versions"][0]["additionalPrinterColumns"];
        let mut fields = Vec::new();
        for column in columns.as_array().unwrap() {
            let path = column["jsonPath"].as_str().unwrap();
            let condition = path.strip_prefix(".status.conditions[?(@.type==\"");
            let Some((kind, field)) = condition.and_then(|rest| rest.split_once("\")].")) else {
                continue;
            };
            assert!(ConditionKind::ALL.iter().any(|known| known.as_str() == kind), "{path}");
            fields.push((column["name"].as_str().unwrap(), field));
        }
        assert!(fields.contains(&("Fallback", "status")), "{fields:?}");
        assert!(fields.contains(&("Message", "message")), "{fields:?}");
    }

    #[test]
    fn each_field_is_an_hpas_or_has_a_way_of_its_own() {
        let schema = json!(custom_resource_definition());
        let spec =
            &schema["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        let hpas = ["behavior", "maxReplicas", "metrics", "minReplicas", "scaleTargetRef"];
        // Those that a native HPA has otherwise or does not need, and those that it can't have. A new
        // field is checked in `read`, and joined in `parse_spec` or read from `ParsedSpec`.
        let (passed, refused) = (
            ["customMetrics", "executor", "mode", "pause", "resourceMetrics", "schedules"],
            ["fallback", "rollouts", "selectionStrategy", "syncPeriodSeconds", "warmUp"],
        );
        let mut expected = [&hpas[..], &passed, &refused].concat();
        expected.sort_unstable();
        let fields: Vec<&String> = spec["properties"].as_object().unwrap().keys().collect();
        assert_eq!(fields, expected, "ARCHITECTURE.md says what a new field needs");
        for field in refused {
            let rules = spec["x-kubernetes-validations"].to_string();
            assert!(rules.contains(&format!("has(self.{field})")), "{field}: {rules}");
        }
    }
}
