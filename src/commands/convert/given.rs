//! The fields of a ScaledObject, for what is wrong with those that the Autoscaler would have of them.

use serde_json::Value;

/// The lists that triggers become.
const LISTS: [&str; 3] = ["spec.customMetrics", "spec.metrics", "spec.schedules"];
/// Other fields of an Autoscaler, and those that they are made of.
const FIELDS: [(&str, &str); 6] = [
    ("spec.behavior", "spec.advanced.horizontalPodAutoscalerConfig.behavior"),
    ("spec.fallback", "spec.fallback"),
    ("spec.maxReplicas", "spec.maxReplicaCount"),
    ("spec.minReplicas", "spec.minReplicaCount"),
    ("spec.scaleTargetRef", "spec.scaleTargetRef"),
    ("spec.syncPeriodSeconds", "spec.pollingInterval"),
];
/// Those of what a trigger has become, with all that is in them. What else it has is looked at before.
const OF_TRIGGER: [(&str, &str); 7] = [
    (".containerResource.container", ".metadata.containerName"),
    (".containerResource.target", ".metadata.value"),
    (".end", ".metadata.end"),
    (".metricName", ".name"),
    (".resource.target", ".metadata.value"),
    (".start", ".metadata.start"),
    (".timeZone", ".metadata.timezone"),
];

/// What metrics and schedules are told by, and the triggers that they are made of.
pub type Origins = [(Value, String)];

/// What is wrong with a field of the Autoscaler of this spec, as the fault of the field that it is made of.
pub fn fault(origins: &Origins, spec: &Value, fault: &str) -> String {
    let (path, what) = fault.split_once(": ").unwrap_or((fault, ""));
    let list = || LISTS.contains(&path).then(|| "spec.triggers".to_owned());
    match list().or_else(|| of_item(origins, spec, path)).or_else(|| renamed(path)) {
        Some(path) => format!("{path}: {}", what.replace("`minReplicas`", "minReplicaCount")),
        None => format!("of the Autoscaler that it would be, {fault}"),
    }
}

/// The field that a field of a metric or schedule is made of.
fn of_item(origins: &Origins, spec: &Value, path: &str) -> Option<String> {
    let (list, rest) = path.strip_prefix("spec.")?.split_once('[')?;
    let (index, rest) = rest.split_once(']')?;
    let item = mark(spec[list].get(index.parse::<usize>().ok()?)?);
    let (_, trigger) = origins.iter().find(|(of, _)| of == item)?;
    let field = OF_TRIGGER.iter().find(|(from, _)| rest.starts_with(from)).map(|(_, to)| *to);
    Some(format!("{trigger}{}", field.unwrap_or_default()))
}

/// The field that any other is made of.
fn renamed(path: &str) -> Option<String> {
    FIELDS.iter().find_map(|(from, to)| {
        let rest = path.strip_prefix(from)?;
        (rest.is_empty() || rest.starts_with('.')).then(|| format!("{to}{rest}"))
    })
}

/// What tells a metric or schedule from others: one of a query gets more fields later on.
pub fn mark(made: &Value) -> &Value {
    made.get("query").unwrap_or(made)
}
