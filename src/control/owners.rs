//! Which pods are a target's own, by the chain of their controllers: a ReplicaSet's Deployment is two
//! steps from a pod.

use super::requests::{message, within};
use super::targets::Targets;
use crate::cache::{self, Cache};
use crate::hpa::{Phase, TargetRef, no_kind_match, parse_group};
use crate::k8s::Selector;
use crate::watch::{Cluster, Owner, PodRecord};
use futures::{StreamExt, TryStreamExt, stream};
use kube::core::DynamicObject;
use kube::{Api, Client};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// The selected pods that count.
pub enum Owned {
    /// All of them.
    All,
    /// Those whose controllers have these UIDs, or why these are unknown.
    By(Result<HashSet<String>, String>),
}

/// Reads and remembers who controls the objects that control pods.
pub struct Owners {
    client: Client,
    targets: Targets,
    /// By namespace and object. Whoever makes a pod chooses what it says of its owner, the UID too.
    parents: Cache<(String, Arc<Owner>), Known>,
}

/// What was read of an object.
#[derive(Clone)]
struct Known {
    /// Its controller; none if it has none, or is gone.
    parent: Option<Arc<Owner>>,
    read: Instant,
}

impl Known {
    fn is_fresh(&self) -> bool {
        let ttl = if self.parent.is_some() { PARENT_TTL } else { ORPHAN_TTL };
        self.read.elapsed() < ttl
    }
}

/// After which time the controller of an object is read again: a ReplicaSet that is given up by its Deployment
/// may get another.
const PARENT_TTL: Duration = Duration::from_secs(600);
/// The same of an object that has none, or is gone: it may get one as soon as its workload is made anew.
const ORPHAN_TTL: Duration = Duration::from_secs(10);
/// How long what was read counts, after it was used last, where there is more to read than one evaluation may: longer
/// than the longest sync period, or the next evaluations would never have read all.
const KEPT: Duration = Duration::from_secs(2 * 3_600);
/// The maximum size of the cache, in bytes.
const CACHE_BYTES: usize = 4 << 20;
/// The most objects between a pod and its target.
const MAX_STEPS: usize = 8;
/// The most requests of one evaluation, and how many of them at the same time.
const MAX_READS: usize = 20;
/// After how many of these nothing is read again that is known: it must not take those that are not known yet.
const MAX_REREADS: usize = MAX_READS / 2;
const MAX_CONCURRENT: usize = 4;

impl Owners {
    /// The owners in the cluster that the client is connected to.
    pub fn new(client: Client, targets: Targets) -> Self {
        let owner = |owner: &Arc<Owner>| {
            let Owner { group, kind, name, uid } = &**owner;
            size_of::<Owner>() + group.len() + kind.len() + name.len() + uid.len()
        };
        let bytes = move |(namespace, object): &(String, Arc<Owner>), known: &Known| {
            namespace.len() + owner(object) + known.parent.as_ref().map_or(0, owner)
        };
        Self { client, targets, parents: cache::of_bytes(CACHE_BYTES, KEPT, bytes) }
    }

    /// The UIDs of those controllers of the selected pods that are the target, or lead to it.
    ///
    /// # Errors
    /// If a controller can't be read, or more are to be read than one evaluation may: the next one continues. The text
    /// is for a condition.
    pub async fn of(
        &self,
        cluster: &Cluster,
        namespace: &str,
        selector: &Selector,
        target: &TargetRef,
    ) -> Result<HashSet<String>, String> {
        let controllers: HashSet<Arc<Owner>> = cluster.read(|index| {
            let pods = index.select(namespace, selector).into_iter();
            pods.filter_map(|(_, pod)| pod.owner.clone()).collect()
        });
        let reads = AtomicUsize::new(0);
        let of_target = async |controller: Arc<Owner>| {
            let leads = self.leads(namespace, controller.clone(), target, &reads).await?;
            Ok::<_, String>(leads.then(|| controller.uid.clone()))
        };
        stream::iter(controllers.into_iter().map(of_target))
            .buffer_unordered(MAX_CONCURRENT)
            .try_filter_map(async |uid| Ok(uid))
            .try_collect()
            .await
    }

    /// Whether the chain of controllers leads from an object to the target. Counts the requests for it in `reads`.
    ///
    /// # Errors
    /// If a controller can't be read, or `reads` are too many.
    pub async fn leads(
        &self,
        namespace: &str,
        from: Arc<Owner>,
        target: &TargetRef,
        reads: &AtomicUsize,
    ) -> Result<bool, String> {
        let group = parse_group(&target.api_version)?;
        let mut object = from;
        for _ in 0..MAX_STEPS {
            if object.group == group && object.kind == target.kind {
                return Ok(object.name == target.name);
            }
            if !may_own((group, &target.kind), (&object.group, &object.kind)) {
                return Ok(false);
            }
            match self.parent(namespace, &object, reads).await? {
                Some(parent) => object = parent,
                None => return Ok(false),
            }
        }
        Ok(false)
    }

    /// The controller of an object, if it has one and exists.
    async fn parent(
        &self,
        namespace: &str,
        object: &Arc<Owner>,
        reads: &AtomicUsize,
    ) -> Result<Option<Arc<Owner>>, String> {
        let key = (namespace.to_owned(), object.clone());
        if let Some(known) = self.parents.get(&key) {
            if known.is_fresh() {
                return Ok(known.parent);
            }
            if reads.load(Ordering::Relaxed) >= MAX_REREADS {
                self.parents.insert(key, known.clone());
                return Ok(known.parent);
            }
        }
        if reads.fetch_add(1, Ordering::Relaxed) >= MAX_READS {
            return Err(format!("of more than {MAX_READS} it is not known yet what controls them"));
        }
        let found = self.read_parent(namespace, object).await?;
        let parent = found.map(Arc::new);
        self.parents.insert(key, Known { parent: parent.clone(), read: Instant::now() });
        Ok(parent)
    }

    /// Reads the controller of an object, if it has one and exists.
    async fn read_parent(&self, namespace: &str, object: &Owner) -> Result<Option<Owner>, String> {
        let Owner { group, kind, name, uid } = object;
        let about = |error: String| format!("{kind} {name}: {error}");
        let resource = match self.targets.resource(group, kind).await {
            Ok(resource) => resource,
            // There is no such object.
            Err(error) if error == no_kind_match(kind, group) => return Ok(None),
            Err(error) => return Err(about(error)),
        };
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &resource);
        let found = match within(api.get_metadata(name)).await {
            Ok(found) => Some(found.metadata),
            Err(kube::Error::Api(status)) if status.code == 404 => None,
            Err(error) => return Err(about(message(&error))),
        };
        // Another object of the name is not the one that controls the pod.
        let found = found.filter(|found| found.uid.as_ref() == Some(uid));
        Ok(found.and_then(|found| Owner::controller(found.owner_references.as_deref())))
    }
}

/// The controller, if it has one, of the first of the pods that counts and is not the target's, as far as names tell: that of
/// a Deployment's pod is a ReplicaSet named after it and the pod's template. None for other kinds.
pub fn foreign<'a>(
    target: &TargetRef,
    pods: &[(&'a str, &'a PodRecord)],
) -> Option<Option<&'a Owner>> {
    let group = parse_group(&target.api_version).ok()?;
    let is_known = group == "apps" && matches!(&*target.kind, "Deployment" | "StatefulSet");
    let is_own = |pod: &PodRecord| {
        let Some(owner) = &pod.owner else { return false };
        match &*target.kind {
            "Deployment" => {
                let hash = pod.labels.get("pod-template-hash");
                let rest = owner.name.strip_prefix(&target.name);
                let rest = rest.and_then(|rest| rest.strip_prefix('-'));
                owner.kind == "ReplicaSet" && rest.is_some() && (hash.is_none() || rest == hash)
            }
            kind => owner.kind == kind && owner.name == target.name,
        }
    };
    let counts = |pod: &PodRecord| !pod.deleting && pod.phase != Phase::Failed;
    let (_, pod) = pods.iter().find(|(_, pod)| is_known && counts(pod) && !is_own(pod))?;
    Some(pod.owner.as_deref())
}

/// Whether an object of a kind can control one of another, which itself controls pods. The built-in kinds
/// are known, so that of other workloads' pods nothing is read.
fn may_own(target: (&str, &str), object: (&str, &str)) -> bool {
    match target {
        ("apps", "Deployment") => object == ("apps", "ReplicaSet"),
        ("apps" | "batch" | "", _) => false,
        _ => ![("", "Node"), ("batch", "Job"), ("apps", "DaemonSet")].contains(&object),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake;
    use super::*;
    use serde_json::json;

    fn owner(kind: &str, name: &str, uid: &str) -> Arc<Owner> {
        let text = |text: &str| text.to_owned();
        Arc::new(Owner { group: text("apps"), kind: text(kind), name: text(name), uid: text(uid) })
    }

    #[test]
    fn a_pod_of_another_workload_is_known_by_its_controllers_name() {
        let pod = |controller: Option<(&str, &str)>, hash: &str| PodRecord {
            labels: Arc::new([("pod-template-hash".to_owned(), hash.to_owned())].into()),
            phase: crate::hpa::Phase::Running,
            deleting: false,
            start: None,
            ready: None,
            requests: Arc::default(),
            owner: controller.map(|(kind, name)| owner(kind, name, "1")),
        };
        let target = |kind: &str| TargetRef {
            api_version: "apps/v1".to_owned(),
            kind: kind.to_owned(),
            name: "web".to_owned(),
        };
        for (kind, controller, hash, is_foreign) in [
            ("Deployment", Some(("ReplicaSet", "web-5d4")), "5d4", false),
            // Of the Deployment web-a.
            ("Deployment", Some(("ReplicaSet", "web-a-5d4")), "5d4", true),
            ("Deployment", Some(("ReplicaSet", "batch-5d4")), "5d4", true),
            ("Deployment", Some(("Job", "web-5d4")), "5d4", true),
            ("Deployment", None, "5d4", true),
            ("StatefulSet", Some(("StatefulSet", "web")), "", false),
            ("StatefulSet", Some(("ReplicaSet", "web-5d4")), "5d4", true),
            // Whatever controls the pods of kinds that are not known.
            ("Rollout", Some(("ReplicaSet", "x")), "5d4", false),
        ] {
            let pod = pod(controller, hash);
            let found = foreign(&target(kind), &[("p", &pod)]);
            assert_eq!(found.is_some(), is_foreign, "{kind} {controller:?}");
        }
    }

    /// More than one evaluation may read: what was read before counts until it is read again.
    #[tokio::test(start_paused = true)]
    async fn what_was_read_before_counts_where_there_is_more_to_read() {
        let (client, _) = fake::api(|request| match request.line.as_str() {
            "GET /apis" => (200, fake::groups()),
            "GET /apis/apps/v1" => (
                200,
                json!({"kind": "APIResourceList", "groupVersion": "apps/v1", "resources": [
                    {"name": "replicasets", "singularName": "replicaset", "namespaced": true,
                     "kind": "ReplicaSet", "verbs": ["get"]}]}),
            ),
            // Half of them have no controller.
            line => {
                let name = line.rsplit('/').next().unwrap();
                let number: usize = name.parse().unwrap();
                let owner = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web",
                    "uid": "d", "controller": true});
                let owners = if number.is_multiple_of(2) { json!([owner]) } else { json!([]) };
                (
                    200,
                    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                        "metadata": {"name": name, "uid": name, "ownerReferences": owners}}),
                )
            }
        });
        let target = TargetRef {
            api_version: "apps/v1".to_owned(),
            kind: "Deployment".to_owned(),
            name: "web".to_owned(),
        };
        let number = 2 * MAX_READS + 1;
        let owners = Owners::new(client.clone(), Targets::new(client.clone()));
        // How many of one evaluation failed.
        let evaluate = async |owners: &Owners| {
            let reads = AtomicUsize::new(0);
            let mut failed = 0;
            for n in 0..number {
                let name = n.to_string();
                let from = owner("ReplicaSet", &name, &name);
                match owners.leads("shop", from, &target, &reads).await {
                    Ok(leads) => assert_eq!(leads, n % 2 == 0),
                    Err(_) => failed += 1,
                }
            }
            failed
        };
        for left in [MAX_READS + 1, 1, 0, 0] {
            assert_eq!(evaluate(&owners).await, left);
        }
        for seconds in [15, 601, 3_600] {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            assert_eq!(evaluate(&owners).await, 0, "{seconds} s later");
        }
        // With the longest sync period all that is known is to be read again in each evaluation.
        let owners = Owners::new(client.clone(), Targets::new(client));
        for left in [MAX_READS + 1, MAX_REREADS + 1, 1, 0, 0] {
            assert_eq!(evaluate(&owners).await, left);
            tokio::time::advance(Duration::from_secs(3_600)).await;
        }
    }

    /// Pods outlive the definition of the kind that controls them, and a tenant may name any.
    #[tokio::test(start_paused = true)]
    async fn controllers_of_a_kind_that_does_not_exist_are_known() {
        let (client, _) = fake::api(|request| match request.line.as_str() {
            "GET /apis" => (200, fake::groups()),
            _ => (200, fake::deployments()),
        });
        let owners = Owners::new(client.clone(), Targets::new(client));
        let target = TargetRef {
            api_version: "argoproj.io/v1alpha1".to_owned(),
            kind: "Rollout".to_owned(),
            name: "web".to_owned(),
        };
        for left in [1, 0, 0] {
            let (reads, mut failed) = (AtomicUsize::new(0), 0);
            for n in 0..=MAX_READS {
                let from = owner("Gone", &n.to_string(), &n.to_string());
                match owners.leads("shop", from, &target, &reads).await {
                    Ok(leads) => assert!(!leads),
                    Err(_) => failed += 1,
                }
            }
            assert_eq!(failed, left);
            tokio::time::advance(Duration::from_secs(15)).await;
        }
    }

    #[tokio::test]
    async fn a_replica_set_leads_to_its_deployment_and_is_read_once() {
        let (client, log) = fake::api(|request| match request.line.as_str() {
            "GET /apis" => (200, fake::groups()),
            "GET /apis/apps/v1" => (
                200,
                json!({"kind": "APIResourceList", "groupVersion": "apps/v1", "resources": [
                    {"name": "replicasets", "singularName": "replicaset", "namespaced": true,
                     "kind": "ReplicaSet", "verbs": ["get"]}]}),
            ),
            line => {
                let (name, uid) = match line.ends_with("web-1") {
                    true => ("web-1", "1"),
                    false if line.ends_with("web-2") => ("web-2", "anew"),
                    false => return fake::failure(403, "Forbidden", "no"),
                };
                (
                    200,
                    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                        "metadata": {"name": name, "uid": uid, "ownerReferences": [
                            {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web",
                             "uid": "d", "controller": true}]}}),
                )
            }
        });
        let owners = Owners::new(client.clone(), Targets::new(client));
        let target = |kind: &str, name: &str| TargetRef {
            api_version: "apps/v1".to_owned(),
            kind: kind.to_owned(),
            name: name.to_owned(),
        };
        let (web, api) = (target("Deployment", "web"), target("Deployment", "api"));
        let leads = async |from: &Arc<Owner>, target: &TargetRef| {
            owners.leads("shop", from.clone(), target, &AtomicUsize::new(0)).await
        };
        let first = owner("ReplicaSet", "web-1", "1");
        for _ in 0..2 {
            assert_eq!(leads(&first, &web).await, Ok(true));
            assert_eq!(leads(&first, &api).await, Ok(false));
        }
        let reads = log.of("GET /apis/apps/v1/namespaces/shop/replicasets");
        assert_eq!(reads.len(), 1);
        // An object of the same name that was made anew controls other pods.
        assert_eq!(leads(&owner("ReplicaSet", "web-2", "2"), &web).await, Ok(false));
        // What is known of one namespace says nothing of an object with its UID in another.
        let elsewhere = owners.leads("bank", first.clone(), &web, &AtomicUsize::new(0)).await;
        assert_eq!(elsewhere, Ok(true));
        let reads = AtomicUsize::new(MAX_READS);
        let error = owners.leads("shop", owner("ReplicaSet", "x", "9"), &web, &reads);
        assert!(error.await.unwrap_err().contains("more than 20"));
        let error = leads(&owner("ReplicaSet", "web-3", "3"), &web).await.unwrap_err();
        assert_eq!(error, "ReplicaSet web-3: no");
        // Of pods that can't be the target's nothing is read.
        for (kind, target, expected) in [
            ("StatefulSet", &web, false),
            ("Job", &web, false),
            ("StatefulSet", &target("StatefulSet", "db"), true),
            ("ReplicaSet", &target("StatefulSet", "db"), false),
        ] {
            assert_eq!(leads(&owner(kind, "db", "4"), target).await, Ok(expected), "{kind}");
        }
    }
}
