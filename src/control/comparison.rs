//! Compares Plimsoll's decisions for a native HPA with the scale changes of kube-controller-manager.
//! Plain state.

use crate::hpa::{ConditionKind, Status};
use crate::watch::HpaRecord;

/// The state of the comparison between evaluations of an observed HPA.
#[derive(Default)]
pub struct Comparison {
    /// When kube-controller-manager last changed the scale, in Unix seconds; none before the
    /// first comparison.
    kcm_last_scale_time: Option<Option<i64>>,
    /// In how many evaluations in a row only Plimsoll would have changed the scale.
    unmatched: u32,
}

/// Two decisions side by side.
#[derive(Clone, Copy)]
pub struct Decisions {
    /// The replicas that Plimsoll desires now, and desired in the previous evaluation.
    pub desired: i32,
    pub previous_desired: Option<i32>,
    /// The replicas that kube-controller-manager desires.
    pub kcm_desired: i32,
    /// Whether Plimsoll desires another number than the scale has.
    pub would_scale: bool,
    /// Whether Plimsoll could not decide.
    pub failed: bool,
}

/// The result of a comparison: the label of the metric `plimsoll_native_hpa_comparisons_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparisonResult {
    Agreed,
    Differed,
    /// Plimsoll could not decide.
    Failed,
}

impl ComparisonResult {
    /// The label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Agreed => "agreed",
            Self::Differed => "differed",
            Self::Failed => "failed",
        }
    }
}

/// After how many evaluations in a row in which only Plimsoll would have changed the scale that
/// counts as a difference: kube-controller-manager's period may be offset.
const UNMATCHED_THRESHOLD: u32 = 3;

impl Comparison {
    /// Starts again: the changes of the time in between are not known.
    pub fn reset(&mut self) {
        self.kcm_last_scale_time = None;
    }

    /// Compares an evaluation. There is a result if kube-controller-manager has changed the scale
    /// since the previous one, or if it has not for a while and Plimsoll would have. It decides up to
    /// one period earlier or later, so that either evaluation around its change may agree.
    pub fn compare(
        &mut self,
        record: &HpaRecord,
        decisions: Decisions,
    ) -> Option<ComparisonResult> {
        let last = record.status.last_scale_time.as_ref().map(|time| time.0.as_second());
        let scaled = self.kcm_last_scale_time.replace(last).is_some_and(|before| before != last);
        let status = Status::from_api(&record.status);
        let holds = |kind| status.condition(kind).is_some_and(|condition| condition.status);
        if !holds(ConditionKind::AbleToScale) || !holds(ConditionKind::ScalingActive) {
            self.unmatched = 0;
            return None;
        }
        let Decisions { desired, previous_desired, kcm_desired, would_scale, failed } = decisions;
        if scaled {
            self.unmatched = 0;
            return Some(match () {
                () if failed => ComparisonResult::Failed,
                () if desired == kcm_desired || previous_desired == Some(kcm_desired) => {
                    ComparisonResult::Agreed
                }
                () => ComparisonResult::Differed,
            });
        }
        self.unmatched = if would_scale && !failed { self.unmatched.saturating_add(1) } else { 0 };
        (self.unmatched == UNMATCHED_THRESHOLD).then_some(ComparisonResult::Differed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::read_hpa;
    use serde_json::json;

    fn record(last_scale_time: &str, desired: i32, active: &str) -> HpaRecord {
        let condition = |kind: &str, status: &str| json!({"type": kind, "status": status});
        let object = json!({
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"maxReplicas": 9, "scaleTargetRef": {
                "apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}},
            "status": {"desiredReplicas": desired, "lastScaleTime": last_scale_time, "conditions": [
                condition("AbleToScale", "True"), condition("ScalingActive", active)]},
        });
        read_hpa(serde_json::from_value(object).unwrap())
    }

    fn decisions(desired: i32, before: i32, kcm_desired: i32, now: i32) -> Decisions {
        Decisions {
            desired,
            previous_desired: Some(before),
            kcm_desired,
            would_scale: desired != now,
            failed: false,
        }
    }

    const FIRST: &str = "2026-01-01T00:00:00Z";
    const SECOND: &str = "2026-01-01T00:00:30Z";

    #[test]
    fn decisions_are_compared_when_kube_controller_manager_changes_the_scale() {
        for (desired, before, expected) in [
            (4, 2, ComparisonResult::Agreed),
            (2, 4, ComparisonResult::Agreed),
            (3, 2, ComparisonResult::Differed),
        ] {
            let mut comparison = Comparison::default();
            // An earlier change is not compared, and an unchanged scale says nothing.
            assert_eq!(comparison.compare(&record(FIRST, 2, "True"), decisions(2, 2, 2, 2)), None);
            assert_eq!(comparison.compare(&record(FIRST, 2, "True"), decisions(2, 2, 2, 2)), None);
            let scaled =
                comparison.compare(&record(SECOND, 4, "True"), decisions(desired, before, 4, 4));
            assert_eq!(scaled, Some(expected), "{desired} {before}");
            assert_eq!(comparison.compare(&record(SECOND, 4, "True"), decisions(4, 4, 4, 4)), None);
        }
        let mut comparison = Comparison::default();
        comparison.compare(&record(FIRST, 2, "True"), decisions(2, 2, 2, 2));
        let failed = Decisions { failed: true, ..decisions(4, 2, 4, 4) };
        assert_eq!(
            comparison.compare(&record(SECOND, 4, "True"), failed),
            Some(ComparisonResult::Failed)
        );
    }

    #[test]
    fn nothing_is_compared_before_kube_controller_manager_could_decide() {
        let mut comparison = Comparison::default();
        comparison.compare(&record(FIRST, 2, "True"), decisions(2, 2, 2, 2));
        let off = comparison.compare(&record(SECOND, 4, "False"), decisions(2, 2, 4, 4));
        assert_eq!(off, None);
        // A change that only Plimsoll would make is one difference, once that lasts.
        let told =
            (0..10).map(|_| comparison.compare(&record(SECOND, 4, "True"), decisions(7, 7, 4, 4)));
        let told: Vec<_> = told.collect();
        assert_eq!(told.iter().flatten().collect::<Vec<_>>(), [&ComparisonResult::Differed]);
        assert_eq!(told[2], Some(ComparisonResult::Differed));
    }
}
