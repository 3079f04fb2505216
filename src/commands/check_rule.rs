//! `plimsoll check`: what is wrong or probably a mistake in a rule, of the configuration or of a MetricRule.

use super::check_context::Texts;
use crate::promql::bounds::PLANNED_QUERY;
use crate::promql::ranges;
use crate::promql::template::Template;
use crate::promql::tree;
use crate::rules::{RuleSet, UsageRule};
use crate::watch::{GroupResource, ResourceMap};
use std::time::Duration;

/// What is missing in the rules of a configuration, and names of metrics that can't be made. prometheus-adapter takes such a
/// file, and so does the server.
pub fn faults(rules: &RuleSet) -> Texts {
    let (mut texts, map) = (Texts::default(), ResourceMap::built_in());
    for (path, rule) in rules.with_paths() {
        if rule.query.is_empty() {
            texts.errors.push(format!("{path}.metricsQuery is missing"));
        }
        texts
            .errors
            .extend(rule.name.unknown_group().map(|error| format!("{path}.name.as: {error}")));
        let is_external = path.starts_with("externalRules");
        let namespaces = rule.labels.label(&GroupResource::core("namespaces"), &map);
        if !is_external && rule.labels.is_empty() {
            texts.warnings.push(format!(
                "{path}.resources: none, so that no label names an object, and no metric is exposed"
            ));
        }
        if is_external && rule.namespaced && namespaces.is_none() {
            texts.warnings.push(format!(
                "{path}.resources: no label names namespaces, so that each request fails: overrides or template must, or namespaced be false"
            ));
        }
    }
    if let Some(usage) = &rules.resource {
        for (resource, rule) in [("cpu", &usage.cpu), ("memory", &usage.memory)] {
            let path = format!("resourceRules.{resource}");
            let UsageRule { container_query, node_query, labels, .. } = rule;
            let queries = [("containerQuery", container_query), ("nodeQuery", node_query)];
            if labels.is_empty() && queries.iter().all(|(_, query)| query.is_empty()) {
                texts.errors.push(format!("{path} is missing"));
                continue;
            }
            let missing = queries.into_iter().filter(|(_, query)| query.is_empty());
            texts.errors.extend(missing.map(|(name, _)| format!("{path}.{name} is missing")));
            for described in ["namespaces", "pods", "nodes"] {
                if labels.label(&GroupResource::core(described), &map).is_none() {
                    texts.warnings.push(format!(
                        "{path}.resources: no label names {described}: overrides or template must"
                    ));
                }
            }
        }
    }
    texts
}

/// The warnings of the template of a rule, each about the field. `query` is what it gives for an example.
pub fn warnings(
    field: &str,
    template: &Template,
    query: Option<&str>,
    is_external: bool,
    scrape_interval: Duration,
) -> Vec<String> {
    let mut warnings = Vec::new();
    if !template.uses("LabelMatchers") && !template.uses("LabelValuesByName") {
        warnings.push(format!(
            "{field}: no <<.LabelMatchers>>: results of different objects and namespaces would be merged"
        ));
    }
    if !template.uses("Series") {
        warnings.push(format!("{field}: no <<.Series>>: all metrics would have the same values"));
    }
    let is_grouped = template.uses("GroupBy") || template.uses("GroupBySlice");
    if !is_external && !is_grouped && query.is_some_and(aggregates) {
        warnings.push(format!(
            "{field}: it aggregates without <<.GroupBy>>: results of several objects would be merged"
        ));
    }
    warnings.extend(query.and_then(|query| short_range(field, query, scrape_interval)));
    warnings
}

/// Whether a query has an aggregation, such as `sum`.
fn aggregates(query: &str) -> bool {
    tree::parse(query, &PLANNED_QUERY).is_ok_and(|mut expr| tree::aggregates(&mut expr))
}

/// A warning, if a range of a query is shorter than two scrapes.
pub fn short_range(field: &str, query: &str, scrape_interval: Duration) -> Option<String> {
    let range = ranges::shortest(query).ok()??;
    (range < 2 * scrape_interval).then(|| {
        format!("{field}: a range of {range:?} has fewer than two samples at a scrape interval of {scrape_interval:?} (--scrape-interval), and rate() of one is empty: take four times the interval")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn what_a_configuration_lacks_is_told_without_prometheus() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let of = |text: &str| {
            std::fs::write(file.path(), text).expect("it is written");
            let Texts { errors, warnings } =
                faults(&Config::read(file.path()).expect("valid").rules);
            (errors, warnings)
        };
        let resources =
            "resources: {overrides: {namespace: {resource: namespace}, pod: {resource: pods}}}";
        let query = "metricsQuery: 'sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)'";
        let good = format!("seriesQuery: x, {resources}, {query}");
        let usage = "containerQuery: a, nodeQuery: b, containerLabel: c, resources: {template: <<.Resource>>}";
        let both = format!("resourceRules: {{cpu: {{{usage}}}, memory: {{{usage}}}}}\n");
        let whole = format!("rules: [{{{good}}}]\nexternalRules: [{{{good}}}]\n{both}");
        assert_eq!(of(&whole), (Vec::new(), Vec::new()));
        let named = |template: &str| {
            format!("rules: [{{{good}, name: {{matches: ^(.*)_total$, as: '{template}'}}}}]\n")
        };
        assert_eq!(of(&named("${1}_per_second")), (Vec::new(), Vec::new()));
        for (text, expected) in [
            (
                format!("rules: [{{seriesQuery: x, {resources}}}]\n"),
                "rules[0].metricsQuery is missing",
            ),
            (
                format!("externalRules: [{{seriesQuery: x, {resources}, metricsQuery: ''}}]\n"),
                "externalRules[0].metricsQuery is missing",
            ),
            (
                named("$1_per_second"),
                "rules[0].name.as: \"$1_per_second\": matches has no group 1_per_second: write ${1}_per_second",
            ),
            (format!("resourceRules: {{cpu: {{{usage}}}}}\n"), "resourceRules.memory is missing"),
            (both.replacen("nodeQuery: b, ", "", 1), "resourceRules.cpu.nodeQuery is missing"),
        ] {
            assert_eq!(of(&text), (vec![expected.to_owned()], Vec::new()), "{text}");
        }
        for (text, expected) in [
            (
                format!("rules: [{{seriesQuery: x, {query}}}]\n"),
                "rules[0].resources: none, so that no label names an object",
            ),
            (
                format!("externalRules: [{{seriesQuery: x, {query}}}]\n"),
                "externalRules[0].resources: no label names namespaces",
            ),
            (
                both.replacen(
                    "{template: <<.Resource>>}",
                    "{overrides: {namespace: {resource: namespace}, pod: {resource: pod}}}",
                    1,
                ),
                "resourceRules.cpu.resources: no label names nodes",
            ),
        ] {
            let (errors, warnings) = of(&text);
            assert!(errors.is_empty() && warnings.len() == 1, "{errors:?} {warnings:?}");
            assert!(warnings[0].starts_with(expected), "{warnings:?}");
        }
    }

    #[test]
    fn what_a_template_lacks_is_a_warning() {
        let of = |text: &str, query: &str, is_external: bool| {
            let template = Template::parse(text).expect("a template");
            let scrapes = Duration::from_secs(30);
            warnings("rules[0].metricsQuery", &template, Some(query), is_external, scrapes)
        };
        let good = "sum(rate(<<.Series>>{<<.LabelMatchers>>}[2m])) by (<<.GroupBy>>)";
        assert_eq!(of(good, "sum(rate(x[2m])) by (pod)", false), Vec::<String>::new());
        assert_eq!(of("<<.Series>>{<<.LabelMatchers>>}", "x", false), Vec::<String>::new());
        let total = "sum(<<.Series>>{<<.LabelMatchers>>})";
        assert_eq!(of(total, "sum(x)", true), Vec::<String>::new());
        for (template, query, expected) in [
            (total, "sum(x)", "without <<.GroupBy>>"),
            ("<<.Series>>", "x", "no <<.LabelMatchers>>"),
            ("x{<<.LabelMatchers>>}", "x", "no <<.Series>>"),
            (good, "sum(rate(x[45s])) by (pod)", "a range of 45s has fewer than two samples"),
        ] {
            let warnings = of(template, query, false);
            assert!(warnings.len() == 1 && warnings[0].contains(expected), "{warnings:?}");
        }
    }
}
