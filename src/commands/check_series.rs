//! `plimsoll check`: the series of each rule in Prometheus, the metrics that they become, and one query of them.

use super::check_context::Texts;
use super::check_queries::rule_query;
use crate::clock::WallClock;
use crate::prometheus::{Client as Prometheus, SeriesSchema, decode_series_schemas};
use crate::promql::matcher::Matcher;
use crate::rules::{Rule, RuleSet};
use crate::samples::Table;
use crate::watch::{GroupResource, ResourceMap};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

/// What the rules of a configuration find in Prometheus.
#[derive(Default)]
pub struct Found {
    /// What each rule matches.
    pub rules: Vec<RuleReport>,
    /// What is wrong, and what is probably a mistake.
    pub texts: Texts,
    /// What could not be looked at, and why.
    pub not_checked: Vec<String>,
}

/// What one rule matches.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleReport {
    /// The path of the rule, such as `rules[0]`.
    pub rule: String,
    /// The series query.
    pub series_query: String,
    /// The names of the matching series.
    pub series: BTreeSet<String>,
    /// The metrics of these series.
    pub metrics: BTreeSet<String>,
    /// The query of one metric, which was run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// The number of series in its result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query_series: Option<usize>,
    /// Why a query of the rule failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// How far back series are looked up.
const LOOKBACK: Duration = Duration::from_secs(600);

/// Looks up the series of each rule, and runs its query. Without the resources of a cluster, those count that each
/// cluster has.
pub async fn check(
    rules: &RuleSet,
    prometheus: &Prometheus,
    cluster: Option<ResourceMap>,
) -> Found {
    let now = WallClock::default().now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let since = now.saturating_sub(LOOKBACK).as_secs_f64();
    let has_cluster = cluster.is_some();
    let map = cluster.unwrap_or_else(ResourceMap::built_in);
    let mut all = Found::default();
    let mut owners: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, rule) in rules.with_paths() {
        let mut found = RuleReport {
            rule: path.clone(),
            series_query: rule.series.to_string(),
            ..RuleReport::default()
        };
        let named = rule.series.backend.as_ref().and_then(|name| rules.backends.get(name));
        let prometheus = named.unwrap_or(prometheus);
        let schemas = match prometheus.series(&rule.series.selector, since, &[]).await {
            Ok(body) => body.read(decode_series_schemas).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match schemas {
            Ok(schemas) => {
                let taken: Vec<SeriesSchema> = schemas
                    .into_iter()
                    .filter(|schema| rule.matches_series(&schema.name))
                    .collect();
                found.series = taken.iter().map(|schema| schema.name.clone()).collect();
                let mut example = None;
                for schema in &taken {
                    let metrics = metrics_of(rule, schema, &map, &path);
                    example = example.or((!metrics.is_empty()).then_some(schema));
                    found.metrics.extend(metrics);
                }
                // Of a rule of objects without any, a warning was given anyway.
                let has_labels = !is_external(&path) && !rule.labels.is_empty();
                let is_sure = has_cluster || rule.labels.are_of(&map);
                if found.series.is_empty() {
                    all.texts.warnings.push(format!("{path}: no series match"));
                } else if has_labels && !is_sure {
                    let other = if found.metrics.is_empty() { "" } else { "other " };
                    all.not_checked.push(format!(
                        "{path}: which {other}labels of its series name resources of the cluster: --kubeconfig or --context names one"
                    ));
                } else if has_labels && found.metrics.is_empty() {
                    all.texts.warnings.push(format!(
                        "{path}: no label of its series maps to a Kubernetes resource, so no metric is exposed"
                    ));
                }
                for metric in &found.metrics {
                    owners.entry(metric.clone()).or_default().push(path.clone());
                }
                match (example, rule_query(&path, rule)) {
                    (Some(schema), _) if !rule.query.is_empty() => {
                        try_query(&mut found, rule, schema, prometheus, &map).await;
                    }
                    (None, Some(example)) => {
                        if let Err(error) = prometheus.query(&example.query, &[]).await {
                            found.error = Some(format!("metricsQuery: {error}"));
                        }
                    }
                    _ => {}
                }
            }
            Err(error) => found.error = Some(format!("seriesQuery: {error}")),
        }
        if let Some(error) = &found.error {
            all.texts.errors.push(format!("{path}: {error}"));
        }
        all.rules.push(found);
    }
    for (metric, rules) in owners {
        if let [.., last] = rules.as_slice()
            && rules.len() > 1
        {
            let text = format!("{metric} is given by {}: {last} wins", rules.join(", "));
            all.texts.warnings.push(text);
        }
    }
    all
}

fn is_external(path: &str) -> bool {
    path.starts_with("externalRules")
}

/// The metrics of a series, such as `pods/http_requests`.
fn metrics_of(rule: &Rule, schema: &SeriesSchema, map: &ResourceMap, path: &str) -> Vec<String> {
    let Some(metric) = rule.name.render(&schema.name) else { return Vec::new() };
    if is_external(path) {
        return vec![format!("external {metric}")];
    }
    let labels = schema.labels.iter().map(String::as_str);
    let (resources, _) = rule.labels.resources(labels, map);
    resources.into_iter().map(|resource| format!("{resource}/{metric}")).collect()
}

/// Runs the query of a rule for all objects.
async fn try_query(
    found: &mut RuleReport,
    rule: &Rule,
    schema: &SeriesSchema,
    prometheus: &Prometheus,
    map: &ResourceMap,
) {
    let labels = schema.labels.iter().map(String::as_str);
    let (resources, _) = rule.labels.resources(labels, map);
    let namespaces = GroupResource::core("namespaces");
    let described = resources.iter().find(|resource| **resource != namespaces);
    let label = described.or(resources.first()).and_then(|r| rule.labels.label(r, map));
    let matchers: Vec<(&str, Matcher)> =
        label.iter().map(|label| (label.as_str(), Matcher::NotEmpty)).collect();
    let group_by: Vec<String> = label.iter().cloned().collect();
    let result = match rule.render(&schema.name, &matchers, &group_by) {
        Ok(query) => {
            let response = prometheus.query(&query, &[]).await;
            found.query = Some(query);
            response
                .and_then(|body| body.read(Table::read).map(|table| table.series()))
                .map_err(|error| error.to_string())
        }
        Err(error) => Err(error),
    };
    match result {
        Ok(series) => found.query_series = Some(series),
        Err(error) => found.error = Some(format!("metricsQuery: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::fake;

    const SERIES: &str = r#"{"status":"success","data":[
        {"__name__":"hits","namespace":"shop","pod":"web-1","gizmo":"g"}]}"#;
    const NONE: &str = r#"{"status":"success","data":{"resultType":"vector","result":[]}}"#;

    /// What is found of a rule with these resources, without and with a cluster, and what Prometheus was asked.
    async fn found(resources: &str, cluster: Option<ResourceMap>) -> (Found, Vec<String>) {
        let answer = |request: &str| if request.contains("match[]") { SERIES } else { NONE };
        let (prometheus, received) =
            fake::prometheus(move |request| answer(request).to_owned()).await;
        let file = tempfile::NamedTempFile::new().expect("a file");
        let text = format!(
            "rules: [{{seriesQuery: hits, resources: {{{resources}}}, metricsQuery: 'sum(<<.Series>>{{<<.LabelMatchers>>}}) by (<<.GroupBy>>)'}}]\n"
        );
        std::fs::write(file.path(), text).expect("it is written");
        let config = Config::read(file.path()).expect("a configuration");
        let found = check(&config.rules, &prometheus, cluster).await;
        let received = received.lock().unwrap().clone();
        (found, received)
    }

    #[tokio::test]
    async fn what_labels_name_is_told_without_a_cluster_where_each_has_it() {
        let both = "overrides: {namespace: {resource: namespace}, pod: {resource: pods}}";
        let gizmo = "overrides: {gizmo: {group: example.com, resource: gizmos}}";
        let other = "rules[0]: which other labels of its series name resources";
        let any = "rules[0]: which labels of its series name resources";
        for (resources, metrics, not_checked) in [
            (both, &["namespaces/hits", "pods/hits"][..], None),
            ("template: <<.Resource>>", &["namespaces/hits", "pods/hits"], Some(other)),
            (gizmo, &[], Some(any)),
        ] {
            let (found, received) = found(resources, None).await;
            assert!(found.rules[0].metrics.iter().eq(metrics), "{:?}", found.rules);
            assert_eq!(found.texts.errors.len() + found.texts.warnings.len(), 0, "{resources}");
            let said = found.not_checked.first();
            assert_eq!(said.is_some(), not_checked.is_some(), "{said:?}");
            assert!(said.is_none_or(|said| said.starts_with(not_checked.unwrap())), "{said:?}");
            let query = found.rules[0].query.as_deref();
            let expected = "sum(hits{pod!=\"\"}) by (pod)";
            assert_eq!(query, (!metrics.is_empty()).then_some(expected));
            assert!(received.iter().all(|asked| !asked.contains("by ()")), "{received:?}");
        }
    }

    #[tokio::test]
    async fn a_rule_whose_labels_name_nothing_in_the_cluster_is_a_mistake() {
        let gizmo = "overrides: {gizmo: {group: example.com, resource: gizmos}}";
        let (found, received) = found(gizmo, Some(ResourceMap::built_in())).await;
        assert!(found.not_checked.is_empty() && found.texts.warnings.len() == 1);
        let warning = &found.texts.warnings[0];
        assert!(
            warning.contains("no label of its series maps to a Kubernetes resource"),
            "{warning}"
        );
        assert!(received.iter().all(|asked| !asked.contains("by ()")), "{received:?}");
    }
}
