//! Zero replicas of a ScaledObject: KEDA's operator goes there and back, past its HorizontalPodAutoscaler.

use super::conversion::Conversion;
use super::trigger::Made;
use serde_json::{Value, json};

/// The most replicas that the default tolerance, a tenth, tells from one fewer, and from one more: 9 of 10 are within it.
const MAX_EXACT_UP: i32 = 10;
const MAX_EXACT_DOWN: i32 = 8;
/// The longest stabilization window, in seconds.
const MAX_WINDOW: i64 = 3600;
/// The window of an HPA whose object gives none, and how much longer one may be that KEDA does not have: an active
/// Autoscaler keeps the replicas of each peak for so long.
const DEFAULT_WINDOW: i64 = 300;
const MAX_LONGER: i64 = 300;
/// The replicas to which an HPA scales up from 0 at once, if its behavior does not say otherwise.
const FIRST_STEP: i64 = 4;

/// `idleReplicaCount`: zero replicas while no metric is active, and otherwise at least `min`.
pub fn idle(conversion: &mut Conversion, min: i32, made: &mut Made, new: &mut Value) {
    if made.custom.is_empty() {
        conversion
            .missing("idleReplicaCount needs a Prometheus trigger here: minReplicas is what stays");
        return;
    }
    new["minReplicas"] = json!(0);
    let mut least = Vec::new();
    for metric in &made.custom {
        let (query, activation) = (&metric["query"], &metric["activation"]);
        let activation = activation.as_str().unwrap_or("0");
        let mut of_it = json!({
            "metricName": format!("{}_least", metric["metricName"].as_str().unwrap_or_default()),
            "per": "Workload",
            "averageValue": "1",
            "onEmpty": metric["onEmpty"].as_str().unwrap_or("Missing"),
            "query": format!("(({}\n) > bool {activation}) * {min}", query.as_str().unwrap_or_default()),
        });
        if let Some(fallback) = metric.get("fallback") {
            // It is a bound of KEDA's HPA, whatever fails.
            of_it["fallback"] = fallback.clone();
            of_it["fallback"]["replicas"] = json!(min);
        }
        least.push(of_it);
    }
    least.into_iter().for_each(|metric| made.push(metric));
    conversion.note(&format!("idleReplicaCount: minReplicas is 0, and beside each metric of a query another one asks for {min} replicas while that is active"));
}

/// `activationThreshold`, which KEDA reads about zero alone.
pub fn activation(conversion: &mut Conversion, made: &mut Made, may_be_zero: bool) {
    for metric in made.custom.iter_mut().filter_map(Value::as_object_mut) {
        let Some(activation) = metric.get("activation").and_then(Value::as_str) else { continue };
        if !may_be_zero {
            metric.remove("activation");
        } else if activation.starts_with('-') {
            let name = metric["metricName"].as_str().unwrap_or_default();
            conversion.note(&format!("{name}: an activation of {activation} is below 0: so each value is active here, as one below 0 counts as 0; for KEDA one that is lower yet is not active"));
        }
    }
}

/// Without tolerances: `minReplicaCount` is a metric's target while the workload is not idle, and where it is more
/// than a few replicas, a few below or above would be within the tolerance.
pub fn exactly_least(conversion: &mut Conversion, min: i32, new: &mut Value) {
    for (direction, max_exact, side, verb) in [
        ("scaleUp", MAX_EXACT_UP, "below", "scale up"),
        ("scaleDown", MAX_EXACT_DOWN, "above", "scale down"),
    ] {
        let own = new.pointer(&format!("/behavior/{direction}/tolerance")).is_some();
        if min > max_exact || own {
            new["behavior"][direction]["tolerance"] = json!("0");
            conversion.note(&format!("idleReplicaCount: behavior.{direction}.tolerance 0, or the workload could stay a few {side} {min} while a trigger is active; so all metrics {verb} a little sooner"));
        }
    }
}

/// KEDA writes the first replicas itself, whatever the policies of its HPA are.
pub fn wake(conversion: &mut Conversion, least: i32, new: &mut Value) {
    let up = &new["behavior"]["scaleUp"];
    let waits = up["stabilizationWindowSeconds"].as_i64().is_some_and(|seconds| seconds > 0);
    let is_default = policies(up).is_empty() && up.get("selectPolicy").is_none_or(|p| p == "Max");
    if waits || !is_default && first_step(up) < i64::from(least) {
        conversion.missing(&format!("from zero KEDA writes {least} replicas at once, whatever behavior.scaleUp says; here that counts"));
    } else if is_default && i64::from(least) > FIRST_STEP {
        // From `least` replicas on the second one allows no more than the first.
        new["behavior"]["scaleUp"]["policies"] = json!([
            {"type": "Percent", "value": 100, "periodSeconds": 15},
            {"type": "Pods", "value": least, "periodSeconds": 15},
        ]);
        conversion.note(&format!("idleReplicaCount: behavior.scaleUp.policies let {least} replicas be added at once, as KEDA does from zero"));
    }
}

/// KEDA removes the last replicas itself, too.
pub fn sleep(conversion: &mut Conversion, max: i32, new: &Value) {
    let down = &new["behavior"]["scaleDown"];
    let is_all = |policy: &Value| {
        let whole = if policy["type"] == "Percent" { 100 } else { i64::from(max) };
        policy["value"].as_i64().is_some_and(|value| value >= whole)
    };
    let policies = policies(down);
    let is_at_once = match down["selectPolicy"].as_str() {
        Some("Disabled") => false,
        Some("Min") => policies.iter().all(is_all),
        _ => policies.is_empty() || policies.iter().any(is_all),
    };
    if !is_at_once {
        conversion.missing("KEDA goes to zero at once after cooldownPeriod, whatever behavior.scaleDown says; here its policies count, and with selectPolicy Disabled zero is never reached");
    }
}

/// `cooldownPeriod`: there is one window for all scaling down, zero included. The longer one keeps
/// what KEDA would keep. A window that the object gives is meant to be no longer.
pub fn cooldown(conversion: &mut Conversion, cooldown: i64, new: &mut Value) {
    let at = "/behavior/scaleDown/stabilizationWindowSeconds";
    let given = new.pointer(at).and_then(Value::as_i64);
    let window = given.unwrap_or(DEFAULT_WINDOW);
    if cooldown > MAX_WINDOW {
        conversion.missing(&format!("cooldownPeriod {cooldown} s: at most {MAX_WINDOW} s are possible, by behavior.scaleDown.stabilizationWindowSeconds"));
    } else if cooldown > window {
        new["behavior"]["scaleDown"]["stabilizationWindowSeconds"] = json!(cooldown);
        let note = format!(
            "cooldownPeriod {cooldown} s becomes behavior.scaleDown.stabilizationWindowSeconds, which was {window} s: it is waited before any replica is removed, not before zero only"
        );
        match given.is_some() || cooldown > window + MAX_LONGER {
            true => conversion.missing(&format!(
                "{note}, and KEDA's HorizontalPodAutoscaler removes them {} s sooner",
                cooldown - window
            )),
            false => conversion.note(&note),
        }
    } else if cooldown < window {
        let note = format!(
            "cooldownPeriod {cooldown} s: zero is waited for as long as for any other scale down, behavior.scaleDown.stabilizationWindowSeconds, which is {window} s"
        );
        match window > cooldown + MAX_LONGER {
            true => conversion.missing(&format!(
                "{note}, and KEDA goes to zero from any number of replicas {} s sooner",
                window - cooldown
            )),
            false => conversion.note(&note),
        }
    }
}

/// The policies of a direction, empty where an HPA has its own.
fn policies(rules: &Value) -> &[Value] {
    rules["policies"].as_array().map_or(&[], Vec::as_slice)
}

/// The replicas to which the policies let a workload at zero go at once.
fn first_step(up: &Value) -> i64 {
    let pods = |policy: &Value| match policy["type"] == "Pods" {
        true => policy["value"].as_i64().unwrap_or(0),
        false => 0,
    };
    let steps = policies(up).iter().map(pods);
    match up["selectPolicy"].as_str() {
        Some("Disabled") => 0,
        // Those of an HPA are a percentage, too.
        Some("Min") => steps.min().unwrap_or(0),
        _ => steps.max().unwrap_or(FIRST_STEP),
    }
}
