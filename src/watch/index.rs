//! The index: pods, autoscalers and the metrics they ask for, as plain state.
//! It knows nothing of a cluster and is filled by [`super::follow_cluster`].

use super::pods::{NamespacePods, PodRecord, Shared as SharedValues};
use crate::crd::{AutoscalerSpec, ReadError};
use crate::hpa::{Requests, Scale, Spec, Status};
use crate::k8s::Selector;
use crate::promql::query::PodMetric;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscalerStatus;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use tokio::sync::{Notify, watch};

/// The namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// An object that asks for decisions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subject {
    /// What it is.
    pub kind: SubjectKind,
    /// Which one.
    pub key: ObjectKey,
}

/// What asks for decisions. An Autoscaler comes first, as it may say more of a
/// metric than a name does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SubjectKind {
    /// An Autoscaler.
    Autoscaler,
    /// A native HorizontalPodAutoscaler.
    Hpa,
}

impl Subject {
    /// An Autoscaler.
    pub const fn autoscaler(key: ObjectKey) -> Self {
        Self { kind: SubjectKind::Autoscaler, key }
    }

    /// A native HorizontalPodAutoscaler.
    pub const fn hpa(key: ObjectKey) -> Self {
        Self { kind: SubjectKind::Hpa, key }
    }

    /// What to call another in a message about this one: its kind is named where it differs.
    pub fn name_of(&self, other: &Self) -> String {
        if self.kind == other.kind { other.key.to_string() } else { other.to_string() }
    }
}

impl SubjectKind {
    /// Its kind in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Autoscaler => "Autoscaler",
            Self::Hpa => "HorizontalPodAutoscaler",
        }
    }
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.kind.as_str(), self.key)
    }
}

/// The scale of a workload whose kind is watched.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaleRecord {
    /// The numbers of its replicas.
    pub replicas: Scale,
    /// The selector of its pods, as text.
    pub selector: String,
}

/// The kinds of workloads that are watched, all in the group `apps`; the scale
/// of others is read when it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Workload {
    /// A Deployment.
    Deployment,
    /// A StatefulSet.
    StatefulSet,
}

impl Workload {
    /// The one of a group and kind.
    pub fn of(group: &str, kind: &str) -> Option<Self> {
        match (group, kind) {
            ("apps", "Deployment") => Some(Self::Deployment),
            ("apps", "StatefulSet") => Some(Self::StatefulSet),
            _ => None,
        }
    }
}

/// What is kept of an Autoscaler.
#[derive(Clone, Debug)]
pub struct AutoscalerRecord {
    /// Its UID, for events and owner references.
    pub uid: String,
    /// The generation of its spec.
    pub generation: Option<i64>,
    /// What it asks for, or why it can't be read.
    pub asked: Result<Arc<Asked>, ReadError>,
    /// Its status.
    pub status: Status,
}

/// What an Autoscaler asks for.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Its spec.
    pub spec: AutoscalerSpec,
    /// What that asks of decisions.
    pub demand: Demand,
}

/// What is asked of decisions.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    /// The spec as a decision reads it.
    pub decided: Spec,
    /// For each metric of `decided`, the pod metric that Plimsoll serves
    /// itself; none for those of other providers.
    pub pod_metrics: Vec<Option<PodMetric>>,
}

/// What is kept of a native HorizontalPodAutoscaler.
#[derive(Clone, Debug)]
pub struct HpaRecord {
    /// Its UID, for events and preconditions.
    pub uid: String,
    /// Its resourceVersion, for preconditions.
    pub version: Option<String>,
    /// What it asks for.
    pub demand: Demand,
    /// The UID of the Autoscaler that owns it, where one does.
    pub owner: Option<String>,
    /// Its status.
    pub status: HorizontalPodAutoscalerStatus,
}

/// By namespace and name, who asks for a metric.
type Published = HashMap<String, HashMap<String, BTreeMap<(SubjectKind, String), PodMetric>>>;

/// The state of the cluster, as far as it is looked at.
#[derive(Default)]
pub struct Index {
    pods_known: bool,
    pods: HashMap<String, NamespacePods>,
    scales: HashMap<Workload, BTreeMap<ObjectKey, ScaleRecord>>,
    autoscalers: BTreeMap<ObjectKey, Arc<AutoscalerRecord>>,
    hpas: BTreeMap<ObjectKey, Arc<HpaRecord>>,
    published: Published,
    /// The names that each asks for, so that they are found again without a look at all.
    asked_names: HashMap<Subject, Vec<String>>,
    requests: SharedValues<Requests>,
}

impl Index {
    /// The pods of a namespace that a selector selects, by name.
    pub fn select<'a>(
        &'a self,
        namespace: &str,
        selector: &Selector,
    ) -> Vec<(&'a str, &'a PodRecord)> {
        self.pods.get(namespace).map_or(Vec::new(), |pods| pods.select(selector))
    }

    /// Whether all pods were seen; until then there may be more than are here.
    pub fn pods_known(&self) -> bool {
        self.pods_known
    }

    pub(super) fn set_pods_known(&mut self) {
        self.pods_known = true;
    }

    /// The namespaces with pods, sorted.
    pub fn namespaces(&self) -> Vec<&str> {
        let mut namespaces: Vec<&str> = self.pods.keys().map(String::as_str).collect();
        namespaces.sort_unstable();
        namespaces
    }

    /// One pod.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<&PodRecord> {
        self.pods.get(namespace)?.get(name)
    }

    /// The metric published under a name in a namespace.
    pub fn published(&self, namespace: &str, name: &str) -> Option<&PodMetric> {
        self.published.get(namespace)?.get(name)?.values().next()
    }

    /// All published names, sorted.
    #[cfg(test)]
    fn published_names(&self) -> BTreeSet<&str> {
        self.published.values().flat_map(HashMap::keys).map(String::as_str).collect()
    }

    /// Whether an object that asks for decisions is there.
    pub fn has(&self, subject: &Subject) -> bool {
        match subject.kind {
            SubjectKind::Autoscaler => self.autoscalers.contains_key(&subject.key),
            SubjectKind::Hpa => self.hpas.contains_key(&subject.key),
        }
    }

    /// The Autoscalers there are.
    pub fn autoscaler_keys(&self) -> Vec<ObjectKey> {
        self.autoscalers.keys().cloned().collect()
    }

    /// One Autoscaler.
    pub fn autoscaler(&self, key: &ObjectKey) -> Option<Arc<AutoscalerRecord>> {
        self.autoscalers.get(key).cloned()
    }

    /// One native HorizontalPodAutoscaler.
    pub fn hpa(&self, key: &ObjectKey) -> Option<Arc<HpaRecord>> {
        self.hpas.get(key).cloned()
    }

    pub(super) fn pod_keys(&self) -> Vec<ObjectKey> {
        let key = |namespace: &String, name: &str| ObjectKey {
            namespace: namespace.clone(),
            name: name.to_owned(),
        };
        let of =
            |(namespace, pods)| NamespacePods::names(pods).map(move |name| key(namespace, name));
        self.pods.iter().flat_map(of).collect()
    }

    pub(super) fn scale_keys(&self, workload: Workload) -> Vec<ObjectKey> {
        self.scales.get(&workload).into_iter().flat_map(BTreeMap::keys).cloned().collect()
    }

    /// The scale of a workload, where its kind is watched.
    pub fn scale(&self, workload: Workload, key: &ObjectKey) -> Option<&ScaleRecord> {
        self.scales.get(&workload)?.get(key)
    }

    /// Keeps the scale of a workload.
    pub fn put_scale(&mut self, workload: Workload, key: ObjectKey, scale: ScaleRecord) {
        self.scales.entry(workload).or_default().insert(key, scale);
    }

    /// Forgets a workload.
    pub fn remove_scale(&mut self, workload: Workload, key: &ObjectKey) {
        if let Some(scales) = self.scales.get_mut(&workload) {
            scales.remove(key);
        }
    }

    pub(super) fn hpa_keys(&self) -> Vec<ObjectKey> {
        self.hpas.keys().cloned().collect()
    }

    /// Keeps a pod, its requests shared with the pods that request the same.
    pub fn put_pod(&mut self, key: ObjectKey, mut pod: PodRecord) {
        pod.requests = self.requests.one_of(pod.requests);
        self.pods.entry(key.namespace).or_default().put(&key.name, pod);
    }

    /// Forgets a pod.
    pub fn remove_pod(&mut self, key: &ObjectKey) {
        if let Some(pods) = self.pods.get_mut(&key.namespace) {
            pods.remove(&key.name);
            if pods.is_empty() {
                self.pods.remove(&key.namespace);
            }
        }
    }

    /// Keeps an Autoscaler; true if what it asks for is new or changed.
    pub fn put_autoscaler(&mut self, key: ObjectKey, record: AutoscalerRecord) -> bool {
        let known = self.autoscalers.get(&key);
        let same = known.is_some_and(|known| {
            known.uid == record.uid
                && known.generation.is_some()
                && known.generation == record.generation
        });
        if !same {
            let published = match &record.asked {
                Ok(asked) => asked.demand.published(),
                Err(_) => Vec::new(),
            };
            self.publish(&key, SubjectKind::Autoscaler, published);
        }
        self.autoscalers.insert(key, Arc::new(record));
        !same
    }

    /// Forgets an Autoscaler and the metrics it asked for.
    pub fn remove_autoscaler(&mut self, key: &ObjectKey) {
        self.publish(key, SubjectKind::Autoscaler, Vec::new());
        self.autoscalers.remove(key);
    }

    /// Keeps a native HorizontalPodAutoscaler; true if what it asks for is new or changed.
    pub fn put_hpa(&mut self, key: ObjectKey, record: HpaRecord) -> bool {
        let known = self.hpas.get(&key);
        let same =
            known.is_some_and(|known| known.uid == record.uid && known.demand == record.demand);
        if !same {
            self.publish(&key, SubjectKind::Hpa, record.demand.published());
        }
        self.hpas.insert(key, Arc::new(record));
        !same
    }

    /// Forgets a native HorizontalPodAutoscaler and the metrics it asked for.
    pub fn remove_hpa(&mut self, key: &ObjectKey) {
        self.publish(key, SubjectKind::Hpa, Vec::new());
        self.hpas.remove(key);
    }

    /// Replaces what a subject asks for.
    fn publish(&mut self, key: &ObjectKey, kind: SubjectKind, metrics: Vec<(String, PodMetric)>) {
        let names = self.published.entry(key.namespace.clone()).or_default();
        let (user, subject) = ((kind, key.name.clone()), Subject { kind, key: key.clone() });
        for name in self.asked_names.remove(&subject).unwrap_or_default() {
            if let Some(users) = names.get_mut(&name) {
                users.remove(&user);
                if users.is_empty() {
                    names.remove(&name);
                }
            }
        }
        if !metrics.is_empty() {
            let asked = metrics.iter().map(|(name, _)| name.clone()).collect();
            self.asked_names.insert(subject, asked);
        }
        for (name, metric) in metrics {
            names.entry(name).or_default().insert(user.clone(), metric);
        }
        if names.is_empty() {
            self.published.remove(&key.namespace);
        }
    }
}

impl Demand {
    /// The metrics that Plimsoll serves for it, by their published names.
    fn published(&self) -> Vec<(String, PodMetric)> {
        let name = |metric: &crate::hpa::Metric| match &metric.source {
            crate::hpa::Source::Pods { metric, .. } => Some(metric.name.clone()),
            _ => None,
        };
        self.decided
            .metrics
            .iter()
            .zip(&self.pod_metrics)
            .filter_map(|(metric, own)| Some((name(metric)?, own.clone()?)))
            .collect()
    }
}

/// The index, shared, with word of what changed.
#[derive(Clone, Default)]
pub struct Cluster(Arc<Shared>);

#[derive(Default)]
struct Shared {
    index: RwLock<Index>,
    /// Those whose spec changed since the loop last looked; at most as many as
    /// there are.
    dirty: Mutex<BTreeSet<Subject>>,
    dirtied: Notify,
    /// Counts the changes to what is published.
    published: watch::Sender<u64>,
}

impl Cluster {
    /// Looks at the index; the look holds up the watches and should be brief.
    pub fn read<T>(&self, look: impl FnOnce(&Index) -> T) -> T {
        look(&self.0.index.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the index.
    pub fn write<T>(&self, change: impl FnOnce(&mut Index) -> T) -> T {
        change(&mut self.0.index.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Says that what asks for decisions is new, changed or gone.
    pub fn changed(&self, subject: Subject) {
        self.0.dirty.lock().unwrap_or_else(PoisonError::into_inner).insert(subject);
        self.0.dirtied.notify_one();
        self.0.published.send_modify(|changes| *changes += 1);
    }

    /// Waits until any changed, and takes word of them.
    pub async fn changes(&self) -> BTreeSet<Subject> {
        loop {
            let dirty =
                std::mem::take(&mut *self.0.dirty.lock().unwrap_or_else(PoisonError::into_inner));
            if !dirty.is_empty() {
                return dirty;
            }
            self.0.dirtied.notified().await;
        }
    }

    /// Follows the changes to what is published.
    pub fn watch_published(&self) -> watch::Receiver<u64> {
        self.0.published.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hpa::Phase;

    fn key(name: &str) -> ObjectKey {
        ObjectKey { namespace: "shop".to_owned(), name: name.to_owned() }
    }

    fn metric(query: Option<&str>) -> PodMetric {
        PodMetric {
            metric: "m".to_owned(),
            labels: BTreeMap::new(),
            query: query.map(str::to_owned),
        }
    }

    fn hpa(names: &[&str]) -> HpaRecord {
        let spec = serde_json::from_value(serde_json::json!({
            "scaleTargetRef": {"kind": "Deployment", "name": "web"}, "maxReplicas": 1,
            "metrics": names.iter().map(|name| serde_json::json!({"type": "Pods", "pods": {
                "metric": {"name": name},
                "target": {"type": "AverageValue", "averageValue": "1"}}})).collect::<Vec<_>>(),
        }));
        let demand = Demand {
            decided: Spec::from_api(&spec.unwrap()),
            pod_metrics: vec![Some(metric(None)); names.len().max(1)],
        };
        HpaRecord {
            uid: String::new(),
            version: None,
            demand,
            owner: None,
            status: Default::default(),
        }
    }

    #[test]
    fn a_metric_is_published_as_long_as_anyone_asks_for_it() {
        let mut index = Index::default();
        index.put_hpa(key("a"), hpa(&["x", "y"]));
        index.put_hpa(key("b"), hpa(&["x"]));
        assert_eq!(index.published_names().into_iter().collect::<Vec<_>>(), ["x", "y"]);
        index.put_hpa(key("a"), hpa(&[]));
        assert!(index.published("shop", "x").is_some());
        assert!(index.published("shop", "y").is_none());
        assert!(index.published("bank", "x").is_none());
        index.remove_hpa(&key("b"));
        assert!(index.published_names().is_empty() && index.published.is_empty());
        assert!(index.asked_names.len() <= 2);
        index.remove_hpa(&key("a"));
        assert!(index.asked_names.is_empty());
    }

    #[test]
    fn what_an_autoscaler_says_of_a_metric_comes_before_its_name_alone() {
        let mut index = Index::default();
        index.publish(&key("a"), SubjectKind::Hpa, vec![("x".into(), metric(None))]);
        let with_query = vec![("x".to_owned(), metric(Some("q")))];
        index.publish(&key("z"), SubjectKind::Autoscaler, with_query);
        assert_eq!(index.published("shop", "x"), Some(&metric(Some("q"))));
    }

    #[test]
    fn pods_share_equal_requests() {
        let mut index = Index::default();
        for name in ["a", "b"] {
            let pod = PodRecord {
                labels: Arc::default(),
                phase: Phase::Running,
                deleting: false,
                start: None,
                ready: None,
                requests: Arc::default(),
            };
            index.put_pod(key(name), pod);
        }
        let requests = |name| index.pod("shop", name).unwrap().requests.clone();
        assert!(Arc::ptr_eq(&requests("a"), &requests("b")));
        assert!(index.select("bank", &Selector::default()).is_empty());
        index.remove_pod(&key("a"));
        assert!(index.pod("shop", "a").is_none());
    }
}
