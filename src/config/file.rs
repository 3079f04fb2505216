//! The configuration file.

use super::forward::{RawForwardTarget, forward_target};
use super::rules::{self, RawBackend, RawResourceRules, prometheus_duration};
use super::window::{LONGEST, counter_query};
use crate::promql::query::PodQueries;
use crate::promql::template::Template;
use crate::rules::{FieldError, RawRule, RuleSet, compile};
use crate::serve::ForwardTargets;
use crate::yaml::{self, Places};
use serde::Deserialize;
use serde_saphyr::Spanned;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A valid configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The queries of pod metrics.
    pub pod_queries: Arc<PodQueries>,
    /// Whether the window of counters' rates follows Prometheus's scrape intervals.
    pub auto_window: bool,
    /// The rules of prometheus-adapter's configuration.
    pub rules: RuleSet,
    /// The adapters that requests for unknown metrics are forwarded to (`passOn`).
    pub forward: ForwardTargets,
    /// The hash of the text that it was read from, by which a change is noticed.
    pub text_hash: u64,
    /// Whether no field has a value.
    pub is_empty: bool,
}

/// Why a configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: std::io::Error,
    },
    /// The file is not YAML, or has a field that is unknown or of the wrong type.
    #[error("{place}: {error}")]
    Syntax {
        /// The file, and line and column if they are known.
        place: String,
        /// What is wrong, without any values of the file, so that it may be logged.
        error: String,
        /// The lines around the error, which may contain secrets; empty if there are none.
        excerpt: String,
    },
    /// A file that had fields has none when it is reloaded.
    #[error(
        "{}: there is nothing in it, which may be a mistake; `podMetrics: {{}}` is the configuration without rules",
        path.display()
    )]
    Emptied {
        /// The file.
        path: PathBuf,
    },
    /// A field has an invalid value.
    #[error("{}:{line}:{column}: {field}: {error}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// Counted from 1.
        column: u64,
        /// The field's path.
        field: String,
        /// What is wrong, and what was expected.
        error: String,
    },
}

/// The fields of a configuration.
pub const CONFIG_FIELDS: [&str; 6] =
    ["podMetrics", "rules", "externalRules", "resourceRules", "backends", "passOn"];

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct File {
    pod_metrics: Option<RawPodMetrics>,
    rules: Option<Vec<RawRule>>,
    external_rules: Option<Vec<RawRule>>,
    resource_rules: Option<RawResourceRules>,
    backends: Option<BTreeMap<String, RawBackend>>,
    #[serde(rename = "passOn")]
    forward: Option<BTreeMap<String, RawForwardTarget>>,
}

impl File {
    fn is_empty(&self) -> bool {
        let Self { pod_metrics, rules, external_rules, resource_rules, backends, forward } = self;
        pod_metrics.is_none()
            && (rules.is_none() && external_rules.is_none() && resource_rules.is_none())
            && (backends.is_none() && forward.is_none())
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct RawPodMetrics {
    namespace_label: Option<Spanned<String>>,
    pod_label: Option<Spanned<String>>,
    gauge_query: Option<Spanned<String>>,
    counter_query: Option<Spanned<String>>,
    counter_window: Option<Spanned<String>>,
    shared_namespaces: Vec<String>,
}

const GAUGE: &str = "sum by (<<.GroupBy>>) (<<.Series>>{<<.LabelMatchers>>})";

impl Default for Config {
    /// The labels are `namespace` and `pod`. Gauges are read as they are, counters as the rate per
    /// second over two minutes.
    fn default() -> Self {
        Self {
            pod_queries: Arc::new(PodQueries {
                namespace_label: "namespace".to_owned(),
                pod_label: "pod".to_owned(),
                gauge: Template::parse(GAUGE).expect("the default is a template"),
                counter: counter_query(LONGEST),
                shared: Vec::new(),
            }),
            auto_window: false,
            rules: RuleSet::default(),
            forward: ForwardTargets::new(),
            text_hash: 0,
            is_empty: true,
        }
    }
}

impl ConfigError {
    /// The error with the lines around it, for the terminal of the author; never for a log.
    pub fn with_lines(&self) -> String {
        match self {
            Self::Syntax { excerpt, .. } if !excerpt.is_empty() => format!("{self}\n{excerpt}"),
            other => other.to_string(),
        }
    }
}

/// The hash of a file's text.
pub fn text_hash(text: &[u8]) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(text)
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// If it can't be read or is invalid. The error names file, line and field.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read(path)
            .and_then(yaml::utf8)
            .map_err(|error| ConfigError::Read { path: path.to_owned(), error })?;
        Self::parse(path, &text)
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// If it is invalid, as [`Config::read`] has it.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let mut options = yaml::options(text.len());
        options.with_snippet = true;
        // A file of only comments is an empty configuration.
        let file: Option<File> =
            serde_saphyr::from_str_with_options(text, options).map_err(|error| {
                ConfigError::Syntax {
                    place: format!("{}{}", path.display(), yaml::position(&error)),
                    error: yaml::described_in(text, &error),
                    excerpt: yaml::excerpt(&error),
                }
            })?;
        let file = file.unwrap_or_default();
        let config_error = |FieldError { at, field, error }| {
            let found = || Places::of_documents(text).first()?.of(&field);
            let (line, column) = at.or_else(found).unwrap_or((1, 1));
            ConfigError::Value { path: path.to_owned(), line, column, field, error }
        };
        let (text_hash, is_empty) = (text_hash(text.as_bytes()), file.is_empty());
        let mut config = Self { text_hash, is_empty, ..Self::default() };
        let pod_metrics = file.pod_metrics.unwrap_or_default();
        let queries = Arc::make_mut(&mut config.pod_queries);
        config.auto_window = window(queries, &pod_metrics).map_err(config_error)?;
        pod_queries(queries, pod_metrics).map_err(config_error)?;
        let backends =
            rules::compile_backends(file.backends.unwrap_or_default()).map_err(config_error)?;
        config.rules = RuleSet {
            custom: compile("rules", file.rules.unwrap_or_default()).map_err(config_error)?,
            external: compile("externalRules", file.external_rules.unwrap_or_default())
                .map_err(config_error)?,
            resource: file
                .resource_rules
                .map(rules::compile_resource_rules)
                .transpose()
                .map_err(config_error)?,
            backends,
        };
        rules::check_backends(&config.rules).map_err(config_error)?;
        let forward = file.forward.unwrap_or_default().into_iter();
        config.forward = forward
            .map(|(group, raw)| forward_target(&group, raw))
            .collect::<Result<_, _>>()
            .map_err(config_error)?;
        Ok(config)
    }
}

/// Sets the window of counters' rates; whether it follows Prometheus.
fn window(queries: &mut PodQueries, raw: &RawPodMetrics) -> Result<bool, FieldError> {
    let Some(text) = &raw.counter_window else { return Ok(false) };
    let wrong = |error: &str| {
        let field = "podMetrics.counterWindow".to_owned();
        Err(FieldError::of(text, field, error.to_owned()))
    };
    if raw.counter_query.is_some() {
        return wrong("counterQuery has a window of its own: give one of both");
    }
    if text.value == "auto" {
        return Ok(true);
    }
    match prometheus_duration(&text.value) {
        Some(window) if !window.is_zero() => {
            queries.counter = counter_query(window);
            Ok(false)
        }
        _ => wrong("auto, or a duration such as 1m was expected"),
    }
}

fn pod_queries(queries: &mut PodQueries, raw: RawPodMetrics) -> Result<(), FieldError> {
    let label = |field: &str, raw: Option<Spanned<String>>, label: &mut String| match raw {
        // Prometheus 3 accepts any other name.
        Some(text) if text.value.is_empty() => {
            let error = "a label name must not be empty".to_owned();
            Err(FieldError::of(&text, format!("podMetrics.{field}"), error))
        }
        Some(text) => {
            *label = text.value;
            Ok(())
        }
        None => Ok(()),
    };
    label("namespaceLabel", raw.namespace_label, &mut queries.namespace_label)?;
    label("podLabel", raw.pod_label, &mut queries.pod_label)?;
    let template = |field: &str, raw: Option<Spanned<String>>, template: &mut Template| {
        let Some(text) = raw else { return Ok(()) };
        let wrong = |error| FieldError::of(&text, format!("podMetrics.{field}"), error);
        let parsed = Template::parse(&text.value).map_err(|error| wrong(error.to_string()))?;
        for (name, reason) in [
            ("Series", "all metrics would have the same values"),
            ("LabelMatchers", "results of different namespaces would be merged"),
            ("GroupBy", "results of different pods would be merged"),
        ] {
            let sliced = name == "GroupBy" && parsed.uses("GroupBySlice");
            if !parsed.uses(name) && !sliced {
                return Err(wrong(format!("<<.{name}>> is missing: without it {reason}")));
            }
        }
        if parsed.uses("LabelValuesByName") {
            let error = "<<.LabelValuesByName>> would put the labels of an Autoscaler into the query as they \
                         are, where they could select other namespaces: <<.LabelMatchers>> has them, in quotes";
            return Err(wrong(error.to_owned()));
        }
        *template = parsed;
        Ok(())
    };
    queries.shared = raw.shared_namespaces;
    template("gaugeQuery", raw.gauge_query, &mut queries.gauge)?;
    template("counterQuery", raw.counter_query, &mut queries.counter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(Path::new("plimsoll.yaml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_not_given_has_its_default() {
        assert_eq!(parse("# nothing\n").unwrap().pod_queries, Config::default().pod_queries);
        let config = parse("podMetrics:\n  podLabel: kubernetes_pod_name\n").unwrap();
        assert_eq!(config.pod_queries.pod_label, "kubernetes_pod_name");
        assert_eq!(config.pod_queries.namespace_label, "namespace");
        let config = parse("podMetrics:\n  podLabel: k8s.pod.name\n").unwrap();
        assert_eq!(config.pod_queries.pod_label, "k8s.pod.name");
    }

    #[test]
    fn the_fields_are_those_that_are_read() {
        let error = parse("other: null\n").unwrap_err();
        let expected = format!("expected one of {}", CONFIG_FIELDS.join(", "));
        assert_eq!(error, format!("plimsoll.yaml:1:1: unknown field `other`, {expected}"));
    }

    #[test]
    fn the_window_of_counters_is_given_or_follows_prometheus() {
        let counters = |text: &str| {
            parse(text).map(|read| (read.pod_queries.counter.clone(), read.auto_window))
        };
        let of = |seconds| counter_query(Duration::from_secs(seconds));
        assert_eq!(counters("podMetrics: {counterWindow: 1m}\n"), Ok((of(60), false)));
        assert_eq!(counters("podMetrics: {counterWindow: 1m30s}\n"), Ok((of(90), false)));
        assert_eq!(counters("podMetrics: {counterWindow: auto}\n"), Ok((of(120), true)));
        assert_eq!(counters("podMetrics: {}\n"), Ok((of(120), false)));
    }

    #[test]
    fn the_sample_configuration_is_the_default() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/config/plimsoll.yaml");
        let text = std::fs::read_to_string(path).unwrap();
        assert_eq!(parse(&text).unwrap().pod_queries, Config::default().pod_queries);
        // Each field that it has as a comment can be taken as it is.
        for field in ["counterQuery: ", "counterWindow: "] {
            let given = text.replace(&format!("# {field}"), field);
            let config = parse(&given).unwrap();
            assert!(given != text && config.auto_window == (field == "counterWindow: "));
            assert_eq!(config.pod_queries, Config::default().pod_queries);
        }
    }

    #[test]
    fn a_configuration_of_prometheus_adapter_is_read_however_its_yaml_is_written() {
        let config = parse(
            "rules:\n- &first\n  seriesQuery: 'a'\n  seriesFilters: null\n  resources:\n    namespaced: no\n\
             \x20   overrides:\n      ns: {group: null, resource: namespace}\n  name:\n    matches: \n    as: b\n\
             \x20 metricsQuery: >-\n    sum(<<.Series>>\n    {<<.LabelMatchers>>})\n- *first\n\
             externalRules:\nresourceRules:\n  cpu: null\n  window: 1m30s\n",
        )
        .unwrap();
        assert_eq!(config.rules.custom.len(), 2);
        assert!(!config.rules.custom[1].namespaced && config.rules.external.is_empty());
        let rules = config.rules.resource.unwrap();
        assert_eq!(rules.window, Duration::from_secs(90));
    }

    #[test]
    fn an_error_shows_no_value_and_no_line_of_the_file() {
        let backend = "backends:\n  a:\n    url: http://user:s3cr3t@host\n";
        for mistake in [
            "    headers:\n    - 'Authorization=Bearer s3cr3t'\n    timeot: 5s\n",
            "    headers: 'Authorization=Bearer s3cr3t'\n",
            "    headers: ['Authorization: Bearer s3cr3t']\n",
            "    headers: [{Authorization: 's3cr3t, expected'}]\n",
            "    timeout: s3cr3t\n",
            "    tokenFile: [s3cr3t]\n",
            "    headers: [s3cr3t\n",
            "  b: 's3cr3t'\n",
        ] {
            let text = format!("{backend}{mistake}");
            let error = Config::parse(Path::new("plimsoll.yaml"), &text).unwrap_err();
            assert!(!error.to_string().contains("s3cr3t"), "{error}");
            assert!(error.to_string().contains("plimsoll.yaml"), "{error}");
        }
        let text = format!("{backend}    timeot: 5s\n");
        let error = Config::parse(Path::new("plimsoll.yaml"), &text).unwrap_err();
        let line = "plimsoll.yaml:4:5: unknown field `timeot`, ";
        assert!(error.to_string().starts_with(line), "{error}");
        assert!(error.to_string().ends_with("; did you mean timeout?"), "{error}");
        // Its author sees the lines, after the same.
        let lines = error.with_lines();
        assert!(lines.starts_with(&format!("{error}\n  |\n")), "{lines}");
        assert!(lines.contains("4 |     timeot: 5s"), "{lines}");
    }

    #[test]
    fn an_error_names_file_line_and_field() {
        for (text, expected) in [
            (
                "podMetrics:\n  podLable: pod\n",
                ["plimsoll.yaml:2:3: ", "podLable", "; did you mean podLabel?"],
            ),
            (
                "podMetrics:\n  podLabel: pod\n  gaugeQuery: sum(<<.Series>>)\n",
                ["plimsoll.yaml:3:", "podMetrics.gaugeQuery", "<<.LabelMatchers>> is missing"],
            ),
            (
                "podMetrics:\n  gaugeQuery: 'sum by (<<.GroupBy>>) (<<.Series>>{<<.LabelMatchers>>,a=\"<<.LabelValuesByName.a>>\"})'\n",
                ["plimsoll.yaml:2:", "podMetrics.gaugeQuery", "<<.LabelMatchers>> has them"],
            ),
            (
                "podMetrics:\n  namespaceLabel: ''\n",
                ["plimsoll.yaml:2:", "namespaceLabel", "empty"],
            ),
            (
                "podMetrics:\n  counterWindow: 1\n",
                ["plimsoll.yaml:2:", "podMetrics.counterWindow", "1m was expected"],
            ),
            (
                "podMetrics:\n  counterWindow: auto\n  counterQuery: a\n",
                ["plimsoll.yaml:2:", "podMetrics.counterWindow", "one of both"],
            ),
            ("podMetrics: [\n", ["plimsoll.yaml:1:13: ", "fields were expected", ""]),
            (
                "podMetrics:\n  sharedNamespaces: infra\n",
                ["plimsoll.yaml:2:21: ", "podMetrics.sharedNamespaces: a list was expected", ""],
            ),
            ("podMetrics: [a]\n", ["plimsoll.yaml:1:13: ", "podMetrics: fields were expected", ""]),
            (
                "podMetrics:\n  sharedNamespaces: [infra, null]\n",
                ["plimsoll.yaml:2:29: ", "podMetrics.sharedNamespaces[1]: a text", "not null"],
            ),
            (
                "podMetrics:\n  podLabel: a\n  podLabel: b\n",
                ["plimsoll.yaml:3:3: ", "field `podLabel` is there twice", ""],
            ),
            (
                "podMetrics: {}\n---\nrules: []\n",
                ["plimsoll.yaml:3:1: ", "one document was expected, and there is another", ""],
            ),
            ("podMetrics: *a\n", ["plimsoll.yaml:1:13: ", "no anchor (&NAME)", ""]),
            (
                "rules:\n- seriesQuery: x\n  resources: {namespaced: \"flase\"}\n",
                ["plimsoll.yaml:3:27: ", "rules[0].resources.namespaced: true or false", ""],
            ),
            (
                "passOn:\n  custom.metrics.k8s.io: {caFile: a}\n",
                ["plimsoll.yaml:2:", "field `url` is missing", ""],
            ),
            (
                "rules:\n- seriesQuery: a\n  metricsQuery: b\n  backend: thanos\n",
                ["plimsoll.yaml:4:12: ", "rules[0].backend: ", "not among the backends"],
            ),
            (
                "backends:\n  a:\n    url: thanos:9090\n",
                ["plimsoll.yaml:3:", ": backends.a.url: ", "http:// or https:// is missing"],
            ),
            (
                "backends:\n  a:\n    url: http://x\n    headers: [a b]\n",
                ["plimsoll.yaml:3:", ": backends.a.headers: ", "NAME=VALUE was expected"],
            ),
            (
                "backends:\n  a:\n    url: http://x\n    caFile: /nowhere/ca\n",
                ["plimsoll.yaml:3:", ": backends.a.caFile: ", "/nowhere/ca"],
            ),
            (
                "rules:\n- seriesQuerry: a\n",
                ["plimsoll.yaml:2:3: ", "seriesQuerry", "; did you mean seriesQuery?"],
            ),
            (
                "rules:\n- seriesQuery: a\n  metricsQuery: b\n- seriesQuery: a\n  name: {matches: '('}\n",
                ["plimsoll.yaml:5:", "rules[1].name.matches", "no regular expression"],
            ),
            (
                "externalRules:\n- seriesQuery: a\n  metricsQuery: sum(<<.Series>\n",
                ["plimsoll.yaml:3:", "externalRules[0].metricsQuery", "has no >>"],
            ),
            (
                "rules:\n- seriesQuery: a\n  metricsQuery: b\n  seriesFilters: [{is: a, isNot: b}]\n",
                ["plimsoll.yaml:4:", "rules[0].seriesFilters[0]", "not both"],
            ),
            (
                "resourceRules:\n  window: 5x\n  cpu: {}\n",
                ["plimsoll.yaml:2:", "resourceRules.window", "a duration"],
            ),
        ] {
            let error = parse(text).unwrap_err();
            for part in expected {
                assert!(error.contains(part), "{error:?} does not say {part:?}");
            }
        }
    }
}
