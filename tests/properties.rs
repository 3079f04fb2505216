//! What the corpus of the real controller can't show: the invariants of every decision, and that
//! no history grows without bound.

mod invariants;

use plimsoll::hpa::{
    self, AlignedSamples, Context, ControllerConfig, Input, Outcome, Phase, Pod, Ready, Requests,
    Sample, Samples, Scale, ScalingHistory, Selected, Spec, Status,
};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn every_decision_keeps_the_invariants(bytes in prop::collection::vec(any::<u8>(), 64..2048)) {
        invariants::check(&bytes);
    }

    #[test]
    fn more_load_never_gives_fewer_replicas(
        values in prop::collection::vec(prop::option::weighted(0.9, 0..40_000_i64), 1..12),
        index in any::<prop::sample::Index>(),
        more in 0..40_000_i64,
        target in 1..30_i64,
    ) {
        let before = wanted(&values, target);
        let mut loaded = values.clone();
        let value = index.get(&values);
        loaded[index.index(values.len())] = value.map(|value| value + more);
        let after = wanted(&loaded, target);
        prop_assert!(after >= before, "{before} for {values:?}, {after} for {loaded:?}");
    }

    #[test]
    fn any_spec_that_is_json_is_read_without_a_panic(text in "\\PC*") {
        let quoted = serde_json::json!({"maxReplicas": 1, "scaleTargetRef": {"kind": text, "name": text},
            "metrics": [{"type": text}, {"type": "Pods", "pods": {"metric": {"name": text,
                "selector": {"matchExpressions": [{"key": text, "operator": text}]}},
                "target": {"type": text, "averageValue": text}}}]});
        if let Ok(spec) = serde_json::from_value(quoted) {
            Spec::from_api(&spec);
        }
    }
}

/// The replicas that the first decision wants, by the value of each pod in milli-units.
fn wanted(values: &[Option<i64>], target: i64) -> i32 {
    let spec = serde_json::json!({
        "scaleTargetRef": {"kind": "Deployment", "name": "web"}, "maxReplicas": 1000,
        "metrics": [{"type": "Pods", "pods": {"metric": {"name": "qps"},
            "target": {"type": "AverageValue", "averageValue": target.to_string()}}}],
        "behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 1000, "periodSeconds": 15}]},
            "scaleDown": {"stabilizationWindowSeconds": 0}},
    });
    let spec = Spec::from_api(&serde_json::from_value(spec).expect("a spec"));
    let (config, requests) = (ControllerConfig::default(), Requests::default());
    let names: Vec<String> = (0..values.len()).map(|n| format!("web-{n}")).collect();
    let pod = |name| Pod {
        name,
        phase: Phase::Running,
        deleting: false,
        start: Some(0),
        ready: Some(Ready { status: Some(true), since: 0 }),
        requests: &requests,
    };
    let pods: Vec<Pod<'_>> = names.iter().map(|name| pod(name.as_str())).collect();
    let sample = |milli: &Option<i64>| milli.map(|milli| Sample { milli, time: 0, window_ms: 0 });
    let named = names.iter().map(String::as_str).zip(values.iter().map(sample));
    let aligned = AlignedSamples::new(&pods, named);
    let replicas = values.len() as i32;
    let input = Input {
        context: Context::new(&spec, &config, 0),
        namespace: "shop",
        scale: Ok(Scale { spec_replicas: replicas, status_replicas: replicas }),
        selected: Selected::Pods(&pods),
        samples: &[Samples::PerPod(Ok(aligned.view()))],
    };
    let (mut history, mut status) = (ScalingHistory::default(), Status::default());
    match hpa::decide(&input, &mut history, &mut status, &mut ()).outcome {
        Outcome::Rescale { to, .. } => to,
        _ => replicas,
    }
}

/// Decides `ticks` times, second by second, for one autoscaler whose load wobbles.
fn decide_often(ticks: i64, behavior: serde_json::Value) -> ScalingHistory {
    let spec = serde_json::json!({
        "scaleTargetRef": {"kind": "Deployment", "name": "web"}, "maxReplicas": 50,
        "metrics": [{"type": "Pods", "pods": {"metric": {"name": "qps"},
            "target": {"type": "AverageValue", "averageValue": "10"}}}],
        "behavior": behavior,
    });
    let spec = Spec::from_api(&serde_json::from_value(spec).expect("a spec"));
    let config = ControllerConfig::default();
    let requests = Requests::default();
    let ready = Some(Ready { status: Some(true), since: 0 });
    let pod = |name| Pod {
        name,
        phase: Phase::Running,
        deleting: false,
        start: Some(0),
        ready,
        requests: &requests,
    };
    let pods = [pod("a"), pod("b")];
    let (mut history, mut status) = (ScalingHistory::default(), Status::default());
    let (mut replicas, mut random) = (2, 1_u64);
    for tick in 0..ticks {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let milli = (random >> 33) as i64 % 40_000;
        let sample = Some(Sample { milli, time: tick * 1000, window_ms: 0 });
        let aligned = AlignedSamples::new(&pods, [("a", sample), ("b", sample)]);
        let context = Context::new(&spec, &config, tick * 1000);
        let input = Input {
            context,
            namespace: "shop",
            scale: Ok(Scale { spec_replicas: replicas, status_replicas: replicas }),
            selected: Selected::Pods(&pods),
            samples: &[Samples::PerPod(Ok(aligned.view()))],
        };
        let mut decision = hpa::decide(&input, &mut history, &mut status, &mut ());
        hpa::complete_rescale(context, &mut decision, Ok(()), &mut history, &mut status);
        if let Outcome::Rescale { to, .. } = decision.outcome {
            replicas = to;
        }
    }
    history
}

#[test]
fn the_history_stays_bounded_over_a_million_ticks() {
    // One entry a second within the longest window, and the one being replaced.
    let plain = decide_often(1_000_000, serde_json::Value::Null);
    assert!(plain.recommendations.len() <= 302, "{}", plain.recommendations.len());
    assert!(plain.ups.is_empty() && plain.downs.is_empty());
    let policies = serde_json::json!([{"type": "Percent", "value": 100, "periodSeconds": 60}]);
    let rules = serde_json::json!({"stabilizationWindowSeconds": 10, "policies": policies});
    let behaved =
        decide_often(1_000_000, serde_json::json!({"scaleUp": rules, "scaleDown": rules}));
    assert!(behaved.recommendations.len() <= 12, "{}", behaved.recommendations.len());
    assert!(behaved.ups.len() <= 62 && behaved.downs.len() <= 62, "{behaved:?}");
    assert!(!behaved.ups.is_empty() && !behaved.downs.is_empty());
}
