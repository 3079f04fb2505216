//! The current statuses. The objects in the cluster may show older ones: a write costs the control
//! plane more than the evaluation that it reports.

use crate::crd::{AutoscalerStatus, StatusNumbers};
use crate::watch::{AutoscalerKind, AutoscalerRef};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// The latest status of each autoscaler. Cheap to clone.
#[derive(Clone, Default)]
pub struct LiveStatus(Arc<RwLock<HashMap<AutoscalerRef, Latest>>>);

/// A status as JSON: as an object it would take four times the memory.
struct Latest {
    text: Arc<str>,
    /// Those of an Autoscaler, for its metrics: a scrape does not parse the statuses of all.
    numbers: Option<Arc<StatusNumbers>>,
}

impl LiveStatus {
    /// Sets the latest status. Returns it as JSON.
    pub fn set(&self, autoscaler: &AutoscalerRef, status: &AutoscalerStatus) -> Arc<str> {
        let text = status.to_json();
        let has_metrics = autoscaler.kind == AutoscalerKind::Autoscaler;
        let numbers = has_metrics.then(|| Arc::new(status.numbers()));
        let latest = Latest { text: text.clone(), numbers };
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match all.get_mut(autoscaler) {
            Some(known) => *known = latest,
            None => drop(all.insert(autoscaler.clone(), latest)),
        }
        text
    }

    /// Removes the status of an autoscaler that is gone.
    pub fn remove(&self, autoscaler: &AutoscalerRef) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(autoscaler);
    }

    /// The latest status as JSON, if any.
    pub fn get(&self, autoscaler: &AutoscalerRef) -> Option<Arc<str>> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        Some(all.get(autoscaler)?.text.clone())
    }

    /// The numbers of the latest status of an Autoscaler, if any.
    pub fn numbers(&self, autoscaler: &AutoscalerRef) -> Option<Arc<StatusNumbers>> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        all.get(autoscaler)?.numbers.clone()
    }
}
