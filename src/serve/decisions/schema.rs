//! The OpenAPI schema of decisions, for `kubectl explain`.

use crate::ledger::api::{Decision, GROUP, VERSION};
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

const NAME: &str = "dev.plimsoll.decisions.v1alpha1.Decision";
const LIST: &str = "dev.plimsoll.decisions.v1alpha1.DecisionList";

fn kind(kind: &str) -> Value {
    json!([{"group": GROUP, "version": VERSION, "kind": kind}])
}

/// The schemas by name, with references below `prefix`.
fn schemas(prefix: &str) -> Map<String, Value> {
    let mut settings = SchemaSettings::openapi3();
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    let schema = settings.into_generator().into_root_schema_for::<Decision>();
    let mut decision = serde_json::to_value(schema).expect("a schema can be written as JSON");
    simplify(&mut decision);
    decision["x-kubernetes-group-version-kind"] = kind("Decision");
    let list = json!({
        "description": "DecisionList is a list of decisions.",
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string", "description": "apiVersion is decisions.plimsoll.dev/v1alpha1."},
            "kind": {"type": "string", "description": "kind is DecisionList."},
            "metadata": {"type": "object", "description": "metadata of the list."},
            "items": {"type": "array", "description": "items are the decisions.",
                "items": {"$ref": format!("{prefix}{NAME}")}},
        },
        "x-kubernetes-group-version-kind": kind("DecisionList"),
    });
    Map::from_iter([(NAME.to_owned(), decision), (LIST.to_owned(), list)])
}

/// Takes out what OpenAPI v2 does not know, and what only this generator writes.
fn simplify(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            for unknown in ["$schema", "title", "nullable", "default", "minimum"] {
                // A field of that name has a schema as its value.
                if !fields.get(unknown).is_some_and(Value::is_object) {
                    fields.remove(unknown);
                }
            }
            if fields.get("format").is_some_and(|format| format != "int32" && format != "double") {
                fields.insert("format".to_owned(), "int64".into());
            }
            if let Some(text) = fields.get("description").and_then(Value::as_str) {
                let text = text.replace('\n', " ");
                fields.insert("description".to_owned(), text.into());
            }
            fields.values_mut().for_each(simplify);
        }
        Value::Array(items) => items.iter_mut().for_each(simplify),
        _ => {}
    }
}

/// The paths, with the schema of what they respond with.
fn paths(response: impl Fn(&str) -> Value) -> Value {
    let operation = |action: &str, of: &str, id: &str| {
        json!({"get": {
            "operationId": id,
            "description": if action == "get" { "read a Decision" } else { "list or watch Decisions" },
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": kind("Decision")[0],
            "responses": {"200": response(of)},
        }})
    };
    let base = format!("/apis/{GROUP}/{VERSION}");
    Value::Object(Map::from_iter([
        (
            format!("{base}/decisions"),
            operation("list", LIST, "listDecisionsPlimsollDevV1alpha1DecisionForAllNamespaces"),
        ),
        (
            format!("{base}/namespaces/{{namespace}}/decisions"),
            operation("list", LIST, "listDecisionsPlimsollDevV1alpha1NamespacedDecision"),
        ),
        (
            format!("{base}/namespaces/{{namespace}}/decisions/{{name}}"),
            operation("get", NAME, "readDecisionsPlimsollDevV1alpha1NamespacedDecision"),
        ),
    ]))
}

/// The `definitions` and `paths` of OpenAPI v2.
pub fn openapi_v2() -> (Value, Value) {
    let prefix = "#/definitions/";
    let response =
        |name: &str| json!({"description": "OK", "schema": {"$ref": format!("{prefix}{name}")}});
    (
        Value::Object(schemas(prefix)),
        with_parameters(
            paths(response),
            |name| json!({"name": name, "in": "path", "required": true, "type": "string"}),
        ),
    )
}

/// The `components.schemas` and `paths` of OpenAPI v3.
pub fn openapi_v3() -> (Value, Value) {
    let prefix = "#/components/schemas/";
    let response = |name: &str| {
        let schema = json!({"$ref": format!("{prefix}{name}")});
        json!({"description": "OK", "content": {"application/json": {"schema": schema}}})
    };
    (
        Value::Object(schemas(prefix)),
        with_parameters(
            paths(response),
            |name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}),
        ),
    )
}

fn with_parameters(mut paths: Value, parameter: impl Fn(&str) -> Value) -> Value {
    for (path, item) in paths.as_object_mut().into_iter().flatten() {
        let names = ["namespace", "name"];
        let of_path: Vec<Value> = { names.iter() }
            .filter(|name| path.contains(&format!("{{{name}}}")))
            .map(|name| parameter(name))
            .collect();
        if !of_path.is_empty() {
            item["parameters"] = of_path.into();
        }
    }
    paths
}
