//! Who has which part of the memory, and how old that is: what is dropped next.

use crate::watch::AutoscalerRef;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Histories by the age of their oldest part, which is a resource version, and by their own address.
type ByAge = BTreeMap<(u64, usize), Arc<AutoscalerRef>>;

/// The histories by their age: of all, and of each namespace, which are known by their bytes.
#[derive(Debug, Default)]
pub(super) struct Shares {
    by_age: ByAge,
    namespaces: BTreeMap<Arc<str>, Share>,
    by_bytes: BTreeSet<(usize, Arc<str>)>,
}

#[derive(Debug, Default)]
struct Share {
    bytes: usize,
    by_age: ByAge,
}

/// The bytes of a history, and the age of its oldest part.
pub(super) type Part = (usize, Option<u64>);

impl Shares {
    /// A history has changed.
    pub fn change(&mut self, of: &Arc<AutoscalerRef>, before: Part, after: Part) {
        if before == after {
            return;
        }
        let namespace = match self.namespaces.get_key_value(&*of.key.namespace) {
            Some((name, _)) => name.clone(),
            None => of.key.namespace.as_str().into(),
        };
        let share = self.namespaces.entry(namespace.clone()).or_default();
        let address = Arc::as_ptr(of).addr();
        if before.1 != after.1 {
            for by_age in [&mut self.by_age, &mut share.by_age] {
                if let Some(age) = before.1 {
                    by_age.remove(&(age, address));
                }
                if let Some(age) = after.1 {
                    by_age.insert((age, address), of.clone());
                }
            }
        }
        self.by_bytes.remove(&(share.bytes, namespace.clone()));
        share.bytes = (share.bytes + after.0).saturating_sub(before.0);
        if share.by_age.is_empty() {
            self.namespaces.remove(&namespace);
        } else {
            self.by_bytes.insert((share.bytes, namespace));
        }
    }

    /// The history with the oldest part of all.
    pub fn oldest(&self) -> Option<&Arc<AutoscalerRef>> {
        self.by_age.values().next()
    }

    /// That of the namespace with the most bytes.
    pub fn oldest_of_largest(&self) -> Option<&Arc<AutoscalerRef>> {
        let (_, namespace) = self.by_bytes.last()?;
        self.namespaces.get(namespace)?.by_age.values().next()
    }
}
