//! One decision for one autoscaler, from observation to effect.

use super::api_metrics::{self, Fetched};
use super::run::Shared;
use super::schedule::hash;
use super::status::{self, Written};
use super::targets::Target;
use super::{message, native, rule_metrics};
use crate::config::NativeHpas;
use crate::crd::{AutoscalerStatus, Executor, Fallback};
use crate::hpa::{
    self, AlignedSamples, ConditionKind, Context, Decision, Event, EventKind, Input, Memory,
    Outcome, Pod, Sample, Samples, Selected, Spec, Status, UnixMillis,
};
use crate::k8s::Selector;
use crate::promql::query::PodMetric;
use crate::samples::{Asked, MetricError, ObjectSample, ObjectSamples};
use crate::watch::{
    self, AutoscalerRecord, Demand, HpaRecord, Index, PodRecord, Subject, SubjectKind,
};
use futures::future::join_all;
use jiff::Timestamp;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// What is kept of a subject from decision to decision.
#[derive(Default)]
pub struct State {
    memory: Memory,
    status: Status,
    written: Option<Written>,
    failed_rounds: i32,
    /// The replicas seen and wanted in the last round that was only observed.
    observed: Option<Observed>,
    /// What was asked of Prometheus for each metric when that last went well, and
    /// will be the next time.
    asked: Vec<Vec<Asked>>,
    /// The UID it is of: one that was deleted and made anew starts anew.
    uid: String,
}

struct Observed {
    replicas: i32,
    wanted: i32,
}

/// How a decision ended, for the metrics.
pub type Ended = &'static str;

const RESCALED: Ended = "rescaled";
const HELD: Ended = "held";
const FAILED: Ended = "failed";
const OBSERVED: Ended = "observed";

/// Decides once for a subject and carries the decision out, or only compares it,
/// where another decides; none if the subject is gone.
pub async fn round(shared: &Shared, subject: &Subject, state: &mut State) -> Option<Ended> {
    match subject.kind {
        SubjectKind::Autoscaler => {
            let record = shared.cluster.read(|index| index.autoscaler(&subject.key))?;
            state.begin(&record.uid, || record.status.clone());
            Some(autoscaler(shared, subject, &record, state).await)
        }
        SubjectKind::Hpa => {
            let record = shared.cluster.read(|index| index.hpa(&subject.key))?;
            state.begin(&record.uid, || Status::from_api(&record.status));
            Some(hpa(shared, subject, &record, state).await)
        }
    }
}

impl State {
    /// What is likely to be asked of Prometheus in its next round.
    pub fn asked(&self) -> impl Iterator<Item = &Asked> {
        self.asked.iter().flatten()
    }

    /// The form of query that it is asked by first, as a hash.
    pub fn form(&self) -> Option<u64> {
        self.asked().next().map(|asked| hash(asked.form()))
    }

    fn begin(&mut self, uid: &str, status: impl FnOnce() -> Status) {
        if self.uid != uid {
            *self = Self { uid: uid.to_owned(), status: status(), ..Self::default() };
        }
    }
}

async fn autoscaler(
    shared: &Shared,
    subject: &Subject,
    record: &AutoscalerRecord,
    state: &mut State,
) -> Ended {
    let status = &mut state.status;
    let asked = match &record.asked {
        Ok(asked) => asked,
        Err(error) => {
            status.set(
                ConditionKind::AbleToScale,
                false,
                "InvalidSpec",
                format_args!("{error}"),
                now(),
            );
            let shown = AutoscalerStatus {
                observed_generation: record.generation,
                conditions: hpa::render_status(status).conditions,
                ..Default::default()
            };
            shared.selectors.release(subject);
            write_status(shared, subject, state, shown).await;
            return FAILED;
        }
    };
    if asked.spec.executor == Executor::NativeHPA {
        shared.selectors.release(subject);
        return delegate(shared, subject, record, asked, state).await;
    }
    let known = shared.cluster.read(|index| index.hpa(&subject.key));
    native::remove(&shared.client, &subject.key, &record.uid, known.as_deref()).await;
    if asked.spec.paused {
        status.set(
            ConditionKind::Paused,
            true,
            "PausedBySpec",
            format_args!("spec.paused is set: the scale is left alone"),
            now(),
        );
        let shown = status::shown(status, &asked.demand.decided, record.generation);
        shared.selectors.release(subject);
        write_status(shared, subject, state, shown).await;
        return HELD;
    }
    status.remove(ConditionKind::Paused);
    let round = decide(shared, subject, &asked.demand, state, true).await;
    carry_out(shared, subject, asked.spec.fallback.as_ref(), record.generation, round, state).await
}

async fn hpa(shared: &Shared, subject: &Subject, record: &HpaRecord, state: &mut State) -> Ended {
    let manages = shared.settings.native_hpas == NativeHpas::Manage;
    let round = decide(shared, subject, &record.demand, state, manages).await;
    if manages {
        return carry_out(shared, subject, None, None, round, state).await;
    }
    compare(shared, subject, round, state);
    OBSERVED
}

fn now() -> UnixMillis {
    Timestamp::now().as_millisecond()
}

/// What was observed and decided, before anything is written.
struct Round<'a> {
    context: Context<'a>,
    target: Result<Target, String>,
    decision: Decision,
    memory: Memory,
    status: Status,
}

/// A metric's samples before they are laid along the pods.
enum Gathered {
    Own(Result<ObjectSamples, String>),
    Other(Fetched),
}

/// Observes and decides; a decision that will be written is one on what is there now.
async fn decide<'a>(
    shared: &'a Shared,
    subject: &Subject,
    demand: &'a Demand,
    state: &mut State,
    writes: bool,
) -> Round<'a> {
    let (spec, namespace) = (&demand.decided, &subject.key.namespace);
    let targets = &shared.targets;
    let mut target = targets.scale(&shared.cluster, namespace, &spec.target).await;
    let context = Context { spec, config: &shared.settings.decisions, now: now() };
    loop {
        let gathered = match &target {
            Ok(target) => gather(shared, namespace, demand, &target.selector, state).await,
            Err(_) => Vec::new(),
        };
        let (mut memory, mut status) = (state.memory.clone(), state.status.clone());
        let decision =
            compute(shared, subject, context, &target, &gathered, &mut memory, &mut status);
        let rescales = writes && matches!(decision.outcome, Outcome::Rescale { .. });
        let seen = match &target {
            Ok(seen) if seen.object.is_none() && rescales => seen,
            _ => break Round { context, target, decision, memory, status },
        };
        // What was seen may be behind: a write follows what is there now alone.
        let read = targets.read(namespace, &spec.target).await;
        let same = read.as_ref().is_ok_and(|read| read.is_as(seen));
        target = read;
        if same {
            break Round { context, target, decision, memory, status };
        }
    }
}

/// Decides on what was gathered.
fn compute(
    shared: &Shared,
    subject: &Subject,
    context: Context<'_>,
    target: &Result<Target, String>,
    gathered: &[Gathered],
    memory: &mut Memory,
    status: &mut Status,
) -> Decision {
    let scale = target.as_ref().map(|target| target.replicas).map_err(String::as_str);
    let selector = target.as_ref().map_or("", |target| &target.selector);
    shared.cluster.read(|index| {
        let selection = Selection::of(shared, index, subject, selector);
        let pods: Vec<Pod<'_>> = selection.pods.iter().map(|(name, pod)| pod.view(name)).collect();
        let aligned: Vec<Aligned<'_>> =
            gathered.iter().map(|samples| Aligned::new(samples, &pods)).collect();
        let samples: Vec<Samples<'_>> = aligned.iter().map(Aligned::view).collect();
        let input = Input {
            context,
            namespace: &subject.key.namespace,
            scale,
            selected: selection.selected(selector, &pods),
            samples: &samples,
        };
        hpa::decide(&input, memory, status, &mut ())
    })
}

/// Writes the scale, the events and the status of a decision.
async fn carry_out(
    shared: &Shared,
    subject: &Subject,
    fallback: Option<&Fallback>,
    generation: Option<i64>,
    round: Round<'_>,
    state: &mut State,
) -> Ended {
    let Round { context, target, mut decision, memory, mut status } = round;
    state.memory = memory;
    let object = target.as_ref().ok().and_then(|target| target.object.as_ref());
    if let (Outcome::Rescale { to, .. }, Some(object)) = (&decision.outcome, object) {
        let written = shared.targets.write(object, *to).await;
        let outcome = match &written {
            Ok(()) => Ok(()),
            Err(error) => Err(error.as_str()),
        };
        hpa::settle(context, &mut decision, outcome, &mut state.memory, &mut status);
    }
    // Only what is said last says that the metrics were at fault.
    let metrics_failed = decision.late_event.is_some();
    state.failed_rounds = if metrics_failed { state.failed_rounds.saturating_add(1) } else { 0 };
    match (fallback, &target) {
        (Some(fallback), Ok(seen))
            if metrics_failed && state.failed_rounds >= fallback.failed_rounds =>
        {
            let replicas = seen.replicas.spec_replicas;
            let fallen = fall_back(context, fallback, replicas, state.failed_rounds, &mut status);
            if let Some((to, event)) = fallen {
                match raise(shared, subject, context.spec, to).await {
                    Ok(()) => {
                        status.desired_replicas = to;
                        status.last_scale = Some(context.now);
                        decision.events.push(event);
                    }
                    Err(error) => tracing::warn!(%subject, error, "could not fall back"),
                }
            }
        }
        _ if metrics_failed => {}
        _ => status.remove(ConditionKind::FallbackActive),
    }

    log(subject, &decision);
    for event in &decision.events {
        shared.events.publish(subject, &state.uid, event).await;
    }
    let shown = status::shown(&status, context.spec, generation);
    state.status = status;
    write_status(shared, subject, state, shown).await;
    if let Some(event) = &decision.late_event {
        shared.events.publish(subject, &state.uid, event).await;
    }
    match decision.outcome {
        Outcome::Rescale { .. } => RESCALED,
        Outcome::Hold => HELD,
        Outcome::Failed => FAILED,
    }
}

/// Writes nothing; shows what was decided beside what kube-controller-manager did.
fn compare(shared: &Shared, subject: &Subject, round: Round<'_>, state: &mut State) {
    let Round { context, target, decision, memory, mut status } = round;
    state.memory = memory;
    let (Ok(target), false) = (&target, decision.outcome == Outcome::Failed) else {
        tracing::debug!(%subject, error = decision.error, "could not decide beside");
        state.status = status;
        return;
    };
    let replicas = target.replicas.spec_replicas;
    let ours = match decision.outcome {
        Outcome::Rescale { to, .. } => to,
        Outcome::Hold | Outcome::Failed => replicas,
    };
    let before = state.observed.replace(Observed { replicas, wanted: ours });
    // The policies look at what really changed.
    if let Some(before) = &before
        && before.replicas != replicas
    {
        state.memory.scaled(before.replicas, replicas, context.spec, context.now);
        status.last_scale = Some(context.now);
    }
    status.desired_replicas = ours;
    state.status = status;
    let Some(record) = shared.cluster.read(|index| index.hpa(&subject.key)) else { return };
    let theirs = record.status.desired_replicas;
    // They decide in their own time, up to one period before or after.
    let agreed = theirs == ours || before.is_some_and(|before| before.wanted == theirs);
    shared.metrics.compared(&subject.key, ours, theirs, agreed);
    if agreed {
        tracing::debug!(%subject, ours, theirs, "decided as kube-controller-manager");
    } else {
        tracing::info!(%subject, ours, theirs, "decided otherwise than kube-controller-manager");
    }
}

fn log(subject: &Subject, decision: &Decision) {
    match &decision.outcome {
        Outcome::Rescale { from, to, reason } => {
            tracing::info!(%subject, from, to, reason, "rescaled");
        }
        Outcome::Hold => tracing::debug!(%subject, "held"),
        Outcome::Failed => {
            tracing::warn!(%subject, error = decision.error, "could not decide");
        }
    }
}

/// Reads all metrics at once, and remembers what was asked for them.
async fn gather(
    shared: &Shared,
    namespace: &str,
    demand: &Demand,
    selector: &str,
    state: &mut State,
) -> Vec<Gathered> {
    let one = async |metric: &hpa::Metric, own: &Option<PodMetric>| match own {
        Some(own) => {
            let queries = shared.config.pod_queries();
            let samples = shared.samples.pods(&queries, own, namespace, false).await;
            let asked = samples.iter().map(|pods| pods.samples.asked().clone()).collect();
            (Gathered::Own(samples.map_err(|error| error.to_string())), asked)
        }
        None => {
            let Shared { client, targets, rules, cluster, .. } = shared;
            let by_rule =
                rule_metrics::fetch(rules, cluster, targets, namespace, selector, metric).await;
            match by_rule {
                Some((fetched, asked)) => (Gathered::Other(fetched), asked),
                None => {
                    let fetched =
                        api_metrics::fetch(client, targets, namespace, selector, metric).await;
                    (Gathered::Other(fetched), Vec::new())
                }
            }
        }
    };
    let metrics = demand.decided.metrics.iter().zip(&demand.pod_metrics);
    let (gathered, asked): (Vec<_>, Vec<_>) =
        join_all(metrics.map(|(metric, own)| one(metric, own))).await.into_iter().unzip();
    state.asked.resize_with(asked.len(), Vec::new);
    for (known, asked) in state.asked.iter_mut().zip(asked).filter(|(_, new)| !new.is_empty()) {
        *known = asked;
    }
    gathered
}

/// A metric's samples laid along the pods.
enum Aligned<'a> {
    PerPod(Result<AlignedSamples, Cow<'a, str>>),
    Value(Result<i64, &'a str>),
    Values(Result<&'a [i64], &'a str>),
}

impl<'a> Aligned<'a> {
    fn new(gathered: &'a Gathered, pods: &[Pod<'_>]) -> Self {
        match gathered {
            Gathered::Own(Ok(samples)) => {
                // As through the API, which gives the pods of the selector alone.
                let by_pod = samples.by_object();
                let of_pod = |pod: &Pod<'_>| {
                    let sample = by_pod.one(pod.name)?;
                    let milli = |ObjectSample { value, time }| Sample {
                        milli: value.milli(),
                        time,
                        window_ms: 0,
                    };
                    Ok(sample.map(milli))
                };
                let of_pods: Result<Vec<_>, MetricError> = pods.iter().map(of_pod).collect();
                let error = |error: MetricError| error.to_string().into();
                Self::PerPod(of_pods.map(AlignedSamples::of_pods).map_err(error))
            }
            Gathered::Own(Err(error)) => Self::PerPod(Err(error.into())),
            Gathered::Other(Fetched::PerPod(items)) => Self::PerPod(match items {
                Ok(items) => Ok(AlignedSamples::new(
                    pods,
                    items.iter().map(|(name, sample)| (name.as_str(), *sample)),
                )),
                Err(error) => Err(error.into()),
            }),
            Gathered::Other(Fetched::Value(value)) => {
                Self::Value(value.as_ref().copied().map_err(String::as_str))
            }
            Gathered::Other(Fetched::Values(values)) => {
                Self::Values(values.as_ref().map(Vec::as_slice).map_err(String::as_str))
            }
        }
    }

    fn view(&self) -> Samples<'_> {
        match self {
            Self::PerPod(samples) => {
                Samples::PerPod(samples.as_ref().map(AlignedSamples::view).map_err(|e| &**e))
            }
            Self::Value(value) => Samples::Value(*value),
            Self::Values(values) => Samples::Values(*values),
        }
    }
}

/// What a scale's selector selects, and who else selects some of the same.
struct Selection<'a> {
    parsed: Result<(), String>,
    pods: Vec<(&'a str, &'a PodRecord)>,
    autoscalers: Vec<String>,
}

impl<'a> Selection<'a> {
    fn of(shared: &Shared, index: &'a Index, subject: &Subject, selector: &str) -> Self {
        let parsed: Selector = match selector.parse() {
            Ok(parsed) => parsed,
            Err(error) => {
                let parsed = Err(format!("{error}"));
                return Self { parsed, pods: Vec::new(), autoscalers: Vec::new() };
            }
        };
        let pods = index.select(&subject.key.namespace, &parsed);
        // Mostly they share one set of labels.
        let mut labels: Vec<&BTreeMap<String, String>> = Vec::new();
        for (_, pod) in &pods {
            if labels.last().is_none_or(|last| !std::ptr::eq(*last, &*pod.labels)) {
                labels.push(&pod.labels);
            }
        }
        if selector.is_empty() {
            return Self { parsed: Ok(()), pods, autoscalers: Vec::new() };
        }
        // Who manages the pods of a native HPA is for kube-controller-manager to
        // say, as long as it decides; it knows of native HPAs alone.
        let observing =
            subject.kind == SubjectKind::Hpa && shared.settings.native_hpas != NativeHpas::Manage;
        let counts = |other: &Subject| !observing || other.kind == SubjectKind::Hpa;
        let selecting = shared.selectors.claim(subject, parsed, &labels, counts);
        let autoscalers = selecting.iter().map(|other| subject.name_of(other)).collect();
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
    now: i32,
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
    (now > 0 && now < least).then(|| {
        let message = format!(
            "New size: {least}; reason: fallback, the metrics failed {failed_rounds} times in a row"
        );
        (least, Event { kind: EventKind::Warning, reason: "FallbackRescale", message })
    })
}

/// Writes more replicas than there are; where there are as many by now, nothing.
async fn raise(shared: &Shared, subject: &Subject, spec: &Spec, to: i32) -> Result<(), String> {
    let target = shared.targets.read(&subject.key.namespace, &spec.target).await?;
    match target.object {
        Some(object) if target.replicas.spec_replicas < to => {
            shared.targets.write(&object, to).await
        }
        _ => Ok(()),
    }
}

/// Has a native HPA decide, and shows its status.
async fn delegate(
    shared: &Shared,
    subject: &Subject,
    record: &AutoscalerRecord,
    asked: &watch::Asked,
    state: &mut State,
) -> Ended {
    let key = &subject.key;
    let known = shared.cluster.read(|index| index.hpa(key));
    let written =
        native::write(&shared.client, key, &record.uid, &asked.spec, known.as_deref()).await;
    let spec = &asked.demand.decided;
    let shown = match written {
        Ok(()) => {
            let status = known.map(|hpa| hpa.status.clone()).unwrap_or_default();
            let current = hpa::Status::from_api(&status).current;
            status::from_hpa(status, spec, &current, record.generation)
        }
        Err(ref error) => {
            let status = &mut state.status;
            status.set(
                ConditionKind::AbleToScale,
                false,
                "FailedWriteHPA",
                format_args!("{error}"),
                now(),
            );
            status::shown(status, spec, record.generation)
        }
    };
    write_status(shared, subject, state, shown).await;
    if written.is_ok() { HELD } else { FAILED }
}

/// Writes a status where the one written last is no longer good enough.
async fn write_status(
    shared: &Shared,
    subject: &Subject,
    state: &mut State,
    shown: AutoscalerStatus,
) {
    let shown = Arc::new(shown);
    shared.live.set(subject, shown.clone());
    let interval = shared.settings.status_interval;
    if state.written.as_ref().is_some_and(|written| !written.is_outdated_by(&shown, interval)) {
        return;
    }
    match status::write(&shared.client, subject, &shown).await {
        Ok(()) => state.written = Some(Written { status: shown, at: Instant::now() }),
        Err(error) => {
            let error = message(&error);
            tracing::warn!(%subject, error, "could not write the status");
            let event =
                Event { kind: EventKind::Warning, reason: "FailedUpdateStatus", message: error };
            shared.events.publish(subject, &state.uid, &event).await;
        }
    }
}
