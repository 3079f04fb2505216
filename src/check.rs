//! `plimsoll check`: validates a configuration, its queries by parsing them, and with a
//! Prometheus by asking them, and tells what its rules find there.

use crate::config::{CheckFlags, Config, OutputFormat};
use crate::connect;
use crate::prometheus::{Client as Prometheus, SeriesShape, decode_shapes};
use crate::promql::matcher::Matcher;
use crate::promql::query::{MetricType, PodMetric, fields};
use crate::rules::{Rule, RuleSet};
use crate::samples::Table;
use crate::watch::{GroupResource, ResourceMap, Resources};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// What was found.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// What keeps the configuration from being used, or a rule from working.
    pub errors: Vec<String>,
    /// What is likely not meant.
    pub warnings: Vec<String>,
    /// Rule by rule, what it finds; empty without a Prometheus.
    pub rules: Vec<RuleReport>,
}

/// What one rule finds.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleReport {
    /// Its place, such as `rules[0]`.
    pub rule: String,
    /// Its series query.
    pub series_query: String,
    /// The names of the series found that it takes.
    pub series: BTreeSet<String>,
    /// The metrics they become.
    pub metrics: BTreeSet<String>,
    /// The query that was run once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// How many series it gave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query_series: Option<usize>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// How far back series are looked for.
const LOOK_BACK: Duration = Duration::from_secs(600);

/// Checks a file; the text to print, and whether nothing is wrong.
pub async fn run(flags: &CheckFlags) -> (String, bool) {
    let report = check(flags).await;
    let text = match flags.output {
        OutputFormat::Json => {
            serde_json::to_string_pretty(&report).expect("a report is plain data") + "\n"
        }
        OutputFormat::Text => report.to_string(),
    };
    (text, report.errors.is_empty())
}

async fn check(flags: &CheckFlags) -> Report {
    let mut report = Report::default();
    let config = match Config::read(&flags.file) {
        Ok(config) => config,
        Err(error) => {
            report.errors.push(of_object(&flags.file).unwrap_or_else(|| error.with_lines()));
            return report;
        }
    };
    let rules = &config.rules;
    for (place, rule) in rules.placed() {
        // A query for all, written out, as `plimsoll convert` makes them.
        if place.starts_with("externalRules") && !rule.namespaced {
            continue;
        }
        if !rule.query.uses("LabelMatchers") && !rule.query.uses("LabelValuesByName") {
            report.warnings.push(format!(
                "{place}: metricsQuery has no <<.LabelMatchers>>: results of different objects and namespaces would be merged"
            ));
        }
        if !rule.query.uses("Series") {
            report.warnings.push(format!("{place}: metricsQuery has no <<.Series>>"));
        }
    }
    let map = match resources(flags).await {
        Ok(map) => map,
        Err(error) => {
            report.errors.push(error);
            return report;
        }
    };
    if let Some(map) = &map {
        for (place, rule) in rules.placed() {
            for (label, resource) in rule.labels.unknown(map) {
                report.errors.push(format!(
                    "{place}: resources.overrides.{label}: the cluster has no resource {resource}"
                ));
            }
        }
    }
    match &flags.prometheus_url {
        None => parse(&mut report, &config),
        Some(url) => match connect::prometheus(url, &flags.prometheus) {
            Ok(prometheus) => {
                if reach(&mut report, &config, &prometheus).await {
                    ask(&mut report, &config, &prometheus).await;
                    look(&mut report, rules, &prometheus, map.unwrap_or_default()).await;
                }
            }
            Err(error) => report.errors.push(error.to_string()),
        },
    }
    report
}

/// What to do with a file that has an object of Kubernetes in it, if it has.
fn of_object(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let object: serde_json::Value = serde_saphyr::from_str(&text).ok()?;
    object.get("apiVersion")?;
    let kind = object.get("kind")?.as_str()?;
    let instead = match kind {
        "ConfigMap" => {
            "take the file out of it: kubectl -n NAMESPACE get configmap NAME -o jsonpath='{.data.config\\.yaml}'"
        }
        "Autoscaler" => "apply it; `kubectl plimsoll explain NAME` says what is wrong with it",
        _ => "a configuration was expected, as config/plimsoll.yaml is one",
    };
    Some(format!("{}: this is an object of the kind {kind}: {instead}", path.display()))
}

/// A series that stands for those that a template is filled in with.
const SERIES: &str = "some_series";

/// A query of the configuration, filled in as for a metric that there might be.
struct Example<'a> {
    /// The field it is from.
    field: String,
    /// The server that it is for; the one of the flags, if none.
    backend: Option<&'a str>,
    query: String,
}

/// The queries that are not run for series that are there: those of pods' metrics and of usage,
/// which every installation has.
fn general(config: &Config) -> Vec<Example<'_>> {
    let mut examples = Vec::new();
    let metric = PodMetric { metric: SERIES.to_owned(), labels: BTreeMap::new(), query: None };
    for (field, kind) in [("gaugeQuery", MetricType::Gauge), ("counterQuery", MetricType::Counter)]
    {
        if let Ok(query) = config.pod_queries.query(&metric, kind, "some-namespace") {
            let query = query.values.to_string();
            examples.push(Example { field: format!("podMetrics.{field}"), backend: None, query });
        }
    }
    if let Some(usage) = &config.rules.resource {
        let backend = usage.backend.as_deref();
        let matchers = [("some_label", Matcher::Is("some".to_owned()))];
        let group_by = ["some_label".to_owned()];
        for (resource, rule) in [("cpu", &usage.cpu), ("memory", &usage.memory)] {
            let templates =
                [("containerQuery", &rule.container_query), ("nodeQuery", &rule.node_query)];
            for (name, template) in templates {
                // What can't be filled in with a made-up label may be fine with its own.
                if let Ok(query) = template.render(&fields("", &matchers, &group_by)) {
                    let field = format!("resourceRules.{resource}.{name}");
                    examples.push(Example { field, backend, query });
                }
            }
        }
    }
    examples
}

/// A rule's query for a series that might be.
fn of_rule<'a>(place: &str, rule: &'a Rule) -> Option<Example<'a>> {
    let matchers =
        [("namespace", Matcher::Is("some-namespace".to_owned())), ("pod", Matcher::NotEmpty)];
    let query = rule.render(SERIES, &matchers, &["pod".to_owned()]).ok()?;
    let backend = rule.series.backend.as_deref();
    Some(Example { field: format!("{place}.metricsQuery"), backend, query })
}

/// Parses all queries, where there is no Prometheus that could be asked.
fn parse(report: &mut Report, config: &Config) {
    let mut examples = general(config);
    for (place, rule) in config.rules.placed() {
        let query = rule.series.selector.clone();
        examples.push(Example { field: format!("{place}.seriesQuery"), backend: None, query });
        examples.extend(of_rule(&place, rule));
    }
    for Example { field, query, .. } in examples {
        if let Err(error) = promql_parser::parser::parse(&query) {
            report.errors.push(format!(
                "{field}: {query}: Plimsoll's parser can't read this: {error}; with --prometheus-url Prometheus, \
                 which may know more, is asked"
            ));
        }
    }
}

/// Whether all servers answer.
async fn reach(report: &mut Report, config: &Config, prometheus: &Prometheus) -> bool {
    let before = report.errors.len();
    let backends =
        config.rules.backends.iter().map(|(name, server)| (format!("backends.{name}"), server));
    for (name, server) in [("--prometheus-url".to_owned(), prometheus)].into_iter().chain(backends)
    {
        if let Err(error) = server.query("vector(1)", &[]).await {
            report.errors.push(format!("{name}: {error}"));
        }
    }
    report.errors.len() == before
}

/// Asks the queries that no series of a rule stands behind.
async fn ask(report: &mut Report, config: &Config, prometheus: &Prometheus) {
    for Example { field, backend, query } in general(config) {
        let named = backend.and_then(|name| config.rules.backends.get(name));
        if let Err(error) = named.unwrap_or(prometheus).query(&query, &[]).await {
            report.errors.push(format!("{field}: {error}"));
        }
    }
}

async fn resources(flags: &CheckFlags) -> Result<Option<ResourceMap>, String> {
    let Some(path) = &flags.kubeconfig else { return Ok(None) };
    let client = connect::plain_api_server(path).await.map_err(|error| error.to_string())?;
    // For the cause, which a reading of all resources does not tell.
    if let Err(error) = client.apiserver_version().await {
        return Err(format!("--kubeconfig: {}: {error}", path.display()));
    }
    let resources = Resources::new(client);
    match resources.refresh().await {
        true => Ok(Some(resources.map().as_ref().clone())),
        false => Err(format!("--kubeconfig: {}: discovery can't be read", path.display())),
    }
}

async fn look(report: &mut Report, rules: &RuleSet, prometheus: &Prometheus, map: ResourceMap) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let since = now.saturating_sub(LOOK_BACK).as_secs_f64();
    let mut owners: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (place, rule) in rules.placed() {
        let mut found = RuleReport {
            rule: place.clone(),
            series_query: rule.series.to_string(),
            ..RuleReport::default()
        };
        let named = rule.series.backend.as_ref().and_then(|name| rules.backends.get(name));
        let prometheus = named.unwrap_or(prometheus);
        let shapes = match prometheus.series(&rule.series.selector, since).await {
            Ok(body) => decode_shapes(&body).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match shapes {
            Ok(shapes) => {
                let taken: Vec<SeriesShape> =
                    shapes.into_iter().filter(|shape| rule.takes(&shape.name)).collect();
                found.series = taken.iter().map(|shape| shape.name.clone()).collect();
                for shape in &taken {
                    found.metrics.extend(metrics_of(rule, shape, &map, &place));
                }
                if found.series.is_empty() {
                    report.warnings.push(format!("{place}: no series match"));
                } else if found.metrics.is_empty() {
                    report.warnings.push(format!(
                        "{place}: no label of its series maps to a Kubernetes resource, so no metric is exposed"
                    ));
                }
                for metric in &found.metrics {
                    owners.entry(metric.clone()).or_default().push(place.clone());
                }
                match taken.first() {
                    Some(shape) => try_query(&mut found, rule, shape, prometheus, &map).await,
                    None => {
                        if let Some(example) = of_rule(&place, rule)
                            && let Err(error) = prometheus.query(&example.query, &[]).await
                        {
                            found.error = Some(format!("metricsQuery: {error}"));
                        }
                    }
                }
            }
            Err(error) => found.error = Some(format!("seriesQuery: {error}")),
        }
        if let Some(error) = &found.error {
            report.errors.push(format!("{place}: {error}"));
        }
        report.rules.push(found);
    }
    for (metric, rules) in owners {
        if let [.., last] = rules.as_slice()
            && rules.len() > 1
        {
            report.warnings.push(format!("{metric} is given by {}: {last} wins", rules.join(", ")));
        }
    }
}

/// What a series becomes, as a person would ask for it.
fn metrics_of(rule: &Rule, shape: &SeriesShape, map: &ResourceMap, place: &str) -> Vec<String> {
    let Some(metric) = rule.name.of(&shape.name) else { return Vec::new() };
    if place.starts_with("externalRules") {
        return vec![format!("external {metric}")];
    }
    let labels = shape.labels.iter().map(String::as_str);
    let (resources, _) = rule.labels.resources(labels, map);
    resources.into_iter().map(|resource| format!("{resource}/{metric}")).collect()
}

/// Runs a rule's query once, for all objects.
async fn try_query(
    found: &mut RuleReport,
    rule: &Rule,
    shape: &SeriesShape,
    prometheus: &Prometheus,
    map: &ResourceMap,
) {
    let labels = shape.labels.iter().map(String::as_str);
    let (resources, _) = rule.labels.resources(labels, map);
    let namespaces = GroupResource::core("namespaces");
    let described = resources.iter().find(|resource| **resource != namespaces);
    let label = described.or(resources.first()).and_then(|r| rule.labels.label(r, map));
    let matchers: Vec<(&str, Matcher)> =
        label.iter().map(|label| (label.as_str(), Matcher::NotEmpty)).collect();
    let group_by: Vec<String> = label.iter().cloned().collect();
    let answer = match rule.render(&shape.name, &matchers, &group_by) {
        Ok(query) => {
            let answer = prometheus.query(&query, &[]).await;
            found.query = Some(query);
            answer
                .and_then(|body| Table::read(&body).map(|table| table.series()))
                .map_err(|error| error.to_string())
        }
        Err(error) => Err(error),
    };
    match answer {
        Ok(series) => found.query_series = Some(series),
        Err(error) => found.error = Some(format!("metricsQuery: {error}")),
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for rule in &self.rules {
            writeln!(f, "{}  {}", rule.rule, rule.series_query)?;
            let list = |names: &BTreeSet<String>| -> String {
                const SHOWN: usize = 8;
                let mut text = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
                if names.len() > SHOWN {
                    let _ = write!(text, " and {} more", names.len() - SHOWN);
                }
                if text.is_empty() { "none".to_owned() } else { text }
            };
            writeln!(f, "  series   {}", list(&rule.series))?;
            writeln!(f, "  metrics  {}", list(&rule.metrics))?;
            if let Some(query) = &rule.query {
                writeln!(f, "  query    {query}")?;
            }
            if let Some(series) = rule.query_series {
                writeln!(f, "  gives    {series} series")?;
            }
        }
        for warning in &self.warnings {
            writeln!(f, "warning: {warning}")?;
        }
        for error in &self.errors {
            writeln!(f, "error: {error}")?;
        }
        match self.errors.len() {
            0 => writeln!(f, "the configuration is valid"),
            errors => writeln!(f, "{errors} error{}", if errors == 1 { "" } else { "s" }),
        }
    }
}
