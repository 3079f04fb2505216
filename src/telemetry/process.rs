//! Metrics that are collected when they are scraped: those of the process, and of the watches.

use super::registrar::MetricDescription;
use crate::watch::{WatchHealth, WatchStatuses};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt::Error;
use std::sync::{Arc, OnceLock};

/// Collects the metrics of the process, under the names of all Prometheus client libraries.
#[derive(Debug)]
pub struct ProcessCollector;

const PROCESS: [(&str, &str, &str); 8] = [
    ("process_cpu_seconds", "counter", "Total user and system CPU time spent in seconds"),
    ("process_resident_memory_bytes", "gauge", "Resident memory size in bytes"),
    ("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes"),
    (
        "process_start_time_seconds",
        "gauge",
        "Start time of the process since unix epoch in seconds",
    ),
    ("process_open_fds", "gauge", "Number of open file descriptors"),
    ("process_max_fds", "gauge", "Maximum number of open file descriptors"),
    (
        "plimsoll_memory_limit_bytes",
        "gauge",
        "Memory limit of the container in bytes; absent if it has none",
    ),
    ("plimsoll_tasks", "gauge", "Number of tasks of the asynchronous runtime"),
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

/// The values of these metrics; none for what `/proc` does not have.
#[cfg(target_os = "linux")]
fn values() -> [Option<f64>; PROCESS.len()] {
    use procfs::process::{LimitValue, Process};

    /// In seconds since 1970. The time of the boot, which it is computed from, moves when the
    /// clock is set.
    static STARTED: OnceLock<f64> = OnceLock::new();
    let process = Process::myself().ok();
    let stat = process.as_ref().and_then(|process| process.stat().ok());
    let seconds = |ticks: u64| ticks as f64 / procfs::ticks_per_second() as f64;
    let limit = process.as_ref().and_then(|process| {
        match process.limits().ok()?.max_open_files.soft_limit {
            LimitValue::Value(files) => Some(files as f64),
            LimitValue::Unlimited => None,
        }
    });
    // `/proc/self/stat` has it, too, but is inaccurate (proc(5)).
    let resident = process.as_ref().and_then(|process| process.status().ok()?.vmrss);
    let started =
        || Some(procfs::boot_time_secs().ok()? as f64 + seconds(stat.as_ref()?.starttime));
    [
        stat.as_ref().map(|stat| seconds(stat.utime + stat.stime)),
        resident.map(|kilobytes| kilobytes as f64 * 1024.0),
        stat.as_ref().map(|stat| stat.vsize as f64),
        STARTED.get().copied().or_else(|| started().map(|start| *STARTED.get_or_init(|| start))),
        process.as_ref().and_then(|process| Some(process.fd_count().ok()? as f64)),
        limit,
        memory_limit(),
        tasks(),
    ]
}

/// The limit of the root of the cgroup namespace (cgroup v2), which is the container's own.
#[cfg(target_os = "linux")]
fn memory_limit() -> Option<f64> {
    std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok()?.trim().parse().ok()
}

/// The values of these metrics; this system has no `/proc`.
#[cfg(not(target_os = "linux"))]
fn values() -> [Option<f64>; PROCESS.len()] {
    [None, None, None, None, None, None, None, tasks()]
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        for ((name, kind, help), value) in PROCESS.iter().zip(values()) {
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
pub struct WatchCollector(pub Arc<OnceLock<WatchStatuses>>);

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
        let values: [WatchValue; WATCHES.len()] = [
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

fn tasks() -> Option<f64> {
    let runtime = tokio::runtime::Handle::try_current().ok()?;
    Some(runtime.metrics().num_alive_tasks() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;
    use tokio::time::Instant;

    #[test]
    #[cfg(target_os = "linux")]
    fn the_process_is_measured() {
        let measured = || values().map(|value| value.unwrap_or(-1.0));
        let ([cpu, resident, space, start, open, most, ..], begun) = (measured(), Instant::now());
        // A tick is a hundredth of a second.
        while measured()[0] < cpu + 0.1 {
            assert!(begun.elapsed().as_secs() < 60, "{cpu} s of CPU time do not grow");
        }
        // All of the machine's cores, whatever quota there is.
        let cores = std::fs::read_to_string("/proc/cpuinfo").unwrap().matches("processor").count();
        let (used, bound) = (measured()[0] - cpu, begun.elapsed().as_secs_f64() * cores as f64);
        assert!(used <= bound + 0.1, "{used} s of CPU time in {bound}");
        assert!(resident > 1e6 && resident < space, "{resident} of {space}");
        let now = crate::clock::WallClock::default().timestamp().as_second() as f64;
        assert!(start <= now + 1.0 && start > now - 3600.0, "{start} before {now}");
        assert!(open > 2.0 && open <= most, "{open} of {most}");
    }
    #[tokio::test]
    #[cfg(target_os = "linux")]
    async fn each_metric_that_is_described_is_scraped() {
        let watches = WatchCollector::default();
        let _ = watches.0.set(WatchStatuses::default());
        let mut registry = Registry::default();
        registry.register_collector(Box::new(ProcessCollector));
        registry.register_collector(Box::new(watches));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for MetricDescription { name, kind, .. } in descriptions() {
            if name == "plimsoll_memory_limit_bytes" && memory_limit().is_none() {
                continue;
            }
            let family = name.strip_suffix("_total").unwrap_or(&name);
            assert!(text.contains(&format!("# TYPE {family} {kind}\n")), "{name}\n{text}");
        }
    }
}
