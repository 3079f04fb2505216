//! The configuration file.

use crate::promql::query::PodQueries;
use crate::promql::template::{Template, TemplateError, is_label_name};
use serde::Deserialize;
use serde_saphyr::Spanned;
use std::path::{Path, PathBuf};

/// The configuration, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How metrics of pods are asked for.
    pub pod_queries: PodQueries,
}

/// Why a configuration can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The file is no YAML, or has a field that is unknown or of the wrong type.
    #[error("{}: {error}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and why.
        error: String,
    },
    /// A field has a value that can't be used.
    #[error("{}:{line}:{column}: {field}: {error}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// Counted from 1.
        column: u64,
        /// The field's path.
        field: &'static str,
        /// What is wrong and what would be right.
        error: String,
    },
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct File {
    pod_metrics: PodMetrics,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct PodMetrics {
    namespace_label: Option<Spanned<String>>,
    pod_label: Option<Spanned<String>>,
    gauge_query: Option<Spanned<String>>,
    counter_query: Option<Spanned<String>>,
}

const GAUGE: &str = "sum by (<<.GroupBy>>) (<<.Series>>{<<.LabelMatchers>>})";
const COUNTER: &str = "sum by (<<.GroupBy>>) (rate(<<.Series>>{<<.LabelMatchers>>}[2m]))";

impl Default for Config {
    /// Labels `namespace` and `pod`; gauges as they are, counters as the rate
    /// per second over two minutes.
    fn default() -> Self {
        let template = |text| Template::parse(text).expect("the default is a template");
        Self {
            pod_queries: PodQueries {
                namespace_label: "namespace".to_owned(),
                pod_label: "pod".to_owned(),
                gauge: template(GAUGE),
                counter: template(COUNTER),
            },
        }
    }
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// Where it can't be read or has anything in it that can't be used; the
    /// error names file, line and field.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError::Read { path: path.to_owned(), error })?;
        Self::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        // A file of comments alone is an empty configuration.
        let file: Option<File> = serde_saphyr::from_str(text).map_err(|error| {
            ConfigError::Syntax { path: path.to_owned(), error: error.to_string() }
        })?;
        let given = file.unwrap_or_default().pod_metrics;
        let mut config = Self::default();
        let queries = &mut config.pod_queries;
        let label = |field, given: Option<Spanned<String>>, label: &mut String| match given {
            Some(text) if !is_label_name(&text.value) => {
                let error = format!(
                    "{:?} is not a label name: [a-zA-Z_][a-zA-Z0-9_]* was expected",
                    text.value
                );
                Err(at(path, &text, field, error))
            }
            Some(text) => {
                *label = text.value;
                Ok(())
            }
            None => Ok(()),
        };
        let template = |field, given: Option<Spanned<String>>, template: &mut Template| {
            if let Some(text) = given {
                *template = Template::parse(&text.value)
                    .map_err(|error: TemplateError| at(path, &text, field, error.to_string()))?;
            }
            Ok(())
        };
        label("podMetrics.namespaceLabel", given.namespace_label, &mut queries.namespace_label)?;
        label("podMetrics.podLabel", given.pod_label, &mut queries.pod_label)?;
        template("podMetrics.gaugeQuery", given.gauge_query, &mut queries.gauge)?;
        template("podMetrics.counterQuery", given.counter_query, &mut queries.counter)?;
        Ok(config)
    }
}

fn at(path: &Path, text: &Spanned<String>, field: &'static str, error: String) -> ConfigError {
    let location = text.referenced;
    ConfigError::Value {
        path: path.to_owned(),
        line: location.line(),
        column: location.column(),
        field,
        error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(Path::new("plimsoll.yaml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_not_given_has_its_default() {
        assert_eq!(parse("# nothing\n").unwrap(), Config::default());
        let config = parse("podMetrics:\n  podLabel: kubernetes_pod_name\n").unwrap();
        assert_eq!(config.pod_queries.pod_label, "kubernetes_pod_name");
        assert_eq!(config.pod_queries.namespace_label, "namespace");
    }

    #[test]
    fn the_sample_configuration_is_the_default() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/config/plimsoll.yaml"));
        assert_eq!(Config::read(path).unwrap(), Config::default());
    }

    #[test]
    fn an_error_names_file_line_and_field() {
        for (text, expected) in [
            ("podMetrics:\n  podLable: pod\n", ["plimsoll.yaml", "line 2", "podLable"]),
            (
                "podMetrics:\n  podLabel: pod\n  gaugeQuery: sum(<<.Serie>>)\n",
                ["plimsoll.yaml:3:", "podMetrics.gaugeQuery", "<<.Series>>"],
            ),
            ("podMetrics:\n  namespaceLabel: a-b\n", ["plimsoll.yaml:2:", "namespaceLabel", "a-b"]),
            ("podMetrics: [\n", ["plimsoll.yaml", "line", ""]),
        ] {
            let error = parse(text).unwrap_err();
            for part in expected {
                assert!(error.contains(part), "{error:?} does not say {part:?}");
            }
        }
    }
}
