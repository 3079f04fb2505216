//! The conversion of KEDA's ScaledObjects.
//!
//! Sources: the ScaledObject specification, and the Prometheus, Cron, CPU and Memory scalers of KEDA 2.21.

use super::conversion::Conversion;
use super::trigger::{self, Made, Trigger, is_false};
use crate::promql::formula::{to_promql, trigger_value};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The spec of a ScaledObject.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScaledObject {
    scale_target_ref: ScaleTargetRef,
    polling_interval: Option<i32>,
    cooldown_period: Option<i32>,
    initial_cooldown_period: Option<i32>,
    idle_replica_count: Option<i32>,
    min_replica_count: Option<i32>,
    max_replica_count: Option<i32>,
    fallback: Option<KedaFallback>,
    #[serde(default)]
    advanced: Value,
    triggers: Vec<Trigger>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ScaleTargetRef {
    api_version: Option<String>,
    kind: Option<String>,
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct KedaFallback {
    failure_threshold: i32,
    replicas: i32,
    behavior: Option<String>,
}

/// The sync period of kube-controller-manager if its flags don't say otherwise, in seconds.
const SYNC_PERIOD: i32 = 15;
/// The most replicas that the default tolerance, a tenth, tells from one fewer, and from one more: 9 of 10 are within it.
const MAX_EXACT_UP: i32 = 10;
const MAX_EXACT_DOWN: i32 = 8;
/// The longest stabilization window, in seconds.
const MAX_WINDOW: i64 = 3600;

impl Conversion {
    /// Converts the spec of a ScaledObject.
    pub fn of_scaled_object(&mut self, spec: ScaledObject, annotations: &Value) -> Value {
        let target = json!({
            "apiVersion": spec.scale_target_ref.api_version.as_deref().unwrap_or("apps/v1"),
            "kind": spec.scale_target_ref.kind.as_deref().unwrap_or("Deployment"),
            "name": spec.scale_target_ref.name,
        });
        let (min, max) =
            (spec.min_replica_count.unwrap_or(0), spec.max_replica_count.unwrap_or(100));
        let mut new = json!({"scaleTargetRef": target, "minReplicas": min, "maxReplicas": max});
        let mut made = Made::default();
        for (index, trigger) in spec.triggers.iter().enumerate() {
            made.add(trigger::convert(self, index, trigger, min));
        }
        if let Some(modifiers) = modifiers(&spec.advanced) {
            self.modifiers(modifiers, &mut made);
        }
        match spec.idle_replica_count {
            Some(0) if min > 0 => self.idle(min, &mut made, &mut new),
            Some(idle) if idle != 0 => self.missing(&format!(
                "idleReplicaCount {idle}: only 0 has a counterpart; minReplicas {min} is what stays"
            )),
            _ => {}
        }
        if made.is_only_schedules() {
            self.note("without another trigger a metric that is always 0 keeps the replicas at minReplicas, and the schedules raise that");
            made.custom.push(json!({"metricName": "none", "per": "Workload", "averageValue": "1", "query": "vector(0)"}));
        }
        let (may_be_zero, is_active) = (new["minReplicas"] == 0, !made.custom.is_empty());
        if may_be_zero && !is_active {
            new["minReplicas"] = json!(1);
        }
        match (may_be_zero && !made.metrics.is_empty(), made.schedules.is_empty()) {
            (true, true) if !is_active => self.note(
                "minReplicas is 1: without a Prometheus or cron trigger nothing tells when to leave zero",
            ),
            (true, _) => self.missing("CPU and memory keep a replica for as long as there is one, so that zero is not reached: KEDA scales to zero whatever they ask for"),
            _ => {}
        }
        for (field, list) in [
            ("metrics", made.metrics),
            ("customMetrics", made.custom),
            ("schedules", made.schedules),
        ] {
            if !list.is_empty() {
                new[field] = json!(list);
            }
        }
        if let Some(fallback) = &spec.fallback {
            self.fallback(fallback, &mut new);
        }
        if let Some(behavior) = spec
            .advanced
            .pointer("/horizontalPodAutoscalerConfig/behavior")
            .filter(|b| b.is_object())
        {
            new["behavior"] = behavior.clone();
        }
        if may_be_zero && min > 0 {
            self.exactly_least(min, &mut new);
        }
        if may_be_zero && is_active {
            self.cooldown(i64::from(spec.cooldown_period.unwrap_or(300)), &mut new);
        }
        if spec.initial_cooldown_period.is_some_and(|seconds| seconds > 0) {
            self.missing("initialCooldownPeriod has no counterpart: a new Autoscaler removes no replica before its metrics were there for the scale-down window");
        }
        if spec.advanced.get("restoreToOriginalReplicaCount") == Some(&json!(true)) {
            self.advise("restoreToOriginalReplicaCount is left out: deleting an Autoscaler leaves the scale as it is. Set it to false on the ScaledObject before you delete that: KEDA would set the replicas of the beginning, under load");
        }
        match spec.polling_interval {
            Some(interval) if interval < SYNC_PERIOD => {
                let period = interval.max(1);
                new["syncPeriodSeconds"] = json!(period);
                self.note(&format!("pollingInterval {interval} s becomes syncPeriodSeconds {period}, the time between two decisions, not about zero only"));
            }
            Some(interval) => self.note(&format!("pollingInterval {interval} s is left out: KEDA asks about zero only so often, and its HorizontalPodAutoscaler decides every {SYNC_PERIOD} s. Without syncPeriodSeconds, so does the Autoscaler, about zero, too")),
            None => {}
        }
        self.annotations(annotations, &mut new);
        self.advise("the ScaledObject has a HorizontalPodAutoscaler of its own: while that is there, kube-controller-manager scales by it, and the Autoscaler does not (AmbiguousSelector), but with --native-hpas=ignore both do. Delete the ScaledObject before the Autoscaler is active, or set `mode: Preview` meanwhile. If the workload is at zero then, scale it to 1, as that is not Plimsoll's zero; KEDA would take that back");
        new
    }

    /// `scalingModifiers`: one metric in place of those of the Prometheus triggers.
    fn modifiers(&mut self, modifiers: &Value, made: &mut Made) {
        let text = |field: &str| match &modifiers[field] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        };
        let (formula, target) = (text("formula"), text("target"));
        let operands: BTreeMap<String, String> = made
            .queries
            .iter()
            .map(|(name, query, null_is_zero)| (name.clone(), trigger_value(query, *null_is_zero)))
            .collect();
        let query = match to_promql(&formula, &operands) {
            Ok(query) => query,
            Err(why) => {
                self.missing(&format!("advanced.scalingModifiers.formula is left out: {why}"));
                return;
            }
        };
        let Some(target) = trigger::target(self, "advanced.scalingModifiers.target", &target)
        else {
            return;
        };
        let is_value = modifiers["metricType"] == "Value";
        let target_field = if is_value { "value" } else { "averageValue" };
        let mut metric = json!({"metricName": "formula", "per": "Workload", "query": query});
        metric[target_field] = json!(target);
        let activation = text("activationTarget");
        trigger::activation(
            self,
            "advanced.scalingModifiers.activationTarget",
            &activation,
            &mut metric,
        );
        self.note("advanced.scalingModifiers.formula becomes one query. As in KEDA, an empty result, NaN and +Inf of a trigger with ignoreNullValues count as 0 in it, and remove replicas. KEDA rounds each trigger to thousandths first, and reads a negative result as 0");
        if formula.contains("??") {
            self.note("advanced.scalingModifiers.formula: `??` takes its right side as soon as the left one has no value; KEDA does after failureThreshold failures, with fallback.behavior scalingModifiers");
        }
        made.custom = vec![metric];
    }

    /// `idleReplicaCount`: zero replicas while no metric is active, and otherwise at least `min`.
    fn idle(&mut self, min: i32, made: &mut Made, new: &mut Value) {
        if made.custom.is_empty() {
            self.missing(
                "idleReplicaCount needs a Prometheus trigger here: minReplicas is what stays",
            );
            return;
        }
        new["minReplicas"] = json!(0);
        let mut least = Vec::new();
        for metric in &made.custom {
            let (query, activation) = (&metric["query"], &metric["activation"]);
            let activation = activation.as_str().unwrap_or("0");
            least.push(json!({
                "metricName": format!("{}_least", metric["metricName"].as_str().unwrap_or_default()),
                "per": "Workload",
                "averageValue": "1",
                "onEmpty": metric["onEmpty"].as_str().unwrap_or("Missing"),
                "query": format!("(({}\n) > bool {activation}) * {min}", query.as_str().unwrap_or_default()),
            }));
        }
        made.custom.append(&mut least);
        self.note(&format!("idleReplicaCount: minReplicas is 0, and for each trigger a second metric asks for {min} replicas while the trigger is active"));
    }

    /// Without tolerances: `minReplicaCount` is a metric's target while the workload is not idle, and where it is more
    /// than a few replicas, a few below or above would be within the tolerance.
    fn exactly_least(&mut self, min: i32, new: &mut Value) {
        for (direction, max_exact, side, verb) in [
            ("scaleUp", MAX_EXACT_UP, "below", "scale up"),
            ("scaleDown", MAX_EXACT_DOWN, "above", "scale down"),
        ] {
            let own = new.pointer(&format!("/behavior/{direction}/tolerance")).is_some();
            if min > max_exact || own {
                new["behavior"][direction]["tolerance"] = json!("0");
                self.note(&format!("idleReplicaCount: behavior.{direction}.tolerance 0, or the workload could stay a few {side} {min} while a trigger is active; so all metrics {verb} a little sooner"));
            }
        }
    }

    fn fallback(&mut self, fallback: &KedaFallback, new: &mut Value) {
        match fallback.behavior.as_deref() {
            Some("currentReplicas") => {
                self.note("fallback.behavior currentReplicas is left out: without a fallback the replicas stay as they are");
                return;
            }
            Some("currentReplicasIfLower") => {
                self.missing("fallback.behavior currentReplicasIfLower has no counterpart: a fallback never removes replicas here");
                return;
            }
            Some("currentReplicasIfHigher") => {}
            Some("scalingModifiers") => {
                self.missing("fallback.behavior scalingModifiers has no counterpart: `??` of the formula counts at once");
                return;
            }
            _ => self.note("fallback.behavior static: a fallback never removes replicas here"),
        }
        new["fallback"] =
            json!({"failureThreshold": fallback.failure_threshold, "replicas": fallback.replicas});
    }

    /// `cooldownPeriod`: there is one window for all scaling down, zero included. The longer one keeps
    /// what KEDA would keep.
    fn cooldown(&mut self, cooldown: i64, new: &mut Value) {
        let at = "/behavior/scaleDown/stabilizationWindowSeconds";
        let window = new.pointer(at).and_then(Value::as_i64).unwrap_or(300);
        if cooldown > MAX_WINDOW {
            self.missing(&format!("cooldownPeriod {cooldown} s: at most {MAX_WINDOW} s can be waited for, by behavior.scaleDown.stabilizationWindowSeconds"));
        } else if cooldown > window {
            new["behavior"]["scaleDown"]["stabilizationWindowSeconds"] = json!(cooldown);
            self.note(&format!("cooldownPeriod {cooldown} s becomes behavior.scaleDown.stabilizationWindowSeconds, which was {window} s: it is waited before any replica is removed, not before zero only"));
        } else if cooldown < window {
            self.note(&format!("cooldownPeriod {cooldown} s: zero is waited for as long as for any other scale down, behavior.scaleDown.stabilizationWindowSeconds, which is {window} s"));
        }
    }

    fn annotations(&mut self, annotations: &Value, new: &mut Value) {
        let is_set = |name: &str| {
            let value = annotations.get(format!("autoscaling.keda.sh/{name}"));
            value.and_then(Value::as_str).is_some_and(|text| !is_false(text))
        };
        if is_set("paused") {
            new["mode"] = json!("Paused");
        }
        for (name, direction) in [("paused-scale-in", "scaleDown"), ("paused-scale-out", "scaleUp")]
        {
            if is_set(name) {
                new["behavior"][direction]["selectPolicy"] = json!("Disabled");
                self.note(&format!(
                    "the annotation {name} becomes behavior.{direction}.selectPolicy Disabled"
                ));
            }
        }
        for name in ["paused-replicas", "force-activation"] {
            let is_given = annotations.get(format!("autoscaling.keda.sh/{name}")).is_some();
            if is_set(name) || (name == "paused-replicas" && is_given) {
                self.missing(&format!(
                    "the annotation autoscaling.keda.sh/{name} has no counterpart"
                ));
            }
        }
    }
}

/// The `scalingModifiers` with a formula.
fn modifiers(advanced: &Value) -> Option<&Value> {
    let modifiers = advanced.get("scalingModifiers")?;
    modifiers["formula"].as_str().filter(|formula| !formula.is_empty()).map(|_| modifiers)
}
