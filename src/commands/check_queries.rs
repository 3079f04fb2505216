//! `plimsoll check`: the queries of a configuration for an example metric.

use crate::config::Config;
use crate::promql::matcher::Matcher;
use crate::promql::query::{MetricType, Per, PrometheusMetric, fields};
use crate::promql::template::Template;
use crate::rules::{Rule, UsageRule};

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

/// Example queries of pod metrics and of resource usage, which no rule's series are found for. A template that can't be
/// rendered with the example label may work with its own.
pub fn general_queries(config: &Config) -> Vec<Example<'_>> {
    let mut all = Vec::new();
    let metric = PrometheusMetric {
        metric: EXAMPLE_SERIES.to_owned(),
        per: Per::Pod,
        labels: Default::default(),
        query: None,
    };
    for (field, kind) in [("gaugeQuery", MetricType::Gauge), ("counterQuery", MetricType::Counter)]
    {
        if let Ok(query) = config.pod_queries.query(&metric, kind, "some-namespace") {
            let (field, query) = (format!("podMetrics.{field}"), query.values.to_string());
            all.push(Example { field, backend: None, query });
        }
    }
    let backend = config.rules.resource.as_ref().and_then(|usage| usage.backend.as_deref());
    let matchers = [("some_label", Matcher::Is("some".to_owned()))];
    let fields = fields("", &matchers, &["some_label".to_owned()]);
    for (field, template) in usage_queries(config) {
        // One that is missing is told as that.
        let query = template.render(&fields).ok().filter(|query| !query.is_empty());
        all.extend(query.map(|query| Example { field, backend, query }));
    }
    all
}

/// The rules of resource usage, with their fields.
fn usage_rules(config: &Config) -> impl Iterator<Item = (&'static str, &UsageRule)> {
    let rules = config.rules.resource.as_ref();
    let rules = rules
        .map(|usage| [("resourceRules.cpu", &usage.cpu), ("resourceRules.memory", &usage.memory)]);
    rules.into_iter().flatten()
}

/// Their queries.
fn usage_queries(config: &Config) -> impl Iterator<Item = (String, &Template)> {
    usage_rules(config).flat_map(|(path, rule)| {
        [("containerQuery", &rule.container_query), ("nodeQuery", &rule.node_query)]
            .map(|(name, query)| (format!("{path}.{name}"), query))
    })
}

/// The templates with a field that none has, such as a misspelled `<<.LabelMatcher>>`: no query that has it can be made,
/// whatever the labels.
pub fn unknown_fields(config: &Config) -> Vec<String> {
    let pods = &config.pod_queries;
    let pods = [("gaugeQuery", &pods.gauge), ("counterQuery", &pods.counter)];
    let pods = pods.map(|(name, template)| (format!("podMetrics.{name}"), template));
    let rules = config.rules.with_paths();
    let rules = rules.map(|(path, rule)| (format!("{path}.metricsQuery"), &rule.query));
    let fields = fields(EXAMPLE_SERIES, &[], &[]);
    let queries = pods.into_iter().chain(usage_queries(config)).chain(rules);
    let queries = queries.filter_map(|(field, query)| Some((field, query.unknown_field(&fields)?)));
    let labels = config.rules.with_paths().map(|(path, rule)| (path, &rule.labels));
    let usage = usage_rules(config).map(|(path, rule)| (path.to_owned(), &rule.labels));
    let labels = labels.chain(usage).filter_map(|(path, labels)| {
        Some((format!("{path}.resources.template"), labels.unknown_field()?))
    });
    queries.chain(labels).map(|(field, error)| format!("{field}: {error}")).collect()
}

/// The query of a rule for an example series.
pub fn rule_query<'a>(path: &str, rule: &'a Rule) -> Option<Example<'a>> {
    let matchers =
        [("namespace", Matcher::Is("some-namespace".to_owned())), ("pod", Matcher::NotEmpty)];
    let query = rule.render(EXAMPLE_SERIES, &matchers, &["pod".to_owned()]).ok()?;
    let backend = rule.series.backend.as_deref();
    Some(Example { field: format!("{path}.metricsQuery"), backend, query })
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
            ("<<range $k, $v := .LabelValuesByName>><<$k>>=<<.>>,<<$.Series>><<end>>", None),
            ("<<with .LabelValuesByName>><<.namespace>><<end>><<.LabelValuesByName.pod>>", None),
            (
                "<<if eq .Series \"zz\">><<.Bad>><<end>>sum(<<.Series>>)",
                Some("rules[0].metricsQuery: .Bad is not known; .GroupBy, "),
            ),
            (
                "<<if .Series>>x<<else if or .Bad .Series>>y<<end>>",
                Some("rules[0].metricsQuery: .Bad is not known; .GroupBy, "),
            ),
            (
                "<<range .LabelValuesByName>>x=\"<<.Foo>>\",<<end>>",
                Some("rules[0].metricsQuery: .Foo: in range or with, the dot is the item or value"),
            ),
            (
                "<<with .Series>><<.Foo>><<end>>",
                Some("rules[0].metricsQuery: .Foo: in range or with, the dot is the item or value"),
            ),
            (
                "<<range .GroupBySlice>><<$.Bad>><<(printf \"%s\" $.Bad)>><<end>>",
                Some("rules[0].metricsQuery: .Bad is not known; .GroupBy, "),
            ),
            ("<<.Series.X>>", Some("rules[0].metricsQuery: can't evaluate field X")),
        ] {
            let config = format!(
                "rules:\n- {{seriesQuery: x, metricsQuery: '{query}', resources: {{template: <<.Resource>>}}}}\n"
            );
            std::fs::write(file.path(), config).expect("it is written");
            let errors = unknown_fields(&Config::read(file.path()).expect("a configuration"));
            assert_eq!(errors.len(), usize::from(expected.is_some()), "{errors:?}");
            assert!(expected.is_none_or(|expected| errors[0].starts_with(expected)), "{errors:?}");
        }
        let template = "<<if not .Group>><<.Groupe>>_<<end>><<.Resource>>";
        let config = format!(
            "rules:\n- {{seriesQuery: x, metricsQuery: <<.Series>>, resources: {{template: '{template}'}}}}\n"
        );
        std::fs::write(file.path(), config).expect("it is written");
        let errors = unknown_fields(&Config::read(file.path()).expect("a configuration"));
        let expected = "rules[0].resources.template: .Groupe is not known; .Group, .Resource are";
        assert_eq!(errors, [expected]);
    }
}
