//! Counts the native HPAs that are observed, and those that are not by reason.

use crate::telemetry::Metrics;
use crate::watch::ObjectKey;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Whether an HPA is evaluated beside kube-controller-manager, or why not: the label of the metric
/// `plimsoll_native_hpas`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShadowStatus {
    Yes,
    /// Another replica leads.
    NoLeader,
    /// Plimsoll does not serve one of its metrics.
    NoMetrics,
    /// The scales of its target's kind are not watched.
    NoScale,
}

impl ShadowStatus {
    const ALL: [Self; 4] = [Self::Yes, Self::NoLeader, Self::NoMetrics, Self::NoScale];

    fn as_str(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::NoLeader => "no_leader",
            Self::NoMetrics => "no_metrics",
            Self::NoScale => "no_scale",
        }
    }
}

/// The counts, shown in the metrics.
pub struct HpaCounts {
    metrics: Arc<Metrics>,
    all: Mutex<(HashMap<ObjectKey, ShadowStatus>, HashMap<ShadowStatus, usize>)>,
}

impl HpaCounts {
    /// One that shows its counts in these metrics.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, all: Mutex::default() }
    }

    /// Sets whether an HPA is observed; none if it is gone.
    pub fn set(&self, key: &ObjectKey, observed: Option<ShadowStatus>) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, counts) = &mut *all;
        if known.get(key).copied() == observed {
            return;
        }
        let before = match observed {
            Some(observed) => known.insert(key.clone(), observed),
            None => known.remove(key),
        };
        if let Some(before) = before {
            *counts.entry(before).or_insert(1) -= 1;
        }
        if let Some(observed) = observed {
            *counts.entry(observed).or_default() += 1;
        }
        for observed in ShadowStatus::ALL {
            let count = counts.get(&observed).copied().unwrap_or(0);
            self.metrics.observed(observed.as_str(), count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_follow_which_hpas_are_observed() {
        let metrics = Arc::new(Metrics::default());
        let hpa_counts = HpaCounts::new(metrics);
        let key = super::super::fake::autoscaler("web").key;
        hpa_counts.set(&key, Some(ShadowStatus::Yes));
        hpa_counts.set(&key, Some(ShadowStatus::NoMetrics));
        let counts = |hpa_counts: &HpaCounts| hpa_counts.all.lock().unwrap().1.clone();
        let now = counts(&hpa_counts);
        assert_eq!((now[&ShadowStatus::Yes], now[&ShadowStatus::NoMetrics]), (0, 1));
        hpa_counts.set(&key, None);
        assert!(counts(&hpa_counts).values().all(|count| *count == 0));
        assert!(hpa_counts.all.lock().unwrap().0.is_empty());
    }
}
