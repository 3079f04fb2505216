//! The invariants of every decision, for any input; checked over scenarios made from arbitrary
//! bytes. The property tests and the fuzz target share it.

use arbitrary::{Arbitrary, Result, Unstructured};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscalerSpec;
use plimsoll::hpa::{
    self, AlignedSamples, Context, ControllerConfig, Decision, Input, MetricSource, Outcome, Phase,
    Pod, PodContainer, Ready, RecordedTrace, Requests, Sample, Samples, Scale, ScalingHistory,
    Selected, Spec, Status,
};
use plimsoll::time::UnixMillis;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const START: UnixMillis = 946_684_800_000;

/// Makes a scenario from bytes, decides its ticks, and checks each decision.
pub fn check(bytes: &[u8]) {
    // Too few bytes make no scenario, which is no fault.
    let _ = Scenario::arbitrary(&mut Unstructured::new(bytes)).map(|scenario| scenario.run());
}

/// Some ticks of one autoscaler.
#[derive(Debug)]
pub struct Scenario {
    spec: Spec,
    config: ControllerConfig,
    replicas: i32,
    ticks: Vec<Tick>,
}

#[derive(Debug)]
struct Tick {
    /// Since the tick before, in ms.
    after: i64,
    pods: Vec<PodState>,
    samples: Vec<SampleResponse>,
    /// Whether writing the scale works.
    writable: bool,
    /// Replicas that another writer sets before this tick.
    manual_scale: Option<i32>,
    /// How many pods more, or fewer, the workload has than its scale has replicas.
    behind: i32,
    /// Whether the process restarts before this tick, with the checkpoint of its history.
    restart: bool,
}

#[derive(Debug)]
struct PodState {
    phase: Phase,
    deleting: bool,
    start: Option<UnixMillis>,
    ready: Option<Ready>,
    requests: Requests,
}

#[derive(Debug)]
enum SampleResponse {
    Failed,
    Values(Vec<Option<Sample>>),
}

impl<'a> Arbitrary<'a> for Scenario {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let spec = spec(u)?;
        let spec: HorizontalPodAutoscalerSpec = serde_json::from_value(spec).expect("a spec");
        let spec = Spec::from_api(&spec);
        let config = ControllerConfig {
            tolerance: f64::from(u.int_in_range(0..=50)?) / 100.0,
            downscale_stabilization_seconds: u.int_in_range(0..=600)?,
            scale_to_zero: u.arbitrary()?,
            ..ControllerConfig::default()
        };
        let replicas = u.int_in_range(0..=30)?;
        let ticks = (0..u.int_in_range(1..=12)?)
            .map(|_| Tick::arbitrary(u, spec.metrics.len()))
            .collect::<Result<_>>()?;
        Ok(Self { spec, config, replicas, ticks })
    }
}

/// How a tick is decided.
#[derive(Clone, Copy)]
struct View {
    replicas: i32,
    now: UnixMillis,
    order: Order,
    /// By how many ms all times are moved.
    later: i64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Listed,
    Reversed,
}

impl PodState {
    fn moved(&self, by: i64) -> Self {
        let ready = self.ready.map(|ready| Ready { since: ready.since + by, ..ready });
        let start = self.start.map(|start| start + by);
        let Self { phase, deleting, .. } = *self;
        Self { phase, deleting, start, ready, requests: self.requests.clone() }
    }
}

/// A history as another process restores it from a checkpoint.
fn restored(history: &ScalingHistory, now: UnixMillis) -> ScalingHistory {
    let text = serde_json::to_string(&history.essential(now, LONGEST)).expect("JSON");
    serde_json::from_str(&text).expect("a history")
}

/// Longer than any window or period of a scenario.
const LONGEST: i64 = 3_600_000;

fn move_history(history: &mut ScalingHistory, by: i64) {
    history.recommendations.iter_mut().for_each(|r| r.time += by);
    history.ups.iter_mut().chain(&mut history.downs).for_each(|event| event.time += by);
}

impl Tick {
    fn arbitrary(u: &mut Unstructured<'_>, metrics: usize) -> Result<Self> {
        let pods: Vec<PodState> =
            (0..u.int_in_range(0..=8)?).map(|_| pod(u)).collect::<Result<_>>()?;
        let samples = (0..metrics).map(|_| response(u, pods.len() + 2)).collect::<Result<_>>()?;
        let manual_scale = if u.ratio(1, 8)? { Some(u.int_in_range(0..=30)?) } else { None };
        let after = *u.choose(&[0, 1_000, 15_000, 15_000, 60_000, 3_600_000])?;
        let behind = if u.ratio(1, 4)? { u.int_in_range(-3..=3)? } else { 0 };
        let (writable, restart) = (!u.ratio(1, 8)?, u.ratio(1, 4)?);
        Ok(Self { after, pods, samples, writable, manual_scale, behind, restart })
    }
}

fn spec(u: &mut Unstructured<'_>) -> Result<Value> {
    let min: i32 = u.int_in_range(0..=10)?;
    let max = u.int_in_range(min.max(1)..=30)?;
    let metrics: Vec<Value> =
        (0..u.int_in_range(1..=3)?).map(|_| metric(u)).collect::<Result<_>>()?;
    let mut spec = json!({
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "minReplicas": min, "maxReplicas": max, "metrics": metrics,
    });
    if u.arbitrary()? {
        spec["behavior"] = json!({"scaleUp": rules(u)?, "scaleDown": rules(u)?});
    }
    Ok(spec)
}

fn metric(u: &mut Unstructured<'_>) -> Result<Value> {
    let value = format!("{}m", u.int_in_range(1..=100_000_i64)?);
    let average = json!({"type": "AverageValue", "averageValue": value});
    let total = json!({"type": "Value", "value": value});
    let share = json!({"type": "Utilization", "averageUtilization": u.int_in_range(1..=200)?});
    let id = json!({"name": "m"});
    let object = json!({"kind": "Ingress", "name": "main"});
    Ok(match u.int_in_range(0..=7)? {
        0 | 1 => json!({"type": "Pods", "pods": {"metric": id, "target": average}}),
        2 => json!({"type": "Resource", "resource": {"name": "cpu", "target": share}}),
        3 => json!({"type": "Resource", "resource": {"name": "memory", "target": average}}),
        4 => json!({"type": "ContainerResource",
            "containerResource": {"name": "cpu", "container": "app", "target": share}}),
        5 => json!({"type": "Object",
            "object": {"metric": id, "describedObject": object, "target": total}}),
        6 => json!({"type": "External", "external": {"metric": id, "target": average}}),
        _ => json!({"type": "External", "external": {"metric": id, "target": total}}),
    })
}

fn rules(u: &mut Unstructured<'_>) -> Result<Value> {
    let policy = |u: &mut Unstructured<'_>| -> Result<Value> {
        Ok(json!({
            "type": u.choose(&["Pods", "Percent"])?,
            "value": u.int_in_range(1..=200)?,
            "periodSeconds": u.int_in_range(1..=1800)?,
        }))
    };
    let policies: Vec<Value> =
        (0..u.int_in_range(1..=3)?).map(|_| policy(u)).collect::<Result<_>>()?;
    Ok(json!({
        "stabilizationWindowSeconds": u.int_in_range(0..=600)?,
        "selectPolicy": u.choose(&["Max", "Min", "Disabled"])?,
        "policies": policies,
    }))
}

fn pod(u: &mut Unstructured<'_>) -> Result<PodState> {
    let phases = [Phase::Running, Phase::Running, Phase::Pending, Phase::Failed, Phase::Succeeded];
    let time = |u: &mut Unstructured<'_>| -> Result<UnixMillis> {
        Ok(START - u.int_in_range(-60..=1_000)? * 1000)
    };
    let start = if u.ratio(7, 8)? { Some(time(u)?) } else { None };
    let status = *u.choose(&[Some(true), Some(true), Some(false), None])?;
    let ready = if u.ratio(7, 8)? { Some(Ready { status, since: time(u)? }) } else { None };
    let mut requests = BTreeMap::new();
    if u.ratio(7, 8)? {
        let milli = u.int_in_range(0..=2_000)?;
        requests.insert("cpu".to_owned(), format!("{milli}m").parse().expect("a quantity"));
    }
    let containers = vec![PodContainer { name: "app".to_owned(), requests }];
    let requests = Requests::new(containers, Vec::new(), &BTreeMap::new(), &BTreeMap::new());
    Ok(PodState { phase: *u.choose(&phases)?, deleting: u.ratio(1, 8)?, start, ready, requests })
}

fn response(u: &mut Unstructured<'_>, most: usize) -> Result<SampleResponse> {
    if u.ratio(1, 6)? {
        return Ok(SampleResponse::Failed);
    }
    let sample = |u: &mut Unstructured<'_>| -> Result<Option<Sample>> {
        if u.ratio(1, 6)? {
            return Ok(None);
        }
        let milli = if u.ratio(1, 32)? { u.arbitrary()? } else { u.int_in_range(0..=500_000)? };
        let time = START + u.int_in_range(-60..=60)? * 1000;
        Ok(Some(Sample { milli, time, window_ms: u.int_in_range(0..=60)? * 1000 }))
    };
    Ok(SampleResponse::Values((0..most).map(|_| sample(u)).collect::<Result<_>>()?))
}

impl Scenario {
    fn run(&self) {
        let (mut history, mut status) = (ScalingHistory::default(), Status::default());
        let (mut restored_history, mut restored_status) =
            (ScalingHistory::default(), Status::default());
        let (mut replicas, mut now) = (self.replicas, START);
        for tick in &self.ticks {
            now += tick.after;
            replicas = tick.manual_scale.unwrap_or(replicas);
            if tick.restart {
                let restored = restored(&restored_history, now);
                // Without history a process first keeps the replicas, which is expected.
                if !restored.recommendations.is_empty() {
                    restored_history = restored;
                }
            }
            let mut worlds = [(); 3].map(|()| (history.clone(), status.clone()));
            let mut trace = RecordedTrace::default();
            let as_it_is = View { replicas, now, order: Order::Listed, later: 0 };
            let decision = self.decide(tick, &as_it_is, &mut history, &mut status, &mut trace);
            // The same input has the same output, with or without a trace.
            let [(again, again_status), shuffled, later] = &mut worlds;
            let same = self.decide(tick, &as_it_is, again, again_status, &mut ());
            assert_eq!((&decision, &history, &status), (&same, &*again, &*again_status));
            // In any order of pods.
            let view = View { order: Order::Reversed, ..as_it_is };
            let turned = self.decide(tick, &view, &mut shuffled.0, &mut shuffled.1, &mut ());
            assert_eq!(decision.outcome, turned.outcome, "pods in another order: {self:#?}");
            assert_eq!(history, shuffled.0, "pods in another order: {self:#?}");
            // At any time.
            let view = View { later: 86_400_000, ..as_it_is };
            move_history(&mut later.0, view.later);
            let moved = self.decide(tick, &view, &mut later.0, &mut later.1, &mut ());
            move_history(&mut later.0, -view.later);
            assert_eq!(decision.outcome, moved.outcome, "a day later: {self:#?}");
            assert_eq!(history, later.0, "a day later: {self:#?}");
            // And after a restart of the process.
            let (restored_history, restored_status) = (&mut restored_history, &mut restored_status);
            let restarted =
                self.decide(tick, &as_it_is, restored_history, restored_status, &mut ());
            assert_eq!(
                (&decision, &status),
                (&restarted, &*restored_status),
                "after a restart: {self:#?}"
            );
            self.check(tick, replicas, &decision, &trace);
            if let (Outcome::Rescale { to, .. }, true) = (&decision.outcome, tick.writable) {
                replicas = *to;
            }
        }
    }

    fn decide(
        &self,
        tick: &Tick,
        view: &View,
        history: &mut ScalingHistory,
        status: &mut Status,
        trace: &mut impl hpa::Trace,
    ) -> Decision {
        let View { replicas, now, order, later } = *view;
        let now = now + later;
        let names: Vec<String> = (0..tick.pods.len() + 2).map(|i| format!("web-{i}")).collect();
        let pod = |(pod, name): (&'_ PodState, &'_ String)| (pod.moved(later), name.clone());
        let mut listed: Vec<(PodState, String)> = tick.pods.iter().zip(&names).map(pod).collect();
        if order == Order::Reversed {
            listed.reverse();
        }
        let pods: Vec<Pod<'_>> = listed
            .iter()
            .map(|(pod, name)| Pod {
                name,
                phase: pod.phase,
                deleting: pod.deleting,
                start: pod.start,
                ready: pod.ready,
                requests: &pod.requests,
            })
            .collect();
        let items = |values: &[Option<Sample>]| {
            let moved = |sample: Sample| Sample { time: sample.time + later, ..sample };
            let values = values.iter().map(|sample| sample.map(moved));
            AlignedSamples::new(&pods, names.iter().map(String::as_str).zip(values))
        };
        let laid: Vec<(Option<AlignedSamples>, Vec<i64>)> = tick
            .samples
            .iter()
            .map(|response| match response {
                SampleResponse::Failed => (None, Vec::new()),
                SampleResponse::Values(values) => {
                    (Some(items(values)), values.iter().flatten().map(|s| s.milli).collect())
                }
            })
            .collect();
        let samples: Vec<Samples<'_>> = self
            .spec
            .metrics
            .iter()
            .zip(&laid)
            .map(|(metric, (aligned, values))| match &metric.source {
                MetricSource::Object { .. } => {
                    Samples::Value(values.first().copied().ok_or("no value"))
                }
                MetricSource::External { .. } => match aligned {
                    Some(_) => Samples::Values(Ok(values)),
                    None => Samples::Values(Err("it failed")),
                },
                _ => Samples::PerPod(aligned.as_ref().map(AlignedSamples::view).ok_or("it failed")),
            })
            .collect();
        let context = Context::new(&self.spec, &self.config, now);
        let input = Input {
            context,
            namespace: "shop",
            scale: Ok(Scale {
                spec_replicas: replicas,
                status_replicas: (replicas + tick.behind).max(0),
            }),
            selected: Selected::Pods(&pods),
            samples: &samples,
        };
        let mut decision = hpa::decide(&input, history, status, trace);
        let written = if tick.writable { Ok(()) } else { Err("it is not writable") };
        hpa::complete_rescale(context, &mut decision, written, history, status);
        decision
    }

    fn check(&self, tick: &Tick, replicas: i32, decision: &Decision, trace: &RecordedTrace) {
        let (min, max) = (self.spec.min_replicas, self.spec.max_replicas);
        if let Outcome::Rescale { from, to, .. } = decision.outcome {
            assert!((min..=max).contains(&to), "{from} to {to}, outside {min} to {max}: {self:#?}");
            assert_eq!(from, replicas);
            assert_ne!(from, to);
            // Only a scale above the maximum goes down without metrics.
            let one_failed =
                tick.samples.iter().any(|response| matches!(response, SampleResponse::Failed));
            assert!(
                to > from || from > max || !one_failed,
                "down from {from} to {to} while a metric fails: {self:#?}"
            );
        }
        for (index, metric) in &trace.metrics {
            let counted = metric.ready + metric.unready + metric.missing + metric.ignored;
            let per_pod = matches!(
                self.spec.metrics[*index].source,
                MetricSource::Pods { .. }
                    | MetricSource::Resource { .. }
                    | MetricSource::ContainerResource { .. }
            );
            if per_pod && metric.proposal.is_some() {
                assert_eq!(counted, tick.pods.len() as i64, "each pod counts once: {metric:?}");
            }
        }
    }
}
