//! ScaledObjects, converted, beside what KEDA does with them: those of KEDA's own tests, and more of what these lack.

use super::kedas::{Keda, PERIOD, Reading, Scaled};
use super::*;
use crate::hpa::Spec;
use crate::k8s::Quantity;
use crate::samples::Total;
use crate::watch::read_autoscaler;

const CORPUS: &str = include_str!("../../../tests/data/keda-scaledobjects.yaml");

/// Those of KEDA's tests have no fallback that applies, no formula, and few replicas.
const MORE: &str = "
{minReplicaCount: 1, maxReplicaCount: 20, fallback: {failureThreshold: 3, replicas: 6}, triggers: [A, B]}
---
{minReplicaCount: 2, fallback: {failureThreshold: 3, replicas: 3, behavior: static}, triggers: [A]}
---
{minReplicaCount: 1, fallback: {failureThreshold: 3, replicas: 6, behavior: currentReplicasIfHigher}, triggers: [A]}
---
{minReplicaCount: 1, fallback: {failureThreshold: 3, replicas: 6, behavior: currentReplicas}, triggers: [A, B]}
---
{minReplicaCount: 20, idleReplicaCount: 0, maxReplicaCount: 60, triggers: [A]}
---
{minReplicaCount: 3, idleReplicaCount: 0, fallback: {failureThreshold: 3, replicas: 8}, triggers: [A]}
---
{cooldownPeriod: 600, triggers: [ACTIVE]}
---
{triggers: [STRICT, B]}
---
{minReplicaCount: 1, fallback: {failureThreshold: 3, replicas: 6}, triggers: [A, B, CRON],
 advanced: {scalingModifiers: {formula: a + b, target: '5'}}}
";

fn scaled_objects() -> Vec<Value> {
    objects::parse(CORPUS).expect("YAML")
}

fn more_scaled_objects() -> Vec<Value> {
    let trigger = |name: &str, more: &str| {
        format!(
            "{{type: prometheus, name: {name}, metadata: {{query: 'sum({name}{{namespace=\"shop\"}})', threshold: '5'{more}}}}}"
        )
    };
    let cron = "{type: cron, metadata: {timezone: UTC, start: 0 8 * * *, end: 0 18 * * *, desiredReplicas: '9'}}";
    let text = MORE
        .replace("STRICT", &trigger("strict", ", ignoreNullValues: 'false'"))
        .replace("ACTIVE", &trigger("active", ", activationThreshold: '7.5'"))
        .replace("CRON", cron)
        .replace("[A", &format!("[{}", trigger("a", "")))
        .replace(", B", &format!(", {}", trigger("b", "")));
    let object = |mut spec: Value| {
        spec["scaleTargetRef"] = json!({"name": "web"});
        json!({"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
            "metadata": {"name": "web", "namespace": "shop"}, "spec": spec})
    };
    objects::parse(&text).expect("YAML").into_iter().map(object).collect()
}

/// The Autoscaler of a ScaledObject, as it decides.
struct Own {
    object: Value,
    spec: Spec,
    scaled: Scaled,
    rounds: i64,
}

impl Own {
    fn new(object: &Value) -> Self {
        let mut converted = Converted::default();
        convert_object(object, &mut converted);
        let object = converted.objects.pop().unwrap_or_else(|| panic!("{:?}", converted.errors));
        let read = serde_json::from_value(object.clone()).expect("an object");
        let spec = read_autoscaler(read, None).parsed.expect("a spec").scaling.spec.clone();
        let least = object["spec"]["minReplicas"].as_i64().expect("a number").max(1);
        Self { object, spec, scaled: Scaled::new(least as i32, true), rounds: 0 }
    }

    /// What the queries of all metrics give, by what those of the triggers give.
    fn readings(&self, of_triggers: &[Reading]) -> Vec<Reading> {
        let metrics = self.object["spec"]["customMetrics"].as_array().expect("a list");
        let of = |(index, metric): (usize, &Value)| match metric["metricName"].as_str() {
            Some("none") => Reading::Total(0),
            Some("formula") => {
                let sum = |sum, reading: &Reading| match (sum, reading) {
                    // As its query has it.
                    (Reading::Total(sum), Reading::Total(next)) => {
                        Reading::Total(sum + next.max(&0))
                    }
                    (sum, Reading::Empty | Reading::NotFinite) => sum,
                    _ => Reading::Failed,
                };
                of_triggers.iter().fold(Reading::Total(0), sum)
            }
            Some(name) if name.ends_with("_least") => {
                let query = metric["query"].as_str().expect("a query");
                let least = query.rsplit("* ").next().and_then(|least| least.parse::<i64>().ok());
                match of_triggers[index - of_triggers.len()] {
                    Reading::Total(total) => {
                        Reading::Total(i64::from(total > 0) * least.expect("a number") * 1000)
                    }
                    other => other,
                }
            }
            _ => of_triggers[index],
        };
        // As totals are gathered.
        let counted = |(index, metric): (usize, &Value)| match of((index, metric)) {
            Reading::Total(total) => {
                Reading::Total(Total::counted(Quantity::from_milli(total)).milli())
            }
            Reading::NotFinite if leaves_nan_out(metric) => Reading::Empty,
            other => other,
        };
        metrics.iter().enumerate().map(counted).collect()
    }

    /// What its queries give where those of the triggers are not finite: those of counters and of numbers always are.
    fn not_finite(&self) -> Reading {
        let metrics = self.object["spec"]["customMetrics"].as_array().expect("a list");
        let may_be = |metric: &Value| metric["onEmpty"] != "Zero" || leaves_nan_out(metric);
        if metrics.iter().all(may_be) { Reading::NotFinite } else { Reading::Empty }
    }

    fn tick(&mut self, of_triggers: &[Reading], now: i64) {
        let readings = self.readings(of_triggers);
        let has_failed = self.scaled.decide(&self.spec, &readings, now);
        self.rounds = if has_failed { self.rounds + 1 } else { 0 };
        let fallback = &self.object["spec"]["fallback"];
        let Some(threshold) = fallback["failureThreshold"].as_i64() else { return };
        let (from, to) = (self.scaled.replicas, fallback["replicas"].as_i64().unwrap_or(0) as i32);
        if self.rounds >= threshold && (1..to).contains(&from) {
            self.scaled.replicas = to;
            self.scaled.history.record_fallback(from, to, &self.spec, now);
        }
    }
}

fn leaves_nan_out(metric: &Value) -> bool {
    metric["query"].as_str().is_some_and(|query| query.contains("< Inf > -Inf"))
}

/// How many sync periods a scale-down is waited for, at most.
fn settling(object: &Value) -> usize {
    let window = object.pointer(
        "/spec/advanced/horizontalPodAutoscalerConfig/behavior/scaleDown/stabilizationWindowSeconds",
    );
    let seconds = |value: Option<&Value>| value.and_then(Value::as_u64).unwrap_or(300);
    let longest = seconds(window).max(seconds(object["spec"].get("cooldownPeriod")));
    longest as usize / 15 + 3
}

#[test]
fn each_is_converted() {
    let mut converted = Converted::default();
    for (index, mut object) in scaled_objects().into_iter().enumerate() {
        // They are of several tests, and some have one name.
        object["metadata"]["name"] = json!(format!("{index}"));
        convert_object(&object, &mut converted);
    }
    assert_eq!(converted.errors, [""; 0]);
    assert_eq!(converted.objects.len(), 21);
}

/// With totals that are never 0, so that KEDA leaves the replicas to its HPA.
#[test]
fn each_scales_as_kedas_hpa_does() {
    let mut compared = 0;
    for object in scaled_objects() {
        let Some(mut keda) = Keda::new(&object, 0).filter(|keda| !keda.targets().is_empty()) else {
            continue;
        };
        let mut own = Own::new(&object);
        let mut seed = 1_u64;
        for tick in 0..400 {
            let level = if tick % 100 < 50 { 20_000 } else { 400_000 };
            let mut reading = |_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                Reading::Total(1 + (seed >> 33) as i64 % level)
            };
            let readings: Vec<Reading> = keda.targets().into_iter().map(&mut reading).collect();
            keda.tick(tick, &readings, tick * PERIOD);
            own.tick(&readings, tick * PERIOD);
            assert_eq!(own.scaled.replicas, keda.scaled.replicas, "{tick}: {object}");
        }
        compared += 1;
    }
    assert_eq!(compared, 9);
}

/// Through plateaus of load, of none, of NaN, of less than none and of failures. What waits for a window, or for KEDA's poll, is compared when it is
/// over.
#[test]
fn each_scales_as_keda_does_from_and_to_zero_and_when_triggers_fail() {
    use Reading::{Empty, Failed};
    const TICKS: usize = 50;
    let mut compared = [0; 2];
    let all = [scaled_objects(), more_scaled_objects()];
    for (objects, compared) in all.iter().zip(&mut compared) {
        for object in objects {
            let Some(mut keda) = Keda::new(object, 0).filter(|keda| !keda.targets().is_empty())
            else {
                continue;
            };
            let mut own = Own::new(object);
            let targets = keda.targets();
            let times = |count: i64| Reading::Total(count * targets[0]);
            let not_finite = own.not_finite();
            let plateaus = [
                [times(3), times(2)],
                [times(8), times(1)],
                [times(0), times(0)],
                [times(5), times(0)],
                [Failed, times(5)],
                [times(2), times(2)],
                [Failed, Failed],
                [times(4), times(1)],
                [not_finite, not_finite],
                [times(4), times(1)],
                [Empty, Empty],
                // As a difference of two counters, of which one was scraped before the other.
                [times(-2), times(-1)],
                [times(-1), times(1)],
                [times(1), times(-1)],
                [times(1), times(1)],
                [Failed, times(0)],
                [times(7), times(7)],
                // 7 doubles to 28: for a total of 30 times the target, an HPA without behavior would go on to the highest
                // recommendation of its window, 30, and one with behavior stays at 28, within the tolerance.
                [times(28), times(1)],
            ];
            let mut has_failed = false;
            for (index, plateau) in plateaus.iter().enumerate() {
                let readings = &plateau[..targets.len()];
                let fails = readings.contains(&Failed);
                let from = match (fails, has_failed || !keda.is_active(readings)) {
                    (true, _) => 5,
                    (_, true) => settling(object),
                    (false, false) => 3,
                };
                for tick in 0..TICKS {
                    let at = (index * TICKS + tick) as i64;
                    keda.tick(at, readings, at * PERIOD);
                    own.tick(readings, at * PERIOD);
                    let (ours, theirs) = (own.scaled.replicas, keda.scaled.replicas);
                    assert!(
                        tick < from || ours == theirs,
                        "{readings:?}, {tick}: {ours}, {theirs}: {object}"
                    );
                }
                has_failed = fails;
            }
            *compared += 1;
        }
    }
    assert_eq!(compared, [9, 9]);
}

/// At the end of a window KEDA's HPA keeps the replicas for its scale-down window, and a schedule does not.
#[test]
fn each_cron_trigger_scales_as_kedas_does() {
    const HOUR: i64 = 3_600_000;
    let mut compared = 0;
    for object in scaled_objects() {
        for begin in [7 * HOUR + HOUR / 2, 17 * HOUR + HOUR / 2] {
            let keda = Keda::new(&object, begin).filter(|keda| keda.targets().is_empty());
            let Some(mut keda) = keda else { continue };
            let mut own = Own::new(&object);
            // The window begins or ends after half an hour.
            let (change, settling) = (120, settling(&object));
            let is_morning = begin < 12 * HOUR;
            for tick in 0..400 {
                let now = begin + tick as i64 * PERIOD;
                keda.tick(tick as i64, &[], now);
                own.tick(&[], now);
                let from = if is_morning { 0 } else { change };
                let settles = (from..from + settling).contains(&tick);
                let (ours, theirs) = (own.scaled.replicas, keda.scaled.replicas);
                assert!(settles || ours == theirs, "{tick}: {ours}, {theirs}: {object}");
            }
            compared += 1;
        }
    }
    assert_eq!(compared, 2 * 6);
}

#[test]
fn each_cpu_or_memory_trigger_is_the_metric_of_kedas_hpa() {
    let mut compared = 0;
    for object in scaled_objects() {
        let Some(trigger) = object
            .pointer("/spec/triggers/0")
            .filter(|trigger| matches!(trigger["type"].as_str(), Some("cpu" | "memory")))
        else {
            continue;
        };
        let own = Own::new(&object).object;
        let value = trigger["metadata"]["value"].as_str().and_then(|text| text.parse::<i32>().ok());
        let resource = json!({"name": trigger["type"],
            "target": {"type": "Utilization", "averageUtilization": value.expect("a number")}});
        assert_eq!(own["spec"]["metrics"], json!([{"type": "Resource", "resource": resource}]));
        let least = object["spec"]["minReplicaCount"].as_i64().unwrap_or(0).max(1);
        assert_eq!(own["spec"]["minReplicas"], least);
        let behavior = object.pointer("/spec/advanced/horizontalPodAutoscalerConfig/behavior");
        assert_eq!(own["spec"].get("behavior"), behavior);
        compared += 1;
    }
    assert_eq!(compared, 6);
}
