//! `plimsoll check -f`: what kube-apiserver refuses or drops in an object, by the schema of the definition that this
//! binary has. The rules in CEL are those that the parsing of an object has, too.

use crate::crd::{custom_resource_definition, metric_rule_definition};
use crate::nearest::nearest;
use jiff::Timestamp;
use regex::Regex;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt;
use std::sync::LazyLock;

/// Fields of earlier builds, and what they are now.
const RENAMED: [(&str, &str); 2] =
    [("spec.paused", "mode: Paused"), ("spec.fallback.failedRounds", "failureThreshold")];

/// What is wrong in an object. Each text begins with the field.
#[derive(Debug, Default)]
pub struct Faults {
    /// Fields that the schema does not have: the rest can be read without them.
    pub unknown: Vec<Unknown>,
    /// What else the schema refuses.
    pub invalid: Vec<String>,
}

/// A field that a schema does not have.
#[derive(Debug)]
pub struct Unknown {
    /// The field.
    pub path: String,
    /// The fields that there are in its place, and the one that is most like it.
    pub known: String,
}

static AUTOSCALER: LazyLock<Value> =
    LazyLock::new(|| of_definition(&json!(custom_resource_definition())));
static METRIC_RULE: LazyLock<Value> =
    LazyLock::new(|| of_definition(&json!(metric_rule_definition())));

/// The schema of a kind, `Autoscaler` or `MetricRule`, in its only version.
pub fn schema(kind: &str) -> &'static Value {
    if kind == "Autoscaler" { &AUTOSCALER } else { &METRIC_RULE }
}

fn of_definition(definition: &Value) -> Value {
    let mut schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
    let properties = &mut schema["properties"];
    let text = json!({"type": "string"});
    let texts = json!({"type": "object", "additionalProperties": text});
    (properties["apiVersion"], properties["kind"]) = (text.clone(), text.clone());
    properties["metadata"] = json!({
        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
        "properties": {"name": text, "namespace": text, "labels": texts, "annotations": texts}});
    // A manifest's is ignored.
    properties["status"] = json!({"x-kubernetes-preserve-unknown-fields": true});
    schema
}

/// Checks an object of a kind, `Autoscaler` or `MetricRule`.
pub fn check(kind: &str, object: &Value) -> Faults {
    check_part(schema(kind), object, "")
}

/// Checks a part of an object, which has this path, by its schema.
pub fn check_part(schema: &Value, part: &Value, path: &str) -> Faults {
    let mut faults = Faults::default();
    walk(schema, part, path, &mut faults);
    faults
}

/// Takes out the fields that a schema does not have, and those that are null, as kube-apiserver drops them.
pub fn prune(schema: &Value, value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| prune(&schema["items"], item)),
        Value::Object(fields) => {
            let additional = Some(&schema["additionalProperties"]).filter(|one| one.is_object());
            let of = |name: &str| schema["properties"].get(name).or(additional);
            let keeps_any = keeps_unknown(schema);
            fields.retain(|name, field| keeps_any || of(name).is_some() && !field.is_null());
            for (name, field) in fields {
                if let Some(schema) = of(name) {
                    prune(schema, field);
                }
            }
        }
        _ => {}
    }
}

/// Whether a schema has any field.
fn keeps_unknown(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == true || schema["additionalProperties"] == true
}

fn walk(schema: &Value, value: &Value, path: &str, faults: &mut Faults) {
    let mut wrong = |text: String| faults.invalid.push(format!("{path}: {text}"));
    let is_integer = || value.is_i64() || value.is_u64();
    let expected = match schema["x-kubernetes-int-or-string"] == true {
        true => "integer or string",
        false => schema["type"].as_str().unwrap_or_default(),
    };
    let has_type = match expected {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => is_integer(),
        "integer or string" => is_integer() || value.is_string(),
        _ => true,
    };
    if !has_type {
        return wrong(match (expected, value) {
            ("integer or string", Value::Number(number)) => {
                format!("{number}: expected integer or string: write \"{number}\" in quotes")
            }
            ("string", Value::Number(number)) if path.ends_with(".ramp") => {
                format!("{number}: expected a duration such as {number}m")
            }
            // It may be all of a map that is written as one text.
            ("object" | "array", _) | (_, Value::Object(_) | Value::Array(_)) => {
                format!("{}: expected {expected}", type_of(value))
            }
            _ => format!("{}: expected {expected}", shown(value)),
        });
    }
    if let Some(values) = schema["enum"].as_array().filter(|values| !values.contains(value)) {
        let values: Vec<String> = values.iter().map(Value::to_string).collect();
        wrong(format!("{}: expected one of {}", shown(value), values.join(", ")));
    }
    match value {
        Value::String(text) => {
            let length = text.chars().count() as f64;
            bounds(schema, ["minLength", "maxLength"], length, " characters").map(&mut wrong);
            if schema["format"] == "date-time" && text.parse::<Timestamp>().is_err() {
                let value = shown(value);
                wrong(format!("{value}: expected a time as in RFC 3339: 2026-11-27T06:00:00Z"));
            }
            let pattern = schema["pattern"].as_str().and_then(|text| Regex::new(text).ok());
            if let Some(pattern) = pattern.filter(|pattern| !pattern.is_match(text)) {
                let is_positive = schema["minimum"].as_f64().is_some_and(|least| least > 0.0);
                let of = if is_positive { " of more than 0" } else { "" };
                wrong(match expected {
                    "integer or string" => format!(
                        "{}: expected a quantity{of}, such as 10, \"0.5\" or 100m",
                        shown(value)
                    ),
                    _ => format!("{}: expected a text that matches {pattern}", shown(value)),
                });
            }
        }
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or_default();
            bounds(schema, ["minimum", "maximum"], number, "").map(&mut wrong);
        }
        Value::Array(items) => {
            let count = items.len() as f64;
            if let Some(text) = bounds(schema, ["minItems", "maxItems"], count, " items") {
                return wrong(text);
            }
            let keys = schema["x-kubernetes-list-map-keys"].as_array();
            let mut first_by_keys = HashMap::new();
            for (index, item) in items.iter().enumerate() {
                let path = format!("{path}[{index}]");
                if let Some(keys) = keys {
                    let of = keys.iter().filter_map(Value::as_str).map(|key| item[key].to_string());
                    let first = *first_by_keys.entry(of.collect::<Vec<_>>()).or_insert(index);
                    if first != index {
                        let keys = json!(keys);
                        faults.invalid.push(format!("{path}: item {first} has the same {keys}"));
                    }
                }
                walk(&schema["items"], item, &path, faults);
            }
        }
        Value::Object(_) => {
            let count = value.as_object().map_or(0, serde_json::Map::len) as f64;
            bounds(schema, ["minProperties", "maxProperties"], count, " entries").map(&mut wrong);
            fields(schema, value, path, faults);
        }
        Value::Null | Value::Bool(_) => {}
    }
}

/// The fields of an object. One that is null is absent, as kube-apiserver drops it.
fn fields(schema: &Value, object: &Value, path: &str, faults: &mut Faults) {
    let within = |name: &str| match path.is_empty() {
        true => name.escape_debug().to_string(),
        false => format!("{path}.{}", name.escape_debug()),
    };
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    for name in required.filter(|name| object[*name].is_null()) {
        faults.invalid.push(format!("{}: missing, and required", within(name)));
    }
    let (properties, additional) = (&schema["properties"], &schema["additionalProperties"]);
    for (name, field) in object.as_object().into_iter().flatten() {
        let path = within(name);
        match (properties.get(name), additional.is_object()) {
            (Some(_), _) | (None, true) if field.is_null() => {}
            (Some(schema), _) => walk(schema, field, &path, faults),
            (None, true) => walk(additional, field, &path, faults),
            (None, false) if keeps_unknown(schema) => {}
            (None, false) => {
                let known = properties.as_object().into_iter().flatten();
                let known: Vec<&str> = known.map(|(name, _)| name.as_str()).collect();
                // It may stand under the wrong one.
                let within = known.iter().find_map(|known| {
                    let inner = properties[known]["properties"].get(name);
                    inner.map(|_| format!("{known}.{name}"))
                });
                let nearest =
                    within.or_else(|| nearest(name, known.iter().map(|&known| known.to_owned())));
                let hint = nearest.map(|nearest| format!("; did you mean {nearest}?"));
                let known = known.join(", ") + &hint.unwrap_or_default();
                faults.unknown.push(Unknown { path, known });
            }
        }
    }
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, known } = self;
        match RENAMED.iter().find(|(old, _)| old == path) {
            Some((_, now)) => write!(
                f,
                "{path}: an earlier build's field, which kube-apiserver drops: it is {now} now, and plimsoll convert FILE rewrites it"
            ),
            None => write!(
                f,
                "{path}: unknown field, which kubectl apply refuses and kube-apiserver drops: expected one of {known}"
            ),
        }
    }
}

fn bounds(schema: &Value, keys: [&str; 2], number: f64, unit: &str) -> Option<String> {
    let [least, most] = keys.map(|key| schema[key].as_f64());
    let is_int32 = schema["format"] == "int32";
    let least = least.or_else(|| is_int32.then_some(i32::MIN.into()));
    let most = most.or_else(|| is_int32.then_some(i32::MAX.into()));
    match (least, most) {
        (Some(least), _) if number < least => {
            Some(format!("{number}{unit}: at least {least} expected"))
        }
        (_, Some(most)) if number > most => {
            Some(format!("{number}{unit}: at most {most} expected"))
        }
        _ => None,
    }
}

/// The type of a value.
fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// The beginning of a value.
fn shown(value: &Value) -> String {
    const SHOWN: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn autoscaler(fields: Value) -> Faults {
        let mut spec = json!({"maxReplicas": 3, "minReplicas": null, "scaleTargetRef":
            {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}});
        for (name, field) in fields.as_object().expect("fields") {
            spec[name] = field.clone();
        }
        check("Autoscaler", &json!({"spec": spec, "status": {"old": 1}}))
    }

    #[test]
    fn unknown_fields_are_named_and_renamed_ones_say_what_they_are_now() {
        for (fields, expected) in [
            (json!({"selectionStrategi": "X"}), "spec.selectionStrategi: unknown field"),
            (json!({"behavior": {"scaleUp": {"foo": 1}}}), "spec.behavior.scaleUp.foo: unknown"),
            (json!({"paused": true}), "plimsoll convert"),
            (
                json!({"fallback": {"failureThreshold": 3, "replicas": 2, "failedRounds": 3}}),
                "it is failureThreshold now",
            ),
        ] {
            let faults = autoscaler(fields);
            assert!(faults.invalid.is_empty(), "{faults:?}");
            assert!(
                faults.unknown.len() == 1 && faults.unknown[0].to_string().contains(expected),
                "{faults:?}"
            );
        }
        // The matchers of labels are any, and so is the rest of the metadata.
        let labels = json!({"metricName": "m", "averageValue": 1, "labels": {"any": "one"}});
        let faults = autoscaler(json!({"customMetrics": [labels]}));
        assert!(faults.unknown.is_empty() && faults.invalid.is_empty(), "{faults:?}");
    }

    #[test]
    fn a_field_that_stands_too_far_out_is_told_with_its_place() {
        let spec = json!({"maxReplicas": 3, "scaleTargetRef":
            {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}});
        let object = json!({"spec": spec, "customMetrics": [], "name": "web"});
        let unknown = check("Autoscaler", &object).unknown;
        let texts: Vec<String> = unknown.iter().map(ToString::to_string).collect();
        for meant in ["spec.customMetrics", "metadata.name"] {
            let hint = format!("; did you mean {meant}?");
            assert!(texts.iter().any(|text| text.ends_with(&hint)), "{texts:?}");
        }
    }

    #[test]
    fn each_limit_of_the_schema_is_one_here() {
        let window = json!({"name": "a", "start": "0 8 * * *", "end": "0 9 * * *"});
        for (fields, expected) in [
            (json!({"maxReplicas": "3"}), "spec.maxReplicas: \"3\": expected integer"),
            (json!({"maxReplicas": null}), "spec.maxReplicas: missing, and required"),
            (json!({"mode": "paused"}), "spec.mode: \"paused\": expected one of \"Active\""),
            (json!({"maxReplicas": 0}), "spec.maxReplicas: 0: at least 1 expected"),
            (
                json!({"maxReplicas": 99_999_999_999_i64}),
                "spec.maxReplicas: 99999999999: at most 2147483647 expected",
            ),
            (
                json!({"pause": {"until": "tomorrow"}}),
                "spec.pause.until: \"tomorrow\": expected a time as in RFC 3339: 2026-11-27T06:00:00Z",
            ),
            (json!({"pause": {"reason": "x".repeat(257)}}), "257 characters: at most 256 expected"),
            (
                json!({"behavior": {"scaleUp": {"policies": []}}}),
                "spec.behavior.scaleUp.policies: 0 items: at least 1 expected",
            ),
            (
                json!({"resourceMetrics": [{"resourceName": "cpu", "averageValue": 0.5}]}),
                "spec.resourceMetrics[0].averageValue: 0.5: expected integer or string: write \"0.5\" in quotes",
            ),
            (
                json!({"schedules": [{"name": "a", "start": "0 8 * * *", "end": "0 9 * * *",
                    "minReplicas": 2, "ramp": 15}]}),
                "spec.schedules[0].ramp: 15: expected a duration such as 15m",
            ),
            (
                json!({"customMetrics": [{"metricName": "m", "averageValue": "five"}]}),
                "spec.customMetrics[0].averageValue: \"five\": expected a quantity, such as",
            ),
            (
                json!({"behavior": {"scaleUp": {"tolerance": "a lot"}}}),
                "spec.behavior.scaleUp.tolerance: \"a lot\": expected a quantity, such as 10",
            ),
            (json!({"schedules": [window, window]}), "spec.schedules[1]: item 0 has the same"),
        ] {
            let faults = autoscaler(fields);
            assert!(faults.unknown.is_empty(), "{faults:?}");
            assert!(
                faults.invalid.len() == 1 && faults.invalid[0].contains(expected),
                "{expected}: {faults:?}"
            );
        }
        let rule = |query: &str| {
            check("MetricRule", &json!({"spec": {"seriesQuery": query, "metricsQuery": "x"}}))
        };
        assert!(rule(&"é".repeat(2048)).invalid.is_empty());
        assert_eq!(
            rule(&"x".repeat(3000)).invalid,
            ["spec.seriesQuery: 3000 characters: at most 2048 expected"]
        );
    }
}
