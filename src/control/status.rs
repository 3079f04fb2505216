//! The status: what is shown, and writing it.

use super::events::Events;
use super::message;
use crate::crd::{Autoscaler, AutoscalerStatus};
use crate::hpa::{
    self, Current, Event, EventKind, ResourceTarget, ScalarTarget, Source, Spec, Status,
    render_status,
};
use crate::k8s::Quantity;
use crate::leader::Permit;
use crate::watch::{Subject, SubjectKind};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerStatus, MetricStatus, MetricValueStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client};
use prometheus_client::metrics::gauge::Gauge;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The status to show: that of the decision, and two columns for people.
pub fn shown(status: &Status, spec: &Spec, generation: Option<i64>) -> AutoscalerStatus {
    let rendered = render_status(status);
    from_hpa(rendered, spec, &status.current, generation)
}

/// The same from the status of a native HPA, where one executes.
pub fn from_hpa(
    status: HorizontalPodAutoscalerStatus,
    spec: &Spec,
    current: &[Current],
    generation: Option<i64>,
) -> AutoscalerStatus {
    AutoscalerStatus {
        reference: Some(format!("{}/{}", spec.target.kind, spec.target.name)),
        targets: Some(targets(spec, current)),
        observed_generation: generation,
        last_scale_time: status.last_scale_time,
        current_replicas: status.current_replicas,
        desired_replicas: status.desired_replicas,
        current_metrics: status.current_metrics,
        conditions: status.conditions,
    }
}

/// What each metric is over what it should be, as `kubectl get hpa` shows it.
fn targets(spec: &Spec, current: &[Current]) -> String {
    let metric = |(index, metric): (usize, &hpa::Metric)| {
        let now = match current.get(index).copied().unwrap_or(Current::None) {
            Current::None => "<unknown>".to_owned(),
            Current::Value(milli) | Current::Average(milli) => quantity(milli),
            Current::Utilization(percent, _) => format!("{percent}%"),
        };
        let wanted = wanted(&metric.source);
        match &metric.source {
            Source::Resource { name, .. } | Source::ContainerResource { name, .. } => {
                format!("{name}: {now}/{wanted}")
            }
            _ => format!("{now}/{wanted}"),
        }
    };
    spec.metrics.iter().enumerate().map(metric).collect::<Vec<_>>().join(", ")
}

fn wanted(source: &Source) -> String {
    match source {
        Source::Pods { average_milli, .. } => quantity(*average_milli),
        Source::Resource { target, .. } | Source::ContainerResource { target, .. } => {
            match target {
                ResourceTarget::Average(milli) => quantity(*milli),
                ResourceTarget::Utilization(percent) => format!("{percent}%"),
                ResourceTarget::Invalid => "<unset>".to_owned(),
            }
        }
        Source::Object { target, .. } | Source::External { target, .. } => match target {
            ScalarTarget::Value(milli) => quantity(*milli),
            ScalarTarget::Average(milli) => format!("{} (avg)", quantity(*milli)),
            ScalarTarget::Invalid => "<unset>".to_owned(),
        },
        Source::Unknown(_) => "<unset>".to_owned(),
    }
}

fn quantity(milli: i64) -> String {
    Quantity::from_milli(milli).to_string()
}

/// A status that was written, and when.
pub struct Written {
    /// The status.
    pub status: Arc<AutoscalerStatus>,
    /// When.
    pub at: Instant,
}

/// By which part a number must have moved to be worth a write.
const MOVED: f64 = 0.1;

impl Written {
    /// Whether another status is worth a write: at once where anything changed
    /// but measured numbers; those only where they moved, and not too often.
    pub fn is_outdated_by(&self, shown: &AutoscalerStatus, interval: Duration) -> bool {
        if decided(&self.status) != decided(shown) {
            return true;
        }
        let (before, now) = (numbers(&self.status), numbers(shown));
        // A metric that came or went is no number that moved.
        if before.len() != now.len() {
            return true;
        }
        let moved = |(before, now): (&f64, &f64)| (before - now).abs() > before.abs() * MOVED;
        self.at.elapsed() >= interval && before.iter().zip(&now).any(moved)
    }
}

/// All of a status but the measured numbers.
fn decided(status: &AutoscalerStatus) -> impl PartialEq + use<'_> {
    let AutoscalerStatus {
        reference,
        targets: _,
        observed_generation,
        last_scale_time,
        current_replicas,
        desired_replicas,
        current_metrics: _,
        conditions,
    } = status;
    let replicas = (current_replicas, desired_replicas);
    (reference, observed_generation, last_scale_time, replicas, conditions)
}

/// The numbers that a status shows of its metrics.
fn numbers(status: &AutoscalerStatus) -> Vec<f64> {
    let quantity = |quantity: &ApiQuantity| Some(quantity.0.parse::<Quantity>().ok()?.as_f64());
    let of = |value: &MetricValueStatus| {
        let average = || value.average_value.as_ref().and_then(quantity);
        value.value.as_ref().and_then(quantity).or_else(average)
    };
    let metric = |metric: &MetricStatus| {
        let pods = metric.pods.as_ref().map(|metric| &metric.current);
        pods.or(metric.resource.as_ref().map(|metric| &metric.current))
            .or(metric.container_resource.as_ref().map(|metric| &metric.current))
            .or(metric.object.as_ref().map(|metric| &metric.current))
            .or(metric.external.as_ref().map(|metric| &metric.current))
            .and_then(of)
    };
    status.current_metrics.iter().flatten().filter_map(metric).collect()
}

/// Writes statuses beside the decisions, a few at a time: after a start each of
/// thousands may have to be written, and no scale is to wait for that.
#[derive(Clone)]
pub struct Writer(Arc<Inner>);

struct Inner {
    client: Client,
    events: Events,
    queue: Mutex<Queue>,
    added: Notify,
    waiting: Gauge,
}

/// What waits; of one subject the newest alone.
#[derive(Default)]
struct Queue {
    order: VecDeque<Subject>,
    statuses: HashMap<Subject, Waiting>,
    /// Those that are being written: of one subject one at a time, so that the newest
    /// comes last.
    writing: HashSet<Subject>,
    /// Whose last write failed.
    failed: HashSet<Subject>,
}

struct Waiting {
    permit: Permit,
    uid: String,
    status: Arc<AutoscalerStatus>,
}

/// How many statuses are written at once.
const AT_ONCE: usize = 16;
/// How long those that wait at an orderly end are waited for.
const LAST: Duration = Duration::from_secs(5);

impl Writer {
    /// One over this client; `waiting` shows how many wait.
    pub fn new(client: Client, events: Events, waiting: Gauge) -> Self {
        let (queue, added) = (Mutex::default(), Notify::new());
        Self(Arc::new(Inner { client, events, queue, added, waiting }))
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a status written, instead of the one of the same subject that still waits.
    pub fn put(
        &self,
        permit: &Permit,
        subject: &Subject,
        uid: &str,
        status: Arc<AutoscalerStatus>,
    ) {
        let mut queue = self.queue();
        let waiting = Waiting { permit: permit.clone(), uid: uid.to_owned(), status };
        let waits = queue.statuses.insert(subject.clone(), waiting).is_some();
        if !waits && !queue.writing.contains(subject) {
            queue.order.push_back(subject.clone());
        }
        self.0.waiting.set(queue.statuses.len() as i64);
        drop(queue);
        self.0.added.notify_one();
    }

    /// Whether the last write for a subject failed; told once.
    pub fn take_failed(&self, subject: &Subject) -> bool {
        let mut queue = self.queue();
        !queue.failed.is_empty() && queue.failed.remove(subject)
    }

    /// Writes what waits, for ever.
    pub async fn run(&self) {
        let mut writes = FuturesUnordered::new();
        loop {
            while writes.len() < AT_ONCE
                && let Some(next) = self.take()
            {
                writes.push(self.write(next));
            }
            tokio::select! {
                Some(()) = writes.next() => {}
                () = self.0.added.notified(), if writes.len() < AT_ONCE => {}
            }
        }
    }

    fn take(&self) -> Option<(Subject, Waiting)> {
        let mut queue = self.queue();
        let subject = queue.order.pop_front()?;
        let waiting = queue.statuses.remove(&subject)?;
        queue.writing.insert(subject.clone());
        self.0.waiting.set(queue.statuses.len() as i64);
        Some((subject, waiting))
    }

    async fn write(&self, (subject, Waiting { permit, uid, status }): (Subject, Waiting)) {
        let written = write(&self.0.client, &permit, &subject, &status).await;
        if let Err(error) = written
            && permit.holds()
        {
            let error = message(&error);
            tracing::warn!(%subject, error, "could not write the status");
            let event =
                Event { kind: EventKind::Warning, reason: "FailedUpdateStatus", message: error };
            self.0.events.publish(&permit, &subject, &uid, &event).await;
            self.queue().failed.insert(subject.clone());
        }
        let mut queue = self.queue();
        queue.writing.remove(&subject);
        if queue.statuses.contains_key(&subject) {
            queue.order.push_back(subject);
        }
    }

    /// Waits until all is written that waits now, for a bounded time.
    pub async fn finish(&self) {
        let start = Instant::now();
        let idle = |queue: &Queue| queue.statuses.is_empty() && queue.writing.is_empty();
        while !idle(&self.queue()) && start.elapsed() < LAST {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Forgets one that is gone.
    pub fn forget(&self, subject: &Subject) {
        self.queue().failed.remove(subject);
    }
}

/// Writes a status; one whose object is gone is no error.
async fn write(
    client: &Client,
    permit: &Permit,
    subject: &Subject,
    status: &AutoscalerStatus,
) -> Result<(), kube::Error> {
    let mut value = json!(status);
    // A merge patch removes only what it names.
    for field in ["lastScaleTime", "currentMetrics", "reference", "targets"] {
        if value.get(field).is_none() {
            value[field] = Value::Null;
        }
    }
    let resource = match subject.kind {
        SubjectKind::Autoscaler => ApiResource::erase::<Autoscaler>(&()),
        SubjectKind::Hpa => {
            if let Some(fields) = value.as_object_mut() {
                fields.remove("reference");
                fields.remove("targets");
            }
            ApiResource::erase::<HorizontalPodAutoscaler>(&())
        }
    };
    let key = &subject.key;
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &key.namespace, &resource);
    let patch = Patch::Merge(json!({"status": value}));
    match permit.write(api.patch_status(&key.name, &PatchParams::default(), &patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake;
    use super::*;
    use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscalerSpec;

    #[test]
    fn noise_is_not_worth_a_write_and_a_decision_is() {
        let status = |average: &str, desired: i32| AutoscalerStatus {
            desired_replicas: desired,
            targets: Some(average.to_owned()),
            current_metrics: serde_json::from_value(json!([{"type": "Pods", "pods": {
                "metric": {"name": "qps"}, "current": {"averageValue": average}}}]))
            .unwrap(),
            ..Default::default()
        };
        let (hour, never) = (Duration::from_secs(3600), Duration::ZERO);
        let written = Written { status: Arc::new(status("10", 3)), at: Instant::now() };
        assert!(!written.is_outdated_by(&status("10", 3), never));
        assert!(!written.is_outdated_by(&status("10900m", 3), never));
        assert!(written.is_outdated_by(&status("11100m", 3), never));
        assert!(!written.is_outdated_by(&status("20", 3), hour));
        assert!(written.is_outdated_by(&status("10", 4), hour));
        let failed = AutoscalerStatus { current_metrics: None, ..status("10", 3) };
        assert!(written.is_outdated_by(&failed, hour));
    }

    #[test]
    fn targets_are_shown_as_kubectl_shows_those_of_an_hpa() {
        let spec: HorizontalPodAutoscalerSpec = serde_json::from_value(json!({
            "maxReplicas": 5, "scaleTargetRef": {"kind": "Deployment", "name": "web"},
            "metrics": [
                {"type": "Pods", "pods": {"metric": {"name": "qps"},
                    "target": {"type": "AverageValue", "averageValue": "10"}}},
                {"type": "Resource", "resource": {"name": "cpu",
                    "target": {"type": "Utilization", "averageUtilization": 80}}},
                {"type": "External", "external": {"metric": {"name": "queue"},
                    "target": {"type": "AverageValue", "averageValue": "30"}}},
            ]
        }))
        .unwrap();
        let spec = Spec::from_api(&spec);
        let current = [Current::Average(12_500), Current::Utilization(45, 90), Current::None];
        assert_eq!(targets(&spec, &current), "12500m/10, cpu: 45%/80%, <unknown>/30 (avg)");
    }

    fn writer(client: &Client) -> Writer {
        Writer::new(client.clone(), Events::new(client.clone()), Gauge::default())
    }

    #[tokio::test]
    async fn a_status_is_written_to_the_very_object_that_it_is_of() {
        let (client, log) = fake::api(|request| (200, request.body.clone()));
        let (permit, writer) = (fake::permit(&client), writer(&client));
        let web = fake::autoscaler("web");
        writer.put(&permit, &web, "uid-1", Arc::default());
        let running = writer.clone();
        let run = tokio::spawn(async move { running.run().await });
        writer.finish().await;
        run.abort();
        let patches = log.of("PATCH");
        assert_eq!(patches[0].body["metadata"]["uid"], "uid-1", "{patches:?}");
    }

    #[tokio::test]
    async fn a_status_that_waits_is_forgotten_with_its_object() {
        let (client, log) = fake::api(|request| (200, request.body.clone()));
        let (permit, writer) = (fake::permit(&client), writer(&client));
        let web = fake::autoscaler("web");
        writer.put(&permit, &web, "uid-1", Arc::default());
        writer.forget(&web);
        let running = writer.clone();
        let run = tokio::spawn(async move { running.run().await });
        writer.finish().await;
        run.abort();
        assert!(log.of("").is_empty(), "{:?}", log.of(""));
    }
}
