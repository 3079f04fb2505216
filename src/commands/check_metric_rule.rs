//! `plimsoll check -f`: what is invalid in a MetricRule, without a cluster.

use crate::crd::MetricRuleSpec;
use crate::rules::check_metric_rule;
use serde_json::Value;

/// Checks the MetricRules among objects, in this namespace if they have none, and returns how many there are. Each text
/// begins with the
/// object and the field.
pub fn check(objects: &[Value], default: &str, errors: &mut Vec<String>) -> usize {
    let rules: Vec<&Value> =
        objects.iter().filter(|object| object["kind"] == "MetricRule").collect();
    for object in &rules {
        let of = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        let (namespace, name) = (of("namespace"), of("name"));
        let namespace = if namespace.is_empty() { default } else { namespace };
        let spec = serde_json::from_value::<MetricRuleSpec>(object["spec"].clone());
        let checked = spec
            .map_err(|error| format!("spec: {error}"))
            .and_then(|spec| check_metric_rule(spec, namespace));
        if let Err(error) = checked {
            errors.push(format!("metricrule {namespace}/{name}: {error}"));
        }
    }
    rules.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_invalid_is_an_error_with_object_and_field() {
        let rule = |name: &str, spec: Value| json!({"kind": "MetricRule", "metadata": {"name": name, "namespace": "shop"}, "spec": spec});
        let objects = [
            rule("good", json!({"seriesQuery": "x", "metricsQuery": "<<.Series>>"})),
            rule("typo", json!({"seriesQuery": "x"})),
            rule("bad", json!({"seriesQuery": "x + y", "metricsQuery": "<<.Series>>"})),
        ];
        let mut errors = Vec::new();
        assert_eq!(check(&objects, "", &mut errors), 3);
        assert_eq!(errors.len(), 2, "{errors:?}");
        let expected = "metricrule shop/typo: spec: missing field `metricsQuery`";
        assert!(errors[0].starts_with(expected), "{errors:?}");
        assert!(errors[1].starts_with("metricrule shop/bad: spec.seriesQuery: "), "{errors:?}");
    }
}
