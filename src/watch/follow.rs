//! The watches that fill the index.

use super::backoff::{Failures, Growing, Progress};
use super::index::{Cluster, Index, ObjectKey, Subject, Workload};
use super::read::{self, LeanAutoscaler, LeanHpa, LeanPod, LeanWorkload};
use super::synced::{Kind, Synced};
use crate::crd::Autoscaler;
use futures::StreamExt;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::Pod;
use kube::core::{ApiResource, Resource};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use std::collections::HashSet;
use std::fmt::Debug;

/// How many objects are listed at once: a page is held as text and as objects
/// before it is read.
const PAGE: u32 = 200;

/// Follows pods, native HPAs, Autoscalers, Deployments and StatefulSets of all
/// namespaces, for ever.
/// Watches that break are resumed where they were, with increasing delay.
pub async fn follow_cluster(client: Client, cluster: Cluster, synced: Synced) {
    let pods: Api<LeanPod> = Api::all_with(client.clone(), &ApiResource::erase::<Pod>(&()));
    let hpas: Api<LeanHpa> =
        Api::all_with(client.clone(), &ApiResource::erase::<HorizontalPodAutoscaler>(&()));
    let autoscalers: Api<LeanAutoscaler> =
        Api::all_with(client.clone(), &ApiResource::erase::<Autoscaler>(&()));
    let deployments: Api<LeanWorkload> =
        Api::all_with(client.clone(), &ApiResource::erase::<Deployment>(&()));
    let stateful_sets: Api<LeanWorkload> =
        Api::all_with(client, &ApiResource::erase::<StatefulSet>(&()));
    let parts = (&cluster, &synced);
    tokio::join!(
        follow(Kind::Pods, pods, parts, &POD),
        follow(Kind::HorizontalPodAutoscalers, hpas, parts, &HPA),
        follow(Kind::Autoscalers, autoscalers, parts, &AUTOSCALER),
        follow(Kind::Deployments, deployments, parts, &DEPLOYMENT),
        follow(Kind::StatefulSets, stateful_sets, parts, &STATEFUL_SET),
    );
}

/// What is done with the objects of one kind.
struct Doing<K> {
    keys: fn(&Index) -> Vec<ObjectKey>,
    apply: fn(&Cluster, ObjectKey, K),
    delete: fn(&Cluster, &ObjectKey),
    /// When all of them were seen.
    listed: fn(&mut Index),
}

const POD: Doing<LeanPod> = Doing {
    keys: Index::pod_keys,
    apply: |cluster, key, pod| {
        let record = read::pod(pod);
        cluster.write(|index| index.put_pod(key, record));
    },
    delete: |cluster, key| cluster.write(|index| index.remove_pod(key)),
    listed: Index::set_pods_known,
};

const HPA: Doing<LeanHpa> = Doing {
    keys: Index::hpa_keys,
    apply: |cluster, key, hpa| {
        let record = read::hpa(hpa);
        let owned = record.owner.is_some();
        if cluster.write(|index| index.put_hpa(key.clone(), record)) {
            cluster.changed(Subject::hpa(key.clone()));
        }
        if owned {
            // Its status is shown on its Autoscaler.
            cluster.changed(Subject::autoscaler(key));
        }
    },
    delete: |cluster, key| {
        let owned = cluster.read(|index| index.hpa(key)).is_some_and(|h| h.owner.is_some());
        cluster.write(|index| index.remove_hpa(key));
        cluster.changed(Subject::hpa(key.clone()));
        if owned {
            cluster.changed(Subject::autoscaler(key.clone()));
        }
    },
    listed: |_| {},
};

const AUTOSCALER: Doing<LeanAutoscaler> = Doing {
    keys: Index::autoscaler_keys,
    apply: |cluster, key, object| {
        let known = cluster.read(|index| index.autoscaler(&key));
        let record = read::autoscaler(object, known.as_deref());
        if cluster.write(|index| index.put_autoscaler(key.clone(), record)) {
            cluster.changed(Subject::autoscaler(key));
        }
    },
    delete: |cluster, key| {
        cluster.write(|index| index.remove_autoscaler(key));
        cluster.changed(Subject::autoscaler(key.clone()));
    },
    listed: |_| {},
};

const DEPLOYMENT: Doing<LeanWorkload> = Doing {
    keys: |index| index.scale_keys(Workload::Deployment),
    apply: |cluster, key, object| put_scale(cluster, Workload::Deployment, key, object),
    delete: |cluster, key| {
        cluster.write(|index| index.remove_scale(Workload::Deployment, key));
    },
    listed: |_| {},
};

const STATEFUL_SET: Doing<LeanWorkload> = Doing {
    keys: |index| index.scale_keys(Workload::StatefulSet),
    apply: |cluster, key, object| put_scale(cluster, Workload::StatefulSet, key, object),
    delete: |cluster, key| {
        cluster.write(|index| index.remove_scale(Workload::StatefulSet, key));
    },
    listed: |_| {},
};

fn put_scale(cluster: &Cluster, workload: Workload, key: ObjectKey, object: LeanWorkload) {
    let scale = read::scale(object);
    cluster.write(|index| match scale {
        Some(scale) => index.put_scale(workload, key, scale),
        None => index.remove_scale(workload, &key),
    });
}

async fn follow<K>(
    kind: Kind,
    api: Api<K>,
    (cluster, synced): (&Cluster, &Synced),
    doing: &Doing<K>,
) where
    K: Resource<DynamicType = ApiResource> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let (waits, progress) = Growing::new();
    let config = watcher::Config::default().page_size(PAGE);
    let mut events = watch(api, config).backoff(waits).boxed();
    let mut failures = Failures::default();
    let mut seen: HashSet<ObjectKey> = HashSet::new();
    let went_well = |failures: &mut Failures, progress: &Progress| {
        progress.made();
        failures.end();
        synced.heard(kind);
    };
    while let Some(event) = events.next().await {
        match event {
            Err(error) => {
                let count = failures.one_more();
                synced.failed(kind, &error);
                if let Some(failures) = count {
                    tracing::warn!(kind = kind.as_str(), %error, failures, "Watch failed, retrying");
                }
                // Where the kind is not installed, or not for us to see, there is
                // nothing to wait for.
                match refused(&error) {
                    Some(404) if kind.is_defined_by_us() => {
                        cluster
                            .read(doing.keys)
                            .iter()
                            .for_each(|key| (doing.delete)(cluster, key));
                        synced.listed(kind, 0);
                    }
                    Some(403 | 404) => synced.set(kind),
                    _ => {}
                }
            }
            Ok(Event::Init) => seen.clear(),
            Ok(Event::InitApply(object)) => {
                let key = key(&object);
                seen.insert(key.clone());
                (doing.apply)(cluster, key, object);
            }
            Ok(Event::InitDone) => {
                for key in cluster.read(doing.keys) {
                    if !seen.contains(&key) {
                        (doing.delete)(cluster, &key);
                    }
                }
                tracing::debug!(kind = kind.as_str(), objects = seen.len(), "listed");
                went_well(&mut failures, &progress);
                synced.listed(kind, seen.len());
                seen = HashSet::new();
                cluster.write(doing.listed);
            }
            Ok(Event::Apply(object)) => {
                went_well(&mut failures, &progress);
                (doing.apply)(cluster, key(&object), object);
            }
            Ok(Event::Delete(object)) => {
                went_well(&mut failures, &progress);
                (doing.delete)(cluster, &key(&object));
            }
        }
    }
}

/// The status of an answer that refused a list or a watch.
fn refused(error: &watcher::Error) -> Option<u16> {
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
    use std::time::Duration;

    /// An API server that answers with this status. A watch says nothing until it changes.
    fn api_server(status: Arc<AtomicU16>, asked: Arc<AtomicUsize>) -> Client {
        let service = tower::service_fn(move |request: Request<Body>| {
            asked.fetch_add(1, Ordering::SeqCst);
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
                let answer = Response::builder().status(status).body(Body::from(body)).unwrap();
                Ok::<_, tower::BoxError>(answer)
            }
        });
        Client::new(service, "default")
    }

    /// Follows Autoscalers of a server that begins with 200, until the test has what it wants.
    async fn follow_while(test: impl AsyncFnOnce(&Cluster, &Synced, &AtomicU16, &AtomicUsize)) {
        let (status, asked) = (Arc::new(AtomicU16::new(200)), Arc::<AtomicUsize>::default());
        let client = api_server(status.clone(), asked.clone());
        let api = Api::all_with(client, &ApiResource::erase::<Autoscaler>(&()));
        let (cluster, synced) = (Cluster::default(), Synced::default());
        tokio::select! {
            () = follow(Kind::Autoscalers, api, (&cluster, &synced), &AUTOSCALER) => {
                panic!("it is followed for ever")
            }
            () = test(&cluster, &synced, &status, &asked) => {}
        }
    }

    async fn until(what: impl Fn() -> bool) {
        let holds = async {
            while !what() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(600), holds).await.expect("it comes to hold");
    }

    #[tokio::test(start_paused = true)]
    async fn a_definition_that_went_empties_the_index_and_a_lost_right_does_not() {
        follow_while(async |cluster, synced, status, asked| {
            let count = || cluster.read(Index::autoscaler_keys).len();
            until(|| count() == 1).await;
            status.store(403, Ordering::SeqCst);
            let before = asked.load(Ordering::SeqCst);
            until(|| asked.load(Ordering::SeqCst) > before + 3).await;
            assert_eq!(count(), 1);
            let told = synced.watches().iter().map(ToString::to_string).collect::<Vec<_>>();
            assert!(told.iter().any(|t| t.starts_with("[!]watch autoscalers fails")), "{told:?}");
            status.store(404, Ordering::SeqCst);
            until(|| count() == 0).await;
            status.store(200, Ordering::SeqCst);
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_always_fails_is_tried_less_and_less_often() {
        follow_while(async |cluster, _, status, asked| {
            until(|| !cluster.read(Index::autoscaler_keys).is_empty()).await;
            status.store(500, Ordering::SeqCst);
            let before = asked.load(Ordering::SeqCst);
            tokio::time::sleep(Duration::from_secs(75)).await;
            let tries = asked.load(Ordering::SeqCst) - before;
            // Each second it would be sixty.
            assert!((4..25).contains(&tries), "{tries}");
        })
        .await;
    }
}
