//! The pods of a namespace, indexed by label. Pods of one workload mostly have equal labels
//! and requests, which are stored once.

use crate::hpa::{Phase, Pod, Ready, Requests};
use crate::k8s::LabelSet;
use crate::k8s::Selector;
use crate::k8s::selector::Operator;
use crate::time::UnixMillis;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The record of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodRecord {
    /// The labels, shared by pods with equal labels.
    pub labels: Arc<LabelSet>,
    /// The phase.
    pub phase: Phase,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// When the kubelet first saw the pod.
    pub start: Option<UnixMillis>,
    /// The Ready condition.
    pub ready: Option<Ready>,
    /// The resource requests, shared by pods with equal requests.
    pub requests: Arc<Requests>,
    /// The object that manages the pod, shared by pods of one.
    pub owner: Option<Arc<Owner>>,
}

/// The controller of an object: what its `ownerReferences` say manages it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The API group; empty for the core group.
    pub group: String,
    /// The kind.
    pub kind: String,
    /// The name.
    pub name: String,
    /// The UID.
    pub uid: String,
}

impl Owner {
    /// The controller among the owners of an object, if it has one. kube-apiserver takes any text for the parts of
    /// an owner: one that can't be that of an object is none.
    pub fn controller(owners: Option<&[OwnerReference]>) -> Option<Self> {
        let owner = owners?.iter().find(|owner| owner.controller == Some(true))?;
        let group = owner.api_version.rsplit_once('/').map_or("", |(group, _)| group);
        let is_name = |text: &str, most: usize| {
            let is_of_name = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
            text.len() <= most && text.chars().all(is_of_name) && ![".", ".."].contains(&text)
        };
        let parts = [(group, 253), (&owner.kind, 63), (&owner.name, 253), (&owner.uid, 64)];
        if !parts.iter().all(|(part, most)| is_name(part, *most)) {
            return None;
        }
        Some(Self {
            group: group.to_owned(),
            kind: owner.kind.clone(),
            name: owner.name.clone(),
            uid: owner.uid.clone(),
        })
    }
}

impl PodRecord {
    /// The pod as the HPA algorithm reads it.
    pub fn view<'a>(&'a self, name: &'a str) -> Pod<'a> {
        Pod {
            name,
            phase: self.phase,
            deleting: self.deleting,
            start: self.start,
            ready: self.ready,
            requests: &self.requests,
        }
    }
}

/// A pod with its name.
#[derive(Debug)]
struct Named {
    name: Box<str>,
    pod: PodRecord,
}

/// A pod that is found by its name.
#[derive(Debug)]
struct ByName(Arc<Named>);

impl Borrow<str> for ByName {
    fn borrow(&self) -> &str {
        &self.0.name
    }
}

impl PartialEq for ByName {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for ByName {}

impl Hash for ByName {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.0.name.hash(hasher);
    }
}

/// The pods of a namespace.
#[derive(Debug, Default)]
pub struct NamespacePods {
    by_name: HashSet<ByName>,
    /// By label set, its pods, sorted by name.
    by_labels: HashMap<Arc<LabelSet>, Vec<Arc<Named>>>,
    /// By label and value, the label sets that have it.
    by_label: HashMap<String, HashMap<String, HashSet<Arc<LabelSet>>>>,
    /// A number of the names and labels, which no other have had in this or another namespace.
    pub version: u64,
}

/// The place of a pod among those of its label set.
fn place(pods: &[Arc<Named>], name: &str) -> Result<usize, usize> {
    pods.binary_search_by(|one| (*one.name).cmp(name))
}

impl NamespacePods {
    /// Adds or replaces a pod. Returns whether it is new or has other labels.
    pub fn put(&mut self, name: &str, mut pod: PodRecord) -> bool {
        let is_known = self.get(name).is_some_and(|known| known.labels == pod.labels);
        if !is_known {
            self.remove(name);
        }
        if let Some((shared, _)) = self.by_labels.get_key_value(&pod.labels) {
            pod.labels = shared.clone();
        } else {
            for (label, value) in pod.labels.iter() {
                let values = self.by_label.entry(label.to_owned()).or_default();
                values.entry(value.to_owned()).or_default().insert(pod.labels.clone());
            }
        }
        let alike = self.by_labels.entry(pod.labels.clone()).or_default();
        let named = Arc::new(Named { name: name.into(), pod });
        match place(alike, name) {
            Ok(known) => alike[known] = named.clone(),
            Err(free) => alike.insert(free, named.clone()),
        }
        self.by_name.replace(ByName(named));
        !is_known
    }

    /// Removes a pod. Returns whether there was one.
    pub fn remove(&mut self, name: &str) -> bool {
        let Some(ByName(named)) = self.by_name.take(name) else { return false };
        let labels = &named.pod.labels;
        let Some(alike) = self.by_labels.get_mut(labels) else { return true };
        if let Ok(known) = place(alike, name) {
            alike.remove(known);
        }
        if !alike.is_empty() {
            return true;
        }
        self.by_labels.remove(labels);
        for (label, value) in labels.iter() {
            let Some(values) = self.by_label.get_mut(label) else { continue };
            if let Some(sets) = values.get_mut(value) {
                sets.remove(labels);
                if sets.is_empty() {
                    values.remove(value);
                }
            }
            if values.is_empty() {
                self.by_label.remove(label);
            }
        }
        true
    }

    /// Whether there are no pods.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// One pod.
    pub fn get(&self, name: &str) -> Option<&PodRecord> {
        self.by_name.get(name).map(|known| &known.0.pod)
    }

    /// The names of all pods.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.iter().map(|known| &*known.0.name)
    }

    /// The pods that match a selector, sorted by name.
    pub fn select(&self, selector: &Selector) -> Vec<(&str, &PodRecord)> {
        let selects = |labels: &&Arc<LabelSet>| selector.matches(|key| labels.get(key));
        let sets: Vec<&Arc<LabelSet>> = match self.narrowest(selector) {
            Some(sets) => sets.into_iter().flatten().filter(selects).collect(),
            None => self.by_labels.keys().filter(selects).collect(),
        };
        let pods = sets.into_iter().filter_map(|labels| self.by_labels.get(labels)).flatten();
        let mut selected: Vec<_> = pods.map(|one| (&*one.name, &one.pod)).collect();
        selected.sort_unstable_by_key(|(name, _)| *name);
        selected
    }

    /// The label sets of the most selective requirement of the form `label=value`; none if the
    /// selector has no such requirement.
    fn narrowest(&self, selector: &Selector) -> Option<Option<&HashSet<Arc<LabelSet>>>> {
        let equalities = selector.requirements().iter().filter_map(|requirement| {
            match (requirement.operator, requirement.values.as_slice()) {
                (Operator::In, [value]) => Some((&requirement.key, value)),
                _ => None,
            }
        });
        let sets = equalities.map(|(label, value)| self.by_label.get(label)?.get(value));
        sets.min_by_key(|sets| sets.map_or(0, HashSet::len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(labels: &[(&str, &str)]) -> PodRecord {
        let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        PodRecord {
            labels: Arc::new(labels),
            phase: Phase::Running,
            deleting: false,
            start: None,
            ready: None,
            requests: Arc::default(),
            owner: None,
        }
    }

    #[test]
    fn an_owner_that_can_be_no_object_is_none() {
        let long = "a".repeat(254);
        for (name, uid, is_one) in [
            ("web-5d4", "6b0f", true),
            ("system:web.a", "6b0f", true),
            ("web?watch=true", "6b0f", false),
            ("../../web", "6b0f", false),
            ("..", "6b0f", false),
            ("web\n", "6b0f", false),
            (&long, "6b0f", false),
            ("web", &long, false),
        ] {
            let owner = OwnerReference {
                api_version: "apps/v1".to_owned(),
                kind: "ReplicaSet".to_owned(),
                name: name.to_owned(),
                uid: uid.to_owned(),
                controller: Some(true),
                ..OwnerReference::default()
            };
            assert_eq!(Owner::controller(Some(&[owner])).is_some(), is_one, "{name}");
        }
    }

    #[test]
    fn pods_are_selected_by_label_and_share_equal_labels() {
        let mut pods = NamespacePods::default();
        pods.put("b", pod(&[("app", "web"), ("tier", "x")]));
        pods.put("a", pod(&[("app", "web"), ("tier", "x")]));
        pods.put("c", pod(&[("app", "api"), ("tier", "x")]));
        let names = |pods: &NamespacePods, selector: &str| -> Vec<String> {
            let selected = pods.select(&selector.parse().unwrap());
            selected.into_iter().map(|(name, _)| name.to_owned()).collect()
        };
        for (selector, expected) in [
            ("app=web", vec!["a", "b"]),
            ("tier=x,app=api", vec!["c"]),
            ("app in (api,web)", vec!["a", "b", "c"]),
            ("app!=web", vec!["c"]),
            ("", vec!["a", "b", "c"]),
            ("app=none", vec![]),
            ("none", vec![]),
        ] {
            assert_eq!(names(&pods, selector), expected, "{selector}");
        }
        assert!(Arc::ptr_eq(&pods.get("a").unwrap().labels, &pods.get("b").unwrap().labels));
        // A pod whose labels change is found only by the new ones.
        pods.put("a", pod(&[("app", "api")]));
        assert_eq!(names(&pods, "app=web"), ["b"]);
        assert_eq!(names(&pods, "app=api"), ["a", "c"]);
        for name in ["a", "b", "c"] {
            pods.remove(name);
        }
        assert!(pods.is_empty() && pods.by_labels.is_empty() && pods.by_label.is_empty());
    }
}
