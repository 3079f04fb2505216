//! The API server as Plimsoll's client sees it.

use super::resource::{DEPLOYMENTS, LEASES, NAMESPACES, PODS};
use super::*;
use futures::StreamExt;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::runtime::watcher::Event;
use kube::{Api, Client};
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;

fn server() -> ApiServer {
    let begin: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let server = ApiServer::new(move || begin);
    server.create(&NAMESPACES, json!({"metadata": {"name": "shop"}})).unwrap();
    server
}

fn client(server: &ApiServer, faults: impl Faults) -> Client {
    Client::new(Network::new(server, "test", faults), "shop")
}

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "shop", "labels": {"app": "web"}},
        "spec": {"nodeName": "n", "containers": []}})
}

fn deployment() -> Value {
    json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": {"replicas": 3,
        "selector": {"matchLabels": {"app": "web"}}, "template": {}}})
}

#[tokio::test(start_paused = true)]
async fn a_watcher_lists_in_pages_and_follows_through_compaction() {
    let server = server();
    for name in ["a", "b", "c"] {
        server.create(&PODS, pod(name)).unwrap();
    }
    let api: Api<Pod> = Api::all(client(&server, Faultless));
    let config = watcher::Config::default().page_size(2);
    let mut events = watcher(api, config).boxed();
    let mut next = async || match events.next().await.unwrap() {
        Ok(Event::Init) => "init".to_owned(),
        Ok(Event::InitDone) => "done".to_owned(),
        Ok(Event::InitApply(pod)) => format!("has {}", pod.metadata.name.unwrap()),
        Ok(Event::Apply(pod)) => format!("apply {}", pod.metadata.name.unwrap()),
        Ok(Event::Delete(pod)) => format!("delete {}", pod.metadata.name.unwrap()),
        Err(error) => format!("error {error}"),
    };
    for expected in ["init", "has a", "has b", "has c", "done"] {
        assert_eq!(next().await, expected);
    }
    let begun = Instant::now();
    let later = server.clone();
    #[expect(clippy::disallowed_methods, reason = "it ends with the runtime of the test")]
    tokio::spawn(async move {
        // Longer than a watch lasts: by the bookmarks the next one begins after the compaction.
        tokio::time::sleep(Duration::from_secs(1_000)).await;
        later.create(&PODS, pod("d")).unwrap();
        later.compact();
        later.remove(&PODS, "shop", "a");
    });
    assert_eq!(next().await, "apply d");
    assert_eq!(begun.elapsed().as_secs(), 1_000);
    assert_eq!(next().await, "delete a");
    assert!(server.unmodelled().is_empty(), "{:?}", server.unmodelled());
}

#[tokio::test(start_paused = true)]
async fn a_scale_is_written_by_version_and_grows_the_generation() {
    let server = server();
    server.create(&DEPLOYMENTS, deployment()).unwrap();
    let api: Api<Deployment> = Api::namespaced(client(&server, Faultless), "shop");
    let mut scale = api.get_scale("web").await.unwrap();
    assert_eq!(scale.status.as_ref().unwrap().selector.as_deref(), Some("app=web"));
    scale.spec.as_mut().unwrap().replicas = Some(5);
    let body = serde_json::to_vec(&scale).unwrap();
    let parameters = PostParams::default();
    api.replace_scale("web", &parameters, &scale).await.unwrap();
    let again = api.replace_scale("web", &parameters, &scale).await.unwrap_err();
    let kube::Error::Api(status) = again else { panic!("{again} {body:?}") };
    assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"));
    let found = server.get(&DEPLOYMENTS, "shop", "web").unwrap();
    assert_eq!(
        (&found["spec"]["replicas"], &found["metadata"]["generation"]),
        (&5.into(), &2.into())
    );
}

#[tokio::test]
async fn what_an_apply_leaves_out_is_removed_unless_another_owns_it() {
    let server = server();
    let api: Api<ConfigMap> = Api::namespaced(client(&server, Faultless), "shop");
    let apply = async |data: Value| {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data});
        let parameters = PatchParams::apply("plimsoll").force();
        api.patch_metadata("m", &parameters, &Patch::Apply(map)).await.unwrap();
        api.get("m").await.unwrap().data.unwrap_or_default()
    };
    apply(json!({"a": "1", "b": "1"})).await;
    let patch = Patch::Merge(json!({"data": {"b": "2", "c": "2"}}));
    api.patch("m", &PatchParams::default(), &patch).await.unwrap();
    let data = apply(json!({"d": "1"})).await;
    assert_eq!(json!(data), json!({"b": "2", "c": "2", "d": "1"}));
}

/// Each request to its own fate.
struct Fates(Vec<Fate>);

impl Faults for Fates {
    fn request(&mut self, _: Asked<'_>) -> Fate {
        self.0.pop().unwrap_or(Fate::DONE)
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_dropped_is_not_carried_out_unless_it_is_on_its_way() {
    let second = Duration::from_secs(1);
    let fates = [
        (Fate::Done { before: second, after: second }, 500, false),
        (Fate::Done { before: second, after: second }, 1_500, true),
        (Fate::Late { before: second, after: second }, 500, true),
        (Fate::AnswerLost { before: second }, 5_000, true),
        (Fate::Unreachable, 5_000, false),
        (Fate::Silent, 5_000, false),
        (Fate::Refused { code: 503, reason: "ServiceUnavailable", retry_after: None }, 1, false),
    ];
    for (fate, given_up, done) in fates {
        let server = server();
        let api: Api<Lease> = Api::namespaced(client(&server, Fates(vec![fate.clone()])), "shop");
        let lease = serde_json::from_value(json!({"metadata": {"name": "l"}})).unwrap();
        let parameters = PostParams::default();
        let created = api.create(&parameters, &lease);
        let answer = tokio::time::timeout(Duration::from_millis(given_up), created).await;
        assert!(!matches!(answer, Ok(Ok(_))), "{fate:?}");
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(server.get(&LEASES, "shop", "l").is_some(), done, "{fate:?}");
    }
}
