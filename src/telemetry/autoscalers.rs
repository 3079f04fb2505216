//! Metrics by Autoscaler, with the names and labels that kube-state-metrics has for HorizontalPodAutoscalers. They are
//! collected when they are scraped, from the specs and the current statuses.

use super::registrar::MetricDescription;
use crate::crd::StatusNumbers;
use crate::hpa::{Metric, MetricSource, ResourceTarget, ScalarTarget, Spec};
use crate::live::LiveStatus;
use crate::watch::{AutoscalerRecord, AutoscalerRef, Cluster, ObjectKey};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use std::fmt::{Debug, Error, Formatter};
use std::sync::{Arc, OnceLock};

/// Collects the metrics of Autoscalers, once they are set.
#[derive(Clone, Default)]
pub struct AutoscalerCollector(pub Arc<OnceLock<AutoscalerSource>>);

/// What the metrics are collected from.
pub struct AutoscalerSource {
    pub cluster: Cluster,
    pub live: LiveStatus,
    /// The number of Autoscalers that have metrics.
    pub limit: usize,
    /// 1 if this replica is the leader: only one replica has these metrics.
    pub leader: Gauge,
}

impl Debug for AutoscalerCollector {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("AutoscalerCollector")
    }
}

/// An Autoscaler as the metrics show it.
struct Shown {
    autoscaler: AutoscalerRef,
    record: Arc<AutoscalerRecord>,
    status: Option<Arc<StatusNumbers>>,
}

impl Shown {
    /// Its spec, if that can be read.
    fn spec(&self) -> Option<&Spec> {
        self.record.parsed.as_ref().ok().map(|parsed| &parsed.scaling.spec)
    }
}

/// Label names and values.
type Labels<'a> = &'a [(&'static str, &'a str)];

/// Adds a series with these labels and this value.
type Add<'a> = &'a mut dyn FnMut(Labels<'_>, f64);

/// A metric: its name, the labels beside those of the Autoscaler, its help, and its series for an Autoscaler.
struct Family {
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
    series: fn(&Shown, Add<'_>),
}

/// The labels of the Autoscaler, and others.
macro_rules! labels {
    ($($label:literal),*) => { &["namespace", "autoscaler" $(, $label)*] };
}

const FAMILIES: [Family; 11] = [
    Family {
        name: "plimsoll_autoscaler_info",
        labels: labels!("scaletargetref_api_version", "scaletargetref_kind", "scaletargetref_name"),
        help: "Information about an Autoscaler: its target",
        series: |shown, add| {
            let Some(Spec { target, .. }) = shown.spec() else { return };
            let labels = [
                ("scaletargetref_api_version", &*target.api_version),
                ("scaletargetref_kind", &*target.kind),
                ("scaletargetref_name", &*target.name),
            ];
            add(&labels, 1.0);
        },
    },
    Family {
        name: "plimsoll_autoscaler_spec_min_replicas",
        labels: labels!(),
        help: "Minimum number of replicas in the spec of an Autoscaler",
        series: |shown, add| number(shown.spec().map(|spec| spec.min_replicas), add),
    },
    Family {
        name: "plimsoll_autoscaler_spec_max_replicas",
        labels: labels!(),
        help: "Maximum number of replicas in the spec of an Autoscaler",
        series: |shown, add| number(shown.spec().map(|spec| spec.max_replicas), add),
    },
    Family {
        name: "plimsoll_autoscaler_spec_target_metric",
        labels: labels!("metric_index", "metric_name", "metric_target_type"),
        help: "Target of a metric of an Autoscaler, a value, average or utilization in percent; metric_index is its index in spec.metrics, where customMetrics and resourceMetrics follow",
        series: |shown, add| targets(shown, add, |_, target| Some(target)),
    },
    Family {
        name: "plimsoll_autoscaler_status_target_metric",
        labels: labels!("metric_index", "metric_name", "metric_target_type"),
        help: "Current value of a metric of an Autoscaler, with the labels of plimsoll_autoscaler_spec_target_metric",
        series: |shown, add| {
            targets(shown, add, |(index, kind), _| {
                let current = shown.status.as_ref()?.values.get(index)?;
                match kind {
                    "utilization" => current.utilization.map(f64::from),
                    _ => current.value,
                }
            });
        },
    },
    Family {
        name: "plimsoll_autoscaler_status_current_replicas",
        labels: labels!(),
        help: "Number of replicas of the target at the last evaluation of an Autoscaler",
        series: |shown, add| {
            number(shown.status.as_ref().and_then(|now| now.current_replicas), add)
        },
    },
    Family {
        name: "plimsoll_autoscaler_status_desired_replicas",
        labels: labels!(),
        help: "Number of replicas that the last evaluation of an Autoscaler desired",
        series: |shown, add| {
            number(shown.status.as_ref().and_then(|now| now.desired_replicas), add)
        },
    },
    Family {
        name: "plimsoll_autoscaler_status_schedule_min_replicas",
        labels: labels!(),
        help: "Minimum number of replicas at present, of an Autoscaler with schedules",
        series: |shown, add| {
            let schedule = shown.status.as_ref().and_then(|now| now.schedule);
            number(schedule.map(|(min, _)| min), add);
        },
    },
    Family {
        name: "plimsoll_autoscaler_status_schedule_max_replicas",
        labels: labels!(),
        help: "Maximum number of replicas at present, of an Autoscaler with schedules",
        series: |shown, add| {
            let schedule = shown.status.as_ref().and_then(|now| now.schedule);
            number(schedule.map(|(_, max)| max), add);
        },
    },
    Family {
        name: "plimsoll_autoscaler_status_last_scale_timestamp_seconds",
        labels: labels!(),
        help: "Time of the last change of the replicas by an Autoscaler, in Unix seconds",
        series: |shown, add| {
            let Some(last) = shown.status.as_ref().and_then(|now| now.last_scale) else { return };
            add(&[], last as f64);
        },
    },
    Family {
        name: "plimsoll_autoscaler_status_condition",
        labels: labels!("condition"),
        help: "1 if the condition of an Autoscaler is True, else 0",
        series: |shown, add| {
            for (kind, is_true) in shown.status.iter().flat_map(|now| &now.conditions) {
                add(&[("condition", kind.as_str())], f64::from(u8::from(*is_true)));
            }
        },
    },
];

const LEFT_OUT: &str = "plimsoll_autoscaler_metrics_left_out";
const LEFT_OUT_HELP: &str =
    "Number of Autoscalers without metrics of their own because of --autoscaler-metrics-limit";

/// The descriptions of these metrics.
pub fn descriptions() -> impl Iterator<Item = MetricDescription> {
    let describe = |name: &str, labels, help| MetricDescription {
        name: name.to_owned(),
        kind: "gauge",
        labels,
        help,
    };
    let left_out = std::iter::once(describe(LEFT_OUT, &[], LEFT_OUT_HELP));
    FAMILIES.iter().map(move |all| describe(all.name, all.labels, all.help)).chain(left_out)
}

fn number(value: Option<i32>, add: Add<'_>) {
    if let Some(value) = value {
        add(&[], value.into());
    }
}

/// Adds a value of each metric that has a target, made from its index, the type of its target, and that.
fn targets(shown: &Shown, add: Add<'_>, value: impl Fn((usize, &str), f64) -> Option<f64>) {
    let metrics = shown.spec().into_iter().flat_map(|spec| spec.metrics.iter()).enumerate();
    for (index, metric) in metrics {
        let Some((name, kind, target)) = target(metric) else { continue };
        let Some(value) = value((index, kind), target) else { continue };
        let index = index.to_string();
        let labels =
            [("metric_index", &*index), ("metric_name", name), ("metric_target_type", kind)];
        add(&labels, value);
    }
}

/// The name of a metric, the type of its target, and that.
fn target(metric: &Metric) -> Option<(&str, &'static str, f64)> {
    let number = |milli: i64| milli as f64 / 1000.0;
    Some(match &metric.source {
        MetricSource::Pods { metric, average_milli } => {
            (&metric.name, "average", number(*average_milli))
        }
        MetricSource::Resource { name, target }
        | MetricSource::ContainerResource { name, target, .. } => match *target {
            ResourceTarget::Average(milli) => (name, "average", number(milli)),
            ResourceTarget::Utilization(percent) => (name, "utilization", percent.into()),
            ResourceTarget::Invalid => return None,
        },
        MetricSource::Object { metric, target, .. } | MetricSource::External { metric, target } => {
            match *target {
                ScalarTarget::Value(milli) => (&metric.name, "value", number(milli)),
                ScalarTarget::Average(milli) => (&metric.name, "average", number(milli)),
                ScalarTarget::Invalid => return None,
            }
        }
        MetricSource::Unknown(_) => return None,
    })
}

impl AutoscalerSource {
    /// The Autoscalers that have metrics, and the number of the others.
    fn shown(&self) -> (Vec<Shown>, usize) {
        let (mut shown, all) = self.cluster.read(|index| {
            let all = index.autoscalers();
            let count = all.len();
            let show = |(key, record): (&Arc<ObjectKey>, &Arc<AutoscalerRecord>)| {
                let (autoscaler, record) = (AutoscalerRef::autoscaler(key.clone()), record.clone());
                Shown { autoscaler, record, status: None }
            };
            (all.take(self.limit).map(show).collect::<Vec<_>>(), count)
        });
        for one in &mut shown {
            one.status = self.live.numbers(&one.autoscaler);
        }
        let left_out = all - shown.len();
        (shown, left_out)
    }
}

impl Collector for AutoscalerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let Some(source) = self.0.get().filter(|source| source.leader.get() == 1) else {
            return Ok(());
        };
        let (shown, left_out) = source.shown();
        for Family { name, help, series, .. } in &FAMILIES {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            let mut result = Ok(());
            for one in &shown {
                series(one, &mut |more, value| {
                    let ObjectKey { namespace, name } = &*one.autoscaler.key;
                    let labels = ([("namespace", &**namespace), ("autoscaler", name)], more);
                    let encoded = family.encode_family(&labels);
                    let encoded =
                        encoded.and_then(|encoder| ConstGauge::new(value).encode(encoder));
                    result = result.and(encoded);
                });
            }
            result?;
        }
        let left_out = ConstGauge::new(left_out as f64);
        let encoder =
            encoder.encode_descriptor(LEFT_OUT, LEFT_OUT_HELP, None, MetricType::Gauge)?;
        left_out.encode(encoder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crd::AutoscalerStatus;
    use crate::hpa::ConditionKind::{AbleToScale, ScalingActive};
    use crate::hpa::{Reason, Status};
    use crate::telemetry::Metrics;
    use crate::watch::read_autoscaler;
    use serde_json::json;
    use tokio::time::Instant;

    /// What a replica that leads or not shows of three Autoscalers.
    fn scraped(limit: usize, leads: bool) -> String {
        let (cluster, live) = fleet(["api", "batch", "web"]);
        let metrics = Metrics::default();
        metrics.leads(leads);
        metrics.show_autoscalers(cluster, live, limit);
        metrics.prometheus_text()
    }

    /// Autoscalers of these names.
    fn fleet<'a>(names: impl IntoIterator<Item = &'a str>) -> (Cluster, LiveStatus) {
        let (cluster, live) = (Cluster::default(), LiveStatus::default());
        for name in names {
            let key = ObjectKey { namespace: "shop".to_owned(), name: name.to_owned() };
            let object = json!({"metadata": {"name": name, "namespace": "shop", "uid": name}, "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
                "maxReplicas": 9, "metrics": [
                    {"type": "Resource", "resource": {"name": "cpu",
                        "target": {"type": "Utilization", "averageUtilization": 60}}},
                    {"type": "External", "external": {"metric": {"name": "queue"},
                        "target": {"type": "Value", "value": "1500m"}}}]}});
            let record = read_autoscaler(serde_json::from_value(object).unwrap(), None);
            assert!(record.parsed.is_ok(), "{:?}", record.parsed);
            cluster.write(|index| index.put_autoscaler(key.clone(), record));
            let status = json!({"currentReplicas": 3, "desiredReplicas": 4,
                "lastScaleTime": "2026-11-26T12:00:00Z", "schedule": {"minReplicas": 2, "maxReplicas": 5},
                "conditions": [
                    {"type": "AbleToScale", "status": "True", "reason": "A", "message": "", "lastTransitionTime": "2026-11-26T12:00:00Z"},
                    {"type": "ScalingActive", "status": "False", "reason": "B", "message": "", "lastTransitionTime": "2026-11-26T12:00:00Z"}],
                // The first one could not be read.
                "currentMetrics": [{"type": ""}, {"type": "External", "external": {
                    "metric": {"name": "queue"}, "current": {"value": "3"}}}]});
            let status = serde_json::from_value(status).expect("a status");
            let mut said = Status::default();
            for (kind, is_true) in [(AbleToScale, true), (ScalingActive, false)] {
                said.set(kind, is_true, Reason::ReadyForNewScale, format_args!(""), 0);
            }
            live.set(&AutoscalerRef::autoscaler(key), status, &said.conditions);
        }
        (cluster, live)
    }

    /// `--nocapture` prints what a scrape takes, and what it would take to parse the statuses.
    #[test]
    fn a_scrape_does_not_parse_the_statuses_of_a_thousand() {
        let names: Vec<String> = (0..1_000).map(|number| format!("web-{number}")).collect();
        let (cluster, live) = fleet(names.iter().map(String::as_str));
        let metrics = Metrics::default();
        metrics.leads(true);
        let key = |name: &String| ObjectKey { namespace: "shop".to_owned(), name: name.clone() };
        let all = names.iter().map(|name| live.get(&AutoscalerRef::autoscaler(key(name))));
        let all: Vec<String> = all.map(|text| text.expect("a status")).collect();
        let parse = |text: &String| serde_json::from_str::<AutoscalerStatus>(text).is_ok();
        metrics.show_autoscalers(cluster, live, 1_000);
        let timed = |what: &str, run: &dyn Fn()| {
            let (start, taken) = (Instant::now(), allocation_counter::measure(run));
            println!("{what}: {} allocations, {:?}", taken.count_total, start.elapsed());
            taken.count_total
        };
        let scrape = timed("a scrape", &|| drop(metrics.openmetrics()));
        let parsing = timed("parsing all", &|| assert!(all.iter().all(parse)));
        // The names of each, and the index of each of its metrics in two families.
        assert!(scrape < 10_000 && parsing > scrape, "{scrape}, and {parsing} to parse");
    }

    #[test]
    fn the_leader_shows_each_autoscaler_with_its_bounds_replicas_metrics_and_conditions() {
        let text = scraped(1000, true);
        let web = "{namespace=\"shop\",autoscaler=\"web\"";
        let queue = "metric_index=\"1\",metric_name=\"queue\",metric_target_type=\"value\"}";
        let target = "scaletargetref_api_version=\"apps/v1\",scaletargetref_kind=\"Deployment\",scaletargetref_name=\"web\"}";
        for line in [
            format!("info{web},{target} 1"),
            format!("spec_min_replicas{web}}} 1"),
            format!("spec_max_replicas{web}}} 9"),
            format!(
                "spec_target_metric{web},metric_index=\"0\",metric_name=\"cpu\",metric_target_type=\"utilization\"}} 60"
            ),
            format!("spec_target_metric{web},{queue} 1.5"),
            format!("status_target_metric{web},{queue} 3"),
            format!("status_current_replicas{web}}} 3"),
            format!("status_desired_replicas{web}}} 4"),
            format!("status_schedule_min_replicas{web}}} 2"),
            format!("status_schedule_max_replicas{web}}} 5"),
            format!("status_last_scale_timestamp_seconds{web}}} 1795694400"),
            format!("status_condition{web},condition=\"AbleToScale\"}} 1"),
            format!("status_condition{web},condition=\"ScalingActive\"}} 0"),
        ] {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let shown = [format!("{name} {value}\n"), format!("{name} {value}.0\n")];
            let shown =
                shown.iter().any(|line| text.contains(&format!("\nplimsoll_autoscaler_{line}")));
            assert!(shown, "{line}\n{text}");
        }
        assert!(!text.contains(&format!("status_target_metric{web},metric_index=\"0\"")), "{text}");
    }

    #[test]
    fn at_most_the_limit_of_autoscalers_is_shown_and_the_others_are_counted() {
        let shown = |text: &str| text.matches("\nplimsoll_autoscaler_info{").count();
        for (limit, expected) in [(0, 0), (2, 2), (1000, 3)] {
            let text = scraped(limit, true);
            assert_eq!(shown(&text), expected, "{text}");
            let left_out = format!("\nplimsoll_autoscaler_metrics_left_out {}.0\n", 3 - expected);
            assert!(text.contains(&left_out), "{text}");
        }
        assert_eq!(shown(&scraped(1000, false)), 0);
        assert!(scraped(2, true).contains("autoscaler=\"batch\""));
    }
}
