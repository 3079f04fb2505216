//! The watches that fill the index.

use super::index::{Cluster, Index, ObjectKey, Subject, Workload};
use super::read::{self, LeanAutoscaler, LeanHpa, LeanPod, LeanWorkload};
use crate::crd::Autoscaler;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::Pod;
use kube::core::{ApiResource, Resource};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Which of the watches have seen all there is, at least once.
#[derive(Clone, Default)]
pub struct Synced(Arc<[AtomicBool; 5]>);

const NAMES: [&str; 5] =
    ["pods", "horizontalpodautoscalers", "autoscalers", "deployments", "statefulsets"];

/// How many objects are listed at once: a page is held as text and as objects
/// before it is read.
const PAGE: u32 = 200;

impl Synced {
    /// The watches that have not yet.
    pub fn missing(&self) -> Vec<&'static str> {
        let missing = |(seen, name): (&AtomicBool, &'static str)| {
            (!seen.load(Ordering::Acquire)).then_some(name)
        };
        self.0.iter().zip(NAMES).filter_map(missing).collect()
    }

    fn set(&self, kind: usize) {
        self.0[kind].store(true, Ordering::Release);
    }
}

/// Follows pods, native HPAs, Autoscalers, Deployments and StatefulSets of all
/// namespaces, for ever.
/// Watches that break are taken up again where they were, with a growing wait.
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
    tokio::join!(
        follow(
            0,
            pods,
            &cluster,
            &synced,
            Kind {
                keys: Index::pod_keys,
                apply: |cluster, key, pod| {
                    let record = read::pod(pod);
                    cluster.write(|index| index.put_pod(key, record));
                },
                delete: |cluster, key| cluster.write(|index| index.remove_pod(key)),
                listed: Index::set_pods_known,
            }
        ),
        follow(
            1,
            hpas,
            &cluster,
            &synced,
            Kind {
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
                    let owned =
                        cluster.read(|index| index.hpa(key)).is_some_and(|h| h.owner.is_some());
                    cluster.write(|index| index.remove_hpa(key));
                    cluster.changed(Subject::hpa(key.clone()));
                    if owned {
                        cluster.changed(Subject::autoscaler(key.clone()));
                    }
                },
                listed: |_| {},
            }
        ),
        follow(
            2,
            autoscalers,
            &cluster,
            &synced,
            Kind {
                keys: Index::autoscaler_keys,
                apply: |cluster, key, object| {
                    let record = read::autoscaler(object);
                    if cluster.write(|index| index.put_autoscaler(key.clone(), record)) {
                        cluster.changed(Subject::autoscaler(key));
                    }
                },
                delete: |cluster, key| {
                    cluster.write(|index| index.remove_autoscaler(key));
                    cluster.changed(Subject::autoscaler(key.clone()));
                },
                listed: |_| {},
            }
        ),
        follow(
            3,
            deployments,
            &cluster,
            &synced,
            Kind {
                keys: |index| index.scale_keys(Workload::Deployment),
                apply: |cluster, key, object| put_scale(cluster, Workload::Deployment, key, object),
                delete: |cluster, key| {
                    cluster.write(|index| index.remove_scale(Workload::Deployment, key));
                },
                listed: |_| {},
            }
        ),
        follow(
            4,
            stateful_sets,
            &cluster,
            &synced,
            Kind {
                keys: |index| index.scale_keys(Workload::StatefulSet),
                apply: |cluster, key, object| {
                    put_scale(cluster, Workload::StatefulSet, key, object);
                },
                delete: |cluster, key| {
                    cluster.write(|index| index.remove_scale(Workload::StatefulSet, key));
                },
                listed: |_| {},
            }
        ),
    );
}

fn put_scale(cluster: &Cluster, workload: Workload, key: ObjectKey, object: LeanWorkload) {
    let scale = read::scale(object);
    cluster.write(|index| match scale {
        Some(scale) => index.put_scale(workload, key, scale),
        None => index.remove_scale(workload, &key),
    });
}

/// What is done with the objects of one kind.
struct Kind<K> {
    keys: fn(&Index) -> Vec<ObjectKey>,
    apply: fn(&Cluster, ObjectKey, K),
    delete: fn(&Cluster, &ObjectKey),
    /// When all of them were seen.
    listed: fn(&mut Index),
}

async fn follow<K>(number: usize, api: Api<K>, cluster: &Cluster, synced: &Synced, kind: Kind<K>)
where
    K: Resource<DynamicType = ApiResource> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let name = NAMES[number];
    let config = watcher::Config::default().page_size(PAGE);
    let mut events = watcher(api, config).default_backoff().boxed();
    let mut seen: HashSet<ObjectKey> = HashSet::new();
    loop {
        let event = match events.try_next().await {
            Ok(Some(event)) => event,
            Ok(None) => return,
            Err(error) => {
                // Where the kind is not installed, or not for us to see, there is
                // nothing to wait for.
                if let watcher::Error::InitialListFailed(kube::Error::Api(status)) = &error
                    && matches!(status.code, 403 | 404)
                {
                    synced.set(number);
                }
                tracing::warn!(kind = name, %error, "watch failed; it is taken up again");
                continue;
            }
        };
        match event {
            watcher::Event::Init => seen.clear(),
            watcher::Event::InitApply(object) => {
                let key = key(&object);
                seen.insert(key.clone());
                (kind.apply)(cluster, key, object);
            }
            watcher::Event::InitDone => {
                for key in cluster.read(kind.keys) {
                    if !seen.contains(&key) {
                        (kind.delete)(cluster, &key);
                    }
                }
                tracing::debug!(kind = name, objects = seen.len(), "listed");
                seen = HashSet::new();
                cluster.write(kind.listed);
                synced.set(number);
            }
            watcher::Event::Apply(object) => (kind.apply)(cluster, key(&object), object),
            watcher::Event::Delete(object) => (kind.delete)(cluster, &key(&object)),
        }
    }
}

fn key<K: Resource>(object: &K) -> ObjectKey {
    ObjectKey {
        namespace: object.meta().namespace.clone().unwrap_or_default(),
        name: object.meta().name.clone().unwrap_or_default(),
    }
}
