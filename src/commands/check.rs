//! `plimsoll check`: validates a configuration. Its queries are parsed or, with a Prometheus, run,
//! and the series are shown that its rules match. And it validates objects of files.

use super::check_cluster;
use super::check_context::Context;
use super::check_context::Findings;
use super::check_hint::object_hint;
use super::check_queries::{Example, general_queries, rule_query, unknown_fields};
use super::check_series::{self, RuleReport};
use super::objects;
use super::shown::printed;
use super::story::plain_lines;
use super::{check_files, check_history, check_rule};
use crate::clock::{Clock, WallClock};
use crate::config::{CheckFlags, Config, ConfigError, OutputFormat, counter_query, window_of};
use crate::connect::{self, ANSWER_TIMEOUT};
use crate::kube_error::worded;
use crate::prometheus::Client as Prometheus;
use crate::promql::bounds::CHECKED_QUERY;
use crate::promql::query::PodQueries;
use crate::promql::tree;
use crate::watch::{ResourceMap, Resources};
use crate::yaml::Places;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

/// The result of the check.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// What makes the configuration invalid, or a rule useless.
    pub errors: Vec<String>,
    /// What is probably a mistake.
    pub warnings: Vec<String>,
    /// What could not be looked at, and why.
    pub not_checked: Vec<String>,
    /// What each rule matches; empty without a Prometheus.
    pub rules: Vec<RuleReport>,
    /// The query of counters, where its window follows Prometheus.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counter_query: Option<String>,
    /// Whether Prometheus, which a flag names, failed for one of these.
    #[serde(skip)]
    is_incomplete: bool,
    /// What was checked, such as `the configuration`.
    #[serde(skip)]
    checked: Vec<&'static str>,
}

/// Checks a file. Returns the text to print, and whether there are no errors.
pub async fn run(flags: &CheckFlags) -> (String, bool) {
    let report = check(flags).await;
    let text = match flags.output {
        OutputFormat::Json | OutputFormat::Yaml => {
            let report = serde_json::to_value(&report).expect("a report is plain data");
            printed(&report, flags.output)
        }
        // Objects, rules and answers are texts of others.
        OutputFormat::Text => plain_lines(&report.to_string()),
    };
    let is_clean = report.warnings.is_empty() && !report.is_incomplete;
    let is_good = report.errors.is_empty() && (!flags.strict || is_clean);
    (text, is_good)
}

async fn check(flags: &CheckFlags) -> Report {
    let mut report = Report::default();
    let read = flags.config_file().map(|path| ConfigFile::read(path, flags)).transpose();
    let mut file = match read {
        Ok(file) => file,
        Err(error) => {
            report.errors.push(error);
            if !flags.objects.is_empty() {
                let text =
                    "the objects of -f: their queries have the labels of CONFIG, which is invalid";
                report.not_checked.push(text.to_owned());
            }
            return report;
        }
    };
    report.checked.extend(file.as_ref().map(|_| "the configuration"));
    let mut of_config = Report::default();
    if let Some(file) = file.as_mut().filter(|file| file.config.auto_window) {
        follow_window(flags, &mut file.config, &mut of_config).await;
    }
    let config = file.as_ref().map(|file| &file.config);
    let default = Config::default();
    let queries = &config.unwrap_or(&default).pod_queries;
    check_objects(flags, queries, config, &mut report).await;
    if let Some(file) = file {
        check_config(flags, &file, &mut of_config).await;
        let located = |text: String| file.located(text);
        report.errors.extend(of_config.errors.into_iter().map(located));
        report.warnings.extend(of_config.warnings.into_iter().map(located));
        report.not_checked.append(&mut of_config.not_checked);
        (report.rules, report.counter_query) = (of_config.rules, of_config.counter_query);
    }
    report
}

/// A valid configuration, and where its fields stand.
struct ConfigFile<'a> {
    path: &'a Path,
    config: Config,
    places: Option<Places>,
}

impl<'a> ConfigFile<'a> {
    /// Reads a file, or the standard input for `-`.
    fn read(path: &'a Path, flags: &CheckFlags) -> Result<Self, String> {
        if path.as_os_str() == "-" && flags.objects.iter().any(|objects| objects == path) {
            return Err("-: the standard input is either CONFIG or a file of -f".to_owned());
        }
        let text = objects::read(path)?;
        let config = Config::parse(path, &text).map_err(|error| {
            let hint = object_hint(path, &text, !flags.objects.is_empty());
            hint.unwrap_or_else(|| match flags.output {
                OutputFormat::Text => error.with_lines(),
                OutputFormat::Json | OutputFormat::Yaml => error.to_string(),
            })
        })?;
        Ok(Self { path, config, places: Places::of_documents(&text).into_iter().next() })
    }

    /// A text, behind the place of the field that it begins with.
    fn located(&self, text: String) -> String {
        match self.places.as_ref().and_then(|places| places.of(&text)) {
            Some((line, column)) => format!("{}:{line}:{column}: {text}", self.path.display()),
            None => text,
        }
    }
}

/// Checks a configuration. A text about a field begins with it.
async fn check_config(flags: &CheckFlags, file: &ConfigFile<'_>, report: &mut Report) {
    let config = &file.config;
    if config.is_empty {
        // A running server refuses it, too.
        report.errors.push(ConfigError::Emptied { path: file.path.to_owned() }.to_string());
    }
    report.errors.extend(unknown_fields(config));
    let rules = &config.rules;
    let mut faults = check_rule::faults(rules);
    report.errors.append(&mut faults.errors);
    report.warnings.append(&mut faults.warnings);
    for (path, rule) in rules.with_paths() {
        let is_external = path.starts_with("externalRules");
        // `plimsoll convert` writes such rules: a complete query, without namespaces.
        let is_whole = is_external && !rule.namespaced;
        if is_whole || rule.query.is_empty() {
            continue;
        }
        let (field, query) = (format!("{path}.metricsQuery"), rule_query(&path, rule));
        let query = query.as_ref().map(|example| example.query.as_str());
        let interval = flags.scrape_interval;
        let found = check_rule::warnings(&field, &rule.query, query, is_external, interval);
        report.warnings.extend(found);
    }
    let map = match resources(flags).await {
        Ok(map) => map,
        Err(error) => {
            report.errors.push(error);
            return;
        }
    };
    if let Some(map) = &map {
        for (path, rule) in rules.with_paths() {
            for (label, resource) in rule.labels.unknown(map) {
                report.errors.push(format!(
                    "{path}: resources.overrides.{label}: the cluster has no resource {resource}"
                ));
            }
        }
    }
    match &flags.prometheus_url {
        None => parse_queries(report, config),
        Some(url) => match connect::prometheus_of_command(url, &flags.prometheus) {
            Ok(prometheus) => {
                if check_connections(report, config, &prometheus).await {
                    run_general_queries(report, config, &prometheus).await;
                    let mut found = check_series::check(rules, &prometheus, map).await;
                    report.rules.append(&mut found.rules);
                    report.errors.append(&mut found.texts.errors);
                    report.warnings.append(&mut found.texts.warnings);
                    report.not_checked.append(&mut found.not_checked);
                }
            }
            Err(error) => report.errors.push(error.to_string()),
        },
    }
}

/// Checks the objects of the flags, and what is around Autoscalers in the cluster and in Prometheus.
async fn check_objects(
    flags: &CheckFlags,
    queries: &PodQueries,
    config: Option<&Config>,
    report: &mut Report,
) {
    let cluster = match flags.looks_around() {
        true => match check_cluster::connect(flags).await {
            Ok(cluster) => Some(cluster),
            Err(error) => {
                report.errors.push(error);
                None
            }
        },
        false => None,
    };
    let of_context = cluster.as_ref().map(|(_, namespace)| namespace.as_str());
    let required = flags.namespace.as_deref();
    let context = Context {
        required,
        default: required.or(of_context).unwrap_or_default(),
        queries,
        config,
        scrape_interval: flags.scrape_interval,
        now: WallClock::default().timestamp().as_millisecond(),
    };
    let mut objects = check_files::check(flags.objects.iter().map(|path| &**path), &context);
    report.errors.append(&mut objects.texts.errors);
    report.warnings.append(&mut objects.texts.warnings);
    let autoscalers = &objects.autoscalers;
    let mut found = Findings::default();
    if let Some((client, _)) = &cluster {
        check_cluster::check(client, autoscalers, &mut found).await;
    }
    if let Some(url) = flags.prometheus_url.as_ref().filter(|_| !autoscalers.is_empty()) {
        match connect::prometheus_of_command(url, &flags.prometheus) {
            Ok(server) => check_history::check(&server, queries, autoscalers, &mut found).await,
            Err(error) => report.errors.push(error.to_string()),
        }
    }
    for (_, rule) in &objects.metric_rules {
        let mut skipped = |what: &str| found.not_checked.push(format!("{rule}: {what}"));
        if flags.prometheus_url.is_some() {
            skipped("whether Prometheus has its series: its status says so once it is applied");
        }
        if flags.looks_around() {
            skipped(
                "whether the cluster has its resources, and who else serves its metrics: its status says so once it is applied",
            );
        }
    }
    report.checked.extend((!autoscalers.is_empty()).then_some("the Autoscalers"));
    report.checked.extend((!objects.metric_rules.is_empty()).then_some("the MetricRules"));
    // The cluster may have what is in the files.
    let known: BTreeSet<&String> = report.warnings.iter().collect();
    found.warnings.retain(|warning| !known.contains(warning));
    report.warnings.append(&mut found.warnings);
    report.not_checked.append(&mut found.not_checked);
    report.is_incomplete |= found.is_incomplete;
}

/// Takes the window of counters that the scrape intervals of Prometheus ask for, as the server does.
async fn follow_window(flags: &CheckFlags, config: &mut Config, report: &mut Report) {
    const FIELD: &str = "podMetrics.counterWindow: auto";
    let Some(url) = &flags.prometheus_url else {
        report
            .not_checked
            .push(format!("{FIELD}: --prometheus-url names the server that it follows"));
        return;
    };
    // An invalid address is told where the queries are run.
    let Ok(server) = connect::prometheus_of_command(url, &flags.prometheus) else { return };
    match window_of(&server).await {
        Ok(Some(window)) => Arc::make_mut(&mut config.pod_queries).counter = counter_query(window),
        Ok(None) => report.warnings.push(format!(
            "{FIELD}: Prometheus does not tell how often all its series are scraped: the window is the default"
        )),
        Err(error) => report.not_checked.push(format!("{FIELD}: {error}")),
    }
    let of_counters = |example: &Example<'_>| example.field == "podMetrics.counterQuery";
    report.counter_query =
        general_queries(config).into_iter().find(of_counters).map(|example| example.query);
}

/// Parses all queries, as there is no Prometheus to run them.
fn parse_queries(report: &mut Report, config: &Config) {
    let mut examples = general_queries(config);
    for (path, rule) in config.rules.with_paths() {
        let query = rule.series.selector.clone();
        examples.push(Example { field: format!("{path}.seriesQuery"), backend: None, query });
        examples.extend(rule_query(&path, rule));
    }
    for Example { field, query, .. } in examples {
        if let Err(error) = tree::parse(&query, &CHECKED_QUERY) {
            let query = query.split_whitespace().collect::<Vec<_>>().join(" ");
            report.errors.push(format!(
                "{field}: {query}: Plimsoll's parser can't read this: {error}; with --prometheus-url Prometheus, \
                 which may know more, is asked"
            ));
        }
    }
}

/// Checks that Prometheus and all backends respond. Returns whether they do.
async fn check_connections(report: &mut Report, config: &Config, prometheus: &Prometheus) -> bool {
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

/// Runs the example queries of pod metrics and of resource usage.
async fn run_general_queries(report: &mut Report, config: &Config, prometheus: &Prometheus) {
    for Example { field, backend, query } in general_queries(config) {
        let named = backend.and_then(|name| config.rules.backends.get(name));
        if let Err(error) = named.unwrap_or(prometheus).query(&query, &[]).await {
            report.errors.push(format!("{field}: {error}"));
        }
    }
}

/// The resources of the cluster, if a flag names one.
async fn resources(flags: &CheckFlags) -> Result<Option<ResourceMap>, String> {
    if !flags.kubectl.is_given() {
        return Ok(None);
    }
    let connected = connect::as_kubectl(&flags.kubectl, ANSWER_TIMEOUT, Clock::default()).await;
    let connected = connected.map_err(|error| error.to_string())?;
    let place = connected.place_and_server();
    // Discovery does not return the cause of a failure.
    if let Err(error) = connected.client.apiserver_version().await {
        return Err(format!("{place}: {}", worded(&error)));
    }
    let resources = Resources::new(connected.client);
    match resources.refresh().await {
        true => Ok(Some(resources.map().as_ref().clone())),
        false => Err(format!("{place}: discovery can't be read")),
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
        if let Some(query) = &self.counter_query {
            writeln!(f, "podMetrics.counterWindow: auto\n  query    {query}")?;
        }
        for warning in &self.warnings {
            writeln!(f, "warning: {warning}")?;
        }
        for what in &self.not_checked {
            writeln!(f, "not checked: {what}")?;
        }
        for error in &self.errors {
            writeln!(f, "error: {error}")?;
        }
        match self.errors.len() {
            0 => {
                let is = if self.checked == ["the configuration"] { "is" } else { "are" };
                writeln!(f, "{} {is} valid", self.checked.join(" and "))
            }
            errors => writeln!(f, "{errors} error{}", if errors == 1 { "" } else { "s" }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(path: &str, output: &str) -> CheckFlags {
        use clap::Parser;
        let cli = crate::config::Cli::try_parse_from(["plimsoll", "check", path, "-o", output]);
        match cli.expect("flags").command {
            crate::config::Command::Check(flags) => *flags,
            _ => panic!("another command"),
        }
    }

    #[tokio::test]
    async fn the_lines_around_an_error_are_for_readers_of_text() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let path = file.path().display().to_string();
        std::fs::write(&path, "podMetric: {}\n").expect("it is written");
        for (output, lines) in [("text", 4), ("json", 1)] {
            let errors = check(&flags(&path, output)).await.errors;
            let [error] = &*errors else { panic!("{errors:?}") };
            assert_eq!(error.lines().count(), lines, "{error}");
            assert!(error.contains(":1:1: unknown field `podMetric`, "), "{error}");
            assert!(error.contains("; did you mean podMetrics?"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_file_without_a_field_is_refused_as_a_running_server_refuses_it() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let path = file.path().display().to_string();
        let flags = flags(&path, "text");
        for (text, is_empty) in [("", true), ("# nothing\n", true), ("podMetrics: {}\n", false)] {
            std::fs::write(&path, text).expect("it is written");
            let errors = check(&flags).await.errors;
            let is_told = errors.iter().any(|one| one.contains("there is nothing in it"));
            assert_eq!((is_told, errors.len()), (is_empty, is_empty.into()), "{text}: {errors:?}");
        }
    }

    #[tokio::test]
    async fn a_text_about_a_field_begins_with_its_place() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let path = file.path().display().to_string();
        let text = "podMetrics:\n  gaugeQuery: |\n    sum by (<<.GroupBy>>)\n    (<<.Series>>{<<.LabelMatchers>>}\n\
                    rules:\n- seriesQuery: x\n- seriesQuery: y\n";
        std::fs::write(&path, text).expect("it is written");
        let report = check(&flags(&path, "json")).await;
        for (place, expected) in [
            ("3:5", "podMetrics.gaugeQuery: sum by ("),
            ("6:3", "rules[0].metricsQuery is missing"),
            ("7:3", "rules[1].metricsQuery is missing"),
        ] {
            let expected = format!("{path}:{place}: {expected}");
            let found = report.errors.iter().any(|error| error.starts_with(&expected));
            assert!(found, "{expected}: {:?}", report.errors);
        }
        assert!(report.errors.iter().all(|error| error.lines().count() == 1), "{report}");
        let warning = format!("{path}:6:3: rules[0].resources: none");
        assert!(report.warnings[0].starts_with(&warning), "{:?}", report.warnings);
    }
}
