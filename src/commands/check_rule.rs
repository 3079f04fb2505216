//! `plimsoll check`: what is probably a mistake in a rule, of the configuration or of a MetricRule.

use crate::promql::bounds::PLANNED_QUERY;
use crate::promql::ranges;
use crate::promql::template::Template;
use crate::promql::tree;
use std::time::Duration;

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
        warnings.push(format!("{field}: no <<.Series>>: each metric would be the same one"));
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
