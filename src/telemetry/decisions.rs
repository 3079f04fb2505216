//! Metrics of the decision ledger and the decision log, which are collected when they are scraped.

use super::registrar::MetricDescription;
use crate::ledger::{DecisionLog, Ledger};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt::{Debug, Error, Formatter};
use std::sync::{Arc, OnceLock};

/// Collects the metrics of decisions, once they are set.
#[derive(Clone, Default)]
pub struct DecisionCollector(pub Arc<OnceLock<(Ledger, Option<DecisionLog>)>>);

impl Debug for DecisionCollector {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("DecisionCollector")
    }
}

const DECISIONS: [(&str, &str, &str); 8] = [
    ("plimsoll_decision_ledger_bytes", "gauge", "Memory used by decisions, in bytes"),
    ("plimsoll_decision_ledger_entries", "gauge", "Number of decisions in memory"),
    (
        "plimsoll_decision_ledger_dropped",
        "counter",
        "Total number of decisions dropped to make room",
    ),
    (
        "plimsoll_decision_ledger_since_timestamp_seconds",
        "gauge",
        "Time of the first decision that this replica has, in Unix seconds",
    ),
    (
        "plimsoll_decision_ledger_behind_seconds",
        "gauge",
        "Duration for which this replica has lacked decisions of the leader, in seconds; -1 if it never had all",
    ),
    ("plimsoll_decision_log_lines", "counter", "Total number of lines written to the decision log"),
    (
        "plimsoll_decision_log_dropped",
        "counter",
        "Total number of decisions that are not in the decision log, as it was not written in time",
    ),
    (
        "plimsoll_decision_log_removed_bytes",
        "counter",
        "Total number of bytes of the decision log that were removed before their time, as the disk was full",
    ),
];

/// The descriptions of these metrics.
pub fn descriptions() -> impl Iterator<Item = MetricDescription> {
    DECISIONS.iter().map(|(name, kind, help)| MetricDescription {
        name: format!("{name}{}", if *kind == "counter" { "_total" } else { "" }),
        kind,
        labels: &[],
        help,
    })
}

impl Collector for DecisionCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let Some((ledger, log)) = self.0.get() else { return Ok(()) };
        let size = ledger.size();
        let (lines, unwritten) = log.as_ref().map_or((0, 0), DecisionLog::counts);
        let values = [size.bytes as f64, size.entries as f64, size.dropped as f64];
        let behind = size.behind.map_or(-1.0, |behind| behind.as_secs_f64());
        let values = values.into_iter().chain([size.since as f64 / 1000.0, behind]);
        let removed = log.as_ref().map_or(0, DecisionLog::removed_bytes);
        let values = values.chain([lines as f64, unwritten as f64, removed as f64]);
        for ((name, kind, help), value) in DECISIONS.iter().zip(values) {
            if *kind == "counter" {
                let metric = ConstCounter::new(value);
                metric.encode(encoder.encode_descriptor(
                    name,
                    help,
                    None,
                    metric.metric_type(),
                )?)?;
            } else {
                let metric = ConstGauge::new(value);
                metric.encode(encoder.encode_descriptor(
                    name,
                    help,
                    None,
                    metric.metric_type(),
                )?)?;
            }
        }
        Ok(())
    }
}
