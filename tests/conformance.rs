//! Every decision equals that of the HPA controller of Kubernetes 1.36.
//!
//! The corpus holds what the real controller did, tick by tick
//! (`tests/data/FORMAT.md`). `PLIMSOLL_CORPUS` names other files, separated by
//! `:`, each `.jsonl` or `.jsonl.gz`.

use flate2::read::GzDecoder;
use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscalerSpec, HorizontalPodAutoscalerStatus,
};
use plimsoll::hpa::{
    self, AlignedSamples, Config, Context, Input, Memory, Outcome, Phase, Pod, PodContainer, Ready,
    Requests, Sample, Samples, Scale, Selected, Source, Spec, Status,
};
use plimsoll::k8s::{Quantity, Selector};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};

/// 2000-01-01T00:00:00Z, where every scenario starts.
const START: i64 = 946_684_800_000;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Scenario {
    title: Option<String>,
    #[serde(default)]
    gates: Vec<String>,
    config: ScenarioConfig,
    namespace: String,
    name: String,
    #[serde(default)]
    other_autoscalers: Vec<OtherAutoscaler>,
    #[serde(default)]
    pod_labels: BTreeMap<String, String>,
    #[serde(default)]
    templates: HashMap<String, Template>,
    ticks: Vec<Tick>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ScenarioConfig {
    tolerance: f64,
    downscale_stabilization_seconds: i32,
    cpu_initialization_seconds: i64,
    initial_readiness_delay_seconds: i64,
}

#[derive(Deserialize)]
struct OtherAutoscaler {
    name: String,
    selector: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Template {
    #[serde(default)]
    containers: Vec<TemplateContainer>,
    pod_requests: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct TemplateContainer {
    name: String,
    #[serde(default)]
    requests: BTreeMap<String, String>,
    #[serde(default)]
    sidecar: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Tick {
    t: i64,
    spec: Option<HorizontalPodAutoscalerSpec>,
    scale: TickScale,
    pods: Option<Vec<TickPod>>,
    resource: Option<Answer<ResourceItem>>,
    #[serde(default)]
    custom: HashMap<String, Answer<CustomItem>>,
    #[serde(default)]
    object: HashMap<String, ObjectAnswer>,
    #[serde(default)]
    external: HashMap<String, ExternalAnswer>,
    update_scale_error: Option<String>,
    update_status_error: Option<String>,
    out: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TickScale {
    #[serde(default)]
    spec_replicas: i32,
    #[serde(default)]
    status_replicas: i32,
    #[serde(default)]
    selector: String,
    error: Option<String>,
}

#[derive(Deserialize)]
struct TickPod {
    name: String,
    template: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    phase: Option<String>,
    start: Option<i64>,
    ready: Option<TickReady>,
    #[serde(default)]
    deleting: bool,
}

#[derive(Deserialize)]
struct TickReady {
    status: String,
    since: i64,
}

#[derive(Deserialize)]
struct Answer<T> {
    items: Option<Vec<T>>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct ResourceItem {
    pod: String,
    time: i64,
    #[serde(default)]
    window: i64,
    containers: Option<Vec<ResourceContainer>>,
}

#[derive(Deserialize)]
struct ResourceContainer {
    name: String,
    #[serde(default)]
    usage: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct CustomItem {
    pod: String,
    value: String,
    time: i64,
    window: Option<i64>,
}

#[derive(Deserialize)]
struct ObjectAnswer {
    value: Option<String>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct ExternalAnswer {
    values: Option<Vec<String>>,
    error: Option<String>,
}

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

/// What one metric's samples are, owned for the time of a decision.
enum Owned {
    PerPod(Result<AlignedSamples, String>),
    Value(Result<i64, String>),
    Values(Result<Vec<i64>, String>),
}

impl Owned {
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
    fn samples(&self, source: &Source, pods: &[Pod<'_>]) -> Owned {
        match source {
            Source::Pods { metric, .. } => Owned::PerPod(self.custom_samples(&metric.name, pods)),
            Source::Resource { name, .. } => Owned::PerPod(self.resource_samples(name, None, pods)),
            Source::ContainerResource { name, container, .. } => {
                Owned::PerPod(self.resource_samples(name, Some(container), pods))
            }
            Source::Object { metric, .. } => {
                let missing = format!("the server could not find the metric {}", metric.name);
                Owned::Value(match self.object.get(&metric.name) {
                    Some(ObjectAnswer { error: Some(error), .. }) => Err(error.clone()),
                    Some(ObjectAnswer { value: Some(value), .. }) => Ok(quantity(value).milli()),
                    _ => Err(missing),
                })
            }
            Source::External { metric, .. } => {
                let missing = format!("the server could not find the metric {}", metric.name);
                Owned::Values(match self.external.get(&metric.name) {
                    Some(ExternalAnswer { error: Some(error), .. }) => Err(error.clone()),
                    Some(ExternalAnswer { values, .. }) => {
                        Ok(values.iter().flatten().map(|value| quantity(value).milli()).collect())
                    }
                    None => Err(missing),
                })
            }
            Source::Unknown(_) => Owned::Value(Err(String::new())),
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

/// Runs a scenario; returns each tick with what was done.
fn run(scenario: &Scenario) -> Vec<Value> {
    let config = Config {
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

    let (mut memory, mut status) = (Memory::default(), Status::default());
    let mut spec = None;
    let mut results = Vec::new();
    for tick in &scenario.ticks {
        if let Some(given) = &tick.spec {
            spec = Some(Spec::from_api(given));
        }
        let spec = spec.as_ref().expect("the first tick has a spec");
        let selector: Result<Selector, _> = tick.scale.selector.parse();
        let empty = BTreeMap::new();
        let mut labels = Vec::new();
        let mut pods = Vec::new();
        for pod in tick.pods.iter().flatten() {
            let own = pod.labels.as_ref().unwrap_or(&scenario.pod_labels);
            let label = |key: &str| own.get(key).map(String::as_str);
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
        let owned: Vec<Owned> =
            spec.metrics.iter().map(|metric| tick.samples(&metric.source, &pods)).collect();
        let samples: Vec<Samples<'_>> = owned.iter().map(Owned::view).collect();
        let scale_error = target_error(spec).or_else(|| tick.scale.error.clone());
        let input = Input {
            namespace: &scenario.namespace,
            context: Context { spec, config: &config, now: START + tick.t * 1000 },
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
        let mut decision = hpa::decide(&input, &mut memory, &mut next, &mut ());
        let mut out = serde_json::Map::new();
        if let Outcome::Rescale { to, .. } = decision.outcome {
            if tick.update_scale_error.is_none() {
                out.insert("scaleTo".into(), json!(to));
            }
            let written = tick.update_scale_error.as_deref().map_or(Ok(()), Err);
            hpa::settle(input.context, &mut decision, written, &mut memory, &mut next);
        }
        let mut events: Vec<Value> = Vec::new();
        let event = |kind: &str, reason: &str, message: &str| json!({"type": kind, "reason": reason, "message": message});
        for e in &decision.events {
            events.push(event(e.kind.as_str(), e.reason, &e.message));
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
            events.push(event(e.kind.as_str(), e.reason, &e.message));
        }
        if !events.is_empty() {
            out.insert("events".into(), events.into());
        }
        results.push(Value::Object(out));
    }
    results
}

/// An `out` in the form that two equal outcomes share: the status through its
/// own type, where null and absent are the same.
fn canonical(out: &Value) -> Value {
    let status = out.get("status").filter(|status| !status.is_null()).map(|status| {
        let mut status: HorizontalPodAutoscalerStatus =
            serde_json::from_value(status.clone()).expect("a status");
        status.current_replicas.get_or_insert(0);
        status.conditions.get_or_insert_default();
        json!(status)
    });
    json!({
        "scaleTo": out.get("scaleTo"),
        "status": status,
        "events": out.get("events").cloned().filter(|e| !e.is_null()).unwrap_or(json!([])),
    })
}

fn corpus() -> Vec<String> {
    match std::env::var("PLIMSOLL_CORPUS") {
        Ok(paths) => paths.split(':').map(str::to_owned).collect(),
        Err(_) => ["smoke.jsonl", "open.jsonl.gz"]
            .map(|name| format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR")))
            .to_vec(),
    }
}

fn lines(path: &str) -> impl Iterator<Item = String> {
    let file = File::open(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let reader: Box<dyn Read> =
        if path.ends_with(".gz") { Box::new(GzDecoder::new(file)) } else { Box::new(file) };
    BufReader::with_capacity(1 << 20, reader).lines().map(|line| line.expect("UTF-8 text"))
}

#[test]
fn every_decision_equals_that_of_the_real_controller() {
    const SHOWN: usize = 5;
    let (mut agree, mut total, mut shown) = (0, 0, 0);
    for path in corpus() {
        for (number, line) in lines(&path).enumerate().filter(|(_, line)| !line.is_empty()) {
            let scenario: Scenario = serde_json::from_str(&line)
                .unwrap_or_else(|error| panic!("{path}:{}: {error}", number + 1));
            for (i, (tick, ours)) in scenario.ticks.iter().zip(run(&scenario)).enumerate() {
                total += 1;
                let (expected, ours) = (canonical(&tick.out), canonical(&ours));
                if expected == ours {
                    agree += 1;
                } else if shown < SHOWN {
                    shown += 1;
                    let title = scenario.title.as_deref().unwrap_or("");
                    println!("{path}:{} {title} tick {i} (t={})", number + 1, tick.t);
                    for part in ["scaleTo", "status", "events"] {
                        if expected[part] != ours[part] {
                            println!("  {part} upstream: {}", expected[part]);
                            println!("  {part} ours:     {}", ours[part]);
                        }
                    }
                }
            }
        }
    }
    println!("{agree} of {total} ticks agree");
    assert!(total > 0, "the corpus is empty");
    assert_eq!(agree, total, "ticks differ from the real controller's");
}

#[test]
fn defaults_equal_those_of_the_api_server() {
    let path = format!("{}/tests/data/defaults.jsonl", env!("CARGO_MANIFEST_DIR"));
    let mut pairs = 0;
    for line in lines(&path) {
        let mut pair: Value = serde_json::from_str(&line).expect("a pair");
        let mut spec: HorizontalPodAutoscalerSpec =
            serde_json::from_value(pair["in"].take()).expect("a spec");
        let expected: HorizontalPodAutoscalerSpec =
            serde_json::from_value(pair["out"].take()).expect("a spec");
        hpa::apply_defaults(&mut spec);
        assert_eq!(json!(spec), json!(expected));
        pairs += 1;
    }
    assert_eq!(pairs, 400);
}
