//! What a decision may be: the proposals of every view that a replica may have had, and the replicas that
//! follow from them with the whole history. Both come from [`plimsoll::hpa`], whose decisions are compared
//! with kube-controller-manager's elsewhere.

use crate::plan::Millis;
use plimsoll::crd::AutoscalerSpec;
use plimsoll::hpa::{
    self, AlignedSamples, ConditionKind, Context, ControllerConfig, Input, MetricSource, Outcome,
    Phase, PodContainer, Ready, Reason, Recommendation, RecordedTrace, Requests, ResourceList,
    Sample, Samples, Scale, ScaleEvent, ScalingHistory, Selected, Spec, Status,
};
use plimsoll::k8s::Quantity;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A pod as it was.
#[derive(Clone, Debug, PartialEq)]
pub struct PodView {
    /// Its name.
    pub name: String,
    /// Its phase.
    pub phase: Phase,
    /// Whether it was being deleted.
    pub deleting: bool,
    /// When it was started, by the wall clock.
    pub start: Option<i64>,
    /// Its readiness, and since when by the wall clock.
    pub ready: Option<(bool, i64)>,
}

impl PodView {
    /// Whether the replicas of a scale's status count it.
    pub fn is_active(&self) -> bool {
        !self.deleting && !matches!(self.phase, Phase::Succeeded | Phase::Failed)
    }
}

/// What Prometheus gave for one metric, in thousandths; none if that is no usable value.
#[derive(Clone, Debug, PartialEq)]
pub enum Measured {
    /// By pod.
    Pods(BTreeMap<String, i64>),
    /// One value.
    Value(Option<i64>),
}

/// A version of an autoscaler's spec.
#[derive(Debug)]
pub struct SpecView {
    /// As the API has it.
    pub api: AutoscalerSpec,
    /// As decisions read it.
    pub spec: Spec,
    /// The same with one External metric in place of all, whose value is the proposal, and no tolerance.
    proposing: Spec,
    /// The UID of its object.
    pub uid: String,
}

impl SpecView {
    /// The spec of an object.
    ///
    /// # Panics
    /// If it is invalid: the simulation writes no such spec.
    pub fn new(object: &Value, namespace: &str, scales_to_zero: bool) -> Self {
        let text = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let api = AutoscalerSpec::read(object["spec"].clone()).expect("a valid spec");
        let mut hpa = api.as_hpa(namespace, text("/metadata/name"));
        if !scales_to_zero {
            // At least one replica is desired then.
            hpa.min_replicas = hpa.min_replicas.map(|min| min.max(1));
        }
        let spec = Spec::from_api(&hpa);
        let mut proposing = serde_json::to_value(&hpa).expect("a spec of the API");
        proposing["metrics"] = json!([{"type": "External", "external": {"metric": {"name": "proposal"},
            "target": {"type": "AverageValue", "averageValue": "1"}}}]);
        let proposing = serde_json::from_value(proposing).expect("a spec of the API");
        let mut proposing = Spec::from_api(&proposing);
        if let Some(behavior) = &mut proposing.behavior {
            (behavior.scale_up.tolerance, behavior.scale_down.tolerance) = (None, None);
        }
        Self { api, spec, proposing, uid: text("/metadata/uid").to_owned() }
    }

    /// Its sync period.
    pub fn period(&self) -> Millis {
        self.api.sync_period_seconds.map_or(15_000, |seconds| i64::from(seconds) * 1000)
    }
}

/// The settings of decisions, which are Plimsoll's defaults.
pub fn config() -> ControllerConfig {
    ControllerConfig { scale_to_zero: true, ..ControllerConfig::default() }
}

/// What one evaluation may have seen.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// The spec.
    pub spec: &'a Spec,
    /// The scale: the desired replicas, and those that there are.
    pub scale: (i32, i32),
    /// The pods.
    pub pods: &'a [PodView],
    /// The requests of each pod.
    pub cpu_request: i64,
    /// The values of each metric; none if Prometheus gave no result.
    pub measured: Option<&'a [Measured]>,
    /// The wall clock of the replica, and that of Prometheus.
    pub wall: (i64, i64),
    /// Whether the workload is known to have been scaled to zero by an autoscaler.
    pub slept: bool,
}

/// The proposal of the metrics, before stabilization and limits. None if no replicas follow from them.
pub fn propose(view: &View<'_>) -> Option<i32> {
    let requests = Requests::new(
        vec![PodContainer {
            name: "app".to_owned(),
            requests: ResourceList::from([(
                "cpu".to_owned(),
                Quantity::from_milli(view.cpu_request),
            )]),
        }],
        Vec::new(),
        &ResourceList::new(),
        &ResourceList::new(),
    );
    let pods: Vec<hpa::Pod<'_>> = view
        .pods
        .iter()
        .map(|pod| hpa::Pod {
            name: &pod.name,
            phase: pod.phase,
            deleting: pod.deleting,
            start: pod.start,
            ready: pod.ready.map(|(ready, since)| Ready { status: Some(ready), since }),
            requests: &requests,
        })
        .collect();
    let (now, measured_at) = view.wall;
    let aligned: Vec<Option<AlignedSamples>> = view
        .measured
        .unwrap_or_default()
        .iter()
        .zip(view.spec.metrics.iter())
        .map(|(measured, metric)| {
            let Measured::Pods(values) = measured else { return None };
            let is_usage = matches!(metric.source, MetricSource::Resource { .. });
            let window_ms = if is_usage { 60_000 } else { 0 };
            // Usage is asked for by the names of the pods; so is every other metric.
            let sample = |pod: &hpa::Pod<'_>| {
                let milli = *values.get(pod.name)?;
                Some(Sample { milli, time: measured_at, window_ms })
            };
            Some(AlignedSamples::of_pods(pods.iter().map(sample).collect()))
        })
        .collect();
    let values: Vec<Option<[i64; 1]>> = view
        .measured
        .unwrap_or_default()
        .iter()
        .map(|measured| match measured {
            Measured::Value(value) => value.map(|value| [value]),
            Measured::Pods(_) => None,
        })
        .collect();
    let samples: Vec<Samples<'_>> = view
        .spec
        .metrics
        .iter()
        .enumerate()
        .map(|(index, metric)| match &metric.source {
            MetricSource::External { .. } => {
                let value = values.get(index).and_then(Option::as_ref);
                Samples::Values(value.map(|value| &value[..]).ok_or("no value"))
            }
            _ => {
                let aligned = aligned.get(index).and_then(Option::as_ref);
                Samples::PerPod(aligned.map(AlignedSamples::view).ok_or("no value"))
            }
        })
        .collect();
    let config = config();
    let input = Input {
        context: Context::new(view.spec, &config, now),
        namespace: "",
        scale: Ok(Scale { spec_replicas: view.scale.0, status_replicas: view.scale.1 }),
        selected: Selected::Pods(&pods),
        samples: &samples,
    };
    let mut status = slept(view.slept, now);
    let mut trace = RecordedTrace::default();
    hpa::decide(&input, &mut ScalingHistory::default(), &mut status, &mut trace);
    trace.steps.iter().find_map(|step| match step {
        hpa::Step::Proposed { replicas, .. } => Some(*replicas),
        _ => None,
    })
}

fn slept(slept: bool, now: i64) -> Status {
    let mut status = Status::default();
    if slept {
        status.set(ConditionKind::ScaledToZero, true, Reason::ScaledToZero, format_args!(""), now);
    }
    status
}

/// The history that a decision must know, by the wall clock.
#[derive(Clone, Debug, Default)]
pub struct Past {
    /// Recommendations and when.
    pub recommendations: Vec<(i32, i64)>,
    /// Changes of the scale: from, to, and when.
    pub changes: Vec<(i32, i32, i64)>,
}

/// The replicas that follow from a proposal for a scale, with a history.
pub fn decide(
    spec: &SpecView,
    replicas: i32,
    proposal: i32,
    past: &Past,
    was_slept: bool,
    now: i64,
) -> i32 {
    let mut config = config();
    config.tolerance = 0.0;
    let event = |change: i32, time| ScaleEvent { change, time, outdated: false, unsure: false };
    let mut history = ScalingHistory::default();
    let recommended = past.recommendations.iter();
    history.recommendations =
        recommended.map(|&(replicas, time)| Recommendation { replicas, time }).collect();
    for &(from, to, time) in &past.changes {
        match to > from {
            true => history.ups.push(event(to - from, time)),
            false => history.downs.push(event(from - to, time)),
        }
    }
    let values = [i64::from(proposal) * 1000];
    let input = Input {
        context: Context::new(&spec.proposing, &config, now),
        namespace: "",
        scale: Ok(Scale { spec_replicas: replicas, status_replicas: replicas }),
        selected: Selected::Pods(&[]),
        samples: &[Samples::Values(Ok(&values))],
    };
    let mut status = slept(was_slept, now);
    match hpa::decide(&input, &mut history, &mut status, &mut ()).outcome {
        Outcome::Rescale { to, .. } => to,
        Outcome::Hold | Outcome::Failed => replicas,
    }
}

/// A spec view that is shared by what refers to it.
pub type SharedSpec = Arc<SpecView>;
