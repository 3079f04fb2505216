//! The current statuses. The objects in the cluster may show older ones: a write costs the control
//! plane more than the evaluation that it reports.

use crate::watch::AutoscalerRef;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// The latest status of each autoscaler, as JSON: as objects they would take four times the memory.
#[derive(Clone, Default)]
pub struct LiveStatus(Arc<RwLock<HashMap<AutoscalerRef, Arc<str>>>>);

impl LiveStatus {
    /// Sets the latest status.
    pub fn set(&self, autoscaler: &AutoscalerRef, status: Arc<str>) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match all.get_mut(autoscaler) {
            Some(known) => *known = status,
            None => drop(all.insert(autoscaler.clone(), status)),
        }
    }

    /// Removes the status of an autoscaler that is gone.
    pub fn remove(&self, autoscaler: &AutoscalerRef) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(autoscaler);
    }

    /// The latest status, if any.
    pub fn get(&self, autoscaler: &AutoscalerRef) -> Option<Arc<str>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(autoscaler).cloned()
    }
}
