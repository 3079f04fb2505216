//! Decisions in the steady state: one metric whose values change a little from evaluation to evaluation,
//! traced for the decision ledger as the control loop does.

use plimsoll::hpa::{
    self, AlignedSamples, Context, ControllerConfig, Input, Phase, Pod, PodContainer, Ready,
    Requests, Sample, Samples, Scale, ScalingHistory, Selected, Spec, Status,
};
use plimsoll::ledger::DecisionTrace;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::hint::black_box;

/// One autoscaler and its pods.
pub struct Workload {
    spec: Spec,
    names: Vec<String>,
    requests: Requests,
}

/// The number of responses that a workload cycles through.
const RESPONSES: usize = 8;

impl Workload {
    pub fn new(pods: usize, metric: Value, behavior: Value) -> Self {
        let spec = json!({
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "maxReplicas": 2 * pods, "metrics": [metric], "behavior": behavior,
        });
        let requests = BTreeMap::from([("cpu".to_owned(), "100m".parse().expect("a quantity"))]);
        let containers = vec![PodContainer { name: "app".to_owned(), requests }];
        let none = BTreeMap::new();
        Self {
            spec: Spec::from_api(&serde_json::from_value(spec).expect("a spec")),
            names: (0..pods).map(|i| format!("web-5d9c7b8f6-{i:05}")).collect(),
            requests: Requests::new(containers, Vec::new(), &none, &none),
        }
    }

    /// Hands over a function that runs the next evaluation.
    pub fn with_evaluations<T>(&self, traced: bool, run: impl FnOnce(&mut dyn FnMut()) -> T) -> T {
        let ready = Some(Ready { status: Some(true), since: 0 });
        let pods: Vec<Pod<'_>> = self
            .names
            .iter()
            .map(|name| Pod {
                name,
                phase: Phase::Running,
                deleting: false,
                start: Some(0),
                ready,
                requests: &self.requests,
            })
            .collect();
        // All within the tolerance, none equal to the one before.
        let responses: Vec<AlignedSamples> = (0..RESPONSES)
            .map(|response| {
                let items = self.names.iter().enumerate().map(|(index, name)| {
                    let wobble = ((index * 31 + response * 17) % 61) as i64 - 30;
                    let sample = Sample { milli: 80 + wobble / 10, time: i64::MAX, window_ms: 0 };
                    (name.as_str(), Some(sample))
                });
                AlignedSamples::new(&pods, items)
            })
            .collect();
        let config = ControllerConfig::default();
        let (mut history, mut status) = (ScalingHistory::default(), Status::default());
        let replicas = self.names.len() as i32;
        let mut trace = DecisionTrace::default();
        let mut tick = 0;
        let mut evaluate = || {
            tick += 1;
            let samples = [Samples::PerPod(Ok(responses[tick % RESPONSES].view()))];
            let input = Input {
                context: Context::new(
                    &self.spec,
                    &config,
                    1_000_000_000_000 + tick as i64 * 15_000,
                ),
                namespace: "shop",
                scale: Ok(Scale { spec_replicas: replicas, status_replicas: replicas }),
                selected: Selected::Pods(&pods),
                samples: &samples,
            };
            let input = black_box(&input);
            black_box(match traced {
                true => {
                    trace.clear();
                    hpa::decide(input, &mut history, &mut status, &mut trace)
                }
                false => hpa::decide(input, &mut history, &mut status, &mut ()),
            });
        };
        // Until the steady state: every window is full.
        (0..100).for_each(|_| evaluate());
        run(&mut evaluate)
    }
}

/// The names of the cases, their metric and behavior, and whether they are traced.
pub fn cases() -> [(&'static str, Value, Value, bool); 4] {
    let pods_metric = json!({"type": "Pods", "pods": {"metric": {"name": "qps"},
        "target": {"type": "AverageValue", "averageValue": "80m"}}});
    let cpu = json!({"type": "Resource", "resource": {"name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": 80}}});
    [
        ("one Pods metric", pods_metric.clone(), Value::Null, true),
        ("one Pods metric, no trace", pods_metric.clone(), Value::Null, false),
        ("one Pods metric, behavior", pods_metric, json!({"scaleUp": {}, "scaleDown": {}}), true),
        ("CPU utilization", cpu, Value::Null, true),
    ]
}
