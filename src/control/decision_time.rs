//! When a decision is made, by three clocks: the wall clock, which statuses and pods use, the
//! monotonic clock of this process, which the scaling history uses, and that of kube-apiserver, which
//! schedules and pauses go by.

use crate::clock::Clock;
use crate::hpa::ScalingHistory;
use crate::time::UnixMillis;

/// A time by both clocks.
#[derive(Clone, Copy, Debug)]
pub struct DecisionTime {
    /// By the wall clock.
    pub wall: UnixMillis,
    /// By the clock of this process.
    pub process: UnixMillis,
    /// By kube-apiserver's clock as its responses tell it, which all replicas share; before the first
    /// one, by the wall clock.
    pub server: UnixMillis,
}

impl DecisionTime {
    /// The present.
    pub fn now(clock: &Clock) -> Self {
        let wall = clock.wall_ms();
        Self { wall, process: clock.elapsed(), server: clock.server().unwrap_or(wall) }
    }

    /// A history of the process clock, by the wall clock.
    pub fn to_wall_clock(self, history: ScalingHistory) -> ScalingHistory {
        history.shifted(self.wall - self.process)
    }

    /// A history of the wall clock, by the process clock.
    pub fn to_process_clock(self, history: ScalingHistory) -> ScalingHistory {
        history.shifted(self.process - self.wall)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hpa::{
        Context, ControllerConfig, Input, Outcome, Samples, Scale, ScaleEvent, Selected, Spec,
        Status, complete_rescale, decide,
    };
    use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscalerSpec;
    use proptest::prelude::*;
    use serde_json::json;

    fn spec() -> Spec {
        let spec: HorizontalPodAutoscalerSpec = serde_json::from_value(json!({
            "minReplicas": 1, "maxReplicas": 50,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "metrics": [{"type": "External", "external": {"metric": {"name": "queue"},
                "target": {"type": "AverageValue", "averageValue": "1"}}}],
            "behavior": {
                "scaleUp": {"stabilizationWindowSeconds": 20,
                    "policies": [{"type": "Pods", "value": 4, "periodSeconds": 60}]},
                "scaleDown": {"stabilizationWindowSeconds": 90,
                    "policies": [{"type": "Percent", "value": 50, "periodSeconds": 30}]}},
        }))
        .expect("a spec");
        Spec::from_api(&spec)
    }

    /// The replicas after each tick of 15 s. A tick is the desired replicas and the offset of the wall
    /// clock.
    fn run(ticks: &[(i32, i64)]) -> Vec<i32> {
        let (spec, config) = (spec(), ControllerConfig::default());
        let (mut history, mut status) = (ScalingHistory::default(), Status::default());
        let mut replicas = 5;
        let mut after = Vec::new();
        for (tick, (wanted, off)) in ticks.iter().enumerate() {
            let process = tick as i64 * 15_000;
            let wall = 1_800_000_000_000 + process + off;
            let at = DecisionTime { wall, process, server: wall };
            let context = Context::new(&spec, &config, at.wall);
            let input = Input {
                context,
                namespace: "shop",
                scale: Ok(Scale { spec_replicas: replicas, status_replicas: replicas }),
                selected: Selected::Pods(&[]),
                samples: &[Samples::Values(Ok(&[i64::from(*wanted) * 1_000]))],
            };
            let mut read = at.to_wall_clock(history);
            let mut decision = decide(&input, &mut read, &mut status, &mut ());
            complete_rescale(context, &mut decision, Ok(()), &mut read, &mut status);
            if let Outcome::Rescale { to, .. } = decision.outcome {
                replicas = to;
            }
            history = at.to_process_clock(read);
            after.push(replicas);
        }
        after
    }

    proptest! {
        #[test]
        fn a_wall_clock_that_is_set_changes_no_decision(
            ticks in proptest::collection::vec((0..50, -100_000_000_i64..100_000_000), 1..60)
        ) {
            let steady: Vec<_> = ticks.iter().map(|(wanted, _)| (*wanted, 0)).collect();
            prop_assert_eq!(run(&ticks), run(&steady));
        }
    }

    #[test]
    fn a_history_is_the_same_after_both_conversions() {
        let ups = vec![ScaleEvent { change: 1, time: 7, outdated: false, unsure: false }];
        let history = ScalingHistory { ups, ..ScalingHistory::default() };
        let at = DecisionTime { wall: 1_000_000, process: 10, server: 1_000_000 };
        assert_eq!(at.to_wall_clock(history.clone()).ups[0].time, 999_997);
        assert_eq!(at.to_process_clock(at.to_wall_clock(history.clone())), history);
    }
}
