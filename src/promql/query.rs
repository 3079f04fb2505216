//! From a metric that an autoscaler asks for to the query that gives it.

use super::guard::{self, GuardError};
use super::matcher::{Matcher, is_metric_name, label_name};
use super::name::Labels;
use super::template::{Template, Value, quoted};
use super::{bounds, tree};
use promql_parser::label::{self, MatchOp};
use promql_parser::parser::Expr;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How metrics of pods are asked for.
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
    /// The namespaces that every user's own query may read.
    pub shared: Vec<String>,
}

/// A metric that an autoscaler asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodMetric {
    /// Its name in Prometheus.
    pub metric: String,
    /// What its labels must be.
    pub labels: Labels,
    /// PromQL to be run instead of a template.
    pub query: Option<String>,
}

/// How values are asked for, and when they were measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The values.
    pub values: Arc<str>,
    /// For each group of series the time of its oldest last sample, in Unix
    /// seconds: Prometheus stamps values with the time of the query. None where
    /// the series behind the values are not known.
    pub times: Option<Arc<str>>,
}

/// Whether a metric only ever goes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It only goes up, and counts from 0 after a restart.
    Counter,
    /// It goes up and down.
    Gauge,
}

/// Why a metric can't be asked for.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum QueryError {
    /// The name can't be a metric's.
    #[error("a metric name must not be empty")]
    MetricName,
    /// The name can't be a label's.
    #[error("a label name must not be empty")]
    LabelName,
    /// The template can't be filled in.
    #[error("the query template: {0}")]
    Template(String),
    /// The query can't be run.
    #[error("the query of {metric} can't be run: {error}")]
    Query {
        /// The metric.
        metric: String,
        /// Why.
        error: GuardError,
    },
}

/// What a metric name says of its kind, where it does: counters, and the parts of
/// histograms and summaries, have suffixes of their own; a colon is in the names of
/// recording rules alone, which have rates inside.
/// Source: Prometheus's naming rules and the OpenMetrics suffixes.
pub fn kind_by_name(metric: &str) -> Option<MetricKind> {
    const COUNTERS: [&str; 4] = ["_total", "_count", "_sum", "_bucket"];
    if COUNTERS.iter().any(|end| metric.ends_with(end)) {
        return Some(MetricKind::Counter);
    }
    metric.contains(':').then_some(MetricKind::Gauge)
}

impl PodQueries {
    /// The query for a metric of the pods of one namespace.
    pub fn query(
        &self,
        metric: &PodMetric,
        kind: MetricKind,
        namespace: &str,
    ) -> Result<Query, QueryError> {
        if let Some(query) = &metric.query {
            return self
                .narrowed(query, namespace)
                .map(|query| Query { values: query.into(), times: None })
                .map_err(|error| QueryError::Query { metric: metric.metric.clone(), error });
        }
        if metric.metric.is_empty() {
            return Err(QueryError::MetricName);
        }
        let mut matchers: BTreeMap<&str, Matcher> = BTreeMap::new();
        for (label, value) in &metric.labels {
            if label.is_empty() {
                return Err(QueryError::LabelName);
            }
            matchers.insert(label, Matcher::Is(value.clone()));
        }
        // The namespace comes last: no label of the metric may stand for it.
        matchers.entry(&self.pod_label).or_insert(Matcher::NotEmpty);
        matchers.insert(&self.namespace_label, Matcher::Is(namespace.to_owned()));
        let template = match kind {
            MetricKind::Counter => &self.counter,
            MetricKind::Gauge => &self.gauge,
        };
        let group_by = [self.namespace_label.clone(), self.pod_label.clone()];
        let matchers: Vec<_> = matchers.into_iter().collect();
        let query = render(template, &metric.metric, &matchers, &group_by);
        let query = query.map_err(QueryError::Template)?;
        let times = times(&metric.metric, &matchers, &group_by);
        Ok(Query { values: query.into(), times })
    }

    /// A user's own query, kept within a namespace.
    ///
    /// # Errors
    /// As [`GuardError`] says.
    pub fn narrowed(&self, query: &str, namespace: &str) -> Result<String, GuardError> {
        guard::within_namespace(query, &self.namespace_label, namespace, &self.shared)
    }
}

/// Fills a query template in.
///
/// A series whose name needs quotes can't stand where a template has
/// `<<.Series>>{...}`. So such a template is filled in for a plain name, and the name
/// is put into the tree of that.
///
/// # Errors
/// As [`Template::render`]; for a name that needs quotes also where our parser does
/// not read the query.
pub fn render(
    template: &Template,
    series: &str,
    matchers: &[(&str, Matcher)],
    group_by: &[String],
) -> Result<String, String> {
    if is_metric_name(series) || series.is_empty() {
        return template.render(&fields(series, matchers, group_by));
    }
    let rendered: String = matchers.iter().map(|(label, matcher)| matcher.render(label)).collect();
    let mut plain = "plimsoll_series".to_owned();
    while rendered.contains(&plain) {
        plain.push('_');
    }
    let text = template.render(&fields(&plain, matchers, group_by))?;
    let mut tree = tree::read(&text, &bounds::OF_OURS)
        .map_err(|error| format!("the name {series:?} can't be put into {text}: {error}"))?;
    let name = |text: &mut String| {
        if text.contains(&plain) {
            *text = text.replace(&plain, series);
        }
    };
    let walked: Result<(), tree::NotPromQl> = tree::walk(&mut tree, &mut |node| {
        if let Expr::StringLiteral(literal) = node {
            name(&mut literal.val);
        }
        Ok(())
    });
    walked.map_err(|error| error.to_string())?;
    tree::selectors(&mut tree, &mut |selector| {
        let own = selector.name.take_if(|own| own.contains(&plain));
        for branch in tree::branches(selector) {
            branch.iter_mut().for_each(|matcher| name(&mut matcher.value));
            if let Some(own) = &own {
                let own = own.replace(&plain, series);
                branch.push(label::Matcher::new(MatchOp::Equal, label::METRIC_NAME, &own));
            }
        }
    });
    tree::settle(&mut tree);
    let text = tree.to_string();
    match tree::says(&text, &tree) {
        true => Ok(text),
        false => Err(format!("the name {series:?} can't be put into {text}")),
    }
}

/// The query for the time of the oldest last sample of each group of series; none
/// where the series have no one name, or groups no label.
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

/// What a query template can be filled in with, as prometheus-adapter names it.
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

    fn metric(name: &str, labels: &[(&str, &str)]) -> PodMetric {
        PodMetric {
            metric: name.to_owned(),
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
            query("hits_total", MetricKind::Counter),
            r#"sum by (namespace,pod) (rate(hits_total{a="b",namespace="shop",pod!=""}[2m]))"#
        );
        assert_eq!(
            query("queue", MetricKind::Gauge),
            r#"sum by (namespace,pod) (queue{a="b",namespace="shop",pod!=""})"#
        );
    }

    #[test]
    fn times_are_asked_of_the_series_behind_the_values() {
        let matchers = [("pod", Matcher::Is("a\"b".to_owned()))];
        let query = times("queue", &matchers, &["pod".to_owned()]).unwrap();
        assert_eq!(&*query, r#"min by (pod) (timestamp(queue{pod="a\"b"}))"#);
        assert_eq!(times("", &matchers, &[]), None);
    }

    #[test]
    fn no_label_of_a_metric_can_stand_for_the_namespace() {
        let queries = Config::default().pod_queries;
        let query = queries
            .query(&metric("m", &[("namespace", "bank")]), MetricKind::Gauge, "shop")
            .unwrap();
        let query = query.values;
        assert!(query.contains(r#"namespace="shop""#) && !query.contains("bank"), "{query}");
    }

    #[test]
    fn any_name_that_prometheus_takes_is_taken_in_quotes() {
        let mut queries = PodQueries::clone(&Config::default().pod_queries);
        queries.pod_label = "k8s.pod.name".to_owned();
        let asked = metric("http.server.request.duration", &[("k8s.deployment.name", "web")]);
        let query = queries.query(&asked, MetricKind::Gauge, "shop").unwrap();
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
        for asked in [
            metric("m{}", &[]),
            metric("m\"} or up{b=\"", &[]),
            metric("m", &[("a=\"\"} or up{b", "c"), ("x\"y", "z")]),
        ] {
            let query = queries.query(&asked, MetricKind::Gauge, "shop").unwrap();
            let Expr::Aggregate(sum) = parse(&query.values).unwrap() else { panic!("{query:?}") };
            let Expr::VectorSelector(selector) = &*sum.expr else { panic!("{query:?}") };
            let own = selector.matchers.find_matchers("namespace");
            assert!(own.len() == 1 && own[0].value == "shop", "{query:?}");
        }
        for none in [metric("", &[]), metric("m", &[("", "x")])] {
            assert!(queries.query(&none, MetricKind::Gauge, "shop").is_err());
        }
    }
}
