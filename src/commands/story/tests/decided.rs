//! Stories of decisions that the algorithm itself makes.

use super::workload::{Done, Has, Workload, queue, requests};
use super::{HOUR, NOW, golden, subject};
use crate::commands::story::Subject;
use crate::hpa::{MetricFallback, OnEmpty, OnError};
use serde_json::{Value, json};

const ON_TARGET: Has = Has::EachPod(10_000);

fn web(replicas: i32, fields: Value) -> Workload {
    Workload::new(replicas, &[requests()], fields)
}

fn utilization(container: Option<&str>, percent: i32) -> Value {
    let of =
        json!({"name": "cpu", "target": {"type": "Utilization", "averageUtilization": percent}});
    match container {
        None => json!({"type": "Resource", "resource": of}),
        Some(container) => {
            let mut of = of;
            of["container"] = container.into();
            json!({"type": "ContainerResource", "containerResource": of})
        }
    }
}

#[test]
fn what_scales() {
    golden("scaled-up", &web(4, json!({})).decides(1, &[Has::EachPod(14_000)]).story());
    let policies = json!([{"type": "Pods", "value": 2, "periodSeconds": 60}]);
    let fields = json!({"behavior": {"scaleDown":
        {"stabilizationWindowSeconds": 0, "policies": policies}}});
    let mut limited = web(6, fields);
    limited.pending = 1;
    golden("limited-by-policy", &limited.decides(1, &[Has::EachPod(2_900)]).story());
    let fields =
        json!({"minReplicas": 0, "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}});
    let mut sleeper = Workload::new(1, &[queue()], fields);
    golden("to-zero", &sleeper.decides(1, &[Has::Total(0)]).story());
    golden("at-zero", &sleeper.decides(900, &[Has::Total(0)]).story());
    golden("woken", &sleeper.decides(1, &[Has::Total(28_000)]).story());
    golden("awake", &sleeper.decides(1, &[Has::Total(29_000)]).story());
    let mut awake = Workload::new(1, &[queue()], json!({"minReplicas": 0}));
    golden("one-of-zero", &awake.decides(28, &[Has::Total(3_000)]).story());
    // Another client sets four replicas again after each decision.
    let mut fight = web(4, json!({}));
    for _ in 0..20 {
        fight.decides(1, &[Has::EachPod(14_000)]).replicas = 4;
    }
    golden("set-back", &fight.story());
}

#[test]
fn what_waits_at_zero() {
    let asleep = |metrics: &[Value], up: Value| {
        let fields = json!({"minReplicas": 0, "behavior":
            {"scaleUp": up, "scaleDown": {"stabilizationWindowSeconds": 0}}});
        let mut asleep = Workload::new(1, metrics, fields);
        asleep.decides(1, &vec![Has::Total(0); metrics.len()]);
        asleep
    };
    let mut waits = asleep(&[queue()], json!({"stabilizationWindowSeconds": 300}));
    golden("waits-at-zero", &waits.decides(4, &[Has::Total(14_000)]).story());
    let mut stays = asleep(&[queue()], json!({"selectPolicy": "Disabled"}));
    golden("stays-at-zero", &stays.decides(4, &[Has::Total(14_000)]).story());
    let mut lag = queue();
    lag["external"]["metric"]["name"] = "lag".into();
    let mut fails = asleep(&[queue(), lag], json!({}));
    let values = [Has::Total(0), Has::Fails("Prometheus did not answer")];
    golden("fails-at-zero", &fails.decides(4, &values).story());
    let mut preview = asleep(&[queue()], json!({}));
    preview.done = Done::Preview;
    let story = preview.decides(4, &[Has::Total(28_000)]).story();
    assert!(story.contains("One more  the metrics ask for 3 already"), "{story}");
}

#[test]
fn what_is_above_the_bound_of_a_schedule() {
    let policies = json!([{"type": "Pods", "value": 5, "periodSeconds": 600}]);
    let fields = json!({"maxReplicas": 60, "behavior": {"scaleDown":
        {"stabilizationWindowSeconds": 0, "policies": policies}}});
    let night = json!([{"name": "night", "from": "2026-11-24T01:00:00Z", "until": "2026-11-24T05:00:00Z",
        "minReplicas": 4, "maxReplicas": 10}]);
    let mut web = web(50, fields).with_schedules(night);
    golden("above-schedule", &web.decides(1, &[ON_TARGET]).story());
    golden("above-schedule-held", &web.decides(10, &[ON_TARGET]).story());
}

#[test]
fn two_autoscalers_of_the_same_pods() {
    let mut web = web(4, json!({}));
    web.rivals = &["shop/other", "shop/web"];
    web.decides(28, &[ON_TARGET]);
    let subject = Subject { faults: web.faults(), ..subject() };
    golden("ambiguous-selector", &web.story_at(subject, NOW));
}

#[test]
fn what_holds() {
    let mut steady = web(4, json!({}));
    steady.decides(1, &[Has::EachPod(9_200)]).decides(1, &[Has::EachPod(10_400)]);
    golden("within-tolerance", &steady.decides(26, &[Has::EachPod(9_800)]).story());
    // Rounded up: 3.2 pods are 4.
    golden("rounded-up", &web(4, json!({})).decides(28, &[Has::EachPod(8_000)]).story());
    let mut stabilized = web(4, json!({}));
    stabilized.decides(1, &[Has::EachPod(14_000)]).decides(1, &[Has::EachPod(6_900)]);
    golden("stabilized", &stabilized.decides(13, &[Has::EachPod(7_000)]).story());
    golden("at-max", &web(8, json!({})).decides(28, &[Has::EachPod(13_500)]).story());
    golden("at-min", &web(2, json!({})).decides(28, &[Has::EachPod(200)]).story());
    let held = |reason: &'static str, value: i64| {
        let mut held =
            web(4, json!({"behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}}));
        held.holds = [(reason == "RollingOut").then_some(reason), Some(reason)];
        held.decides(28, &[Has::EachPod(value)]).story()
    };
    golden("rolling-out", &held("RollingOut", 14_000));
    golden("pods-not-known", &held("PodsNotKnown", 2_000));
    golden("metrics-were-away", &held("MetricsWereAway", 2_000));
    // Within a window, too.
    let mut held = web(4, json!({}));
    held.holds[1] = Some("MetricsWereAway");
    held.decides(1, &[Has::EachPod(9_800)]);
    golden("metrics-were-away-in-window", &held.decides(13, &[Has::EachPod(2_000)]).story());
    let disabled = json!({"behavior": {"scaleDown": {"selectPolicy": "Disabled"}}});
    golden("never-scaled-down", &web(6, disabled).decides(28, &[Has::EachPod(5_000)]).story());
    let mut other = web(4, json!({}));
    other.decides(28, &[Has::EachPod(9_800)]).replicas = 3;
    golden("scaled-by-others", &other.decides(28, &[ON_TARGET]).story());
    // Three of six are not ready yet, and count as 0.
    let mut starting = web(6, json!({}));
    starting.pending = 3;
    golden("not-ready", &starting.decides(4, &[Has::EachPod(14_000)]).story());
    let mut missing = web(6, json!({}));
    missing.missing = 3;
    golden("without-samples", &missing.decides(4, &[Has::EachPod(8_000)]).story());
    // 30 m of the 100 m that each pod requests: pods without a sample count with all of theirs.
    let mut usage = Workload::new(5, &[utilization(None, 60)], json!({}));
    usage.missing = 2;
    golden("usage-without-samples", &usage.decides(4, &[Has::EachPod(60)]).story());
    let mut below = web(1, json!({"minReplicas": 3}));
    below.done = Done::Preview;
    golden("preview-below-min", &below.decides(4, &[Has::EachPod(2_000)]).story());
}

#[test]
fn several_metrics() {
    let metrics = [requests(), utilization(None, 60), queue()];
    let mut three = Workload::new(4, &metrics, json!({}));
    let away = Has::Fails("no metrics returned");
    let values = [Has::EachPod(9_800), Has::EachPod(90), away];
    golden("three-metrics", &three.decides(28, &values).story());
    let of_container = |name| utilization(Some(name), 60);
    let mut containers = Workload::new(4, &["app", "sidecar"].map(of_container), json!({}));
    let values = [Has::EachPod(45), Has::EachPod(62)];
    golden("two-containers", &containers.decides(28, &values).story());
    let mut five = vec![requests()];
    five.extend(["a", "b", "c", "d"].map(|name| {
        let mut metric = requests();
        metric["pods"]["metric"]["name"] = name.into();
        metric
    }));
    let mut values = vec![Has::EachPod(20_000)];
    values.extend([Has::EachPod(3_000); 4]);
    golden("five-metrics", &Workload::new(8, &five, json!({})).decides(28, &values).story());
    let target = json!({"type": "Value", "value": "128Mi"});
    let of = json!({"metric": {"name": "backlog_bytes"}, "target": target});
    let total = json!({"type": "External", "external": of});
    let mut bytes = Workload::new(4, &[total], json!({}));
    golden("a-total", &bytes.decides(28, &[Has::Total(140_000_000_000)]).story());
}

#[test]
fn metrics_that_fail() {
    let failing = |metric: Value, value: Has| {
        Workload::new(4, &[metric], json!({})).decides(28, &[value]).story()
    };
    golden("no-metric", &failing(requests(), Has::Nothing));
    golden("no-series", &failing(queue(), Has::Nothing));
    golden("no-usage", &failing(utilization(None, 60), Has::Nothing));
    let away = "Prometheus can't be reached: connection refused";
    golden("prometheus-is-away", &failing(queue(), Has::Fails(away)));
    let refused = "Prometheus refused the query: many-to-many matching not allowed";
    golden("query-refused", &failing(requests(), Has::Fails(refused)));
    let described =
        json!({"kind": "Ingress", "name": "main", "apiVersion": "networking.k8s.io/v1"});
    let target = json!({"type": "Value", "value": "10"});
    let of = json!({"describedObject": described, "metric": {"name": "hits"}, "target": target});
    let object = json!({"type": "Object", "object": of});
    golden("no-object", &failing(object, Has::Fails("the metric has no value for the object")));
    let mut fallback = web(4, json!({}));
    fallback.fallback = Some(6);
    golden("fallback", &fallback.decides(1, &[Has::Fails(away)]).story());
    let of_metric = MetricFallback { after_ms: 0, replicas: 6 };
    let mut fallback = web(4, json!({})).with_options(|of| of.fallback = Some(of_metric));
    golden("metric-fallback", &fallback.decides(1, &[Has::Fails(away)]).story());
    golden("metric-fallback-holds", &fallback.decides(28, &[Has::Fails(away)]).story());
    let mut held = web(4, json!({})).with_options(|of| of.on_error = Some(OnError::Hold));
    golden("on-error-hold", &held.decides(28, &[Has::Fails(away)]).story());
    let mut empty = Workload::new(4, &[queue()], json!({}));
    empty = empty.with_options(|of| of.on_empty = OnEmpty::Hold);
    golden("on-empty-hold", &empty.decides(28, &[Has::Nothing]).story());
}

#[test]
fn what_is_not_carried_out() {
    let wanting = |done, value| {
        let mut web = web(4, json!({}));
        web.done = done;
        web.decides(28, &[value]);
        web
    };
    let more = Has::EachPod(14_000);
    let notes = vec!["Frozen (FrozenByAdministrator): incident 42 (by \"ann\", since 02:50): 6 replicas are desired".to_owned()];
    let subject = super::Subject { notes, ..subject() };
    golden("frozen", &wanting(Done::Frozen, more).story_at(subject, NOW));
    golden("frozen-steady", &wanting(Done::Frozen, ON_TARGET).story());
    golden("preview", &wanting(Done::Preview, more).story());
    golden("preview-steady", &wanting(Done::Preview, ON_TARGET).story());
    golden("write-failed", &wanting(Done::WriteFails, more).story());
    let mut observed = wanting(Done::Observed, ON_TARGET);
    observed.replicas = 5;
    golden("observed", &observed.decides(28, &[more]).story());
    let fails = Has::Fails("Prometheus can't be reached: connection refused");
    golden("observed-and-failing", &wanting(Done::Observed, fails).story());
}

#[test]
fn equal_decisions_are_written_once_a_minute() {
    let mut recent = web(4, json!({}));
    recent.decides(28, &[Has::EachPod(9_800)]);
    golden("unwritten", &recent.later(40_000).story());
}

#[test]
fn the_past() {
    let mut web = web(4, json!({}));
    web.decides(1, &[Has::EachPod(14_000)]).decides(1, &[Has::EachPod(9_200)]);
    web.decides(1919, &[Has::EachPod(9_800)]);
    golden("then", &web.story_at(subject(), NOW - 2 * HOUR));
    golden("stale", &web.later(HOUR).story());
}

#[test]
fn what_is_stabilized_lasts_until_the_last_recommendation_leaves_its_window() {
    for fields in
        [json!({}), json!({"behavior": {"scaleDown": {"stabilizationWindowSeconds": 300}}})]
    {
        let mut web = Workload::new(6, &[requests()], fields);
        // Three hours at six, and five are recommended since a minute: slots of old recommendations are used again.
        web.decides(720, &[Has::EachPod(10_000)]).decides(4, &[Has::EachPod(8_000)]);
        let last = web.last();
        let until = &last.constraints[0].until;
        assert_eq!(until.as_deref(), Some("2026-11-24T03:09:08.000Z"), "{last:?}");
        let fewer = last.would_change.unwrap().fewer;
        assert_eq!(fewer.earliest, *until);
    }
}

#[test]
fn fewer_replicas_are_prevented_by_what_prevents_them() {
    let of = |web: &mut Workload, values: &[Has]| {
        let last = web.decides(30, values).last();
        last.would_change.unwrap().fewer.prevented_by
    };
    let pods = |name: &str| {
        let mut metric = requests();
        metric["pods"]["metric"]["name"] = name.into();
        metric
    };
    let two = || Workload::new(5, &[pods("a"), pods("b")], json!({}));
    let is = |text: &str| Some(text.to_owned());
    let (on_target, fails) = (Has::EachPod(10_000), Has::Fails("it is away"));
    assert_eq!(of(&mut two(), &[on_target; 2]), is("metric"));
    assert_eq!(of(&mut two(), &[on_target, fails]), is("metric"));
    assert_eq!(of(&mut two(), &[on_target, Has::EachPod(3_000)]), None);
    let mut ignored = two().with_options(|of| of.on_error = Some(OnError::Ignore));
    assert_eq!(of(&mut ignored, &[on_target, fails]), None);
    let mut held = two().with_options(|of| of.on_error = Some(OnError::Hold));
    assert_eq!(of(&mut held, &[on_target, fails]), is("metric"));
    let mut least = Workload::new(2, &[pods("a")], json!({}));
    assert_eq!(of(&mut least, &[on_target]), is("minReplicas"));
    // It goes to zero when it is inactive.
    let mut one = Workload::new(1, &[queue()], json!({"minReplicas": 0}));
    let last = one.decides(30, &[Has::Total(3_000)]).last();
    let fewer = last.would_change.unwrap().fewer;
    assert_eq!((fewer.replicas, fewer.value.as_deref()), (Some(0), Some("0")));
    // Nothing is scaled down.
    let disabled = json!({"behavior": {"scaleDown": {"selectPolicy": "Disabled"}}});
    let mut web = Workload::new(5, &[pods("a")], disabled);
    assert_eq!(of(&mut web, &[on_target]), is("selectPolicy"));
    let mut tolerant =
        Workload::new(5, &[pods("a")], json!({"behavior": {"scaleDown": {"tolerance": "1500m"}}}));
    assert_eq!(of(&mut tolerant, &[on_target]), is("tolerance"));
    let mut rolling = two();
    rolling.holds = [Some("RollingOut"); 2];
    assert_eq!(of(&mut rolling, &[on_target, Has::EachPod(3_000)]), is("RollingOut"));
}

#[test]
fn more_replicas_wait_for_the_policies() {
    let policies = json!([{"type": "Pods", "value": 1, "periodSeconds": 300}]);
    let slow = || json!({"maxReplicas": 200, "behavior": {"scaleUp": {"policies": policies}}});
    let mut web = Workload::new(4, &[requests()], slow());
    web.decides(1, &[Has::EachPod(12_000)]).decides(4, &[Has::EachPod(10_000)]);
    let last = web.last();
    assert_eq!(last.current_replicas, Some(5));
    let more = last.would_change.unwrap().more;
    assert_eq!(
        (more.replicas, more.earliest.as_deref()),
        (Some(6), Some("2026-11-24T03:09:08.000Z"))
    );
    // Of a hundred, ten percent more are not reached at once.
    let mut many = Workload::new(100, &[requests()], slow());
    let more = many.decides(1, &[Has::EachPod(10_000)]).last().would_change.unwrap().more;
    assert_eq!(more.replicas, Some(101));
    // The time of a limit is known before the next sync period, too.
    let mut limited = Workload::new(4, &[requests()], slow());
    let last = limited.decides(2, &[Has::EachPod(20_000)]).last();
    assert_eq!(last.constraints[0].until.as_deref(), Some("2026-11-24T03:09:53.000Z"), "{last:?}");
    let mut disabled = Workload::new(
        4,
        &[requests()],
        json!({"behavior": {"scaleUp": {"selectPolicy": "Disabled"}}}),
    );
    let more = disabled.decides(2, &[Has::EachPod(10_000)]).last().would_change.unwrap().more;
    assert_eq!(more.prevented_by.as_deref(), Some("selectPolicy"));
    let mut enormous = requests();
    enormous["pods"]["target"]["averageValue"] = "9P".into();
    let mut most =
        Workload::new(4, &[enormous], json!({"behavior": {"scaleUp": {"tolerance": "1E"}}}));
    let more = most.decides(1, &[Has::EachPod(10_000)]).last().would_change.unwrap().more;
    assert_eq!(more.prevented_by.as_deref(), Some("tolerance"));
}
