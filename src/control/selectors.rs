//! Which autoscalers size which pods: an inverted index from pod labels to selectors, so that an
//! evaluation looks only at selectors that may match the same pods.

use super::owners::Owned;
use super::targets::Target;
use crate::crd::SelectionStrategy;
use crate::hpa::{self, Pod, Selected, TargetRef};
use crate::k8s::selector::{Operator, Requirement};
use crate::k8s::{LabelSet, Selector};
use crate::watch::{AutoscalerKind, AutoscalerRecord, AutoscalerRef, Index, PodRecord};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The selectors of a cluster's autoscalers, by namespace. Each namespace has its own lock, so that a
/// large one blocks no other.
#[derive(Default)]
pub struct Selectors {
    namespaces: Mutex<HashMap<String, Arc<Mutex<NamespaceSelectors>>>>,
    /// Whether Plimsoll decides for native HPAs in place of kube-controller-manager.
    manages_native_hpas: bool,
}

/// The selectors of a namespace, indexed by label. Each is indexed by the one of its requirements
/// that the fewest others share: if all require `app=shop`, each is indexed by its `component`.
#[derive(Default)]
struct NamespaceSelectors {
    all: HashMap<AutoscalerRef, Selector>,
    /// How many selectors require a label, or one of these values of it.
    required: HashMap<String, Required>,
    /// Selectors that require no label, such as `tier!=cache`: candidates for all pods.
    others: BTreeSet<AutoscalerRef>,
}

#[derive(Default)]
struct Required {
    /// The selectors by required value.
    values: HashMap<String, Users>,
    /// Those that require the label, whatever its value.
    any: Users,
}

#[derive(Default)]
struct Users {
    count: usize,
    /// In their order: of most labels with a value there is one.
    found: Vec<AutoscalerRef>,
}

impl Users {
    fn insert(&mut self, autoscaler: &AutoscalerRef) {
        if let Err(place) = self.found.binary_search(autoscaler) {
            if self.found.is_empty() {
                self.found.reserve_exact(1);
            }
            self.found.insert(place, autoscaler.clone());
        }
    }

    fn remove(&mut self, autoscaler: &AutoscalerRef) {
        if let Ok(place) = self.found.binary_search(autoscaler) {
            self.found.remove(place);
        }
    }
}

/// The label and values that a requirement demands of a pod; none if it demands an absence.
fn demanded(requirement: &Requirement) -> Option<(&str, &[String])> {
    match requirement.operator {
        Operator::In => Some((&requirement.key, &requirement.values)),
        Operator::Exists | Operator::GreaterThan | Operator::LessThan => {
            Some((&requirement.key, &[]))
        }
        Operator::NotIn | Operator::DoesNotExist => None,
    }
}

impl Required {
    /// Visits the entries of these values, or the entry of any value if none is given, and removes
    /// those that are no longer used.
    fn visit(&mut self, values: &[String], mut visit: impl FnMut(&mut Users)) {
        if values.is_empty() {
            return visit(&mut self.any);
        }
        for value in values {
            let users = self.values.entry(value.clone()).or_default();
            visit(users);
            if users.count == 0 {
                self.values.remove(value);
            }
        }
    }

    fn is_unused(&self) -> bool {
        self.values.is_empty() && self.any.count == 0
    }
}

impl NamespaceSelectors {
    fn set(&mut self, autoscaler: &AutoscalerRef, selector: &Selector) {
        if self.all.get(autoscaler) == Some(selector) {
            return;
        }
        self.remove(autoscaler);
        let mut rarest: Option<(usize, &Requirement)> = None;
        for requirement in selector.requirements() {
            let Some((label, values)) = demanded(requirement) else { continue };
            let required = self.required.entry(label.to_owned()).or_default();
            let mut count = 0;
            required.visit(values, |users| {
                count += users.count;
                users.count += 1;
            });
            if rarest.is_none_or(|(fewest, _)| count < fewest) {
                rarest = Some((count, requirement));
            }
        }
        match rarest.and_then(|(_, requirement)| demanded(requirement)) {
            Some((label, values)) => {
                let required = self.required.entry(label.to_owned()).or_default();
                required.visit(values, |users| users.insert(autoscaler));
            }
            None => {
                self.others.insert(autoscaler.clone());
            }
        }
        self.all.insert(autoscaler.clone(), selector.clone());
    }

    fn remove(&mut self, autoscaler: &AutoscalerRef) {
        let Some(selector) = self.all.remove(autoscaler) else { return };
        self.others.remove(autoscaler);
        for (label, values) in selector.requirements().iter().filter_map(demanded) {
            let Some(required) = self.required.get_mut(label) else { continue };
            required.visit(values, |users| {
                users.count = users.count.saturating_sub(1);
                users.remove(autoscaler);
            });
            if required.is_unused() {
                self.required.remove(label);
            }
        }
    }

    /// The autoscalers whose selectors may match one of these pods.
    fn candidates(&self, pods: &[&LabelSet]) -> BTreeSet<&AutoscalerRef> {
        let labels: HashSet<(&str, &str)> = pods.iter().flat_map(|labels| labels.iter()).collect();
        let mut candidates: BTreeSet<&AutoscalerRef> = self.others.iter().collect();
        for (label, value) in labels {
            let Some(required) = self.required.get(label) else { continue };
            candidates.extend(&required.any.found);
            candidates
                .extend(required.values.get(value).into_iter().flat_map(|users| &users.found));
        }
        candidates
    }
}

impl Selectors {
    /// An empty index.
    pub fn new(manages_native_hpas: bool) -> Self {
        Self { namespaces: Mutex::default(), manages_native_hpas }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Arc<Mutex<NamespaceSelectors>>>> {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the selector of an autoscaler. Returns the autoscalers of its namespace that select
    /// some of these pods, sorted, itself included.
    pub fn claim(
        &self,
        autoscaler: &AutoscalerRef,
        selector: &Selector,
        pods: &[&LabelSet],
        counts: impl Fn(&AutoscalerRef) -> bool,
    ) -> Vec<AutoscalerRef> {
        let namespace = {
            let mut all = self.all();
            match all.get(&autoscaler.key.namespace) {
                Some(namespace) => namespace.clone(),
                None => all.entry(autoscaler.key.namespace.clone()).or_default().clone(),
            }
        };
        let mut namespace = namespace.lock().unwrap_or_else(PoisonError::into_inner);
        namespace.set(autoscaler, selector);
        let candidates = namespace.candidates(pods).into_iter().filter(|other| counts(other));
        let candidates = candidates.filter_map(|other| Some((other, namespace.all.get(other)?)));
        hpa::selecting_autoscalers(pods, candidates).into_iter().cloned().collect()
    }

    /// The pods that the selector of an autoscaler's target selects. If `claims`, the selector is
    /// registered, too, unless the autoscaler was deleted during its evaluation.
    pub fn select<'a>(
        &self,
        index: &'a Index,
        autoscaler: &AutoscalerRef,
        target: Option<&Target>,
        claims: bool,
    ) -> Selection<'a> {
        let selection =
            |parsed, pods, autoscalers| Selection { parsed, unowned: None, pods, autoscalers };
        let nothing = |parsed| selection(parsed, Vec::new(), Vec::new());
        // An empty selector would select all pods of the namespace.
        let target = target.filter(|target| !target.selector.is_empty());
        let Some(Target { parsed_selector, .. }) = target else { return nothing(Ok(())) };
        let selector = match parsed_selector {
            Ok(selector) => selector,
            Err(error) => return nothing(Err(error.to_string())),
        };
        let pods = index.select(&autoscaler.key.namespace, selector);
        if !claims || !index.has(autoscaler) {
            return selection(Ok(()), pods, Vec::new());
        }
        // Pods of one template share one label set.
        let mut labels: Vec<&LabelSet> = Vec::new();
        for (_, pod) in &pods {
            if labels.last().is_none_or(|last| !std::ptr::eq(*last, &*pod.labels)) {
                labels.push(&pod.labels);
            }
        }
        // As long as kube-controller-manager decides for native HPAs, it also says which
        // selectors are ambiguous; it knows only native HPAs.
        let observing = autoscaler.kind == AutoscalerKind::Hpa && !self.manages_native_hpas;
        // One that counts its target's own pods alone shares them with those of the same target.
        let by_owner = is_by_owner(index, autoscaler).then(|| target_of(index, autoscaler));
        let counts = |other: &AutoscalerRef| {
            let is_of_target = |target: &Option<_>| target_of(index, other) == *target;
            (!observing || other.kind == AutoscalerKind::Hpa)
                && by_owner.as_ref().is_none_or(is_of_target)
        };
        let selecting = self.claim(autoscaler, selector, &labels, counts);
        let autoscalers = selecting.iter().map(|other| autoscaler.name_of(other)).collect();
        selection(Ok(()), pods, autoscalers)
    }

    /// Removes the selector of an autoscaler that no longer sizes pods.
    pub fn release(&self, autoscaler: &AutoscalerRef) {
        let mut all = self.all();
        let Some(namespace) = all.get_mut(&autoscaler.key.namespace) else { return };
        let empty = {
            let mut namespace = namespace.lock().unwrap_or_else(PoisonError::into_inner);
            namespace.remove(autoscaler);
            namespace.all.is_empty()
        };
        // A claim in progress holds a reference, and can only get one under the outer lock.
        if empty && Arc::strong_count(namespace) == 1 {
            all.remove(&autoscaler.key.namespace);
        }
    }
}

/// Whether only the pods count for an autoscaler that its target controls.
fn is_by_owner(index: &Index, autoscaler: &AutoscalerRef) -> bool {
    let of = |record: Arc<AutoscalerRecord>| record.parsed.as_ref().ok()?.spec.selection_strategy;
    autoscaler.kind == AutoscalerKind::Autoscaler
        && index.autoscaler(&autoscaler.key).and_then(of) == Some(SelectionStrategy::OwnerReference)
}

/// What an autoscaler sizes: the group, kind and name.
fn target_of(index: &Index, autoscaler: &AutoscalerRef) -> Option<(String, String, String)> {
    let of = |target: &TargetRef| {
        let group = hpa::parse_group(&target.api_version).ok()?;
        Some((group.to_owned(), target.kind.clone(), target.name.clone()))
    };
    match autoscaler.kind {
        AutoscalerKind::Autoscaler => {
            let record = index.autoscaler(&autoscaler.key)?;
            of(&record.parsed.as_ref().ok()?.scaling.spec.target)
        }
        AutoscalerKind::Hpa => of(&index.hpa(&autoscaler.key)?.scaling.spec.target),
    }
}

/// The pods that a scale's selector selects, and the autoscalers that select some of them, too.
pub struct Selection<'a> {
    parsed: Result<(), String>,
    /// Why the owners of the pods are unknown.
    unowned: Option<String>,
    /// The pods, by name.
    pub pods: Vec<(&'a str, &'a PodRecord)>,
    autoscalers: Vec<String>,
}

impl<'a> Selection<'a> {
    /// Keeps only the pods that count.
    pub fn keep(&mut self, owned: &Owned) {
        match owned {
            Owned::All => {}
            Owned::By(Ok(owners)) => self.pods.retain(|(_, pod)| {
                pod.owner.as_ref().is_some_and(|owner| owners.contains(&owner.uid))
            }),
            Owned::By(Err(error)) => self.unowned = Some(error.clone()),
        }
    }

    /// The selection as an input of the decision.
    pub fn selected<'s>(&'s self, selector: &'s str, pods: &'s [Pod<'s>]) -> Selected<'s> {
        match &self.parsed {
            _ if selector.is_empty() => Selected::Missing,
            Err(error) => Selected::Invalid(error),
            Ok(()) if self.autoscalers.len() > 1 => {
                Selected::Ambiguous { selector, autoscalers: &self.autoscalers }
            }
            Ok(()) => match &self.unowned {
                Some(error) => Selected::Unowned(error),
                None => Selected::Pods(pods),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::{ObjectKey, read_autoscaler, read_pod};

    #[test]
    fn autoscalers_of_the_same_pods_are_found_by_labels() {
        let autoscaler = |name: &str| {
            AutoscalerRef::autoscaler(ObjectKey { namespace: "shop".into(), name: name.into() })
        };
        let labels = |pairs: &[(&str, &str)]| -> LabelSet {
            pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
        };
        let (web, api) = (labels(&[("app", "web"), ("tier", "a")]), labels(&[("app", "api")]));
        let selectors = Selectors::default();
        let claim = |name: &str, selector: &str, pods: &[&LabelSet]| {
            let found =
                selectors.claim(&autoscaler(name), &selector.parse().unwrap(), pods, |_| true);
            found.into_iter().map(|autoscaler| autoscaler.key.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(claim("a", "app=web", &[&web]), ["a"]);
        assert_eq!(claim("b", "app=api", &[&api]), ["b"]);
        assert_eq!(claim("c", "tier in (a,b)", &[&web]), ["a", "c"]);
        assert_eq!(claim("a", "app=web", &[&web]), ["a", "c"]);
        // It selects other pods now.
        assert_eq!(claim("c", "app=api", &[&api]), ["b", "c"]);
        assert_eq!(claim("a", "app=web", &[&web]), ["a"]);
        // By any value of a label, and by the absence of one.
        assert_eq!(claim("c", "tier", &[&web]), ["a", "c"]);
        assert_eq!(claim("c", "app!=api,!batch", &[&web]), ["a", "c"]);
        assert_eq!(claim("b", "app=api", &[&api]), ["b"]);
        assert_eq!(claim("c", "app=web,tier in (a,b)", &[&web]), ["a", "c"]);
        selectors.release(&autoscaler("c"));
        assert_eq!(claim("b", "app=api", &[&api]), ["b"]);
        for name in ["a", "b"] {
            selectors.release(&autoscaler(name));
        }
        assert!(selectors.namespaces.lock().unwrap().is_empty());
    }

    /// Whom each of two autoscalers of the pods `app=web` shares them with.
    fn shared(specs: [(&str, &str); 2]) -> [usize; 2] {
        let mut index = Index::default();
        let names = ["a", "b"];
        for (name, (target, strategy)) in names.into_iter().zip(specs) {
            let (version, target) = target.split_once(' ').expect("a version and a name");
            let object = serde_json::json!({"metadata": {"name": name, "namespace": "shop", "uid": name},
                "spec": {"maxReplicas": 3, "selectionStrategy": strategy,
                    "scaleTargetRef": {"apiVersion": version, "kind": "Deployment", "name": target}}});
            let record = read_autoscaler(serde_json::from_value(object).expect("an object"), None);
            let key = super::super::fake::autoscaler(name).key;
            index.put_autoscaler(key, record);
        }
        let pod = serde_json::json!({"metadata": {"labels": {"app": "web"}},
            "spec": {"containers": []}, "status": {"phase": "Running"}});
        let key = ObjectKey { namespace: "shop".into(), name: "web-1".into() };
        index.put_pod(key, read_pod(serde_json::from_value(pod).expect("a pod")));
        let selectors = Selectors::default();
        let target = Target {
            replicas: hpa::Scale { spec_replicas: 1, status_replicas: 1 },
            selector: "app=web".into(),
            parsed_selector: "app=web".parse(),
            object: None,
        };
        let share = |name: &str| {
            let autoscaler = super::super::fake::autoscaler(name);
            selectors.select(&index, &autoscaler, Some(&target), true).autoscalers.len()
        };
        let _ = names.map(share);
        names.map(share)
    }

    #[test]
    fn those_that_count_their_own_pods_share_them_with_those_of_the_same_target() {
        let (labels, owner) = ("LabelSelector", "OwnerReference");
        for (specs, expected) in [
            ([("apps/v1 web", labels), ("apps/v1 api", labels)], [2, 2]),
            ([("apps/v1 web", owner), ("apps/v1 api", owner)], [1, 1]),
            // By labels it still has the pods of the other.
            ([("apps/v1 web", labels), ("apps/v1 api", owner)], [2, 1]),
            ([("apps/v1 web", owner), ("apps/v1 web", labels)], [2, 2]),
            ([("apps/v1 web", owner), ("apps/v1beta2 web", owner)], [2, 2]),
        ] {
            assert_eq!(shared(specs), expected, "{specs:?}");
        }
    }

    #[test]
    fn a_label_that_all_selectors_share_makes_none_a_candidate() {
        let selectors = Selectors::default();
        let mut candidates = 0;
        for number in 0..2_000 {
            let autoscaler = super::super::fake::autoscaler(&format!("web-{number}"));
            let selector = format!("app=shop,component=c-{number}");
            let pods = [("app", "shop".to_owned()), ("component", format!("c-{number}"))];
            let pods = pods.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
            let counts = |_: &AutoscalerRef| {
                candidates += 1;
                true
            };
            let counts = std::cell::RefCell::new(counts);
            let found =
                selectors.claim(&autoscaler, &selector.parse().unwrap(), &[&pods], |other| {
                    (counts.borrow_mut())(other)
                });
            assert_eq!(found, [autoscaler]);
        }
        assert!(candidates < 10_000, "{candidates} candidates");
    }
}
