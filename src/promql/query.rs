//! From the metric of an autoscaler to its query.

use super::bounds::{self, Bounds};
use super::guard::{self, GuardError};
use super::matcher::{Matcher, is_metric_name, label_name};
use super::quote::quoted;
use super::template::{Template, Value};
use super::tree;
use crate::k8s::LabelSet;
use promql_parser::label::{self, MatchOp};
use promql_parser::parser::Expr;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The query templates for metrics of pods.
#[derive(Clone, Debug, PartialEq)]
pub struct PodQueries {
    /// The Prometheus label that names the namespace.
    pub namespace_label: String,
    /// The Prometheus label that names the pod.
    pub pod_label: String,
    /// For gauges.
    pub gauge: Template,
    /// For counters.
    pub counter: Template,
    /// The namespaces that all users' own queries may read.
    pub shared: Vec<String>,
}

/// What a metric has one series for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Per {
    /// Each pod of the workload.
    #[default]
    Pod,
    /// The workload as a whole: a total, such as the length of a queue.
    Workload,
}

/// A metric of an autoscaler.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PrometheusMetric {
    /// Its name in Prometheus.
    pub metric: String,
    /// What it has one series for.
    pub per: Per,
    /// The values that its labels must have.
    pub labels: LabelSet,
    /// The user's own query, in place of a template.
    pub query: Option<String>,
}

/// The queries for values, and for the times at which they were measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The values.
    pub values: Arc<str>,
    /// The query for the time of the oldest last sample of each group of series, in Unix
    /// seconds. Prometheus itself stamps values with the time of the query. None if
    /// the series behind the values are unknown.
    pub times: Option<Arc<str>>,
}

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// It only increases, and restarts at 0.
    Counter,
    /// It increases and decreases.
    Gauge,
}

/// Why a query can't be made.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum QueryError {
    /// The metric name is invalid.
    #[error("a metric name must not be empty")]
    MetricName,
    /// A label name is invalid.
    #[error("a label name must not be empty")]
    LabelName,
    /// The template can't be rendered.
    #[error("the query template: {0}")]
    Template(String),
    /// The user's own query is refused.
    #[error("the query of {metric} can't be run: {error}")]
    Query {
        /// The metric.
        metric: String,
        /// Why.
        error: GuardError,
    },
}

/// The type of a metric by its name, if the name tells: counters, and the parts of
/// histograms and summaries, have suffixes of their own. Only recording rules have a colon in their
/// names; these compute rates themselves.
/// Source: Prometheus's naming rules and the OpenMetrics suffixes.
pub fn type_by_name(metric: &str) -> Option<MetricType> {
    const COUNTERS: [&str; 4] = ["_total", "_count", "_sum", "_bucket"];
    if COUNTERS.iter().any(|end| metric.ends_with(end)) {
        return Some(MetricType::Counter);
    }
    metric.contains(':').then_some(MetricType::Gauge)
}

impl PodQueries {
    /// The query for a metric of the pods or of a workload of one namespace.
    ///
    /// # Errors
    /// As [`QueryError`] says.
    pub fn query(
        &self,
        metric: &PrometheusMetric,
        metric_type: MetricType,
        namespace: &str,
    ) -> Result<Query, QueryError> {
        if let Some(query) = &metric.query {
            return self
                .guard(query, namespace)
                .map(|query| Query { values: query.into(), times: None })
                .map_err(|error| QueryError::Query { metric: metric.metric.clone(), error });
        }
        if metric.metric.is_empty() {
            return Err(QueryError::MetricName);
        }
        let mut matchers: BTreeMap<&str, Matcher> = BTreeMap::new();
        for (label, value) in metric.labels.iter() {
            if label.is_empty() {
                return Err(QueryError::LabelName);
            }
            matchers.insert(label, Matcher::Is(value.to_owned()));
        }
        // Last, so that no label of the metric can replace the namespace.
        if metric.per == Per::Pod {
            matchers.entry(&self.pod_label).or_insert(Matcher::NotEmpty);
        }
        matchers.insert(&self.namespace_label, Matcher::Is(namespace.to_owned()));
        let template = match metric_type {
            MetricType::Counter => &self.counter,
            MetricType::Gauge => &self.gauge,
        };
        let group_by = [self.namespace_label.clone(), self.pod_label.clone()];
        let group_by = match metric.per {
            Per::Pod => &group_by[..],
            Per::Workload => &group_by[..1],
        };
        let matchers: Vec<_> = matchers.into_iter().collect();
        let query = render(template, &metric.metric, &matchers, group_by);
        let query = query.map_err(QueryError::Template)?;
        let times = times(&metric.metric, &matchers, group_by);
        Ok(Query { values: query.into(), times })
    }

    /// Keeps a user's own query within a namespace. Returns the guarded query.
    ///
    /// # Errors
    /// As [`GuardError`] says.
    pub fn guard(&self, query: &str, namespace: &str) -> Result<String, GuardError> {
        guard::within_namespace(query, &self.namespace_label, namespace, &self.shared)
    }
}

/// Renders a query template.
///
/// A name that needs quotes is not valid in
/// `<<.Series>>{...}`. So the template is rendered for a plain name, which is then replaced in the
/// tree of the query.
///
/// # Errors
/// As [`Template::render`]. For a name that needs quotes, also if our parser does
/// not read the query.
pub fn render(
    template: &Template,
    series: &str,
    matchers: &[(&str, Matcher)],
    group_by: &[String],
) -> Result<String, String> {
    render_within(template, series, matchers, group_by, (&bounds::PLANNED_QUERY, usize::MAX))
}

/// Renders the template of a user's query, which is refused before it is parsed if it is too long.
///
/// # Errors
/// As [`render`], and if the query exceeds the bounds of users' queries.
pub fn render_users(
    template: &Template,
    series: &str,
    matchers: &[(&str, Matcher)],
    group_by: &[String],
) -> Result<String, String> {
    let bounds = &bounds::USER_QUERY;
    render_within(template, series, matchers, group_by, (bounds, bounds.bytes))
}

/// Renders a query of at most so many bytes. If it is parsed, it is within the bounds.
fn render_within(
    template: &Template,
    series: &str,
    matchers: &[(&str, Matcher)],
    group_by: &[String],
    (bounds, bytes): (&Bounds, usize),
) -> Result<String, String> {
    let within = |text: String| match text.len() > bytes {
        true => Err(format!("the query takes more than {bytes} bytes")),
        false => Ok(text),
    };
    if is_metric_name(series) || series.is_empty() {
        return within(template.render(&fields(series, matchers, group_by))?);
    }
    let rendered: String = matchers.iter().map(|(label, matcher)| matcher.render(label)).collect();
    let mut plain = "plimsoll_series".to_owned();
    while rendered.contains(&plain) {
        plain.push('_');
    }
    let text = within(template.render(&fields(&plain, matchers, group_by))?)?;
    let mut tree = tree::parse(&text, bounds)
        .map_err(|error| format!("the name {series:?} can't be put into {text}: {error}"))?;
    let name = |text: &mut String| {
        if text.contains(&plain) {
            *text = text.replace(&plain, series);
        }
    };
    let walked: Result<(), tree::ExtensionNode> = tree::walk(&mut tree, &mut |node| {
        if let Expr::StringLiteral(literal) = node {
            name(&mut literal.val);
        }
        Ok(())
    });
    walked.map_err(|error| error.to_string())?;
    tree::selectors(&mut tree, &mut |selector| {
        let own = selector.name.take_if(|own| own.contains(&plain));
        for branch in tree::or_alternatives(selector) {
            branch.iter_mut().for_each(|matcher| name(&mut matcher.value));
            if let Some(own) = &own {
                let own = own.replace(&plain, series);
                branch.push(label::Matcher::new(MatchOp::Equal, label::METRIC_NAME, &own));
            }
        }
    });
    tree::normalize(&mut tree);
    let text = within(tree.to_string())?;
    match tree::parses_to(&text, &tree) {
        true => Ok(text),
        false => Err(format!("the name {series:?} can't be put into {text}")),
    }
}

/// The query for the time of the oldest last sample of each group of series; none
/// if the series have different names, or a label to group by is empty.
pub fn times(series: &str, matchers: &[(&str, Matcher)], group_by: &[String]) -> Option<Arc<str>> {
    if series.is_empty() || group_by.iter().any(String::is_empty) {
        return None;
    }
    let mut rendered: Vec<String> =
        matchers.iter().map(|(label, matcher)| matcher.render(label)).collect();
    let plain = is_metric_name(series);
    if !plain {
        rendered.push(format!("{}={}", label::METRIC_NAME, quoted(series)));
        rendered.sort();
    }
    let name = if plain { series } else { "" };
    let (groups, matchers) = (labels(group_by).join(","), rendered.join(","));
    Some(format!("min by ({groups}) (timestamp({name}{{{matchers}}}))").into())
}

fn labels(names: &[String]) -> Vec<String> {
    names.iter().map(|name| label_name(name).into_owned()).collect()
}

/// The fields of a query template, by the names of prometheus-adapter.
pub fn fields(
    series: &str,
    matchers: &[(&str, Matcher)],
    group_by: &[String],
) -> BTreeMap<&'static str, Value> {
    let rendered: Vec<String> =
        matchers.iter().map(|(label, matcher)| matcher.render(label)).collect();
    let values =
        matchers.iter().map(|(label, matcher)| ((*label).to_owned(), matcher.value())).collect();
    BTreeMap::from([
        ("Series", Value::Text(series.to_owned())),
        ("LabelMatchers", Value::Text(rendered.join(","))),
        ("LabelValuesByName", Value::Map(values)),
        ("GroupBy", Value::Text(labels(group_by).join(","))),
        ("GroupBySlice", Value::List(labels(group_by))),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn metric(name: &str, labels: &[(&str, &str)]) -> PrometheusMetric {
        PrometheusMetric {
            metric: name.to_owned(),
            per: Per::Pod,
            labels: labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            query: None,
        }
    }

    #[test]
    fn a_counter_is_a_rate_and_a_gauge_is_a_sum() {
        let queries = Config::default().pod_queries;
        let query = |name, kind| {
            let query = queries.query(&metric(name, &[("a", "b")]), kind, "shop").unwrap();
            query.values.to_string()
        };
        assert_eq!(
            query("hits_total", MetricType::Counter),
            r#"sum by (namespace,pod) (rate(hits_total{a="b",namespace="shop",pod!=""}[2m]))"#
        );
        assert_eq!(
            query("queue", MetricType::Gauge),
            r#"sum by (namespace,pod) (queue{a="b",namespace="shop",pod!=""})"#
        );
    }

    #[test]
    fn a_total_is_one_series_of_the_namespace() {
        let queries = Config::default().pod_queries;
        let total = PrometheusMetric { per: Per::Workload, ..metric("jobs_total", &[("q", "a")]) };
        let query = queries.query(&total, MetricType::Counter, "shop").unwrap();
        assert_eq!(
            &*query.values,
            r#"sum by (namespace) (rate(jobs_total{namespace="shop",q="a"}[2m]))"#
        );
    }

    #[test]
    fn times_are_queried_of_the_series_behind_the_values() {
        let matchers = [("pod", Matcher::Is("a\"b".to_owned()))];
        let query = times("queue", &matchers, &["pod".to_owned()]).unwrap();
        assert_eq!(&*query, r#"min by (pod) (timestamp(queue{pod="a\"b"}))"#);
        assert_eq!(times("", &matchers, &[]), None);
    }

    #[test]
    fn no_label_of_a_metric_can_stand_for_the_namespace() {
        let queries = Config::default().pod_queries;
        let query = queries
            .query(&metric("m", &[("namespace", "bank")]), MetricType::Gauge, "shop")
            .unwrap();
        let query = query.values;
        assert!(query.contains(r#"namespace="shop""#) && !query.contains("bank"), "{query}");
    }

    #[test]
    fn any_name_that_prometheus_takes_is_taken_in_quotes() {
        let mut queries = PodQueries::clone(&Config::default().pod_queries);
        queries.pod_label = "k8s.pod.name".to_owned();
        let quoted = metric("http.server.request.duration", &[("k8s.deployment.name", "web")]);
        let query = queries.query(&quoted, MetricType::Gauge, "shop").unwrap();
        let selector = r#"{"k8s.deployment.name"="web","k8s.pod.name"!="",__name__="http.server.request.duration",namespace="shop"}"#;
        let expected = format!(r#"sum by (namespace, "k8s.pod.name") ({selector})"#);
        assert_eq!(&*query.values, expected);
        let times = query.times.unwrap();
        assert_eq!(
            &*times,
            format!(r#"min by (namespace,"k8s.pod.name") (timestamp({selector}))"#)
        );
        promql_parser::parser::parse(&query.values).unwrap();
    }

    #[test]
    fn no_name_can_break_out() {
        use promql_parser::parser::{Expr, parse};
        let queries = Config::default().pod_queries;
        for hostile in [
            metric("m{}", &[]),
            metric("m\"} or up{b=\"", &[]),
            metric("m", &[("a=\"\"} or up{b", "c"), ("x\"y", "z")]),
        ] {
            let query = queries.query(&hostile, MetricType::Gauge, "shop").unwrap();
            let Expr::Aggregate(sum) = parse(&query.values).unwrap() else { panic!("{query:?}") };
            let Expr::VectorSelector(selector) = &*sum.expr else { panic!("{query:?}") };
            let own = selector.matchers.find_matchers("namespace");
            assert!(own.len() == 1 && own[0].value == "shop", "{query:?}");
        }
        for none in [metric("", &[]), metric("m", &[("", "x")])] {
            assert!(queries.query(&none, MetricType::Gauge, "shop").is_err());
        }
    }
}
