//! The conversion of one trigger of a ScaledObject.

use super::conversion::{Conversion, resource, utilization};
use super::server::is_same;
use super::userinfo::without_userinfo;
use crate::clock::WallClock;
use crate::hpa::schedule::{self, ScheduleSpec};
use crate::promql::formula::without_nan;
use crate::promql::guard::names_namespace;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The least target of which a thousandth is too little to tell, in thousandths, and the largest of which it is as much as
/// the default tolerance, a tenth.
const COARSE: i64 = 50;
const WITHIN_TOLERANCE: i64 = 10;
/// The types of triggers that can be converted.
const TYPES: [&str; 4] = ["cpu", "memory", "cron", "prometheus"];

/// A trigger.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Trigger {
    #[serde(rename = "type")]
    kind: String,
    name: Option<String>,
    #[serde(default)]
    metadata: BTreeMap<String, Value>,
    metric_type: Option<String>,
    authentication_ref: Option<Map<String, Value>>,
    use_cached_metrics: Option<bool>,
}

/// What triggers have become.
#[derive(Default)]
pub struct Made {
    /// Metrics of CPU and memory.
    pub metrics: Vec<Value>,
    /// Metrics of queries.
    pub custom: Vec<Value>,
    /// The names that they have or had, and how many more wanted each of them.
    names: BTreeMap<String, u32>,
    /// Schedules.
    pub schedules: Vec<Value>,
    /// The names and queries of triggers, and whether an empty result is 0.
    pub queries: Vec<(String, String, bool)>,
    /// The paths of triggers whose queries leave NaN and infinities out.
    pub without_nan: Vec<String>,
}

impl Made {
    /// Adds those of another trigger.
    pub fn add(&mut self, mut other: Self) {
        self.metrics.append(&mut other.metrics);
        other.custom.into_iter().for_each(|metric| self.push(metric));
        self.schedules.append(&mut other.schedules);
        self.queries.append(&mut other.queries);
        self.without_nan.append(&mut other.without_nan);
    }

    /// Adds a metric of a query, with a number behind its name if another one has that.
    pub fn push(&mut self, mut metric: Value) {
        let wanted = metric["metricName"].as_str().unwrap_or_default().to_owned();
        let mut name = wanted.clone();
        while self.names.contains_key(&name) {
            let others = self.names.entry(wanted.clone()).or_default();
            *others += 1;
            name = format!("{wanted}-{}", *others + 1);
        }
        metric["metricName"] = json!(name);
        self.names.insert(name, 0);
        self.custom.push(metric);
    }

    /// All that is made.
    pub fn all(&self) -> impl Iterator<Item = &Value> {
        self.metrics.iter().chain(&self.custom).chain(&self.schedules)
    }

    /// Whether there is nothing but schedules.
    pub fn is_only_schedules(&self) -> bool {
        self.metrics.is_empty() && self.custom.is_empty() && !self.schedules.is_empty()
    }
}

impl Trigger {
    /// The type of its target, if it has one.
    fn metric_type(&self) -> Option<&str> {
        self.metric_type.as_deref().filter(|kind| !kind.is_empty())
    }

    /// A field of the metadata as text.
    fn field(&self, name: &str) -> Option<String> {
        self.metadata.get(name).filter(|value| !value.is_null()).map(|value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        })
    }
}

/// Converts a trigger. What has no counterpart is noted.
pub fn convert(conversion: &mut Conversion, index: usize, trigger: &Trigger, min: i32) -> Made {
    let path = format!("triggers[{index}]");
    let made = made(conversion, &path, index, trigger, min);
    if made.all().next().is_none() {
        conversion.leave_out(&path);
    }
    conversion.made_of(&format!("spec.{path}"), made.all());
    made
}

fn made(
    conversion: &mut Conversion,
    path: &str,
    index: usize,
    trigger: &Trigger,
    min: i32,
) -> Made {
    match trigger.kind.as_str() {
        "cpu" | "memory" => {
            let metric = resource_metric(conversion, path, trigger);
            Made { metrics: metric.into_iter().collect(), ..Made::default() }
        }
        "cron" => {
            let schedule = cron(conversion, path, index, trigger, min);
            Made { schedules: schedule.into_iter().collect(), ..Made::default() }
        }
        "prometheus" => prometheus(conversion, path, index, trigger).unwrap_or_default(),
        other if TYPES.contains(&&*other.to_lowercase()) => {
            let meant = other.to_lowercase();
            conversion.missing(&format!(
                "{path}: KEDA knows no trigger of type {other}: did you mean {meant}?"
            ));
            Made::default()
        }
        other => {
            conversion.missing(&format!("{path}: a trigger of type {other} can't be converted: Plimsoll queries Prometheus only"));
            Made::default()
        }
    }
}

fn resource_metric(conversion: &mut Conversion, path: &str, trigger: &Trigger) -> Option<Value> {
    let value = trigger.field("value").unwrap_or_default();
    let container = trigger.field("containerName").filter(|name| !name.is_empty());
    let (kind, old) = (trigger.metric_type(), trigger.field("type"));
    match (kind, &old) {
        (Some("AverageValue" | "Utilization"), _) => {}
        (Some(other), _) => conversion.missing(&format!(
            "{path}: metricType {other}, which KEDA refuses here, is read as Utilization"
        )),
        (None, Some(old)) => conversion.missing(&format!(
            "{path}: metricType is missing; metadata.type {old}, which KEDA reads no more since 2.18, is read in its place"
        )),
        (None, None) => conversion.missing(&format!(
            "{path}: metricType is missing, which KEDA refuses, and is read as Utilization"
        )),
    }
    match kind.or(old.as_deref()).unwrap_or_default() {
        "AverageValue" => Some(resource(
            &trigger.kind,
            container,
            json!({"type": "AverageValue", "averageValue": value}),
        )),
        _ => match value.parse::<i32>() {
            Ok(percent) => Some(utilization(&trigger.kind, container, json!(percent))),
            Err(_) => {
                conversion.missing(&format!(
                    "{path}: metadata.value {value:?}: a whole number of percent was expected, without %"
                ));
                None
            }
        },
    }
}

/// A cron trigger asks for so many replicas within its window, as a schedule's `minReplicas` does.
fn cron(
    conversion: &mut Conversion,
    path: &str,
    index: usize,
    trigger: &Trigger,
    min: i32,
) -> Option<Value> {
    let field = |name: &str| trigger.field(name).unwrap_or_default();
    for name in ["timezone", "start", "end"] {
        if field(name).is_empty() {
            conversion.missing(&format!("{path}: metadata.{name} is missing"));
            return None;
        }
    }
    let given = field("desiredReplicas");
    let Ok(replicas) = given.parse::<i32>() else {
        conversion
            .missing(&format!("{path}: metadata.desiredReplicas {given:?} is not a whole number"));
        return None;
    };
    if replicas == 0 {
        conversion.missing(&format!("{path}: metadata.desiredReplicas {given:?} is refused by KEDA: expected a number other than 0"));
        return None;
    }
    if let Some(other) = trigger.metric_type().filter(|kind| *kind != "AverageValue") {
        conversion.missing(&format!("{path}: metricType {other} of a cron trigger has no counterpart: it asks for desiredReplicas here, as with AverageValue"));
    }
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = trigger.name.as_deref().unwrap_or_default().chars().map(plain).collect();
    let name = name.trim_matches('-');
    let name = if name.is_empty() || name.len() > 50 { "cron" } else { name };
    let schedule = json!({
        "name": format!("{name}-{index}"),
        "timeZone": field("timezone"),
        "start": cron_expression(&field("start")),
        "end": cron_expression(&field("end")),
        // A schedule takes the place of minReplicas.
        "minReplicas": replicas.max(min),
    });
    if !takes_turns(&schedule) {
        conversion.missing(&format!("{path}: its starts and ends do not take turns in the coming year. For KEDA it is within a window while the next end comes before the next start: from the last start before an end on; a schedule lasts from the first start after an end to the next end"));
    }
    Some(schedule)
}

/// Whether the starts and ends of a schedule take turns. What is invalid is told where the whole is read.
fn takes_turns(schedule: &Value) -> bool {
    let spec = serde_json::from_value::<ScheduleSpec>(schedule.clone());
    let read = spec.ok().and_then(|spec| schedule::parse(&[spec]).ok()).unwrap_or_default();
    read.takes_turns(0, WallClock::default().timestamp().as_millisecond())
}

/// A cron expression of KEDA as a schedule takes it: `?` is `*`, and `N/S` is from N to the last value.
fn cron_expression(text: &str) -> String {
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    if fields.len() != 5 {
        return text.to_owned();
    }
    let part = |part: &str, last: i32| match part.split_once('/') {
        Some((first, step)) if !first.contains(['-', '*']) => format!("{first}-{last}/{step}"),
        _ => part.to_owned(),
    };
    // Minute, hour, day of month, month, day of week.
    let fields = fields.iter().zip([59, 23, 31, 12, 6]).map(|(field, last)| {
        let field = field.replace('?', "*");
        field.split(',').map(|each| part(each, last)).collect::<Vec<_>>().join(",")
    });
    fields.collect::<Vec<_>>().join(" ")
}

/// A Prometheus trigger becomes a custom metric of the workload.
fn prometheus(
    conversion: &mut Conversion,
    path: &str,
    index: usize,
    trigger: &Trigger,
) -> Option<Made> {
    let field = |name: &str| trigger.field(name);
    let (Some(query), Some(threshold)) = (field("query"), field("threshold")) else {
        conversion.missing(&format!("{path}: metadata.query and metadata.threshold are needed"));
        return None;
    };
    match names_namespace(&query, "namespace", &conversion.namespace) {
        Ok(true) => {}
        Ok(false) if conversion.namespace.is_empty() => conversion.missing(&format!("{path}: the object has no namespace, so that it is not known whether the query reads that alone: --namespace says which it is applied to")),
        Ok(false) => conversion.missing(&format!("{path}: not each selector of the query has namespace={:?}: only series of the Autoscaler's own namespace are read, so that the result is another one if KEDA read others (an administrator can share a namespace by podMetrics.sharedNamespaces)", conversion.namespace)),
        Err(error) => {
            conversion.missing(&format!("{path}: the query can't be read: {error}"));
            return None;
        }
    }
    let named = trigger.name.as_deref().filter(|name| !name.is_empty());
    let name = named.map_or_else(|| format!("trigger-{index}"), str::to_owned);
    let threshold =
        target(conversion, &format!("{path}: metadata.threshold"), &threshold, rounded)?;
    let given = field("ignoreNullValues");
    let is_ignored = given.as_ref().is_none_or(|value| !is_false(value));
    if let Some(other) = given.filter(|value| !is_false(value) && !is_true(value)) {
        conversion.missing(&format!(
            "{path}: metadata.ignoreNullValues {other:?}, which KEDA refuses, is read as true"
        ));
    }
    let bounded = is_ignored.then(|| without_nan(&query)).flatten();
    let mut metric = json!({
        "metricName": name.replace(['/', '%'], "-"),
        "per": "Workload",
        "query": bounded.as_ref().unwrap_or(&query),
    });
    let target_field = match trigger.metric_type() {
        Some("Value") => "value",
        Some("AverageValue") | None => "averageValue",
        Some(other) => {
            conversion.missing(&format!(
                "{path}: metricType {other}, which KEDA refuses here, is read as AverageValue"
            ));
            "averageValue"
        }
    };
    metric[target_field] = json!(threshold);
    let activation_threshold = field("activationThreshold").unwrap_or_default();
    let what = format!("{path}: metadata.activationThreshold");
    activation(conversion, &what, &activation_threshold, rounded, &mut metric);
    if is_ignored {
        metric["onEmpty"] = json!("Zero");
    }
    if trigger.use_cached_metrics == Some(true) {
        conversion.note(&format!("{path}: useCachedMetrics is left out: each decision has the value of its own time, where KEDA's HorizontalPodAutoscaler reads that of the last poll"));
    }
    server(conversion, path, trigger);
    let queries = vec![(name, query, is_ignored)];
    let without_nan = bounded.is_some().then(|| path.to_owned()).into_iter().collect();
    Some(Made { custom: vec![metric], queries, without_nan, ..Made::default() })
}

/// Notes what a trigger says of the server.
fn server(conversion: &mut Conversion, path: &str, trigger: &Trigger) {
    // What a user's own query has where --prometheus-timeout is not set: half of that.
    const QUERY_MS: u64 = 5_000;
    let field = |name: &str| trigger.field(name);
    let given = conversion.servers.iter();
    if let Some(address) = field("serverAddress")
        && !given.clone().any(|server| is_same(server, &address))
    {
        let given: Vec<String> = given.map(|server| without_userinfo(server)).collect();
        let (differs, too) = match given.is_empty() {
            true => (String::new(), ""),
            false => (format!(" is none of --prometheus-url {}", given.join(", ")), ", too"),
        };
        let address = without_userinfo(&address);
        conversion.other_server(&format!("{path}: serverAddress {address}{differs}: Plimsoll asks the server of its --prometheus-url. Where that is the same, give it to convert as --prometheus-url{too}"));
    }
    if let Some(timeout) = field("timeout").filter(|timeout| !timeout.is_empty()) {
        let note = format!(
            "{path}: metadata.timeout {timeout:?} is left out: a query has half of the --prometheus-timeout of Plimsoll, {} s if that is not set",
            QUERY_MS / 1000
        );
        match timeout.parse::<u64>().is_ok_and(|ms| ms <= QUERY_MS) {
            true => conversion.note(&note),
            false => conversion.other_server(&note),
        }
    }
    let login = "see --prometheus-header, --prometheus-token-file and --prometheus-ca-file";
    let parameter = "Plimsoll adds no parameters of others to its requests";
    for (left, instead) in [
        ("authModes", login),
        ("customHeaders", login),
        ("cortexOrgID", login),
        ("unsafeSsl", login),
        ("namespace", parameter),
        ("queryParameters", parameter),
    ] {
        if field(left).is_some_and(|value| !matches!(value.as_str(), "" | "false")) {
            conversion.other_server(&format!("{path}: metadata.{left} is left out: {instead}"));
        }
    }
    if trigger.authentication_ref.is_some() {
        conversion.other_server(&format!(
            "{path}: authenticationRef is left out: Plimsoll logs in by its own flags"
        ));
    }
}

/// A target in the thousandths that KEDA makes of it. Notes digits that are lost, or why it is none.
pub fn target(
    conversion: &mut Conversion,
    what: &str,
    text: &str,
    thousandths: fn(f64) -> Option<i64>,
) -> Option<String> {
    match number(text).and_then(thousandths) {
        Some(milli) if milli > 0 => Some(noted(conversion, what, text, milli)),
        _ => {
            conversion
                .missing(&format!("{what} {text:?} is not a number between 0.001 and 9.2e15"));
            None
        }
    }
}

/// Notes where a thousandth is much of the target of a metric: totals are whole thousandths, and KEDA does not round them up.
pub fn coarse(conversion: &mut Conversion, metric: &Value) {
    let target = metric.get("averageValue").or(metric.get("value")).and_then(Value::as_str);
    let Some(milli) = target.and_then(number).and_then(rounded).filter(|milli| *milli < COARSE)
    else {
        return;
    };
    let name = metric["metricName"].as_str().unwrap_or_default();
    let note = format!(
        "{name}: its target is {}, and totals are rounded up to thousandths here; KEDA rounds them to the nearest, and what a formula gives down, so that there may be more replicas than with it",
        quantity(milli)
    );
    match milli <= WITHIN_TOLERANCE {
        true => conversion.missing(&note),
        false => conversion.note(&note),
    }
}

/// Sets the activation of a metric, if there is one.
pub fn activation(
    conversion: &mut Conversion,
    what: &str,
    text: &str,
    thousandths: fn(f64) -> Option<i64>,
    metric: &mut Value,
) {
    if text.is_empty() {
        return;
    }
    match number(text).and_then(thousandths) {
        Some(milli) => {
            let activation = noted(conversion, what, text, milli);
            if milli != 0 {
                metric["activation"] = json!(activation);
            }
        }
        None => conversion.missing(&format!(
            "{what} {text:?} is not a number up to 9.2e15: without it, more than 0 is active"
        )),
    }
}

/// Thousandths as a quantity, with a note where they are not all of a number.
fn noted(conversion: &mut Conversion, what: &str, text: &str, milli: i64) -> String {
    let quantity = quantity(milli);
    if number(text) != number(&quantity) {
        conversion.note(&format!(
            "{what} {text:?}: there are three digits behind the point, so that it is {quantity}"
        ));
    }
    quantity
}

/// Whether a text is false, as Go's `strconv.ParseBool` reads it.
pub fn is_false(text: &str) -> bool {
    matches!(text, "false" | "False" | "FALSE" | "f" | "F" | "0")
}

fn is_true(text: &str) -> bool {
    matches!(text, "true" | "True" | "TRUE" | "t" | "T" | "1")
}

fn number(text: &str) -> Option<f64> {
    text.trim().parse::<f64>().ok().filter(|value| value.is_finite())
}

/// A number in thousandths, as KEDA makes those of a trigger: by three digits behind the point.
pub fn rounded(value: f64) -> Option<i64> {
    format!("{value:.3}").replace('.', "").parse().ok()
}

/// A number in thousandths, as KEDA makes those of a formula.
pub fn cut_off(value: f64) -> Option<i64> {
    let milli = value * 1000.0;
    (milli.abs() < i64::MAX as f64).then_some(milli as i64)
}

/// Thousandths as a decimal number.
fn quantity(milli: i64) -> String {
    let sign = if milli < 0 { "-" } else { "" };
    let (whole, rest) = (milli.unsigned_abs() / 1000, milli.unsigned_abs() % 1000);
    let text = format!("{sign}{whole}.{rest:03}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{scaled, trigger};

    #[test]
    fn what_is_wrong_with_a_trigger_is_named() {
        for (wrong, expected) in [
            (
                "{type: Prometheus, metadata: {query: x}}",
                "triggers[1] is left out: KEDA knows no trigger of type Prometheus: did you mean prometheus?",
            ),
            (
                "{type: cron, metadata: {start: 0 8 * * *, end: 0 18 * * *, desiredReplicas: '2'}}",
                "triggers[1] is left out: metadata.timezone is missing",
            ),
        ] {
            let (spec, notes) = scaled(&format!("  triggers: [{}, {wrong}]\n", trigger("")));
            assert_eq!(spec["mode"], "Preview");
            assert!(notes.contains(expected), "{notes}");
        }
        for name in ["namespace", "queryParameters"] {
            let (_, notes) =
                scaled(&format!("  triggers: [{}]\n", trigger(&format!("{name}: a=b"))));
            let expected = format!("metadata.{name} is left out: Plimsoll adds no parameters");
            assert!(notes.contains(&expected), "{notes}");
        }
    }
}
