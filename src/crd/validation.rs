//! The validation in the schema: in the fields that an Autoscaler shares with `autoscaling/v2`, it
//! refuses what kube-apiserver refuses in a HorizontalPodAutoscaler, at the same field.
//!
//! Source: `ValidateHorizontalPodAutoscaler` of Kubernetes 1.36. Rules of one field use `enum`,
//! `minimum` and `pattern`; rules across fields use CEL. The end-to-end test `validation` compares
//! both on a real API server. [`crate::hpa::validate`] is the same in the process, as the installed
//! definition may be older.

use serde_json::{Value, json};

/// A path segment: not `.` or `..`, and without `/` and `%`.
const PATH_SEGMENT: &str = r"^([^/%.][^/%]*|\.[^/%.][^/%]*|\.\.[^/%]+)$";
/// At most one `/`, as in `apps/v1`.
const GROUP_VERSION: &str = r"^[^/]*(/[^/]*)?$";
/// A quantity of more than 0: no minus, and a digit that is not 0 before the exponent or suffix.
const POSITIVE: &str = r"^\+?([0-9]*[1-9][0-9]*(\.[0-9]*)?|[0-9]*\.[0-9]*[1-9][0-9]*)(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?[0-9]+))?$";
const DNS_LABEL: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
/// A resource of containers: a standard one, or one with a domain prefix.
const RESOURCE: &str = r"^(cpu|memory|ephemeral-storage|hugepages-[-A-Za-z0-9_.]{0,52}[A-Za-z0-9]|[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9])$";

/// The sources of a metric: the value of `type`, and the field that it requires.
const SOURCES: [(&str, &str); 5] = [
    ("Object", "object"),
    ("External", "external"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
];

/// The most policies in a direction. A HorizontalPodAutoscaler may have any number.
pub const MAX_POLICIES: usize = 32;

/// Adds the rules to the schema of an Autoscaler's spec.
pub fn add(spec: &mut Value) {
    let target_ref = field(spec, "scaleTargetRef");
    object_reference(target_ref);
    rule(
        target_ref,
        "self.kind == 'ReplicationController' || (has(self.apiVersion) && self.apiVersion.contains('/') && !self.apiVersion.startsWith('/'))",
        "apiVersion must specify API group, such as apps/v1",
        Some((".apiVersion", "FieldValueInvalid")),
    );
    for direction in ["scaleUp", "scaleDown"] {
        scaling_rules(field(field(spec, "behavior"), direction));
    }
    metric(&mut field(spec, "metrics")["items"]);
}

/// The schema of a field, which the types of `k8s-openapi` have.
fn field<'a>(schema: &'a mut Value, name: &str) -> &'a mut Value {
    let field = &mut schema["properties"][name];
    assert!(field.is_object(), "autoscaling/v2 has no field {name} here");
    field
}

/// Adds keywords to a schema.
fn limit(schema: &mut Value, keywords: Value) {
    let (Value::Object(schema), Value::Object(keywords)) = (schema, keywords) else {
        unreachable!("schemas and keywords are objects")
    };
    schema.extend(keywords);
}

/// Adds a rule in CEL. `at` is the invalid field, relative to the schema, and the reason.
fn rule(schema: &mut Value, rule: &str, message: &str, at: Option<(&str, &str)>) {
    let mut added = json!({"rule": rule, "message": message});
    if let Some((path, reason)) = at {
        added["fieldPath"] = json!(path);
        added["reason"] = json!(reason);
    }
    match &mut schema["x-kubernetes-validations"] {
        Value::Array(rules) => rules.push(added),
        none => *none = json!([added]),
    }
}

fn object_reference(reference: &mut Value) {
    limit(field(reference, "kind"), json!({"pattern": PATH_SEGMENT}));
    limit(field(reference, "name"), json!({"pattern": PATH_SEGMENT}));
    limit(field(reference, "apiVersion"), json!({"pattern": GROUP_VERSION}));
}

fn scaling_rules(rules: &mut Value) {
    let words = json!({"enum": ["Max", "Min", "Disabled"]});
    limit(field(rules, "selectPolicy"), words);
    let seconds = json!({"minimum": 0, "maximum": 3600});
    limit(field(rules, "stabilizationWindowSeconds"), seconds);
    rule(
        field(rules, "tolerance"),
        "type(self) == int ? self >= 0 : isQuantity(self) && !quantity(self).isLessThan(quantity('0'))",
        "must be greater than or equal to 0",
        None,
    );
    let policies = field(rules, "policies");
    limit(policies, json!({"minItems": 1, "maxItems": MAX_POLICIES}));
    let policy = &mut policies["items"];
    limit(field(policy, "type"), json!({"enum": ["Pods", "Percent"]}));
    limit(field(policy, "value"), json!({"minimum": 1}));
    limit(field(policy, "periodSeconds"), json!({"minimum": 1, "maximum": 1800}));
}

fn metric(metric: &mut Value) {
    let types: Vec<&str> = SOURCES.iter().map(|(kind, _)| *kind).collect();
    limit(field(metric, "type"), json!({"enum": types}));
    for (kind, source) in SOURCES {
        let at = format!(".{source}");
        rule(
            metric,
            &format!("self.type != '{kind}' || has(self.{source})"),
            "must populate information for the given metric source",
            Some((&at, "FieldValueRequired")),
        );
        let others = SOURCES.iter().filter(|(_, other)| *other != source);
        let others: Vec<String> = others.map(|(_, other)| format!("has(self.{other})")).collect();
        rule(
            metric,
            &format!("self.type == '{kind}' || !has(self.{source}) || !({})", others.join(" || ")),
            "must populate the given metric source only",
            Some((&at, "FieldValueForbidden")),
        );
        let schema = field(metric, source);
        match kind {
            "Resource" => limit(field(schema, "name"), json!({"minLength": 1})),
            "ContainerResource" => container_resource(schema),
            _ => limit(field(field(schema, "metric"), "name"), json!({"pattern": PATH_SEGMENT})),
        }
        if kind == "Object" {
            object_reference(field(schema, "describedObject"));
        }
        target(kind, field(schema, "target"));
    }
}

fn container_resource(schema: &mut Value) {
    let name = field(schema, "name");
    limit(name, json!({"maxLength": 317, "pattern": RESOURCE}));
    // A prefix has at most 253 characters. One that is not of Kubernetes itself must leave room for
    // `requests.`, which quotas put in front.
    rule(
        name,
        "self.indexOf('/') <= 253 && (!self.contains('/') || self.contains('kubernetes.io/') || (self.indexOf('/') <= 244 && !self.startsWith('requests.')))",
        "doesn't follow extended resource name standard",
        None,
    );
    limit(field(schema, "container"), json!({"maxLength": 63, "pattern": DNS_LABEL}));
}

fn target(kind: &str, target: &mut Value) {
    limit(field(target, "type"), json!({"enum": ["Utilization", "Value", "AverageValue"]}));
    for value in ["value", "averageValue"] {
        // No rule in CEL: before Kubernetes 1.34 kube-apiserver takes a quantity to be as long as a request, whatever
        // maxLength says, so that one for each metric costs more than it lets a definition cost.
        limit(field(target, value), json!({"minimum": 1, "pattern": POSITIVE}));
    }
    limit(field(target, "averageUtilization"), json!({"minimum": 1}));
    let (one, other, required) = match kind {
        "Object" | "External" => ("averageValue", "value", ".averageValue"),
        "Pods" => ("averageValue", "averageValue", ".averageValue"),
        _ => ("averageUtilization", "averageValue", ".averageUtilization"),
    };
    let message = match kind {
        "Object" | "External" => "must set either a target value or averageValue",
        "Pods" => "must specify a positive target averageValue",
        _ => "must set either a target raw value or a target utilization",
    };
    let has = format!("has(self.{one}) || has(self.{other})");
    rule(target, &has, message, Some((required, "FieldValueRequired")));
    if matches!(kind, "External" | "Resource" | "ContainerResource") {
        let both = format!("!has(self.{one}) || !has(self.{other})");
        let at = format!(".{other}");
        rule(
            target,
            &both,
            &format!("may not set both {one} and {other}"),
            Some((&at, "FieldValueForbidden")),
        );
    }
}
