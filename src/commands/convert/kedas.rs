//! What KEDA does with a ScaledObject of Prometheus and cron triggers, for tests: its operator, which wakes a workload
//! and sends it to zero, and the HorizontalPodAutoscaler that it makes.
//!
//! Sources: `RequestScale`, `GetMetricsWithFallback`, `quantityFromFloat64`, `newHPAForScaledObject` and the Cron scaler of KEDA 2.21.

use super::*;
use crate::hpa::{
    Context, ControllerConfig, Input, Outcome, Samples, Scale, ScalingHistory, Selected, Spec,
    Status, complete_rescale, decide,
};

/// The sync period of kube-controller-manager, in ms.
pub const PERIOD: i64 = 15_000;
const DAY: i64 = 86_400_000;

/// What the query of a trigger gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reading {
    /// A series of this value, in milli-units.
    Total(i64),
    /// No series.
    Empty,
    /// A series of NaN, or of an infinity.
    NotFinite,
    /// An error.
    Failed,
}

/// A workload that decisions scale.
pub struct Scaled {
    pub replicas: i32,
    pub history: ScalingHistory,
    status: Status,
    config: ControllerConfig,
}

impl Scaled {
    pub fn new(replicas: i32, scale_to_zero: bool) -> Self {
        let config = ControllerConfig { scale_to_zero, ..Default::default() };
        Self { replicas, history: ScalingHistory::default(), status: Status::default(), config }
    }

    /// Decides on one reading for each metric, and scales. Returns whether the metrics failed.
    pub fn decide(&mut self, spec: &Spec, readings: &[Reading], now: i64) -> bool {
        let totals: Vec<[i64; 1]> = readings
            .iter()
            .map(|reading| if let Reading::Total(total) = reading { [*total] } else { [0] })
            .collect();
        let samples: Vec<Samples<'_>> = readings
            .iter()
            .zip(&totals)
            .map(|(reading, total)| match reading {
                Reading::Total(_) => Samples::Values(Ok(total)),
                Reading::Empty => Samples::Values(Ok(&[])),
                Reading::NotFinite | Reading::Failed => Samples::Values(Err("no answer")),
            })
            .collect();
        let context = Context::new(spec, &self.config, now);
        let input = Input {
            context,
            namespace: "shop",
            scale: Ok(Scale { spec_replicas: self.replicas, status_replicas: self.replicas }),
            selected: Selected::Pods(&[]),
            samples: &samples,
        };
        let mut decision = decide(&input, &mut self.history, &mut self.status, &mut ());
        if let Outcome::Rescale { to, .. } = decision.outcome {
            self.replicas = to;
            let changed = (&mut self.history, &mut self.status);
            complete_rescale(context, &mut decision, Ok(()), changed.0, changed.1);
        }
        decision.metrics_failed
    }
}

/// A trigger.
struct Trigger {
    /// The threshold and the activation threshold, in milli-units.
    target: i64,
    activation: i64,
    ignores_null: bool,
    /// The replicas of a cron trigger between 8 and 18 h UTC.
    desired: Option<i64>,
    failures: i64,
}

/// What the operator, or the HPA by it, reads of a metric.
#[derive(Clone, Copy)]
struct Metric {
    /// Not below 0.
    total: i64,
    is_active: bool,
    is_fallback: bool,
}

/// KEDA and a ScaledObject.
pub struct Keda {
    spec: Value,
    hpa: Spec,
    triggers: Vec<Trigger>,
    /// The target of `scalingModifiers`, in milli-units. The formula is the sum of all Prometheus triggers.
    sum: Option<i64>,
    pub scaled: Scaled,
    last_active: i64,
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn milli(value: &Value) -> i64 {
    (text(value).parse::<f64>().unwrap_or(0.0) * 1000.0).round() as i64
}

impl Keda {
    /// A workload of one replica at a time, or of `minReplicaCount`. None of an object with other triggers.
    pub fn new(object: &Value, now: i64) -> Option<Self> {
        let spec = object["spec"].clone();
        let triggers: Option<Vec<Trigger>> =
            spec["triggers"].as_array()?.iter().map(trigger).collect();
        let triggers = triggers?;
        let modifiers = &spec["advanced"]["scalingModifiers"];
        let sum = modifiers.is_object().then(|| milli(&modifiers["target"]));
        let of = |target: i64| {
            json!({"type": "External", "external": {"metric": {"name": "s"},
                "target": {"type": "AverageValue", "averageValue": format!("{target}m")}}})
        };
        let metrics: Vec<Value> = match sum {
            Some(target) => vec![of(target)],
            None => triggers.iter().map(|trigger| of(trigger.target)).collect(),
        };
        let min = spec["minReplicaCount"].as_i64().unwrap_or(0).max(1) as i32;
        let mut hpa = json!({
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": min,
            "maxReplicas": spec["maxReplicaCount"].as_i64().unwrap_or(100),
            "metrics": metrics,
        });
        let behavior = &spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"];
        if behavior.is_object() {
            hpa["behavior"] = behavior.clone();
        }
        let hpa = Spec::from_api(&serde_json::from_value(hpa).expect("an HPA"));
        let scaled = Scaled::new(min, false);
        Some(Self { spec, hpa, triggers, sum, scaled, last_active: now })
    }

    /// The milli-units of a threshold, of each Prometheus trigger.
    pub fn targets(&self) -> Vec<i64> {
        let own = self.triggers.iter().filter(|trigger| trigger.desired.is_none());
        own.map(|trigger| trigger.target).collect()
    }

    /// Whether any trigger is active by these readings.
    pub fn is_active(&self, readings: &[Reading]) -> bool {
        self.triggers.iter().zip(readings).any(|(trigger, reading)| match reading {
            Reading::Total(total) => *total > trigger.activation,
            Reading::Empty | Reading::NotFinite | Reading::Failed => false,
        })
    }

    fn field(&self, field: &str) -> Option<i32> {
        self.spec[field].as_i64().map(|number| number as i32)
    }

    /// A sync period, with one reading for each Prometheus trigger.
    pub fn tick(&mut self, tick: i64, readings: &[Reading], now: i64) {
        let every = i64::from(self.field("pollingInterval").unwrap_or(30)) * 1000 / PERIOD;
        if tick % every.max(1) == 0 {
            let read = self.read(readings, now);
            self.operate(&read, now);
        }
        if self.scaled.replicas > 0 {
            let read = self.read(readings, now);
            let of = |metric: &Option<Metric>| {
                metric.map_or(Reading::Failed, |metric| Reading::Total(metric.total))
            };
            let read: Vec<Reading> = read.iter().map(of).collect();
            self.scaled.decide(&self.hpa, &read, now);
        }
    }

    /// What the operator does about zero and idleReplicaCount.
    fn operate(&mut self, read: &[Option<Metric>], now: i64) {
        let (min, idle) =
            (self.field("minReplicaCount").unwrap_or(0), self.field("idleReplicaCount"));
        let is_error = read.iter().any(Option::is_none);
        let is_active = read.iter().flatten().any(|metric| metric.is_active);
        let fallback = &self.spec["fallback"];
        let replicas = self.scaled.replicas;
        if is_active {
            if replicas == 0 || idle.is_some() && replicas < min {
                (self.scaled.replicas, self.last_active) = (min.max(1), now);
            } else if !is_error {
                self.last_active = now;
            }
            return;
        }
        if is_error && (fallback.is_null() || fallback["replicas"] != 0) {
            return;
        }
        let cooldown = i64::from(self.field("cooldownPeriod").unwrap_or(300)) * 1000;
        if idle.is_some_and(|idle| replicas > idle) || replicas > 0 && min == 0 {
            if self.last_active + cooldown < now {
                self.scaled.replicas = idle.unwrap_or(min);
            }
        } else if idle.is_none() && replicas < min {
            self.scaled.replicas = min;
        }
    }

    /// The metrics of the HPA; none for one that fails.
    fn read(&mut self, readings: &[Reading], now: i64) -> Vec<Option<Metric>> {
        let fallback = self.spec["fallback"].clone();
        let current = i64::from(self.scaled.replicas);
        let least = fallback["replicas"].as_i64().unwrap_or(0);
        let replicas = match fallback["behavior"].as_str() {
            Some("currentReplicas") => current,
            Some("currentReplicasIfHigher") => current.max(least),
            _ => least,
        };
        let mut readings = readings.iter();
        let sum = self.sum;
        let each = self.triggers.iter_mut().map(|trigger| {
            let total = match (trigger.desired, trigger.ignores_null) {
                (Some(desired), _) => {
                    let is_open = (DAY / 3..DAY / 4 * 3).contains(&(now % DAY));
                    Some(if is_open { desired * 1000 } else { 0 })
                }
                (None, ignores_null) => match readings.next().expect("one for each") {
                    Reading::Total(total) => Some(*total),
                    Reading::Empty | Reading::NotFinite => ignores_null.then_some(0),
                    Reading::Failed => None,
                },
            };
            trigger.failures = if total.is_some() { 0 } else { trigger.failures + 1 };
            let is_fallback = fallback["failureThreshold"]
                .as_i64()
                .is_some_and(|threshold| trigger.failures > threshold);
            let stand_in = is_fallback.then(|| replicas * sum.unwrap_or(trigger.target));
            let total_read = total.or(stand_in)?;
            let is_active = is_fallback || total_read > trigger.activation;
            let total = total_read.max(0);
            Some((trigger.desired.is_some(), Metric { total, is_active, is_fallback }))
        });
        let each: Vec<Option<(bool, Metric)>> = each.collect();
        if self.sum.is_none() {
            return each.into_iter().map(|one| one.map(|(_, metric)| metric)).collect();
        }
        // The formula does not name the cron trigger.
        let total = match each.iter().flatten().find(|(_, metric)| metric.is_fallback) {
            Some((_, metric)) => Some(metric.total),
            None => each.iter().try_fold(0, |sum, one| {
                one.map(|(is_cron, metric)| if is_cron { sum } else { sum + metric.total })
            }),
        };
        let is_fallback = false;
        vec![total.map(|total| Metric { total, is_active: total > 0, is_fallback })]
    }
}

fn trigger(trigger: &Value) -> Option<Trigger> {
    let metadata = &trigger["metadata"];
    let desired = match trigger["type"].as_str()? {
        "prometheus" => None,
        "cron" => Some(milli(&metadata["desiredReplicas"]) / 1000),
        _ => return None,
    };
    Some(Trigger {
        target: if desired.is_some() { 1000 } else { milli(&metadata["threshold"]) },
        activation: milli(&metadata["activationThreshold"]),
        ignores_null: metadata["ignoreNullValues"] != "false",
        desired,
        failures: 0,
    })
}
