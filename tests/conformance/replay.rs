//! Replays a scenario: Plimsoll's decision at every tick, from what the real controller saw.

use crate::scenario::{
    ExternalResponse, ObjectResponse, Scenario, Template, TemplateContainer, Tick,
};
use plimsoll::hpa::{
    self, AlignedSamples, Context, ControllerConfig, Input, MetricSource, Outcome, Phase, Pod,
    PodContainer, Ready, Requests, Sample, Samples, Scale, ScalingHistory, Selected, Spec, Status,
};
use plimsoll::k8s::{LabelSet, Quantity, Selector};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};

/// 2000-01-01T00:00:00Z, where every scenario starts.
const START: i64 = 946_684_800_000;

fn quantity(text: &str) -> Quantity {
    text.parse().expect("a quantity")
}

fn requests(template: &Template) -> Requests {
    let list = |requests: &BTreeMap<String, String>| {
        requests.iter().map(|(name, value)| (name.clone(), quantity(value))).collect()
    };
    let container =
        |c: &TemplateContainer| PodContainer { name: c.name.clone(), requests: list(&c.requests) };
    let (sidecars, containers): (Vec<_>, Vec<_>) =
        template.containers.iter().partition(|container| container.sidecar);
    let pod = template.pod_requests.as_ref().map(list).unwrap_or_default();
    Requests::new(
        containers.into_iter().map(container).collect(),
        sidecars.into_iter().map(|sidecar| (container(sidecar), true)).collect(),
        &pod,
        &Default::default(),
    )
}

/// The samples of one metric; [`Samples`] borrows from it during a decision.
enum OwnedSamples {
    PerPod(Result<AlignedSamples, String>),
    Value(Result<i64, String>),
    Values(Result<Vec<i64>, String>),
}

impl OwnedSamples {
    fn view(&self) -> Samples<'_> {
        match self {
            Self::PerPod(samples) => {
                Samples::PerPod(samples.as_ref().map(AlignedSamples::view).map_err(String::as_str))
            }
            Self::Value(value) => Samples::Value(value.as_ref().copied().map_err(String::as_str)),
            Self::Values(values) => {
                Samples::Values(values.as_ref().map(Vec::as_slice).map_err(String::as_str))
            }
        }
    }
}

impl Tick {
    /// The samples of a metric at this tick.
    fn samples(&self, source: &MetricSource, pods: &[Pod<'_>]) -> OwnedSamples {
        match source {
            MetricSource::Pods { metric, .. } => {
                OwnedSamples::PerPod(self.custom_samples(&metric.name, pods))
            }
            MetricSource::Resource { name, .. } => {
                OwnedSamples::PerPod(self.resource_samples(name, None, pods))
            }
            MetricSource::ContainerResource { name, container, .. } => {
                OwnedSamples::PerPod(self.resource_samples(name, Some(container), pods))
            }
            MetricSource::Object { metric, .. } => {
                let missing = format!("the server could not find the metric {}", metric.name);
                OwnedSamples::Value(match self.object.get(&metric.name) {
                    Some(ObjectResponse { error: Some(error), .. }) => Err(error.clone()),
                    Some(ObjectResponse { value: Some(value), .. }) => Ok(quantity(value).milli()),
                    _ => Err(missing),
                })
            }
            MetricSource::External { metric, .. } => {
                let missing = format!("the server could not find the metric {}", metric.name);
                OwnedSamples::Values(match self.external.get(&metric.name) {
                    Some(ExternalResponse { error: Some(error), .. }) => Err(error.clone()),
                    Some(ExternalResponse { values, .. }) => {
                        Ok(values.iter().flatten().map(|value| quantity(value).milli()).collect())
                    }
                    None => Err(missing),
                })
            }
            MetricSource::Unknown(_) => OwnedSamples::Value(Err(String::new())),
        }
    }

    fn custom_samples(&self, name: &str, pods: &[Pod<'_>]) -> Result<AlignedSamples, String> {
        let Some(answer) = self.custom.get(name) else {
            return Err(format!("the server could not find the metric {name} for pods"));
        };
        if let Some(error) = &answer.error {
            return Err(error.clone());
        }
        let items = answer.items.iter().flatten().map(|item| {
            let sample = Sample {
                milli: quantity(&item.value).milli(),
                time: START + item.time * 1000,
                window_ms: item.window.unwrap_or(60) * 1000,
            };
            (item.pod.as_str(), Some(sample))
        });
        Ok(AlignedSamples::new(pods, items))
    }

    fn resource_samples(
        &self,
        resource: &str,
        container: Option<&str>,
        pods: &[Pod<'_>],
    ) -> Result<AlignedSamples, String> {
        let Some(answer) = &self.resource else { return Ok(AlignedSamples::default()) };
        if let Some(error) = &answer.error {
            return Err(error.clone());
        }
        let items = answer.items.iter().flatten().map(|item| {
            let containers = item
                .containers
                .iter()
                .flatten()
                .map(|c| (c.name.as_str(), c.usage.get(resource).map(|usage| quantity(usage))));
            let sample = hpa::resource_usage(containers, container).map(|milli| Sample {
                milli,
                time: START + item.time * 1000,
                window_ms: item.window * 1000,
            });
            (item.pod.as_str(), sample)
        });
        Ok(AlignedSamples::new(pods, items))
    }
}

/// The `/scale` target as discovery in the scenario's cluster resolves it.
fn target_error(spec: &Spec) -> Option<String> {
    let group = match hpa::parse_group(&spec.target.api_version) {
        Ok(group) => group,
        Err(error) => return Some(error),
    };
    let known =
        group == "apps" && matches!(spec.target.kind.as_str(), "Deployment" | "StatefulSet");
    (!known).then(|| hpa::no_kind_match(&spec.target.kind, group))
}

/// Replays a scenario; returns the outcome of every tick, in the form of `out`.
pub fn replay(scenario: &Scenario) -> Vec<Value> {
    let config = ControllerConfig {
        tolerance: scenario.config.tolerance,
        downscale_stabilization_seconds: scenario.config.downscale_stabilization_seconds,
        cpu_initialization_ms: scenario.config.cpu_initialization_seconds * 1000,
        initial_readiness_delay_ms: scenario.config.initial_readiness_delay_seconds * 1000,
        scale_to_zero: scenario.gates.iter().any(|gate| gate == "HPAScaleToZero"),
    };
    let templates: HashMap<&str, Requests> =
        scenario.templates.iter().map(|(name, t)| (name.as_str(), requests(t))).collect();
    let nothing = Requests::default();
    let own_key = format!("{}/{}", scenario.namespace, scenario.name);
    let others: Vec<(String, Selector)> = scenario
        .other_autoscalers
        .iter()
        .map(|other| {
            let key = format!("{}/{}", scenario.namespace, other.name);
            (key, other.selector.parse().expect("a selector"))
        })
        .collect();

    let (mut history, mut status) = (ScalingHistory::default(), Status::default());
    let mut spec = None;
    let mut results = Vec::new();
    for tick in &scenario.ticks {
        if let Some(given) = &tick.spec {
            spec = Some(Spec::from_api(given));
        }
        let spec = spec.as_ref().expect("the first tick has a spec");
        let selector: Result<Selector, _> = tick.scale.selector.parse();
        let empty = LabelSet::new();
        let mut labels = Vec::new();
        let mut pods = Vec::new();
        for pod in tick.pods.iter().flatten() {
            let own = pod.labels.as_ref().unwrap_or(&scenario.pod_labels);
            let label = |key: &str| own.get(key);
            if !selector.as_ref().is_ok_and(|s| s.matches(label)) {
                continue;
            }
            labels.push(if own.is_empty() { &empty } else { own });
            pods.push(Pod {
                name: &pod.name,
                phase: Phase::from_api(pod.phase.as_deref()),
                deleting: pod.deleting,
                start: pod.start.map(|start| START + start * 1000),
                ready: pod.ready.as_ref().map(|ready| Ready {
                    status: match ready.status.as_str() {
                        "True" => Some(true),
                        "False" => Some(false),
                        _ => None,
                    },
                    since: START + ready.since * 1000,
                }),
                requests: templates
                    .get(pod.template.as_deref().unwrap_or("main"))
                    .unwrap_or(&nothing),
            });
        }
        let broken = selector.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let autoscalers = match &selector {
            Ok(own) => hpa::selecting_autoscalers(
                &labels,
                others.iter().map(|(key, selector)| (key, selector)).chain([(&own_key, own)]),
            )
            .into_iter()
            .cloned()
            .collect(),
            Err(_) => Vec::new(),
        };
        let selected = if tick.scale.selector.is_empty() {
            Selected::Missing
        } else if selector.is_err() {
            Selected::Invalid(&broken)
        } else if autoscalers.len() > 1 {
            Selected::Ambiguous { selector: &tick.scale.selector, autoscalers: &autoscalers }
        } else {
            Selected::Pods(&pods)
        };
        let owned: Vec<OwnedSamples> =
            spec.metrics.iter().map(|metric| tick.samples(&metric.source, &pods)).collect();
        let samples: Vec<Samples<'_>> = owned.iter().map(OwnedSamples::view).collect();
        let scale_error = target_error(spec).or_else(|| tick.scale.error.clone());
        let input = Input {
            namespace: &scenario.namespace,
            context: Context::new(spec, &config, START + tick.t * 1000),
            scale: match &scale_error {
                Some(error) => Err(error),
                None => Ok(Scale {
                    spec_replicas: tick.scale.spec_replicas,
                    status_replicas: tick.scale.status_replicas,
                }),
            },
            selected,
            samples: &samples,
        };

        let mut next = status.clone();
        let mut decision = hpa::decide(&input, &mut history, &mut next, &mut ());
        let mut out = serde_json::Map::new();
        if let Outcome::Rescale { to, .. } = decision.outcome {
            if tick.update_scale_error.is_none() {
                out.insert("scaleTo".into(), json!(to));
            }
            let written = tick.update_scale_error.as_deref().map_or(Ok(()), Err);
            hpa::complete_rescale(input.context, &mut decision, written, &mut history, &mut next);
        }
        let mut events: Vec<Value> = Vec::new();
        let event = |kind: &str, reason: &str, message: &str| json!({"type": kind, "reason": reason, "message": message});
        for e in &decision.events {
            events.push(event(e.kind.as_str(), e.reason.as_str(), &e.message));
        }
        if next != status {
            match &tick.update_status_error {
                Some(error) => events.push(event("Warning", "FailedUpdateStatus", error)),
                None => {
                    out.insert("status".into(), json!(hpa::render_status(&next)));
                    status = next;
                }
            }
        }
        if let Some(e) = &decision.late_event {
            events.push(event(e.kind.as_str(), e.reason.as_str(), &e.message));
        }
        if !events.is_empty() {
            out.insert("events".into(), events.into());
        }
        results.push(Value::Object(out));
    }
    results
}
