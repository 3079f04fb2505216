//! `plimsoll check`: the queries of a configuration for an example metric.

use crate::config::Config;
use crate::promql::matcher::Matcher;
use crate::promql::query::{MetricType, Per, PrometheusMetric, fields};
use crate::promql::template::is_unknown_field;
use crate::rules::Rule;
use std::collections::BTreeMap;

/// The series in example queries.
const EXAMPLE_SERIES: &str = "some_series";

/// A query of the configuration, rendered for an example metric.
pub struct Example<'a> {
    /// The field of its template.
    pub field: String,
    /// The backend that runs it; the Prometheus of the flags, if none.
    pub backend: Option<&'a str>,
    /// The query.
    pub query: String,
}

/// The queries of pod metrics and of resource usage for an example metric, or why there is none, with their fields and
/// backends.
fn rendered(config: &Config) -> Vec<(String, Option<&str>, Result<String, String>)> {
    let mut all = Vec::new();
    let metric = PrometheusMetric {
        metric: EXAMPLE_SERIES.to_owned(),
        per: Per::Pod,
        labels: BTreeMap::new(),
        query: None,
    };
    for (field, kind) in [("gaugeQuery", MetricType::Gauge), ("counterQuery", MetricType::Counter)]
    {
        let query = config.pod_queries.query(&metric, kind, "some-namespace");
        let query = query.map(|query| query.values.to_string()).map_err(|error| error.to_string());
        all.push((format!("podMetrics.{field}"), None, query));
    }
    if let Some(usage) = &config.rules.resource {
        let matchers = [("some_label", Matcher::Is("some".to_owned()))];
        let group_by = ["some_label".to_owned()];
        for (resource, rule) in [("cpu", &usage.cpu), ("memory", &usage.memory)] {
            let templates =
                [("containerQuery", &rule.container_query), ("nodeQuery", &rule.node_query)];
            for (name, template) in templates {
                let field = format!("resourceRules.{resource}.{name}");
                let query = template.render(&fields("", &matchers, &group_by));
                all.push((field, usage.backend.as_deref(), query));
            }
        }
    }
    all
}

/// Example queries of pod metrics and of resource usage, which no rule's series are found for. A template that can't be
/// rendered with the example label may work with its own.
pub fn general_queries(config: &Config) -> Vec<Example<'_>> {
    let all = rendered(config).into_iter();
    let examples = all
        .filter_map(|(field, backend, query)| Some(Example { field, backend, query: query.ok()? }));
    // One that is missing is told as that.
    examples.filter(|example| !example.query.is_empty()).collect()
}

/// The templates with a field that none has, such as a misspelled `<<.LabelMatcher>>`: none of their queries can be
/// made, whatever the labels.
pub fn unknown_fields(config: &Config) -> Vec<String> {
    let general = rendered(config).into_iter().map(|(field, _, query)| (field, query.err()));
    let rules = config
        .rules
        .with_paths()
        .map(|(path, rule)| (format!("{path}.metricsQuery"), rule_text(rule).err()));
    let failed = general.chain(rules).filter_map(|(field, error)| Some((field, error?)));
    let unknown = failed.filter(|(_, error)| is_unknown_field(error));
    unknown.map(|(field, error)| format!("{field}: {error}")).collect()
}

/// The example query of a rule.
pub fn rule_query<'a>(path: &str, rule: &'a Rule) -> Option<Example<'a>> {
    let query = rule_text(rule).ok()?;
    let backend = rule.series.backend.as_deref();
    Some(Example { field: format!("{path}.metricsQuery"), backend, query })
}

/// The query of a rule for an example series.
fn rule_text(rule: &Rule) -> Result<String, String> {
    let matchers =
        [("namespace", Matcher::Is("some-namespace".to_owned())), ("pod", Matcher::NotEmpty)];
    rule.render(EXAMPLE_SERIES, &matchers, &["pod".to_owned()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelled_field_of_a_template_is_an_error() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        for (query, expected) in [
            ("<<.Series>>{<<.LabelMatchers>>}", None),
            (
                "<<.Series>>{<<.LabelMatcher>>}",
                Some("rules[0].metricsQuery: .LabelMatcher is not known; .GroupBy, "),
            ),
            // It may have that label.
            ("<<.Series>>{<<.LabelMatchers>>}<<index .GroupBySlice 1>>", None),
        ] {
            let config = format!(
                "rules:\n- {{seriesQuery: x, metricsQuery: '{query}', resources: {{template: <<.Resource>>}}}}\n"
            );
            std::fs::write(file.path(), config).expect("it is written");
            let errors = unknown_fields(&Config::read(file.path()).expect("a configuration"));
            assert_eq!(errors.len(), usize::from(expected.is_some()), "{errors:?}");
            assert!(expected.is_none_or(|expected| errors[0].starts_with(expected)), "{errors:?}");
        }
    }
}
