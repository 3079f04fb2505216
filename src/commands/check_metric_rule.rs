//! `plimsoll check -f`: what is invalid in a MetricRule, and what is probably a mistake, without a cluster.

use super::check_context::{Context, Texts};
use super::check_rule;
use crate::crd::{MetricRuleSpec, RuleResources};
use crate::promql::guard::within_namespace;
use crate::promql::matcher::Matcher;
use crate::promql::narrow::series_selector;
use crate::promql::query::{PodQueries, fields};
use crate::promql::template::Template;
use crate::rules::check_metric_rule;

/// Checks the spec of a MetricRule in this namespace, by the labels of the configuration.
pub fn check(spec: &MetricRuleSpec, namespace: &str, context: &Context<'_>, texts: &mut Texts) {
    let checked = check_metric_rule(spec.clone(), namespace)
        .and_then(|()| check_labels(spec, namespace, context.queries));
    if let Err(error) = checked {
        texts.errors.push(error);
        return;
    }
    let names_none =
        |resources: &RuleResources| resources.template.is_empty() && resources.overrides.is_empty();
    if spec.resources.as_ref().is_some_and(names_none) {
        let text = "spec.resources: none, so that no label names an object, and no metric is served: leave it out for pods";
        texts.warnings.push(text.to_owned());
    }
    let Ok(template) = Template::parse(&spec.metrics_query) else { return };
    let query = query(&template, namespace, context.queries).ok();
    let (field, interval) = ("spec.metricsQuery", context.scrape_interval);
    texts.warnings.extend(check_rule::warnings(
        field,
        &template,
        query.as_deref(),
        false,
        interval,
    ));
}

/// The query of an example.
fn query(template: &Template, namespace: &str, queries: &PodQueries) -> Result<String, String> {
    let matchers = [
        (&*queries.namespace_label, Matcher::Is(namespace.to_owned())),
        (&*queries.pod_label, Matcher::Is("some-pod".to_owned())),
    ];
    template.render(&fields("some_series", &matchers, std::slice::from_ref(&queries.pod_label)))
}

/// Checks that the queries can be kept in the namespace by the labels of the configuration.
fn check_labels(
    spec: &MetricRuleSpec,
    namespace: &str,
    queries: &PodQueries,
) -> Result<(), String> {
    series_selector(&spec.series_query, &queries.namespace_label, namespace)
        .map_err(|error| format!("spec.seriesQuery: {error}"))?;
    let in_query = |error: String| format!("spec.metricsQuery: {error}");
    let template = Template::parse(&spec.metrics_query);
    let template = template.map_err(|error| in_query(error.to_string()))?;
    if let Some(error) = template.unknown_field(&fields("some_series", &[], &[])) {
        return Err(in_query(error));
    }
    let query = query(&template, namespace, queries).map_err(in_query)?;
    within_namespace(&query, &queries.namespace_label, namespace, &[])
        .map_err(|error| in_query(error.to_string()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::check_files::tests::{checked, without_place};

    #[test]
    fn what_is_invalid_is_an_error_and_what_is_a_mistake_a_warning() {
        let rule = |spec: &str| {
            let found = checked(&format!(
                "apiVersion: plimsoll.dev/v1alpha1\nkind: MetricRule\n\
                 metadata: {{name: requests, namespace: shop}}\nspec: {{{spec}}}\n"
            ));
            (found.texts.errors, found.texts.warnings)
        };
        let good = "'sum(rate(<<.Series>>{<<.LabelMatchers>>}[2m])) by (<<.GroupBy>>)'";
        let of = |query: &str| rule(&format!("seriesQuery: x, metricsQuery: {query}"));
        assert_eq!(of(good), (Vec::new(), Vec::new()));
        let (errors, warnings) =
            rule(&format!("seriesQuery: x, resources: {{}}, metricsQuery: {good}"));
        assert!(errors.is_empty() && warnings.len() == 1, "{errors:?} {warnings:?}");
        assert!(warnings[0].contains("spec.resources: none"), "{warnings:?}");
        for (spec, expected) in [
            ("seriesQuery: x".to_owned(), "spec.metricsQuery: missing, and required"),
            (format!("seriesQuery: x + y, metricsQuery: {good}"), "spec.seriesQuery: "),
            (
                "seriesQuery: x, metricsQuery: '<<if eq .Series \"zz\">><<.Bad>><<end>>sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)'".to_owned(),
                "spec.metricsQuery: .Bad is not known; .GroupBy, ",
            ),
        ] {
            let (errors, warnings) = rule(&spec);
            assert!(warnings.is_empty() && errors.len() == 1, "{errors:?} {warnings:?}");
            let expected = format!("metricrule shop/requests: {expected}");
            assert!(without_place(&errors[0]).starts_with(&expected), "{errors:?}");
        }
        for (query, expected) in [
            (
                "'sum(rate(<<.Series>>{<<.LabelMatchers>>}[45s])) by (<<.GroupBy>>)'",
                "a range of 45s",
            ),
            ("'sum(<<.Series>>) by (<<.GroupBy>>)'", "no <<.LabelMatchers>>"),
            ("'sum(<<.Series>>{<<.LabelMatchers>>})'", "without <<.GroupBy>>"),
            ("'sum(x{<<.LabelMatchers>>}) by (<<.GroupBy>>)'", "no <<.Series>>"),
        ] {
            let (errors, warnings) = of(query);
            assert!(errors.is_empty() && warnings.len() == 1, "{errors:?} {warnings:?}");
            let start = "metricrule shop/requests: spec.metricsQuery: ";
            let warning = without_place(&warnings[0]);
            assert!(warning.starts_with(start) && warning.contains(expected), "{warnings:?}");
        }
    }
}
