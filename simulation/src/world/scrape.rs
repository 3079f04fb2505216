//! What Prometheus scrapes: the metrics that the load makes.

use crate::conditions::locked;
use crate::oracle::{Measured, Reading};
use crate::plan::{Millis, SCRAPE, WORKLOADS};
use crate::prometheus::{Labels, Prometheus};
use crate::workload::{
    CPU_TARGET, JOBS_PER_POD, MESSAGES_PER_POD, NAMESPACE, REQUESTS_PER_POD, Workload,
};
use plimsoll::k8s::Quantity;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The series of a workload at the last scrape, with their values, and what disturbs them.
#[derive(Debug, Default)]
pub struct Exporter {
    series: BTreeMap<(String, String), (Labels, f64)>,
    /// Until when the targets are not scraped.
    pub gap_until: Millis,
    /// Until when all values are NaN.
    pub nan_until: Millis,
    /// Whether the counters begin at zero again.
    pub reset: bool,
}

impl super::World {
    /// Scrapes all targets, and tells the oracles what Prometheus now says.
    pub(super) fn scrape(&mut self, at: Millis) {
        let wall = self.wall_ms(at);
        {
            let mut prometheus = locked(&self.prometheus);
            for (workload, exporter) in self.workloads.iter().zip(&mut self.exporters) {
                exporter.scrape(workload, &mut prometheus, at, wall);
            }
        }
        for number in 0..WORKLOADS {
            let reading = self.reading(number, wall);
            locked(&self.oracles).records[number].readings.set(at, Arc::new(reading));
        }
    }

    /// What the queries for a workload's metrics give until the next scrape.
    fn reading(&self, number: usize, wall: i64) -> Reading {
        let mut prometheus = locked(&self.prometheus);
        let mut at = |time: i64| -> Option<Vec<Measured>> {
            Some(match number {
                0 => vec![pods(&mut prometheus, REQUESTS, time)],
                1 => vec![pods(&mut prometheus, CPU, time)],
                2 => vec![value(&mut prometheus, QUEUE, time)],
                3 => vec![pods(&mut prometheus, JOBS, time)],
                _ => {
                    vec![pods(&mut prometheus, CPU, time), value(&mut prometheus, BACKLOG, time)]
                }
            })
        };
        let now = at(wall);
        match number {
            // Rates change between two scrapes, too.
            0 | 1 | 4 => [now, at(wall + SCRAPE - 1)],
            _ => [now.clone(), now],
        }
    }
}

const REQUESTS: &str =
    r#"sum by (namespace, pod) (rate(http_requests_total{namespace="shop"}[2m]))"#;
const JOBS: &str = r#"sum by (namespace, pod) (jobs_running{namespace="shop"})"#;
const CPU: &str =
    r#"sum by (pod, container) (rate(container_cpu_usage_seconds_total{namespace="shop"}[1m]))"#;
const QUEUE: &str = r#"max(queue_depth{namespace="shop"})"#;
const BACKLOG: &str = r#"max(mail_backlog{namespace="shop"})"#;

fn pods(prometheus: &mut Prometheus, query: &str, time: i64) -> Measured {
    let mut by_pod: BTreeMap<String, i64> = BTreeMap::new();
    for (labels, value) in prometheus.evaluate(query, time).expect("a query that it knows") {
        let Some(value) = Quantity::from_f64(value) else { continue };
        let pod = labels.get("pod").to_owned();
        *by_pod.entry(pod).or_default() += value.milli();
    }
    Measured::Pods(by_pod)
}

fn value(prometheus: &mut Prometheus, query: &str, time: i64) -> Measured {
    let result = prometheus.evaluate(query, time).expect("a query that it knows");
    let first = result.first().and_then(|(_, value)| Quantity::from_f64(*value));
    Measured::Value(first.map(Quantity::milli))
}

impl Exporter {
    fn scrape(&mut self, workload: &Workload, prometheus: &mut Prometheus, at: Millis, wall: i64) {
        if std::mem::take(&mut self.reset) {
            for (_, value) in self.series.values_mut() {
                *value = 0.0;
            }
        }
        let present = if at < self.gap_until { Vec::new() } else { exposed(workload) };
        let mut gone = std::mem::take(&mut self.series);
        let seconds = SCRAPE as f64 / 1000.0;
        for Exposed { name, labels, value, is_counter } in present {
            let key = (
                name.to_owned(),
                labels.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>().join("/"),
            );
            let (labels, before) = gone.remove(&key).unwrap_or_else(|| {
                let mut all = vec![("__name__".to_owned(), name.to_owned())];
                all.extend(labels);
                (Labels::new(all), 0.0)
            });
            let value = if is_counter { before + value * seconds } else { value };
            let shown = if at < self.nan_until { f64::NAN } else { value };
            prometheus.append(&labels, wall, shown);
            self.series.insert(key, (labels, value));
        }
        for (labels, _) in gone.into_values() {
            prometheus.stale(&labels, wall);
        }
    }
}

/// A series that a target exposes; of a counter, its growth per second.
struct Exposed {
    name: &'static str,
    labels: Vec<(String, String)>,
    value: f64,
    is_counter: bool,
}

/// The types of the metrics.
pub const TYPES: [(&str, &str); 5] = [
    ("http_requests_total", "counter"),
    ("jobs_running", "gauge"),
    ("container_cpu_usage_seconds_total", "counter"),
    ("queue_depth", "gauge"),
    ("mail_backlog", "gauge"),
];

fn exposed(workload: &Workload) -> Vec<Exposed> {
    let serving: Vec<&String> =
        workload.pods.iter().filter(|(_, pod)| pod.serves()).map(|(name, _)| name).collect();
    let each = workload.load / serving.len().max(1) as f64;
    let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let of_pod = |name, pod: &str, value, is_counter| Exposed {
        name,
        labels: vec![label("namespace", NAMESPACE), label("pod", pod)],
        value,
        is_counter,
    };
    let external = |name| Exposed {
        name,
        labels: vec![label("namespace", NAMESPACE)],
        value: (workload.load * MESSAGES_PER_POD).round(),
        is_counter: false,
    };
    let usage = |share: f64| {
        let containers = workload.containers();
        let cores = each * share * workload.cpu_request as f64 * CPU_TARGET as f64
            / 100_000.0
            / containers.len().max(1) as f64;
        serving.iter().flat_map(move |pod| {
            containers.iter().map(move |container| Exposed {
                name: "container_cpu_usage_seconds_total",
                labels: vec![
                    ("namespace".to_owned(), NAMESPACE.to_owned()),
                    ("pod".to_owned(), (*pod).clone()),
                    ("container".to_owned(), (*container).to_owned()),
                ],
                value: cores,
                is_counter: true,
            })
        })
    };
    match workload.number {
        0 => serving
            .iter()
            .map(|pod| of_pod("http_requests_total", pod, each * REQUESTS_PER_POD, true))
            .collect(),
        1 => usage(1.0).collect(),
        2 => vec![external("queue_depth")],
        3 => {
            let jobs = |pod: &&String| of_pod("jobs_running", pod, each * JOBS_PER_POD, false);
            serving.iter().map(jobs).collect()
        }
        _ => usage(0.7).chain([external("mail_backlog")]).collect(),
    }
}
