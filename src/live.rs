//! The current statuses. The objects in the cluster may show older ones: a write costs the control
//! plane more than the evaluation that it reports.

use crate::crd::{AutoscalerStatus, StatusNumbers, conditions};
use crate::hpa::Condition;
use crate::watch::{AutoscalerKind, AutoscalerRef};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// The latest status of each autoscaler. Cheap to clone.
#[derive(Clone, Default)]
pub struct LiveStatus(Arc<RwLock<HashMap<AutoscalerRef, Arc<CompactStatus>>>>);

/// A status in a third of the memory of its text: what conditions say is most of that, and is shared.
pub struct CompactStatus {
    /// All but the conditions, as JSON.
    rest: Box<str>,
    generation: Option<i64>,
    conditions: Box<[Condition]>,
    /// Those of an Autoscaler, for its metrics: a scrape does not parse the statuses of all.
    numbers: Option<Arc<StatusNumbers>>,
}

impl CompactStatus {
    /// A status whose conditions are these.
    pub fn new(kind: AutoscalerKind, mut status: AutoscalerStatus, said: &[Condition]) -> Self {
        let has_metrics = kind == AutoscalerKind::Autoscaler;
        let numbers = has_metrics.then(|| Arc::new(status.numbers()));
        status.conditions = None;
        Self {
            rest: status.to_json().into(),
            generation: status.observed_generation,
            conditions: said.into(),
            numbers,
        }
    }

    /// The status as JSON.
    pub fn to_json(&self) -> String {
        let conditions = conditions(&self.conditions, self.generation);
        let conditions = serde_json::to_string(&conditions).expect("conditions are JSON");
        let rest = self.rest.strip_suffix('}').expect("it is an object");
        let comma = if rest == "{" { "" } else { "," };
        format!("{rest}{comma}\"conditions\":{conditions}}}")
    }
}

impl LiveStatus {
    /// Sets the latest status, whose conditions are these, and returns it.
    pub fn set(
        &self,
        autoscaler: &AutoscalerRef,
        status: AutoscalerStatus,
        conditions: &[Condition],
    ) -> Arc<CompactStatus> {
        let latest = Arc::new(CompactStatus::new(autoscaler.kind, status, conditions));
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match all.get_mut(autoscaler) {
            Some(known) => *known = latest.clone(),
            None => drop(all.insert(autoscaler.clone(), latest.clone())),
        }
        latest
    }

    /// Removes the status of an autoscaler that is gone.
    pub fn remove(&self, autoscaler: &AutoscalerRef) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(autoscaler);
    }

    fn latest(&self, autoscaler: &AutoscalerRef) -> Option<Arc<CompactStatus>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(autoscaler).cloned()
    }

    /// The latest status as JSON, if any.
    pub fn get(&self, autoscaler: &AutoscalerRef) -> Option<String> {
        Some(self.latest(autoscaler)?.to_json())
    }

    /// The numbers of the latest status of an Autoscaler, if any.
    pub fn numbers(&self, autoscaler: &AutoscalerRef) -> Option<Arc<StatusNumbers>> {
        self.latest(autoscaler)?.numbers.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hpa::{ConditionKind, Reason, Status};

    #[test]
    fn a_compact_status_has_the_text_of_the_whole() {
        let mut said = Status::default();
        said.set(
            ConditionKind::AbleToScale,
            true,
            Reason::ReadyForNewScale,
            format_args!("a \"b\" }}"),
            1_000,
        );
        said.set(ConditionKind::Ready, false, Reason::Paused, format_args!(""), 2_000);
        for (targets, said) in [(Some("1/{2}"), &said), (None, &Status::default())] {
            let generation = targets.map(|_| 7);
            let status = AutoscalerStatus {
                targets: targets.map(str::to_owned),
                observed_generation: generation,
                conditions: Some(conditions(&said.conditions, generation)),
                ..AutoscalerStatus::default()
            };
            let whole = status.to_json();
            let compact = CompactStatus::new(AutoscalerKind::Hpa, status, &said.conditions);
            assert_eq!(compact.to_json(), whole);
        }
    }
}
