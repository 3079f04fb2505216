//! Whose pods are whose: the selectors of those who scale, found by the labels
//! of pods, so that a decision looks at its neighbours alone.

use super::run::Shared;
use crate::config::NativeHpas;
use crate::hpa::{self, Pod, Selected};
use crate::k8s::Selector;
use crate::k8s::selector::Operator;
use crate::watch::{Index, PodRecord, Subject, SubjectKind};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

/// The selectors of a cluster's autoscalers, by namespace.
#[derive(Default)]
pub struct Selectors(Mutex<HashMap<String, Namespace>>);

#[derive(Default)]
struct Namespace {
    all: HashMap<Subject, Selector>,
    /// Those that ask for a label's value, by one such label.
    by_label: HashMap<(String, String), BTreeSet<Subject>>,
    /// Those that do not.
    others: BTreeSet<Subject>,
}

/// A label and value without which a selector selects nothing.
fn label_of(selector: &Selector) -> Option<(String, String)> {
    selector.requirements().iter().find_map(|requirement| {
        match (requirement.operator, requirement.values.as_slice()) {
            (Operator::In, [value]) => Some((requirement.key.clone(), value.clone())),
            _ => None,
        }
    })
}

impl Namespace {
    fn set(&mut self, subject: &Subject, selector: Selector) {
        if self.all.get(subject) == Some(&selector) {
            return;
        }
        self.remove(subject);
        match label_of(&selector) {
            Some(label) => self.by_label.entry(label).or_default(),
            None => &mut self.others,
        }
        .insert(subject.clone());
        self.all.insert(subject.clone(), selector);
    }

    fn remove(&mut self, subject: &Subject) {
        let Some(selector) = self.all.remove(subject) else { return };
        self.others.remove(subject);
        if let Some(label) = label_of(&selector)
            && let Some(subjects) = self.by_label.get_mut(&label)
        {
            subjects.remove(subject);
            if subjects.is_empty() {
                self.by_label.remove(&label);
            }
        }
    }

    /// Those that may select one of these pods.
    fn near(&self, pods: &[&BTreeMap<String, String>]) -> BTreeSet<&Subject> {
        let labels: BTreeSet<(&String, &String)> = pods.iter().copied().flatten().collect();
        let by_label = labels
            .into_iter()
            .filter_map(|(label, value)| self.by_label.get(&(label.clone(), value.clone())));
        by_label.flatten().chain(&self.others).collect()
    }
}

impl Selectors {
    /// A subject sizes the pods that a selector selects; those of its namespace
    /// that select some of these pods too, itself among them, sorted.
    pub fn claim(
        &self,
        subject: &Subject,
        selector: Selector,
        pods: &[&BTreeMap<String, String>],
        counts: impl Fn(&Subject) -> bool,
    ) -> Vec<Subject> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let namespace = all.entry(subject.key.namespace.clone()).or_default();
        namespace.set(subject, selector);
        let near = namespace.near(pods).into_iter().filter(|other| counts(other));
        let near = near.filter_map(|other| Some((other, namespace.all.get(other)?)));
        hpa::selecting_autoscalers(pods, near).into_iter().cloned().collect()
    }

    /// A subject no longer sizes the pods that it selects.
    pub fn release(&self, subject: &Subject) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(namespace) = all.get_mut(&subject.key.namespace) {
            namespace.remove(subject);
            if namespace.all.is_empty() {
                all.remove(&subject.key.namespace);
            }
        }
    }
}

/// What a scale's selector selects, and who else selects some of the same.
pub struct Selection<'a> {
    parsed: Result<(), String>,
    /// The pods, by name.
    pub pods: Vec<(&'a str, &'a PodRecord)>,
    autoscalers: Vec<String>,
}

impl<'a> Selection<'a> {
    /// That of a subject's target.
    pub fn of(shared: &Shared, index: &'a Index, subject: &Subject, selector: &str) -> Self {
        let parsed: Selector = match selector.parse() {
            Ok(parsed) => parsed,
            Err(error) => {
                let parsed = Err(format!("{error}"));
                return Self { parsed, pods: Vec::new(), autoscalers: Vec::new() };
            }
        };
        let pods = index.select(&subject.key.namespace, &parsed);
        // Mostly they share one set of labels.
        let mut labels: Vec<&BTreeMap<String, String>> = Vec::new();
        for (_, pod) in &pods {
            if labels.last().is_none_or(|last| !std::ptr::eq(*last, &*pod.labels)) {
                labels.push(&pod.labels);
            }
        }
        if selector.is_empty() {
            return Self { parsed: Ok(()), pods, autoscalers: Vec::new() };
        }
        // Who manages the pods of a native HPA is for kube-controller-manager to
        // say, as long as it decides; it knows of native HPAs alone.
        let observing =
            subject.kind == SubjectKind::Hpa && shared.settings.native_hpas != NativeHpas::Manage;
        let counts = |other: &Subject| !observing || other.kind == SubjectKind::Hpa;
        let selecting = shared.selectors.claim(subject, parsed, &labels, counts);
        let autoscalers = selecting.iter().map(|other| subject.name_of(other)).collect();
        Self { parsed: Ok(()), pods, autoscalers }
    }

    /// What a decision sees of it.
    pub fn selected<'s>(&'s self, selector: &'s str, pods: &'s [Pod<'s>]) -> Selected<'s> {
        match &self.parsed {
            _ if selector.is_empty() => Selected::Missing,
            Err(error) => Selected::Invalid(error),
            Ok(()) if self.autoscalers.len() > 1 => {
                Selected::Ambiguous { selector, autoscalers: &self.autoscalers }
            }
            Ok(()) => Selected::Pods(pods),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::ObjectKey;

    #[test]
    fn those_who_select_the_same_pods_are_found_by_their_labels() {
        let subject = |name: &str| {
            Subject::autoscaler(ObjectKey { namespace: "shop".into(), name: name.into() })
        };
        let labels = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
        };
        let (web, api) = (labels(&[("app", "web"), ("tier", "a")]), labels(&[("app", "api")]));
        let selectors = Selectors::default();
        let claim = |name: &str, selector: &str, pods: &[&BTreeMap<String, String>]| {
            let found = selectors.claim(&subject(name), selector.parse().unwrap(), pods, |_| true);
            found.into_iter().map(|subject| subject.key.name).collect::<Vec<_>>()
        };
        assert_eq!(claim("a", "app=web", &[&web]), ["a"]);
        assert_eq!(claim("b", "app=api", &[&api]), ["b"]);
        assert_eq!(claim("c", "tier in (a,b)", &[&web]), ["a", "c"]);
        assert_eq!(claim("a", "app=web", &[&web]), ["a", "c"]);
        // It asks for other pods now.
        assert_eq!(claim("c", "app=api", &[&api]), ["b", "c"]);
        assert_eq!(claim("a", "app=web", &[&web]), ["a"]);
        selectors.release(&subject("c"));
        assert_eq!(claim("b", "app=api", &[&api]), ["b"]);
        for name in ["a", "b"] {
            selectors.release(&subject(name));
        }
        assert!(selectors.0.lock().unwrap().is_empty());
    }

    #[test]
    fn a_label_that_all_share_makes_nobody_a_neighbour() {
        let selectors = Selectors::default();
        let mut looked_at = 0;
        for number in 0..2_000 {
            let subject = super::super::fake::autoscaler(&format!("web-{number}"));
            let selector = format!("app=shop,component=c-{number}");
            let pods = [("app", "shop".to_owned()), ("component", format!("c-{number}"))];
            let pods = pods.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
            let counts = |_: &Subject| {
                looked_at += 1;
                true
            };
            let counts = std::cell::RefCell::new(counts);
            let found = selectors.claim(&subject, selector.parse().unwrap(), &[&pods], |other| {
                (counts.borrow_mut())(other)
            });
            assert_eq!(found, [subject]);
        }
        assert!(looked_at < 10_000, "{looked_at} selectors are looked at");
    }
}
