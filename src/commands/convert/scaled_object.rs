//! The conversion of KEDA's ScaledObjects.
//!
//! Sources: the ScaledObject specification, and the Prometheus, Cron, CPU and Memory scalers of KEDA 2.21.

use super::conversion::{Conversion, SYNC_PERIOD};
use super::fallback::{self, KedaFallback};
use super::trigger::{self, Made, Trigger, is_false};
use super::zero;
use crate::promql::formula::{nan_as_zero, to_promql, trigger_value};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

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
        let modifiers = modifiers(&spec.advanced);
        if let Some(modifiers) = modifiers {
            self.modifiers(modifiers, &mut made);
        }
        if !made.without_nan.is_empty() {
            self.note(&format!("{}: `< Inf > -Inf` leaves NaN and infinities out of the query: where ignoreNullValues holds, KEDA reads them as 0, as it does an empty result, and onEmpty: Zero does here", made.without_nan.join(", ")));
        }
        for metric in &made.custom {
            trigger::coarse(self, metric);
        }
        let stands_in = spec.fallback.as_ref().is_some_and(|fallback| {
            let target = modifiers.map(|modifiers| field(modifiers, "target"));
            fallback::convert(
                self,
                fallback,
                target.as_deref(),
                spec.polling_interval,
                &mut made,
                &mut new,
            )
        });
        match spec.idle_replica_count {
            Some(0) if min > 0 => zero::idle(self, min, &mut made, &mut new),
            Some(0) => self.missing("idleReplicaCount 0 is refused by KEDA beside a minReplicaCount of 0: expected one above it; minReplicas 0 is what stays"),
            Some(idle) => self.missing(&format!(
                "idleReplicaCount {idle}: only 0 has a counterpart; minReplicas {min} is what stays"
            )),
            None => {}
        }
        if made.is_only_schedules() {
            self.note("without another trigger a metric that is always 0 keeps the replicas at minReplicas, and the schedules raise that");
            made.push(json!({"metricName": "none", "per": "Workload", "averageValue": "1", "query": "vector(0)"}));
        }
        if !made.schedules.is_empty() {
            self.note("schedules: at the end of a window the replicas may go at once, where KEDA's HorizontalPodAutoscaler keeps them for its scale-down window");
        }
        let (may_be_zero, is_active) = (new["minReplicas"] == 0, !made.custom.is_empty());
        if may_be_zero && !is_active {
            new["minReplicas"] = json!(1);
        }
        zero::activation(self, &mut made, new["minReplicas"] == 0);
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
        if let Some(behavior) = spec.advanced.pointer("/horizontalPodAutoscalerConfig/behavior") {
            new["behavior"] = behavior.clone();
        }
        if may_be_zero && min > 0 {
            zero::exactly_least(self, min, &mut new);
        }
        if may_be_zero && is_active {
            zero::wake(self, min.max(1), &mut new);
            zero::sleep(self, max, &new);
            zero::cooldown(self, i64::from(spec.cooldown_period.unwrap_or(300)), &mut new);
            if stands_in {
                self.missing("fallback: a workload at zero stays there while a trigger fails; KEDA wakes it after failureThreshold failures");
            }
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
        self.added_at_once(&new);
        self.advise("the ScaledObject has a HorizontalPodAutoscaler of its own: while that is there, kube-controller-manager scales by it, and the Autoscaler does not (AmbiguousSelector), but with --native-hpas=ignore both do. Delete the ScaledObject before the Autoscaler is active, or set `mode: Preview` meanwhile. If the workload is at zero then, scale it to 1, as that is not Plimsoll's zero; KEDA would take that back");
        new
    }

    /// `scalingModifiers`: one metric in place of those of the Prometheus triggers.
    fn modifiers(&mut self, modifiers: &Value, made: &mut Made) {
        let (formula, target) = (field(modifiers, "formula"), field(modifiers, "target"));
        let named = made.queries.iter().map(|(name, ..)| name).collect::<BTreeSet<_>>();
        if named.len() < made.queries.len() {
            self.missing("advanced.scalingModifiers.formula is left out: two triggers have the same name, which KEDA refuses");
            return;
        }
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
        let what = "advanced.scalingModifiers.target";
        let Some(target) = trigger::target(self, what, &target, trigger::cut_off) else { return };
        let kind = field(modifiers, "metricType");
        if !["", "Value", "AverageValue"].contains(&&*kind) {
            self.missing(&format!("advanced.scalingModifiers.metricType {kind:?}, which KEDA refuses, is read as AverageValue"));
        }
        let is_value = kind == "Value";
        let target_field = if is_value { "value" } else { "averageValue" };
        let doubled = nan_as_zero(&query);
        if doubled.is_some() {
            self.note("advanced.scalingModifiers.formula: NaN, as of 0 / 0, counts as 0 here. In KEDA nothing is active by it, and what its HorizontalPodAutoscaler reads depends on the processor");
        }
        let query = doubled.unwrap_or(query);
        let mut metric = json!({"metricName": "formula", "per": "Workload", "query": query});
        metric[target_field] = json!(target);
        let activation = field(modifiers, "activationTarget");
        trigger::activation(
            self,
            "advanced.scalingModifiers.activationTarget",
            &activation,
            trigger::cut_off,
            &mut metric,
        );
        self.note("advanced.scalingModifiers.formula becomes one query. As in KEDA, an empty result, NaN and +Inf of a trigger with ignoreNullValues count as 0 in it, and remove replicas. KEDA rounds each trigger to thousandths first. A trigger below 0 counts as 0 in it, as in KEDA. A result below 0 is 0 here; KEDA's HorizontalPodAutoscaler goes to maxReplicaCount by it where Kubernetes takes it for more than can be counted, as 1.36 does and 1.30 does not");
        if formula.contains("??") && made.queries.iter().any(|(_, _, null_is_zero)| !null_is_zero) {
            self.missing("advanced.scalingModifiers.formula: `??` takes its right side as soon as the left one has no value; KEDA does after failureThreshold failures, with fallback.behavior scalingModifiers");
        }
        made.custom = vec![metric];
        made.without_nan.clear();
        let all = made.metrics.len();
        made.metrics.retain(|metric| metric["type"] == "Resource");
        if made.metrics.len() < all {
            self.note("advanced.scalingModifiers: CPU and memory of a container are left out: beside a formula, KEDA's HorizontalPodAutoscaler has those of whole pods alone");
        }
        if !made.schedules.is_empty() {
            made.schedules.clear();
            self.note("advanced.scalingModifiers: the cron triggers are left out: beside a formula, KEDA's HorizontalPodAutoscaler has CPU and memory alone");
        }
    }

    /// KEDA's HPA adds what a cron trigger or a fallback asks for by its policies, a schedule and a fallback do not.
    fn added_at_once(&mut self, new: &Value) {
        if new.pointer("/behavior/scaleUp/selectPolicy") != Some(&json!("Disabled")) {
            return;
        }
        let least = new["minReplicas"].as_i64();
        let schedules = new["schedules"].as_array().into_iter().flatten();
        let most = schedules.filter_map(|schedule| schedule["minReplicas"].as_i64()).max();
        for (field, replicas) in
            [("schedules", most), ("fallback", new["fallback"]["replicas"].as_i64())]
        {
            if replicas > least {
                self.missing(&format!("{field}: replicas are added at once, whatever behavior.scaleUp says; with its selectPolicy Disabled KEDA's HorizontalPodAutoscaler adds none"));
            }
        }
    }

    fn annotations(&mut self, annotations: &Value, new: &mut Value) {
        let is_set = |name: &str| {
            let value = annotations.get(format!("autoscaling.keda.sh/{name}"));
            value.and_then(Value::as_str).is_some_and(|text| !is_false(text))
        };
        let held = annotations.get("autoscaling.keda.sh/paused-replicas").and_then(Value::as_str);
        if is_set("paused") || held.is_some() {
            new["mode"] = json!("Paused");
        }
        if let Some(replicas) = held {
            self.advise(&format!("the annotation autoscaling.keda.sh/paused-replicas: KEDA has it paused, and holds it at {replicas} replicas. A pause of the Autoscaler leaves them as they are: scale it yourself where there are others"));
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
        if is_set("force-activation") {
            self.missing("the annotation autoscaling.keda.sh/force-activation has no counterpart");
        }
    }
}

/// A field of `scalingModifiers` as text.
fn field(modifiers: &Value, name: &str) -> String {
    match &modifiers[name] {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// The `scalingModifiers` with a formula.
fn modifiers(advanced: &Value) -> Option<&Value> {
    let modifiers = advanced.get("scalingModifiers")?;
    modifiers["formula"].as_str().filter(|formula| !formula.is_empty()).map(|_| modifiers)
}
