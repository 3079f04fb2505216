use super::*;
use crate::config::Config;
use crate::control::context::SyncResult::{self, Failed, Held, Rescaled};
use crate::control::fake::{self, Log, Request};
use crate::hpa::{ConditionKind, LONGEST_MS, Memory, Recommendation};
use crate::rules::{self, RuleSet};
use crate::watch::{ObjectKey, Resources, read_autoscaler, read_pod};
use crate::{prometheus, watch};
use axum::response::IntoResponse;
use http::HeaderMap;
use serde_json::{Value, json};
use std::sync::{Mutex, OnceLock};

/// An API server that has the Deployment `shop/web` and the external metric `queue`,
/// which can't be read where there is none.
struct World {
    replicas: i32,
    queue: Option<i64>,
    /// What it does otherwise: asked before each answer.
    otherwise: Otherwise,
}

/// The request for the Autoscalers of the namespace, and an answer to it.
const AUTOSCALERS: &str = "GET /apis/plimsoll.dev/v1alpha1/namespaces/shop/autoscalers";

fn listed(items: &[Value]) -> Value {
    json!({"apiVersion": "plimsoll.dev/v1alpha1", "kind": "AutoscalerList", "metadata": {},
        "items": items})
}

type Otherwise = Box<dyn FnMut(&mut World, &Request) -> Option<(u16, Value)> + Send>;

impl World {
    fn new(
        replicas: i32,
        queue: Option<i64>,
        otherwise: impl FnMut(&mut Self, &Request) -> Option<(u16, Value)> + Send + 'static,
    ) -> Self {
        Self { replicas, queue, otherwise: Box::new(otherwise) }
    }

    fn answer(&mut self, request: &Request) -> (u16, Value) {
        let mut otherwise = std::mem::replace(&mut self.otherwise, Box::new(|_, _| None));
        let other = otherwise(self, request);
        self.otherwise = otherwise;
        other.unwrap_or_else(|| match (&*request.line, self.queue) {
            ("GET /apis", _) => (200, fake::groups()),
            ("GET /apis/apps/v1", _) => (200, fake::deployments()),
            (AUTOSCALERS, _) => (200, listed(&[])),
            (line, _) if line.starts_with("GET") && line.ends_with("/scale") => {
                (200, fake::scale(1, self.replicas))
            }
            (line, _) if line.starts_with("PUT") && line.ends_with("/scale") => {
                self.replicas = request.body["spec"]["replicas"].as_i64().unwrap() as i32;
                (200, fake::scale(1, self.replicas))
            }
            (line, Some(queue)) if line.ends_with("/queue") => {
                (200, json!({"items": [{"value": queue.to_string()}]}))
            }
            (line, None) if line.ends_with("/queue") => {
                fake::failure(404, "NotFound", "there is no such metric")
            }
            _ => (200, request.body.clone()),
        })
    }

    /// The loop of a replica that leads without election.
    fn run(self) -> (ControlLoop, Log) {
        let world = Mutex::new(self);
        let (client, log) = fake::api(move |request| world.lock().unwrap().answer(request));
        let _ = rustls::crypto::ring::default_provider().install_default();
        let options = prometheus::Options::new("http://127.0.0.1:1");
        let prometheus = prometheus::Client::new(options).unwrap();
        let samples = Store::new(prometheus.clone(), Duration::ZERO);
        let (cluster, minute) = (Cluster::default(), Duration::from_secs(60));
        let rules = Rules::new(
            RuleSet::default(),
            prometheus,
            samples.clone(),
            client.clone(),
            cluster.clone(),
            Resources::new(client.clone()),
            rules::Settings { interval: minute, max_age: minute, sample_max_age: minute },
        );
        let settings = Settings {
            decisions: hpa::Config { scale_to_zero: true, ..hpa::Config::default() },
            native_hpas: NativeHpas::Ignore,
            period: Duration::from_secs(15),
            status_interval: minute,
            memory_interval: Duration::ZERO,
            decision_timeout: Duration::from_secs(5),
        };
        let mut control = ControlLoop::new(Dependencies {
            leader: fake::leader(&client),
            client,
            cluster,
            synced: Synced::default(),
            samples,
            pod_queries: Reloadable::new(Config::default().pod_queries),
            rules,
            settings,
            metrics: Arc::default(),
            live: LiveStatus::default(),
            clock: Clock::default(),
            heartbeat: Heartbeat::default(),
        });
        control.leadership_changed();
        (control, log)
    }
}

/// Has an Autoscaler of `shop/web` follow the queue: one replica for each in it.
fn put(control: &ControlLoop, name: &str, spec: Value) -> Subject {
    let mut whole = json!({
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "metrics": [{"type": "External", "external": {"metric": {"name": "queue"},
            "target": {"type": "AverageValue", "averageValue": "1"}}}],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let metadata = json!({"namespace": "shop", "name": name, "uid": name, "generation": 1});
    let object = json!({"metadata": metadata, "spec": whole});
    let record = read_autoscaler(serde_json::from_value(object).unwrap(), None);
    assert!(record.parsed.is_ok(), "{:?}", record.parsed);
    let subject = fake::autoscaler(name);
    control.ctx.cluster.write(|index| index.put_autoscaler(subject.key.clone(), record));
    subject
}

/// What is remembered of `shop/web`: one recommendation.
fn remembering(replicas: i32, time: i64) -> AutoscalerState {
    let recommendations = vec![Recommendation { replicas, time }];
    let memory = Memory { recommendations, ..Memory::default() };
    AutoscalerState::restored(Checkpoint {
        uid: "web".to_owned(),
        memory,
        last_scale: None,
        held: None,
    })
}

/// What the watches say: so many replicas, and as many pods.
fn seen(control: &ControlLoop, replicas: i32) {
    let key = |name: String| ObjectKey { namespace: "shop".to_owned(), name };
    control.ctx.cluster.write(|index| {
        let selector = "app=web".to_owned();
        let numbers = hpa::Scale { spec_replicas: replicas, status_replicas: replicas };
        let scale = watch::ScaleRecord { replicas: numbers, selector };
        index.put_scale(watch::Workload::Deployment, key("web".to_owned()), scale);
        for number in 0..replicas {
            let pod = json!({"metadata": {"labels": {"app": "web"}},
                "spec": {"containers": []}, "status": {"phase": "Running"}});
            index.put_pod(key(format!("{number}")), read_pod(serde_json::from_value(pod).unwrap()));
        }
    });
}

/// Decides once.
async fn decided(
    control: &ControlLoop,
    subject: &Subject,
    state: &mut AutoscalerState,
) -> SyncResult {
    let token = control.ctx.fencing_token();
    let ended = reconcile(&control.ctx, token.as_ref(), subject, state).await;
    ended.expect("it is there")
}

fn is_put(request: &Request) -> bool {
    request.line.starts_with("PUT") && request.line.ends_with("/scale")
}

/// A change of its own that it learns of later counts for its policies as if it had
/// been told at once.
#[tokio::test]
async fn a_scale_that_was_written_without_an_answer_counts_once_it_is_seen() {
    let mut lost = false;
    let (control, log) = World::new(8, Some(3), move |world, request| {
        if is_put(request) {
            lost = true;
            world.replicas = 3;
            return Some(fake::failure(504, "Timeout", "it took too long"));
        }
        let scale = request.line.ends_with("/scale");
        (lost && scale).then(|| fake::failure(503, "ServiceUnavailable", "overloaded"))
    })
    .run();
    let policies = json!([{"type": "Pods", "value": 5, "periodSeconds": 600}]);
    let behavior = json!({"scaleDown": {"stabilizationWindowSeconds": 0, "policies": policies}});
    let subject = put(&control, "web", json!({"maxReplicas": 3, "behavior": behavior}));
    seen(&control, 8);
    let mut state = AutoscalerState::default();
    assert_eq!(decided(&control, &subject, &mut state).await, Failed);
    // The watch is behind, and then is not.
    assert_eq!(state.memory.downs, []);
    seen(&control, 3);
    assert_eq!(decided(&control, &subject, &mut state).await, Held);
    let downs: Vec<i32> = state.memory.downs.iter().map(|event| event.change).collect();
    assert_eq!((downs, state.status.last_scale.is_some()), (vec![5], true));
    assert_eq!(decided(&control, &subject, &mut state).await, Held);
    assert_eq!((state.memory.downs.len(), log.of("PUT").len()), (1, 1));
}

#[tokio::test]
async fn a_fallback_neither_wakes_what_was_switched_off_meanwhile_nor_counts_what_others_raised() {
    for by_now in [0, 6] {
        let (control, log) = World::new(by_now, None, |_, _| None).run();
        let fallback = json!({"failedRounds": 1, "replicas": 5});
        let subject = put(&control, "web", json!({"maxReplicas": 9, "fallback": fallback}));
        seen(&control, 3);
        let mut state = AutoscalerState::default();
        assert_eq!(decided(&control, &subject, &mut state).await, Failed);
        assert!(log.of("PUT").is_empty(), "{:?}", log.of("PUT"));
        let Memory { recommendations, ups, .. } = &state.memory;
        assert!(ups.is_empty() && recommendations.iter().all(|r| r.replicas == 3), "{by_now}");
        assert_eq!(state.status.last_scale, None, "{by_now}");
    }
}

#[tokio::test(start_paused = true)]
async fn metrics_that_hang_lead_to_the_fallback_as_those_that_fail_do() {
    let hangs = |_: &mut World, request: &Request| {
        request.line.ends_with("/queue").then_some((0, Value::Null))
    };
    let (control, log) = World::new(3, None, hangs).run();
    let fallback = json!({"failedRounds": 2, "replicas": 5});
    let subject = put(&control, "web", json!({"maxReplicas": 9, "fallback": fallback}));
    seen(&control, 3);
    let mut state = AutoscalerState::default();
    for _ in 0..2 {
        assert!(log.of("PUT").is_empty());
        assert_eq!(decided(&control, &subject, &mut state).await, Failed);
    }
    assert_eq!(log.of("PUT")[0].body["spec"]["replicas"], 5);
}

/// The first rates after a gap are of two samples, and far below the load.
#[tokio::test]
async fn metrics_that_were_away_remove_no_replica_before_they_are_back_for_as_long() {
    let queue = Arc::new(Mutex::new(Some(8)));
    let asked = queue.clone();
    let (control, log) = World::new(8, None, move |world, _| {
        world.queue = *asked.lock().unwrap();
        None
    })
    .run();
    let behavior = json!({"scaleDown": {"stabilizationWindowSeconds": 300}});
    let subject = put(&control, "web", json!({"maxReplicas": 9, "behavior": behavior}));
    seen(&control, 8);
    let mut state = AutoscalerState::default();
    let later = |state: &mut AutoscalerState, seconds: i64| {
        state.memory = std::mem::take(&mut state.memory).shifted(-seconds * 1000);
        let earlier = |time| time - seconds * 1000;
        state.held = state.held.map(|(since, until)| (earlier(since), earlier(until)));
    };
    assert_eq!(decided(&control, &subject, &mut state).await, Held);
    *queue.lock().unwrap() = None;
    assert_eq!(decided(&control, &subject, &mut state).await, Failed);
    // The window of stabilization has nothing from before any more.
    later(&mut state, 600);
    *queue.lock().unwrap() = Some(2);
    for _ in 0..2 {
        assert_eq!(decided(&control, &subject, &mut state).await, Held);
        later(&mut state, 149);
    }
    assert_eq!(decided(&control, &subject, &mut state).await, Held);
    later(&mut state, 3);
    assert_eq!(decided(&control, &subject, &mut state).await, Rescaled);
    assert_eq!(log.of("PUT")[0].body["spec"]["replicas"], 2);
}

/// A process that began meanwhile has it from what was kept.
#[tokio::test]
async fn metrics_that_were_away_before_a_restart_remove_no_replica_at_once() {
    let (control, _) = World::new(8, Some(2), |_, _| None).run();
    let behavior = json!({"scaleDown": {"stabilizationWindowSeconds": 300}});
    let subject = put(&control, "web", json!({"maxReplicas": 9, "behavior": behavior}));
    seen(&control, 8);
    // What was recommended last is out of the window.
    let mut state = remembering(2, -400_000);
    assert_eq!(decided(&control, &subject, &mut state).await, Held);
    let limited = state.status.condition(ConditionKind::ScalingLimited).unwrap();
    assert_eq!(limited.reason, "MetricsWereAway");
    state.held = state.held.map(|(since, until)| (since - 300_000, until - 300_000));
    assert_eq!(decided(&control, &subject, &mut state).await, Rescaled);
}

/// A process that begins anew while removals are withheld withholds them, too.
#[tokio::test]
async fn a_restart_ends_no_hold() {
    let (control, log) = World::new(8, Some(2), |_, _| None).run();
    let behavior = json!({"scaleDown": {"stabilizationWindowSeconds": 300}});
    let subject = put(&control, "web", json!({"maxReplicas": 9, "behavior": behavior}));
    seen(&control, 8);
    let mut state = remembering(8, -600_000);
    assert_eq!(decided(&control, &subject, &mut state).await, Held);
    // Metrics were away for 10 minutes, and have been back for one.
    state.memory = std::mem::take(&mut state.memory).shifted(-60_000);
    state.held = state.held.map(|(since, until)| (since - 60_000, until - 60_000));
    let kept = state.checkpoint(control.ctx.clock.elapsed(), LONGEST_MS).expect("there is a hold");
    let mut state = AutoscalerState::restored(kept);
    for _ in 0..2 {
        assert_eq!(decided(&control, &subject, &mut state).await, Held);
        let limited = state.status.condition(ConditionKind::ScalingLimited).unwrap();
        assert_eq!(limited.reason, "MetricsWereAway");
        // Out of the window of a minute's gap, within that of the hold.
        state.memory = std::mem::take(&mut state.memory).shifted(-70_000);
        state.held = state.held.map(|(since, until)| (since - 70_000, until - 70_000));
    }
    assert!(log.of("PUT").is_empty());
    state.held = state.held.map(|(since, until)| (since - 300_000, until - 300_000));
    state.memory.recommendations.retain(|one| one.replicas == 2);
    assert_eq!(decided(&control, &subject, &mut state).await, Rescaled);
}

/// What is withheld is a removal: nothing is added that no metric asks for.
#[tokio::test]
async fn metrics_that_were_away_add_no_replica() {
    let (control, log) = World::new(4, Some(2), |_, _| None).run();
    let subject = put(&control, "web", json!({"maxReplicas": 10, "behavior": null}));
    seen(&control, 4);
    let mut state = remembering(10, -400_000);
    for _ in 0..3 {
        assert_eq!(decided(&control, &subject, &mut state).await, Held);
    }
    assert!(log.of("PUT").is_empty(), "{:?}", log.of("PUT"));
}

/// At a time of its own: the window of scale-up has no say in it.
#[tokio::test]
async fn a_window_of_scale_up_does_not_let_replicas_go_after_an_outage() {
    let (control, _) = World::new(8, Some(2), |_, _| None).run();
    let window = json!({"stabilizationWindowSeconds": 300});
    let behavior = json!({"scaleUp": window, "scaleDown": window});
    let subject = put(&control, "web", json!({"maxReplicas": 9, "behavior": behavior}));
    seen(&control, 8);
    let mut state = remembering(8, -400_000);
    assert_eq!(decided(&control, &subject, &mut state).await, Held);
}

/// A watch that is behind does not know that Plimsoll scaled it to zero.
#[tokio::test]
async fn at_zero_a_new_leader_asks_the_object_itself_who_brought_it_there() {
    for away in [false, true] {
        let (control, log) = World::new(0, Some(2), move |_, request| {
            let asked = request.line == AUTOSCALERS;
            let condition = json!({"type": "ScaledToZero", "status": "True", "reason": "ScaledToZero",
                "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
            let object = json!({"apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler",
                "metadata": {"name": "web"}, "status": {"conditions": [condition]}});
            asked.then(|| match away {
                false => (200, listed(&[object])),
                true => fake::failure(503, "ServiceUnavailable", "starting"),
            })
        })
        .run();
        let subject = put(&control, "web", json!({"minReplicas": 0, "maxReplicas": 9}));
        seen(&control, 0);
        let mut state = AutoscalerState::default();
        let ended = decided(&control, &subject, &mut state).await;
        assert_eq!(ended, if away { Failed } else { Rescaled });
        if away {
            let written = |line: &str| log.of(line).len();
            assert_eq!((written("PATCH"), written("PUT")), (0, 0));
            assert!(!control.ctx.statuses.has(&subject), "nothing is written over what it says");
        }
    }
}

#[tokio::test]
async fn a_freeze_that_stops_a_scale_to_zero_leaves_no_word_that_it_was_done() {
    let leader: Arc<OnceLock<LeaderElector>> = Arc::default();
    let known = leader.clone();
    let (control, log) = World::new(2, Some(0), move |_, request| {
        if request.line.ends_with("/status") && request.body.to_string().contains("ScalingToZero") {
            fake::freeze(known.get().unwrap());
        }
        None
    })
    .run();
    let _ = leader.set(control.ctx.leader.clone());
    let subject = put(&control, "web", json!({"minReplicas": 0, "maxReplicas": 9}));
    seen(&control, 2);
    let mut state = AutoscalerState::default();
    assert_eq!(decided(&control, &subject, &mut state).await, Held);
    assert!(log.of("PUT").is_empty() && control.ctx.leader.frozen().is_some());
    let condition = state.status.condition(ConditionKind::ScaledToZero).unwrap();
    assert!(!condition.status, "{condition:?}");
}

/// A watch that is behind says nothing of a change that was asked for after it.
#[tokio::test]
async fn a_scale_that_was_written_without_an_answer_counts_though_the_watch_is_behind() {
    let mut lost = false;
    let (control, log) = World::new(8, Some(40), move |world, request| {
        if is_put(request) {
            lost = true;
            world.replicas = 12;
            return Some(fake::failure(504, "Timeout", "it took too long"));
        }
        let scale = request.line.ends_with("/scale");
        (scale && std::mem::take(&mut lost)).then(|| fake::failure(503, "", "overloaded"))
    })
    .run();
    let policies = json!([{"type": "Pods", "value": 4, "periodSeconds": 600}]);
    let behavior = json!({"scaleUp": {"stabilizationWindowSeconds": 0, "policies": policies}});
    let subject = put(&control, "web", json!({"maxReplicas": 40, "behavior": behavior}));
    seen(&control, 4);
    let mut state = AutoscalerState::default();
    assert_eq!(decided(&control, &subject, &mut state).await, Failed);
    assert_eq!(decided(&control, &subject, &mut state).await, Held);
    let ups: Vec<i32> = state.memory.ups.iter().map(|event| event.change).collect();
    assert_eq!((ups, state.status.last_scale.is_some()), (vec![4], true));
    assert_eq!(log.of("PUT").len(), 1);
}

#[tokio::test]
async fn a_scale_to_zero_that_is_done_late_is_woken_from() {
    let now = Arc::new(Mutex::new((2, 0)));
    let known = now.clone();
    let mut lost = false;
    let (control, log) = World::new(2, None, move |world, request| {
        let (replicas, queue) = *known.lock().unwrap();
        (world.replicas, world.queue) = (replicas, Some(queue));
        (is_put(request) && !std::mem::replace(&mut lost, true))
            .then(|| fake::failure(504, "Timeout", "it took too long"))
    })
    .run();
    let subject = put(&control, "web", json!({"minReplicas": 0, "maxReplicas": 9}));
    seen(&control, 2);
    let mut state = AutoscalerState::default();
    assert_eq!(decided(&control, &subject, &mut state).await, Failed);
    *now.lock().unwrap() = (2, 2);
    assert_eq!(decided(&control, &subject, &mut state).await, Held);
    *now.lock().unwrap() = (0, 2);
    seen(&control, 0);
    assert_eq!(decided(&control, &subject, &mut state).await, Rescaled);
    let written: Vec<_> = log.of("").into_iter().filter(is_put).collect();
    assert_eq!(written.last().unwrap().body["spec"]["replicas"], 2);
}

#[tokio::test]
async fn whether_a_scale_to_zero_was_done_is_settled_while_scales_are_frozen() {
    let (control, log) = World::new(3, Some(3), |_, _| None).run();
    let subject = put(&control, "web", json!({"minReplicas": 0, "maxReplicas": 9}));
    seen(&control, 3);
    let mut state = AutoscalerState::default();
    assert_eq!(decided(&control, &subject, &mut state).await, Held);
    // As it is recorded before the scale is written.
    let kind = ConditionKind::ScaledToZero;
    state.status.set(kind, true, "ScalingToZero", format_args!("it is being scaled"), 0);
    fake::freeze(&control.ctx.leader);
    assert_eq!(decided(&control, &subject, &mut state).await, Held);
    let condition = state.status.condition(kind).unwrap();
    assert!(!condition.status && log.of("PUT").is_empty(), "{condition:?}");
}

/// As in the HPA controller, which registers a selector only once it reads metrics.
#[tokio::test]
async fn one_at_zero_claims_no_pods() {
    let (control, _) = World::new(3, Some(5), |_, _| None).run();
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "blue"});
    let blue = put(&control, "blue", json!({"maxReplicas": 9, "scaleTargetRef": target}));
    let green = put(&control, "green", json!({"maxReplicas": 9}));
    seen(&control, 3);
    control.ctx.cluster.write(|index| {
        let key = ObjectKey { namespace: "shop".to_owned(), name: "blue".to_owned() };
        let replicas = hpa::Scale { spec_replicas: 0, status_replicas: 0 };
        let scale = watch::ScaleRecord { replicas, selector: "app=web".to_owned() };
        index.put_scale(watch::Workload::Deployment, key, scale);
    });
    let (mut first, mut second) = (AutoscalerState::default(), AutoscalerState::default());
    assert_eq!(decided(&control, &blue, &mut first).await, Held);
    assert_eq!(decided(&control, &green, &mut second).await, Rescaled);
}

/// What a leader before has left, who was recommended seven replicas.
fn left(subject: &Subject) -> (Subject, Checkpoint) {
    let recommendations = vec![Recommendation { replicas: 7, time: 0 }];
    let memory = Memory { recommendations, ..Memory::default() };
    (
        subject.clone(),
        Checkpoint { uid: subject.key.name.clone(), memory, last_scale: None, held: None },
    )
}

#[tokio::test]
async fn whose_round_began_before_what_a_leader_left_was_read_writes_nothing_in_it() {
    let (mut control, log) = World::new(9, Some(3), |_, _| None).run();
    // Room for one at once.
    control.queue = FairQueue::new(1);
    control.ctx.ready.store(NO_TERM, Ordering::Release);
    let subjects = ["a", "b"].map(|name| put(&control, name, json!({"maxReplicas": 3})));
    seen(&control, 9);
    for subject in &subjects {
        control.schedule.set(subject.clone(), Instant::now());
    }
    control.start_due();
    assert_eq!(control.evaluations.len(), 1, "the other waits");
    control.loaded(Ok(subjects.iter().map(left).collect()));
    let remembers = |memory: &Memory| memory.recommendations.iter().any(|r| r.replicas == 7);
    for subject in &subjects {
        let kept = control.running[subject].as_ref().expect("it is kept while it is decided");
        assert!(remembers(&kept.memory), "{subject}");
    }
    let first = control.evaluations.join_next().await.unwrap().unwrap();
    assert!(first.result != Some(Rescaled) && log.of("PUT").is_empty(), "{:?}", first.result);
    control.evaluated(first);
    let second = control.evaluations.join_next().await.unwrap().unwrap();
    assert_eq!(second.result, Some(Rescaled));
    assert!(remembers(&second.state.expect("no panic").memory));
}

fn is_query(request: &&Request) -> bool {
    request.line.ends_with("/queue")
}

#[tokio::test]
async fn a_fallback_is_said_to_be_active_no_longer_than_there_is_one() {
    let (control, _) = World::new(5, None, |_, _| None).run();
    seen(&control, 5);
    let mut state = AutoscalerState::default();
    for fallback in [Some(json!({"failedRounds": 1, "replicas": 5})), None] {
        let subject = put(&control, "web", json!({"maxReplicas": 9, "fallback": fallback}));
        assert_eq!(decided(&control, &subject, &mut state).await, Failed);
        let condition = state.status.condition(ConditionKind::FallbackActive);
        assert_eq!(condition.is_some(), fallback.is_some(), "{condition:?}");
    }
}

#[tokio::test]
async fn where_no_metric_counts_none_is_asked_for() {
    for (replicas, selector, asked) in
        [(3, "app=web", 1), (3, "", 0), (3, "a in", 0), (0, "app=web", 0)]
    {
        let (control, log) = World::new(replicas, Some(3), |_, _| None).run();
        let subject = put(&control, "web", json!({"maxReplicas": 9}));
        control.ctx.cluster.write(|index| {
            let numbers = hpa::Scale { spec_replicas: replicas, status_replicas: replicas };
            let scale = watch::ScaleRecord { replicas: numbers, selector: selector.to_owned() };
            index.put_scale(watch::Workload::Deployment, subject.key.clone(), scale);
        });
        decided(&control, &subject, &mut AutoscalerState::default()).await;
        let queries = log.of("").iter().filter(is_query).count();
        assert_eq!(queries, asked, "{replicas} {selector}");
    }
}

#[tokio::test]
async fn those_under_way_are_decided_again_when_it_changes_what_is_frozen() {
    for changes in [false, true] {
        let (mut control, _) = World::new(3, Some(3), |_, _| None).run();
        let subject = put(&control, "web", json!({"maxReplicas": 9}));
        seen(&control, 3);
        control.schedule.set(subject, Instant::now());
        control.start_due();
        if changes {
            fake::freeze(&control.ctx.leader);
            control.leadership_changed();
        }
        let done = control.evaluations.join_next().await.unwrap().unwrap();
        control.evaluated(done);
        let at_once = control.schedule.next().unwrap() <= Instant::now();
        assert_eq!(at_once, changes);
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_waits_for_no_round_that_only_reads() {
    let hangs = |_: &mut World, request: &Request| is_query(&request).then_some((0, Value::Null));
    let (mut control, log) = World::new(3, Some(3), hangs).run();
    // Room for one at once.
    control.queue = FairQueue::new(1);
    let subjects = ["a", "b"].map(|name| put(&control, name, json!({"maxReplicas": 9})));
    seen(&control, 3);
    for subject in &subjects {
        control.schedule.set(subject.clone(), Instant::now());
    }
    control.start_due();
    let start = tokio::time::Instant::now();
    while !log.of("").iter().any(|request| is_query(&request)) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    control.stop_evaluations().await;
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert!(control.running.is_empty() && subjects.iter().all(|s| control.states.contains_key(s)));
    assert_eq!(log.of("").iter().filter(is_query).count(), 1, "the other is not begun");
}

#[tokio::test]
async fn nothing_is_remembered_of_native_hpas_that_are_ignored() {
    let (mut control, _) = World::new(3, Some(3), |_, _| None).run();
    let web = put(&control, "web", json!({"maxReplicas": 9}));
    let hpa = json!({"metadata": {"namespace": "shop", "name": "web", "uid": "web"},
        "spec": {"maxReplicas": 9, "scaleTargetRef": {"kind": "Deployment", "name": "web"}}});
    let record = watch::read_hpa(serde_json::from_value(hpa).unwrap());
    control.ctx.cluster.write(|index| index.put_hpa(web.key.clone(), record));
    let native = Subject::hpa(web.key.clone());
    control.take_over(vec![left(&web), left(&native)]);
    assert_eq!(
        (control.states.contains_key(&web), control.states.contains_key(&native)),
        (true, false)
    );
}

#[tokio::test]
async fn what_was_seen_of_a_scale_stands_while_the_spec_can_not_be_read() {
    let (control, _) = World::new(3, Some(3), |_, _| None).run();
    let subject = put(&control, "web", json!({"maxReplicas": 9}));
    seen(&control, 3);
    let mut state = AutoscalerState::default();
    assert_eq!(decided(&control, &subject, &mut state).await, Held);
    let object = json!({"metadata": {"namespace": "shop", "name": "web", "uid": "web",
        "generation": 2}, "spec": {"maxReplicas": "many"}});
    let record = read_autoscaler(serde_json::from_value(object).unwrap(), None);
    assert!(record.parsed.is_err());
    control.ctx.cluster.write(|index| index.put_autoscaler(subject.key.clone(), record));
    assert_eq!(decided(&control, &subject, &mut state).await, Failed);
    let shown = control.ctx.live.get(&subject).unwrap();
    assert_eq!((shown.current_replicas, shown.reference.as_ref()), (Some(3), None));
}

#[tokio::test]
async fn each_period_that_a_decision_took_is_a_missed_round() {
    let (mut control, _) = World::new(3, Some(3), |_, _| None).run();
    let subject = put(&control, "web", json!({"maxReplicas": 9}));
    let Some(due) = Instant::now().checked_sub(Duration::from_secs(40)) else { return };
    control.queue.push(
        "shop",
        Due { subject: subject.clone(), at: due, crowd: 1, state: AutoscalerState::default() },
    );
    control.begin_evaluations();
    let done = control.evaluations.join_next().await.unwrap().unwrap();
    control.evaluated(done);
    let shown = control.ctx.metrics.exposition(&HeaderMap::new()).into_response();
    let text = axum::body::to_bytes(shown.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("plimsoll_missed_rounds_total 2\n"), "{text}");
}

#[tokio::test]
async fn a_window_of_more_than_an_hour_is_remembered_for_its_length() {
    let (mut control, _) = World::new(3, Some(3), |_, _| None).run();
    let shared = Arc::get_mut(&mut control.ctx).expect("nobody else has it");
    shared.settings.decisions.downscale_stabilization_seconds = 7_200;
    let at = |replicas, time| Recommendation { replicas, time };
    let recommendations = vec![at(9, -5_000_000), at(4, 0)];
    let memory = Memory { recommendations, ..Memory::default() };
    let state = AutoscalerState::restored(Checkpoint {
        uid: "web".to_owned(),
        memory,
        last_scale: None,
        held: None,
    });
    let remembered = |longest| state.checkpoint(0, longest).unwrap().memory.recommendations.len();
    assert_eq!((remembered(control.ctx.longest_window()), remembered(LONGEST_MS)), (2, 1));
}

#[tokio::test]
async fn while_frozen_a_number_that_moves_is_not_shown_in_each_round() {
    let queue = Arc::new(Mutex::new(5));
    let known = queue.clone();
    let (control, log) = World::new(3, None, move |world, _| {
        world.queue = Some(*known.lock().unwrap());
        None
    })
    .run();
    let subject = put(&control, "web", json!({"maxReplicas": 9}));
    seen(&control, 3);
    fake::freeze(&control.ctx.leader);
    let mut state = AutoscalerState::default();
    for now in [5, 6, 4] {
        *queue.lock().unwrap() = now;
        assert_eq!(decided(&control, &subject, &mut state).await, Held);
        assert_eq!(state.status.desired_replicas, 5);
    }
    assert!(log.of("PUT").is_empty());
}

/// The HPA that was written for it claims its pods no longer than it is there.
#[tokio::test]
async fn one_that_decides_itself_again_waits_for_no_watch_of_the_hpa_it_had() {
    let (control, log) = World::new(3, Some(5), |_, request| {
        let gone =
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
        request.line.starts_with("DELETE").then_some((200, gone))
    })
    .run();
    let subject = put(&control, "web", json!({"maxReplicas": 9}));
    seen(&control, 3);
    let owner = json!({"apiVersion": "plimsoll.dev/v1alpha1", "kind": "Autoscaler", "name": "web",
        "uid": "web", "controller": true});
    let hpa = json!({"metadata": {"namespace": "shop", "name": "web", "uid": "1",
        "ownerReferences": [owner]}, "spec": {"maxReplicas": 9,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}});
    let record = watch::read_hpa(serde_json::from_value(hpa).unwrap());
    control.ctx.cluster.write(|index| index.put_hpa(subject.key.clone(), record));
    assert_eq!(decided(&control, &subject, &mut AutoscalerState::default()).await, Rescaled);
    assert_eq!(log.of("DELETE").len(), 1);
    assert!(control.ctx.cluster.read(|index| index.hpa(&subject.key)).is_none());
}
