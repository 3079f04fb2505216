//! The index: pods, autoscalers and the metrics they use, as plain state without I/O. The
//! reflectors fill it.

use super::autoscaler_ref::{AutoscalerKind, AutoscalerRef, ObjectKey};
use super::metric_rules::MetricRuleRecords;
use super::pods::{NamespacePods, Owner, PodRecord};
use super::records::{AutoscalerRecord, HpaRecord, MetricRuleRecord, ScaleRecord, Workload};
use crate::hpa::Requests;
use crate::intern::Interner;
use crate::k8s::Selector;
use crate::promql::query::{Per, PrometheusMetric};
#[cfg(test)]
use std::collections::BTreeSet;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tokio::time::Instant;

/// By namespace and metric name, the autoscalers that use a metric, in their order.
type Published = HashMap<String, HashMap<String, Vec<User>>>;

/// An autoscaler by kind and name, and its metric.
type User = (AutoscalerKind, Arc<ObjectKey>, Arc<PrometheusMetric>);

/// The metrics that an autoscaler publishes, by their names.
type Metrics = Vec<(String, Arc<PrometheusMetric>)>;

/// The watched state of the cluster.
#[derive(Default)]
pub struct Index {
    pods_known: bool,
    pods: HashMap<String, NamespacePods>,
    /// The last version of the pods of a namespace.
    pods_version: u64,
    /// Boxed, as half of a node of a map is unused.
    scales: HashMap<Workload, BTreeMap<ObjectKey, Box<ScaleRecord>>>,
    autoscalers: BTreeMap<Arc<ObjectKey>, Arc<AutoscalerRecord>>,
    hpas: BTreeMap<Arc<ObjectKey>, Arc<HpaRecord>>,
    /// By namespace and name.
    metric_rules: HashMap<String, MetricRuleRecords>,
    published: Published,
    requests: Interner<Requests>,
    owners: Interner<Owner>,
}

impl Index {
    /// The pods of a namespace that match a selector, sorted by name.
    pub fn select<'a>(
        &'a self,
        namespace: &str,
        selector: &Selector,
    ) -> Vec<(&'a str, &'a PodRecord)> {
        self.pods.get(namespace).map_or(Vec::new(), |pods| pods.select(selector))
    }

    /// Whether all pods were listed. Until then, there may be more pods than the index has.
    pub fn pods_known(&self) -> bool {
        self.pods_known
    }

    /// The version of the names and labels of a namespace's pods: they are the same as long as it is. None until all
    /// pods were listed.
    pub fn pods_version(&self, namespace: &str) -> Option<u64> {
        self.pods_known.then(|| self.pods.get(namespace).map_or(0, |pods| pods.version))
    }

    /// All pods were listed.
    pub fn set_pods_known(&mut self) {
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

    /// The metric published under a name in a namespace: on `custom.metrics.k8s.io` if it is one of
    /// pods, and on `external.metrics.k8s.io` if it is a total.
    pub fn published(
        &self,
        namespace: &str,
        name: &str,
        per: Per,
    ) -> Option<&Arc<PrometheusMetric>> {
        let users = self.published.get(namespace)?.get(name)?.iter();
        let mut metrics = users.map(|(_, _, metric)| metric);
        metrics.find(|metric| metric.per == per)
    }

    /// All published names, sorted.
    #[cfg(test)]
    fn published_names(&self) -> BTreeSet<&str> {
        self.published.values().flat_map(HashMap::keys).map(String::as_str).collect()
    }

    /// Whether an autoscaler exists.
    pub fn has(&self, autoscaler: &AutoscalerRef) -> bool {
        self.uid(autoscaler).is_some()
    }

    /// The UID of an autoscaler, if it exists.
    pub fn uid(&self, autoscaler: &AutoscalerRef) -> Option<&String> {
        match autoscaler.kind {
            AutoscalerKind::Autoscaler => {
                self.autoscalers.get(&*autoscaler.key).map(|now| &now.uid)
            }
            AutoscalerKind::Hpa => self.hpas.get(&*autoscaler.key).map(|now| &now.uid),
        }
    }

    /// The keys of all Autoscalers.
    pub fn autoscaler_keys(&self) -> Vec<ObjectKey> {
        self.autoscalers.keys().map(|key| (**key).clone()).collect()
    }

    /// All Autoscalers, in the order of namespace and name.
    pub fn autoscalers(
        &self,
    ) -> impl ExactSizeIterator<Item = (&Arc<ObjectKey>, &Arc<AutoscalerRecord>)> {
        self.autoscalers.iter()
    }

    /// One Autoscaler.
    pub fn autoscaler(&self, key: &ObjectKey) -> Option<Arc<AutoscalerRecord>> {
        self.autoscalers.get(key).cloned()
    }

    /// The number of native HorizontalPodAutoscalers.
    pub fn hpa_count(&self) -> usize {
        self.hpas.len()
    }

    /// One native HorizontalPodAutoscaler.
    pub fn hpa(&self, key: &ObjectKey) -> Option<Arc<HpaRecord>> {
        self.hpas.get(key).cloned()
    }

    /// The MetricRules of a namespace, by name.
    pub fn metric_rules(&self, namespace: &str) -> BTreeMap<String, Arc<MetricRuleRecord>> {
        self.metric_rules.get(namespace).map(|rules| rules.by_name.clone()).unwrap_or_default()
    }

    /// Whether a namespace has MetricRules.
    pub fn has_metric_rules(&self, namespace: &str) -> bool {
        self.metric_rules.contains_key(namespace)
    }

    /// One MetricRule.
    pub fn metric_rule(&self, key: &ObjectKey) -> Option<&Arc<MetricRuleRecord>> {
        self.metric_rules.get(&key.namespace)?.by_name.get(&key.name)
    }

    pub(super) fn metric_rule_keys(&self) -> Vec<ObjectKey> {
        let keys = |(namespace, rules): (&String, &MetricRuleRecords)| {
            let key =
                |name: &String| ObjectKey { namespace: namespace.clone(), name: name.clone() };
            rules.by_name.keys().map(key).collect::<Vec<_>>()
        };
        self.metric_rules.iter().flat_map(keys).collect()
    }

    /// Adds or replaces a MetricRule. Returns whether its spec is new or changed.
    pub fn put_metric_rule(&mut self, key: ObjectKey, record: MetricRuleRecord) -> bool {
        let same = |known: &Arc<MetricRuleRecord>| {
            known.uid == record.uid
                && known.generation.is_some()
                && known.generation == record.generation
        };
        let rules = self.metric_rules.entry(key.namespace).or_default();
        let changed = !rules.by_name.get(&key.name).is_some_and(same);
        rules.put(key.name, record);
        changed
    }

    /// Removes a MetricRule.
    pub fn remove_metric_rule(&mut self, key: &ObjectKey) {
        if let Some(rules) = self.metric_rules.get_mut(&key.namespace) {
            rules.remove(&key.name);
            if rules.by_name.is_empty() {
                self.metric_rules.remove(&key.namespace);
            }
        }
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

    /// The scale of a workload.
    pub fn scale(&self, workload: Workload, key: &ObjectKey) -> Option<&ScaleRecord> {
        self.scales.get(&workload)?.get(key).map(AsRef::as_ref)
    }

    /// Adds or replaces the scale of a workload, and notes its rollout.
    pub fn put_scale(&mut self, workload: Workload, key: ObjectKey, mut scale: ScaleRecord) {
        let scales = self.scales.entry(workload).or_default();
        let known = scales.get(&key);
        scale.rollout = known.map(|known| known.rollout).unwrap_or_default();
        scale.rollout.note(known.map(|known| known.seen), scale.seen, Instant::now());
        scales.insert(key, scale.into());
    }

    /// Removes a workload.
    pub fn remove_scale(&mut self, workload: Workload, key: &ObjectKey) {
        if let Some(scales) = self.scales.get_mut(&workload) {
            scales.remove(key);
        }
    }

    pub(super) fn hpa_keys(&self) -> Vec<ObjectKey> {
        self.hpas.keys().map(|key| (**key).clone()).collect()
    }

    /// Adds or replaces a pod. Pods with equal requests share them, and those of one owner that.
    pub fn put_pod(&mut self, key: ObjectKey, mut pod: PodRecord) {
        pod.requests = self.requests.intern(pod.requests);
        pod.owner = pod.owner.map(|owner| self.owners.intern(owner));
        let pods = self.pods.entry(key.namespace).or_default();
        if pods.put(&key.name, pod) {
            self.pods_version += 1;
            pods.version = self.pods_version;
        }
    }

    /// Removes a pod.
    pub fn remove_pod(&mut self, key: &ObjectKey) {
        if let Some(pods) = self.pods.get_mut(&key.namespace) {
            if pods.remove(&key.name) {
                self.pods_version += 1;
                pods.version = self.pods_version;
            }
            if pods.is_empty() {
                self.pods.remove(&key.namespace);
            }
        }
    }

    /// Adds or replaces an Autoscaler. Returns whether its spec is new or changed.
    pub fn put_autoscaler(
        &mut self,
        key: impl Into<Arc<ObjectKey>>,
        record: AutoscalerRecord,
    ) -> bool {
        let (key, known) = known(&self.autoscalers, key.into());
        let same = known.is_some_and(|known| {
            known.uid == record.uid
                && known.generation.is_some()
                && known.generation == record.generation
        });
        if !same {
            let before = known.map(|known| known.published()).unwrap_or_default();
            self.publish(&key, AutoscalerKind::Autoscaler, before, record.published());
        }
        self.autoscalers.insert(key, Arc::new(record));
        !same
    }

    /// Removes an Autoscaler and its published metrics.
    pub fn remove_autoscaler(&mut self, key: &ObjectKey) {
        if let Some((key, before)) = self.autoscalers.remove_entry(key) {
            self.publish(&key, AutoscalerKind::Autoscaler, before.published(), Vec::new());
        }
    }

    /// Adds or replaces a native HorizontalPodAutoscaler. Returns whether its spec is new or
    /// changed.
    pub fn put_hpa(&mut self, key: impl Into<Arc<ObjectKey>>, record: HpaRecord) -> bool {
        let (key, known) = known(&self.hpas, key.into());
        let same =
            known.is_some_and(|known| known.uid == record.uid && known.scaling == record.scaling);
        if !same {
            let before = known.map(|known| known.scaling.published()).unwrap_or_default();
            self.publish(&key, AutoscalerKind::Hpa, before, record.scaling.published());
        }
        self.hpas.insert(key, Arc::new(record));
        !same
    }

    /// Removes a native HorizontalPodAutoscaler and its published metrics.
    pub fn remove_hpa(&mut self, key: &ObjectKey) {
        if let Some((key, before)) = self.hpas.remove_entry(key) {
            self.publish(&key, AutoscalerKind::Hpa, before.scaling.published(), Vec::new());
        }
    }

    /// Replaces the published metrics of an autoscaler.
    fn publish(
        &mut self,
        key: &Arc<ObjectKey>,
        kind: AutoscalerKind,
        before: Metrics,
        metrics: Metrics,
    ) {
        let names = self.published.entry(key.namespace.clone()).or_default();
        let place = |users: &[User]| {
            users.binary_search_by_key(&(kind, &key.name), |(kind, key, _)| (*kind, &key.name))
        };
        for (name, _) in before {
            if let Some(users) = names.get_mut(&name) {
                if let Ok(index) = place(users) {
                    users.remove(index);
                }
                if users.is_empty() {
                    names.remove(&name);
                }
            }
        }
        for (name, metric) in metrics {
            let users = names.entry(name).or_insert_with(|| Vec::with_capacity(1));
            match place(users) {
                Ok(index) => users[index].2 = metric,
                Err(index) => users.insert(index, (kind, key.clone(), metric)),
            }
        }
        if names.is_empty() {
            self.published.remove(&key.namespace);
        }
    }
}

/// What is known of an autoscaler, and the name that it is known by, so that that is in memory once.
fn known<T>(
    all: &BTreeMap<Arc<ObjectKey>, Arc<T>>,
    key: Arc<ObjectKey>,
) -> (Arc<ObjectKey>, Option<&Arc<T>>) {
    match all.get_key_value(&key) {
        Some((key, known)) => (key.clone(), Some(known)),
        None => (key, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hpa::{Phase, Spec};
    use crate::k8s::LabelSet;
    use crate::watch::records::ScalingSpec;

    fn key(name: &str) -> ObjectKey {
        ObjectKey { namespace: "shop".to_owned(), name: name.to_owned() }
    }

    fn metric(query: Option<&str>) -> PrometheusMetric {
        PrometheusMetric {
            metric: "m".to_owned(),
            per: Per::Pod,
            labels: LabelSet::new(),
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
        let scaling = ScalingSpec {
            spec: Spec::from_api(&spec.unwrap()),
            prometheus_metrics: vec![Some(metric(None).into()); names.len().max(1)],
        };
        HpaRecord {
            uid: String::new(),
            version: None,
            scaling,
            owner: None,
            status: Default::default(),
        }
    }

    #[test]
    fn a_metric_is_published_as_long_as_any_autoscaler_uses_it() {
        let mut index = Index::default();
        index.put_hpa(key("a"), hpa(&["x", "y"]));
        index.put_hpa(key("b"), hpa(&["x"]));
        assert_eq!(index.published_names().into_iter().collect::<Vec<_>>(), ["x", "y"]);
        index.put_hpa(key("a"), hpa(&[]));
        assert!(index.published("shop", "x", Per::Pod).is_some());
        assert!(index.published("shop", "y", Per::Pod).is_none());
        assert!(index.published("bank", "x", Per::Pod).is_none());
        index.remove_hpa(&key("b"));
        assert!(index.published_names().is_empty() && index.published.is_empty());
        index.remove_hpa(&key("a"));
        assert!(index.hpas.is_empty());
    }

    #[test]
    fn the_name_of_an_autoscaler_whose_spec_changes_is_in_memory_once() {
        let mut index = Index::default();
        index.put_hpa(key("a"), hpa(&["x"]));
        index.put_hpa(key("a"), hpa(&["y"]));
        let [(_, user, _)] = &*index.published["shop"]["y"] else { panic!("it has one user") };
        assert!(index.hpas.keys().all(|known| Arc::ptr_eq(known, user)));
    }

    #[test]
    fn the_query_of_an_autoscaler_takes_precedence_over_the_name_in_an_hpa() {
        let mut index = Index::default();
        let mut publish = |name: &str, kind, query| {
            let metrics = vec![("x".to_owned(), metric(query).into())];
            index.publish(&key(name).into(), kind, Vec::new(), metrics);
        };
        publish("a", AutoscalerKind::Hpa, None);
        publish("z", AutoscalerKind::Autoscaler, Some("q"));
        assert_eq!(index.published("shop", "x", Per::Pod), Some(&Arc::new(metric(Some("q")))));
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
                owner: None,
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
