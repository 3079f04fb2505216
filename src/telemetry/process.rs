//! Metrics that are collected when they are scraped: those of the process, and of the watches.

use super::registrar::MetricDescription;
use crate::watch::{Synced, WatchHealth};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt::Error;
use std::sync::{Arc, OnceLock};

/// Collects the metrics of the process, under the names of all Prometheus client libraries.
#[derive(Debug)]
pub struct ProcessCollector;

const PROCESS: [(&str, &str, &str); 4] = [
    ("process_cpu_seconds", "counter", "CPU time that the process has used"),
    ("process_resident_memory_bytes", "gauge", "Memory that the process has"),
    ("process_open_fds", "gauge", "Files and connections that the process has open"),
    ("plimsoll_tasks", "gauge", "Tasks of the asynchronous runtime that live"),
];

/// The descriptions of these metrics.
pub fn descriptions() -> impl Iterator<Item = MetricDescription> {
    let describe = |labels| {
        move |(name, kind, help): &(&'static str, &'static str, &'static str)| MetricDescription {
            name: format!("{name}{}", if *kind == "counter" { "_total" } else { "" }),
            kind,
            labels,
            help,
        }
    };
    PROCESS.iter().map(describe(&[])).chain(WATCHES.iter().map(describe(&["kind"])))
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let values = [cpu_seconds(), resident_bytes(), open_files(), tasks()];
        for ((name, kind, help), value) in PROCESS.iter().zip(values) {
            let Some(value) = value else { continue };
            if *kind == "counter" {
                let metric = ConstCounter::new(value);
                let encoder = encoder.encode_descriptor(name, help, None, metric.metric_type())?;
                metric.encode(encoder)?;
            } else {
                let metric = ConstGauge::new(value);
                let encoder = encoder.encode_descriptor(name, help, None, metric.metric_type())?;
                metric.encode(encoder)?;
            }
        }
        Ok(())
    }
}

/// Collects the health of the watches, once they are set.
#[derive(Clone, Debug, Default)]
pub struct WatchCollector(pub Arc<OnceLock<Synced>>);

const WATCHES: [(&str, &str, &str); 5] = [
    (
        "plimsoll_watch_up",
        "gauge",
        "1 if the watch of a kind listed all there is and does not fail, else 0",
    ),
    (
        "plimsoll_watch_last_event_age_seconds",
        "gauge",
        "Time since the last event of the watch of a kind, in seconds",
    ),
    ("plimsoll_watch_objects", "gauge", "Number of objects in the last list of a kind"),
    ("plimsoll_watch_lists", "counter", "Total number of complete lists of a kind"),
    ("plimsoll_watch_failures", "counter", "Total number of failed lists and watches of a kind"),
];

/// The value of a metric for a watch.
type WatchValue = fn(&WatchHealth) -> Option<f64>;

impl Collector for WatchCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let Some(synced) = self.0.get() else { return Ok(()) };
        let watches = synced.watches();
        let values: [WatchValue; 5] = [
            |watch| Some(f64::from(u8::from(watch.synced && watch.failing.is_none()))),
            |watch| Some(watch.age?.as_secs_f64()),
            |watch| Some(watch.objects as f64),
            |watch| Some(watch.lists as f64),
            |watch| Some(watch.failures as f64),
        ];
        for ((name, kind, help), value) in WATCHES.iter().zip(values) {
            let (counter, gauge) = (ConstCounter::new(0.0), ConstGauge::new(0.0));
            let is_counter = *kind == "counter";
            let of = if is_counter { counter.metric_type() } else { gauge.metric_type() };
            let mut family = encoder.encode_descriptor(name, help, None, of)?;
            for watch in &watches {
                let Some(value) = value(watch) else { continue };
                let labels = [("kind", watch.kind.as_str())];
                let encoder = family.encode_family(&labels)?;
                match is_counter {
                    true => ConstCounter::new(value).encode(encoder)?,
                    false => ConstGauge::new(value).encode(encoder)?,
                }
            }
        }
        Ok(())
    }
}

/// Clock ticks per second in `/proc`: 100 on x86-64 and arm64.
const USER_HZ: f64 = 100.0;

fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The command name, in parentheses, may contain spaces.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks = fields.split_whitespace().skip(11).take(2);
    Some(ticks.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / USER_HZ)
}

/// The resident memory. `/proc/self/statm` would have it in pages, whose size differs.
fn resident_bytes() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024.0)
}

fn open_files() -> Option<f64> {
    Some(std::fs::read_dir("/proc/self/fd").ok()?.count() as f64)
}

fn tasks() -> Option<f64> {
    let runtime = tokio::runtime::Handle::try_current().ok()?;
    Some(runtime.metrics().num_alive_tasks() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_the_process_is_measured_in_bytes() {
        let bytes = resident_bytes().expect("/proc has it");
        assert!(bytes > 1e6 && bytes < 1e11, "{bytes}");
    }
}
