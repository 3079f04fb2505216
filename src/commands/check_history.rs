//! `plimsoll check -f --prometheus-url`: when the queries of an Autoscaler's custom metrics were empty within a
//! day, or for as long as Prometheus has had their series.

use super::check_context::FileAutoscaler;
use super::check_context::Findings;
use crate::hpa::OnEmpty;
use crate::prometheus::{Body, Client as Prometheus};
use crate::promql::query::{PodQueries, PrometheusMetric};
use crate::samples::type_of_one;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;

/// Looks at the history of each query that has no other meaning when it is empty.
pub async fn check(
    prometheus: &Prometheus,
    queries: &PodQueries,
    objects: &[FileAutoscaler],
    found: &mut Findings,
) {
    for object in objects {
        for (index, metric) in object.spec.custom_metrics.iter().enumerate() {
            if metric.options().on_empty != OnEmpty::Missing {
                continue;
            }
            let field = match &metric.query {
                Some(_) => format!("spec.customMetrics[{index}].query"),
                None => format!("spec.customMetrics[{index}].metricName"),
            };
            if object.namespace.is_empty() {
                found.not_checked.push(object.about(&format!(
                    "{field}: whether its query was empty: it has no namespace: give metadata.namespace or --namespace"
                )));
                continue;
            }
            let metric = metric.prometheus_metric();
            match history(prometheus, queries, &metric, &object.namespace).await {
                Ok(None) => {}
                Ok(Some(gaps)) => {
                    let asked = asked(queries, &object.namespace);
                    found.warnings.push(object.about(&format!("{field}: {} {asked}", gaps.text())));
                }
                Err(error) => {
                    let text = format!("{field}: whether its query was empty: {error}");
                    found.not_checked.push(object.about(&text));
                    found.is_incomplete = true;
                }
            }
        }
    }
}

/// What a query was asked with, besides what the Autoscaler has.
fn asked(PodQueries { namespace_label, pod_label, .. }: &PodQueries, namespace: &str) -> String {
    format!(
        "(asked with {namespace_label}={namespace:?}, pods by the label {pod_label}; the server's configuration, given as CONFIG, may have other labels)"
    )
}

/// The minutes without series of a metric's query; none if there were none.
async fn history(
    prometheus: &Prometheus,
    queries: &PodQueries,
    metric: &PrometheusMetric,
    namespace: &str,
) -> Result<Option<Gaps>, String> {
    let metric_type = type_of_one(prometheus, queries, metric, namespace).await;
    let metric_type = metric_type.map_err(|error| error.to_string())?;
    let query = queries.query(metric, metric_type, namespace).map_err(|error| error.to_string())?;
    // Of one server and one time: -1 where it is empty.
    let counted = format!("(count({}) or vector(-1))", query.values);
    let points = points(prometheus, &format!("{counted}[1d:1m]")).await?;
    let Some(gaps) = Gaps::of(&points) else { return Ok(None) };
    if gaps.since.is_none() {
        // Its first series may be younger than the last minute.
        let now = points_now(prometheus, &query.values).await?;
        if now {
            return Ok(None);
        }
    }
    Ok(Some(gaps))
}

/// The minutes without series.
#[derive(Debug, PartialEq)]
struct Gaps {
    /// The first minute that had series; none if none had.
    since: Option<f64>,
    /// How many minutes there were since then.
    minutes: usize,
    /// How many of them had no series.
    empty: usize,
    /// The last of these.
    last: f64,
}

impl Gaps {
    /// The gaps between these points in time; none if there are none.
    fn of(points: &[(f64, bool)]) -> Option<Self> {
        let first = points.iter().position(|(_, has_series)| *has_series);
        let known = &points[first.unwrap_or(0)..];
        let empty = || known.iter().filter(|(_, has_series)| !has_series);
        Some(Self {
            since: first.map(|first| points[first].0),
            minutes: known.len(),
            empty: empty().count(),
            last: empty().next_back()?.0,
        })
    }

    fn text(&self) -> String {
        let time = |seconds: f64| Timestamp::from_second(seconds as i64).unwrap_or_default();
        match self.since {
            None => "its query had no series at any minute of the last day, and without series no replica is removed: look for typing errors in names and labels, and whether the pods are scraped".to_owned(),
            Some(since) => format!(
                "its query had no series in {} of {} minutes since {}, last at {}: no replica was removed then. Look whether the pods were scraped, whether its range holds fewer than two scrapes, and whether a filter drops zeros; if none means zero, set onEmpty: Zero",
                self.empty, self.minutes, time(since), time(self.last)
            ),
        }
    }
}

#[derive(Deserialize)]
struct Response {
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    result: Vec<Series>,
}

#[derive(Deserialize)]
struct Series {
    #[serde(default)]
    values: Vec<(f64, String)>,
}

/// At which times a query of one series had a value other than -1.
async fn points(prometheus: &Prometheus, query: &str) -> Result<Vec<(f64, bool)>, String> {
    let body = prometheus.query(query, &[]).await;
    let response: Response = body.and_then(Body::json).map_err(|error| error.to_string())?;
    let values = response.data.result.into_iter().flat_map(|series| series.values);
    let mut points: Vec<_> = values.map(|(time, value)| (time, value != "-1")).collect();
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    match points.is_empty() {
        true => Err("Prometheus has no points in time of it".to_owned()),
        false => Ok(points),
    }
}

/// Whether a query has series now.
async fn points_now(prometheus: &Prometheus, query: &str) -> Result<bool, String> {
    let body = prometheus.query(&format!("count({query})"), &[]).await;
    let response: Response = body.and_then(Body::json).map_err(|error| error.to_string())?;
    Ok(!response.data.result.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_count_from_the_first_series_on() {
        let points = |text: &str| -> Vec<(f64, bool)> {
            let minute = |(index, mark): (usize, char)| (60.0 * index as f64, mark == 'x');
            text.chars().enumerate().map(minute).collect()
        };
        assert_eq!(Gaps::of(&points("___xxxx")), None);
        let gaps = Gaps::of(&points("_xx__x_x")).expect("gaps");
        assert_eq!(gaps, Gaps { since: Some(60.0), minutes: 7, empty: 3, last: 360.0 });
        assert!(
            gaps.text().starts_with(
                "its query had no series in 3 of 7 minutes since 1970-01-01T00:01:00Z, last at 1970-01-01T00:06:00Z"
            ),
            "{}",
            gaps.text()
        );
        let never = Gaps::of(&points("___")).expect("a gap");
        assert!(never.since.is_none() && never.text().contains("at any minute"), "{never:?}");
    }
}
