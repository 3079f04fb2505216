//! Registers metrics together with their descriptions in the reference.

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry, Unit};

/// The description of a metric in the reference.
#[derive(Clone, Debug)]
pub struct MetricDescription {
    /// The name, as it is scraped.
    pub name: String,
    /// The type: counter, gauge, histogram or info.
    pub kind: &'static str,
    /// The label names.
    pub labels: &'static [&'static str],
    /// The help text.
    pub help: &'static str,
}

/// Registers metrics, and collects their descriptions.
pub struct Registrar<'a> {
    /// The registry.
    pub registry: &'a mut Registry,
    /// The descriptions of the registered metrics.
    pub descriptions: Vec<MetricDescription>,
}

impl Registrar<'_> {
    /// Registers a metric of a name, unit, type and label names.
    pub fn add<M: Metric + Clone>(
        &mut self,
        (name, unit, kind, labels): (&str, Option<Unit>, &'static str, &'static [&'static str]),
        help: &'static str,
        metric: M,
    ) -> M {
        let of_unit = unit.as_ref().map(|unit| format!("_{}", unit.as_str())).unwrap_or_default();
        let of_kind = match kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        self.descriptions.push(MetricDescription {
            name: format!("plimsoll_{name}{of_unit}{of_kind}"),
            kind,
            labels,
            help,
        });
        match unit {
            Some(unit) => self.registry.register_with_unit(name, help, unit, metric.clone()),
            None => self.registry.register(name, help, metric.clone()),
        }
        metric
    }
}

/// A histogram of durations in seconds, from a millisecond to a minute.
pub fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 17))
}

/// Histograms by label set.
pub type HistogramFamily<L> = Family<L, Histogram, fn() -> Histogram>;

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::gauge::Gauge;

    #[test]
    fn a_metric_is_described_by_the_name_that_is_scraped() {
        let mut registry = Registry::with_prefix("plimsoll");
        let mut all = Registrar { registry: &mut registry, descriptions: Vec::new() };
        let seconds = || Some(Unit::Seconds);
        all.add(("spent", seconds(), "counter", &[]), "Time", Counter::<u64>::default());
        all.add(("spends", None, "counter", &[]), "Times", Counter::<u64>::default());
        all.add(("age", seconds(), "gauge", &[]), "Age", Gauge::<i64>::default());
        all.add(("ages", None, "gauge", &[]), "Ages", Gauge::<i64>::default());
        let descriptions = all.descriptions;
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for described in descriptions {
            assert!(text.contains(&format!("\n{} 0\n", described.name)), "{described:?}{text}");
        }
    }
}
