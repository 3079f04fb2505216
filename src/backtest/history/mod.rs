//! What Prometheus recorded of an autoscaler's workload.

mod queries;
mod range;
#[cfg(test)]
mod tests;

pub use range::Grid;

use super::load::Load;
use super::recorded::{Recorded, Replicas};
use super::{Candidate, Measure, Of};
use crate::prometheus::Client;
use crate::promql::query::PodQueries;
use crate::samples::type_of_one;
use crate::time::UnixMillis;
use queries::{OWN, Total};
use range::{range, raw};
use std::collections::BTreeMap;
use std::time::Duration;

/// No pod takes a day to become ready, in seconds: what says so is not a start.
const LONGEST_START: f64 = 86_400.0;

/// Reads the history of workloads.
#[derive(Debug)]
pub struct History<'a> {
    /// The Prometheus that has it.
    pub prometheus: &'a Client,
    /// The labels and templates of custom metrics.
    pub queries: &'a PodQueries,
    /// By the name of a metric, the query for its total, in place of Plimsoll's own.
    pub totals: &'a BTreeMap<String, String>,
    /// By resource, its request, in place of kube-state-metrics'.
    pub requests: &'a BTreeMap<String, f64>,
}

/// Why there is no recorded load.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// Prometheus has no value of a metric in this time.
    #[error(
        "the metric {metric}: Prometheus has no value of it in this time; it was asked for\n  {query}"
    )]
    Empty {
        /// The name of the metric.
        metric: String,
        /// The query for it.
        query: String,
    },
    /// Something can't be asked for or read.
    #[error("{0}")]
    Failed(String),
}

impl From<String> for HistoryError {
    fn from(error: String) -> Self {
        Self::Failed(error)
    }
}

/// The replicas that there were, and where that is from.
#[derive(Clone, Debug, Default)]
pub struct WasThere {
    /// The replicas that the workload should have, or the pods that were counted.
    pub replicas: Replicas,
    /// The pods were counted: it is the number of those that had a sample.
    pub is_counted: bool,
    /// Those that were ready.
    pub ready: Replicas,
    /// Where the replicas are from.
    pub source: String,
}

/// How long pods took until they were ready.
#[derive(Clone, Debug, PartialEq)]
pub struct PodStart {
    /// The median, and what nine of ten took at most.
    pub p50: Duration,
    /// That.
    pub p90: Duration,
    /// Where that is from.
    pub source: &'static str,
}

impl History<'_> {
    /// The load of each metric of a candidate while all are known, and the requests that its utilizations go by, which are set.
    ///
    /// # Errors
    /// If a query fails, or nothing was recorded: these are told apart.
    pub async fn recorded(
        &self,
        candidate: &mut Candidate,
        grid: Grid,
    ) -> Result<Recorded, HistoryError> {
        self.read_requests(candidate, grid).await?;
        let mut loads = Vec::new();
        for metric in &candidate.metrics {
            let total = self.total(candidate, metric).await?;
            let points = self.points(&total.sum, total.is_marked, grid).await?;
            let load = load(points, grid.step);
            if load.points().next().is_none() {
                return Err(HistoryError::Empty { metric: metric.name.clone(), query: total.sum });
            }
            loads.push(load);
        }
        Ok(Recorded { loads, step: grid.step, ..Recorded::default() }.in_common())
    }

    /// The replicas that there were: by kube-state-metrics, or the pods that had a sample.
    ///
    /// # Errors
    /// If a query fails.
    pub async fn was_there(&self, candidate: &Candidate, grid: Grid) -> Result<WasThere, String> {
        if let Some([wanted, ready]) =
            queries::replicas(&candidate.namespace, &candidate.spec.target)
        {
            let replicas = self.samples(&wanted, grid).await?;
            if !replicas.is_empty() {
                let ready = self.samples(&ready, grid).await?;
                let source = "kube-state-metrics".to_owned();
                return Ok(WasThere { replicas, is_counted: false, ready, source });
            }
        }
        for metric in &candidate.metrics {
            let total = self.total(candidate, metric).await?;
            let Some(count) = &total.count else { continue };
            let points = self.points(count, total.is_marked, grid).await?;
            let counted = points.into_iter().map(|(time, count)| (time, number_of_replicas(count)));
            let replicas = Replicas::new(counted.collect());
            if !replicas.is_empty() {
                let source = format!("pods counted by their samples of {}", metric.name);
                let ready = replicas.clone();
                return Ok(WasThere { replicas, is_counted: true, ready, source });
            }
        }
        Ok(WasThere::default())
    }

    /// How long pods took until they were ready, by kube-state-metrics or by the ready replicas after scale-ups.
    ///
    /// # Errors
    /// If a query fails.
    pub async fn pod_start(
        &self,
        candidate: &Candidate,
        was_there: &WasThere,
        grid: Grid,
    ) -> Result<Option<PodStart>, String> {
        let mut shares = Vec::new();
        for share in [0.5, 0.9] {
            let query = queries::pod_start(candidate, share, grid);
            let at = Grid { first: grid.last, ..grid };
            let points = self.points(&query, false, at).await?;
            let seconds = points.last().map(|(_, seconds)| *seconds);
            shares.extend(seconds.filter(|seconds| (0.0..LONGEST_START).contains(seconds)));
        }
        if let [p50, p90] = *shares {
            let [p50, p90] = [p50, p90].map(|seconds| Duration::from_secs_f64(seconds.max(0.0)));
            return Ok(Some(PodStart { p50, p90, source: "kube_pod_status_ready_time" }));
        }
        let mut starts = match was_there.is_counted {
            true => Vec::new(),
            false => was_there.replicas.starts(&was_there.ready),
        };
        starts.sort_unstable();
        let share = |share: usize| {
            let millis =
                starts.get((starts.len() * share / 10).min(starts.len().saturating_sub(1)));
            millis.map(|millis| Duration::from_millis(millis.unsigned_abs()))
        };
        Ok(share(5).zip(share(9)).map(|(p50, p90)| PodStart {
            p50,
            p90,
            source: "the ready replicas after scale-ups",
        }))
    }

    async fn samples(&self, selector: &str, grid: Grid) -> Result<Replicas, String> {
        let samples = raw(self.prometheus, selector, grid.first, grid.last).await;
        let samples = samples.map_err(|error| format!("{error}\n  {selector}"))?;
        let samples = samples.into_iter().filter(|(_, value)| value.is_finite());
        Ok(Replicas::new(samples.map(|(time, value)| (time, number_of_replicas(value))).collect()))
    }

    async fn read_requests(&self, candidate: &mut Candidate, grid: Grid) -> Result<(), String> {
        let needed = candidate.metrics.iter().filter_map(|metric| match &metric.of {
            Of::Resource { resource, container } if metric.is_utilization => {
                Some((resource.clone(), container.clone()))
            }
            _ => None,
        });
        for (resource, container) in needed.collect::<Vec<_>>() {
            let request = match self.requests.get(&resource) {
                Some(request) => *request,
                None => {
                    let query = queries::request(candidate, &resource, container.as_deref());
                    let at = Grid { first: grid.last, ..grid };
                    let points = self.points(&query, false, at).await?;
                    points.last().map(|(_, request)| *request).filter(|request| *request > 0.0).ok_or_else(|| {
                        format!("the {resource} that pods request: kube-state-metrics says nothing of it; give it with --request {resource}=QUANTITY")
                    })?
                }
            };
            candidate.set_request(&resource, container.as_deref(), request);
        }
        Ok(())
    }

    async fn total(&self, candidate: &Candidate, metric: &Measure) -> Result<Total, String> {
        let given = candidate.given(metric, self.totals);
        if let Some(query) = given.map_err(|error| format!("--query {error}"))? {
            return Ok(Total { sum: query.clone(), count: None, is_marked: false });
        }
        let about = |error: String| format!("the metric {}: {error}", metric.name);
        if matches!(metric.of, Of::Resource { .. }) {
            return queries::resource(candidate, metric).map_err(about);
        }
        let Some(own) = &metric.query else {
            return Err(about(format!(
                "it is made by a rule of an adapter: give the query for its total with --query {}=PROMQL",
                metric.name
            )));
        };
        let metric_type =
            type_of_one(self.prometheus, self.queries, own, &candidate.namespace).await;
        let metric_type = metric_type.map_err(|error| about(error.to_string()))?;
        queries::custom(self.queries, own, metric_type, candidate, &metric.of).map_err(about)
    }

    /// The finite points of the only series of a query, or of that which is marked.
    async fn points(
        &self,
        query: &str,
        is_marked: bool,
        grid: Grid,
    ) -> Result<Vec<(UnixMillis, f64)>, String> {
        let series = range(self.prometheus, query, grid).await;
        let series = series.map_err(|error| format!("{error}\n  {query}"))?;
        let mut own =
            series.into_iter().filter(|series| !is_marked || series.labels.contains_key(OWN));
        let Some(mut first) = own.next() else { return Ok(Vec::new()) };
        if let Some(other) = own.next() {
            return Err(format!(
                "one series was expected, not that with the labels {:?} and that with {:?}: sum them\n  {query}",
                first.labels, other.labels
            ));
        }
        first.points.retain(|(_, value)| value.is_finite());
        Ok(first.points)
    }
}

/// A number of replicas: what can be none is the nearest that can.
fn number_of_replicas(value: f64) -> i64 {
    (value as i64).clamp(0, i32::MAX.into())
}

/// The load through points of a grid. Where points are missing it is unknown. A total below zero is none.
fn load(points: Vec<(UnixMillis, f64)>, step: i64) -> Load {
    let mut last: Option<UnixMillis> = None;
    Load::of(points.into_iter().map(|(time, value)| {
        let after_gap = last.replace(time).is_some_and(|last| time - last > step);
        (time, value.max(0.0), after_gap)
    }))
}
