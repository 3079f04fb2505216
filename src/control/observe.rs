//! Native HPAs that kube-controller-manager decides for: what Plimsoll would have
//! decided, beside what was. That costs the cluster next to nothing: the leader alone
//! decides beside, and only where it has the scale and all metrics anyway.

use super::reconcile::{Ended, FAILED, OBSERVED, Round, State, decide, needs_samples, now};
use super::run::{Broken, Shared};
use super::selectors::Selection;
use crate::hpa::{ConditionKind, Context, Metric, Outcome, Source, Status, parse_group};
use crate::promql::query::PodMetric;
use crate::rules::{ObjectMetric, Rules};
use crate::telemetry::Metrics;
use crate::watch::{GroupResource, HpaRecord, ObjectKey, Subject, Workload};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Whether an HPA is observed, or why not, as the metric `plimsoll_native_hpas` says.
type Observes = &'static str;

const YES: Observes = "yes";
const NO_LEADER: Observes = "no_leader";
const NO_METRICS: Observes = "no_metrics";
const NO_SCALE: Observes = "no_scale";
const ALL: [Observes; 4] = [YES, NO_LEADER, NO_METRICS, NO_SCALE];

/// How long the selector of a target is believed whose kind is not watched.
const SELECTOR_AGE: Duration = Duration::from_secs(600);
/// After how many rounds in which Plimsoll alone would have changed the scale that
/// is a difference: kube-controller-manager decides in its own time.
const ALONE: u32 = 3;

/// How many HPAs are observed, and why others are not.
pub struct Census {
    metrics: Arc<Metrics>,
    all: Mutex<(HashMap<ObjectKey, Observes>, HashMap<Observes, usize>)>,
}

impl Census {
    /// One that shows its counts in these metrics.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, all: Mutex::default() }
    }

    fn set(&self, key: &ObjectKey, observes: Option<Observes>) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let (of, counts) = &mut *all;
        if of.get(key).copied() == observes {
            return;
        }
        let before = match observes {
            Some(observes) => of.insert(key.clone(), observes),
            None => of.remove(key),
        };
        if let Some(before) = before {
            *counts.entry(before).or_insert(1) -= 1;
        }
        if let Some(observes) = observes {
            *counts.entry(observes).or_default() += 1;
        }
        for observes in ALL {
            self.metrics.observed(observes, counts.get(observes).copied().unwrap_or(0));
        }
    }

    /// An HPA is gone.
    pub fn forget(&self, key: &ObjectKey) {
        self.set(key, None);
    }
}

/// What was seen of an HPA from round to round.
#[derive(Default)]
pub struct Seen {
    /// When kube-controller-manager changed the scale last, in Unix seconds; none
    /// where that was not looked at yet.
    step: Option<Option<i64>>,
    /// In how many rounds Plimsoll alone would have changed the scale.
    alone: u32,
    /// When the selector of a target was read whose kind is not watched.
    selector_read: Option<Instant>,
}

/// Decides beside kube-controller-manager and compares; none where this HPA is not
/// observed. Whose pods it sizes is known in any case.
pub async fn round(
    shared: &Shared,
    leads: bool,
    subject: &Subject,
    record: &HpaRecord,
    state: &mut State,
) -> Option<Ended> {
    let observes = observes(&shared.rules, leads, record);
    shared.census.set(&subject.key, Some(observes));
    if observes != YES {
        state.asked.clear();
        state.seen.step = None;
        let _ = shared.bounded(claim(shared, subject, record, state)).await;
        return None;
    }
    match shared.bounded(decide(shared, None, subject, &record.scaling, state)).await {
        Ok(round) => Some(compare(shared, subject, record, round, state)),
        Err(Broken::Late(_)) => Some(FAILED),
        Err(Broken::Stopped) => None,
    }
}

fn observes(rules: &Rules, leads: bool, record: &HpaRecord) -> Observes {
    let spec = &record.scaling.spec;
    let watched = parse_group(&spec.target.api_version)
        .is_ok_and(|group| Workload::of(group, &spec.target.kind).is_some());
    let mut metrics = spec.metrics.iter().zip(&record.scaling.pod_metrics);
    match () {
        () if !leads => NO_LEADER,
        () if !watched => NO_SCALE,
        () if !metrics.all(|(metric, own)| is_served(rules, metric, own.as_ref())) => NO_METRICS,
        () => YES,
    }
}

/// Whether Plimsoll itself serves a metric, so that it need not ask another for it.
fn is_served(rules: &Rules, metric: &Metric, own: Option<&PodMetric>) -> bool {
    match &metric.source {
        _ if own.is_some() => true,
        Source::Pods { metric, .. } => {
            let (resource, metric) = (GroupResource::core("pods"), metric.name.clone());
            let key = ObjectMetric { resource, namespaced: true, metric };
            rules.read(|registry| registry.custom(&key).is_some())
        }
        Source::Object { metric, .. } => rules.read(|registry| {
            registry.custom_metrics().any(|(known, _)| known.metric == metric.name)
        }),
        Source::External { metric, .. } => {
            rules.read(|registry| registry.external(&metric.name).is_some())
        }
        Source::Resource { .. } | Source::ContainerResource { .. } => {
            rules.rules().resource.is_some()
        }
        Source::Unknown(_) => true,
    }
}

/// Says which pods an HPA sizes, so that no Autoscaler sizes them, too. The scale of a
/// kind that is not watched is read now and then.
async fn claim(shared: &Shared, subject: &Subject, record: &HpaRecord, state: &mut State) {
    let (namespace, target) = (&subject.key.namespace, &record.scaling.spec.target);
    let seen = shared.targets.seen(&shared.cluster, namespace, target);
    let target = match seen {
        Some(seen) => seen,
        None if state.seen.selector_read.is_some_and(|at| at.elapsed() < SELECTOR_AGE) => return,
        None => {
            state.seen.selector_read = Some(Instant::now());
            let Ok(read) = shared.targets.read(namespace, target).await else { return };
            read
        }
    };
    let status = Status::from_api(&record.status);
    let (spec, config) = (&record.scaling.spec, shared.decisions(&status));
    if needs_samples(Context { spec, config, now: now() }, &target, &status) {
        let selector = &target.selector;
        shared.cluster.read(|index| drop(Selection::of(shared, index, subject, selector, true)));
    }
}

/// Writes nothing; compares where kube-controller-manager changed the scale.
fn compare(
    shared: &Shared,
    subject: &Subject,
    record: &HpaRecord,
    round: Round<'_>,
    state: &mut State,
) -> Ended {
    let Round { target, decision, memory, at, .. } = round;
    state.remember(memory, at, shared.longest());
    let failed = decision.outcome == Outcome::Failed;
    let replicas = target.as_ref().map(|target| target.replicas.spec_replicas);
    let ours = match (&decision.outcome, &replicas) {
        (Outcome::Rescale { to, .. }, _) => *to,
        (Outcome::Hold | Outcome::Failed, Ok(replicas)) => *replicas,
        (_, Err(_)) => return FAILED,
    };
    let now = replicas.unwrap_or(ours);
    let before = state.wanted.replace(ours);
    let theirs = record.status.desired_replicas;
    if !failed {
        shared.metrics.wanted(&subject.key, ours, theirs);
    }
    let step = Compared { ours, before, theirs, changes: ours != now, failed };
    if let Some(outcome) = state.seen.compare(record, step) {
        shared.metrics.compared(outcome);
        if outcome != AGREED {
            let error = decision.error.as_deref();
            tracing::info!(%subject, ours, theirs, error, "decided otherwise than kube-controller-manager");
        }
    }
    if failed { FAILED } else { OBSERVED }
}

/// Two decisions beside each other.
#[derive(Clone, Copy)]
struct Compared {
    /// What Plimsoll wants now, and wanted in the round before.
    ours: i32,
    before: Option<i32>,
    theirs: i32,
    /// Whether what it wants now is another number than there is.
    changes: bool,
    /// Whether it could not decide.
    failed: bool,
}

const AGREED: &str = "agreed";
const DIFFERED: &str = "differed";
const COULD_NOT: &str = "failed";

impl Seen {
    /// What comes of a round: something where kube-controller-manager changed the scale
    /// since the last, or did not where Plimsoll would have for a while. It decides up to
    /// one period before or after, so that either round around its step may agree.
    fn compare(&mut self, record: &HpaRecord, round: Compared) -> Option<&'static str> {
        let step = record.status.last_scale_time.as_ref().map(|time| time.0.as_second());
        let stepped = self.step.replace(step).is_some_and(|before| before != step);
        let status = Status::from_api(&record.status);
        let holds = |kind| status.condition(kind).is_some_and(|condition| condition.status);
        if !holds(ConditionKind::AbleToScale) || !holds(ConditionKind::ScalingActive) {
            self.alone = 0;
            return None;
        }
        let Compared { ours, before, theirs, changes, failed } = round;
        if stepped {
            self.alone = 0;
            return Some(match () {
                () if failed => COULD_NOT,
                () if ours == theirs || before == Some(theirs) => AGREED,
                () => DIFFERED,
            });
        }
        self.alone = if changes && !failed { self.alone.saturating_add(1) } else { 0 };
        (self.alone == ALONE).then_some(DIFFERED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::read_hpa;
    use serde_json::json;

    fn record(stepped: &str, desired: i32, active: &str) -> HpaRecord {
        let condition = |kind: &str, status: &str| json!({"type": kind, "status": status});
        let object = json!({
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"maxReplicas": 9, "scaleTargetRef": {
                "apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}},
            "status": {"desiredReplicas": desired, "lastScaleTime": stepped, "conditions": [
                condition("AbleToScale", "True"), condition("ScalingActive", active)]},
        });
        read_hpa(serde_json::from_value(object).unwrap())
    }

    fn round(ours: i32, before: i32, theirs: i32, now: i32) -> Compared {
        Compared { ours, before: Some(before), theirs, changes: ours != now, failed: false }
    }

    const FIRST: &str = "2026-01-01T00:00:00Z";
    const SECOND: &str = "2026-01-01T00:00:30Z";

    #[test]
    fn decisions_are_compared_where_kube_controller_manager_changes_the_scale() {
        for (ours, before, expected) in [(4, 2, AGREED), (2, 4, AGREED), (3, 2, DIFFERED)] {
            let mut seen = Seen::default();
            // What was done before is not looked at, and a scale that stays says nothing.
            assert_eq!(seen.compare(&record(FIRST, 2, "True"), round(2, 2, 2, 2)), None);
            assert_eq!(seen.compare(&record(FIRST, 2, "True"), round(2, 2, 2, 2)), None);
            let stepped = seen.compare(&record(SECOND, 4, "True"), round(ours, before, 4, 4));
            assert_eq!(stepped, Some(expected), "{ours} {before}");
            assert_eq!(seen.compare(&record(SECOND, 4, "True"), round(4, 4, 4, 4)), None);
        }
        let mut seen = Seen::default();
        seen.compare(&record(FIRST, 2, "True"), round(2, 2, 2, 2));
        let failed = Compared { failed: true, ..round(4, 2, 4, 4) };
        assert_eq!(seen.compare(&record(SECOND, 4, "True"), failed), Some(COULD_NOT));
    }

    #[test]
    fn where_it_can_not_decide_or_has_had_no_time_to_nothing_is_compared() {
        let mut seen = Seen::default();
        seen.compare(&record(FIRST, 2, "True"), round(2, 2, 2, 2));
        let off = seen.compare(&record(SECOND, 4, "False"), round(2, 2, 4, 4));
        assert_eq!(off, None);
        // A change that Plimsoll alone would make is one difference, once that lasts.
        let told = (0..10).map(|_| seen.compare(&record(SECOND, 4, "True"), round(7, 7, 4, 4)));
        let told: Vec<_> = told.collect();
        assert_eq!(told.iter().flatten().collect::<Vec<_>>(), [&DIFFERED]);
        assert_eq!(told[2], Some(DIFFERED));
    }

    #[test]
    fn the_census_follows_what_is_observed() {
        let metrics = Arc::new(Metrics::default());
        let census = Census::new(metrics);
        let key = super::super::fake::autoscaler("web").key;
        census.set(&key, Some(YES));
        census.set(&key, Some(NO_METRICS));
        let counts = |census: &Census| census.all.lock().unwrap().1.clone();
        assert_eq!((counts(&census)[YES], counts(&census)[NO_METRICS]), (0, 1));
        census.forget(&key);
        assert!(counts(&census).values().all(|count| *count == 0));
        assert!(census.all.lock().unwrap().0.is_empty());
    }
}
