//! One decision for one Autoscaler, from observation to effect.

use super::api_metrics::{self, Fetched};
use super::run::Shared;
use super::{autoscaler_status, message, native};
use crate::crd::{AutoscalerStatus, Executor, Fallback};
use crate::hpa::{
    self, AlignedSamples, ConditionKind, Context, Decision, Event, EventKind, Input, Memory,
    Outcome, Pod, Sample, Samples, Selected, Status,
};
use crate::k8s::Selector;
use crate::promql::query::PodMetric;
use crate::samples::PodSampleSet;
use crate::watch::{Asked, AutoscalerRecord, Index, ObjectKey};
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v1::Scale;
use std::sync::{Arc, PoisonError};

/// What is kept of an Autoscaler from decision to decision.
#[derive(Default)]
pub struct State {
    memory: Memory,
    status: Option<Status>,
    written: Option<AutoscalerStatus>,
    failed_rounds: i32,
    /// The UID it is of: one that was deleted and made anew starts anew.
    uid: String,
}

/// How a decision ended, for the metrics.
pub type Ended = &'static str;

const RESCALED: Ended = "rescaled";
const HELD: Ended = "held";
const FAILED: Ended = "failed";

/// Decides once for an Autoscaler and carries the decision out.
pub async fn reconcile(
    shared: &Shared,
    key: &ObjectKey,
    record: &AutoscalerRecord,
    state: &mut State,
) -> Ended {
    if state.uid != record.uid {
        *state = State { uid: record.uid.clone(), ..State::default() };
    }
    let status = state.status.get_or_insert_with(|| record.status.clone());
    let asked = match &record.asked {
        Ok(asked) => asked,
        Err(error) => {
            let now = Timestamp::now().as_millisecond();
            status.set(
                ConditionKind::AbleToScale,
                false,
                "InvalidSpec",
                format_args!("{error}"),
                now,
            );
            let shown = AutoscalerStatus {
                observed_generation: record.generation,
                conditions: hpa::render_status(status).conditions,
                ..Default::default()
            };
            write_status(shared, key, record, state, shown).await;
            return FAILED;
        }
    };
    let known = shared.cluster.read(|index| index.hpa(key));
    if asked.spec.executor == Executor::NativeHPA {
        return delegate(shared, key, record, asked, state).await;
    }
    native::remove(&shared.client, key, &record.uid, known.as_deref()).await;
    if asked.spec.paused {
        let now = Timestamp::now().as_millisecond();
        status.set(
            ConditionKind::Paused,
            true,
            "PausedBySpec",
            format_args!("spec.paused is set: the scale is left alone"),
            now,
        );
        let shown = autoscaler_status::shown(status, &asked.decided, record.generation);
        write_status(shared, key, record, state, shown).await;
        return HELD;
    }
    status.remove(ConditionKind::Paused);
    decide(shared, key, record, asked, state).await
}

/// A metric's samples before they are laid along the pods.
enum Gathered {
    Own(Result<Arc<PodSampleSet>, String>),
    Api(Fetched),
}

async fn decide(
    shared: &Shared,
    key: &ObjectKey,
    record: &AutoscalerRecord,
    asked: &Asked,
    state: &mut State,
) -> Ended {
    let spec = &asked.decided;
    let target = shared.targets.scale(&key.namespace, &spec.target).await;
    let selector_text = match &target {
        Ok((_, scale)) => scale.status.as_ref().and_then(|status| status.selector.clone()),
        Err(_) => None,
    }
    .unwrap_or_default();
    let gathered = match &target {
        Ok(_) => gather(shared, key, asked, &selector_text).await,
        Err(_) => Vec::new(),
    };

    let now = Timestamp::now().as_millisecond();
    let context = Context { spec, config: &shared.settings.decisions, now };
    let mut status = state.status.clone().unwrap_or_default();
    let scale = match &target {
        Ok((_, scale)) => Ok(observed(scale)),
        Err(error) => Err(error.as_str()),
    };
    let memory = &mut state.memory;
    let mut decision = shared.cluster.read(|index| {
        let selection = Selection::of(shared, index, key, &selector_text);
        let pods: Vec<Pod<'_>> = selection.pods.iter().map(|(name, pod)| pod.view(name)).collect();
        let aligned: Vec<Aligned<'_>> =
            gathered.iter().map(|samples| Aligned::new(samples, &pods)).collect();
        let samples: Vec<Samples<'_>> = aligned.iter().map(Aligned::view).collect();
        let input = Input {
            context,
            namespace: &key.namespace,
            scale,
            selected: selection.selected(&selector_text, &pods),
            samples: &samples,
        };
        hpa::decide(&input, memory, &mut status, &mut ())
    });

    if let (Outcome::Rescale { to, .. }, Ok((api, scale))) = (&decision.outcome, &target) {
        let written = shared.targets.write(api, scale.clone(), *to).await;
        let outcome = match &written {
            Ok(()) => Ok(()),
            Err(error) => Err(error.as_str()),
        };
        hpa::settle(context, &mut decision, outcome, &mut state.memory, &mut status);
    }
    // Only what is said last says that the metrics were at fault.
    let metrics_failed = decision.late_event.is_some();
    state.failed_rounds = if metrics_failed { state.failed_rounds.saturating_add(1) } else { 0 };
    match (&asked.spec.fallback, &target) {
        (Some(fallback), Ok((api, scale)))
            if metrics_failed && state.failed_rounds >= fallback.failed_rounds =>
        {
            let fallen = fall_back(context, fallback, scale, state.failed_rounds, &mut status);
            if let Some((to, event)) = fallen {
                match shared.targets.write(api, scale.clone(), to).await {
                    Ok(()) => {
                        status.desired_replicas = to;
                        status.last_scale = Some(now);
                        decision.events.push(event);
                    }
                    Err(error) => tracing::warn!(autoscaler = %key, error, "could not fall back"),
                }
            }
        }
        _ if metrics_failed => {}
        _ => status.remove(ConditionKind::FallbackActive),
    }

    log(key, &decision);
    for event in &decision.events {
        shared.events.publish(key, &record.uid, event).await;
    }
    let shown = autoscaler_status::shown(&status, spec, record.generation);
    state.status = Some(status);
    write_status(shared, key, record, state, shown).await;
    if let Some(event) = &decision.late_event {
        shared.events.publish(key, &record.uid, event).await;
    }
    match decision.outcome {
        Outcome::Rescale { .. } => RESCALED,
        Outcome::Hold => HELD,
        Outcome::Failed => FAILED,
    }
}

fn observed(scale: &Scale) -> hpa::Scale {
    hpa::Scale {
        spec_replicas: scale.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0),
        status_replicas: scale.status.as_ref().map_or(0, |status| status.replicas),
    }
}

fn log(key: &ObjectKey, decision: &Decision) {
    match &decision.outcome {
        Outcome::Rescale { from, to, reason } => {
            tracing::info!(autoscaler = %key, from, to, reason, "rescaled");
        }
        Outcome::Hold => tracing::debug!(autoscaler = %key, "held"),
        Outcome::Failed => {
            tracing::warn!(autoscaler = %key, error = decision.error, "could not decide");
        }
    }
}

/// Reads all metrics at once.
async fn gather(shared: &Shared, key: &ObjectKey, asked: &Asked, selector: &str) -> Vec<Gathered> {
    let one = async |metric: &hpa::Metric, own: &Option<PodMetric>| match own {
        Some(own) => {
            let queries = &shared.config.pod_queries;
            let samples = shared.samples.pods(queries, own, &key.namespace).await;
            Gathered::Own(samples.map_err(|error| error.to_string()))
        }
        None => {
            let (client, targets) = (&shared.client, &shared.targets);
            Gathered::Api(
                api_metrics::fetch(client, targets, &key.namespace, selector, metric).await,
            )
        }
    };
    let metrics = asked.decided.metrics.iter().zip(&asked.pod_metrics);
    join_all(metrics.map(|(metric, own)| one(metric, own))).await
}

/// A metric's samples laid along the pods.
enum Aligned<'a> {
    PerPod(Result<AlignedSamples, &'a str>),
    Value(Result<i64, &'a str>),
    Values(Result<&'a [i64], &'a str>),
}

impl<'a> Aligned<'a> {
    fn new(gathered: &'a Gathered, pods: &[Pod<'_>]) -> Self {
        match gathered {
            Gathered::Own(Ok(set)) => {
                // As through the API, which gives the pods of the selector alone.
                let items = pods.iter().filter_map(|pod| {
                    let sample = set.get(pod.name)?;
                    let sample =
                        Sample { milli: sample.value.milli(), time: sample.time, window_ms: 0 };
                    Some((pod.name, Some(sample)))
                });
                Self::PerPod(Ok(AlignedSamples::new(pods, items)))
            }
            Gathered::Own(Err(error)) => Self::PerPod(Err(error)),
            Gathered::Api(Fetched::PerPod(items)) => Self::PerPod(match items {
                Ok(items) => Ok(AlignedSamples::new(
                    pods,
                    items.iter().map(|(name, sample)| (name.as_str(), *sample)),
                )),
                Err(error) => Err(error.as_str()),
            }),
            Gathered::Api(Fetched::Value(value)) => {
                Self::Value(value.as_ref().copied().map_err(String::as_str))
            }
            Gathered::Api(Fetched::Values(values)) => {
                Self::Values(values.as_ref().map(Vec::as_slice).map_err(String::as_str))
            }
        }
    }

    fn view(&self) -> Samples<'_> {
        match self {
            Self::PerPod(samples) => {
                Samples::PerPod(samples.as_ref().map(AlignedSamples::view).map_err(|error| *error))
            }
            Self::Value(value) => Samples::Value(*value),
            Self::Values(values) => Samples::Values(*values),
        }
    }
}

/// What a scale's selector selects, and who else selects some of the same.
struct Selection<'a> {
    parsed: Result<(), String>,
    pods: Vec<(&'a str, &'a crate::watch::PodRecord)>,
    autoscalers: Vec<String>,
}

impl<'a> Selection<'a> {
    fn of(shared: &Shared, index: &'a Index, key: &ObjectKey, selector: &str) -> Self {
        let parsed: Selector = match selector.parse() {
            Ok(parsed) => parsed,
            Err(error) => {
                let parsed = Err(format!("{error}"));
                return Self { parsed, pods: Vec::new(), autoscalers: Vec::new() };
            }
        };
        let pods = index.select(&key.namespace, &parsed);
        let labels: Vec<_> = pods.iter().map(|(_, pod)| &pod.labels).collect();
        let mut selectors = shared.selectors.lock().unwrap_or_else(PoisonError::into_inner);
        let of_namespace = selectors.entry(key.namespace.clone()).or_default();
        if !selector.is_empty() {
            of_namespace.insert(key.to_string(), parsed);
        }
        let autoscalers = hpa::selecting_autoscalers(
            &labels,
            of_namespace.iter().map(|(key, selector)| (key.as_str(), selector)),
        );
        Self { parsed: Ok(()), pods, autoscalers }
    }

    fn selected<'s>(&'s self, selector: &'s str, pods: &'s [Pod<'s>]) -> Selected<'s> {
        match &self.parsed {
            _ if selector.is_empty() => Selected::Missing,
            Err(error) => Selected::Invalid(error),
            Ok(()) if self.autoscalers.len() > 1 => {
                Selected::Ambiguous { selector, autoscalers: &self.autoscalers }
            }
            Ok(()) => Selected::Pods(pods),
        }
    }
}

/// What the fallback does: more replicas and the event of it, or nothing, as
/// there are enough.
fn fall_back(
    context: Context<'_>,
    fallback: &Fallback,
    scale: &Scale,
    failed_rounds: i32,
    status: &mut Status,
) -> Option<(i32, Event)> {
    let spec = context.spec;
    let least = fallback.replicas.clamp(spec.min_replicas, spec.max_replicas);
    status.set(
        ConditionKind::FallbackActive,
        true,
        "MetricsFailed",
        format_args!("the metrics failed; there are to be at least {least} replicas"),
        context.now,
    );
    // At zero the workload was switched off, and no metric says otherwise.
    let now = observed(scale).spec_replicas;
    (now > 0 && now < least).then(|| {
        let message = format!(
            "New size: {least}; reason: fallback, the metrics failed {failed_rounds} times in a row"
        );
        (least, Event { kind: EventKind::Warning, reason: "FallbackRescale", message })
    })
}

/// Has a native HPA decide, and shows its status.
async fn delegate(
    shared: &Shared,
    key: &ObjectKey,
    record: &AutoscalerRecord,
    asked: &Asked,
    state: &mut State,
) -> Ended {
    let known = shared.cluster.read(|index| index.hpa(key));
    let written =
        native::write(&shared.client, key, &record.uid, &asked.spec, known.as_deref()).await;
    let now = Timestamp::now().as_millisecond();
    let shown = match written {
        Ok(()) => {
            let status = known.and_then(|hpa| hpa.status.clone()).unwrap_or_default();
            let current = hpa::Status::from_api(&status).current;
            autoscaler_status::from_hpa(status, &asked.decided, &current, record.generation)
        }
        Err(ref error) => {
            let status = state.status.get_or_insert_default();
            status.set(
                ConditionKind::AbleToScale,
                false,
                "FailedWriteHPA",
                format_args!("{error}"),
                now,
            );
            autoscaler_status::shown(status, &asked.decided, record.generation)
        }
    };
    write_status(shared, key, record, state, shown).await;
    if written.is_ok() { HELD } else { FAILED }
}

/// Writes a status where it differs from the one written last.
async fn write_status(
    shared: &Shared,
    key: &ObjectKey,
    record: &AutoscalerRecord,
    state: &mut State,
    shown: AutoscalerStatus,
) {
    if state.written.as_ref() == Some(&shown) {
        return;
    }
    match autoscaler_status::write(&shared.client, key, &shown).await {
        Ok(_) => state.written = Some(shown),
        Err(error) => {
            let error = message(&error);
            tracing::warn!(autoscaler = %key, error, "could not write the status");
            let event =
                Event { kind: EventKind::Warning, reason: "FailedUpdateStatus", message: error };
            shared.events.publish(key, &record.uid, &event).await;
        }
    }
}
