//! `plimsoll convert`: from a HorizontalPodAutoscaler, or a KEDA ScaledObject, to
//! an Autoscaler, and what of it can't be said by one.
//!
//! Sources: `autoscaling/v1` and `autoscaling/v2` of Kubernetes 1.36; the
//! ScaledObject specification and the Prometheus, CPU and Memory scalers of KEDA 2.

use crate::config::ConvertFlags;
use crate::crd::AutoscalerSpec;
use promql_parser::parser::{self, Expr};
use promql_parser::util::{ExprVisitor, walk_expr};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::Read;

/// What came of it.
#[derive(Debug, Default)]
pub struct Converted {
    /// The Prometheus that Plimsoll asks, where that is known.
    pub server: Option<String>,
    /// The Autoscalers.
    pub objects: Vec<Value>,
    /// The rules of the metrics that they ask for, for `externalRules`.
    pub rules: Vec<Value>,
    /// What was left out or means something else, object by object.
    pub notes: Vec<String>,
    /// The objects that could not be converted, and why.
    pub errors: Vec<String>,
}

/// Converts what the files hold; the text to print, and all else.
///
/// # Errors
/// Where a file can't be read, or holds nothing that can be converted.
pub fn run(flags: &ConvertFlags) -> Result<(String, Converted), String> {
    let mut converted = Converted { server: flags.prometheus_url.clone(), ..Converted::default() };
    for path in &flags.files {
        let mut text = String::new();
        let read = if path.as_os_str() == "-" {
            std::io::stdin().read_to_string(&mut text)
        } else {
            std::fs::File::open(path).and_then(|mut file| file.read_to_string(&mut text))
        };
        read.map_err(|error| format!("{}: {error}", path.display()))?;
        convert(&text, &mut converted).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if converted.objects.is_empty() && converted.errors.is_empty() {
        return Err("no HorizontalPodAutoscaler (autoscaling/v1, v2) and no ScaledObject \
                    (keda.sh/v1alpha1) found"
            .to_owned());
    }
    let mut text = String::new();
    for object in &converted.objects {
        text += "---\n";
        text += &yaml(object);
    }
    if !converted.rules.is_empty() {
        let rules = yaml(&json!({"externalRules": converted.rules}));
        match &flags.rules {
            Some(path) => {
                std::fs::write(path, rules)
                    .map_err(|error| format!("--rules: {}: {error}", path.display()))?;
            }
            None => {
                text += "# For Plimsoll's configuration (--rules FILE writes it to a file):\n";
                text.extend(rules.lines().map(|line| format!("# {line}\n")));
            }
        }
    }
    Ok((text, converted))
}

fn yaml(value: &Value) -> String {
    serde_saphyr::to_string(value).expect("plain data has nothing that YAML can't say")
}

/// Converts all objects of a text, of which there may be several, and lists.
///
/// # Errors
/// Where it is no YAML.
pub fn convert(text: &str, converted: &mut Converted) -> Result<(), String> {
    let documents: Vec<Option<Value>> =
        serde_saphyr::from_multiple(text).map_err(|error| error.to_string())?;
    for document in documents.into_iter().flatten() {
        one(document, converted);
    }
    Ok(())
}

fn one(mut object: Value, converted: &mut Converted) {
    let text = |object: &Value, path: &str| -> String {
        object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let (version, kind) = (text(&object, "/apiVersion"), text(&object, "/kind"));
    if let Some(items) = object.get_mut("items").filter(|_| kind.ends_with("List")) {
        for item in items.take().as_array_mut().into_iter().flatten() {
            one(item.take(), converted);
        }
        return;
    }
    let mut making = Making {
        namespace: text(&object, "/metadata/namespace"),
        name: text(&object, "/metadata/name"),
        notes: Vec::new(),
        rules: Vec::new(),
        incomplete: false,
        server: converted.server.clone(),
    };
    let about = format!("{kind} {}/{}", making.namespace, making.name);
    let spec = match (version.as_str(), kind.as_str()) {
        ("autoscaling/v2", "HorizontalPodAutoscaler") => making.of_hpa(&object["spec"]),
        ("autoscaling/v1", "HorizontalPodAutoscaler") => making.of_old_hpa(&object["spec"]),
        ("keda.sh/v1alpha1", "ScaledObject") => {
            match serde_json::from_value::<ScaledObject>(object["spec"].clone()) {
                Ok(spec) => making.of_scaled_object(spec, &object["metadata"]["annotations"]),
                Err(error) => {
                    converted.errors.push(format!("{about}: left out: spec: {error}"));
                    return;
                }
            }
        }
        _ => {
            converted.notes.push(format!("{about} ({version}): left out: it can't be converted"));
            return;
        }
    };
    let mut spec = spec;
    let notes = |making: &Making| -> Vec<String> {
        making.notes.iter().map(|note| format!("{about}: {note}")).collect()
    };
    let refused = match AutoscalerSpec::read(spec.clone()) {
        _ if kind == "ScaledObject" && spec["metrics"] == json!([]) => Some(
            "none of its triggers can be converted: without metrics it would scale on 80 % CPU"
                .to_owned(),
        ),
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    };
    if let Some(why) = refused {
        converted.notes.extend(notes(&making));
        converted.errors.push(format!("{about}: left out: {why}"));
        return;
    }
    if making.incomplete {
        spec["paused"] = json!(true);
        making.note(
            "created with `paused: true`, as it would not scale as before: review it, then remove `paused`",
        );
    }
    let mut metadata = json!({"name": making.name});
    if !making.namespace.is_empty() {
        metadata["namespace"] = json!(making.namespace);
    }
    if let Some(labels) = object.pointer("/metadata/labels").filter(|labels| labels.is_object()) {
        metadata["labels"] = labels.clone();
    }
    converted.objects.push(json!({
        "apiVersion": "plimsoll.dev/v1alpha1",
        "kind": "Autoscaler",
        "metadata": metadata,
        "spec": spec,
    }));
    converted.rules.append(&mut making.rules);
    converted.notes.extend(notes(&making));
}

/// One object in the making.
struct Making {
    namespace: String,
    name: String,
    notes: Vec<String>,
    rules: Vec<Value>,
    /// Whether something is missing without which it would scale otherwise.
    incomplete: bool,
    /// The Prometheus that Plimsoll asks, where that is known.
    server: Option<String>,
}

impl Making {
    fn note(&mut self, note: &str) {
        self.notes.push(note.to_owned());
    }

    fn missing(&mut self, note: &str) {
        self.note(note);
        self.incomplete = true;
    }

    fn of_hpa(&mut self, spec: &Value) -> Value {
        self.note("delete the HorizontalPodAutoscaler when the Autoscaler is made: while both are there, kube-controller-manager scales by it, and the Autoscaler does not (AmbiguousSelector)");
        let mut spec = spec.clone();
        quote_fractions(&mut spec);
        spec
    }

    fn of_old_hpa(&mut self, spec: &Value) -> Value {
        let mut new = spec.clone();
        if let Some(percent) =
            new.as_object_mut().and_then(|s| s.remove("targetCPUUtilizationPercentage"))
        {
            new["metrics"] = json!([utilization("cpu", None, percent)]);
        }
        self.of_hpa(&new)
    }

    fn of_scaled_object(&mut self, spec: ScaledObject, annotations: &Value) -> Value {
        let target = json!({
            "apiVersion": spec.scale_target_ref.api_version.as_deref().unwrap_or("apps/v1"),
            "kind": spec.scale_target_ref.kind.as_deref().unwrap_or("Deployment"),
            "name": spec.scale_target_ref.name,
        });
        let (min, max) =
            (spec.min_replica_count.unwrap_or(0), spec.max_replica_count.unwrap_or(100));
        let mut new = json!({"scaleTargetRef": target, "minReplicas": min, "maxReplicas": max});
        let mut metrics = Vec::new();
        for (index, trigger) in spec.triggers.iter().enumerate() {
            metrics.extend(self.metric(index, trigger));
        }
        let on_queries = metrics.iter().any(|metric| metric["type"] == "External");
        new["metrics"] = json!(metrics);
        if min == 0 && !on_queries {
            new["minReplicas"] = json!(1);
            self.note(
                "minReplicas is 1: without an External metric nothing tells when to leave zero",
            );
        }
        if let Some(fallback) = spec.fallback {
            new["fallback"] =
                json!({"failedRounds": fallback.failure_threshold, "replicas": fallback.replicas});
            self.note("fallback never removes replicas here");
            if let Some(behavior @ ("currentReplicas" | "currentReplicasIfLower")) =
                fallback.behavior.as_deref()
            {
                self.missing(&format!("fallback.behavior {behavior} has no counterpart: at least `replicas`, never fewer than there are"));
            }
        }
        self.advanced(&spec.advanced, &mut new);
        if spec.idle_replica_count.is_some() {
            self.missing("idleReplicaCount has no counterpart: minReplicas is what stays");
        }
        if on_queries && min == 0 {
            let cooldown = spec.cooldown_period.unwrap_or(300);
            let window = new.pointer("/behavior/scaleDown/stabilizationWindowSeconds");
            let window = window.and_then(Value::as_i64).unwrap_or(300);
            if window != i64::from(cooldown) {
                self.missing(&format!("cooldownPeriod {cooldown} s: zero is waited for as long as for any other scale down, behavior.scaleDown.stabilizationWindowSeconds, which is {window} s"));
            }
        }
        if let Some(interval) = spec.polling_interval {
            let period = interval.clamp(1, 3600);
            new["syncPeriodSeconds"] = json!(period);
            self.note(&format!("pollingInterval {interval} s becomes syncPeriodSeconds {period}, the time between two decisions, not about zero only"));
        }
        match annotations.get("autoscaling.keda.sh/paused").and_then(Value::as_str) {
            None | Some("false") => {}
            Some(_) => new["paused"] = json!(true),
        }
        if annotations.get("autoscaling.keda.sh/paused-replicas").is_some() {
            self.missing("the annotation autoscaling.keda.sh/paused-replicas has no counterpart");
        }
        self.note("pause the ScaledObject (annotation autoscaling.keda.sh/paused: \"true\") or delete it first: it has a HorizontalPodAutoscaler of its own, and while that is there, kube-controller-manager scales by it, and the Autoscaler does not (AmbiguousSelector)");
        new
    }

    fn advanced(&mut self, advanced: &Value, new: &mut Value) {
        if let Some(behavior) = advanced.pointer("/horizontalPodAutoscalerConfig/behavior") {
            new["behavior"] = behavior.clone();
        }
        if advanced
            .get("scalingModifiers")
            .is_some_and(|m| m.as_object().is_some_and(|m| !m.is_empty()))
        {
            self.missing("advanced.scalingModifiers is left out: write its formula as one query");
        }
        if advanced.get("restoreToOriginalReplicaCount") == Some(&json!(true)) {
            self.note("restoreToOriginalReplicaCount is left out: deleting an Autoscaler leaves the scale as it is. Set it to false on the ScaledObject before you delete that: KEDA would set the replicas of the beginning, under load");
        }
    }

    fn metric(&mut self, index: usize, trigger: &Trigger) -> Option<Value> {
        let field = |name: &str| {
            trigger.metadata.get(name).map(|value| match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            })
        };
        let place = format!("triggers[{index}]");
        match trigger.kind.as_str() {
            "cpu" | "memory" => {
                let value = field("value").unwrap_or_default();
                let kind = trigger.metric_type.clone().or(field("type"));
                let container = field("containerName");
                match kind.as_deref().unwrap_or("Utilization") {
                    "AverageValue" => Some(resource(
                        &trigger.kind,
                        container,
                        json!({"type": "AverageValue", "averageValue": value}),
                    )),
                    _ => match value.parse::<i32>() {
                        Ok(percent) => Some(utilization(&trigger.kind, container, json!(percent))),
                        Err(_) => {
                            self.missing(&format!(
                                "{place}: metadata.value {value:?} is no percentage"
                            ));
                            None
                        }
                    },
                }
            }
            "prometheus" => self.prometheus(&place, index, trigger, &field),
            other => {
                self.missing(&format!("{place}: a trigger of type {other} can't be converted: Plimsoll asks Prometheus alone"));
                None
            }
        }
    }

    fn prometheus(
        &mut self,
        place: &str,
        index: usize,
        trigger: &Trigger,
        field: &impl Fn(&str) -> Option<String>,
    ) -> Option<Value> {
        let (Some(query), Some(threshold)) = (field("query"), field("threshold")) else {
            self.missing(&format!("{place}: metadata.query and metadata.threshold are needed"));
            return None;
        };
        let Some(series) = first_selector(&query) else {
            self.missing(&format!(
                "{place}: the query can't be read, or selects no series: {query}"
            ));
            return None;
        };
        let name = metric_name(&self.namespace, &self.name, index);
        // In a template `<<` begins an action; PromQL knows no such operator.
        self.rules.push(json!({
            "seriesQuery": series,
            "resources": {"namespaced": false},
            "name": {"as": name},
            "metricsQuery": query,
        }));
        self.note(&format!("{place}: {name} can be read in every namespace by whoever may read external metrics there; KEDA kept it to the ScaledObject's namespace. Where that matters, select the namespace by a label (`resources` of the rule)"));
        if let Some(address) = field("serverAddress") {
            let plain = |url: &str| url.trim_end_matches('/').to_owned();
            if self.server.as_deref().map(plain) != Some(plain(&address)) {
                self.missing(&format!("{place}: serverAddress {address}: Plimsoll asks the server of its --prometheus-url. Where that is the same, give it to convert as --prometheus-url; name another one in `backends` and in the rule"));
            }
        }
        for left in [
            "authModes",
            "customHeaders",
            "cortexOrgID",
            "namespace",
            "queryParameters",
            "unsafeSsl",
        ] {
            if field(left).is_some_and(|value| !matches!(value.as_str(), "" | "false")) {
                self.missing(&format!("{place}: metadata.{left} is left out: see --prometheus-header, --prometheus-token-file, --prometheus-ca-file and `backends`"));
            }
        }
        if trigger.authentication_ref.is_some() {
            self.missing(&format!(
                "{place}: authenticationRef is left out: Plimsoll logs in by its own flags"
            ));
        }
        if field("activationThreshold").is_some_and(|value| value.parse() != Ok(0.0)) {
            self.missing(&format!("{place}: activationThreshold has no counterpart: zero is left as soon as the metric asks for a replica"));
        }
        if field("ignoreNullValues").as_deref() != Some("false") {
            self.note(&format!("{place}: KEDA treats an empty result as 0. Plimsoll treats it as missing, and does not scale down on it. Append `or vector(0)` to keep KEDA's behaviour"));
        }
        let target = match trigger.metric_type.as_deref() {
            Some("Value") => json!({"type": "Value", "value": threshold}),
            _ => json!({"type": "AverageValue", "averageValue": threshold}),
        };
        Some(json!({"type": "External", "external": {"metric": {"name": name}, "target": target}}))
    }
}

/// Writes fractions as texts: an HPA may have `0.5` for a quantity, which the schema of a definition
/// can't admit as a number.
fn quote_fractions(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let quantity = matches!(name.as_str(), "value" | "averageValue" | "tolerance");
                match field {
                    Value::Number(number) if quantity && number.is_f64() => {
                        *field = json!(number.to_string());
                    }
                    field => quote_fractions(field),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(quote_fractions),
        _ => {}
    }
}

fn utilization(name: &str, container: Option<String>, percent: Value) -> Value {
    resource(name, container, json!({"type": "Utilization", "averageUtilization": percent}))
}

fn resource(name: &str, container: Option<String>, target: Value) -> Value {
    match container {
        None => json!({"type": "Resource", "resource": {"name": name, "target": target}}),
        Some(container) => json!({"type": "ContainerResource", "containerResource":
            {"name": name, "container": container, "target": target}}),
    }
}

/// A name that no other metric has.
fn metric_name(namespace: &str, name: &str, index: usize) -> String {
    let plain = |text: &str| text.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    format!("keda_{}_{}_{index}", plain(namespace), plain(name))
}

/// The first selector of a query, for finding its series.
fn first_selector(query: &str) -> Option<String> {
    struct First(Option<String>);
    impl ExprVisitor for First {
        type Error = std::convert::Infallible;
        fn pre_visit(&mut self, expr: &Expr) -> Result<bool, Self::Error> {
            let selector = match expr {
                Expr::VectorSelector(selector) => selector,
                Expr::MatrixSelector(matrix) => &matrix.vs,
                _ => return Ok(true),
            };
            let mut plain = selector.clone();
            (plain.offset, plain.at) = (None, None);
            self.0 = Some(plain.to_string());
            Ok(false)
        }
    }
    let mut first = First(None);
    let Ok(_) = walk_expr(&mut first, &parser::parse(query).ok()?);
    first.0
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ScaledObject {
    scale_target_ref: ScaleTargetRef,
    polling_interval: Option<i32>,
    cooldown_period: Option<i32>,
    idle_replica_count: Option<i32>,
    min_replica_count: Option<i32>,
    max_replica_count: Option<i32>,
    fallback: Option<KedaFallback>,
    #[serde(default)]
    advanced: Value,
    triggers: Vec<Trigger>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ScaleTargetRef {
    api_version: Option<String>,
    kind: Option<String>,
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct KedaFallback {
    failure_threshold: i32,
    replicas: i32,
    behavior: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Trigger {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    metadata: BTreeMap<String, Value>,
    metric_type: Option<String>,
    authentication_ref: Option<Map<String, Value>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: &str = "http://prometheus:9090";

    fn converted(text: &str) -> Converted {
        let mut converted = Converted { server: Some(SERVER.to_owned()), ..Converted::default() };
        convert(text, &mut converted).unwrap();
        converted
    }

    #[test]
    fn a_scaled_object_becomes_an_autoscaler_with_a_rule() {
        let made = converted(
            "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\n\
             metadata: {name: web, namespace: shop, labels: {team: a}}\n\
             spec:\n  scaleTargetRef: {name: web}\n  minReplicaCount: 1\n  maxReplicaCount: 20\n\
             \x20 fallback: {failureThreshold: 3, replicas: 6}\n\
             \x20 advanced: {horizontalPodAutoscalerConfig: {behavior: {scaleDown: {stabilizationWindowSeconds: 60}}}}\n\
             \x20 triggers:\n\
             \x20 - type: prometheus\n    metadata:\n      serverAddress: http://prometheus:9090/\n\
             \x20     query: sum(rate(http_requests_total{app=\"web\"}[2m] offset 1m))\n      threshold: '100'\n\
             \x20 - {type: cpu, metricType: Utilization, metadata: {value: '60'}}\n",
        );
        let spec = &made.objects[0]["spec"];
        assert_eq!(made.objects[0]["metadata"]["labels"]["team"], "a");
        assert_eq!(spec["maxReplicas"], 20);
        assert_eq!(spec["fallback"], json!({"failedRounds": 3, "replicas": 6}));
        assert_eq!(spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"], 60);
        assert_eq!(spec["metrics"][0]["external"]["metric"]["name"], "keda_shop_web_0");
        assert_eq!(spec["metrics"][0]["external"]["target"]["averageValue"], "100");
        assert_eq!(spec["metrics"][1]["resource"]["target"]["averageUtilization"], 60);
        assert_eq!(spec.get("paused"), None);
        let rule = &made.rules[0];
        assert_eq!(rule["seriesQuery"], "http_requests_total{app=\"web\"}");
        let notes = made.notes.join("\n");
        assert!(!notes.contains("serverAddress"), "{notes}");
        assert!(!notes.contains("refused"), "{notes}");
        // What it gives can be read as a configuration.
        let file = yaml(&json!({"externalRules": made.rules}));
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), file).unwrap();
        crate::config::Config::read(path.path()).unwrap();
    }

    #[test]
    fn what_can_not_be_converted_is_told_and_paused() {
        let made = converted(
            "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata: {name: worker}\n\
             spec:\n  scaleTargetRef: {name: worker}\n  idleReplicaCount: 0\n\
             \x20 triggers: [{type: kafka, metadata: {topic: x}}, {type: memory, metadata: {value: '80'}}]\n",
        );
        assert_eq!(made.objects[0]["spec"]["paused"], true);
        assert_eq!(made.objects[0]["spec"]["minReplicas"], 1);
        let notes = made.notes.join("\n");
        for expected in
            ["triggers[0]: a trigger of type kafka", "idleReplicaCount", "`paused: true`"]
        {
            assert!(notes.contains(expected), "{expected}: {notes}");
        }
    }

    #[test]
    fn what_would_ask_another_server_or_scale_otherwise_is_paused_with_its_reason() {
        let scaled = |spec: &str, metadata: &str, trigger: &str| {
            converted(&format!(
                "{{apiVersion: keda.sh/v1alpha1, kind: ScaledObject, metadata: {{name: web}}, spec: \
                 {{scaleTargetRef: {{name: web}}, {spec} triggers: [{{type: prometheus, {trigger} \
                 metadata: {{query: up, threshold: '5', {metadata}}}}}]}}}}"
            ))
        };
        let window = |seconds: u32| {
            format!(
                "advanced: {{horizontalPodAutoscalerConfig: {{behavior: {{scaleDown: \
                 {{stabilizationWindowSeconds: {seconds}}}}}}}}},"
            )
        };
        let longer = window(60) + "cooldownPeriod: 60,";
        for (spec, metadata, trigger) in [
            ("", "", ""),
            ("", "serverAddress: 'http://prometheus:9090/', unsafeSsl: 'false'", ""),
            ("minReplicaCount: 1, cooldownPeriod: 600,", "", ""),
            (longer.as_str(), "", ""),
            ("fallback: {failureThreshold: 3, replicas: 6, behavior: static},", "", ""),
        ] {
            let made = scaled(spec, metadata, trigger);
            assert_eq!(made.objects[0]["spec"].get("paused"), None, "{:?}", made.notes);
        }
        for (spec, metadata, trigger, expected) in [
            ("", "serverAddress: 'https://other:9090'", "", "serverAddress https://other:9090"),
            ("", "authModes: bearer", "", "authModes"),
            ("", "customHeaders: X-Scope-OrgID=t1", "", "customHeaders"),
            ("", "cortexOrgID: t1", "", "cortexOrgID"),
            ("", "namespace: t1", "", "metadata.namespace"),
            ("", "queryParameters: a=b", "", "queryParameters"),
            ("", "unsafeSsl: 'true'", "", "unsafeSsl"),
            ("", "", "authenticationRef: {name: a},", "authenticationRef"),
            ("cooldownPeriod: 600,", "", "", "cooldownPeriod 600 s"),
            (window(0).as_str(), "", "", "cooldownPeriod 300 s"),
            (
                "fallback: {failureThreshold: 3, replicas: 6, behavior: currentReplicas},",
                "",
                "",
                "fallback.behavior currentReplicas",
            ),
        ] {
            let made = scaled(spec, metadata, trigger);
            assert_eq!(made.objects[0]["spec"]["paused"], true, "{expected}: {:?}", made.notes);
            assert!(made.notes.iter().any(|note| note.contains(expected)), "{:?}", made.notes);
        }
        // Without a word on which server Plimsoll asks, it may be another.
        let mut unknown = Converted::default();
        let text = "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata: {name: web}\n\
            spec: {scaleTargetRef: {name: web}, triggers: [{type: prometheus, metadata: \
            {serverAddress: 'http://prometheus:9090', query: up, threshold: '5'}}]}\n";
        convert(text, &mut unknown).unwrap();
        assert_eq!(unknown.objects[0]["spec"]["paused"], true);
    }

    #[test]
    fn an_hpa_of_either_version_keeps_its_spec() {
        let made = converted(
            "apiVersion: v1\nkind: List\nitems:\n\
             - {apiVersion: autoscaling/v1, kind: HorizontalPodAutoscaler, metadata: {name: a}, spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: a}, maxReplicas: 3, targetCPUUtilizationPercentage: 70}}\n\
             - {apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: b}, spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: b}, maxReplicas: 3}, status: {}}\n\
             - {apiVersion: v1, kind: Pod, metadata: {name: c}}\n",
        );
        assert_eq!(made.objects.len(), 2);
        let metric = &made.objects[0]["spec"]["metrics"][0];
        assert_eq!(metric["resource"]["target"]["averageUtilization"], 70);
        assert_eq!(made.objects[1].get("status"), None);
        assert!(made.notes.iter().any(|note| note.contains("Pod /c (v1): left out")));
    }

    #[test]
    fn what_would_be_refused_or_scale_on_cpu_is_an_error_and_no_object() {
        let hpa = |change: &str| {
            converted(&format!(
                "{{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {{name: a}}, spec: \
                 {{scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: a}}, maxReplicas: 3, {change}}}}}"
            ))
        };
        let made = hpa("behavior: {scaleDown: {selectPolicy: disabled}}");
        assert!(made.objects.is_empty());
        assert!(
            made.errors[0].contains("spec.behavior.scaleDown.selectPolicy"),
            "{:?}",
            made.errors
        );
        let made = hpa("behavior: {scaleDown: {tolerance: 0.05}}");
        let tolerance = &made.objects[0]["spec"]["behavior"]["scaleDown"]["tolerance"];
        assert_eq!((tolerance, made.errors.len()), (&json!("0.05"), 0));
        let made = converted(
            "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata: {name: worker}\n\
             spec: {scaleTargetRef: {name: worker}, pollingInterval: 5, triggers: [{type: kafka}]}\n",
        );
        assert!(made.objects.is_empty());
        assert!(made.errors[0].contains("80 % CPU"), "{:?}", made.errors);
    }

    #[test]
    fn what_a_scaled_object_loses_is_said() {
        let made = converted(
            "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata: {name: web, namespace: shop}\n\
             spec:\n  scaleTargetRef: {name: web}\n  pollingInterval: 5\n\
             \x20 advanced: {restoreToOriginalReplicaCount: true}\n\
             \x20 triggers: [{type: prometheus, metadata: {query: sum(queue), threshold: '5'}}]\n",
        );
        assert_eq!(made.objects[0]["spec"]["syncPeriodSeconds"], 5);
        let notes = made.notes.join("\n");
        for expected in [
            "can be read in every namespace",
            "kube-controller-manager scales by it",
            "Set it to false on the ScaledObject",
        ] {
            assert!(notes.contains(expected), "{expected}: {notes}");
        }
    }
}
