//! The ScaledObjects of KEDA's own tests, converted.

use super::*;
use crate::hpa::{
    Context, ControllerConfig, Input, Outcome, Samples, Scale, ScalingHistory, Selected, Spec,
    Status, decide,
};
use crate::watch::read_autoscaler;

const CORPUS: &str = include_str!("../../../tests/data/keda-scaledobjects.yaml");

fn scaled_objects() -> Vec<Value> {
    objects::parse(CORPUS).expect("YAML")
}

/// The HorizontalPodAutoscaler that KEDA makes of a ScaledObject with nothing but Prometheus triggers;
/// none of another. Source: `newHPAForScaledObject` of KEDA 2.21.
fn keda_hpa(object: &Value) -> Option<Spec> {
    let spec = &object["spec"];
    let triggers = spec["triggers"].as_array()?;
    let metric = |(index, trigger): (usize, &Value)| {
        (trigger["type"] == "prometheus").then(|| {
            let threshold = match &trigger["metadata"]["threshold"] {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            json!({"type": "External", "external": {
                "metric": {"name": format!("s{index}-prometheus")},
                "target": {"type": "AverageValue", "averageValue": threshold}}})
        })
    };
    let metrics: Option<Vec<Value>> = triggers.iter().enumerate().map(metric).collect();
    let mut hpa = json!({
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "minReplicas": spec["minReplicaCount"].as_i64().unwrap_or(0).max(1),
        "maxReplicas": spec["maxReplicaCount"].as_i64().unwrap_or(100),
        "metrics": metrics?,
    });
    let behavior = spec.pointer("/advanced/horizontalPodAutoscalerConfig/behavior");
    if let Some(behavior) = behavior.filter(|behavior| behavior.is_object()) {
        hpa["behavior"] = behavior.clone();
    }
    Some(Spec::from_api(&serde_json::from_value(hpa).expect("an HPA")))
}

/// The replicas over time with these totals, in milli-units, for all metrics.
fn replicas(spec: &Spec, totals: &[i64]) -> Vec<i32> {
    let config = ControllerConfig { scale_to_zero: true, ..Default::default() };
    let (mut history, mut status) = (ScalingHistory::default(), Status::default());
    let mut now_has = 1;
    let decided = totals.iter().enumerate().map(|(tick, total)| {
        let values = [*total];
        let samples = vec![Samples::Values(Ok(&values)); spec.metrics.len()];
        let input = Input {
            context: Context::new(spec, &config, tick as i64 * 15_000),
            namespace: "shop",
            scale: Ok(Scale { spec_replicas: now_has, status_replicas: now_has }),
            selected: Selected::Pods(&[]),
            samples: &samples,
        };
        let mut decision = decide(&input, &mut history, &mut status, &mut ());
        if let Outcome::Rescale { to, .. } = decision.outcome {
            now_has = to;
            let context = input.context;
            crate::hpa::complete_rescale(context, &mut decision, Ok(()), &mut history, &mut status);
        }
        now_has
    });
    decided.collect()
}

#[test]
fn each_is_converted() {
    let mut converted = Converted::default();
    convert(CORPUS, &mut converted).expect("YAML");
    assert_eq!(converted.errors, [""; 0]);
    assert_eq!(converted.objects.len(), scaled_objects().len());
    assert!(converted.objects.len() > 20);
}

#[test]
fn each_scales_as_kedas_hpa_does() {
    let mut compared = 0;
    for object in scaled_objects() {
        let Some(theirs) = keda_hpa(&object) else { continue };
        let mut converted = Converted::default();
        convert_object(&object, &mut converted);
        let ours = serde_json::from_value(converted.objects[0].clone()).expect("an object");
        let mut ours = read_autoscaler(ours, None).parsed.expect("a spec").scaling.spec.clone();
        // Each total is more than 0, where KEDA leaves the replicas to its HPA. The windows differ by
        // `cooldownPeriod`, which KEDA has for zero alone.
        ours.behavior.clone_from(&theirs.behavior);
        let mut seed = 1_u64;
        let totals: Vec<i64> = (0..400)
            .map(|tick| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let level = if tick % 100 < 50 { 20_000 } else { 400_000 };
                1 + (seed >> 33) as i64 % level
            })
            .collect();
        assert_eq!(replicas(&ours, &totals), replicas(&theirs, &totals), "{object}");
        compared += 1;
    }
    assert!(compared >= 8, "{compared}");
}
