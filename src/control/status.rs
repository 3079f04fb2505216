//! The status: what is shown, and writing it.

use super::events::Events;
use super::{growing, is_passing, message, within};
use crate::crd::{Autoscaler, AutoscalerStatus};
use crate::hpa::{
    self, Current, Event, EventKind, ResourceTarget, ScalarTarget, Source, Spec, Status,
    render_status,
};
use crate::k8s::Quantity;
use crate::leader::FencingToken;
use crate::watch::{Subject, SubjectKind};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerStatus, MetricStatus, MetricValueStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client};
use prometheus_client::metrics::gauge::Gauge;
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

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
    /// When it was last compared with what the object shows; never, or that counts no more.
    looked: Option<Instant>,
}

/// By which part a number must have moved to be worth a write.
const MOVED: f64 = 0.1;

/// The time between two looks at whether the object still shows what was written.
const LOOK: Duration = Duration::from_secs(60);

impl Written {
    /// One that is written now.
    pub fn now(status: Arc<AutoscalerStatus>) -> Self {
        let now = Instant::now();
        Self { status, at: now, looked: Some(now) }
    }

    /// Has it compared with what the object shows the next time.
    pub fn look_at_once(&mut self) {
        self.looked = None;
    }

    /// Whether another hand changed or wiped it, as far as the object is known;
    /// looked at now and then, as the watch may be behind for a while.
    pub fn is_undone(&mut self, shows: impl FnOnce() -> Option<Status>) -> bool {
        if self.looked.is_some_and(|looked| looked.elapsed() < LOOK) {
            return false;
        }
        self.looked = Some(Instant::now());
        let AutoscalerStatus { last_scale_time, current_replicas, desired_replicas, .. } =
            &*self.status;
        let written = Status::from_api(&HorizontalPodAutoscalerStatus {
            last_scale_time: last_scale_time.clone(),
            current_replicas: *current_replicas,
            desired_replicas: *desired_replicas,
            conditions: self.status.conditions.clone(),
            ..Default::default()
        });
        shows().is_some_and(|shown| shown != written)
    }

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

/// Writes statuses beside the decisions, so many a second at most: after a start each
/// of thousands may have to be written, and no scale is to wait for that.
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
    /// Those whose turn comes.
    order: VecDeque<Subject>,
    statuses: HashMap<Subject, Waiting>,
    /// Those that are being written: of one subject one at a time, so that the newest
    /// comes last.
    writing: HashSet<Subject>,
    /// How often in a row a subject's was refused, and those that wait to be tried again.
    refused: HashMap<Subject, u32>,
    later: BTreeSet<(Instant, Subject)>,
}

struct Waiting {
    token: FencingToken,
    uid: String,
    status: Arc<AutoscalerStatus>,
}

/// How a write ended, for the pace of the next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrote {
    Answered,
    /// The API server can't be written to now.
    Passing,
}

/// How many statuses are written at once.
const AT_ONCE: usize = 16;
/// The least time between the beginnings of two writes: at most 200 a second.
const PACE: Duration = Duration::from_millis(5);
/// The longest wait while the API server can't be written to.
const LONGEST_WAIT: Duration = Duration::from_secs(15);
/// The longest wait of a status that the API server refuses.
const REFUSED: Duration = Duration::from_secs(300);
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
    /// It is tried until it is written, the term ends or the subject is forgotten.
    pub fn put(
        &self,
        token: &FencingToken,
        subject: &Subject,
        uid: &str,
        status: Arc<AutoscalerStatus>,
    ) {
        let mut queue = self.queue();
        let waiting = Waiting { token: token.clone(), uid: uid.to_owned(), status };
        let waits = queue.statuses.insert(subject.clone(), waiting).is_some();
        if !waits && !queue.writing.contains(subject) {
            queue.order.push_back(subject.clone());
        }
        self.0.waiting.set(queue.statuses.len() as i64);
        drop(queue);
        self.0.added.notify_one();
    }

    /// Writes a status before anything else of its subject, and waits for that.
    ///
    /// # Errors
    /// Where it could not be written; the text is for a condition.
    pub async fn record(
        &self,
        token: &FencingToken,
        subject: &Subject,
        uid: &str,
        status: &AutoscalerStatus,
    ) -> Result<(), String> {
        // What waits is older. One that is being written must not come after this.
        let begins = || {
            let mut queue = self.queue();
            queue.statuses.remove(subject);
            queue.writing.insert(subject.clone())
        };
        while !begins() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let written = write(&self.0.client, token, subject, uid, status).await;
        {
            let mut queue = self.queue();
            queue.writing.remove(subject);
            queue.again(subject);
        }
        self.0.added.notify_one();
        written.map_err(|error| message(&error))
    }

    /// Whether a status of a subject is yet to be written.
    pub fn has(&self, subject: &Subject) -> bool {
        let queue = self.queue();
        queue.statuses.contains_key(subject) || queue.writing.contains(subject)
    }

    /// Writes what waits, for ever.
    pub async fn run(&self) {
        let mut writes = FuturesUnordered::new();
        let (mut next, mut failures) = (Instant::now(), 0);
        loop {
            // While the API server can't be written to, one at a time finds out.
            let at_once = if failures > 0 { 1 } else { AT_ONCE };
            let (ready, again) = self.queue().look(Instant::now());
            let begin = ready && writes.len() < at_once;
            let again = again.unwrap_or_else(|| Instant::now() + REFUSED);
            tokio::select! {
                Some(wrote) = writes.next() => {
                    failures = if wrote == Wrote::Passing { failures + 1 } else { 0 };
                    if failures > 0 {
                        next = Instant::now() + growing(failures, LONGEST_WAIT);
                    }
                }
                () = tokio::time::sleep_until(next), if begin => {
                    next = Instant::now() + PACE;
                    if let Some(waiting) = self.take() {
                        writes.push(self.write(waiting));
                    }
                }
                () = tokio::time::sleep_until(again) => {}
                () = self.0.added.notified() => {}
            }
        }
    }

    fn take(&self) -> Option<(Subject, Waiting)> {
        let mut queue = self.queue();
        while let Some(subject) = queue.order.pop_front() {
            // Its turn comes again when that one is written.
            if queue.writing.contains(&subject) {
                continue;
            }
            // One that was forgotten has nothing that waits.
            let Some(waiting) = queue.statuses.remove(&subject) else { continue };
            queue.writing.insert(subject.clone());
            self.0.waiting.set(queue.statuses.len() as i64);
            return Some((subject, waiting));
        }
        None
    }

    async fn write(&self, (subject, waiting): (Subject, Waiting)) -> Wrote {
        let Waiting { token, uid, status } = &waiting;
        let written = write(&self.0.client, token, &subject, uid, status).await;
        let mut queue = self.queue();
        queue.writing.remove(&subject);
        let error = match written {
            Err(error) if token.is_valid() => error,
            _ => {
                queue.refused.remove(&subject);
                queue.again(&subject);
                return Wrote::Answered;
            }
        };
        queue.statuses.entry(subject.clone()).or_insert_with(|| Waiting {
            token: token.clone(),
            uid: uid.clone(),
            status: status.clone(),
        });
        self.0.waiting.set(queue.statuses.len() as i64);
        if is_passing(&error) {
            queue.again(&subject);
            drop(queue);
            tracing::warn!(%error, "Failed to write a status; it is tried again");
            return Wrote::Passing;
        }
        let times = queue.refused.entry(subject.clone()).or_default();
        *times += 1;
        let times = *times;
        queue.later.insert((Instant::now() + growing(times, REFUSED), subject.clone()));
        drop(queue);
        let message = message(&error);
        if times == 1 {
            tracing::warn!(%subject, error = message, "Failed to write a status");
        }
        let event = Event { kind: EventKind::Warning, reason: "FailedUpdateStatus", message };
        self.0.events.publish(token, &subject, uid, &[event]);
        Wrote::Answered
    }

    /// Waits until all is written that waits now, for a bounded time.
    pub async fn finish(&self) {
        let start = Instant::now();
        let idle = |queue: &Queue| queue.order.is_empty() && queue.writing.is_empty();
        while !idle(&self.queue()) && start.elapsed() < LAST {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Forgets one that is gone, and what waits of it.
    pub fn forget(&self, subject: &Subject) {
        let mut queue = self.queue();
        queue.statuses.remove(subject);
        queue.refused.remove(subject);
        self.0.waiting.set(queue.statuses.len() as i64);
    }
}

impl Queue {
    /// Whether any may be written now, and when one that was refused is tried again.
    fn look(&mut self, now: Instant) -> (bool, Option<Instant>) {
        while let Some((at, subject)) = self.later.pop_first() {
            if at > now {
                self.later.insert((at, subject));
                break;
            }
            self.again(&subject);
        }
        (!self.order.is_empty(), self.later.first().map(|(at, _)| *at))
    }

    /// Gives a subject its turn where something of it waits.
    fn again(&mut self, subject: &Subject) {
        if self.statuses.contains_key(subject) && !self.writing.contains(subject) {
            self.order.push_back(subject.clone());
        }
    }
}

/// The resource that a subject is one of.
fn resource(subject: &Subject) -> ApiResource {
    match subject.kind {
        SubjectKind::Autoscaler => ApiResource::erase::<Autoscaler>(&()),
        SubjectKind::Hpa => ApiResource::erase::<HorizontalPodAutoscaler>(&()),
    }
}

/// The status of an object as it is now; that of one that is gone is empty. It is listed, as
/// Plimsoll may not get one.
pub async fn read(client: &Client, subject: &Subject) -> Result<Status, kube::Error> {
    let key = &subject.key;
    let api: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), &key.namespace, &resource(subject));
    let only = ListParams::default().fields(&format!("metadata.name={}", key.name));
    let mut list = within(api.list(&only)).await?;
    let status = list.items.pop().map_or(Value::Null, |object| object.data["status"].clone());
    let status: Option<HorizontalPodAutoscalerStatus> =
        serde_json::from_value(status).map_err(kube::Error::SerdeError)?;
    Ok(status.as_ref().map(Status::from_api).unwrap_or_default())
}

/// Writes a status; one whose object is gone, or was made anew, is no error.
async fn write(
    client: &Client,
    token: &FencingToken,
    subject: &Subject,
    uid: &str,
    status: &AutoscalerStatus,
) -> Result<(), kube::Error> {
    let mut value = json!(status);
    // A merge patch removes only what it names. Without a reference the spec can't be
    // read, and what was shown of it stands.
    if status.reference.is_some() {
        for field in ["lastScaleTime", "currentMetrics", "targets"] {
            if value.get(field).is_none() {
                value[field] = Value::Null;
            }
        }
    }
    if let (SubjectKind::Hpa, Some(fields)) = (subject.kind, value.as_object_mut()) {
        fields.remove("reference");
        fields.remove("targets");
    }
    let key = &subject.key;
    let api: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), &key.namespace, &resource(subject));
    // The API server refuses it for an object of this name that was made anew.
    let patch = Patch::Merge(json!({"metadata": {"uid": uid}, "status": value}));
    let of_another = |status: &kube::core::Status| {
        matches!(status.code, 409 | 422) && status.message.to_lowercase().contains("uid")
    };
    match token.write(api.patch_status(&key.name, &PatchParams::default(), &patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 || of_another(&status) => Ok(()),
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
        let written = Written::now(Arc::new(status("10", 3)));
        assert!(!written.is_outdated_by(&status("10", 3), never));
        assert!(!written.is_outdated_by(&status("10900m", 3), never));
        assert!(written.is_outdated_by(&status("11100m", 3), never));
        assert!(!written.is_outdated_by(&status("20", 3), hour));
        assert!(written.is_outdated_by(&status("10", 4), hour));
        let failed = AutoscalerStatus { current_metrics: None, ..status("10", 3) };
        assert!(written.is_outdated_by(&failed, hour));
    }

    #[test]
    fn a_status_that_another_hand_wiped_is_noticed_when_it_is_looked_at() {
        let shown = AutoscalerStatus { current_replicas: Some(3), ..Default::default() };
        let as_written = || Some(Status { current_replicas: 3, ..Status::default() });
        let wiped = || Some(Status::default());
        let mut written = Written::now(Arc::new(shown));
        assert!(!written.is_undone(wiped), "the watch may be behind");
        for (shows, undone) in [(wiped(), true), (as_written(), false), (None, false)] {
            written.look_at_once();
            assert_eq!(written.is_undone(|| shows), undone);
            assert!(!written.is_undone(wiped), "it was looked at just now");
        }
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
        let events = Events::new(client.clone(), Arc::default());
        Writer::new(client.clone(), events, Gauge::default())
    }

    #[tokio::test]
    async fn a_status_is_written_to_the_very_object_that_it_is_of() {
        let (client, log) = fake::api(|request| (200, request.body.clone()));
        let (token, writer) = (fake::fencing_token(&client), writer(&client));
        let web = fake::autoscaler("web");
        writer.put(&token, &web, "uid-1", Arc::default());
        let running = writer.clone();
        let run = tokio::spawn(async move { running.run().await });
        writer.finish().await;
        run.abort();
        let patches = log.of("PATCH");
        assert_eq!(patches[0].body["metadata"]["uid"], "uid-1", "{patches:?}");
    }

    #[tokio::test]
    async fn what_a_status_no_longer_has_is_taken_from_the_object() {
        let (client, log) = fake::api(|request| (200, request.body.clone()));
        let token = fake::fencing_token(&client);
        for reference in [Some("Deployment/web".to_owned()), None] {
            let readable = reference.is_some();
            let status = AutoscalerStatus { reference, ..Default::default() };
            write(&client, &token, &fake::autoscaler("web"), "u", &status).await.unwrap();
            let body = log.of("PATCH").pop().unwrap().body;
            for field in ["lastScaleTime", "currentMetrics", "targets"] {
                let expected = readable.then_some(&Value::Null);
                assert_eq!(body["status"].get(field), expected, "{field}: {body}");
            }
        }
    }

    #[tokio::test]
    async fn a_status_that_waits_is_forgotten_with_its_object() {
        let (client, log) = fake::api(|request| (200, request.body.clone()));
        let (token, writer) = (fake::fencing_token(&client), writer(&client));
        let web = fake::autoscaler("web");
        writer.put(&token, &web, "uid-1", Arc::default());
        writer.forget(&web);
        let running = writer.clone();
        let run = tokio::spawn(async move { running.run().await });
        writer.finish().await;
        run.abort();
        assert!(log.of("").is_empty(), "{:?}", log.of(""));
    }

    #[tokio::test]
    async fn of_one_subject_a_newer_status_waits_for_the_older() {
        let (client, log) = fake::api(|request| (200, request.body.clone()));
        let (token, writer) = (fake::fencing_token(&client), writer(&client));
        let web = fake::autoscaler("web");
        let put = |desired: i32| {
            let status = AutoscalerStatus { desired_replicas: desired, ..Default::default() };
            writer.put(&token, &web, "u", Arc::new(status));
        };
        put(1);
        writer.record(&token, &web, "u", &AutoscalerStatus::default()).await.unwrap();
        put(2);
        let older = writer.take().expect("it waits");
        put(3);
        assert!(writer.take().is_none(), "the older is being written");
        writer.write(older).await;
        writer.write(writer.take().expect("it waits")).await;
        assert_eq!(log.of("PATCH")[2].body["status"]["desiredReplicas"], 3);
    }

    #[tokio::test(start_paused = true)]
    async fn while_the_api_server_is_away_tries_are_few_and_all_is_written_in_the_end() {
        let away = Arc::new(std::sync::atomic::AtomicBool::new(true));
        let told = away.clone();
        let (client, log) =
            fake::api(move |request| match told.load(std::sync::atomic::Ordering::Relaxed) {
                true => fake::failure(503, "ServiceUnavailable", "starting"),
                false => (200, request.body.clone()),
            });
        let (token, writer) = (fake::fencing_token(&client), writer(&client));
        for number in 0..1_000 {
            let subject = fake::autoscaler(&format!("web-{number}"));
            writer.put(&token, &subject, "u", Arc::default());
        }
        let running = writer.clone();
        let run = tokio::spawn(async move { running.run().await });
        tokio::time::sleep(Duration::from_secs(600)).await;
        let tried = log.of("PATCH").len();
        assert!(tried < 100, "{tried} tries in ten minutes");
        away.store(false, std::sync::atomic::Ordering::Relaxed);
        tokio::time::sleep(LONGEST_WAIT + Duration::from_secs(10)).await;
        assert_eq!(log.of("PATCH").len() - tried, 1_000);
        assert!(!writer.has(&fake::autoscaler("web-7")));
        run.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_refused_is_tried_ever_more_seldom_and_holds_up_nobody() {
        let (client, log) = fake::api(|request| match request.line.contains("/bad/") {
            true => fake::failure(403, "Forbidden", "not for you"),
            false => (200, request.body.clone()),
        });
        let (token, writer) = (fake::fencing_token(&client), writer(&client));
        for name in ["bad", "good"] {
            writer.put(&token, &fake::autoscaler(name), "u", Arc::default());
        }
        let running = writer.clone();
        let run = tokio::spawn(async move { running.run().await });
        tokio::time::sleep(Duration::from_secs(1_000)).await;
        assert_eq!(log.of("PATCH").iter().filter(|r| r.line.contains("good")).count(), 1);
        let tries = log.of("PATCH").iter().filter(|r| r.line.contains("bad")).count();
        assert!((8..=12).contains(&tries), "{tries}");
        run.abort();
    }
}
