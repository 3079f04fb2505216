//! The reflectors: they list and watch the cluster, and keep the index up to date.

use super::autoscaler_ref::{AutoscalerRef, ObjectKey};
use super::backoff::{FailureLog, Progress, ResettableBackoff};
use super::cluster::Cluster;
use super::index::Index;
use super::metric_rules::{self, LeanMetricRule};
use super::read::{self, LeanAutoscaler, LeanHpa, LeanPod};
use super::records::Workload;
use super::synced::{WatchStatuses, WatchedKind};
use super::workload::{self, LeanWorkload};
use crate::crd::{Autoscaler, MetricRule};
use crate::kube_error::worded_watch;
use futures::StreamExt;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::Pod;
use kube::core::{ApiResource, Resource};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::Arc;

/// The number of objects per page of a list, as in kubectl. A page is in memory both as text and as objects.
const PAGE_SIZE: u32 = 500;

/// Reflects pods, native HPAs, Autoscalers, MetricRules, Deployments and StatefulSets of all namespaces
/// into the index, for ever. Watches that fail are resumed with a backoff.
pub async fn run_reflectors(client: Client, cluster: Cluster, synced: WatchStatuses) {
    let pods: Api<LeanPod> = Api::all_with(client.clone(), &ApiResource::erase::<Pod>(&()));
    let hpas: Api<LeanHpa> =
        Api::all_with(client.clone(), &ApiResource::erase::<HorizontalPodAutoscaler>(&()));
    let autoscalers: Api<LeanAutoscaler> =
        Api::all_with(client.clone(), &ApiResource::erase::<Autoscaler>(&()));
    let metric_rules: Api<LeanMetricRule> =
        Api::all_with(client.clone(), &ApiResource::erase::<MetricRule>(&()));
    let deployments: Api<LeanWorkload> =
        Api::all_with(client.clone(), &ApiResource::erase::<Deployment>(&()));
    let stateful_sets: Api<LeanWorkload> =
        Api::all_with(client, &ApiResource::erase::<StatefulSet>(&()));
    let parts = (&cluster, &synced);
    tokio::join!(
        reflect(WatchedKind::Pods, pods, parts, &POD),
        reflect(WatchedKind::HorizontalPodAutoscalers, hpas, parts, &HPA),
        reflect(WatchedKind::Autoscalers, autoscalers, parts, &AUTOSCALER),
        reflect(WatchedKind::MetricRules, metric_rules, parts, &METRIC_RULE),
        reflect(WatchedKind::Deployments, deployments, parts, &DEPLOYMENT),
        reflect(WatchedKind::StatefulSets, stateful_sets, parts, &STATEFUL_SET),
    );
}

/// How the events of one kind change the index.
struct EventHandler<K> {
    keys: fn(&Index) -> Vec<ObjectKey>,
    apply: fn(&Cluster, ObjectKey, K),
    delete: fn(&Cluster, &ObjectKey),
    /// Called after each complete list.
    listed: fn(&mut Index),
}

const POD: EventHandler<LeanPod> = EventHandler {
    keys: Index::pod_keys,
    apply: |cluster, key, pod| {
        let record = read::pod(pod);
        cluster.write(|index| index.put_pod(key, record));
    },
    delete: |cluster, key| cluster.write(|index| index.remove_pod(key)),
    listed: Index::set_pods_known,
};

const HPA: EventHandler<LeanHpa> = EventHandler {
    keys: Index::hpa_keys,
    apply: |cluster, key, hpa| {
        let (key, record) = (Arc::new(key), read::hpa(hpa));
        let owned = record.owner.is_some();
        if cluster.write(|index| index.put_hpa(key.clone(), record)) {
            cluster.changed(AutoscalerRef::hpa(key.clone()));
        }
        if owned {
            // The Autoscaler shows the status of its native HPA.
            cluster.changed(AutoscalerRef::autoscaler(key));
        }
    },
    delete: |cluster, key| {
        let owned = cluster.read(|index| index.hpa(key)).is_some_and(|h| h.owner.is_some());
        cluster.write(|index| index.remove_hpa(key));
        cluster.changed(AutoscalerRef::hpa(key.clone()));
        if owned {
            cluster.changed(AutoscalerRef::autoscaler(key.clone()));
        }
    },
    listed: |_| {},
};

const AUTOSCALER: EventHandler<LeanAutoscaler> = EventHandler {
    keys: Index::autoscaler_keys,
    apply: |cluster, key, object| {
        let key = Arc::new(key);
        let known = cluster.read(|index| index.autoscaler(&key));
        let record = read::autoscaler(object, known.as_deref());
        if cluster.write(|index| index.put_autoscaler(key.clone(), record)) {
            cluster.changed(AutoscalerRef::autoscaler(key));
        }
    },
    delete: |cluster, key| {
        cluster.write(|index| index.remove_autoscaler(key));
        cluster.changed(AutoscalerRef::autoscaler(key.clone()));
    },
    listed: |_| {},
};

const METRIC_RULE: EventHandler<LeanMetricRule> = EventHandler {
    keys: Index::metric_rule_keys,
    apply: |cluster, key, object| {
        let known = cluster.read(|index| index.metric_rule(&key).cloned());
        let record = metric_rules::metric_rule(object, known.as_deref());
        if cluster.write(|index| index.put_metric_rule(key.clone(), record)) {
            cluster.metric_rule_changed(key.namespace);
        }
    },
    delete: |cluster, key| {
        cluster.write(|index| index.remove_metric_rule(key));
        cluster.metric_rule_changed(key.namespace.clone());
    },
    listed: |_| {},
};

const DEPLOYMENT: EventHandler<LeanWorkload> = EventHandler {
    keys: |index| index.scale_keys(Workload::Deployment),
    apply: |cluster, key, object| put_scale(cluster, Workload::Deployment, key, object),
    delete: |cluster, key| {
        cluster.write(|index| index.remove_scale(Workload::Deployment, key));
    },
    listed: |_| {},
};

const STATEFUL_SET: EventHandler<LeanWorkload> = EventHandler {
    keys: |index| index.scale_keys(Workload::StatefulSet),
    apply: |cluster, key, object| put_scale(cluster, Workload::StatefulSet, key, object),
    delete: |cluster, key| {
        cluster.write(|index| index.remove_scale(Workload::StatefulSet, key));
    },
    listed: |_| {},
};

fn put_scale(cluster: &Cluster, workload: Workload, key: ObjectKey, object: LeanWorkload) {
    let scale = workload::scale(object);
    cluster.write(|index| match scale {
        Some(scale) => index.put_scale(workload, key, scale),
        None => index.remove_scale(workload, &key),
    });
}

async fn reflect<K>(
    kind: WatchedKind,
    api: Api<K>,
    (cluster, synced): (&Cluster, &WatchStatuses),
    handler: &EventHandler<K>,
) where
    K: Resource<DynamicType = ApiResource> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let (backoff, progress) = ResettableBackoff::new();
    let config = watcher::Config::default().page_size(PAGE_SIZE);
    let mut events = watcher(api, config).backoff(backoff).boxed();
    let mut failures = FailureLog::default();
    // The known objects that the list in progress has not had yet, and how many it has had.
    let (mut unlisted, mut listed) = (HashSet::new(), 0);
    let received = |failures: &mut FailureLog, progress: &Progress| {
        progress.made();
        failures.succeeded();
        synced.event_received(kind);
    };
    while let Some(event) = events.next().await {
        match event {
            Err(error) => {
                let text = worded_watch(&error);
                if let Some(failures) = failures.failed() {
                    let kind = kind.as_str();
                    tracing::warn!(kind, error = text, failures, "Watch failed, retrying");
                }
                synced.failed(kind, text);
                // If the kind is not installed, or listing it is forbidden, readiness must not
                // wait for it.
                match refused_status(&error) {
                    Some(404) if kind.is_our_crd() => {
                        cluster
                            .read(handler.keys)
                            .iter()
                            .for_each(|key| (handler.delete)(cluster, key));
                        synced.listed(kind, 0);
                    }
                    Some(403 | 404) => synced.mark_synced_without_list(kind),
                    _ => {}
                }
            }
            Ok(Event::Init) => {
                (unlisted, listed) = (cluster.read(handler.keys).into_iter().collect(), 0);
            }
            Ok(Event::InitApply(object)) => {
                let key = key(&object);
                unlisted.remove(&key);
                listed += 1;
                (handler.apply)(cluster, key, object);
            }
            Ok(Event::InitDone) => {
                for key in std::mem::take(&mut unlisted) {
                    (handler.delete)(cluster, &key);
                }
                tracing::debug!(kind = kind.as_str(), objects = listed, "Listed objects");
                received(&mut failures, &progress);
                synced.listed(kind, listed);
                cluster.write(handler.listed);
            }
            Ok(Event::Apply(object)) => {
                received(&mut failures, &progress);
                (handler.apply)(cluster, key(&object), object);
            }
            Ok(Event::Delete(object)) => {
                received(&mut failures, &progress);
                (handler.delete)(cluster, &key(&object));
            }
        }
    }
}

/// The HTTP status with which the API server refused a list or a watch.
fn refused_status(error: &watcher::Error) -> Option<u16> {
    use watcher::Error::{InitialListFailed, WatchStartFailed};
    match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    }
}

fn key<K: Resource>(object: &K) -> ObjectKey {
    ObjectKey {
        namespace: object.meta().namespace.clone().unwrap_or_default(),
        name: object.meta().name.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use kube::client::Body;
    use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
    use std::time::Duration;

    /// An API server that responds with this status. A watch sends nothing until it changes.
    fn api_server(status: Arc<AtomicU16>, requests: Arc<AtomicUsize>) -> Client {
        let service = tower::service_fn(move |request: Request<Body>| {
            requests.fetch_add(1, Ordering::SeqCst);
            let status = status.clone();
            async move {
                let watches =
                    request.uri().query().is_some_and(|query| query.contains("watch=true"));
                while watches && status.load(Ordering::SeqCst) == 200 {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                let status = status.load(Ordering::SeqCst);
                let metadata = serde_json::json!({"name": "web", "namespace": "shop", "uid": "1"});
                let body = match status {
                    200 => serde_json::to_vec(&serde_json::json!({
                        "apiVersion": "plimsoll.dev/v1alpha1", "kind": "AutoscalerList",
                        "metadata": {"resourceVersion": "5"}, "items": [{"metadata": metadata}],
                    }))
                    .unwrap(),
                    code => serde_json::to_vec(&serde_json::json!({
                        "kind": "Status", "apiVersion": "v1", "status": "Failure", "metadata": {},
                        "reason": "Any", "message": "no", "code": code,
                    }))
                    .unwrap(),
                };
                let response = Response::builder().status(status).body(Body::from(body)).unwrap();
                Ok::<_, tower::BoxError>(response)
            }
        });
        Client::new(service, "default")
    }

    /// Reflects the Autoscalers of a server that begins with 200, until the test ends.
    async fn reflect_during(
        test: impl AsyncFnOnce(&Cluster, &WatchStatuses, &AtomicU16, &AtomicUsize),
    ) {
        let (status, requests) = (Arc::new(AtomicU16::new(200)), Arc::<AtomicUsize>::default());
        let client = api_server(status.clone(), requests.clone());
        let api = Api::all_with(client, &ApiResource::erase::<Autoscaler>(&()));
        let (cluster, synced) = (Cluster::default(), WatchStatuses::default());
        tokio::select! {
            () = reflect(WatchedKind::Autoscalers, api, (&cluster, &synced), &AUTOSCALER) => {
                panic!("the reflector ended")
            }
            () = test(&cluster, &synced, &status, &requests) => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_list_is_told_in_the_words_of_kubectl() {
        let (lines, _guard) = crate::fake::LogLines::keep();
        reflect_during(async |_, synced, status, requests| {
            status.store(403, Ordering::SeqCst);
            let before = requests.load(Ordering::SeqCst);
            until(|| requests.load(Ordering::SeqCst) > before + 9).await;
            let health = synced.watches().iter().map(ToString::to_string).collect::<String>();
            assert!(health.contains("s: Error from server (Any): no"), "{health}");
        })
        .await;
        lines.assert_plain();
        // At each doubling only.
        assert!(lines.text().lines().count() < 5, "{}", lines.text());
    }

    async fn until(condition: impl Fn() -> bool) {
        let holds = async {
            while !condition() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(600), holds)
            .await
            .expect("the condition never held");
    }

    #[tokio::test(start_paused = true)]
    async fn a_deleted_definition_empties_the_index_and_a_lost_permission_does_not() {
        reflect_during(async |cluster, synced, status, requests| {
            let count = || cluster.read(Index::autoscaler_keys).len();
            until(|| count() == 1).await;
            status.store(403, Ordering::SeqCst);
            let before = requests.load(Ordering::SeqCst);
            until(|| requests.load(Ordering::SeqCst) > before + 3).await;
            assert_eq!(count(), 1);
            let health = synced.watches().iter().map(ToString::to_string).collect::<Vec<_>>();
            assert!(
                health.iter().any(|t| t.starts_with("[!]watch autoscalers fails")),
                "{health:?}"
            );
            status.store(404, Ordering::SeqCst);
            until(|| count() == 0).await;
            status.store(200, Ordering::SeqCst);
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_always_fails_backs_off() {
        reflect_during(async |cluster, _, status, requests| {
            until(|| !cluster.read(Index::autoscaler_keys).is_empty()).await;
            status.store(500, Ordering::SeqCst);
            let before = requests.load(Ordering::SeqCst);
            tokio::time::sleep(Duration::from_secs(75)).await;
            let tries = requests.load(Ordering::SeqCst) - before;
            // Without backoff there would be one each second.
            assert!((4..25).contains(&tries), "{tries}");
        })
        .await;
    }
}
