//! Compares Plimsoll's decisions for a native HPA with the steps of kube-controller-manager.
//! Plain state.

use crate::hpa::{ConditionKind, Status};
use crate::watch::HpaRecord;

/// What is kept of an observed HPA from one evaluation to the next.
#[derive(Default)]
pub struct Comparison {
    /// When kube-controller-manager last changed the scale, in Unix seconds; none before the
    /// first look.
    step: Option<Option<i64>>,
    /// In how many evaluations in a row only Plimsoll would have changed the scale.
    unmatched: u32,
}

/// Two decisions side by side.
#[derive(Clone, Copy)]
pub struct Decisions {
    /// The replicas that Plimsoll desires, and desired in the evaluation before.
    pub ours: i32,
    pub before: Option<i32>,
    /// The replicas that kube-controller-manager desires.
    pub theirs: i32,
    /// Whether Plimsoll desires another number than the scale has.
    pub changes: bool,
    /// Whether Plimsoll could not decide.
    pub failed: bool,
}

/// How a step compared: the label of the metric `plimsoll_native_hpa_comparisons_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    Agreed,
    Differed,
    /// Plimsoll could not decide.
    Failed,
}

impl Compared {
    /// The label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Agreed => "agreed",
            Self::Differed => "differed",
            Self::Failed => "failed",
        }
    }
}

/// After how many evaluations in which only Plimsoll would have changed the scale that counts
/// as a difference: kube-controller-manager decides at times of its own.
const UNMATCHED: u32 = 3;

impl Comparison {
    /// Starts again: the steps of the time in between are not known.
    pub fn reset(&mut self) {
        self.step = None;
    }

    /// Compares an evaluation. There is a result where kube-controller-manager has changed the
    /// scale since the one before, or has not for a while where Plimsoll would have. It decides
    /// up to one period before or after, so that either evaluation around its step may agree.
    pub fn compare(&mut self, record: &HpaRecord, decisions: Decisions) -> Option<Compared> {
        let step = record.status.last_scale_time.as_ref().map(|time| time.0.as_second());
        let stepped = self.step.replace(step).is_some_and(|before| before != step);
        let status = Status::from_api(&record.status);
        let holds = |kind| status.condition(kind).is_some_and(|condition| condition.status);
        if !holds(ConditionKind::AbleToScale) || !holds(ConditionKind::ScalingActive) {
            self.unmatched = 0;
            return None;
        }
        let Decisions { ours, before, theirs, changes, failed } = decisions;
        if stepped {
            self.unmatched = 0;
            return Some(match () {
                () if failed => Compared::Failed,
                () if ours == theirs || before == Some(theirs) => Compared::Agreed,
                () => Compared::Differed,
            });
        }
        self.unmatched = if changes && !failed { self.unmatched.saturating_add(1) } else { 0 };
        (self.unmatched == UNMATCHED).then_some(Compared::Differed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::read_hpa;
    use serde_json::json;

    fn record(stepped: &str, desired: i32, active: &str) -> HpaRecord {
        let condition = |kind: &str, status: &str| json!({"type": kind, "status": status});
        let object = json!({
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"maxReplicas": 9, "scaleTargetRef": {
                "apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}},
            "status": {"desiredReplicas": desired, "lastScaleTime": stepped, "conditions": [
                condition("AbleToScale", "True"), condition("ScalingActive", active)]},
        });
        read_hpa(serde_json::from_value(object).unwrap())
    }

    fn decisions(ours: i32, before: i32, theirs: i32, now: i32) -> Decisions {
        Decisions { ours, before: Some(before), theirs, changes: ours != now, failed: false }
    }

    const FIRST: &str = "2026-01-01T00:00:00Z";
    const SECOND: &str = "2026-01-01T00:00:30Z";

    #[test]
    fn decisions_are_compared_where_kube_controller_manager_changes_the_scale() {
        for (ours, before, expected) in
            [(4, 2, Compared::Agreed), (2, 4, Compared::Agreed), (3, 2, Compared::Differed)]
        {
            let mut comparison = Comparison::default();
            // What was done before is not looked at, and a scale that stays says nothing.
            assert_eq!(comparison.compare(&record(FIRST, 2, "True"), decisions(2, 2, 2, 2)), None);
            assert_eq!(comparison.compare(&record(FIRST, 2, "True"), decisions(2, 2, 2, 2)), None);
            let stepped =
                comparison.compare(&record(SECOND, 4, "True"), decisions(ours, before, 4, 4));
            assert_eq!(stepped, Some(expected), "{ours} {before}");
            assert_eq!(comparison.compare(&record(SECOND, 4, "True"), decisions(4, 4, 4, 4)), None);
        }
        let mut comparison = Comparison::default();
        comparison.compare(&record(FIRST, 2, "True"), decisions(2, 2, 2, 2));
        let failed = Decisions { failed: true, ..decisions(4, 2, 4, 4) };
        assert_eq!(comparison.compare(&record(SECOND, 4, "True"), failed), Some(Compared::Failed));
    }

    #[test]
    fn where_it_can_not_decide_or_has_had_no_time_to_nothing_is_compared() {
        let mut comparison = Comparison::default();
        comparison.compare(&record(FIRST, 2, "True"), decisions(2, 2, 2, 2));
        let off = comparison.compare(&record(SECOND, 4, "False"), decisions(2, 2, 4, 4));
        assert_eq!(off, None);
        // A change that only Plimsoll would make is one difference, once that lasts.
        let told =
            (0..10).map(|_| comparison.compare(&record(SECOND, 4, "True"), decisions(7, 7, 4, 4)));
        let told: Vec<_> = told.collect();
        assert_eq!(told.iter().flatten().collect::<Vec<_>>(), [&Compared::Differed]);
        assert_eq!(told[2], Some(Compared::Differed));
    }
}
