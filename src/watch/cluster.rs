//! The index, shared between the reflectors and its readers, with notifications of changes.

use super::autoscaler_ref::AutoscalerRef;
use super::index::Index;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use tokio::sync::{Notify, watch};

/// The index of the cluster, with notifications of changes. Cheap to clone.
#[derive(Clone, Default)]
pub struct Cluster(Arc<Inner>);

#[derive(Default)]
struct Inner {
    index: RwLock<Index>,
    /// The autoscalers whose spec changed since [`Cluster::changes`] last returned.
    dirty: Mutex<BTreeSet<AutoscalerRef>>,
    dirtied: Notify,
    /// The namespaces whose MetricRules changed since [`Cluster::metric_rule_changes`] last returned.
    dirty_rules: Mutex<BTreeSet<String>>,
    rules_dirtied: Notify,
    /// Counts the changes of published metrics.
    published: watch::Sender<u64>,
}

impl Cluster {
    /// Reads the index. `read` should be brief: it blocks the reflectors.
    pub fn read<T>(&self, read: impl FnOnce(&Index) -> T) -> T {
        read(&self.0.index.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the index.
    pub fn write<T>(&self, change: impl FnOnce(&mut Index) -> T) -> T {
        change(&mut self.0.index.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notifies that an autoscaler was added, changed or deleted.
    pub fn changed(&self, autoscaler: AutoscalerRef) {
        self.0.dirty.lock().unwrap_or_else(PoisonError::into_inner).insert(autoscaler);
        self.0.dirtied.notify_one();
        self.0.published.send_modify(|changes| *changes += 1);
    }

    /// Waits for changes, and returns the changed autoscalers.
    pub async fn changes(&self) -> BTreeSet<AutoscalerRef> {
        loop {
            let dirty =
                std::mem::take(&mut *self.0.dirty.lock().unwrap_or_else(PoisonError::into_inner));
            if !dirty.is_empty() {
                return dirty;
            }
            self.0.dirtied.notified().await;
        }
    }

    /// Notifies that a MetricRule of a namespace was added, changed or deleted.
    pub fn metric_rule_changed(&self, namespace: String) {
        self.0.dirty_rules.lock().unwrap_or_else(PoisonError::into_inner).insert(namespace);
        self.0.rules_dirtied.notify_one();
    }

    /// Waits for changes of MetricRules, and returns the namespaces. Only one task may wait.
    pub async fn metric_rule_changes(&self) -> BTreeSet<String> {
        loop {
            let dirty = std::mem::take(
                &mut *self.0.dirty_rules.lock().unwrap_or_else(PoisonError::into_inner),
            );
            if !dirty.is_empty() {
                return dirty;
            }
            self.0.rules_dirtied.notified().await;
        }
    }

    /// Counts the changes of published metrics.
    pub fn watch_published(&self) -> watch::Receiver<u64> {
        self.0.published.subscribe()
    }
}
